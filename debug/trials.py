"""Runs of a model on onnxruntime that other forms of it are held against, again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from ..rewrite.errors import summary_line
from ..rewrite.running.cases import Case, Cases, Effort
from ..rewrite.running.compare import Difference, Tolerances, compare, working_precision
from ..rewrite.running.nondeterminism import random_outputs, recurrent_outputs
from ..rewrite.running.runtime import (
    ExecutionError,
    IsolatedSession,
    LoadedModel,
    ProcessCrashed,
    RuntimeValue,
    SerializedModel,
)
from ..rewrite.running.signature import CannotGenerateInputs, TensorInput, input_signature
from ..rewrite.running.verify import (
    TIME_FACTOR,
    Candidate,
    interface_problem,
    no_case_reason,
    tested_sizes,
)
from .decisive import TRIP_COUNTS, decisive, trip_inputs
from .forms import Forms
from .subject import Subject

_ONE = Effort(cases=1, attempts=40)
_FEW = 4
"""Different values of a trip count or condition that are told."""


@dataclass
class Trials:
    """Inputs that a model takes, and what it makes of them. Close it, or use it in a `with`."""

    subject: Subject
    seed: int = 0
    effort: Effort = field(default_factory=Effort)
    cases: list[Case] = field(default_factory=list)
    reason: str = ""
    """Why there are no cases, if there are none."""

    def __post_init__(self) -> None:
        proto = self.subject.proto
        self._packed = SerializedModel(proto, self.subject.base_dir)
        self._random = random_outputs(proto)
        self._unspecified = recurrent_outputs(proto)
        self._tolerances = Tolerances(working_precision(proto))
        self._session: IsolatedSession | None = None
        self._forms: Forms | None = None
        self._optimizes = True
        self.original_crash = ""
        """How onnxruntime's own optimizer failed over the original: all is run without it then."""
        self.crash = ""
        """How onnxruntime's own optimizer failed over the form judged last, which computes the
        same without it; empty if it did not.
        """
        crash = self._prepare()
        if crash:
            self._prepare_without_optimizer(crash)

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        for held in (self._session, self._forms):
            if held is not None:
                held.close()

    def sizes(self) -> str:
        """The sizes that were run: `T=1|2|7`."""
        return ", ".join(tested_sizes([case.sizes for case in self.cases]))

    def differences(self, model: onnx.ModelProto, optimizes: bool = True) -> list[Difference]:
        """What a form of the model does otherwise, at the first case where it does; empty if it
        computes the same in all of them. `optimizes` is whether onnxruntime may change the graph.

        A form that onnxruntime does not load or run is tried again with graph optimizations off: an
        optimizer that fails says nothing about what the model computes.
        """
        packed = SerializedModel(model, self.subject.base_dir)
        self.crash = crash = ""
        if optimizes and self._optimizes:
            try:
                return self._differences(packed, optimizes=True)
            except ExecutionError as refusal:
                crash = f"onnxruntime's own optimizer fails: {summary_line(refusal)}"
        try:
            found = self._differences(packed, optimizes=False)
        except ExecutionError as refusal:
            return [Difference("", f"onnxruntime does not take it: {refusal}")]
        self.crash = "" if found else crash
        return found

    def _differences(self, packed: SerializedModel, optimizes: bool) -> list[Difference]:
        """Raises `ExecutionError` if onnxruntime does not load it or, optimized, run it."""
        assert self._forms is not None, "there is nothing to compare with"
        try:
            return self._judge(self._forms.outputs(packed, optimizes), optimizes)
        except ExecutionError as refusal:
            if optimizes and not self._may_end(refusal):
                raise
        # Run by run, which tells the one that fails.
        with closing(IsolatedSession(packed, optimizes=optimizes)) as session:
            return self._judge(session, optimizes)

    def _may_end(self, refusal: ExecutionError) -> bool:
        """Whether it says nothing about the rewrite, because some input is empty."""
        return isinstance(refusal, ProcessCrashed) and any(
            0 in case.sizes.values() for case in self.cases
        )

    def _judge(self, model: LoadedModel, optimizes: bool) -> list[Difference]:
        assert self._session is not None
        problem = interface_problem(self._session, model, self.subject.assertions.inputs)
        if problem:
            return [Difference("", problem)]
        runner = _Watched(model)
        outputs = self._session.outputs
        side = Candidate(runner, outputs, self._random, self._tolerances, self._unspecified)
        for case in self.cases:
            runner.refusal = None
            try:
                found = side.compare_run(case, self.effort.run_seconds).differences
            except ProcessCrashed:
                continue  # over an empty input, which says nothing about the rewrite
            if optimizes and runner.refusal is not None:
                raise runner.refusal
            if found:
                return found
        return []

    def first_inner(self, left: onnx.ModelProto, right: onnx.ModelProto) -> Difference | None:
        """The first value of the main graph, in the order in which `right` computes them, that is
        there in both and differs; None if none does or one of them cannot be run.
        """
        names = [n for n in _computed(right) if n in set(_computed(left))]
        if not names:
            return None
        try:
            pair = [self._exposed(model, names) for model in (left, right)]
        except ExecutionError:
            return None
        with closing(pair[0]), closing(pair[1]):
            for case in self.cases:
                found = self._compare(pair, case, names)
                if found is not None:
                    return found
        return None

    def _compare(
        self, pair: Sequence[IsolatedSession], case: Case, names: Sequence[str]
    ) -> Difference | None:
        try:
            expected, actual = (_by_name(session, case) for session in pair)
        except ExecutionError:
            return None
        values = [[side[name] for name in names] for side in (expected, actual)]
        found = compare(names, values[0], values[1], self._tolerances)
        return replace(found[0], sizes=case.sizes) if found else None

    def _exposed(self, model: onnx.ModelProto, names: Sequence[str]) -> IsolatedSession:
        """Without the optimizer: each value as its own node computes it."""
        packed = SerializedModel(exposing(model, names), self.subject.base_dir)
        return IsolatedSession(packed, optimizes=False)

    # --- what is run ---

    def _prepare(self) -> str:
        """Finds the cases; what onnxruntime says of the original if it takes none of them."""
        refusal: ExecutionError | None = None
        try:
            self._session = IsolatedSession(self._packed, optimizes=self._optimizes)
            first = self._cases(self._session, {}, self.effort)
            self.cases = [*first, *self._with_trip_counts(self._session)]
            if not self.cases:
                self.reason = no_case_reason(first)
                refusal = first.last_refusal if first.refused else None
        except ExecutionError as error:
            self.reason, refusal = str(error), error
        except CannotGenerateInputs as error:
            self.reason = str(error)
        if self.cases:
            seconds = self.effort.run_seconds
            self._forms = Forms([(c.feed, seconds + TIME_FACTOR * c.seconds) for c in self.cases])
        return "" if refusal is None else summary_line(refusal)

    def _prepare_without_optimizer(self, crash: str) -> None:
        """An optimizer that fails over the original says nothing about what it computes."""
        reason, self._optimizes = self.reason, False
        if self._session is not None:
            self._session.close()
        self._prepare()
        if self.cases:
            self.reason, self.original_crash = "", crash
        else:
            self.reason = reason

    def _with_trip_counts(self, session: IsolatedSession) -> Iterator[Case]:
        """Inputs with the trip counts that tell most about loops."""
        for name in trip_inputs(self.subject.proto):
            if name not in self.subject.assertions.inputs:
                for count in TRIP_COUNTS:
                    value = np.full(self._shape_of(name), count)
                    yield from self._cases(session, {name: value}, _ONE)

    def _cases(self, session: IsolatedSession, pinned: Mapping[str, Any], effort: Effort) -> Cases:
        return Cases(
            self.subject.proto,
            session,
            base_dir=self.subject.base_dir,
            inputs={**self.subject.assertions.inputs, **pinned},
            assumptions=self.subject.assumptions,
            seed=self.seed,
            effort=effort,
        )

    def _shape_of(self, name: str) -> tuple[int, ...]:
        given = input_signature(self.subject.proto).inputs[name]
        return (1,) if isinstance(given, TensorInput) and given.dims else ()

    def coverage(self) -> dict[str, str]:
        """For each Loop and If of the main graph, by its first output: the trip counts and the
        branches that the cases came upon.
        """
        asked = dict(decisive(self.subject.proto))
        names = sorted({name for name in asked.values() if name in set(_computed_or_given(self))})
        try:
            session = self._exposed(self.subject.proto, names)
        except ExecutionError:
            return {}
        seen: dict[str, Counter[str]] = {name: Counter() for name in names}
        with closing(session):
            for case in self.cases:
                try:
                    values = _by_name(session, case)
                except ExecutionError:
                    continue
                for name in names:
                    seen[name][_single(values.get(name, case.feed.get(name)))] += 1
        return {node: _told(seen[name]) for node, name in asked.items() if name in seen}


@dataclass
class _Watched:
    """Remembers why a run failed, which for a comparison is a difference like any."""

    runner: LoadedModel
    refusal: ExecutionError | None = None

    def run(
        self, feed: Mapping[str, RuntimeValue], seconds: float | None = None
    ) -> list[RuntimeValue]:
        try:
            return self.runner.run(feed, seconds)
        except ExecutionError as refusal:
            self.refusal = refusal
            raise


def exposing(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with further outputs. onnxruntime finds their types itself."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    there = {info.name for info in copy.graph.output}
    given = {info.name for info in copy.graph.input} | {t.name for t in copy.graph.initializer}
    for name in names:
        if name not in there | given:
            copy.graph.output.add(name=name)
    return copy


def _computed(model: onnx.ModelProto) -> list[str]:
    return [name for node in model.graph.node for name in node.output if name]


def _computed_or_given(trials: Trials) -> list[str]:
    proto = trials.subject.proto
    return _computed(proto) + [info.name for info in proto.graph.input]


def _by_name(session: IsolatedSession, case: Case) -> dict[str, RuntimeValue]:
    return dict(zip(session.outputs, session.run(case.feed)))


def _single(value: RuntimeValue) -> str:
    if isinstance(value, np.ndarray) and value.size == 1:
        return str(value.reshape(-1)[0])
    return "?"


def _told(seen: Counter[str]) -> str:
    told = sorted(seen, key=lambda text: (len(text), text))
    more = f" and {len(told) - _FEW - 1} more" if len(told) > _FEW + 1 else ""
    return ", ".join(told[: _FEW + 1]) + more
