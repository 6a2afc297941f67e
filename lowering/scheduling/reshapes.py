"""Kernels that only reshape, as reshapes again: the virtual machine makes a view instead of a copy.

TVM's RewriteDataflowReshape does the same, and proves it anew for each call. In TVM 0.27 it fails
on empty results: `relax.reshape` reads a size of 0 as the size of the input on that axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import mul
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, sym, tirx

from .affine import flat_index
from .dataflow import with_body
from .nests import is_number, nests_of, substituted
from .ordered_copies import KEEPS_ORDER

_CALL_TIR = ir.Op.get("relax.call_tir")
_EXAMPLE = 1009
"""The value of a variable in an example: large, so that sizes such as `n // 8 - 1` are positive."""


def restore_reshapes(module: tvm.IRModule) -> tvm.IRModule:
    """The module with `relax.reshape` for calls of kernels that reshape their one tensor.

    Results that may leave the function stay copies: a caller may write to them. Their kernels get
    the attribute `KEEPS_ORDER`.
    """
    known: dict[Any, bool] = {}
    kept: set[Any] = set()

    def is_reshape(kernel: Any) -> bool:
        if kernel not in known:
            function = module[kernel]
            known[kernel] = isinstance(function, tirx.PrimFunc) and reshapes(function)
        return known[kernel]

    def restored(function: relax.Function) -> Any:
        escaping = _escaping(function)

        def restore(binding: Any) -> Any:
            call = binding.value
            if not _calls_kernel(call) or not is_reshape(call.args[0]):
                return binding
            if not isinstance(binding.var, relax.DataflowVar) and binding.var in escaping:
                kept.add(call.args[0])
                return binding
            return relax.VarBinding(binding.var, relax.op.reshape(call.args[1][0], call.ty.shape))

        return tvm_ffi.structural_map(function.body, (relax.VarBinding, restore), order="post")

    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            module[variable] = with_body(function, restored(function))
    for variable in kept:
        module[variable] = module[variable].with_attr(KEEPS_ORDER, True)
    return relax.transform.Normalize()(module)


def _calls_kernel(value: Any) -> bool:
    return isinstance(value, ir.Call) and value.op.same_as(_CALL_TIR)


def _escaping(function: relax.Function) -> set[Any]:
    """The variables that anything other than a kernel reads."""
    found: set[Any] = set()

    def visit_binding(binding: Any) -> None:
        if not _calls_kernel(binding.value):
            found.update(relax.analysis.free_vars(binding.value))

    def visit_block(block: Any) -> None:
        found.update(relax.analysis.free_vars(block.body))

    tvm_ffi.structural_walk(
        function.body, [(relax.Binding, visit_binding), (relax.SeqExpr, visit_block)]
    )
    return found


def reshapes(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel copies all elements of its first parameter to the last in their order."""
    if len(kernel.params) < 2:
        return False
    source, *others, target = kernel.params
    if not all(hasattr(buffer, "shape") for buffer in (source, target)):
        return False
    if any(hasattr(other, "shape") for other in others) or source.dtype != target.dtype:
        return False
    if not isinstance(kernel.body, s_tir.SBlockRealize):
        return False
    if any(isinstance(size, tirx.IntImm) and int(size) == 0 for size in target.shape):
        return False
    if kernel.attrs and KEEPS_ORDER in kernel.attrs:
        return True
    return _keeps_order(kernel) or _keeps_order(_with_variable_sizes(kernel))


def _keeps_order(kernel: tirx.PrimFunc) -> bool:
    buffers = (kernel.params[0], kernel.params[-1])
    counts = [reduce(mul, buffer.shape, tirx.IntImm("int64", 1)) for buffer in buffers]
    if not sym.Analyzer().can_prove_equal(*counts):
        return False
    if _unravels(kernel):
        return True
    try:
        return bool(relax.analysis.has_reshape_pattern(kernel))
    except tvm.error.InternalError:  # Sizes that are products are too much for its prover.
        return False


def _unravels(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel reads, for each element, the indices of its place among all elements.

    TOPI writes a reshape so: `place // size_2 // size_1 % size_0` and so on. TVM's prover gives up
    on it where several axes of unknown size become one.
    """
    nests = nests_of(kernel)
    if nests is None or len(nests) != 1 or nests[0].reduced:
        return False
    (nest,) = nests
    load = nest.value
    if not isinstance(load, ir.TensorLoad) or not load.source.same_as(kernel.params[0]):
        return False
    target = kernel.params[-1]
    if not nest.buffer.same_as(target) or not all(
        tvm_ffi.structural_equal(nest.extent(index), size)
        if isinstance(index, ir.Var)
        else is_number(size, 1)
        for index, size in zip(nest.indices, target.shape, strict=True)
    ):
        return False
    variables = [index for index in nest.indices if isinstance(index, ir.Var)]
    if len(set(map(hash, variables))) < len(variables):
        return False
    rest = flat_index(target.shape, nest.indices)
    for size, index in zip(reversed(load.source.shape), reversed(load.indices), strict=True):
        if not _is_digit(index, rest, size):
            return False
        rest = tirx.floordiv(rest, size)
    return True


def _is_digit(index: Any, place: Any, size: Any) -> bool:
    """Whether an index is `place % size`."""
    if isinstance(size, tirx.IntImm) and int(size) == 1:
        return isinstance(index, tirx.IntImm) and int(index) == 0
    if not isinstance(index, tirx.FloorMod) or not tvm_ffi.structural_equal(index.b, size):
        return False
    return _is_same(index.a, place)


def _is_same(left: Any, right: Any) -> bool:
    """Whether two expressions are quotients of the same polynomial by the same sizes."""
    if isinstance(left, tirx.FloorDiv) and isinstance(right, tirx.FloorDiv):
        return bool(tvm_ffi.structural_equal(left.b, right.b)) and _is_same(left.a, right.a)
    return bool(sym.Analyzer().can_prove_equal(left, right))


def _with_variable_sizes(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with a variable in place of each computed size of its tensors.

    What holds for all values of the variables holds for the sizes. TVM's prover fails on quotients
    of quotients, and takes `(n + 1) * 8` and `n * 8 + 8` for different.
    """
    shapes = [*kernel.params[0].shape, *kernel.params[-1].shape]
    computed = [size for size in shapes if not isinstance(size, (tirx.IntImm, ir.Var))]
    variables = {v: None for size in computed for v in tirx.analysis.undefined_vars(size)}
    values = {v: tirx.IntImm(v.ty.dtype, _EXAMPLE * (k + 1)) for k, v in enumerate(variables)}
    examples = [(_example(size, values), place) for place, size in enumerate(computed)]
    # The smallest first, so that the others become its multiples.
    for example, place in sorted((e, place) for e, place in examples if e is not None):
        kernel = _with_variable(kernel, computed[place], example, values)
    return kernel


def _with_variable(
    kernel: tirx.PrimFunc, size: Any, example: int, values: Mapping[Any, Any]
) -> tirx.PrimFunc:
    """The kernel with a variable in place of a size, and its multiples in place of those of it.

    `example` is the size under `values`. What is no multiple of it there is skipped, because a
    proof is slow.
    """
    name = tirx.Var("size", size.ty.dtype)

    def replace(expression: Any) -> Any:
        if str(expression.ty.dtype) != str(size.ty.dtype):
            return expression
        whole = _example(expression, values)
        if whole is None or example <= 0 or whole % example:
            return expression
        factor = whole // example
        is_multiple = sym.Analyzer().can_prove_equal(expression, size * factor)
        return name * factor if is_multiple else expression

    kinds = tuple({type(size), tirx.Add, tirx.Sub, tirx.Mul})
    return tvm_ffi.structural_map(kernel, (kinds, replace), order="pre")


def _example(size: Any, values: Mapping[Any, Any]) -> int | None:
    """The value of a size for some values of its variables; None if it depends on others."""
    in_example = sym.Analyzer().simplify(substituted(size, values))
    return int(in_example) if isinstance(in_example, tirx.IntImm) else None
