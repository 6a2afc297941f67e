"""The numeric probe before a commit: one iteration of the body against the operator.

Both run on onnxruntime, on random numbers for what the body reads, for the states, and for weights
that are not constant. One time step is enough: the next one starts from equal states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.clone import clone_nodes
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, Variable, bodies
from ...rewrite.running.runtime import ExecutionError, SerializedModel, Session
from ...rewrite.storage.model import Model, export_model
from ...rewrite.symbolic import Dim
from .cells import Cell
from .emission import operator_attributes, operator_weights
from .lifting import CellLayout, numpy_type
from .weights import Array, NumpyBackend, Weight

_BATCH = 3
"""The size of an open batch. Its rows have magnitudes of their own (`_MAGNITUDES`), so that
activations are probed where they bend and where they saturate."""
_MAGNITUDES = np.array([0.3, 1.0, 4.0])
_WEIGHTS = 0.3
"""The magnitude of weights."""
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2}
"""The largest difference: the two add up sums in different orders."""

CellOperand = tuple[Tensor, CellLayout]
"""A value of the body and the layout of its axes."""
_NO_MASKS: Mapping[Tensor, bool] = MappingProxyType({})


def probe(
    facts: Facts,
    cell: Cell,
    inputs: Sequence[CellOperand],
    before: Sequence[CellOperand],
    after: Sequence[Tensor],
    masks: Mapping[Tensor, bool] = _NO_MASKS,
) -> float:
    """The largest difference between the body and the operator.

    `inputs` are the values of `cell.inputs`; `before` and `after` are h and c, whose layouts stay
    the same. `masks` have the given values. Raises Miss if the difference is too large, or if
    onnxruntime does not run one of the two.
    """
    given = [tensor for tensor, _ in (*inputs, *before)]
    nodes, outer = backward_slice(facts, after, {*given, *masks})
    values = _random_values(facts, [*given, *outer, *masks])
    for tensor in given:
        if not values[tensor].size:  # which crashes some of onnxruntime's operators
            raise Miss("{} has no elements", tensor, at=tensor)
    for tensor, truth in masks.items():
        values[tensor] = np.full_like(values[tensor], truth)
    for tensor in outer:
        if values[tensor].dtype.kind == "f":
            values[tensor] = (values[tensor] * _WEIGHTS).astype(values[tensor].dtype)
    try:
        expected = _run_nodes(facts, nodes, values, after)
        actual = _run_operator(facts, cell, values, inputs, before)
    except ExecutionError as error:
        reason = str(error).strip().splitlines()[0][:120]
        raise Miss("onnxruntime does not run the {} or the original: {}", cell.op, reason) from None
    rows = [layout.rows(array) for array, (_, layout) in zip(expected, before)]
    # Unlike Python's, numpy's maximum of numbers and a NaN is NaN.
    difference = float(
        np.max([np.max(np.abs(a - b.reshape(a.shape))) for a, b in zip(rows, actual)])
    )
    if not difference <= _TOLERANCE[str(expected[0].dtype)]:
        shown = f"{difference:.3g}"
        raise Miss("the {} differs from the original by {} on random inputs", cell.op, shown)
    return difference


def backward_slice(
    facts: Facts, wanted: Sequence[Tensor], given: set[Tensor]
) -> tuple[list[Node], list[Tensor]]:
    """The nodes that compute `wanted` from `given`, in order, and what else they read.

    The latter are values that the graph of `wanted` does not compute and that are not constant.
    """
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


# --- random values ---


def _random_values(facts: Facts, tensors: Sequence[Tensor]) -> dict[Tensor, Array]:
    generator = np.random.default_rng(0)
    values = {}
    for tensor in tensors:
        sizes = _sizes(facts, tensor)
        if sizes is not None:
            values[tensor] = sizes
            continue
        shape = facts.shape(tensor) or ()
        array = generator.standard_normal([n if isinstance(n, int) else _BATCH for n in shape])
        for axis, size in enumerate(shape):
            if not isinstance(size, int):
                aligned = [-1 if k == axis else 1 for k in range(len(shape))]
                array *= _MAGNITUDES.reshape(aligned)
        values[tensor] = array.astype(numpy_type(facts, tensor))
    return values


def _sizes(facts: Facts, tensor: Tensor) -> Array | None:
    """The elements of integers that are sizes, for the probed batch; None for any other value."""
    array = facts.of(tensor).array()
    if array is None or any(v is None or isinstance(v, bool) for v in array.ravel()):
        return None
    sizes = [_size(v) for v in array.ravel()]
    return np.array(sizes, numpy_type(facts, tensor)).reshape(array.shape)


def _size(dim: Dim) -> int:
    sizes: dict[symbolic.Symbol, Dim] = dict.fromkeys(symbolic.symbols(dim), _BATCH)
    value = symbolic.substitute(dim, sizes)
    return value if isinstance(value, int) else _BATCH


# --- the two runs ---


def _run_nodes(
    facts: Facts, nodes: Sequence[Node], values: Mapping[Tensor, Array], wanted: Sequence[Tensor]
) -> list[Array]:
    """The values of `wanted`, computed by copies of the nodes."""
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
        new.dtype = numpy_type(facts, old)
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
    inputs: Sequence[CellOperand],
    before: Sequence[CellOperand],
) -> list[Array]:
    """Y_h and Y_c after one time step: (1, batch, hidden)."""
    x = np.concatenate([layout.rows(values[t]) for t, layout in inputs], 1)[np.newaxis]
    states = [layout.rows(values[t])[np.newaxis] for t, layout in before]
    found, backend = operator_weights(cell), NumpyBackend(values)

    def built(weight: Weight | None) -> Array | None:
        return None if weight is None else np.asarray(backend.build(weight))

    missing = [None] * (2 - len(states))
    arrays = [x, built(found.w), built(found.r), built(found.b), None, *states, *missing]
    arrays.append(built(found.p))
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(arrays)]
    while not names[-1]:
        names.pop()
    outputs = ["", "h", "c"][: 1 + len(states)]
    node = helper.make_node(cell.op, names, outputs, **operator_attributes(cell))
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
