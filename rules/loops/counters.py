"""Counters of loops, and how often a loop runs that counts up or down to a limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import helper

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.rule import Match
from ...rewrite.facts.fact import INT64
from ...rewrite.graph.ir import Constant, Tensor
from ...rewrite.graph.views import NO_LIMIT, CarriedValue

FAR = 1 << 61
"""Differences of numbers up to this size are int64; no loop runs so often."""


@dataclass(frozen=True)
class Counter:
    """After iteration i the loop goes on while `start + step * (i + 1)` is below the limit, or
    `start - step * (i + 1)` above it where it counts down.
    """

    start: Tensor | int
    """A scalar integer from outside, or a number."""
    step: int
    """Positive."""
    limit: Tensor
    inclusive: bool
    dtype: int
    """The type it counts in."""
    cast: bool
    """Whether start or limit are of another type than int64."""
    notes: tuple[str, ...]
    huge: bool
    """Whether the limit may be larger than FAR."""
    overflows: bool
    """Whether it may pass the end of its type, after which comes the other one. Where it counts
    down, only if the loop runs without asking first: from below the limit."""
    down: bool


def step_of(m: Match, state: CarriedValue) -> int | None:
    """The constant other than 0 that is added to an integer state in each iteration; below 0 where
    it is subtracted.
    """
    node = m.producer(state.output, "Add", "Sub")
    if node is None or state.input not in node.inputs:
        return None
    first = node.inputs[0] is state.input
    other = node.inputs[1 if first else 0]
    value = m.facts.scalar(other) if m.facts.shape(other) == () else None
    if not isinstance(value, int) or isinstance(value, bool) or value == 0:
        return None
    if node.op == "Add":
        return value
    return -value if first else None


def trip_count(emit: Builder, counter: Counter, asked: bool) -> Tensor:
    """The number of iterations, an int64 scalar.

    `asked` says that the first condition asks of `start` what later ones ask of the counter; else
    the loop runs at least once.
    """
    limit = _as_int64(emit, counter.limit, counter.cast)
    if counter.overflows and not counter.down:
        return _with_overflow(emit, counter, limit, asked)
    return _without_overflow(emit, counter, limit, asked)


def _as_int64(emit: Builder, value: Tensor, cast: bool) -> Tensor:
    """A scalar as int64; `cast` says that it may be of another type."""
    if isinstance(value, Constant):
        return emit.scalar(int(np.asarray(value.values).reshape(())))
    return emit("Cast", value, to=INT64) if cast else value


def _without_overflow(emit: Builder, counter: Counter, limit: Tensor, asked: bool) -> Tensor:
    """Values start, start + step, … are below the limit ceil((limit - start) / step) times; counted
    down, the difference is the other one.
    """
    if counter.huge:
        limit = _near(emit, limit)
    extra = counter.step - (0 if counter.inclusive else 1)
    if isinstance(counter.start, int):
        extra += counter.start if counter.down else -counter.start
        span = emit("Neg", limit) if counter.down else limit
    else:
        start = _as_int64(emit, counter.start, counter.cast)
        ends = [_near(emit, start) if counter.overflows else start, limit]
        span = emit("Sub", *(ends if counter.down else ends[::-1]))
    if extra:
        span = emit("Add", span, emit.scalar(extra))
    span = emit.max(span, emit.scalar(0 if asked else counter.step))
    return span if counter.step == 1 else emit("Div", span, emit.scalar(counter.step))


def _near(emit: Builder, value: Tensor) -> Tensor:
    return emit.max(emit.min(value, emit.scalar(FAR)), emit.scalar(-FAR))


def _with_overflow(emit: Builder, counter: Counter, limit: Tensor, asked: bool) -> Tensor:
    """Values first, first + step, … are within the limit (limit - first) / step + 1 times.

    Where the value after these is not past the limit, the counter has overflown on the way, or the
    difference has: such a loop runs for ever, or so long that it does not matter how long.
    """
    first = _first(emit, counter, asked)
    span = emit("Sub", limit, first)
    if not counter.inclusive:
        span = emit("Sub", span, emit.scalar(1))
    if counter.step > 1:
        span = emit("Div", span, emit.scalar(counter.step))
    count = emit.max(emit("Add", span, emit.scalar(1)), emit.scalar(0))
    after = emit("Add", first, emit("Mul", count, emit.scalar(counter.step)))
    endless = _within(emit, counter, after, limit)
    if counter.dtype != INT64:
        largest = np.iinfo(helper.tensor_dtype_to_np_dtype(counter.dtype)).max
        endless = emit("Greater", after, emit.scalar(int(largest)))
    count = emit("Where", endless, emit.scalar(NO_LIMIT), count)
    count = emit("Where", _within(emit, counter, first, limit), count, emit.scalar(0))
    return count if asked else emit("Add", count, emit.scalar(1))


def _first(emit: Builder, counter: Counter, asked: bool) -> Tensor:
    """The first value that is compared, which may have overflown."""
    if isinstance(counter.start, int):
        return emit.scalar(counter.start if asked else counter.start + counter.step)
    if asked:
        return _as_int64(emit, counter.start, counter.cast)
    step = np.array(counter.step, helper.tensor_dtype_to_np_dtype(counter.dtype))
    first = emit("Add", counter.start, emit.constant(step))
    return _as_int64(emit, first, counter.dtype != INT64)


def _within(emit: Builder, counter: Counter, value: Tensor, limit: Tensor) -> Tensor:
    if counter.inclusive:
        return emit("Not", emit("Greater", value, limit))
    return emit("Less", value, limit)
