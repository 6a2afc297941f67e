"""Errors of converters, in terms of the model."""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from ..rewrite.errors import LoopliftError, UnsupportedError, summary_line
from ..rewrite.graph.ir import Node
from .bodies import place
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
    node: Node, path: str, inputs: Sequence[Value], reason: str, error: Exception
) -> UnsupportedError:
    """What to raise when the converter of a node raised `error`.

    `reason` is a sentence on why its inputs are as they are, or empty.
    """
    kinds = [
        f"{tensor.name} is {describe(value)}"
        for tensor, value in zip(node.inputs, inputs, strict=False)
        if tensor.name
    ]
    what = f"{node.op} cannot be translated to Relax as it is used here: {_sentence(error)}"
    inputs_are = f"; inputs: {', '.join(kinds)}" if kinds else ""
    matching = (kind for original, kind in _KINDS.items() if isinstance(error, original))
    return next(matching, UnsupportedError)(
        what,
        where=place(node, path) + inputs_are,
        remedy=_remedy(reason, inputs),
    )


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


def _sentence(error: Exception) -> str:
    if isinstance(error, LoopliftError):
        return error.what
    return f"{summary_line(error).rstrip('.')} ({type(error).__name__})"
