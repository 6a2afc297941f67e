"""Decoded operands of Slice."""

from __future__ import annotations

from itertools import product

import pytest

from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.facts.reads import axis_slices
from looplift.rewrite.facts.slices import END, AxisSlice
from looplift.rewrite.storage.model import import_model

from ...small_models import parse
from ..fact_oracle import value

NUMBERS = """<int64[1] a = {1}, int64[1] b = {3}, int64[1] last = {-1}, int64[1] back = {-1},
    int64[2] p = {0, -2}, int64[2] q = {9223372036854775807, 2}, int64[2] pq = {-1, 0}>"""

CUTS = {
    "bounds alone": ("Slice(x, a, b)", [AxisSlice(0, 0, 1, 3, 1)]),
    "axes": ("Slice(x, a, b, last)", [AxisSlice(0, 2, 1, 3, 1)]),
    "steps without axes": ("Slice(x, b, a, , back)", [AxisSlice(0, 0, 3, 1, -1)]),
    "two axes": (
        "Slice(x, p, q, pq)",
        [AxisSlice(0, 2, 0, 2**63 - 1, 1), AxisSlice(1, 0, -2, 2, 1)],
    ),
    "an unknown start": ("Slice(x, k, b, last)", [AxisSlice(0, 2, None, 3, 1)]),
    "unknown bounds": ("Slice(x, k, l, last)", None),
    "unknown axes": ("Slice(x, a, b, k)", None),
    "unknown steps": ("Slice(x, a, b, a, k)", None),
    "lengths that do not agree": ("Slice(x, p, b)", None),
}


@pytest.mark.parametrize("case", CUTS)
def test_decoded_operands(case: str) -> None:
    call, expected = CUTS[case]
    text = f"g (float[4,5,6] x, int64[M] k, int64[N] l) => (y) {NUMBERS} {{ y = {call} }}"
    assert _cuts(text, 21) == expected


def test_operands_that_are_attributes() -> None:
    text = """g (float[4,5,6] x) => (y) { y = Slice<axes=[-1,0], starts=[1,0], ends=[3,9]>(x) }"""
    assert _cuts(text, 9) == [AxisSlice(0, 2, 1, 3, 1), AxisSlice(1, 0, 0, 9, 1)]


def _cuts(text: str, opset: int) -> list[AxisSlice] | None:
    facts = Engine(import_model(parse(text, opset, 8)), ()).facts
    node = facts.index.producer(value(facts, "y"))
    assert node is not None
    return axis_slices(facts, node)


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_predicates_hold_for_python_slices(length: int) -> None:
    values = list(range(length))
    starts, ends, steps = range(-6, 7), [*range(-7, 8), END, -END - 1], [1, -1, 2]
    for start, end, step in product(starts, ends, steps):
        cut, taken = AxisSlice(0, 0, start, end, step), values[start:end:step]
        assert not cut.is_whole(length) or taken == values
        assert not cut.is_reversal(length) or taken == values[::-1]


def test_whole_axes_and_reversals() -> None:
    assert AxisSlice(0, 0, 0, 5, 1).is_whole(5)
    assert AxisSlice(0, 0, 0, END, 1).is_whole(5)
    assert not AxisSlice(0, 0, 0, 4, 1).is_whole(5)
    assert not AxisSlice(0, 0, 0, None, 1).is_whole(5)
    assert AxisSlice(0, 0, -1, -6, -1).is_reversal(5)
    assert AxisSlice(0, 0, 4, -END - 1, -1).is_reversal(5)
    assert not AxisSlice(0, 0, -1, 0, -1).is_reversal(5)
    assert not AxisSlice(0, 0, -1, END, -1).is_reversal(5)
