"""Scan, also of opset 8, compiled by TVM's pipeline and by that of looplift."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Load = Callable[..., Any]


def values(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("directions", ["0, 1", "1, 0"])
@pytest.mark.parametrize("axes", ["0, -1", "-2, 2"])
def test_axes_and_directions(load: Load, axes: str, directions: str) -> None:
    model = load(f"""
    g (float[4] s, float[t, 4] x, float[b, 5, t] z)
        => (float[4] f, float[4, t] p, float[5, b, t] q, float[t, 4] r) {{
        f, p, q, r = Scan <
            num_scan_inputs = 2,
            scan_input_axes = [{axes}], scan_input_directions = [{directions}],
            scan_output_axes = [1, -1, 0], scan_output_directions = [{directions}, 0],
            body = step (float[4] a, float[4] row, float[b, 5] part)
                => (float[4] a2, float[4] product, float[5, b] turned, float[4] copy) {{
                a2 = Add(a, row)
                product = Mul(a2, row)
                turned = Transpose <perm = [1, 0]> (part)
                copy = Identity(row)
            }}
        > (s, x, z)
    }}""")
    for length in (1, 6):
        model.check(values(4), values(length, 4), values(3, 5, length))


def test_no_slices(load: Load) -> None:
    """onnxruntime's Scan fails there; the specification has nothing against it."""
    model = load("""
    g (float[4] s, float[t, 4] x) => (float[4] f, float[4, t] p) {
        f, p = Scan <
            num_scan_inputs = 1, scan_output_axes = [1],
            body = step (float[4] a, float[4] row) => (float[4] a2, float[4] product) {
                a2 = Add(a, row)
                product = Mul(a2, row)
            }
        > (s, x)
    }""")
    final, product = model.run(values(4), values(0, 4))
    np.testing.assert_array_equal(final, values(4))
    assert product.shape == (4, 0)


def test_scan_inputs_of_different_lengths_are_an_error(load: Load) -> None:
    model = load("""
    g (float[s] x, float[t] y) => (float[u] z) {
        z = Scan <
            num_scan_inputs = 2,
            body = step (float a, float b) => (float c) { c = Add(a, b) }
        > (x, y)
    }""")
    model.check(values(3), values(3))
    with pytest.raises(RuntimeError, match="match_cast"):
        model.run(values(3), values(2))


@pytest.mark.parametrize(("lengths", "direction"), [(None, 1), ((1, 3), 0), ((3, 2), 1)])
def test_a_batch(stock: Load, lengths: tuple[int, ...] | None, direction: int) -> None:
    given, operand = ("int64[b] lengths, ", "lengths") if lengths else ("", "")
    model = stock(f"""<ir_version: 8, opset_import: ["" : 8]>
    g ({given}float[b, 2] s, float[b, t, 2] x) => (float[b, 2] f, float[b, t, 2] r) {{
        f, r = Scan <
            num_scan_inputs = 1, directions = [{direction}],
            body = step (float[2] a, float[2] row) => (float[2] a2, float[2] product) {{
                a2 = Add(a, row)
                product = Mul(a2, row)
            }}
        > ({operand}, s, x)
    }}""")
    inputs = [np.array(lengths, np.int64)] if lengths else []
    model.check(*inputs, values(2, 2), values(2, 3, 2))
