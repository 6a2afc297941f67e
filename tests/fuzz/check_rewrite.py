"""Checks the rewrite of one model: validity, equal outputs, stability."""

from __future__ import annotations

import gc
import os
import pickle
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import printer
from onnx.reference import ReferenceEvaluator

from looplift import RewriteResult, rewrite
from looplift.rewrite.engine.rule import Phase
from looplift.rewrite.errors import LoopliftError, visible
from looplift.rewrite.running.compare import (
    Tolerances,
    compare,
    distances,
    is_float,
    working_precision,
)
from looplift.rewrite.running.nondeterminism import (
    concatenated_outputs,
    scan_outputs,
    stacked_outputs,
)
from looplift.rewrite.running.rounding import nearby_outputs
from looplift.rewrite.running.runtime import (
    Executable,
    ExecutionError,
    ProcessCrashed,
    SerializedModel,
    Session,
)
from looplift.rewrite.running.verify import is_empty_stack, is_unranked_stack
from looplift.rewrite.storage.summary import count_operators
from looplift.rules.recurrence.emission import CRASHES
from looplift.rules.recurrence.fuse import BROADCASTS

from .contradictions import breaks_declarations, contradicts_initial_values

Feed = Mapping[str, Any]
Run = tuple[Feed, list[Any]]
"""Inputs and outputs of the original; OPEN for an output that the specification leaves open."""


_ROUNDING_FACTOR = 20.0
"""How much more a rewrite may change an output than a rounding error of the inputs does."""


class _Open:
    """Stands for an output whose elements the specification leaves open in a run."""


OPEN = _Open()


def check_rewrite(
    model: onnx.ModelProto,
    feeds: Sequence[Feed],
    tally: Counter[str] | None = None,
    seconds: float = 2.0,
    rules: Sequence[Phase] | None = None,
) -> list[str]:
    """What is wrong with the rewrite; inputs on which the original fails do not count.

    A run of the original may take this many seconds, one of the rewritten model twice as many.
    `rules` replaces looplift's phases.
    """
    tally = Counter() if tally is None else tally
    try:
        original = Session(SerializedModel(model))
    except ExecutionError:
        tally["models that onnxruntime rejects"] += 1
        return []
    runs, is_contradictory = _runs(model, original, feeds, seconds, tally)
    untouched = model.SerializeToString()
    try:
        result = rewrite(model, rules=rules)
    except Exception as error:  # noqa: BLE001  any error is a finding
        if isinstance(error, LoopliftError) and not is_valid(model):
            tally["models that break the specification"] += 1
            return []
        return [f"rewrite raised {type(error).__name__}: {error}"]
    _count(result, tally)
    findings = [f"defect: {defect}" for defect in result.report.defects]
    if model.SerializeToString() != untouched:
        findings.append("the given model was changed")
    if any(not _has_empty_output(outputs) for _, outputs in runs) and is_valid(model):
        # Shape inference may reject a model that always fails only once more shapes are known.
        findings += _invalid(result.model)
    findings += _differences(result, model, original, runs, 2 * seconds, is_contradictory)
    # looplift drops wrong declarations, and a second rewrite no longer respects them.
    return findings if is_contradictory else findings + _changes_again(result, rules)


def _count(result: RewriteResult, tally: Counter[str]) -> None:
    for op in ("Loop", "Scan", "If"):
        tally[f"{op}s before"] += result.report.before[op]
        tally[f"{op}s after"] += result.report.after[op]
    tally.update({f"rule {name}": count for name, count in result.report.commits.items()})


def _runs(
    model: onnx.ModelProto,
    session: Session,
    feeds: Sequence[Feed],
    seconds: float,
    tally: Counter[str],
) -> tuple[list[Run], bool]:
    """The runs that succeed and that keep the specification.

    Also whether the model declares other sizes than it computes, or than a loop starts with.
    onnxruntime relies on declarations when it plans its memory, so that a run may fail, and when it
    returns a stack of no slices. Then only runs without empty outputs count, and only what they
    compute.
    """
    runs, stacks = [], frozenset(stacked_outputs(model))
    is_contradictory = contradicts_initial_values(model)
    for feed in feeds:
        try:
            outputs: list[Any] | None = session.run(feed, seconds)
        except ExecutionError:
            tally["runs that fail in the original"] += 1
            continue
        assert outputs is not None
        if breaks_declarations(model, feed, outputs):
            tally["runs whose outputs have other sizes than declared"] += 1
            is_contradictory = True
            continue
        if stacks and has_empty(feed):
            outputs = _without_open_elements(model, feed, outputs, stacks)
        if outputs is None:
            tally["runs that break the specification"] += 1
        else:
            runs.append((feed, outputs))
    if is_contradictory:
        runs = [(feed, outputs) for feed, outputs in runs if not _has_empty_output(outputs)]
    tally["runs"] += len(runs)
    return runs, is_contradictory


def _without_open_elements(
    model: onnx.ModelProto, feed: Feed, outputs: Sequence[Any], stacks: Collection[str]
) -> list[Any] | None:
    """The outputs, with OPEN for stacks of which the reference computes other elements.

    onnxruntime returns memory that nothing wrote for a stack of tensors of different sizes, one of
    them empty (see `stacked_outputs`). None for a run that the reference refuses.
    """
    try:
        expected: list[Any] = list(ReferenceEvaluator(model).run(None, dict(feed)))
    except Exception:  # noqa: BLE001  the reference raises errors of any type
        return None
    names = [output.name for output in model.graph.output]
    return [
        OPEN if name in stacks and compare([name], [right], [given]) else given
        for name, right, given in zip(names, expected, outputs)
    ]


def has_empty(feed: Feed) -> bool:
    """Whether an input has no elements."""
    return any(np.size(value) == 0 for value in feed.values())


def _has_empty_output(outputs: Sequence[Any]) -> bool:
    return any(isinstance(value, np.ndarray) and not value.size for value in outputs)


def is_undefined(model: onnx.ModelProto, feed: Feed) -> bool:
    """Whether a run breaks the specification, or has operators of onnxruntime, which have none.

    onnxruntime accepts some runs that break it, and may read memory that nothing wrote. It refuses
    some runs that keep it.
    """
    if any(entry.domain for entry in model.opset_import):
        return True
    if has_empty(feed) and count_operators(model)["Scan"]:  # which onnxruntime does not run
        return False
    try:
        ReferenceEvaluator(model).run(None, dict(feed))
    except Exception:  # noqa: BLE001  the reference raises errors of any type
        return True
    return False


def is_valid(model: onnx.ModelProto) -> bool:
    return not _invalid(model)


def _invalid(model: onnx.ModelProto) -> list[str]:
    errors = onnx.checker.ValidationError, onnx.shape_inference.InferenceError
    try:
        onnx.checker.check_model(model, full_check=True)
    except (*errors, ValueError) as error:  # a ValueError for an element type that does not exist
        return [f"the result is not valid: {error}"]
    return []


def _differences(
    result: RewriteResult,
    before: onnx.ModelProto,
    original: Session,
    runs: Sequence[Run],
    seconds: float,
    may_fail: bool,
) -> list[str]:
    names = [output.name for output in before.graph.output]
    if [output.name for output in result.model.graph.output] != names:
        return ["the outputs have other names"]
    if not runs:
        return []
    may_crash = any(CRASHES in note for note in result.report.notes)
    # For the original, onnxruntime inferred sizes of empty outputs from the first iteration only.
    loses_sizes = any(BROADCASTS in note for note in result.report.notes)
    stacks = StacksWithoutSlices(before, runs)
    try:
        rewritten = Session(SerializedModel(result.model))
    except ExecutionError as refusal:
        if _is_never_given_elements(before) and _loads_unoptimized(result.model):
            return []
        return [f"onnxruntime rejects the result: {refusal}"]
    findings = []
    for feed, expected in runs:
        try:
            if may_crash:
                actual = run_in_fork(rewritten, feed, seconds)
            else:
                actual = rewritten.run(feed, seconds)
        except ProcessCrashed:
            continue
        except ExecutionError as refusal:
            if may_fail or (has_empty(feed) and is_undefined(before, feed)):
                continue
            kept = _run_with_lost_values(result.model, feed, seconds)
            if kept is None:
                findings.append(f"a run fails now, with {shown(feed)}: {refusal}")
                continue
            actual = kept
        if loses_sizes:
            actual = [a if is_empty_stack(b, a) else b for a, b in zip(expected, actual)]
        actual = stacks.fill_in(expected, actual)
        findings += differences(before, original, feed, expected, actual)
    return findings


def _is_never_given_elements(model: onnx.ModelProto) -> bool:
    """Whether an input is declared with a size of 0.

    onnxruntime makes a Gemm of a MatMul and an Add, by way of a Reshape to `[0, …]`, which copies a
    size; then it refuses the sizes that it infers from that.
    """
    return any(
        dim.HasField("dim_value") and dim.dim_value == 0
        for value in model.graph.input
        for dim in value.type.tensor_type.shape.dim
    )


def _loads_unoptimized(model: onnx.ModelProto) -> bool:
    try:
        Session(SerializedModel(model), optimizes=False)
    except ExecutionError:
        return False
    return True


def _run_with_lost_values(model: onnx.ModelProto, feed: Feed, seconds: float) -> list[Any] | None:
    """The outputs of a run that fails because onnxruntime removes a Cast that only a body reads.

    It does so for a cast there and back, and again after it has removed what is between them. None
    if the run fails also with these casts as outputs of the model.
    """
    keeping = onnx.ModelProto()
    keeping.CopyFrom(model)
    count, read = len(model.graph.output), {output.name for output in model.graph.output}
    read.update(name for node in model.graph.node for name in node.input)
    casts = [node.output[0] for node in model.graph.node if node.op_type == "Cast"]
    lost = [name for name in casts if name not in read]
    if not lost:
        return None
    keeping.graph.output.extend(onnx.ValueInfoProto(name=name) for name in lost)
    try:
        return Session(SerializedModel(keeping)).run(feed, seconds)[:count]
    except ExecutionError:
        return None


class StacksWithoutSlices:
    """The scan outputs of Loops that have no slice in any run.

    onnxruntime takes their sizes from declarations, or from nodes that may fail in every iteration.
    """

    def __init__(self, model: onnx.ModelProto, runs: Sequence[Run]) -> None:
        scanned = scan_outputs(model)
        names = [output.name for output in model.graph.output]
        columns = zip(names, zip(*(outputs for _, outputs in runs)))
        self._are_open = [
            name in scanned and all(np.shape(value)[:1] == (0,) for value in values)
            for name, values in columns
        ]

    def fill_in(self, expected: Sequence[Any], actual: Sequence[Any]) -> list[Any]:
        """The outputs of a run; for a stack without slices, what is expected."""
        return [
            right if is_open and np.shape(given)[:1] == (0,) else given
            for is_open, right, given in zip(self._are_open, expected, actual)
        ]


def run_in_fork(session: Executable, feed: Feed, seconds: float) -> list[Any]:
    """Runs a session in a copy of this process, which takes a millisecond to make.

    Raises ProcessCrashed if the run ends the process, and ExecutionError if it fails.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads. The copy has none, and sessions of one thread need none.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        answer: object = None
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # A crash prints the stacks of all threads.
        try:
            answer = session.run(feed, seconds)
        except ExecutionError as refusal:
            answer = refusal
        finally:
            with os.fdopen(writer, "wb") as stream:
                pickle.dump(answer, stream)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        sent = stream.read()
    _, status = os.waitpid(child, 0)
    if status or not sent:
        raise ProcessCrashed(f"the process ended with status {status}")
    answer = pickle.loads(sent)
    if isinstance(answer, ExecutionError):
        raise answer
    assert isinstance(answer, list)
    return answer


def differences(
    model: onnx.ModelProto,
    original: Session,
    feed: Feed,
    expected: Sequence[Any],
    actual: Sequence[Any],
) -> list[str]:
    """How the outputs of a run differ from the right ones, unless rounding explains it."""
    scanned = scan_outputs(model)
    not_vectors = original.not_vectors.intersection(scanned)
    same = []
    for name, right, given in zip(original.outputs, expected, actual):
        is_open = (name in scanned and is_empty_stack(right, given)) or (
            name in not_vectors and is_unranked_stack(right, given)
        )
        if right is not OPEN:
            same.append((name, right, right if is_open else given))
    tolerances = Tolerances(working_precision(model))
    names, right, given = ([each[k] for each in same] for k in range(3))
    found = compare(names, right, given, tolerances)
    if found:
        unwritten = unwritten_outputs(model, feed, dict(zip(names, right)))
        found = [difference for difference in found if difference.output not in unwritten]
    if found:
        explained = explained_outputs(
            original, original.outputs, feed, expected, actual, tolerances
        )
        found = [difference for difference in found if difference.output not in explained]
    if found:
        confirmed = confirmed_outputs(model, feed, names, right, given, tolerances)
        found = [difference for difference in found if difference.output not in confirmed]
    return [f"{difference}, with {shown(feed)}" for difference in found]


def unwritten_outputs(
    model: onnx.ModelProto, feed: Feed, given: Mapping[str, Any]
) -> Collection[str]:
    """The outputs that onnxruntime may leave partly unwritten: see `concatenated_outputs`.

    An output counts if the reference computes another shape for it. There is none if the reference
    refuses the run.
    """
    suspects = set(concatenated_outputs(model)).intersection(given)
    if not suspects:
        return ()
    try:
        expected = ReferenceEvaluator(model).run(None, dict(feed))
    except Exception:  # noqa: BLE001  the reference raises errors of any type
        return ()
    shapes = {info.name: np.shape(value) for info, value in zip(model.graph.output, expected)}
    return {name for name in suspects if np.shape(given[name]) != shapes[name]}


def confirmed_outputs(
    model: onnx.ModelProto,
    feed: Feed,
    names: Sequence[str],
    expected: Sequence[Any],
    actual: Sequence[Any],
    tolerances: Tolerances,
) -> Collection[str]:
    """The outputs for which the reference computes what the rewritten model does.

    If it refuses a run with an empty input, all outputs of the right shapes: onnxruntime may have
    read memory that nothing wrote.
    """
    outputs = [output.name for output in model.graph.output]
    try:
        reference = dict(zip(outputs, ReferenceEvaluator(model).run(None, dict(feed))))
    except Exception:  # noqa: BLE001  the reference raises errors of any type
        each = zip(names, expected, actual)
        return [n for n, a, b in each if has_empty(feed) and np.shape(a) == np.shape(b)]
    return [
        name
        for name, given in zip(names, actual)
        if not compare([name], [reference[name]], [given], tolerances)
    ]


def explained_outputs(
    original: Executable,
    names: Collection[str],
    feed: Feed,
    expected: Sequence[Any],
    actual: Sequence[Any],
    tolerances: Tolerances,
) -> Collection[str]:
    """The outputs whose differences rounding errors of the inputs can explain.

    Random models have more of them than those of users, so that the errors are larger here.
    """
    runs = nearby_outputs(original, dict(feed), tolerances, share=0.1, runs=4, seconds=8.0)
    nearby = list(runs)
    if len(nearby) < 4:
        return names
    return [
        name
        for number, (name, right, given) in enumerate(zip(names, expected, actual))
        if right is OPEN
        or _distance(right, given)
        <= _ROUNDING_FACTOR * max(_distance(right, outputs[number]) for outputs in nearby)
    ]


def _distance(expected: Any, actual: Any) -> float:
    """The largest difference between elements; infinite for other shapes, integers, and NaN."""
    if expected is OPEN:
        return 0.0
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        return max(map(_distance, expected, actual), default=0.0)
    a, b = np.asarray(expected), np.asarray(actual)
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.inf
    if not is_float(a.dtype):
        return 0.0 if np.array_equal(a, b) else np.inf
    return float(distances(a, b).max(initial=0.0))


def runs_of(model: onnx.ModelProto, feeds: Sequence[Feed]) -> tuple[Session | None, list[Run]]:
    """A model on onnxruntime, and its runs that succeed; none if onnxruntime rejects it."""
    try:
        session = Session(SerializedModel(model))
    except ExecutionError:
        return None, []
    return session, _runs(model, session, feeds, 2.0, Counter())[0]


def _changes_again(result: RewriteResult, rules: Sequence[Phase] | None) -> list[str]:
    try:
        again = rewrite(result.model, rules=rules)
    except LoopliftError as error:
        return [f"a second rewrite rejects the result: {error}"]
    findings = [f"second rewrite, defect: {defect}" for defect in again.report.defects]
    if again.report.commits:
        before, after = again.report.before, again.report.after
        changed = {op: (before[op], after[op]) for op in before | after if before[op] != after[op]}
        findings.append(f"a second rewrite changes {changed} by {dict(again.report.commits)}")
    return findings


def shown(feed: Feed) -> str:
    """The inputs in short: scalars, and the shapes of others."""
    parts = [f"{k}={v}" if np.ndim(v) == 0 else f"{k}{list(v.shape)}" for k, v in feed.items()]
    return ", ".join(parts)


def reproducer(
    model: onnx.ModelProto, findings: Sequence[str], seed: int, check: str = "check_rewrite"
) -> str:
    """A test that shows the findings again, without the generator."""
    gc.collect()
    lines = "\n".join(f"    # {visible(finding)[:200]}" for finding in findings[:5])
    return f'''from onnx import parser
from tests.fuzz.cases import make_feeds
from tests.fuzz.{check} import {check}


def test_seed_{seed}() -> None:
{lines}
    model = parser.parse_model("""
{printer.to_text(model)}
""")
    assert {check}(model, make_feeds(model, {seed})) == []
'''
