"""Checks element types: an operator's schema says which of its values share a type.

Follows types only, no shapes, and only where a schema or a declaration determines them.
onnxruntime rejects whatever this check rejects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat

import onnx
from onnx import TensorProto

from ..errors import ModelError
from ..graph import ir
from ..graph.declarations import element_type
from ..graph.labels import node_label, within
from ..graph.operators import Formal, Operator


class TypeCheck:
    """The types of values, written as in ONNX's operator schemas: `tensor(float)`."""

    def __init__(self) -> None:
        self._types: dict[ir.Tensor, str] = {}

    def define(self, graph: ir.Graph, path: str) -> None:
        """Records the declared types of a graph's inputs and the types of its initializers."""
        for tensor in chain(graph.inputs, graph.initializers):
            declared = declared_type(tensor)
            if declared:
                self._types.setdefault(tensor, declared)
            stored = _constant_type(tensor)
            if declared and stored:
                _compare(stored, declared, f"initializer '{tensor.name}'", path, "is declared as")

    def enter(self, node: ir.Node, opset: int, path: str) -> None:
        """Checks the inputs of the body of a Loop or Scan."""
        body = node.attrs.get("body")
        if not isinstance(body, ir.Graph) or node.domain:
            return
        if node.op == "Loop":
            outer, inner = node.inputs[2:], body.inputs[2:]
        elif node.op == "Scan":
            outer, inner = node.inputs[1 if opset < 9 else 0 :], body.inputs
        else:
            return
        for value, parameter in zip(outer, inner, strict=True):
            known, declared = self._types.get(value), declared_type(parameter)
            if known and declared:
                label = f"input '{parameter.name}' of the body of {node_label(node)}"
                _compare(known, declared, label, path, "is declared as")
            elif known:
                self._types[parameter] = known

    def leave(self, node: ir.Node, found: Operator | None, path: str) -> None:
        """Checks a node after its bodies, and records the types of its outputs."""
        if found is None:
            self._declare(node.outputs)
            return
        bound = self._bind(node, found, path)
        for tensor, formal in _matched(node.outputs, found.outputs):
            if not tensor.name:
                continue
            inferred = bound.get(formal.type_name, "")
            if not inferred and "(" in formal.type_name:
                inferred = formal.type_name
            declared = declared_type(tensor)
            if inferred and declared and inferred != declared:
                label = f"output '{tensor.name}' of {node_label(node)}"
                _compare(inferred, declared, label, path, "is declared as")
            if inferred or declared:
                self._types[tensor] = inferred or declared
        if node.op == "If" and not node.domain:
            self._join(node, path)

    def finish(self, graph: ir.Graph, path: str) -> None:
        """Checks the declarations of outputs whose value has a different declaration."""
        for tensor, info in graph.output_info.items():
            known, declared = self._types.get(tensor), type_name(info.type)
            if known and declared:
                label = f"output '{tensor.name}' of the graph '{graph.name}'"
                _compare(known, declared, label, path, "is declared as")

    def _declare(self, tensors: Sequence[ir.Tensor]) -> None:
        for tensor in tensors:
            declared = declared_type(tensor)
            if declared:
                self._types[tensor] = declared

    def _bind(self, node: ir.Node, found: Operator, path: str) -> dict[str, str]:
        """The types that the inputs bind the operator's type variables to."""
        bound: dict[str, str] = {}
        for tensor, formal in _matched(node.inputs, found.inputs):
            known = self._types.get(tensor)
            if known is None:
                continue
            if known not in formal.allowed:
                raise ModelError(
                    f"{node.op} does not take {known} as its input '{formal.name}'",
                    where=within(f"{node_label(node)}, value '{tensor.name}'", path),
                    remedy=f"It takes {types_text(formal.allowed)}: insert a Cast",
                )
            if formal.homogeneous and bound.setdefault(formal.type_name, known) != known:
                raise ModelError(
                    f"The inputs of {node.op} have the types {bound[formal.type_name]} and "
                    f"{known}, but must have the same type",
                    where=within(f"{node_label(node)}, value '{tensor.name}'", path),
                    remedy="Insert a Cast before the node",
                )
        return bound

    def _join(self, node: ir.Node, path: str) -> None:
        """Checks that both branches of an If return the same types; records them."""
        branches = (node.attrs["then_branch"], node.attrs["else_branch"])
        for tensor, then, other in zip(
            node.outputs, *(branch.outputs for branch in branches), strict=True
        ):
            types = [known for known in map(self._types.get, (then, other)) if known]
            if len(types) == 2:
                label = f"output '{tensor.name}' of {node_label(node)}"
                _compare(types[0], types[1], label, path, "in the else_branch is")
            if types and tensor.name and tensor not in self._types:
                self._types[tensor] = types[0]


def _matched(
    tensors: Sequence[ir.Tensor], formals: tuple[Formal, ...]
) -> Iterator[tuple[ir.Tensor, Formal]]:
    """Actual values with their formals; the last formal matches all remaining values."""
    return zip(tensors, chain(formals, repeat(formals[-1]))) if formals else iter(())


def _compare(known: str, declared: str, label: str, path: str, verb: str) -> None:
    # Plain tensors only: onnxruntime decides how optional and sequence types relate.
    if known == declared or not (known.startswith("tensor") and declared.startswith("tensor")):
        return
    raise ModelError(
        f"The value is {known}, but {verb} {declared}",
        where=within(label, path),
        remedy="Correct the type, or insert a Cast",
    )


def types_text(types: frozenset[str]) -> str:
    """The first types of a set, for a message."""
    shown = sorted(types)
    return ", ".join(shown[:8]) + (" …" if len(shown) > 8 else "")


def declared_type(tensor: ir.Tensor) -> str:
    """The type that the file declares or stores for a value; "" if there is none."""
    if isinstance(tensor, ir.Constant):
        stored = tensor.info.type if tensor.info is not None else None
        return type_name(stored) if stored is not None else _constant_type(tensor)
    return type_name(tensor.info.type) if tensor.info is not None else ""


def _constant_type(tensor: ir.Tensor) -> str:
    if not isinstance(tensor, ir.Constant):
        return ""
    return f"tensor({TensorProto.DataType.Name(element_type(tensor.dtype)).lower()})"


def type_name(declared: onnx.TypeProto) -> str:
    """A TypeProto as ONNX's operator schemas write it, without the shape; "" if unspecified."""
    kind = declared.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        element = getattr(declared, kind).elem_type
        if not element:
            return ""
        prefix = "tensor" if kind == "tensor_type" else "sparse_tensor"
        return f"{prefix}({element_name(element)})"
    if kind in ("sequence_type", "optional_type"):
        inner = type_name(getattr(declared, kind).elem_type)
        return f"{'seq' if kind == 'sequence_type' else 'optional'}({inner})" if inner else ""
    if kind == "map_type":
        inner = type_name(declared.map_type.value_type)
        key = element_name(declared.map_type.key_type)
        return f"map({key},{inner})" if inner else ""
    return ""


def element_name(element: int) -> str:
    """The name of an element type; raises ModelError for one that onnx does not know."""
    try:
        return str(TensorProto.DataType.Name(element)).lower()
    except ValueError:
        raise ModelError(
            f"A value is declared with element type {element}, which onnx {onnx.__version__} does "
            "not know",
            where="the declared types of the model",
            remedy="Export the model again, or upgrade onnx",
        ) from None
