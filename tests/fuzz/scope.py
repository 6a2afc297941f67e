"""A graph under construction: typed values, nodes, constants, and the graphs around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Dims = tuple[int | None, ...]


class Kind(Enum):
    """A kind of value: its element type, and its shape with None for sizes that vary.

    FLOAT stands for the type that the model computes in (`Names.data`).
    """

    SCALAR = (TensorProto.FLOAT, ())
    ROW = (TensorProto.FLOAT, (3,))
    SERIES = (TensorProto.FLOAT, (None,))
    TABLE = (TensorProto.FLOAT, (None, 3))
    GRID = (TensorProto.FLOAT, (None, None))
    BLOCK = (TensorProto.FLOAT, (None, None, None))
    BLOCKS = (TensorProto.FLOAT, (None, None, None, None))
    INT = (TensorProto.INT64, ())
    INT32 = (TensorProto.INT32, ())
    INTS = (TensorProto.INT64, (None,))
    BOOL = (TensorProto.BOOL, ())
    BOOLS = (TensorProto.BOOL, (None,))
    MASK = (TensorProto.BOOL, None, "of any rank")
    ONE_INT = (TensorProto.INT64, (1,))
    ONE_BOOL = (TensorProto.BOOL, (1,))
    """The iteration number and the condition, where a body declares them so."""
    LIST = (TensorProto.FLOAT, None)
    """A sequence of rows."""
    ROWS = (TensorProto.FLOAT, None, "of some shape")
    """A sequence of tensors of one shape."""

    @property
    def element(self) -> int:
        return int(self.value[0])

    @property
    def dims(self) -> Dims:
        return self.value[1] or ()

    @property
    def is_sequence(self) -> bool:
        return self.value[1] is None

    @property
    def is_data(self) -> bool:
        """Whether the elements have the type that a model computes in."""
        return self.element == TensorProto.FLOAT


DATA = (Kind.SCALAR, Kind.ROW, Kind.SERIES, Kind.TABLE)
STACKED = {
    Kind.SCALAR: Kind.SERIES,
    Kind.ROW: Kind.TABLE,
    Kind.SERIES: Kind.GRID,
    Kind.INT: Kind.INTS,
    Kind.BOOL: Kind.BOOLS,
}
"""The kinds of scan outputs, by the kinds of the slices."""
BY_RANK = (Kind.SCALAR, Kind.SERIES, Kind.GRID, Kind.BLOCK, Kind.BLOCKS)
"""The kinds of float tensors of open sizes, by rank."""


FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
NARROW = (TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL)
_ONLY_FLOATS = {
    *("Tanh", "Sigmoid", "Sin", "Exp", "Ceil", "Softmax", "ReduceMean", "LayerNormalization"),
    *("Relu", "ReduceProd"),
}
_NOT_NARROW = {
    *("Add", "Sub", "Mul", "Div", "Max", "Min", "Neg", "Abs", "MatMul", "ReduceSum", "ReduceMax"),
    *("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "CumSum", "Clip", "TopK", "ArgMax"),
    *("ReduceMin", "Where"),
}


def working_type(op: str, data: int) -> int | None:
    """The type that operands of this type are cast to, where the operator does not take them."""
    if data in FLOATS:
        return None
    if op in _ONLY_FLOATS:
        return int(TensorProto.FLOAT)
    return int(TensorProto.INT32) if data in NARROW and op in _NOT_NARROW else None


@dataclass(frozen=True, eq=False)
class Value:
    name: str
    kind: Kind


@dataclass
class Names:
    """What all graphs of a model share: its names, and the type that it computes in.

    With `repeated`, names come from a small pool, so that separate bodies share names.
    """

    random: Random
    repeated: bool
    data: int = TensorProto.FLOAT
    serial: int = 0

    def new(self, scope: Scope) -> str:
        for _ in range(8 if self.repeated else 0):
            name = f"v{self.random.randrange(80)}"
            if name not in scope.inside and not scope.has(name):
                return name
        self.serial += 1
        return f"u{self.serial}"


@dataclass
class Scope:
    """One graph under construction; nodes may also read values of the graphs around it."""

    random: Random
    names: Names
    opset: int
    outer: Scope | None = None
    values: list[Value] = field(default_factory=list)
    """The values that nodes may read; without those that must stay unused."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: list[onnx.TensorProto] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)
    """The names that bodies in this graph use, which the graph itself must not use."""

    @property
    def depth(self) -> int:
        return 0 if self.outer is None else 1 + self.outer.depth

    def has(self, name: str) -> bool:
        return name in self.taken or (self.outer is not None and self.outer.has(name))

    def inner(self) -> Scope:
        return Scope(self.random, self.names, self.opset, self)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    # --- values ---

    def declare(self, kind: Kind, readable: bool = True, name: str = "") -> Value:
        """A value that the caller defines: an input, or a result of a node that it adds."""
        value = Value(name or self.names.new(self), kind)
        self._take(value.name)
        if readable:
            self.values.append(value)
        return value

    def fresh(self) -> str:
        """A new name."""
        name = self.names.new(self)
        self._take(name)
        return name

    def _take(self, name: str) -> None:
        self.taken.add(name)
        graph = self.outer
        while graph is not None:
            graph.inside.add(name)
            graph = graph.outer

    def element(self, kind: Kind) -> int:
        """The element type of a kind in this model."""
        return self.names.data if kind.is_data else kind.element

    def dtype(self, kind: Kind) -> np.dtype[Any]:
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.element(kind)))

    def add(self, op: str, inputs: list[Value | None], kind: Kind, **attrs: Any) -> Value:
        """A node with one result; operands are cast where the operator does not take their type."""
        value = self.declare(kind, readable=False)
        given = ["" if i is None else i.name for i in inputs]
        if kind.is_data:
            attrs.update(self._typed(op))
        work = working_type(op, self.names.data)
        if work is None:
            self.nodes.append(helper.make_node(op, given, [value.name], **attrs))
        else:
            for place, operand in enumerate(inputs):
                if operand is not None and operand.kind.is_data:
                    given[place] = self.node("Cast", [operand.name], to=work)
            if kind.is_data:
                result = self.node(op, given, **attrs)
                self.node("Cast", [result], [value.name], to=self.names.data)
            else:
                self.node(op, given, [value.name], **attrs)
        self.values.append(value)
        return value

    def _typed(self, op: str) -> dict[str, Any]:
        """The attributes that give the type of the result."""
        if op == "Cast":
            return {"to": self.names.data}
        if op == "SequenceEmpty":
            return {"dtype": self.names.data}
        if op == "ConstantOfShape":
            return {"value": helper.make_tensor("", self.names.data, [1], [0])}
        return {}

    def node(
        self, op: str, inputs: list[str], outputs: list[str] | None = None, **attrs: Any
    ) -> str:
        """A node on names; the name of its first result, which other nodes do not read."""
        outputs = outputs or [self.fresh()]
        self.nodes.append(helper.make_node(op, inputs, outputs, **attrs))
        return outputs[0]

    def constant(self, number: Any, kind: Kind) -> Value:
        """A constant, as an initializer or a node."""
        value = self.declare(kind, readable=False)
        # A negative float has no value as an unsigned integer, but a negative integer wraps.
        whole = self.element(kind) not in FLOATS
        elements = np.asarray(number, np.int64 if whole else np.float64).astype(self.dtype(kind))
        tensor = numpy_helper.from_array(elements, value.name)
        if self.chance(0.5):
            self.stored.append(tensor)
        else:
            self.nodes.append(helper.make_node("Constant", [], [value.name], value=tensor))
        return value

    def integer(self, number: int) -> Value:
        return self.constant(number, Kind.INT)

    def visible(self, kind: Kind) -> list[Value]:
        own = [v for v in self.values if v.kind is kind]
        return own + (self.outer.visible(kind) if self.outer else [])

    def input(self, name: str) -> Value:
        """An input of the model."""
        if self.outer is not None:
            return self.outer.input(name)
        return next(value for value in self.values if value.name == name)

    def pick(self, kind: Kind) -> Value:
        """A value of a kind, mostly a recent one; a constant if there is none."""
        found = self.visible(kind)
        if not found or (kind is not Kind.LIST and self.chance(0.1)):
            return self.filled(kind)
        near = found[-4:] if self.chance(0.5) else found
        return self.random.choice(near)

    def filled(self, kind: Kind) -> Value:
        """A constant, or for a sequence an empty one."""
        if kind is Kind.LIST:
            return self.add("SequenceEmpty", [], kind)
        shape = tuple(2 if d is None else d for d in kind.dims)
        if kind in (Kind.BOOL, Kind.BOOLS):
            return self.constant(np.full(shape, self.chance(0.5)), kind)
        choices = [0.5, -1.0, 2.0, 0.0] if kind.is_data else [0, 1, 2, -1, 5]
        return self.constant(np.full(shape, self.random.choice(choices)), kind)

    # --- spellings that depend on the opset ---

    def squeeze(self, value: Value, axis: int, kind: Kind) -> Value:
        return self._with_axes("Squeeze", value, axis, kind)

    def unsqueeze(self, value: Value, axis: int, kind: Kind) -> Value:
        return self._with_axes("Unsqueeze", value, axis, kind)

    def _with_axes(self, op: str, value: Value, axis: int, kind: Kind) -> Value:
        if self.opset < 13:
            return self.add(op, [value], kind, axes=[axis])
        return self.add(op, [value, self.constant([axis], Kind.INTS)], kind)

    def size_of(self, value: Value) -> Value:
        """The size of the first axis."""
        shape = self.add("Shape", [value], Kind.INTS)
        return self.add("Gather", [shape, self.integer(0)], Kind.INT)

    # --- the finished graph ---

    def graph(
        self,
        name: str,
        inputs: list[Value],
        outputs: list[Value],
        exact: bool = False,
        honest: bool = False,
    ) -> onnx.GraphProto:
        """The finished graph.

        Unless `exact`, some declarations of inputs and outputs omit known sizes. Unless `honest`,
        some of them are wrong; onnxruntime relies on them where a Shape is taken.
        """
        honest = honest or exact
        return helper.make_graph(
            self.nodes,
            name,
            [self._lie(v) if self._may_lie(v, honest) else self._info(v, exact) for v in inputs],
            [self._info(v, exact) for v in outputs],
            self.stored,
        )

    def _may_lie(self, value: Value, honest: bool) -> bool:
        """Whether to declare a wrong size: exporters declare the initial size 0 of a growing value."""
        return not honest and value.kind is Kind.SERIES and self.chance(0.1)

    def _lie(self, value: Value) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(value.name, self.element(value.kind), [0])

    def _info(self, value: Value, exact: bool) -> onnx.ValueInfoProto:
        dims: list[int | str | None] = list(value.kind.dims)
        if value.kind.is_sequence:
            return helper.make_tensor_sequence_value_info(
                value.name, self.element(value.kind), None
            )
        if value.kind in (Kind.ONE_INT, Kind.ONE_BOOL):
            return helper.make_tensor_value_info(value.name, self.element(value.kind), [1])
        if not exact and self.chance(0.2):
            dims = [None for _ in dims]
        return helper.make_tensor_value_info(value.name, self.element(value.kind), dims)
