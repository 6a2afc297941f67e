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


def test_seeded_numbers(imported: Load) -> None:
    """They are the same in every run, differ between seeds and positions, and have no period."""
    model = imported("""
    g (float[n, m] like) => (float[n, m] a, float[n, m] b, float[n, m] c, float[n, m] d, float[?] e) {
        a = RandomNormalLike <mean = 1.0, scale = 2.0, seed = 7.0> (like)
        b = RandomNormalLike <mean = 1.0, scale = 2.0, seed = 8.0> (like)
        c = RandomUniformLike <low = -1.0, high = 3.0, seed = 7.0> (like)
        d = RandomNormalLike <mean = 1.0, scale = 2.0> (like)
        e = RandomUniform <shape = [5], seed = 0.5> ()
    }""")
    first, second = (model.run(np.zeros((200, 300), np.float32)) for _ in range(2))
    for number, (x, y) in enumerate(zip(first, second)):
        assert (x == y).all() == (number != 3)
    a, b, c, _, e = first
    assert (a != b).mean() > 0.99
    assert abs(a.mean() - 1) < 0.05
    assert abs(a.std() - 2) < 0.05
    assert abs(np.mean((a - 1) ** 4) / 48 - 1) < 0.1  # 3 std**4 for a normal distribution
    assert abs(np.corrcoef(a[:, 1:].ravel(), a[:, :-1].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02
    np.testing.assert_allclose(np.histogram(c, 4, (-1, 3))[0] / c.size, 0.25, atol=0.01)
    assert len(np.unique(e)) == 5
    for shape in ((0, 3), (1, 1)):
        assert model.run(np.zeros(shape, np.float32))[0].shape == shape


def test_seeded_draws(imported: Load) -> None:
    model = imported("""
    <ir_version: 9, opset_import: ["" : 17]>
    g (float[b, c] x, float[n] p) => (int64[?, ?] y, bool[n] z) {
        y = Multinomial <sample_size = 2000, dtype = 7, seed = 3.0> (x)
        z = Bernoulli <dtype = 9, seed = 3.0> (p)
    }""")
    odds = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]], np.float32)
    probabilities = np.repeat(np.array([0, 0.25, 1], np.float32), 1000)
    (y, z), again = (model.run(np.log(odds), probabilities) for _ in range(2))
    assert (y == again[0]).all()
    assert (z == again[1]).all()
    shares = [np.bincount(row, minlength=3) / 2000 for row in y]
    np.testing.assert_allclose(shares, odds, atol=0.05)
    assert abs(z[1000:2000].mean() - 0.25) < 0.06
    assert not z[:1000].any()
    assert z[2000:].all()


def test_dropout_keeps_everything(imported: Load) -> None:
    imported("""
    g (float[n, 3] x) => (float[n, 3] y, bool[n, 3] mask) <float ratio = {0.5}> {
        y, mask = Dropout (x, ratio) }""").check(np.ones((4, 3), np.float32))


def test_dropout_that_the_run_decides(imported: Load) -> None:
    model = imported("""
    <ir_version: 10, opset_import: ["" : 22]>
    g (float16[n] x, float ratio, bool training) => (float16[n] y, bool[n] m) {
        y, m = Dropout (x, ratio, training) }""")
    x = np.array([1, -2, np.inf, 0], np.float16)
    for ratio, training in ((0, True), (0.5, False)):
        y, mask = model.run(x, np.array(ratio, np.float32), np.array(training))
        np.testing.assert_array_equal(y, x)
        assert mask.all()
    x = np.full(4000, 3, np.float16)
    y, mask = model.run(x, np.array(0.25, np.float32), np.array(True))
    assert abs(mask.mean() - 0.75) < 0.05
    np.testing.assert_array_equal(y, np.where(mask, np.float16(4), 0))
    assert (model.run(x, np.array(0.25, np.float32), np.array(True))[1] != mask).any()


def test_dropout_in_a_loop(imported: Load) -> None:
    """Each iteration drops other elements; the default ratio is a half."""
    model = imported("""
    g (float[n] x, int64 times) => (float[n] y, float[k, n] z) <bool go = {1}> {
        y, z = Loop (times, go, x) <body = b (int64 i, bool c, float[n] s)
            => (bool d, float[n] t, float[n] u) {
            d = Identity (c) u = Dropout (x, , go) t = Add (s, u) }> }""")
    y, z = model.run(np.ones(1000, np.float32), np.array(3))
    assert set(np.unique(z)) == {0, 2}
    assert (np.abs(z.mean(1) - 1) < 0.2).all()
    assert (z[0] != z[1]).any()
    assert (z[1] != z[2]).any()
    np.testing.assert_array_equal(y, 1 + z.sum(0))


def test_dropout_with_a_seed(imported: Load) -> None:
    model = imported("""
    g (double[n] x) => (double[n] y) <bool t = {1}> { y = Dropout <seed = 5> (x, , t) }""")
    first, second = (model.run(np.ones(500))[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert set(np.unique(first)) == {0, 2}
