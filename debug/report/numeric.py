"""Checks on onnxruntime whether each commit of a rewrite keeps what the model computes."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import onnx

from ...rewrite.running.runtime import ExecutionError
from ...rewrite.running.verify import optimizer_note
from ..batch_runner import OptimizerBackoff
from ..reference_runs import ReferenceRuns
from ..replay import Replay
from ..trace_reader import CommitLine
from ..verify_commits import BadCommit, bad_commit

CHEAP = 20.0
"""The seconds that running the model after each commit may take by default."""


class Runs(Enum):
    """Which versions of a model are run."""

    ALL = "all"
    IF_CHEAP = "if cheap"
    NONE = "none"


@dataclass(frozen=True)
class NumericCheck:
    """The result of running one version of the model."""

    state: str
    """`equal`, `different`, or `unchecked`."""
    text: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class NumericChecks:
    """Checks one version of a model after the other, until one differs."""

    def __init__(self, replay: Replay, reference: ReferenceRuns | None, runs: Runs) -> None:
        """`reference` is None if nothing is to be run."""
        self._replay = replay
        self._reference = reference if reference is not None and reference.cases else None
        self._why_not = "no check was requested" if reference is None else reference.reason
        self.bad: BadCommit | None = None
        self._before: onnx.ModelProto | None = None
        self._backoff = OptimizerBackoff()
        self.start = self._unchecked() if self._reference is None else self._first(runs)
        """The check of the model before the first commit, as it was read and written."""

    @property
    def runs(self) -> str:
        """What each version was run with."""
        if self._reference is None:
            return ""
        sizes = self._reference.sizes()
        runs = f"{len(self._reference.cases)} runs" + (f" with {sizes}" if sizes else "")
        crash = self._reference.original_crash
        return f"{runs}, {optimizer_note(crash)}" if crash else runs

    def _first(self, runs: Runs) -> NumericCheck:
        began = time.perf_counter()
        self._before = self._replay.model()
        check = self._check(None, self._before)
        seconds = (time.perf_counter() - began) * len(self._replay.commits)
        if runs is Runs.IF_CHEAP and seconds > CHEAP:
            self._before = None
            self._why_not = (
                f"running the model after every commit would take about {seconds:.0f} s; --verify "
                "does so"
            )
        return check

    def after(self, commit: CommitLine) -> NumericCheck:
        """Checks the model at the position of the replay, after a commit."""
        if self._before is None or self.bad is not None:
            return self._unchecked()
        model = self._replay.model()
        optimizes = self._backoff.optimizes()
        check = self._check(commit, model, optimizes)
        if optimizes and self._reference is not None:
            self._backoff.record(failed=bool(self._reference.crash))
        self._before = model
        return check

    def of_result(self, model: onnx.ModelProto) -> NumericCheck:
        """Checks the rewritten model, also where single commits were not checked."""
        return self._unchecked() if self._reference is None else self._check(None, model)

    def latency(self, model: onnx.ModelProto) -> tuple[float, float] | None:
        """The median seconds of a run of the original and of a model, on the largest inputs."""
        if self._reference is None:
            return None
        try:
            return self._reference.latencies(model)
        except ExecutionError:
            return None

    def _check(
        self, commit: CommitLine | None, model: onnx.ModelProto, optimizes: bool = True
    ) -> NumericCheck:
        assert self._reference is not None
        found = self._reference.differences(model, optimizes)
        crash = self._reference.crash
        if not found and crash and commit is None:
            return NumericCheck("different", crash)
        if not found:
            without = "" if optimizes and not crash else ", with graph optimizations off"
            without += f" ({crash})" if crash else ""
            return NumericCheck("equal", f"equal to the original in {self.runs}{without}")
        if commit is None or self._before is None:
            return NumericCheck("different", f"`{found[0].output}`: {found[0].what}")
        self.bad = bad_commit(commit, found[0], self._reference.first_tensor(self._before, model))
        inner = f"first tensor `{self.bad.tensor}`: {self.bad.tensor_difference}; "
        output = f"output `{self.bad.output}`: {self.bad.difference}"
        return NumericCheck("different", inner + output)

    def _unchecked(self) -> NumericCheck:
        if self.bad is not None:
            return NumericCheck("unchecked", f"not run: commit {self.bad.number} is already wrong")
        return NumericCheck("unchecked", f"not run: {self._why_not}")
