"""A rule with a mistake, as a user could write it, and a large model in which it shows.

The rule splits a bidirectional LSTM into two. For the reverse direction it takes the gates in
another order than the operator specification.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from looplift import Match, Phase, Rule
from looplift.rewrite.engine.patch import Patch

MODULE = "swapped_gates"
HIDDEN = 4
Array = np.ndarray[Any, Any]


class SplitDirections(Rule[list[Array]]):
    """Splits a bidirectional LSTM into two LSTMs, one for each direction."""

    root = "LSTM"

    def match(self, m: Match) -> list[Array]:
        direction = m.node.attrs.get("direction", "forward")
        m.need(direction == "bidirectional", "it runs in one direction: {}", direction)
        return [
            m.need(m.facts.constant(tensor), "the weights are not constant")
            for tensor in m.node.inputs[1:3]
        ]

    def apply(self, patch: Patch, found: list[Array]) -> None:
        node, ways = patch.root, []
        for way, direction in enumerate(("forward", "reverse")):
            w, r = (weight[way : way + 1] for weight in found)
            if direction == "reverse":
                w, r = _reordered(w), _reordered(r)
            operands = [
                node.inputs[0],
                patch.constant(w, node.inputs[1]),
                patch.constant(r, node.inputs[2]),
            ]
            attrs = {**node.attrs, "direction": direction}
            ways.append(patch.node("LSTM", operands, node.outputs[:1], attrs)[0])
        joined = patch.node("Concat", ways, node.outputs[:1], {"axis": 1})[0]
        patch.replace(node.outputs[0], joined)
        patch.remove(node)
        patch.toward_normal_form()


def _reordered(weight: Array) -> Array:
    i, o, f, c = np.split(weight, 4, axis=1)
    return np.concatenate([i, f, o, c], axis=1)  # the mistake: the order is i, o, f, c


PHASES = (Phase("mine", (SplitDirections,), "Rules of a user."),)


# --- the model ---


def chain(count: int, first: str, last: str, prefix: str) -> list[onnx.NodeProto]:
    """A chain of Mul, Add, Neg and Identity from one value to another of the same shape."""
    nodes, value = [], first
    for number in range(count):
        op = ("Mul", "Add", "Neg", "Identity")[number % 4]
        result = last if number == count - 1 else f"{prefix}_{number}"
        operands = [value, f"{op}_by"] if op in ("Mul", "Add") else [value]
        nodes.append(helper.make_node(op, operands, [result], f"{prefix}_{op}_{number}"))
        value = result
    return nodes


def large_model(nodes: int = 500) -> onnx.ModelProto:
    """float[T, 2, 8] -> float[T, 2, 8] through `nodes` nodes.

    The LSTM is in a Loop, which is in a branch of an If.
    """
    rng = np.random.default_rng(0)
    share = (nodes - 12) // 4
    step = [
        helper.make_node("Identity", ["go"], ["go_on"]),
        *chain(share, "state", "before", "inner"),
        helper.make_node("LSTM", ["before", "W", "R"], ["both"], "lstm",
                         direction="bidirectional", hidden_size=HIDDEN),
        helper.make_node("Transpose", ["both"], ["turned"], "turn", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["turned", "flat"], ["hidden"], "flatten"),
        *chain(share, "hidden", "next", "after"),
    ]  # fmt: skip
    body = helper.make_graph(
        step,
        "step",
        [_info("i", TensorProto.INT64, []), _info("go", TensorProto.BOOL, []), _state("state")],
        [_info("go_on", TensorProto.BOOL, []), _state("next")],
    )
    then = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "middle"], ["looped"], "loop", body=body)],
        "then", [], [_state("looped")],
    )  # fmt: skip
    orelse = helper.make_graph(
        [helper.make_node("Neg", ["middle"], ["negated"])], "else", [], [_state("negated")]
    )
    branches = {"then_branch": then, "else_branch": orelse}
    rest = nodes - share - len(step) - 3
    main = [
        *chain(share, "x", "middle", "first"),
        helper.make_node("If", ["c"], ["chosen"], "choice", **branches),
        *chain(rest, "chosen", "y", "last"),
    ]
    weights = {
        "W": rng.normal(size=(2, 4 * HIDDEN, 2 * HIDDEN)).astype(np.float32),
        "R": rng.normal(size=(2, 4 * HIDDEN, HIDDEN)).astype(np.float32),
        "Mul_by": np.float32(1.01),
        "Add_by": np.float32(0.1),
        "flat": np.array([0, 0, 2 * HIDDEN], np.int64),
    }
    graph = helper.make_graph(
        main,
        "large",
        [_state("x"), _info("n", TensorProto.INT64, []), _info("c", TensorProto.BOOL, [])],
        [_state("y")],
        [numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _info(name: str, kind: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _state(name: str) -> onnx.ValueInfoProto:
    return _info(name, TensorProto.FLOAT, ["T", 2, 2 * HIDDEN])


def write_module(folder: Path) -> None:
    """Copies this file to where `--rules` finds it."""
    (folder / f"{MODULE}.py").write_text(Path(__file__).read_text(encoding="utf-8"))
