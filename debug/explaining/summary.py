"""The reasons that most control flow of many models is left for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from .explain import Explanation

COMMONEST = 10


@dataclass
class Common:
    """A reason and how often it is the first one given."""

    rule: str
    template: str
    times: int
    models: int
    example: str


def commonest(
    explanations: Sequence[tuple[Path, Explanation]], most: int = COMMONEST
) -> list[Common]:
    """The reasons that most nodes are left for, each node counting for its first."""
    times: Counter[tuple[str, str]] = Counter()
    models: dict[tuple[str, str], set[Path]] = {}
    examples: dict[tuple[str, str], str] = {}
    for path, explanation in explanations:
        for left in explanation.left:
            if left.why:
                first = left.why[0]
                key = (first.rule, first.template)
                times[key] += 1
                models.setdefault(key, set()).add(path)
                examples.setdefault(key, f"{path.name}, {left.node}: {first.reason}")
    return [
        Common(rule, template, count, len(models[rule, template]), examples[rule, template])
        for (rule, template), count in times.most_common(most)
    ]


def render_commonest(reasons: Sequence[Common], title: str) -> list[RenderableType]:
    """A table of reasons."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("nodes", justify="right")
    table.add_column("models", justify="right")
    table.add_column("rule", style="yellow")
    table.add_column("reason")
    for each in reasons:
        reason = Text(each.template).append(f"\n{each.example}", style="dim")
        table.add_row(str(each.times), str(each.models), each.rule, reason)
    return [table]
