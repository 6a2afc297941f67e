"""LSTM, GRU and RNN absorb reversals of their sequence and projections of their input."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from looplift.rewrite.engine.rule import Options, Rule, fixture
from looplift.rules.recurrence import (
    AbsorbInputProjection,
    AbsorbReversal,
    AbsorbReversalOfWholeSequence,
    CancelReversals,
)
from looplift.rules.values.dead_nodes import EliminateDeadNode

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of
from .cell_models import constant, integers

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SIZES = {
    "LSTM": Feeds(sizes=(0, 1, 2, 7), fixed={"B": 2}),  # onnxruntime dies on an empty batch,
    "GRU": Feeds(sizes=(1, 2, 7)),  # with a GRU on an empty sequence, too
    "RNN": Feeds(sizes=(0, 1, 2, 7)),
}
NUMBERS = integers(back=[-1], low=[np.iinfo(np.int64).min], nil=[0], one=[1], two=[2], three=[3])


def _weights(op: str, features: int = 2) -> str:
    return f"{constant('w', 1, GATES[op] * 3, features)}, {constant('r', 1, GATES[op] * 3, 3)}"


def _applied(rule: type[Rule], model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    """The model after the rule, which must fire and keep the results."""
    after, trace, _ = run_rules(model, [rule, EliminateDeadNode])
    assert trace.defects() == []
    assert rule.name() in [commit.rule for commit in trace.commits()]
    assert_equivalent(model, after, feeds, 1e-5)
    return after


def _attributes(model: onnx.ModelProto) -> dict[str, object]:
    (node,) = (node for node in model.graph.node if node.op_type in GATES)
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


# --- reversals ---


def _reversed(op: str, nodes: str, inputs: str = "float[T,B,2] x", output: str = "T,D,B,3") -> str:
    return f"m ({inputs}) => (float[{output}] y) <{_weights(op)}, {NUMBERS}> {{ {nodes} }}"


REVERSE = "v = Slice(x, back, low, nil, back)"
REVERSE_Y = "y = Slice(u, back, low, nil, back)"


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(("before", "after"), [("forward", b"reverse"), ("reverse", b"forward")])
def test_reversal(op: str, before: str, after: bytes) -> None:
    text = f'{REVERSE} u = {op}<hidden_size=3, direction="{before}">(v, w, r) {REVERSE_Y}'
    result = _applied(AbsorbReversal, parse(_reversed(op, text), opset=17), SIZES[op])
    assert _attributes(result)["direction"] == after
    assert "Slice" not in ops(result)


def test_reversal_of_a_batch_first_sequence() -> None:
    """The transpositions between the reversals and the operator stay."""
    text = """v = Slice(x, back, low, one, back) t = Transpose<perm=[1, 0, 2]>(v)
      u = RNN<hidden_size=3>(t, w, r) s = Squeeze(u, one) z = Transpose<perm=[1, 0, 2]>(s)
      y = Slice(z, back, low, one, back)"""
    model = parse(_reversed("RNN", text, "float[B,T,2] x", "B,T,3"), opset=17)
    result = _applied(AbsorbReversal, model, SIZES["RNN"])
    assert ops(result) == {"Transpose": 2, "RNN": 1, "Squeeze": 1}


def test_reversal_before_a_final_state() -> None:
    """Y is not read, so that no reversal has to follow."""
    text = f"{REVERSE} , y = LSTM<hidden_size=3>(v, w, r)".replace(" , y", " u, y")
    model = parse(_reversed("LSTM", text, output="1,B,3"), opset=17)
    feeds = Feeds(sizes=(1, 2, 7))  # the final state of an empty sequence is not specified
    assert "Slice" not in ops(_applied(AbsorbReversal, model, feeds))


NOT_REVERSED = {
    "both directions": (
        f'{REVERSE} u = RNN<hidden_size=3, direction="bidirectional">(v, w2, r2) {REVERSE_Y}',
        "it runs in both directions already",
    ),
    "lengths": (f"{REVERSE} u = RNN<hidden_size=3>(v, w, r, , l) {REVERSE_Y}", "sequence lengths"),
    "along the batch": (
        "v = Slice(x, back, low, one, back) y = RNN<hidden_size=3>(v, w, r)",
        "`v` is not a reversed sequence",
    ),
    "only a part": (
        "v = Slice(x, back, two, nil, back) y = RNN<hidden_size=3>(v, w, r)",
        "`v` is not a reversed sequence",
    ),
    "every second": (
        "m2 = Neg(two) v = Slice(x, back, low, nil, m2) y = RNN<hidden_size=3>(v, w, r)",
        "`v` is not a reversed sequence",
    ),
    "Y as it is": (f"{REVERSE} y = RNN<hidden_size=3>(v, w, r)", "without being reversed"),
    "Y reversed along the batch": (
        f"{REVERSE} u = RNN<hidden_size=3>(v, w, r) y = Slice(u, back, low, two, back)",
        "without being reversed",
    ),
}


@pytest.mark.parametrize(("nodes", "reason"), NOT_REVERSED.values(), ids=NOT_REVERSED.keys())
def test_reversal_declines(nodes: str, reason: str) -> None:
    text = _reversed("RNN", nodes, "float[T,B,2] x, int32[B] l")
    two = f"{constant('w2', 2, 3, 2)}, {constant('r2', 2, 3, 3)}, {NUMBERS}"
    model = parse(text.replace(NUMBERS, two), opset=17)
    assert reason in reason_of(AbsorbReversal, model)
    feeds = Feeds(sizes=(1, 4), fixed={"B": 2}, values={"l": [np.array([1, 0]), np.array([1, 1])]})
    rewritten(model, feeds, 1e-5)


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Slice(u, back, low, nil, back)",
        """v0 = Transpose<perm=[1,0,2]>(u) v1 = Transpose<perm=[2,1,0]>(v0)
           v = Transpose<perm=[1,2,0]>(v1) y = Slice(v, back, low, nil, back)""",
    ],
)
def test_reversals_cancel(nodes: str) -> None:
    text = f"""m (float[T,B,2] x) => (float[T,B,2] y) <{NUMBERS}> {{
      u = Slice(x, back, low, nil, back) {nodes} }}"""
    result = _applied(CancelReversals, parse(text, opset=17), Feeds(sizes=(0, 1, 2, 7)))
    assert "Slice" not in ops(result)


def test_a_reversed_value_that_is_read_elsewhere_stays() -> None:
    text = f"""m (float[T,B,2] x) => (float[T,B,2] y, float[T,B,2] z) <{NUMBERS}> {{
      u = Slice(x, back, low, nil, back) y = Slice(u, back, low, nil, back) z = Neg(u) }}"""
    assert ops(_applied(CancelReversals, parse(text, opset=17), Feeds()))["Slice"] == 1


@pytest.mark.parametrize(
    "second",
    ["y = Slice(u, back, low, one, back)", "y = Slice(u, low, back, nil)",
     "y = Slice(u, back, low, nil, minus2)"],
)  # fmt: skip
def test_other_slices_of_a_reversed_value_stay(second: str) -> None:
    numbers = f"{NUMBERS}, int64[1] minus2 = {{-2}}"
    text = f"""m (float[T,B,2] x) => (float[?,B,2] y) <{numbers}> {{
      u = Slice(x, back, low, nil, back) {second} }}"""
    result = rewritten(parse(text, opset=17), Feeds(sizes=(0, 1, 2, 7))).model
    assert ops(result)["Slice"] == 2


# --- ReverseSequence ---

LENGTHS = {
    "expanded": "t = Shape<start=0, end=1>(x) b = Shape<start=1, end=2>(x) l = Expand(t, b)",
    "tiled": "t = Shape<start=0, end=1>(x) b = Shape<start=1, end=2>(x) l = Tile(t, b)",
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_reversal_of_whole_sequence(lengths: str) -> None:
    text = f"""m (float[T,B,2] x) => (float[T,B,2] y) {{
      {lengths} y = ReverseSequence<time_axis=0, batch_axis=1>(x, l) }}"""
    model = parse(text, opset=17)
    result = _applied(AbsorbReversalOfWholeSequence, model, Feeds(sizes=(0, 1, 2, 7)))
    assert ops(result) == {"Slice": 1}


def test_reversal_of_whole_sequence_batch_first() -> None:
    text = """m (float[2,5,3] x) => (float[2,5,3] y) <int64[2] l = {5, 5}> {
      y = ReverseSequence<time_axis=1, batch_axis=0>(x, l) }"""
    result = _applied(AbsorbReversalOfWholeSequence, parse(text, opset=17), Feeds())
    assert ops(result) == {"Slice": 1}


@pytest.mark.parametrize("lengths", ["{5, 4}", "{4, 4}"])
def test_reversal_of_whole_sequence_declines(lengths: str) -> None:
    text = f"""m (float[2,5,3] x) => (float[2,5,3] y) <int64[2] l = {lengths}> {{
      y = ReverseSequence<time_axis=1, batch_axis=0>(x, l) }}"""
    model = parse(text, opset=17)
    reason = "the lengths `l` are not known to be 5"
    assert reason in reason_of(AbsorbReversalOfWholeSequence, model)
    rewritten(model)


def test_a_reversed_loop_with_reverse_sequence_has_no_reversal_left() -> None:
    """The ReverseSequence becomes a Slice, and the operator absorbs the Slice."""
    text = f"""m (float[T,B,2] x) => (float[T,D,B,3] y) <{_weights("RNN")}, {NUMBERS}> {{
      {LENGTHS["expanded"]} v = ReverseSequence<time_axis=0, batch_axis=1>(x, l)
      u = RNN<hidden_size=3>(v, w, r) y = ReverseSequence<time_axis=0, batch_axis=1>(u, l2) }}"""
    text = text.replace("(u, l2)", "(u, l)").replace(
        "y = ReverseSequence<time_axis=0, batch_axis=1>(u, l)",
        "s = Squeeze(u, one) q = ReverseSequence<time_axis=0, batch_axis=1>(s, l) "
        "y = Unsqueeze(q, one)",
    )
    counts = ops(rewritten(parse(text, opset=17), SIZES["RNN"], 1e-5).model)
    assert not {"ReverseSequence", "Slice"} & set(counts)


# --- projections ---


def _projected(op: str, nodes: str, x: str = "T,B,2", more: str = "") -> str:
    """An operator over v, which these nodes compute from x; it has four features."""
    constants = f"{_weights(op, 4)}, {constant('a', 2, 4)}, {constant('b', 4)}, {NUMBERS}"
    return f"""m (float[{x}] x{more}) => (float[T,D,B,3] y)
      <{constants}, {constant("bias", 1, 2 * GATES[op] * 3)}, {constant("k", 4, 4)}> {{
      {nodes} y = {op}<hidden_size=3>(v, w, r, bias) }}"""


PROJECTIONS = {
    "MatMul": "v = MatMul(x, a)",
    "with a bias": "p = MatMul(x, a) v = Add(p, b)",
    "twice": "p = MatMul(x, a) q = Add(p, b) s = MatMul(q, k) v = Sub(s, b)",
    "scaled": "p = MatMul(x, a) q = Neg(p) v = Mul(q, b)",
    "joined halves": "p = MatMul(x, a) c, d = Split<axis=2>(p) v = Concat<axis=2>(d, c)",
    "transposed": "p = MatMul(x, a) t = Transpose<perm=[1, 0, 2]>(p) v = Transpose<perm=[1, 0, 2]>(t)",
}


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("nodes", PROJECTIONS.values(), ids=PROJECTIONS.keys())
def test_input_projection(op: str, nodes: str) -> None:
    model = parse(_projected(op, nodes), opset=17)
    result = _applied(AbsorbInputProjection, model, SIZES[op])
    assert ops(result) == {op: 1}
    weights = {i.name: numpy_helper.to_array(i) for i in result.graph.initializer}
    (node,) = result.graph.node
    assert weights[node.input[1]].shape == (1, GATES[op] * 3, 2)


def test_input_projection_of_a_batch_first_sequence() -> None:
    nodes = "p = MatMul(x, a) v = Transpose<perm=[1, 0, 2]>(p)"
    model = parse(_projected("RNN", nodes, "B,T,2"), opset=17)
    result = _applied(AbsorbInputProjection, model, SIZES["RNN"])
    assert ops(result) == {"Transpose": 1, "RNN": 1}


def test_input_projection_without_a_bias() -> None:
    """The bias of the projection becomes the B that the operator did not have."""
    text = _projected("GRU", "p = MatMul(x, a) v = Add(p, b)").replace(", bias)", ")")
    result = _applied(AbsorbInputProjection, parse(text, opset=17), SIZES["GRU"])
    assert ops(result) == {"GRU": 1}


NOT_PROJECTED = {
    "no projection": ("v = Identity(x4)", "`v` is not a projection"),
    "two values": ("p = MatMul(x, a) v = Add(p, x4)", "`v` is an affine map of 2 values"),
    "an activation": ("p = MatMul(x, a) v = Tanh(p)", "`v` is not an affine map"),
    "fewer features": ("v = MatMul(x6, c)", "`x6` has more features than `v`"),
    "over the batch": ("p = MatMul(x, a) q = Transpose<perm=[0, 2, 1]>(p) s = MatMul(q, e) "
                       "v = Transpose<perm=[0, 2, 1]>(s)", "`v` is not an affine map"),
    "another bias for each row": ("p = MatMul(x, a) v = Add(p, rows)", "`v` is not an affine map"),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "reason"), NOT_PROJECTED.values(), ids=NOT_PROJECTED.keys())
def test_input_projection_declines(nodes: str, reason: str) -> None:
    more = ", float[T,B,4] x4, float[T,B,6] x6"
    text = _projected("RNN", nodes, more=more).replace("T,B", "T,2").replace("T,D,B", "T,D,2")
    extra = f"{constant('c', 6, 4)}, {constant('e', 2, 2)}, {constant('rows', 2, 4)}, {NUMBERS}"
    model = parse(text.replace(NUMBERS, extra), opset=17)
    assert reason in reason_of(AbsorbInputProjection, model)
    rewritten(model, Feeds(sizes=(0, 1, 2, 7)), 1e-5)


def test_input_projection_with_computed_weights_declines() -> None:
    text = _projected("RNN", "v = MatMul(x, a)", more=", float[1,3,4] w0")
    model = parse(text.replace("(v, w,", "(v, w0,"), opset=17)
    assert "its weights `w0` are not constant" in reason_of(AbsorbInputProjection, model)


def test_lengths_of_another_batch_under_strict() -> None:
    text = AbsorbReversalOfWholeSequence.fires.replace("start=1, end=2>(x)", "start=1, end=2>(t)")
    strict = Options(strict=True)
    reason = reason_of(AbsorbReversalOfWholeSequence, fixture(text), strict)
    assert "--strict" in reason
    rewritten(fixture(text), Feeds(sizes=(1, 2, 5)))
