"""Checks one model on TVM: the rewritten and compiled model computes what onnxruntime does."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx.reference import ReferenceEvaluator

import looplift
from looplift.lowering.compile import CANNOT_COMPILE
from looplift.rewrite.errors import LoopliftError, UnsupportedError

from ..lowering.compiled import UNOPTIMIZED, virtual_machine
from .check_rewrite import Feed, differences, runs_of, shown


def rewritten(model: onnx.ModelProto) -> Any:
    """A model, rewritten and compiled."""
    return looplift.compile(looplift.from_onnx(model), UNOPTIMIZED)


def check_lowering(
    model: onnx.ModelProto,
    feeds: Sequence[Feed],
    tally: Counter[str] | None = None,
    build: Callable[[onnx.ModelProto], Any] = rewritten,
) -> list[str]:
    """What is wrong with the compiled model; inputs on which the original fails do not count.

    A model that the lowering refuses counts as unsupported, by the start of the reason.
    """
    tally = Counter() if tally is None else tally
    original, runs = runs_of(model, feeds)
    if original is None or not runs:
        return []
    try:
        executable = build(model)
    except UnsupportedError as error:
        if str(error).startswith(CANNOT_COMPILE):  # What from_onnx takes, TVM must compile.
            return [str(error)]
        tally["models that TVM does not support"] += 1
        tally[f"unsupported: {str(error)[:60]}"] += 1
        return []
    except LoopliftError as error:
        return [f"looplift rejects the model: {error}"]
    except Exception as error:  # noqa: BLE001  any other error is a finding
        return [f"compilation raised {type(error).__name__}: {str(error)[-300:]}"]
    tally["models on TVM"] += 1
    machine = virtual_machine(executable)
    findings = []
    for feed, expected in runs:
        tally["runs on TVM"] += 1
        try:
            given = [_to_tvm(feed[info.name]) for info in model.graph.input]
            outputs = machine["main"](*given)
        except Exception as error:  # noqa: BLE001  any error is a finding
            findings.append(f"a run fails on TVM, with {shown(feed)}: {str(error)[-300:]}")
            continue
        got = [_plain(o) for o in (outputs if len(expected) > 1 else [outputs])]
        found = differences(model, original, feed, expected, got)
        if found and casts_out_of_range(model, feed):
            tally["runs on TVM that cast out of range"] += 1
            continue
        findings += [f"on TVM, {difference}" for difference in found]
    return findings


def casts_out_of_range(model: onnx.ModelProto, feed: Feed) -> bool:
    """Whether a run casts a float to an integer type that cannot hold it.

    The specification leaves the result open (ONNX operator specification, Cast).
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            ReferenceEvaluator(model).run(None, dict(feed))
        except Exception:  # noqa: BLE001  the reference raises errors of any type
            return False
    return any("invalid value encountered in cast" in str(warning.message) for warning in caught)


def _to_tvm(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_tvm(item) for item in value]
    return tvm.runtime.tensor(np.asarray(value))


def _plain(value: Any) -> Any:
    if isinstance(value, tvm.runtime.Tensor):
        return value.numpy()
    return [_plain(item) for item in value]
