"""The log of a rewrite: which rule fired where, what it changed, how long it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..graph.ir import Node
    from .engine import Engine
    from .patch import Patch
    from .rule import Miss, Rule


@dataclass(frozen=True)
class Commit:
    """A rule fired."""

    number: int
    """Counts the commits of the rewrite, from 1."""
    phase: str
    rule: str
    node: str
    """The root node, as a user would point at it."""
    place: str
    """The body it stands in; empty for the main graph."""
    edits: tuple[str, ...]
    """What was changed, one line each."""
    notes: tuple[str, ...]
    """What the rewrite relies on beyond the file, for the report."""
    seconds: float


@dataclass(frozen=True)
class Defect:
    """A rule produced a patch that failed its check; it was rolled back."""

    phase: str
    rule: str
    node: str
    reason: str


Event = Commit | Defect
Listener = Callable[[Event], None]


class Observer:
    """Follows a rewrite from within: it may read the graph at each call, but changes nothing.

    What a subclass does not override is not observed. Nothing here costs time where a trace has no
    observer.
    """

    sees_attempts = False
    """Whether `visited` and `missed` are called, which happens several times for each node."""

    def begins(self, engine: Engine) -> None:
        """Before the first rule is tried."""

    def visited(self, node: Node) -> None:
        """A node's turn has come; what follows until the next call are attempts at this node."""

    def missed(self, rule: Rule, node: Node, miss: Miss) -> None:
        """A rule declined."""

    def matched(self, rule: Rule, node: Node, found: object) -> None:
        """A rule is about to change the graph; `found` is what its match gave."""

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        """A rule fired at a node. Facts are not refreshed yet."""

    def failed(self, defect: Defect, rule: Rule, node: Node) -> None:
        """A rule's match raised, or its patch was wrong and is undone."""


@dataclass
class Trace:
    """All events of one rewrite."""

    events: list[Event] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    """How often each rule was tried."""
    listener: Listener | None = None
    observer: Observer | None = None

    def record(self, event: Event) -> None:
        self.events.append(event)
        if self.listener is not None:
            self.listener(event)

    def commits(self) -> list[Commit]:
        return [e for e in self.events if isinstance(e, Commit)]

    def notes(self) -> list[str]:
        """What the rewrites rely on beyond the file, each sentence once."""
        return list(dict.fromkeys(note for commit in self.commits() for note in commit.notes))

    def defects(self) -> list[Defect]:
        return [e for e in self.events if isinstance(e, Defect)]
