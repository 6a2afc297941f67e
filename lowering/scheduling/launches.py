"""Parallel loops that run on one core for a while after the other cores have come late.

TVM gives each thread of its pool a fixed part of a parallel loop and waits for all of them. A
thread whose core is busy, with another program or with the threads of a runtime that wait by
spinning, begins late: on Linux 6.18, beside a thread of onnxruntime that spins for 43 ms after each
of its runs, loops of 20 microseconds took those 43 ms. So each launch measures how long the calling
thread waits after its own part. If one core would have been faster, the loops of the module run on
one core for as long as launches have lost altogether, less what others have gained: while the cores
are busy, trying them takes an ever smaller share of the time.

    for v in parallel(n): f(v)   ->   start = clock()
                                      if n > 1 and looplift_launches(start):
                                          parallel region:
                                              for v in parallel(n): f(v)
                                              count_threads(); done = clock()  # after its part
                                          looplift_launched(start, done, clock(), threads)
                                      else:
                                          for v in serial(n): f(v)
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..processor import architecture
from .nests import substituted
from .shared_bodies import LoopFunctions, is_call
from .shared_functions import ANY_SHAPE, function_frame, outlined

_CLOCKS = {
    "x86_64": "call i64 @llvm.readcyclecounter()",
    # The cycle counter of this architecture is not open to programs; the timer is.
    "aarch64": 'call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()',
}
"""By architecture, how LLVM reads a counter that has the same value and frequency on all cores."""

_LONGEST_PAUSE = 16
"""How many times as long as the last launch made the caller wait a pause may be."""

_CLOCK = """
declare i64 @llvm.readcyclecounter()

define i64 @looplift_clock() {{
  %now = {}
  ret i64 %now
}}
"""

POLICY = f"""
@looplift.end_of_pause = internal global i64 0
@looplift.lost = internal global i64 0

define i64 @looplift_launches(i64 %now) {{
  %end = load atomic i64, ptr @looplift.end_of_pause monotonic, align 8
  %since = sub i64 %now, %end
  %over = icmp sge i64 %since, 0
  %result = zext i1 %over to i64
  ret i64 %result
}}

define i64 @looplift_count(ptr %threads) {{
  %before = atomicrmw add ptr %threads, i64 1 monotonic, align 8
  ret i64 0
}}

define i64 @looplift_launched(i64 %start, i64 %done, i64 %now, i64 %parts) {{
  %work = sub i64 %done, %start
  %wait = sub i64 %now, %done
  %others = sub i64 %parts, 1
  %rest = mul i64 %work, %others
  %gain = sub i64 %rest, %wait
  %lost = load atomic i64, ptr @looplift.lost monotonic, align 8
  %balance = sub i64 %lost, %gain
  %is_positive = icmp sgt i64 %balance, 0
  %more = select i1 %is_positive, i64 %balance, i64 0
  %most = mul i64 %wait, {_LONGEST_PAUSE}
  %fits = icmp slt i64 %more, %most
  %limited = select i1 %fits, i64 %more, i64 %most
  %is_less = icmp slt i64 %limited, %lost
  %length = select i1 %is_less, i64 %lost, i64 %limited
  %late = icmp slt i64 %gain, 0
  br i1 %late, label %pause, label %paid

pause:
  store atomic i64 %length, ptr @looplift.lost monotonic, align 8
  %end = add i64 %now, %length
  store atomic i64 %end, ptr @looplift.end_of_pause monotonic, align 8
  ret i64 0

paid:
  store atomic i64 %more, ptr @looplift.lost monotonic, align 8
  ret i64 0
}}
"""
"""LLVM's code for what the kernels of a module share. Threads that run it at once may lose one of
their stores, which makes a pause shorter or longer."""

_AFTER_LAUNCH = ir.GlobalVar("looplift_after_launch")
_ZERO = tirx.const(0, "int32")


def pause_launches(module: tvm.IRModule) -> tvm.IRModule:
    """The module of kernels, ready for LLVM, whose parallel loops measure their launches.

    The loops of a kernel for a processor without a known clock stay as they are.
    """
    has_policy = False
    for variable, kernel in list(module.functions_items()):
        if not isinstance(kernel, tirx.PrimFunc) or not _has_clock(kernel.attrs["target"]):
            continue
        functions = LoopFunctions(variable.name_hint, kernel, "part")

        def pausing(loop: Any, functions: LoopFunctions = functions) -> Any:
            if loop.kind != tirx.ForKind.PARALLEL:
                return loop
            if is_call(loop.body):
                return _with_pauses(loop)
            return loop if _calls_runtime(loop.body) else _with_pauses(*functions.with_calls(loop))

        body = tvm_ffi.structural_map(kernel.body, (tirx.For, pausing), order="post")
        if body.same_as(kernel.body):
            continue
        if not has_policy:
            module[_AFTER_LAUNCH] = _with_policy(_after_launch(), kernel.attrs["target"])
            has_policy = True
        module[variable] = kernel.with_body(body)
        for name, function in functions.made.items():
            module[name] = function
    return module


def _has_clock(target: Any) -> bool:
    return target.kind.name == "llvm" and architecture(target) in _CLOCKS


def _calls_runtime(body: Any) -> bool:
    """Whether a body calls functions of TVM's runtime, with arguments on the kernel's stack."""
    found: list[str] = []
    tvm_ffi.structural_walk(body, (ir.Call, lambda call: found.append(str(call.op))))
    return any("call_packed" in name for name in found)


def _with_pauses(loop: Any) -> Any:
    """A parallel loop whose body is a call, as a statement that may run it on one core."""
    count = loop.extent
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        known = ib.alloc_buffer((3,), "int64", layout=None)
        start, threads = known[0], known[2]
        ib.buffer_store(known, _call("clock"), [0])
        with ib.If(tirx.all(count > 1, _call("launches", start) != 0)):
            with ib.Then():
                ib.buffer_store(known, tirx.const(0, "int64"), [2])
                with ib.attr(_ZERO, "pragma_parallel_launch_point", _ZERO):
                    ib.add_to_parent(loop)
                    ib.evaluate(_call("count", tirx.address_of(threads)))
                    with ib.parallel(1):  # The only iteration is for the calling thread.
                        ib.buffer_store(known, _call("clock"), [1])
                ending = [known.data, count.astype("int64")]
                ib.evaluate(ir.Call(_AFTER_LAUNCH, ending, ret_ty="int32"))
            with ib.Else():
                ib.add_to_parent(_serial(loop))
    return builder.get().body


def _after_launch() -> tirx.PrimFunc:
    """The function that follows each launch; LLVM would inline the policy in every kernel."""
    with IRBuilder() as builder, function_frame():
        pointer = ib.arg("known", ib.handle("int64"))
        count = ib.arg("count", ib.int64())
        known = ib.decl_buffer(ANY_SHAPE, "int64", data=pointer)
        start, done, threads = known[0], known[1], known[2]
        parts = tirx.min(threads, count)
        ib.evaluate(_call("launched", start, done, _call("clock"), parts))
    return outlined(_AFTER_LAUNCH.name_hint, builder.get())


def _with_policy(function: tirx.PrimFunc, target: Any) -> tirx.PrimFunc:
    """A function for a target, with the code that all kernels of its module may call."""
    clock = _CLOCK.format(_CLOCKS[architecture(target)])
    code = ir.StringImm(clock + POLICY)
    body = tirx.AttrStmt(_ZERO, "pragma_import_llvm", code, function.body)
    return function.with_body(body).with_attr("target", target)


def _call(name: str, *arguments: Any) -> Any:
    return tirx.call_extern("int64", f"looplift_{name}", *arguments)


def _serial(loop: Any) -> Any:
    """The loop on one core, with a variable of its own."""
    item = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
    body = substituted(loop.body, {loop.loop_var: item})
    return tirx.For(item, loop.min, loop.extent, tirx.ForKind.SERIAL, body)
