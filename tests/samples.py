"""Splits test cases: `make test` runs a sample of them, and `make soak` runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_of(every: int, cases: Iterable[Any]) -> list[Any]:
    """The cases as parameters of a test. `make test` runs the first of each `every` cases."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if number % every == 0 else pytest.mark.soak,
        )
        for number, case in enumerate(cases)
    ]
