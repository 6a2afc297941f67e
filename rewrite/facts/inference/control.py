"""Facts across control flow: joins of If branches, fixpoints of Loop and Scan bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ... import symbolic
from ...graph.ir import Graph, Node, Tensor
from ...graph.views import CarriedValue, LoopView, ScanView
from ...symbolic import Dim
from ..fact import BOOL, INT64, UNKNOWN, Fact, join
from ..facts import Facts
from .registry import NodeContext, register

_MOST_ROUNDS = 4
"""A carried value whose fact still changes after this many rounds counts as unknown."""


@register("If")
def if_(ctx: NodeContext) -> Sequence[Fact]:
    """The facts of the branch that is known to run, or the join of both branches."""
    then, other = ctx.attr("then_branch"), ctx.attr("else_branch")
    taken = ctx.facts.scalar(ctx.node.inputs[0])
    if taken is not None:
        return _branch(ctx, then if taken else other)
    reasons = [_failure(ctx.facts, graph) for graph in (then, other)]
    if all(reasons):
        ctx.fail(f"both branches fail: {reasons[0]}; {reasons[1]}")
    facts = []
    for place, (a, b) in enumerate(zip(_branch(ctx, then), _branch(ctx, other))):
        fresh = {axis: _joined_dim(ctx, place, axis, a, b) for axis in range(len(a.shape or ()))}
        facts.append(join(a, b, fresh))
    return facts


def _branch(ctx: NodeContext, graph: Graph) -> list[Fact]:
    return [ctx.facts.of(output) for output in graph.outputs]


def _failure(facts: Facts, graph: Graph) -> str | None:
    """Why every run of a body fails; considers only the nodes that its outputs depend on."""
    for output in graph.outputs:
        facts.of(output)
    for node in facts.index.nodes(graph) if facts.failures else ():
        if node in facts.failures and facts.index.is_computed(node):
            return facts.failures[node]
    return None


def _joined_dim(ctx: NodeContext, place: int, axis: int, a: Fact, b: Fact) -> Dim:
    """A fresh dim for an axis whose size differs between the branches, with their lower bound."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return ctx.fresh(axis, place)
    lows = [symbolic.bounds(f.shape[axis])[0] for f in (a, b) if f.shape is not None]
    known = [low for low in lows if low is not None]
    return ctx.fresh(axis, place, low=min(known) if len(known) == 2 else 0)


@register("Loop")
def loop(ctx: NodeContext) -> Sequence[Fact]:
    """The final carried values, then the scan outputs, stacked along a new axis 0 (ONNX: Loop)."""
    view = LoopView(ctx.node)
    facts = ctx.facts
    trip_shape = () if view.trip is None else facts.shape(view.trip) or ()
    if symbolic.eq(symbolic.product(trip_shape), 1) is False:
        ctx.fail(f"the trip count is not a scalar: its shape is {list(trip_shape)}")
    _ensure_body_inputs(facts, view.body)
    results = _final_values(ctx, view.carried, view.body)
    count = _iteration_count(ctx, view)
    for place, each in enumerate(view.scan_outputs, start=len(view.carried)):
        results.append(_stacked(ctx, facts.of(each), place, view.body, 0, count))
    return results


def _final_values(ctx: NodeContext, carried: Sequence[CarriedValue], body: Graph) -> list[Fact]:
    """The join of what holds before the first iteration and what holds after any iteration."""
    finals = []
    for place, value in enumerate(carried):
        after = _outside(ctx, ctx.facts.of(value.output), place, body)
        before = ctx.facts.of(value.initial)
        fresh = {axis: ctx.fresh(axis, place) for axis in range(len(before.shape or ()))}
        finals.append(join(before, after, fresh))
    return finals


def _iteration_count(ctx: NodeContext, view: LoopView) -> Dim:
    """The number of iterations, which is the length of each scan output."""
    place = max(0, len(ctx.node.outputs) - 1)
    most = ctx.facts.scalar(view.trip) if view.trip is not None else None
    if most is not None and view.never_stops_early(ctx.facts):
        return symbolic.maximum(most, 0)
    return ctx.fresh(-1, place)


def _outside(ctx: NodeContext, fact: Fact, place: int, body: Graph) -> Fact:
    """A fact of a body as seen after the loop: dims that vary between iterations become fresh."""
    if fact.shape is None:
        return Fact(fact.dtype, None, fact.ranks, None, fact.kind, None)
    varies = fact.kind == "sequence"
    shape = tuple(
        (symbolic.VARYING if varies else ctx.fresh(axis, place))
        if ctx.facts.varies_in(d, body)
        else d
        for axis, d in enumerate(fact.shape)
    )
    values = fact.values
    if values is not None and any(
        isinstance(v, symbolic.Expr) and ctx.facts.varies_in(v, body) for v in values
    ):
        values = None
    length = fact.length
    if length is not None and ctx.facts.varies_in(length, body):
        length = None
    return Fact(fact.dtype, shape, None, values, fact.kind, length)


def _stacked(ctx: NodeContext, each: Fact, place: int, body: Graph, axis: int, count: Dim) -> Fact:
    """The fact of a scan output, given the fact of the slice that each iteration writes."""
    fact = _outside(ctx, Fact(each.dtype, each.shape, each.ranks), place, body)
    if fact.shape is None:
        ranks = None if each.ranks is None else frozenset(r + 1 for r in each.ranks)
        return Fact(each.dtype, None, ranks)
    # A loop without iterations writes no slice that could determine the shape of the scan output,
    # so its dims are known only if the loop is known to run.
    axis = axis % (len(fact.shape) + 1)
    shifted = (*fact.shape[:axis], count, *fact.shape[axis:])
    if not symbolic.positive(count):
        shifted = tuple(d if i == axis else ctx.fresh(50 + i, place) for i, d in enumerate(shifted))
    return Fact(each.dtype, shifted)


@register("Scan")
def scan(ctx: NodeContext) -> Sequence[Fact]:
    """The final carried values, then the stacked scan outputs (ONNX: Scan, opset 9 and later)."""
    if ctx.opset < 9:  # Scan has a batch axis there
        return [UNKNOWN] * len(ctx.node.outputs)
    view = ScanView(ctx.node)
    facts = ctx.facts
    _ensure_body_inputs(facts, view.body)
    results = _final_values(ctx, view.carried, view.body)
    count = _scan_length(ctx, view)
    for place, output in enumerate(view.scan_outputs, start=len(view.carried)):
        each = facts.of(output.slice)
        results.append(_stacked(ctx, each, place, view.body, output.axis, count))
    return results


def _scan_length(ctx: NodeContext, view: ScanView) -> Dim:
    for scanned in view.scan_inputs:
        shape = ctx.facts.shape(scanned.sequence)
        if shape is not None:
            return shape[ctx.axis(scanned.axis, len(shape))]
    return ctx.fresh(-1, max(0, len(ctx.node.outputs) - 1))


# --- body inputs ---


def _ensure_body_inputs(facts: Facts, body: Graph) -> None:
    for tensor in body.inputs:
        facts.of(tensor)


def derive_body_inputs(facts: Facts, node: Node, body: Graph) -> None:
    """Derives the facts of a body's inputs that hold in every iteration."""
    given, carried = _body_inputs(facts, node)
    for tensor in body.inputs:
        facts.set_fact(tensor, given.get(tensor, UNKNOWN))
    guesses = {value.input: facts.of(value.initial) for value in carried}
    outputs = {value.input: value.output for value in carried}
    _fixpoint(facts, body, guesses, outputs)


def is_still_fixpoint(facts: Facts, node: Node, body: Graph) -> bool:
    """Whether the facts of a body's inputs are still a fixpoint, though maybe not the best one."""
    known = facts.cached_facts(body.inputs)
    given, carried = _body_inputs(facts, node)
    if len(known) < len(body.inputs) or len(given) + len(carried) < len(body.inputs):
        return False
    return all(known[tensor] == fact for tensor, fact in given.items()) and all(
        _widen(facts, value.input, known[value.input], tensor) == known[value.input]
        for value in carried
        for tensor in (value.initial, value.output)
    )


def _body_inputs(facts: Facts, node: Node) -> tuple[dict[Tensor, Fact], list[CarriedValue]]:
    """The facts of a body's inputs other than carried values, and the carried values.

    Both are empty for operators that are not analysed.
    """
    if node.op == "Loop":
        view = LoopView(node)
        condition = Fact(BOOL, view.condition_shape, None, (None,))
        iteration = _iteration_fact(facts, view)
        return {view.iteration: iteration, view.condition_in: condition}, view.carried
    if node.op == "Scan" and facts.opset >= 9:
        scan_view = ScanView(node)
        slices = {s.slice: _slice_fact(facts, s.sequence, s.axis) for s in scan_view.scan_inputs}
        return slices, scan_view.carried
    return {}, []


def _fixpoint(
    facts: Facts, body: Graph, guesses: dict[Tensor, Fact], outputs: dict[Tensor, Tensor]
) -> None:
    """Weakens the guess for each carried value until an iteration preserves all of them."""
    for round_ in range(_MOST_ROUNDS + 1):
        facts.drop_body(body)
        for tensor, guess in guesses.items():
            facts.set_fact(tensor, guess)
        widened = {t: _widen(facts, t, guess, outputs[t]) for t, guess in guesses.items()}
        if widened == guesses or _failure(facts, body) is not None:
            return  # An iteration in which the guesses hold fails, so no other one follows.
        guesses = widened if round_ < _MOST_ROUNDS else dict.fromkeys(guesses, UNKNOWN)
    facts.drop_body(body)
    for tensor in guesses:
        facts.set_fact(tensor, UNKNOWN)


def _widen(facts: Facts, carried: Tensor, guess: Fact, output: Tensor) -> Fact:
    """What holds of a carried value if the guess holds before an iteration (widening)."""
    fresh = {axis: facts.fresh(carried, axis) for axis in range(len(guess.shape or ()))}
    given = facts.of(output)
    if given.kind == guess.kind == "tensor" and not given.dtype:
        # A carried value never changes its type, also where the operator that gives it is unknown.
        given = replace(given, dtype=guess.dtype)
    wide = join(guess, given, fresh)
    if wide.values is None and guess.values is not None and wide.shape == guess.shape:
        # An integer that changes has a symbol of its own in each iteration.
        count = len(guess.values)
        if wide.dtype == BOOL:
            return Fact(wide.dtype, wide.shape, None, (None,) * count)
        values = tuple(facts.fresh(carried, -1 - i, low=None) for i in range(count))
        return Fact(wide.dtype, wide.shape, None, values)
    return wide


def _iteration_fact(facts: Facts, view: LoopView) -> Fact:
    trips = view.trips(facts)
    last = trips - 1 if isinstance(trips, int) and trips > 1 else None
    number = facts.fresh(view.iteration, -1, low=0, high=last)
    return Fact(INT64, view.iteration_shape, None, (number,))


def _slice_fact(facts: Facts, sequence: Tensor, axis: int) -> Fact:
    fact = facts.of(sequence)
    if fact.shape is None:
        ranks = None if fact.ranks is None else frozenset(r - 1 for r in fact.ranks)
        return Fact(fact.dtype, None, ranks)
    axis = axis % len(fact.shape)
    return Fact(fact.dtype, fact.shape[:axis] + fact.shape[axis + 1 :])
