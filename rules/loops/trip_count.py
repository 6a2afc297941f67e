"""While loops that count: the condition becomes a trip count.

    c0 = k0 < n
    k, y = Loop(big, c0, k0, x) { k' = k + s; return k' < n, k', … }
 -> m = Max(Ceil((n - k0) / s), 0)
    k, y = Loop(m, , k0, x) { k' = k + s; return true, k', … }

The compared value is an induction variable, or any number that the facts show to be affine in the
iteration number: `s * i + c`. It may count down to a limit below it. The condition may join several
comparisons by And. `n - k > 0` is the comparison `k < n` where the difference cannot overflow, and
so is `k != n` where k is known to meet n.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
from onnx import TensorProto, helper

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE, INT64, INTEGERS
from ...rewrite.graph.ir import Constant, Tensor
from ...rewrite.graph.views import NO_LIMIT, LoopView
from ...rewrite.symbolic import Dim
from .affine_positions import affine
from .induction_variables import has_one_element, increment

OVERFLOW_MARGIN = 1 << 61
"""Differences of integers below this magnitude fit int64, and no loop has that many iterations."""
_MOST_ITERATIONS = 1 << 24
"""The most iterations assumed of a loop whose counter has a narrow type."""
_EXACT_IN_FLOAT = 1 << 24
"""Integers up to this size are exact in single precision."""


@dataclass(frozen=True)
class Counter:
    """A counter and its limit.

    The loop continues after iteration i while `start + step * (i + 1)` is below the limit. Where
    it counts down, it continues while `start - step * (i + 1)` is above the limit.
    """

    start: Tensor | int
    """A scalar integer from outside, or a number."""
    step: int
    """Positive."""
    limit: Tensor
    inclusive: bool
    """Whether the loop also continues at the limit."""
    ends_at_limit_only: bool
    """Whether the loop would also continue past the limit."""
    dtype: int
    """The type of the counter."""
    cast: bool
    """Whether start or limit have another type than int64."""
    notes: tuple[str, ...]
    limit_may_be_huge: bool
    """Whether the limit may exceed OVERFLOW_MARGIN."""
    may_overflow: bool
    """Whether the counter may pass the end of its type, where it wraps around. Where it counts
    down, it can do so only in a loop that does not check its first value."""
    down: bool


@dataclass(frozen=True)
class CountingLoop:
    """A Loop whose trip count follows from counters."""

    counters: list[Counter]
    """The loop ends with the first of them."""
    bounded: bool
    """Whether its existing trip count can also end it."""
    checks_start: bool
    """Whether the first condition compares the start of each counter as later ones compare the
    counter; otherwise there is an iteration before the first comparison."""


class InferTripCount(Rule[CountingLoop]):
    """Gives a trip count to a loop that ends when a counter, up or down, reaches a limit."""

    root = "Loop"
    promise = Promise(
        assumes="counts that a float holds exactly, where the limit is compared as a float",
    )
    fires = """g (float[3] x, int64 n) => (float[3] y, int64 k) <int64 z = {0}> {
      c = Less(z, n)
      k, y = Loop (, c, z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        one = Constant<value_int=1>() tn = Add(t, one) co = Less(tn, n) so = Add(s, s) }> }"""
    spares = {
        "not a comparison": """g (float[3] x, float lim) => (float[3] y) {
      y = Loop (, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        so = Add(s, s) q = ReduceMax<keepdims=0>(so) co = IsNaN(q) }> }""",
        "by a fixed step": """g (float[3] x, int64 n) => (float[3] y, int64 k) <int64 z = {1}> {
      c = Less(z, n)
      k, y = Loop (, c, z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        tn = Add(t, t) co = Less(tn, n) so = Add(s, s) }> }""",
        "may change": """g (float[3] x) => (float[3] y) {
      y = Loop (, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        so = Add(s, s) q = ReduceMax<keepdims=0>(so) n = Cast<to=7>(q) co = Less(i, n) }> }""",
    }

    def match(self, m: Match) -> CountingLoop:
        view = m.loop()
        out = view.condition_out
        m.need(
            not isinstance(m.facts.scalar(out), bool),
            "the condition is the same in every iteration",
        )
        counters = [_counter(m, view, comparison) for comparison in _conjuncts(m, out)]
        checks_start = _checks_start(m, view, counters)
        passes_end = any(c.down and c.may_overflow for c in counters) and not checks_start
        m.need(not passes_end, "a counter may start below its limit and pass the end of its type")
        for counter in counters:
            if counter.ends_at_limit_only:
                _need_limit_is_met(m, counter, checks_start)
        most = view.trips(m.facts)
        bounded = view.trip is not None and not (isinstance(most, int) and most >= NO_LIMIT)
        return CountingLoop(counters, bounded, checks_start)

    def apply(self, patch: Patch, found: CountingLoop) -> None:
        view = LoopView(patch.root)
        emit = patch.builder(view.iteration)
        count = reduce(emit.min, [_trip_count(emit, c, found.checks_start) for c in found.counters])
        if view.condition is not None and not found.checks_start:
            count = emit("Where", view.condition, count, emit.scalar(0))
        if found.bounded and view.trip is not None:
            count = emit.min(count, view.trip)
        patch.loop(patch.root).count(count)
        patch.toward_normal_form()
        for note in dict.fromkeys(note for c in found.counters for note in c.notes):
            patch.note(note)


# --- the condition ---


@dataclass(frozen=True)
class Comparison:
    """`low < high`, or `low <= high` if inclusive, or `low != high` if is_inequality."""

    low: Tensor
    high: Tensor
    inclusive: bool = False
    in_float: bool = False
    """Whether integers are compared after a cast to a float type."""
    is_inequality: bool = False

    def sides(self, down: bool) -> tuple[Tensor, Tensor]:
        """The value that counts, and its limit."""
        return (self.high, self.low) if down else (self.low, self.high)


def _conjuncts(m: Match, condition: Tensor) -> Iterator[Comparison]:
    """The comparisons that a condition joins by And. Raises Miss for another condition."""
    both = m.producer(condition, "And")
    if both is not None:
        for part in both.inputs:
            yield from _conjuncts(m, part)
        return
    if m.facts.scalar(condition) is not True:
        found = _comparison(m, condition)
        yield m.need(found, "the condition {} is not a comparison", condition, at=condition)


def _comparison(m: Match, condition: Tensor) -> Comparison | None:
    condition = _only_element(m, condition)
    negation = m.producer(condition, "Not")
    node = m.producer(
        _only_element(m, negation.inputs[0]) if negation is not None else condition,
        "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal",
    )  # fmt: skip
    if node is None:
        return None
    if node.op == "Equal":
        is_integer = m.facts.dtype(node.inputs[0]) in INTEGERS
        if negation is None or not is_integer:
            return None
        one, other = node.inputs
        return Comparison(one, other, is_inequality=True)
    swap = node.op.startswith("Greater") != (negation is not None)
    low, high = node.inputs[::-1] if swap else node.inputs
    inclusive = node.op.endswith("Equal") != (negation is not None)
    in_float = m.facts.dtype(low) in FLOAT_OR_DOUBLE
    if in_float:
        low, high = (_cast_integer(m, side) for side in (low, high))
    low, high = _terms_of_difference(m, low, high)
    return Comparison(low, high, inclusive, in_float)


def _terms_of_difference(m: Match, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The terms of a difference that is compared with zero, as the sides of the comparison."""
    for difference, zero in ((low, high), (high, low)):
        node = m.producer(difference, "Sub")
        if node is not None and m.facts.scalar(zero) == 0:
            fits = all(_stays_within_margin(m, term) for term in node.inputs)
            if fits and m.facts.dtype(difference) == INT64:
                left, right = node.inputs
                return (left, right) if difference is low else (right, left)
    return low, high


def _only_element(m: Match, value: Tensor) -> Tensor:
    """The value before the nodes that only reshape its single element."""
    while (node := m.producer(value, "Squeeze", "Reshape", "Unsqueeze")) is not None:
        if not has_one_element(m, node.inputs[0]):
            break
        value = node.inputs[0]
    return value


def _cast_integer(m: Match, value: Tensor) -> Tensor:
    """The integer that a float was cast from; the value itself if there is none."""
    cast = m.producer(value, "Cast")
    if cast is None or m.facts.dtype(cast.inputs[0]) not in INTEGERS:
        return value
    source: Tensor = cast.inputs[0]
    return source


def _checks_start(m: Match, view: LoopView, counters: list[Counter]) -> bool:
    """Whether the first condition compares the start of each counter with its limit."""
    if view.condition is None:
        return False
    try:
        comparisons = list(_conjuncts(m, view.condition))
    except Miss:
        return False
    if len(comparisons) > len(counters):
        return False
    return all(any(_compares_start(m, c, counter) for c in comparisons) for counter in counters)


def _compares_start(m: Match, comparison: Comparison, counter: Counter) -> bool:
    same = comparison.inclusive == counter.inclusive
    if not same or comparison.is_inequality != counter.ends_at_limit_only:
        return False
    sides = [comparison.sides(counter.down)]
    if comparison.is_inequality:
        sides.append(comparison.sides(not counter.down))
    return any(
        _are_equal(m, limit, counter.limit) and _is_start(m, value, counter)
        for value, limit in sides
    )


def _is_start(m: Match, value: Tensor, counter: Counter) -> bool:
    """Whether a value is known to be the start of a counter."""
    if isinstance(counter.start, int):
        return m.facts.scalar(value) == counter.start
    return _are_equal(m, value, counter.start)


def _are_equal(m: Match, a: Tensor, b: Tensor) -> bool:
    """Whether two scalars are known to be equal."""
    if a is b:
        return True
    left, right = m.facts.scalar(a), m.facts.scalar(b)
    return left is not None and right is not None and symbolic.eq(left, right) is True


# --- the counter ---


def _counter(m: Match, view: LoopView, comparison: Comparison) -> Counter:
    """The counter that a comparison is about. Raises Miss if no side counts to the other."""
    down = _is_invariant(m, view, comparison.low) and not _is_invariant(m, view, comparison.high)
    value, limit = comparison.sides(down)
    if comparison.is_inequality:
        down = _start_and_step(m, view, value)[1] < 0
    dtype = m.facts.dtype(value)
    m.need(dtype in INTEGERS, "{} is not an integer counter", value, at=value)
    same = dtype == m.facts.dtype(limit) or (
        comparison.in_float and _known_integer(m, limit) is not None
    )
    m.need(same, "{} is not known to be an integer", limit, at=limit)
    for side in (value, limit):
        m.need(has_one_element(m, side), "{} does not have one element", side, at=side)
    invariant = _is_invariant(m, view, limit)
    m.need(invariant, "the limit {} may change from iteration to iteration", limit, at=limit)
    notes: tuple[str, ...] = ()
    if comparison.in_float:
        number = _integer_constant(m, limit)
        if number is None or abs(number) > _EXACT_IN_FLOAT:
            m.need(not m.options.strict, "--strict: {} is compared as a float", limit, at=limit)
            exact = "exact up to 2**24 iterations; --strict keeps the loop"
            notes = (f"`{limit.name}` is compared as a float: {exact}",)
    start, step = _start_and_step(m, view, value)
    m.need((step < 0) == down, "{} moves away from the limit", value, at=value)
    huge = not _is_within_margin(m, limit)
    wide = _type_outlasts_loop(dtype, step)
    safe = wide and _is_within_margin(m, start)
    if TensorProto.UINT64 in (dtype, m.facts.dtype(limit)):
        m.need(safe and not huge, "{} may be larger than int64 allows", limit, at=limit)
    if down:
        m.need(wide, "{} may count past the end of its type", value, at=value)
        _need_end_before_overflow(m, dtype, start, -step, limit)
    elif step > 1 and not wide:
        _need_no_wrap_around(m, dtype, step, limit)
    cast = dtype != INT64 or m.facts.dtype(limit) != INT64
    return Counter(
        start=start,
        step=abs(step),
        limit=limit,
        inclusive=comparison.inclusive,
        ends_at_limit_only=comparison.is_inequality,
        dtype=dtype,
        cast=cast,
        notes=notes,
        limit_may_be_huge=huge,
        may_overflow=not safe,
        down=down,
    )


def _need_limit_is_met(m: Match, counter: Counter, checks_start: bool) -> None:
    """Declines where a counter may jump over its limit, or start beyond it."""
    limit = counter.limit
    m.need(counter.step == 1, "the counter may jump over {}", limit, at=limit)
    start = counter.start if isinstance(counter.start, int) else _known_integer(m, counter.start)
    end, met = _known_integer(m, limit), False
    if start is not None and end is not None:
        low, high = (end, start) if counter.down else (start, end)
        met = symbolic.le(symbolic.add(low, int(not checks_start)), high) is True
    m.need(met, "the counter may start beyond {}", limit, at=limit)


def _start_and_step(m: Match, view: LoopView, value: Tensor) -> tuple[Tensor | int, int]:
    """Start and step of the number start + step * (i + 1). Raises Miss for another value."""
    for carried in view.carried:
        step = increment(m, carried)
        if step is not None and value is carried.output:
            return carried.initial, step
    number = m.facts.scalar(value)
    found = None if number is None else affine(m.facts, view, number)
    if found is None or not isinstance(found.first, int):
        raise Miss("{} does not change by a fixed step per iteration", value, at=value)
    return found.first - found.step, found.step


def _need_end_before_overflow(
    m: Match, dtype: int, start: Tensor | int, step: int, limit: Tensor
) -> None:
    """Declines where a counter that goes down may pass the lowest number of its type.

    Also declines where start and limit are so far from 0 that their difference may not fit int64.
    """
    if dtype == INT64:
        near = _is_within_margin(m, start) or _is_within_margin(m, limit)
        m.need(near, "the difference between {} and the start may not fit int64", limit, at=limit)
        return
    number = _known_integer(m, limit)
    low = None if number is None else symbolic.bounds(number)[0]
    m.need(
        low is not None and low >= _limits(dtype)[0] + step,
        "{} may be close to the lowest number of its type",
        limit,
        at=limit,
    )


def _need_no_wrap_around(m: Match, dtype: int, step: int, limit: Tensor) -> None:
    """Declines where a counter that goes up may jump over the largest number of its type.

    It goes on from the lowest number then, and may meet the limit in a later round.
    """
    number = _known_integer(m, limit)
    low, high = (None, None) if number is None else symbolic.bounds(number)
    ends = number is not None and low is not None and _is_within_margin(m, limit)
    if high is not None:
        ends = high <= _limits(dtype)[1] - step
    m.need(ends, "{} may be close to the largest number of its type", limit, at=limit)


def _is_invariant(m: Match, view: LoopView, value: Tensor) -> bool:
    """Whether a value is the same in every iteration."""
    return isinstance(value, Constant) or m.index.is_outside(value, view.body)


def _limits(dtype: int) -> tuple[int, int]:
    """The lowest and the largest number of an integer type."""
    limits = np.iinfo(helper.tensor_dtype_to_np_dtype(dtype))
    return int(limits.min), int(limits.max)


def _type_outlasts_loop(dtype: int, step: int) -> bool:
    """Whether a counter that starts at 0 takes too many iterations to reach the end of its type.

    An unsigned counter that counts down is at the end of its type at 0.
    """
    lowest, largest = _limits(dtype)
    reach = -lowest if step < 0 else largest
    return reach // abs(step) > _MOST_ITERATIONS


def _is_within_margin(m: Match, value: Tensor | int) -> bool:
    """Whether an integer is known to be smaller than OVERFLOW_MARGIN, as every size is.

    Other numbers have no lower bound, but Max may give one to an expression with them.
    """
    number = value if isinstance(value, int) else _known_integer(m, value)
    low, high = (None, None) if number is None else symbolic.bounds(number)
    if number is None or low is None or low <= -OVERFLOW_MARGIN:
        return False
    of_sizes = all(symbol.low is not None for symbol in symbolic.symbols(number))
    return of_sizes if high is None else high < OVERFLOW_MARGIN


def _stays_within_margin(m: Match, value: Tensor) -> bool:
    """Whether an int64 is smaller than OVERFLOW_MARGIN at each iteration that a run can reach."""
    for state in m.loop().carried:
        step = increment(m, state) if value is state.output else None
        if step is not None:
            return _type_outlasts_loop(INT64, step) and _is_within_margin(m, state.initial)
    return _is_within_margin(m, value)


def _known_integer(m: Match, value: Tensor) -> Dim | None:
    """The integer that a scalar of any type is known to hold, if any."""
    number = m.facts.scalar(value)
    return _integer_constant(m, value) if number is None else number


def _integer_constant(m: Match, value: Tensor) -> int | None:
    """The integer below OVERFLOW_MARGIN that a constant scalar of any type holds, or None."""
    array = m.facts.constant(value) if m.facts.is_constant(value) else None
    if array is None or array.size != 1 or not np.isfinite(array).all():
        return None
    if float(array.reshape(-1)[0]) % 1:
        return None
    number = int(array.reshape(-1)[0])
    return number if abs(number) < OVERFLOW_MARGIN else None


# --- the trip count ---


def _trip_count(emit: Builder, counter: Counter, checks_start: bool) -> Tensor:
    """The number of iterations until a counter reaches its limit, an int64 scalar.

    Without `checks_start` the loop runs at least once.
    """
    limit = _as_int64(emit, counter.limit, counter.cast)
    if counter.may_overflow and not counter.down:
        return _count_with_overflow(emit, counter, limit, checks_start)
    return _count_without_overflow(emit, counter, limit, checks_start)


def _as_int64(emit: Builder, value: Tensor, cast: bool) -> Tensor:
    """The only element of a tensor as an int64 scalar; `cast` says that it may have another type."""
    if isinstance(value, Constant) and not value.overridable:
        return emit.scalar(int(np.asarray(value.values).reshape(())))
    value = emit.squeeze(value, range(emit.patch.facts.rank(value) or 0))
    return emit("Cast", value, to=INT64) if cast else value


def _count_without_overflow(
    emit: Builder, counter: Counter, limit: Tensor, checks_start: bool
) -> Tensor:
    """ceil((limit - start) / step), or ceil((start - limit) / step) where the counter goes down."""
    if counter.limit_may_be_huge:
        limit = _clamped_to_margin(emit, limit)
    extra = counter.step - (0 if counter.inclusive else 1)
    if isinstance(counter.start, int):
        extra += counter.start if counter.down else -counter.start
        span = emit("Neg", limit) if counter.down else limit
    else:
        start = _as_int64(emit, counter.start, counter.cast)
        ends = [_clamped_to_margin(emit, start) if counter.may_overflow else start, limit]
        span = emit("Sub", *(ends if counter.down else ends[::-1]))
    if extra:
        span = emit("Add", span, emit.scalar(extra))
    span = emit.max(span, emit.scalar(0 if checks_start else counter.step))
    return span if counter.step == 1 else emit("Div", span, emit.scalar(counter.step))


def _clamped_to_margin(emit: Builder, value: Tensor) -> Tensor:
    below = emit.min(value, emit.scalar(OVERFLOW_MARGIN))
    return emit.max(below, emit.scalar(-OVERFLOW_MARGIN))


def _count_with_overflow(
    emit: Builder, counter: Counter, limit: Tensor, checks_start: bool
) -> Tensor:
    """The number of the values first, first + step, … that are within the limit.

    The last of them is the number (limit - first) / step. If the value after it is not past the
    limit, the counter or the difference has overflowed: such a loop never ends, or goes through so
    many numbers of its type that the number of iterations does not matter.
    """
    first = _first_compared(emit, counter, checks_start)
    span = emit("Sub", limit, first)
    if not counter.inclusive:
        span = emit("Sub", span, emit.scalar(1))
    if counter.step > 1:
        span = emit("Div", span, emit.scalar(counter.step))
    count = emit.max(emit("Add", span, emit.scalar(1)), emit.scalar(0))
    after = emit("Add", first, emit("Mul", count, emit.scalar(counter.step)))
    endless = _is_within_limit(emit, counter, after, limit)
    if counter.dtype != INT64:
        endless = emit("Greater", after, emit.scalar(_limits(counter.dtype)[1]))
    count = emit("Where", endless, emit.scalar(NO_LIMIT), count)
    count = emit("Where", _is_within_limit(emit, counter, first, limit), count, emit.scalar(0))
    return count if checks_start else emit("Add", count, emit.scalar(1))


def _first_compared(emit: Builder, counter: Counter, checks_start: bool) -> Tensor:
    """The first value that is compared, which may have overflowed."""
    if isinstance(counter.start, int):
        return emit.scalar(counter.start if checks_start else counter.start + counter.step)
    if checks_start:
        return _as_int64(emit, counter.start, counter.cast)
    step = np.array(counter.step, helper.tensor_dtype_to_np_dtype(counter.dtype))
    start = emit.squeeze(counter.start, range(emit.patch.facts.rank(counter.start) or 0))
    first = emit("Add", start, emit.constant(step))
    return emit("Cast", first, to=INT64) if counter.dtype != INT64 else first


def _is_within_limit(emit: Builder, counter: Counter, value: Tensor, limit: Tensor) -> Tensor:
    if counter.inclusive:
        return emit("Not", emit("Greater", value, limit))
    return emit("Less", value, limit)
