"""No rule relies on the default of an input: the caller may pass other values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from looplift import rewrite
from looplift.rewrite.engine.rule import Rule, fixture
from looplift.rewrite.running.runtime import ExecutionError, SerializedModel, Session
from looplift.rewrite.running.verify import is_empty_stack
from looplift.rules import PHASES

from ..equivalence import assert_equal
from ..fuzz.contradictions import breaks_declarations
from ..samples import one_of

RULES = list(dict.fromkeys(rule for phase in PHASES for rule in phase.rules))
TOLERANCE = 1e-2
"""Some fixtures amplify rounding errors. A value that is not respected makes more of a difference."""
SECONDS = 0.2
"""For a run of the original: other trip counts than the default may be very large."""
Feed = dict[str, Any]


def _with_defaults(text: str) -> onnx.ModelProto:
    """A fixture whose initializers are inputs with a default."""
    model = fixture(text)
    inputs = {info.name for info in model.graph.input}
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in model.graph.initializer
        if tensor.name not in inputs
    )
    return model


def _feed(model: onnx.ModelProto, size: int, attempt: int) -> Feed:
    """Random inputs; the first attempts keep the defaults of integers, as most are sizes or axes."""
    random = np.random.default_rng(10 * size + attempt)
    defaults = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    feed: Feed = {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = [d.dim_value if d.HasField("dim_value") else size for d in tensor.shape.dim]
        default = defaults.get(info.name)
        if default is None or kind.kind == "f":
            values = (
                random.standard_normal(shape) if kind.kind == "f" else random.integers(0, 4, shape)
            )
        elif kind.kind == "b":
            values = np.logical_xor(default, attempt % 2)
        else:
            values = default + (random.integers(-1, 2, shape) if attempt > 1 else 0)
        feed[info.name] = np.asarray(values).astype(kind)
    return feed


def _runs(model: onnx.ModelProto) -> list[tuple[Feed, list[Any]]]:
    """The feeds with which a model runs, each with its results; none if onnxruntime rejects it."""
    found = []
    try:
        original = Session(SerializedModel(model))
    except ExecutionError:
        return []
    for size in (1, 2, 5):
        for attempt in range(5):
            feed = _feed(model, size, attempt)
            try:
                outputs = original.run(feed, SECONDS)
            except ExecutionError:  # other sizes and axes than the defaults
                continue
            if not breaks_declarations(model, feed, outputs):
                found.append((feed, outputs))
    return found


@pytest.mark.parametrize("rule", one_of(3, RULES), ids=lambda rule: rule.__name__)
def test_other_values_than_the_defaults(rule: type[Rule[Any]]) -> None:
    for text in (rule.fires, *rule.spares.values()):
        model = _with_defaults(text)
        runs = _runs(model)
        if not runs:
            continue
        rewritten = Session(SerializedModel(rewrite(model).model))
        for feed, expected in runs:
            pairs = zip(expected, rewritten.run(feed, 5 * SECONDS))
            actual = [old if is_empty_stack(old, new) else new for old, new in pairs]
            assert_equal(expected, actual, TOLERANCE)
