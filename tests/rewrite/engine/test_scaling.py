"""Rewriting time is linear in the size of a loop's body.

Work is counted in calls of Python functions, which no other program on the machine changes.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import onnx
import pytest

from looplift import rewrite
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.rule import Match, Rule
from looplift.rewrite.graph.ir import Node

from ...equivalence import ops, run_rules
from ...small_models import parse

ROOT = Path(__file__).parents[3]
FEW = 32
KINDS = (
    "sums", "counters", "lists", "buffers", "equal states", "other states", "reads", "slices",
    "chain",
)  # fmt: skip


def _calls(model: onnx.ModelProto) -> int:
    """The number of functions called while a model is rewritten."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        rewrite(model)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("kind", KINDS)
def test_twice_as_much_is_twice_the_work(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bodies = importlib.import_module("large_body")
    assert tuple(bodies.KINDS) == KINDS
    rewrite(bodies.model(bodies.KINDS[kind], 2))  # what is imported and compiled once
    few, many = (_calls(bodies.model(bodies.KINDS[kind], n)) for n in (FEW, 2 * FEW))
    assert many < 2.3 * few


class ManyForOne(Rule[Node]):
    """Replaces one node by thousands."""

    root = "Abs"

    def match(self, m: Match) -> Node:
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        value = found.inputs[0]
        for _ in range(4000):
            (value,) = patch.node("Neg", [value], found.outputs)
        patch.replace_node(found, [value])
        patch.toward_normal_form()


def test_thousands_of_nodes_at_one_place() -> None:
    model = parse("g (float[2] x) => (float[2] y) { a = Exp(x) b = Abs(a) y = Sin(b) }")
    result, trace, _ = run_rules(model, [ManyForOne])
    assert trace.defects() == []
    assert ops(result) == {"Exp": 1, "Neg": 4000, "Sin": 1}
