"""The cheapest labelling, compared with all labellings."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from looplift.lowering.scheduling.layouts.minimum_cut import UNLIMITED, LabelCosts


@pytest.mark.parametrize("seed", range(20))
def test_minimum_cuts_cost_least(seed: int) -> None:
    generator = np.random.default_rng(seed)
    nodes = range(6)
    if_true, if_false = generator.integers(0, 9, (2, 6)).astype(float)
    pairs = [pair for pair in itertools.permutations(nodes, 2) if generator.random() < 0.4]
    costs_of = {pair: float(generator.integers(0, 9)) for pair in pairs}
    costs = LabelCosts()
    for node in nodes:
        costs.if_true(node, if_true[node])
        costs.if_false(node, if_false[node])
    for pair, cost in costs_of.items():
        costs.if_true_and_false(*pair, cost)

    def cost_of(labels: set[Any]) -> float:
        own = sum(if_true[n] if n in labels else if_false[n] for n in nodes)
        return float(own) + sum(
            cost for (a, b), cost in costs_of.items() if a in labels and b not in labels
        )

    choices = (set(choice) for size in range(7) for choice in itertools.combinations(nodes, size))
    assert cost_of(costs.cheapest()) == min(map(cost_of, choices))


def test_a_forbidden_label_is_never_chosen() -> None:
    costs = LabelCosts()
    costs.if_false("a", 5.0)
    costs.if_true_and_false("a", "b", UNLIMITED)
    costs.if_true("b", UNLIMITED)
    assert costs.cheapest() == set()
