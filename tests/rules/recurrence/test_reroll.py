"""Copies of a cell become the operator, and concatenated slices the tensor they are slices of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from looplift.rewrite.engine.miss import Miss
from looplift.rewrite.engine.rule import Match
from looplift.rules.recurrence import ConcatOfSlices, RerollRecurrence
from looplift.rules.values.dead_nodes import EliminateDeadNode

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of
from .cell_models import PLACES, constant, integers

FEEDS = Feeds(sizes=(1, 2, 5), most=24)
LSTM_WEIGHTS = f"{constant('w', 2, 12)}, {constant('r', 3, 12)}"
RNN_WEIGHTS = f"{constant('w', 2, 3)}, {constant('r', 3, 3)}"
SHAPES = integers(apart=[-1, 4, 3])


def _unrolled(copy: str, count: int) -> str:
    """Copies of a cell; @ stands for the number of a copy, # for the next one."""
    return "".join(copy.replace("#", str(k + 1)).replace("@", str(k)) for k in range(count))


def test_copies_that_slice_their_gates() -> None:
    """Slices of gates are not inputs, unlike slices of a sequence."""
    copy = """t@ = Constant<value_int=@>() x@ = Gather<axis=0>(x, t@) p@ = MatMul(x@, w)
      q@ = MatMul(h@, r) s@ = Add(p@, q@) v@ = Reshape(s@, apart)
      gi@ = Gather<axis=1>(v@, g0) gf@ = Gather<axis=1>(v@, g1) gn@ = Gather<axis=1>(v@, g2)
      go@ = Gather<axis=1>(v@, g3) i@ = Sigmoid(gi@) f@ = Sigmoid(gf@) n@ = Tanh(gn@)
      o@ = Sigmoid(go@) fc@ = Mul(f@, c@) ig@ = Mul(i@, n@) c# = Add(fc@, ig@) tc@ = Tanh(c#)
      h# = Mul(o@, tc@) """
    text = f"""m (float[5,B,2] x, float[B,3] h0, float[B,3] c0) => (float[B,3] h5, float[B,3] h2)
      <{LSTM_WEIGHTS}, {SHAPES}, {PLACES}> {{ {_unrolled(copy, 5)} }}"""
    counts = ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)
    assert counts["LSTM"] == 1
    assert "Sigmoid" not in counts


def test_copies_with_a_context() -> None:
    """The input that all copies share is repeated, not concatenated."""
    copy = """t@ = Constant<value_int=@>() x@ = Gather<axis=0>(x, t@) j@ = Concat<axis=1>(x@, u, h@)
      a@ = MatMul(j@, w) h# = Tanh(a@) """
    text = f"""m (float[6,B,2] x, float[B,2] u, float[B,3] h0) => (float[B,3] h6)
      <{constant("w", 7, 3)}> {{ {_unrolled(copy, 6)} }}"""
    counts = ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)
    assert counts["RNN"] == 1
    assert "Tanh" not in counts


def test_copies_with_an_input_that_one_gate_reads() -> None:
    copy = """t@ = Constant<value_int=@>() x@ = Gather<axis=0>(x, t@) p@ = MatMul(x@, w)
      q@ = MatMul(h@, r) s@ = Add(p@, q@) gi@, f0@, gn@, go@ = Split<axis=1, num_outputs=4>(s@)
      gf@ = Add(f0@, k) i@ = Sigmoid(gi@) f@ = Sigmoid(gf@) n@ = Tanh(gn@)
      o@ = Sigmoid(go@) fc@ = Mul(f@, c@) ig@ = Mul(i@, n@) c# = Add(fc@, ig@) tc@ = Tanh(c#)
      h# = Mul(o@, tc@) """
    text = f"""m (float[4,B,2] x, float[B,3] k, float[B,3] h0, float[B,3] c0) => (float[B,3] h4)
      <{LSTM_WEIGHTS}> {{ {_unrolled(copy, 4)} }}"""
    assert ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)["LSTM"] == 1


def test_few_copies_with_single_values_are_declined() -> None:
    """Concatenating their inputs takes more nodes than the copies have."""
    copy = "q@ = MatMul(h@, r) a@ = Sum(x@, u@, v@, s@, t@, q@) h# = Tanh(a@) "
    inputs = ", ".join(f"float[B,3] {name}{k}" for k in range(3) for name in "xuvst")
    text = f"""m ({inputs}, float[B,3] h0) => (float[B,3] h3)
      <{constant("r", 3, 3)}> {{ {_unrolled(copy, 3)} }}"""
    assert "RNN" not in ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)
    _, trace, engine = run_rules(parse(text, opset=21), [RerollRecurrence])
    assert trace.commits() == []
    assert "no more nodes than one operator" in str(next(iter(engine.declined.values())))


@pytest.mark.parametrize(("batch", "noted"), [("B", True), ("2", False)])
def test_copies_that_may_have_an_empty_batch(batch: str, noted: bool) -> None:
    """The copies run on it, onnxruntime's operator does not."""
    copy = """t@ = Constant<value_int=@>() x@ = Gather<axis=0>(x, t@) p@ = MatMul(x@, w)
      q@ = MatMul(h@, r) s@ = Add(p@, q@) gi@, gf@, gn@, go@ = Split<axis=1, num_outputs=4>(s@)
      i@ = Sigmoid(gi@) f@ = Sigmoid(gf@) n@ = Tanh(gn@) o@ = Sigmoid(go@) fc@ = Mul(f@, c@)
      ig@ = Mul(i@, n@) c# = Add(fc@, ig@) tc@ = Tanh(c#) h# = Mul(o@, tc@) """
    text = f"""m (float[3,{batch},2] x, float[{batch},3] h0, float[{batch},3] c0)
      => (float[{batch},3] h3) <{LSTM_WEIGHTS}> {{ {_unrolled(copy, 3)} }}"""
    notes = rewritten(parse(text, opset=21), FEEDS, 1e-5).report.notes
    assert any("empty batch" in note for note in notes) == noted


ONE_STEP = "Y@, h# = GRU<hidden_size=3>(x@, W, R, , , h@) s@ = Squeeze(Y@, one) "
ONE_STEP_WEIGHTS = f"{constant('W', 1, 9, 2)}, {constant('R', 1, 9, 3)}, int64[1] one = {{1}}"
KEPT = {
    "slices": "t@ = Constant<value_ints=[@]>() e@ = Constant<value_ints=[#]>() "
    "x@ = Slice(x, t@, e@, nil) ",
    "gathered": "t@ = Constant<value_ints=[@]>() x@ = Gather<axis=0>(x, t@) ",
}


@pytest.mark.parametrize("read", KEPT.values(), ids=KEPT.keys())
@pytest.mark.parametrize("ends", ["s0, s1, s2, s3, s4", "s4, s3, s2, s1, s0", "s1, s2, h5"])
def test_one_step_operators(read: str, ends: str) -> None:
    """Their inputs keep the time axis, and both Y and Y_h are the new h."""
    text = f"""m (float[5,B,2] x, float[1,B,3] h0) => (float[L,B,3] y)
      <{ONE_STEP_WEIGHTS}, {integers(nil=[0])}> {{
      {_unrolled(read + ONE_STEP, 5)} y = Concat<axis=0>({ends}) }}"""
    counts = ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)
    assert counts["GRU"] == 1


def test_one_step_operators_that_skip_a_slice() -> None:
    """Their inputs are concatenated."""
    read = KEPT["gathered"].replace("[@]", "[?]")
    copies = _unrolled(read + ONE_STEP, 5)
    for number in (0, 1, 4, 2, 3):
        copies = copies.replace("?", str(number), 1)
    text = f"""m (float[5,B,2] x, float[1,B,3] h0) => (float[1,B,3] h5)
      <{ONE_STEP_WEIGHTS}> {{ {copies} }}"""
    rewritten(parse(text, opset=21), FEEDS, 1e-5)


def test_one_step_operators_of_which_the_first_reads_a_constant_batch() -> None:
    """As a decoder that starts with the embedding of a token for all entries."""
    text = f"""m (int64[3] k, float[1,3,3] h0) => (float[1,3,3] h2)
      <{ONE_STEP_WEIGHTS}, {constant("x0", 1, 3, 2)}, {constant("table", 5, 2)}, {integers(nil=[0])}> {{
      Y0, h1 = GRU<hidden_size=3>(x0, W, R, , , h0)
      e = Gather(table, k) x1 = Unsqueeze(e, nil)
      Y1, h2 = GRU<hidden_size=3>(x1, W, R, , , h1) }}"""
    model = parse(text, opset=21)
    assert "only one copy of the cell is found" in _reasons(model)
    rewritten(model, Feeds(values={"k": [np.array([0, 4, 2])]}), 1e-5)


def test_copies_whose_initial_state_gets_an_axis() -> None:
    """Only the first copy reads through the Unsqueeze."""
    copy = """t@ = Constant<value_int=@>() x@ = Gather<axis=0>(x, t@) p@ = MatMul(x@, w)
      q@ = MatMul(h@, r) a@ = Add(p@, q@) h# = Relu(a@) """
    text = f"""m (float[5,1,B,2] x, float[B,3] g0) => (float[1,B,3] h5)
      <{RNN_WEIGHTS}, {integers(nil=[0])}> {{ h0 = Unsqueeze(g0, nil) {_unrolled(copy, 5)} }}"""
    counts = ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)
    assert counts["RNN"] == 1


RNN_COPY = """t@ = Constant<value_int=@>() x@ = Gather<axis=0>(x, t@) p@ = MatMul(x@, w)
  q@ = MatMul(h@, r) a@ = Add(p@, q@) h# = Tanh(a@) """


@pytest.mark.parametrize(
    ("inputs", "h0"),
    [
        ("float[4,B,2] x, float[1,3] h0", ""),
        ("float[4,B,2] x", "float[1,3] h0 = {0.5, -0.5, 0.25}"),
        ("float[4,5,2] x, float[1,3] h0", ""),
        ("float[4,5,2] x", "float[1,3] h0 = {0.5, -0.5, 0.25}"),
    ],
)
def test_copies_whose_initial_state_has_one_row_for_all(inputs: str, h0: str) -> None:
    """The operator does not broadcast its initial state, as the first copy does."""
    text = f"""m ({inputs}) => (float[?,3] h4, float[?,3] h2)
      <{RNN_WEIGHTS}{", " * bool(h0)}{h0}> {{ {_unrolled(RNN_COPY, 4)} }}"""
    feeds = Feeds(sizes=(1, 2, 7), most=24)
    assert ops(rewritten(parse(text, opset=21), feeds, 1e-5).model)["RNN"] == 1


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ("float[4,B,2] x, float[3] h0", "`h0` has 1 axes, the states after it 2"),
        ("float[4,B,2] x, float[C,3] h0", "the state `h1` changes its shape"),
        ("float[4,1,2] x, float[B,3] h0", "the batches of `x0` and of the state may differ"),
    ],
)
def test_copies_whose_initial_state_may_not_fit_are_declined(inputs: str, reason: str) -> None:
    model = parse(
        f"""m ({inputs}) => (float[?,3] h4, float[?,3] h2)
      <{RNN_WEIGHTS}> {{ {_unrolled(RNN_COPY, 4)} }}""",
        opset=21,
    )
    assert reason in _reasons(model)
    rewritten(model, FEEDS, 1e-5)


def test_copies_whose_state_has_many_rows_are_declined() -> None:
    """As layers of a detector that share a product: each row of the state would be features."""
    copy = "q@ = MatMul(h@, r) a@ = Add(q@, x) h# = Tanh(a@) "
    text = f"""m (float[B,300,64] x, float[B,300,64] h0) => (float[B,300,64] h3)
      <{constant("r", 64, 64)}> {{ {_unrolled(copy, 3)} }}"""
    assert "a matrix of more than" in " ".join(_reasons(parse(text, opset=21)))


def _reasons(model: onnx.ModelProto) -> list[str]:
    """Why RerollRecurrence does not fire at each node."""
    _, _, engine = run_rules(model, [])
    found = []
    for node in engine.index.walk():
        if RerollRecurrence.is_tried_at(node):
            with pytest.raises(Miss) as miss:
                RerollRecurrence().match(Match(node, engine.facts, engine.options))
            found.append(str(miss.value))
    return found


# --- concatenated slices ---

ANY_SIZE = Feeds(sizes=(0, 1, 2, 7))


def _concat(numbers: Sequence[int], read: str, axis: int, shape: str, result: str) -> str:
    """Single slices of x, concatenated; @ in `read` stands for the number of the slice."""
    reads = "".join(
        f"t{k} = Constant<value_ints=[{k}]>() s{k} = Constant<value_int={k}>() "
        f"e{k} = Constant<value_ints=[{k + 1}]>() {read.replace('@', str(k))} "
        for k in numbers
    )
    operands = ", ".join(f"u{k}" for k in numbers)
    return f"""m (float[{shape}] x) => (float[{result}] y) <{integers(nil=[0], one=[1])}> {{
      {reads} c = Concat<axis={axis}>({operands}) y = Neg(c) }}"""


GATHERED = "x@ = Gather<axis=0>(x, s@) u@ = Unsqueeze(x@, one)"
CONCATENATED = {
    "gathered": (GATHERED, 1, "5,B,2", "B,L,2"),
    "gathered along an inner axis": (
        "x@ = Gather<axis=1>(x, s@) u@ = Unsqueeze(x@, nil)", 0, "B,5,2", "L,B,2",
    ),
    "sliced and squeezed": (
        "k@ = Slice(x, t@, e@, nil) x@ = Squeeze(k@, nil) u@ = Unsqueeze(x@, one)", 1, "5,B", "B,L",
    ),
    "an axis of size 1 in the tensor": ("u@ = Gather<axis=0>(x, s@)", 0, "5,1,B", "L,B"),
    "an axis of size 1 before the slices": ("u@ = Gather<axis=1>(x, s@)", 0, "1,5,B", "L,B"),
}  # fmt: skip


@pytest.mark.parametrize("numbers", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (1, 2, 3), (3, 2, 1)])
@pytest.mark.parametrize(
    ("read", "axis", "shape", "result"), CONCATENATED.values(), ids=CONCATENATED.keys()
)
def test_concat_of_slices(
    numbers: tuple[int, ...], read: str, axis: int, shape: str, result: str
) -> None:
    model = parse(_concat(numbers, read, axis, shape, result), opset=21)
    after, trace, _ = run_rules(model, [ConcatOfSlices, EliminateDeadNode])
    assert trace.defects() == []
    assert "Concat" not in ops(after)
    assert_equivalent(model, after, ANY_SIZE)


NOT_CONSECUTIVE = {
    "another order": ((3, 1, 2), GATHERED, "`u1` is not the next slice of `x`"),
    "every second": ((0, 2, 4), GATHERED, "`u2` is not the next slice of `x`"),
    "longer slices": ((0, 1, 2, 3), "u@ = Slice(x, t@, one, one)", "is not a single slice"),
    "computed": ((0, 1), "x@ = Gather<axis=0>(x, s@) z@ = Neg(x@) u@ = Unsqueeze(z@, one)",
                 "`u0` is not a single slice of a tensor"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "read", "reason"), NOT_CONSECUTIVE.values(), ids=NOT_CONSECUTIVE.keys()
)
def test_concat_of_slices_declines(numbers: tuple[int, ...], read: str, reason: str) -> None:
    model = parse(_concat(numbers, read, 1,
                          "5,B,2", "L,M,N"), opset=21)  # fmt: skip
    assert reason in reason_of(ConcatOfSlices, model)
    rewritten(model, ANY_SIZE)


def test_a_chain_without_inputs_is_no_cell() -> None:
    model = parse("""g (float[B,3] h0) => (float[B,3] y) <float[3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
        q0 = MatMul(h0, r) q1 = MatMul(q0, r) h2 = Tanh(q1) q2 = MatMul(h2, r) h3 = Relu(q2)
        y = MatMul(h3, r) }""")
    _, trace, _ = run_rules(model, [RerollRecurrence])
    assert trace.defects() == []
