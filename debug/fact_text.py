"""Facts in words: `float32[2, B]`, `int64[] = 3`."""

from __future__ import annotations

import functools

import onnx
from onnx import helper

from ..rewrite.facts.fact import Element, Fact
from ..rewrite.symbolic import Dim, Expr, symbols

_LARGEST_EXPRESSION = 12
"""The atoms of the largest expression that is written out."""


def is_named(dim: Dim) -> bool:
    """Whether a size is a number or made of names of the file, not of symbols of looplift."""
    return all(symbol.serial < 0 for symbol in symbols(dim))


def type_text(fact: Fact) -> str:
    """Type and shape, `float32[2, B]`, with `?` for what is not known."""
    if fact.kind == "other":
        return "optional or map"
    dtype = _dtype_text(fact.dtype)
    shape = "[?]" if fact.shape is None else f"[{', '.join(map(_number_text, fact.shape))}]"
    text = "string" + shape if dtype == "object" else dtype + shape
    return f"sequence of {text}" if fact.kind == "sequence" else text


def value_text(fact: Fact) -> str:
    """Type and shape, and the value of a single element that is known: `int64[] = 3`."""
    value = fact.scalar()
    if value is None or not is_named(value):
        return type_text(fact)
    return f"{type_text(fact)} = {_number_text(value)}"


def _number_text(number: Element) -> str:
    """A number; `…` for an expression that is too large to read."""
    return "…" if isinstance(number, Expr) and number.size > _LARGEST_EXPRESSION else str(number)


@functools.cache
def _dtype_text(dtype: int) -> str:
    known = dtype in onnx.TensorProto.DataType.values() and dtype != 0
    return str(helper.tensor_dtype_to_np_dtype(dtype)) if known else "?"
