"""A cell that is no LSTM, GRU or RNN keeps its loop, and the reason says what it is instead."""

from __future__ import annotations

import pytest

from looplift.rules.recurrence import FuseRecurrence

from ...equivalence import ops, rewritten
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of
from .cell_models import numbers

FEEDS = Feeds(values={"n": [0, 1, 5]}, sizes=(7,), most=6)


CONSTANTS = f"""float[2,12] w = {{{numbers(24, 0.0)}}}, float[3,12] v = {{{numbers(36, 1.0)}}},
    float[3,3] proj = {{{numbers(9, 2.0)}}}, float[12] s = {{{numbers(12, 3.0)}}},
    float[3,3,3] kernel = {{{numbers(27, 4.0)}}}, float keep = {{0.1}}, float rest = {{0.9}},
    float[1] eps = {{0.001}}, int64[1] nil = {{0}}, int64[1] one = {{1}}, int64[1] three = {{3}}, float unit = {{1}},
    int64[1] last = {{2}}, int64 first = {{0}}, int64[3] many = {{2, 3, 4398046511104}}"""
PRODUCT = "p = MatMul(xt, w) q = MatMul(h, v) a = Add(p, q)"
GATES = """gi, gf, gg, go = Split<axis=1, num_outputs=4>(a)
    i = Sigmoid(gi) f = Sigmoid(gf) g = Tanh(gg) o = Sigmoid(go)"""
STATES = "fc = Mul(f, c) ig = Mul(i, g) cn = Add(fc, ig) tc = Tanh(cn) hn = Mul(o, tc)"
LSTM = f"{PRODUCT} {GATES} {STATES}"


def _model(nodes: str) -> str:
    return f"""g (float[7,2,2] x, float[7,2] d, bool[7,2] u, float[2,3] h0, float[2,3] c0, int64 n)
      => (float[K,2,3] y) <{CONSTANTS}> {{
      hl, cl, y = Loop (n, , h0, c0) <
        body = cell (int64 t, bool on, float[2,3] h, float[2,3] c)
            => (bool again, float[2,3] hn, float[2,3] cn, float[2,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, t) {nodes} row = Identity(hn) }}> }}"""


NORMALIZED = PRODUCT.replace("a = Add", "a0 = Add") + " {} "
BY_HAND = """e = ReduceMean<keepdims=1>(a0, one) a1 = Sub(a0, e) a2 = Mul(a1, a1)
    a3 = ReduceMean<keepdims=1>(a2, one) a4 = Add(a3, eps) a5 = Sqrt(a4) a = Div(a1, a5)"""
MASKED = """mt = Gather<axis=0>(d, t) m = Unsqueeze(mt, one) k = Sub(unit, m)
    h2 = Mul(k, h) h3 = Mul(m, h1) hn = Add(h2, h3) c2 = Mul(k, c) c3 = Mul(m, c1) cn = Add(c2, c3)"""
CHOSEN = """mt = Gather<axis=0>(u, t) m = Unsqueeze(mt, one)
    hn = Where(m, h1, h) cn = Where(m, c1, c)"""
ZONEOUT = """h2 = Mul(keep, h) h3 = Mul(rest, h1) hn = Add(h2, h3)
    c2 = Mul(keep, c) c3 = Mul(rest, c1) cn = Add(c2, c3)"""
INNER = LSTM.replace("cn = ", "c1 = ").replace("Tanh(cn)", "Tanh(c1)").replace("hn = ", "h1 = ")

REASONS = {
    "a value that fits no memory": (
        NORMALIZED.format("col = Unsqueeze(h, last) huge = Expand(col, many) "
            "b = Gather<axis=2>(huge, first) a1 = MatMul(b, v) a = Add(a0, a1)")
        + GATES + " " + STATES,
        "`huge` has 8796093022208 features, more than 1048576",
    ),
    "layer normalisation": (
        NORMALIZED.format("a = LayerNormalization(a0, s)") + GATES + " " + STATES,
        "LayerNormalization of `a` belongs to a layer normalisation",
    ),
    "layer normalisation by hand": (
        NORMALIZED.format(BY_HAND) + GATES + " " + STATES,
        "belongs to a layer normalisation",
    ),
    "of the cell state": (
        LSTM.replace("tc = Tanh(cn)", "cz = LayerNormalization(cn, s3) tc = Tanh(cz)"),
        "belongs to a layer normalisation",
    ),
    "ConvLSTM": (
        LSTM.replace(
            "q = MatMul(h, v)",
            "h4 = Unsqueeze(h, two) hc = Conv<pads = [1, 1]>(h4, kernel) h5 = Squeeze(hc, two) q = MatMul(h5, v)",
        ),
        "Conv of `hc` is a convolution in place of a product",
    ),
    "zoneout": (f"{INNER} {ZONEOUT}", "keeps a fixed share of `h` (leaky unit, zoneout)"),
    "result that is fed back": (
        "mt = Gather<axis=0>(u, t) m = Unsqueeze(mt, one) e = Where(m, c, h) q = MatMul(e, proj) "
        "hn = Tanh(q) cn = Sin(q)",
        "its input depends on the carried value `c`, which Where of `e` chooses",
    ),
    "choice that earlier iterations made": (
        "p = MatMul(xt, w) xs = Slice(p, nil, three, one) e = ReduceSum<keepdims=1>(c, one) "
        "z = Cast<to=9>(e) k = Tanh(xs) hn = Where(z, k, h) cn = Add(c, k)",
        "the choice by `z` depends on the carried values",
    ),
    "moving average": (
        "h2 = Mul(keep, h) xs = Slice(xt, nil, one, one) h3 = Mul(rest, xs) hn = Add(h2, h3) "
        "cn = Identity(c)",
        "`h` is a linear recurrence",
    ),
    "filter of second order": (
        "h2 = Mul(keep, h) xs = Slice(xt, nil, one, one) c2 = Mul(rest, c) s1 = Add(h2, c2) "
        "hn = Sub(s1, xs) cn = Identity(h)",
        "the update of `h` is linear in it and in `c` (such as a filter of second order)",
    ),
    "integrator": (
        "c2 = Mul(keep, c) hn = Add(h, c2) xs = Slice(xt, nil, one, one) c3 = Mul(rest, c) cn = Add(c3, xs)",
        "the update adds to `h`",
    ),
    "shift buffer": (
        "xs = Slice(xt, nil, one, one) tail = Slice(h, one, three, one) hn = Concat<axis = 1>(tail, xs) "
        "cn = Identity(c)",
        "`h` moves elements without arithmetic (such as a buffer of the last inputs)",
    ),
    "sum of moved elements": (
        "xs = Slice(xt, nil, one, one) tail = Slice(h, one, three, one) e = Add(tail, xs) "
        "hn = Concat<axis = 1>(e, xs) cn = Identity(c)",
        "`h` is a linear recurrence",
    ),
    "input in a product": (
        "f = Sigmoid(h) xs = Slice(xt, nil, one, one) b = Mul(f, xs) fh = Mul(f, h) hn = Add(fh, b) "
        "cn = Identity(c)",
        "has a product with slices of `x`; LSTM, GRU and RNN multiply only states and activations",
    ),
    "gate computed from the input": (
        f"{PRODUCT} xp, xq, xr, xo = Split<axis=1, num_outputs=4>(p) f = Sigmoid(xp) b = Tanh(xq) "
        "h2 = Mul(f, h) hn = Add(h2, b) cn = Identity(c)",
        "`h` is a linear recurrence",
    ),
    "Euler step": (
        f"{PRODUCT} gi, gf, gg, go = Split<axis=1, num_outputs=4>(a) i = Tanh(gi) "
        "d0 = Mul(keep, i) hn = Add(h, d0) cn = Identity(c)",
        "the update adds to `h` (an Euler or residual step)",
    ),
    "projection": (
        LSTM.replace("hn = Mul(o, tc)", "hp = Mul(o, tc) hn = MatMul(hp, proj)"),
        "no operator has a projection",
    ),
    "choice by the iteration number": (
        "p = MatMul(xt, w) xs = Slice(p, nil, three, one) k = Tanh(xs) r = Mod(t, two_) "
        "z = Equal(r, zero) hn = Where(z, k, h) cn = Add(c, k)",
        "`z` is decided by the number of the iteration, but not by whether it is below a length",
    ),
    "mask of numbers": (f"{INNER} {MASKED}", "is data that is not known to be a prefix mask"),
    "mask that chooses": (f"{INNER} {CHOSEN}", "`m` is data that is not known to be a prefix mask"),
    "decay": (
        LSTM.replace("fc = Mul(f, c)", "s0 = Slice(xt, nil, one, one) f0 = Mul(f, s0) fc = Mul(f0, c)"),
        "data that is not known to be a prefix mask",
    ),
    "feedback": (
        LSTM.replace("p = MatMul(xt, w)", "xc = Slice(c, nil, two, one) p = MatMul(xc, w)"),
        "a peephole is elementwise",
    ),
    "overflow": (LSTM.replace("g = Tanh(gg)", "g = Softplus(gg)"), "Softplus overflows"),
    "other cell state": (LSTM.replace("Tanh(cn)", "Tanh(c)"), "is not that of an LSTM, GRU or RNN"),
    "unknown activation": (LSTM.replace("Tanh(gg)", "Softmax<axis=1>(gg)"), "Softmax"),
    "product of states": (
        LSTM.replace("q = MatMul(h, v)", "hv = Mul(h, c) q = MatMul(hv, v)"),
        "in a way that no operator has",
    ),
    "square of the state": (
        f"{PRODUCT} {GATES} ig = Mul(i, g) hh = Mul(h, h) s0 = Add(ig, hh) hn = Add(s0, g) cn = Identity(c)",
        "is not that of an LSTM, GRU or RNN",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "reason"), REASONS.values(), ids=REASONS.keys())
def test_reasons(nodes: str, reason: str) -> None:
    text = _model(nodes).replace(
        CONSTANTS,
        CONSTANTS
        + ", int64[1] two = {2}, float[3] s3 = {1, 2, 3}, int64 two_ = {2}, int64 zero = {0}",
    )
    assert reason in reason_of(FuseRecurrence, parse(text, opset=18))
    assert ops(rewritten(parse(text, opset=18), FEEDS, 1e-5).model).get("LSTM", 0) == 0


@pytest.mark.parametrize(
    ("outer", "op"),
    [
        ("gate = Softmax<axis = 1>(d)", "Softmax"),  # as in AUGRU, whose update attention scales
        ("scaled = Relu(d) gate = Identity(scaled)", "Relu"),
        ("inner = Sigmoid(d) gate = Mul(inner, d)", "Sigmoid"),
        ("inner = Sigmoid(d) gate = Mul(d, inner)", "Sigmoid"),
    ],
)
def test_a_gate_is_not_reported_as_a_mask(outer: str, op: str) -> None:
    text = _model(f"{INNER} {MASKED.replace('(d, t)', '(gate, t)')}")
    text = text.replace("hl, cl, y", f"{outer} hl, cl, y")
    reason = reason_of(FuseRecurrence, parse(text, opset=18))
    assert reason.startswith(f"{op} of `")
    assert "computes a gate outside of the recurrence" in reason


def test_a_mask_may_be_computed_from_an_activation() -> None:
    outer = "inner = Sigmoid(d) above = Cast<to = 9>(inner) gate = Cast<to = 1>(above)"
    text = _model(f"{INNER} {MASKED.replace('(d, t)', '(gate, t)')}")
    text = text.replace("hl, cl, y", f"{outer} hl, cl, y")
    assert "is data that is not known to be" in reason_of(FuseRecurrence, parse(text, opset=18))


def test_the_cell_itself_is_fused() -> None:
    """The cell that all of these are near misses of."""
    for nodes in (LSTM, INNER + " hn = Identity(h1) cn = Identity(c1)"):
        assert ops(rewritten(parse(_model(nodes), opset=18), FEEDS, 1e-5).model)["LSTM"] == 1
