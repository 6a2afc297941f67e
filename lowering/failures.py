"""Errors of converters, in terms of the model."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

import onnx
import tvm

from ..rewrite.errors import LoopliftError, UnsupportedError, summary_line
from ..rewrite.graph.ir import Node
from ..rewrite.storage.protos import nodes
from .bodies import Body, place
from .operators.registry import BY_TVM, find
from .support import UnknownOperatorError
from .values import Value, describe


class UnsupportedTypeError(UnsupportedError, TypeError):
    """A converter of TVM raised a TypeError."""


class UnsupportedAttributeError(UnsupportedError, tvm.error.OpAttributeInvalid):  # type: ignore[misc]
    """A converter of TVM raised OpAttributeInvalid."""


_KINDS: dict[type[Exception], type[UnsupportedError]] = {
    TypeError: UnsupportedTypeError,
    tvm.error.OpAttributeInvalid: UnsupportedAttributeError,
    tvm.error.OpNotImplemented: UnknownOperatorError,
}
"""What to raise for errors of TVM's converters that are neither ValueError nor
NotImplementedError."""


def failure(
    node: Node,
    body: Body,
    original: onnx.ModelProto,
    inputs: Sequence[Value],
    reason: str,
    error: Exception,
) -> UnsupportedError:
    """What to raise when the converter of a node of a body raised `error`.

    `original` is the model before it was rewritten. `reason` is a sentence on why its inputs are as
    they are, or empty.
    """
    kinds = [
        f"{tensor.name} is {describe(value)}"
        for tensor, value in zip(node.inputs, inputs, strict=False)
        if tensor.name
    ]
    what = f"{node.op} cannot be translated to Relax as it is used here: {_sentence(node, error)}"
    inputs_are = f"; inputs: {', '.join(kinds)}" if kinds else ""
    matching = (kind for raised, kind in _KINDS.items() if isinstance(error, raised))
    return next(matching, UnsupportedError)(
        what,
        where=place(node, body.path) + _part(node, body, original) + inputs_are,
        remedy=_remedy(reason, inputs),
    )


def _part(node: Node, body: Body, original: onnx.ModelProto) -> str:
    """The value of the file that a node helps to compute; empty for a node of the file.

    Rewrites and definitions of operators make nodes whose names mean nothing to the author.
    """
    known = {name for each in nodes(original.graph) for name in each.output if name}
    seen, waiting = {node}, deque([node])
    while waiting:
        made = waiting.popleft()
        found = next((t.name for t in made.outputs if t.name in known), None)
        if found is not None:
            return "" if made is node else f", part of what computes {found!r}"
        results = {id(tensor) for tensor in made.outputs if tensor.name}
        for step in body.steps:
            if step.node not in seen and any(id(t) in results for t in step.node.inputs):
                seen.add(step.node)
                waiting.append(step.node)
    return ""


def _remedy(reason: str, inputs: Sequence[Value]) -> str:
    if reason:
        return (
            f"{reason}. State what decides it: an input's value (--input NAME=VALUE) or size "
            "(--dim NAME=N, --shape NAME=…)"
        )
    if any("unknown rank" in describe(value) for value in inputs):
        return "State the shapes of the model's inputs (--shape NAME=…)"
    return (
        "State more about the inputs, so that this becomes constant or static "
        "(--input NAME=VALUE, --dim NAME=N), or replace the node"
    )


def _sentence(node: Node, error: Exception) -> str:
    if isinstance(error, LoopliftError):
        return error.what
    text = _readable(summary_line(error)).rstrip(".")
    if find(node.domain, node.op) is BY_TVM and node.domain:
        return f"TVM's converter takes other inputs only ({text})"
    if isinstance(error, _OF_PYTHON) or text.startswith(_WORDS_OF_PYTHON):
        return f"its operands and attributes do not fit each other ({type(error).__name__}: {text})"
    return f"{text} ({type(error).__name__})"


_OF_PYTHON = (LookupError, AttributeError, ArithmeticError, UnboundLocalError)
"""Errors whose messages are about the code of a converter."""
_WORDS_OF_PYTHON = ("zip() ", "not enough values to unpack", "too many values to unpack", "max() ")


_OPERATOR = re.compile(r'ir\.Op\(.*?name="([^"]+)".*?support_level=\d+\)')
_NUMBER = re.compile(r"T\.int64\((-?\d+)\)")


def _readable(text: str) -> str:
    """TVM's message with operator names and plain numbers."""
    return _NUMBER.sub(r"\1", _OPERATOR.sub(r"\1", text))
