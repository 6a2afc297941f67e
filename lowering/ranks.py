"""Why a value has no rank, remembered so that the error of whoever needs it can say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tvm import relax

from ..rewrite.graph.ir import Node, Tensor
from .bodies import place
from .values import ListValue, Value


class Ranks:
    """Outputs of Ifs, and carried values of loops, whose rank depends on the run."""

    def __init__(self, unresolved: Mapping[Tensor, str] = MappingProxyType({})) -> None:
        """`unresolved` says why the readers of a value are not in the branches."""
        self._reasons: dict[Any, str] = {}
        self._unresolved = unresolved

    def note(self, node: Node, outputs: Sequence[Value], *branches: Sequence[Any]) -> None:
        """Remember which outputs of an If have no rank; `branches` are the types each one gives."""
        for tensor, output, *kinds in zip(node.outputs, outputs, *branches, strict=True):
            if not isinstance(output, ListValue) and _rank(output.ty) == "unknown":
                ranks = " in one branch and ".join(_rank(kind) for kind in kinds)
                self._reasons[output] = (
                    f"The rank of {tensor.name!r} is {ranks} in the other of {place(node, '')}"
                )
                if tensor in self._unresolved:
                    self._reasons[output] += f", and {self._unresolved[tensor]}"

    def note_carried(self, name: str, value: Value, initial: Value, loop: str) -> None:
        """Remember why a carried value has no rank in the body of a loop, if its initial one has.

        `loop` describes the loop.
        """
        if isinstance(value, ListValue) or _rank(value.ty) != "unknown":
            return
        if _rank(initial.ty) != "unknown":
            self._reasons[value] = f"The rank of {name!r} changes between iterations of {loop}"

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
