"""Loops that run on one core or on all of them get one body, an internal function.

    if large:                                   def item(v, a, n): …
        for v in parallel(n): …                 if large:
    else:                               ->          for v in parallel(n): item(v, a, n)
        for v in parallel(n): …                 else:
                                                    for v in serial(n): item(v, a, n)

`for_items` emits such loops where only a run knows how much work there is. For VITS, compiling both
bodies would take a seventh of LLVM's time.
"""

from __future__ import annotations

import functools
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from ..functions.shared_functions import in_compute_scope
from ..kernels.emission import ON_ONE_CORE
from ..kernels.nests import substituted

_DATA = ir.Op.get("tirx.buffer_data")
FAIL = tirx.Evaluate(ir.Call(ir.Op.get("tirx.tvm_throw_last_error"), [], ret_ty="int32"))
"""Returns the error of a call, such as that there is no memory for a scratch buffer."""


def share_loop_bodies(module: tvm.IRModule) -> tvm.IRModule:
    """The module of kernels, ready for LLVM, with one body for both loops.

    Every loop for one core becomes serial, also where TVM has made the bodies differ or has removed
    the other loop. LLVM must not inline the function: it would do so in one of the loops, and
    compile its body twice. No two of its pointers lead to the same memory (see `_base`).
    """
    for variable, kernel in list(module.functions_items()):
        if not isinstance(kernel, tirx.PrimFunc):
            continue
        functions = LoopFunctions(variable.name_hint, kernel)
        shared = functools.partial(_shared, functions=functions)
        body = tvm_ffi.structural_map(kernel.body, (tirx.IfThenElse, shared), order="post")
        body = _on_one_core(body)
        if not body.same_as(kernel.body):
            module[variable] = kernel.with_body(body)
        for name, function in functions.made.items():
            module[name] = function.with_body(_on_one_core(function.body))
    return module


def _shared(choice: Any, functions: LoopFunctions) -> Any:
    """The choice between two loops with one body; another statement as it is."""
    first, second = choice.then_case, choice.else_case
    if not (isinstance(first, tirx.For) and _is_for_one_core(second)):
        return choice
    if calls_packed_functions(first.body):
        return choice
    body = substituted(second.body, {second.loop_var: first.loop_var})
    if not tvm_ffi.structural_equal(first.body, body, map_free_vars=False):
        return choice
    return tirx.IfThenElse(choice.condition, *functions.with_calls(first, second))


class LoopFunctions:
    """Makes functions of the bodies of a kernel's loops."""

    def __init__(self, name: str, kernel: tirx.PrimFunc, suffix: str = "item") -> None:
        self.made: dict[Any, tirx.PrimFunc] = {}
        """The functions, by name."""
        self._name = f"{name}_{suffix}"
        self._kernel = kernel

    @functools.cached_property
    def _declared(self) -> dict[Any, Any]:
        """By buffer, the statement that declares it."""
        declared: dict[Any, Any] = {}

        def note(statement: Any) -> None:
            declared[statement.buffer] = statement

        tvm_ffi.structural_walk(self._kernel.body, (tirx.DeclBuffer, note))
        return declared

    def with_calls(self, *loops: Any) -> list[Any]:
        """Loops of one body, with calls of one new function instead of it."""
        name, arguments = self._function(loops[0].loop_var, loops[0].body)

        def calling(loop: Any) -> Any:
            call = ir.Call(name, [loop.loop_var, *arguments], ret_ty="int32")
            return _with_body(loop, tirx.IfThenElse(call != tirx.const(0, "int32"), FAIL, None))

        return [calling(loop) for loop in loops]

    def _function(self, item: Any, body: Any) -> tuple[Any, list[Any]]:
        """A new function with the body of a loop, and the arguments after the loop variable."""
        free = tirx.analysis.undefined_vars(body, [])
        views = [v for v in free if isinstance(v.ty, tirx.buffer.BufferType)]
        bases = {view: self._base(view) for view in views}
        pointers = {base: tirx.Var(base.name, base.data.ty) for base in bases.values()}
        declared = [tirx.DeclBuffer(base, data=pointer) for base, pointer in pointers.items()]
        declared += [
            tirx.DeclBuffer(view, data=base.data)
            for view, base in bases.items()
            if not base.same_as(view)
        ]
        whole = tirx.SeqStmt([*declared, body])
        known = [item, *pointers.values()]
        scalars = tirx.analysis.undefined_vars(whole, known)  # also those in shapes
        function = tirx.PrimFunc([*known, *scalars], whole)
        name = ir.GlobalVar(f"{self._name}_{len(self.made)}")
        function = in_compute_scope(name.name_hint, function)
        target = self._kernel.attrs["target"]
        self.made[name] = function.with_attr("tirx.noalias", True).with_attr("target", target)
        return name, [*(base.data for base in pointers), *scalars]

    def _base(self, view: Any) -> Any:
        """The buffer in whose memory a view lies: two views of one must not become two pointers."""
        data = getattr(self._declared.get(view), "data", None)
        if isinstance(data, ir.Call) and data.op.same_as(_DATA):
            return self._base(data.args[0])
        return view


def calls_packed_functions(body: Any) -> bool:
    """Whether a body calls functions of TVM's runtime, with arguments on the kernel's stack.

    It cannot become the body of another function.
    """
    found: list[str] = []
    tvm_ffi.structural_walk(body, (ir.Call, lambda call: found.append(str(call.op))))
    return any("call_packed" in name for name in found)


def is_call(body: Any) -> bool:
    """Whether `LoopFunctions.with_calls` made the body of a loop."""
    return isinstance(body, tirx.IfThenElse) and body.then_case.same_as(FAIL)


def _is_for_one_core(statement: Any) -> bool:
    return isinstance(statement, tirx.For) and ON_ONE_CORE in (statement.annotations or {})


def _on_one_core(statement: Any) -> Any:
    """A statement whose loops for one core are serial."""

    def on_one_core(loop: Any) -> Any:
        return serial(loop) if _is_for_one_core(loop) else loop

    return tvm_ffi.structural_map(statement, (tirx.For, on_one_core), order="post")


def serial(loop: Any) -> Any:
    """A loop that runs on one core."""
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def _with_body(loop: Any, body: Any) -> Any:
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations
    )
