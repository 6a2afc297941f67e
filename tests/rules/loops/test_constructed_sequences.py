"""Sequences of a known number of tensors are followed tensor by tensor."""

from __future__ import annotations

import onnx
import pytest

from looplift.rewrite.engine.rule import Rule
from looplift.rules.loops.constructed_sequences import (
    ConcatOfConstructedSequence,
    ElementOfConstructedSequence,
    EraseToConstruct,
    InsertsToConstruct,
    SplitToConstruct,
    UnpackCarriedSequence,
)

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

SIZES = Feeds(sizes=(0, 1, 2, 7), values={"m": [0, 1, 2, 7]})


def _fires_once(rule: type[Rule], model: onnx.ModelProto) -> onnx.ModelProto:
    """The result of one commit of one rule, compared with the model on onnxruntime."""
    result, trace, _ = run_rules(model, [rule])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, SIZES, 1e-6)
    return result


# --- SplitToSequence ---


def _splitting(sizes: str, kind: str = "float[B,5]", axis: int = 1, keepdims: int = 1) -> str:
    return f"""g ({kind} x) => (float[P,Q] y)
        <{sizes}, int64 last = {{-1}}, int64 first = {{0}}> {{
        s = SplitToSequence<axis={axis}, keepdims={keepdims}>(x, sizes)
        a = SequenceAt(s, last) b = SequenceAt(s, first) y = Concat<axis={axis}>(a, b) }}"""


@pytest.mark.parametrize("sizes", ["int64[2] sizes = {2, 3}", "int64 sizes = {2}"])
@pytest.mark.parametrize("axis", [1, -1])
def test_split_into_pieces_of_known_sizes(sizes: str, axis: int) -> None:
    """One size for all pieces leaves a smaller last piece."""
    result = _fires_once(SplitToConstruct, parse(_splitting(sizes, axis=axis)))
    assert ops(result)["Split"] == ops(result)["SequenceConstruct"] == 1


@pytest.mark.parametrize("opset", [11, 12])
def test_split_takes_sizes_as_an_attribute_before_opset_13(opset: int) -> None:
    _fires_once(SplitToConstruct, parse(_splitting("int64[2] sizes = {2, 3}"), opset))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_splitting("int64[5] sizes = {1, 1, 1, 1, 1}"), "splits into single elements"),
        (_splitting("int64 sizes = {1}"), "splits into single elements"),
        (_splitting("int64 sizes = {2}", "float[5,B]"), "not known, or there are too many"),
        (_splitting("int64 sizes = {2}", "float[B,999]"), "not known, or there are too many"),
    ],
)
def test_other_splits_stay(model: str, words: str) -> None:
    assert words in reason_of(SplitToConstruct, parse(model))


# --- SequenceInsert and SequenceErase ---


@pytest.mark.parametrize("place", ["", ", zero", ", minus", ", one", ", second"])
def test_inserted_tensors(place: str) -> None:
    model = parse(f"""g (float[N] x, float[N] z, float[N] w) => (float[P] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 minus = {{-1}}, int64 second = {{-2}}> {{
        e = SequenceEmpty() a = SequenceInsert(e, x) b = SequenceInsert(a, z)
        c = SequenceInsert(b, w{place}) y = ConcatFromSequence<axis=0>(c) }}""")
    result, trace, _ = run_rules(model, [InsertsToConstruct])
    assert len(trace.commits()) == 3
    assert_equivalent(model, result, SIZES)
    assert ops(rewritten(model).model) == {"Concat": 1}


def test_an_insertion_past_the_end_stays() -> None:
    model = parse("""g (float[N] x, float[N] z) => (int64 n) <int64 two = {2}> {
        a = SequenceConstruct(x) b = SequenceInsert(a, z, two) n = SequenceLength(b) }""")
    words = "position 2 is outside a sequence of 1 elements"
    assert words in reason_of(InsertsToConstruct, model)


def _erasing(place: str, made: str = "SequenceConstruct(x, z, w)") -> onnx.ModelProto:
    return parse(f"""g (float[N] x, float[N] z, float[N] w, int64 n) => (seq(float[N]) y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 minus = {{-1}}, int64 three = {{3}}> {{
        s = {made} y = SequenceErase(s{place}) }}""")


@pytest.mark.parametrize("place", ["", ", zero", ", one", ", minus"])
def test_erased_tensors(place: str) -> None:
    result = _fires_once(EraseToConstruct, _erasing(place))
    assert len(result.graph.node[-1].input) == 2


def test_the_only_tensor_is_erased() -> None:
    result = _fires_once(EraseToConstruct, _erasing("", "SequenceConstruct(x)"))
    assert ops(result)["SequenceEmpty"] == 1


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (", n", "position `n` is not known"),
        (", three", "position 3 is outside a sequence of 3 elements"),
    ],
)
def test_an_erasure_at_another_position_stays(place: str, words: str) -> None:
    assert words in reason_of(EraseToConstruct, _erasing(place))


# --- SequenceAt ---


@pytest.mark.parametrize("place", [0, 1, -1, -2])
def test_an_element_of_known_tensors(place: int) -> None:
    model = parse(f"""g (float[N] x, float[M] z) => (float[P] y) <int64 k = {{{place}}}> {{
        s = SequenceConstruct(x, z) e = SequenceAt(s, k) y = Neg(e) }}""")
    _fires_once(ElementOfConstructedSequence, model)


def test_an_element_that_is_an_output_is_copied() -> None:
    model = parse("""g (float[N] x, float[M] z) => (float[P] y) <int64 one = {1}> {
        s = SequenceConstruct(x, z) y = SequenceAt(s, one) }""")
    assert ops(rewritten(model).model) == {"Identity": 1}


@pytest.mark.parametrize("place", [2, -3])
def test_an_element_past_the_end_stays(place: int) -> None:
    model = parse(f"""g (float[N] x, float[M] z) => (float[P] y) <int64 k = {{{place}}}> {{
        s = SequenceConstruct(x, z) e = SequenceAt(s, k) y = Neg(e) }}""")
    words = f"position {place} is outside a sequence of 2 elements"
    assert words in reason_of(ElementOfConstructedSequence, model)


# --- ConcatFromSequence ---


@pytest.mark.parametrize("elements", ["x", "x, z", "x, z, x"])
@pytest.mark.parametrize(
    ("axis", "new"), [(0, 0), (1, 0), (-1, 0), (0, 1), (1, 1), (2, 1), (-1, 1), (-3, 1)]
)
def test_known_tensors_are_concatenated(elements: str, axis: int, new: int) -> None:
    kind = "float[P,Q,R]" if new else "float[P,Q]"
    model = parse(f"""g (float[N,M] x, float[N,M] z) => ({kind} y) {{
        s = SequenceConstruct({elements})
        y = ConcatFromSequence<axis={axis}, new_axis={new}>(s) }}""")
    result = _fires_once(ConcatOfConstructedSequence, model)
    assert ops(result)["Concat"] == 1


def test_tensors_of_unknown_rank_are_not_stacked_along_the_last_axis() -> None:
    model = parse("""g (float[N] x, int64[K] d) => (y) {
        r = Reshape(x, d) s = SequenceConstruct(r, r)
        y = ConcatFromSequence<axis=-1, new_axis=1>(s) }""")
    assert "the rank of the elements is not known" in reason_of(ConcatOfConstructedSequence, model)


def test_a_joined_input_stays() -> None:
    model = parse("g (seq(float[N]) s) => (float[P] y) { y = ConcatFromSequence<axis=0>(s) }")
    assert "not made of known tensors" in reason_of(ConcatOfConstructedSequence, model)


# --- carried sequences ---


def _carrying(update: str, initial: str = "SequenceConstruct(x, z)", read: bool = True) -> str:
    """A loop that carries the sequence l of two tensors [N], which becomes lo."""
    final = "f = SequenceAt(s, zero) g = SequenceAt(s, one)" if read else "f = Neg(x) g = Neg(z)"
    return f"""g (float[N] x, float[N] z, int64 m) => (float[P] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 minus = {{-1}}, float half = {{0.5}},
         int64[1] axis = {{0}}> {{
        s0 = {initial}
        t, s = Loop (m, , x, s0) <body = b (int64 i, bool ci, float[N] u, seq(float[N]) l)
            => (bool co, float[N] uo, seq(float[N]) lo) {{
            co = Identity(ci) a = SequenceAt(l, zero) c = SequenceAt(l, one)
            p = Mul(a, half) q = Sub(c, p) uo = Add(u, q) {update} }}>
        {final} y = Concat<axis=0>(f, g, t) }}"""


UPDATES = {
    "replaced": "e = SequenceErase(l, zero) lo = SequenceInsert(e, q, zero)",
    "exchanged": "e = SequenceErase(l, zero) lo = SequenceInsert(e, a)",
    "shifted": "e = SequenceInsert(l, q) lo = SequenceErase(e, zero)",
    "rebuilt": "lo = SequenceConstruct(q, a)",
    "rebuilt and changed": "e = SequenceConstruct(q, a, c) lo = SequenceErase(e, minus)",
}


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_each_element_is_carried_alone(update: str) -> None:
    model = parse(_carrying(update))
    result = _fires_once(UnpackCarriedSequence, model)
    loop = next(node for node in result.graph.node if node.op_type == "Loop")
    assert len(loop.output) == 3
    assert not [op for op in ops(rewritten(model, SIZES, 1e-6).model) if "Sequence" in op]


def test_a_final_sequence_that_nothing_reads_is_not_made() -> None:
    model = parse(_carrying(UPDATES["replaced"], read=False))
    result = _fires_once(UnpackCarriedSequence, model)
    assert ops(result)["SequenceConstruct"] == 2  # the initial one, and the one in the body


@pytest.mark.parametrize(
    ("update", "initial", "words"),
    [
        ("lo = SequenceInsert(l, q)", "SequenceConstruct(x, z)", "grows or shrinks"),
        ("lo = SequenceErase(l)", "SequenceConstruct(x, z, x)", "grows or shrinks"),
        (
            "e = SequenceErase(l, i) lo = SequenceInsert(e, q)",
            "SequenceConstruct(x, z)",
            "position `i` is not known",
        ),
        (
            "k = Unsqueeze(q, axis) lo = SplitToSequence<axis=0, keepdims=0>(k)",
            "SequenceConstruct(x, z)",
            "is not made from it",
        ),
        (UPDATES["replaced"], "SequenceEmpty()", "no carried value is a sequence of known"),
    ],
)
def test_other_carried_sequences_stay(update: str, initial: str, words: str) -> None:
    assert words in reason_of(UnpackCarriedSequence, parse(_carrying(update, initial)))


def test_elements_of_different_ranks_stay() -> None:
    """onnxruntime 1.31 reads uninitialised memory there, so that the results are not compared."""
    model = parse("""g (float[2] x, float[1,N] z) => (float[K,3] y) {
        s = SequenceConstruct(x, z) y = ConcatFromSequence<axis=0, new_axis=1>(s) }""")
    assert "different ranks" in reason_of(ConcatOfConstructedSequence, model)
