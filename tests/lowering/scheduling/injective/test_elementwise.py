"""Elementwise kernels read masks, and scales that are sliced from one vector, in vectors."""

from __future__ import annotations

from typing import Any

import pytest

from looplift.lowering.scheduling.injective.elementwise import Elementwise
from looplift.lowering.scheduling.reductions.reduction import RowReduction

from ...comparison import TARGETS, check, taken_by, vector_statements

MASKED = {
    "line": ("float[b, 3, n] x, bool[b, 3, n] c, float[b, 3, n] z", "y = Where (c, x, z)"),
    "broadcast": ("float[b, 3, n] x, bool[n] c, float[b, 1, n] z", "y = Where (c, x, z)"),
    "by line": ("float[b, 3, n] x, bool[b, 3, 1] c", "y = Where (c, x, low)"),
    "compared": ("float[b, 3, n] x, float[n] z", "c = Less (x, z) y = Where (c, x, z)"),
    "converted": ("float[b, 3, n] x, bool[n] c", "f = Cast <to = 1> (c) y = Mul (x, f)"),
    "softmax": ("float[b, 3, n] x, bool[b, 1, n] c", "m = Where (c, x, low) y = Softmax (m)"),
}


@pytest.mark.parametrize("target", TARGETS[1:], ids=lambda target: target["mcpu"])
def test_masks_on_other_processors(target: Any) -> None:
    inputs, nodes = MASKED["softmax"]
    text = f"model ({inputs}) => (y) {{ low = Constant <value_float = -1e4> () {nodes} }}"
    check(text, {}, [{"b": 2, "n": n} for n in (1, 7, 16, 33)], target)


@pytest.mark.parametrize("name", MASKED)
def test_masks_are_read_in_vectors(name: str) -> None:
    inputs, nodes = MASKED[name]
    text = f"model ({inputs}) => (y) {{ low = Constant <value_float = -1e4> () {nodes} }}"
    check(text, {}, [{"b": b, "n": n} for b in (1, 2) for n in (1, 7, 16, 33, 130)])
    rules = (Elementwise(), RowReduction())
    schedules = [s for rule in rules for s in taken_by(rule, text, {})]
    statements = [each for schedule in schedules for each in vector_statements(schedule)]
    assert any("T.Select(" in each or 'T.Cast("float32"' in each for each in statements)


def test_scale_and_shift_from_one_vector_are_computed_in_vectors() -> None:
    """A new axis of size 1 leaves a remainder in the indices, which the extents make redundant."""
    text = """model (float[2, 24] s, float[2, 12, n] x) => (float[2, 12, n] y) {
        three = Constant <value_ints = [2, 24, 1]> () r = Reshape (s, three)
        zero = Constant <value_ints = [0]> () half = Constant <value_ints = [12]> ()
        end = Constant <value_ints = [24]> () axis = Constant <value_ints = [1]> ()
        g = Slice (r, zero, half, axis) b = Slice (r, half, end, axis)
        p = Mul (g, x) q = Add (p, b) u = Sin (q) y = Mul (u, q) }"""
    check(text, {}, [{"n": n} for n in (0, 1, 5, 70)])
    (schedule,) = taken_by(Elementwise(), text, {})
    scale_and_shift = 2
    statements = vector_statements(schedule)
    assert any(statement.count("buffer_1[") == scale_and_shift for statement in statements)
