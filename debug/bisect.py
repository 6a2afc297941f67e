"""Finds the first commit that makes a model bad, with as few checks as a binary search takes.

The search ends at a commit before which the model is good and after which it is bad. Two more
checks leave something out: the rule at that root, and if that does not help, the rule everywhere.
They show whether the rule is wrong at one node, at several, or another rule is wrong, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import onnx
from rich.console import RenderableType
from rich.text import Text

from ..request import Request
from ..rewrite.engine.engine import Engine, Observer
from ..rewrite.engine.numbering import NodeNumbers
from ..rewrite.engine.patch import Patch
from ..rewrite.engine.rule import Phase, Rule
from ..rewrite.engine.trace import Commit
from ..rewrite.errors import LoopliftError
from ..rewrite.graph.ir import Node
from ..rewrite.storage.model import export_model
from .exit_status import FINDING
from .model_checks import ModelCheck
from .trace_reader import CommitLine, trace_of

_EXTRA = 4
"""The most checks in addition to those of the binary search."""


@dataclass
class Bisection:
    """The first bad commit, and the effect of leaving it out."""

    commits: int
    checks: int = 0
    number: int = 0
    """The first bad commit; 0 if there is none."""
    phase: str = ""
    rule: str = ""
    file: str = ""
    line: int = 0
    node: str = ""
    place: str = ""
    edits: list[str] = field(default_factory=list)
    finding: str = ""
    """What the check finds after that commit, or in the result of a rewrite without commits."""
    without_place: str | None = None
    """The same if the rule does not fire at that root; empty if good, None if not checked."""
    without_rule: str | None = None
    """The same if the rule never fires."""
    defects: list[str] = field(default_factory=list)
    """Rules that raised an error, or whose patch failed its check."""
    note: str = ""
    """What a reader should know about the check."""

    @property
    def status(self) -> int:
        """The exit status."""
        return FINDING if self.finding else 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status}


def bisect(
    request: Request, check: ModelCheck, progress: Callable[[str], None] | None = None
) -> Bisection:
    """Searches the first bad commit with at most log2(commits) + 4 checks.

    `progress` is called with the result of each check. Raises what `rewrite` raises, and
    LoopliftError if the check finds something before any rewrite.
    """
    return _Search(request, check, progress or (lambda _: None)).run()


class _Search:
    def __init__(
        self, request: Request, check: ModelCheck, progress: Callable[[str], None]
    ) -> None:
        self._request = request
        self._check = check
        self._progress = progress
        trace = trace_of(request)
        self._rewritten = trace.result
        """What the whole rewrite made; a rewrite that stops at its last commit may differ."""
        self._lines = trace.commits
        self._findings: dict[int, str] = {}
        """What the check found, by the number of commits."""
        self._result = Bisection(len(self._lines), defects=trace.defect_texts, note=check.note())

    def run(self) -> Bisection:
        original = _rewritten(self._request, step_limit=0)
        finding = self._finding(original, "before any rewrite")
        if finding:
            raise LoopliftError(
                f"The check finds something before any rewrite: {finding}",
                remedy="Give a check that finds nothing wrong with the original",
            )
        last = len(self._lines)
        self._result.finding = self._check_commit(last)
        if self._result.finding and last:
            self._search(0, last)
        return self._result

    def _search(self, good: int, bad: int) -> None:
        """Narrows the range to two consecutive commits; the second is the first bad one."""
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._check_commit(middle):
                bad = middle
            else:
                good = middle
        line = self._lines[bad - 1]
        self._result = replace(
            self._result,
            number=line.number,
            phase=line.phase,
            rule=line.rule,
            file=line.file,
            line=line.line,
            node=line.node,
            place=line.place,
            edits=line.edits,
            finding=self._findings[line.number],
        )
        self._leave_out(line)

    def _leave_out(self, line: CommitLine) -> None:
        """Checks the model without the rule at the root; if it stays bad, without the rule
        anywhere. Makes no more checks than are left.
        """
        result = self._result
        if self._may_check():
            observer = KeepFromFiring(line)
            what = f"without {line.rule} at {line.node}"
            result.without_place = self._finding(_rewritten(self._request, observer), what)
        if result.without_place and self._may_check():
            others = replace(self._request, phases=without(self._request.phases, line.rule))
            result.without_rule = self._finding(_rewritten(others), f"without {line.rule}")

    def _may_check(self) -> bool:
        most = math.log2(max(1, len(self._lines))) + _EXTRA
        return self._result.checks + 1 <= most

    def _check_commit(self, number: int) -> str:
        model = self._rewritten if number == len(self._lines) else None
        if model is None:
            model = _rewritten(self._request, step_limit=number)
        self._findings[number] = self._finding(model, f"after commit {number}")
        return self._findings[number]

    def _finding(self, model: onnx.ModelProto, what: str) -> str:
        self._result.checks += 1
        finding = self._check.finding(model)
        self._progress(f"{what}: {finding or 'good'}")
        return finding


def _rewritten(
    request: Request, observer: Observer | None = None, step_limit: int | None = None
) -> onnx.ModelProto:
    engine = request.engine(observer, step_limit)
    engine.run()
    return export_model(engine.model)


def without(phases: Sequence[Phase], rule: str) -> tuple[Phase, ...]:
    """The phases without a rule."""
    return tuple(
        Phase(p.name, tuple(r for r in p.rules if r.name() != rule), p.summary) for p in phases
    )


class KeepFromFiring(Observer):
    """Keeps a rule from firing at the root of one commit.

    Up to that commit the rewrite equals the traced one, so the root has the same number.
    """

    def __init__(self, line: CommitLine) -> None:
        self._line = line
        self._engine: Engine
        self._numbers: NodeNumbers

    def begins(self, engine: Engine) -> None:
        self._engine, self._numbers = engine, NodeNumbers(engine.index)
        self._ban_before(1)

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        if commit.number < self._line.number:
            self._numbers.update(patch)
            self._ban_before(commit.number + 1)

    def _ban_before(self, number: int) -> None:
        root = self._numbers.node(self._line.root)
        if number == self._line.number and root is not None:
            for phase in self._engine.phases:
                for rule in phase.rules:
                    if rule.name() == self._line.rule:
                        self._engine.ban(rule, root)


# --- for the terminal ---


def render(result: Bisection, title: str) -> list[RenderableType]:
    """The commit, its rule and place, and the effect of leaving them out."""
    parts: list[RenderableType] = [Text(title, style="bold")]
    parts += [Text(f"defect: {defect}", style="yellow") for defect in result.defects]
    if result.note:
        parts.append(Text(result.note, style="yellow"))
    counts = ((result.checks, "check"), (result.commits, "commit"))
    listed = ", ".join(f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts)
    summary = Text(listed, style="dim")
    if not result.finding:
        return [*parts, Text("the rewritten model is good", style="green"), summary]
    if not result.number:
        text = f"the result is bad, although there is no commit: {result.finding}"
        return [*parts, Text(text, style="red"), summary]
    place = f" in {result.place}" if result.place else ""
    title = f"first bad commit {result.number}: {result.rule} at {result.node}{place}"
    parts += [
        Text(title, style="red"),
        Text(f"  rule     {result.file}:{result.line}"),
        Text(f"  finding  {result.finding}"),
        *(Text(f"  edit     {edit}") for edit in result.edits),
    ]
    return [*parts, *(Text(f"  {line}") for line in _conclusions(result)), summary]


def _conclusions(result: Bisection) -> list[str]:
    if result.without_place == "":
        return [f"without {result.rule} at this node, the model is good"]
    if result.without_rule == "":
        return [f"without {result.rule}, the model is good: the rule is wrong at several nodes"]
    if result.without_rule:
        return [f"without {result.rule}, the model is still bad: {result.without_rule}"]
    return []
