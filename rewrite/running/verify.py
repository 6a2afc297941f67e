"""Verifies a rewritten model: runs it and the original on onnxruntime with the same generated
inputs, at several sizes, and compares the outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from ..errors import summary_line
from ..facts.assertions import Assertions
from ..storage.files import ModelSource, load
from .branches import BranchRecorder, RecordingSession, with_outputs
from .cases import Case, Cases, Effort
from .compare import Difference, Tolerances, compare, max_difference, working_precision
from .nondeterminism import (
    random_outputs,
    recurrent_outputs,
    reduced_outputs,
    scan_outputs,
    stacked_outputs,
)
from .remarks import (
    EMPTY_REDUCTION,
    EMPTY_SCAN_OUTPUT,
    EMPTY_STACK,
    ENDED_EARLY,
    crash_note,
    no_case_reason,
    optimizer_note,
    refusal_notes,
    tested_sizes,
    timeout_note,
    unstable_note,
)
from .rounding import is_explained, nearby_outputs, rounded_versions
from .runtime import (
    Executable,
    ExecutionError,
    IsolatedSession,
    LoadedModel,
    ProcessCrashed,
    RuntimeValue,
    SerializedModel,
)
from .signature import CannotGenerateInputs, DimSizes

MOST_DIFFERENCES = 10
"""No run starts after this many differences are found."""

TIME_FACTOR = 10
"""A rewritten model may take this many times as long as the original, in addition to the time limit
of a run."""


_UNEQUAL_SLICES = "Inconsistent shape in loop output"
"""How onnxruntime refuses slices of a scan output that have different sizes."""


@dataclass
class Verification:
    """What was compared, and the result."""

    sizes: list[DimSizes] = field(default_factory=list)
    """The sizes of the open dimensions in each compared run."""
    refused: int = 0
    """The number of inputs that the original rejected; they say nothing about the rewrite."""
    refused_sizes: dict[str, str] = field(default_factory=dict)
    """The sizes asked for at which the original does not run, with its error."""
    differences: list[Difference] = field(default_factory=list)
    random: list[str] = field(default_factory=list)
    """Outputs that are random in the original; only their types and shapes were compared."""
    ended: list[DimSizes] = field(default_factory=list)
    """Empty sizes at which onnxruntime crashes for the rewritten model but not for the original.

    It crashes for every LSTM or GRU over an empty batch, so this does not count as a difference."""
    empty_reductions: list[DimSizes] = field(default_factory=list)
    """Empty sizes at which outputs differ that the original computes with a reduction, which
    onnxruntime computes wrongly for an empty tensor; this does not count as a difference."""
    reduces: bool = False
    """Whether the original has a reduction on which an output depends."""
    empty_stacks: list[DimSizes] = field(default_factory=list)
    """Empty sizes at which outputs differ that the original stacks from a sequence, whose elements
    onnxruntime does not check if one is empty; this does not count as a difference."""
    unstable: dict[str, list[DimSizes]] = field(default_factory=dict)
    """The sizes at which an output differs by about as much as rounding errors in inputs or weights
    change it in the original, or for an empty input with onnxruntime's optimizer only; by output.
    Such a run does not count."""
    branch_notes: list[str] = field(default_factory=list)
    """Remarks on the branches of the original that never ran."""
    empty_scan_outputs: dict[str, str] = field(default_factory=dict)
    """Shapes of empty outputs that differ where onnxruntime gave a size as 0, by output; see
    `scan_outputs`. This does not count as a difference."""
    crash: str = ""
    """How onnxruntime's optimizer failed on the original, which is a defect of onnxruntime. Both
    models were run without it then."""
    ended_early: bool = False
    """Whether the time limit ended the search for inputs before there were as many as wanted."""
    reason: str = ""
    """Why nothing was compared, if so."""
    rejected: bool = False
    """Whether nothing was compared because onnxruntime does not load the original."""
    timeouts: int = 0
    """The number of inputs for which the original did not end within the time limit of a run."""
    only_empty: str = ""
    """Why onnxruntime rejects all inputs of the original that have elements, if only others were
    compared."""

    @property
    def compared(self) -> int:
        """The number of runs that were compared."""
        return len(self.sizes)

    @property
    def verified(self) -> bool:
        """Whether at least one run was compared and no run differed."""
        return self.compared > 0 and not self.differences

    def notes(self) -> list[str]:
        """Remarks on how the models were compared, apart from what `str` says."""
        notes = refusal_notes(self.refused_sizes)
        if self.ended_early and self.compared:
            notes.append(ENDED_EARLY)
        if self.timeouts and self.compared:
            notes.append(timeout_note(self.timeouts))
        if self.only_empty:
            notes.append(
                "only inputs with a size of 0 were compared, because the original fails for all "
                f"others: {self.only_empty}"
            )
        if self.crash:
            notes.append(optimizer_note(self.crash))
        if self.differences:
            notes += self.crash_notes()
        if self.compared or self.differences:
            notes += self.uncounted_notes()
        for name, shapes in self.empty_scan_outputs.items():
            notes.append(f"`{name}` has {shapes}: {EMPTY_SCAN_OUTPUT}")
        notes += self.branch_notes
        if self.random:
            names = ", ".join(f"`{name}`" for name in self.random)
            notes.append(f"random, so that only types and shapes were compared: {names}")
        return notes

    def uncounted_notes(self) -> list[str]:
        """Why runs of both models say nothing about the rewrite, apart from crashes."""
        notes = []
        if self.empty_reductions:
            place = ", ".join(tested_sizes(self.empty_reductions))
            notes.append(f"the outputs differ at {place}, where {EMPTY_REDUCTION}")
        if self.empty_stacks:
            place = ", ".join(tested_sizes(self.empty_stacks))
            notes.append(f"a run at {place} does not count: {EMPTY_STACK}")
        return notes + [unstable_note(name, sizes) for name, sizes in self.unstable.items()]

    def crash_notes(self) -> list[str]:
        """Which runs are left out because onnxruntime crashes for the rewritten model, if any."""
        return [crash_note(self.ended, self.reduces)] if self.ended else []

    def __str__(self) -> str:
        if self.differences:
            return "different: " + "; ".join(str(found) for found in self.differences)
        if not self.compared:
            return f"not verified: {self.reason}"
        text = f"equal in {self.compared} run{'s' if self.compared > 1 else ''}"
        if any(self.sizes):
            text += f" ({', '.join(tested_sizes(self.sizes))})"
        return "; ".join([text, *self.crash_notes()])


def verify(
    before: ModelSource,
    after: ModelSource,
    *,
    base_dir: str = "",
    inputs: Mapping[str, Any] | None = None,
    assumptions: Assertions | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    effort: Effort | None = None,
    tolerances: Tolerances | None = None,
    threads: int = 1,
) -> Verification:
    """Runs two models with the same inputs and compares their outputs.

    Inputs are generated from the types of `before`, within the assertions. Inputs that `before`
    rejects do not count; all others `after` must accept. `inputs` and those of the assertions are
    values given by the user; `after` may lack these inputs. `sizes` has sizes to try for some open
    dimensions, and raises AssumptionError for others. External data of a ModelProto is relative to
    `base_dir`, by default the folder of `before`.

    If onnxruntime does not load `before` or never runs it, both models are tried again with graph
    optimizations off, because the failure may be that of the optimizer.
    """
    assumptions = assumptions or Assertions()
    proto, folder = _loaded(before, base_dir)
    branches = BranchRecorder.of(proto, folder, assumptions)
    conditions = branches.conditions.values()
    pair = _Pair(
        proto,
        branches,
        SerializedModel(proto, folder),
        SerializedModel(with_outputs(proto, conditions), folder) if conditions else None,
        SerializedModel(*_loaded(after, base_dir or folder)),
        {**assumptions.inputs, **(inputs or {})},
        assumptions,
        sizes,
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
    branches: BranchRecorder
    original: SerializedModel
    recorded: SerializedModel | None
    """The original with the conditions of `branches` as outputs, if there are any."""
    rewritten: SerializedModel
    inputs: Mapping[str, Any]
    assertions: Assertions
    sizes: Mapping[str, Sequence[int]] | None
    seed: int
    effort: Effort
    tolerances: Tolerances
    threads: int

    def compare(self, optimizes: bool) -> Verification:
        """Runs both with onnxruntime's graph optimizations on or off."""
        try:
            original = self._load_original(optimizes)
        except ExecutionError as refusal:
            reason = f"onnxruntime rejects the original model: {refusal}"
            return Verification(reason=reason, crash=summary_line(refusal), rejected=True)
        with closing(original):
            try:
                cases = self._cases(original)
            except CannotGenerateInputs as missing:
                return Verification(reason=str(missing))
            try:
                rewritten = IsolatedSession(
                    self.rewritten,
                    self.threads,
                    optimizes=optimizes,
                    seconds=TIME_FACTOR * self.effort.seconds,
                )
            except ExecutionError as refusal:
                if next(iter(cases), None) is None:
                    return Verification(refused=cases.refused, reason=no_case_reason(cases))
                what = f"onnxruntime rejects the rewritten model: {refusal}"
                return Verification(differences=[Difference("", what)])
            with closing(rewritten):
                return self._compared(original, rewritten, cases)

    def _load_original(self, optimizes: bool) -> IsolatedSession | RecordingSession:
        """Loads the original, with the conditions of its Ifs as outputs if onnxruntime takes it."""

        def load(packed: SerializedModel) -> IsolatedSession:
            return IsolatedSession(
                packed, self.threads, optimizes=optimizes, seconds=self.effort.seconds
            )

        if self.recorded is not None:
            try:
                count = len(self.proto.graph.output)
                return RecordingSession(load(self.recorded), self.branches, count)
            except ExecutionError:  # if the original itself is at fault, it fails below
                pass
        return load(self.original)

    def _cases(self, original: LoadedModel) -> Cases:
        return Cases(
            self.proto,
            original,
            base_dir=self.original.folder,
            inputs=self.inputs,
            assertions=self.assertions,
            choices=self.sizes,
            seed=self.seed,
            effort=self.effort,
        )

    def _compared(
        self, original: LoadedModel, rewritten: LoadedModel, cases: Cases
    ) -> Verification:
        problem = interface_problem(original, rewritten, self.inputs)
        if problem:
            return Verification(differences=[Difference("", problem)])
        reduced = reduced_outputs(self.proto)
        result = Verification(random=random_outputs(self.proto), reduces=bool(reduced))
        candidate = Candidate.of(
            self.proto,
            original,
            rewritten,
            self.tolerances,
            self.original.folder,
            self._rewritten_unoptimised,
        )
        _compare_cases(result, cases, candidate, self.effort)
        result.branch_notes = self.branches.notes()
        return result

    def _rewritten_unoptimised(self, seconds: float) -> IsolatedSession:
        """The rewritten model as onnxruntime runs it without its optimizer."""
        return IsolatedSession(self.rewritten, self.threads, optimizes=False, seconds=seconds)


def _compare_cases(
    result: Verification, cases: Cases, candidate: Candidate, effort: Effort
) -> None:
    for case in cases:
        try:
            comparison = candidate.compare_run(case, effort.run_seconds)
        except ProcessCrashed:
            result.ended.append(case.sizes)
            continue
        if comparison.reduces:
            result.empty_reductions.append(case.sizes)
        elif comparison.stacks:
            result.empty_stacks.append(case.sizes)
        elif not comparison.unstable:
            result.sizes.append(case.sizes)
        for name in comparison.unstable:
            result.unstable.setdefault(name, []).append(case.sizes)
        result.differences += comparison.differences
        for name, shapes in comparison.empty_scan_outputs.items():
            result.empty_scan_outputs.setdefault(name, shapes)
        if len(result.differences) >= MOST_DIFFERENCES:
            break
    result.refused = cases.refused
    result.refused_sizes = cases.refused_choices()
    result.ended_early = cases.ended_early
    result.timeouts = cases.timeouts
    if not counts_enough(result.sizes, result.unstable):
        result.sizes.clear()
    others_are_refused = cases.refused and not (cases.timeouts or result.unstable)
    if others_are_refused and result.sizes and all(0 in s.values() for s in result.sizes):
        result.only_empty = summary_line(cases.last_refusal)
    if not result.compared:
        left_out = result.crash_notes() + result.uncounted_notes()
        result.reason = "; ".join(left_out) or no_case_reason(cases)
        is_known = not (cases.timeouts or cases.ended_early or left_out)
        crashed = cases.refused and is_known
        result.crash = summary_line(cases.last_refusal) if crashed else ""


@dataclass(frozen=True)
class RunComparison:
    """The result of one compared run."""

    differences: list[Difference]
    distance: float = 0.0
    """The largest absolute difference between floats, where types and shapes agree."""
    reduces: bool = False
    """Whether outputs differ that depend on a reduction of a possibly empty tensor."""
    stacks: bool = False
    """Whether outputs differ that depend on a stack of possibly empty tensors."""
    unstable: Sequence[str] = ()
    """The outputs that differ only by as much as rounding errors change them in the original, or
    for an empty input only with onnxruntime's optimizer."""
    empty_scan_outputs: dict[str, str] = field(default_factory=dict)
    """Shapes that differ where onnxruntime gave sizes of an empty scan output as 0, by output."""


@dataclass(frozen=True)
class Candidate:
    """A model to compare with the original, which counts as right."""

    original: LoadedModel
    runner: Executable
    nearby: Executable
    """The original, for runs with slightly different inputs."""
    versions: Callable[[float], Iterator[Executable]]
    """Versions of the original that differ by rounding errors, within a time in seconds; see
    `rounded_versions`."""
    random: Collection[str]
    """Outputs whose types and shapes only are compared."""
    tolerances: Tolerances
    unspecified: Collection[str] = ()
    """Outputs whose types and shapes only are compared where a size is 0."""
    reduced: Collection[str] = ()
    """Outputs that may differ where a size is 0; see `reduced_outputs`."""
    stacked: Collection[str] = ()
    """Outputs whose types and shapes only count where a size is 0; see `stacked_outputs`."""
    scanned: Collection[str] = ()
    """Outputs that have undefined sizes where they are empty; see `scan_outputs`."""
    not_vectors: Collection[str] = ()
    """Those of them that onnxruntime returns with the shape (0,) if the body states no rank."""
    unoptimised: Callable[[float], IsolatedSession] | None = None
    """Loads this model for onnxruntime without its optimizer, within a time in seconds."""
    unexplained: list[DimSizes] = field(default_factory=list)
    """The sizes of runs that no version explained. Loading them again would take long."""

    @classmethod
    def of(
        cls,
        proto: onnx.ModelProto,
        original: LoadedModel,
        runner: Executable,
        tolerances: Tolerances,
        base_dir: str = "",
        unoptimised: Callable[[float], IsolatedSession] | None = None,
    ) -> Candidate:
        """A version of the model `proto`, which onnxruntime has loaded as `original`.

        External data is relative to `base_dir`.
        """
        scanned = scan_outputs(proto)
        return cls(
            original,
            runner,
            original.unrecorded() if isinstance(original, RecordingSession) else original,
            lambda seconds: rounded_versions(proto, base_dir, seconds=seconds),
            random_outputs(proto),
            tolerances,
            recurrent_outputs(proto),
            reduced_outputs(proto),
            stacked_outputs(proto),
            scanned,
            frozenset(scanned).intersection(original.not_vectors),
            unoptimised,
        )

    def compare_run(self, case: Case, seconds: float) -> RunComparison:
        """Runs a case and compares the outputs; a failure counts as a difference.

        Raises `ProcessCrashed` if the run crashes on an empty input.
        """
        limit = seconds + TIME_FACTOR * case.seconds
        try:
            actual = self.runner.run(case.feed, limit)
        except ExecutionError as refusal:
            if isinstance(refusal, ProcessCrashed) and 0 in case.sizes.values():
                raise
            if self.reduced and 0 in case.sizes.values():
                return RunComparison([], reduces=True)
            if self.stacked and _UNEQUAL_SLICES in str(refusal):
                return RunComparison([], stacks=True)
            what = f"the original runs, this one fails: {refusal}"
            return RunComparison([Difference("", what, sizes=case.sizes)])
        empty = 0 in case.sizes.values()
        expected, actual = (self._comparable(v, empty) for v in (case.outputs, actual))
        undefined: dict[str, str] = {}
        for number, (name, old, new) in enumerate(zip(self.original.outputs, expected, actual)):
            allowed = name in self.scanned and is_empty_stack(old, new)
            if allowed or (name in self.not_vectors and is_unranked_stack(old, new)):
                shapes = [list(np.asarray(value).shape) for value in (new, old)]
                if shapes[0] != shapes[1]:
                    undefined[name] = f"shape {shapes[0]} instead of {shapes[1]}"
                actual[number] = old
        distance = max_difference(expected, actual)
        uncounted = self._changed_by_optimizer if empty else self._unstable
        unstable = uncounted(case, expected, actual, limit)
        for number in unstable:
            actual[number] = expected[number]
        names = self.original.outputs
        found = compare(names, expected, actual, self.tolerances)
        reduced = [each for each in found if empty and each.output in self.reduced]
        stacked = [
            each
            for each in found
            if empty and each.index is not None and each.output in self.stacked
        ]
        counted = [each for each in found if each not in reduced and each not in stacked]
        placed = [replace(difference, sizes=case.sizes) for difference in counted]
        return RunComparison(
            placed,
            distance,
            bool(reduced),
            bool(stacked),
            [names[number] for number in unstable],
            undefined,
        )

    def _differing(
        self, expected: Sequence[RuntimeValue], actual: Sequence[RuntimeValue]
    ) -> list[int]:
        """The positions of outputs that differ."""
        each = enumerate(zip(self.original.outputs, expected, actual))
        return [
            number
            for number, (name, old, new) in each
            if compare([name], [old], [new], self.tolerances)
        ]

    def _changed_by_optimizer(
        self,
        case: Case,
        expected: Sequence[RuntimeValue],
        actual: Sequence[RuntimeValue],
        seconds: float,
    ) -> list[int]:
        """The positions of outputs that differ, but not without the optimizer of onnxruntime.

        Of an empty sum of products, onnxruntime 1.31 returns memory that nothing wrote if its
        optimizer has fused a Transpose or a factor into the MatMul.
        """
        excused = {*self.reduced, *self.stacked}
        names = self.original.outputs
        differ = [n for n in self._differing(expected, actual) if names[n] not in excused]
        if not differ or self.unexplained or not _have_same_shapes(expected, actual):
            return []
        end = time.monotonic() + seconds

        def rest() -> float:
            return max(end - time.monotonic(), 0.0)

        versions = self.versions(rest())  # which closes a version when it is dropped
        original = next(versions, None)  # without the optimizer
        if original is None:
            return []
        try:
            expected = self._comparable(original.run(case.feed, rest()), empty=True)
            if self.unoptimised is not None:
                with closing(self.unoptimised(rest())) as other:
                    actual = self._comparable(other.run(case.feed, rest()), empty=True)
        except ExecutionError:
            return []
        left = self._differing(expected, actual)
        if not set(differ).isdisjoint(left):
            self.unexplained.append(case.sizes)
        return [number for number in differ if number not in left]

    def _unstable(
        self,
        case: Case,
        expected: Sequence[RuntimeValue],
        actual: Sequence[RuntimeValue],
        seconds: float,
    ) -> list[int]:
        """The positions of outputs whose differences rounding errors in the original explain."""
        differ = self._differing(expected, actual)
        if not differ:
            return []
        end = time.monotonic() + seconds
        nearby = list(nearby_outputs(self.nearby, case.feed, self.tolerances, seconds=seconds))

        def unexplained() -> list[int]:
            return [
                number
                for number in differ
                if not is_explained(
                    expected[number],
                    actual[number],
                    [outputs[number] for outputs in nearby],
                    self.tolerances,
                )
            ]

        left = unexplained()
        if left and not self.unexplained and _have_same_shapes(expected, actual):
            for version in self.versions(max(end - time.monotonic(), 0.0)):
                try:
                    outputs = version.run(case.feed, seconds)
                except ExecutionError:  # such a run says nothing about the outputs
                    continue
                # Weights may decide sizes: those of the original count.
                if _have_same_shapes(expected, outputs):
                    nearby.append(outputs)
                if not (left := unexplained()):
                    break
            if left:
                self.unexplained.append(case.sizes)
        return [number for number in differ if number not in left]

    def _comparable(self, values: Sequence[RuntimeValue], empty: bool) -> list[RuntimeValue]:
        hidden = {*self.random, *(self.unspecified if empty else ())}
        pairs = zip(self.original.outputs, values, strict=False)
        return [zeroed(value) if name in hidden else value for name, value in pairs]


def _have_same_shapes(expected: Sequence[RuntimeValue], actual: Sequence[RuntimeValue]) -> bool:
    """Whether all tensors have the same shapes, and all sequences the same lengths."""
    return len(expected) == len(actual) and all(
        _have_same_shapes(old, new)
        if isinstance(old, list) and isinstance(new, list)
        else type(old) is type(new) and getattr(old, "shape", ()) == getattr(new, "shape", ())
        for old, new in zip(expected, actual)
    )


def is_empty_stack(expected: RuntimeValue, actual: RuntimeValue) -> bool:
    """Whether both are empty, and only sizes differ that onnxruntime gave as 0; see `scan_outputs`.

    One axis has size 0 in both.
    """
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return False
    if expected.dtype != actual.dtype or expected.ndim != actual.ndim:
        return False
    sizes = list(zip(expected.shape, actual.shape))
    return (0, 0) in sizes and all(old in (0, new) for old, new in sizes)


def is_unranked_stack(expected: RuntimeValue, actual: RuntimeValue) -> bool:
    """Whether both are stacks of no slices, and onnxruntime gave the first one axis only."""
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return False
    is_empty = expected.shape == (0,) and actual.shape[:1] == (0,)
    return is_empty and expected.dtype == actual.dtype


def zeroed(value: RuntimeValue) -> RuntimeValue:
    """A value of the same type and shape, with zeros."""
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    return [zeroed(element) for element in value] if isinstance(value, list) else value


def interface_problem(original: LoadedModel, rewritten: LoadedModel, given: Collection[str]) -> str:
    """Why callers of the original cannot call the rewritten model; empty if they can."""
    if rewritten.outputs != original.outputs:
        return f"the outputs are {rewritten.outputs} instead of {original.outputs}"
    added = [name for name in rewritten.inputs if name not in original.inputs]
    if added:
        return f"the rewritten model has inputs that the original lacks: {added}"
    lost = [n for n in original.inputs if n not in rewritten.inputs and n not in given]
    return f"the rewritten model lacks the inputs {lost} of the original" if lost else ""


def counts_enough(sizes: Iterable[DimSizes], unstable: Collection[object]) -> bool:
    """Whether runs of these sizes suffice although other runs are unstable: not if each has an
    empty input.
    """
    return not unstable or any(0 not in each.values() for each in sizes)


def _loaded(source: ModelSource, base_dir: str) -> tuple[onnx.ModelProto, str]:
    return (source, base_dir) if isinstance(source, onnx.ModelProto) else load(source)
