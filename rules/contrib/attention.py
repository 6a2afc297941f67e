"""Decomposes attention operators of com.microsoft into products and a Softmax.

y = MultiHeadAttention(q, k, v, bias, mask)
 -> heads of q, k and v: [batch, length, heads * size] -> [batch, heads, length, size]
    y = Softmax(q kᵀ / √size + mask) v, with the heads joined again

y, present = Attention(x, weights, bias, mask, past)
 -> q, k, v = Split(x weights + bias), and the same with the keys and values after those of `past`
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Tensor, optional
from ...rewrite.symbolic import Dim
from .checks import need_float, need_heads, need_omitted, need_unread, number

_FILTER_VALUE = -10000.0
"""What is added to the score of a masked position, if the node does not give the number."""


@dataclass(frozen=True)
class Heads:
    """The sizes, scale and mask of an attention."""

    count: int
    """The number of heads."""
    sizes: tuple[int, int, int]
    """The number of features of all heads, of query, key and value."""
    dtype: int
    scale: float
    mask_rank: int | None
    """The rank of the mask of the keys; None without a mask."""
    has_starts: bool = False
    """Whether the mask has the ends of all rows and then their starts."""


@dataclass(frozen=True)
class Scores:
    """What is added to the scores of an attention."""

    bias: Tensor | None
    mask: Tensor | None
    """Positive where a key counts; with one axis, the number of keys of each row that count, or the
    ends and starts of those that count."""
    causal: bool
    """Whether a query sees no key after its own position."""
    filter_value: float


class DecomposeMultiHeadAttention(Rule[Heads]):
    """Decomposes MultiHeadAttention into MatMul, Softmax and changes of shape."""

    root = "com.microsoft.MultiHeadAttention"
    promise = Promise(
        rounds="sums in another order",
        nonfinite="scores that are infinite or NaN",
        always_accepts="operands that broadcast to each other",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[B,S,8] q, float[B,L,8] k, float[B,L,8] v, float[24] b, float[1,1,S,L] bias)
        => (float[B,S,8] y, float[B,2,L,4] keys, float[B,2,L,4] values) {
      y, keys, values = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v, b, , bias) }"""
    spares = {
        "is not known": """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[B,S,8] x) => (float[B,S,8] y) { h = com.microsoft.Trilu(x)
      y = com.microsoft.MultiHeadAttention<num_heads = 2>(h, h, h) }""",
        "as many keys as queries": """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[B,S,8] q, float[B,L,8] k) => (float[B,S,8] y) {
      y = com.microsoft.MultiHeadAttention<num_heads = 2, unidirectional = 1>(q, k, k) }""",
    }

    def match(self, m: Match) -> Heads:
        node = m.node
        need_omitted(m, 8, 9)
        need_unread(m, 3)
        count = need_heads(m)
        key, value = (
            m.need(
                optional(node.inputs, slot), "its keys or values are packed into another operand"
            )
            for slot in (1, 2)
        )
        _need_whole_past(m)
        sizes = (
            _features(m, node.inputs[0], count),
            _features(m, key, count),
            _features(m, value, count),
        )
        mask_rank = _need_mask_rank(m, optional(node.inputs, 4))
        past = optional(node.inputs, 6)
        m.need(mask_rank is None or past is None, "it has a mask and earlier keys")
        if node.attrs.get("unidirectional", 0):
            equal = symbolic.eq(_length(m, node.inputs[0]), _length(m, key))
            m.need(equal is True, "it does not have as many keys as queries", at=key)
        scale = node.attrs.get("scale", 0.0) or 1 / math.sqrt(sizes[0] // count)
        return Heads(count, sizes, need_float(m, node.inputs[0]), scale, mask_rank)

    def apply(self, patch: Patch, found: Heads) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        q, k, v = node.inputs[:3]
        bias = optional(node.inputs, 3)
        parts = [None] * 3 if bias is None else emit.split(bias, 0, found.sizes, [q, k, v])
        ranks = [patch.facts.rank(x) for x in (q, k, v)]
        heads = [
            _heads(emit, x, part, found.count, size) if rank == 3 else x
            for x, part, size, rank in zip((q, k, v), parts, found.sizes, ranks)
        ]
        for slot, past in ((1, optional(node.inputs, 6)), (2, optional(node.inputs, 7))):
            if past is not None:
                heads[slot] = emit("Concat", past, heads[slot], axis=2)
        attributes = node.attrs
        scores = Scores(
            optional(node.inputs, 5),
            optional(node.inputs, 4),
            bool(attributes.get("unidirectional", 0)),
            attributes.get("mask_filter_value", _FILTER_VALUE),
        )
        y = _attention(emit, heads, found, scores)
        patch.replace_node(node, [y, heads[1], heads[2], None])
        patch.decompose_operator()


def _need_whole_past(m: Match) -> None:
    """Raises Miss for earlier keys without values, and where the node does not return all keys."""
    keys, values = optional(m.node.inputs, 6), optional(m.node.inputs, 7)
    m.need((keys is None) == (values is None), "only one of the earlier keys and values is given")
    returned = len(m.node.outputs) > 2 and all(t.name for t in m.node.outputs[1:3])
    # Where they are not returned, onnxruntime 1.31 computes something else.
    m.need(keys is None or returned, "it has earlier keys, but does not return all keys", at=keys)


def _need_mask_rank(m: Match, mask: Tensor | None) -> int | None:
    """The rank of the mask, None without a mask. Raises Miss unless it is 1, 2 or 3.

    A mask with one axis may have the lengths of all rows, their ends and starts, or other numbers.
    """
    if mask is None:
        return None
    shape = m.need(m.facts.shape(mask), "the rank of {} is not known", mask, at=mask)
    rank = len(shape)
    m.need(rank in (1, 2, 3), "the mask {} has {} axes, not 1 to 3", mask, rank, at=mask)
    if rank == 1:
        batch = m.facts.known_shape(m.node.inputs[0])[0]
        unknown = "the size of the mask {} is not known to be that of the batch"
        is_known = symbolic.eq(shape[0], batch) is True or _has_starts(m, mask)
        m.need(is_known, unknown, mask, at=mask)
    return rank


def _has_starts(m: Match, mask: Tensor | None) -> bool:
    """Whether a mask of an Attention or QAttention has two numbers for each row."""
    shape = None if mask is None else m.facts.shape(mask)
    if m.node.op not in ("Attention", "QAttention") or shape is None or len(shape) != 1:
        return False
    batch = m.facts.known_shape(m.node.inputs[0])[0]
    is_batch = symbolic.eq(shape[0], batch) is True  # both are if there is no row
    return not is_batch and symbolic.eq(shape[0], symbolic.mul(batch, 2)) is True


def _features(m: Match, x: Tensor, count: int) -> int:
    """The number of features of all heads of an operand. Raises Miss where it is not known."""
    shape = m.need(m.facts.shape(x), "the rank of {} is not known", x, at=x)
    m.need(len(shape) in (3, 4), "{} has {} axes, not 3 or 4", x, len(shape), at=x)
    size = shape[2] if len(shape) == 3 else symbolic.mul(shape[3], count)
    known = isinstance(size, int) and size > 0 and size % count == 0
    m.need(known, "the number of features of {} is not known", x, at=x)
    assert isinstance(size, int)
    return size


def _length(m: Match, x: Tensor) -> Dim:
    shape = m.facts.known_shape(x)
    return shape[1] if len(shape) == 3 else shape[2]


def _heads(emit: Builder, x: Tensor, bias: Tensor | None, count: int, size: int) -> Tensor:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    if bias is not None:
        x = emit("Add", x, bias)
    x = emit("Reshape", x, emit.vector(0, 0, count, size // count))
    return emit.transpose(x, [0, 2, 1, 3])


def _attention(emit: Builder, heads: list[Tensor], found: Heads, scores: Scores) -> Tensor:
    """The weighted sums of the values, with the heads merged: [batch, queries, features]."""
    q, k, v = heads
    q = emit("Mul", q, number(emit, found.scale, found.dtype))
    total = emit("MatMul", q, emit.transpose(k, [0, 1, 3, 2]))
    if scores.bias is not None:
        total = emit("Add", total, scores.bias)
    low, zero = (number(emit, value, found.dtype) for value in (scores.filter_value, 0.0))
    if scores.mask is not None:
        counts = _counting_keys(emit, scores.mask, found, total)
        axes = [1] if found.mask_rank == 3 else [1, 2]
        total = emit("Add", total, emit.unsqueeze(emit("Where", counts, zero, low), axes))
    if scores.causal:
        # Keys after a query do not count at all, those that the mask hides count a little.
        unseen = number(emit, -math.inf, found.dtype)
        total = emit("Where", _is_seen(emit, total), total, unseen)
    y = emit("MatMul", emit("Softmax", total, axis=-1), v)
    y = emit.transpose(y, [0, 2, 1, 3])
    return emit("Reshape", y, emit.vector(0, 0, found.sizes[2]))


def _counting_keys(emit: Builder, mask: Tensor, found: Heads, scores: Tensor) -> Tensor:
    """Which keys count, by row: from lengths, from ends and starts, or where the mask is positive."""
    if found.mask_rank != 1:
        return emit("Greater", mask, number(emit, 0, TensorProto.INT32))
    keys = emit("Gather", emit("Shape", scores), emit.scalar(3), axis=0)
    positions = emit("Range", emit.scalar(0), keys, emit.scalar(1))
    ends = emit("Cast", mask, to=TensorProto.INT64)
    if not found.has_starts:
        return emit("Less", positions, emit.unsqueeze(ends, [1]))
    both = emit("Reshape", ends, emit.vector(2, -1, 1))
    ends, starts = (emit("Gather", both, emit.scalar(row), axis=0) for row in range(2))
    is_late = emit("Not", emit("Less", positions, starts))
    return emit("And", emit("Less", positions, ends), is_late)


def _is_seen(emit: Builder, scores: Tensor) -> Tensor:
    """For each query, which keys it sees: those not after it. The last key is that of the last query."""
    sizes = emit("Shape", scores)
    queries, keys = (emit("Gather", sizes, emit.scalar(axis), axis=0) for axis in (2, 3))
    zero, one = emit.scalar(0), emit.scalar(1)
    rows = emit.unsqueeze(emit("Range", emit("Sub", keys, queries), keys, one), [1])
    return emit("Not", emit("Less", rows, emit("Range", zero, keys, one)))


class DecomposeAttention(Rule[Heads]):
    """Decomposes Attention into a product, and MatMul, Softmax and changes of shape."""

    root = "com.microsoft.Attention"
    promise = Promise(
        rounds="sums in another order",
        nonfinite="scores that are infinite or NaN",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[B,S,6] x, float[6,24] w, float[24] b) => (float[B,S,8] y) {
      y = com.microsoft.Attention<num_heads = 2>(x, w, b) }"""
    spares = {
        "is not known": """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[B,S,6] x, float[6,24] v, float[24] b) => (float[B,S,8] y) { w = com.microsoft.Trilu(v)
      y = com.microsoft.Attention<num_heads = 2>(x, w, b) }""",
        "to be that of the batch": """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[B,S,6] x, float[6,24] w, float[24] b, int32[L] ends) => (float[B,S,8] y) {
      y = com.microsoft.Attention<num_heads = 2>(x, w, b, ends) }""",
    }

    def match(self, m: Match) -> Heads:
        node = m.node
        need_omitted(m, 6)
        slots = AttentionSlots(past=4, mask=3, bias=5)
        return heads_of_product(m, node.inputs[1], need_float(m, node.inputs[0]), slots)

    def apply(self, patch: Patch, found: Heads) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        x, weights = node.inputs[:2]
        bias = optional(node.inputs, 2)
        product = emit("MatMul", x, weights)
        if bias is not None:
            product = emit("Add", product, bias)
        replace_by_attention(patch, product, found, AttentionSlots(past=4, mask=3, bias=5))


@dataclass(frozen=True)
class AttentionSlots:
    """Where an operator whose operands are one product has its other inputs."""

    past: int
    mask: int
    bias: int | None
    """What is added to the scores."""


def heads_of_product(m: Match, weights: Tensor, dtype: int, slots: AttentionSlots) -> Heads:
    """The heads of an attention whose queries, keys and values are a product with weights.

    Raises Miss where something is not known or not supported.
    """
    node = m.node
    past, returned = optional(node.inputs, slots.past), optional(node.outputs, 1) is not None
    m.need(past is None or returned, "it does not return the earlier keys", at=past)
    m.need(not node.attrs.get("do_rotary", 0), "it has rotary position embeddings (do_rotary)")
    x = node.inputs[0]
    m.need(m.facts.rank(x) == 3, "{} is not known to have 3 axes", x, at=x)
    shape = m.need(m.facts.shape(weights), "the rank of {} is not known", weights, at=weights)
    width = shape[-1]
    count = need_heads(m)
    known = isinstance(width, int) and width > 0
    m.need(known, "the size of {} is not known", weights, at=weights)
    assert isinstance(width, int)
    sizes = tuple(node.attrs.get("qkv_hidden_sizes") or (width // 3,) * 3)
    fits = len(sizes) == 3 and sum(sizes) == width and all(s > 0 and s % count == 0 for s in sizes)
    m.need(fits, "the {} columns of {} cannot be divided among {} heads", width, weights, count)
    same = not returned or sizes[1] == sizes[2]
    m.need(same, "it returns keys and values of different sizes together")
    mask = optional(node.inputs, slots.mask)
    mask_rank = _need_mask_rank(m, mask)
    scale = node.attrs.get("scale", 0.0) or 1 / math.sqrt(sizes[0] // count)
    return Heads(count, sizes, dtype, scale, mask_rank, _has_starts(m, mask))


def replace_by_attention(
    patch: Patch, product: Tensor, found: Heads, slots: AttentionSlots
) -> None:
    """Replaces the root by the attention of the queries, keys and values in a product."""
    node = patch.root
    emit = patch.builder(node.outputs[0])
    parts = emit.split(product, 2, found.sizes, [node.outputs[0]] * 3)
    heads = [_heads(emit, part, None, found.count, size) for part, size in zip(parts, found.sizes)]
    past, present = optional(node.inputs, slots.past), None
    if past is not None:
        earlier = emit.split(past, 0, [1, 1], [past, past])
        for slot, part in zip((1, 2), earlier):
            heads[slot] = emit("Concat", emit.squeeze(part, [0]), heads[slot], axis=2)
    if len(node.outputs) > 1 and patch.index.use_count(node.outputs[1]):
        both = [emit.unsqueeze(head, [0]) for head in heads[1:]]
        present = emit("Concat", *both, axis=0)
    scores = Scores(
        None if slots.bias is None else optional(node.inputs, slots.bias),
        optional(node.inputs, slots.mask),
        bool(node.attrs.get("unidirectional", 0)),
        node.attrs.get("mask_filter_value", _FILTER_VALUE),
    )
    patch.replace_node(node, [_attention(emit, heads, found, scores), present])
    patch.decompose_operator()
