"""Inlines model-local functions, so that rules and facts see one graph of plain operators.

onnx's inliner does the work, with three preparations. The model gets the opset imports of its
functions, which the inliner drops. Outputs that forward an input or an outer value get an Identity,
because the inliner gives them names that nothing defines. Weights are removed during the call,
because the inliner serialises the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import inliner
from onnx.checker import ValidationError

from ..errors import ModelError
from ..graph.labels import standard_name
from .external import without_weights
from .function_conflicts import check_function_names
from .protos import NodeContainer, body_protos, nodes


def inline_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with calls of its functions replaced by their bodies.

    Returns the same object for a model without functions. A function that the inliner cannot
    convert to the opset of the model stays, with its calls.

    Raises ModelError if the inliner fails, or if a function has the name of an operator of ONNX.
    """
    if not proto.functions:
        return proto
    _check_calls(proto)
    check_function_names(proto)
    light = without_weights(proto)
    _import_opsets_of_functions(light)
    for function in light.functions:
        _compute_outputs(function)
    inlined = _inline(light)
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    for tensor in inlined.graph.initializer:
        tensor.CopyFrom(weights[tensor.name])
    return inlined


MOST_NODES = 2_000_000
"""The most nodes after inlining: 31 functions that call each other twice are 2^30 calls."""
_DEEPEST = 100
"""The longest chain of calls that onnx's inliner takes."""


def _check_calls(proto: onnx.ModelProto) -> None:
    """Raises ModelError if inlining would not end, or make too many nodes."""
    functions: dict[tuple[str, str], onnx.FunctionProto] = {}
    for function in proto.functions:
        key = (standard_name(function.domain), function.name)
        if functions.setdefault(key, function) is not function:
            raise ModelError(
                "The model has two functions of one name",
                where=f"function '{function.name}' of the domain '{function.domain}'",
                remedy="Export the model again",
            )
    sizes: dict[tuple[str, str], tuple[int, int]] = {}
    """The number of nodes and the depth of calls of each function that is counted already."""
    for key in functions:
        _count_nodes(key, functions, sizes)
    total = 0
    for node in nodes(proto.graph):
        total += sizes.get((standard_name(node.domain), node.op_type), (1, 0))[0]
    if total > MOST_NODES:
        raise ModelError(
            f"The model has {total} nodes after its functions are inlined, more than {MOST_NODES}",
            where="functions of the model",
            remedy="Export the model without functions that call each other many times",
        )


def _count_nodes(
    key: tuple[str, str],
    functions: dict[tuple[str, str], onnx.FunctionProto],
    sizes: dict[tuple[str, str], tuple[int, int]],
) -> None:
    """Counts the nodes of a function and of those that it calls, without recursion."""
    active: dict[tuple[str, str], None] = {}
    pending = [key]
    while pending:
        current = pending[-1]
        called = [(standard_name(n.domain), n.op_type) for n in nodes(functions[current])]
        missing = [each for each in called if each in functions and each not in sizes]
        if current in sizes or not missing:
            if current not in sizes:
                found = [sizes.get(each, (1, -1)) for each in called]
                depth = 1 + max((d for _, d in found), default=-1)
                sizes[current] = (sum(n for n, _ in found), depth)
                _check_depth(current, depth)
            active.pop(current, None)
            pending.pop()
            continue
        active[current] = None
        if any(each in active for each in missing):
            raise ModelError(
                "A function of the model calls itself",
                where=f"function '{current[1]}' of the domain '{current[0]}'",
                remedy="ONNX has no recursion: use a Loop",
            )
        pending.append(missing[0])


def _check_depth(key: tuple[str, str], depth: int) -> None:
    if depth >= _DEEPEST:
        raise ModelError(
            f"Functions of the model call each other more than {_DEEPEST} deep",
            where=f"function '{key[1]}' of the domain '{key[0]}'",
            remedy="Inline the functions with onnx.inliner before",
        )


def _inline(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return inliner.inline_local_functions(model, convert_version=True)
    except (RuntimeError, ValidationError):
        # The version converter supports few operators. Without it, only functions of the model's
        # own opset are inlined.
        return _inline_same_opset(model)


def _inline_same_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return inliner.inline_local_functions(model, convert_version=False)
    except (RuntimeError, ValidationError) as error:
        names = ", ".join(f"{f.domain}.{f.name}" for f in model.functions)
        raise ModelError(
            f"The functions of the model cannot be inlined: {str(error).splitlines()[0]}",
            where=f"functions {names}",
            remedy="Export the model without local functions, or inline them with onnx.inliner",
        ) from error


def _import_opsets_of_functions(model: onnx.ModelProto) -> None:
    known = {entry.domain for entry in model.opset_import}
    for function in model.functions:
        for entry in function.opset_import:
            if entry.domain not in known:
                known.add(entry.domain)
                model.opset_import.add(domain=entry.domain, version=entry.version)


def _compute_outputs(function: onnx.FunctionProto) -> None:
    """Adds an Identity for each output of a function or body that forwards a value."""
    names = _Outputs(function)
    for index, name in enumerate(function.output):
        function.output[index] = names.computed_name(name)
    for body in _bodies(function):
        _compute_outputs_of_body(body)


def _compute_outputs_of_body(body: onnx.GraphProto) -> None:
    names = _Outputs(body)
    names.computed.update(info.name for info in body.input)
    names.computed.update(tensor.name for tensor in body.initializer)
    for info in body.output:
        info.name = names.computed_name(info.name)
    for inner in _bodies(body):
        _compute_outputs_of_body(inner)


def _bodies(owner: NodeContainer) -> Iterator[onnx.GraphProto]:
    for node in owner.node:
        yield from body_protos(node)


class _Outputs:
    """The computed names of a function or body."""

    def __init__(self, owner: onnx.FunctionProto | onnx.GraphProto) -> None:
        self._owner = owner
        self.computed = {name for node in owner.node for name in node.output}

    def computed_name(self, name: str) -> str:
        """The name itself, or the result of a new Identity if the name is not computed here."""
        if name in self.computed:
            return name
        copy = f"{name}_of_{self._owner.name}"
        self._owner.node.add(op_type="Identity", input=[name], output=[copy])
        self.computed.add(copy)
        return copy
