"""A model in one screen: inputs, outputs, size, and which Ifs, Loops and Scans remain.

The model is rewritten in memory to find out which nodes go and why the others remain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ..request import Request
from ..rewrite.engine.engine import Engine
from ..rewrite.engine.reasons import reasons_at
from ..rewrite.engine.trace import Commit, Event
from ..rewrite.graph.ir import Node
from ..rewrite.storage.summary import (
    CONTROL_FLOW,
    ModelSummary,
    control_flow_text,
    new_control_flow_text,
    summarize,
)
from .control_flow import NO_TRIP_LIMIT, BodyText, ControlFlowReader, ControlNode, SlicedText
from .explain.explain import RemainingNode, explain

MOST_VALUES = 8
"""The inputs, and the outputs, that are listed."""
MOST_REMAINING = 8
"""The remaining nodes that are listed."""
MOST_CAPTURES = 12
"""The captures that are listed for one node."""


@dataclass
class Inspection:
    """The control flow of a model and what a rewrite does to it."""

    model: ModelSummary
    control: list[ControlNode]
    """The Ifs, Loops and Scans of the file. Those that remain are described as they are then."""
    remaining: list[RemainingNode] = field(default_factory=list)
    """Those that remain, with what helps."""
    notes: list[str] = field(default_factory=list)
    """What the rewrite relies on beyond the file."""
    added: Counter[str] = field(default_factory=Counter)
    """The Ifs, Loops and Scans that take the place of others, by operator."""

    def all(self) -> list[ControlNode]:
        """Every If, Loop and Scan, outer ones first."""
        return [inner for node in self.control for inner in node.walk()]


def inspect(request: Request) -> Inspection:
    """Describes the control flow of a model and rewrites the model to see what remains of it.

    Raises what `rewrite` raises.
    """
    engine = request.engine()
    reader = ControlFlowReader(engine.facts)
    tree = reader.tree(engine.model.graph)
    removals = _Removals(engine, reader.described)
    engine.trace.listener = removals
    engine.run()
    removals.finish()
    for node, text in reader.described.items():
        if node in engine.index:
            reader.update(node)
            text.reasons = [f"{each.rule}: {each.sentence}" for each in reasons_at(engine, node)]
    notes = engine.assertions.notes() + engine.trace.notes()
    stays = any(node in engine.index for node in reader.described)
    remaining = explain(request).remaining if stays else []
    control = (node for node in engine.index.walk() if not node.domain and node.op in CONTROL_FLOW)
    added = Counter(node.op for node in control if node not in reader.described)
    return Inspection(summarize(request.proto), tree, remaining, notes, added)


class _Removals:
    """Records which rule removes each control-flow node."""

    def __init__(self, engine: Engine, described: Mapping[Node, ControlNode]) -> None:
        self._engine = engine
        self._remaining = dict(described)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Commit) and event.node.partition(" ")[0] in CONTROL_FLOW:
            self._record(event.rule)

    def finish(self) -> None:
        """Records the nodes that a commit at another kind of node removed."""
        self._record("no longer needed")

    def _record(self, rule: str) -> None:
        for node in [node for node in self._remaining if node not in self._engine.index]:
            self._remaining.pop(node).removed_by = rule


# --- for the terminal ---


def render(inspection: Inspection, title: str, why: bool = False) -> list[RenderableType]:
    """The model in one screen; `why` adds the control flow as a tree with all reasons."""
    model = inspection.model
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, values in (("inputs", model.inputs), ("outputs", model.outputs)):
        for position, value in enumerate(values[:MOST_VALUES]):
            table.add_row("" if position else name, Text(value))
        if len(values) > MOST_VALUES:
            table.add_row("", Text(f"and {len(values) - MOST_VALUES} more", style="dim"))
    parts: list[RenderableType] = [Text(f"{title}: {model.head()}", style="bold"), table]
    tree = Tree(Text(_summary(inspection), style="bold"))
    if why:
        _add_nodes(tree, inspection.control)
    else:
        for remaining in inspection.remaining[:MOST_REMAINING]:
            tree.add(_stays(remaining))
        more = len(inspection.remaining) - MOST_REMAINING
        if more > 0:
            tree.add(Text(f"{more} more with --why", style="dim"))
    return [*parts, tree]


def _summary(inspection: Inspection) -> str:
    """`25 Ifs and 1 Loop: 25 removed, 1 remains, 2 Scans are new`."""
    nodes = inspection.all()
    named = control_flow_text(Counter(node.op for node in nodes))
    if not named:
        return "no control flow"
    left = sum(not node.removed_by for node in nodes)
    removed = len(nodes) - left
    fate = [f"{removed} removed" if left else "removed"] * (removed > 0)
    fate += [f"{left} remain{'s' * (left == 1)}"] * (left > 0)
    if inspection.added:
        fate.append(new_control_flow_text(inspection.added))
    return f"{named}: {', '.join(fate)}"


def _stays(remaining: RemainingNode) -> Text:
    """Why a node remains, in one line, and the assertion that helps most."""
    text = Text.assemble((remaining.node, "bold cyan"))
    if remaining.why:
        reason = remaining.why[0]
        # The expression says more than the name of the condition.
        named, rest = f"the condition {reason.at} ", reason.reason
        if remaining.op == "If" and rest.startswith(named):
            rest = f"the {remaining.facts} {rest.removeprefix(named)}"
        text.append(f": {rest}")
    if remaining.trials:
        first = remaining.trials[0]
        effect = f", which makes it a {first.becomes}" if first.becomes else ""
        removing = [trial.option for trial in remaining.trials if trial.removes]
        options = " or ".join(removing) or first.option
        text.append(f"; try {options}{effect}", "green")
    return text


def _add_nodes(tree: Tree, nodes: Iterable[ControlNode]) -> None:
    for node in nodes:
        branch = tree.add(_headline(node))
        for line in _details(node):
            branch.add(Text(line, style="dim"))
        for name, body in node.bodies.items():
            _add_body(branch, node.op, name, body)


def _add_body(tree: Tree, op: str, name: str, body: BodyText) -> None:
    label = f"{name}: {body.nodes} node{'s' * (body.nodes != 1)}"
    if op == "If" or body.control:
        _add_nodes(tree.add(label), body.control)


def _headline(node: ControlNode) -> Text:
    text = Text.assemble((node.label.replace("`", "'"), "bold cyan"), f", node {node.position}")
    if node.removed_by:
        return text.append(f"  removed: {node.removed_by}", "green")
    return text.append("  remains", "yellow")


def _details(node: ControlNode) -> list[str]:
    lines = [f"why: {reason}" for reason in node.reasons]
    if node.op != "If":
        count = node.trip_count or "unknown"
        lines.append(count if count == NO_TRIP_LIMIT else f"trip count: {count}")
    if node.condition:
        lines.append(f"condition: {node.condition}")
    lines += [f"carried {c.name}: {c.type}, initially {c.initial}" for c in node.carried]
    lines += [f"scan input {_sliced(s)}" for s in node.scan_inputs]
    lines += [f"scan output {_sliced(s)}" for s in node.scan_outputs]
    if node.captures:
        more = len(node.captures) - MOST_CAPTURES
        names = ", ".join(node.captures[:MOST_CAPTURES])
        lines.append(f"captures: {names}" + (f" and {more} more" if more > 0 else ""))
    return lines


def _sliced(tensor: SlicedText) -> str:
    axis = f", axis {tensor.axis}" if tensor.axis else ""
    return f"{tensor.name}: {tensor.type}{axis}{', reversed' if tensor.reverse else ''}"
