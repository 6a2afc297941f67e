"""Facts across control flow: joins of If branches, loop invariants of Loop and Scan bodies."""

from __future__ import annotations

from collections.abc import Sequence

from ... import symbolic
from ...graph.ir import Graph, Node, Tensor
from ...graph.views import CarriedValue, LoopView, ScanView
from ...symbolic import Dim
from ..facts import BOOL, INT64, UNKNOWN, Fact, Facts, join
from .registry import Site, shape_of

_ROUNDS = 4
"""Rounds after which a state whose fact still changes is taken to be unknown."""


@shape_of("If")
def if_(site: Site) -> Sequence[Fact]:
    """The facts of the taken branch, or what both branches have in common."""
    then, other = site.attr("then_branch"), site.attr("else_branch")
    taken = site.facts.scalar(site.node.inputs[0])
    if taken is not None:
        return _branch(site, then if taken else other)
    reasons = [_failure(site.facts, graph) for graph in (then, other)]
    if all(reasons):
        site.fail(f"both branches fail: {reasons[0]}; {reasons[1]}")
    facts = []
    for place, (a, b) in enumerate(zip(_branch(site, then), _branch(site, other))):
        fresh = {axis: _joined_dim(site, place, axis, a, b) for axis in range(len(a.shape or ()))}
        facts.append(join(a, b, fresh))
    return facts


def _branch(site: Site, graph: Graph) -> list[Fact]:
    return [site.facts.of(output) for output in graph.outputs]


def _failure(facts: Facts, graph: Graph) -> str | None:
    """Why every run of a branch fails; only what leads to its outputs is looked at."""
    for output in graph.outputs:
        facts.of(output)
    for node in facts.index.nodes(graph):
        if node in facts.failures:
            return facts.failures[node]
    return None


def _joined_dim(site: Site, place: int, axis: int, a: Fact, b: Fact) -> Dim:
    """A dim that differs between the branches lies between the bounds of both."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return site.fresh(axis, place)
    lows = [symbolic.bounds(f.shape[axis])[0] for f in (a, b) if f.shape is not None]
    known = [low for low in lows if low is not None]
    return site.fresh(axis, place, low=min(known) if len(known) == 2 else 0)


@shape_of("Loop")
def loop(site: Site) -> Sequence[Fact]:
    """Final states, then scan outputs stacked along a new axis 0 (ONNX: Loop)."""
    view = LoopView(site.node)
    facts = site.facts
    _ensure_body_inputs(facts, view.body)
    results = _final_states(site, view.carried, view.body)
    count = _iterations(site, view)
    for place, row in enumerate(view.scan_outputs, start=len(view.carried)):
        results.append(_stacked(site, facts.of(row), place, view.body, 0, count))
    return results


def _final_states(site: Site, states: Sequence[CarriedValue], body: Graph) -> list[Fact]:
    """What holds of each state before the first iteration and after any."""
    finals = []
    for place, state in enumerate(states):
        inside = _outside(site, site.facts.of(state.output), place, body)
        start = site.facts.of(state.initial)
        fresh = {axis: site.fresh(axis, place) for axis in range(len(start.shape or ()))}
        finals.append(join(start, inside, fresh))
    return finals


def _iterations(site: Site, view: LoopView) -> Dim:
    """The number of rows of a scan output."""
    place = max(0, len(site.node.outputs) - 1)
    most = site.facts.scalar(view.trip) if view.trip is not None else None
    if most is not None and view.never_stops_early(site.facts):
        return symbolic.maximum(most, 0)
    return site.fresh(-1, place)


def _outside(site: Site, fact: Fact, place: int, body: Graph) -> Fact:
    """A body fact as seen after the loop: what may differ between iterations becomes fresh."""
    if fact.shape is None:
        return Fact(fact.dtype, None, fact.ranks, None, fact.kind, None)
    varies = fact.kind == "sequence"
    shape = tuple(
        (symbolic.VARYING if varies else site.fresh(axis, place))
        if site.facts.escapes(d, body)
        else d
        for axis, d in enumerate(fact.shape)
    )
    values = fact.values
    if values is not None and any(
        isinstance(v, symbolic.Expr) and site.facts.escapes(v, body) for v in values
    ):
        values = None
    length = fact.length
    if length is not None and site.facts.escapes(length, body):
        length = None
    return Fact(fact.dtype, shape, None, values, fact.kind, length)


def _stacked(site: Site, row: Fact, place: int, body: Graph, axis: int, count: Dim) -> Fact:
    fact = _outside(site, Fact(row.dtype, row.shape, row.ranks), place, body)
    if fact.shape is None:
        ranks = None if row.ranks is None else frozenset(r + 1 for r in row.ranks)
        return Fact(row.dtype, None, ranks)
    # Zero iterations leave no row to take a shape from: the other dims are then not what they are
    # in the body, so they hold only where the loop surely runs or they are the body's declaration.
    axis = axis % (len(fact.shape) + 1)
    shifted = (*fact.shape[:axis], count, *fact.shape[axis:])
    if not symbolic.positive(count):
        shifted = tuple(
            d if i == axis else site.fresh(50 + i, place) for i, d in enumerate(shifted)
        )
    return Fact(row.dtype, shifted)


@shape_of("Scan")
def scan(site: Site) -> Sequence[Fact]:
    """Final states, then stacked scan outputs (ONNX: Scan, opset 9 and later)."""
    if site.opset < 9:  # another form, with a batch
        return [UNKNOWN] * len(site.node.outputs)
    view = ScanView(site.node)
    facts = site.facts
    _ensure_body_inputs(facts, view.body)
    results = _final_states(site, view.carried, view.body)
    count = _scan_length(site, view)
    for place, output in enumerate(view.scan_outputs, start=len(view.carried)):
        row = facts.of(output.row)
        results.append(_stacked(site, row, place, view.body, output.axis, count))
    return results


def _scan_length(site: Site, view: ScanView) -> Dim:
    for scanned in view.scan_inputs:
        shape = site.facts.shape(scanned.sequence)
        if shape is not None:
            return shape[site.axis(scanned.axis, len(shape))]
    return site.fresh(-1, max(0, len(site.node.outputs) - 1))


# --- body inputs ---------------------------------------------------------------------------------


def _ensure_body_inputs(facts: Facts, body: Graph) -> None:
    for tensor in body.inputs:
        facts.of(tensor)


def derive_body_inputs(facts: Facts, node: Node, body: Graph) -> None:
    """Finds the facts of a body's inputs that hold in every iteration."""
    given, states = _body_inputs(facts, node)
    for tensor in body.inputs:
        facts.assume(tensor, given.get(tensor, UNKNOWN))
    guesses = {state.input: facts.of(state.initial) for state in states}
    pairs = {state.input: state.output for state in states}
    _fixpoint(facts, body, guesses, pairs)


def invariant_holds(facts: Facts, node: Node, body: Graph) -> bool:
    """Whether what is known of a body's inputs is still true before and after every iteration.

    More may be true by now.
    """
    known = facts.derived(body.inputs)
    given, states = _body_inputs(facts, node)
    if len(known) < len(body.inputs) or len(given) + len(states) < len(body.inputs):
        return False
    return all(known[tensor] == fact for tensor, fact in given.items()) and all(
        _widen(facts, state.input, known[state.input], value) == known[state.input]
        for state in states
        for value in (state.initial, state.output)
    )


def _body_inputs(facts: Facts, node: Node) -> tuple[dict[Tensor, Fact], list[CarriedValue]]:
    """The facts of a body's inputs that are no states, and the states; neither is there for bodies
    of which nothing is known.
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
    """Weakens the guess for each state until one iteration leaves all of them true."""
    for round_ in range(_ROUNDS + 1):
        facts.forget(body)
        for tensor, guess in guesses.items():
            facts.assume(tensor, guess)
        widened = {t: _widen(facts, t, guess, outputs[t]) for t, guess in guesses.items()}
        if widened == guesses:
            return
        guesses = widened if round_ < _ROUNDS else dict.fromkeys(guesses, UNKNOWN)
    facts.forget(body)
    for tensor in guesses:
        facts.assume(tensor, UNKNOWN)


def _widen(facts: Facts, state: Tensor, guess: Fact, output: Tensor) -> Fact:
    fresh = {axis: facts.fresh(state, axis) for axis in range(len(guess.shape or ()))}
    wide = join(guess, facts.of(output), fresh)
    if wide.values is None and guess.values is not None and wide.shape == guess.shape:
        # An integer state that changes is a number of its own in each iteration.
        count = len(guess.values)
        if wide.dtype == BOOL:
            return Fact(wide.dtype, wide.shape, None, (None,) * count)
        values = tuple(facts.fresh(state, -1 - i, low=None) for i in range(count))
        return Fact(wide.dtype, wide.shape, None, values)
    return wide


def _iteration_fact(facts: Facts, view: LoopView) -> Fact:
    number = facts.fresh(view.iteration, -1, low=0)
    return Fact(INT64, view.iteration_shape, None, (number,))


def _slice_fact(facts: Facts, sequence: Tensor, axis: int) -> Fact:
    fact = facts.of(sequence)
    if fact.shape is None:
        ranks = None if fact.ranks is None else frozenset(r - 1 for r in fact.ranks)
        return Fact(fact.dtype, None, ranks)
    axis = axis % len(fact.shape)
    return Fact(fact.dtype, fact.shape[:axis] + fact.shape[axis + 1 :])
