"""The table of shape functions and what one of them sees of its node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from ... import symbolic
from ...graph.ir import Constant, Node
from ...symbolic import Dim
from ..facts import MOST_VALUES, NOTHING, Fact, Facts, Impossible


class Site:
    """A node and the facts of its inputs, as a shape function reads them."""

    __slots__ = ("facts", "node")

    def __init__(self, node: Node, facts: Facts) -> None:
        self.node = node
        self.facts = facts

    @property
    def opset(self) -> int:
        return self.facts.opset

    def present(self, slot: int) -> bool:
        return slot < len(self.node.inputs) and bool(self.node.inputs[slot].name)

    def fact(self, slot: int) -> Fact:
        return self.facts.of(self.node.inputs[slot]) if self.present(slot) else NOTHING

    def inputs(self) -> list[Fact]:
        return [self.fact(slot) for slot in range(len(self.node.inputs))]

    def shape(self, slot: int) -> tuple[Dim, ...] | None:
        return self.fact(slot).shape

    def constant(self, slot: int) -> np.ndarray | None:
        return self.facts.constant(self.node.inputs[slot]) if self.present(slot) else None

    def ints(self, slot: int) -> list[int] | None:
        """The elements of a constant integer input, flattened."""
        array = self.constant(slot)
        return None if array is None else [int(v) for v in array.reshape(-1)]

    def dims(self, slot: int) -> list[Dim] | None:
        """The elements of an integer input as symbolic numbers."""
        fact = self.fact(slot)
        if fact.values is not None:
            return [v for v in fact.values if v is not None and not isinstance(v, bool)]
        return list(self.ints(slot) or []) if self.constant(slot) is not None else None

    def surely_has_elements(self, slot: int) -> bool:
        """onnxruntime checks some attributes only where there is something to compute."""
        shape = self.shape(slot)
        return shape is not None and all(map(symbolic.positive, shape))

    def attr(self, name: str, default: Any = None) -> Any:
        value = self.node.attrs.get(name, default)
        return value.values if isinstance(value, Constant) else value

    def fresh(
        self, axis: int, output: int = 0, low: int | None = 0, high: int | None = None
    ) -> Dim:
        """The unknown dim of an output."""
        return self.facts.fresh(self.node.outputs[output], axis, low, high)

    def unknown_shape(self, rank: int, output: int = 0) -> tuple[Dim, ...]:
        return tuple(self.fresh(axis, output) for axis in range(rank))

    def axis(self, value: int, rank: int) -> int:
        """A possibly negative axis as a position; refuses one outside the rank."""
        if not -rank <= value < rank:
            self.fail(f"axis {value} is outside rank {rank}")
        return value % rank

    def fail(self, reason: str) -> NoReturn:
        raise Impossible(f"{self.node.op}: {reason}")


ShapeFunction = Callable[[Site], Sequence[Fact]]
TABLE: dict[str, ShapeFunction] = {}
"""Shape functions of the standard domain, by operator."""


def shape_of(*ops: str) -> Callable[[ShapeFunction], ShapeFunction]:
    """Registers a shape function for operators of the standard domain."""

    def register(function: ShapeFunction) -> ShapeFunction:
        for op in ops:
            TABLE[op] = function
        return function

    return register


def like(x: Fact, shape: tuple[Dim, ...] | None, values: Any = None) -> Fact:
    """A fact of x's type; `values` is an object array, or its element where it has no axes."""
    flat = None
    if values is not None and all(isinstance(d, int) for d in shape or ()):
        values = np.asarray(values, dtype=object)
        flat = tuple(values.reshape(-1).tolist()) if values.size <= MOST_VALUES else None
    return Fact(x.dtype, shape, None, flat)
