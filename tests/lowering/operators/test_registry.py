"""The registry of converters: what is in it, what is left to TVM, and that nothing is in it twice."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from looplift.lowering import tvm_onnx
from looplift.lowering.operators.registry import BY_TVM, CONVERTERS, Accepts, converts, find


def test_converters_are_of_standard_operators_and_a_few_of_onnxruntime() -> None:
    schemas = onnx.defs.get_all_schemas_with_history()
    standard = {f"{schema.domain}::{schema.name}".removeprefix("::") for schema in schemas}
    # Those of onnxruntime that no standard operators compute exactly, or as compactly, and one
    # whose step may be omitted.
    quantised = [
        "Add",
        "AveragePool",
        "Concat",
        "GlobalAveragePool",
        "LeakyRelu",
        "Mul",
        "Sigmoid",
        "Softmax",
        "Where",
    ]
    others = (
        "CDist",
        "GatherBlockQuantized",
        "Inverse",
        "MatMulNBits",
        "NhwcMaxPool",
        "QGemm",
        "Range",
    )
    contrib = {f"com.microsoft::{op}" for op in others}
    contrib |= {*(f"com.microsoft::QLinear{op}" for op in quantised)}
    assert CONVERTERS.keys() - standard == contrib


def test_every_converter_of_looplift_is_tested() -> None:
    files = Path(__file__).parent.glob("test_*.py")
    words = {word for path in files for word in re.findall(r"\w+", path.read_text())}
    names = {name.rpartition("::")[2] for name in CONVERTERS}
    assert sorted(names - words) == []


def test_an_operator_cannot_have_two_converters() -> None:
    with pytest.raises(ValueError, match="Squeeze is registered twice: squeeze, sum_by_tvm"):
        converts("Squeeze")(CONVERTERS["Softmax"].convert)
    assert CONVERTERS["Squeeze"].convert.__name__ == "squeeze"


def test_converters_of_either_name_of_the_standard_domain() -> None:
    for domain in ("", "ai.onnx"):
        assert find(domain, "Squeeze") is CONVERTERS["Squeeze"]
        assert find(domain, "Relu") is BY_TVM
        assert find(domain, "StringNormalizer") is None


def test_operators_of_com_microsoft_are_left_to_tvm() -> None:
    assert "Attention" in tvm_onnx.operators()
    assert find("com.microsoft", "Attention") is BY_TVM
    assert find("", "Attention") is None
    assert find("com.microsoft", "Squeeze") is BY_TVM
    assert find("my.domain", "Squeeze") is None


def test_a_converter_by_tvm_takes_tensors_only() -> None:
    assert not BY_TVM.accepts & (Accepts.SYMBOLIC | Accepts.ANY_RANK)
    assert Accepts.SIZES in CONVERTERS["Shape"].accepts
    assert CONVERTERS["Add"].accepts == Accepts.SYMBOLIC
