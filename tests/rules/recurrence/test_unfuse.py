"""LSTM, GRU and RNN become Scans, and FuseRecurrence turns these into the same operators again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from looplift.rewrite.engine.rule import fixture
from looplift.rules.recurrence import UNFUSE, FuseRecurrence
from looplift.rules.recurrence.unfuse import OperatorToScan
from looplift.rules.values.dead_nodes import EliminateDeadNode

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...node_cases import node_cases
from ...rewrite.fact_oracle import Feeds
from ...samples import one_of
from ..reasons import reason_of

LENGTHS = [np.array(v, np.int32) for v in ([0, 1], [2, 0], [1, 1])]
FEEDS = Feeds(sizes=(2, 5), fixed={"B": 2}, values={"l": LENGTHS}, most=6)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
CELLS = tuple(GATES)
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("RNN", {"activations": ["Relu"], "clip": 0.5}),
    ("GRU", {"activations": ["HardSigmoid", "Softsign"]}),
    (
        "LSTM",
        {
            "activations": ["HardSigmoid", "Softsign", "ScaledTanh"],
            "activation_alpha": [0.25, 1.2],
            "activation_beta": [0.4, 0.8],
        },
    ),
]
"""Attributes with too many values to try them all."""


def _combinations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every operator, direction, and choice of inputs and attributes that go together."""
    for op in CELLS:
        own = {"LSTM": ("peepholes", "input_forget"), "GRU": ("linear_before_reset",), "RNN": ()}
        names = ("bias", "initial", "clip", "lengths", *own[op])
        for direction, *chosen in itertools.product(("forward", "reverse"), *[(0, 1)] * len(names)):
            given: dict[str, Any] = dict(zip(names, chosen))
            if direction == "reverse" and given["lengths"]:
                continue  # the rule declines it
            if given.get("peepholes") and given.get("input_forget"):
                continue  # onnxruntime applies the peephole of the missing forget gate
            yield op, given | {"direction": direction, "clip": 0.7 * given["clip"]}


def _operator(
    op: str,
    *,
    peepholes: int = 0,
    initial: int = 0,
    bias: int = 1,
    lengths: int = 0,
    clip: float = 0,
    **attrs: Any,
) -> onnx.ModelProto:
    gates, features, hidden = GATES[op], 3, 4
    random = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return (0.5 * random.standard_normal(shape)).astype(np.float32)

    arrays = {"w": array(1, gates * hidden, features), "r": array(1, gates * hidden, hidden)}
    arrays |= {"b": array(1, 2 * gates * hidden)} if bias else {}
    arrays |= {"p": array(1, 3 * hidden)} if peepholes else {}
    states = ["h0", "c0"] if op == "LSTM" else ["h0"]
    inputs = ["x", "w", "r", "b" if bias else "", "l" if lengths else ""]
    inputs += states if initial else [""] * len(states)
    inputs += ["p"] if peepholes else []
    names = ["y", "yh", "yc"][: 1 + len(states)]
    while not inputs[-1]:
        inputs.pop()

    def tensor(
        name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT
    ) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    given = [tensor("x", ["T", "B", features])]
    given += [tensor("l", ["B"], TensorProto.INT32)] if lengths else []
    given += [tensor(s, [1, "B", hidden]) for s in states] if initial else []
    results = [tensor("y", ["T", 1, "B", hidden])]
    results += [tensor(n, [1, "B", hidden]) for n in names[1:]]
    attrs |= {"clip": clip} if clip else {}
    node = helper.make_node(op, inputs, names, hidden_size=hidden, **attrs)
    weights = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph([node], "operator", given, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _weights(model: onnx.ModelProto) -> list[np.ndarray]:
    """W, R, P and the biases of all operators; biases that are only added up, as their sum."""
    nodes = [n for n in model.graph.node if n.op_type in CELLS]
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    nodes.sort(key=lambda n: any(a.s == b"reverse" for a in n.attribute))

    def given(node: onnx.NodeProto, slot: int, default: np.ndarray) -> np.ndarray:
        name = node.input[slot] if slot < len(node.input) else ""
        return arrays[name] if name else np.repeat(default, len(arrays[node.input[1]]), 0)

    def stacked(slot: int, default: np.ndarray) -> np.ndarray:
        return np.concatenate([given(n, slot, default) for n in nodes])

    w, r = (stacked(slot, np.zeros(0)) for slot in (1, 2))
    hidden, rows = r.shape[2], r.shape[1]
    bias = stacked(3, np.zeros((1, 2 * rows), w.dtype))
    first, second = bias[:, :rows], bias[:, rows:]
    has_inner_bias = any(
        a.name == "linear_before_reset" and a.i for n in nodes for a in n.attribute
    )
    added = rows - hidden if has_inner_bias else rows
    kept = [first[:, :added] + second[:, :added], first[:, added:], second[:, added:]]
    return [w, r, stacked(7, np.zeros((1, 3 * hidden), w.dtype)), *kept]


def _round_trip(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    unfused, trace, _ = run_rules(model, [OperatorToScan])
    assert (trace.defects(), len(trace.commits())) == ([], 1)
    assert_equivalent(model, unfused, feeds, 1e-5)
    again, trace, _ = run_rules(unfused, [FuseRecurrence, EliminateDeadNode])
    assert trace.defects() == []
    assert_equivalent(model, again, feeds, 1e-5)
    assert ops(again).get("Scan", 0) == 0
    return again


def _assert_same_weights(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    for old, new in zip(_weights(before), _weights(after), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("op", "attributes"), OTHERS)
def test_activations_come_back(op: str, attributes: dict[str, Any]) -> None:
    model = _operator(op, **attributes)
    _assert_same_weights(model, _round_trip(model, FEEDS))


@pytest.mark.parametrize("op", one_of(3, CELLS))
def test_every_combination_comes_back(op: str) -> None:
    """A coupled forget gate has no weights of its own: the operator ignores those in the file."""
    for cell, attributes in _combinations():
        if cell != op:
            continue
        model = _operator(op, **attributes)
        again = _round_trip(model, FEEDS)
        if not attributes.get("input_forget"):
            _assert_same_weights(model, again)


# --- the cases that ONNX ships ---

DECLINED = {
    "batchwise": "it has layout 1",  # onnxruntime does not run them either
}


def _with_weights(case: Any) -> onnx.ModelProto:
    """The case with its weights in the file, as networks have them."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    (node,) = model.graph.node
    weights = {node.input[k] for k in (1, 2, 3, 7) if k < len(node.input) and node.input[k]}
    given = {i.name: v for i, v in zip(model.graph.input, case.data_sets[0][0])}
    kept = [i for i in model.graph.input if i.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(given[n], n) for n in sorted(weights))
    model.ir_version = 10
    return model


def test_the_cases_that_onnx_ships_come_back() -> None:
    cases = node_cases(*CELLS)
    assert len(cases) == 18
    for case in cases:
        model = _with_weights(case)
        reason = next((r for words, r in DECLINED.items() if words in case.name), None)
        if reason is not None:
            assert reason in reason_of(OperatorToScan, model)
            continue
        lengths = {
            i.name: [np.full(s, n, np.int32) for n in (0, 1)]
            for i in model.graph.input
            if i.type.tensor_type.elem_type == TensorProto.INT32
            for s in [tuple(d.dim_value for d in i.type.tensor_type.shape.dim)]
        }
        _assert_same_weights(model, _round_trip(model, Feeds(values=lengths, most=2)))


def test_operator_to_scan_fires_and_declines() -> None:
    model = fixture(OperatorToScan.fires)
    result = rewritten(model, FEEDS, 1e-5, rules=UNFUSE)
    assert ops(result.model)["Scan"] == 1
    for words, text in OperatorToScan.spares.items():
        assert words in reason_of(OperatorToScan, fixture(text))
