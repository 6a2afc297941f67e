"""The log of a rewrite: which rule fired where, what it changed, how long it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Commit:
    """One applied rewrite."""

    number: int
    """The number of the commit, from 1."""
    phase: str
    rule: str
    node: str
    """The root node, as messages name it."""
    place: str
    """The bodies around the root; empty in the main graph."""
    edits: tuple[str, ...]
    """What was changed, one line per edit."""
    notes: tuple[str, ...]
    """What the rewrite relies on beyond the file, for the report."""
    seconds: float
    """The time that `apply` and the checks took."""


@dataclass(frozen=True)
class Defect:
    """A rule raised an error, or made a patch that failed its check and was undone."""

    phase: str
    rule: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.node}: {self.reason}"


Event = Commit | Defect
Listener = Callable[[Event], None]


@dataclass
class Trace:
    """All events of one rewrite."""

    events: list[Event] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    """How often each rule was tried, by name."""
    listener: Listener | None = None
    """Called with each event."""

    def record(self, event: Event) -> None:
        """Appends an event and calls the listener."""
        self.events.append(event)
        if self.listener is not None:
            self.listener(event)

    def commits(self) -> list[Commit]:
        """All applied rewrites."""
        return [e for e in self.events if isinstance(e, Commit)]

    def notes(self) -> list[str]:
        """What the rewrites rely on beyond the file, each sentence once."""
        return list(dict.fromkeys(note for commit in self.commits() for note in commit.notes))

    def defects(self) -> list[Defect]:
        """All defects of rules."""
        return [e for e in self.events if isinstance(e, Defect)]
