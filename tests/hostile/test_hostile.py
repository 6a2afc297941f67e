"""Hostile files, options and rules end with the expected status and words, within their limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .worker import CASES, MOST_MEMORY

_SHARES = 2
_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("hostile")
    command = [sys.executable, "-m", "tests.hostile.worker", str(folder)]
    workers = [
        subprocess.Popen(
            [*command, str(first), str(_SHARES)],
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in range(_SHARES)
    ]
    lines = [line for worker in workers for line in worker.communicate(timeout=600)[0].splitlines()]
    found = map(json.loads, lines)
    return {each["name"]: each for each in found}


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 300
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ends_well(case: Any, results: dict[str, dict[str, Any]]) -> None:
    assert case.name in results, "its process ended"
    result = results[case.name]
    assert not result.get("traceback"), result["output"]
    assert result["status"] == case.status, result["output"]
    for words in case.words:
        assert words in result["output"].replace("\n", " "), result["output"]
    assert "\x1b" not in result["output"]
    assert "\nnote: all is well" not in result["output"]
    assert result["memory"] <= MOST_MEMORY
    assert set(result["written"]) <= {"work", "secret"}, "it wrote outside of its folder"
