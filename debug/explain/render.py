"""Explanations for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from .explain import CommonReason, Explanation
from .reasons import ExplainedReason

MOST_RULES = 4
"""The rules shown for one node."""
MOST_CAUSES = 3
"""The values shown that no option can assert."""


def render(found: Explanation, title: str, everything: bool = False) -> list[RenderableType]:
    """A tree of the remaining nodes, the rules that could remove them, and the failed checks."""
    tree = Tree(Text(f"{title}: {_headline(found)}", style="bold"))
    for text in found.assumed:
        tree.add(Text(f"assuming {text}", style="cyan"))
    for remaining in found.remaining:
        place = f" in {remaining.place}" if remaining.place else ""
        branch = tree.add(Text(f"{remaining.node}{place}", style="bold cyan"))
        shown = _shown(remaining.why, everything)
        for number, reason in enumerate(shown):
            _add_reason(branch, reason, in_full=everything or not number)
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
    return f"{count} of {found.before} remain" if found.before else "no control flow"


def _shown(reasons: Sequence[ExplainedReason], everything: bool) -> Sequence[ExplainedReason]:
    if everything:
        return reasons
    removing = [reason for reason in reasons if reason.removes]
    return (removing or reasons)[:MOST_RULES]


def _add_reason(tree: Tree, reason: ExplainedReason, in_full: bool) -> None:
    total = f" of {reason.checks}" if reason.checks > reason.passed else ""
    checks = f"{reason.passed}{total} checks passed"
    rule = f"{reason.rule} at {reason.root}" if reason.root else reason.rule
    branch = tree.add(Text.assemble((rule, "yellow"), f" ({checks}): {reason.reason}"))
    if in_full and reason.value:
        branch.add(Text(f"at {reason.at}: {reason.value}"))
    for line in reason.derivation if in_full else ():
        branch.add(Text(f"from {line}", style="dim"))
    advice = _advice(reason)
    if advice:
        branch.add(Text(advice, style="green"))


def _advice(reason: ExplainedReason) -> str:
    """The options that may help; empty if the reason is not about values."""
    causes = " and ".join(reason.unassertable[:MOST_CAUSES])
    if reason.remedies:
        rest = f"; it also depends on {causes}" if causes else ""
        return f"try {' or '.join(reason.remedies)}{rest}"
    return f"no option helps: it depends on {causes}" if causes else ""


def render_summary(reasons: Sequence[CommonReason], title: str) -> list[RenderableType]:
    """A table of the most common reasons."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("nodes", justify="right")
    table.add_column("models", justify="right")
    table.add_column("rule", style="yellow")
    table.add_column("reason")
    for each in reasons:
        reason = Text(each.template).append(f"\n{each.example}", style="dim")
        table.add_row(str(each.nodes), str(each.models), each.rule, reason)
    return [table]
