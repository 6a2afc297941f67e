"""Whether each step of a rewrite keeps what the model computes, by running it on onnxruntime."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import onnx

from ...rewrite.running.verify import optimizer_note
from ..forms import Patience
from ..replay import Replay
from ..trace_file import CommitLine
from ..trials import Trials
from ..verify_steps import BadStep, bad_step

CHEAP = 20.0
"""Seconds that running a model after each step may take when nobody asked for it."""


class Wanted(Enum):
    """Which forms of a model are run."""

    ALL = "all"
    IF_CHEAP = "if cheap"
    NONE = "none"


@dataclass(frozen=True)
class Verdict:
    """What came of running one form of the model."""

    state: str
    """`equal`, `different`, or `unchecked`."""
    text: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Checks:
    """Judges one form of a model after the other, until one differs."""

    def __init__(self, replay: Replay, trials: Trials | None, wanted: Wanted) -> None:
        """`trials` is None where nothing shall be run."""
        self._replay = replay
        self._trials = trials if trials is not None and trials.cases else None
        self._why_not = "no check was asked for" if trials is None else trials.reason
        self.bad: BadStep | None = None
        self._before: onnx.ModelProto | None = None
        self._patience = Patience()
        self.start = self._unchecked() if self._trials is None else self._first(wanted)
        """What came of the model as it was read and written, before the first step."""

    @property
    def runs(self) -> str:
        """What each form was run with."""
        if self._trials is None:
            return ""
        sizes = self._trials.sizes()
        ran = f"{len(self._trials.cases)} runs" + (f" with {sizes}" if sizes else "")
        crash = self._trials.original_crash
        return f"{ran}, {optimizer_note(crash)}" if crash else ran

    def _first(self, wanted: Wanted) -> Verdict:
        began = time.perf_counter()
        self._before = self._replay.model()
        verdict = self._judge(None, self._before)
        seconds = (time.perf_counter() - began) * len(self._replay.commits)
        if wanted is Wanted.IF_CHEAP and seconds > CHEAP:
            self._before = None
            self._why_not = f"to run every step would take about {seconds:.0f} s; --verify does"
        return verdict

    def after(self, commit: CommitLine) -> Verdict:
        """Judges the model as the replay has it now, after a commit."""
        if self._before is None or self.bad is not None:
            return self._unchecked()
        model = self._replay.model()
        optimizes = self._patience.tries()
        verdict = self._judge(commit, model, optimizes)
        if optimizes and self._trials is not None:
            self._patience.learn(failed=bool(self._trials.crash))
        self._before = model
        return verdict

    def of_result(self, model: onnx.ModelProto) -> Verdict:
        """Judges the rewritten model, also where the single steps were not."""
        return self._unchecked() if self._trials is None else self._judge(None, model)

    def _judge(
        self, commit: CommitLine | None, model: onnx.ModelProto, optimizes: bool = True
    ) -> Verdict:
        assert self._trials is not None
        found = self._trials.differences(model, optimizes)
        crash = self._trials.crash
        if not found and crash and commit is None:
            return Verdict("different", crash)
        if not found:
            without = "" if optimizes and not crash else ", with graph optimizations off"
            without += f" ({crash})" if crash else ""
            return Verdict("equal", f"equal to the original in {self.runs}{without}")
        if commit is None or self._before is None:
            return Verdict("different", f"`{found[0].output}`: {found[0].what}")
        self.bad = bad_step(commit, found[0], self._trials.first_inner(self._before, model))
        inner = f"first tensor `{self.bad.tensor}`: {self.bad.tensor_difference}; "
        return Verdict("different", f"{inner}output `{self.bad.output}`: {self.bad.difference}")

    def _unchecked(self) -> Verdict:
        if self.bad is not None:
            return Verdict("unchecked", f"not run: step {self.bad.step} is wrong already")
        return Verdict("unchecked", f"not run: {self._why_not}")
