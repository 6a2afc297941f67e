"""The rules of a rewrite as a reader sees them: their text, and what became of their attempts."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from ...rewrite.engine.rule import Phase, Rule
from ..recording import source_of
from ..trace_file import TraceFile

_REASONS = 5
"""Reasons told of each rule, the commonest first."""


@dataclass
class RuleTotals:
    """What one rule did in the whole rewrite."""

    name: str
    summary: str
    phases: list[str]
    file: str
    line: int
    attempts: int = 0
    hits: int = 0
    match_seconds: float = 0.0
    apply_seconds: float = 0.0
    reasons: list[tuple[str, int]] = field(default_factory=list)
    """Why it declined, and how often."""

    @property
    def seconds(self) -> float:
        return self.match_seconds + self.apply_seconds

    @property
    def tells(self) -> bool:
        """Whether anything happened."""
        return self.attempts > 0


_PACKAGE = Path(__file__).parents[2]


def place_of_rule(rule: type[Rule]) -> tuple[str, int]:
    """Where a rule stands; looplift's own without the folder it happens to be installed in."""
    file, line = source_of(rule)
    path = Path(file)
    inside = path.is_relative_to(_PACKAGE)
    return (f"looplift/{path.relative_to(_PACKAGE).as_posix()}" if inside else file), line


def totals(trace: TraceFile, phases: tuple[Phase, ...]) -> list[RuleTotals]:
    """All rules, those that took most time first. The trace must be one in full."""
    end = trace.end
    found: dict[type[Rule], RuleTotals] = {}
    for phase in phases:
        for rule in phase.rules:
            if rule not in found:
                found[rule] = RuleTotals(rule.name(), rule.summary(), [], *place_of_rule(rule))
            found[rule].phases.append(phase.name)
    reasons = _reasons(trace)
    for each in found.values():
        each.attempts = end["attempts"].get(each.name, 0)
        each.hits = end["hits"].get(each.name, 0)
        each.match_seconds = end["match_seconds"].get(each.name, 0.0)
        each.apply_seconds = end["apply_seconds"].get(each.name, 0.0)
        each.reasons = reasons.get(each.name, Counter()).most_common(_REASONS)
    return sorted(found.values(), key=lambda each: (-each.seconds, each.name))


def _reasons(trace: TraceFile) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for attempt in trace.attempts:
        found.setdefault(attempt.rule, Counter())[attempt.reason] += 1
    return found


@dataclass(frozen=True)
class Source:
    """The text of a rule's class."""

    name: str
    file: str
    line: int
    html: str
    """Highlighted, with line numbers; all text is escaped."""


def source(rule: type[Rule]) -> Source:
    """The class of a rule and those it shares with others, as far as their files can be read."""
    bases = rule.__mro__[: rule.__mro__.index(Rule)]
    file, line = place_of_rule(rule)
    return Source(rule.name(), file, line, "".join(_highlighted(each, line) for each in bases))


def _highlighted(part: type, match_line: int) -> str:
    try:
        lines, first = inspect.getsourcelines(part)
    except (OSError, TypeError):
        return ""
    style = HtmlFormatter(
        linenos="inline", linenostart=first, cssclass="code", hl_lines=[match_line - first + 1]
    )
    return str(highlight("".join(lines), PythonLexer(), style))


def highlighting(theme: str, scope: str) -> str:
    """The style sheet for the classes that highlighted text has, below a CSS selector."""
    return str(HtmlFormatter(style=theme).get_style_defs(scope))
