"""Why a value has no rank, remembered so that the error of whoever needs it can say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from tvm import relax

from .bodies import place
from .values import ListValue, Value


class Ranks:
    """Outputs of Ifs whose branches give values of different ranks."""

    def __init__(self) -> None:
        self._reasons: dict[Any, str] = {}

    def note(
        self, node: onnx.NodeProto, outputs: Sequence[Value], *branches: Sequence[Any]
    ) -> None:
        """Remember which outputs of an If have no rank; `branches` are the types each one gives."""
        for name, output, *kinds in zip(node.output, outputs, *branches, strict=True):
            if not isinstance(output, ListValue) and _rank(output.ty) == "unknown":
                ranks = " in one branch and ".join(_rank(kind) for kind in kinds)
                self._reasons[output] = (
                    f"The rank of {name!r} is {ranks} in the other of {place(node, '')}"
                )

    def explain(self, inputs: Sequence[Value]) -> str:
        """A sentence about the first input of unknown rank whose reason is known, or nothing."""
        for value in inputs:
            if isinstance(value, relax.Expr) and value in self._reasons:
                return self._reasons[value]
        return ""


def _rank(kind: Any) -> str:
    if not isinstance(kind, relax.TensorType):
        return "not a tensor's"
    return "unknown" if kind.ndim < 0 else str(kind.ndim)
