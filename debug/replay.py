"""Makes the commits of a trace again, one by one, without searching for matches.

A commit names its rule, the number of its root node (see `rewrite.numbers`) and what the match
found there. Only where that holds objects of the rule's own, which no file can name, the rule
matches once more, at that node alone. What comes of it is held against the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from typing import get_type_hints

import onnx

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
from .recording import digest
from .snapshot import snapshot
from .subject import Subject
from .trace_file import CommitLine, TraceFile


class Replay:
    """A rewrite that is led by the commits of a trace."""

    def __init__(self, subject: Subject, commits: Sequence[CommitLine]) -> None:
        self.commits = commits
        self.step = 0
        """The number of commits made."""
        self._watch = _Watch()
        self.engine: Engine = subject.engine(self._watch)
        self.numbers = NodeNumbers(self.engine.index)
        checked = bool(commits and commits[0].before)
        self._hash = GraphHash(self.engine.index, self.numbers) if checked else None
        self._rules: dict[tuple[str, str], tuple[Phase, Rule]] = {
            (phase.name, rule.name()): (phase, rule())
            for phase in subject.phases
            for rule in phase.rules
        }

    @classmethod
    def of(cls, subject: Subject, trace: TraceFile) -> Replay:
        """Raises LoopliftError if the trace is of another model."""
        replay = cls(subject, trace.commits)
        if trace.about["digest"] != digest(replay.engine):
            raise LoopliftError(
                "The trace was written for another model",
                where=f"trace of '{trace.about['source']}'",
                remedy="Trace this model again",
            )
        return replay

    def advance(self) -> Patch:
        """Makes the next commit. Raises LoopliftError if it does not come out as in the trace."""
        line = self.commits[self.step]
        phase, rule = self._rule(line)
        node = self.numbers.node(line.number)
        if node is None or node not in self.engine.index:
            raise _astray(line, "its node is not there")
        patch = self.engine.apply_match(phase, rule, node, self._found(line, rule, node))
        if patch is None or self._watch.commit is None:
            raise _astray(line, "its patch is wrong and was undone")
        added = self.numbers.update(patch)
        if self._hash is not None:
            self._hash.update(patch, added)
        same = self._hash is None or str(self._hash) == line.after
        if not same or list(self._watch.commit.edits) != line.edits:
            raise _astray(line, "it changes something else")
        self.step += 1
        return patch

    def go_to(self, step: int) -> None:
        """Makes the commits up to this step; there is no way back."""
        while self.step < step:
            self.advance()

    def model(self) -> onnx.ModelProto:
        """The model as it stands."""
        return snapshot(self.engine)

    def finish(self) -> onnx.ModelProto:
        """Makes all commits that are left; the rewritten model."""
        self.go_to(len(self.commits))
        self.engine.finish()
        return export_model(self.engine.model)

    def _found(self, line: CommitLine, rule: Rule, node: Node) -> object:
        """What the match found: from the trace, or by matching again where the trace cannot say."""
        if line.found is not None:
            with suppress(NotReplayable):
                return self.numbers.decode(line.found, _found_type(rule))
        try:
            return self.engine.match(rule, node)
        except Miss as miss:
            raise _astray(line, f"the rule declines: {miss}") from miss

    def _rule(self, line: CommitLine) -> tuple[Phase, Rule]:
        found = self._rules.get((line.phase, line.rule))
        if found is None:
            raise _astray(line, f"there is no rule {line.rule} in a phase {line.phase}")
        return found


def _found_type(rule: Rule) -> type | None:
    """The dataclass that a rule's `match` returns, if its annotation names one."""
    try:
        found = get_type_hints(rule.match).get("return")
    except NameError:  # of something that the rule imports for the type checker only
        return None
    return found if isinstance(found, type) and is_dataclass(found) else None


class _Watch(Observer):
    """Remembers the last commit."""

    def __init__(self) -> None:
        self.commit: Commit | None = None

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        self.commit = commit


def _astray(line: CommitLine, why: str) -> LoopliftError:
    return LoopliftError(
        f"The trace cannot be replayed: {why}",
        where=f"step {line.step}, {line.rule} at {line.node}",
        remedy="Trace the model again, with the rules that are installed now",
    )
