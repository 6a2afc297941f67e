"""Parallel loops run on threads of their module, which help the calling thread while they can.

TVM gives each thread of its pool a fixed part of a parallel loop and waits for all of them. A
thread whose core is busy, with another program or with a thread of another runtime that waits by
spinning, begins late: on Linux 6.18, beside a thread of onnxruntime that spins for 43 ms after each
of its runs, loops of 20 microseconds took those 43 ms.

So each loop has up to eight parts for each thread, and who is free takes the next. TVM's code for a
parallel loop is what it was: a lambda for one part of several. Only the function to which the
kernels give the lambda is another, written in `thread_pool.ll`.

    for v in parallel(n): f(v)   ->   if n > 1 and looplift_threads(n) == 0:
                                          for v in parallel(n): f(v)  # by looplift_launch
                                      else:
                                          for v in serial(n): f(v)

How many threads there are is up to TVM (`runtime.config_threadpool`, TVM_NUM_THREADS); `POOL` is
for Linux, and elsewhere parallel loops run on TVM's own threads.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ...processor import architecture, is_for_linux
from ..kernels.nests import substituted
from .compaction import COMPACTED
from .shared_bodies import FAIL, LoopFunctions, is_call, serial

_FUTEX = {"x86_64": 202, "aarch64": 98}
"""By architecture, the number of Linux's system call `futex`."""

POOL = resources.files(__package__).joinpath("thread_pool.ll").read_text(encoding="utf-8")
"""The threads and what they do, in the code of LLVM, which knows atomic operations."""

_THREADS = ir.GlobalVar("looplift_threads")
_ZERO = tirx.const(0, "int32")


def help_parallel_loops(module: tvm.IRModule) -> tvm.IRModule:
    """The module of kernels, ready for LLVM, whose parallel loops run on threads of its own.

    Kernels for another system than Linux stay as they are, and so do libraries that are linked into
    a program (`system_lib`), where two modules would define the same functions, and modules of
    other pipelines.
    """
    attributes = module.attrs or {}
    if COMPACTED not in attributes or "system_lib_prefix" in attributes:
        return module
    target = None
    for variable, kernel in list(module.functions_items()):
        if not isinstance(kernel, tirx.PrimFunc) or not _has_pool(kernel.attrs["target"]):
            continue
        functions = LoopFunctions(variable.name_hint, kernel, "part")
        choosing = functools.partial(_choosing, functions=functions)
        body = tvm_ffi.structural_map(kernel.body, (tirx.For, choosing), order="post")
        if body.same_as(kernel.body):
            continue
        target = kernel.attrs["target"]
        module[variable] = kernel.with_body(body)
        for name, function in functions.made.items():
            module[name] = function
    if target is not None:
        module.update(_pool(target))
    return module


def _has_pool(target: Any) -> bool:
    return target.kind.name == "llvm" and is_for_linux(target) and architecture(target) in _FUTEX


def _choosing(loop: Any, functions: LoopFunctions) -> Any:
    """A parallel loop as a statement that may run it on one core; another as it is."""
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    if is_call(loop.body):
        return _with_choice(loop)
    return loop if _calls_runtime(loop.body) else _with_choice(*functions.with_calls(loop))


def _calls_runtime(body: Any) -> bool:
    """Whether a body calls functions of TVM's runtime, with arguments on the kernel's stack."""
    found: list[str] = []
    tvm_ffi.structural_walk(body, (ir.Call, lambda call: found.append(str(call.op))))
    return any("call_packed" in name for name in found)


def _with_choice(loop: Any) -> Any:
    """A parallel loop whose body is a call, as a statement that may run it on one core."""
    item = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
    body = substituted(loop.body, {loop.loop_var: item})
    alone = serial(tirx.For(item, loop.min, loop.extent, loop.kind, body))
    has_threads = ir.Call(_THREADS, [loop.extent.astype("int64")], ret_ty="int32") == _ZERO
    return tirx.IfThenElse(tirx.all(loop.extent > 1, has_threads), loop, alone)


def _pool(target: Any) -> tvm.IRModule:
    """The functions that kernels call and those whose addresses the pool needs."""
    futex = f"@looplift.futex = private constant i64 {_FUTEX[architecture(target)]}\n"
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        items = ib.arg("items", ib.int64())
        with ib.attr(_ZERO, "pragma_import_llvm", ir.StringImm(futex + POOL)):
            threads = tirx.call_packed("runtime.NumThreads")
            ib.add_to_parent(_failing_if(_call("use_threads", threads, items) <= 1))
    pool = {_THREADS: _finished(builder.get(), target)}
    for name, types, action in (
        ("looplift_launch", ("handle", "handle", "int32"), "run_parts"),
        ("looplift_help", ("handle",), "help_launches"),
        ("looplift_stop", (), "stop_helpers"),
    ):
        with IRBuilder() as builder, ib.prim_func(s_tir=True):
            ib.func_attr({"global_symbol": name})
            arguments = [ib.arg(f"a{place}", getattr(ib, t)()) for place, t in enumerate(types)]
            given = arguments[:2] if action == "run_parts" else []
            ib.add_to_parent(_failing_if(_call(action, *given) != 0))
        pool[ir.GlobalVar(name)] = _finished(builder.get(), target)
    return tirx.transform.LowerTVMBuiltin()(tvm.IRModule(pool))


def _call(name: str, *arguments: Any) -> Any:
    return tirx.call_extern("int32", f"looplift_{name}", *arguments)


def _failing_if(condition: Any) -> Any:
    """Returns -1 or 0: TVM's functions for LLVM return no other numbers."""
    return tirx.SeqStmt([tirx.IfThenElse(condition, FAIL, None), tirx.Return(_ZERO)])


def _finished(function: tirx.PrimFunc, target: Any) -> tirx.PrimFunc:
    integer = ir.PrimType("int32")
    typed = tirx.PrimFunc(function.params, function.body, integer, attrs=function.attrs)
    # TVM 0.27 takes the promise of no aliases from one kernel for all of them.
    return typed.with_attr("target", target).with_attr("tirx.noalias", True)
