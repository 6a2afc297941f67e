"""What is left out of the kernels of loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm

from looplift.lowering.transform import FuseLoops
from looplift.lowering.transform.kernel_limits import has_large_convolution, row_limits

Load = Callable[..., Any]

PRODUCT = """
g (float[n, b, t, R] x, float[R, C] w, float[b, t, C] s0) => (float[b, t, C] s) {
    s = Scan <num_scan_inputs = 1, body = step (float[b, t, C] p, float[b, t, R] part)
        => (float[b, t, C] q) {
        new = MatMul (part, w)
        q = Add (p, new)
    }> (s0, x)
}"""


@pytest.mark.parametrize(
    ("rows", "columns", "most"), [(128, 128, 16), (128, 256, 8), (512, 512, 3), (64, 128, None)]
)
def test_the_limit_depends_on_the_matrix(
    imported: Load, rows: int, columns: int, most: int | None
) -> None:
    text = PRODUCT.replace("R", str(rows)).replace("C", str(columns))
    body = imported(text).functions()["s_body"]
    limits = row_limits(body)
    assert [limit.most for limit in limits] == ([] if most is None else [most])
    sizes = [str(limit.rows) for limit in limits]
    assert sizes in ([], ["b * t"])


def test_a_known_number_of_rows_has_no_limit(imported: Load) -> None:
    text = PRODUCT.replace("R", "512").replace("C", "512").replace("b, t", "4, 8")
    assert not row_limits(imported(text).functions()["s_body"])


def test_the_kernel_is_for_few_rows(imported: Load) -> None:
    text = PRODUCT.replace("R", "256").replace("C", "256")
    with tvm.target.Target("llvm"):
        text = FuseLoops()(imported(text).module)["s"].script()
    assert "b * t <= 4" in text
    assert text.index("s_kernel") < text.index("else") < text.index("s_iterations")


@pytest.mark.parametrize(("taps", "is_large"), [(1, False), (3, True)])
def test_transposed_convolutions_are_counted_by_their_data(
    imported: Load, taps: int, is_large: bool
) -> None:
    """Of 8 x 8 channels on 64 x 64 positions, as unknown ones count, a single tap is just few."""
    model = imported(f"""
    g (int64 m, float[b, 8, h, w] x, float[8, 8, {taps}, {taps}] k) => (float[b, 8, h, w] y) {{
        y = Loop (m, , x) <body = step (int64 i, bool c, float[b, 8, h, w] s)
            => (bool c2, float[b, 8, h, w] s2) {{
            large = ConvTranspose <strides = [4, 4]> (s, k)
            sum = ReduceMax <keepdims = 1, axes = [2, 3]> (large)
            s2 = Add (s, sum)
            c2 = Identity (c)
        }}>
    }}""")
    assert has_large_convolution(model.functions()["y_body"]) == is_large
