"""Validates what every rule relies on, before any rule runs.

onnx's checker is not enough: it rejects models that run, because its shape inference is wrong for
them, and its messages rarely say where. Messages here name the place and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import onnx
import onnxruntime
from onnx import AttributeProto, TensorProto

from ..errors import MalformedNodeError, ModelError
from ..graph import ir
from ..graph.einsum import is_equation
from ..graph.labels import body_label, node_label, standard_name, within
from ..graph.operators import (
    STANDARD_DOMAINS,
    Operator,
    is_in_runtime,
    newest_known,
    operator,
    runtime_operator,
    runtime_operators,
    unknown_attributes,
    versions,
)
from . import limits
from .body_arity import check_bodies
from .typecheck import TypeCheck, element_name, types_text

_EXPORT_AGAIN = "Export the model again"
_RIGHT_OPSET = f"{_EXPORT_AGAIN}, or check that the opset is the one it was exported for"
_OTHER_RUNTIME = (
    f"{_EXPORT_AGAIN}, or install the onnxruntime that it was exported for "
    f"(installed: {onnxruntime.__version__})"
)


def check_header(proto: onnx.ModelProto) -> None:
    """Raises ModelError if the IR version or an operator set is unknown or missing."""
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"The model has IR version {proto.ir_version}, but onnx {onnx.__version__} supports "
            f"versions up to {int(onnx.IR_VERSION)}",
            where="ir_version of the model",
            remedy="Export it with an older exporter, or upgrade onnx",
        )
    if not proto.opset_import:
        raise ModelError(
            "The model imports no operator sets",
            where="opset_import of the model",
            remedy="The file may be cut short; otherwise set the opset that it was exported for",
        )
    imported: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = standard_name(entry.domain)
        if imported.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                f"The operator set {_set_name(domain)} is imported twice, as {imported[domain]} "
                f"and {entry.version}",
                where="opset_import of the model",
                remedy="Keep the one that the model was exported for",
            )
        _check_version(domain, entry.version, newest_known(domain), "onnx " + onnx.__version__)


def check_runtime(proto: onnx.ModelProto) -> None:
    """Raises ModelError if the model imports an operator set that is too new for onnxruntime.

    Such a model can be read and rewritten, but not run and thus not verified.
    """
    for entry in proto.opset_import:
        domain = standard_name(entry.domain)
        if domain in STANDARD_DOMAINS:
            newest = limits.newest_opset(domain)
            _check_version(domain, entry.version, newest, "the installed onnxruntime")


def _check_version(domain: str, version: int, newest: int, who: str) -> None:
    if version < 1:
        raise ModelError(
            f"Operator set {_set_name(domain)} is imported as version {version}",
            where="opset_import of the model",
            remedy="Set the version the model was exported for",
        )
    if newest and version > newest:
        raise ModelError(
            f"Operator set {_set_name(domain)} version {version} is too new: {who} supports "
            f"versions up to {newest}",
            where="opset_import of the model",
            remedy=f"Export the model for opset {newest} or lower, or convert it with "
            "onnx.version_converter",
        )


def _set_name(domain: str) -> str:
    return domain or "ai.onnx"


def check_graph(graph: ir.Graph, header: onnx.ModelProto) -> None:
    """Raises ModelError for unknown operators, and for wrong arities, bodies and types."""
    opsets = {standard_name(entry.domain): entry.version for entry in header.opset_import}
    functions = {(standard_name(f.domain), f.name) for f in header.functions}
    _Check(opsets, functions).graph(graph, "")


class _Check:
    def __init__(self, opsets: dict[str, int], functions: set[tuple[str, str]]) -> None:
        self._opsets = opsets
        self._functions = functions
        self._types = TypeCheck()

    def graph(self, graph: ir.Graph, path: str) -> None:
        self._types.define(graph, path)
        for node in graph.nodes:
            found = self._operator(node, path)
            if found is not None:
                _check_required(node, found, path)
                _check_counts(node, found, path)
                _check_attribute_names(node, found, path)
                _check_permutation(node, path)
                _check_equation(node, path)
                _check_element_type(node, found, path)
                _check_recurrent_weights(node, path)
            elif (node.domain, node.op) not in self._functions:
                of_runtime = runtime_operator(node.op, node.domain)
                if of_runtime is not None:
                    # Other versions of onnxruntime may have other inputs and attributes.
                    _check_required(node, of_runtime, path, remedy=_OTHER_RUNTIME)
                    _check_counts(node, of_runtime, path, remedy=_OTHER_RUNTIME)
                    _check_attribute_names(node, of_runtime, path, remedy=_OTHER_RUNTIME)
            if found is not None and not node.domain:
                check_bodies(node, self._opsets[""], path)
            self._types.enter(node, self._opsets[node.domain], path)
            for name, body in ir.named_bodies(node):
                self.graph(body, body_label(name, node, path))
            self._types.leave(node, found, path)
        self._types.finish(graph, path)

    def _operator(self, node: ir.Node, path: str) -> Operator | None:
        """The operator's schema; None for functions and for operators of other vendors."""
        opset = self._opsets.get(node.domain)
        if opset is None:
            raise ModelError(
                f"The model does not import the operator set {_set_name(node.domain)} that a "
                "node uses",
                where=within(node_label(node), path),
                remedy="Add it to opset_import with the version the model was exported for",
            )
        found = operator(node.op, node.domain, opset)
        if found is not None or node.domain not in STANDARD_DOMAINS:
            return found
        if (node.domain, node.op) in self._functions:
            return None
        if is_in_runtime(node.op, node.domain, opset):
            return None
        raise _unknown_operator(node, opset, path)


def _unknown_operator(node: ir.Node, opset: int, path: str) -> ModelError:
    history = versions(node.op, node.domain)
    name = _set_name(node.domain)
    first = history[0][0] if history else 0
    gone = next((version for version, alive in history if not alive and version <= opset), 0)
    if gone:
        what = f"The operator {node.op} was removed from {name} in opset {gone}"
        remedy = f"Export the model for opset {gone - 1} or lower, or without {node.op}"
    elif first > opset:
        what = f"The operator {node.op} was added to {name} in opset {first}"
        remedy = f"Export the model for opset {first} or higher"
    else:
        what = f"There is no operator {node.op} in {name}"
        near = difflib.get_close_matches(node.op, sorted(_names(node.domain)), 1)
        remedy = (f"Perhaps {near[0]} is meant. " if near else "") + (
            "Operators of other vendors need their own domain on the node and in opset_import"
        )
    return ModelError(
        f"{what}; the model imports version {opset}",
        where=within(node_label(node), path),
        remedy=remedy,
    )


def _names(domain: str) -> Iterator[str]:
    return (name for found, name in runtime_operators() if found == domain)


def _check_required(node: ir.Node, found: Operator, path: str, remedy: str = _EXPORT_AGAIN) -> None:
    """Checks that what the operator requires is there, and the types of attributes."""
    missing = found.missing_input([bool(tensor.name) for tensor in node.inputs])
    if missing is not None:
        slot, name = missing
        raise MalformedNodeError(
            f"{node.op} lacks its input '{name}' (number {slot + 1})",
            where=within(node_label(node), path),
            remedy=remedy,
        )
    attributes = _attributes(node)
    for name in found.required_attributes:
        if name not in attributes and name not in node.attrs:
            raise ModelError(
                f"{node.op} lacks its attribute '{name}'",
                where=within(node_label(node), path),
                remedy=remedy,
            )
    for name, attribute in attributes.items():
        wanted = found.attributes.get(name, attribute.type)
        if attribute.type != wanted and attribute.type != AttributeProto.UNDEFINED:
            kinds = AttributeProto.AttributeType
            raise ModelError(
                f"The attribute '{name}' of {node.op} is {kinds.Name(attribute.type)}, the "
                f"operator takes {kinds.Name(wanted)}",
                where=within(node_label(node), path),
                remedy=remedy,
            )


def _attributes(node: ir.Node) -> dict[str, AttributeProto]:
    """The attributes as the file has them."""
    return {a.name: a for a in node.origin.attribute} if node.origin is not None else {}


def _check_counts(node: ir.Node, found: Operator, path: str, remedy: str = _RIGHT_OPSET) -> None:
    counts = {
        "inputs": (len(node.inputs), found.min_inputs, found.max_inputs),
        "outputs": (len(node.outputs), found.min_outputs, found.max_outputs),
    }
    for what, (count, low, high) in counts.items():
        if not low <= count <= high:
            wanted = f"at least {low}" if count < low else f"at most {high}"
            raise MalformedNodeError(
                f"{node.op} has {count} {what}, the operator has {wanted}",
                where=within(node_label(node), path),
                remedy=remedy,
            )


def _check_attribute_names(
    node: ir.Node, found: Operator, path: str, remedy: str = _RIGHT_OPSET
) -> None:
    for name in unknown_attributes(_attributes(node), found):
        raise ModelError(
            f"{node.op} has an attribute '{name}' that the operator does not have",
            where=within(node_label(node), path),
            remedy=remedy,
        )


def _check_permutation(node: ir.Node, path: str) -> None:
    """onnxruntime finds a wrong permutation only where it knows the rank; elsewhere it reads axes
    twice (ONNX operator specification: Transpose).
    """
    order = node.attrs.get("perm") if node.op == "Transpose" and not node.domain else None
    if isinstance(order, (list, tuple)) and sorted(order) != list(range(len(order))):
        raise MalformedNodeError(
            f"The attribute 'perm' of Transpose is {list(order)}, which names an axis twice or "
            "names one that the input does not have",
            where=within(node_label(node), path),
            remedy=_EXPORT_AGAIN,
        )


def _check_equation(node: ir.Node, path: str) -> None:
    equation = node.attrs.get("equation") if node.op == "Einsum" and not node.domain else None
    if isinstance(equation, str) and not is_equation(equation, len(node.inputs)):
        raise MalformedNodeError(
            f"The equation '{equation}' of Einsum is not a list of letters for each input, with at "
            "most one ellipsis each, and a result that has some of these letters once",
            where=within(node_label(node), path),
            remedy=_EXPORT_AGAIN,
        )


def _check_element_type(node: ir.Node, found: Operator, path: str) -> None:
    """Raises ModelError for a type of a result that ONNX or the operator does not have."""
    for name in ("to", "dtype", "output_dtype", "output_datatype"):
        kind = node.attrs.get(name)
        if not isinstance(kind, int):
            continue
        is_left_open = kind == TensorProto.UNDEFINED and name == "output_dtype"
        if kind not in _ELEMENT_TYPES and not is_left_open:
            raise ModelError(
                f"The attribute '{name}' of {node.op} is {kind}, which is no element type",
                where=within(node_label(node), path),
                remedy=_EXPORT_AGAIN,
            )
        given, allowed = f"tensor({element_name(kind)})", found.outputs[0].allowed
        if not is_left_open and not allowed & {given, f"seq({given})"}:
            raise ModelError(
                f"The attribute '{name}' of {node.op} is {kind}, so that its result would be "
                f"{given}, which the operator does not give in this opset",
                where=within(node_label(node), path),
                remedy=f"Choose one of {types_text(allowed)}, or export for a later opset if that "
                "has the type",
            )


_ELEMENT_TYPES = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _check_recurrent_weights(node: ir.Node, path: str) -> None:
    """Checks the shapes of constant weights of LSTM, GRU and RNN."""
    gates = None if node.domain else _GATES.get(node.op)
    if gates is None:
        return
    directions = 2 if node.attrs.get("direction", "forward") == "bidirectional" else 1
    w, r = ([*t.shape] if isinstance(t, ir.Constant) else None for t in node.inputs[1:3])
    hidden = node.attrs.get("hidden_size", r[2] if r and len(r) == 3 else None)
    of_gates: object = "gates * hidden size" if hidden is None else gates * hidden
    for name, shape in (("W", w), ("R", r)):
        size = hidden if name == "R" else None
        wanted = [directions, of_gates, "features" if size is None else size]
        if shape is not None and not _fits(shape, wanted):
            raise ModelError(
                f"The weights {name} of {node.op} have shape {shape}, where the operator needs "
                f"[{', '.join(map(str, wanted))}]",
                where=within(node_label(node), path),
                remedy=_EXPORT_AGAIN,
            )


def _fits(shape: list[int], wanted: list[object]) -> bool:
    """Whether a shape has these sizes; a name stands for any size."""
    pairs = zip(shape, wanted)
    return len(shape) == len(wanted) and all(isinstance(w, str) or n == w for n, w in pairs)
