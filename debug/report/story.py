"""What the report opens with: what became of each If, Loop and Scan, and by which commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...rules import PHASES
from ..explain.explain import Explanation

BOOKKEEPING = frozenset(
    rule.name() for phase in PHASES if phase.name == "constants" for rule in phase.rules
)
"""Rules that tidy up; their commits are counted in one line."""
_MOST_OPERATORS = 12
"""The operators with a part of their own in a bar; the others share one."""
_ALWAYS_NAMED = ("If", "Loop", "Scan", "LSTM", "GRU", "RNN")
_GOLDEN_ANGLE = 137.5
"""Degrees between the hues of neighbours, so that any few of them differ."""


@dataclass
class NodeStory:
    """What became of one control-flow node of the file, or of one that remains."""

    node: str
    fate: str
    """`removed by InlineDecidedIf`, or `remains`."""
    commits: list[tuple[int, str]]
    """The commits at the node, with their rules, up to the one that removed it."""
    remains: bool = False
    reason: str = ""
    """Why it remains."""
    option: str = ""
    """The assertion that helps."""


@dataclass
class Bar:
    """The operators of a model as parts of a bar."""

    name: str
    total: int
    parts: list[tuple[str, int, int]] = field(default_factory=list)
    """Operator, count, and the hue of its colour."""


def stories(explanation: Explanation, commits: Sequence[Mapping[str, Any]]) -> list[NodeStory]:
    """The stories of all control-flow nodes: first those that remain."""
    found = [
        NodeStory(
            each.node,
            "remains",
            _commits_at(each.node, commits),
            remains=True,
            reason=f"{each.why[0].rule}: {each.why[0].reason}" if each.why else "",
            option=each.trials[0].option if each.trials else "",
        )
        for each in explanation.remaining
    ]
    for number, how in explanation.removed.items():
        label, (rule, _, commit) = explanation.labels[number], how.partition(" at commit ")
        last = int(commit)
        chain = [*_commits_at(label, commits[: last - 1]), (last, rule)]
        found.append(NodeStory(label, f"removed by {rule}", chain))
    return found


def _commits_at(label: str, commits: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """The numbers and rules of the commits whose root is a node, without bookkeeping."""
    return [
        (number, commit["rule"])
        for number, commit in enumerate(commits, 1)
        if commit["node"] == label and commit["rule"] not in BOOKKEEPING
    ]


def rules_in_order(commits: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """Each rule that is not bookkeeping, with its first commit and how often it fired."""
    firsts: dict[str, int] = {}
    counts = Counter(commit["rule"] for commit in commits)
    for number, commit in enumerate(commits, 1):
        firsts.setdefault(commit["rule"], number)
    return [
        (rule, first, counts[rule]) for rule, first in firsts.items() if rule not in BOOKKEEPING
    ]


def bookkeeping(commits: Sequence[Mapping[str, Any]]) -> str:
    """The other commits in one line: `EliminateDeadNode 11, FoldConstants 3`; empty if none."""
    counts = Counter(c["rule"] for c in commits if c["rule"] in BOOKKEEPING)
    return ", ".join(f"{rule} {times}" for rule, times in counts.most_common())


def bars(before: Counter[str], after: Counter[str]) -> list[Bar]:
    """A bar for each of two models; an operator has the same place and colour in both."""
    total = before + after
    common = [op for op in _ALWAYS_NAMED if total[op]]
    common += [op for op, _ in total.most_common() if op not in common]
    common = common[:_MOST_OPERATORS]
    hues = {op: round(place * _GOLDEN_ANGLE) % 360 for place, op in enumerate(common)}
    found = []
    for name, counts in (("before", before), ("after", after)):
        bar = Bar(name, counts.total())
        bar.parts = [(op, counts[op], hues[op]) for op in common if counts[op]]
        rest = sum(n for op, n in counts.items() if op not in common)
        bar.parts += [("other", rest, 0)] if rest else []
        found.append(bar)
    return found
