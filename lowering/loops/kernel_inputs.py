"""What the body of a loop is given, as variables of a function of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir import is_prim_var

from ..tvm_onnx import EmptyOptional
from ..values import Constant, ListValue, Value, as_int, as_tensor, fresh_dim
from .kernel_body import NoKernelError
from .plan import Plan, Sliced


class Inputs:
    """The variables of a body by name, and the values outside that they stand for.

    They have the sizes of those values. A size computed from symbols that no operand has as a
    dimension, such as 2·n where there is no n, becomes a symbol of its own.
    """

    def __init__(self, bb: Any, plan: Plan) -> None:
        """NoKernelError: a value of unknown rank or type, or that is no tensor."""
        self._bb = bb
        self._outer: dict[Any, Value] = {}
        self.variables: dict[str, Any] = {}
        self.values: dict[str, Value] = {}
        """What each name that the body sees stands for: a variable, or a constant."""
        declared = {value.name: value for value in plan.body.graph.input}
        types: dict[str, tuple[Any, Value]] = {}
        for name, dtype in ((plan.iteration, "int64"), (plan.given_condition, "bool")):
            if name:
                types[name] = (relax.TensorType(_scalar_shape(declared[name]), dtype), None)
        for state in plan.states:
            kind = self._tensor_type(f"the state {state.name!r}", state.initial)
            types[state.name] = (kind, state.initial)
        for sliced in plan.sliced:
            types[sliced.name] = (self._slice_type(sliced), sliced.data)
        for name, value in plan.captured.items():
            if isinstance(value, Constant) or as_int(value) is not None:
                self.values[name] = value
            else:
                kind = self._tensor_type(f"{name!r}, which its body reads,", value)
                types[name] = (kind, value)
        self._sizes = _Sizes([kind for kind, _ in types.values()])
        for name, (kind, outer) in types.items():
            variable = relax.Var(name, self._sizes.inside(kind))
            self.variables[name] = self.values[name] = variable
            self._outer[variable] = outer
        self.captures = [self.variables[name] for name in plan.captured if name in self.variables]

    @property
    def params(self) -> list[Any]:
        return list(self.variables.values())

    def outer(self, variable: Any) -> Value:
        """The tensor outside that a variable stands for; that of a scan input is the whole."""
        return self._bb.normalize(as_tensor(self._bb, self._outer[variable]))

    def outer_type(self, kind: Any) -> Any:
        """A type of the body in the symbols of the function around the loop."""
        return self._sizes.outside(kind)

    def _slice_type(self, sliced: Sliced) -> Any:
        kind = self._tensor_type(f"the scan input {sliced.name!r}", sliced.data)
        dims = dims_of(kind)
        return relax.TensorType([*dims[: sliced.axis], *dims[sliced.axis + 1 :]], kind.dtype)

    def _tensor_type(self, what: str, value: Value) -> Any:
        if isinstance(value, EmptyOptional | ListValue | relax.Tuple):
            raise NoKernelError(f"{what} is no tensor")
        kind = self._bb.normalize(as_tensor(self._bb, value)).ty
        if not isinstance(kind, relax.TensorType) or kind.dtype is None:
            raise NoKernelError(f"{what} is no tensor of a known type")
        if not isinstance(kind.shape, relax.ShapeExpr):
            raise NoKernelError(f"the shape of {what.rstrip(',')} is not known")
        return kind


class _Sizes:
    """Replaces sizes that a kernel could not tell from the shapes of its parameters."""

    def __init__(self, kinds: Sequence[Any]) -> None:
        dims = [size for kind in kinds for size in dims_of(kind)]
        plain = {size for size in dims if is_prim_var(size)}
        self._replaced: list[tuple[Any, Any]] = []
        for size in dims:
            symbols = set(tirx.analysis.undefined_vars(size))
            if not is_prim_var(size) and symbols - plain and self._found(size) is None:
                self._replaced.append((size, fresh_dim("size")))

    def inside(self, kind: Any) -> Any:
        """A type with the sizes replaced."""
        if not self._replaced:
            return kind
        found = [(size, self._found(size)) for size in dims_of(kind)]
        return relax.TensorType([size if new is None else new for size, new in found], kind.dtype)

    def outside(self, kind: Any) -> Any:
        """A type with the replaced sizes put back."""
        back = {new: size for size, new in self._replaced}
        return tvm_ffi.structural_map(kind, (ir.Var, lambda v: back.get(v, v)), order="post")

    def _found(self, size: Any) -> Any:
        same = (new for old, new in self._replaced if tvm_ffi.structural_equal(old, size))
        return next(same, None)


def dims_of(kind: Any) -> list[Any]:
    """The dimensions of a tensor type that has them."""
    return list(kind.shape.values)


def _scalar_shape(value: onnx.ValueInfoProto) -> list[int]:
    """The iteration number and the condition have no axis, or one of size 1."""
    return [1] * len(value.type.tensor_type.shape.dim)
