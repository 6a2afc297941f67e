"""The table of shape functions, and the context that a shape function reads its node through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from ... import symbolic
from ...graph.ir import Constant, Node, Tensor, optional
from ...symbolic import Dim
from ..axes import attribute_or_input
from ..fact import ABSENT, MOST_VALUES, AlwaysFails, Fact
from ..facts import Facts


class NodeContext:
    """A node and the facts of its inputs, for a shape function. Inputs go by slot."""

    __slots__ = ("facts", "node")

    def __init__(self, node: Node, facts: Facts) -> None:
        self.node = node
        self.facts = facts

    @property
    def opset(self) -> int:
        """The version of the standard operator set."""
        return self.facts.opset

    # --- inputs ---

    def present(self, slot: int) -> bool:
        """Whether the node has the input."""
        return optional(self.node.inputs, slot) is not None

    def fact(self, slot: int) -> Fact:
        """The fact of an input; ABSENT where it is omitted."""
        return self.facts.of(self.node.inputs[slot]) if self.present(slot) else ABSENT

    def inputs(self) -> list[Fact]:
        """The facts of all inputs."""
        return [self.fact(slot) for slot in range(len(self.node.inputs))]

    def shape(self, slot: int) -> tuple[Dim, ...] | None:
        """The symbolic shape of an input; None where its rank is not known."""
        return self.fact(slot).shape

    def constant(self, slot: int) -> np.ndarray | None:
        """The array of a constant input."""
        return self.facts.constant(self.node.inputs[slot]) if self.present(slot) else None

    def ints(self, slot: int) -> list[int] | None:
        """The elements of a constant integer input, flattened."""
        return _flat_ints(self.constant(slot))

    def dims(self, slot: int) -> list[Dim] | None:
        """The elements of an integer input as symbolic numbers; None where they are not known."""
        return self.elements(self.node.inputs[slot]) if self.present(slot) else None

    def elements(self, tensor: Tensor) -> list[Dim] | None:
        """The elements of an integer tensor as symbolic numbers; None where they are not known."""
        values = self.facts.of(tensor).values
        if values is not None:
            return [v for v in values if v is not None and not isinstance(v, bool)]
        ints = _flat_ints(self.facts.constant(tensor))
        return None if ints is None else list(ints)

    def is_nonempty(self, slot: int) -> bool:
        """Whether an input is known to have elements.

        onnxruntime checks some attributes only if there is something to compute.
        """
        shape = self.shape(slot)
        return shape is not None and all(map(symbolic.positive, shape))

    # --- attributes ---

    def attr(self, name: str, default: Any = None) -> Any:
        """The value of an attribute; an array for a tensor."""
        value = self.node.attrs.get(name, default)
        return value.values if isinstance(value, Constant) else value

    def attr_or_dims(self, name: str, slot: int) -> list[Dim] | None:
        """The elements of an operand that is an attribute in old opsets and an input in new ones.

        None where it is omitted or not known.
        """
        return attribute_or_input(self.node, name, slot, self.elements)

    def axes(self) -> list[int] | None:
        """The `axes`, an attribute or input 1; [] where they are omitted, None if not known."""
        return attribute_or_input(
            self.node, "axes", 1, lambda tensor: _flat_ints(self.facts.constant(tensor)), []
        )

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the front. Raises AlwaysFails for one outside the rank."""
        if not -rank <= value < rank:
            self.fail(f"axis {value} is outside rank {rank}")
        return value % rank

    # --- results ---

    def fresh(
        self, axis: int, output: int = 0, low: int | None = 0, high: int | None = None
    ) -> Dim:
        """The symbol for an unknown dim of an output."""
        return self.facts.fresh(self.node.outputs[output], axis, low, high)

    def unknown_shape(self, rank: int, output: int = 0) -> tuple[Dim, ...]:
        """A shape of this rank with unknown dims."""
        return tuple(self.fresh(axis, output) for axis in range(rank))

    def shape_of_length(self, length: Dim | None) -> tuple[Dim, ...] | None:
        """A shape of unknown dims whose rank is the length of a vector.

        None if the length is not known, or above MOST_VALUES: no tensor has so many axes.
        """
        if not isinstance(length, int) or length > MOST_VALUES:
            return None
        return self.unknown_shape(length)

    def check_sizes(self, sizes: Sequence[Dim]) -> None:
        """Raises AlwaysFails if a size of the result is known to be negative."""
        if any(isinstance(size, int) and size < 0 for size in sizes):
            self.fail(f"a size is negative: {list(sizes)}")

    def fail(self, reason: str) -> NoReturn:
        """Raises AlwaysFails: the node fails in every run, for this reason."""
        raise AlwaysFails(f"{self.node.op}: {reason}")


def _flat_ints(array: np.ndarray | None) -> list[int] | None:
    return None if array is None else [int(v) for v in array.reshape(-1)]


ShapeFunction = Callable[[NodeContext], Sequence[Fact]]
SHAPE_FUNCTIONS: dict[str, ShapeFunction] = {}
"""The shape functions of the standard domain, by operator."""


def register(*ops: str) -> Callable[[ShapeFunction], ShapeFunction]:
    """Registers a shape function for operators, those of another domain as `domain::operator`."""

    def add(function: ShapeFunction) -> ShapeFunction:
        for op in ops:
            SHAPE_FUNCTIONS[op] = function
        return function

    return add


def fact_like(x: Fact, shape: tuple[Dim, ...] | None, values: Any = None) -> Fact:
    """A fact with the type of `x` and this shape.

    `values` is an object array, or its element if the shape is (); it is dropped where the shape is
    not static or there are too many elements.
    """
    flat = None
    if values is not None and all(isinstance(d, int) for d in shape or ()):
        values = np.asarray(values, dtype=object)
        flat = tuple(values.reshape(-1).tolist()) if values.size <= MOST_VALUES else None
    return Fact(x.dtype, shape, None, flat)
