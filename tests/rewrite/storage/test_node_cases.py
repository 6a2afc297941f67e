"""The test models of ONNX's operators survive import and export unchanged."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import checker
from onnx.backend.test.case.node import collect_testcases

from looplift.rewrite.storage.model import export_model, import_model

pytestmark = pytest.mark.soak

_EVERY = 10
"""One of so many cases is also run."""
_RANDOM = ("bernoulli", "dropout", "random", "multinomial")


@dataclass(frozen=True)
class Case:
    """A model of one node, with the values of its inputs."""

    name: str
    model: onnx.ModelProto
    inputs: Any


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    with warnings.catch_warnings():
        # The reference results divide by zero and overflow on purpose.
        warnings.simplefilter("ignore", RuntimeWarning)
        found = collect_testcases()
    return [
        Case(case.name, case.model, case.data_sets[0][0] if case.data_sets else [])
        for case in found
        if case.model is not None
    ]


@pytest.fixture(scope="module")
def exported(cases: list[Case]) -> list[onnx.ModelProto]:
    return [export_model(import_model(case.model)) for case in cases]


def test_there_are_as_many_as_onnx_ships(cases: list[Case]) -> None:
    assert len(cases) >= 1884


def test_only_the_ir_version_changes(cases: list[Case], exported: list[onnx.ModelProto]) -> None:
    changed = []
    for case, model in zip(cases, exported, strict=True):
        expected = onnx.ModelProto()
        expected.CopyFrom(case.model)
        if expected.ir_version == 14 and model.ir_version == 13:
            expected.ir_version = 13
        if model != expected:
            changed.append(case.name)
    assert changed == []


def test_interface_types_are_equal(cases: list[Case], exported: list[onnx.ModelProto]) -> None:
    kinds: set[str | None] = set()
    for case, model in zip(cases, exported, strict=True):
        assert list(model.graph.input) == list(case.model.graph.input), case.name
        assert list(model.graph.output) == list(case.model.graph.output), case.name
        kinds.update(info.type.WhichOneof("value") for info in model.graph.input)
    assert kinds >= {"tensor_type", "sequence_type", "optional_type"}


def test_valid_models_stay_valid(cases: list[Case], exported: list[onnx.ModelProto]) -> None:
    broken = [
        case.name
        for case, model in zip(cases, exported, strict=True)
        if _is_valid(case.model) and not _is_valid(model)
    ]
    assert broken == []


def _is_valid(model: onnx.ModelProto) -> bool:
    try:
        checker.check_model(model)
    except checker.ValidationError:
        return False
    return True


def test_a_sample_gives_equal_results(cases: list[Case], exported: list[onnx.ModelProto]) -> None:
    compared = 0
    for case, model in list(zip(cases, exported, strict=True))[::_EVERY]:
        feeds = _feeds(case)
        before = None if feeds is None else _outputs(case.model, feeds)
        if before is None or any(word in case.name for word in _RANDOM):
            continue
        after = _outputs(model, feeds)
        assert after is not None, case.name
        for expected, actual in zip(_flat(before), _flat(after), strict=True):
            np.testing.assert_array_equal(actual, expected, err_msg=case.name)
        compared += 1
    # onnxruntime rejects the rest: newer opsets, and operators without a CPU kernel.
    assert compared > 100


def _feeds(case: Case) -> dict[str, Any] | None:
    if isinstance(case.inputs, dict):
        return dict(case.inputs)
    names = [info.name for info in case.model.graph.input]
    return dict(zip(names, case.inputs, strict=True)) if len(names) == len(case.inputs) else None


def _outputs(model: onnx.ModelProto, feeds: Any) -> list[Any] | None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, feeds))
    except Exception:  # noqa: BLE001 (onnxruntime's errors have no common class of their own)
        return None


def _flat(values: Any) -> Iterator[Any]:
    if isinstance(values, list):
        for value in values:
            yield from _flat(value)
    else:
        yield values
