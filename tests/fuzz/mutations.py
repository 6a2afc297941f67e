"""Random changes to a model that make near misses, other types and other surroundings of it.

A change may break the model; onnxruntime and the checker of onnx sort these out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

Graph = onnx.GraphProto
Model = onnx.ModelProto

_EXCHANGED = (
    ("Add", "Sub", "Mul", "Max", "Min", "Div"),
    ("Tanh", "Sigmoid", "Relu", "Neg", "Abs", "Sin", "Identity"),
    ("And", "Or", "Xor"),
    ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"),
    ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd"),
)
_OTHER_TYPES = (
    TensorProto.DOUBLE,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.INT32,
    TensorProto.INT64,
)
_NUMBERS = (0, 1, 2, -1, 3)


def mutated(model: Model, random: Random) -> Model:
    """A copy with up to three random changes."""
    copy = Model()
    copy.CopyFrom(model)
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        random.choices([change for _, change in _CHANGES], [w for w, _ in _CHANGES])[0](
            copy, random
        )
    return copy


def _graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _nodes(model: Model) -> list[onnx.NodeProto]:
    return [node for graph in _graphs(model.graph) for node in graph.node]


def _tensors(model: Model) -> Iterator[TensorProto]:
    for graph in _graphs(model.graph):
        yield from graph.initializer
        for node in graph.node:
            yield from (a.t for a in node.attribute if a.type == AttributeProto.TENSOR)


# --- small changes -------------------------------------------------------------------------------


def _change_constant(model: Model, random: Random) -> None:
    """Changes one element of a constant, or all."""
    found = [t for t in _tensors(model) if t.data_type != TensorProto.STRING]
    if not found:
        return
    tensor = random.choice(found)
    elements = numpy_helper.to_array(tensor).copy()
    if not elements.size:
        return
    place: object = ...
    if random.random() < 0.5:
        place = tuple(random.randrange(size) for size in elements.shape)
    if random.random() < 0.5:
        elements[place] = np.asarray(random.choice(_NUMBERS)).astype(elements.dtype)
    else:
        change = np.asarray(random.choice((1, -1))).astype(elements.dtype)
        elements[place] = (
            elements[place] ^ True if elements.dtype == bool else elements[place] + change
        )
    tensor.CopyFrom(numpy_helper.from_array(elements, tensor.name))


def _exchange_operator(model: Model, random: Random) -> None:
    pairs = [(n, ops) for n in _nodes(model) for ops in _EXCHANGED if n.op_type in ops]
    if pairs:
        node, ops = random.choice(pairs)
        node.op_type = random.choice(ops)


def _swap_operands(model: Model, random: Random) -> None:
    found = [n for n in _nodes(model) if len(n.input) == 2 and n.op_type != "Loop"]
    if found:
        node = random.choice(found)
        node.input[:] = list(node.input)[::-1]


def _read_another(model: Model, random: Random) -> None:
    """Lets one operand of a node be another value of its graph."""
    graph = random.choice(list(_graphs(model.graph)))
    if not graph.node:
        return
    place = random.randrange(len(graph.node))
    node = graph.node[place]
    before = [i.name for i in graph.input] + [o for n in graph.node[:place] for o in n.output if o]
    if node.input and before:
        node.input[random.randrange(len(node.input))] = random.choice(before)


def _insert_copy(model: Model, random: Random) -> None:
    """Puts an Identity before an operand, or after a result that other nodes read."""
    graph = random.choice(list(_graphs(model.graph)))
    places = [
        (place, slot) for place, n in enumerate(graph.node) for slot, x in enumerate(n.input) if x
    ]
    if not places:
        return
    place, slot = random.choice(places)
    name = _new_name(model)
    copy = helper.make_node("Identity", [graph.node[place].input[slot]], [name])
    graph.node[place].input[slot] = name
    graph.node.insert(place, copy)


def _change_attribute(model: Model, random: Random) -> None:
    """Changes an integer: an axis, a flag, a direction."""
    found = [a for n in _nodes(model) for a in n.attribute if a.type in (AttributeProto.INT, AttributeProto.INTS)]  # fmt: skip
    if not found:
        return
    attribute = random.choice(found)
    if attribute.name == "hidden_size":  # onnxruntime ignores a wrong one, looplift refuses it
        return
    if attribute.type == AttributeProto.INT:
        attribute.i = random.choice((0, 1, -1, 2, attribute.i - 1))
        if attribute.name == "keepdims":  # Onnxruntime and looplift differ on other numbers.
            attribute.i = int(attribute.i == 1)
    elif attribute.name == "perm":
        random.shuffle(attribute.ints)
    elif attribute.ints:
        attribute.ints[random.randrange(len(attribute.ints))] = random.choice((0, 1, -1, 2))


def _change_dim(model: Model, random: Random) -> None:
    """Fixes an open dim of an input, or opens a fixed one."""
    dims = [d for i in model.graph.input for d in i.type.tensor_type.shape.dim]
    # onnxruntime's convolution of an empty kernel does not end.
    if not dims or any("Conv" in node.op_type for node in _nodes(model)):
        return
    dim = random.choice(dims)
    if dim.HasField("dim_value"):
        dim.dim_param = random.choice(("T", "B", "N", f"D{random.randrange(9)}"))
    else:
        dim.dim_value = random.choice((0, 1, 2, 3))


def _more_outputs(model: Model, random: Random) -> None:
    """Makes another value of the main graph an output, so that more of it is read."""
    inferred = onnx.shape_inference.infer_shapes(model)
    outputs = {output.name for output in model.graph.output}
    found = [info for info in inferred.graph.value_info if info.name not in outputs]
    if found:
        model.graph.output.append(random.choice(found))


def _drop_output(model: Model, random: Random) -> None:
    outputs = model.graph.output
    if len(outputs) > 1:
        del outputs[random.randrange(len(outputs))]


def _omit_result(model: Model, random: Random) -> None:
    """Omits a result that nothing reads; not of control flow, which ends onnxruntime's process."""
    read = {x for n in _nodes(model) for x in n.input}
    read |= {o.name for graph in _graphs(model.graph) for o in graph.output}
    found = [
        (n, k) for n in _nodes(model) for k, o in enumerate(n.output)
        if len(n.output) > 1 and o not in read and n.op_type not in ("Loop", "Scan", "If")
    ]  # fmt: skip
    if found:
        node, place = random.choice(found)
        node.output[place] = ""


# --- types ---------------------------------------------------------------------------------------


def _retype(model: Model, random: Random) -> None:
    """Computes in another type than float."""
    target = random.choice(_OTHER_TYPES)
    for graph in _graphs(model.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            _retype_value(info.type, target)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                    attribute.i = target
            if node.op_type == "ConstantOfShape" and not node.attribute:
                zero = helper.make_tensor("", TensorProto.FLOAT, [1], [0])
                node.attribute.append(helper.make_attribute("value", zero))
            if node.op_type == "SequenceEmpty" and not node.attribute:
                node.attribute.append(helper.make_attribute("dtype", int(target)))
            _constant_as_tensor(node)
    dtype = helper.tensor_dtype_to_np_dtype(target)
    for tensor in _tensors(model):
        if tensor.data_type == TensorProto.FLOAT:
            elements = numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(numpy_helper.from_array(elements, tensor.name))


def _retype_value(kind: onnx.TypeProto, target: int) -> None:
    if kind.HasField("sequence_type"):
        _retype_value(kind.sequence_type.elem_type, target)
    elif kind.tensor_type.elem_type == TensorProto.FLOAT:
        kind.tensor_type.elem_type = target


def _constant_as_tensor(node: onnx.NodeProto) -> None:
    given = node.attribute[0] if node.op_type == "Constant" else None
    if given is not None and given.name in ("value_float", "value_floats"):
        elements = np.array(helper.get_attribute_value(given), np.float32)
        given.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(elements)))


# --- surroundings --------------------------------------------------------------------------------


def _into_branch(model: Model, random: Random) -> None:
    """Moves all nodes into a branch of an If; the other branch is the same but for one copy."""
    branches = []
    for name in ("then_branch", "else_branch"):
        body = _as_body(model, name, "" if name == "then_branch" else "_e")
        branches.append(helper.make_attribute(name, body))
    condition = helper.make_tensor_value_info(_new_name(model), TensorProto.BOOL, [])
    node = helper.make_node("If", [condition.name], [o.name for o in model.graph.output])
    node.attribute.extend(branches)
    model.graph.input.append(condition)
    _replace_nodes(model, node)


def _into_loop(model: Model, random: Random) -> None:
    """Moves all nodes into a Loop that stacks the outputs of a few iterations."""
    outputs = model.graph.output
    if not all(output.type.HasField("tensor_type") for output in outputs):
        return
    body = _as_body(model, "body", "_b")
    names = [_new_name(model) + suffix for suffix in ("_i", "_c", "_go", "_trips")]
    body.input.extend([
        helper.make_tensor_value_info(names[0], TensorProto.INT64, []),
        helper.make_tensor_value_info(names[1], TensorProto.BOOL, []),
    ])  # fmt: skip
    body.node.append(helper.make_node("Identity", [names[1]], [names[2]]))
    body.output.insert(0, helper.make_tensor_value_info(names[2], TensorProto.BOOL, []))
    trips = helper.make_tensor_value_info(names[3], TensorProto.INT64, [])
    node = helper.make_node("Loop", [trips.name, ""], [o.name for o in outputs], body=body)
    model.graph.input.append(trips)
    for output in outputs:
        shape = output.type.tensor_type.shape
        dims = [d.dim_value if d.HasField("dim_value") else None for d in shape.dim]
        kind = output.type.tensor_type.elem_type
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind, [None, *dims]))
    _replace_nodes(model, node)


def _as_body(model: Model, name: str, suffix: str) -> Graph:
    """The nodes and outputs of the main graph as a body, whose own values have a suffix."""
    body = Graph(name=name)
    body.node.extend(model.graph.node)
    made = {o for node in body.node for o in node.output if o}
    _rename(body, {old: f"{old}{suffix}_in" for old in made})
    for output in model.graph.output:
        given = f"{output.name}{suffix}_in" if output.name in made else output.name
        copy = f"{output.name}{suffix}_out"
        body.node.append(helper.make_node("Identity", [given], [copy]))
        info = body.output.add()
        info.CopyFrom(output)
        info.name = copy
        for dim in info.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    return body


def _rename(graph: Graph, names: dict[str, str]) -> None:
    """Renames values of a graph, also where bodies read them."""
    hidden = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    names = {old: new for old, new in names.items() if old not in hidden}
    for node in graph.node:
        node.input[:] = [names.get(x, x) for x in node.input]
        node.output[:] = [names.get(x, x) for x in node.output]
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _rename(attribute.g, names)
    for output in graph.output:
        output.name = names.get(output.name, output.name)


def _replace_nodes(model: Model, node: onnx.NodeProto) -> None:
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.append(node)


def _new_name(model: Model) -> str:
    used = {o for n in _nodes(model) for o in n.output} | {i.name for i in model.graph.input}
    return next(name for k in range(10**6) if (name := f"extra{k}") not in used)


_CHANGES: tuple[tuple[int, Callable[[Model, Random], None]], ...] = (
    (4, _change_constant),
    (3, _exchange_operator),
    (2, _swap_operands),
    (3, _read_another),
    (3, _insert_copy),
    (3, _change_attribute),
    (2, _change_dim),
    (2, _more_outputs),
    (1, _drop_output),
    (1, _omit_result),
    (3, _retype),
    (2, _into_branch),
    (2, _into_loop),
)
