"""Interval arithmetic: bounds of a result from bounds of the operands."""

from __future__ import annotations

from collections.abc import Callable

Bounds = tuple[int | None, int | None]
"""Smallest and largest possible value; None where unbounded."""


def add(a: Bounds, b: Bounds) -> Bounds:
    low = None if a[0] is None or b[0] is None else a[0] + b[0]
    high = None if a[1] is None or b[1] is None else a[1] + b[1]
    return low, high


def scale(a: Bounds, factor: int) -> Bounds:
    low = None if a[0] is None else a[0] * factor
    high = None if a[1] is None else a[1] * factor
    return (low, high) if factor >= 0 else (high, low)


def multiply(a: Bounds, b: Bounds) -> Bounds:
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        high = None if a[1] is None or b[1] is None else a[1] * b[1]
        return a[0] * b[0], high
    if None in a or None in b:
        return None, None
    corners = [x * y for x in a for y in b]  # type: ignore[operator]
    return min(corners), max(corners)


def _floordiv(a: Bounds, b: Bounds) -> Bounds:
    if b[0] is None or b[0] <= 0:
        return None, None
    if b[0] == b[1]:
        return tuple(None if x is None else x // b[0] for x in a)  # type: ignore[return-value]
    if a[0] is not None and a[0] >= 0:
        return 0, None if a[1] is None else a[1] // b[0]
    return None, None


def _mod(a: Bounds, b: Bounds) -> Bounds:
    if b[0] is None or b[0] <= 0:
        return None, None
    return 0, None if b[1] is None else b[1] - 1


def _if_both_known(choose: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else choose(a, b)


def _of_known(choose: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return choose(a, b)


TERMS: dict[str, Callable[[Bounds, Bounds], Bounds]] = {
    "floordiv": _floordiv,
    "mod": _mod,
    "min": lambda a, b: (_if_both_known(min, a[0], b[0]), _of_known(min, a[1], b[1])),
    "max": lambda a, b: (_of_known(max, a[0], b[0]), _if_both_known(max, a[1], b[1])),
}
