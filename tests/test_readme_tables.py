"""The tables of the README show the published measurements."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def script() -> Any:
    path = ROOT / "benchmarks" / "readme_tables.py"
    spec = importlib.util.spec_from_file_location("readme_tables", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["readme_tables"] = module
    spec.loader.exec_module(module)
    return module


def test_tables_are_up_to_date(script: Any) -> None:
    readme = script.README.read_text()
    assert script.updated(readme) == readme, "run python benchmarks/readme_tables.py"


def test_a_changed_number_is_noticed(script: Any) -> None:
    readme = script.README.read_text()
    (number,) = {row["nodes"] for row in script.rows("optimizers") if row["tool"] == "looplift"}
    wrong = readme.replace(f"{number:,}", "1")
    assert wrong != readme
    assert script.updated(wrong) == readme


def measured(network: str, one: float, two: float, seconds: float, difference: float) -> Any:
    return {
        "network": network, "ratio, 1 thread(s)": one, "ratio, 2 thread(s)": two,
        "ratio, 2 thread(s), in turn": two + 0.5,
        "compile s": seconds, "difference": difference,
    }  # fmt: skip


def test_networks_are_ordered_by_time_and_failures_left_out(script: Any) -> None:
    table = script.whole_networks(
        [
            measured("slow", 1.5, 1.25, 2.4, 2e-6),
            {"network": "failed", "slowest kernels": "failed: no memory"},
            measured("gpt2", 0.8, 0.9, 9.6, 1.4),
        ]
    )
    assert table.splitlines()[2:] == [
        "| GPT-2, one token | 0.80 | 0.90 | 1.40 | 10 |  |",
        "| slow | 1.50 | 1.25 | 1.75 | 2 | 2e-6 |",
    ]
