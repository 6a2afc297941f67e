"""Random operators: their types, shapes and distributions."""

from __future__ import annotations

import numpy as np

from .inputs import Load


def test_normal_and_uniform_numbers(imported: Load) -> None:
    model = imported("""
    g (float16[n, 2] x, double[b, c] like) => (float[?, ?] y, float16[?, ?] z, double[?, ?] u) {
        y = RandomNormal <shape = [40, 50], mean = 3.0, scale = 0.5, dtype = 1> ()
        z = RandomNormalLike (x)
        u = RandomUniformLike <low = -1.0, high = 3.0, seed = 4.0> (like)
    }""")
    feed = np.zeros((1000, 2), np.float16), np.zeros((30, 40))
    y, z, u = model.run(*feed)
    assert [v.dtype for v in (y, z, u)] == [np.float32, np.float16, np.float64]
    assert [v.shape for v in (y, z, u)] == [(40, 50), (1000, 2), (30, 40)]
    assert abs(y.mean() - 3) < 0.1
    assert abs(y.std() - 0.5) < 0.05
    assert abs(z.astype(float).mean()) < 0.15
    assert -1 <= u.min() < -0.9
    assert 2.9 < u.max() <= 3
    assert (model.run(*feed)[0] != y).any()


def test_multinomial_and_bernoulli(imported: Load) -> None:
    model = imported("""
    <ir_version: 9, opset_import: ["" : 17]>
    g (float[b, c] x, float[n] p) => (int64[?, ?] y, bool[n] z, float[?] u) {
        y = Multinomial <sample_size = 2000, dtype = 7> (x)
        z = Bernoulli <dtype = 9> (p)
        u = RandomUniform <shape = [3]> ()
    }""")
    odds = np.array([[0.1, 0.2, 0.7], [1, 0, 0]], np.float32)
    with np.errstate(divide="ignore"):
        logits = np.log(odds) + 5
    y, z, _ = model.run(logits, np.repeat(np.array([0, 0.25, 1], np.float32), 1000))
    shares = [np.bincount(row, minlength=3) / 2000 for row in y]
    np.testing.assert_allclose(shares, odds, atol=0.05)
    assert not z[:1000].any()
    assert abs(z[1000:2000].mean() - 0.25) < 0.06
    assert z[2000:].all()
