"""Iteration without deep recursion: a tower of functions over one mutable store.

A loop as a tail-recursive function nests a native call for every iteration and overflows the stack
after some thousands. Here `level 0` is one iteration, and `level k` calls `level k-1` up to 8 times
while the condition holds: any number of iterations up to 8**14 nests at most 15 calls.

What an iteration hands to the next lies in a *store*, a list object of the TVM runtime that the
iteration overwrites in place. A level passes on nothing but the store, so only the newest state is
alive, and no argument is checked. The functions are impure; whoever calls the tower makes the store
and reads it, and is pure towards the outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from .tvm_onnx import building_function
from .values import fresh_dim

_RADIX = 8
_LEVELS = 14


@dataclass(frozen=True)
class Store:
    """A list object, inside one function."""

    bb: Any
    variable: Any

    @staticmethod
    def make(bb: Any, items: Sequence[Any]) -> Store:
        """A new store; emitted outside of dataflow blocks, like all that follows."""
        return Store(bb, new_list(bb, items))

    @staticmethod
    def parameter(bb: Any) -> Store:
        """The parameter of a function that takes a store."""
        return Store(bb, relax.Var("store", relax.ObjectType()))

    def read(self, slot: int, kind: Any, name: str = "") -> Any:
        """An item, believed to be of a type whose symbols are defined already."""
        variable = relax.Var(name or f"item_{slot}", kind)
        self.read_into(variable, slot)
        return variable

    def read_into(self, variable: Any, slot: int) -> None:
        """Bind a variable to an item; the variable's type is believed."""
        call = call_runtime(
            "ffi.ListGetItem", self.variable, relax.prim_value(slot), kind=variable.ty
        )
        self.bb.emit_normalized(relax.VarBinding(variable, self.bb.normalize(call)))

    def write(self, items: Mapping[int, Any]) -> None:
        """Overwrite items, by slot."""
        if not items:
            return

        def set_items(store: Any, values: Sequence[Any]) -> Any:
            for slot, value in zip(items, values, strict=True):
                self.bb.emit(_set_item(store, slot, value), "_")
            return relax.const(True, "bool")

        keep = _keeper(self.bb, "keep_items", len(items), set_items)
        self.bb.emit(relax.Call(keep, [self.variable, *items.values()]), "_")

    def renew(self, slot: int, item: Any) -> None:
        """Say that an item was changed in place, so that the change is seen to matter."""
        self.bb.emit(_set_item(self.variable, slot, item), "_")

    def append(self, slot: int, tensor: Any) -> None:
        """Append a tensor to an item that is a list itself."""

        def append(store: Any, values: Sequence[Any]) -> Any:
            target = Store(self.bb, store).read(slot, relax.ObjectType())
            self.bb.emit(call_runtime("ffi.ListAppend", target, *values), "_")
            return relax.const(True, "bool")

        keep = _keeper(self.bb, "append_item", 1, append)
        self.bb.emit(relax.Call(keep, [self.variable, tensor]), "_")


def new_list(bb: Any, items: Sequence[Any]) -> Any:
    """A new list of the TVM runtime, which may stand in a dataflow block."""
    params = [relax.Var(f"p{index}", relax.ObjectType()) for index in range(len(items))]
    with building_function(
        bb, "new_list", params, private=True, attributes={"relax.force_pure": True}
    ):
        made = bb.emit_func_output(bb.emit(call_runtime("ffi.List", *params)))
    return bb.emit(relax.Call(made, list(items)), "list")


def _keeper(bb: Any, name: str, count: int, emit: Callable[[Any, Sequence[Any]], Any]) -> Any:
    """The function `(store, values…) -> true` that puts values where they outlive the caller.

    It has to be a function of its own: TVM's memory planner takes a call of the runtime for a
    kernel that is done with its arguments, and gives their memory to the next result.
    """
    store, *values = (relax.Var(f"p{index}", relax.ObjectType()) for index in range(count + 1))
    with building_function(bb, name, [store, *values], private=True, pure=False):
        return bb.emit_func_output(emit(store, values))


def _set_item(store: Any, slot: int, item: Any) -> Any:
    return call_runtime("ffi.ListSetItem", store, relax.prim_value(slot), item)


def call_runtime(function: str, *args: Any, kind: Any = None) -> Any:
    """A call of a function of the TVM runtime that has, or sees, side effects."""
    kind = relax.ObjectType() if kind is None else kind
    return relax.Call(relax.ExternFunc(function), list(args), ty_args=[kind])


def emit_tower(bb: Any, name: str, iteration: Any, most: int | None) -> Any:
    """The GlobalVar of a function that iterates until `iteration` gives false.

    `iteration` is the GlobalVar of `store -> whether there is another iteration`, and so is the
    result. `most` is the largest number of iterations, if it is known.
    """
    level = iteration
    reach = 1
    for number in range(1, _LEVELS + 1):
        if most is not None and reach >= most:
            break
        level = _emit_level(bb, f"{name}_{number}", level)
        reach *= _RADIX
    return level


def _emit_level(bb: Any, name: str, below: Any) -> Any:
    store = Store.parameter(bb)
    with building_function(bb, name, [store.variable], private=True, pure=False):
        goes_on = bb.emit(relax.Call(below, [store.variable]))
        for _ in range(_RADIX - 1):
            again = relax.Call(below, [store.variable])
            goes_on = bb.emit(relax.If(goes_on, again, goes_on))
        return bb.emit_func_output(goes_on)


def as_size(bb: Any, scalar: Any) -> Any:
    """An int64 scalar as a symbol."""
    vector = bb.emit(relax.op.reshape(scalar, (1,)))
    symbol = fresh_dim("count")
    bb.match_cast(bb.emit(relax.op.tensor_to_shape(vector)), relax.ShapeType([symbol]))
    return symbol
