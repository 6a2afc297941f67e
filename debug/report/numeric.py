"""Checks on onnxruntime whether each commit of a rewrite keeps what the model computes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import onnx

from ...rewrite.running.remarks import optimizer_note
from ...rewrite.running.runtime import ExecutionError
from ..reduce.edits import size
from ..reference_runs import ReferenceRuns
from ..replay import Replay
from ..verify_commits import (
    LARGE,
    WHOLE,
    BadCommit,
    CommitVerification,
    Progress,
    compare_versions,
)

CHEAP = 20.0
"""The seconds that running the model after each commit may take by default."""
CUT_OUT = 0.03
"""The seconds to check one commit of a large model, without copying its graph. Most of them go into
creating onnxruntime's session."""
COPIES = 4
"""The time to copy the graph for a check, as a multiple of the time to write the model."""


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
    """The checks of all versions of a model, up to the first that differs."""

    def __init__(
        self,
        start: Callable[[], Replay],
        reference: ReferenceRuns | None,
        runs: Runs,
        progress: Progress | None = None,
    ) -> None:
        """`start` makes a replay that has made no commit; without a reference, nothing is run."""
        replay = start()
        self._reference = reference if reference is not None and reference.cases else None
        self._why_not = "no check was requested" if reference is None else reference.reason
        self._found: CommitVerification | None = None
        self.start = self._unchecked()
        """The check of the model before the first commit, as it was read and written."""
        if self._reference is None:
            return
        began = time.perf_counter()
        model = replay.model()
        made = time.perf_counter()
        self.start = self._check(model)
        run = time.perf_counter() - made
        seconds = _estimate(model, len(replay.commits), made - began, run)
        if runs is Runs.IF_CHEAP and seconds > CHEAP:
            self._why_not = (
                f"running the model after every commit would take about {seconds:.0f} s; --verify "
                "does so"
            )
            return
        self._found = CommitVerification(len(replay.commits))
        compare_versions(self._found, start, self._reference, progress)

    @property
    def bad(self) -> BadCommit | None:
        """The first commit that changes what the model computes."""
        bad = None if self._found is None else self._found.bad
        return bad if bad is not None and bad.number else None

    @property
    def runs(self) -> str:
        """What each version was run with."""
        if self._reference is None:
            return ""
        sizes = self._reference.tested_sizes()
        runs = f"{len(self._reference.compared)} runs" + (f" with {sizes}" if sizes else "")
        crash = self._reference.original_crash
        runs = f"{runs}, {optimizer_note(crash)}" if crash else runs
        return f"{runs} ({self._reference.left_out})" if self._reference.left_out else runs

    def after(self, number: int) -> NumericCheck:
        """The check of the model after a commit."""
        found = self._found
        if found is None:
            return self._unchecked()
        bad = found.bad
        if bad is not None and number > bad.number:
            already = f"commit {bad.number} is already wrong"
            if not bad.number:
                already = "the model differs before the first commit"
            return NumericCheck("unchecked", f"not run: {already}")
        if bad is not None and number == bad.number:
            inner = f"first tensor `{bad.tensor}`: {bad.tensor_difference}; "
            return NumericCheck("different", f"{inner}output `{bad.output}`: {bad.difference}")
        if number in found.cut_out:
            return self._equal("; only the nodes that the commit touched were run")
        crash = found.crashes.get(number, "")
        if crash or number in found.not_optimized:
            return self._equal(_without_optimizer(crash))
        return self._equal("")

    def of_result(self, model: onnx.ModelProto) -> NumericCheck:
        """Checks the rewritten model, also where single commits were not checked."""
        return self._unchecked() if self._reference is None else self._check(model)

    def latency(self, model: onnx.ModelProto) -> tuple[float, float] | None:
        """The median seconds of a run of the original and of a model, on the largest inputs."""
        if self._reference is None:
            return None
        try:
            return self._reference.latencies(model)
        except ExecutionError:
            return None

    def _check(self, model: onnx.ModelProto) -> NumericCheck:
        assert self._reference is not None
        found = self._reference.differences(model)
        if not found and self._reference.crash:
            return NumericCheck("different", self._reference.crash)
        if not found:
            return self._equal("")
        return NumericCheck("different", f"`{found[0].output}`: {found[0].what}")

    def _equal(self, how: str) -> NumericCheck:
        if self._reference is not None and not self._reference.compared:
            return NumericCheck("unchecked", f"not compared: {self._reference.left_out}")
        return NumericCheck("equal", f"equal to the original in {self.runs}{how}")

    def _unchecked(self) -> NumericCheck:
        return NumericCheck("unchecked", f"not run: {self._why_not}")


def _without_optimizer(crash: str) -> str:
    return ", with graph optimizations off" + (f" ({crash})" if crash else "")


def _estimate(model: onnx.ModelProto, commits: int, write: float, run: float) -> float:
    """The seconds that checking all commits takes, from those of writing and running the model."""
    if size(model) < LARGE:
        return commits * (write + run)
    return commits * (run / WHOLE + CUT_OUT + COPIES * write)
