"""Repeats the commits of a trace one by one, without searching for matches.

A commit names its rule, the number of its root (see `looplift.rewrite.engine.numbering`) and what
the match found. If the trace cannot say what was found, the rule matches again, at that root only.
The edits are compared with those of the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, get_type_hints

import onnx

from ..request import Request
from ..rewrite.engine.engine import Engine, Observer
from ..rewrite.engine.graph_hash import GraphHash
from ..rewrite.engine.miss import Miss
from ..rewrite.engine.numbering import NodeNumbers, NotReplayable
from ..rewrite.engine.patch import Patch
from ..rewrite.engine.rule import Phase, Rule
from ..rewrite.engine.trace import Commit
from ..rewrite.errors import LoopliftError
from ..rewrite.graph.ir import Node
from ..rewrite.storage.model import export_model
from .snapshot import snapshot
from .trace_reader import CommitLine, RecordedTrace
from .trace_writer import bindings, digest


class Replay:
    """A rewrite that follows the commits of a trace."""

    def __init__(self, request: Request, commits: Sequence[CommitLine]) -> None:
        self.commits = commits
        self.position = 0
        """The number of commits made."""
        self.bindings: dict[str, Any] = {}
        """What the match of the last commit found, in words."""
        self._last = _LastCommit()
        self.engine: Engine = request.engine(self._last)
        self.numbers = NodeNumbers(self.engine.index)
        checked = bool(commits and commits[0].before)
        self._hash = GraphHash(self.engine.index, self.numbers) if checked else None
        self._rules: dict[tuple[str, str], tuple[Phase, Rule]] = {
            (phase.name, rule.name()): (phase, rule())
            for phase in request.phases
            for rule in phase.rules
        }

    @classmethod
    def of(cls, request: Request, trace: RecordedTrace) -> Replay:
        """Raises LoopliftError if the trace is of another model."""
        replay = cls(request, trace.commits)
        if trace.about["digest"] != digest(replay.engine):
            raise LoopliftError(
                "The trace was written for another model",
                where=f"trace of '{trace.about['source']}'",
                remedy="Trace this model again",
            )
        return replay

    def advance(self) -> Patch:
        """Makes the next commit. Raises LoopliftError if it differs from that of the trace."""
        line = self.commits[self.position]
        phase, rule = self._rule(line)
        node = self.numbers.node(line.root)
        if node is None or node not in self.engine.index:
            raise _diverged(line, "the root does not exist")
        found = self._found(line, rule, node)
        self.bindings = bindings(found)
        patch = self.engine.apply_match(phase, rule, node, found)
        if patch is None or self._last.commit is None:
            raise _diverged(line, "the patch failed its check and was undone")
        added = self.numbers.update(patch)
        if self._hash is not None:
            self._hash.update(patch, added)
        same = self._hash is None or str(self._hash) == line.after
        if not same or list(self._last.commit.edits) != line.edits:
            raise _diverged(line, "the edits differ from those of the trace")
        self.position += 1
        return patch

    def go_to(self, number: int) -> None:
        """Makes the commits up to this one; a replay cannot go back."""
        while self.position < number:
            self.advance()

    def model(self) -> onnx.ModelProto:
        """The model at the current position."""
        return snapshot(self.engine)

    def finish(self) -> onnx.ModelProto:
        """Makes all remaining commits and returns the rewritten model."""
        self.go_to(len(self.commits))
        self.engine.finish()
        return export_model(self.engine.model)

    def _found(self, line: CommitLine, rule: Rule, node: Node) -> object:
        """What the match found: from the trace, or by matching again if the trace lacks it."""
        if line.found is not None:
            with suppress(NotReplayable):
                return self.numbers.decode(line.found, _match_type(rule))
        try:
            return self.engine.match(rule, node)
        except Miss as miss:
            raise _diverged(line, f"the rule declines: {miss}") from miss

    def _rule(self, line: CommitLine) -> tuple[Phase, Rule]:
        found = self._rules.get((line.phase, line.rule))
        if found is None:
            raise _diverged(line, f"there is no rule {line.rule} in a phase {line.phase}")
        return found


def _match_type(rule: Rule) -> type | None:
    """The dataclass that `match` returns, if its annotation names one."""
    try:
        found = get_type_hints(rule.match).get("return")
    except NameError:  # a type that the rule imports for the type checker only
        return None
    return found if isinstance(found, type) and is_dataclass(found) else None


class _LastCommit(Observer):
    """Remembers the last commit."""

    def __init__(self) -> None:
        self.commit: Commit | None = None

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        self.commit = commit


def _diverged(line: CommitLine, why: str) -> LoopliftError:
    return LoopliftError(
        f"The trace cannot be replayed: {why}",
        where=f"commit {line.number}, {line.rule} at {line.node}",
        remedy="Trace the model again, with the rules that are installed now",
    )
