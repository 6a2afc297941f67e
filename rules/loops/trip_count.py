"""While loops that count: the condition becomes a trip count.

    c0 = k0 < n
    k, y = Loop(big, c0, k0, x) { k' = k + s; return k' < n, k', … }
 -> m = Max(Ceil((n - k0) / s), 0)
    k, y = Loop(m, , k0, x) { k' = k + s; return true, k', … }

The compared value is a counter state, or any number that the facts show to be `s * i + c` in the
iteration number i. It may count down to a limit below. Several comparisons may be joined by And.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE, INT64, INTEGERS
from ...rewrite.graph.ir import Constant, Node, Tensor
from ...rewrite.graph.views import NO_LIMIT, LoopView
from .counters import FAR, Counter, step_of, trip_count

_ENDLESS = 1 << 24
"""Iterations that no loop over a counter of a narrow type is taken to run."""
_EXACT_IN_FLOAT = 1 << 24
"""Integers up to this size are exact in single precision."""


@dataclass(frozen=True)
class Comparison:
    """`low < high`, or `low <= high` with `inclusive`."""

    low: Tensor
    high: Tensor
    inclusive: bool
    in_float: bool
    """Whether the integers are compared after a cast to a float type."""

    def sides(self, down: bool) -> tuple[Tensor, Tensor]:
        """The value that counts, and its limit."""
        return (self.high, self.low) if down else (self.low, self.high)


class InferTripCount(Rule):
    """A loop that ends when a counter, up or down, reaches a limit gets a trip count."""

    root = "Loop"
    fires = """g (float[3] x, int64 n) => (float[3] y, int64 k) <int64 z = {0}> {
      c = Less(z, n)
      k, y = Loop (, c, z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        one = Constant<value_int=1>() tn = Add(t, one) co = Less(tn, n) so = Add(s, s) }> }"""
    spares = {
        "not a comparison": """g (float[3] x, float lim) => (float[3] y) {
      y = Loop (, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        so = Add(s, s) q = ReduceMax<keepdims=0>(so) co = IsNaN(q) }> }""",
        "counter": """g (float[3] x, int64 n) => (float[3] y, int64 k) <int64 z = {1}> {
      c = Less(z, n)
      k, y = Loop (, c, z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        tn = Add(t, t) co = Less(tn, n) so = Add(s, s) }> }""",
        "may change": """g (float[3] x) => (float[3] y) {
      y = Loop (, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        so = Add(s, s) q = ReduceMax<keepdims=0>(so) n = Cast<to=7>(q) co = Less(i, n) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        out = view.condition_out
        m.need(
            not isinstance(m.facts.scalar(out), bool),
            "the condition is the same in every iteration",
        )
        counters = [_counter(m, view, c) for c in _conjuncts(m, out)]
        asked = _first_asks_the_same(m, view, counters)
        past = any(c.down and c.overflows for c in counters) and not asked
        m.need(not past, "a counter may start below its limit and pass the end of its type")
        most = view.trips(m.facts)
        bounded = view.trip is not None and not (isinstance(most, int) and most >= NO_LIMIT)
        return {
            "node": m.node,
            "counters": counters,
            "bounded": bounded,
            "asked": asked,
        }

    def apply(
        self, patch: Patch, node: Node, counters: list[Counter], bounded: bool, asked: bool
    ) -> None:
        view = LoopView(node)
        emit = patch.builder(view.iteration)
        counts = [trip_count(emit, c, asked) for c in counters]
        count = reduce(emit.min, counts)
        if view.condition is not None and not asked:
            count = emit("Where", view.condition, count, emit.scalar(0))
        if bounded and view.trip is not None:
            count = emit.min(count, view.trip)
        patch.loop(node).count(count)
        patch.toward_normal_form()
        for note in dict.fromkeys(note for c in counters for note in c.notes):
            patch.note(note)


def _conjuncts(m: Match, condition: Tensor) -> Iterator[Comparison]:
    """The comparisons whose And the condition is."""
    both = m.producer(condition, "And")
    if both is not None:
        for part in both.inputs:
            yield from _conjuncts(m, part)
        return
    if m.facts.scalar(condition) is not True:
        found = _comparison(m, condition)
        yield m.need(found, "the condition `{}` is not a comparison", condition.name, at=condition)


def _comparison(m: Match, condition: Tensor) -> Comparison | None:
    negation = m.producer(condition, "Not")
    node = m.producer(
        negation.inputs[0] if negation is not None else condition,
        "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
    )  # fmt: skip
    if node is None:
        return None
    swap = node.op.startswith("Greater") != (negation is not None)
    low, high = node.inputs[::-1] if swap else node.inputs
    inclusive = node.op.endswith("Equal") != (negation is not None)
    casts = [m.producer(t, "Cast") for t in (low, high)]
    in_float = m.facts.dtype(low) in FLOAT_OR_DOUBLE
    if in_float:
        ints = [c is not None and m.facts.dtype(c.inputs[0]) in INTEGERS for c in casts]
        low, high = (
            c.inputs[0] if c is not None and whole else t
            for c, whole, t in zip(casts, ints, (low, high))
        )
    return Comparison(low, high, inclusive, in_float)


def _counter(m: Match, view: LoopView, c: Comparison) -> Counter:
    """What is compared, as a number that goes to the limit by a fixed step; declines otherwise."""
    down = _stays(m, view, c.low) and not _stays(m, view, c.high)
    value, limit = c.sides(down)
    dtype = m.facts.dtype(value)
    m.need(dtype in INTEGERS, "`{}` is no integer counter", value.name, at=value)
    same = dtype == m.facts.dtype(limit) or (c.in_float and _is_whole(m, limit))
    m.need(same, "`{}` is not known to be an integer", limit.name, at=limit)
    for side in (value, limit):
        m.need(m.facts.shape(side) == (), "`{}` is no scalar", side.name, at=side)
    stays = _stays(m, view, limit)
    m.need(stays, "the limit `{}` may change from iteration to iteration", limit.name, at=limit)
    notes: tuple[str, ...] = ()
    cast = dtype != INT64 or m.facts.dtype(limit) != INT64
    if c.in_float:
        number = _whole_constant(m, limit)
        if number is None or abs(number) > _EXACT_IN_FLOAT:
            m.need(
                not m.options.strict, "--strict: `{}` is compared as a float", limit.name, at=limit
            )
            notes = (f"`{limit.name}` is compared as a float: exact up to 2**24 iterations",)
    start, step = _progress(m, view, value)
    m.need((step < 0) == down, "`{}` moves away from the limit", value.name, at=value)
    near = _is_near(m, start) if isinstance(start, Tensor) else abs(start) < FAR
    wide = _never_overflows(dtype, step)
    safe = near and wide
    huge = not _is_near(m, limit)
    if TensorProto.UINT64 in (dtype, m.facts.dtype(limit)):
        m.need(safe and not huge, "`{}` may be more than int64 holds", limit.name, at=limit)
    if down:
        m.need(wide, "`{}` may count past the end of its type", value.name, at=value)
        _need_an_end(m, dtype, start, -step, limit)
    return Counter(start, abs(step), limit, c.inclusive, dtype, cast, notes, huge, not safe, down)


def _need_an_end(m: Match, dtype: int, start: Tensor | int, step: int, limit: Tensor) -> None:
    """Declines where a counter that goes down to a limit may pass the lowest number of its type
    there, or where both are so far from 0 that their difference is not known to be int64's.
    """
    if dtype == INT64:
        near = abs(start) < FAR if isinstance(start, int) else _is_near(m, start)
        m.need(near or _is_near(m, limit), "`{}` may be as huge as its start", limit.name, at=limit)
        return
    number = m.facts.scalar(limit)
    low = _whole_constant(m, limit) if number is None else symbolic.bounds(number)[0]
    lowest = np.iinfo(helper.tensor_dtype_to_np_dtype(dtype)).min
    m.need(
        low is not None and low >= lowest + step,
        "`{}` may be next to the lowest number of its type",
        limit.name,
        at=limit,
    )


def _stays(m: Match, view: LoopView, value: Tensor) -> bool:
    """Whether a value is the same in every iteration."""
    return isinstance(value, Constant) or m.index.is_outside(value, view.body)


def _progress(m: Match, view: LoopView, value: Tensor) -> tuple[Tensor | int, int]:
    """(start, step) of the number start + step * (i + 1); declines for another value."""
    for state in view.carried:
        step = step_of(m, state)
        if step is not None and value is state.output:
            return state.initial, step
    step, first = m.need(
        _affine(m, view, value),
        "`{}` is no counter: no state that changes by a fixed step",
        value.name,
        at=value,
    )
    return first - step, step


def _never_overflows(dtype: int, step: int) -> bool:
    """Whether a counter that does not start near the end of its type counts too long to get there.

    Unsigned ones that count down are at their end at 0.
    """
    limits = np.iinfo(helper.tensor_dtype_to_np_dtype(dtype))
    reach = -int(limits.min) if step < 0 else int(limits.max)
    return reach // abs(step) > _ENDLESS


def _is_near(m: Match, value: Tensor) -> bool:
    """Whether a scalar is a size, or a number that is not huge."""
    number = m.facts.scalar(value)
    if number is None:
        whole = _whole_constant(m, value)
        return whole is not None and abs(whole) < FAR
    low, high = symbolic.bounds(number)
    return low is not None and low > -FAR and (high is None or high < FAR)


def _whole_constant(m: Match, value: Tensor) -> int | None:
    """The integer that a constant scalar of any type holds, unless it is huge."""
    array = m.facts.constant(value) if m.facts.is_constant(value) else None
    if array is None or array.size != 1 or not np.isfinite(array).all():
        return None
    if float(array.reshape(-1)[0]) % 1:
        return None
    whole = int(array.reshape(-1)[0])
    return whole if abs(whole) < FAR else None


def _is_whole(m: Match, value: Tensor) -> bool:
    """Whether a float scalar surely holds an integer."""
    return m.facts.scalar(value) is not None or _whole_constant(m, value) is not None


def _affine(m: Match, view: LoopView, value: Tensor) -> tuple[int, int] | None:
    """(step, value in iteration 0) of a number step * i + c."""
    number = m.facts.scalar(value)
    iteration = m.facts.scalar(view.iteration)
    if number is None or not isinstance(iteration, symbolic.Expr):
        return None
    symbol = symbolic.single_symbol(iteration)
    if symbol is None or symbol not in symbolic.symbols(number):
        return None
    first = symbolic.substitute(number, {symbol: 0})
    step = symbolic.sub(symbolic.substitute(number, {symbol: 1}), first)
    if not isinstance(first, int) or not isinstance(step, int) or step == 0:
        return None
    linear = symbolic.add(symbolic.mul(step, iteration), first)
    return (step, first) if linear == number else None


def _first_asks_the_same(m: Match, view: LoopView, counters: list[Counter]) -> bool:
    """Whether the first condition asks of `start` what later ones ask of the counter."""
    if view.condition is None:
        return False
    try:
        asked = list(_conjuncts(m, view.condition))
    except Miss:
        return False
    if len(asked) > len(counters):
        return False
    return all(any(_asks(m, c, counter) for c in asked) for counter in counters)


def _asks(m: Match, c: Comparison, counter: Counter) -> bool:
    value, limit = c.sides(counter.down)
    if c.inclusive != counter.inclusive or not _same(m, limit, counter.limit):
        return False
    if isinstance(counter.start, int):
        return m.facts.scalar(value) == counter.start
    return _same(m, value, counter.start)


def _same(m: Match, a: Tensor, b: Tensor) -> bool:
    if a is b:
        return True
    left, right = m.facts.scalar(a), m.facts.scalar(b)
    return left is not None and right is not None and symbolic.eq(left, right) is True
