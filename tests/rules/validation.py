"""Translation validation: a rule alone, on one model, against onnxruntime and its promise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from looplift import Rule
from looplift.rewrite.engine.rule import Options
from looplift.rewrite.running.compare import PRECISIONS, Tolerances, compare, working_precision
from looplift.rewrite.running.runtime import (
    ExecutionError,
    IsolatedSession,
    ProcessCrashed,
    SerializedModel,
)
from looplift.rewrite.running.verify import is_empty_stack
from looplift.rules.recurrence.emission import CRASHES
from looplift.rules.values.dead_nodes import EliminateIdentity

from ..equivalence import run_rules
from ..fuzz.check_rewrite import explained_outputs, has_empty, is_undefined
from ..fuzz.contradictions import breaks_declarations
from ..rewrite.fact_oracle import Feeds

FLOATS = (np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-40, -1e-40, 3e38, 1e-30)
"""1e-40 is a denormal of single precision."""
COUNTS = (0, 1, 2, 7, -1)
SECONDS = 0.3


@dataclass
class Observed:
    """What a rule did to a model, beyond what is the same."""

    fired: bool = False
    defects: list[str] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)
    rounds: str = ""
    """A run on finite numbers whose bits differ."""
    nonfinite: str = ""
    """A run in which a number becomes infinite or NaN, or the reverse."""
    accepts: str = ""
    """A run that fails in the original only."""
    wrong: str = ""
    """A run that fails now, or differs by more than rounding."""


def observe(
    rule: type[Rule], model: onnx.ModelProto, *, strict: bool = False, runs: int = 12
) -> Observed:
    """Runs the original and what the rule alone makes of it, at sizes 0, 1, 2 and 7, twice each: on
    random numbers, and on such with infinities, NaN, -0.0, denormals and extreme integers between.
    """
    seen = Observed()
    # In text a branch cannot return an outer value; without the copy it does.
    attempts: tuple[list[type[Rule]], ...] = ([rule], [EliminateIdentity, rule])
    for rules in attempts:
        after, trace, engine = run_rules(model, rules, options=Options(strict=strict))
        seen.defects = [str(defect) for defect in trace.defects()]
        seen.fired = any(commit.rule == rule.name() for commit in trace.commits())
        if seen.fired:
            break
    if not seen.fired:
        return seen
    seen.notes = set(trace.notes())
    # onnxruntime's recurrent operators end the process for some empty inputs.
    original = IsolatedSession(SerializedModel(model), optimizes=False)
    rewritten: IsolatedSession | None = None
    tolerances = Tolerances(max("float32", working_precision(model), key=PRECISIONS.index))
    names = [output.name for output in model.graph.output]
    # onnxruntime computes half precision in single precision, and rounds where nodes meet.
    is_half = working_precision(model) in ("float16", "bfloat16")
    for feed in _feeds(model, runs):
        try:
            expected = _outcome(original, feed)
        except ProcessCrashed:
            continue
        if expected is not None and breaks_declarations(model, feed, expected):
            continue  # Facts follow from what a file declares.
        if rewritten is None:
            try:
                rewritten = IsolatedSession(SerializedModel(after), optimizes=False)
            except ExecutionError as error:
                # onnxruntime does not load a model if it sees that a node always fails.
                fails = any(engine.facts.failure(node) for node in engine.index.walk())
                if expected is not None and not fails:
                    seen.wrong = f"onnxruntime refuses the result: {error}"
                continue
        shown = ", ".join(f"{k}={getattr(v, 'tolist', lambda v=v: v)()}" for k, v in feed.items())
        try:
            actual = _outcome(rewritten, feed)
        except ProcessCrashed as crash:
            if not any(CRASHES in note for note in seen.notes):
                seen.wrong = seen.wrong or f"{crash} with {shown}"
            continue
        if expected is None:
            if actual is not None and not seen.accepts and is_undefined(model, feed):
                seen.accepts = shown
            continue
        if actual is None:
            if not _may_be_undefined(model, feed) or not is_undefined(model, feed):
                seen.wrong = seen.wrong or f"fails now with {shown}"
            continue
        actual = [old if is_empty_stack(old, new) else new for old, new in zip(expected, actual)]
        if not all(_same_bits(a, b) for a, b in zip(expected, actual)):
            found = compare(names, expected, actual, tolerances)
            explained = found and explained_outputs(
                original, names, feed, expected, actual, tolerances
            )
            if all(difference.output in explained for difference in found):
                seen.rounds = seen.rounds or ("" if is_half else shown)
            elif all(d.index is not None and np.isinf(d.max_absolute) for d in found):
                seen.nonfinite = seen.nonfinite or shown
            elif not has_empty(feed) or not is_undefined(model, feed):
                seen.wrong = seen.wrong or f"{found[0]} with {shown}"
    return seen


def _may_be_undefined(model: onnx.ModelProto, feed: Mapping[str, Any]) -> bool:
    """Whether onnxruntime may accept a run that breaks the specification."""
    return has_empty(feed) or any(entry.domain for entry in model.opset_import)


def _same_bits(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(_same_bits(x, y) for x, y in zip(a, b))
    a, b = np.asarray(a), np.asarray(b)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    both = np.isnan(a) & np.isnan(b)  # which NaN it is depends on the order of operands
    return np.where(both, 0, a).tobytes() == np.where(both, 0, b).tobytes()


def _outcome(session: IsolatedSession, feed: Mapping[str, Any]) -> list[Any] | None:
    try:
        return session.run(feed, SECONDS)
    except ProcessCrashed:
        raise
    except ExecutionError:
        return None


def _feeds(model: onnx.ModelProto, runs: int) -> Iterator[dict[str, Any]]:
    whole = [i.name for i in model.graph.input if is_count(i)]
    rng = np.random.default_rng(0)
    for feed in Feeds((0, 1, 2, 7), dict.fromkeys(whole, COUNTS), runs).of(model):
        yield feed
        yield {name: _with_extremes(value, rng) for name, value in feed.items()}


def is_count(info: onnx.ValueInfoProto) -> bool:
    """Whether an input is an integer, and thus perhaps a trip count."""
    kind = info.type.tensor_type
    whole = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    return kind.elem_type in whole and not kind.shape.dim


def _with_extremes(value: Any, rng: np.random.Generator) -> Any:
    """The value with a third of its elements replaced; integers without axes stay as they are."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
        return value
    replaced, mask = value.copy(), np.asarray(rng.random(value.shape) < 1 / 3)
    if value.dtype.kind == "f":
        with np.errstate(all="ignore"):
            pool = np.array(FLOATS).astype(value.dtype)
    elif value.ndim:
        limits = np.iinfo(value.dtype)
        pool = np.array([limits.min, limits.max, 0, limits.max - 1], value.dtype)
    else:
        return value
    replaced[mask] = rng.choice(pool, int(mask.sum()))
    return replaced
