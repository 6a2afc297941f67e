"""Evidence before a commit: one iteration of the old body against one step of the new operator.

Both run on onnxruntime, on random numbers for what the body reads, the states, and the weights that
are known only at run time. One step is enough: the next one starts from equal states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...rewrite import symbolic
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.clone import clone_nodes
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, Variable, bodies
from ...rewrite.running.runtime import ExecutionError, SerializedModel, Session
from ...rewrite.storage.model import Model, export_model
from ...rewrite.symbolic import Dim
from . import weights
from .cells import Cell
from .emission import attributes, parameters
from .layout import Layout
from .weights import Array, Weight

_BATCH = 3
"""The batch where its size is open. Its rows get numbers of different sizes, so that activations
are tried where they bend and where they are flat."""
_SIZES = np.array([0.3, 1.0, 4.0])
_WEIGHTS = 0.3
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2}
"""Largest difference between the two; sums are taken in another order."""


Placed = tuple[Tensor, Layout]
"""A value of the body and where its batch and features stand."""
_NOTHING: Mapping[Tensor, bool] = MappingProxyType({})


class Disproved(Exception):
    """The two differ, or one of them does not run; the text says so."""


def probe(
    facts: Facts,
    cell: Cell,
    inputs: Sequence[Placed],
    before: Sequence[Placed],
    after: Sequence[Tensor],
    known: Mapping[Tensor, bool] = _NOTHING,
) -> float:
    """The largest difference. Raises Disproved where it is too large.

    `inputs` are the slices that `cell.inputs` stand for, `before` and `after` h and c, which keep
    their layouts. `known` are masks and what they are.
    """
    given = [tensor for tensor, _ in (*inputs, *before)]
    nodes, outer = cone(facts, after, {*given, *known})
    values = _random_values(facts, [*given, *outer, *known])
    for tensor, truth in known.items():
        values[tensor] = np.full_like(values[tensor], truth)
    for tensor in outer:
        if values[tensor].dtype.kind == "f":
            values[tensor] = (values[tensor] * _WEIGHTS).astype(values[tensor].dtype)
    try:
        expected = _run_nodes(facts, nodes, values, after)
        actual = _run_operator(facts, cell, values, inputs, before)
    except ExecutionError as error:
        reason = str(error).strip().splitlines()[0][:120]
        raise Disproved(
            f"onnxruntime does not run the {cell.op} or the old body: {reason}"
        ) from None
    rows = [layout.rows(array) for array, (_, layout) in zip(expected, before)]
    # NumPy's maximum, unlike Python's, does not lose a NaN among other numbers.
    difference = float(
        np.max([np.max(np.abs(a - b.reshape(a.shape))) for a, b in zip(rows, actual)])
    )
    if not difference <= TOLERANCE[str(expected[0].dtype)]:
        raise Disproved(f"the {cell.op} differs from the loop by {difference:.3g} on random inputs")
    return difference


def cone(
    facts: Facts, wanted: Sequence[Tensor], given: set[Tensor]
) -> tuple[list[Node], list[Tensor]]:
    """The nodes that compute `wanted` from `given`, in order, and the open values they read."""
    index = facts.index
    home = index.home(wanted[0])
    nodes: dict[Node, None] = {}
    outer: dict[Tensor, None] = {}
    waiting, seen = list(wanted), set(given)
    while waiting:
        tensor = waiting.pop()
        if tensor in seen or not tensor.name:
            continue
        seen.add(tensor)
        node = index.producer(tensor)
        if node is not None and index.graph_of(node) is home and not bodies(node):
            nodes[node] = None
            waiting.extend(node.inputs)
        elif facts.constant(tensor) is None:
            outer[tensor] = None
    return sorted(nodes, key=lambda n: n.order), list(outer)


def _random_values(facts: Facts, tensors: Sequence[Tensor]) -> dict[Tensor, Array]:
    generator = np.random.default_rng(0)
    values = {}
    for tensor in tensors:
        numbers = _sizes(facts, tensor)
        if numbers is not None:
            values[tensor] = numbers
            continue
        shape = facts.shape(tensor) or ()
        sizes = [n if isinstance(n, int) else _BATCH for n in shape]
        array = generator.standard_normal(sizes)
        for axis, size in enumerate(shape):
            if not isinstance(size, int):
                array *= _SIZES.reshape([-1 if k == axis else 1 for k in range(len(shape))])
        values[tensor] = array.astype(helper.tensor_dtype_to_np_dtype(facts.dtype(tensor)))
    return values


def _sizes(facts: Facts, tensor: Tensor) -> Array | None:
    """Integers that are sizes, for the batch that is tried; None for anything else."""
    array = facts.of(tensor).array()
    if array is None or any(v is None or isinstance(v, bool) for v in array.ravel()):
        return None
    tried = [_tried(v) for v in array.ravel()]
    dtype = helper.tensor_dtype_to_np_dtype(facts.dtype(tensor))
    return np.array(tried, dtype).reshape(array.shape)


def _tried(dim: Dim) -> int:
    sizes: dict[symbolic.Symbol, Dim] = dict.fromkeys(symbolic.symbols(dim), _BATCH)
    value = symbolic.substitute(dim, sizes)
    return value if isinstance(value, int) else _BATCH


def _run_nodes(
    facts: Facts, nodes: Sequence[Node], values: Mapping[Tensor, Array], wanted: Sequence[Tensor]
) -> list[Array]:
    renamed: dict[Tensor, Tensor] = {}
    feeds: dict[str, Array] = {}
    graph = Graph(name="body")
    inner = set(nodes)
    for node in nodes:
        for tensor in node.inputs:
            if tensor in renamed or not tensor.name or facts.index.producer(tensor) in inner:
                continue
            name = f"v{len(renamed)}"
            if tensor in values:
                feeds[name] = values[tensor]
                renamed[tensor] = Variable(name, values[tensor].dtype, list(values[tensor].shape))
                graph.inputs.append(renamed[tensor])
            else:
                constant = Constant(name, np.asarray(facts.constant(tensor)))
                renamed[tensor] = constant
                graph.initializers.append(constant)
    graph.nodes = clone_nodes(nodes, renamed, facts.index)
    for place, node in enumerate(graph.nodes):
        for tensor in node.outputs:
            tensor.name = tensor.name and f"n{place}_{tensor.name}"
            tensor.info = None
    graph.outputs = [renamed[t] for t in wanted]
    for old, new in zip(wanted, graph.outputs):
        new.dtype = helper.tensor_dtype_to_np_dtype(facts.dtype(old))
    return _run(export_model(Model(graph, _header(facts))), feeds)


def _header(facts: Facts) -> onnx.ModelProto:
    imports = [helper.make_opsetid(domain, version) for domain, version in facts.opsets.items()]
    return onnx.ModelProto(ir_version=10, opset_import=imports)


def _run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    outputs = Session(SerializedModel(model)).run(dict(feeds))
    return [np.asarray(value) for value in outputs]


def _run_operator(
    facts: Facts,
    cell: Cell,
    values: Mapping[Tensor, Array],
    inputs: Sequence[Placed],
    before: Sequence[Placed],
) -> list[Array]:
    """h and c after one step, as (1, batch, hidden)."""
    x = np.concatenate([layout.rows(values[t]) for t, layout in inputs], 1)[np.newaxis]
    states = [layout.rows(values[t])[np.newaxis] for t, layout in before]
    found = parameters(cell)
    builder = _OnArrays(values)

    def array(weight: Weight | None) -> Array | None:
        return None if weight is None else np.asarray(weights.build(weight, builder, {}))

    blank = [None] * (3 - len(states))
    arrays = [x, array(found.w), array(found.r), array(found.b), None, *states, *blank[1:]]
    arrays.append(array(found.p))
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(arrays)]
    while not names[-1]:
        names.pop()
    outputs = ["", "h", "c"][: 1 + len(states)]
    node = helper.make_node(cell.op, names, outputs, **attributes(cell))
    initializers = [
        numpy_helper.from_array(np.ascontiguousarray(a), n)
        for a, n in zip(arrays, names)
        if a is not None and n
    ]
    results = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), None)
        for name in outputs[1:]
    ]
    model = _header(facts)
    model.graph.CopyFrom(helper.make_graph([node], "operator", [], results, initializers))
    return _run(model, {})


class _OnArrays:
    """Builds weights as arrays."""

    def __init__(self, values: Mapping[Tensor, Array]) -> None:
        self._values = values

    def value(self, tensor: Tensor) -> Array:
        return self._values[tensor]

    def constant(self, array: Array) -> Array:
        return array

    def apply(self, op: str, operands: Sequence[Array], attrs: Mapping[str, Any]) -> Array:
        first, *rest = operands
        if op == "Concat":
            return np.concatenate(operands, attrs["axis"])
        if op == "Transpose":
            return np.transpose(first, attrs["perm"])
        if op == "Gather":
            return np.take(first, rest[0], attrs["axis"])
        if op == "Reshape":
            return first.reshape(rest[0])
        functions = {"Add": np.add, "Mul": np.multiply, "MatMul": np.matmul}
        return np.asarray(functions[op](first, rest[0]))
