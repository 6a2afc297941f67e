"""Random trip counts and conditions of loops, and counters with limits.

Every loop ends: it has a small trip count, or a counter that reaches its limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from .carried_values import Carried
from .scope import Kind, Scope, Value

LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Stop:
    """When a loop ends."""

    first: Value | None
    """The condition for the first iteration."""
    next: Value
    """In the body: the condition for the next iteration."""
    always_ends: bool
    """Whether it ends without a trip count."""


def trip_count(scope: Scope, optional: bool) -> Value | None:
    """Omitted, a constant, an input, the length of the table, or computed from these."""
    way = scope.random.random()
    if optional and way < 0.3:
        return None
    if optional and way < 0.5:
        return scope.integer(LARGEST)
    if way < 0.7:
        trip = scope.integer(scope.random.choice([0, 1, 1, 2, 3, 5, 7, -1]))
    elif way < 0.9:
        trip = scope.input("m")
    else:
        trip = scope.size_of(scope.input("table"))
    if scope.chance(0.1):
        trip = scope.add("Add", [trip, scope.integer(1)], Kind.INT)
    elif scope.chance(0.1):
        trip = _range_length(scope, trip)
    return scope.unsqueeze(trip, 0, Kind.INTS) if scope.chance(0.05) else trip


def _range_length(scope: Scope, end: Value) -> Value:
    """The length of range(start, end, stride) as exporters write it: ceil of a float quotient."""
    start = scope.integer(scope.random.choice([0, 1, -2]))
    span = scope.add("Sub", [end, start], Kind.INT)
    wide = scope.add("Cast", [span], Kind.SCALAR, to=Kind.SCALAR.element)
    stride = scope.constant(scope.random.choice([1, 2, 3]), Kind.SCALAR)
    length = scope.add("Ceil", [scope.add("Div", [wide, stride], Kind.SCALAR)], Kind.SCALAR)
    return scope.add("Cast", [length], Kind.INT, to=Kind.INT.element)


def make_stop(
    scope: Scope, body: Scope, condition: Value, carried: list[Carried], updates: list[Value]
) -> Stop:
    """The conditions of a loop; may add a counter as a carried value."""
    way = scope.random.random()
    if way < 0.45:
        return Stop(_first(scope), _unchanged(body, condition), False)
    if way < 0.55:
        return Stop(_first(scope), body.pick(Kind.BOOL), False)
    return _counting(scope, body, carried, updates)


def _first(scope: Scope) -> Value | None:
    way = scope.random.random()
    if way < 0.35:
        return None
    given = scope.constant(way < 0.65, Kind.BOOL) if way < 0.7 else scope.pick(Kind.BOOL)
    return scope.unsqueeze(given, 0, Kind.BOOLS) if scope.chance(0.05) else given


def _unchanged(body: Scope, condition: Value) -> Value:
    """The condition of a for loop, in one of its usual forms."""
    way = body.random.randrange(4)
    if way == 0:
        return body.constant(not body.chance(0.1), Kind.BOOL)
    if way == 1:
        return condition
    return body.add("Identity", [condition], condition.kind)


@dataclass(frozen=True)
class Comparison:
    """The comparison of a counter with its limit that is true while the loop runs."""

    op: str
    exchanged: bool
    negated: bool
    as_floats: bool

    def of(self, scope: Scope, value: Value, limit: Value) -> Value:
        pair: list[Value | None] = [value, limit]
        if self.as_floats:
            to = Kind.SCALAR.element
            pair = [scope.add("Cast", [v], Kind.SCALAR, to=to) for v in pair]
        result = scope.add(self.op, pair[::-1] if self.exchanged else pair, Kind.BOOL)
        return scope.add("Not", [result], Kind.BOOL) if self.negated else result


def _comparison(scope: Scope, down: bool) -> Comparison:
    exchanged = scope.chance(0.3)
    if scope.chance(0.06):
        return Comparison("Equal", exchanged, negated=True, as_floats=False)
    inclusive = scope.opset >= 12 and scope.chance(0.3)
    negated = scope.chance(0.2)
    less = not down ^ exchanged ^ negated
    op = ("Less" if less else "Greater") + ("OrEqual" if inclusive else "")
    return Comparison(op, exchanged, negated, scope.chance(0.1))


def _counting(scope: Scope, body: Scope, carried: list[Carried], updates: list[Value]) -> Stop:
    """Ends the loop by a comparison of a new counter with a limit."""
    kind = scope.random.choice([Kind.INT, Kind.INT, Kind.INT, Kind.INT32])
    start = scope.constant(scope.random.choice([0, 0, 0, 1, -2, 4, 9]), kind)
    limit, always_ends = _limit(scope, kind)
    if scope.chance(0.1):
        start, always_ends = scope.pick(kind), False
    down = scope.chance(0.2)
    inside = body.declare(kind, readable=scope.chance(0.3))
    after = _advanced(body, inside, scope.random.choice([1, 1, 1, 2, 3]), down)
    carried.append(Carried(start, inside, lambda b: after))
    updates.append(after)
    comparison = _comparison(scope, down)
    always_ends = always_ends and comparison.op != "Equal"
    going = comparison.of(body, after if scope.chance(0.8) else inside, limit)
    if scope.chance(0.15):
        going = body.add("And", [going, body.pick(Kind.BOOL)], Kind.BOOL)
    elif scope.chance(0.1):
        going, always_ends = body.add("Or", [going, body.pick(Kind.BOOL)], Kind.BOOL), False
    first = comparison.of(scope, start, limit) if scope.chance(0.6) else _first(scope)
    return Stop(first, going, always_ends)


def _limit(scope: Scope, kind: Kind) -> tuple[Value, bool]:
    """A limit, and whether it is small."""
    if kind is Kind.INT and scope.chance(0.1):
        far = scope.integer(scope.random.choice([LARGEST, -LARGEST - 1, 2**62]))
        chosen = [scope.input("c"), far, scope.input("n")]
        return scope.add("Where", [*chosen], Kind.INT) if scope.chance(0.5) else far, False
    if scope.chance(0.6):
        name = scope.random.choice(["m", "n"]) if kind is Kind.INT else "j"
        return scope.input(name), True
    return scope.constant(scope.random.choice([0, 1, 3, 5, 7]), kind), True


def _advanced(body: Scope, counter: Value, size: int, down: bool) -> Value:
    kind = counter.kind
    if down and body.chance(0.5):
        return body.add("Sub", [counter, body.constant(size, kind)], kind)
    return body.add("Add", [counter, body.constant(-size if down else size, kind)], kind)
