"""Functions that looplift and onnxruntime may read differently."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser
from typer.testing import CliRunner

from looplift import VerificationError, rewrite
from looplift.cli import app
from looplift.rewrite.errors import ModelError
from looplift.rewrite.storage.function_conflicts import function_notes
from looplift.rewrite.storage.model import import_model


def calling(
    domain: str, name: str, body: str, opset: int = 17, own: int = 17, used: str = ""
) -> onnx.ModelProto:
    """A model of an opset that calls a function, which imports an opset of its own."""
    domains = "" if domain in ("", "ai.onnx") else f', "{domain}" : 1'
    call = used or (f"{domain}.{name}" if domain else name)
    return parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : {opset}{domains}]>
        g (float[2,3,4] x) => (float[2,3,4] y) {{ y = {call} (x) }}
        <domain: "{domain}", opset_import: ["" : {own}]> {name} (a) => (b) {{ {body} }}""")


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_the_name_of_a_standard_operator(domain: str) -> None:
    error = r"has the name of ONNX's operator Neg.*'ai\.onnx'.*domain of its own"
    with pytest.raises(ModelError, match=error):
        import_model(calling(domain, "Neg", "b = Abs (a)"))


def test_names_that_mean_nothing_else() -> None:
    """Functions that nothing calls, and operators that only newer opsets have."""
    unused = calling("", "Neg", "b = Abs (a)", used="Sin")
    newer = calling("", "Gelu", "b = Abs (a)")
    for model in (unused, newer, calling("own", "Neg", "b = Abs (a)")):
        assert function_notes(model) == []
        import_model(model)


class TestDifferences:
    MODELS = pytest.mark.parametrize(
        ("model", "reason"),
        [
            (
                calling("com.microsoft", "Gelu", "b = Abs (a)"),
                "`com.microsoft.Gelu` is a function of the model and an operator of onnxruntime",
            ),
            (
                calling("own", "Normal", "b = Softmax (a)", own=11),
                "`own.Normal` imports opset 11, the model opset 17",
            ),
        ],
        ids=["operator of onnxruntime", "other opset"],
    )

    @MODELS
    def test_a_note(self, model: onnx.ModelProto, reason: str) -> None:
        assert [reason in note for note in rewrite(model).report.notes] == [True]

    @MODELS
    def test_the_reason_of_a_difference(self, model: onnx.ModelProto, reason: str) -> None:
        with pytest.raises(VerificationError) as raised:
            rewrite(model, verify=True)
        assert reason in str(raised.value)
        assert "report it" not in str(raised.value)

    @MODELS
    def test_the_reason_in_the_terminal(
        self, model: onnx.ModelProto, reason: str, tmp_path: Path
    ) -> None:
        onnx.save(model, tmp_path / "m.onnx")
        call = ["rewrite", f"{tmp_path}/m.onnx", "-o", f"{tmp_path}/o.onnx", "-q"]
        result = CliRunner().invoke(app, call)
        assert result.exit_code == 1
        assert reason in result.stderr
        assert "report it" not in result.stderr


def test_definitions_that_agree() -> None:
    """The fallback of an operator for other runtimes, and operators that both opsets have."""
    gelu = """two = Constant <value = float {2}> () r = Sqrt (two) q = Div (a, r) e = Erf (q)
        one = Constant <value = float {1}> () s = Add (e, one) p = Mul (a, s) b = Div (p, two)"""
    assert rewrite(calling("com.microsoft", "Gelu", gelu)).verify().verified
    same = calling("own", "Normal", "b = Softmax (a)", own=13)
    assert function_notes(same) == []
    assert rewrite(same).verify().verified
