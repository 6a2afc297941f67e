"""Interprets the nodes of a body symbolically: every value as a form of what the body reads.

What has no form becomes a source of its own, an `Unknown`, which remembers the node and the reason:
a cell that depends on it is declined with that reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.symbolic import Dim
from . import forms, values, weights
from .atoms import Source
from .coefficients import NotAffine
from .values import Value
from .weights import Array, Weight

FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16})
_LIFTED = FLOATS | {onnx.TensorProto.BOOL}
"""Masks that are known to be all true or all false are followed to where they are used."""


@dataclass(frozen=True, eq=False)
class Unknown:
    """The origin of a source of which no form is known."""

    tensor: Tensor
    node: Node
    """The node that computes it."""
    reason: str


@dataclass(frozen=True)
class Invariant:
    """The origin of a source that is the same in every iteration: a context, an embedding."""

    value: Tensor


Handler = Callable[["Lifter", Node], list[Value]]
HANDLERS: dict[str, Handler] = {}


def lifts(*operators: str) -> Callable[[Handler], Handler]:
    """Registers how an operator of the standard domain acts on forms."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(operators, handler))
        return handler

    return register


class Lifter:
    """The forms of the values of one body."""

    def __init__(
        self,
        facts: Facts,
        sources: Mapping[Tensor, Value],
        inside: Callable[[Node], bool],
        outer: Callable[[Tensor], Value | NotAffine],
        same: Sequence[Dim] = (),
    ) -> None:
        """`sources` are the values that count as read; `inside` says which nodes to interpret,
        `outer` what a value from outside is that is no constant; sizes in `same` count as one.
        """
        self.facts = facts
        self.index = facts.index
        self._inside = inside
        self._given_outer = outer
        self._same = same
        self._found: dict[Tensor, Value | NotAffine] = dict(sources)

    def value(self, tensor: Tensor) -> Value:
        """The value of a tensor. Raises NotAffine where not even its shape is known."""
        found = self._found.get(tensor)
        if found is None:
            self._lift(tensor)
            found = self._found[tensor]
        if isinstance(found, NotAffine):
            raise found
        return found

    def _lift(self, wanted: Tensor) -> None:
        """Lifts what the tensor depends on first; without recursion along chains."""
        stack = [wanted]
        while stack:
            tensor = stack[-1]
            if tensor in self._found:
                stack.pop()
                continue
            node = self._node(tensor)
            if node is None:
                self._found[tensor] = self._outer(tensor)
                continue
            missing = [t for t in node.inputs if t.name and self._is_open(t)]
            if missing:
                stack.extend(missing)
            else:
                self._apply(node)

    def _is_open(self, tensor: Tensor) -> bool:
        return tensor not in self._found and self._node(tensor) is not None

    def _node(self, tensor: Tensor) -> Node | None:
        """The node to interpret for a value; None for what comes from outside."""
        node = self.index.producer(tensor)
        return node if node is not None and self._inside(node) else None

    def _apply(self, node: Node) -> None:
        handler = HANDLERS.get(node.op) if not node.domain else None
        try:
            if handler is None:
                raise NotAffine(f"{node.op} is no affine function")
            if self.facts.dtype(node.outputs[0]) not in _LIFTED:
                raise NotAffine("it is not of a float type")
            results = handler(self, node)
        except NotAffine as reason:
            results = []
            for tensor in node.outputs:
                self._found[tensor] = self._unknown(tensor, node, str(reason))
        for tensor, value in zip(node.outputs, results):
            self._found[tensor] = value

    def _outer(self, tensor: Tensor) -> Value | NotAffine:
        """A constant, a weight that is computed outside, or a value nothing is known of."""
        array = self.facts.constant(tensor)
        if array is not None and array.dtype.kind in "fb":
            return values.constant(array)
        return self._given_outer(tensor)

    def weight_value(self, tensor: Tensor) -> Value | None:
        """A value that is computed outside as a weight; None where its shape is not static."""
        shape = self.static_shape(tensor)
        if shape is None:
            return None
        whole = self.computed(tensor, shape)
        flat = weights.reshaped(whole, (int(np.prod(shape, dtype=np.int64)),))
        return Value(forms.constant(flat), shape)

    def computed(self, tensor: Tensor, shape: tuple[int, ...]) -> weights.Computed:
        return weights.value(tensor, shape, numpy_type(self.facts, tensor))

    def static_shape(self, tensor: Tensor) -> tuple[int, ...] | None:
        shape = self.facts.shape(tensor)
        if shape is None or self.facts.dtype(tensor) not in FLOATS:
            return None
        sizes = tuple(n for n in shape if isinstance(n, int))
        return sizes if len(sizes) == len(shape) else None

    def _unknown(self, tensor: Tensor, node: Node, reason: str) -> Value | NotAffine:
        if self.facts.shape(tensor) is None or self.facts.dtype(tensor) not in FLOATS:
            return NotAffine(reason)
        shape = self.shape(tensor)
        name = ("value", id(tensor))
        return source_value(self.facts, tensor, shape, name, Unknown(tensor, node, reason))

    # --- what handlers ask ---

    def operand(self, node: Node, slot: int) -> Value:
        return self.value(node.inputs[slot])

    def has(self, node: Node, slot: int) -> bool:
        return slot < len(node.inputs) and bool(node.inputs[slot].name)

    def weight(self, tensor: Tensor) -> Weight | None:
        """What does not depend on the body's inputs, as an array; None for anything else."""
        array = self.facts.constant(tensor)
        if array is not None:
            return array if array.dtype.kind == "f" else None
        value = self.value(tensor)
        shape = tuple(a for a in value.axes if isinstance(a, int))
        if value.form.terms or len(shape) != len(value.axes):
            return None
        return weights.reshaped(value.form.bias, shape)

    def numbers(self, node: Node, slot: int, attribute: str = "") -> Array | None:
        """Integers given as an input or, in older opsets, as an attribute; None if absent."""
        if attribute and attribute in node.attrs:
            return np.asarray(node.attrs[attribute], np.int64)
        if not self.has(node, slot):
            return None
        array = self.facts.constant(node.inputs[slot])
        if array is None:
            raise NotAffine(f"its operand `{node.inputs[slot].name}` is not known")
        return array

    def shape(self, tensor: Tensor) -> tuple[Dim, ...]:
        shape = self.facts.shape(tensor)
        if shape is None:
            raise NotAffine("its shape is not known")
        return as_one(shape, self._same)


def as_one(shape: tuple[Dim, ...], same: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape with the first of the sizes in `same` for all of them."""
    return tuple(same[0] if n in same else n for n in shape)


def source_value(
    facts: Facts,
    tensor: Tensor,
    shape: tuple[Dim, ...],
    name: object,
    origin: object,
    batch: Collection[Dim] = (),
) -> Value | NotAffine:
    """A value that counts as read. All its axes are feature axes (layers, directions, gates) but
    those of open size or, where all are static, one: if possible of a size that is in `batch`.
    """
    apart = _static_batch(shape, batch)
    axes = values.axes_of(shape, [k for k in range(len(shape)) if k != apart])
    dtype = numpy_type(facts, tensor)
    width = int(np.prod([a for a in axes if isinstance(a, int)], dtype=np.int64))
    return Value(forms.of_atom(Source(name, width, origin), dtype), axes)


def _static_batch(shape: tuple[Dim, ...], batch: Collection[Dim]) -> int | None:
    """The axis over which a value of static shape is told apart row by row: of the axes with a
    known batch size the one nearest to the features, which are last; a column has no batch.
    """
    if len(shape) < 2 or not all(isinstance(n, int) for n in shape):
        return None
    for axis in range(len(shape) - 2, -1, -1):
        if shape[axis] in batch:
            return axis
    return len(shape) - 2 if shape[-1] != 1 else None


def numpy_type(facts: Facts, tensor: Tensor) -> np.dtype[np.generic]:
    """The type of the elements of a value."""
    return helper.tensor_dtype_to_np_dtype(facts.dtype(tensor))
