"""List objects of the TVM runtime, and functions of the module that read and change them.

What changes a list is impure. It stands in functions that are pure for their callers, and that are
public, because `InlinePrivateFunctions` would put impure calls into pure functions otherwise. The
memory planner of TVM 0.27 needs the function boundary, too: it assumes that a call of the runtime
does not retain its arguments, and would reuse the memory of a tensor in a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx

from ..tvm_onnx import building_function
from ..values import fresh_dim

_OBJECT = relax.ObjectType()
_TAG = "tag_"


def call_shared(bb: Any, name: str, args: Sequence[Any], emit: Callable[..., Any]) -> Any:
    """Emits a call of the function `name` of the module, which `emit` builds if there is none.

    Arguments are objects, and numbers as shapes of rank 1. `emit` gets one parameter per argument
    and returns the result, an object.
    """
    module = bb.get()
    if name in module:
        function = module.get_global_var(name)
    else:
        params = [_parameter(index, arg) for index, arg in enumerate(args)]
        attributes = {"relax.force_pure": True}
        with building_function(bb, name, params, private=False, attributes=attributes):
            function = bb.emit_func_output(emit(*params))
    return bb.emit(relax.Call(function, list(args)))


def _parameter(index: int, arg: Any) -> Any:
    if isinstance(arg, relax.ShapeExpr):
        return relax.Var(f"p{index}", relax.ShapeType([fresh_dim("number")]))
    return relax.Var(f"p{index}", _OBJECT)


def new_list(bb: Any, items: Sequence[Any]) -> Any:
    """A new list of the TVM runtime."""

    def emit(_tag: Any, *given: Any) -> Any:
        return bb.emit(call_runtime("ffi.List", *given))

    return call_shared(bb, f"new_list_{len(items)}", [unique_tag(bb), *items], emit)


def unique_tag(bb: Any) -> Any:
    """A number that no other call in the module has.

    As an argument it keeps passes from merging calls that must each return an object of their own.
    """
    number = bb.get_unique_name(_TAG).removeprefix(_TAG)
    return relax.ShapeExpr([tirx.IntImm("int64", int(number or 0))])


def call_runtime(function: str, *args: Any) -> Any:
    """A call of a function of the TVM runtime that has, or sees, side effects."""
    return relax.Call(relax.ExternFunc(function), list(args), ty_args=[_OBJECT])
