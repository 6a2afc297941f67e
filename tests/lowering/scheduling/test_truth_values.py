"""Kernels over truth values: TVM's code for vectors of them is wrong."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from tvm import cpu, relax, runtime, tirx

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels
from looplift.lowering.scheduling.products.matmul import MatrixProduct

from ...samples import one_of
from ...small_models import parse


@pytest.mark.parametrize("shape", ["N,M,16", "2,3,16"])
def test_logic_in_a_fused_kernel(shape: str) -> None:
    model = parse(f"""g (float[{shape}] x) => (float[{shape}] y, float[{shape}] w) <float z = {{0}}> {{
        e = Equal(x, z) n = Not(e) y = Cast<to=1>(n) p = Greater(x, z) a = And(e, p)
        o = Or(n, p) q = Xor(a, o) w = Where(q, x, y) }}""")
    x = np.random.default_rng(0).standard_normal((2, 3, 16)).astype(np.float32)
    x[x < -0.5] = 0
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    machine = relax.VirtualMachine(looplift.compile(looplift.from_onnx(model)), cpu())
    for got, wanted in zip(machine["main"](runtime.tensor(x)), expected):
        np.testing.assert_array_equal(got.numpy(), wanted)


@pytest.mark.parametrize("of", ["float", "double", "float16"])
def test_equal_truth_values(of: str) -> None:
    """Also where the choice by them follows a product."""
    model = parse(f"""g ({of}[n,8] x, {of}[8,m] w, int64[m] k, int64[m] l, bool[n,1] b) => ({of}[n,m] y, bool[n,m] e) {{
        p = MatMul(x, w) c = Less(k, l) e = Equal(c, b) o = Xor(e, b) a = And(o, e) t = Neg(p)
        f = Equal(a, c) y = Where(f, p, t) }}""")
    machine = relax.VirtualMachine(looplift.compile(looplift.from_onnx(model)), cpu())
    session = onnxruntime.InferenceSession(model.SerializeToString())
    random = np.random.default_rng(0)
    dtype = {"float": "float32", "double": "float64"}.get(of, of)
    for n, m in ((1, 1), (3, 5), (2, 40), (0, 4)):
        x, w = (random.integers(-3, 4, shape).astype(dtype) for shape in ((n, 8), (8, m)))
        k, limits = (random.integers(0, 3, m) for _ in range(2))
        inputs = {"x": x, "w": w, "k": k, "l": limits, "b": random.random((n, 1)) < 0.5}
        got = machine["main"](*map(runtime.tensor, inputs.values()))
        for one, other in zip(got, session.run(None, inputs), strict=True):
            np.testing.assert_array_equal(one.numpy(), other)


def test_equal_comparisons_of_sizes() -> None:
    model = parse("""g (float[n,m] x) => (float[n,m] y, bool e) <int64 three = {3}, int64 zero = {0}, int64 one = {1}> {
        s = Shape(x) n0 = Gather(s, zero) m0 = Gather(s, one) c = Less(n0, three) d = Less(m0, three)
        e = Equal(c, d) z = Neg(x) y = Where(e, x, z) }""")
    machine = relax.VirtualMachine(looplift.compile(looplift.from_onnx(model)), cpu())
    for n, m in ((1, 1), (1, 5), (5, 1), (5, 5)):
        y, is_equal = machine["main"](runtime.tensor(np.ones((n, m), np.float32)))
        equal = (n < 3) == (m < 3)
        assert bool(is_equal.numpy()) == equal
        np.testing.assert_array_equal(y.numpy(), np.full((n, m), 1 if equal else -1, np.float32))


@pytest.mark.parametrize(
    "joined",
    one_of(2, ["And(a, b)", "Or(a, b)", "Not(b)", "And(a, nb)", "Or(na, nb)", "Not(ab)"]),
)
def test_scores_that_joined_masks_hide(joined: str) -> None:
    """The masks are the same for all heads; the product computes them again for each."""
    model = parse(f"""g (float[n,4,8,16] q, float[n,4,16,t] k, bool[8,1] a, bool[n,1,1,t] b) => (float[n,4,8,t] y)
      <float zero = {{0}}, float low = {{-1000}}> {{
        p = MatMul(q, k) na = Not(a) nb = Not(b) ab = And(na, b)
        m = {joined} w = Where(m, zero, low) y = Add(p, w) }}""")
    module = looplift.from_onnx(model)
    with as_target("native") as target:
        functions = lower_to_kernels(module).functions
        kernels = [f for f in functions.values() if isinstance(f, tirx.PrimFunc)]
        taken = [MatrixProduct().apply(k, target, False) is not None for k in kernels]
    assert taken == [True]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    machine = relax.VirtualMachine(looplift.compile(module), cpu())
    random = np.random.default_rng(0)
    for n, t in ((1, 1), (2, 7), (1, 40), (0, 3), (2, 0)):
        inputs = {
            "q": random.standard_normal((n, 4, 8, 16), np.float32),
            "k": random.standard_normal((n, 4, 16, t), np.float32),
            "a": random.random((8, 1)) < 0.5,
            "b": random.random((n, 1, 1, t)) < 0.5,
        }
        got = machine["main"](*map(runtime.tensor, inputs.values())).numpy()
        np.testing.assert_allclose(got, session.run(None, inputs)[0], rtol=1e-5, atol=1e-5)
