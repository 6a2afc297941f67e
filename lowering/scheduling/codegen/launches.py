"""Runs parallel loops on one core for a while when the other cores respond late.

TVM gives each thread of its pool a fixed part of a parallel loop and waits for all of them. A
thread whose core is busy, with another program or with the threads of a runtime that wait by
spinning, begins late: on Linux 6.18, beside a thread of onnxruntime that spins for 43 ms after each
of its runs, loops of 20 microseconds took those 43 ms.

So each launch measures how long the calling thread waits after its own part. From that part follows
about how long one core would have taken, as all items cost about as much. If that is less, the
loops of the module run on one core for as long as launches have lost altogether, less what others
have gained, but at most 16 times as long as this one waited. While the other cores stay busy, the
share of the time that trying takes falls to a seventeenth.

    for v in parallel(n): f(v)   ->   start = clock()
                                      if n > 1 and looplift_launches(start):
                                          parallel region:
                                              for v in parallel(n): f(v)
                                              count_threads(); done = clock()  # after its part
                                          looplift_after_launch(start, done, threads)
                                      else:
                                          for v in serial(n): f(v)
"""

from __future__ import annotations

import functools
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ...processor import architecture
from ..functions.shared_functions import ANY_SHAPE, function_frame, in_compute_scope
from ..kernels.emission import bound
from ..kernels.nests import substituted
from .compaction import COMPACTED
from .shared_bodies import LoopFunctions, is_call, serial

_CLOCKS = {
    "x86_64": "call i64 @llvm.readcyclecounter()",
    # Programs may not read the cycle counter of this architecture, but its timer.
    "aarch64": 'call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()',
}
"""By architecture, how LLVM reads a counter of constant frequency. One thread reads both ends of a
duration; if it moves to another core between, the counters of the cores have to agree."""

_LONGEST_PAUSE = 16
"""The longest pause, in multiples of the wait that caused it: cores that are free again are found
within as many waits."""

_CLOCK = """
declare i64 @llvm.readcyclecounter()

define i64 @looplift_clock() {{
  %now = {}
  ret i64 %now
}}
"""

POLICY = f"""
@looplift.pause_start = internal global i64 0
@looplift.pause_length = internal global i64 0
@looplift.lost = internal global i64 0

define i64 @looplift_launches(i64 %now) {{
  %start = load atomic i64, ptr @looplift.pause_start monotonic, align 8
  %length = load atomic i64, ptr @looplift.pause_length monotonic, align 8
  %since = sub i64 %now, %start
  ; Unsigned: a clock that was set back, as by a suspended machine, ends the pause.
  %is_over = icmp uge i64 %since, %length
  %result = zext i1 %is_over to i64
  ret i64 %result
}}

define i64 @looplift_count(ptr %threads) {{
  %before = atomicrmw add ptr %threads, i64 1 monotonic, align 8
  ret i64 0
}}

define i64 @looplift_launched(i64 %start, i64 %done, i64 %now, i64 %own_items, i64 %others) {{
  %work = sub i64 %done, %start
  %wait = sub i64 %now, %done
  %work_of_others = mul i64 %work, %others
  %rest = sdiv i64 %work_of_others, %own_items
  %gain = sub i64 %rest, %wait
  %lost_before = load atomic i64, ptr @looplift.lost monotonic, align 8
  %balance = sub i64 %lost_before, %gain
  %lost = call i64 @llvm.smax.i64(i64 %balance, i64 0)
  %longest = mul i64 %wait, {_LONGEST_PAUSE}
  %length = call i64 @llvm.smin.i64(i64 %lost, i64 %longest)
  %is_late = icmp slt i64 %gain, 0
  br i1 %is_late, label %pause, label %paid

pause:
  store atomic i64 %now, ptr @looplift.pause_start monotonic, align 8
  store atomic i64 %length, ptr @looplift.pause_length monotonic, align 8
  br label %paid

paid:
  store atomic i64 %lost, ptr @looplift.lost monotonic, align 8
  ret i64 0
}}

declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""
"""The policy, in the code of LLVM, which all kernels of a module share. It takes no lock: launches
of several threads at once may overwrite each other's stores, which changes how long a pause is, but
no result."""

_AFTER_LAUNCH = ir.GlobalVar("looplift_after_launch")
_ZERO = tirx.const(0, "int32")


def pause_launches(module: tvm.IRModule) -> tvm.IRModule:
    """The module of kernels, ready for LLVM, whose parallel loops measure their launches.

    Kernels for a processor without a known clock stay as they are, and so do loops that call packed
    functions, whose arguments lie on the kernel's stack, and modules of other pipelines.
    """
    if COMPACTED not in (module.attrs or {}):
        return module
    changed = []
    for variable, kernel in list(module.functions_items()):
        if not isinstance(kernel, tirx.PrimFunc) or not _has_clock(kernel.attrs["target"]):
            continue
        functions = LoopFunctions(variable.name_hint, kernel, "part")
        pausing = functools.partial(_pausing, functions=functions)
        body = tvm_ffi.structural_map(kernel.body, (tirx.For, pausing), order="post")
        if body.same_as(kernel.body):
            continue
        changed.append(kernel)
        module[variable] = kernel.with_body(body)
        for name, function in functions.made.items():
            module[name] = function
    if changed:
        module[_AFTER_LAUNCH] = _after_launch(changed[0].attrs["target"])
    return module


def _pausing(loop: Any, functions: LoopFunctions) -> Any:
    """A parallel loop as a statement that may run it on one core; another as it is."""
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    if is_call(loop.body):
        return _with_pauses(loop)
    return loop if _calls_runtime(loop.body) else _with_pauses(*functions.with_calls(loop))


def _has_clock(target: Any) -> bool:
    return target.kind.name == "llvm" and architecture(target) in _CLOCKS


def _calls_runtime(body: Any) -> bool:
    """Whether a body calls functions of TVM's runtime, with arguments on the kernel's stack."""
    found: list[str] = []
    tvm_ffi.structural_walk(body, (ir.Call, lambda call: found.append(str(call.op))))
    return any("call_packed" in name for name in found)


_START, _DONE, _THREADS = range(3)
"""What a launch keeps: when it began, when the caller's part was done, and how many threads ran."""


def _with_pauses(loop: Any) -> Any:
    """A parallel loop whose body is a call, as a statement that may run it on one core."""
    count = loop.extent
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        launch = ib.alloc_buffer((3,), "int64", layout=None)
        ib.buffer_store(launch, _call("clock"), [_START])
        with ib.If(tirx.all(count > 1, _call("launches", launch[_START]) != 0)):
            with ib.Then():
                ib.buffer_store(launch, tirx.const(0, "int64"), [_THREADS])
                with ib.attr(_ZERO, "pragma_parallel_launch_point", _ZERO):
                    ib.add_to_parent(loop)
                    ib.evaluate(_call("count", tirx.address_of(launch[_THREADS])))
                    with ib.parallel(1):  # Task 0 runs it, which TVM gives to the calling thread.
                        ib.buffer_store(launch, _call("clock"), [_DONE])
                arguments = [launch.data, count.astype("int64")]
                ib.evaluate(ir.Call(_AFTER_LAUNCH, arguments, ret_ty="int32"))
            with ib.Else():
                item = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
                body = substituted(loop.body, {loop.loop_var: item})
                ib.add_to_parent(serial(tirx.For(item, loop.min, count, loop.kind, body)))
    return builder.get().body


def _after_launch(target: Any) -> tirx.PrimFunc:
    """The function that follows each launch, with the code that all kernels may call.

    LLVM would inline the policy in every kernel.
    """
    with IRBuilder() as builder, function_frame():
        pointer = ib.arg("launch", ib.handle("int64"))
        count = ib.arg("count", ib.int64())
        launch = ib.decl_buffer(ANY_SHAPE, "int64", data=pointer)
        own_items = bound(tirx.truncdiv(count + launch[_THREADS] - 1, launch[_THREADS]))
        times = (launch[_START], launch[_DONE], _call("clock"))
        ib.evaluate(_call("launched", *times, own_items, count - own_items))
    function = in_compute_scope(_AFTER_LAUNCH.name_hint, builder.get())
    code = ir.StringImm(_CLOCK.format(_CLOCKS[architecture(target)]) + POLICY)
    body = tirx.AttrStmt(_ZERO, "pragma_import_llvm", code, function.body)
    return function.with_body(body).with_attr("target", target)


def _call(name: str, *arguments: Any) -> Any:
    return tirx.call_extern("int64", f"looplift_{name}", *arguments)
