"""Types of all values of a model, so that any of them can become an input."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import helper

from ...commands.arguments import Assertions
from ...rewrite.facts.fact import Fact
from ...rewrite.graph.ir import Graph, Tensor
from ...rewrite.symbolic import Dim, symbols
from ..subject import Subject

Types = dict[str, onnx.ValueInfoProto]
"""Declarations by name; values of which too little is known are missing."""


def types_of(model: onnx.ModelProto, base_dir: str) -> Types:
    """Declarations from facts, for a model in which each name is given once."""
    engine = Subject(model, base_dir, Assertions(), ()).engine()
    names = _DimNames()
    found: Types = {}
    for tensor in _values(engine.model.graph):
        declared = _declaration(tensor, engine.facts.of(tensor), names) if tensor.name else None
        if declared is not None:
            found[tensor.name] = declared
    found.update((info.name, info) for info in model.graph.input)
    return found


def _values(graph: Graph) -> Iterator[Tensor]:
    yield from graph.inputs
    yield from graph.initializers
    for node in graph.nodes:
        yield from node.outputs
        for body in node.attrs.values():
            if isinstance(body, Graph):
                yield from _values(body)


class _DimNames:
    """Names of dimensions: those of the file, and one for each size that facts cannot name."""

    def __init__(self) -> None:
        self._unknown: dict[Dim, str] = {}

    def name(self, dim: Dim) -> int | str:
        if isinstance(dim, int):
            return dim
        if all(symbol.serial < 0 for symbol in symbols(dim)):
            return str(dim)
        return self._unknown.setdefault(dim, f"unknown_{len(self._unknown)}")


def _declaration(tensor: Tensor, fact: Fact, names: _DimNames) -> onnx.ValueInfoProto | None:
    if not fact.dtype or fact.kind not in ("tensor", "sequence"):
        return None
    shape = None if fact.shape is None else [names.name(dim) for dim in fact.shape]
    make = (
        helper.make_tensor_value_info
        if fact.kind == "tensor"
        else helper.make_tensor_sequence_value_info
    )
    return make(tensor.name, fact.dtype, shape)
