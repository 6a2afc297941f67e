"""The import of a model that was changed at random ends with a module, or with an error of looplift."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..samples import one_of
from .mutations import MOST_SECONDS

COUNT = 100
_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", one_of(50, range(0, 50 * COUNT, COUNT)))
def test_imports_end_well(first: int) -> None:
    command = [sys.executable, "-m", "tests.hostile.mutations", str(first), str(COUNT)]
    result = subprocess.run(
        command, cwd=_ROOT, capture_output=True, text=True, timeout=COUNT * MOST_SECONDS
    )
    last = result.stdout.split()[-1:]
    assert result.returncode == 0, f"model {last}: {result.stderr[-2000:]}"
