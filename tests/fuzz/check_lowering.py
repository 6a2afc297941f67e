"""Checks one model on TVM: the rewritten and compiled model computes what onnxruntime does."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import looplift
from looplift.lowering.compile import CANNOT_COMPILE
from looplift.rewrite.errors import LoopliftError, UnsupportedError
from looplift.rewrite.running.compare import compare
from looplift.rewrite.storage.protos import nodes

from ..lowering.compiled import UNOPTIMIZED, virtual_machine
from .check_rewrite import (
    Feed,
    StacksWithoutSlices,
    differences,
    has_empty,
    is_undefined,
    runs_of,
    shown,
)
from .contradictions import contradicts_initial_values

_INTERNAL = re.compile(r"\((Attribute|Index|Key|Name|Type)Error\)")
"""What a reason says that an error of Python caused."""


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
        # What from_onnx takes, TVM must compile; and a converter refuses by a reason of its own.
        if str(error).startswith(CANNOT_COMPILE) or _INTERNAL.search(str(error)):
            return [str(error)]
        tally["models that TVM does not support"] += 1
        tally[f"unsupported: {str(error)[:60]}"] += 1
        return []
    except LoopliftError as error:
        return [f"looplift rejects the model: {error}"]
    except Exception as error:  # noqa: BLE001  any other error is a finding
        return [f"compilation raised {type(error).__name__}: {str(error)[-300:]}"]
    tally["models on TVM"] += 1
    machine, is_contradictory = virtual_machine(executable), contradicts_initial_values(model)
    findings, stacks = [], StacksWithoutSlices(model, runs)
    for feed, expected in runs:
        tally["runs on TVM"] += 1
        try:
            given = [_to_tvm(feed[info.name]) for info in model.graph.input]
            outputs = machine["main"](*given)
        except Exception as error:  # noqa: BLE001  any error is a finding
            if is_contradictory or (has_empty(feed) and is_undefined(model, feed)):
                continue
            findings.append(f"a run fails on TVM, with {shown(feed)}: {str(error)[-300:]}")
            continue
        got = [_plain(o) for o in (outputs if len(expected) > 1 else [outputs])]
        found = differences(model, original, feed, expected, stacks.fill_in(expected, got))
        if found and casts_out_of_range(model, feed):
            tally["runs on TVM that cast out of range"] += 1
            continue
        if found and truncates_roundings(model) and differ_by_one(expected, got):
            tally["runs on TVM that truncate a rounding error"] += 1
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


_ROUNDED = ("Cos", "Erf", "Exp", "Log", "Sigmoid", "Sin", "Softmax", "Sqrt", "Tanh")
"""Operators whose results differ between implementations by a unit in the last place."""


def truncates_roundings(model: onnx.ModelProto) -> bool:
    """Whether a model casts the result of an operator that rounds to an integer type.

    onnxruntime takes tanh(9) for 1; the nearest float is smaller, and its integral part is 0.
    """
    integral = (TensorProto.INT8, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8)
    found = list(nodes(model.graph))
    rounded = {name for node in found if node.op_type in _ROUNDED for name in node.output}
    return any(
        node.op_type == "Cast"
        and node.input[0] in rounded
        and helper.get_node_attr_value(node, "to") in integral
        for node in found
    )


def differ_by_one(expected: Sequence[Any], actual: Sequence[Any]) -> bool:
    """Whether integers differ by at most 1, and nothing else differs."""
    if any(isinstance(value, list) for value in expected):
        pairs = list(zip(expected, actual))
        return all(
            len(a) == len(b) and differ_by_one(a, b)
            if isinstance(a, list)
            else differ_by_one([a], [b])
            for a, b in pairs
        )
    for right, given in zip(expected, actual):
        a, b = np.asarray(right), np.asarray(given)
        if a.dtype.kind not in "iu":
            if compare(["output"], [a], [b]):
                return False
        elif a.shape != b.shape or np.abs(a.astype(object) - b.astype(object)).max(initial=0) > 1:
            return False
    return True


def _to_tvm(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_tvm(item) for item in value]
    return tvm.runtime.tensor(np.asarray(value))


def _plain(value: Any) -> Any:
    if isinstance(value, tvm.runtime.Tensor):
        return value.numpy()
    return [_plain(item) for item in value]
