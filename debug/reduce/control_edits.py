"""Makes Ifs, Loops and Scans smaller: drops what they take and return, or replaces them by a body.

`LoopSlots` knows which slot a role occupies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ...rewrite.graph.views import LoopSlots, RoleSlots
from .edits import NotPossible, Path, at, bodies, body, rename_reads, walk

Edit = Callable[[onnx.ModelProto], None]
TRIP_COUNTS = (1, 2)


def control_edits(model: onnx.ModelProto) -> Iterator[Edit]:
    """All edits of all control flow; first those that remove most."""
    nodes = [
        (path, place, node)
        for path, graph in walk(model.graph)
        for place, node in enumerate(graph.node)
        if node.op_type in ("If", "Loop", "Scan") and not node.domain
    ]
    for path, place, node in nodes:
        for name in [a.name for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]:
            yield partial(_replace_by_body, path=path, place=place, name=name)
    for path, place, node in nodes:
        for slots, lists in _droppable(node):
            yield partial(_drop, path=path, place=place, slots=slots, lists=lists)


def trip_count_edits(model: onnx.ModelProto) -> Iterator[Edit]:
    """Makes each Loop run at most once or twice."""
    for path, graph in walk(model.graph):
        for place, node in enumerate(graph.node):
            if node.op_type == "Loop":
                for count in TRIP_COUNTS:
                    yield partial(_set_trip_count, path=path, place=place, count=count)


# --- what a node takes and returns ---


def _slots(node: onnx.NodeProto) -> LoopSlots:
    """The slots of a Loop or Scan."""
    scan_inputs = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    return LoopSlots.of(node.op_type, len(node.input), scan_inputs)


def _droppable(node: onnx.NodeProto) -> Iterator[tuple[RoleSlots, Mapping[str, int]]]:
    """The slots of each role that can be dropped, with the numbers to drop from list attributes."""
    if node.op_type == "If":
        results = range(len(node.output)) if len(node.output) > 1 else range(0)
        yield from ((RoleSlots(result=slot, output=slot), {}) for slot in reversed(results))
        return
    slots = _slots(node)
    yield from ((slots.of_carried(number), {}) for number in reversed(range(slots.carried)))
    scan_inputs = range(slots.scan_inputs) if slots.scan_inputs > 1 else range(0)
    for number in reversed(scan_inputs):
        lists = {"scan_input_axes": number, "scan_input_directions": number}
        yield slots.of_scan_input(number), {**lists, "num_scan_inputs": 1}
    for number in reversed(range(len(node.output) - slots.carried)):
        lists = {"scan_output_axes": number, "scan_output_directions": number}
        yield slots.of_scan_output(number), lists


def _drop(
    model: onnx.ModelProto, path: Path, place: int, slots: RoleSlots, lists: Mapping[str, int]
) -> None:
    """Drops the slots of a role from the node and its bodies."""
    node = at(model, path).node[place]
    _delete(node.input, slots.input)
    _delete(node.output, slots.output)
    for inner in bodies(node):
        _delete(inner.input, slots.parameter)
        _delete(inner.output, slots.result)
    for attribute in node.attribute:
        if attribute.name == "num_scan_inputs":
            attribute.i -= lists.get(attribute.name, 0)
        elif attribute.name in lists:
            _delete(attribute.ints, lists[attribute.name])


def _delete(items: Any, slot: int) -> None:
    if 0 <= slot < len(items):
        del items[slot]


# --- the whole node ---


def _replace_by_body(model: onnx.ModelProto, path: Path, place: int, name: str) -> None:
    """Replaces a node by one of its bodies, as if that ran once.

    Carried values have their initial values; slices and the iteration number become inputs of the
    model. Final values replace those of the node; there are no scan outputs.
    """
    graph = at(model, path)
    node = onnx.NodeProto()
    node.CopyFrom(graph.node[place])
    inner = body(node, name)
    computed = {output for inside in inner.node for output in inside.output}
    before, after = list(graph.node)[:place], list(graph.node)[place + 1 :]
    slots = LoopSlots(len(node.output), 0, 0, 0) if node.op_type == "If" else _slots(node)
    copies = []
    for slot, result in enumerate(node.output):
        source = inner.output[slots.of_carried(slot).result].name
        if result and slot < slots.carried:
            copies.append(onnx.helper.make_node("Identity", [source], [result]))
        elif result and not path:
            _replace_output(model, result, source, computed)
    _replace_nodes(graph, [*before, *inner.node, *copies, *after])
    graph.initializer.extend(inner.initializer)
    if node.op_type != "If":
        for number in range(slots.carried):
            carried = slots.of_carried(number)
            rename_reads(graph, inner.input[carried.parameter].name, node.input[carried.input])


def _replace_output(
    model: onnx.ModelProto, scan_output: str, value: str, computed: set[str]
) -> None:
    """Makes the value of one iteration an output of the model instead of the scan output."""
    for info in model.graph.output:
        if info.name == scan_output and value in computed:
            info.name = value
            info.ClearField("type")


def _replace_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _set_trip_count(model: onnx.ModelProto, path: Path, place: int, count: int) -> None:
    """Limits the trip count; the condition may still end the loop earlier."""
    node = at(model, path).node[place]
    name = f"{node.output[0]}_runs_{count}"
    if node.input[0] == name or node.input[0] == f"{node.output[0]}_runs_1":
        raise NotPossible
    model.graph.initializer.append(numpy_helper.from_array(np.int64(count), name))
    node.input[0] = name


# --- Identities that the edits leave ---


def bypass_identities(model: onnx.ModelProto) -> None:
    """Makes the readers of each Identity read its operand, except for outputs of a graph."""
    for path, graph in walk(model.graph):
        kept = {info.name for info in graph.output}
        for place in range(len(graph.node) - 1, -1, -1):
            node = graph.node[place]
            if node.op_type == "Identity" and node.output[0] not in kept:
                old, new = node.output[0], node.input[0]
                del graph.node[place]
                rename_reads(model.graph, old, new)
            elif node.op_type == "Identity" and not path:
                _compute_output(model, graph, place)


def _compute_output(model: onnx.ModelProto, graph: onnx.GraphProto, place: int) -> None:
    """Makes the producer of an operand compute the output of the model that an Identity returns."""
    copy = graph.node[place]
    old, new = copy.input[0], copy.output[0]
    if any(info.name == old for info in graph.output):
        return
    for node in graph.node:
        for slot, name in enumerate(node.output):
            if name == old:
                del graph.node[place]
                node.output[slot] = new
                rename_reads(model.graph, old, new)
                return
