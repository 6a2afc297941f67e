"""Inlines model-local functions, so that rules and facts see one graph of plain operators.

onnx's inliner does the work, with three preparations. The model gets the opset imports of its
functions, which the inliner drops. Outputs that forward an input or an outer value get an Identity,
because the inliner gives them names that nothing defines. Weights are removed meanwhile, because
the inliner serialises the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import inliner

from ..errors import ModelError
from .external import without_weights
from .protos import NodeContainer, body_protos


def inline_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with calls of its functions replaced by their bodies.

    Returns the same object for a model without functions. A function that the inliner cannot
    convert to the opset of the model stays, with its calls.

    Raises ModelError if the inliner fails.
    """
    if not proto.functions:
        return proto
    light = without_weights(proto)
    _import_opsets_of_functions(light)
    for function in light.functions:
        _compute_outputs(function)
    inlined = _inline(light)
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    for tensor in inlined.graph.initializer:
        tensor.CopyFrom(weights[tensor.name])
    return inlined


def _inline(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return inliner.inline_local_functions(model, convert_version=True)
    except RuntimeError:
        # The version converter supports few operators. Without it, only functions of the model's
        # own opset are inlined.
        return _inline_same_opset(model)


def _inline_same_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return inliner.inline_local_functions(model, convert_version=False)
    except RuntimeError as error:
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
