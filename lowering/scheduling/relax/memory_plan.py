"""Lets tensors share memory, whether their sizes are known or not.

    a = alloc_tensor([n, 64])           storage = alloc_storage(max(n * 256, m * 128))
    f(x, a)                             a = alloc_tensor(storage, [n, 64])
    b = alloc_tensor([n, 16])           f(x, a)
    f(a, b)                      =>     b = alloc_tensor([n, 16])
    c = alloc_tensor([m, 32])           f(a, b)
    f(b, c)                             c = alloc_tensor(storage, [m, 32])
    d = alloc_tensor([n, 16])           f(b, c)
    f(c, d)                             f(c, b)

A kernel then writes memory that is still in the cache, where the memory pool of the virtual machine
would hand out other memory for each size. Which tensors share depends on estimates of their sizes;
the storage is as large as the largest one at run time. TVM's StaticPlanBlockMemory does this for
sizes that are known; to prove which of the others are equal, it compares each with all, for 17 s in
VITS.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, sym, tirx

from .dataflow import with_body
from .usual_sizes import estimated_elements, usual_sizes

_ALLOCATION = ir.Op.get("relax.builtin.alloc_tensor")
_RESHAPE = ir.Op.get("relax.reshape")
_MOST_WASTE = 16
"""The largest ratio between the estimated sizes of two tensors in one storage."""


def plan_memory(module: tvm.IRModule) -> tvm.IRModule:
    """The module with storages that tensors of one body share: of a function, or of a branch."""
    kernels = {v for v, f in module.functions_items() if isinstance(f, tirx.PrimFunc)}

    def planned(body: Any) -> Any:
        return _Plan(body, kernels).apply()

    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            # Branches are bodies of their own, and come before the body that they are in.
            body = tvm_ffi.structural_map(function.body, (relax.SeqExpr, planned), order="post")
            module[variable] = with_body(function, body)
    return relax.transform.Normalize()(module)


@dataclass
class _Storage:
    """Memory for tensors that are not needed at the same time."""

    bytes: dict[tuple[int, ...], int]
    """By the unknown factors of sizes, see `_Sizes`, the largest product of the known ones."""
    estimate: float
    """The estimated number of bytes, of the largest tensor."""
    least: float
    """The estimate of the smallest tensor."""
    first: int
    """The binding that allocates it."""
    last: int
    """The binding after which it is free."""
    variable: Any = None
    tensors: dict[int, list[Any]] = field(default_factory=dict)
    """The bindings that allocate tensors in it, by what they allocate (its structural hash)."""


@dataclass(frozen=True)
class _Tensor:
    """An allocation whose uses are all known."""

    sizes: tuple[int, ...]
    """The unknown factors of its size, see `_Sizes`."""
    bytes: int
    """The product of the known ones."""
    estimate: float
    """The usual number of bytes."""
    defined: int
    """The binding that defines the last of its sizes."""
    last: int
    """The last binding that uses it."""


class _Sizes:
    """Numbers for sizes that are known at run time only, the same number for equal ones."""

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[Any, int]]] = {}
        self._sizes: list[Any] = []
        self._analyzer = sym.Analyzer()

    def factors(self, shape: Sequence[Any]) -> tuple[tuple[int, ...], int]:
        """The unknown factors of a product of sizes, and the product of the others."""
        unknown: list[int] = []
        known = 1
        rest = [self._analyzer.simplify(size) for size in shape]
        while rest:
            size = rest.pop()
            if isinstance(size, tirx.IntImm):
                known *= int(size)
            elif isinstance(size, tirx.Mul):
                rest += [size.a, size.b]
            else:
                unknown.append(self._number(size))
        return tuple(sorted(unknown)), known

    def _number(self, size: Any) -> int:
        alike = self._known.setdefault(str(size), [])
        for other, number in alike:
            if tvm_ffi.structural_equal(size, other, map_free_vars=False):
                return number
        alike.append((size, len(self._sizes)))
        self._sizes.append(size)
        return len(self._sizes) - 1

    def product(self, unknown: Sequence[int], known: int) -> Any:
        """The product of sizes."""
        total: Any = tirx.IntImm("int64", known)
        for number in unknown:
            total = total * self._sizes[number]
        return total


class _Plan:
    """The storages of a function."""

    def __init__(self, body: relax.SeqExpr, kernels: set[Any]) -> None:
        self._body = body
        self._kernels = kernels
        self._sizes = _Sizes()
        self._usual = usual_sizes(body)
        self._bindings = list(itertools.chain.from_iterable(b.bindings for b in body.blocks))
        self._defined: dict[Any, int] = {}
        """The first binding that defines a size variable; the others come from parameters."""
        for place, binding in enumerate(self._bindings):
            if isinstance(binding, relax.MatchCast):
                found: list[Any] = []
                tvm_ffi.structural_walk(binding.ty, (ir.Var, found.append))
                for size in found:
                    self._defined.setdefault(size, place)
        self._tensors = self._shareable()

    def apply(self) -> Any:
        """The body with the storages."""
        if not self._tensors:
            return self._body
        homes = self._assigned()
        same: dict[Any, Any] = {}
        blocks = []
        for block in self._body.blocks:
            bindings: list[Any] = []
            for binding in block.bindings:
                storage = homes.get(binding.var)
                if storage is None:
                    bindings.append(binding)
                elif (earlier := _like(binding.value, storage)) is not None:
                    same[binding.var] = earlier
                else:
                    bindings += self._allocated(binding, storage)
            blocks.append(type(block)(bindings))
        body = relax.SeqExpr(blocks, self._body.body)
        if not same:
            return body
        return tvm_ffi.structural_map(body, (ir.Var, lambda v: same.get(v, v)), order="post")

    def _shareable(self) -> dict[Any, _Tensor]:
        """The allocations that are used by kernels only, by variable."""
        origin: dict[Any, Any] = {}
        """By variable, the allocation whose memory it names."""
        last: dict[Any, int] = {}
        """The last use of each allocation that is shareable so far."""
        for place, binding in enumerate(self._bindings):
            value = binding.value
            is_call = isinstance(value, relax.Call)
            if is_call and value.op.same_as(_ALLOCATION):
                origin[binding.var] = binding.var
                last[binding.var] = place
                continue
            read = (origin.get(v) for v in relax.analysis.free_vars(value))
            used = {tensor for tensor in read if tensor in last}
            names_memory = isinstance(binding, relax.MatchCast) or isinstance(value, relax.Var)
            names_memory |= is_call and value.op.same_as(_RESHAPE)
            if names_memory and used:
                (origin[binding.var],) = used
            if names_memory or (is_call and value.op in self._kernels):
                last.update(dict.fromkeys(used, place))
            else:
                # It may return the tensor, or keep it.
                for tensor in used:
                    del last[tensor]
        for variable in relax.analysis.free_vars(self._body.body):
            last.pop(origin.get(variable, variable), None)
        return {
            binding.var: tensor
            for binding in self._bindings
            if binding.var in last
            and (tensor := self._tensor(binding.value, last[binding.var])) is not None
        }

    def _tensor(self, allocation: Any, last: int) -> _Tensor | None:
        shape, dtype = allocation.args[0], allocation.ty.dtype.dtype
        if not isinstance(shape, relax.ShapeExpr):
            return None
        sizes, elements = self._sizes.factors(list(shape))
        item = -(-int(dtype.bits) * int(dtype.lanes) // 8)
        usual = estimated_elements(list(shape), self._usual) * item
        variables = [v for size in shape for v in tirx.analysis.undefined_vars(size)]
        defined = max((self._defined.get(v, -1) for v in variables), default=-1)
        return _Tensor(sizes, elements * item, usual, defined, last)

    def _assigned(self) -> dict[Any, _Storage]:
        """The storage of each tensor."""
        storages: list[_Storage] = []
        homes: dict[Any, _Storage] = {}
        for place, binding in enumerate(self._bindings):
            tensor = self._tensors.get(binding.var)
            if tensor is None:
                continue
            free = [s for s in storages if s.last < place and _fits(tensor, s)]
            if free:
                # The nearest size; of those of one size the one that was used last.
                home = min(free, key=lambda s: (_distance(tensor, s), -s.last))
                home.bytes[tensor.sizes] = max(home.bytes.get(tensor.sizes, 0), tensor.bytes)
                home.estimate = max(home.estimate, tensor.estimate)
                home.least = min(home.least, tensor.estimate)
                home.last = tensor.last
            else:
                bytes_ = {tensor.sizes: tensor.bytes}
                home = _Storage(bytes_, tensor.estimate, tensor.estimate, place, tensor.last)
                storages.append(home)
            homes[binding.var] = home
        return homes

    def _allocated(self, binding: Any, storage: _Storage) -> list[Any]:
        """The bindings of a tensor, and of its storage if it has none yet."""
        before = []
        shape, dtype, device, scope = binding.value.args
        if storage.variable is None:
            sizes = [self._sizes.product(*item) for item in storage.bytes.items()]
            size = relax.ShapeExpr([functools.reduce(tirx.max, sizes)])
            allocation = relax.op.memory.alloc_storage(size, device, scope, "uint8")
            storage.variable = relax.Var("storage", relax.ObjectType())
            before.append(relax.VarBinding(storage.variable, allocation))
        key = tvm_ffi.structural_hash(binding.value)
        storage.tensors.setdefault(key, []).append(binding)
        tensor = relax.op.memory.alloc_tensor(storage.variable, 0, shape, dtype)
        return [*before, relax.VarBinding(binding.var, tensor)]


def _like(allocation: Any, storage: _Storage) -> Any:
    """The tensor of the same shape and type that is in the storage already, if there is one."""
    for made in storage.tensors.get(tvm_ffi.structural_hash(allocation), ()):
        if tvm_ffi.structural_equal(made.value, allocation, map_free_vars=False):
            return made.var
    return None


def _fits(tensor: _Tensor, storage: _Storage) -> bool:
    small = min(tensor.estimate, storage.least)
    large = max(tensor.estimate, storage.estimate)
    is_known = tensor.defined < storage.first
    return is_known and small > 0 and large <= _MOST_WASTE * small


def _distance(tensor: _Tensor, storage: _Storage) -> float:
    """How much a tensor and a storage differ in size."""
    return abs(math.log(storage.estimate / tensor.estimate))
