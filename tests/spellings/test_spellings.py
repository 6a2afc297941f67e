"""Sixty random spellings of LSTM, GRU and RNN become the operator; near misses stay loops.

`python -m tests.spellings` checks more of them.
"""

from __future__ import annotations

import pytest

from ..samples import one_of
from .cells import FLAWS
from .judge import judge
from .models import make_model


@pytest.mark.parametrize("op", FLAWS)
def test_spellings_become_the_operator(op: str) -> None:
    findings = {seed: judge(op, seed) for seed in range(20)}
    assert {seed: finding for seed, finding in findings.items() if finding} == {}


@pytest.mark.parametrize(
    ("op", "flaw"), one_of(2, [(op, flaw) for op in FLAWS for flaw in FLAWS[op]])
)
def test_near_misses_stay_loops(op: str, flaw: str) -> None:
    assert [judge(op, seed, flaw) for seed in (1000, 1001)] == ["", ""]


def test_a_seed_gives_one_model() -> None:
    assert make_model("LSTM", 7).SerializeToString() == make_model("LSTM", 7).SerializeToString()
    assert make_model("LSTM", 7).SerializeToString() != make_model("LSTM", 8).SerializeToString()
