"""The inverse of fusion: an LSTM, GRU or RNN as a Scan over its cell, for backends without them.

No phase of looplift has this rule, because it would undo FuseRecurrence. Run it on its own, after
everything else:

    from looplift.rules.recurrence import UNFUSE

    clean = looplift.rewrite(model).model
    loops = looplift.rewrite(clean, rules=UNFUSE).model
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Phase, Rule
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, Variable, number_nodes, optional
from .cells import GATE_COUNT, ActivationFunction
from .time_steps import TimeStep, activation_functions, direction
from .weights import Array

_W, _R, _B, _LENGTHS, _STATES, _P = 1, 2, 3, 4, (5, 6), 7
"""The slots of the operands of LSTM, GRU and RNN after X (ONNX operator specification)."""


@dataclass(frozen=True)
class ConstantWeights:
    """The weights of an operator by the slot of the operand: W, R and, where given, B and P."""

    arrays: dict[int, Array]


class OperatorToScan(Rule[ConstantWeights]):
    """Replaces an LSTM, GRU or RNN by a Scan over the time steps of its cell."""

    root = ("LSTM", "GRU", "RNN")
    fires = """g (float[4,B,2] x) => (float[4,1,B,3] y)
      <float[1,3,2] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3},
       float[1,3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> { y = RNN<hidden_size=3>(x, w, r) }"""
    spares = {
        "with sequence lengths": """g (float[4,B,2] x, int32[B] l) => (float[4,1,B,3] y)
      <float[1,3,2] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3},
       float[1,3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      y = RNN<hidden_size=3, direction="reverse">(x, w, r, , l) }""",
        "are not constant": """g (float[4,B,2] x, float[1,3,2] w) => (float[4,1,B,3] y)
      <float[1,3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> { y = RNN<hidden_size=3>(x, w, r) }""",
    }

    def match(self, m: Match) -> ConstantWeights:
        node = m.node
        m.need(m.facts.opset >= 11, "Scan has another form before opset 11")
        forward = direction(node) == "forward"
        m.need(forward or not _has(node, _LENGTHS), "it runs backwards with sequence lengths")
        m.need(not node.attrs.get("layout", 0), "it has layout 1, with the batch first")
        arrays = {}
        for slot in (_W, _R, _B, _P):
            if _has(node, slot):
                tensor = node.inputs[slot]
                constant = m.facts.constant(tensor)
                arrays[slot] = m.need(constant, "its weights {} are not constant", tensor)
        return ConstantWeights(arrays)

    def apply(self, patch: Patch, found: ConstantWeights) -> None:
        node = patch.root
        emit = patch.builder(node.inputs[0])
        given = direction(node)
        directions = ["forward", "reverse"] if given == "bidirectional" else [given]
        results = [
            _scan(emit, node, {slot: a[k] for slot, a in found.arrays.items()}, k, each)
            for k, each in enumerate(directions)
        ]
        for slot, (old, axis) in enumerate(zip(list(node.outputs), (1, 0, 0))):
            if old.name:
                parts = [emit.unsqueeze(values[slot], [axis]) for values in results]
                whole = parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=axis)
                patch.replace(old, whole)
        patch.remove(node)
        patch.note("onnxruntime runs no Scan over an empty sequence; the original may")
        patch.decompose_operator()


UNFUSE = (Phase("unfuse", (OperatorToScan,), "Replaces LSTM, GRU and RNN by Scans."),)


def _has(node: Node, slot: int) -> bool:
    return optional(node.inputs, slot) is not None


# --- outside the body ---


def _scan(
    emit: Builder, node: Node, arrays: dict[int, Array], number: int, way: str
) -> list[Tensor]:
    """Y, Y_h and, of an LSTM, Y_c of one direction, without the axis of the directions."""
    slots = _STATES if node.op == "LSTM" else _STATES[:1]
    initial = [_initial_state(emit, node, slot, number, arrays[_R]) for slot in slots]
    sequences = [node.inputs[0], *([_mask(emit, node)] if _has(node, _LENGTHS) else [])]
    functions = activation_functions(node, number)
    time_step = _NodeTimeStep(node.op, node.attrs, functions, arrays)
    is_reversed = int(way == "reverse")
    attrs = {
        "body": time_step.body(has_mask=_has(node, _LENGTHS)),
        "num_scan_inputs": len(sequences),
        "scan_input_directions": [is_reversed] * len(sequences),
        "scan_output_directions": [is_reversed],
    }
    names = [Variable(node.inputs[0].name) for _ in range(len(initial) + 1)]
    *finals, y = emit.outputs("Scan", [*initial, *sequences], names, **attrs)
    zero = emit.constant(np.zeros((), arrays[_R].dtype))
    return [y, *(_final_state(emit, node, s, final, zero) for s, final in zip(slots, finals))]


def _mask(emit: Builder, node: Node) -> Tensor:
    """Whether a time step is within the length of a row: (time, batch, 1)."""
    count = emit.squeeze(emit.shape(node.inputs[0], 0, 1), [0])
    numbers = emit("Range", emit.scalar(0), count, emit.scalar(1))
    lengths = emit("Cast", node.inputs[_LENGTHS], to=onnx.TensorProto.INT64)
    return emit.unsqueeze(emit("Less", emit.unsqueeze(numbers, [1]), lengths), [2])


def _final_state(emit: Builder, node: Node, slot: int, final: Tensor, zero: Tensor) -> Tensor:
    """Y_h or Y_c of one direction: in onnxruntime they are zero for rows of length 0."""
    if not _has(node, _LENGTHS) or not _has(node, slot):
        return final
    runs = emit("Greater", node.inputs[_LENGTHS], emit.constant(np.zeros(1, np.int32)))
    return emit("Where", emit.unsqueeze(runs, [1]), final, zero)


def _initial_state(emit: Builder, node: Node, slot: int, number: int, r: Array) -> Tensor:
    """The initial state of one direction, by default zeros."""
    hidden = r.shape[1]
    if _has(node, slot):
        return emit("Gather", node.inputs[slot], emit.scalar(number), axis=0)
    sizes = emit("Concat", emit.shape(node.inputs[0], 1, 2), emit.vector(hidden), axis=0)
    zero = Constant("zero", np.zeros(1, r.dtype))
    return emit("ConstantOfShape", sizes, value=zero)


# --- the body ---


class _NodeTimeStep(TimeStep[Tensor]):
    """A time step as the nodes of a Scan body."""

    def __init__(
        self,
        op: str,
        attrs: Mapping[str, Any],
        functions: Sequence[ActivationFunction],
        arrays: Mapping[int, Array],
    ) -> None:
        """`arrays` are the weights of one direction by slot."""
        states = [Variable("h"), Variable("c")] if op == "LSTM" else [Variable("h")]
        super().__init__(op, attrs, functions, states[0], states[1] if len(states) > 1 else None)
        self._x, self._states = Variable("x"), states
        count, hidden = GATE_COUNT[op], arrays[_R].shape[1]
        self._w, self._r = (np.split(arrays[slot], count) for slot in (_W, _R))
        zeros = np.zeros(2 * count * hidden, arrays[_W].dtype)
        biases = np.split(arrays.get(_B, zeros), 2 * count)
        self._wb, self._rb = biases[:count], biases[count:]
        self._p = np.split(arrays[_P], 3) if _P in arrays else None
        self._nodes: list[Node] = []
        self._constants: list[Constant] = []

    def body(self, *, has_mask: bool) -> Graph:
        """The body of the Scan: inputs h, c, x and mask; outputs h, c and the slice of Y."""
        after = self.states()
        inputs = [*self._states, self._x]
        if has_mask:
            mask = Variable("mask")
            inputs.append(mask)
            y = self._make("Where", mask, after[0], self._number(0))
            after = [self._make("Where", mask, *pair) for pair in zip(after, self._states)]
        else:
            y = self._make("Identity", after[0])
        number_nodes(self._nodes)
        graph = Graph(self._nodes, inputs, [*after, y], name="cell")
        graph.initializers = self._constants
        return graph

    def input_product(self, gate: int) -> Tensor:
        return self._gemm(self._x, self._w[gate], self._wb[gate])

    def recurrent_product(self, gate: int, value: Tensor) -> Tensor:
        return self._gemm(value, self._r[gate], self._rb[gate])

    def peephole(self, gate: int, c: Tensor) -> Tensor | None:
        return None if self._p is None else self._make("Mul", c, self._constant(self._p[gate]))

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return self._make("Add", a, b)

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        return self._make("Mul", a, b)

    def one_minus(self, value: Tensor) -> Tensor:
        return self._make("Sub", self._number(1), value)

    def scale(self, value: Tensor, factor: float, offset: float = 0) -> Tensor:
        scaled = self._make("Mul", value, self._number(factor))
        return self._make("Add", scaled, self._number(offset)) if offset else scaled

    def clip(self, value: Tensor, bound: float) -> Tensor:
        return self._make("Clip", value, self._number(-bound), self._number(bound))

    def apply(self, function: str, parameters: tuple[float, ...], value: Tensor) -> Tensor:
        return self._make(function, value, **dict(zip(("alpha", "beta"), parameters)))

    # --- nodes and constants ---

    def _make(self, op: str, *inputs: Tensor, **attrs: Any) -> Tensor:
        output = Variable("v")
        node = Node(op, "", attrs, list(inputs), [output], "")
        self._nodes.append(node)
        return output

    def _gemm(self, value: Tensor, matrix: Array, bias: Array) -> Tensor:
        return self._make("Gemm", value, self._constant(matrix), self._constant(bias), transB=1)

    def _constant(self, array: Array) -> Constant:
        constant = Constant("k", np.ascontiguousarray(array))
        self._constants.append(constant)
        return constant

    def _number(self, value: float) -> Constant:
        return self._constant(np.array(value, self._w[0].dtype))
