"""The registry of converters, and the context that a converter reads its node through.

A converter translates one node to Relax. It registers itself where it is defined:

    @converts("Squeeze", accepts=Accepts.SIZES)
    def squeeze(ctx: ConverterContext) -> Value: ...

TVM's ONNX importer converts the operators of the standard domain that have no entry in CONVERTERS,
and those of com.microsoft. A converter of looplift that corrects TVM's in some cases calls
`ctx.by_tvm()` for the others.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from ...rewrite.errors import UnsupportedError
from ..derived_sizes import DerivedSizes
from ..tvm_onnx import InputList, folds_broadcasts, operators
from ..tvm_onnx import converter as tvm_converter
from ..values import Constant, Value, as_tensor, is_tensor

_APPLIED = 22
"""The version of the operators that converters are composed of."""
MOST_COMPUTED = 1 << 12
"""The most elements of a constant that a converter computes. Larger ones are folded by the rules
before the import, or by the pipeline after it."""


class Accepts(enum.Flag):
    """The forms of inputs that a converter takes, besides tensors of known rank.

    The emitter turns symbolic sizes of the other forms into tensors, and refuses tensors of unknown
    rank.
    """

    TENSORS = 0
    """Tensors only."""
    SIZES = enum.auto()
    """A vector of sizes: a `ShapeExpr`, or a variable of `ShapeType`."""
    SCALARS = enum.auto()
    """An int64 or bool scalar computed from sizes: a prim expression."""
    NARROW_SIZES = enum.auto()
    """Sizes of another type than int64: `Sizes`."""
    ANY_RANK = enum.auto()
    """A tensor of unknown rank."""
    SYMBOLIC = SIZES | SCALARS | NARROW_SIZES
    """Every form of symbolic sizes."""


@dataclass(frozen=True, eq=False)
class ConverterContext:
    """A node and the values of its inputs, for its converter."""

    bb: Any
    """The `relax.BlockBuilder` that the converter emits into."""
    op_type: str
    inputs: Any
    """The inputs in the order of the operator's specification; None where one is omitted."""
    attrs: dict[str, Any]
    """The attributes that the node has, and under "tvm_custom" what TVM's converters read."""
    derived: DerivedSizes = field(default_factory=DerivedSizes)
    """The sizes of the tensors that the function has already."""

    @property
    def opset(self) -> int:
        """The version of the standard operator set."""
        return int(self.attrs["tvm_custom"]["opset"])

    @property
    def num_outputs(self) -> int:
        """The number of outputs of the node."""
        return int(self.attrs["tvm_custom"]["num_outputs"])

    def attr(self, name: str, default: Any = None) -> Any:
        """The value of an attribute; a str for a string."""
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def tensor(self, slot: int) -> Value:
        """An input with symbolic sizes turned into a tensor; None if it is omitted."""
        return as_tensor(self.bb, self.inputs[slot])

    def tensors(self) -> list[Value]:
        """All inputs, likewise."""
        return [self.tensor(slot) for slot in range(len(self.inputs))]

    @staticmethod
    def known_elements(value: Value) -> npt.NDArray[Any] | None:
        """The array of a constant; None for any other value."""
        if not isinstance(value, Constant):
            return None
        array: npt.NDArray[Any] = value.value.numpy()
        return array

    def derive(
        self, op_type: str = "", inputs: Sequence[Value] | None = None, **attrs: Any
    ) -> ConverterContext:
        """The context of a similar node: with another operator, inputs or attributes."""
        given = self.inputs if inputs is None else InputList(inputs)
        changed = {**self.attrs, **attrs}
        return replace(self, op_type=op_type or self.op_type, inputs=given, attrs=changed)

    def by_tvm(self, inputs: Sequence[Value] | None = None, **attrs: Any) -> Value:
        """What TVM's converter gives for the node, with other inputs or attributes if given."""
        other = self.derive(inputs=inputs, **attrs)
        convert = tvm_converter(self.op_type, self.opset)
        if other.computed_elements() > MOST_COMPUTED:
            # TVM's converter computes nothing if an input is a variable.
            other = other.derive(inputs=[self.bb.emit(other.inputs[0]), *other.inputs[1:]])
        # TVM's converters read the elements of the parameters they know, so that replacing such a
        # parameter has no effect. They know none.
        return convert(self.bb, other.inputs, other.attrs, [{}, {}])

    def computed_elements(self) -> int:
        """How many elements the result has if TVM's converter computes it from constants.

        A chain of such results may double with each node.
        """
        if not all(isinstance(value, Constant) for value in self.inputs):
            return 0
        shapes = [tuple(constant.value.shape) for constant in self.inputs]
        sizes = [math.prod(shape) for shape in shapes]
        if self.op_type == "Concat":
            return sum(sizes)
        if self.op_type == "Gather":
            return math.prod(sizes)
        if not folds_broadcasts(self.op_type):
            return 0
        try:
            return math.prod(np.broadcast_shapes(*shapes))
        except ValueError:  # TVM's converter says so.
            return 0

    def apply(self, op_type: str, *inputs: Value, **attrs: Any) -> Value:
        """The first output of another standard operator, bound to a variable.

        Inputs and attributes are those of opset 22, whatever the opset of the model.
        """
        converter = find("", op_type)
        if converter is None:
            raise UnsupportedError(f"{op_type} has no translation to Relax")
        takes_sizes = bool(converter.accepts & Accepts.SYMBOLIC)
        given = [value if takes_sizes else as_tensor(self.bb, value) for value in inputs]
        custom = {**self.attrs["tvm_custom"], "num_outputs": 1, "opset": _APPLIED}
        context = replace(
            self, op_type=op_type, inputs=InputList(given), attrs={**attrs, "tvm_custom": custom}
        )
        result = self.bb.normalize(converter.convert(context))
        if isinstance(result, relax.Tuple):
            result = result.fields[0]
        elif isinstance(result.ty, relax.TupleType):
            result = relax.TupleGetItem(self.bb.emit(result), 0)
        return self.bb.emit(result) if is_tensor(self.bb.normalize(result)) else result

    def cast(self, value: Value, dtype: str) -> Value:
        """A tensor cast to a type."""
        if str(value.ty.dtype) == dtype:
            return value
        return self.bb.emit(relax.op.astype(value, dtype))

    def call_te(
        self,
        compute: Callable[..., Any],
        *args: Any,
        name: str,
        attributes: Mapping[str, Any] | None = None,
    ) -> Value:
        """A call of the kernel `name`, which `compute` describes as a tensor expression."""
        given = dict(attributes or {})
        call = self.bb.call_te(compute, *args, primfunc_name_hint=name, primfunc_attrs=given)
        return self.bb.normalize(call)


ConverterFunction = Callable[[ConverterContext], Value]
"""Returns the value of the node: an expression, or a tuple with one field for each output."""


@dataclass(frozen=True)
class Converter:
    """The converter of an operator."""

    convert: ConverterFunction
    accepts: Accepts = Accepts.TENSORS


CONVERTERS: dict[str, Converter] = {}
"""The converters of looplift, by operator; those of other domains as `domain::operator`."""

BY_TVM = Converter(ConverterContext.by_tvm)
"""The converter of every other operator."""

_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
"""The domains whose operators TVM converts; its importer knows names only."""

_OTHERS = frozenset({("com.microsoft", "Unique")})
"""Operators that compute something else than the standard one of the same name, which TVM takes
them for: com.microsoft.Unique does not sort."""

_OF_MICROSOFT = frozenset({"Attention"})
"""Names under which TVM converts the operator of com.microsoft, not the standard one."""


def converts(
    *op_types: str, accepts: Accepts = Accepts.TENSORS
) -> Callable[[ConverterFunction], ConverterFunction]:
    """Registers the converter of operators; names outside the standard domain carry theirs.

    Raises ValueError for an operator that has a converter already.
    """

    def register(function: ConverterFunction) -> ConverterFunction:
        for op_type in op_types:
            if op_type in CONVERTERS:
                other = CONVERTERS[op_type].convert.__qualname__
                raise ValueError(f"{op_type} is registered twice: {other}, {function.__qualname__}")
            CONVERTERS[op_type] = Converter(function, accepts)
        return function

    return register


@functools.cache
def find(domain: str, op_type: str) -> Converter | None:
    """The converter of an operator; None if neither looplift nor TVM has one."""
    is_standard = domain in ("", "ai.onnx")
    own = CONVERTERS.get(op_type if is_standard else f"{domain}::{op_type}")
    if own is not None:
        return own
    if domain not in _DOMAINS or op_type not in operators() or (domain, op_type) in _OTHERS:
        return None
    return None if is_standard and op_type in _OF_MICROSOFT else BY_TVM
