"""Explanations for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ...rewrite.storage.summary import CONTROL_FLOW, new_control_flow_text
from .explain import CommonReason, Explanation, RemainingNode
from .reasons import ExplainedReason

MOST_TRIALS = 3
"""The assertions shown for one node."""
MOST_RULES = 4
"""The rules shown for a node that is not control flow."""
MOST_CAUSES = 3
"""The values shown that no option can assert."""


def render(
    found: Explanation, title: str, *, everything: bool = False, origins: bool = False
) -> list[RenderableType]:
    """A tree of the remaining nodes: what helps, and the rule that would remove the whole node.

    `everything` adds the other rules, and `origins` the values that a reason is about.
    """
    tree = Tree(Text(f"{title}: {_headline(found)}", style="bold"))
    for text in found.assumed:
        tree.add(Text(f"with {text}", style="cyan"))
    for remaining in found.remaining:
        place = f" in {remaining.place}" if remaining.place else ""
        branch = tree.add(Text(f"{remaining.node}{place}", style="bold cyan"))
        for trial in remaining.trials[: None if everything else MOST_TRIALS]:
            branch.add(Text(f"try {trial.option}: {trial.effect}", style="green"))
        most = 1 if remaining.op in CONTROL_FLOW else MOST_RULES
        shown = remaining.why[: None if everything else most]
        for reason in shown:
            _add_reason(branch, reason, remaining, everything or origins)
        if remaining.op in CONTROL_FLOW and not origins:
            branch.add(Text(remaining.facts, style="dim"))
        if remaining.recipe:
            branch.add(Text(f"in the source: {remaining.recipe}", style="magenta"))
        if remaining.cost:
            branch.add(Text(remaining.cost, style="dim"))
        if len(remaining.why) > len(shown):
            more = f"{len(remaining.why) - len(shown)} more rules with --all"
            branch.add(Text(more, style="dim"))
    parts: list[RenderableType] = [tree]
    if found.assumed or found.asked:
        parts += [
            Text(f"removed: {found.labels[number]} ({how})", style="green")
            for number, how in found.removed.items()
            if not found.asked or number in found.asked_numbers
        ]
    parts += [Text(f"note: {note}", style="yellow") for note in found.rule_notes]
    parts += [Text(f"defect: {defect}", style="red") for defect in dict.fromkeys(found.defects)]
    return parts


def _headline(found: Explanation) -> str:
    count = len(found.remaining)
    if found.rule and count:
        return f"{found.rule} gets furthest at these nodes; --node explains any other"
    if found.rule:
        return f"no node is a root of {found.rule}"
    if found.asked:
        return f"`{found.asked}` remains" if count else f"`{found.asked}` is removed"
    if not found.before:
        return "no control flow"
    added = Counter(each.op for each in found.remaining if each.number is None)
    old = count - added.total()
    left = f"{old} of {found.before} remain{'s' * (old == 1)}"
    return ", ".join(filter(None, (left, new_control_flow_text(added))))


def _add_reason(
    tree: Tree, reason: ExplainedReason, remaining: RemainingNode, origins: bool
) -> None:
    rule = f"{reason.rule} at {reason.root}" if reason.root else reason.rule
    total = f" of {reason.checks}" if reason.checks > reason.passed else ""
    passed = f" ({reason.passed}{total} checks passed)" if origins else ""
    branch = tree.add(Text.assemble((rule, "yellow"), f"{passed}: {reason.reason}"))
    if origins and reason.value:
        branch.add(Text(f"at {reason.at}: {reason.value}"))
    for line in reason.derivation if origins else ():
        branch.add(Text(f"from {line}", style="dim"))
    own = f" of {remaining.node}"
    causes = " and ".join(each.removesuffix(own) for each in reason.unassertable[:MOST_CAUSES])
    if causes and not any(trial.removes for trial in remaining.trials):
        branch.add(Text(f"it depends on {causes}, which no option can assert", style="dim"))


def render_summary(reasons: Sequence[CommonReason], title: str) -> list[RenderableType]:
    """A title and, if there are reasons, a table of the most common ones."""
    table = Table(box=None, pad_edge=False)
    table.add_column("nodes", justify="right")
    table.add_column("models", justify="right")
    table.add_column("rule", style="yellow")
    table.add_column("reason")
    for each in reasons:
        reason = Group(Text(each.template.replace("{}", "…")), Text(each.example, style="dim"))
        table.add_row(str(each.nodes), str(each.models), each.rule, reason)
    return [Text(title, style="bold"), *([table] if reasons else [])]
