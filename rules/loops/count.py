"""While loops that count: the condition becomes a trip count.

    c0 = k0 < n
    k, y = Loop(big, c0, k0, x) { k' = k + s; return k' < n, k', … }
 -> m = Max(Ceil((n - k0) / s), 0)
    k, y = Loop(m, , k0, x) { k' = k + s; return true, k', … }

The compared value is a counter state, or any number that the facts show to be `s * i + c` in the
iteration number i. Several comparisons may be joined by And.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from ...rewrite import symbolic
from ...rewrite.facts import FLOATS, INT64, INTEGERS
from ...rewrite.ir import Constant, Node, Tensor, Variable
from ...rewrite.patch import Patch
from ...rewrite.rule import Match, Miss, Rule
from ...rewrite.views import NO_LIMIT, LoopView
from ..emit import Emit
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


class CountIterations(Rule):
    """A loop that ends when a counter reaches a limit gets a trip count."""

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
        m.need(m.facts.opset >= 12, "Max and Min take no integers before opset 12")
        m.need(
            not isinstance(m.facts.scalar(out), bool),
            "the condition is the same in every iteration",
        )
        counters = [_counter(m, view, c) for c in _conjuncts(m, out)]
        most = view.trips(m.facts)
        bounded = view.trip is not None and not (isinstance(most, int) and most >= NO_LIMIT)
        return {
            "node": m.node,
            "counters": counters,
            "bounded": bounded,
            "asked": _first_asks_the_same(m, view, counters),
        }

    def apply(
        self, patch: Patch, node: Node, counters: list[Counter], bounded: bool, asked: bool
    ) -> None:
        view = LoopView(node)
        emit = Emit(patch, view.iteration)
        counts = [trip_count(emit, c, asked) for c in counters]
        count = counts[0] if len(counts) == 1 else emit("Min", *counts)
        if view.condition is not None and not asked:
            count = emit("Where", view.condition, count, emit.number(0))
        if bounded and view.trip is not None:
            count = emit("Min", count, view.trip)
        always = patch.constant(np.array(True), like=view.condition_out, graph=view.body)
        inputs = [count, Variable(""), *node.inputs[2:]]
        results = [always, *view.body.outputs[1:]]
        patch.set_interface(node, inputs, view.body.inputs, results, node.outputs)
        patch.toward_normal_form()
        for note in {note for c in counters for note in c.notes}:
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
    in_float = m.facts.dtype(low) in FLOATS
    if in_float:
        ints = [c is not None and m.facts.dtype(c.inputs[0]) in INTEGERS for c in casts]
        low, high = (
            c.inputs[0] if c is not None and whole else t
            for c, whole, t in zip(casts, ints, (low, high))
        )
    return Comparison(low, high, inclusive, in_float)


def _counter(m: Match, view: LoopView, c: Comparison) -> Counter:
    """What is compared, as a number that grows by a fixed step; declines otherwise."""
    dtype = m.facts.dtype(c.low)
    m.need(dtype in INTEGERS, "`{}` is no integer counter", c.low.name, at=c.low)
    same = dtype == m.facts.dtype(c.high) or (c.in_float and _is_whole(m, c.high))
    m.need(same, "`{}` is not known to be an integer", c.high.name, at=c.high)
    for side in (c.low, c.high):
        m.need(m.facts.shape(side) == (), "`{}` is no scalar", side.name, at=side)
    fixed = isinstance(c.high, Constant) or m.index.is_outside(c.high, view.body)
    m.need(fixed, "the limit `{}` may change from iteration to iteration", c.high.name, at=c.high)
    notes: tuple[str, ...] = ()
    cast = dtype != INT64 or m.facts.dtype(c.high) != INT64
    if c.in_float:
        limit = _whole_constant(m, c.high)
        if not (isinstance(limit, int) and limit <= _EXACT_IN_FLOAT):
            m.need(
                not m.options.strict, "strict: `{}` is compared as a float", c.high.name, at=c.high
            )
            notes = (f"`{c.high.name}` is compared as a float: exact up to 2**24 iterations",)
    near = _is_near(m, c.high)
    for state in view.states:
        step = step_of(m, state)
        if step is not None and c.low is state.output:
            begin = state.initial
            safe = _is_near(m, begin) and _never_overflows(dtype, step)
            return Counter(begin, step, c.high, c.inclusive, dtype, cast, notes, not near, not safe)
    affine = _affine(m, view, c.low)
    found = m.need(
        affine, "`{}` is no counter: no state that grows by a fixed step", c.low.name, at=c.low
    )
    step, first = found
    safe = abs(first) < FAR and _never_overflows(dtype, step)
    start = first - step
    return Counter(start, step, c.high, c.inclusive, dtype, cast, notes, not near, not safe)


def _never_overflows(dtype: int, step: int) -> bool:
    """Whether a counter that does not start near the end of its type counts too long to get there."""
    largest = int(np.iinfo(helper.tensor_dtype_to_np_dtype(dtype)).max)
    return largest // step > _ENDLESS


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
    if not isinstance(first, int) or not isinstance(step, int) or step <= 0:
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
    if c.inclusive != counter.inclusive or not _same(m, c.high, counter.limit):
        return False
    if isinstance(counter.start, int):
        return m.facts.scalar(c.low) == counter.start
    return _same(m, c.low, counter.start)


def _same(m: Match, a: Tensor, b: Tensor) -> bool:
    if a is b:
        return True
    left, right = m.facts.scalar(a), m.facts.scalar(b)
    return left is not None and right is not None and symbolic.eq(left, right) is True
