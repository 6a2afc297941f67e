"""Builds linear attention as matrix products within chunks, and a Scan over the chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from onnx import helper

from ...rewrite.engine.patch import Patch
from ...rewrite.graph.ir import Constant, Graph, Tensor, Variable
from ..vectorization.independent_work import HoistedValues
from .linear_attention_matching import Contraction, Factor, LinearAttention
from .linear_recurrence_chunks import BodyBuilder

_CHUNK = 64
"""The iterations of a chunk if all rows of the carried value decay alike."""
_SHORT_CHUNK = 8
"""The iterations of a chunk if each row has its own factor, which costs more per iteration."""


class DecayInChunks(NamedTuple):
    """How values of a chunk decay: up to each read in it, and up to its end."""

    weights: list[Tensor]
    """For each read, the weights of the values: (n, b, c, c)."""
    products: list[Tensor]
    """For each read, the products of the factors since the start: (n, b, c, 1 or d)."""
    last_keys: Tensor
    """The keys, decayed up to the end: (n, b, c, d)."""
    last_product: Tensor
    """The products of all factors: (n, b, 1 or d, 1)."""


class ChunkedProducts:
    """Builds the matrix products before the loop from which the carried value is removed.

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
        """Divides (T, b, width) into (n, c, b, width); pads the last chunk with `neutral`."""
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
        decay = self._decay_rows if self._by_row else self._decay_matrices
        decayed = decay(all_k, k, all_q)
        added = emit("MatMul", emit.transpose(decayed.last_keys, [0, 1, 3, 2]), v)  # (n, b, d, e)
        final, starts = self._scan_chunks(decayed.last_product, added)
        results = []
        for read, query, q, weights, product in zip(
            found.reads, queries, all_q, decayed.weights, decayed.products
        ):
            scaled = emit("Mul", emit.transpose(q, [0, 2, 1, 3]), product)
            within, before = emit("MatMul", weights, v), emit("MatMul", scaled, starts)
            joined = self._joined(emit("Add", within, before))
            if read.bonus:
                joined = emit("Add", joined, self._bonus(read, query))
            results.append(self._as_read(joined, read))
        return results, self._as_carried(final)

    def _decay_matrices(self, all_k: Tensor, k: Tensor, all_q: Sequence[Tensor]) -> DecayInChunks:
        """Decay where all rows of a matrix have the same factor."""
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
        return DecayInChunks(weights, products, last_keys, emit.unsqueeze(last, [3]))

    def _decay_rows(self, all_k: Tensor, k: Tensor, all_q: Sequence[Tensor]) -> DecayInChunks:
        """Decay where each row has its own factor: the keys decay one iteration at a time."""
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
        return DecayInChunks(weights, products, last_keys, emit.transpose(last, [0, 1, 3, 2]))

    @property
    def _outer(self) -> tuple[Tensor, Tensor]:
        return self._chunks, self._matrices

    def _eye(self) -> Tensor:
        """The identity matrix (c, c)."""
        square = self._emit.concat([self._chunk, self._chunk])
        return self._emit("EyeLike", self._filled(square, 0))

    def _scan_chunks(self, products: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """The carried value after the last chunk, (b, d, e), and before each, (n, b, d, e)."""
        emit = self._emit
        order = [*self._found.batch, self._axis, *self._found.columns]
        sizes = emit.concat([self._matrices, self._rows, self._columns])
        start = emit.reshape(emit.transpose(self._initial, order), sizes)
        carried, product, outer = map(Variable, ("carried", "product", "added"))
        body = BodyBuilder([carried, product, outer])
        following = body("Add", body("Mul", product, carried), outer)
        graph = body.finish([following, body("Identity", carried)])
        final, starts = self._scan([start, products, added], graph, 2)
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
        """(n, b, c, e) as (T, b, e), without the padding of the last chunk."""
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
