"""Finds the outputs of a model that may differ between two runs, or that onnxruntime may compute
wrongly for empty tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx
from onnx import TensorProto, helper

from ..facts.purity import RANDOM
from ..storage.protos import body_protos, containers

RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
REDUCTIONS = frozenset(
    {"ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
     "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"}
)  # fmt: skip

Sources = Callable[[onnx.NodeProto], Iterable[str]]
"""The outputs of a node that count whatever its inputs are."""


def random_outputs(model: onnx.ModelProto) -> list[str]:
    """The outputs that depend on a random operator, in the order of the graph."""
    booleans = _constant_booleans(model.graph)

    def sources(node: onnx.NodeProto) -> Iterable[str]:
        return node.output if node.op_type in RANDOM or _may_train(node, booleans) else ()

    return _depending(model, sources)


def unsorted_outputs(model: onnx.ModelProto) -> list[str]:
    """The outputs that depend on a TopK whose results have any order (ONNX operator specification).

    One runtime gives them the same order in each run, two runtimes need not.
    """

    def sources(node: onnx.NodeProto) -> Iterable[str]:
        is_sorted = all(each.i for each in node.attribute if each.name == "sorted")
        return () if node.op_type != "TopK" or is_sorted else node.output

    return _depending(model, sources)


def recurrent_outputs(model: onnx.ModelProto) -> list[str]:
    """The outputs that depend on an LSTM, GRU or RNN.

    The final states of these operators are not specified for an empty sequence; onnxruntime returns
    uninitialised memory.
    """
    return _depending(model, lambda node: node.output if node.op_type in RECURRENT else ())


def reduced_outputs(model: onnx.ModelProto) -> list[str]:
    """The outputs that depend on a reduction along axes that may be negative.

    For an empty tensor and a negative axis, onnxruntime 1.31 returns an empty tensor of the same
    shape instead of the reduced shape (ONNX operator specification: ReduceSum and others).
    """
    constants = _constant_integers(model)

    def sources(node: onnx.NodeProto) -> Iterable[str]:
        is_source = node.op_type in REDUCTIONS and _may_have_negative_axes(node, constants)
        return node.output if is_source else ()

    return _depending(model, sources)


def stacked_outputs(model: onnx.ModelProto) -> list[str]:
    """The outputs that depend on a stack of the elements of a sequence.

    onnxruntime 1.31 does not check the sizes of elements if one is empty: it returns memory that
    nothing wrote (ONNX operator specification, ConcatFromSequence: all have the same shape).
    """

    def sources(node: onnx.NodeProto) -> Iterable[str]:
        stacks = any(each.name == "new_axis" and each.i for each in node.attribute)
        return node.output if node.op_type == "ConcatFromSequence" and stacks else ()

    return _depending(model, sources)


def concatenated_outputs(model: onnx.ModelProto) -> list[str]:
    """The outputs that depend on a Concat.

    onnxruntime 1.31 does not check the other sizes of an empty operand, but counts its elements
    along the axis: it returns memory that nothing wrote (ONNX operator specification, Concat: all
    sizes but that of the axis are equal).
    """
    return _depending(model, lambda node: node.output if node.op_type == "Concat" else ())


def scan_outputs(model: onnx.ModelProto) -> list[str]:
    """The outputs that depend on a scan output of a Loop, in the order of the graph.

    The specification does not define the sizes of an empty scan output, except the first:
    onnxruntime takes them from declarations, and 0 for those that it does not know. It refuses a
    Scan of no iterations, and a carried value always has sizes.
    """

    def sources(node: onnx.NodeProto) -> Iterable[str]:
        carried = len(node.input) - 2
        return node.output[carried:] if node.op_type == "Loop" else ()

    return _depending(model, sources)


def _depending(model: onnx.ModelProto, sources: Sources) -> list[str]:
    dependent = _Dependence(model, sources).graph(model.graph)
    return [info.name for info in model.graph.output if info.name in dependent]


class _Dependence:
    """Follows the dependence on some values through the graphs and functions of a model."""

    def __init__(self, model: onnx.ModelProto, sources: Sources) -> None:
        self._sources = sources
        self._functions: set[tuple[str, str]] = set()
        # Functions may call each other in any order: repeat until no more are found.
        changed = True
        while changed:
            dependent = {
                (function.domain, function.name)
                for function in model.functions
                if self._nodes(function.node, set())
            }
            changed = dependent != self._functions
            self._functions = dependent

    def graph(self, graph: onnx.GraphProto) -> set[str]:
        """The dependent values of the main graph."""
        return self._nodes(graph.node, set())

    def _nodes(self, nodes: Iterable[onnx.NodeProto], outer: set[str]) -> set[str]:
        """The dependent values that nodes compute; `outer` are those of the graphs around them."""
        dependent = set(outer)
        for node in nodes:
            reads = self._reads(node, dependent)
            dependent.update(node.output if reads else self._sources(node))
        dependent.discard("")
        return dependent - outer

    def _reads(self, node: onnx.NodeProto, dependent: set[str]) -> bool:
        """Whether a node reads a dependent value, itself or in its bodies or function."""
        if (node.domain, node.op_type) in self._functions:
            return True
        if not dependent.isdisjoint(node.input):
            return True
        return any(self._nodes(body.node, dependent) for body in body_protos(node))


def _may_train(node: onnx.NodeProto, constants: Mapping[str, bool]) -> bool:
    """Whether a node is a Dropout that may be in training mode."""
    if node.op_type != "Dropout" or len(node.input) < 3 or not node.input[2]:
        return False
    return constants.get(node.input[2], True)


def _may_have_negative_axes(node: onnx.NodeProto, constants: Mapping[str, list[int]]) -> bool:
    """Whether a reduction has a negative axis, or axes that are not known."""
    if len(node.input) > 1 and node.input[1]:
        return min(constants.get(node.input[1], [-1]), default=0) < 0
    given = [each for each in node.attribute if each.name in ("axes", "axis")]
    axes = (value for each in given for value in (each.ints or [each.i]))
    return min(axes, default=0) < 0


def _constant_integers(model: onnx.ModelProto) -> dict[str, list[int]]:
    """The integers of all small constants by name; all of them where bodies share a name."""
    found: dict[str, list[int]] = {}
    for root in (model.graph, *model.functions):
        for owner in containers(root):
            tensors = list(owner.initializer) if isinstance(owner, onnx.GraphProto) else []
            named = [(tensor.name, tensor) for tensor in tensors]
            for node in owner.node:
                if node.op_type == "Constant":
                    for each in node.attribute:
                        found.setdefault(node.output[0], []).extend(each.ints)
                        named += [(node.output[0], each.t)] if each.name == "value" else []
            for name, tensor in named:
                small = sum(tensor.dims) <= 64 and tensor.data_location != TensorProto.EXTERNAL
                if tensor.data_type == TensorProto.INT64 and small:
                    values = onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()
                    found.setdefault(name, []).extend(values)
    return found


def _constant_booleans(graph: onnx.GraphProto) -> dict[str, bool]:
    """The scalar boolean constants of the main graph, by name: usual values of `training_mode`."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensors[node.output[0]] = helper.get_attribute_value(node.attribute[0])
    return {
        name: bool(onnx.numpy_helper.to_array(tensor))
        for name, tensor in tensors.items()
        if tensor.data_type == onnx.TensorProto.BOOL and not tensor.dims
    }
