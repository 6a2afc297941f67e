"""Reads of the element that the previous iteration appended."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest

from looplift.rules.loops.appended_reads import CarryAppendedElement

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(sizes=(1, 2, 5), fixed={"B": 2}, values={"m": [0, 1, 2, 5]}, most=60)
LAST = "h = SequenceAt(q, minus)"
INSERT = "qo = SequenceInsert(q, r)"
CONSTANTS = """int64 minus = {-1}, int64 zero = {0}, int64 one = {1}, int64 two = {2},
    int64[1] at0 = {0}, int64[1] at1 = {1}, int64[1] before = {-1}, int64[1] far = {2147483647}"""


def _sequence(
    read: str = LAST, append: str = INSERT, initial: str = "e = SequenceConstruct(a)"
) -> onnx.ModelProto:
    """A loop that appends what it computes from an element of the sequence q."""
    return parse(f"""g (float[B,3] a, float[B,3] x, int64 m) => (float[P,B,3] w) <{CONSTANTS}> {{
        {initial}
        s = Loop (m, , e) <body = b (int64 i, bool ci, seq(float[B,3]) q)
            => (bool co, seq(float[B,3]) qo) {{
            co = Identity(ci) {read} k = Mul(h, x) r = Tanh(k) {append} }}>
        w = ConcatFromSequence<axis = 0, new_axis = 1>(s) }}""")


def _tensor(
    read: str, append: str = "qo = Concat<axis = 0>(q, u)", unsqueezed: str = "at0",
    initial: str = "e = Unsqueeze(a, at0)",
) -> onnx.ModelProto:  # fmt: skip
    """The same for a tensor q that grows by Concat."""
    return parse(f"""g (float[B,3] a, float[B,3] x, float[N,B,3] b, int64 m) => (float[P,Q,R] w)
        <{CONSTANTS}> {{
        {initial}
        w = Loop (m, , e) <body = b (int64 i, bool ci, float[S,T,U] q)
            => (bool co, float[V,W,X] qo) {{
            co = Identity(ci) {read} k = Mul(h, x) r = Tanh(k) u = Unsqueeze(r, {unsqueezed})
            {append} }}> }}""")


SEQUENCES = {
    "at -1": _sequence(),
    "at the iteration number": _sequence("h = SequenceAt(q, i)"),
    "of two": _sequence(
        "p = Add(i, one) h = SequenceAt(q, p)", initial="e = SequenceConstruct(x, a)"
    ),
    "twice": _sequence("f = SequenceAt(q, i) g0 = SequenceAt(q, minus) h = Add(f, g0)"),
    "itself": _sequence("h = SequenceAt(q, minus)", "qo = SequenceInsert(q, h)"),
    "inserted at its length": _sequence(append="p = Add(i, one) qo = SequenceInsert(q, r, p)"),
}


@pytest.mark.parametrize("model", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_the_last_element_of_a_sequence(model: onnx.ModelProto) -> None:
    result = rewritten(model, FEEDS, 1e-6)
    assert result.report.commits[CarryAppendedElement.name()] == 1
    assert not [op for op in ops(result.model) if "Sequence" in op]


TENSORS = {
    "element": _tensor("h = Gather(q, minus)"),
    "slice": _tensor("l = Slice(q, before, far, at0) h = Squeeze(l, at0)"),
    "vector of one": _tensor("l = Gather(q, before) h = Squeeze(l, at0)"),
    "at the iteration number": _tensor("h = Gather(q, i)"),
    "along the second axis": _tensor(
        "h = Gather<axis = 1>(q, minus)",
        "qo = Concat<axis = -2>(q, u)",
        "at1",
        "e = Unsqueeze(a, at1)",
    ),
    "twice": _tensor(
        "f = Gather(q, i) l = Slice(q, before, far, at0) v = Squeeze(l, at0) h = Add(f, v)"
    ),
}


@pytest.mark.parametrize("model", TENSORS.values(), ids=TENSORS.keys())
def test_the_last_element_of_a_tensor(model: onnx.ModelProto) -> None:
    after, trace, _ = run_rules(model, [CarryAppendedElement])
    assert trace.defects() == []
    assert [commit.rule for commit in trace.commits()] == [CarryAppendedElement.name()]
    assert_equivalent(model, after, FEEDS, 1e-6)
    (loop,) = [
        node for node in rewritten(model, FEEDS, 1e-6).model.graph.node if node.op_type == "Loop"
    ]
    (body,) = [attribute.g for attribute in loop.attribute if attribute.name == "body"]
    assert "Concat" not in [node.op_type for node in body.node]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (_sequence("h = SequenceAt(q, zero)"), "other elements"),
        (_sequence("h = SequenceAt(q, i)", initial="e = SequenceConstruct(a, x)"), "other elements"),
        (_sequence("n = SequenceLength(q) f = SequenceAt(q, minus) c = Cast<to = 1>(n) h = Mul(f, c)"),
         "other elements"),
        (_sequence(append="qo = SequenceInsert(q, r, zero)"), "does not append"),
        (_tensor("h = Gather(q, minus)", initial="e = Identity(b)"), "may have no element"),
        (_tensor("h = Gather(q, zero)"), "other elements"),
        (_tensor("h = Gather<axis = 1>(q, minus)"), "other elements"),
        (_tensor("l = Slice(q, before, far, at1) h = Squeeze(l, at1)"), "other elements"),
        (_tensor("h = Gather(q, minus)", "qo = Concat<axis = 0>(u, q)"), "does not grow"),
        (_tensor("h = Gather(q, minus)", "qo = Concat<axis = 0>(q, u, u)"), "does not append one"),
    ],
)  # fmt: skip
def test_other_reads_stay(model: onnx.ModelProto, reason: str) -> None:
    expected = "it carries no value that grows" if reason == "does not grow" else reason
    assert expected in reason_of(CarryAppendedElement, model)
    rewritten(model, replace(FEEDS, values={"m": [0, 1, 2]}), 1e-6)


def test_an_empty_sequence_has_no_last_element() -> None:
    model = _sequence(initial="e = SequenceEmpty()")  # onnxruntime fails in every run
    assert "may have no element" in reason_of(CarryAppendedElement, model)


def test_a_list_of_states_becomes_a_recurrence() -> None:
    """As scripts write it: `states.append(cell(x[t], states[-1]))`."""
    text = """g (float[T,B,3] x, float[B,3] h0) => (float[L,B,3] y)
      <float[3,3] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3, 0.5, 0, 0}, int64 last = {-1}, int64[1] at0 = {0}> {
      t = Shape<start = 0, end = 1>(x) n = Squeeze(t, at0) e = SequenceConstruct(h0)
      s = Loop (n, , e) <body = b (int64 i, bool ci, seq(float[B,3]) q)
          => (bool co, seq(float[B,3]) qo) {
        co = Identity(ci) h = SequenceAt(q, last) xt = Gather(x, i) p = MatMul(h, w) k = Add(p, xt)
        r = Tanh(k) qo = SequenceInsert(q, r) }>
      y = ConcatFromSequence<axis = 0, new_axis = 1>(s) }"""
    result = rewritten(parse(text), Feeds(sizes=(0, 1, 2, 5), fixed={"B": 2}), 1e-5)
    assert ops(result.model)["RNN"] == 1
    assert "Loop" not in ops(result.model)
