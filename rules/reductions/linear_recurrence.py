"""Linear recurrences: one product and one sum are all that must stay in the body.

    s' = s + z_t * (x_t - s)    ->   s' = (1 - z_t) * s + z_t * x_t

The factor and the offset depend on no carried value, so they are then computed for all iterations
outside. Exponential averages, QRNN, SRU, minimal gated units and selective state spaces (Mamba) are
such recurrences. Results change in the last digits, as with any rearrangement of float sums.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from onnx import helper

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from ..loops.counted_loop_checks import need_counted_loop
from ..vectorization.independent_work import IndependentWork, need_independent_work
from .closed_form import broadcasts_to

_MINIMAL_NODES = 2
"""The nodes of `factor * s + offset`."""
_MAX_NODES = 64
"""The most nodes of an update; expressions nest as deep."""

# --- expressions that depend on no carried value ---


@dataclass(frozen=True, eq=False)
class Expression:
    """A number, a value, or an operator on expressions; independent of all carried values.

    Expressions share operands. Each is equal only to itself.
    """

    op: str = ""
    operands: tuple[Expression, ...] = ()
    value: Tensor | None = None
    number: float = 0.0


ZERO, ONE, MINUS_ONE = Expression(), Expression(number=1.0), Expression(number=-1.0)


def add(a: Expression, b: Expression) -> Expression:
    """a + b"""
    return b if a is ZERO else a if b is ZERO else Expression("Add", (a, b))


def subtract(a: Expression, b: Expression) -> Expression:
    """a - b"""
    return a if b is ZERO else negate(b) if a is ZERO else Expression("Sub", (a, b))


def multiply(a: Expression, b: Expression) -> Expression:
    """a * b"""
    if a is ZERO or b is ZERO:
        return ZERO
    return b if a is ONE else a if b is ONE else Expression("Mul", (a, b))


def divide(a: Expression, b: Expression) -> Expression:
    """a / b"""
    return ZERO if a is ZERO else Expression("Div", (a, b))


def negate(a: Expression) -> Expression:
    """-a"""
    return a if a is ZERO else MINUS_ONE if a is ONE else Expression("Neg", (a,))


# --- the rule ---


@dataclass(frozen=True)
class LinearForm:
    """factor * s + offset, where s is a carried value."""

    factor: Expression
    offset: Expression


@dataclass(frozen=True)
class LinearUpdate:
    """A carried value whose update is linear in it, and the nodes that compute the update."""

    carried: CarriedValue
    form: LinearForm
    nodes: list[Node]
    """In the order in which they run; the last one computes the next value."""


class SimplifyLinearRecurrence(Rule[LinearUpdate]):
    """Rewrites the update of a carried value that is linear in it as one product and one sum."""

    root = ("Loop", "Scan")
    promise = Promise(
        rounds="sums and products in another order",
        nonfinite="products that overflow before they cancel",
        accepts="those that read past the end of the sequence",
    )
    fires = """g (float[T,3] xs, float[T,3] zs, float[3] s0) => (float[3] y, float[T,3] r) {
      y, r = Scan <num_scan_inputs=2, body = b (float[3] s, float[3] xt, float[3] zt) => (float[3] so, float[3] row) {
        d = Sub(xt, s) p = Mul(zt, d) so = Add(s, p) row = Identity(so) }> (s0, xs, zs) }"""
    spares = {
        "already": """g (float[T,3] xs, float[3] s0) => (float[3] y) <float a = {0.9}> {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so) {
        p = Mul(a, s) so = Add(p, xt) }> (s0, xs) }""",
        "no carried value is linear": """g (float[T,3] xs, float[3] s0) => (float[3] y) {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so) {
        d = Sub(xt, s) p = Mul(s, d) so = Add(s, p) }> (s0, xs) }""",
    }

    def match(self, m: Match) -> LinearUpdate:
        loop = need_counted_loop(m)
        work = need_independent_work(m)
        return m.first(
            lambda carried: _linear_update(m, work, carried),
            loop.carried,
            "no carried value is linear in itself alone",
        )

    def apply(self, patch: Patch, found: LinearUpdate) -> None:
        carried, form = found.carried, found.form
        kind = helper.tensor_dtype_to_np_dtype(patch.facts.dtype(carried.initial))
        emit = patch.builder(carried.input, found.nodes[-1])
        build = _ExpressionBuilder(emit, kind)
        product = emit("Mul", build(form.factor), carried.input)
        patch.replace(carried.output, emit("Add", product, build(form.offset)))
        for node in reversed(found.nodes):
            if patch.index.is_unused(node):
                patch.remove(node)
        patch.toward_normal_form()


def _linear_update(m: Match, work: IndependentWork, carried: CarriedValue) -> LinearUpdate | None:
    """The update of a carried value; None if it is not linear.

    Raises Miss where the update would not get simpler, or must stay for another reason.
    """
    forms, linear = _linear_nodes(m, work, carried)
    if carried.output not in forms or carried.output is carried.input:
        return None
    form, nodes = forms[carried.output], _nodes_of_update(m, linear, carried)
    minimal = len(nodes) <= _MINIMAL_NODES
    m.need(not minimal, "{} is one product and one sum already", carried.output)
    m.need(len(nodes) <= _MAX_NODES, "the update takes {} operators", len(nodes))
    is_sum_or_product = form.factor in (ZERO, ONE) or form.offset is ZERO
    closed = "{} is a sum or a product of what iterations read"
    m.need(not is_sum_or_product, closed, carried.output)
    m.need(
        m.facts.dtype(carried.initial) in FLOAT_OR_DOUBLE,
        "{} is not a float tensor",
        carried.initial,
    )
    changes = "the shape of {} may change in the loop"
    shape = m.need(m.facts.shape(carried.initial), changes, carried.input)
    m.need(symbolic.equal_shapes(m.facts.shape(carried.input), shape), changes, carried.input)
    _need_rewritable(m, nodes, forms, shape)
    return LinearUpdate(carried, form, nodes)


def _need_rewritable(
    m: Match, nodes: list[Node], forms: dict[Tensor, LinearForm], shape: tuple[Dim, ...]
) -> None:
    """Raises Miss if an operand may change the shape, or if a node has readers besides the update."""
    path = set(nodes)
    for node in nodes:
        for t in node.inputs:
            fits = t in forms or broadcasts_to(m.facts.shape(t), shape)
            m.need(fits, "{} may change the shape of the carried value", t)
        readers = [use.reader for t in node.outputs for use in m.index.uses(t)]
        own = node is nodes[-1] or all(reader in path for reader in readers)
        m.need(own, "something other than the update reads the result of {}", node)


def _linear_nodes(
    m: Match, work: IndependentWork, carried: CarriedValue
) -> tuple[dict[Tensor, LinearForm], list[Node]]:
    """The values of a body that are linear in a carried value, and the nodes that compute them.

    Visits only nodes that the carried value reaches, in graph order.
    """

    def readers(tensor: Tensor) -> list[Node]:
        return [n for n in m.index.consumers(tensor) if m.index.graph_of(n) is work.loop.body]

    forms = {carried.input: LinearForm(ONE, ZERO)}
    nodes: list[Node] = []
    waiting = [(n.order, id(n), n) for n in readers(carried.input)]
    heapq.heapify(waiting)
    while waiting:
        _, _, node = heapq.heappop(waiting)
        if nodes and nodes[-1] is node:
            continue
        form = _linear_form(m.index, work, node, forms)
        if form is not None:
            forms[node.outputs[0]] = form
            nodes.append(node)
            for reader in readers(node.outputs[0]):
                heapq.heappush(waiting, (reader.order, id(reader), reader))
    return forms, nodes


def _nodes_of_update(m: Match, nodes: list[Node], carried: CarriedValue) -> list[Node]:
    """Those of the nodes that the next value depends on, in the same order."""
    linear = set(nodes)
    needed = {carried.output}
    found = []
    for node in reversed(nodes):
        if node.outputs[0] in needed:
            found.append(node)
            needed.update(t for t in node.inputs if m.index.producer(t) in linear)
    return found[::-1]


# --- linear forms of operators ---


def _linear_form(
    index: Index, work: IndependentWork, node: Node, forms: dict[Tensor, LinearForm]
) -> LinearForm | None:
    """The result of a node in terms of a carried value; None if it is not linear."""
    if node.domain or node.op not in ("Add", "Sub", "Mul", "Div", "Neg", "Where"):
        return None
    operands = []
    for tensor in node.inputs:
        if tensor in forms:
            operands.append(forms[tensor])
        elif work.is_independent(index, tensor):
            operands.append(LinearForm(ZERO, Expression(value=tensor)))
        else:
            return None
    return _apply(node.op, operands)


def _apply(op: str, operands: list[LinearForm]) -> LinearForm | None:
    """The linear form of an operator on linear forms, or None."""
    if op == "Neg":
        return LinearForm(negate(operands[0].factor), negate(operands[0].offset))
    if op == "Where":
        return _select(*operands)
    a, b = operands
    if op == "Add":
        return LinearForm(add(a.factor, b.factor), add(a.offset, b.offset))
    if op == "Sub":
        return LinearForm(subtract(a.factor, b.factor), subtract(a.offset, b.offset))
    if op == "Div":
        if b.factor is not ZERO:
            return None
        return LinearForm(divide(a.factor, b.offset), divide(a.offset, b.offset))
    if a.factor is not ZERO and b.factor is not ZERO:
        return None
    linear, scale = (b, a.offset) if a.factor is ZERO else (a, b.offset)
    return LinearForm(multiply(linear.factor, scale), multiply(linear.offset, scale))


def _select(mask: LinearForm, a: LinearForm, b: LinearForm) -> LinearForm | None:
    """Where(mask, a, b); None unless both sides depend on the carried value.

    If one side did not, the factor could be 0, and 0 times infinity is NaN: a reset of an infinite
    carried value would fail.
    """
    if mask.factor is not ZERO or a.factor is ZERO or b.factor is ZERO:
        return None
    factor = Expression("Where", (mask.offset, a.factor, b.factor))
    return LinearForm(factor, Expression("Where", (mask.offset, a.offset, b.offset)))


class _ExpressionBuilder:
    """Builds expressions in the body, each once."""

    def __init__(self, emit: Builder, kind: np.dtype) -> None:
        self._emit = emit
        self._kind = kind
        self._built: dict[Expression, Tensor] = {}

    def __call__(self, expression: Expression) -> Tensor:
        if expression.value is not None:
            return expression.value
        if expression not in self._built:
            self._built[expression] = self._build(expression)
        return self._built[expression]

    def _build(self, expression: Expression) -> Tensor:
        if expression.op:
            return self._emit(expression.op, *map(self, expression.operands))
        return self._emit.constant(np.array(expression.number, self._kind))
