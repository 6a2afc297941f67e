"""Runs of a model on onnxruntime that other forms of it are held against, again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from ..rewrite.assumptions import parse_dims
from ..rewrite.errors import telling_line
from ..rewrite.facts import Assumptions
from ..rewrite.running.cases import Case, Cases, Effort
from ..rewrite.running.chance import random_outputs, recurrent_outputs
from ..rewrite.running.compare import Difference, Tolerances, compare, working_precision
from ..rewrite.running.runtime import Ended, IsolatedSession, Packed, Refused, Value
from ..rewrite.running.signature import NoValues, TensorInput, signature
from ..rewrite.storage.protos import nodes
from ..rewrite.verify import Side, interface_problem, no_case_reason, spread
from .subject import Subject

TRIP_COUNTS = (0, 1, 2, 7)
"""Given to inputs that say how often a loop runs."""

_ONE = Effort(cases=1, attempts=40)
_VIEWS = frozenset({"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"})
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
        self._packed = Packed(proto, self.subject.base_dir)
        self._random = random_outputs(proto)
        self._unspecified = recurrent_outputs(proto)
        self._tolerances = Tolerances(working_precision(proto))
        self._session: IsolatedSession | None = None
        self.crash = ""
        """How onnxruntime's own optimizer failed over the form judged last, which computes the
        same without it; empty if it did not.
        """
        try:
            self._session = IsolatedSession(self._packed)
            self.cases = list(self._search(self._session))
        except (Refused, NoValues) as error:
            self.reason = str(error)

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()

    def sizes(self) -> str:
        """The sizes that were run: `T=1|2|7`."""
        return ", ".join(spread([case.sizes for case in self.cases]))

    def differences(self, model: onnx.ModelProto) -> list[Difference]:
        """What a form of the model does otherwise, at the first case where it does; empty if it
        computes the same in all of them.

        A form that onnxruntime does not load or run is tried again with graph optimizations off: an
        optimizer that fails says nothing about what the model computes.
        """
        packed = Packed(model, self.subject.base_dir)
        self.crash = ""
        try:
            return self._differences(packed)
        except Refused as refusal:
            crash = telling_line(refusal)
        try:
            found = self._differences(packed, optimizes=False)
        except Refused as refusal:
            return [Difference("", f"onnxruntime does not take it: {refusal}")]
        self.crash = "" if found else f"onnxruntime's own optimizer fails: {crash}"
        return found

    def _differences(self, packed: Packed, optimizes: bool = True) -> list[Difference]:
        """Raises `Refused` if onnxruntime does not load it or, optimized, does not run it."""
        assert self._session is not None, "there is nothing to compare with"
        with closing(IsolatedSession(packed, optimizes=optimizes)) as session:
            problem = interface_problem(self._session, session, self.subject.assertions.inputs)
            if problem:
                return [Difference("", problem)]
            return self._judge(session, optimizes)

    def _judge(self, session: IsolatedSession, optimizes: bool) -> list[Difference]:
        assert self._session is not None
        runner = _Watched(session)
        outputs = self._session.outputs
        side = Side(runner, outputs, self._random, self._tolerances, self._unspecified)
        for case in self.cases:
            runner.refusal = None
            try:
                found = side.judge(case, self.effort.run_seconds).differences
            except Ended:
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
        except Refused:
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
        except Refused:
            return None
        values = [[side[name] for name in names] for side in (expected, actual)]
        found = compare(names, values[0], values[1], self._tolerances)
        return replace(found[0], sizes=case.sizes) if found else None

    def _exposed(self, model: onnx.ModelProto, names: Sequence[str]) -> IsolatedSession:
        return IsolatedSession(Packed(exposing(model, names), self.subject.base_dir))

    # --- what is run ---

    def _search(self, session: IsolatedSession) -> Iterator[Case]:
        """Made-up inputs, then some with the trip counts that tell most about loops."""
        cases = self._cases(session, {}, self.effort)
        yield from cases
        self.reason = no_case_reason(cases)
        for name in trip_inputs(self.subject.proto):
            if name not in self.subject.assertions.inputs:
                for count in TRIP_COUNTS:
                    value = np.full(self._shape_of(name), count)
                    yield from self._cases(session, {name: value}, _ONE)

    def _cases(self, session: IsolatedSession, pinned: Mapping[str, Any], effort: Effort) -> Cases:
        given = self.subject.assertions
        dims = parse_dims(given.dims)
        return Cases(
            self.subject.proto,
            session,
            base_dir=self.subject.base_dir,
            inputs={**given.inputs, **pinned},
            assumptions=Assumptions(dims.dims, dims.minima, given.shapes, given.prefix_masks),
            seed=self.seed,
            effort=effort,
        )

    def _shape_of(self, name: str) -> tuple[int, ...]:
        given = signature(self.subject.proto).inputs[name]
        return (1,) if isinstance(given, TensorInput) and given.dims else ()

    def coverage(self) -> dict[str, str]:
        """For each Loop and If of the main graph, by its first output: the trip counts and the
        branches that the cases came upon.
        """
        asked = dict(_decisive(self.subject.proto))
        names = sorted({name for name in asked.values() if name in set(_computed_or_given(self))})
        try:
            session = self._exposed(self.subject.proto, names)
        except Refused:
            return {}
        seen: dict[str, Counter[str]] = {name: Counter() for name in names}
        with closing(session):
            for case in self.cases:
                try:
                    values = _by_name(session, case)
                except Refused:
                    continue
                for name in names:
                    seen[name][_single(values.get(name, case.feed.get(name)))] += 1
        return {node: _told(seen[name]) for node, name in asked.items() if name in seen}


@dataclass
class _Watched:
    """Remembers why a run failed, which for a comparison is a difference like any."""

    session: IsolatedSession
    refusal: Refused | None = None

    def run(self, feed: Mapping[str, Value], seconds: float | None = None) -> list[Value]:
        try:
            return self.session.run(feed, seconds)
        except Refused as refusal:
            self.refusal = refusal
            raise

    def latency(self, feed: Mapping[str, Value], seconds: float = 0.5) -> float:
        return self.session.latency(feed, seconds)


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


def trip_inputs(model: onnx.ModelProto) -> list[str]:
    """Inputs of the main graph that say how often a Loop anywhere in the model may run.

    Names are taken to mean the same in all bodies: a wrong guess only adds a value to try.
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


def _decisive(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """Loops and Ifs of the main graph, with the value that decides what they do."""
    for node in model.graph.node:
        if node.op_type in ("Loop", "If") and node.input and node.input[0]:
            label = next((name for name in node.output if name), node.name)
            yield f"{node.op_type} of `{label}`", node.input[0]


def _computed(model: onnx.ModelProto) -> list[str]:
    return [name for node in model.graph.node for name in node.output if name]


def _computed_or_given(trials: Trials) -> list[str]:
    proto = trials.subject.proto
    return _computed(proto) + [info.name for info in proto.graph.input]


def _by_name(session: IsolatedSession, case: Case) -> dict[str, Value]:
    return dict(zip(session.outputs, session.run(case.feed)))


def _single(value: Value) -> str:
    if isinstance(value, np.ndarray) and value.size == 1:
        return str(value.reshape(-1)[0])
    return "?"


def _told(seen: Counter[str]) -> str:
    told = sorted(seen, key=lambda text: (len(text), text))
    more = f" and {len(told) - _FEW - 1} more" if len(told) > _FEW + 1 else ""
    return ", ".join(told[: _FEW + 1]) + more
