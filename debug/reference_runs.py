"""Runs of an original model on onnxruntime, with which its rewritten versions are compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..request import Request
from ..rewrite.errors import summary_line
from ..rewrite.running.branches import BranchRecorder, with_outputs
from ..rewrite.running.cases import Case, Cases, Effort
from ..rewrite.running.compare import Difference, Tolerances, compare, working_precision
from ..rewrite.running.nondeterminism import reduced_outputs
from ..rewrite.running.remarks import crash_note, no_case_reason, tested_sizes, unstable_note
from ..rewrite.running.runtime import (
    ExecutionError,
    IsolatedSession,
    LoadedModel,
    ProcessCrashed,
    RuntimeValue,
    SerializedModel,
)
from ..rewrite.running.signature import CannotGenerateInputs, TensorInput, input_signature
from ..rewrite.running.verify import TIME_FACTOR, Candidate, counts_enough, interface_problem
from ..rewrite.storage.protos import body_protos, containers, nodes
from .batch_runner import BatchRunner

TRIP_COUNTS = (0, 1, 2, 7)
"""The values tried for inputs that limit the trip count of a Loop."""
_ONE = Effort(cases=1, attempts=40)
_LATENCY_SECONDS = 0.2
"""The time for which a latency is measured."""
_MOST_VALUES = 6
"""Different trip counts or conditions that are listed for one node."""
_VIEWS = frozenset({"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"})
"""Operators through which an input may become a trip count."""


@dataclass
class ReferenceRuns:
    """Inputs that a model accepts, and its outputs for them. Close it, or use it in a `with`."""

    request: Request
    seed: int = 0
    effort: Effort = field(default_factory=Effort)
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The sizes to try for some open dimensions."""
    cases: list[Case] = field(default_factory=list)
    reason: str = ""
    """Why there are no cases, if there are none."""

    def __post_init__(self) -> None:
        proto = self.request.proto
        self._packed = SerializedModel(proto, self.request.base_dir)
        self._reduced = reduced_outputs(proto)
        self.tolerances = Tolerances(working_precision(proto))
        self._session: IsolatedSession | None = None
        self._runner: BatchRunner | None = None
        self._optimizes = True
        self.refused_sizes: dict[str, str] = {}
        """The sizes asked for at which the original does not run, with its error."""
        self.branch_notes: list[str] = []
        """The remarks of `coverage` on branches that never ran."""
        self._ended: set[int] = set()
        """The cases in which onnxruntime crashed for a version, on an empty input."""
        self._unstable: dict[int, Sequence[str]] = {}
        """The outputs that differed because of rounding errors, by the number of the case."""
        self.original_crash = ""
        """How onnxruntime's optimizer failed on the original; then everything runs without it."""
        self.crash = ""
        """How onnxruntime's optimizer failed on the version compared last, although that computes
        the same without it; empty if it did not fail."""
        crash = self._find_cases()
        if crash:
            self._find_cases_without_optimizer(crash)

    def __enter__(self) -> ReferenceRuns:
        return self

    def __exit__(self, *_: object) -> None:
        for resource in (self._session, self._runner):
            if resource is not None:
                resource.close()

    def tested_sizes(self) -> str:
        """The sizes of the open dimensions in the compared cases: `T=1|2|7`."""
        return ", ".join(tested_sizes([case.sizes for case in self.compared]))

    @property
    def compared(self) -> list[Case]:
        """The cases in which every version so far could be compared."""
        left_out = self._ended | self._unstable.keys()
        found = [case for number, case in enumerate(self.cases) if number not in left_out]
        return found if counts_enough([case.sizes for case in found], self._unstable) else []

    @property
    def left_out(self) -> str:
        """Why the other cases do not count; empty if all do."""
        ended = [self.cases[number].sizes for number in sorted(self._ended)]
        reasons = [crash_note(ended, bool(self._reduced))] if ended else []
        for name in dict.fromkeys(name for names in self._unstable.values() for name in names):
            numbers = [number for number, names in self._unstable.items() if name in names]
            reasons.append(unstable_note(name, [self.cases[number].sizes for number in numbers]))
        return "; ".join(reasons)

    def differences(self, model: onnx.ModelProto, optimizes: bool = True) -> list[Difference]:
        """How a version of the model differs in the first case where it does; empty if it computes
        the same in all cases. `optimizes` is whether onnxruntime may change the graph.

        A version that onnxruntime does not load or run is tried again with graph optimizations off:
        an optimizer that fails says nothing about what the model computes.
        """
        packed = SerializedModel(model, self.request.base_dir)
        self.crash = crash = ""
        if optimizes and self._optimizes:
            try:
                return self._differences(packed, optimizes=True)
            except ExecutionError as refusal:
                crash = f"onnxruntime's own optimizer fails: {summary_line(refusal)}"
        try:
            found = self._differences(packed, optimizes=False)
        except ExecutionError as refusal:
            return [Difference("", f"onnxruntime does not accept it: {refusal}")]
        self.crash = "" if found else crash
        return found

    def latencies(self, model: onnx.ModelProto) -> tuple[float, float]:
        """The median seconds of a run of the original and of a version of the model.

        Both run on the inputs on which the original took longest. Raises ExecutionError.
        """
        case = max(self.cases, key=lambda each: each.seconds)
        found = []
        for proto in (self.request.proto, model):
            packed = SerializedModel(proto, self.request.base_dir)
            with closing(IsolatedSession(packed, optimizes=self._optimizes)) as session:
                found.append(session.latency(case.feed, _LATENCY_SECONDS))
        return found[0], found[1]

    def _differences(self, packed: SerializedModel, optimizes: bool) -> list[Difference]:
        """Raises `ExecutionError` if onnxruntime does not load the version or, with optimizations,
        does not run it.
        """
        assert self._runner is not None, "there are no cases"
        try:
            return self._compare_cases(self._runner.outputs(packed, optimizes), optimizes)
        except ExecutionError as refusal:
            if optimizes and not self._may_be_empty_input(refusal):
                raise
        # Run by run, to find out which run fails.
        with closing(IsolatedSession(packed, optimizes=optimizes)) as session:
            return self._compare_cases(session, optimizes)

    def _may_be_empty_input(self, refusal: ExecutionError) -> bool:
        """Whether an empty input may have crashed the process: not a fault of the rewrite."""
        return isinstance(refusal, ProcessCrashed) and any(
            0 in case.sizes.values() for case in self.cases
        )

    def _compare_cases(self, model: LoadedModel, optimizes: bool) -> list[Difference]:
        assert self._session is not None
        problem = interface_problem(self._session, model, self.request.assertions.inputs)
        if problem:
            return [Difference("", problem)]
        runner = _RefusalRecorder(model)
        side = Candidate.of(
            self.request.proto, self._session, runner, self.tolerances, self.request.base_dir
        )
        ended = set()
        unstable: dict[int, Sequence[str]] = {}
        for number, case in enumerate(self.cases):
            runner.refusal = None
            try:
                comparison = side.compare_run(case, self.effort.run_seconds)
            except ProcessCrashed:  # on an empty input: not a fault of the rewrite
                ended.add(number)
                continue
            if optimizes and not self._is_excused(case) and runner.refusal is not None:
                raise runner.refusal
            if comparison.differences:
                return comparison.differences
            if comparison.unstable:
                unstable[number] = comparison.unstable
        self._ended |= ended
        self._unstable |= unstable
        return []

    def _is_excused(self, case: Case) -> bool:
        """Whether a run may fail because onnxruntime reduces empty tensors wrongly."""
        return bool(self._reduced) and 0 in case.sizes.values()

    def first_tensor(self, left: onnx.ModelProto, right: onnx.ModelProto) -> Difference | None:
        """The first value of the main graph that both versions compute and that differs.

        Values are in the order in which `right` computes them. None if none of them differs or a
        version cannot be run.
        """
        names = [n for n in _computed(right) if n in set(_computed(left))]
        if not names:
            return None
        try:
            sessions = [self._exposed(model, names) for model in (left, right)]
        except ExecutionError:
            return None
        with closing(sessions[0]), closing(sessions[1]):
            for case in self.cases:
                found = self._compare_values(sessions, case, names)
                if found is not None:
                    return found
        return None

    def main_values(
        self, model: onnx.ModelProto, most_bytes: int
    ) -> list[dict[str, RuntimeValue]] | None:
        """The values of the main graph in each case, inputs included; None if they take more than
        `most_bytes`, or if the model does not run when it returns them.
        """
        found: list[dict[str, RuntimeValue]] = []
        try:
            with closing(self._exposed(model, list(_computed(model)))) as session:
                for case in self.cases:
                    found.append({**case.feed, **_by_name(session, case)})
                    if len(self.cases) * _bytes(found[0].values()) > most_bytes:
                        return None
        except ExecutionError:
            return None
        return found

    def _compare_values(
        self, sessions: Sequence[IsolatedSession], case: Case, names: Sequence[str]
    ) -> Difference | None:
        try:
            expected, actual = (_by_name(session, case) for session in sessions)
        except ExecutionError:
            return None
        values = [[side[name] for name in names] for side in (expected, actual)]
        found = compare(names, values[0], values[1], self.tolerances)
        return replace(found[0], sizes=case.sizes) if found else None

    def _exposed(self, model: onnx.ModelProto, names: Sequence[str]) -> IsolatedSession:
        """Runs without the optimizer, so that each value is computed by its own node."""
        packed = SerializedModel(with_outputs(model, names), self.request.base_dir)
        return IsolatedSession(packed, optimizes=False)

    # --- the cases ---

    def _find_cases(self) -> str:
        """Finds the cases; returns what onnxruntime says if it accepts none, or else nothing."""
        refusal: ExecutionError | None = None
        try:
            self._session = IsolatedSession(self._packed, optimizes=self._optimizes)
            first = self._cases(self._session, {}, self.effort)
            self.cases = [*first, *self._cases_of_trip_counts(self._session)]
            self.refused_sizes = first.refused_choices()
            if not self.cases:
                self.reason = no_case_reason(first)
                refusal = first.last_refusal if first.refused else None
        except ExecutionError as error:
            self.reason, refusal = str(error), error
        except CannotGenerateInputs as error:
            self.reason = str(error)
        if self.cases:
            seconds = self.effort.run_seconds
            self._runner = BatchRunner(
                [(c.feed, seconds + TIME_FACTOR * c.seconds) for c in self.cases]
            )
        return "" if refusal is None else summary_line(refusal)

    def _find_cases_without_optimizer(self, crash: str) -> None:
        """An optimizer that fails on the original says nothing about what it computes."""
        reason, self._optimizes = self.reason, False
        if self._session is not None:
            self._session.close()
        self._find_cases()
        if self.cases:
            self.reason, self.original_crash = "", crash
        else:
            self.reason = reason

    def _cases_of_trip_counts(self, session: IsolatedSession) -> Iterator[Case]:
        """Cases with the trip counts at which loops are most likely to differ."""
        for name in trip_count_inputs(self.request.proto):
            if name not in self.request.assertions.inputs:
                for count in TRIP_COUNTS:
                    value = np.full(self._shape_of(name), count)
                    yield from self._cases(session, {name: value}, _ONE)

    def _cases(self, session: IsolatedSession, inputs: Mapping[str, Any], effort: Effort) -> Cases:
        return Cases(
            self.request.proto,
            session,
            base_dir=self.request.base_dir,
            inputs=inputs,
            assertions=self.request.resolved,
            choices=self.sizes,
            seed=self.seed,
            effort=effort,
        )

    def _shape_of(self, name: str) -> tuple[int, ...]:
        declared = input_signature(self.request.proto).inputs[name]
        return (1,) if isinstance(declared, TensorInput) and declared.dims else ()

    # --- what the cases cover ---

    def coverage(self) -> dict[str, str]:
        """What the cases reach, for each Loop and If of the main graph by its first output: how
        many iterations ran, or which values the condition had.
        """
        counting, iterations = with_iteration_numbers(self.request.proto)
        conditions = _conditions(self.request.proto)
        names = sorted({*iterations.values(), *conditions.values()})
        try:
            session = self._exposed(counting, names)
        except ExecutionError:
            return {}
        seen: dict[str, list[RuntimeValue]] = {name: [] for name in names}
        branches = BranchRecorder.of(
            self.request.proto, self.request.base_dir, self.request.resolved
        )
        with closing(session):
            for case in self.cases:
                try:
                    values = {**case.feed, **_by_name(session, case)}
                except ExecutionError:
                    continue
                branches.record(values)
                for name in names:
                    seen[name].append(values.get(name))
        self.branch_notes = branches.notes()
        loops = {node: _iterations_text(seen[name]) for node, name in iterations.items()}
        ifs = {node: _listed(map(_scalar_text, seen[name])) for node, name in conditions.items()}
        return {**loops, **ifs} if all(seen.values()) else {}


@dataclass
class _RefusalRecorder:
    """A runner that remembers why a run failed; to a comparison a failure is just a difference."""

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


def trip_count_inputs(model: onnx.ModelProto) -> list[str]:
    """Inputs of the main graph that limit the trip count of a Loop anywhere in the model.

    Follows names without regard to scopes: a wrong guess only adds a value to try.
    """
    types = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    integers = {
        n for n, t in types.items() if t in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    }
    sources = {name: name for name in integers}
    found: dict[str, None] = {}
    for node in nodes(model.graph):
        if node.op_type in _VIEWS and node.input and node.input[0] in sources:
            sources[node.output[0]] = sources[node.input[0]]
        if node.op_type == "Loop" and node.input[0] in sources:
            found[sources[node.input[0]]] = None
    return list(found)


def with_iteration_numbers(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """A copy of the model whose Loops also return the numbers of the iterations that ran.

    Returns the names of these scan outputs by Loop of the main graph.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    owners = [*containers(copy.graph)]
    taken = {name for owner in owners for node in owner.node for name in node.output}
    taken |= {info.name for owner in owners for info in owner.input}
    fresh = (name for k in itertools.count() if (name := f"iterations_{k}") not in taken)
    found: dict[str, str] = {}
    for node in copy.graph.node:
        body = next(body_protos(node), None)
        if node.op_type != "Loop" or node.domain or body is None:
            continue
        label, number = _label(node), next(fresh)
        body.node.add(op_type="Identity", input=[body.input[0].name], output=[number])
        body.output.append(helper.make_tensor_value_info(number, onnx.TensorProto.INT64, []))
        found[label] = next(fresh)
        node.output.append(found[label])
    return copy, found


def _conditions(model: onnx.ModelProto) -> dict[str, str]:
    """The conditions of the Ifs of the main graph that are inputs or that a node computes."""
    known = {*_computed(model), *(info.name for info in model.graph.input)}
    ifs = [node for node in model.graph.node if node.op_type == "If" and not node.domain]
    return {_label(node): node.input[0] for node in ifs if known.intersection(node.input[:1])}


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} of `{next((name for name in node.output if name), node.name)}`"


def _computed(model: onnx.ModelProto) -> list[str]:
    return [name for node in model.graph.node for name in node.output if name]


def _by_name(session: IsolatedSession, case: Case) -> dict[str, RuntimeValue]:
    return dict(zip(session.outputs, session.run(case.feed)))


def _scalar_text(value: RuntimeValue) -> str:
    if isinstance(value, np.ndarray) and value.size == 1:
        return str(value.reshape(-1)[0])
    return "?"


def _iterations_text(numbers: Iterable[RuntimeValue]) -> str:
    """`0, 1, 7 iterations`, from the iteration numbers of each run."""
    counts = {str(len(value)) for value in numbers if isinstance(value, np.ndarray)}
    return f"{_listed(counts)} iteration{'s' * (counts != {'1'})}"


def _listed(seen: Iterable[str]) -> str:
    texts = sorted(set(seen), key=lambda text: (len(text), text))
    more = len(texts) - _MOST_VALUES
    return ", ".join(texts[:_MOST_VALUES]) + (f" and {more} more" if more > 0 else "")


def _bytes(values: Iterable[RuntimeValue]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))
