"""Runs form after form of a model with the same inputs, each form in one request to the process
that runs it: asking for each run alone takes longer than small models do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..rewrite.running.child_process import ChildDied, RemoteObject, shared_process
from ..rewrite.running.runtime import Feed, ProcessCrashed, RuntimeValue, SerializedModel, Session

Interface = tuple[dict[str, str], frozenset[str], list[str]]
Request = tuple[Feed, float]
"""Inputs, and the seconds that a run with them may take."""


class Forms:
    """Runs any model with the same inputs, in a child process."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._remote = RemoteObject(shared_process(), _Requests, requests)
        self._seconds = sum(seconds for _, seconds in requests)

    def outputs(self, packed: SerializedModel, optimizes: bool) -> Answered:
        """What a model computes. Raises `Refused` if onnxruntime does not take it or fails in one
        of the runs, and `ProcessCrashed` if that ends the process.
        """
        try:
            request = "outputs", packed, optimizes
            (inputs, defaults, names), answers = self._remote.call(*request, seconds=self._seconds)
        except ChildDied as death:
            raise ProcessCrashed(str(death)) from None
        return Answered(inputs, defaults, names, iter(answers))

    def close(self) -> None:
        self._remote.close()


@dataclass
class Answered:
    """A model that ran already: gives its answers in the order in which it was asked."""

    inputs: dict[str, str]
    defaults: frozenset[str]
    outputs: list[str]
    answers: Iterator[list[RuntimeValue]]

    def run(
        self, feed: Mapping[str, RuntimeValue], seconds: float | None = None
    ) -> list[RuntimeValue]:
        return next(self.answers)


@dataclass(frozen=True)
class _Requests:
    """The child's side."""

    requests: Sequence[Request]

    def outputs(
        self, packed: SerializedModel, optimizes: bool
    ) -> tuple[Interface, list[list[RuntimeValue]]]:
        session = Session(packed, optimizes=optimizes)
        return session.interface(), [session.run(feed, limit) for feed, limit in self.requests]


class Patience:
    """Whether onnxruntime's optimizer shall be tried on the next form of a model.

    Where it fails it often ends the process, and for many forms on end. After a failure it rests
    for one form, after the next for two, then for four, at most for `LONGEST`.
    """

    LONGEST = 32

    def __init__(self) -> None:
        self._rest = 0
        self._left = 0

    def tries(self) -> bool:
        """Asked once for each form."""
        self._left -= 1
        return self._left < 0

    def learn(self, failed: bool) -> None:
        """Told of each try."""
        self._rest = min(max(1, 2 * self._rest), self.LONGEST) if failed else 0
        self._left = self._rest
