"""From Relax operators to kernels: TVM's LegalizeOps with exceptions, and once for equal calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, te, tirx, topi

from ..values import Constant

_CALL_TIR = ir.Op.get("relax.call_tir")

Legalize = Callable[[relax.BlockBuilder, Any], Any]
"""From a builder and a call of an operator to what replaces the call."""


def legalize_operators() -> Any:
    """The pass that replaces operators by calls of kernels.

    TVM makes a kernel for each call, and finds afterwards that it has it already. A network calls
    few operators of different types, so that here a second call of the same type takes the kernel
    of the first.
    """

    def run(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        kernels = _Kernels()
        functions = {
            name: partial(kernels.legalize, legalize) for name, legalize in _legalizations().items()
        }
        return relax.transform.LegalizeOps(functions)(module)

    return tvm.transform.module_pass(run, opt_level=0, name="looplift.legalize_operators")


@cache
def _legalizations() -> dict[str, Legalize]:
    """What replaces calls of each operator."""
    found = {name: ir.Op.get(name).get_attr("FLegalize") for name in ir.Op.list_op_names()}
    return {name: legalize for name, legalize in found.items() if legalize is not None} | {
        "relax.take": _take,
        "relax.nn.relu": _relu,
    }


@dataclass(frozen=True)
class _Replacement:
    """A call of a kernel that replaces calls of an operator with operands of certain types."""

    kernel: Any
    places: list[int]
    """The operands that the kernel takes, in order."""
    sizes: Sequence[Any]
    """The sizes that it takes after its operands."""
    types: Sequence[Any]

    def call(self, operands: list[Any], result: Any) -> Any:
        """The call of the kernel, of the type `result`."""
        fields = relax.Tuple([operands[place] for place in self.places])
        return ir.Call(
            _CALL_TIR, [self.kernel, fields, *self.sizes], None, self.types, ret_ty=result
        )


@dataclass(frozen=True)
class _Kernels:
    """The kernels of a module by the operators and types that they replace."""

    _found: dict[int, list[tuple[Any, _Replacement | None]]] = field(default_factory=dict)
    """None for calls that TVM replaces by more than a call of a kernel."""

    def legalize(self, legalize: Legalize, bb: relax.BlockBuilder, call: Any) -> Any:
        """What replaces a call."""
        operands = _operands(call)
        key = _key(call, operands)
        found = self._found.setdefault(tvm_ffi.structural_hash(key), [])
        for other, replacement in found:
            if tvm_ffi.structural_equal(other, key):
                if replacement is None:
                    return legalize(bb, call)
                return replacement.call(operands, call.ty)
        result = legalize(bb, call)
        found.append((key, _replacement(call, operands, result)))
        return result


def _operands(call: Any) -> list[Any]:
    """The tensors that a call takes, those of tuples as well.

    Not constants that are numbers: TVM writes those into the kernel.
    """
    arguments = [a for arg in call.args for a in (arg.fields if _is_tuple(arg) else [arg])]
    return [
        a
        for a in arguments
        if isinstance(getattr(a, "ty", None), relax.TensorType)
        and not (isinstance(a, Constant) and not a.ty.ndim)
    ]


def _is_tuple(argument: Any) -> bool:
    return isinstance(argument, relax.Tuple)


def _key(call: Any, operands: list[Any]) -> Any:
    """What the kernel for a call depends on: all but the values of its operands."""
    arguments = [a for arg in call.args for a in (arg.fields if _is_tuple(arg) else [arg])]
    tuples = [len(arg.fields) if _is_tuple(arg) else -1 for arg in call.args]
    return tvm_ffi.convert(
        [
            call.op.name,
            call.attrs,
            call.ty,
            tuples,
            [_first(operands, o) for o in operands],
            [a.ty if _first(operands, a) is not None else a for a in arguments],
        ]
    )


def _first(operands: list[Any], operand: Any) -> int | None:
    """The first place of an operand."""
    return next((k for k, other in enumerate(operands) if other.same_as(operand)), None)


def _replacement(call: Any, operands: list[Any], result: Any) -> _Replacement | None:
    """What replaces other calls of the same type; None if `result` does more than to call a kernel.

    A result whose type is not that of the call has sizes that statements before it compute.
    """
    if not isinstance(result, ir.Call) or not result.op.same_as(_CALL_TIR):
        return None
    kernel, arguments, *sizes = result.args
    places = [_first(operands, argument) for argument in arguments.fields]
    if None in places or {_first(operands, o) for o in operands} != set(places):
        return None
    if not tvm_ffi.structural_equal(result.ty_args[0], call.ty):
        return None
    return _Replacement(kernel, [p for p in places if p is not None], sizes, result.ty_args)


def _relu(bb: relax.BlockBuilder, call: Any) -> Any:
    """TVM's own kernel turns NaN into 0; onnxruntime keeps it."""

    def relu(x: te.Tensor) -> te.Tensor:
        # `Max(a, b)` is `a > b ? a : b`, so that with NaN as b the result is NaN.
        zero = tirx.const(0, x.dtype)
        return te.compute(x.shape, lambda *i: tirx.Max(zero, x(*i)), name="relu", tag="elemwise")

    return bb.call_te(relu, *call.args)


def _take(bb: relax.BlockBuilder, call: Any) -> Any:
    """TVM's own kernel computes the same, and prints for each that it does not check indices.

    ONNX does not allow indices outside of the data.
    """
    data, indices = call.args
    axis, mode = call.attrs.axis, str(call.attrs.mode)
    if axis is None or mode != "fast":
        return bb.call_te(topi.take, data, indices, axis, mode=mode)

    def take(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        first = int(axis) % len(data.shape)
        end = first + len(indices.shape)
        shape = [*data.shape[:first], *indices.shape, *data.shape[first + 1 :]]

        def element(*places: Any) -> Any:
            return data(*places[:first], indices(*places[first:end]), *places[end:])

        return te.compute(shape, element, name="T_take", tag="injective")

    return bb.call_te(take, data, indices)
