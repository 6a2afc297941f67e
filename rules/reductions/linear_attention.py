"""Linear attention as matrix products: recurrences over outer products, divided into chunks.

    S_t = a_t * S_(t-1) + k_t ⊗ v_t        o_t = q_t · S_t

Retention, gated linear attention, RWKV and Mamba 2 carry such a matrix S. Within a chunk,

    o_i = sum over j <= i of (q_i · p_ij k_j) v_j  +  (p_i q_i) · S

where S is the carried value before the chunk, p_ij the product of the factors a after iteration j up
to iteration i, and p_i that of all factors up to iteration i. The sums are matrix products over all
chunks at once; a Scan over the chunks computes each S from the one before (Sun et al.: Retentive
network, 2023; Yang et al.: Gated linear attention transformers with hardware-efficient training,
2024). The products p are computed factor by factor, without divisions and logarithms, and cannot
grow, as the factors are between -1 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import helper

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, NO_EMPTY_RESHAPES
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.axes import named_axes
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, Variable
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from ..loops.counted_loop_checks import need_counted_loop
from ..vectorization.independent_work import (
    HoistedValues,
    IndependentWork,
    find_independent_work,
)
from .linear_recurrence_chunks import BodyBuilder
from .value_ranges import float_range

_MIN_ELEMENTS = 256
"""Elements of a carried value from which matrix products are faster; measured on onnxruntime."""
_LIKELY = 64
"""The size that is assumed of an axis whose size is not known: that of an attention head."""
_MIN_ITERATIONS = 16
_CHUNK = 64
"""The iterations of a chunk if all elements decay alike along the contracted axis."""
_SHORT_CHUNK = 8
"""The same if each element has its own factor, which takes work for each pair of iterations."""

Axes = tuple[int | None, ...]
"""The axis of the carried value for each axis of another value; None for an axis of size 1."""


@dataclass(frozen=True)
class Factor:
    """A value of the body that depends on no carried value, as a factor of an elementwise product."""

    value: Tensor
    axes: Axes
    """Only axes along which the value may vary; the others are None."""

    def varies_along(self, axis: int) -> bool:
        """Whether the factor may differ along an axis of the carried value."""
        return axis in self.axes


@dataclass(frozen=True)
class Contraction:
    """A read of the carried value: its product with a vector, summed along one axis."""

    result: Tensor
    node: Node
    """The node that computes the result."""
    axis: int
    """The axis of the carried value that is summed over."""
    query: Factor
    bonus: list[Factor]
    """The factors of an outer product that is added to the carried value first; [] for none."""
    reads_next: bool
    """Whether it reads the value at the end of the iteration, not that at the start."""
    kept: Axes
    """The axes of the result."""


@dataclass(frozen=True)
class LinearAttention:
    """A carried value updated by outer products and read by contractions only."""

    loop: CountedLoop
    work: IndependentWork
    number: int
    """The number of the carried value."""
    carried: CarriedValue
    decay: Factor | None
    """The factor of the carried value; None if it is not scaled."""
    added: list[Factor]
    """The factors of the outer product that each iteration adds."""
    reads: list[Contraction]
    batch: list[int]
    """The axes along which keys and values both vary."""
    columns: list[int]
    """The axes along which only values vary."""


class ChunkLinearAttention(Rule[LinearAttention]):
    """Computes a recurrence over outer products that is read by contractions as matrix products."""

    root = ("Loop", "Scan")
    promise = Promise(
        rounds="sums and products in another order",
        nonfinite="an infinite or NaN slice reaches earlier iterations of its chunk, and so does a "
        "product of a query and a later key that overflows",
        accepts="those that read after the end of the sequence",
    )
    fires = """g (float[T,16] q, float[T,16] k, float[T,16] v, float[T,1,1] f, float[16,16] s0) => (float[16,16] s, float[T,1,16] y)
      <int64[1] first = {0}, int64[1] last = {1}> {
      a = Sigmoid(f)
      s, y = Scan <num_scan_inputs=4, body = b (float[16,16] u, float[16] qt, float[16] kt, float[16] vt, float[1,1] at) => (float[16,16] un, float[1,16] o) {
        kc = Unsqueeze(kt, last) vr = Unsqueeze(vt, first) kv = Mul(kc, vr)
        d = Mul(at, u) un = Add(d, kv) qr = Unsqueeze(qt, first) o = MatMul(qr, un) }> (s0, q, k, v, a) }"""
    spares = {
        "may grow": """g (float[T,16] q, float[T,16] k, float[T,16] v, float[T,1,1] a, float[16,16] s0) => (float[16,16] s, float[T,1,16] y)
      <int64[1] first = {0}, int64[1] last = {1}> {
      s, y = Scan <num_scan_inputs=4, body = b (float[16,16] u, float[16] qt, float[16] kt, float[16] vt, float[1,1] at) => (float[16,16] un, float[1,16] o) {
        kc = Unsqueeze(kt, last) vr = Unsqueeze(vt, first) kv = Mul(kc, vr)
        d = Mul(at, u) un = Add(d, kv) qr = Unsqueeze(qt, first) o = MatMul(qr, un) }> (s0, q, k, v, a) }""",
        "varies along every axis": """g (float[T,16] q, float[T,16] k, float[T,16] v, float[T,16,16] f, float[16,16] s0) => (float[16,16] s, float[T,1,16] y)
      <int64[1] first = {0}, int64[1] last = {1}> {
      a = Sigmoid(f)
      s, y = Scan <num_scan_inputs=4, body = b (float[16,16] u, float[16] qt, float[16] kt, float[16] vt, float[16,16] at) => (float[16,16] un, float[1,16] o) {
        kc = Unsqueeze(kt, last) vr = Unsqueeze(vt, first) kv = Mul(kc, vr)
        d = Mul(at, u) un = Add(d, kv) qr = Unsqueeze(qt, first) o = MatMul(qr, un) }> (s0, q, k, v, a) }""",
        "no carried value is read by contractions only": """g (float[T,3] xs, float[3] s0) => (float[3] y) {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so) {
        p = Mul(s, xt) so = Sin(p) }> (s0, xs) }""",
    }

    def match(self, m: Match) -> LinearAttention:
        loop = need_counted_loop(m)
        m.need(m.facts.opset >= EMPTY_RESHAPES, NO_EMPTY_RESHAPES)
        few = "it has {} iterations, too few for chunks"
        enough = not isinstance(loop.count, int) or loop.count >= _MIN_ITERATIONS
        m.need(enough, few, loop.count)
        nodes = [m.producer(c.output, "Add") for c in loop.carried]
        none = "no carried value is read by contractions only"
        m.need(any(nodes), none)
        work = find_independent_work(m.facts, loop)

        def attention(number: int) -> LinearAttention | None:
            node = nodes[number]
            return None if node is None else _Matcher(m, work, number).find(node)

        return m.first(attention, range(len(nodes)), none)

    def apply(self, patch: Patch, found: LinearAttention) -> None:
        loop, carried = found.loop, found.carried
        edit = patch.loop(loop.node)
        edit.declare_scan_outputs(loop)
        results, final = _ChunkedProducts(patch, found).build()
        edit.read_slices([(read.result, r) for read, r in zip(found.reads, results)])
        for read in found.reads:
            patch.remove(read.node)
        if carried.final is not None and patch.index.use_count(carried.final):
            patch.replace(carried.final, final)
        # The update is dead code that reads the initial value until EliminateDeadNode removes it.
        patch.replace(carried.input, carried.initial)
        edit.drop_carried([found.number])
        patch.split_loop()


# --- the match ---


def _likely_size(shape: Iterable[Dim]) -> int:
    """The number of elements of a shape, with a common number for each size that is not known."""
    return math.prod(n if isinstance(n, int) else _LIKELY for n in shape)


class _Matcher:
    """Matches the update and the reads of one carried value."""

    def __init__(self, m: Match, work: IndependentWork, number: int) -> None:
        self._m = m
        self._work = work
        self._loop = work.loop
        self._number = number
        self._carried = work.loop.carried[number]
        m.need(
            m.facts.dtype(self._carried.initial) in FLOAT_OR_DOUBLE,
            "{} is not a float tensor",
            self._carried.initial,
        )
        changes = "the shape of {} may change in the loop"
        shape = m.facts.shape(self._carried.initial)
        self._shape: tuple[Dim, ...] = m.need(shape, changes, self._carried.input)
        for value in (self._carried.input, self._carried.output):
            same = symbolic.equal_shapes(m.facts.shape(value), self._shape)
            m.need(same, changes, self._carried.input)
        self._all_axes: Axes = tuple(range(len(self._shape)))

    def find(self, update: Node) -> LinearAttention:
        """The recurrence that a sum updates; raises Miss if it is none."""
        m, carried = self._m, self._carried
        elements = _likely_size(self._shape)
        few = "{} has {} elements, fewer than {}"
        m.need(elements >= _MIN_ELEMENTS, few, carried.input, elements, _MIN_ELEMENTS)
        decay, own, added = self._decay_and_added(update)
        if own is not None:
            other = "something other than a contraction reads {}"
            m.need(m.index.use_count(own.outputs[0]) == 1, other, own.outputs[0])
        reads = self._reads({update, own} if own is not None else {update})
        decays = [] if decay is None else [decay]
        if decay is not None:
            inner = decay.value
            read = next((r.sequence for r in self._loop.reads if r.slice is inner), inner)
            low, high = float_range(m.facts, read)
            m.need(low >= -1 and high <= 1, "products of {} may grow", inner)
        (axis, *others) = dict.fromkeys(read.axis for read in reads)
        m.need(not others, "the reads of {} sum over different axes", carried.input)
        keys = [f for f in added if f.varies_along(axis)]
        shared = [*decays, *keys, *(read.query for read in reads)]
        shared += [f for read in reads for f in read.bonus if f.varies_along(axis)]
        columns = [
            a for a in range(len(self._shape))
            if a != axis and not any(f.varies_along(a) for f in shared)
        ]  # fmt: skip
        size = _likely_size(self._shape[a] for a in columns)
        what = decay.value if decay is not None else added[0].value
        every = "{} varies along every axis of {}, so there is no matrix product"
        m.need(size > 1, every, what, carried.input)
        batch = [a for a in range(len(self._shape)) if a != axis and a not in columns]
        return LinearAttention(
            self._loop, self._work, self._number, carried, decay, added, reads, batch, columns,
        )  # fmt: skip

    def _decay_and_added(self, update: Node) -> tuple[Factor | None, Node | None, list[Factor]]:
        """The factor of the carried value, the node that applies it, and the outer product."""
        carried = self._carried
        other = "{} is not updated by an outer product"
        for scaled, added in (update.inputs, update.inputs[::-1]):
            if scaled is carried.input:
                return None, None, self._factors(added, self._all_axes)
            product = self._m.producer(scaled, "Mul")
            if product is not None and carried.input in product.inputs:
                a, b = product.inputs
                decay = self._factor(b if a is carried.input else a, self._all_axes)
                return decay, product, self._factors(added, self._all_axes)
        raise Miss(other, carried.output, at=carried.output)

    # --- factors ---

    def _factors(self, value: Tensor, axes: Axes) -> list[Factor]:
        """An elementwise or outer product as its factors; `axes` are those of the value."""
        node = self._m.index.producer(value)
        if node is not None and not node.domain and node.op in ("Mul", "MatMul", "Einsum"):
            terms = self._operand_axes(node, axes)
            if terms is not None:
                return [f for t, own in zip(node.inputs, terms) for f in self._factors(t, own)]
        return [self._factor(value, axes)]

    def _operand_axes(self, node: Node, axes: Axes) -> list[Axes] | None:
        """The axes of the operands of an elementwise or outer product; None if it is neither."""
        if node.op == "Einsum":
            terms, result = _einsum_terms(node)
            places = dict(zip(result, axes))
            fits = len(places) == len(result) == len(axes)
            if not fits or any(c not in places for term in terms for c in term):
                return None
            if any(len(set(term)) < len(term) for term in terms):  # the diagonal of an operand
                return None
            return [tuple(places[c] for c in term) for term in terms]
        shapes = [self._m.facts.shape(t) for t in node.inputs]
        if any(shape is None or len(shape) > len(axes) for shape in shapes):
            return None
        ranks = [len(shape or ()) for shape in shapes]
        if node.op == "Mul":
            return [axes[len(axes) - rank :] for rank in ranks]
        (a, b), first, second = shapes, *ranks
        if a is None or b is None or min(ranks) < 2 or a[-1] != 1 or b[-2] != 1:
            return None
        return [
            (*axes[len(axes) - first : -2], axes[-2], None),
            (*axes[len(axes) - second : -2], None, axes[-1]),
        ]

    def _factor(self, value: Tensor, axes: Axes) -> Factor:
        """A value that depends on no carried value, and that fits the carried value."""
        m, carried = self._m, self._carried
        node = m.index.producer(value)
        if node is not None and not node.domain and node.op == "Unsqueeze":
            new, rank = named_axes(m.facts, node), m.facts.rank(value)
            if new is not None and rank is not None and rank <= len(axes):
                axes = axes[len(axes) - rank :]
                kept = tuple(a for k, a in enumerate(axes) if k not in new)
                return self._factor(node.inputs[0], kept)
        depends = "{} depends on a carried value, or cannot be computed before the loop"
        m.need(self._work.is_independent(m.index, value), depends, value)
        shape = m.need(m.facts.shape(value), "the rank of {} is not known", value)
        axes = axes[len(axes) - len(shape) :] if len(shape) <= len(axes) else axes
        fits = len(axes) == len(shape) and all(
            size == 1 or (axis is not None and symbolic.eq(size, self._shape[axis]) is True)
            for size, axis in zip(shape, axes)
        )
        m.need(fits, "the shape of {} is not known to fit {}", value, carried.input)
        return Factor(value, tuple(None if n == 1 else a for n, a in zip(shape, axes)))

    # --- reads ---

    def _reads(self, own: set[Node]) -> list[Contraction]:
        """What reads the carried value, besides the nodes of its update."""
        m, carried = self._m, self._carried
        reads = []
        for state, reads_next in ((carried.input, False), (carried.output, True)):
            for use in m.index.uses(state):
                if use.reader in own:
                    continue
                other = "something other than a contraction reads {}"
                if not isinstance(use.reader, Node):
                    m.need(self._loop.carried_number(use) == self._number, other, state)
                    continue
                reads.append(self._read(use.reader, state, reads_next))
        m.need(bool(reads), "no carried value is read by contractions only")
        return reads

    def _read(self, node: Node, state: Tensor, reads_next: bool) -> Contraction:
        """A contraction of the carried value, or of its sum with an outer product."""
        bonus: list[Factor] = []
        added = self._other_operand(node, "Add", state)
        if added is not None:
            bonus = self._factors(added, self._all_axes)
            state, node = node.outputs[0], self._only_reader(node)
        query = self._other_operand(node, "Mul", state)
        if query is not None:
            node = self._only_reader(node)
            found = self._summed(node)
        elif node.op in ("MatMul", "Einsum") and not node.domain and len(node.inputs) == 2:
            left, right = node.inputs
            query = right if left is state else left
            rank = len(self._shape)
            if node.op == "Einsum":
                found = _einsum_contraction(node, rank, left is state)
            else:
                found = self._product(query, rank, left is state)
        else:
            found = None
        other = "something other than a contraction reads {}"
        query = self._m.need(query, other, state)
        axes, axis, kept = self._m.need(found, other, state)
        factor = self._factor(query, axes)
        return Contraction(node.outputs[0], node, axis, factor, bonus, reads_next, kept)

    def _other_operand(self, node: Node, op: str, state: Tensor) -> Tensor | None:
        """The other operand of an Add or Mul of the state; None for another node."""
        inside = self._m.index.graph_of(node) is self._loop.body
        self._m.need(inside, "{} reads {} in another body", node, state)
        if node.domain or node.op != op or node.inputs[0] is node.inputs[1]:
            return None
        a, b = node.inputs
        return b if a is state else a

    def _only_reader(self, node: Node) -> Node:
        """The only reader of a node."""
        uses = self._m.index.uses(node.outputs[0])
        reader = uses[0].reader if len(uses) == 1 else None
        several = "something other than a contraction reads {}"
        return self._m.need(reader if isinstance(reader, Node) else None, several, node.outputs[0])

    def _summed(self, node: Node) -> tuple[Axes, int, Axes] | None:
        """The axes of the query, the contracted axis and the axes kept by a ReduceSum."""
        axes = named_axes(self._m.facts, node) if node.op == "ReduceSum" else None
        shape = self._m.facts.shape(node.inputs[0])
        if axes is None or len(axes) != 1 or shape is None or len(shape) != len(self._shape):
            return None
        kept: list[int | None] = list(range(len(shape)))
        if node.attrs.get("keepdims", 1):
            kept[axes[0]] = None
        else:
            del kept[axes[0]]
        return self._all_axes, axes[0], tuple(kept)

    def _product(self, query: Tensor, rank: int, is_left: bool) -> tuple[Axes, int, Axes] | None:
        """The axes, as `_summed` gives them, of a MatMul of the carried value and a vector.

        The vector may be a matrix of one row or one column.
        """
        shape, axes = self._m.facts.shape(query), self._all_axes
        if shape is None or not 0 < len(shape) <= rank or rank < 2:
            return None
        summed, free = (rank - 1, rank - 2) if is_left else (rank - 2, rank - 1)
        if len(shape) == 1:
            return (summed,), summed, tuple(a for a in axes if a != summed)
        if shape[-1 if is_left else -2] != 1:
            return None
        ends: tuple[Axes, Axes] = ((summed, None), (free, None))
        own, kept = ends if is_left else (ends[0][::-1], ends[1][::-1])
        return (*axes[rank - len(shape) : -2], *own), summed, (*axes[:-2], *kept)


def _einsum_terms(node: Node) -> tuple[list[str], str]:
    """The indices of the operands and of the result; none of the result with an ellipsis."""
    equation = node.attrs["equation"]
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    inputs, arrow, result = text.partition("->")
    terms = inputs.split(",")
    if "." in text:
        return terms, ""
    return terms, result if arrow else "".join(
        sorted(c for c in set(inputs) - {","} if inputs.count(c) == 1)
    )


def _einsum_contraction(node: Node, rank: int, is_left: bool) -> tuple[Axes, int, Axes] | None:
    """The axes of the query, the contracted axis and the axes kept by an Einsum."""
    terms, result = _einsum_terms(node)
    state, other = terms if is_left else terms[::-1]
    places = {letter: axis for axis, letter in enumerate(state)}
    summed = places.keys() - set(result)
    distinct = all(len(set(term)) == len(term) for term in (state, other, result))
    known = places.keys() >= set(other + result) and len(state) == rank
    if not distinct or not known or len(summed) != 1:
        return None
    kept = tuple(places[letter] for letter in result)
    return tuple(places[letter] for letter in other), places[summed.pop()], kept


# --- the matrix products ---


class _ChunkedProducts:
    """Builds the matrix products before the loop.

    Shapes in comments: T iterations in n chunks of c; the carried value as b matrices of d rows,
    which are contracted, and e columns.
    """

    def __init__(self, patch: Patch, found: LinearAttention) -> None:
        self._found = found
        self._axis = found.reads[0].axis
        self._work = found.work
        self._initial = found.carried.initial
        self._shape = patch.facts.known_shape(self._initial)
        self._emit = emit = patch.builder(found.carried.output)
        self._kind = helper.tensor_dtype_to_np_dtype(patch.facts.dtype(self._initial))
        self._index = patch.index
        self._hoisted = HoistedValues(patch, found.loop, found.work.plans)
        self._hoisted.build_producers(f.value for f in _all_factors(found))
        self._by_row = found.decay is not None and found.decay.varies_along(self._axis)
        """Whether the rows decay differently."""
        self._count = emit.trip_count(found.loop)
        most, one = emit.vector(_SHORT_CHUNK if self._by_row else _CHUNK), emit.vector(1)
        self._chunks = emit.max(self._ceiling(self._count, most), one)
        self._chunk = emit.max(self._ceiling(self._count, self._chunks), one)
        whole = emit("Mul", self._chunks, self._chunk)
        self._padding = emit("Sub", whole, self._count)
        self._matrices = self._total(found.batch)
        self._rows = self._total([self._axis])
        self._columns = self._total(found.columns)

    def _ceiling(self, a: Tensor, b: Tensor) -> Tensor:
        """a / b, rounded up."""
        emit = self._emit
        return emit("Div", emit("Sub", emit("Add", a, b), emit.vector(1)), b)

    # --- sizes and layouts ---

    def _sizes(self, axes: Sequence[int]) -> list[Tensor]:
        """The sizes of these axes of the carried value, each an int64 vector of one element."""
        sizes = ((a, self._shape[a]) for a in axes)
        return [
            self._emit.vector(n)
            if isinstance(n, int)
            else self._emit.shape(self._initial, a, a + 1)
            for a, n in sizes
        ]

    def _total(self, axes: Sequence[int]) -> Tensor:
        """The product of the sizes of these axes, an int64 vector of one element."""
        known = [self._shape[a] for a in axes]
        numbers = [n for n in known if isinstance(n, int)]
        if len(numbers) == len(known):
            return self._emit.vector(int(np.prod(numbers, dtype=np.int64)))
        return self._emit("ReduceProd", self._emit.concat(self._sizes(axes)), keepdims=1)

    def _stacked(self, factors: Iterable[Factor], axes: Sequence[int], width: Tensor) -> Tensor:
        """The product of factors in all iterations, (T, b, width); `axes` are its axes in order."""
        emit = self._emit
        parts = [self._aligned(factor, axes) for factor in factors]
        parts = parts or [emit.constant(np.ones((1,) * (1 + len(axes)), self._kind))]
        shape = emit.concat([self._count, *self._sizes(axes)])
        expanded = emit("Expand", emit.combine("Mul", parts), shape)
        return emit.reshape(expanded, emit.concat([self._count, self._matrices, width]))

    def _aligned(self, factor: Factor, axes: Sequence[int]) -> Tensor:
        """A factor in all iterations, (T or 1, axes), where each axis has its size or 1."""
        emit, value = self._emit, self._hoisted[factor.value]
        if factor.value not in self._work.batched:
            value = emit.unsqueeze(value, [0])
        value = emit.squeeze(value, [1 + k for k, a in enumerate(factor.axes) if a is None])
        own = [a for a in factor.axes if a is not None]
        value = emit.transpose(value, [0, *(1 + own.index(a) for a in axes if a in own)])
        return emit.unsqueeze(value, [1 + k for k, a in enumerate(axes) if a not in own])

    def _divided(self, values: Tensor, width: Tensor, neutral: int = 0) -> Tensor:
        """Divides (T, b, width) into (n, c, b, width); fills the last chunk up."""
        emit = self._emit
        shape = emit.concat([self._padding, self._matrices, width])
        full = emit("Concat", values, self._filled(shape, neutral), axis=0)
        sizes = [self._chunks, self._chunk, self._matrices, width]
        return emit.reshape(full, emit.concat(sizes))

    def _filled(self, shape: Tensor, number: int) -> Tensor:
        value = Constant("value", np.full(1, number, self._kind))
        return self._emit("ConstantOfShape", shape, value=value)

    # --- the computation ---

    def build(self) -> tuple[list[Tensor], Tensor]:
        """The stacked results of the reads, and the final value."""
        found, emit = self._found, self._emit
        keyed, valued = [*found.batch, self._axis], [*found.batch, *found.columns]
        keys = [f for f in found.added if f.varies_along(self._axis)]
        values = [f for f in found.added if not f.varies_along(self._axis)]
        all_k = self._divided(self._stacked(keys, keyed, self._rows), self._rows)
        all_v = self._divided(self._stacked(values, valued, self._columns), self._columns)
        k, v = (emit.transpose(t, [0, 2, 1, 3]) for t in (all_k, all_v))  # (n, b, c, ...)
        queries = [self._stacked([r.query], keyed, self._rows) for r in found.reads]
        all_q = [self._divided(q, self._rows) for q in queries]
        decayed = self._decay_rows if self._by_row else self._decay_matrices
        weights, products, last_keys, last = decayed(all_k, k, all_q)
        local = emit("MatMul", emit.transpose(last_keys, [0, 1, 3, 2]), v)  # (n, b, d, e)
        final, starts = self._scan_chunks(last, local)
        results = []
        for read, query, q, w, p in zip(found.reads, queries, all_q, weights, products):
            scaled = emit("Mul", emit.transpose(q, [0, 2, 1, 3]), p)
            within, before = emit("MatMul", w, v), emit("MatMul", scaled, starts)
            joined = self._joined(emit("Add", within, before))
            if read.bonus:
                joined = emit("Add", joined, self._bonus(read, query))
            results.append(self._as_read(joined, read))
        return results, self._as_carried(final)

    def _decay_matrices(
        self, all_k: Tensor, k: Tensor, all_q: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
        """Where all rows of a matrix decay alike.

        Returns for each read the weights of the values, (n, b, c, c), and the products of the
        factors, (n, b, c, 1); and for the ends of the chunks the decayed keys, (n, b, c, d), and
        the products, (n, b, 1, 1).
        """
        emit, decay = self._emit, self._found.decay
        one = emit.vector(1)
        factors = self._stacked([] if decay is None else [decay], self._found.batch, one)
        a = emit.transpose(self._divided(factors, one, 1), [1, 0, 2, 3])  # (c, n, b, 1)
        pairs = emit.concat([self._chunks, self._matrices, self._chunk])
        start = [self._filled(pairs, 0), self._filled(emit.concat([*self._outer, one]), 1)]
        names = ("decays", "product", "factor", "position")
        decays, product, factor, position = map(Variable, names)
        body = BodyBuilder([decays, product, factor, position])
        next_decays = body("Add", body("Mul", decays, factor), position)
        next_product = body("Mul", product, factor)
        slices = [body("Identity", t) for t in (decays, product, next_decays, next_product)]
        graph = body.finish([next_decays, next_product, *slices])
        last_decays, last, *both = self._scan([*start, a, self._eye()], graph, 2)
        both = [emit.transpose(t, [1, 2, 0, 3]) for t in both]
        keys = emit.transpose(k, [0, 1, 3, 2])
        weights, products = [], []
        for read, q in zip(self._found.reads, all_q):
            decays, product = both[2:] if read.reads_next else both[:2]
            scores = emit("MatMul", emit.transpose(q, [0, 2, 1, 3]), keys)
            weights.append(emit("Mul", scores, decays))
            products.append(product)
        last_keys = emit("Mul", k, emit.unsqueeze(last_decays, [3]))
        return weights, products, last_keys, emit.unsqueeze(last, [3])

    def _decay_rows(
        self, all_k: Tensor, k: Tensor, all_q: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
        """Where each row decays on its own: the keys decay one iteration at a time.

        Returns the same, with the products of the factors for each row.
        """
        emit, decay = self._emit, self._found.decay
        assert decay is not None
        axes, one = [*self._found.batch, self._axis], emit.vector(1)
        factors = self._divided(self._stacked([decay], axes, self._rows), self._rows, 1)
        by_position = [emit.transpose(t, [1, 0, 2, 3]) for t in (factors, all_k, *all_q)]
        sequences = [emit.unsqueeze(t, [3]) for t in by_position[:2]]  # (c, n, b, 1, d)
        sequences += [emit.unsqueeze(self._eye(), [2])]  # (c, c, 1)
        sequences += [emit.unsqueeze(t, [4]) for t in by_position[2:]]  # (c, n, b, d, 1)
        start = [
            self._filled(emit.concat([*self._outer, self._chunk, self._rows]), 0),
            self._filled(emit.concat([*self._outer, one, self._rows]), 1),
        ]
        names = ("keys", "product", "factor", "key", "position")
        keys, product, factor, key, position = map(Variable, names)
        queries = [Variable("query") for _ in all_q]
        body = BodyBuilder([keys, product, factor, key, position, *queries])
        added = body("Mul", key, position)
        next_keys = body("Add", body("Mul", keys, factor), added)
        next_product = body("Mul", product, factor)
        slices = []
        for read, query in zip(self._found.reads, queries):
            slices.append(body("MatMul", next_keys if read.reads_next else keys, query))
            slices.append(body("Identity", next_product if read.reads_next else product))
        graph = body.finish([next_keys, next_product, *slices])
        last_keys, last, *both = self._scan([*start, *sequences], graph, len(sequences))
        weights = [emit.squeeze(t, [4]) for t in both[::2]]
        products = [emit.squeeze(t, [3]) for t in both[1::2]]
        weights, products = (
            [emit.transpose(t, [1, 2, 0, 3]) for t in each] for each in (weights, products)
        )
        return weights, products, last_keys, emit.transpose(last, [0, 1, 3, 2])

    @property
    def _outer(self) -> tuple[Tensor, Tensor]:
        return self._chunks, self._matrices

    def _eye(self) -> Tensor:
        """The identity matrix (c, c)."""
        square = self._emit.concat([self._chunk, self._chunk])
        return self._emit("EyeLike", self._filled(square, 0))

    def _scan_chunks(self, last: Tensor, local: Tensor) -> tuple[Tensor, Tensor]:
        """The carried value after the last chunk, (b, d, e), and before each, (n, b, d, e)."""
        emit = self._emit
        order = [*self._found.batch, self._axis, *self._found.columns]
        sizes = emit.concat([self._matrices, self._rows, self._columns])
        start = emit.reshape(emit.transpose(self._initial, order), sizes)
        carried, product, added = map(Variable, ("carried", "product", "added"))
        body = BodyBuilder([carried, product, added])
        following = body("Add", body("Mul", product, carried), added)
        graph = body.finish([following, body("Identity", carried)])
        final, starts = self._scan([start, last, local], graph, 2)
        return final, starts

    def _scan(self, inputs: list[Tensor], body: Graph, sequences: int) -> list[Tensor]:
        like = [self._emit.like] * len(body.outputs)
        return self._emit.outputs("Scan", inputs, like, body=body, num_scan_inputs=sequences)

    def _bonus(self, read: Contraction, query: Tensor) -> Tensor:
        """The contraction of the outer product that a read adds: (T, b, e)."""
        emit, batch = self._emit, self._found.batch
        keys = [f for f in read.bonus if f.varies_along(self._axis)]
        values = [f for f in read.bonus if not f.varies_along(self._axis)]
        k = self._stacked(keys, [*batch, self._axis], self._rows)
        v = self._stacked(values, [*batch, *self._found.columns], self._columns)
        return emit("Mul", emit.reduce("ReduceSum", emit("Mul", query, k), [2], 1), v)

    def _joined(self, chunks: Tensor) -> Tensor:
        """(n, b, c, e) without what fills the last chunk up: (T, b, e)."""
        emit = self._emit
        whole = emit("Mul", self._chunks, self._chunk)
        shape = emit.concat([whole, self._matrices, self._columns])
        flat = emit.reshape(emit.transpose(chunks, [0, 2, 1, 3]), shape)
        return emit("Slice", flat, emit.vector(0), self._count, emit.vector(0))

    def _as_read(self, value: Tensor, read: Contraction) -> Tensor:
        """(T, b, e) with the axes of the result of a read."""
        emit, order = self._emit, [*self._found.batch, *self._found.columns]
        value = emit.reshape(value, emit.concat([self._count, *self._sizes(order)]))
        own = [a for a in read.kept if a is not None]
        value = emit.transpose(value, [0, *(1 + order.index(a) for a in own)])
        return emit.unsqueeze(value, [1 + k for k, a in enumerate(read.kept) if a is None])

    def _as_carried(self, value: Tensor) -> Tensor:
        """(b, d, e) with the axes of the carried value."""
        emit = self._emit
        order = [*self._found.batch, self._axis, *self._found.columns]
        value = emit.reshape(value, emit.concat(self._sizes(order)))
        return emit.transpose(value, [order.index(a) for a in range(len(order))])


def _all_factors(found: LinearAttention) -> list[Factor]:
    """The factors of the update and of the reads."""
    decay = [] if found.decay is None else [found.decay]
    return [*decay, *found.added, *(f for r in found.reads for f in (r.query, *r.bonus))]
