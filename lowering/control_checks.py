"""Checks at the boundaries of bodies: what a node hands in and takes out fits its graphs.

Everything is refused here that contradicts the specification of an operator with bodies, so that
nothing is emitted for a model that means nothing. Types are taken from where they cannot be stale:
inputs of graphs, initializers, and declared outputs of bodies.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

import onnx
from onnx import TensorProto

from ..rewrite.errors import ModelError
from ..rewrite.storage.protos import nodes
from .attributes import attributes
from .bodies import Body, Step, place

Types = ChainMap[str, onnx.TypeProto]
"""The types of values by name, of the innermost graph first; empty where they are not known."""

_Function = tuple[str, str]
"""Domain and name."""


def check_control(body: Body, outer: Types | None = None) -> None:
    """Check all nodes with bodies, in bodies too; `outer` are types known outside of the graph.

    Raises ModelError for the first that does not fit.
    """
    if not any(step.bodies for step in body.steps):
        return
    known = (ChainMap() if outer is None else outer).new_child(_own_types(body.graph))
    for step in body.steps:
        if step.bodies:
            check = _CHECKS.get(step.node.op_type)
            if check is not None:
                check(_Site(step, body.path, known))
        for inner in step.bodies.values():
            check_control(inner, known)


def check_functions(model: onnx.ModelProto) -> None:
    """Check that no function of the model calls itself. Raises ModelError if one does."""
    calls = {
        (function.domain, function.name): {(node.domain, node.op_type) for node in nodes(function)}
        for function in model.functions
    }
    done: set[_Function] = set()
    for start in calls:
        _descend(start, calls, done)


def _descend(
    start: _Function, calls: Mapping[_Function, set[_Function]], done: set[_Function]
) -> None:
    """Visit what a function calls, depth first; meeting a function on the way down is a cycle."""
    path: dict[_Function, None] = {}
    pending = [(start, False)]
    while pending:
        function, is_left = pending.pop()
        if is_left:
            del path[function]
            done.add(function)
        elif function in path:
            names = [name for _, name in [*path, function]]
            cycle = " -> ".join(names[names.index(function[1]) :])
            raise ModelError(
                f"the function {function[1]!r} of the model calls itself: {cycle}",
                remedy="Write the recursion as a Loop",
            )
        elif function not in done:
            path[function] = None
            pending.append((function, True))
            pending.extend((callee, False) for callee in calls[function] if callee in calls)


class _Site:
    """A node with bodies, where it stands."""

    def __init__(self, step: Step, path: str, types: Types) -> None:
        self.node = step.node
        self.bodies = step.bodies
        self._place = place(step.node, path)
        self._types = types

    def refuse(self, what: str) -> NoReturn:
        raise ModelError(what, where=self._place)

    def graph(self, name: str) -> onnx.GraphProto:
        if name not in self.bodies:
            self.refuse(f"the attribute {name!r}, a graph, is missing")
        return self.bodies[name].graph

    def need_scalar(self, role: str, name: str, dtype: int) -> None:
        """An operand has a type and one element, as far as is known."""
        if name in self._types:
            self.need_scalar_type(role, name, self._types[name], dtype)

    def need_scalar_type(self, role: str, name: str, kind: onnx.TypeProto, dtype: int) -> None:
        if kind.WhichOneof("value") not in ("tensor_type", None):
            self.refuse(f"the {role} {name!r} is not a tensor")
        tensor = kind.tensor_type
        if tensor.elem_type not in (0, dtype):
            wanted, given = _name(dtype), _name(tensor.elem_type)
            self.refuse(f"the {role} {name!r} is {given}, where {wanted} is asked for")
        if any(dim.dim_value > 1 for dim in tensor.shape.dim):
            sizes = ", ".join(dim.dim_param or str(dim.dim_value) for dim in tensor.shape.dim)
            self.refuse(f"the {role} {name!r} has the shape [{sizes}], where one element is needed")

    def need_one_type(self, name: str, into: onnx.ValueInfoProto, out: onnx.ValueInfoProto) -> None:
        """Checks that a carried value has one type: outside, into the body, and out of it."""
        kinds = [into.type, out.type]
        if name in self._types:
            kinds.insert(0, self._types[name])
        forms = {form for kind in kinds if (form := _form(kind))}
        if len(forms) > 1:
            shown = " and ".join(sorted(forms))
            self.refuse(f"the carried value {into.name!r} is {shown}, but it must keep its type")


def _own_types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    types = {name: onnx.TypeProto() for node in graph.node for name in node.output}
    types.update((value.name, value.type) for value in graph.input)
    for tensor in graph.initializer:
        kind = onnx.helper.make_tensor_type_proto(tensor.data_type, tuple(tensor.dims))
        types[tensor.name] = kind
    return types


def _check_if(site: _Site) -> None:
    if len(site.node.input) != 1:
        site.refuse(f"there are {len(site.node.input)} inputs, where an If has 1")
    site.need_scalar("condition", site.node.input[0], TensorProto.BOOL)
    for name in ("then_branch", "else_branch"):
        graph = site.graph(name)
        if graph.input:
            site.refuse(f"{name} has inputs, where a branch of an If has none")
        if len(graph.output) != len(site.node.output):
            given, wanted = len(graph.output), len(site.node.output)
            site.refuse(f"{name} has {given} outputs, and the node {wanted}")


def _check_loop(site: _Site) -> None:
    body, operands = site.graph("body"), list(site.node.input)
    if len(operands) < 2:
        site.refuse(f"there are {len(operands)} inputs, where a Loop has at least 2")
    carried_values = operands[2:]
    if len(body.input) != 2 + len(carried_values):
        site.refuse(
            f"the body has {len(body.input)} inputs, but its node passes the iteration number, the "
            f"condition and {len(carried_values)} carried values"
        )
    _need_outputs(site, body, 1, len(carried_values))
    site.need_scalar("trip count", operands[0], TensorProto.INT64)
    site.need_scalar("condition", operands[1], TensorProto.BOOL)
    parts = [
        ("iteration number", body.input[0], TensorProto.INT64),
        ("condition", body.input[1], TensorProto.BOOL),
        ("condition", body.output[0], TensorProto.BOOL),
    ]
    for role, value, dtype in parts:
        site.need_scalar_type(f"{role} of the body", value.name, value.type, dtype)
    for name, into, out in zip(carried_values, body.input[2:], body.output[1:], strict=False):
        site.need_one_type(name, into, out)


def _check_scan(site: _Site) -> None:
    body, given = site.graph("body"), attributes(site.node)
    count = given.get("num_scan_inputs")
    has_batch = "directions" in given or _has_batch(site, body)
    operands = list(site.node.input)[1 if has_batch else 0 :]
    if not isinstance(count, int) or not 1 <= count <= len(operands):
        site.refuse(f"num_scan_inputs is {count}, and there are {len(operands)} operands")
    carried_values = operands[: len(operands) - count]
    if len(body.input) != len(operands):
        site.refuse(f"the body has {len(body.input)} inputs, and the node {len(operands)} operands")
    _need_outputs(site, body, 0, len(carried_values))
    scan_outputs = len(body.output) - len(carried_values)
    for side, number in (("input", count), ("output", scan_outputs)):
        _need_list(site, given, f"scan_{side}_axes", number)
        directions = _need_list(site, given, f"scan_{side}_directions", number)
        if not set(directions) <= {0, 1}:
            site.refuse(f"scan_{side}_directions {list(directions)} are not all 0 or 1")
    for name, into, out in zip(carried_values, body.input, body.output, strict=False):
        if not has_batch:
            site.need_one_type(name, into, out)


def _has_batch(site: _Site, body: onnx.GraphProto) -> bool:
    """Whether a Scan has the form of opset 8, whose first operand are the lengths."""
    return len(site.node.input) == len(body.input) + 1


def _need_outputs(site: _Site, body: onnx.GraphProto, before: int, carried_values: int) -> None:
    """Checks that the body has all outputs that the node asks for."""
    if len(body.output) < before + carried_values:
        count = f"{carried_values} carried values"
        site.refuse(f"the body has {len(body.output)} outputs, too few for {count}")
    given = len(body.output) - before
    if len(site.node.output) > given:
        site.refuse(f"the node has {len(site.node.output)} outputs, and its body gives {given}")


def _need_list(site: _Site, given: Mapping[str, Sequence[int]], name: str, count: int) -> list[int]:
    values = list(given.get(name, ()))
    if name in given and len(values) != count:
        site.refuse(f"{name} has {len(values)} entries for {count} tensors")
    return values


def _form(kind: onnx.TypeProto) -> str:
    """The type without shapes, for people; empty if it is not known."""
    case = kind.WhichOneof("value")
    if case == "optional_type":
        return _form(kind.optional_type.elem_type)
    if case == "sequence_type":
        return f"a sequence of {_form(kind.sequence_type.elem_type) or 'tensors'}"
    return f"{_name(kind.tensor_type.elem_type)} tensors" if kind.tensor_type.elem_type else ""


def _name(dtype: int) -> str:
    return str(TensorProto.DataType.Name(dtype)).lower()


_CHECKS: Mapping[str, Callable[[_Site], None]] = MappingProxyType(
    {"If": _check_if, "Loop": _check_loop, "Scan": _check_scan}
)
