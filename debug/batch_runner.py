"""Runs successive versions of a model with the same inputs.

All runs of a version are one request to the child process: with a request for each run, small
models would spend more time on communication than on computation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..rewrite.running.child_process import ChildDied, RemoteObject, shared_process
from ..rewrite.running.runtime import Feed, ProcessCrashed, RuntimeValue, SerializedModel, Session

Interface = tuple[dict[str, str], frozenset[str], list[str], frozenset[str]]
Run = tuple[Feed, float]
"""Inputs, and the time limit of the run in seconds."""


class BatchRunner:
    """Runs any model with the same inputs in a child process."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._remote = RemoteObject(shared_process(), _Worker, runs)
        self._seconds = sum(seconds for _, seconds in runs)

    def outputs(self, packed: SerializedModel, optimizes: bool) -> CompletedRuns:
        """Runs a model with all inputs. `optimizes` is whether onnxruntime may change the graph.

        Raises `ExecutionError` if onnxruntime does not load the model or fails in a run, and
        `ProcessCrashed` if the process crashes.
        """
        interface: Interface
        results: list[list[RuntimeValue]]
        try:
            interface, results = self._remote.call(
                "outputs", packed, optimizes, seconds=self._seconds
            )
        except ChildDied as death:
            raise ProcessCrashed(str(death)) from None
        return CompletedRuns(*interface, iter(results))

    def close(self) -> None:
        self._remote.close()


@dataclass
class CompletedRuns:
    """A model whose runs are done: a runner that returns their outputs one after the other."""

    inputs: dict[str, str]
    defaults: frozenset[str]
    outputs: list[str]
    not_vectors: frozenset[str]
    results: Iterator[list[RuntimeValue]]

    def run(
        self, feed: Mapping[str, RuntimeValue], seconds: float | None = None
    ) -> list[RuntimeValue]:
        return next(self.results)


@dataclass(frozen=True)
class _Worker:
    """The side of the child process."""

    runs: Sequence[Run]

    def outputs(
        self, packed: SerializedModel, optimizes: bool
    ) -> tuple[Interface, list[list[RuntimeValue]]]:
        session = Session(packed, optimizes=optimizes)
        return session.interface(), [session.run(feed, limit) for feed, limit in self.runs]


class OptimizerBackoff:
    """Decides whether to run the next version with onnxruntime's optimizer.

    A failing optimizer often crashes the process, for many versions in a row. After a failure the
    optimizer is left out for one version, after the next failure for two, then for four, and so on
    up to `LONGEST`.
    """

    LONGEST = 32

    def __init__(self) -> None:
        self._pause = 0
        self._left = 0

    def optimizes(self) -> bool:
        """Whether to try the optimizer; to be called once for each version."""
        self._left -= 1
        return self._left < 0

    def record(self, failed: bool) -> None:
        """Records the result of a try."""
        self._pause = min(max(1, 2 * self._pause), self.LONGEST) if failed else 0
        self._left = self._pause
