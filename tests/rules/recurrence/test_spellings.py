"""Cells whose gates, weights, inputs and states have shapes of their own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from looplift.rules.recurrence import FuseRecurrence, RerollRecurrence

from ...equivalence import ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(sizes=(1, 2, 5), most=24)


def _constant(name: str, *shape: int) -> str:
    """The declaration of a constant with some numbers."""
    numbers = np.sin(np.arange(np.prod(shape)) * 1.7 + len(name))
    sizes = ",".join(str(n) for n in shape)
    return f"float[{sizes}] {name} = {{{', '.join(f'{v:.3f}' for v in numbers)}}}"


def _integers(**vectors: list[int] | int) -> str:
    return ", ".join(
        f"int64[{len(v)}] {name} = {{{', '.join(map(str, v))}}}"
        if isinstance(v, list)
        else f"int64 {name} = {{{v}}}"
        for name, v in vectors.items()
    )


PLACES = _integers(g0=0, g1=1, g2=2, g3=3)
CELL = """i = Sigmoid(gi) f = Sigmoid(gf) g = Tanh(gg) o = Sigmoid(go)
    fc = Mul(f, c) ig = Mul(i, g) cn = Add(fc, ig) tc = Tanh(cn) hn = Mul(o, tc) row = Identity(hn)"""


def _gates(value: str, axis: int) -> str:
    """Four gates by number along an axis."""
    names = ("gi", "gf", "gg", "go")
    return " ".join(f"{g} = Gather<axis={axis}>({value}, g{k})" for k, g in enumerate(names))


def _lstm(nodes: str, constants: str, x: str = "B,2", state: str = "B,3", before: str = "") -> str:
    """A Scan over x, of which the body reads xt, around an LSTM with the states h and c."""
    return f"""m (float[T,{x}] x, float[{state}] h0, float[{state}] c0)
      => (float[T,{state}] y, float[{state}] hl, float[{state}] cl) <{constants}, {PLACES}> {{
      {before}
      hl, cl, y = Scan <num_scan_inputs=1,
        body = cell (float[{state}] h, float[{state}] c, float[{x}] xt)
            => (float[{state}] hn, float[{state}] cn, float[{state}] row) {{ {nodes} {CELL} }}>
        (h0, c0, x) }}"""


def _rnn(nodes: str, constants: str, inputs: str = "float[T,B,2] x", before: str = "") -> str:
    """A Scan over x around an RNN whose pre-activation is a."""
    x = inputs.partition("]")[0].partition("T,")[2]
    return f"""m ({inputs}, float[B,3] h0) => (float[T,B,3] y) <{constants}> {{
      {before}
      hl, y = Scan <num_scan_inputs=1, body = cell (float[B,3] h, float[{x}] xt)
            => (float[B,3] hn, float[B,3] row) {{ {nodes} hn = Tanh(a) row = Identity(hn) }}>
        (h0, x) }}"""


def _assert_fused(text: str, op: str, feeds: Feeds = FEEDS, opset: int = 21) -> None:
    counts = ops(rewritten(parse(text, opset=opset), feeds, 1e-5).model)
    assert counts[op] == 1
    assert not {"Loop", "Scan"} & set(counts)


FLAT = f"{_constant('w', 2, 12)}, {_constant('r', 3, 12)}"
SHAPES = _integers(apart=[-1, 4, 3], inside=[-1, 3, 4])


@pytest.mark.parametrize(("shape", "axis"), [("apart", 1), ("inside", 2)])
def test_gates_with_an_axis_of_their_own(shape: str, axis: int) -> None:
    nodes = f"p = MatMul(xt, w) q = MatMul(h, r) s = Add(p, q) v = Reshape(s, {shape}) "
    _assert_fused(_lstm(nodes + _gates("v", axis), f"{FLAT}, {SHAPES}"), "LSTM")


@pytest.mark.parametrize("x", ["B,4,3", "2,4,3"])
def test_a_sequence_of_gates_computed_in_front_of_the_loop(x: str) -> None:
    """Also where all sizes are static: the states tell which is the batch."""
    batch = x[0]
    shape = _integers(apart=[-1, 4, 3])
    nodes = "q = MatMul(h, r) v = Reshape(q, apart) s = Add(xt, v) " + _gates("s", 1)
    text = _lstm(nodes, f"{_constant('r', 3, 12)}, {shape}", x, f"{batch},3")
    _assert_fused(text, "LSTM", Feeds(sizes=(1, 2, 5), most=12))


def test_the_batch_behind_the_features() -> None:
    nodes = "p = MatMul(w, xt) q = MatMul(r, h) s = Add(p, q) gi, gf, gg, go = Split<axis=0, num_outputs=4>(s)"
    constants = f"{_constant('w', 12, 2)}, {_constant('r', 12, 3)}"
    _assert_fused(_lstm(nodes, constants, "2,B", "3,B"), "LSTM")


def test_columns_in_place_of_rows() -> None:
    nodes = "p = MatMul(w, xt) q = MatMul(r, h) s = Add(p, q) gi, gf, gg, go = Split<axis=0, num_outputs=4>(s)"
    constants = f"{_constant('w', 12, 2)}, {_constant('r', 12, 3)}"
    _assert_fused(_lstm(nodes, constants, "2,1", "3,1"), "LSTM")


STACKS = f"{_constant('w', 4, 2, 3)}, {_constant('r', 4, 3, 3)}, {_constant('b', 4, 1, 3)}"


def test_a_stack_of_matrices_with_one_for_each_gate() -> None:
    nodes = "p = MatMul(xt, w) q = MatMul(h, r) u = Add(p, q) s = Add(u, b) " + _gates("s", 0)
    _assert_fused(_lstm(nodes, STACKS), "LSTM")


def test_a_stack_of_matrices_applied_to_a_vector() -> None:
    constants = f"{_constant('w', 4, 2, 3)}, {_constant('r', 4, 3, 3)}"
    nodes = "p = MatMul(xt, w) q = MatMul(h, r) s = Add(p, q) " + _gates("s", 0)
    _assert_fused(_lstm(nodes, constants, "2", "3"), "LSTM")


def test_a_stack_of_matrices_each_applied_to_its_own_copy() -> None:
    constants = STACKS + ", " + _integers(copies=[4, 1, 1], front=[0])
    nodes = """p = MatMul(xt, w) k = Unsqueeze(h, front) e = Expand(k, copies) q = MatMul(e, r)
      s = Add(p, q) """ + _gates("s", 0)
    _assert_fused(_lstm(nodes, constants), "LSTM")


@pytest.mark.parametrize(
    ("of_x", "of_h", "w", "r", "axis"),
    [
        ("bi,igh->bgh", "bk,kgh->bgh", (2, 4, 3), (3, 4, 3), 1),
        ("bi,gih->gbh", "bk,gkh->gbh", (4, 2, 3), (4, 3, 3), 0),
        ("bi,hgi->hbg", "bk,hgk->hbg", (3, 4, 2), (3, 4, 3), 2),
    ],
)
def test_products_of_many_axes(
    of_x: str, of_h: str, w: tuple[int, ...], r: tuple[int, ...], axis: int
) -> None:
    nodes = f"""p = Einsum<equation="{of_x}">(xt, w) q = Einsum<equation="{of_h}">(h, r) s = Add(p, q) """
    if of_x.endswith("hbg"):
        nodes += "t = Transpose<perm=[1, 0, 2]>(s) "
    text = _lstm(nodes + _gates("t" if "t =" in nodes else "s", axis),
                 f"{_constant('w', *w)}, {_constant('r', *r)}")  # fmt: skip
    _assert_fused(text, "LSTM")


def test_a_product_in_which_every_gate_has_its_own_input() -> None:
    nodes = """p = Einsum<equation="bgi,gih->bgh">(xt, w) q = Einsum<equation="bk,kgh->bgh">(h, r)
      s = Add(p, q) """ + _gates("s", 1)
    constants = f"{_constant('w', 4, 2, 3)}, {_constant('r', 3, 4, 3)}"
    _assert_fused(_lstm(nodes, constants, "B,4,2"), "LSTM")


def test_a_diagonal_is_no_product() -> None:
    nodes = """p = Einsum<equation="ii,io->io">(xt, w) q = MatMul(h, r) a = Add(p, q)"""
    text = _rnn(nodes, f"{_constant('w', 2, 3)}, {_constant('r', 3, 3)}")
    text = text.replace("float[T,B,2] x", "float[T,2,2] x").replace("[B,", "[2,")
    text = text.replace("float[B,2] xt", "float[2,2] xt").replace("[T,B,3]", "[T,2,3]")
    assert "takes a diagonal" in reason_of(FuseRecurrence, parse(text, opset=21))


# --- activations ---

RNN = f"{_constant('w', 2, 3)}, {_constant('r', 3, 3)}"
SUM = "p = MatMul(xt, w) q = MatMul(h, r) a = Add(p, q) "


def _ends(nodes: str) -> str:
    """An RNN whose new state is `hn` of these nodes over a."""
    return _rnn(SUM + nodes, f"{RNN}, float one = {{1}}, float two = {{2}}").replace(
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
def test_quotients_that_are_no_softsign(nodes: str) -> None:
    text = _ends(nodes)
    assert "to divide by a value" in reason_of(FuseRecurrence, parse(text, opset=21))
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
def test_bounds_one_after_the_other(nodes: str, fused: bool) -> None:
    text = _ends(nodes).replace("float one", "float zero = {0}, float minus = {-1}, float one")
    counts = ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)
    assert counts.get("RNN", 0) == fused


def test_an_rnn_without_activation() -> None:
    model = parse(_ends("hn = Identity(a)"), opset=21)
    (node,) = (n for n in rewritten(model, FEEDS, 1e-5).model.graph.node if n.op_type == "RNN")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert attributes["activations"] == [b"Affine"]
    assert (attributes["activation_alpha"], attributes["activation_beta"]) == ([1.0], [0.0])


def test_a_state_whose_features_stay_apart_is_no_rnn() -> None:
    """A product and a sum in a Scan do, or a closed form."""
    text = _ends("k = Mul(h, two) hn = Add(k, p)")
    assert "of no LSTM, GRU or RNN" in reason_of(FuseRecurrence, parse(text, opset=21))


def _expanded_bias(rows: str) -> str:
    """An RNN whose bias is expanded to so many rows."""
    return _rnn(
        f"{SUM.replace('a =', 's =')} e = Expand(b, size) a = Add(s, e)",
        f"{RNN}, {_constant('b', 3)}, {_integers(wide=[3])}",
        "float[T,B,2] x, float[N,1] other",
        f"n = {rows} size = Concat<axis=0>(n, wide)",
    )


def test_a_bias_that_is_expanded() -> None:
    _assert_fused(_expanded_bias("Shape<start=1, end=2>(x)"), "RNN")


def test_a_bias_that_is_expanded_to_other_rows() -> None:
    text = _expanded_bias("Shape<start=0, end=1>(other)")
    assert "no state keeps its shape" in reason_of(FuseRecurrence, parse(text, opset=21))
    rewritten(parse(text, opset=21), FEEDS, 1e-5)


LERP = """m = Less(a, one) n = Tanh(a) d = Sub(n, h) z = Sigmoid(p) zd = Mul(z, d) left = Add(h, zd)
    k = Sub({0}, z) kd = Mul(k, d) right = Sub(n, kd) hn = Where(m, left, right)"""


def test_a_choice_between_two_spellings_of_one_value() -> None:
    """torch.lerp takes the one or the other by the size of the weight."""
    reset = "s = Sigmoid(q) sq = Mul(s, q) a = Add(p, sq) "
    text = _ends(LERP.format("one")).replace("a = Add(p, q) ", reset)
    _assert_fused(text, "GRU")
    other = _ends(LERP.format("two")).replace("a = Add(p, q) ", reset)
    assert "GRU" not in ops(rewritten(parse(other, opset=21), FEEDS, 1e-5).model)


# --- inputs that are the same in every iteration ---

CONTEXT = f"{RNN}, {_constant('v', 2, 3)}"
WITH_CONTEXT = "p = MatMul(xt, w) q = MatMul(h, r) k = MatMul(z, v) s = Add(p, q) a = Add(s, k)"


@pytest.mark.parametrize("batch", ["B", "2", "3"])
def test_a_context_computed_in_front_of_the_loop(batch: str) -> None:
    """Also where its shape is static and could be that of a weight."""
    text = _rnn(WITH_CONTEXT, CONTEXT, "float[T,B,2] x, float[B,2] u", "z = Exp(u)")
    text = text.replace("[B,", f"[{batch},").replace("T,B,", f"T,{batch},")
    _assert_fused(text, "RNN")


def test_a_context_beside_the_input() -> None:
    nodes = "j = Concat<axis=1>(xt, u, h) a = MatMul(j, w)"
    _assert_fused(_rnn(nodes, _constant("w", 7, 3), "float[T,B,2] x, float[B,2] u"), "RNN")


def test_a_context_that_is_multiplied_is_no_input() -> None:
    nodes = "p = MatMul(xt, w) q = MatMul(h, r) s = Add(p, q) t = Tanh(s) hn = Mul(t, u)"
    text = _rnn(nodes, RNN, "float[T,B,2] x, float[B,3] u").replace("hn = Tanh(a) ", "")
    assert "is multiplied by" in reason_of(FuseRecurrence, parse(text, opset=21))
    assert "RNN" not in ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)


def test_one_number_for_each_row() -> None:
    nodes = "e = Unsqueeze(xt, last) p = MatMul(e, w) q = MatMul(h, r) a = Add(p, q)"
    constants = f"{_constant('w', 1, 3)}, {_constant('r', 3, 3)}, {_integers(last=[1])}"
    _assert_fused(_rnn(nodes, constants, "float[T,B] x"), "RNN")


def test_states_with_several_axes_of_features_stay() -> None:
    """Their recurrent weights would be a matrix that is mostly zeros."""
    nodes = "q = MatMul(h, r) a = Add(xt, q)"
    text = _rnn(nodes, _constant("r", 3, 3), "float[T,B,4,3] x").replace("[B,3]", "[B,4,3]")
    text = text.replace("[T,B,3]", "[T,B,4,3]")
    assert "have 2 axes" in reason_of(FuseRecurrence, parse(text, opset=21))
    assert "RNN" not in ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)


# --- states ---


def test_a_state_of_two_cut_along_all_axes() -> None:
    numbers = _integers(at0=[0, 0], at1=[0, 3], to1=[2, 3], to2=[2, 6], axes=[0, 1])
    text = f"""m (float[T,2,2] x, float[2,6] s0) => (float[T,2,3] y, float[2,6] sl) <{FLAT}, {numbers}> {{
      sl, y = Scan <num_scan_inputs=1, body = cell (float[2,6] s, float[2,2] xt)
            => (float[2,6] sn, float[2,3] row) {{
          h = Slice(s, at0, to1, axes) c = Slice(s, at1, to2, axes)
          p = MatMul(xt, w) q = MatMul(h, r) k = Add(p, q)
          gi, gf, gg, go = Split<axis=1, num_outputs=4>(k) {CELL} sn = Concat<axis=1>(hn, cn) }}>
        (s0, x) }}"""
    _assert_fused(text, "LSTM")


def test_states_in_a_list() -> None:
    """As modules in a Python list keep them: each takes out its state and puts a new one there."""
    layer = """h{0} = SequenceAt({1}, k{0}) p{0} = MatMul({2}, w) q{0} = MatMul(h{0}, r) a{0} = Add(p{0}, q{0})
        n{0} = Tanh(a{0}) e{0} = SequenceErase({1}, k{0}) l{0} = SequenceInsert(e{0}, n{0}, k{0}) """
    nodes = layer.format(0, "l", "xt") + layer.format(1, "l0", "n0")
    text = f"""m (float[5,2,3] x, float[2,3] z, int64 n) => (float[K,2,3] y)
      <{_constant("w", 3, 3)}, {_constant("r", 3, 3)}, {_integers(k0=0, k1=1)}> {{
      s0 = SequenceConstruct(z, z)
      s, y = Loop (n, , s0) <body = cell (int64 t, bool on, seq(float[2,3]) l)
            => (bool again, seq(float[2,3]) l1, float[2,3] row) {{
          again = Identity(on) xt = Gather<axis=0>(x, t) {nodes} row = Identity(n1) }}> }}"""
    feeds = Feeds(values={"n": [0, 1, 5]}, sizes=(2,), most=12)
    counts = ops(rewritten(parse(text, opset=21), feeds, 1e-5).model)
    assert counts["RNN"] == 2
    assert not {"Loop", "SequenceAt", "SequenceErase", "SequenceInsert"} & set(counts)


def test_gates_that_are_split_into_a_sequence() -> None:
    nodes = """p = MatMul(xt, w) q = MatMul(h, r) k = Add(p, q) l = SplitToSequence<axis=1>(k, sizes)
      s = ConcatFromSequence<axis=0, new_axis=1>(l) """
    text = _lstm(nodes + _gates("s", 0), f"{FLAT}, {_integers(sizes=[3, 3, 3, 3])}")
    _assert_fused(text, "LSTM")


# --- unrolled ---


def _unrolled(step: str, count: int) -> str:
    """Copies of a step that leads from h<k> and c<k> to the next; # stands for the next number."""
    return "".join(step.replace("#", str(k + 1)).replace("@", str(k)) for k in range(count))


def test_unrolled_steps_that_slice_their_gates() -> None:
    """Slices of gates are no inputs, as those of a sequence are."""
    step = """t@ = Constant<value_int=@>() x@ = Gather<axis=0>(x, t@) p@ = MatMul(x@, w)
      q@ = MatMul(h@, r) s@ = Add(p@, q@) v@ = Reshape(s@, apart)
      gi@ = Gather<axis=1>(v@, g0) gf@ = Gather<axis=1>(v@, g1) gn@ = Gather<axis=1>(v@, g2)
      go@ = Gather<axis=1>(v@, g3) i@ = Sigmoid(gi@) f@ = Sigmoid(gf@) n@ = Tanh(gn@)
      o@ = Sigmoid(go@) fc@ = Mul(f@, c@) ig@ = Mul(i@, n@) c# = Add(fc@, ig@) tc@ = Tanh(c#)
      h# = Mul(o@, tc@) """
    text = f"""m (float[5,B,2] x, float[B,3] h0, float[B,3] c0) => (float[B,3] h5, float[B,3] h2)
      <{FLAT}, {SHAPES}, {PLACES}> {{ {_unrolled(step, 5)} }}"""
    counts = ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)
    assert counts["LSTM"] == 1
    assert "Sigmoid" not in counts


def test_unrolled_steps_with_a_context() -> None:
    """The input that all steps share is repeated, not put together step by step."""
    step = """t@ = Constant<value_int=@>() x@ = Gather<axis=0>(x, t@) j@ = Concat<axis=1>(x@, u, h@)
      a@ = MatMul(j@, w) h# = Tanh(a@) """
    text = f"""m (float[6,B,2] x, float[B,2] u, float[B,3] h0) => (float[B,3] h6)
      <{_constant("w", 7, 3)}> {{ {_unrolled(step, 6)} }}"""
    counts = ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)
    assert counts["RNN"] == 1
    assert "Tanh" not in counts


def test_few_unrolled_steps_of_single_values_stay() -> None:
    """To put their inputs together takes more operators than the steps have."""
    step = "q@ = MatMul(h@, r) a@ = Sum(x@, u@, v@, s@, t@, q@) h# = Tanh(a@) "
    inputs = ", ".join(f"float[B,3] {name}{k}" for k in range(3) for name in "xuvst")
    text = f"""m ({inputs}, float[B,3] h0) => (float[B,3] h3)
      <{_constant("r", 3, 3)}> {{ {_unrolled(step, 3)} }}"""
    assert "RNN" not in ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)
    _, trace, engine = run_rules(parse(text, opset=21), [RerollRecurrence])
    assert trace.commits() == []
    assert "no more operators than one" in str(next(iter(engine.declined.values())))


@pytest.mark.parametrize(("batch", "noted"), [("B", True), ("2", False)])
def test_unrolled_steps_that_may_have_an_empty_batch(batch: str, noted: bool) -> None:
    """The steps take it, onnxruntime's operator does not."""
    step = """t@ = Constant<value_int=@>() x@ = Gather<axis=0>(x, t@) p@ = MatMul(x@, w)
      q@ = MatMul(h@, r) s@ = Add(p@, q@) gi@, gf@, gn@, go@ = Split<axis=1, num_outputs=4>(s@)
      i@ = Sigmoid(gi@) f@ = Sigmoid(gf@) n@ = Tanh(gn@) o@ = Sigmoid(go@) fc@ = Mul(f@, c@)
      ig@ = Mul(i@, n@) c# = Add(fc@, ig@) tc@ = Tanh(c#) h# = Mul(o@, tc@) """
    text = f"""m (float[3,{batch},2] x, float[{batch},3] h0, float[{batch},3] c0)
      => (float[{batch},3] h3) <{FLAT}> {{ {_unrolled(step, 3)} }}"""
    notes = rewritten(parse(text, opset=21), FEEDS, 1e-5).report.notes
    assert any("empty batch" in note for note in notes) == noted


ONE_STEP = "Y@, h# = GRU<hidden_size=3>(x@, W, R, , , h@) s@ = Squeeze(Y@, one) "
ONE_STEP_WEIGHTS = f"{_constant('W', 1, 9, 2)}, {_constant('R', 1, 9, 3)}, int64[1] one = {{1}}"
KEPT = {
    "slices": "t@ = Constant<value_ints=[@]>() e@ = Constant<value_ints=[#]>() "
    "x@ = Slice(x, t@, e@, nil) ",
    "gathered": "t@ = Constant<value_ints=[@]>() x@ = Gather<axis=0>(x, t@) ",
}


@pytest.mark.parametrize("read", KEPT.values(), ids=KEPT.keys())
@pytest.mark.parametrize("ends", ["s0, s1, s2, s3, s4", "s4, s3, s2, s1, s0", "s1, s2, h5"])
def test_operators_of_one_step_each(read: str, ends: str) -> None:
    """Their inputs keep the axis of the time, and both Y and Y_h are the new h."""
    text = f"""m (float[5,B,2] x, float[1,B,3] h0) => (float[L,B,3] y)
      <{ONE_STEP_WEIGHTS}, {_integers(nil=[0])}> {{
      {_unrolled(read + ONE_STEP, 5)} y = Concat<axis=0>({ends}) }}"""
    counts = ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)
    assert counts["GRU"] == 1


def test_operators_of_one_step_each_that_skip_a_slice() -> None:
    """Their inputs are put together one by one."""
    read = KEPT["gathered"].replace("[@]", "[?]")
    steps = _unrolled(read + ONE_STEP, 5)
    for number in (0, 1, 4, 2, 3):
        steps = steps.replace("?", str(number), 1)
    text = f"""m (float[5,B,2] x, float[1,B,3] h0) => (float[1,B,3] h5)
      <{ONE_STEP_WEIGHTS}> {{ {steps} }}"""
    rewritten(parse(text, opset=21), FEEDS, 1e-5)


@pytest.mark.parametrize(("order", "joined"), [((3, 2, 1), True), ((3, 1, 2), False)])
def test_slices_joined_from_the_last_to_the_first(order: tuple[int, ...], joined: bool) -> None:
    places = "".join(
        f"t{k} = Constant<value_int={k}>() x{k} = Gather<axis=0>(x, t{k}) "
        f"u{k} = Unsqueeze(x{k}, one) "
        for k in order
    )
    text = f"""m (float[5,B,2] x) => (float[B,3,2] y) <{_integers(one=[1])}> {{ {places}
      y = Concat<axis=1>({", ".join(f"u{k}" for k in order)}) }}"""
    counts = ops(rewritten(parse(text, opset=21), Feeds(sizes=(0, 1, 3))).model)
    assert ("Gather" in counts) != joined


def test_unrolled_steps_whose_first_state_gets_an_axis() -> None:
    """Only the first copy reads through the Unsqueeze."""
    step = """t@ = Constant<value_int=@>() x@ = Gather<axis=0>(x, t@) p@ = MatMul(x@, w)
      q@ = MatMul(h@, r) a@ = Add(p@, q@) h# = Relu(a@) """
    text = f"""m (float[5,1,B,2] x, float[B,3] g0) => (float[1,B,3] h5)
      <{RNN}, {_integers(nil=[0])}> {{ h0 = Unsqueeze(g0, nil) {_unrolled(step, 5)} }}"""
    counts = ops(rewritten(parse(text, opset=21), FEEDS, 1e-5).model)
    assert counts["RNN"] == 1
