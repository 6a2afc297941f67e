"""Kernels over truth values: TVM's code for vectors of them is wrong."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from tvm import cpu, relax, runtime

import looplift

from ..small_models import parse


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
