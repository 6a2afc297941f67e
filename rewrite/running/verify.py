"""Whether a rewritten model computes what the original computes: both run on onnxruntime with the
same made-up inputs, at several sizes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..errors import telling_line
from ..facts.assertions import Assertions
from ..storage.files import load
from .cases import Case, Cases, Effort
from .compare import Difference, Tolerances, compare, distance, working_precision
from .randomness import random_outputs, recurrent_outputs
from .runtime import Answering, Ended, IsolatedSession, Packed, Refused, Runner, Value
from .signature import NoValues, Sizes

Source = str | Path | onnx.ModelProto

MOST_DIFFERENCES = 10
"""No run is started after this many differences are found."""

SLACK = 10
"""A rewritten model may take this many times as long as the original, and a run's limit besides,
before it is said not to end."""


@dataclass
class Verification:
    """What was compared and what came of it."""

    sizes: list[Sizes] = field(default_factory=list)
    """The sizes of the open dimensions in each run that was compared."""
    refused: int = 0
    """How many inputs the original did not take; these say nothing about the rewriting."""
    differences: list[Difference] = field(default_factory=list)
    random: list[str] = field(default_factory=list)
    """Outputs the original draws at random: of those only types and shapes were compared."""
    ended: list[Sizes] = field(default_factory=list)
    """Empty sizes at which onnxruntime ends its process for the rewritten model though not for the
    original: it does so for every LSTM or GRU over an empty batch. Not counted as a difference.
    """
    crash: str = ""
    """How onnxruntime's own optimizer failed over the original. It is a defect of onnxruntime; both
    models were run without it.
    """
    reason: str = ""
    """Why nothing was compared, if nothing was."""

    @property
    def compared(self) -> int:
        """The number of runs that were compared."""
        return len(self.sizes)

    @property
    def verified(self) -> bool:
        """True if at least one run was compared and none differed."""
        return self.compared > 0 and not self.differences

    def notes(self) -> list[str]:
        """What a reader should know besides the verdict."""
        notes = []
        if self.crash:
            notes.append(without_optimizer(self.crash))
        if self.ended:
            place = next(spread(self.ended))
            notes.append(
                f"onnxruntime ends its process for the rewritten model at {place}, which the "
                "original takes: it does so for any LSTM or GRU without elements"
            )
        if self.random:
            drawn = ", ".join(f"`{name}`" for name in self.random)
            notes.append(f"drawn at random, so only the shapes were compared: {drawn}")
        return notes

    def __str__(self) -> str:
        if self.differences:
            return "different: " + "; ".join(str(found) for found in self.differences)
        if not self.compared:
            return f"not verified: {self.reason}"
        text = f"equal in {self.compared} run{'s' if self.compared > 1 else ''}"
        if any(self.sizes):
            text += f" ({', '.join(spread(self.sizes))})"
        return text


def verify(
    before: Source,
    after: Source,
    *,
    base_dir: str = "",
    inputs: Mapping[str, Any] | None = None,
    assumptions: Assertions | None = None,
    seed: int = 0,
    effort: Effort | None = None,
    tolerances: Tolerances | None = None,
    threads: int = 1,
) -> Verification:
    """Run two models with the same inputs and compare their outputs.

    Inputs are made up from the types of `before`, within the assumptions. What `before` refuses
    says nothing; what it takes, `after` must take too. `after` may lack those in `inputs` and in
    the assumptions, which are values given by the user. External data of a ModelProto is relative
    to `base_dir`, by default the folder of `before`.

    Where onnxruntime does not load `before` or never runs it, both are tried again with graph
    optimizations off: an optimizer that fails says nothing about what is computed.
    """
    assumptions = assumptions or Assertions()
    proto, folder = _loaded(before, base_dir)
    pair = _Pair(
        proto,
        Packed(proto, folder),
        Packed(*_loaded(after, base_dir or folder)),
        {**assumptions.inputs, **(inputs or {})},
        assumptions,
        seed,
        effort or Effort(),
        tolerances or Tolerances(working_precision(proto)),
        threads,
    )
    end = time.monotonic() + pair.effort.seconds
    result = pair.compare(optimizes=True)
    if not result.crash:
        return result
    rest = replace(pair.effort, seconds=end - time.monotonic())
    again = replace(pair, effort=rest).compare(optimizes=False)
    return replace(result, crash="") if again.reason else replace(again, crash=result.crash)


@dataclass(frozen=True)
class _Pair:
    """Two models, and how they are compared."""

    proto: onnx.ModelProto
    original: Packed
    rewritten: Packed
    inputs: Mapping[str, Any]
    assertions: Assertions
    seed: int
    effort: Effort
    tolerances: Tolerances
    threads: int

    def compare(self, optimizes: bool) -> Verification:
        """Run both with onnxruntime's graph optimizations on or off."""
        try:
            original = IsolatedSession(self.original, self.threads, optimizes=optimizes)
        except Refused as refusal:
            reason = f"onnxruntime does not take the original model: {refusal}"
            return Verification(reason=reason, crash=telling_line(refusal))
        with closing(original):
            try:
                cases = self._cases(original)
            except NoValues as missing:
                return Verification(reason=str(missing))
            try:
                rewritten = IsolatedSession(self.rewritten, self.threads, optimizes=optimizes)
            except Refused as refusal:
                what = f"onnxruntime does not take the rewritten model: {refusal}"
                return Verification(differences=[Difference("", what)])
            with closing(rewritten):
                return self._compared(original, rewritten, cases)

    def _cases(self, original: Runner) -> Cases:
        return Cases(
            self.proto,
            original,
            base_dir=self.original.folder,
            inputs=self.inputs,
            assertions=self.assertions,
            seed=self.seed,
            effort=self.effort,
        )

    def _compared(self, original: Runner, rewritten: Runner, cases: Cases) -> Verification:
        problem = interface_problem(original, rewritten, self.inputs)
        if problem:
            return Verification(differences=[Difference("", problem)])
        result = Verification(random=random_outputs(self.proto))
        empty = recurrent_outputs(self.proto)
        side = Side(rewritten, original.outputs, result.random, self.tolerances, empty)
        _compare_cases(result, cases, side, self.effort)
        return result


def _compare_cases(result: Verification, cases: Cases, side: Side, effort: Effort) -> None:
    for case in cases:
        try:
            found = side.judge(case, effort.run_seconds).differences
        except Ended:
            result.ended.append(case.sizes)
            continue
        result.sizes.append(case.sizes)
        result.differences += found
        if len(result.differences) >= MOST_DIFFERENCES:
            break
    result.refused = cases.refused
    if not result.compared:
        result.reason = no_case_reason(cases)
        result.crash = telling_line(cases.last_refusal) if cases.refused else ""


@dataclass(frozen=True)
class Judgement:
    """What came of one run that is held against another."""

    differences: list[Difference]
    distance: float = 0.0
    """The largest absolute difference between numbers, where types and shapes agree."""


@dataclass(frozen=True)
class Side:
    """A model that is held against another one, which runs and is right."""

    runner: Answering
    outputs: Sequence[str]
    random: Collection[str]
    """Outputs of which only types and shapes are compared."""
    tolerances: Tolerances
    unspecified: Collection[str] = ()
    """Outputs of which no more is compared where a size is 0."""

    def judge(self, case: Case, seconds: float) -> Judgement:
        """Run a case and compare; failing where the other did not is a difference.

        Raises `Ended` if the run ends the process over an empty input.
        """
        try:
            actual = self.runner.run(case.feed, seconds + SLACK * case.seconds)
        except Refused as refusal:
            if isinstance(refusal, Ended) and 0 in case.sizes.values():
                raise
            what = f"the original runs, this one fails: {refusal}"
            return Judgement([Difference("", what, sizes=case.sizes)])
        empty = 0 in case.sizes.values()
        expected, actual = (self._comparable(v, empty) for v in (case.outputs, actual))
        found = compare(self.outputs, expected, actual, self.tolerances)
        placed = [replace(difference, sizes=case.sizes) for difference in found]
        return Judgement(placed, distance(expected, actual))

    def _comparable(self, values: Sequence[Value], empty: bool) -> list[Value]:
        hidden = {*self.random, *(self.unspecified if empty else ())}
        pairs = zip(self.outputs, values, strict=False)
        return [zeroed(value) if name in hidden else value for name, value in pairs]


def zeroed(value: Value) -> Value:
    """A value of the same type and shape that says nothing else."""
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    return [zeroed(element) for element in value] if isinstance(value, list) else value


def interface_problem(original: Runner, rewritten: Runner, given: Collection[str]) -> str:
    """What a caller of the original would trip over; empty if nothing."""
    if rewritten.outputs != original.outputs:
        return f"the outputs are {rewritten.outputs} instead of {original.outputs}"
    added = [name for name in rewritten.inputs if name not in original.inputs]
    if added:
        return f"the rewritten model asks for inputs that the original lacks: {added}"
    lost = [n for n in original.inputs if n not in rewritten.inputs and n not in given]
    return f"the rewritten model lost the inputs {lost}" if lost else ""


def without_optimizer(crash: str) -> str:
    """Says that both models were run as they are, and why."""
    return (
        "compared with graph optimizations off: onnxruntime's own optimizer fails over the "
        f"original: {crash}"
    )


def no_case_reason(cases: Cases) -> str:
    """Why there was nothing to compare."""
    return (
        f"the original model took none of {cases.refused} made-up inputs; "
        f"of the last one it says: {cases.last_refusal}"
    )


def spread(sizes: Sequence[Sizes]) -> Iterator[str]:
    """For each open dimension the sizes that were run: `T=1|2|7`."""
    for name in dict.fromkeys(name for assignment in sizes for name in assignment):
        used = sorted({assignment[name] for assignment in sizes if name in assignment})
        yield f"{name}={'|'.join(map(str, used))}"


def _loaded(source: Source, base_dir: str) -> tuple[onnx.ModelProto, str]:
    return (source, base_dir) if isinstance(source, onnx.ModelProto) else load(source)
