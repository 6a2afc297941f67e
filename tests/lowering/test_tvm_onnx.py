"""The seam: the private parts of TVM that the lowering calls are there and behave as expected.

If a test here fails, TVM has changed and `lowering/tvm_onnx.py` is the one module to adapt.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import tvm
from tvm import relax

import looplift.lowering
from looplift.lowering import tvm_onnx
from looplift.rewrite.errors import UnsupportedError

PACKAGE = Path(looplift.lowering.__file__).parent


def test_the_version_is_the_one_the_seam_was_written_for() -> None:
    assert tvm.__version__.startswith("0.27."), (
        "TVM has another minor version: read its onnx_frontend.py, adapt lowering/tvm_onnx.py, "
        "and run benchmarks/conformance_adapter.py over ONNX's backend tests"
    )


def test_the_table_of_converters() -> None:
    operators = tvm_onnx.operators()
    assert len(operators) >= 164, "TVM's _get_convert_map() has lost operators"
    assert {"Add", "Conv", "MatMul", "Reshape", "Shape", "Squeeze"} <= operators


@pytest.mark.parametrize("opset", [1, 11, 17, 23])
def test_every_converter_can_be_chosen(opset: int) -> None:
    for operator in sorted(tvm_onnx.operators()):
        assert callable(tvm_onnx.converter(operator, opset)), operator


def test_a_converter_is_called_with_builder_inputs_attributes_and_parameters() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, 3], "float32"))
    with bb.function("main", [x]):
        inputs = tvm_onnx.InputList([x])
        custom = {"name": "", "num_outputs": 1}
        convert = tvm_onnx.converter("Transpose", 17)
        value = convert(bb, inputs, {"perm": (1, 0), "tvm_custom": custom}, [{"x": x}, {}])
        bb.emit_func_output(bb.emit(value))
    assert [int(size) for size in bb.get()["main"].ret_ty.shape.values] == [3, 2]


def test_an_input_past_the_end_is_absent() -> None:
    inputs = tvm_onnx.InputList(["a"])
    assert (inputs[0], inputs[3]) == ("a", None)


def test_an_empty_optional_knows_its_type() -> None:
    assert tvm_onnx.EmptyOptional("a type").type_proto == "a type"


def test_a_function_that_fails_leaves_the_builder_silent(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        bb = relax.BlockBuilder()
        with tvm_onnx.building_function(bb, "main", [], private=False), bb.dataflow():
            raise KeyError("a converter failed")

    with pytest.raises(KeyError):
        fail()
    assert capfd.readouterr() == ("", "")


def test_a_name_that_is_gone_is_reported_with_the_versions_that_have_it() -> None:
    with pytest.raises(UnsupportedError) as caught:
        tvm_onnx._private("_gone")
    assert "_gone, which the lowering calls" in str(caught.value)
    assert "apache-tvm>=0.27,<0.28" in str(caught.value)


def test_no_other_module_names_the_private_frontend() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "tvm_onnx.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith("tvm.relax.frontend") for name in names), path
