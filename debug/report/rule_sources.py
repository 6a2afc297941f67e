"""The rules of a rewrite for a reader: their source, and the totals of their attempts."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from ...rewrite.engine.pattern import PatternRule
from ...rewrite.engine.rule import Phase, Rule
from ..trace_reader import RecordedTrace
from ..trace_writer import match_line

_MOST_REASONS = 5
"""The reasons listed for one rule, the most common ones first."""
_PACKAGE = Path(__file__).parents[2]


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
    def was_tried(self) -> bool:
        """Whether any node was a root of the rule."""
        return self.attempts > 0


def _location(rule: type[Rule]) -> tuple[str, int]:
    """The file and line of a rule; for looplift's own, without the folder of the installation."""
    file, line = match_line(rule)
    path = Path(file)
    inside = path.is_relative_to(_PACKAGE)
    return (f"looplift/{path.relative_to(_PACKAGE).as_posix()}" if inside else file), line


def totals(trace: RecordedTrace, phases: Sequence[Phase]) -> list[RuleTotals]:
    """All rules, including those of users, by the time they took. Needs a trace in full."""
    end = trace.end
    found: dict[type[Rule], RuleTotals] = {}
    for phase in phases:
        for rule in phase.rules:
            if rule not in found:
                found[rule] = RuleTotals(rule.name(), rule.summary(), [], *_location(rule))
            found[rule].phases.append(phase.name)
    reasons: dict[str, Counter[str]] = {}
    for attempt in trace.attempts:
        reasons.setdefault(attempt.rule, Counter())[attempt.reason] += 1
    for each in found.values():
        each.attempts = end["attempts"].get(each.name, 0)
        each.hits = end["hits"].get(each.name, 0)
        each.match_seconds = end["match_seconds"].get(each.name, 0.0)
        each.apply_seconds = end["apply_seconds"].get(each.name, 0.0)
        each.reasons = reasons.get(each.name, Counter()).most_common(_MOST_REASONS)
    return sorted(found.values(), key=lambda each: (-each.seconds, each.name))


@dataclass(frozen=True)
class RuleSource:
    """The source of the class of a rule."""

    name: str
    file: str
    line: int
    html: str
    """Highlighted, with line numbers; all text is escaped."""


def rule_source(rule: type[Rule]) -> RuleSource:
    """The class of a rule and its own base classes, as far as their files can be read."""
    bases = [b for b in rule.__mro__[: rule.__mro__.index(Rule)] if b is not PatternRule]
    file, line = _location(rule)
    return RuleSource(rule.name(), file, line, "".join(_highlighted(each, line) for each in bases))


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
    """The style sheet for the classes of highlighted text, inside a CSS selector."""
    return str(HtmlFormatter(style=theme).get_style_defs(scope))
