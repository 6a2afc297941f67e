"""ChunkLinearAttention computes recurrences over outer products as matrix products."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rules.reductions import linear_attention_chunks
from looplift.rules.reductions.linear_attention import ChunkLinearAttention

from ...equivalence import assert_equal, ops, optimized_session, outcome, session
from ...samples import one_of
from ...small_models import parse
from ..reasons import reason_of

_SIZES = {"T": 11, "B": 2, "H": 2, "D": 16, "E": 24}
_OUTER = "kc = Unsqueeze(kt, last) vr = Unsqueeze(vt, second) kv = Mul(kc, vr)"
_READ = "qr = Unsqueeze(qt, second) m = MatMul(qr, {state}) o = Squeeze(m, second)"


def _loop(
    decay: str = "B,H",
    outer: str = _OUTER,
    update: str = "d = Mul(aw, s) sn = Add(d, kv)",
    read: str = _READ.format(state="sn"),
    function: str = "Sigmoid",
    wide: str = "2,3",
    result: str = "B,H,E",
    sizes: str = "B,H,D,E",
) -> str:
    """A Loop over a state (B, H, D, E) whose factor has the axes `decay`."""
    axes = f"int64[{len(wide.split(','))}] wide = {{{wide}}}"
    return f"""g (float[T,B,H,D] q, float[T,B,H,D] k, float[T,B,H,E] v, float[T,{decay}] f,
        float[H,D] u, float[{sizes}] s0) => (float[T,{result}] y, float[{sizes}] s)
        <int64 zero = {{0}}, int64[1] second = {{2}}, int64[1] last = {{3}}, {axes}> {{
        sh = Shape(k) n = Gather(sh, zero)
        s, y = Loop (n, , s0) <body = b (int64 i, bool c, float[{sizes}] s) => (bool co, float[{sizes}] sn, float[{result}] o) {{
            co = Identity(c)
            qt = Gather(q, i) kt = Gather(k, i) vt = Gather(v, i) ft = Gather(f, i)
            at = {function}(ft) aw = Unsqueeze(at, wide) {outer} {update} {read} }}> }}"""


FIRING = {
    "one factor per head": _loop(),
    "a factor per row": _loop("B,H,D", wide="3"),
    "no factor": _loop(update="sn = Add(kv, s)"),
    "read before the update": _loop(read=_READ.format(state="s")),
    "read before, a factor per row": _loop("B,H,D", wide="3", read=_READ.format(state="s")),
    "a bonus of this iteration": _loop(
        "B,H,D",
        wide="3",
        read="uw = Unsqueeze(u, bonus) ukv = Mul(uw, kv) w = Add(s, ukv) " + _READ.format(state="w"),
    ).replace("int64 zero", "int64[2] bonus = {0,3}, int64 zero"),
    "read by a sum": _loop(
        read="qc = Unsqueeze(qt, last) m = Mul(sn, qc) o = ReduceSum<keepdims=0>(m, second)"
    ),
    "read along the last axis": _loop(
        outer="kc = Unsqueeze(kt, second) vr = Unsqueeze(vt, last) kv = MatMul(vr, kc)",
        read="qc = Unsqueeze(qt, last) o = MatMul(sn, qc)",
        result="B,H,E,1",
        sizes="B,H,E,D",
    ),
    "einsum": _loop(
        outer='kv = Einsum<equation="bhe,bhd->bhde">(vt, kt)',
        read='o = Einsum<equation="bhd,bhde->ebh">(qt, sn)',
        result="E,B,H",
    ),
    "two reads": _loop(
        read="o1 = Einsum<equation=\"bhde,bhd->bhe\">(s, qt) "
        + _READ.format(state="sn").replace(" o =", " o2 =")
        + " o = Sub(o1, o2)"
    ),
}  # fmt: skip


def _feed(model: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    feed = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value or sizes[d.dim_param] for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feed[value.name] = rng.standard_normal(shape).astype(dtype)
    return feed


@functools.cache
def _rewritten(text: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model = parse(text, opset=17)
    result = rewrite(model)
    assert result.report.defects == []
    onnx.checker.check_model(result.model, full_check=True)
    return model, result.model


def _compare(text: str, sizes: dict[str, int], tolerance: float = 2e-5) -> onnx.ModelProto:
    model, result = _rewritten(text)
    feed = _feed(model, sizes)
    expected = session(model).run(None, feed)
    actual = optimized_session(result).run(None, feed)
    if not sizes["T"]:  # onnxruntime gives empty scan outputs the size 0 for each open size
        expected, actual = expected[1:], actual[1:]
    assert_equal(expected, actual, tolerance)
    return result


@pytest.mark.parametrize("text", one_of(2, FIRING.values()), ids=FIRING)
def test_becomes_matrix_products(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_CHUNK", "_SHORT_CHUNK"):
        monkeypatch.setattr(linear_attention_chunks, name, 4)
    found = ops(_compare(text, _SIZES))
    assert (found.get("Loop", 0), found["Scan"]) == (0, 2)


@pytest.mark.parametrize("decay", [_loop(), _loop("B,H,D", wide="3")], ids=["head", "row"])
@pytest.mark.parametrize(
    "changed",
    [{"T": 0}, {"T": 1}, {"T": 64}, {"T": 65}, {"T": 200}, {"B": 0}, {"B": 1, "H": 1}, {"D": 1}, {"E": 0}],
    ids=str,
)  # fmt: skip
def test_sizes(decay: str, changed: dict[str, int]) -> None:
    _compare(decay, {**_SIZES, **changed})


def test_double_precision() -> None:
    _compare(_loop().replace("float", "double"), {**_SIZES, "T": 100}, 1e-12)


def test_factors_of_0_and_strong_decays() -> None:
    """There is no division and no logarithm: nothing overflows, whatever the factors are."""
    for text in (_loop(), _loop("B,H,D", wide="3")):
        model, result = _rewritten(text)
        feed = _feed(model, {**_SIZES, "T": 150})
        feed["f"] *= 200
        expected = session(model).run(None, feed)
        assert np.isfinite(expected[0]).all()
        assert_equal(expected, session(result).run(None, feed), 2e-5)


def test_fails_where_the_original_fails() -> None:
    model, result = _rewritten(_loop())
    feed = _feed(model, _SIZES)
    feed["q"] = feed["q"][:, :, :, :-1]
    assert outcome(session(model), feed) is None
    assert outcome(session(result), feed) is None


DECLINED = {
    "growing": (_loop(function="Exp"), "the elements of `at` are not known to be between -1 and 1"),
    "a factor per column": (
        _loop("B,H,D,E").replace("aw = Unsqueeze(at, wide)", "").replace("Mul(aw", "Mul(at"),
        "varies along every axis",
    ),
    "small": (
        _loop(sizes="1,1,4,4").replace("D", "4").replace("E]", "4]").replace("B,H", "1,1"),
        "has 16 elements, fewer than 256",
    ),
    "another reader": (
        _loop(read="x = Tanh(sn) " + _READ.format(state="x")),
        "reads `sn`, but is not a contraction of it",
    ),
    "collected": (
        _loop(read="o = Identity(sn)", result="B,H,D,E"),
        "reads `sn`, but is not a contraction of it",
    ),
    "a query from the state": (
        _loop(read="w = Add(qt, qt) " + _READ.format(state="sn")).replace(
            "w = Add(qt, qt)", 'w = Einsum<equation="bhde,bhe->bhd">(s, vt)'
        ).replace("Unsqueeze(qt, second)", "Unsqueeze(w, second)"),
        "depends on a carried value",
    ),
    "the decayed state is read": (
        _loop(read='o1 = Einsum<equation="bhde,bhd->bhe">(sn, qt) o2 = Einsum<equation="bhde,bhd->bhe">(d, qt) o = Sub(o1, o2)'),
        "another node than the update reads `d`",
    ),
    "a diagonal is added": (
        _loop(outer='kk = Unsqueeze(kt, last) ks = Mul(kk, kk) kv = Einsum<equation="bhe,bhdd->bhde">(vt, w)')
        .replace("kk = Unsqueeze(kt, last) ks = Mul(kk, kk)", "w = Einsum<equation=\"bhd,bhc->bhdc\">(kt, kt)"),
        "varies along every axis",
    ),
    "reads over two axes": (
        _loop(read='o1 = Einsum<equation="bhde,bhd->bhe">(s, qt) r = ReduceMean<axes=[2], keepdims=0>(o1) '
        'o2 = Einsum<equation="bhde,bhe->bhd">(s, vt) t = ReduceMean<axes=[2], keepdims=0>(o2) o = Add(r, t)', result="B,H"),
        "sum over different axes",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), DECLINED.values(), ids=DECLINED)
def test_other_recurrences_stay(text: str, words: str) -> None:
    assert words in reason_of(ChunkLinearAttention, parse(text, opset=17))


def test_another_carried_value_that_keeps_the_state() -> None:
    text = _loop(
        read='old = Einsum<equation="bhde,bhd->bhe">(p, qt) '
        'new = Einsum<equation="bhde,bhd->bhe">(sn, qt) o = Sub(new, old) pn = Identity(sn)'
    )
    shape = "float[B,H,D,E]"
    for old, new in (
        (f"{shape} s0) =>", f"{shape} s0, {shape} p0) =>"),
        (f"y, {shape} s)", f"y, {shape} s, {shape} p1)"),
        ("s, y = Loop (n, , s0)", "s, p1, y = Loop (n, , s0, p0)"),
        (f"{shape} s) => (bool co, {shape} sn,", f"{shape} s, {shape} p) => (bool co, {shape} sn, {shape} pn,"),
    ):  # fmt: skip
        assert text.count(old) == 1
        text = text.replace(old, new)
    assert ops(_compare(text, _SIZES))["Scan"] == 1


def test_needs_reshapes_to_empty_tensors() -> None:
    assert "before opset 14" in reason_of(ChunkLinearAttention, parse(_loop(), opset=13))
