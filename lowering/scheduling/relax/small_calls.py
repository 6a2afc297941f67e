"""Which calls are of small kernels: those that compute a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from ..kernels.affine import static_product, static_size
from ..kernels.blocks import may_trap
from ..kernels.emission import SCHEDULED
from ..kernels.nests import depends, loads

_CALL_TIR = ir.Op.get("relax.call_tir")
_MOST_ELEMENTS = 16
"""The largest number of elements of a result."""
_MOST_STEPS = 256
"""The most stores that a kernel runs."""


def is_small_call(binding: Any, kernels: SmallKernels) -> bool:
    """Whether a binding is of a call of a small kernel with small results."""
    value = binding.value
    return (
        isinstance(value, ir.Call)
        and value.op.same_as(_CALL_TIR)
        and isinstance(value.args[1], relax.Tuple)
        and all(_is_small_tensor(kind) for kind in result_kinds(value))
        and value.args[0] in kernels
    )


def _is_small_tensor(kind: Any) -> bool:
    count = static_product(kind.shape.values)
    return count is not None and count <= _MOST_ELEMENTS


class SmallKernels:
    """The kernels of a module that have a few iterations."""

    def __init__(self, module: tvm.IRModule) -> None:
        self._module = module
        self._small: dict[Any, bool] = {}
        self._total: dict[Any, bool] = {}

    def __contains__(self, variable: Any) -> bool:
        if variable not in self._small:
            kernel = self._module[variable]
            self._small[variable] = isinstance(kernel, tirx.PrimFunc) and _is_small(kernel)
        return self._small[variable]

    def is_total(self, variable: Any) -> bool:
        """Whether a kernel cannot fail: it divides no integer by a loaded value or a number that it
        is given, and reads tensors of known shape at places that its loops alone decide.
        """
        if variable not in self._total:
            kernel = self._module[variable]
            tensors = [param for param in kernel.params if hasattr(param, "shape")]
            numbers = [param for param in kernel.params if not hasattr(param, "shape")]
            is_known = all(static_product(tensor.shape) is not None for tensor in tensors)
            divides = may_trap(kernel.body, *numbers)
            fixed = not _reads_at_places(kernel.body, numbers)
            self._total[variable] = is_known and not divides and fixed
        return self._total[variable]

    def known(self) -> list[Any]:
        """The kernels that were asked for and are small."""
        return [variable for variable, small in self._small.items() if small]


def _reads_at_places(code: Any, numbers: Sequence[Any]) -> bool:
    """Whether an index of a load or store is itself loaded, or depends on numbers."""
    found: list[Any] = []

    def visit(access: Any) -> None:
        for index in access.indices:
            found.extend(loads(index))
            if depends(index, numbers):
                found.append(index)

    tvm_ffi.structural_walk(code, ((ir.TensorLoad, tirx.BufferStore), visit))
    return bool(found)


def _is_small(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel has a few iterations, and nothing in it can take long."""
    if SCHEDULED in (kernel.attrs or {}) or not isinstance(kernel.body, s_tir.SBlockRealize):
        return False
    calls: list[str] = []
    tvm_ffi.structural_walk(kernel.body, (ir.Call, lambda call: calls.append(str(call.op))))
    leaves = any("call_packed" in name or "call_extern" in name for name in calls)
    return not leaves and _steps(kernel.body) <= _MOST_STEPS


def _steps(statement: Any) -> float:
    """The number of stores that a statement runs; infinite if it is not known."""
    if isinstance(statement, tirx.SeqStmt):
        return sum(map(_steps, statement.seq))
    if isinstance(statement, s_tir.SBlockRealize):
        return _steps(statement.block.body)
    if isinstance(statement, tirx.BufferStore):
        return 1
    if not isinstance(statement, tirx.For) or statement.kind != tirx.ForKind.SERIAL:
        return float("inf")
    extent = static_size(statement.extent)
    return float("inf") if extent is None else extent * _steps(statement.body)


def result_kinds(call: Any) -> list[Any]:
    return list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]


def variables_in(value: Any) -> list[Any]:
    """The variables and the names of sizes in a value."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (ir.Var, found.append))
    return found


def is_local(variable: Any) -> bool:
    """Whether only its dataflow block can read a variable."""
    return isinstance(variable, relax.DataflowVar)


def is_dataflow(block: Any) -> bool:
    return isinstance(block, relax.DataflowBlock)
