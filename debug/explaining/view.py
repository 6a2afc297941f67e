"""What `explain` finds, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from .explain import Explanation
from .why import Why

MOST_RULES = 4
"""Rules shown for one node in the terminal."""
MOST_CAUSES = 3
"""Values told that no option says anything of."""


def render(found: Explanation, title: str, everything: bool = False) -> list[RenderableType]:
    """A tree: nodes, the rules that could remove them, the check that failed."""
    tree = Tree(Text(f"{title}: {_headline(found)}", style="bold"))
    for text in found.assumed:
        tree.add(Text(f"assuming {text}", style="cyan"))
    for left in found.left:
        place = f" in {left.place}" if left.place else ""
        branch = tree.add(Text(f"{left.node}{place}", style="bold cyan"))
        shown = _shown(left.why, everything)
        for number, why in enumerate(shown):
            _add(branch, why, in_full=everything or not number)
        if len(left.why) > len(shown):
            more = f"{len(left.why) - len(shown)} more rules with --all"
            branch.add(Text(more, style="dim"))
    parts: list[RenderableType] = [tree]
    if found.assumed or found.asked:
        parts += [
            Text(f"goes: {found.labels[number]} ({how})", style="green")
            for number, how in found.gone.items()
            if not found.asked or number in found.meant
        ]
    parts += [Text(f"undone: {defect}", style="red") for defect in dict.fromkeys(found.defects)]
    return parts


def _headline(found: Explanation) -> str:
    if found.rule:
        return _told_rule(found)
    if found.asked:
        return f"`{found.asked}` is left" if found.left else f"`{found.asked}` is not left"
    return f"{len(found.left)} of {found.before} left" if found.before else "no control flow"


def _told_rule(found: Explanation) -> str:
    if not found.left:
        return f"{found.rule} has no node to start from"
    return f"why not {found.rule}, where it got furthest; --node asks about any other node"


def _shown(whys: Sequence[Why], everything: bool) -> Sequence[Why]:
    if everything:
        return whys
    telling = [why for why in whys if why.removes]
    return (telling or whys)[:MOST_RULES]


def _add(tree: Tree, why: Why, in_full: bool) -> None:
    total = f" of {why.checks}" if why.checks > why.passed else ""
    checks = f"{why.passed}{total} checks passed"
    rule = f"{why.rule} at {why.root}" if why.root else why.rule
    branch = tree.add(Text.assemble((rule, "yellow"), f" ({checks}): {why.reason}"))
    if in_full and why.value:
        branch.add(Text(f"at {why.at}: {why.value}"))
    for line in why.chain if in_full else ():
        branch.add(Text(f"from {line}", style="dim"))
    advice = _advice(why)
    if advice:
        branch.add(Text(advice, style="green"))


def _advice(why: Why) -> str:
    """What would make it fire, as far as a value is to blame."""
    beyond = " and ".join(why.beyond[:MOST_CAUSES])
    if why.remedies:
        rest = f"; it depends on {beyond}, too" if beyond else ""
        return f"say more with {' or '.join(why.remedies)}{rest}"
    if not beyond:
        return ""
    return f"no option says more: it depends on {beyond}; only the model can change that"
