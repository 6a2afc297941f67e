"""Checks and constants that the rules for contrib operators share.

The operators are specified in onnxruntime's `docs/ContribOperators.md`.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.rule import Match
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.graph.ir import Tensor, optional

HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
"""The types that onnxruntime normalises in single precision."""


def need_type(m: Match, tensor: Tensor) -> int:
    """The element type of a value. Raises Miss where it is not known."""
    return m.need(m.facts.dtype(tensor) or None, "the type of {} is not known", tensor, at=tensor)


def need_float(m: Match, tensor: Tensor) -> int:
    """The element type of a value. Raises Miss unless it is a floating point type."""
    dtype = need_type(m, tensor)
    is_float = dtype in FLOAT_OR_DOUBLE | HALF
    m.need(is_float, "{} does not consist of floating point numbers", tensor, at=tensor)
    return dtype


def need_heads(m: Match, name: str = "num_heads") -> int:
    """The number of heads of an attention. Raises Miss unless it is positive."""
    count = int(m.node.attrs[name])
    m.need(count > 0, "its attribute {} is {}, not a positive number", name, count)
    return count


def need_last_size(m: Match, x: Tensor) -> int:
    """The size of the last axis of a value. Raises Miss where it is not known."""
    size = (m.facts.shape(x) or (None,))[-1]
    known = size if isinstance(size, int) else None
    return m.need(known, "the last size of {} is not known", x, at=x)


def need_omitted(m: Match, *slots: int) -> None:
    """Raises Miss if the root has one of these inputs."""
    for slot in slots:
        given = optional(m.node.inputs, slot)
        m.need(given is None, "its input {} is not supported", given, at=given)


def need_unread(m: Match, *slots: int) -> None:
    """Raises Miss if something reads one of these outputs of the root."""
    for output in (m.node.outputs[slot] for slot in slots if slot < len(m.node.outputs)):
        m.need(not m.index.use_count(output), "its output {} is read", output, at=output)


def number(emit: Builder, value: float, dtype: int) -> Tensor:
    """A constant scalar of an ONNX element type."""
    return emit.constant(np.array(value, helper.tensor_dtype_to_np_dtype(dtype)))
