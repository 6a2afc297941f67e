"""Spellings of gates, products and activations all lift to the same cell."""

from __future__ import annotations

import onnx
import pytest

from looplift.rules.recurrence import FuseRecurrence

from ...equivalence import ops, rewritten
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of
from .cell_models import constant, gates, integers, scan_lstm, scan_rnn

FEEDS = Feeds(sizes=(1, 2, 5), most=24)


def _assert_fused(text: str, op: str, feeds: Feeds = FEEDS) -> None:
    counts = ops(rewritten(parse(text, opset=21), feeds, 1e-5).model)
    assert counts[op] == 1
    assert not {"Loop", "Scan"} & set(counts)


FLAT = f"{constant('w', 2, 12)}, {constant('r', 3, 12)}"
SHAPES = integers(apart=[-1, 4, 3], inside=[-1, 3, 4])


@pytest.mark.parametrize(("shape", "axis"), [("apart", 1), ("inside", 2)])
def test_gates_with_an_axis_of_their_own(shape: str, axis: int) -> None:
    nodes = f"p = MatMul(xt, w) q = MatMul(h, r) s = Add(p, q) v = Reshape(s, {shape}) "
    _assert_fused(scan_lstm(nodes + gates("v", axis), f"{FLAT}, {SHAPES}"), "LSTM")


@pytest.mark.parametrize("x", ["B,4,3", "2,4,3"])
def test_a_sequence_of_gates_computed_before_the_loop(x: str) -> None:
    """Also where all sizes are static: the states show which axis is the batch."""
    batch = x[0]
    shape = integers(apart=[-1, 4, 3])
    nodes = "q = MatMul(h, r) v = Reshape(q, apart) s = Add(xt, v) " + gates("s", 1)
    text = scan_lstm(nodes, f"{constant('r', 3, 12)}, {shape}", x, f"{batch},3")
    _assert_fused(text, "LSTM", Feeds(sizes=(1, 2, 5), most=12))


def test_the_batch_after_the_features() -> None:
    nodes = "p = MatMul(w, xt) q = MatMul(r, h) s = Add(p, q) gi, gf, gg, go = Split<axis=0, num_outputs=4>(s)"
    constants = f"{constant('w', 12, 2)}, {constant('r', 12, 3)}"
    _assert_fused(scan_lstm(nodes, constants, "2,B", "3,B"), "LSTM")


def test_columns_instead_of_rows() -> None:
    nodes = "p = MatMul(w, xt) q = MatMul(r, h) s = Add(p, q) gi, gf, gg, go = Split<axis=0, num_outputs=4>(s)"
    constants = f"{constant('w', 12, 2)}, {constant('r', 12, 3)}"
    _assert_fused(scan_lstm(nodes, constants, "2,1", "3,1"), "LSTM")


STACKS = f"{constant('w', 4, 2, 3)}, {constant('r', 4, 3, 3)}, {constant('b', 4, 1, 3)}"


def test_a_stack_of_matrices_with_one_for_each_gate() -> None:
    nodes = "p = MatMul(xt, w) q = MatMul(h, r) u = Add(p, q) s = Add(u, b) " + gates("s", 0)
    _assert_fused(scan_lstm(nodes, STACKS), "LSTM")


def test_a_stack_of_matrices_applied_to_a_vector() -> None:
    constants = f"{constant('w', 4, 2, 3)}, {constant('r', 4, 3, 3)}"
    nodes = "p = MatMul(xt, w) q = MatMul(h, r) s = Add(p, q) " + gates("s", 0)
    _assert_fused(scan_lstm(nodes, constants, "2", "3"), "LSTM")


def test_a_stack_of_matrices_each_applied_to_its_own_copy() -> None:
    constants = STACKS + ", " + integers(copies=[4, 1, 1], front=[0])
    nodes = """p = MatMul(xt, w) k = Unsqueeze(h, front) e = Expand(k, copies) q = MatMul(e, r)
      s = Add(p, q) """ + gates("s", 0)
    _assert_fused(scan_lstm(nodes, constants), "LSTM")


@pytest.mark.parametrize(
    ("of_x", "of_h", "w", "r", "axis"),
    [
        ("bi,igh->bgh", "bk,kgh->bgh", (2, 4, 3), (3, 4, 3), 1),
        ("bi,gih->gbh", "bk,gkh->gbh", (4, 2, 3), (4, 3, 3), 0),
        ("bi,hgi->hbg", "bk,hgk->hbg", (3, 4, 2), (3, 4, 3), 2),
    ],
)
def test_einsums_with_several_axes(
    of_x: str, of_h: str, w: tuple[int, ...], r: tuple[int, ...], axis: int
) -> None:
    nodes = f"""p = Einsum<equation="{of_x}">(xt, w) q = Einsum<equation="{of_h}">(h, r) s = Add(p, q) """
    if of_x.endswith("hbg"):
        nodes += "t = Transpose<perm=[1, 0, 2]>(s) "
    text = scan_lstm(nodes + gates("t" if "t =" in nodes else "s", axis),
                 f"{constant('w', *w)}, {constant('r', *r)}")  # fmt: skip
    _assert_fused(text, "LSTM")


def test_an_einsum_in_which_every_gate_has_its_own_input() -> None:
    nodes = """p = Einsum<equation="bgi,gih->bgh">(xt, w) q = Einsum<equation="bk,kgh->bgh">(h, r)
      s = Add(p, q) """ + gates("s", 1)
    constants = f"{constant('w', 4, 2, 3)}, {constant('r', 3, 4, 3)}"
    _assert_fused(scan_lstm(nodes, constants, "B,4,2"), "LSTM")


def test_a_diagonal_is_not_a_product() -> None:
    nodes = """p = Einsum<equation="ii,io->io">(xt, w) q = MatMul(h, r) a = Add(p, q)"""
    text = scan_rnn(nodes, f"{constant('w', 2, 3)}, {constant('r', 3, 3)}")
    text = text.replace("float[T,B,2] x", "float[T,2,2] x").replace("[B,", "[2,")
    text = text.replace("float[B,2] xt", "float[2,2] xt").replace("[T,B,3]", "[T,2,3]")
    assert "takes a diagonal" in reason_of(FuseRecurrence, parse(text, opset=21))


# --- activations ---

RNN = f"{constant('w', 2, 3)}, {constant('r', 3, 3)}"
SUM = "p = MatMul(xt, w) q = MatMul(h, r) a = Add(p, q) "


def _ends(nodes: str) -> str:
    """An RNN whose new state hn these nodes compute from a."""
    return scan_rnn(SUM + nodes, f"{RNN}, float one = {{1}}, float two = {{2}}").replace(
        "hn = Tanh(a) ", ""
    )


def test_a_softsign_written_out() -> None:
    _assert_fused(_ends("m = Abs(a) d = Add(one, m) hn = Div(a, d)"), "RNN")


@pytest.mark.parametrize(
    "nodes",
    [
        "m = Abs(a) d = Add(two, m) hn = Div(a, d)",
        "m = Abs(p) d = Add(one, m) hn = Div(a, d)",
        "d = Add(one, a) hn = Div(a, d)",
    ],
)
def test_other_quotients_are_not_a_softsign(nodes: str) -> None:
    text = _ends(nodes)
    assert "it divides by a value that is not constant" in reason_of(
        FuseRecurrence, parse(text, opset=21)
    )
    assert "RNN" not in ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)


BOUNDS = {
    "hard sigmoid": ("b = Min(a, one) hn = Max(b, zero)", True),
    "hard sigmoid the other way round": ("b = Max(a, zero) hn = Min(one, b)", True),
    "narrowed": ("b = Clip(a, minus, two) c = Clip(b, , one) hn = Max(c, zero)", True),
    "clipped in two steps": ("b = Min(a, one) c = Max(b, minus) hn = Tanh(c)", True),
    "from another number": ("b = Min(a, two) hn = Max(b, one)", False),
    "bounds that cross": ("b = Min(a, zero) hn = Max(b, one)", False),
    "clipped to one side": ("b = Min(a, one) hn = Tanh(b)", False),
}


@pytest.mark.parametrize(("nodes", "fused"), BOUNDS.values(), ids=BOUNDS.keys())
def test_nested_bounds(nodes: str, fused: bool) -> None:
    text = _ends(nodes).replace("float one", "float zero = {0}, float minus = {-1}, float one")
    counts = ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)
    assert counts.get("RNN", 0) == fused


def test_an_rnn_without_activation() -> None:
    model = parse(_ends("hn = Identity(a)"), opset=21)
    (node,) = (n for n in rewritten(model, FEEDS, 1e-5).model.graph.node if n.op_type == "RNN")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert attributes["activations"] == [b"Affine"]
    assert (attributes["activation_alpha"], attributes["activation_beta"]) == ([1.0], [0.0])


def test_a_state_whose_features_stay_apart_is_noscan_rnn() -> None:
    """It is a linear recurrence for each feature."""
    text = _ends("k = Mul(h, two) hn = Add(k, p)")
    assert "is a linear recurrence" in reason_of(FuseRecurrence, parse(text, opset=21))


def _expanded_bias(rows: str) -> str:
    """An RNN whose bias is expanded to this number of rows."""
    return scan_rnn(
        f"{SUM.replace('a =', 's =')} e = Expand(b, size) a = Add(s, e)",
        f"{RNN}, {constant('b', 3)}, {integers(wide=[3])}",
        "float[T,B,2] x, float[N,1] other",
        f"n = {rows} size = Concat<axis=0>(n, wide)",
    )


def test_a_bias_that_is_expanded() -> None:
    _assert_fused(_expanded_bias("Shape<start=1, end=2>(x)"), "RNN")


def test_a_bias_that_is_expanded_to_another_batch() -> None:
    text = _expanded_bias("Shape<start=0, end=1>(other)")
    assert "no carried value keeps its shape" in reason_of(FuseRecurrence, parse(text, opset=21))
    rewritten(parse(text, opset=21), FEEDS, 1e-5)


LERP = """m = Less(a, one) n = Tanh(a) d = Sub(n, h) z = Sigmoid(p) zd = Mul(z, d) left = Add(h, zd)
    k = Sub({0}, z) kd = Mul(k, d) right = Sub(n, kd) hn = Where(m, left, right)"""


def test_a_choice_between_two_spellings_of_one_value() -> None:
    """torch.lerp selects one of two formulas by the size of the weight."""
    reset = "s = Sigmoid(q) sq = Mul(s, q) a = Add(p, sq) "
    text = _ends(LERP.format("one")).replace("a = Add(p, q) ", reset)
    _assert_fused(text, "GRU")
    other = _ends(LERP.format("two")).replace("a = Add(p, q) ", reset)
    assert "GRU" not in ops(rewritten(parse(other, opset=21), FEEDS, 1e-5).model)


def test_gates_from_split_to_sequence() -> None:
    nodes = """p = MatMul(xt, w) q = MatMul(h, r) k = Add(p, q) l = SplitToSequence<axis=1>(k, sizes)
      s = ConcatFromSequence<axis=0, new_axis=1>(l) """
    text = scan_lstm(nodes + gates("s", 0), f"{FLAT}, {integers(sizes=[3, 3, 3, 3])}")
    _assert_fused(text, "LSTM")
