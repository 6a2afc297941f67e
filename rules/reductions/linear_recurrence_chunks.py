"""Long linear recurrences over few numbers: chunks of steps are worked off side by side.

    s_t = a_t * s_(t-1) + b_t

Within a chunk, `s_t = p_t * h + l_t`, where h is the state before the chunk, p the product of the
factors so far and l what the state would be from 0. A Scan over the steps of a chunk makes p and l
for all chunks at once; a second one over the chunks makes each h from the one before (Blelloch:
Prefix sums and their applications, 1990). There is no division and no logarithm; p cannot grow as
the factors are between -1 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, Variable
from ...rewrite.graph.views import CarriedValue
from ..vectorization.independent_work import Outside, counted, is_outer
from ..vectorization.operator_table import aligned
from .closed_form import fits_into
from .value_ranges import float_range

_LONGEST_STATE = 64
"""Elements up to which chunks are faster; measured on onnxruntime, even at 512."""
_FEWEST_STEPS = 256
_CHUNK = 32


@dataclass(frozen=True)
class Recurrence:
    """`state = factor * state + offset`, and whether the states are collected."""

    state: CarriedValue
    factor: Tensor
    offset: Tensor
    rows: list[Tensor]
    shape: tuple[int, ...]


class ChunkLinearRecurrence(Rule):
    """A long linear recurrence over a small state is worked off in chunks, side by side."""

    root = ("Loop", "Scan")
    fires = """g (float[300,3] xs, float[300,3] zs, float[3] s0) => (float[3] y, float[300,3] r) {
      f = Sigmoid(zs)
      y, r = Scan <num_scan_inputs=2, body = b (float[3] s, float[3] x, float[3] z) => (float[3] so, float[3] row) {
        p = Mul(z, s) so = Add(p, x) row = Identity(so) }> (s0, xs, f) }"""
    spares = {
        "may be too few": """g (float[T,3] xs, float[3] s0) => (float[3] y) <float a = {0.9}> {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] x) => (float[3] so) {
        p = Mul(a, s) so = Add(p, x) }> (s0, xs) }""",
        "may grow": """g (float[300,3] xs, float[3] s0) => (float[3] y) <float a = {1.1}> {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] x) => (float[3] so) {
        p = Mul(a, s) so = Add(p, x) }> (s0, xs) }""",
        "not known to be small": """g (float[300,B] xs, float[B] s0) => (float[B] y) <float a = {0.9}> {
      y = Scan <num_scan_inputs=1, body = b (float[B] s, float[B] x) => (float[B] so) {
        p = Mul(a, s) so = Add(p, x) }> (s0, xs) }""",
        "no recurrence": """g (float[300,3] xs, float[3] s0) => (float[3] y) {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] x) => (float[3] so) {
        p = Mul(x, s) so = Sin(p) }> (s0, xs) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        steps = counted(m)
        count = steps.count
        enough = count is not None and symbolic.le(_FEWEST_STEPS, count) is True
        m.need(len(steps.carried) == 1, "it does not carry one state")
        recurrence = _recurrence(m, steps)
        m.need(enough, "there may be too few steps: {}", "unknown" if count is None else count)
        sequence = next((r.sequence for r in steps.reads if r.slice is recurrence.factor), None)
        low, high = float_range(m.facts, sequence or recurrence.factor)
        m.need(low >= -1 and high <= 1, "products of {} may grow", recurrence.factor)
        return {"steps": steps, "facts": m.facts, "recurrence": recurrence}

    def apply(self, patch: Patch, steps: CountedLoop, facts: Facts, recurrence: Recurrence) -> None:
        emit = patch.builder(recurrence.state.output)
        outside = Outside(patch, steps, facts)
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(facts.dtype(recurrence.state.initial)))
        chunks = _Chunks(emit, steps, recurrence, kind)
        factors = chunks.divided(_all(outside, facts, steps, recurrence, recurrence.factor), 1)
        offsets = chunks.divided(_all(outside, facts, steps, recurrence, recurrence.offset), 0)
        products, locals_ = chunks.within(factors, offsets)
        final, starts = chunks.across(products, locals_)
        for row in recurrence.rows:
            patch.replace(row, chunks.joined(products, locals_, starts))
        if recurrence.state.final is not None and patch.index.use_count(recurrence.state.final):
            sizes = emit.vector(*recurrence.shape)
            patch.replace(recurrence.state.final, emit("Reshape", final, sizes))
        patch.loop(steps.node).remove_if_unused()
        patch.split_loop()


def _recurrence(m: Match, steps: CountedLoop) -> Recurrence:
    (state,) = steps.carried
    body, known = steps.body, {read.slice for read in steps.reads}

    def free(tensor: Tensor) -> bool:
        return tensor in known or is_outer(m.facts, body, tensor)

    total = m.producer(state.output, "Add")
    total = m.need(total, "{} is no recurrence of a product and a sum", state.output)
    product, offset = _told_apart(m, total, free)
    scaled = m.need(m.producer(product, "Mul"), "{} is no recurrence", state.output)
    carried, factor = _told_apart(m, scaled, free)
    m.need(carried is state.input, "{} is no recurrence", state.output)
    shape = m.facts.shape(state.initial)
    m.need(
        shape is not None and all(isinstance(d, int) for d in shape),
        "{} is not known to be small",
        state.initial,
        at=state.initial,
    )
    sizes = tuple(int(d) for d in shape or () if isinstance(d, int))
    count = int(np.prod(sizes))
    m.need(0 < count <= _LONGEST_STATE, "the state has {} elements", count)
    m.need(m.facts.dtype(state.initial) in FLOAT_OR_DOUBLE, "{} are no floats", state.initial)
    m.need(symbolic.equal_shapes(m.facts.shape(state.input), sizes), "the state changes its shape")
    for value in (factor, offset):
        m.need(fits_into(m.facts.shape(value), sizes), "{} changes the state's shape", value)
    rows = []
    for row in steps.scan_outputs:
        if row.stacked is not None and m.index.use_count(row.stacked):
            plain = row.axis == 0 and not row.reverse
            kept = m.index.original(row.slice) is state.output
            m.need(plain and kept, "{} is another row", row.slice)
            rows.append(row.stacked)
    return Recurrence(state, factor, offset, rows, sizes)


def _told_apart(m: Match, node: Node, free: Any) -> tuple[Tensor, Tensor]:
    """The operand that depends on the state, and the other one."""
    a, b = node.inputs
    m.need(free(a) != free(b), "{} is no recurrence", node.outputs[0])
    return (b, a) if free(a) else (a, b)


def _all(
    outside: Outside, facts: Facts, steps: CountedLoop, recurrence: Recurrence, inner: Tensor
) -> Tensor:
    """A factor or offset of all steps, each of the state's shape: (T, *shape)."""
    emit = outside.emit(inner)
    value, rank = outside[inner], facts.rank(inner)
    assert rank is not None, "its shape was compared with that of the state"
    count = emit.trip_count(steps)
    if not is_outer(facts, steps.body, inner):
        value = aligned(emit, value, True, rank, len(recurrence.shape))
    return emit("Expand", value, emit.concat([count, emit.vector(*recurrence.shape)]))


class _Chunks:
    """The steps of the computation; n is the number of elements of the state."""

    def __init__(
        self, emit: Builder, steps: CountedLoop, recurrence: Recurrence, kind: np.dtype
    ) -> None:
        self.emit = emit
        self.kind = kind
        self.count = emit.trip_count(steps)
        self.initial = recurrence.state.initial
        self.shape = recurrence.shape
        self.size = int(np.prod(recurrence.shape))
        step = emit.vector(_CHUNK)
        more = emit("Mod", emit("Sub", step, emit("Mod", self.count, step)), step)
        self.padding = emit.concat([more, emit.vector(self.size)])

    def divided(self, values: Tensor, neutral: int) -> Tensor:
        """(T, *shape) as (steps of a chunk, chunks, n), the last chunk filled up."""
        emit = self.emit
        flat = emit("Reshape", values, emit.vector(-1, self.size))
        number = Constant("value", np.full(1, neutral, self.kind))
        filling = emit("ConstantOfShape", self.padding, value=number)
        full = emit("Concat", flat, filling, axis=0)
        return emit.move_axis(emit("Reshape", full, emit.vector(-1, _CHUNK, self.size)), 1, 0, 3)

    def within(self, factors: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """The products of the factors and the states from 0, after each step of each chunk."""
        emit = self.emit
        sizes = emit.shape(factors, 1, 3)
        initial = [
            emit("ConstantOfShape", sizes, value=Constant("value", np.full(1, v, self.kind)))
            for v in (1, 0)
        ]
        names = ("product", "local", "factor", "offset")
        product, local, factor, offset = map(Variable, names)
        body = _Body([product, local, factor, offset])
        next_product = body.op("Mul", product, factor)
        next_local = body.op("Add", body.op("Mul", factor, local), offset)
        rows = [body.op("Identity", t) for t in (next_product, next_local)]
        graph = body.finished([next_product, next_local, *rows])
        return self._scan([*initial, factors, offsets], graph, 2, 2)

    def across(self, products: Tensor, locals_: Tensor) -> tuple[Tensor, Tensor]:
        """The state after the last chunk, and before each: (n) and (chunks, n)."""
        emit = self.emit
        last = emit.scalar(-1)
        ends = [emit("Gather", t, last, axis=0) for t in (products, locals_)]
        start = emit("Reshape", self.initial, emit.vector(self.size))
        state, product, local = map(Variable, ("state", "product", "local"))
        body = _Body([state, product, local])
        following = body.op("Add", body.op("Mul", product, state), local)
        graph = body.finished([following, body.op("Identity", state)])
        return self._scan([start, *ends], graph, 2, 0)

    def joined(self, products: Tensor, locals_: Tensor, starts: Tensor) -> Tensor:
        """The states after all steps: (T, *shape)."""
        emit = self.emit
        states = emit("Add", emit("Mul", products, starts), locals_)
        flat = emit("Reshape", emit.move_axis(states, 1, 0, 3), emit.vector(-1, *self.shape))
        return emit("Slice", flat, emit.vector(0), self.count, emit.vector(0))

    def _scan(
        self, inputs: list[Tensor], body: Graph, scanned: int, first: int
    ) -> tuple[Tensor, Tensor]:
        """Two results of a Scan from a place on."""
        like = [self.emit.like] * len(body.outputs)
        results = self.emit.outputs("Scan", inputs, like, body=body, num_scan_inputs=scanned)
        return results[first], results[first + 1]


class _Body:
    """The body of a Scan in the making."""

    def __init__(self, parameters: list[Variable]) -> None:
        self._graph = Graph(name="body")
        self._graph.inputs = parameters

    def op(self, op: str, *operands: Tensor) -> Variable:
        result = Variable(f"{op.lower()}_{len(self._graph.nodes)}")
        node = Node(op, "", {}, list(operands), [result], "")
        node.order = float(len(self._graph.nodes))
        self._graph.nodes.append(node)
        return result

    def finished(self, outputs: list[Variable]) -> Graph:
        self._graph.outputs = outputs
        return self._graph
