"""Long linear recurrences of few elements: the iterations are divided into chunks.

    s_t = a_t * s_(t-1) + b_t

Within a chunk, `s_t = p_t * h + l_t`, where h is the carried value before the chunk, p_t the product
of the factors since the start of the chunk, and l_t the carried value if the chunk started from 0. A
Scan over the positions in a chunk computes p and l for all chunks at once; a second Scan, over the
chunks, computes each h from the one before (Blelloch: Prefix sums and their applications, 1990).
There is no division and no logarithm, and p cannot grow as the factors are between -1 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import helper

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, Variable, number_nodes
from ...rewrite.graph.views import CarriedValue
from ..loops.counted_loop_checks import need_counted_loop
from ..vectorization.batching import align_rank
from ..vectorization.independent_work import HoistedValues
from .closed_form import broadcasts_to
from .value_ranges import float_range

_MAX_ELEMENTS = 64
"""The most elements of a carried value that is split into chunks; these break even at 512."""
MAY_GROW = "the elements of {} are not known to be between -1 and 1, so their products may grow"
_MIN_ITERATIONS = 256
_CHUNK = 32
"""The iterations of a chunk."""


@dataclass(frozen=True)
class LinearRecurrence:
    """A loop that does nothing but update one carried value: s = factor * s + offset."""

    loop: CountedLoop
    carried: CarriedValue
    factor: Tensor
    offset: Tensor
    collected: list[Tensor]
    """The stacked scan outputs, which collect the carried value."""
    shape: tuple[int, ...]
    """The shape of the carried value."""


class ChunkLinearRecurrence(Rule[LinearRecurrence]):
    """Splits a long linear recurrence of few elements into chunks that are computed in parallel."""

    root = ("Loop", "Scan")
    promise = Promise(
        rounds="sums and products in another order",
        nonfinite="products that overflow before they cancel",
        accepts="those that read past the end of the sequence",
    )
    fires = """g (float[300,3] xs, float[300,3] zs, float[3] s0) => (float[3] y, float[300,3] r) {
      f = Sigmoid(zs)
      y, r = Scan <num_scan_inputs=2, body = b (float[3] s, float[3] x, float[3] z) => (float[3] so, float[3] row) {
        p = Mul(z, s) so = Add(p, x) row = Identity(so) }> (s0, xs, f) }"""
    spares = {
        "not known to have": """g (float[T,3] xs, float[3] s0) => (float[3] y) <float a = {0.9}> {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] x) => (float[3] so) {
        p = Mul(a, s) so = Add(p, x) }> (s0, xs) }""",
        "may grow": """g (float[300,3] xs, float[3] s0) => (float[3] y) <float a = {1.1}> {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] x) => (float[3] so) {
        p = Mul(a, s) so = Add(p, x) }> (s0, xs) }""",
        "not known to be small": """g (float[300,B] xs, float[B] s0) => (float[B] y) <float a = {0.9}> {
      y = Scan <num_scan_inputs=1, body = b (float[B] s, float[B] x) => (float[B] so) {
        p = Mul(a, s) so = Add(p, x) }> (s0, xs) }""",
        "a product and a sum": """g (float[300,3] xs, float[3] s0) => (float[3] y) {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] x) => (float[3] so) {
        p = Mul(x, s) so = Sin(p) }> (s0, xs) }""",
    }

    def match(self, m: Match) -> LinearRecurrence:
        loop = need_counted_loop(m)
        m.need(len(loop.carried) == 1, "it does not carry exactly one value")
        found = _need_linear_recurrence(m, loop)
        count = loop.count
        enough = count is not None and symbolic.le(_MIN_ITERATIONS, count) is True
        known = "unknown" if count is None else count
        few = "it is not known to have {} iterations; the trip count is {}"
        m.need(enough, few, _MIN_ITERATIONS, known)
        sequence = next((r.sequence for r in loop.reads if r.slice is found.factor), found.factor)
        low, high = float_range(m.facts, sequence)
        m.need(low >= -1 and high <= 1, MAY_GROW, found.factor)
        return found

    def apply(self, patch: Patch, found: LinearRecurrence) -> None:
        carried = found.carried
        emit = patch.builder(carried.output)
        kind = helper.tensor_dtype_to_np_dtype(patch.facts.dtype(carried.initial))
        chunks = _Chunks(emit, found, kind)
        hoisted = HoistedValues(patch, found.loop, {})
        factors = chunks.divide(_in_all_iterations(patch, hoisted, found, found.factor), 1)
        offsets = chunks.divide(_in_all_iterations(patch, hoisted, found, found.offset), 0)
        products, locals_ = chunks.scan_within(factors, offsets)
        final, starts = chunks.scan_across(products, locals_)
        for stacked in found.collected:
            patch.replace(stacked, chunks.join(products, locals_, starts))
        if carried.final is not None and patch.index.use_count(carried.final):
            patch.replace(carried.final, emit("Reshape", final, emit.vector(*found.shape)))
        patch.loop(found.loop.node).remove_if_unused()
        patch.split_loop()


def _need_linear_recurrence(m: Match, loop: CountedLoop) -> LinearRecurrence:
    """The loop as a linear recurrence over a small carried value; raises Miss if it is not one."""
    (carried,) = loop.carried
    other = "{} is not updated by a product and a sum"

    def split_operands(node: Node) -> tuple[Tensor, Tensor]:
        """The operand that depends on the carried value, and the one that does not."""
        a, b = node.inputs
        m.need(_is_coefficient(m, loop, a) != _is_coefficient(m, loop, b), other, carried.output)
        return (b, a) if _is_coefficient(m, loop, a) else (a, b)

    total = m.need(m.producer(carried.output, "Add"), other, carried.output)
    product, offset = split_operands(total)
    scaled = m.need(m.producer(product, "Mul"), other, carried.output)
    previous, factor = split_operands(scaled)
    m.need(previous is carried.input, other, carried.output)
    initial = carried.initial
    shape = _static_shape(m.facts.shape(initial))
    shape = m.need(shape, "{} is not known to be small", initial, at=initial)
    elements = int(np.prod(shape))
    m.need(
        0 < elements <= _MAX_ELEMENTS,
        "the carried value has {} elements, more than {}",
        elements, _MAX_ELEMENTS,
    )  # fmt: skip
    m.need(m.facts.dtype(initial) in FLOAT_OR_DOUBLE, "{} is not a float tensor", initial)
    same = symbolic.equal_shapes(m.facts.shape(carried.input), shape)
    m.need(same, "the shape of {} may change in the loop", carried.input)
    for value in (factor, offset):
        fits = broadcasts_to(m.facts.shape(value), shape)
        m.need(fits, "{} may change the shape of the carried value", value)
    collected = []
    for output, stacked in loop.read_scan_outputs(m.index):
        plain = output.axis == 0 and not output.reverse
        same = m.index.original(output.slice) is carried.output
        m.need(plain and same, "the scan output of {} is not the carried value", output.slice)
        collected.append(stacked)
    return LinearRecurrence(loop, carried, factor, offset, collected, shape)


def _is_coefficient(m: Match, loop: CountedLoop, tensor: Tensor) -> bool:
    """Whether a value is a slice read, or available outside of the loop."""
    read = any(tensor is each.slice for each in loop.reads)
    return read or loop.is_outer_value(m.index, tensor)


def _static_shape(shape: tuple[symbolic.Dim, ...] | None) -> tuple[int, ...] | None:
    """A shape if all of its sizes are known numbers."""
    sizes = tuple(size for size in shape or () if isinstance(size, int))
    return sizes if shape is not None and len(sizes) == len(shape) else None


def _in_all_iterations(
    patch: Patch, hoisted: HoistedValues, found: LinearRecurrence, inner: Tensor
) -> Tensor:
    """A factor or offset in all iterations, expanded to the shape of the carried value.

    Returns (T, *shape), where T is the trip count.
    """
    facts = patch.facts
    emit, value = hoisted.builder(inner), hoisted[inner]
    count = emit.trip_count(found.loop)
    if not found.loop.is_outer_value(patch.index, inner):
        rank = len(facts.known_shape(inner))
        value = align_rank(emit, value, True, rank, len(found.shape))
    return emit("Expand", value, emit.concat([count, emit.vector(*found.shape)]))


class _Chunks:
    """Builds the two Scans; n is the number of elements of the carried value, T the trip count."""

    def __init__(self, emit: Builder, found: LinearRecurrence, kind: np.dtype) -> None:
        self._emit = emit
        self._kind = kind
        self._count = emit.trip_count(found.loop)
        self._initial = found.carried.initial
        self._shape = found.shape
        self._elements = int(np.prod(found.shape))
        chunk = emit.vector(_CHUNK)
        missing = emit("Mod", emit("Sub", chunk, emit("Mod", self._count, chunk)), chunk)
        self._padding = emit.concat([missing, emit.vector(self._elements)])

    def divide(self, values: Tensor, neutral: int) -> Tensor:
        """Divides (T, *shape) into (position in chunk, chunk, n); fills the last chunk up."""
        emit = self._emit
        flat = emit("Reshape", values, emit.vector(-1, self._elements))
        number = Constant("value", np.full(1, neutral, self._kind))
        filling = emit("ConstantOfShape", self._padding, value=number)
        full = emit("Concat", flat, filling, axis=0)
        chunks = emit("Reshape", full, emit.vector(-1, _CHUNK, self._elements))
        return emit.move_axis(chunks, 1, 0, 3)

    def scan_within(self, factors: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """The products of the factors, and the carried values from 0, after each iteration.

        Takes and returns (position in chunk, chunk, n).
        """
        emit = self._emit
        sizes = emit.shape(factors, 1, 3)
        initial = [
            emit("ConstantOfShape", sizes, value=Constant("value", np.full(1, v, self._kind)))
            for v in (1, 0)
        ]
        names = ("product", "local", "factor", "offset")
        product, local, factor, offset = map(Variable, names)
        body = BodyBuilder([product, local, factor, offset])
        next_product = body("Mul", product, factor)
        next_local = body("Add", body("Mul", factor, local), offset)
        slices = [body("Identity", t) for t in (next_product, next_local)]
        graph = body.finish([next_product, next_local, *slices])
        _, _, products, locals_ = self._scan([*initial, factors, offsets], graph)
        return products, locals_

    def scan_across(self, products: Tensor, locals_: Tensor) -> tuple[Tensor, Tensor]:
        """The carried value after the last chunk, (n), and before each chunk, (chunk, n)."""
        emit = self._emit
        last = emit.scalar(-1)
        ends = [emit("Gather", t, last, axis=0) for t in (products, locals_)]
        start = emit("Reshape", self._initial, emit.vector(self._elements))
        carried, product, local = map(Variable, ("carried", "product", "local"))
        body = BodyBuilder([carried, product, local])
        following = body("Add", body("Mul", product, carried), local)
        graph = body.finish([following, body("Identity", carried)])
        final, starts = self._scan([start, *ends], graph)
        return final, starts

    def join(self, products: Tensor, locals_: Tensor, starts: Tensor) -> Tensor:
        """The carried values after all iterations: (T, *shape)."""
        emit = self._emit
        values = emit("Add", emit("Mul", products, starts), locals_)
        flat = emit("Reshape", emit.move_axis(values, 1, 0, 3), emit.vector(-1, *self._shape))
        return emit("Slice", flat, emit.vector(0), self._count, emit.vector(0))

    def _scan(self, inputs: list[Tensor], body: Graph) -> list[Tensor]:
        """The results of a Scan over two sequences."""
        like = [self._emit.like] * len(body.outputs)
        return self._emit.outputs("Scan", inputs, like, body=body, num_scan_inputs=2)


class BodyBuilder:
    """Builds the body of a Scan."""

    def __init__(self, parameters: list[Variable]) -> None:
        self._graph = Graph(name="body")
        self._graph.inputs = parameters

    def __call__(self, op: str, *operands: Tensor) -> Variable:
        """Adds a node with one output and returns the output."""
        result = Variable(f"{op.lower()}_{len(self._graph.nodes)}")
        node = Node(op, "", {}, list(operands), [result], "")
        self._graph.nodes.append(node)
        return result

    def finish(self, outputs: list[Variable]) -> Graph:
        """The body with these outputs."""
        self._graph.outputs = outputs
        number_nodes(self._graph.nodes)
        return self._graph
