"""Changes a model so that it returns all its values.

Values of the main graph become outputs; values of branches and iterations are collected in
sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx
from onnx import helper

from looplift.rewrite.facts.facts import Facts
from looplift.rewrite.graph import ir


@dataclass
class Probe:
    """A model that also returns what its values were."""

    model: onnx.ModelProto
    outputs: list[str]
    """Names of the values of the main graph, in the order of the model's outputs."""
    taps: dict[str, ir.Tensor] = field(default_factory=dict)
    """Values of bodies, by the output that collects them."""


def probe(model: onnx.ModelProto, facts: Facts) -> Probe:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    result = Probe(copy, [])
    owners = {t.name: node for node in facts.index.root.nodes for t in node.outputs if t.name}
    for node in list(graph.node):
        first = next((name for name in node.output if name), "")
        if node.op_type in _TAPPED and first in owners:
            _TAPPED[node.op_type](node, owners[first], facts, result)
    present = {info.name for info in graph.output}
    for node in graph.node:
        for name in node.output:
            if name and name not in present:
                graph.output.append(onnx.ValueInfoProto(name=name))
    result.outputs = [info.name for info in graph.output]
    return result


def _inner_values(facts: Facts, body: ir.Graph) -> Iterator[ir.Tensor]:
    """Tensors of a body, not of bodies inside it, whose type is known."""
    tensors = [*body.inputs, *(t for node in body.nodes for t in node.outputs)]
    for tensor in tensors:
        fact = facts.of(tensor)
        if tensor.name and fact.kind == "tensor" and fact.dtype:
            yield tensor


def _tap_loop(node: onnx.NodeProto, owner: ir.Node, facts: Facts, result: Probe) -> None:
    """Each value is appended to a sequence that the loop carries along."""
    body, states, name = node.attribute[0].g, len(node.input) - 2, node.output[0]
    while len(node.output) < states:
        node.output.append("")
    for place, tensor in enumerate(list(_inner_values(facts, owner.attrs["body"]))):
        stem = f"tap.{name}.{place}"
        dtype = facts.of(tensor).dtype
        empty = helper.make_node("SequenceEmpty", [], [f"{stem}.start"], dtype=dtype)
        result.model.graph.node.insert(_place(result.model.graph, node), empty)
        node.input.append(f"{stem}.start")
        node.output.insert(states, f"{stem}.end")
        info = helper.make_tensor_sequence_value_info(f"{stem}.in", dtype, None)
        body.input.append(info)
        insert = helper.make_node("SequenceInsert", [f"{stem}.in", tensor.name], [f"{stem}.out"])
        body.node.append(insert)
        body.output.insert(1 + states, onnx.ValueInfoProto(name=f"{stem}.out"))
        body.output[1 + states].CopyFrom(info)
        body.output[1 + states].name = f"{stem}.out"
        states += 1
        result.taps[f"{stem}.end"] = tensor


def _tap_scan(node: onnx.NodeProto, owner: ir.Node, facts: Facts, result: Probe) -> None:
    """Each value is one more scan output."""
    body = next(a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)
    axes = [a for a in node.attribute if a.name in ("scan_output_axes", "scan_output_directions")]
    for place, tensor in enumerate(list(_inner_values(facts, owner.attrs["body"]))):
        name = f"tap.{node.output[0]}.{place}"
        copied = helper.make_node("Identity", [tensor.name], [f"{name}.row"])
        body.node.append(copied)
        body.output.append(onnx.ValueInfoProto(name=f"{name}.row"))
        node.output.append(name)
        for attribute in axes:
            attribute.ints.append(0)
        result.taps[name] = tensor


def _tap_if(node: onnx.NodeProto, owner: ir.Node, facts: Facts, result: Probe) -> None:
    """The taken branch returns a sequence of its value, the other one an empty sequence."""
    graphs = {a.name: a.g for a in node.attribute}
    for branch, other in itertools.permutations(("then_branch", "else_branch")):
        for place, tensor in enumerate(list(_inner_values(facts, owner.attrs[branch]))):
            name = f"tap.{node.output[0]}.{branch}.{place}"
            dtype = facts.of(tensor).dtype
            made = helper.make_node("SequenceConstruct", [tensor.name], [f"{name}.{branch}"])
            empty = helper.make_node("SequenceEmpty", [], [f"{name}.{other}"], dtype=dtype)
            for key, extra in ((branch, made), (other, empty)):
                graphs[key].node.append(extra)
                graphs[key].output.append(onnx.ValueInfoProto(name=extra.output[0]))
            node.output.append(name)
            result.taps[name] = tensor


def _place(graph: onnx.GraphProto, node: onnx.NodeProto) -> int:
    return next(i for i, other in enumerate(graph.node) if other.output == node.output)


_TAPPED = {"Loop": _tap_loop, "Scan": _tap_scan, "If": _tap_if}
