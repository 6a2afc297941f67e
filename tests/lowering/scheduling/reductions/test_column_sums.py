"""Sums over rows: which kernels the rule takes, and what they compute."""

from __future__ import annotations

import pytest
import tvm

from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.reductions.column_sums import ColumnSums

from ...comparison import check, taken_by

SIZES = [{"b": b, "n": n} for b in (0, 1, 3) for n in (1, 7, 8, 9, 50)]
KERNEL = """@T.prim_func(private=True, s_tir=True)
def kernel(x: T.Buffer((4, 6, 7, 80), "{dtype}"), y: T.Buffer((4, {columns}), "{dtype}")) -> None:
    for n, c, i, j in T.grid(4, {columns}, 6, {width}):
        with T.sblock("sum"):
            vn, vc, vi, vj = T.axis.remap("SSRR", [n, c, i, j])
            with T.init():
                y[vn, vc] = T.{dtype}({start})
            y[vn, vc] = y[vn, vc] + x[vn, vi, vj, {column}]"""
TAKEN = {"dtype": "float32", "columns": 80, "width": 7, "start": 0, "column": "vc"}


@pytest.mark.parametrize("columns", [32, 37, 256, 300])
def test_means_of_any_number_of_rows(columns: int) -> None:
    text = f"""model (float[b, n, {columns}] x) => (y) {{
        m = ReduceMean <axes = [1], keepdims = 0> (x) y = Relu (m) }}"""
    assert len(taken_by(ColumnSums(), text, {})) == 1
    check(text, {}, SIZES)


def test_means_of_images_with_channels_last() -> None:
    text = """model (float[b, n, w, 40] x) => (y) {
        y = ReduceMean <axes = [1, 2], keepdims = 0> (x) }"""
    assert len(taken_by(ColumnSums(), text, {})) == 1
    check(text, {}, [{**given, "w": w} for given in SIZES for w in (1, 6)])


@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        ({}, True),
        ({"dtype": "float64"}, False),
        ({"start": 1}, False),
        ({"columns": 2}, False),
        ({"columns": 40, "column": "vc * 2"}, False),
        # There is a gap between the rows of two images.
        ({"width": 5}, False),
    ],
    ids=str,
)
def test_what_the_rule_takes(change: dict[str, object], is_taken: bool) -> None:
    kernel = tvm.script.from_source(KERNEL.format(**{**TAKEN, **change}))
    with as_target("native") as target:
        assert (ColumnSums().apply(kernel, target, False) is not None) == is_taken
