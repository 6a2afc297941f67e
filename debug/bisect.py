"""Which step of a rewrite makes a model bad, found by as few checks as a binary search takes.

The steps are searched first: the model after k steps for a k in the middle of what is left. What
is found is a step before which the model is good and after which it is bad. Then the rule is kept
from firing at that place alone, and if that does not help at any place: is it wrong there only, or
wherever it fires, or is another rule wrong, too?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import onnx
from rich.console import RenderableType
from rich.text import Text

from ..rewrite.engine.engine import Engine, Observer
from ..rewrite.engine.numbering import NodeNumbers
from ..rewrite.engine.patch import Patch
from ..rewrite.engine.rule import Phase, Rule
from ..rewrite.engine.trace import Commit
from ..rewrite.graph.ir import Node
from ..rewrite.storage.model import export_model
from .checks import Check
from .subject import Subject
from .trace_file import CommitLine, trace_of

FINDING = 1
EXTRA = 3
"""Checks besides those of the binary search."""


@dataclass
class Bisection:
    """The first bad step, and what leaving it out does."""

    steps: int
    checks: int = 0
    original_is_bad: bool = False
    """The check finds something before any rewrite: there is nothing to search."""
    step: int = 0
    """0 if the fully rewritten model is good."""
    phase: str = ""
    rule: str = ""
    file: str = ""
    line: int = 0
    node: str = ""
    place: str = ""
    edits: list[str] = field(default_factory=list)
    finding: str = ""
    """What the check found after that step."""
    without_place: str | None = None
    """What it finds when the rule may not fire there; empty if nothing, None if not asked."""
    without_rule: str | None = None
    """What it finds when the rule may not fire anywhere; likewise."""
    defects: list[str] = field(default_factory=list)
    """Rules whose patch was wrong and undone."""
    note: str = ""
    """What a reader should know of the check."""

    @property
    def status(self) -> int:
        """The exit status."""
        return FINDING if self.step or self.original_is_bad else 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status}


def bisect(subject: Subject, check: Check, tell: Callable[[str], None] | None = None) -> Bisection:
    """Searches the first bad step in at most log2(steps) + 3 checks.

    `tell` hears of each check. Raises what `rewrite` raises.
    """
    return _Search(subject, check, tell or (lambda _: None)).run()


class _Search:
    def __init__(self, subject: Subject, check: Check, tell: Callable[[str], None]) -> None:
        self._subject = subject
        self._check = check
        self._tell = tell
        trace = trace_of(subject)
        self._lines = trace.commits
        self._found: dict[int, str] = {}
        """What the check found, by the number of steps."""
        self._result = Bisection(len(self._lines), defects=trace.undone, note=check.note())

    def run(self) -> Bisection:
        last = len(self._lines)
        if self._ask_step(last):
            self._search(0, last)
        return self._result

    def _search(self, good: int, bad: int) -> None:
        """Narrows down to two steps that follow each other; that 0 is good is asked only if the
        search ends there.
        """
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._ask_step(middle):
                bad = middle
            else:
                good = middle
        if good == 0 and (bad == 0 or self._ask_step(0)):
            self._result.original_is_bad = True
            self._result.finding = self._found[0]
            return
        self._describe(self._lines[bad - 1])
        self._leave_out(self._lines[bad - 1])

    def _describe(self, line: CommitLine) -> None:
        self._result = replace(
            self._result,
            step=line.step,
            phase=line.phase,
            rule=line.rule,
            file=line.file,
            line=line.line,
            node=line.node,
            place=line.place,
            edits=line.edits,
            finding=self._found[line.step],
        )

    def _leave_out(self, line: CommitLine) -> None:
        """Confirms the place, and if the model stays bad the rule, while checks are left."""
        result = self._result
        if self._may_ask():
            keep = KeepFromFiring(line)
            what = f"without {line.rule} at {line.node}"
            result.without_place = self._ask(_rewritten(self._subject, keep), what)
        if result.without_place and self._may_ask():
            others = replace(self._subject, phases=without(self._subject.phases, line.rule))
            result.without_rule = self._ask(_rewritten(others), f"without {line.rule}")

    def _may_ask(self) -> bool:
        most = math.log2(max(1, len(self._lines))) + EXTRA
        return self._result.checks + 1 <= most

    def _ask_step(self, step: int) -> str:
        model = _rewritten(self._subject, step_limit=step)
        self._found[step] = self._ask(model, f"after step {step}")
        return self._found[step]

    def _ask(self, model: onnx.ModelProto, what: str) -> str:
        self._result.checks += 1
        found = self._check.finds(model)
        self._tell(f"{what}: {found or 'good'}")
        return found


def _rewritten(
    subject: Subject, observer: Observer | None = None, step_limit: int | None = None
) -> onnx.ModelProto:
    engine = subject.engine(observer, step_limit)
    engine.run()
    return export_model(engine.model)


def without(phases: Sequence[Phase], rule: str) -> tuple[Phase, ...]:
    """The phases without a rule."""
    return tuple(
        Phase(p.name, tuple(r for r in p.rules if r.name() != rule), p.summary) for p in phases
    )


class KeepFromFiring(Observer):
    """Keeps a rule from firing at the root node of one commit.

    Up to that commit the rewrite is that of the trace, so that the node's number is the same.
    """

    def __init__(self, line: CommitLine) -> None:
        self._line = line
        self._engine: Engine
        self._numbers: NodeNumbers

    def begins(self, engine: Engine) -> None:
        self._engine, self._numbers = engine, NodeNumbers(engine.index)
        self._ban_before(1)

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        if commit.step < self._line.step:
            self._numbers.update(patch)
            self._ban_before(commit.step + 1)

    def _ban_before(self, step: int) -> None:
        node = self._numbers.node(self._line.number)
        if step == self._line.step and node is not None:
            for phase in self._engine.phases:
                for rule in phase.rules:
                    if rule.name() == self._line.rule:
                        self._engine.ban(rule, node)


# --- for the terminal ---


def render(result: Bisection, title: str) -> list[RenderableType]:
    """The step, its rule and place, and what leaving them out does."""
    parts: list[RenderableType] = [Text(title, style="bold")]
    parts += [Text(f"undone: {defect}", style="yellow") for defect in result.defects]
    if result.note:
        parts.append(Text(result.note, style="yellow"))
    asked = Text(f"{result.checks} checks, {result.steps} steps", style="dim")
    if result.original_is_bad:
        text = f"bad before any rewrite: {result.finding}"
        return [*parts, Text(text, style="red"), asked]
    if not result.step:
        return [*parts, Text("the rewritten model is good", style="green"), asked]
    place = f" in {result.place}" if result.place else ""
    parts += [
        Text(f"first bad step {result.step}: {result.rule} at {result.node}{place}", style="red"),
        Text(f"  rule     {result.file}:{result.line}"),
        Text(f"  finding  {result.finding}"),
        *(Text(f"  edit     {edit}") for edit in result.edits),
    ]
    return [*parts, *(Text(f"  {line}") for line in _conclusions(result)), asked]


def _conclusions(result: Bisection) -> list[str]:
    if result.without_place == "":
        return [f"without {result.rule} at this place the model is good"]
    if result.without_rule == "":
        return [f"without {result.rule} the model is good: it is wrong at several places"]
    if result.without_rule:
        return [f"without {result.rule} the model is bad, too: {result.without_rule}"]
    return []
