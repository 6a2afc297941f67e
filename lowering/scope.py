"""One Relax function under construction.

Fusion works inside dataflow blocks, and control flow may not stand in one. So a function is a row
of segments, each a dataflow block of plain operations, with control flow between them. A value
made in a segment is visible after it only if it was declared an output of the block; `Scope` does
that for the values which are still needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import relax

from ..rewrite.facts.facts import Facts
from ..rewrite.graph.ir import Tensor
from .bodies import Body
from .derived_sizes import DerivedSizes
from .known_sizes import KnownSizes
from .operators.broadcasting import BroadcastPairs
from .tvm_onnx import EmptyOptional
from .values import Constant, ListValue, Sizes, Value, as_tensor, flatten, is_prim


@dataclass(eq=False)
class Frame:
    """One graph being emitted into a function, and the values it can see."""

    body: Body
    values: dict[Tensor, Value] = field(default_factory=dict)
    position: int = 0
    """The step being emitted."""

    def needs(self, tensor: Tensor) -> bool:
        """Whether the current step or a later one reads a value."""
        return self.body.last_use.get(tensor, -1) >= self.position


class Scope:
    """The segments of one Relax function, and the values that live across them."""

    def __init__(self, bb: Any, facts: Facts | None = None) -> None:
        self.bb = bb
        self.sizes = KnownSizes(facts)
        self.derived = DerivedSizes()
        self.broadcasts = BroadcastPairs()
        self._frames: list[Frame] = []
        self._local: list[tuple[Frame, Tensor]] = []
        """Tensors bound since the segment began to values that end with it."""
        self._segment: Any = None
        self._open()

    @contextmanager
    def frame(self, body: Body, values: dict[Tensor, Value]) -> Iterator[Frame]:
        """Emit a graph into this function; `values` are those that it sees from outside."""
        frame = Frame(body)
        self._frames.append(frame)
        for tensor, value in values.items():
            self.bind(frame, tensor, value)
        try:
            yield frame
        finally:
            self._frames.remove(frame)

    def bind(self, frame: Frame, tensor: Tensor, value: Value) -> None:
        """Make a value that of a tensor of a graph."""
        frame.values[tensor] = value
        self.sizes.learn(tensor, value)
        self.derived.learn(value)
        leaves = [value] if isinstance(value, relax.Var) else flatten([value])
        if any(map(_ends_with_segment, leaves)):
            self._local.append((frame, tensor))

    @contextmanager
    def between_segments(self, values: Sequence[Value]) -> Iterator[list[Value]]:
        """Close the segment, run the block outside of any, and open a new segment.

        Yields `values` in the form in which they are visible outside.
        """
        settled = self._close(values)
        yield settled
        self._open()

    def bound(self, values: Sequence[Value]) -> list[Value]:
        """The values with each call bound to a variable of the current segment."""
        leaves = [leaf for leaf in flatten(values) if not _is_bound(leaf)]
        # As the fields of one tuple, calls that the block has computed already are not repeated.
        fields = self.bb.normalize(relax.Tuple(leaves)).fields
        return _replaced(values, dict(zip(leaves, fields, strict=True)))

    def close(self, values: Sequence[Value]) -> list[Value]:
        """End the last segment: what follows in the function stands outside of any.

        Gives `values` in the form in which they are visible outside.
        """
        return self._close(values)

    def results(self, values: Sequence[Value]) -> list[Value]:
        """The values in the form in which a function returns them: sizes become tensors."""
        return [self.bb.normalize(self._result(value)) for value in values]

    def finish(self, results: Sequence[Value]) -> Any:
        """End the function, which returns what `results` gave. Gives its GlobalVar."""
        result = self.bb.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        self._segment.__exit__(None, None, None)
        return self.bb.emit_func_output(result)

    def _result(self, value: Value) -> Value:
        if isinstance(value, EmptyOptional):
            return relax.op.null_value()
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._result(item) for item in value.fields])
        if isinstance(value, ListValue):
            return value.variable
        return as_tensor(self.bb, value)

    def _open(self) -> None:
        self._segment = self.bb.dataflow()
        self._segment.__enter__()

    def _close(self, values: Sequence[Value]) -> list[Value]:
        needed = [(frame, tensor) for frame, tensor in self._local if self._needs(frame, tensor)]
        waiting = [frame.values[tensor] for frame, tensor in needed]
        settled = self._settle([*waiting, *values])
        for (frame, tensor), value in zip(needed, settled, strict=False):
            frame.values[tensor] = value
        self._local.clear()
        self._segment.__exit__(None, None, None)
        return settled[len(needed) :]

    def _needs(self, frame: Frame, tensor: Tensor) -> bool:
        return frame in self._frames and frame.needs(tensor)

    def _settle(self, values: Sequence[Value]) -> list[Value]:
        """The values as outputs of the dataflow block, one output for each distinct value."""
        leaves = [leaf for leaf in flatten(values) if _ends_with_segment(leaf)]
        # As the fields of one tuple, calls that the block has computed already are not repeated.
        bound = self.bb.normalize(relax.Tuple(leaves)).fields
        outputs: dict[Any, Any] = {}
        settled: dict[Any, Any] = {}
        for leaf, variable in zip(leaves, bound, strict=True):
            if variable not in outputs:
                outputs[variable] = self.bb.emit_output(variable)
            settled[leaf] = outputs[variable]

        return _replaced(values, settled)


def _replaced(values: Sequence[Value], found: dict[Any, Any]) -> list[Value]:
    """The values with some leaves replaced, by identity."""

    def replaced(value: Value) -> Value:
        if isinstance(value, relax.Tuple):
            return relax.Tuple([replaced(field) for field in value.fields])
        if isinstance(value, ListValue):
            return replace(value, variable=replaced(value.variable))
        return value if _is_no_expression(value) else found.get(value, value)

    return [replaced(value) for value in values]


def _ends_with_segment(value: Value) -> bool:
    """Whether a value is not visible, or not even computed, outside of the current segment."""
    return isinstance(value, relax.DataflowVar) or not _is_bound(value)


def _is_bound(value: Value) -> bool:
    """Whether a leaf is a variable, or needs none."""
    return isinstance(value, relax.Var | Constant) or _is_no_expression(value)


def _is_no_expression(value: Value) -> bool:
    return isinstance(value, relax.ShapeExpr | EmptyOptional | Sizes) or is_prim(value)
