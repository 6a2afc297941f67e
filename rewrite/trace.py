"""The log of a rewrite: which rule fired where, what it changed, how long it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Commit:
    """A rule fired."""

    step: int
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


@dataclass
class Trace:
    """All events of one rewrite."""

    events: list[Event] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    """How often each rule was tried."""
    listener: Listener | None = None

    def record(self, event: Event) -> None:
        self.events.append(event)
        if self.listener is not None:
            self.listener(event)

    def commits(self) -> list[Commit]:
        return [e for e in self.events if isinstance(e, Commit)]

    def defects(self) -> list[Defect]:
        return [e for e in self.events if isinstance(e, Defect)]
