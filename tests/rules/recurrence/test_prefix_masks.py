"""Masks that are data become `sequence_lens` if the user asserts them, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from looplift import rewrite, verify
from looplift.api import RewriteResult
from looplift.rewrite.engine.reasons import Reason
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.running.evaluate import NotEvaluated
from looplift.rules.recurrence import length_masks

from ...equivalence import assert_equal, ops, outcome, session
from ...samples import one_of
from ...small_models import parse

LENGTHS = ([0, 2, 5], [5, 5, 5], [0, 0, 0], [3, 1, 2])
LENGTH = 5
W = np.sin(np.arange(6.0)).astype(np.float32)
V = np.sin(np.arange(1.0, 10.0)).astype(np.float32)


def _text(array: np.ndarray) -> str:
    return ", ".join(f"{number:.3f}" for number in array)


def _rnn(
    given: str,
    *,
    outside: str = "",
    inside: str = "c = Gather<axis=0>(k, t) m = Unsqueeze(c, one)",
    state: str = "hn = Where(m, h1, h)",
    row: str = "r = Where(m, h1, zero)",
    position: str = "t",
) -> onnx.ModelProto:
    """An RNN in a Loop that keeps the states of a row where its mask is false.

    It reads x at `position`: t, or b for the time steps from the last one on.
    """
    text = f"""g (float[T,B,2] x, float[B,3] h0, {given}) => (float[T,B,3] y, float[B,3] z)
      <float[2,3] w = {{{_text(W)}}}, float[3,3] v = {{{_text(V)}}}, int64[1] one = {{1}},
       int64[1] two = {{2}}, int64[1] nil = {{0}}, float zero = {{0}}, float onef = {{1}},
       float half = {{0.5}}, int64 uno = {{1}}, int64[1] back = {{-1}},
       int64[1] low = {{-9223372036854775808}}, int64[2] across = {{1, 3}}> {{
      n0 = Shape<start=0, end=1>(x) n = Squeeze(n0) last = Sub(n, uno) {outside}
      z, y = Loop (n, , h0) <body = b (int64 t, bool on, float[B,3] h)
            => (bool again, float[B,3] hn, float[B,3] row) {{
          again = Identity(on) b = Sub(last, t) xt = Gather<axis=0>(x, {position}) p = MatMul(xt, w) q = MatMul(h, v)
          a = Add(p, q) h1 = Tanh(a) {inside} {state} {row} row = Identity(r) }}> }}"""
    return parse(text, opset=18)


def _mask(lengths: Sequence[int]) -> np.ndarray:
    """(time, batch)."""
    return np.arange(LENGTH)[:, None] < np.array(lengths)


def _why_not(result: RewriteResult) -> list[Reason]:
    """The reasons of the loops that stay."""
    loops = [node for node in result.engine.index.walk() if node.op in ("Loop", "Scan")]
    return [reason for loop in loops for reason in result.reasons(loop)]


def _feed(mask: np.ndarray) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    batch = len(LENGTHS[0])
    return {
        "x": rng.standard_normal((LENGTH, batch, 2)).astype(np.float32),
        "h0": rng.standard_normal((batch, 3)).astype(np.float32),
        "k": mask,
    }


def _assert_fused(
    model: onnx.ModelProto, masks: Sequence[np.ndarray], name: str = "k", axis: int = 0
) -> None:
    result = rewrite(model, prefix_masks={name: axis})
    counts = ops(result.model)
    assert (counts.get("RNN", 0), counts.get("Loop", 0)) == (1, 0)
    (note,) = (note for note in result.report.notes if f"`{name}`" in note)
    assert note.startswith(f"`{name}` is a prefix mask along axis {axis}: ")
    for mask in masks:
        expected = outcome(session(model), _feed(mask))
        assert expected is not None
        assert_equal(expected, outcome(session(result.model), _feed(mask)), 1e-5)


GIVEN = {
    "booleans": ("bool[T,B] k", {}),
    "batch first": (
        "bool[B,T] k",
        {"inside": "c = Gather<axis=1>(k, t) m = Unsqueeze(c, one)"},
    ),
    "three axes": ("bool[T,B,1] k", {"inside": "m = Gather<axis=0>(k, t)"}),
    "of padding": (
        "bool[T,B] k",
        {"outside": "e = Not(k)", "inside": "c = Gather<axis=0>(e, t) d = Unsqueeze(c, one) "
         "m = Not(d)"},
    ),
    "floats blended": (
        "float[T,B] k",
        {
            "inside": "c = Gather<axis=0>(k, t) m = Unsqueeze(c, one) d = Sub(onef, m)",
            "state": "u = Mul(m, h1) o = Mul(d, h) hn = Add(u, o)",
            "row": "r = Mul(m, h1)",
        },
    ),
    "floats compared": (
        "float[T,B] k",
        {"outside": "b0 = Greater(k, half)", "inside": "c = Gather<axis=0>(b0, t) m = Unsqueeze(c, one)"},
    ),
    "integers": (
        "int64[T,B] k",
        {"outside": "b0 = Equal(k, uno)", "inside": "c = Gather<axis=0>(b0, t) m = Unsqueeze(c, one)"},
    ),
    "held rows": ("bool[T,B] k", {"row": "r = Identity(hn)"}),
    "transposed before the loop": (
        "bool[B,T] k",
        {"outside": "k2 = Unsqueeze(k, two) e = Transpose<perm=[1,0,2]>(k2)",
         "inside": "m = Gather<axis=0>(e, t)"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "parts"), one_of(2, GIVEN.values()), ids=GIVEN.keys())
def test_spellings(given: str, parts: dict[str, str]) -> None:
    dtype = {"bool": bool, "float": np.float32, "int64": np.int64}[given.partition("[")[0]]
    masks = [_mask(lengths).astype(dtype) for lengths in LENGTHS]
    if "[B,T]" in given:
        masks = [mask.T for mask in masks]
    if "[T,B,1]" in given:
        masks = [mask[:, :, None] for mask in masks]
    time = 1 if "[B,T]" in given else 0
    _assert_fused(_rnn(given, **parts), masks, axis=time)
    # Asserted along the batch, the mask tells nothing about the iterations of the loop.
    other = rewrite(_rnn(given, **parts), prefix_masks={"k": 1 - time})
    assert ops(other.model).get("RNN", 0) == 0
    assert any(f"asserted along axis {1 - time}, but" in each.sentence for each in _why_not(other))


REVERSED = {
    "read from the end": {"inside": "c = Gather<axis=0>(k, b) m = Unsqueeze(c, one)"},
    "reversed before the loop": {
        "outside": "kr = Slice(k, back, low, nil, back)",
        "inside": "c = Gather<axis=0>(kr, t) m = Unsqueeze(c, one)",
    },
    "repeated in the body": {
        "inside": "c = Gather<axis=0>(k, b) c1 = Unsqueeze(c, one) m = Tile(c1, across)",
        "row": "r = Identity(hn)",
    },
}


@pytest.mark.parametrize("parts", REVERSED.values(), ids=REVERSED.keys())
def test_masks_of_loops_from_the_last_time_step(parts: dict[str, str]) -> None:
    """As Keras runs a layer backward: it reverses both the sequence and its mask."""
    model = _rnn("bool[T,B] k", **parts, position="b")
    _assert_fused(model, [_mask(lengths) for lengths in LENGTHS])


def test_a_mask_that_the_model_computes() -> None:
    model = _rnn("float[T,B] k", outside="e = Greater(k, half)", inside=(
        "c = Gather<axis=0>(e, t) m = Unsqueeze(c, one)"))  # fmt: skip
    masks = [(_mask(lengths) * 2.5 - 1).astype(np.float32) for lengths in LENGTHS]
    _assert_fused(model, masks, "e")


def test_longer_than_the_loop_runs() -> None:
    """Elements that the loop does not read do not count."""
    masks = [np.concatenate([_mask(lengths), np.zeros((2, 3), bool)]) for lengths in LENGTHS]
    masks += [np.ones((LENGTH + 2, 3), bool)]
    _assert_fused(_rnn("bool[S,B] k"), masks)


def test_one_of_two_equal_values_is_named() -> None:
    """An assertion holds for all values that are computed in the same way."""
    model = _rnn("int64[T,B] k", outside="e = Greater(k, uno) other = Greater(k, uno)", inside=(
        "c = Gather<axis=0>(e, t) m = Unsqueeze(c, one)"))  # fmt: skip
    masks = [np.where(_mask(lengths), 5, 0) for lengths in LENGTHS]
    result = rewrite(model, prefix_masks={"other": 0})
    assert (ops(result.model).get("RNN", 0), ops(result.model).get("Loop", 0)) == (1, 0)
    for mask in masks:
        expected = outcome(session(model), _feed(mask))
        assert expected is not None
        assert_equal(expected, outcome(session(result.model), _feed(mask)), 1e-5)


class TestTwoAxes:
    """One mask, read by a loop along the time and by another along the batch."""

    TEXT = f"""g (float[N,T,2] x, bool[N,T] mask, float[N,3] a0, float[T,3] b0)
        => (float[N,3] a, float[T,3] b)
      <float[2,3] w = {{{_text(W)}}}, float[3,3] v = {{{_text(V)}}}, int64[1] one = {{1}}> {{
        s = Shape<start=0, end=1>(x) n = Squeeze(s) r = Shape<start=1, end=2>(x) t = Squeeze(r)
        a = Loop (t, , a0) <body = over_time (int64 i, bool c, float[N,3] h)
              => (bool co, float[N,3] h2) {{
            co = Identity(c) xt = Gather<axis=1>(x, i) m = Gather<axis=1>(mask, i)
            m1 = Unsqueeze(m, one) p = MatMul(xt, w) q = MatMul(h, v) z = Add(p, q)
            new = Tanh(z) h2 = Where(m1, new, h) }}>
        b = Loop (n, , b0) <body = over_batch (int64 j, bool d, float[T,3] g1)
              => (bool do, float[T,3] g2) {{
            do = Identity(d) xr = Gather<axis=0>(x, j) mr = Gather<axis=0>(mask, j)
            mr1 = Unsqueeze(mr, one) pr = MatMul(xr, w) qr = MatMul(g1, v) zr = Add(pr, qr)
            newr = Tanh(zr) g2 = Where(mr1, newr, g1) }}> }}"""

    @pytest.mark.parametrize(("axis", "stays"), [(1, 0), (0, 1), (-1, 0)])
    def test_only_the_loop_along_that_axis(self, axis: int, stays: int) -> None:
        model = parse(self.TEXT, opset=18)
        result = rewrite(model, prefix_masks={"mask": axis})
        assert (ops(result.model)["RNN"], ops(result.model)["Loop"]) == (1, 1)
        said = [r.sentence for r in _why_not(result) if r.rule == "FuseRecurrence"]
        (sentence,) = said
        assert f"asserted along axis {1 - stays}, but the loop runs along axis {stays}" in sentence
        rng = np.random.default_rng(0)
        mask = np.arange(3) < np.array([[1], [3], [2]])
        shapes = {"x": (3, 3, 2), "a0": (3, 3), "b0": (3, 3)}
        feed: dict[str, Any] = {"mask": mask.T if stays else mask}
        feed |= {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
        expected = outcome(session(model), feed)
        assert expected is not None
        assert_equal(expected, outcome(session(result.model), feed), 1e-5)

    def test_verification_tries_lengths_in_any_order(self) -> None:
        """A result that relies on the other axis is wrong, and verification finds that."""
        model = parse(self.TEXT, opset=18)
        for fused, said in ((1, 0), (0, 1)):
            result = rewrite(model, prefix_masks={"mask": fused})
            right = result.engine.assertions
            assert verify(model, result.model, assumptions=right).verified
            wrong = Assertions(prefix_masks={"mask": said})
            assert verify(model, result.model, assumptions=wrong).differences


class TestDeclined:
    def test_no_assertion(self) -> None:
        assert ops(rewrite(_rnn("bool[T,B] k")).model).get("RNN", 0) == 0

    def test_an_assertion_about_another_value(self) -> None:
        model = _rnn("bool[T,B] k, bool[T,B] other", outside="o2 = Not(other)")
        assert ops(rewrite(model, prefix_masks={"other": 0}).model).get("RNN", 0) == 0

    @pytest.mark.parametrize(
        "outside",
        [
            "e = And(k, other)",
            "f = Cast<to=1>(k) g = ReduceSum(f, nil) e = Equal(f, g)",
            "i = Range(uno, n, uno) e = Gather<axis=0>(k, i)",
        ],
        ids=["with another", "across rows", "in another order"],
    )
    def test_a_computation_that_may_not_keep_the_prefix(self, outside: str) -> None:
        model = _rnn("bool[T,B] k, bool[T,B] other", outside=outside,
                     inside="c = Gather<axis=0>(e, t) m = Unsqueeze(c, one)")  # fmt: skip
        assert ops(rewrite(model, prefix_masks={"k": 0}).model).get("RNN", 0) == 0

    def test_a_mask_of_features(self) -> None:
        """One element for each feature, not for each row."""
        model = _rnn("bool[T,3] k", inside="m = Gather<axis=0>(k, t)")
        assert ops(rewrite(model, prefix_masks={"k": 0}).model).get("RNN", 0) == 0

    def test_states_that_change_beyond(self) -> None:
        model = _rnn("bool[T,B] k", state="o = Neg(h) hn = Where(m, h1, o)")
        assert ops(rewrite(model, prefix_masks={"k": 0}).model).get("RNN", 0) == 0

    def test_numbers_that_are_neither_1_nor_0(self) -> None:
        model = _rnn("float[T,B] k", outside="e = Mul(k, half)", state="u = Mul(m, h1) d = Sub(onef, m) "
                     "o = Mul(d, h) hn = Add(u, o)", row="r = Mul(m, h1)",
                     inside="c = Gather<axis=0>(e, t) m = Unsqueeze(c, one)")  # fmt: skip
        assert ops(rewrite(model, prefix_masks={"k": 0}).model).get("RNN", 0) == 0

    def test_an_operator_that_is_not_evaluated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> list[np.ndarray]:
            raise NotEvaluated("no kernel")

        monkeypatch.setattr(length_masks, "evaluate", refuse)
        model = _rnn("bool[T,B] k", outside="e = Not(k)", inside=(
            "c = Gather<axis=0>(e, t) d = Unsqueeze(c, one) m = Not(d)"))  # fmt: skip
        assert ops(rewrite(model, prefix_masks={"k": 0}).model).get("RNN", 0) == 0


def test_a_mask_that_is_no_prefix_mask_changes_the_result() -> None:
    """The note warns of this."""
    model = _rnn("bool[T,B] k")
    result = rewrite(model, prefix_masks={"k": 0})
    assert "true again after it was false" in result.report.notes[0]
    broken = _mask([5, 5, 5])
    broken[1] = False
    expected = outcome(session(model), _feed(broken))
    actual = outcome(session(result.model), _feed(broken))
    assert expected is not None
    assert actual is not None
    assert np.max(np.abs(expected[1] - actual[1])) > 0.01


def _padded(corpus: Path, name: str, lengths: Sequence[int]) -> dict[str, np.ndarray]:
    """Random rows with zeros beyond their lengths, as a Masking layer takes them: (batch, time)."""
    given = onnx.load(corpus / f"{name}.onnx").graph.input[0]
    features = given.type.tensor_type.shape.dim[2].dim_value
    x = np.random.default_rng(1).standard_normal((len(lengths), LENGTH, features))
    x[~_mask(lengths).T] = 0
    return {given.name: x.astype(np.float32)}


class TestCorpus:
    def test_keras_masking(self, corpus: Path) -> None:
        """Two carried values hold the last output: the hidden state, and the one for the result."""
        name = "tf_lstm_masking_rw"
        model = onnx.load(corpus / f"{name}.onnx")
        result = rewrite(model, prefix_masks=["Greater__4182:0"])
        counts = ops(result.model)
        assert (counts["LSTM"], counts.get("Loop", 0)) == (1, 0)
        for lengths in ([5, 2, 1], [3, 3, 3], [0, 4, 5]):
            feed = _padded(corpus, name, lengths)
            expected = outcome(session(model), feed)
            assert expected is not None
            assert_equal(expected, outcome(session(result.model), feed), 1e-5)

    def test_a_mask_of_numbers(self, corpus: Path) -> None:
        model = onnx.load(corpus / "ts_lstm_masked_mul.onnx")
        result = rewrite(model, prefix_masks={"mask": 0})
        assert (ops(result.model)["LSTM"], ops(result.model).get("Loop", 0)) == (1, 0)
        x = np.random.default_rng(2).standard_normal((LENGTH, 3, 16)).astype(np.float32)
        for lengths in LENGTHS:
            feed = {"x": x, "mask": _mask(lengths).astype(np.float32)}
            expected = outcome(session(model), feed)
            assert expected is not None
            assert_equal(expected, outcome(session(result.model), feed), 1e-5)
