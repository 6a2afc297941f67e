"""Loops that run on one core or on all of them get one body, an internal function.

    if large:                                   def item(v, a, n): …
        for v in parallel(n): …                 if large:
    else:                               ->          for v in parallel(n): item(v, a, n)
        for v in parallel(n): …                 else:
                                                    for v in serial(n): item(v, a, n)

`for_items` emits such loops where only a run knows how much work there is. LLVM would compile both
bodies, a sixth of the code of a large module.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from .emission import ON_ONE_CORE

_DATA = ir.Op.get("tirx.buffer_data")
_CAST = ir.Op.get("tirx.reinterpret")
_FAIL = tirx.Evaluate(ir.Call(ir.Op.get("tirx.tvm_throw_last_error"), [], ret_ty="int32"))
"""Returns the error of a call, such as that there is no memory for a scratch buffer."""


def share_loop_bodies(module: tvm.IRModule) -> tvm.IRModule:
    """The module of kernels, ready for LLVM, with one body for both loops.

    If TVM has made the bodies differ, nothing is shared; the second loop just becomes serial.

    The new function reuses the kernel's variables. TVM tells LLVM (TBAA) that accesses through
    different variables never overlap, so a function with variables of its own could not be inlined
    safely. Later passes must not replace them.
    """
    for variable, kernel in list(module.functions_items()):
        if not isinstance(kernel, tirx.PrimFunc):
            continue
        sharing = _Sharing(variable.name_hint, kernel)
        body = tvm_ffi.structural_map(kernel.body, (tirx.IfThenElse, sharing.shared), order="post")
        if not body.same_as(kernel.body):
            module[variable] = kernel.with_body(body)
            module.update(sharing.functions)
    return module


class _Sharing:
    """The functions that the loops of a kernel become."""

    def __init__(self, name: str, kernel: tirx.PrimFunc) -> None:
        self.functions: dict[Any, tirx.PrimFunc] = {}
        self._name = name
        self._kernel = kernel
        self._declared: dict[Any, Any] = {}
        """By buffer, the statement that declares it."""

        def note(statement: Any) -> None:
            self._declared[statement.buffer] = statement

        tvm_ffi.structural_walk(kernel.body, (tirx.DeclBuffer, note))

    def shared(self, choice: Any) -> Any:
        """The choice between two loops with one body; another statement as it is."""
        parallel, serial = choice.then_case, choice.else_case
        if not isinstance(serial, tirx.For) or ON_ONE_CORE not in (serial.annotations or {}):
            return choice
        body = _renamed(serial.body, serial.loop_var, parallel.loop_var)
        if tvm_ffi.structural_equal(parallel.body, body, map_free_vars=False):
            parallel, serial = self._calls(parallel, serial)
        serial = tirx.For(
            serial.loop_var, serial.min, serial.extent, tirx.ForKind.SERIAL, serial.body
        )
        return tirx.IfThenElse(choice.condition, parallel, serial)

    def _calls(self, *loops: Any) -> list[Any]:
        """Loops with calls of a new function, which has the body of the first."""
        item, body = loops[0].loop_var, loops[0].body
        free = [v for v in tirx.analysis.undefined_vars(body, []) if not v.same_as(item)]
        views = [v for v in free if isinstance(v.ty, tirx.buffer.BufferType)]
        scalars = [v for v in free if not isinstance(v.ty, tirx.buffer.BufferType)]
        bases = {view: self._base(view) for view in views}
        pointers = {base: tirx.Var(base.name, base.data.ty) for base in bases.values()}
        declared = [
            # The cast keeps the buffer the variable of the accesses, rather than the pointer.
            tirx.DeclBuffer(base, data=ir.Call(_CAST, [pointer], ret_ty=pointer.ty))
            for base, pointer in pointers.items()
        ]
        declared += [
            tirx.DeclBuffer(view, data=base.data)
            for view, base in bases.items()
            if not base.same_as(view)
        ]
        function = tirx.PrimFunc(
            [item, *pointers.values(), *scalars],
            tirx.SeqStmt([*declared, body, tirx.Return(tirx.const(0, "int32"))]),
            ir.PrimType("int32"),
            attrs=ir.make_node(
                "ir.DictAttrs", **{"tirx.noalias": True, "target": self._kernel.attrs["target"]}
            ),
        )
        name = ir.GlobalVar(f"{self._name}_item_{len(self.functions)}")
        self.functions[name] = function
        arguments = [*(base.data for base in pointers), *scalars]

        def calling(loop: Any) -> Any:
            call = ir.Call(name, [loop.loop_var, *arguments], ret_ty="int32")
            failed = tirx.IfThenElse(call != tirx.const(0, "int32"), _FAIL, None)
            return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, failed)

        return [calling(loop) for loop in loops]

    def _base(self, view: Any) -> Any:
        """The buffer in whose memory a view lies: two views of one must not become two pointers."""
        data = getattr(self._declared.get(view), "data", None)
        if isinstance(data, ir.Call) and data.op.same_as(_DATA):
            return self._base(data.args[0])
        return view


def _renamed(statement: Any, old: Any, new: Any) -> Any:
    return tvm_ffi.structural_map(
        statement,
        (ir.Var, lambda variable: new if variable.same_as(old) else variable),
        order="post",
    )
