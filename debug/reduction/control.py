"""Smaller Ifs, Loops and Scans: fewer states, scan inputs and outputs, a body instead of its node.

Slots are those of the operator specification: a Loop takes trip count, condition and states, its
body iteration number, condition and states; a Scan and its body take states and sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from .edits import NotPossible, Path, at, body, rename_reads, walk

Edit = Callable[[onnx.ModelProto], None]
TRIP_COUNTS = (1, 2)


def control_edits(model: onnx.ModelProto) -> Iterator[Edit]:
    """All edits of all control flow, the ones that take away most first."""
    nodes = [
        (path, place, node)
        for path, graph in walk(model.graph)
        for place, node in enumerate(graph.node)
        if node.op_type in ("If", "Loop", "Scan") and not node.domain
    ]
    for path, place, node in nodes:
        for name in [a.name for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]:
            yield partial(_take_body, path=path, place=place, name=name)
    for path, place, node in nodes:
        if node.op_type == "Loop":
            yield from _loop_edits(path, place, node)
        elif node.op_type == "Scan":
            yield from _scan_edits(path, place, node)
        else:
            for slot in range(len(node.output) - 1, -1, -1):
                yield partial(_drop_result, path=path, place=place, slot=slot)


def trip_edits(model: onnx.ModelProto) -> Iterator[Edit]:
    """Loops that run once or twice, whatever the trip count is."""
    for path, graph in walk(model.graph):
        for place, node in enumerate(graph.node):
            if node.op_type == "Loop":
                for count in TRIP_COUNTS:
                    yield partial(_set_trip, path=path, place=place, count=count)


def _loop_edits(path: Path, place: int, node: onnx.NodeProto) -> Iterator[Edit]:
    carried = len(node.input) - 2
    for state in range(carried - 1, -1, -1):
        yield partial(_drop_slots, path=path, place=place, slots=(2, 2, 1, 0), number=state)
    for row in range(len(node.output) - 1, carried - 1, -1):
        yield partial(_drop_slots, path=path, place=place, slots=(None, None, 1, 0), number=row)


def _scan_edits(path: Path, place: int, node: onnx.NodeProto) -> Iterator[Edit]:
    sequences = _attribute(node, "num_scan_inputs").i
    carried = len(node.input) - sequences
    for state in range(carried - 1, -1, -1):
        yield partial(_drop_slots, path=path, place=place, slots=(0, 0, 0, 0), number=state)
    if sequences > 1:
        for number in range(sequences - 1, -1, -1):
            yield partial(_drop_sequence, path=path, place=place, carried=carried, number=number)
    for row in range(len(node.output) - 1, carried - 1, -1):
        yield partial(_drop_row, path=path, place=place, carried=carried, row=row)


def _drop_slots(
    model: onnx.ModelProto,
    path: Path,
    place: int,
    slots: tuple[int | None, int | None, int, int],
    number: int,
) -> None:
    """Takes a state or row out of the lists it stands in: inputs of the node and of the body,
    outputs of the body and of the node, each list with the slot of its first one.
    """
    node = at(model, path).node[place]
    inner = body(node)
    lists: tuple[Any, ...] = (node.input, inner.input, inner.output, node.output)
    for items, first in zip(lists, slots):
        if first is not None and first + number < len(items):
            del items[first + number]


def _drop_sequence(
    model: onnx.ModelProto, path: Path, place: int, carried: int, number: int
) -> None:
    node = at(model, path).node[place]
    del node.input[carried + number], body(node).input[carried + number]
    _attribute(node, "num_scan_inputs").i -= 1
    for name in ("scan_input_axes", "scan_input_directions"):
        _forget(node, name, number)


def _drop_row(model: onnx.ModelProto, path: Path, place: int, carried: int, row: int) -> None:
    node = at(model, path).node[place]
    del node.output[row], body(node).output[row]
    for name in ("scan_output_axes", "scan_output_directions"):
        _forget(node, name, row - carried)


def _drop_result(model: onnx.ModelProto, path: Path, place: int, slot: int) -> None:
    node = at(model, path).node[place]
    if len(node.output) < 2:
        raise NotPossible
    del node.output[slot]
    for name in ("then_branch", "else_branch"):
        del body(node, name).output[slot]


def _take_body(model: onnx.ModelProto, path: Path, place: int, name: str) -> None:
    """Puts a body in the place of its node, as if it ran once: states have their initial values,
    slices and the iteration number become inputs of the model. The results take the place of the
    node's, but for rows, which are none of them.
    """
    graph = at(model, path)
    node = onnx.NodeProto()
    node.CopyFrom(graph.node[place])
    inner = body(node, name)
    first = 1 if node.op_type == "Loop" else 0
    carried = {"Loop": len(node.input) - 2, "If": len(node.output)}.get(
        node.op_type, len(node.input)
    )
    if node.op_type == "Scan":
        carried -= _attribute(node, "num_scan_inputs").i
    computed = {output for inside in inner.node for output in inside.output}
    rest = [other for number, other in enumerate(graph.node) if number > place]
    before = list(graph.node)[:place]
    moved = [*before, *inner.node]
    for slot, result in enumerate(node.output):
        if result and slot < carried:
            source = inner.output[first + slot].name
            moved.append(onnx.helper.make_node("Identity", [source], [result]))
        elif result and not path and slot >= carried:
            _stand_in(model, result, inner.output[first + slot].name, computed)
    _replace_nodes(graph, [*moved, *rest])
    graph.initializer.extend(inner.initializer)
    if node.op_type != "If":
        skipped = 2 if node.op_type == "Loop" else 0
        for slot in range(carried):
            rename_reads(graph, inner.input[skipped + slot].name, node.input[skipped + slot])


def _stand_in(model: onnx.ModelProto, result: str, row: str, computed: set[str]) -> None:
    """A row that is computed is an output of the model where the stacked rows were one."""
    for info in model.graph.output:
        if info.name == result and row in computed:
            info.name = row
            info.ClearField("type")


def _replace_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _set_trip(model: onnx.ModelProto, path: Path, place: int, count: int) -> None:
    """The condition may still end the loop earlier."""
    node = at(model, path).node[place]
    name = f"{node.output[0]}_runs_{count}"
    if node.input[0] == name or node.input[0] == f"{node.output[0]}_runs_1":
        raise NotPossible
    model.graph.initializer.append(numpy_helper.from_array(np.int64(count), name))
    node.input[0] = name


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    found: onnx.AttributeProto = next(a for a in node.attribute if a.name == name)
    return found


def _forget(node: onnx.NodeProto, name: str, number: int) -> None:
    for attribute in node.attribute:
        if attribute.name == name and number < len(attribute.ints):
            del attribute.ints[number]


def bypass_copies(model: onnx.ModelProto) -> None:
    """Lets readers of an Identity read what it copies, where that is the same to everybody."""
    for path, graph in walk(model.graph):
        kept = {info.name for info in graph.output}
        for place in range(len(graph.node) - 1, -1, -1):
            node = graph.node[place]
            if node.op_type == "Identity" and node.output[0] not in kept:
                old, new = node.output[0], node.input[0]
                del graph.node[place]
                rename_reads(model.graph, old, new)
            elif node.op_type == "Identity" and not path:
                _name_after_output(model, graph, place)


def _name_after_output(model: onnx.ModelProto, graph: onnx.GraphProto, place: int) -> None:
    """A node whose result only an Identity passes on to an output computes the output itself."""
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
