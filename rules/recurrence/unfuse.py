"""The inverse: an LSTM, GRU or RNN as a Scan around its cell, for backends without the operator.

None of looplift's phases has this rule, which would undo FuseRecurrence. It runs by itself, after
everything else:

    from looplift.rules.recurrence import UNFUSE

    clean = looplift.rewrite(model).model
    loops = looplift.rewrite(clean, rules=UNFUSE).model
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Phase, Rule
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, Variable
from .cells import Function
from .direction import direction
from .one_step import functions_of
from .weights import Array

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class OperatorToScan(Rule):
    """An LSTM, GRU or RNN becomes a Scan over the steps of its cell."""

    root = ("LSTM", "GRU", "RNN")
    fires = """g (float[4,B,2] x) => (float[4,1,B,3] y)
      <float[1,3,2] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3},
       float[1,3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> { y = RNN<hidden_size=3>(x, w, r) }"""
    spares = {
        "backwards, with sequence lengths": """g (float[4,B,2] x, int32[B] l) => (float[4,1,B,3] y)
      <float[1,3,2] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3},
       float[1,3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      y = RNN<hidden_size=3, direction="reverse">(x, w, r, , l) }""",
        "weights": """g (float[4,B,2] x, float[1,3,2] w) => (float[4,1,B,3] y)
      <float[1,3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> { y = RNN<hidden_size=3>(x, w, r) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        node = m.node
        m.need(m.facts.opset >= 11, "before opset 11 Scan has another form")
        forward = direction(node) == "forward"
        m.need(forward or not _given(node, 4), "it runs backwards, with sequence lengths")
        m.need(not node.attrs.get("layout", 0), "it has another layout")
        arrays = {
            slot: m.facts.constant(node.inputs[slot]) for slot in (1, 2, 3, 7) if _given(node, slot)
        }
        m.need(all(a is not None for a in arrays.values()), "its weights are not known")
        return {"node": node, "arrays": arrays}

    def apply(self, patch: Patch, node: Node, arrays: dict[int, Array]) -> None:
        emit = patch.builder(node.inputs[0])
        way = direction(node)
        ways = ["forward", "reverse"] if way == "bidirectional" else [way]
        results = [
            _scan(emit, node, {s: a[number] for s, a in arrays.items()}, number, each, len(ways))
            for number, each in enumerate(ways)
        ]
        for place, (old, axis) in enumerate(zip(list(node.outputs), (1, 0, 0))):
            if old.name:
                parts = [emit.unsqueeze(found[place], [axis]) for found in results]
                whole = parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=axis)
                patch.replace(old, whole)
        patch.remove(node)
        patch.note("onnxruntime runs no Scan over an empty sequence")
        patch.decompose_operator()


UNFUSE = (Phase("unfuse", (OperatorToScan,), "LSTM, GRU and RNN become loops over their cell."),)


def _given(node: Node, slot: int) -> bool:
    return slot < len(node.inputs) and bool(node.inputs[slot].name)


def _scan(
    emit: Builder, node: Node, arrays: dict[int, Array], number: int, way: str, count: int
) -> list[Tensor]:
    """Y, Y_h and Y_c of one direction, without an axis for it."""
    states = [_initial(emit, node, slot, number, arrays[2]) for slot in (5, 6)[: _states(node)]]
    sequences = [node.inputs[0], *([_mask(emit, node)] if _given(node, 4) else [])]
    functions = functions_of(node, number, count)
    body = _CellBody(node.op, node.attrs, arrays, functions, masked=_given(node, 4))
    turned = int(way == "reverse")
    attrs = {
        "body": body.graph(),
        "num_scan_inputs": len(sequences),
        "scan_input_directions": [turned] * len(sequences),
        "scan_output_directions": [turned],
    }
    names = [Variable(node.inputs[0].name) for _ in range(len(states) + 1)]
    *finals, rows = emit.outputs("Scan", [*states, *sequences], names, **attrs)
    zero = emit.constant(np.zeros((), arrays[2].dtype))
    return [rows, *(_final(emit, node, 5 + k, final, zero) for k, final in enumerate(finals))]


def _mask(emit: Builder, node: Node) -> Tensor:
    """Whether a step is within the length of a row: (time, batch, 1)."""
    count = emit.squeeze(emit.shape(node.inputs[0], 0, 1), [0])
    numbers = emit("Range", emit.scalar(0), count, emit.scalar(1))
    lengths = emit("Cast", node.inputs[4], to=onnx.TensorProto.INT64)
    return emit.unsqueeze(emit("Less", emit.unsqueeze(numbers, [1]), lengths), [2])


def _final(emit: Builder, node: Node, slot: int, final: Tensor, zero: Tensor) -> Tensor:
    """Y_h or Y_c of one direction: onnxruntime's are zero for rows of length 0."""
    if not _given(node, 4) or not _given(node, slot):
        return final
    runs = emit("Greater", node.inputs[4], emit.constant(np.zeros(1, np.int32)))
    return emit("Where", emit.unsqueeze(runs, [1]), final, zero)


def _states(node: Node) -> int:
    return 2 if node.op == "LSTM" else 1


def _initial(emit: Builder, node: Node, slot: int, number: int, recurrent: Array) -> Tensor:
    """The initial state of one direction, zeros by default."""
    hidden = recurrent.shape[1]
    if _given(node, slot):
        return emit("Gather", node.inputs[slot], emit.scalar(number), axis=0)
    sizes = emit("Concat", emit.shape(node.inputs[0], 1, 2), emit.vector(hidden), axis=0)
    zero = Constant("zero", np.zeros(1, recurrent.dtype))
    return emit("ConstantOfShape", sizes, value=zero)


class _CellBody:
    """The body of the Scan: one step of the cell (ONNX operator specification)."""

    def __init__(
        self,
        op: str,
        attrs: dict[str, Any],
        arrays: dict[int, Array],
        functions: list[Function],
        masked: bool,
    ) -> None:
        self._op, self._attrs, self._functions = op, attrs, functions
        count = _GATES[op]
        self._hidden = arrays[2].shape[1]
        self._w, self._r = (np.split(arrays[slot], count) for slot in (1, 2))
        zeros = np.zeros(2 * count * self._hidden, arrays[1].dtype)
        biases = np.split(arrays.get(3, zeros), 2 * count)
        self._wb, self._rb = biases[:count], biases[count:]
        self._p = np.split(arrays[7], 3) if 7 in arrays else None
        self._nodes: list[Node] = []
        self._constants: list[Constant] = []
        self._x, self._h, self._c = Variable("x"), Variable("h"), Variable("c")
        self._mask = Variable("mask") if masked else None

    def graph(self) -> Graph:
        before = [self._h, *([self._c] if self._op == "LSTM" else [])]
        states = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self._op]()
        inputs = [*before, self._x]
        if self._mask is None:
            row = self._make("Identity", states[0])
        else:
            inputs.append(self._mask)
            row = self._make("Where", self._mask, states[0], self._number(0))
            states = [self._make("Where", self._mask, *pair) for pair in zip(states, before)]
        graph = Graph(self._nodes, inputs, [*states, row], name="cell")
        graph.initializers = self._constants
        return graph

    # --- nodes ---

    def _make(self, op: str, *inputs: Tensor, **attrs: Any) -> Tensor:
        output = Variable("v")
        node = Node(op, "", attrs, list(inputs), [output], "")
        node.order = float(len(self._nodes))
        self._nodes.append(node)
        return output

    def _constant(self, array: Array) -> Constant:
        constant = Constant("k", np.ascontiguousarray(array))
        self._constants.append(constant)
        return constant

    def _number(self, value: float) -> Constant:
        return self._constant(np.array(value, self._w[0].dtype))

    def _affine(self, value: Tensor, matrix: Array, bias: Array) -> Tensor:
        return self._make("Gemm", value, self._constant(matrix), self._constant(bias), transB=1)

    def _input(self, gate: int) -> Tensor:
        return self._affine(self._x, self._w[gate], self._wb[gate])

    def _recurrent(self, gate: int, value: Tensor) -> Tensor:
        return self._affine(value, self._r[gate], self._rb[gate])

    def _gate(self, gate: int, function: Function, *more: Tensor) -> Tensor:
        total = self._make("Add", self._input(gate), self._recurrent(gate, self._h))
        for term in more:
            total = self._make("Add", total, term)
        return self._activated(function, total)

    def _activated(self, function: Function, value: Tensor) -> Tensor:
        """The activation of a gate, whose argument may be clipped."""
        clip = float(self._attrs.get("clip") or 0)
        if clip:
            value = self._make("Clip", value, self._number(-clip), self._number(clip))
        return self._applied(function, value)

    def _applied(self, function: Function, value: Tensor) -> Tensor:
        name, parameters = function
        if name == "Affine":
            scaled = self._make("Mul", value, self._number(parameters[0]))
            return self._make("Add", scaled, self._number(parameters[1]))
        if name == "ScaledTanh":
            inner = self._make("Tanh", self._make("Mul", value, self._number(parameters[1])))
            return self._make("Mul", inner, self._number(parameters[0]))
        named = dict(zip(("alpha", "beta"), parameters))
        return self._make(name, value, **named)

    def _peephole(self, gate: int, cell: Tensor) -> Sequence[Tensor]:
        """The peephole of gate i, o or f."""
        if self._p is None:
            return ()
        return (self._make("Mul", cell, self._constant(self._p[gate])),)

    # --- cells ---

    def _lstm(self) -> list[Tensor]:
        f, g, last = self._functions
        i = self._gate(0, f, *self._peephole(0, self._c))
        if self._attrs.get("input_forget"):
            forget = self._make("Sub", self._number(1), i)
        else:
            forget = self._gate(2, f, *self._peephole(2, self._c))
        kept, new = self._make("Mul", forget, self._c), self._make("Mul", i, self._gate(3, g))
        c = self._make("Add", kept, new)
        o = self._gate(1, f, *self._peephole(1, c))
        return [self._make("Mul", o, self._applied(last, c)), c]

    def _gru(self) -> list[Tensor]:
        f, g = self._functions
        z, r = self._gate(0, f), self._gate(1, f)
        if self._attrs.get("linear_before_reset"):
            inner = self._make("Mul", r, self._recurrent(2, self._h))
        else:
            inner = self._recurrent(2, self._make("Mul", r, self._h))
        n = self._activated(g, self._make("Add", self._input(2), inner))
        fresh = self._make("Mul", self._make("Sub", self._number(1), z), n)
        return [self._make("Add", fresh, self._make("Mul", z, self._h))]

    def _rnn(self) -> list[Tensor]:
        return [self._gate(0, self._functions[0])]
