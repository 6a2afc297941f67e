"""States that are linear in themselves: one product and one sum are all that must stay in the body.

    s' = s + z_t * (x_t - s)    ->   s' = (1 - z_t) * s + z_t * x_t

The factor and the offset no longer depend on the state, so they are computed for all iterations
outside. Exponential averages, QRNN, SRU, minimal gated units and selective state spaces (Mamba) are
such recurrences. Results change in the last digits, as with any rearrangement of float sums.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue
from ..vectorization.independent_work import Parallel, counted, is_outer, parallel_work
from .closed_form import fits_into

_MINIMAL = 2
"""The nodes of `a * s + b`."""
_LONGEST = 64
"""Nodes of an update that are put together; terms nest as deep."""


@dataclass(frozen=True, eq=False)
class Term:
    """An expression over values that do not depend on the state: a number, a value, or an operator
    on such expressions. Terms share parts; each is equal only to itself.
    """

    op: str = ""
    parts: tuple[Term, ...] = ()
    value: Tensor | None = None
    number: float = 0.0


ZERO, ONE, MINUS_ONE = Term(number=0.0), Term(number=1.0), Term(number=-1.0)


def plus(a: Term, b: Term) -> Term:
    return b if a == ZERO else a if b == ZERO else Term("Add", (a, b))


def minus(a: Term, b: Term) -> Term:
    return a if b == ZERO else negative(b) if a == ZERO else Term("Sub", (a, b))


def times(a: Term, b: Term) -> Term:
    if ZERO in (a, b):
        return ZERO
    return b if a == ONE else a if b == ONE else Term("Mul", (a, b))


def negative(a: Term) -> Term:
    return a if a == ZERO else MINUS_ONE if a == ONE else Term("Neg", (a,))


@dataclass(frozen=True)
class Affine:
    """factor * state + offset"""

    factor: Term
    offset: Term


@dataclass(frozen=True)
class Update:
    """How a state becomes its next value, and the nodes that compute that now."""

    state: CarriedValue
    affine: Affine
    nodes: list[Node]


class SimplifyLinearRecurrence(Rule):
    """A state that is linear in itself is updated by one product and one sum."""

    root = ("Loop", "Scan")
    fires = """g (float[T,3] xs, float[T,3] zs, float[3] s0) => (float[3] y, float[T,3] r) {
      y, r = Scan <num_scan_inputs=2, body = b (float[3] s, float[3] xt, float[3] zt) => (float[3] so, float[3] row) {
        d = Sub(xt, s) p = Mul(zt, d) so = Add(s, p) row = Identity(so) }> (s0, xs, zs) }"""
    spares = {
        "already": """g (float[T,3] xs, float[3] s0) => (float[3] y) <float a = {0.9}> {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so) {
        p = Mul(a, s) so = Add(p, xt) }> (s0, xs) }""",
        "no state is linear": """g (float[T,3] xs, float[3] s0) => (float[3] y) {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so) {
        d = Sub(xt, s) p = Mul(s, d) so = Add(s, p) }> (s0, xs) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        steps = counted(m)
        parallel = parallel_work(m.facts, steps)
        first: Miss | None = None
        for state in steps.carried:
            try:
                update = _update(m, steps, parallel, state)
            except Miss as miss:
                first = first or miss
                continue
            if update is not None:
                return {"update": update, "dtype": m.facts.dtype(state.initial)}
        raise first or Miss("no state is linear in itself and in nothing else", at=m.node)

    def apply(self, patch: Patch, update: Update, dtype: int) -> None:
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(dtype))
        state, last = update.state, update.nodes[-1]
        emit = patch.builder(state.input, last)
        inside = _Inside(emit, kind)
        product = emit("Mul", inside.value(update.affine.factor), state.input)
        patch.replace(state.output, emit("Add", product, inside.value(update.affine.offset)))
        for node in reversed(update.nodes):
            if patch.index.is_unused(node):
                patch.remove(node)
        patch.toward_normal_form()


def _update(m: Match, steps: CountedLoop, parallel: Parallel, state: CarriedValue) -> Update | None:
    """The update of a state, None if it is not linear. Raises Miss where there is no use in it."""
    known: dict[Tensor, Affine] = {state.input: Affine(ONE, ZERO)}
    nodes: list[Node] = []
    waiting = [(n.order, id(n), n) for n in _readers(m, steps, state.input)]
    heapq.heapify(waiting)
    while waiting:  # in graph order, and only what the state reaches
        _, _, node = heapq.heappop(waiting)
        if nodes and nodes[-1] is node:
            continue
        result = _step(m, steps, parallel, node, known)
        if result is not None:
            known[node.outputs[0]] = result
            nodes.append(node)
            for reader in _readers(m, steps, node.outputs[0]):
                heapq.heappush(waiting, (reader.order, id(reader), reader))
    if state.output not in known or state.output is state.input:
        return None
    needed = _needed(m, nodes, state)
    affine = known[state.output]
    m.need(len(needed) > _MINIMAL, "{} is one product and one sum already", state.output)
    m.need(len(needed) <= _LONGEST, "the update takes {} operators", len(needed))
    m.need(
        ZERO not in (affine.factor, affine.offset) and affine.factor != ONE,
        "{} is a sum or a product of what iterations read",
        state.output,
    )
    m.need(m.facts.dtype(state.initial) in FLOAT_OR_DOUBLE, "{} are no floats", state.initial)
    shape, start = m.facts.shape(state.input), m.facts.shape(state.initial)
    keeps = symbolic.equal_shapes(shape, start)
    m.need(keeps, "the shape of {} may change in the loop", state.input)
    assert start is not None
    path = set(needed)
    for node in needed:
        for t in node.inputs:
            m.need(
                t in known or fits_into(m.facts.shape(t), start),
                "{} may change the shape of the state",
                t,
            )
        others = [use.reader for t in node.outputs for use in m.index.uses(t)]
        own = node is needed[-1] or all(reader in path for reader in others)
        m.need(own, "{} is needed otherwise as well", node)
    return Update(state, affine, needed)


def _readers(m: Match, steps: CountedLoop, tensor: Tensor) -> list[Node]:
    """The nodes of the body itself that read a value."""
    return [n for n in m.index.consumers(tensor) if m.index.graph_of(n) is steps.body]


def _needed(m: Match, nodes: list[Node], state: CarriedValue) -> list[Node]:
    """Those nodes through which the state goes on its way to its next value."""
    among = set(nodes)
    wanted = {state.output}
    found = []
    for node in reversed(nodes):
        if node.outputs[0] in wanted:
            found.append(node)
            wanted.update(t for t in node.inputs if m.index.producer(t) in among)
    return found[::-1]


def _step(
    m: Match, steps: CountedLoop, parallel: Parallel, node: Node, known: dict[Tensor, Affine]
) -> Affine | None:
    """What a node makes of values that are linear in the state; None if it is not linear."""

    def operand(tensor: Tensor) -> Affine | None:
        if tensor in known:
            return known[tensor]
        free = tensor in parallel.batched or tensor in parallel.uniform
        if free or is_outer(m.facts, steps.body, tensor):
            return Affine(ZERO, Term(value=tensor))
        return None

    if node.domain or node.op not in ("Add", "Sub", "Mul", "Div", "Neg", "Where"):
        return None
    given = [operand(t) for t in node.inputs]
    operands = [a for a in given if a is not None]
    return _combined(node, operands) if len(operands) == len(given) else None


def _combined(node: Node, given: list[Affine]) -> Affine | None:
    if node.op == "Neg":
        return Affine(negative(given[0].factor), negative(given[0].offset))
    if node.op == "Where":
        return _selected(*given)
    a, b = given
    if node.op == "Add":
        return Affine(plus(a.factor, b.factor), plus(a.offset, b.offset))
    if node.op == "Sub":
        return Affine(minus(a.factor, b.factor), minus(a.offset, b.offset))
    if node.op == "Div":
        if b.factor != ZERO:
            return None
        return Affine(_divided(a.factor, b.offset), _divided(a.offset, b.offset))
    if a.factor != ZERO and b.factor != ZERO:
        return None
    linear, by = (b, a.offset) if a.factor == ZERO else (a, b.offset)
    return Affine(times(linear.factor, by), times(linear.offset, by))


def _divided(term: Term, by: Term) -> Term:
    return ZERO if term == ZERO else Term("Div", (term, by))


def _selected(mask: Affine, a: Affine, b: Affine) -> Affine | None:
    """Where(mask, a, b), where both sides keep something of the state: a factor of 0 would turn an
    infinite state into no number.
    """
    if mask.factor != ZERO or ZERO in (a.factor, b.factor):
        return None
    factor = Term("Where", (mask.offset, a.factor, b.factor))
    return Affine(factor, Term("Where", (mask.offset, a.offset, b.offset)))


class _Inside:
    """Makes the operators of terms in the body, each once."""

    def __init__(self, emit: Builder, kind: np.dtype) -> None:
        self._emit = emit
        self._kind = kind
        self._made: dict[Term, Tensor] = {}

    def value(self, term: Term) -> Tensor:
        if term.value is not None:
            return term.value
        if term not in self._made:
            self._made[term] = self._new(term)
        return self._made[term]

    def _new(self, term: Term) -> Tensor:
        if term.op:
            return self._emit(term.op, *(self.value(part) for part in term.parts))
        return self._emit.constant(np.array(term.number, self._kind))
