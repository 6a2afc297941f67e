"""Decomposes GroupQueryAttention of com.microsoft.

y, keys, values = GroupQueryAttention(q, k, v, past_keys, past_values, last, longest, cos, sin)
 -> q, k = RotaryEmbedding(q), RotaryEmbedding(k)          if the node does so
    keys = Concat(past_keys, k), with zeros up to the size of the buffer, and values likewise
    y = Softmax(q keysᵀ * scale) values, of the keys up to each query

Each head of keys serves several heads of queries. The rows of a batch have their own numbers of
earlier keys, after which the new ones belong: a Gather puts them there. Where all rows have equally
many, as in a batch that is known to have one row, a concatenation is enough. Language models have
this operator; the builder of onnxruntime-genai writes it.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#com.microsoft.GroupQueryAttention. Rows of a prompt that are shorter than the longest have padding
at their end; onnxruntime computes undefined results for the queries of padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Node, Tensor, optional
from .checks import (
    need_float,
    need_heads,
    need_last_size,
    need_omitted,
    need_unread,
    number,
)
from .rotary_embedding import Rotation, rotated


@dataclass(frozen=True)
class GroupedHeads:
    """The sizes of an attention, and how it weighs keys."""

    keys: int
    """The number of heads of keys and of values."""
    group: int
    """The number of heads of queries for each of them."""
    size: int
    """The number of elements of a head."""
    dtype: int
    scale: float
    rotation: Rotation | None
    window: int
    """How many keys before a query it sees, itself included; 0 for all."""
    softcap: float
    """The limit of the scores; 0 for none."""
    is_even: bool
    """Whether all rows are known to have equally many earlier keys."""


class DecomposeGroupQueryAttention(Rule[GroupedHeads]):
    """Decomposes GroupQueryAttention into MatMul, Softmax, Concat and changes of shape."""

    root = "com.microsoft.GroupQueryAttention"
    promise = Promise(
        rounds="sums in another order",
        nonfinite="scores that are infinite or NaN",
        always_accepts="lengths that do not fit the earlier keys",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[1,3,32] q, float[1,3,16] k, float[1,3,16] v, float[1,2,0,8] pk, float[1,2,0,8] pv)
        => (float[1,3,32] y, float[1,2,L,8] keys, float[1,2,L,8] values)
      <int32[1] last = {2}, int32 sum = {3}> {
      y, keys, values = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>
        (q, k, v, pk, pv, last, sum) }"""
    spares = {
        "its attribute smooth_softmax is 1": """<ir_version: 8,
      opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[2,3,32] q, float[2,3,16] k, float[2,3,16] v, float[2,2,0,8] pk, float[2,2,0,8] pv)
        => (float[2,3,32] y, float[2,2,3,8] keys, float[2,2,3,8] values)
      <int32[2] last = {2, 2}, int32 sum = {3}> {
      y, keys, values = com.microsoft.GroupQueryAttention
        <num_heads = 4, kv_num_heads = 2, smooth_softmax = 1>(q, k, v, pk, pv, last, sum) }""",
    }

    def match(self, m: Match) -> GroupedHeads:
        node, attributes = m.node, m.node.attrs
        need_omitted(m, 9, 10, 11, 12, 13, 14, 15)
        need_unread(m, 3)
        for name, plain in _PLAIN.items():
            value = attributes.get(name, plain)
            m.need(value == plain, "its attribute {} is {}", name, value)
        q, k, past = node.inputs[0], optional(node.inputs, 1), optional(node.inputs, 3)
        shape = m.need(m.facts.shape(q), "the rank of {} is not known", q, at=q)
        both = (past, optional(node.inputs, 4))
        m.need((past is None) == (both[1] is None), "only the earlier keys or values are given")
        queries, keys = need_heads(m), need_heads(m, "kv_num_heads")
        heads = queries if k is not None else queries + 2 * keys
        width = need_last_size(m, q)
        fits = width > 0 and queries % keys == 0 and width % heads == 0
        m.need(fits, "{} does not consist of {} heads", q, heads, at=q)
        size = width // heads
        rotation = None
        if attributes.get("do_rotary", 0):
            cosines = m.need(optional(node.inputs, 7), "it has no cosines")
            m.need(optional(node.inputs, 8), "it has no sines")
            count = 2 * need_last_size(m, cosines)
            m.need(0 < count <= size, "{} is wider than a head", cosines, at=cosines)
            rotation = Rotation(size, count, bool(attributes.get("rotary_interleaved", 0)))
        return GroupedHeads(
            keys,
            queries // keys,
            size,
            need_float(m, q),
            attributes.get("scale", 0.0) or 1 / math.sqrt(size),
            rotation,
            max(attributes.get("local_window_size", -1), 0),
            attributes.get("softcap", 0.0),
            past is None or symbolic.eq(shape[0], 1) is True,
        )

    def apply(self, patch: Patch, found: GroupedHeads) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        length = emit.shape(node.inputs[0], 1, 2)
        longest = emit("Cast", node.inputs[6], to=TensorProto.INT64)
        longest = emit("Reshape", longest, emit.vector(1))
        pasts = [optional(node.inputs, slot) for slot in (3, 4)]
        earlier = _earlier(emit, node, length, longest, found)
        queries, keys, values = _heads(emit, node, found)
        # [length], or [batch, length]
        places = emit("Add", earlier, _steps(emit, length))
        if found.rotation is not None:
            rows = [emit("Gather", table, places, axis=0) for table in node.inputs[7:9]]
            cosines, sines = (emit.unsqueeze(row, [1 if found.is_even else 2]) for row in rows)
            queries, keys = (
                rotated(emit, x, cosines, sines, found.rotation) for x in (queries, keys)
            )
        keys, values = _held(emit, (keys, values), pasts, earlier, found)
        presents = [
            _padded(emit, x, past, longest, found) for x, past in zip((keys, values), pasts)
        ]
        queries = emit("Reshape", queries, emit.vector(0, 0, found.keys, found.group, found.size))
        queries = emit.transpose(queries, [0, 2, 3, 1, 4])
        queries = emit("Mul", queries, number(emit, found.scale, found.dtype))
        scores = emit("MatMul", queries, emit.unsqueeze(emit.transpose(keys, [0, 1, 3, 2]), [2]))
        if found.softcap:
            cap = number(emit, found.softcap, found.dtype)
            scores = emit("Mul", emit("Tanh", emit("Div", scores, cap)), cap)
        seen = _seen(emit, places, emit.shape(keys, 2, 3), found)
        scores = emit("Where", seen, scores, number(emit, -math.inf, found.dtype))
        y = emit("MatMul", emit("Softmax", scores, axis=-1), emit.unsqueeze(values, [2]))
        y = emit.transpose(y, [0, 3, 1, 2, 4])
        y = emit("Reshape", y, emit.vector(0, 0, found.keys * found.group * found.size))
        patch.replace_node(node, [y, *presents, None])
        patch.decompose_operator()


_PLAIN = {
    "causal": 1,
    "k_quant_type": "NONE",
    "kv_cache_bit_width": 0,
    "qk_output": 0,
    "sliding_window_cache": 0,
    "smooth_softmax": -1,
    "v_quant_type": "NONE",
}
"""The values of attributes for which the operator is decomposed."""


def _heads(emit: Builder, node: Node, found: GroupedHeads) -> list[Tensor]:
    """Queries, keys and values of shape [batch, length, heads, size]."""
    count = found.keys * found.group
    inputs = node.inputs[:3]
    if not inputs[1].name:
        widths = [heads * found.size for heads in (count, found.keys, found.keys)]
        inputs = emit.split(inputs[0], 2, widths, [inputs[0]] * 3)
    return [
        emit("Reshape", x, emit.vector(0, 0, heads, found.size))
        for x, heads in zip(inputs, (count, found.keys, found.keys))
    ]


def _steps(emit: Builder, length: Tensor) -> Tensor:
    """0, 1 … length - 1, for a vector of one length."""
    return emit("Range", emit.scalar(0), emit.squeeze(length, [0]), emit.scalar(1))


def _earlier(
    emit: Builder, node: Node, length: Tensor, longest: Tensor, found: GroupedHeads
) -> Tensor:
    """How many keys are before the new ones: [1], or [batch, 1] for rows of their own."""
    past = optional(node.inputs, 3)
    if past is None:
        return emit.vector(0)
    last = emit("Cast", node.inputs[5], to=TensorProto.INT64)
    if not found.is_even:
        last = emit("Reshape", last, emit.vector(-1, 1))
    elif emit.patch.facts.rank(node.inputs[5]) != 1:
        last = emit("Reshape", last, emit.vector(1))
    earlier = emit.max(emit("Sub", emit("Add", last, emit.vector(1)), length), emit.vector(0))
    # In a prompt, lengths only say which queries are padding.
    is_prompt = emit("Equal", length, longest)
    earlier = emit("Where", is_prompt, emit.vector(0), earlier)
    # A buffer has no more than its size; a Slice of it takes care of that.
    return earlier if found.is_even else emit.min(earlier, emit.shape(past, 2, 3))


def _held(
    emit: Builder,
    new: Sequence[Tensor],
    pasts: Sequence[Tensor | None],
    earlier: Tensor,
    found: GroupedHeads,
) -> list[Tensor]:
    """Keys and values [batch, heads, count, size] up to the last new ones of the longest row.

    Each row has its earlier ones, the new ones, and zeros.
    """
    new = [emit.transpose(x, [0, 2, 1, 3]) for x in new]
    if pasts[0] is None:
        return new
    most = earlier if found.is_even else _most(emit, earlier)
    first, axis = emit.vector(0), emit.vector(2)
    before = [emit("Slice", past, first, most, axis) for past in pasts if past is not None]
    if found.is_even:
        return [emit("Concat", *pair, axis=2) for pair in zip(before, new)]
    rows = _rows(emit, new[0], earlier, most, found.keys)
    zeros = _zeros(emit, new[0], emit.vector(1), found)
    tables = [emit("Concat", *pair, zeros, axis=2) for pair in zip(before, new)]
    tables = [emit("Reshape", x, emit.vector(-1, found.size)) for x in tables]
    return [emit("Gather", x, rows, axis=0) for x in tables]


def _most(emit: Builder, earlier: Tensor) -> Tensor:
    """The largest number of earlier keys, [1]: 0 for a batch without rows."""
    every = emit("Concat", emit.vector(0), emit("Reshape", earlier, emit.vector(-1)), axis=0)
    return emit.reduce("ReduceMax", every, [0], 1)


def _rows(emit: Builder, new: Tensor, earlier: Tensor, most: Tensor, heads: int) -> Tensor:
    """Where to read the keys of each row, [batch, heads, count].

    These are indices into `most` earlier keys, the new ones and a zero, concatenated, with batch,
    heads and places as one axis. Places after the new keys of a row have the zero.
    """
    zero, length = emit.vector(0), emit.shape(new, 2, 3)
    count = emit("Add", most, length)
    places = _steps(emit, count)
    after = emit("Sub", places, earlier)  # [batch, count], from the first new key
    later = emit("Add", emit.min(after, length), most)
    place = emit("Where", emit("Less", after, zero), places, later)
    row = emit("Mul", _steps(emit, emit.shape(new, 0, 1)), emit.vector(heads))
    head = emit("Add", emit.unsqueeze(row, [1]), emit.constant(np.arange(heads)))
    start = emit("Mul", head, emit("Add", count, emit.vector(1)))
    return emit("Add", emit.unsqueeze(start, [2]), emit.unsqueeze(place, [1]))


def _padded(
    emit: Builder, held: Tensor, past: Tensor | None, longest: Tensor, found: GroupedHeads
) -> Tensor:
    """The keys in a buffer as long as the earlier one, or as `longest` where that is more."""
    if past is not None:
        longest = emit.max(longest, emit.shape(past, 2, 3))
    rest = emit.max(emit("Sub", longest, emit.shape(held, 2, 3)), emit.vector(0))
    return emit("Concat", held, _zeros(emit, held, rest, found), axis=2)


def _zeros(emit: Builder, like: Tensor, count: Tensor, found: GroupedHeads) -> Tensor:
    """Zeros in the place of so many keys, for the batch of other keys."""
    sizes = [emit.shape(like, 0, 1), emit.vector(found.keys), count, emit.vector(found.size)]
    return emit("Expand", number(emit, 0, found.dtype), emit.concat(sizes))


def _seen(emit: Builder, places: Tensor, count: Tensor, found: GroupedHeads) -> Tensor:
    """For each query, which keys it sees: those up to its own place, and not too far before.

    [length, count], or [batch, 1, 1, length, count] for rows of their own.
    """
    axis = 1 if found.is_even else 2
    rows, columns = emit.unsqueeze(places, [axis]), _steps(emit, count)
    seen = emit("Not", emit("Less", rows, columns))
    if found.window:
        near = emit("Less", emit("Sub", rows, emit.scalar(found.window)), columns)
        seen = emit("And", seen, near)
    return seen if found.is_even else emit.unsqueeze(seen, [1, 2])
