"""Runs parallel loops on worker threads of the module. The caller never waits for an idle worker.

TVM gives each thread of its pool a fixed part of a parallel loop and waits for all of them. A
thread whose core is busy, with another program or with a thread of another runtime that waits by
spinning, begins late: on Linux 6.18, beside a thread of onnxruntime that spins for 43 ms after each
of its runs, loops of 20 microseconds took those 43 ms.

So each loop has up to eight parts for each thread, or more if those took longer than 100
microseconds in the last run, and each thread takes the next part when it is free. TVM still
compiles a loop to a function of one part. Only the pointer through which kernels launch that
function, `__TVMBackendParallelLaunch`, leads to another function, `looplift_launch` of
`thread_pool.ll`.

    for v in parallel(n): f(v)   ->   if n > 1 and looplift_threads(n) == 0:
                                          for v in parallel(n): f(v)
                                      else:
                                          for v in serial(n): f(v)

TVM sets the number of threads (`runtime.config_threadpool`, TVM_NUM_THREADS). On other systems than
Linux, loops run on TVM's threads.
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
from .shared_bodies import FAIL, LoopFunctions, calls_packed_functions, is_call, serial

_FUTEX = {"x86_64": 202, "aarch64": 98}
"""By architecture, the number of Linux's system call `futex`."""


def _code(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


TURNS = _code("worker_turns.ll")
"""When a worker works."""
_POOL = _code("thread_pool.ll")
"""The pool, in the code of LLVM, because TIR has no atomic operations."""

_THREADS = ir.GlobalVar("looplift_threads")
_ZERO = tirx.const(0, "int32")


def use_thread_pool(module: tvm.IRModule) -> tvm.IRModule:
    """The module of kernels, ready for LLVM, whose parallel loops run on threads of its own.

    Kernels for other systems than Linux stay as they are, and so do modules of other pipelines.
    `system_lib` modules do, too: two of them in a program would define the same symbols.
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
    """A parallel loop that asks for threads; another loop as it is."""
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    if is_call(loop.body):
        return _with_choice(loop)
    if calls_packed_functions(loop.body):
        return tirx.SeqStmt([tirx.Evaluate(_threads(loop)), loop])
    return _with_choice(*functions.with_calls(loop))


def _with_choice(loop: Any) -> Any:
    """A parallel loop whose body is a call, as a statement that may run it on one core.

    TVM computes both operands of an `and`: the second question is one of its own.
    """
    either = tirx.IfThenElse(_threads(loop) == _ZERO, loop, _alone(loop))
    return tirx.IfThenElse(loop.extent > 1, either, _alone(loop))


def _alone(loop: Any) -> Any:
    item = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
    body = substituted(loop.body, {loop.loop_var: item})
    return serial(tirx.For(item, loop.min, loop.extent, loop.kind, body))


def _threads(loop: Any) -> Any:
    """0 if other threads may take part in a loop, otherwise -1."""
    return ir.Call(_THREADS, [loop.extent.astype("int64")], ret_ty="int32")


def _pool(target: Any) -> tvm.IRModule:
    """The functions that kernels call and those whose addresses the pool needs."""
    futex = f"@looplift.futex = private constant i64 {_FUTEX[architecture(target)]}\n"
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        items = ib.arg("items", ib.int64())
        with ib.attr(_ZERO, "pragma_import_llvm", ir.StringImm(futex + TURNS + _POOL)):
            threads = tirx.call_packed("runtime.NumThreads")
            ib.add_to_parent(_failing_if(_call("use_threads", threads, items) <= 1))
    pool = {_THREADS: _finished(builder.get(), target)}
    for name, types, function, arity in (
        ("looplift_launch", ("handle", "handle", "int32"), "run_parts", 2),
        ("looplift_help", ("handle",), "help_launches", 0),
        ("looplift_stop", (), "stop_workers", 0),
    ):
        with IRBuilder() as builder, ib.prim_func(s_tir=True):
            ib.func_attr({"global_symbol": name})
            arguments = [ib.arg(f"a{place}", getattr(ib, t)()) for place, t in enumerate(types)]
            ib.add_to_parent(_failing_if(_call(function, *arguments[:arity]) != 0))
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
    # TVM 0.27 tells LLVM that no two pointers of a kernel overlap if the last function says so.
    return typed.with_attr("target", target).with_attr("tirx.noalias", True)
