"""Checks a rewritten model: it is valid and has the interface and outputs of the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

from looplift import RewriteResult, rewrite
from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.engine.rule import Options, Phase, Rule
from looplift.rewrite.engine.trace import Trace
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.storage.model import export_model, import_model
from looplift.rewrite.storage.summary import count_operators

from .rewrite.fact_oracle import Feeds, NothingRan


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The model on onnxruntime, without log output and without graph optimisations."""
    options = _quiet()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def optimized_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The model on onnxruntime, with graph optimisations."""
    return onnxruntime.InferenceSession(
        model.SerializeToString(), _quiet(), providers=["CPUExecutionProvider"]
    )


def _quiet() -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options


def outcome(runnable: onnxruntime.InferenceSession, feed: Mapping[str, Any]) -> list[Any] | None:
    """The outputs of a run; None if it fails."""
    names = {i.name for i in runnable.get_inputs()}
    names |= {i.name for i in runnable.get_overridable_initializers()}
    try:
        return list(runnable.run(None, {k: v for k, v in feed.items() if k in names}))
    except Exception as error:
        if "ONNXRuntimeError" not in str(error):
            raise
        return None


def is_valid(model: onnx.ModelProto) -> bool:
    """Whether the checker of onnx accepts a model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def assert_equal(expected: Any, actual: Any, tolerance: float = 0.0) -> None:
    if isinstance(expected, list):
        assert isinstance(actual, list)
        assert len(expected) == len(actual)
        for left, right in zip(expected, actual):
            assert_equal(left, right, tolerance)
        return
    left, right = np.asarray(expected), np.asarray(actual)
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    if left.dtype.kind == "f" and tolerance:
        np.testing.assert_allclose(right, left, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(right, left)


def assert_equivalent(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    feeds: Feeds | None = None,
    tolerance: float = 0.0,
    *,
    fails_alike: bool = False,
) -> int:
    """Asserts that the rewritten model is valid and gives equal outputs wherever the original
    gives any, and with `fails_alike` that it fails wherever the original does. Returns the number
    of runs that were compared, at least one.
    """
    assert [o.name for o in after.graph.output] == [o.name for o in before.graph.output]
    original = session(before)
    rewritten = None  # If a model always fails, onnxruntime may refuse to load the rewritten one.
    runs = 0
    for feed in (feeds or Feeds()).of(before):
        expected = outcome(original, feed)
        shown = {k: getattr(v, "shape", v) for k, v in feed.items()}
        if expected is None and not fails_alike:
            continue
        rewritten = rewritten or session(after)
        actual = outcome(rewritten, feed)
        if expected is None:
            assert actual is None, f"the original fails, the rewritten model runs with {shown}"
            continue
        assert actual is not None, f"the original runs, the rewritten model fails with {shown}"
        assert_equal(expected, actual, tolerance)
        runs += 1
    if not runs:
        raise NothingRan
    if is_valid(before):
        onnx.checker.check_model(after, full_check=True)
    return runs


def rewritten(
    model: onnx.ModelProto, feeds: Feeds | None = None, tolerance: float = 0.0, **options: Any
) -> RewriteResult:
    """Rewrites a model, and runs the checks that hold for every rewrite."""
    untouched = model.SerializeToString()
    result = rewrite(model, **options)
    assert result.report.defects == []
    assert model.SerializeToString() == untouched, "the given model was changed"
    assert_equivalent(model, result.model, feeds, tolerance)
    return result


def run_rules(
    model: onnx.ModelProto,
    rules: Sequence[type[Rule]],
    *,
    options: Options | None = None,
    assertions: Assertions | None = None,
    step_limit: int | None = None,
) -> tuple[onnx.ModelProto, Trace, Engine]:
    """Runs rules in one phase; returns the model, the trace and the engine."""
    imported = import_model(model)
    engine = Engine(
        imported,
        (Phase("only", tuple(rules), "These rules."),),
        assertions or Assertions(),
        options or Options(),
        step_limit,
        Trace(),
    )
    engine.run()
    return export_model(imported), engine.trace, engine


def ops(model: onnx.ModelProto) -> dict[str, int]:
    """The operators of a model with their counts, bodies included."""
    return dict(count_operators(model))
