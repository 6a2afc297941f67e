"""Length masks become `sequence_lens` in any spelling; masks that are data keep the loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rules.recurrence import FuseRecurrence

from ...equivalence import ops, rewritten
from ...rewrite.fact_oracle import Feeds
from ...samples import one_of
from ...small_models import model, parse
from ..reasons import reason_of
from .cell_models import numbers

LENGTHS = ([0, 2, 5], [-3, 1, 9], [5, 5, 5], [0, 0, 0], [3, 1, 2])
FEEDS = Feeds(
    sizes=(1, 5),
    fixed={"B": 3},
    most=20,
    values={name: [np.array(v, kind) for v in LENGTHS]
            for name, kind in (("l", np.int64), ("k", np.int32))},
)  # fmt: skip
EMPTY = Feeds(sizes=(5,), fixed={"B": 3}, most=20,
              values={"n": [0, 1, 5], "l": [np.array(v) for v in LENGTHS]})  # fmt: skip

WITHIN = "c = Less(t, l) m = Unsqueeze(c, one)"
HELD = "hn = Where(m, h1, h)"
ZERO = "z = Sub(h1, h1) r = Where(m, h1, zero)"
NOT = "c0 = GreaterOrEqual(t, l) c = Not(c0) m = Unsqueeze(c, one)"
FLOAT = "c = Less(t, l) c1 = Cast<to=1>(c) m = Unsqueeze(c1, one) d = Sub(onef, m)"


CONSTANTS = f"""float[2,3] w = {{{numbers(6, 0.0)}}}, float[3,3] v = {{{numbers(9, 1.0)}}},
    int64[1] one = {{1}}, int64 uno = {{1}}, int64[1] nil = {{0}}, int64 nul = {{0}}, int64 two = {{2}},
    float zero = {{0}}, float onef = {{1}}, int64[2] size = {{3, 3}}, int64[3] keep = {{0, 0, 1}},
    int64[1] far = {{2147483647}}, int64[2] other = {{3, -1}}, int64[1] back = {{-1}},
    int64[1] low = {{-9223372036854775808}}, int64[1] two1 = {{2}}, int64[2] square = {{1, 1}}"""
GIVEN = "float[T,B,2] x, float[B,3] h0, int64[B] l"


def _rnn(
    mask: str,
    state: str = HELD,
    row: str = "r = Where(m, h1, zero)",
    *,
    given: str = GIVEN,
    trip: str = "n0 = Shape<start=0, end=1>(x) n = Squeeze(n0)",
    outside: str = "",
) -> str:
    """An RNN in a Loop over x that keeps the state of a row beyond its length."""
    return f"""g ({given}) => (float[T,B,3] y, float[B,3] z) <{CONSTANTS}> {{
      {trip} {outside}
      z, y = Loop (n, , h0) <body = b (int64 t, bool on, float[B,3] h)
            => (bool again, float[B,3] hn, float[B,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, t) p = MatMul(xt, w) q = MatMul(h, v)
          a = Add(p, q) h1 = Tanh(a) {mask} {state} {row} row = Identity(r) }}> }}"""


def _fused(text: str, feeds: Feeds = FEEDS) -> dict[str, int]:
    return ops(rewritten(parse(text, opset=18), feeds, 1e-5).model)


def _assert_fused(text: str, feeds: Feeds = FEEDS, op: str = "RNN") -> None:
    counts = _fused(text, feeds)
    assert (counts.get(op, 0), counts.get("Loop", 0), counts.get("Scan", 0)) == (1, 0, 0)


MASKS = {
    "less": WITHIN,
    "greater": "c = Greater(l, t) m = Unsqueeze(c, one)",
    "not": NOT,
    "not beyond": "c0 = LessOrEqual(l, t) c = Not(c0) m = Unsqueeze(c, one)",
    "inclusive": "t1 = Add(t, uno) c = LessOrEqual(t1, l) m = Unsqueeze(c, one)",
    "later": "t1 = Add(t, two) c = Less(t1, l) m = Unsqueeze(c, one)",
    "earlier": "t1 = Sub(t, two) c = Less(t1, l) m = Unsqueeze(c, one)",
    "expanded": "tb = Expand(t, one) c = Less(tb, l) m = Unsqueeze(c, one)",
    "column": "lc = Unsqueeze(l, one) m = Less(t, lc)",
    "and true": "c = Less(t, l) c1 = And(c, on) m = Unsqueeze(c1, one)",
    "all features": "c = Less(t, l) c1 = Unsqueeze(c, one) hs = Shape(h) m = Expand(c1, hs)",
    "added to zeros": "ls = Shape(l) z = ConstantOfShape<value = int64[1] {0}>(ls) k = Add(z, t) "
    "c = Less(k, l) m = Unsqueeze(c, one)",
    "through numbers": "c = Less(t, l) c1 = Cast<to=1>(c) c2 = Unsqueeze(c1, one) m = Cast<to=9>(c2)",
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_comparisons(mask: str) -> None:
    _assert_fused(_rnn(mask))


STATES = {
    "blend": (FLOAT, "u = Mul(m, h1) o = Mul(d, h) hn = Add(u, o)", "r = Mul(m, h1)"),
    "step": (FLOAT, "e = Sub(h1, h) u = Mul(m, e) hn = Add(h, u)", "r = Mul(h1, m)"),
    "zeros": (WITHIN, HELD, "hs = Shape(h1) z0 = ConstantOfShape(hs) r = Where(m, h1, z0)"),
    "swapped": (
        "c0 = GreaterOrEqual(t, l) m0 = Unsqueeze(c0, one)",
        "hn = Where(m0, h, h1)",
        "r = Where(m0, zero, h1)",
    ),
    "held rows": (WITHIN, HELD, "r = Identity(hn)"),
    "transposed": (
        "m = Less(t, l)",
        "hT = Transpose(h) nT = Transpose(h1) sT = Where(m, nT, hT) hn = Transpose(sT)",
        "rT = Where(m, nT, zero) r = Transpose(rT)",
    ),
}


@pytest.mark.parametrize(("mask", "state", "row"), STATES.values(), ids=STATES.keys())
def test_states_and_rows(mask: str, state: str, row: str) -> None:
    _assert_fused(_rnn(mask, state, row))


SIZES = "ls = Shape(l) three = Constant<value_ints=[3]>() hs = Concat<axis=0>(ls, three)"
ZEROS = {
    "made of a shape": f"{SIZES} z0 = ConstantOfShape(hs)",
    "expanded": f"{SIZES} f0 = Constant<value_float=0.0>() z0 = Expand(f0, hs)",
    "of one row": "z0 = Constant<value = float[1,3] {0, 0, 0}>()",
}


@pytest.mark.parametrize("outside", ZEROS.values(), ids=ZEROS.keys())
def test_rows_of_zeros_that_are_made_before_the_loop(outside: str) -> None:
    _assert_fused(_rnn(WITHIN, row="r = Where(m, h1, z0)", outside=outside))


def test_rows_of_other_numbers_stay() -> None:
    ones = f"{SIZES} z0 = ConstantOfShape<value = float[1] {{1}}>(hs)"
    counts = _fused(_rnn(WITHIN, row="r = Where(m, h1, z0)", outside=ones))
    assert counts.get("RNN", 0) == 0


OUTSIDE = {
    "compared": ("i = Range(nul, n, uno) i1 = Unsqueeze(i, one) s = Less(i1, l)",
                 "c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)"),
    "batch first": ("""i = Range(nul, n, uno) i1 = Unsqueeze(i, nil) l1 = Unsqueeze(l, one)
                       s = LessOrEqual(l1, i1)""",
                    "c0 = Gather<axis=1>(s, t) c = Not(c0) m = Unsqueeze(c, one)"),
    "transposed": ("""i = Range(nul, n, uno) l1 = Unsqueeze(l, one) s0 = Greater(l1, i)
                  s1 = Transpose<perm=[1,0]>(s0) s = Unsqueeze(s1, one2)""",
               "c = Gather<axis=0>(s, t) m = Transpose<perm=[1,0]>(c)"),
    "as floats": ("""i = Range(nul, n, uno) i1 = Unsqueeze(i, one) i2 = Cast<to=1>(i1)
                     lf = Cast<to=1>(l) s = Greater(lf, i2)""",
                  "c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)"),
    "expanded": ("""i = Range(nul, n, uno) ls = Shape(l) ns = Reshape(n, one) s1 = Concat<axis=0>(ls, ns)
                    e = Expand(i, s1) l1 = Unsqueeze(l, one) s = Less(e, l1)""",
                 "c = Gather<axis=1>(s, t) m = Unsqueeze(c, one)"),
    "repeated": ("""i = Range(nul, n, uno) i1 = Unsqueeze(i, nil) ls = Shape(l) s1 = Concat<axis=0>(ls, one)
                    e = Tile(i1, s1) l1 = Unsqueeze(l, one) ns = Reshape(n, one)
                    s2 = Concat<axis=0>(one, ns) l2 = Tile(l1, s2) s = Less(e, l2)""",
                 "c = Gather<axis=1>(s, t) m = Unsqueeze(c, one)"),
    "difference": ("""i = Range(nul, n, uno) i1 = Unsqueeze(i, one) k = Sub(l, uno) e = Sub(k, i1)
                      s = GreaterOrEqual(e, nul)""",
                   "c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)"),
    "difference below zero": ("""i = Range(nul, n, uno) i1 = Unsqueeze(i, one) e = Sub(i1, l)
                                 s0 = LessOrEqual(nul, e) s = Not(s0)""",
                              "c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)"),
    "number above one half": ("""i = Range(nul, n, uno) i1 = Unsqueeze(i, one) s0 = Less(i1, l)
                                 f = Cast<to=1>(s0) h5 = Constant<value_float=0.5>() s = Greater(f, h5)""",
                              "c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)"),
    "number below one": ("""i = Range(nul, n, uno) i1 = Unsqueeze(i, one) s0 = Less(i1, l)
                            k = Cast<to=7>(s0) s1 = Greater(uno, k) s = Not(s1)""",
                         "c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)"),
    "counted as floats": ("""n1 = Reshape(n, one) ls = Shape(l) s1 = Concat<axis=0>(n1, ls)
                             e = ConstantOfShape<value = float[1] {1}>(s1) i = CumSum(e, nul)
                             lf = Cast<to=1>(l) s = LessOrEqual(i, lf)""",
                          "c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)"),
    "cast, then transposed": ("""i = Range(nul, n, uno) l1 = Unsqueeze(l, one) s0 = Greater(l1, i)
                                 s1 = Cast<to=1>(s0) s = Transpose<perm=[1,0]>(s1)""",
                              "c = Gather<axis=0>(s, t) c1 = Cast<to=9>(c) m = Unsqueeze(c1, one)"),
    "reshaped": ("""i = Range(nul, n, uno) i1 = Unsqueeze(i, one) s0 = GreaterOrEqual(i1, l)
                    s1 = Reshape(s0, keep) s = Not(s1)""",
                 "m = Gather<axis=0>(s, t)"),
    "counted": ("""n1 = Reshape(n, one) i0 = Expand(uno, n1) i1 = CumSum<exclusive=1>(i0, nul)
                   i2 = Unsqueeze(i1, one) s = Less(i2, l)""",
                "c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)"),
    "counted from one": ("""n1 = Reshape(n, one) i0 = Expand(uno, n1) i1 = CumSum(i0, nul)
                            i2 = Unsqueeze(i1, one) s = LessOrEqual(i2, l)""",
                         "c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)"),
    "counted from a number": ("""i = Range(nul, n, uno) k = Add(two, i) i1 = Unsqueeze(k, one) l2 = Add(l, uno)
                                 s = LessOrEqual(i1, l2)""",
                              "c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)"),
    "less a number": ("""i = Range(nul, n, uno) k = Sub(i, two) i1 = Unsqueeze(k, one) s = Less(i1, l)""",
                      "c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)"),
    "sliced from end to end": ("""i = Range(nul, n, uno) i1 = Unsqueeze(i, one) s0 = Less(i1, l)
                               s = Slice(s0, nil, far, one)""",
                            "c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)"),
}  # fmt: skip


@pytest.mark.parametrize(("outside", "mask"), OUTSIDE.values(), ids=OUTSIDE.keys())
def test_masks_compared_before_the_loop(outside: str, mask: str) -> None:
    _assert_fused(_rnn(mask, outside=outside.replace("one2", "one")))


NO_LENGTHS = {
    "counted in twos": """n1 = Reshape(n, one) i0 = Expand(two, n1)
        i1 = CumSum<exclusive=1>(i0, nul) i2 = Unsqueeze(i1, one) s = Less(i2, l)""",
    "mixed": """i = Range(nul, n, uno) i1 = Unsqueeze(i, one) s0 = Less(i1, l)
        s1 = Reshape(s0, other) s = Transpose<perm=[1,0]>(s1)""",
    "sliced": """i = Range(nul, n, uno) i1 = Unsqueeze(i, one) s0 = Less(i1, l)
        s1 = Slice(s0, one, far, nil) s2 = Slice(s0, nil, one, nil) s = Concat<axis=0>(s1, s2)""",
    "tiled along the time": """i = Range(nul, n, uno) i1 = Unsqueeze(i, one) t3 = Unsqueeze(two, nil) t2 = Concat<axis=0>(t3, one)
        e = Tile(i1, t2) s0 = Less(e, l) s = Slice(s0, one, far, nil)""",
    "number above two": """i = Range(nul, n, uno) i1 = Unsqueeze(i, one) s0 = Less(i1, l)
        f = Cast<to=7>(s0) s = Greater(f, two)""",
    "difference from one": """i = Range(nul, n, uno) i1 = Unsqueeze(i, one) e = Sub(i1, l)
        f = Mul(e, e) s = Less(f, uno)""",
    "one position for all": """n1 = Reshape(n, one) ls = Shape(l) s1 = Concat<axis=0>(n1, ls) e = Expand(l, s1)
        z0 = Reshape(nul, square) s = Less(z0, e)""",
    "one position for all, tiled": """n1 = Reshape(n, one) s1 = Concat<axis=0>(n1, one) l1 = Unsqueeze(l, nil)
        e = Tile(l1, s1) z0 = Reshape(nul, square) s = Less(z0, e)""",
    "difference from one position": """n1 = Reshape(n, one) ls = Shape(l) s1 = Concat<axis=0>(n1, ls)
        e = Expand(l, s1) z0 = Reshape(nul, square) d = Sub(z0, e) s = Less(d, nul)""",
    "one number before the last": """n1 = Reshape(n, one) k = Sub(n, uno) ke = Expand(k, n1) d = Sub(ke, nil)
        d1 = Unsqueeze(d, one) s = Less(d1, l)""",
    "one number before a later one": """n1 = Reshape(n, one) k = Add(n, two) ke = Expand(k, n1)
        three = Constant<value_ints = [3]>() d = Sub(ke, three) d1 = Unsqueeze(d, one) s = Less(d1, l)""",
    "far from the time steps": """k = Constant<value_int = 4294967296>() i = Range(nul, n, uno) i0 = Add(i, k)
        i1 = Unsqueeze(i0, one) i2 = Cast<to=6>(i1) l2 = Cast<to=6>(l) s = Less(i2, l2)""",
    "wrapped around": """k = Constant<value_int = 2147483647>() i = Range(nul, n, uno) k2 = Cast<to=6>(k)
        i0 = Cast<to=6>(i) i1 = Add(i0, k2) i2 = Cast<to=7>(i1) i3 = Sub(i2, k) i4 = Unsqueeze(i3, one)
        s = Less(i4, l)""",
    "rounded": """k = Constant<value_int = 1099511627776>() i = Range(nul, n, uno) i0 = Add(i, k)
        i1 = Cast<to=1>(i0) i2 = Cast<to=7>(i1) i3 = Sub(i2, k) i4 = Unsqueeze(i3, one) s = Less(i4, l)""",
    "of fractions": """i = Range(nul, n, uno) i1 = Unsqueeze(i, one) i2 = Cast<to=1>(i1)
        lf = Cast<to=1>(l) l1 = Sin(lf) s = Less(i2, l1)""",
}


@pytest.mark.parametrize("outside", NO_LENGTHS.values(), ids=NO_LENGTHS.keys())
def test_masks_that_are_not_a_prefix_of_each_row(outside: str) -> None:
    text = _rnn("c = Gather<axis=0>(s, t) m = Unsqueeze(c, one)", row="r = Identity(hn)",
                outside=outside)  # fmt: skip
    assert _fused(text).get("RNN", 0) == 0


def test_positions_of_the_body_that_wrap_around() -> None:
    wraps = """k0 = Constant<value_int = 2147483647>() k1 = Cast<to=6>(k0) t1 = Cast<to=6>(t) t2 = Add(t1, k1)
        t3 = Cast<to=7>(t2) t4 = Sub(t3, k0) c = Less(t4, l) m = Unsqueeze(c, one)"""
    _fused(_rnn(wraps, row="r = Identity(hn)"))


def test_lengths_beyond_all_integers_of_32_bits() -> None:
    """onnxruntime's Min takes 2**31 for negative."""
    lengths = [np.array([2**31, 2, 2**32 - 1]), np.array([2**63 - 1, 0, 1 - 2**32])]
    for text in (_rnn(WITHIN), _backward("c = Less(b, l) m = Unsqueeze(c, one)")):
        _assert_fused(text, replace(FEEDS, values={"l": lengths}))


def test_lengths_compared_as_floats_are_noted() -> None:
    outside, mask = OUTSIDE["as floats"]
    notes = rewrite(parse(_rnn(mask, outside=outside), opset=18)).report.notes
    assert any("`l` is compared as a float: exact up to 2**24 iterations" in n for n in notes)
    strict = rewrite(parse(_rnn(mask, outside=outside), opset=18), strict=True)
    assert "RNN" not in ops(strict.model)
    few = _rnn(mask, outside=outside, given=GIVEN.replace("T", "5"))
    assert not any("2**24" in n for n in rewrite(parse(few, opset=18)).report.notes)


@pytest.mark.parametrize("name", ["difference", "difference below zero"])
def test_differences_that_may_wrap_around_are_noted(name: str) -> None:
    outside, mask = OUTSIDE[name]
    notes = rewrite(parse(_rnn(mask, outside=outside), opset=18)).report.notes
    assert any("compared with zero" in n for n in notes)
    strict = rewrite(parse(_rnn(mask, outside=outside), opset=18), strict=True)
    assert "RNN" not in ops(strict.model)
    outside, mask = OUTSIDE["as floats"]
    notes = rewrite(parse(_rnn(mask, outside=outside), opset=18)).report.notes
    assert not any("compared with zero" in n for n in notes)


AFTER_LOOP = (
    "i = Range(nul, n, uno) i1 = Unsqueeze(i, one) s0 = Less(i1, l) s = Unsqueeze(s0, two1)"
)
CHOSEN = {
    "zero": ("y = Where(s, ys, zero)", 1),
    "anything": ("e = Sin(x0) y = Where(s, ys, e)", 1),
    "not": ("o = Not(s) y = Where(o, zero, ys)", 1),
    "the other way": ("y = Where(s, zero, ys)", 0),
    "read elsewhere": ("y0 = Where(s, ys, zero) y = Add(y0, ys)", 0),
    "other lengths": ("k0 = Less(i1, k) k1 = Unsqueeze(k0, two1) y = Where(k1, ys, zero)", 0),
    "multiplied": ("f = Cast<to=1>(s) y = Mul(f, ys)", 0),
}


@pytest.mark.parametrize(("after", "fused"), CHOSEN.values(), ids=CHOSEN.keys())
def test_results_that_are_masked_after_the_loop(after: str, fused: int) -> None:
    """The operator does not return what the body computes beyond a length."""
    given = f"{GIVEN}, int64[B] k, float[T,B,3] x0"
    text = _rnn(WITHIN, row="r = Identity(h1)", given=given, outside=AFTER_LOOP)
    text = text.replace("z, y = Loop", "z, ys = Loop")
    text = text.replace("Identity(r) }>", f"Identity(r) }}> {after}")
    feeds = replace(FEEDS, values={**FEEDS.values, "k": [np.array(v) for v in LENGTHS]})
    assert _fused(text, feeds).get("RNN", 0) == fused


BACKWARD = "last = Sub(n, uno)"
REVERSED = "xr = Slice(x, back, low, nil, back)"
MASK = "i = Range(nul, n, uno) i1 = Unsqueeze(i, one) s = Less(i1, l)"
READ_MASK = "c = Gather<axis=0>({mask}, {at}) m = Unsqueeze(c, one)"


def _backward(
    mask: str, state: str = HELD, row: str = "r = Where(m, h1, zero)", **given: str
) -> str:
    """The RNN that starts at the last time step, b = n - 1 - t."""
    outside = f"{BACKWARD} {given.pop('outside', '')}"
    text = _rnn(f"{mask}", state, row, outside=outside, **given)
    return text.replace("xt = Gather<axis=0>(x, t)", "b = Sub(last, t) xt = Gather<axis=0>(x, b)")


def _over_reversed(text: str) -> str:
    """The RNN that reads a reversed sequence."""
    return text.replace("Gather<axis=0>(x, t)", "Gather<axis=0>(xr, t)")


FROM_THE_END = {
    "less": _backward("c = Less(b, l) m = Unsqueeze(c, one)"),
    "not": _backward("c0 = GreaterOrEqual(b, l) c = Not(c0) m = Unsqueeze(c, one)"),
    "earlier": _backward("e = Sub(b, two) c = LessOrEqual(e, l) m = Unsqueeze(c, one)"),
    "held rows": _backward("c = Less(b, l) m = Unsqueeze(c, one)", row="r = Identity(hn)"),
    "held rows from zero": _backward("c = Less(b, l) m = Unsqueeze(c, one)", row="r = Identity(hn)")
    .replace("Loop (n, , h0)", "Loop (n, , z0)")
    .replace(
        "last = Sub(n, uno)",
        "last = Sub(n, uno) hs = Shape(h0) z0 = ConstantOfShape<value = float[1] {0}>(hs)",
    ),
    "blended": _backward(
        "c = Less(b, l) c1 = Cast<to=1>(c) m = Unsqueeze(c1, one) d = Sub(onef, m)",
        *STATES["blend"][1:],
    ),
    "compared": _backward(READ_MASK.format(mask="s", at="b"), outside=MASK),
    "compared as floats": _backward(
        READ_MASK.format(mask="s", at="b"),
        outside="""i = Range(nul, n, uno) i1 = Unsqueeze(i, one) i2 = Cast<to=1>(i1)
                   lf = Cast<to=1>(l) s = Greater(lf, i2)""",
    ),
    "mask reversed": _backward(
        READ_MASK.format(mask="sr", at="t"),
        outside=f"{MASK} sr = Slice(s, back, low, nil, back)",
    ),
    "both reversed": _over_reversed(
        _rnn(
            READ_MASK.format(mask="sr", at="t"),
            outside=f"{MASK} {REVERSED} sr = Slice(s, back, low, nil, back)",
        )
    ),
    "positions reversed": _over_reversed(
        _rnn(
            READ_MASK.format(mask="s", at="t"),
            outside=f"""i = Range(nul, n, uno) ir = Slice(i, back, low, nil, back)
                        i1 = Unsqueeze(ir, one) s = Less(i1, l) {REVERSED}""",
        )
    ),
    "positions count down": _over_reversed(
        _rnn(
            READ_MASK.format(mask="s", at="t"),
            outside=f"""{BACKWARD} minus = Neg(uno) i = Range(last, minus, minus)
                        i1 = Unsqueeze(i, one) s = Less(i1, l) {REVERSED}""",
        )
    ),
    "positions before the last": _over_reversed(
        _rnn(
            READ_MASK.format(mask="s", at="t"),
            outside=f"""{BACKWARD} i = Range(nul, n, uno) k = Sub(last, i)
                        i1 = Unsqueeze(k, one) s = Less(i1, l) {REVERSED}""",
        )
    ),
    "padding at the front": _rnn(
        READ_MASK.format(mask="sr", at="t"),
        outside=f"{MASK} sr = Slice(s, back, low, nil, back)",
    ),
    "positions by a CumSum": _over_reversed(
        _rnn(
            READ_MASK.format(mask="s", at="t"),
            outside=f"""n1 = Reshape(n, one) i0 = Expand(uno, n1) i1 = CumSum<exclusive=1, reverse=1>(i0, nul)
                        i2 = Unsqueeze(i1, one) s = Less(i2, l) {REVERSED}""",
        )
    ),
    "positions counted from one": _over_reversed(
        _rnn(
            READ_MASK.format(mask="s", at="t"),
            outside=f"""n1 = Reshape(n, one) i0 = Expand(uno, n1) i1 = CumSum<reverse=1>(i0, nul)
                        i2 = Unsqueeze(i1, one) s = LessOrEqual(i2, l) {REVERSED}""",
        )
    ),
    "negated differences": _over_reversed(
        _rnn(
            READ_MASK.format(mask="s", at="t"),
            outside=f"""{BACKWARD} i = Range(nul, n, uno) k = Sub(last, i) kr = Slice(k, back, low, nil, back)
                        k2 = Sub(last, kr) i1 = Unsqueeze(k2, one) s = Less(i1, l) {REVERSED}""",
        )
    ),
    "read by the rest of the body": _backward(
        "c = Less(b, l) m = Unsqueeze(c, one)",
        row="r0 = Where(m, h1, zero) bf = Cast<to=1>(b) bs = Sin(bf) r = Mul(r0, bs)",
    ),
}
"""RNNs that run from the last time step to the first."""


def _assert_reverse(text: str, feeds: Feeds = FEEDS) -> None:
    result = rewritten(parse(text, opset=18), feeds, 1e-5).model
    (node,) = [node for node in result.graph.node if node.op_type == "RNN"]
    assert (ops(result).get("Loop", 0), ops(result).get("Scan", 0)) == (0, 0)
    assert b"reverse" in [a.s for a in node.attribute if a.name == "direction"]


@pytest.mark.parametrize("text", one_of(2, FROM_THE_END.values()), ids=FROM_THE_END.keys())
def test_loops_from_the_last_time_step(text: str) -> None:
    _assert_reverse(text)


def test_one_length_for_all_rows_of_a_loop_from_the_last_time_step() -> None:
    text = _backward("m = Less(b, l)", given="float[T,B,2] x, float[B,3] h0, int64 l")
    values = {"l": [np.array(v) for v in (-1, 0, 1, 4, 9)]}
    _assert_reverse(text, Feeds(sizes=(1, 5), most=20, values=values))


@pytest.mark.parametrize("stacked", [0, 1])
@pytest.mark.parametrize(
    ("mask", "row"),
    [
        ("m = Less(p, l)", "row = Where(c, h1, zero)"),
        ("m = Less(p, l)", "row = Identity(hn)"),
        ("m = Identity(s)", "row = Where(c, h1, zero)"),
    ],
)
def test_scans_with_reversed_inputs(mask: str, row: str, stacked: int) -> None:
    third = "bool[B] s" if "s)" in mask else "int64 p"
    given = "s0" if "s)" in mask else "i"
    _assert_reverse(f"""g ({GIVEN}) => (float[T,B,3] y, float[B,3] z) <{CONSTANTS}> {{
      n0 = Shape<start=0, end=1>(x) n = Squeeze(n0) i = Range(nul, n, uno) i1 = Unsqueeze(i, one)
      s0 = Less(i1, l)
      z, y = Scan <num_scan_inputs=2, scan_input_directions=[1, 1], scan_output_directions=[{stacked}],
        body = b (float[B,3] h, float[B,2] xt, {third}) => (float[B,3] hn, float[B,3] row) {{
          p0 = MatMul(xt, w) q = MatMul(h, v) a = Add(p0, q) h1 = Tanh(a) {mask} c = Unsqueeze(m, one)
          hn = Where(c, h1, h) {row} }}> (h0, x, {given}) }}""")


@pytest.mark.parametrize("direction", [0, 1])
def test_a_counter_of_a_scan_that_starts_at_one(direction: int) -> None:
    """The scan reads forward, so that the rows with a time step are the last ones."""
    text = f"""g ({GIVEN}) => (float[B,3] z) <{CONSTANTS}> {{
      n0 = Shape<start=0, end=1>(x) n = Squeeze(n0)
      k, z = Scan <num_scan_inputs=1, scan_input_directions=[{direction}],
        body = b (int64 t, float[B,3] h, float[B,2] xt) => (int64 tn, float[B,3] hn) {{
          p = MatMul(xt, w) q = MatMul(h, v) a = Add(p, q) h1 = Tanh(a) e = Sub(n, t) c = Less(e, l)
          m = Unsqueeze(c, one) hn = Where(m, h1, h) tn = Add(t, uno) }}> (uno, h0, x) }}"""
    _assert_reverse(text)


def test_a_reversed_result_is_not_reversed_again() -> None:
    """Y of the operator is in the order of the time steps, which is what the model wants."""
    text = _backward("c = Less(b, l) m = Unsqueeze(c, one)")
    text = text.replace("z, y = Loop", "z, ys = Loop").replace(
        "row = Identity(r) }>", "row = Identity(r) }> y = Slice(ys, back, low, nil, back)"
    )
    assert "Slice" not in _fused(text.replace("Shape<start=0, end=1>(x)", "Shape(x)").replace(
        "n = Squeeze(n0)", "n = Gather(n0, nul)"
    ))  # fmt: skip


def test_a_masked_result_of_a_loop_from_the_last_time_step() -> None:
    given = f"{GIVEN}, float[T,B,3] x0"
    outside = f"{AFTER_LOOP} sr = Slice(s, back, low, nil, back) s1 = Slice(s, nil, one, nil)"
    for condition, fused in (("sr", 1), ("s", 0), ("s1", 0)):
        text = _backward(
            "c = Less(b, l) m = Unsqueeze(c, one)", row="r = Identity(h1)", given=given,
            outside=outside,
        )  # fmt: skip
        text = text.replace("z, y = Loop", "z, ys = Loop").replace(
            "row = Identity(r) }>", f"row = Identity(r) }}> y = Where({condition}, ys, x0)"
        )
        assert _fused(text).get("RNN", 0) == fused


def test_a_reversed_mask_that_is_read_in_part_is_spared() -> None:
    """The positions that the loop reads depend on the length of the mask, not on the trip count."""
    text = _rnn(
        READ_MASK.format(mask="sr", at="t"),
        given=f"{GIVEN}, int64 n, bool[M,B] s",
        trip="",
        outside="""k = Shape(s) k0 = Gather<axis=0>(k, nul) i = Range(nul, k0, uno)
                   i1 = Unsqueeze(i, one) s1 = Less(i1, l) sr = Slice(s1, back, low, nil, back)""",
    )
    feeds = replace(
        FEEDS, fixed={"B": 3, "T": 5, "M": 7}, values={**FEEDS.values, "n": [np.array(4)]}
    )
    assert _fused(text, feeds).get("RNN", 0) == 0


def test_without_an_iteration_a_loop_from_the_end_keeps_its_states() -> None:
    for row in ("r = Where(m, h1, zero)", "r = Identity(hn)"):
        text = _backward("c = Less(b, l) m = Unsqueeze(c, one)", row=row)
        text = text.replace("[B", "[3").replace(",B,", ",3,")
        _assert_fused(text, replace(FEEDS, sizes=(0, 1, 5)))


def test_narrow_lengths_and_one_for_all() -> None:
    narrow = "t0 = Cast<to=6>(t) c = Less(t0, k) m = Unsqueeze(c, one)"
    _assert_fused(_rnn(narrow, given="float[T,B,2] x, float[B,3] h0, int32[B] k"))
    values = {"l": [np.array(v) for v in (-1, 0, 1, 4, 9)]}
    _assert_fused(
        _rnn("m = Less(t, l)", given="float[T,B,2] x, float[B,3] h0, int64 l"),
        Feeds(sizes=(1, 5), most=20, values=values),
    )


def test_without_an_iteration_the_states_are_the_initial_ones() -> None:
    """Y_h is zero for a row of length 0, and is not specified for an empty sequence."""
    for row in ("r = Where(m, h1, zero)", "r = Identity(hn)"):
        text = _rnn(WITHIN, row=row, given=f"{GIVEN}, int64 n", trip="")
        _assert_fused(text.replace("[B", "[3").replace(",B,", ",3,"), EMPTY)


LSTM = """
    p = MatMul(xt, w) q = MatMul(h, v) a = Add(p, q) gi, gf, gg, go = Split<axis=1, num_outputs=4>(a)
    i = Sigmoid(gi) f = Sigmoid(gf) g = Tanh(gg) o = Sigmoid(go)
    fc = Mul(f, c) ig = Mul(i, g) c1 = Add(fc, ig) tc = Tanh(c1) h1 = Mul(o, tc)
    k = Less(s, l) m = Unsqueeze(k, one) hn = Where(m, h1, h) cn = Where(m, c1, c)
    sn = Add(s, uno) row = Where(m, h1, zero) """


def _lstm(nodes: str = LSTM) -> str:
    """An LSTM in a Scan that carries its own counter."""
    return f"""g (float[T,B,2] x, float[B,3] h0, float[B,3] c0, int64[B] l)
      => (float[T,B,3] y, float[B,3] hz, float[B,3] cz)
      <float[2,12] w = {{{numbers(24, 0.0)}}}, float[3,12] v = {{{numbers(36, 1.0)}}},
       int64 uno = {{1}}, int64 nul = {{0}}, int64[1] one = {{1}}, float zero = {{0}}> {{
      sz, hz, cz, y = Scan <num_scan_inputs=1, body = cell (int64 s, float[B,3] h, float[B,3] c,
          float[B,2] xt) => (int64 sn, float[B,3] hn, float[B,3] cn, float[B,3] row) {{ {nodes} }}>
        (nul, h0, c0, x) }}"""


def test_a_scan_that_carries_its_counter() -> None:
    _assert_fused(_lstm(), op="LSTM")


def test_only_the_output_is_masked() -> None:
    """The states do not stop at the length; a mask remains after the operator."""
    _assert_fused(_rnn(WITHIN, "hn = Identity(h1)"))


SPARED = {
    "data": ("mt = Gather<axis=0>(d, t) m = Unsqueeze(mt, one)", HELD, "r = Identity(hn)",
             "`m` is data that is not known to be a prefix mask"),
    "read raw": (WITHIN, HELD, "r = Identity(h1)", "is read beyond the length of a row"),
    "other rows": (WITHIN, HELD, "r = Where(m, h1, onef)", "is read beyond the length"),
    "reset": (WITHIN, "hn = Where(m, h1, zero)", "r = Identity(hn)", "changes beyond the length"),
    "suffix": ("c = Less(l, t) m = Unsqueeze(c, one)", HELD, "r = Identity(hn)",
               "is not that of an LSTM, GRU or RNN"),
    "other way": (WITHIN, "hn = Where(m, h, h1)", "r = Identity(hn)", "the update of"),
    "features": ("m = Less(t, f)", HELD, "r = Identity(hn)", "is data"),
    "state": ("s = ReduceMax<keepdims=1>(h, one) m = Less(s, onef)", HELD, "r = Identity(hn)",
              "the choice by `m` depends on the carried values"),
}  # fmt: skip


@pytest.mark.parametrize(("mask", "state", "row", "reason"), SPARED.values(), ids=SPARED.keys())
def test_spared(mask: str, state: str, row: str, reason: str) -> None:
    given = f"{GIVEN}, bool[T,B] d, int64[3] f"
    text = _rnn(mask, state, row, given=given)
    assert reason in reason_of(FuseRecurrence, parse(text, opset=18))
    assert _fused(text).get("RNN", 0) == 0


def test_cell_state_with_another_length_is_spared() -> None:
    other = LSTM.replace("cn = Where(m, c1, c)", "cn = Identity(c1)")
    assert "beyond the length" in reason_of(FuseRecurrence, parse(_lstm(other), opset=18))
    assert _fused(_lstm(other)).get("LSTM", 0) == 0


# --- constant masks ---

BLEND = "hb = Mul(m, h1) d = Sub(onef, m) hc = Mul(d, h) hn = Add(hb, hc)"


def _constant(mask: list[list[int]], kind: str = "float") -> str:
    """A constant mask of shape (time, batch, 1)."""
    elements = ", ".join(str(n) for row in mask for n in row)
    return f"{kind}[{len(mask)},{len(mask[0])},1] given = {{{elements}}}"


def _with_constant(mask: list[list[int]], kind: str, inside: str, state: str, row: str) -> str:
    text = _rnn(inside, state, row).replace(
        "float zero = {0}", f"float zero = {{0}}, {_constant(mask, kind)}"
    )
    return text.replace("[B,3]", "[3,3]").replace("[T,B,", "[T,3,") if len(mask[0]) == 3 else text


PREFIX = [[1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 0, 0], [0, 0, 0]]
FIVE = Feeds(sizes=(5,))


@pytest.mark.parametrize(
    ("kind", "inside", "state", "row"),
    [
        ("float", "m = Gather(given, t)", BLEND, "r = Identity(hn)"),
        ("bool", "m = Gather(given, t)", HELD, "r = Where(m, h1, zero)"),
        ("int64", "k = Gather(given, t) m = Cast<to=9>(k)", HELD, "r = Identity(hn)"),
        ("bool", "k = Gather(given, t) m = Not(k)", "hn = Where(m, h, h1)", "r = Identity(hn)"),
    ],
)
def test_constant_masks(kind: str, inside: str, state: str, row: str) -> None:
    _assert_fused(_with_constant(PREFIX, kind, inside, state, row), FIVE)


def test_a_constant_mask_for_all_rows() -> None:
    text = _with_constant(
        [[1], [1], [0], [0], [0]], "float", "m = Gather(given, t)", BLEND, "r = Identity(hn)"
    )
    _assert_fused(text, Feeds(sizes=(5, 1), fixed={"T": 5}))


@pytest.mark.parametrize(
    "mask",
    [
        [[1, 1, 1], [1, 0, 1], [1, 1, 1], [1, 0, 0], [0, 0, 0]],
        [[1, 1, 1], [1, 2, 1], [1, 0, 1], [1, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1]],
    ],
)
def test_constant_masks_of_other_elements_stay(mask: list[list[int]]) -> None:
    text = _with_constant(mask, "float", "m = Gather(given, t)", BLEND, "r = Identity(hn)")
    assert "RNN" not in _fused(text, FIVE)


@pytest.mark.parametrize(("mask", "order"), [(PREFIX, "b"), (PREFIX[::-1], "t")])
def test_constant_masks_of_loops_from_the_last_time_step(mask: list[list[int]], order: str) -> None:
    text = _with_constant(mask, "bool", f"m = Gather(given, {order})", HELD, "r = Identity(hn)")
    text = text.replace("xt = Gather<axis=0>(x, t)", "b = Sub(last, t) xt = Gather<axis=0>(x, b)")
    text = text.replace("n = Squeeze(n0)", f"n = Squeeze(n0) {BACKWARD}")
    _assert_fused(text.replace("[T,", "[5,"), FIVE)


GRU = """{p}gx = MatMul({x}, {w}) {p}gh = MatMul({h}, {r})
    {p}xr, {p}xz, {p}xn = Split<axis=1>({p}gx, three) {p}hr, {p}hz, {p}hn = Split<axis=1>({p}gh, three)
    {p}ar = Add({p}xr, {p}hr) {p}rr = Sigmoid({p}ar) {p}az = Add({p}xz, {p}hz) {p}zz = Sigmoid({p}az)
    {p}rn = Mul({p}rr, {p}hn) {p}an = Add({p}xn, {p}rn) {p}nn = Tanh({p}an) {p}dd = Sub({h}, {p}nn)
    {p}zd = Mul({p}zz, {p}dd) {out} = Add({p}nn, {p}zd)"""


def _hierarchical(lengths: np.ndarray, sentences: str) -> onnx.ModelProto:
    """A GRU over sentences, whose inputs are the last states of a GRU over their masked words.

    `lengths`: the number of words by sentence and row, or by row.
    """
    mask = np.arange(4).reshape(4, 1) < lengths[..., None, :]
    read = "ms = Gather(mask, s)" if lengths.ndim == 2 else "ms = Identity(mask)"
    inner = GRU.format(p="word_", x="xt", w="w1", r="r1", h="h", out="h1")
    outer = GRU.format(p="sentence_", x="hl", w="w2", r="r2", h="g", out="g1")
    rows = "B" if lengths.shape[-1] == 1 else str(lengths.shape[-1])
    rng = np.random.default_rng(1)
    weights = {n: rng.normal(size=(2 if n == "w1" else 3, 9)).astype(np.float32) * 0.5
               for n in ("w1", "r1", "w2", "r2")}  # fmt: skip
    return model(
        f"""m (float[{sentences},4,{rows},2] x, float[{rows},3] h0, float[{rows},3] g0) => (float[{rows},3] gl, float[S,{rows},3] gs)
        <int64[3] three = {{3, 3, 3}}, int64 zero = {{0}}, int64 one = {{1}}, float onef = {{1}}> {{
      all = Shape(x) n = Gather(all, zero) words = Gather(all, one)
      gl, gs = Loop (n, , g0) <body = sentence (int64 s, bool on, float[{rows},3] g) => (bool go, float[{rows},3] g1, float[{rows},3] row) {{
        go = Identity(on) xs = Gather(x, s) {read}
        hl = Loop (words, , h0) <body = word (int64 t, bool on2, float[{rows},3] h) => (bool go2, float[{rows},3] hn) {{
          go2 = Identity(on2) xt = Gather(xs, t) {inner} m = Gather(ms, t)
          hb = Mul(m, h1) d = Sub(onef, m) hc = Mul(d, h) hn = Add(hb, hc) }}>
        {outer} row = Identity(g1) }}> }}""",
        18,
        8,
        mask=mask[..., None].astype(np.float32),
        **weights,
    )


@pytest.mark.parametrize(
    "lengths",
    [
        np.array([3]),
        np.array([4, 0, 2]),
        np.array([[3], [1], [4], [2], [0]]),
        np.array([[3, 4], [1, 0], [4, 4], [2, 1], [0, 3]]),
    ],
)
def test_a_gru_of_grus(lengths: np.ndarray) -> None:
    rows = lengths.shape[-1]
    feeds = Feeds(sizes=(1, 2, 5) if rows == 1 else (rows,))
    counts = ops(rewritten(_hierarchical(lengths, "5"), feeds, 1e-5).model)
    assert (counts.get("GRU"), counts.get("Loop"), counts.get("Scan")) == (2, None, None)


def test_a_gru_of_grus_over_any_number_of_sentences() -> None:
    proto = _hierarchical(np.array([3]), "S")
    counts = ops(rewrite(proto, dims=["S>=1"]).model)
    assert (counts.get("GRU"), counts.get("Loop"), counts.get("Scan")) == (2, None, None)
    # onnxruntime's GRU ends the process for a batch of no rows, so that one loop stays.
    counts = ops(rewritten(proto, Feeds(sizes=(1, 2)), 1e-5).model)
    assert (counts.get("GRU"), counts.get("Loop")) == (1, 1)


def test_a_gru_of_grus_whose_mask_has_a_gap() -> None:
    proto = _hierarchical(np.array([3]), "5")
    (mask,) = (t for t in proto.graph.initializer if t.name == "mask")
    mask.CopyFrom(
        onnx.numpy_helper.from_array(np.array([1, 0, 1, 0], np.float32).reshape(4, 1, 1), "mask")
    )
    assert "GRU" not in ops(rewritten(proto, Feeds(sizes=(1, 2)), 1e-5).model)
