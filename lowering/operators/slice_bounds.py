"""Where a slice begins and ends, given the size of the dimension.

Bounds are numbers, formulas of sizes, or symbols for what the run tells. Negative ones count from
the end; those outside are moved to the nearest place inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx

from ..values import as_int
from .sizes import is_nonnegative

END = 2**31 - 1
"""Exporters write this or a larger number for "to the end"."""

_LARGEST = (2**31 - 1, 2**63 - 1)
"""As the end of a cut backwards, onnxruntime takes these two for "up to the first element"."""

_ZERO = tirx.IntImm("int64", 0)


@dataclass(frozen=True)
class Cut:
    """A slice along one axis, as the model gives it."""

    axis: int
    start: Any
    end: Any
    step: int
    is_read: bool
    """Whether the run tells the bounds. Otherwise symbols in them are sizes, so not negative."""

    @property
    def is_constant(self) -> bool:
        """Whether both bounds are numbers."""
        return None not in (as_int(self.start), as_int(self.end))

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole dimension, forwards or backwards."""
        start, end = as_int(self.start), as_int(self.end)
        if start is None or end is None:
            return False
        if self.step == -1:
            return _is_last(start) and _is_first(end)
        return start == 0 and end >= END and self.step == 1

    def picks(self, items: Sequence[Any]) -> Sequence[Any]:
        """What a constant cut picks of a vector; ONNX's bounds of a known length are Python's."""
        start, end = as_int(self.start), as_int(self.end)
        return items[start : None if self.step < 0 and _is_first(end) else end : self.step]

    def bounds(self, size: Any) -> tuple[Any, Any]:
        """The bounds inside of the dimension, in the dimension turned around if it is backwards.

        The end is not before the start.
        """
        analyzer = sym.Analyzer()
        place = self._place if self.step > 0 else self._turned
        start, end = (
            analyzer.simplify(place(bound, size, is_end=is_end))
            for is_end, bound in enumerate((self.start, self.end))
        )
        if as_int(start) == 0 or self._is_ordered(start, end, size):
            return start, end
        return start, analyzer.simplify(tirx.max(start, end))

    def _is_ordered(self, start: Any, end: Any, size: Any) -> bool:
        """Whether the end is known not to be before the start."""
        if end is size:
            return True
        first, last = as_int(self.start), as_int(self.end)
        if first is not None and last is not None and self.step > 0:
            return last >= END or first <= last < 0 or 0 <= first <= last
        return not self.is_read and is_nonnegative(sym.Analyzer().simplify(end - start))

    def _place(self, bound: Any, size: Any, *, is_end: int) -> Any:
        number = as_int(bound)
        if number is None:
            return self._formula_place(bound, size)
        if number >= END:
            return size
        return tirx.max(size + bound, _ZERO) if number < 0 else tirx.min(bound, size)

    def _formula_place(self, bound: Any, size: Any) -> Any:
        if self.is_read or not is_nonnegative(bound):
            bound = tirx.max(tirx.Select(bound < 0, bound + size, bound), _ZERO)
        elif is_nonnegative(sym.Analyzer().simplify(size - bound)):
            return bound
        return tirx.min(bound, size)

    def _turned(self, bound: Any, size: Any, *, is_end: int) -> Any:
        """Backwards, a start moves to an existing element, an end also to before the first."""
        number = as_int(bound)
        if not is_end and _is_last(number):
            return _ZERO
        if is_end and _is_first(number):
            return size
        if number is None:
            behind = tirx.Select(bound < 0, -1 - bound, size - 1 - bound)
        else:
            behind = -1 - bound if number < 0 else size - 1 - bound
        inside = tirx.max(tirx.min(behind, size if is_end else size - 1), _ZERO)
        if not (is_end and self.is_read):
            return inside
        is_first = tirx.any(*(bound == largest for largest in _LARGEST))
        return tirx.Select(is_first, size, inside)


def _is_last(start: int | None) -> bool:
    """Whether a cut backwards starts with the last element."""
    return start is not None and (start == -1 or start >= END)


def _is_first(end: int | None) -> bool:
    """Whether a cut backwards ends with the first element."""
    return end is not None and (end <= -END or end in _LARGEST)
