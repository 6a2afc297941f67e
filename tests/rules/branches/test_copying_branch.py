"""InlineBranchThatCopiesOtherwise: Ifs around a Slice, Pad or Concat that may change nothing."""

from __future__ import annotations

import pytest

from looplift.rules.branches.copying_branch import InlineBranchThatCopiesOtherwise

from ...equivalence import ops, rewritten
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(sizes=(0, 1, 2, 4, 5, 9))
CONSTANTS = """int64 zero = {0}, int64 one = {1}, int64 four = {4}, int64 two = {2}, int64[1] nil = {0},
    int64[1] first = {1}, int64[1] most = {4}, int64[1] last4 = {-4}, int64[1] far = {9223372036854775807},
    int64[1] step2 = {2}, int64[3] none = {0, 0, 0}, int64[2] no = {0, 0}, float fill = {7}"""


def _model(
    condition: str, changed: str, copied: str = "q = Identity(x)", swapped: bool = False
) -> str:
    """An If over x [B, T] and past [B, P]; `t` and `p` are the sizes T and P."""
    first, second = f"() => (float[B,U] p0) {{ {changed} }}", f"() => (float[B,V] q) {{ {copied} }}"
    if swapped:
        first, second = second, first
    return f"""g (float[B,T] x, float[B,P] past) => (float[B,S] y) <{CONSTANTS}> {{
      s = Shape(x) t = Gather(s, one) r = Shape(past) p = Gather(r, one) {condition}
      y = If (c) <then_branch = a {first}, else_branch = b {second}> }}"""


TRIMMED = "p0 = Slice(x, nil, most, first)"
LAST = "p0 = Slice(x, last4, far, first)"
PADDED = "u = Unsqueeze(d, nil) pads = Concat<axis=0>(none, u) p0 = Pad(x, pads, fill)"
BOTH_SIDES = """h = Div(d, two) e = Sub(d, h) u = Unsqueeze(h, nil) w = Unsqueeze(e, nil)
    pads = Concat<axis=0>(nil, u, nil, w) p0 = Pad(x, pads, fill)"""
JOINED = "p0 = Concat<axis=1>(past, x)"
MULTIPLE = "m0 = Mod(t, four) m1 = Sub(four, m0) d = Mod(m1, four)"

COPIES = {
    "crop to a length": ("c = Greater(t, four)", TRIMMED),
    "crop to a length, less": ("c = Less(four, t)", TRIMMED),
    "crop at the limit, too": ("c = GreaterOrEqual(t, four)", TRIMMED),
    "crop to the shorter": (
        "k = Min(t, p) c = Greater(t, k)",
        "e = Unsqueeze(k, nil) p0 = Slice(x, nil, e, first)",
    ),
    "the last ones": ("c = Greater(t, four)", LAST),
    "unless short": ("c0 = LessOrEqual(t, four) c = Not(c0)", LAST),
    "pad to a multiple": (f"{MULTIPLE} c = Greater(d, zero)", PADDED),
    "pad unless it fits": (f"{MULTIPLE} c0 = Equal(d, zero) c = Not(c0)", PADDED),
    "pad on both sides": (f"{MULTIPLE} c = Greater(d, zero)", BOTH_SIDES),
    "pad one or the other": (
        f"{MULTIPLE} c1 = Greater(d, zero) c2 = Greater(p, zero) c = Or(c1, c2)",
        """u = Unsqueeze(d, nil) w = Unsqueeze(p, nil) pads = Concat<axis=0>(no, w, u)
        p0 = Pad(x, pads, fill)""",
    ),
    "cached keys": ("c = Greater(p, zero)", JOINED),
    "cached keys, if any": ("c0 = Equal(p, zero) c = Not(c0)", JOINED),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("condition", "changed"), COPIES.values(), ids=COPIES)
def test_the_if_goes(condition: str, changed: str, swapped: bool) -> None:
    if swapped:
        condition = f"{condition} c_n = Not(c)"
    text = _model(condition, changed, swapped=swapped)
    text = text.replace("If (c)", "If (c_n)") if swapped else text
    assert "If" not in ops(rewritten(parse(text, opset=18), FEEDS).model)


@pytest.mark.parametrize("opset", [11, 13])
def test_older_opsets(opset: int) -> None:
    text = _model("c = Greater(t, four)", TRIMMED)
    assert "If" not in ops(rewritten(parse(text, opset=opset), FEEDS).model)


NEAR_MISSES = {
    "another length": ("five = Constant<value_int=5>() c = Greater(t, five)", LAST, "known to copy"),
    "a start": ("c = Greater(t, four)", "p0 = Slice(x, first, far, first)", "known to copy"),
    "other than the size": ("c = Greater(p, four)", TRIMMED, "known to copy"),
    "pad where it fits": (f"{MULTIPLE} c = Equal(d, zero)", PADDED, "known to copy"),
    "pad of another number": (
        f"{MULTIPLE} c = Greater(d, zero)",
        "u = Unsqueeze(p, nil) pads = Concat<axis=0>(none, u) p0 = Pad(x, pads, fill)",
        "known to copy",
    ),
    "pad of four": (
        "m0 = Mod(t, four) c = Greater(m0, zero)",
        "e = Sub(four, m0) u = Unsqueeze(e, nil) pads = Concat<axis=0>(none, u) p0 = Pad(x, pads, fill)",
        "known to copy",
    ),
    "both conditions": (
        f"{MULTIPLE} c1 = Greater(d, zero) c2 = Greater(p, zero) c = And(c1, c2)", PADDED, "known to copy",
    ),
    "in steps": ("c = Greater(t, four)", "p0 = Slice(x, nil, most, first, step2)", "known to copy"),
    "of another value": ("c = Greater(t, four)", "p0 = Slice(past, nil, most, first)", "known to copy"),
    "at the limit": ("c = LessOrEqual(four, t)", "k = Sub(t, one) u = Unsqueeze(k, nil) p0 = Slice(x, nil, u, first)", "known to copy"),
    "as rounded floats": (
        "tf = Cast<to=1>(t) ff = Cast<to=1>(four) c = Greater(tf, ff)", TRIMMED, "known to copy",
    ),
    "pad of some axes": (
        f"{MULTIPLE} c = Greater(d, zero)",
        "u = Unsqueeze(d, nil) pads = Concat<axis=0>(nil, u) p0 = Pad(x, pads, fill, first)",
        "known to copy",
    ),
    "wrapped": (
        f"{MULTIPLE} c = Greater(d, zero)",
        PADDED.replace("Pad(", 'Pad<mode = "wrap">('),
        "known to copy",
    ),
    "keys of another axis": ("c = Greater(t, zero)", JOINED, "known to copy"),
    "another operator": ("c = Greater(t, four)", "p0 = Neg(x)", "known to copy"),
    "may fail": (
        "c = Greater(t, four)",
        "k = Gather(s, p) z = Mul(k, zero) u = Unsqueeze(z, nil) p0 = Slice(x, nil, most, first)",
        "may fail",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("condition", "changed", "words"), NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses(condition: str, changed: str, words: str) -> None:
    model = parse(_model(condition, changed), opset=19)
    assert words in reason_of(InlineBranchThatCopiesOtherwise, model)
    rewritten(model, FEEDS)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_modes_of_padding(mode: str) -> None:
    changed = PADDED.replace("Pad(", f'Pad<mode = "{mode}">(')
    text = _model(f"{MULTIPLE} c = Greater(d, zero)", changed)
    assert "If" not in ops(rewritten(parse(text, opset=19), FEEDS).model)


def test_keys_whose_other_sizes_may_differ() -> None:
    text = _model("c = Greater(p, zero)", JOINED).replace("float[B,P] past", "float[C,P] past")
    model = parse(text, opset=18)
    assert "known to copy" in reason_of(InlineBranchThatCopiesOtherwise, model)


def test_another_value_is_copied() -> None:
    model = parse(_model("c = Greater(t, four)", TRIMMED, "q = Identity(past)"), opset=18)
    assert "known to copy" in reason_of(InlineBranchThatCopiesOtherwise, model)


def test_two_results() -> None:
    text = f"""g (float[B,T] x, float[B,T] z) => (float[B,S] y, float[B,R] w) <{CONSTANTS}> {{
      s = Shape(x) t = Gather(s, one) c = Greater(t, four)
      y, w = If (c) <
        then_branch = a () => (float[B,U] p, float[B,V] q) {{
          p = Slice(x, nil, most, first) q = Slice(z, last4, far, first) }},
        else_branch = b () => (float[B,M] k, float[B,N] l) {{ k = Identity(x) l = Identity(z) }}> }}"""
    assert "If" not in ops(rewritten(parse(text, opset=18), FEEDS).model)
