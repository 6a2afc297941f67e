"""The order of rules in a phase does not change results; a second rewrite changes nothing."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rewrite.engine.rule import Phase
from looplift.rules import PHASES

from ..samples import one_of
from .check_rewrite import check_rewrite
from .loops import make_feeds, make_model

SEEDS = range(1000, 1040)
EACH = 10
"""The stride through the models of the corpus."""


def _shuffled(seed: int) -> tuple[Phase, ...]:
    random = Random(seed)
    return tuple(
        Phase(phase.name, tuple(random.sample(phase.rules, len(phase.rules))), phase.summary)
        for phase in PHASES
    )


def _feeds(path: Path) -> list[dict[str, Any]]:
    """The inputs of a corpus model: arrays `CASE|in|NAME`."""
    arrays = np.load(path, allow_pickle=False)
    cases: dict[str, dict[str, Any]] = {}
    for key in arrays.files:
        case, role, *name = key.split("|")
        if role == "in":
            cases.setdefault(case, {})[name[0]] = arrays[key]
    return list(cases.values())


@pytest.mark.parametrize(
    "group", [0, *(pytest.param(g, marks=pytest.mark.soak) for g in (1, 2, 3))]
)
def test_rules_in_another_order_compute_the_same(group: int) -> None:
    for seed in SEEDS[group::4]:
        model = make_model(seed)
        findings = check_rewrite(model, make_feeds(model, seed), rules=_shuffled(seed))
        assert not findings, f"seed {seed}: {findings}"


@pytest.mark.parametrize("first", one_of(2, range(0, EACH, 2)))
def test_rules_in_another_order_leave_models_of_exporters_right(corpus: Path, first: int) -> None:
    for path in sorted(corpus.glob("*.onnx"))[first :: 2 * EACH]:
        feeds = _feeds(path.with_suffix(".npz"))
        findings = check_rewrite(onnx.load(path), feeds, seconds=60.0, rules=_shuffled(first))
        assert not findings, f"{path.stem}: {findings}"


def test_a_second_rewrite_finds_nothing_to_do(corpus: Path) -> None:
    for path in sorted(corpus.glob("*.onnx"))[:: EACH // 2]:
        again = rewrite(rewrite(path).model)
        assert not again.report.commits, f"{path.stem}: {dict(again.report.commits)}"
