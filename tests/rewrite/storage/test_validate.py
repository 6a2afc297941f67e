"""Invalid models are rejected with a place and a remedy."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
from onnx import parser

from looplift import rewrite
from looplift.rewrite.errors import ModelError
from looplift.rewrite.storage.files import load
from looplift.rewrite.storage.model import import_model, opsets
from looplift.rewrite.storage.validate import check_graph, check_runtime

from ...bad_models import CASES, BadModel


def accept(path: Path) -> None:
    """What happens to every model before it is rewritten and run."""
    proto, base_dir = load(path)
    import_model(proto, base_dir)
    check_runtime(proto)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_is_rejected(case: BadModel, tmp_path: Path) -> None:
    path = case.make(tmp_path)
    with pytest.raises(ModelError) as caught:
        accept(path)
    message = str(caught.value)
    assert [word for word in case.words if word not in message] == [], message
    assert caught.value.where
    assert caught.value.remedy
    assert "\n" not in message


def test_cases_have_unique_names() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 40


@pytest.mark.parametrize(
    ("opset", "text"),
    [
        (17, "g (float[N] x) => (float[N] y) { y = com.microsoft.Gelu <__mark = 3> (x) }"),
        (17, "g (float[N] x) => (float[N] y) { y = Relu <__mark = 3> (x) }"),
        (17, "g () => (seq(int64) y) { y = SequenceEmpty <dtype = 7> () }"),
        (21, """g (float[N] x, float s, int8 z) => (int8[N] y) {
            y = QuantizeLinear <output_dtype = 0> (x, s, z) }"""),
    ],
)  # fmt: skip
def test_what_onnxruntime_accepts_is_accepted(opset: int, text: str) -> None:
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    model = parser.parse_model(header + text)
    onnxruntime.InferenceSession(model.SerializeToString())
    check_graph(import_model(model).graph, model)


@pytest.mark.parametrize("opset", [7, 12, 16])
def test_operators_that_onnxruntime_had_before_onnx(opset: int) -> None:
    """Its optimizer for transformers writes LayerNormalization into models of any opset."""
    text = """g (float[N, 3] x, float[3] s, float[3] b) => (float[N, 3] y) {
        y = LayerNormalization <axis = -1, epsilon = 0.01> (x, s, b) }"""
    model = parser.parse_model(f'<ir_version: 4, opset_import: ["" : {opset}]> {text}')
    result = rewrite(model)
    assert result.verify().verified
    later = parser.parse_model(f'<ir_version: 4, opset_import: ["" : 12]> {text}')
    later.graph.node[0].op_type = "GroupNormalization"
    with pytest.raises(ModelError, match=r"was added to ai\.onnx in opset 18"):
        import_model(later)


def test_an_operator_set_that_onnxruntime_has_need_not_be_imported() -> None:
    text = "g (float[N] x) => (float[N] y) { a = com.microsoft.Gelu (x) y = own.Neg (a) }"
    function = '<domain: "own", opset_import: ["" : 17]> Neg (a) => (b) { b = Neg (a) }'
    header = '<ir_version: 10, opset_import: ["" : 17, "own" : 1]>'
    model = parser.parse_model(f"{header} {text} {function}")
    onnxruntime.InferenceSession(model.SerializeToString())
    result = rewrite(model)
    assert {"": 17, "com.microsoft": 1}.items() <= opsets(result.model).items()
    assert result.verify().verified
    unknown = parser.parse_model(f"{header} {text.replace('com.microsoft', 'other')} {function}")
    with pytest.raises(ModelError, match="does not import the operator set other"):
        import_model(unknown)


@pytest.mark.parametrize(
    ("key", "vocabulary"),
    [
        ("int64", "int64_vocabulary: ints = [1, 2]"),
        ("string", 'string_vocabulary: strings = ["a", "b"]'),
    ],
)
def test_maps(key: str, vocabulary: str) -> None:
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]>
        g (map({key}, double) m) => (double[N, 2] y) {{
            y = ai.onnx.ml.DictVectorizer <{vocabulary}> (m) }}""")
    onnxruntime.InferenceSession(model.SerializeToString())
    assert rewrite(model).proto.graph == model.graph
    model.graph.input[0].type.map_type.value_type.tensor_type.elem_type = 6
    with pytest.raises(ModelError, match=rf"does not take map\({key},tensor\(int32\)\) "):
        import_model(model)


def test_a_function_may_have_the_name_of_an_operator_of_onnxruntime() -> None:
    """Its own inputs count, not those of the operator."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N] x) => (float[N] y) { y = com.microsoft.MultiHeadAttention (x) }
        <domain: "com.microsoft", opset_import: ["" : 17]>
        MultiHeadAttention (a) => (b) { b = Neg (a) }""")
    check_graph(import_model(model).graph, model)
