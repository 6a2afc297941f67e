"""Types say what facts know about the sizes of results of loops and branches."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm

import looplift
from looplift.lowering import emit

from ..small_models import parse
from .compiled import compile_quickly, virtual_machine

LOOP = """y0, rows = Loop(trips, , h) <
    body = b (int64 i, bool c, float[3] s) => (bool c1, float[3] s1, float[3] r) {
        c1 = Identity(c) t = CastLike(i, s) u = Add(s, t) v = Mul(u, s) s1 = Sin(v) r = Exp(s1)
    }>"""

MODELS = {
    "as_many_as_a_size": (
        f"""g (float[n, 3] x, float[3] h) => (float[K, 3] y) <int64[1] zero = {{0}}> {{
            s = Shape(x) m = Gather(s, zero) trips = Squeeze(m) {LOOP} y = Add(rows, x) }}""",
        ["n", "3"],
    ),
    "twice_a_size": (
        f"""g (float[n, 3] x, float[3] h) => (float[K, 3] y)
        <int64[1] zero = {{0}}, int64 two = {{2}}> {{
            s = Shape(x) m = Gather(s, zero) m1 = Squeeze(m) trips = Mul(m1, two) {LOOP}
            xx = Concat<axis = 0>(x, x) y = Add(rows, xx) }}""",
        ["n*2", "3"],
    ),
    "slices_of_a_scan": (
        """g (float[n, 3] x, float[3] h) => (float[K, 3] y) {
            last, rows = Scan<num_scan_inputs = 1, body = b (float[3] s, float[3] row)
                => (float[3] s1, float[3] r) { p = Mul(s, row) s1 = Sin(p) r = Exp(s1) }>(h, x)
            y = Add(rows, x) }""",
        ["n", "3"],
    ),
    "in_a_branch": (
        f"""g (float[n, 3] x, float[3] h) => (float[K, 3] y)
        <int64[1] zero = {{0}}, int64 two = {{2}}> {{
            s = Shape(x) m = Gather(s, zero) trips = Squeeze(m) c = Less(trips, two)
            y = If (c) <
                then_branch = t () => (float[K, 3] a) {{ {LOOP} a = Add(rows, x) }},
                else_branch = e () => (float[n, 3] b) {{ b = Neg(x) }}
            > }}""",
        ["n", "3"],
    ),
}


def _result_sizes(module: Any) -> list[str] | None:
    """The sizes in the type of the result of main; None if they are computed inside."""
    shape = module["main"].ret_ty.shape
    if shape is None:
        return None
    return [re.sub(r"T.int64\((\d+)\)", r"\1", str(size)).replace(" ", "") for size in shape.values]


@pytest.mark.parametrize("name", MODELS)
def test_sizes_of_results(name: str) -> None:
    text, sizes = MODELS[name]
    model = parse(text)
    module = looplift.from_onnx(model)
    assert _result_sizes(module) == sizes
    machine = virtual_machine(compile_quickly(module, relax_pipeline="default"))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (0, 1, 4):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        h = np.array([0.5, -1, 2], np.float32)
        got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(h)).numpy()
        if rows == 0 and "Scan" in text:  # onnxruntime refuses to read no slices
            assert got.shape == (0, 3)
            continue
        (want,) = session.run(None, {"x": x, "h": h})
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_without_facts_a_loop_has_a_size_of_its_own() -> None:
    module = emit(parse(MODELS["slices_of_a_scan"][0]))
    assert _result_sizes(module) is None


def test_a_number_of_slices_that_nothing_relates_to_an_input_stays_open() -> None:
    text = (
        f"g (float[n, 3] x, float[3] h, int64 trips) => (float[K, 3] y) {{ {LOOP} y = Neg(rows) }}"
    )
    assert _result_sizes(looplift.from_onnx(parse(text))) is None
