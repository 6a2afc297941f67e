"""What cannot be translated is said at once, with the place and what to do."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import onnx
import onnx.parser
import pytest

import looplift
from looplift.lowering import emit
from looplift.rewrite.errors import LoopliftError, ModelError, UnsupportedError

HEADER = '<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1, "com.microsoft" : 1]>\n'


def refusal(text: str, **options: Any) -> LoopliftError:
    with pytest.raises(LoopliftError) as caught:
        emit(onnx.parser.parse_model(HEADER + text), **options)
    return caught.value


def test_everything_unknown_is_collected_over_all_bodies() -> None:
    error = refusal("""
    g (float[2] x, bool c) => (float[2] y) {
        [first] a = my.domain.Blur (x)
        [choice] y = If (c) <
            then_branch = t () => (float[2] b) {
                [deep] s = StringNormalizer (x)
                [inner] b = If (c) <
                    then_branch = tt () => (float[2] d) { [deepest] d = my.domain.Blur (a) },
                    else_branch = te () => (float[2] e) { e = Identity(a) }
                >
            },
            else_branch = e () => (float[2] f) { [other] f = my.domain.Sharpen (a) }
        >
    }""")
    assert isinstance(error, UnsupportedError)
    assert "4 nodes have no translation to Relax" in error.what
    assert "Blur of my.domain, 2 times" in error.what
    assert "'deepest' in then_branch of If 'inner' in then_branch of If 'choice'" in error.what
    assert "Sharpen 'other' in else_branch of If 'choice'" in error.what
    assert "StringNormalizer of ai.onnx" in error.what
    assert "(TVM has no tensors of strings)" in error.what
    assert "FunctionProto" in error.remedy


def test_many_nodes_of_one_operator_are_counted() -> None:
    nodes = " ".join(f"a{i + 1} = my.domain.Blur (a{i})" for i in range(9))
    error = refusal(f"g (float[2] a0) => (float[2] a9) {{ {nodes} }}")
    assert "Blur of my.domain, 9 times" in error.what
    assert "and 6 more" in error.what
    assert "a9" not in error.what


def test_an_attribute_that_onnxruntime_does_not_have() -> None:
    error = refusal("""
    g (uint8[4] a, uint8[4] b) => (uint8[4] y)
        <float s = {0.5}, uint8 z = {3}> {
        [sum] y = com.microsoft.QLinearAdd <mode = 2> (a, s, z, b, s, z, s, z)
    }""")
    assert "it has an attribute 'mode' that onnxruntime" in error.what
    assert "'sum'" in error.where


def test_an_operator_that_differs_from_the_standard_one_of_its_name() -> None:
    """It gives elements in the order of the input, where TVM would sort them."""
    error = refusal("""
    g (float[n] x) => (float[m] y, int64[n] i, int64[m] c) {
        y, i, c = com.microsoft.Unique (x)
    }""")
    assert "Unique of com.microsoft" in error.what


def test_a_domain_is_part_of_the_name_of_an_operator() -> None:
    error = refusal("g (float[2] x) => (float[2] y) { y = my.domain.Relu (x) }")
    assert "Relu of my.domain" in error.what


FAILING = """
g (float[n, 4] x, int64[1] k, bool c) => (float[n, m] y) {
    [choice] y = If (c) <
        then_branch = t () => (float[n, p] v) { [product] v = com.microsoft.MatMulInteger16 (x, k) },
        else_branch = e () => (float[n, 4] w) { w = Identity(x) }
    >
}"""


def test_a_node_of_a_definition_is_named_by_what_it_computes() -> None:
    error = refusal("""
    g (float[n, 4] x, int64[1] k) => (float[n, m] z) { y = my.domain.F (x, k) z = Abs(y) }
    <domain: "my.domain", opset_import: ["" : 17, "com.microsoft" : 1]>
    F (a, b) => (c) { d = com.microsoft.MatMulInteger16 (a, b) e = Exp(d) c = Neg(e) }""")
    assert ", part of what computes 'y'; inputs: x is" in error.where


def test_a_converter_that_fails_names_the_node_and_its_inputs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    error = refusal(FAILING)
    assert isinstance(error, UnsupportedError)
    assert "MatMulInteger16 cannot be translated" in error.what
    assert "expects input A to have int16 or uint16 dtype" in error.what
    assert "MatMulInteger16 'product' in then_branch of If 'choice'" in error.where
    assert "x is float32[n, 4], k is int64[1]" in error.where
    assert "--input" in error.remedy
    assert isinstance(error.__cause__, ValueError)
    assert capfd.readouterr() == ("", "")


def test_a_message_of_tvm_has_operators_and_sizes_as_users_write_them() -> None:
    error = refusal("g (float[n, 32] x, float[64] k) => (float[n, 64] y) { y = Mul (x, k) }")
    assert "In relax.multiply, the first input shape at dim 1 is 32 and the second" in error.what


def test_a_failure_leaves_nothing_behind() -> None:
    refusal(FAILING)
    emit(onnx.parser.parse_model(HEADER + "g (float[2] x) => (float[2] y) { y = Neg(x) }"))


def test_a_value_whose_rank_depends_on_a_branch() -> None:
    error = refusal("""
    g (float[n, 4] x, bool c) => (float y) {
        [squeeze_or_not] v = If (c) <
            then_branch = t () => (float[n, 4, 1] a) {
                axis = Constant <value_ints = [2]> () a = Unsqueeze(x, axis)
            },
            else_branch = e () => (float[n, 4] b) { b = Neg(x) }
        >
        [sum] y = ReduceSum <keepdims = 0> (v)
    }""")
    assert "the rank of 'v' is not known" in error.what
    assert "ReduceSum 'sum'" in error.where
    assert "The rank of 'v' is 3 in one branch and 2 in the other" in error.remedy
    assert "If 'squeeze_or_not'" in error.remedy
    assert "--dim" in error.remedy


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_input_of_unknown_rank() -> None:
    model = onnx.parser.parse_model(HEADER + "g (float x) => (float y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedError, match="rank of 'x' is not known") as caught:
        emit(model)
    assert "--shape" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (string[2] x) => (string[2] y) { y = Identity(x) }", "input 'x' holds strings"),
        (
            "g (seq(string[2]) x) => (seq(string[2]) y) { y = Identity(x) }",
            "'x' holds tensors of a type",
        ),
        (
            'g (float[2] x) => (string[1] y) { y = Constant <value_strings = ["a"]> () }',
            "holds strings",
        ),
        (
            "g (float[2, 4] x, float[4] s) => (float[2, 4] y, float[2, 4] i) "
            "{ y, m, d, i = com.microsoft.SkipLayerNormalization (x, x, s, s, s) }",
            "does not give the output 'i'",
        ),
    ],
)
def test_what_tvm_has_no_value_for(text: str, message: str) -> None:
    assert message in str(refusal(text))


@pytest.mark.parametrize(
    ("nodes", "name"),
    [
        ("y = Slice (s, zero, one, zero)", "data"),
        ("y = Concat <axis = 0> (x, s)", "inputs"),
        ("y = Clip (x, s)", "min"),
    ],
)
@pytest.mark.parametrize(
    "sequence", ["s = SequenceConstruct (x, x)", "s = SplitToSequence <axis = 0> (x)"]
)
def test_a_sequence_in_place_of_a_tensor(nodes: str, name: str, sequence: str) -> None:
    text = f"""g (float[N] x) => (float[M] y) <int64[1] zero = {{0}}, int64[1] one = {{1}}>
        {{ {sequence} {nodes} }}"""
    assert f"its input '{name}' is a sequence, not a tensor" in str(refusal(text))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_older_than_onnx_1_1() -> None:
    model = onnx.parser.parse_model(HEADER + "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.ir_version = 2
    with pytest.raises(ModelError, match="IR version 2"):
        emit(model)


def test_without_tvm_the_error_says_how_to_install_it() -> None:
    script = (
        "import sys\n"
        "sys.modules['tvm'] = None  # an import of it fails now, as if it were not installed\n"
        "try:\n"
        "    import looplift.lowering\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.startswith("lowering to Relax needs TVM")
    assert 'pip install ".[tvm]"' in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    [
        """(float[n] x, bool c) => (bool y) {
            o = If (c) <then_branch = a () => (optional(float[n]) u) { u = Optional (x) },
                        else_branch = b () => (optional(float[n]) v) {
                            v = Optional <type = float[n]> () }>
            y = OptionalHasElement (o) }""",
        """(float[n] x, int64 m, bool c) => (bool y) {
            first = Optional <type = float[n]> ()
            o = Loop (m, c, first) <
                body = b (int64 i, bool go, optional(float[n]) s) => (bool goes, optional(float[n]) t) {
                    goes = Identity (go) t = Optional (x) }>
            y = OptionalHasElement (o) }""",
    ],
    ids=["If", "Loop"],
)
def test_optionals_that_may_be_empty_are_refused(text: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> g {text}')
    with pytest.raises(UnsupportedError, match="an optional that may be empty"):
        emit(model)


def test_the_reason_why_an_operator_was_not_decomposed() -> None:
    """The rule knows what to assert; that there is no translation says less."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[B,S,16] q, float[B,L,16] k) => (float[B,S,16] y) {
        y = com.microsoft.MultiHeadAttention<num_heads = 2, unidirectional = 1>(q, k, k) }"""
    model = onnx.parser.parse_model(text)
    with pytest.raises(UnsupportedError, match="it does not have as many keys as queries"):
        looplift.from_onnx(model)
    assert looplift.from_onnx(model, dims={"S": 4, "L": 4})
