"""The control flow of a model as a tree: what each If, Loop and Scan is, and why it is there.

The model is rewritten in memory to find out which nodes go; those that stay are asked why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from rich.text import Text
from rich.tree import Tree

from ..api import count_operators
from ..commands.arguments import Assertions
from ..rewrite.engine.engine import Engine
from ..rewrite.engine.reasons import reasons_at
from ..rewrite.engine.rule import Options, Phase
from ..rewrite.engine.trace import Commit, Event, Trace
from ..rewrite.facts.assertions import assert_facts, parse_dims
from ..rewrite.graph.ir import Node
from ..rewrite.storage.files import load
from ..rewrite.storage.model import import_model
from ..rules import PHASES
from .control import Body, ControlNode, Reader, Sliced
from .counts import CONTROL

LONGEST = 12
"""Names of captures shown for one node."""


@dataclass
class Inspection:
    """The control flow of a model and what becomes of it."""

    operators: dict[str, int]
    """Operators by name, those in bodies included."""
    control: list[ControlNode]
    notes: list[str] = field(default_factory=list)
    """What the rewrite relied on beyond the file."""

    def all(self) -> list[ControlNode]:
        """Every If, Loop and Scan, outer ones first."""
        return [inner for node in self.control for inner in node.walk()]


def inspect(
    model: str | Path | bytes | onnx.ModelProto,
    assertions: Assertions | None = None,
    phases: Sequence[Phase] = PHASES,
) -> Inspection:
    """Read the control flow of a model and find out why each part of it is there.

    Raises what `rewrite` raises.
    """
    assertions = assertions or Assertions()
    proto, base_dir = load(model)
    graph = import_model(proto, base_dir)
    assumptions, notes = assert_facts(
        graph,
        assertions.inputs,
        parse_dims(assertions.dims),
        assertions.shapes,
        assertions.prefix_masks,
    )
    trace = Trace()
    engine = Engine(graph, phases, assumptions, Options(strict=assertions.strict), None, trace)
    reader = Reader(engine.facts)
    tree = reader.tree(graph.graph)
    watch = _Watch(engine, reader.described)
    trace.listener = watch
    engine.run()
    watch.settle()
    staying = [node for node in reader.described if node in engine.index]
    explain(reader.described, {node: _reasons(engine, node) for node in staying})
    return Inspection(dict(count_operators(proto)), tree, notes + trace.notes())


def explain(described: Mapping[Node, ControlNode], reasons: Mapping[Node, Sequence[str]]) -> None:
    """Write down why nodes are still there, one sentence for each rule that could remove them."""
    for node, sentences in reasons.items():
        described[node].reasons = list(sentences)


def _reasons(engine: Engine, node: Node) -> list[str]:
    return [f"{reason.rule}: {reason.sentence}" for reason in reasons_at(engine, node)]


class _Watch:
    """Notices with which rule a control-flow node goes."""

    def __init__(self, engine: Engine, described: Mapping[Node, ControlNode]) -> None:
        self._engine = engine
        self._left = dict(described)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Commit) and event.node.partition(" ")[0] in CONTROL:
            self._remove(event.rule)

    def settle(self) -> None:
        """What went together with something else."""
        self._remove("nothing needs it")

    def _remove(self, rule: str) -> None:
        for node in [node for node in self._left if node not in self._engine.index]:
            self._left.pop(node).removed_by = rule


# --- for the terminal ---


def render(inspection: Inspection, title: str) -> Tree:
    """The tree as a terminal shows it."""
    counts = Counter(node.op for node in inspection.all())
    found = ", ".join(f"{counts[op]} {op}{'s' * (counts[op] != 1)}" for op in CONTROL if counts[op])
    tree = Tree(Text(f"{title}: {found or 'no control flow'}", style="bold"))
    _add(tree, inspection.control)
    return tree


def _add(tree: Tree, nodes: Iterable[ControlNode]) -> None:
    for node in nodes:
        branch = tree.add(_headline(node))
        for line in _details(node):
            branch.add(Text(line, style="dim"))
        for name, body in node.bodies.items():
            _add_body(branch, node.op, name, body)


def _add_body(tree: Tree, op: str, name: str, body: Body) -> None:
    label = f"{name}: {body.nodes} node{'s' * (body.nodes != 1)}"
    if op == "If" or body.control:
        _add(tree.add(label), body.control)


def _headline(node: ControlNode) -> Text:
    text = Text.assemble((node.label.replace("`", "'"), "bold cyan"), f", node {node.position}")
    if node.removed_by:
        return text.append(f"  goes: {node.removed_by}", "green")
    return text.append("  stays", "yellow")


def _details(node: ControlNode) -> list[str]:
    lines = [f"why: {reason}" for reason in node.reasons]
    if node.op != "If":
        lines.append(f"trip count: {node.trip or 'unknown'}")
    if node.condition:
        lines.append(f"condition: {node.condition}")
    lines += [f"state {s.name}: {s.type}, first {s.initial}" for s in node.states]
    lines += [f"scan input {_sliced(s)}" for s in node.scan_inputs]
    lines += [f"scan output {_sliced(s)}" for s in node.scan_outputs]
    if node.captures:
        more = len(node.captures) - LONGEST
        shown = ", ".join(node.captures[:LONGEST]) + (f" and {more} more" if more > 0 else "")
        lines.append(f"captures: {shown}")
    return lines


def _sliced(found: Sliced) -> str:
    axis = f", axis {found.axis}" if found.axis else ""
    return f"{found.name}: {found.type}{axis}{', reversed' if found.reverse else ''}"
