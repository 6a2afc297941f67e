"""A model whose facts are checked against onnxruntime, and the facts that must be known."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import pytest

from looplift.rewrite import symbolic
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.facts.facts import Facts

from ..small_models import parse
from .fact_oracle import SIZES, Feeds, check, evaluate, value


@dataclass(frozen=True)
class Case:
    """`text` is a graph in ONNX text. `knows` gives shapes (`"y": "(N + 1, None)"`) and elements
    (`"y=": "(N, 2)"`) that must be found, so that "nothing is known" does not pass for right.
    They are Python expressions over the named dims, None for what need not be known.
    """

    text: str
    knows: Mapping[str, str] = field(default_factory=dict)
    opset: int = 21
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    sizes: Sequence[int] = SIZES
    dims: Mapping[str, int] = field(default_factory=dict)
    """Asserted dims: known to the facts, unknown to onnxruntime's checks before the run."""

    def model(self) -> onnx.ModelProto:
        model = parse(self.text, self.opset, 10)
        if "com.microsoft." in self.text:
            model.opset_import.add(domain="com.microsoft", version=1)
        if "ai.onnx.ml." in self.text:
            version = 5 if "TreeEnsemble<" in self.text else 3  # where it replaces others
            model.opset_import.add(domain="ai.onnx.ml", version=version)
        return model

    def check(self) -> Facts:
        feeds = Feeds(self.sizes, self.values, fixed=self.dims)
        facts = check(self.model(), feeds, Assertions(dims=self.dims))
        for key, wanted in self.knows.items():
            fact = facts.of(value(facts, key.rstrip("=")))
            found = fact.values if key.endswith("=") else fact.shape
            for names in _assignments(found):
                expected = eval(wanted, {}, {**names, **self.dims})
                assert _numbers(found, names, expected) == expected, f"{key}: {found}, not {wanted}"
        return facts


def _assignments(found: Sequence[Any] | None) -> list[dict[str, int]]:
    """Sizes for all names that may be spoken of."""
    names = "BHKLMNT"
    assert all(s.name in names for d in found or () for s in _named(d))
    return [
        dict(zip(names, itertools.islice(itertools.cycle(order), len(names))))
        for order in itertools.permutations((1, 2, 5, 8))
    ]


def _named(dim: Any) -> list[symbolic.Symbol]:
    return [s for s in symbolic.symbols(dim) if s.serial < 0]


def _numbers(found: Sequence[Any] | None, names: Mapping[str, int], expected: Any) -> Any:
    """What is claimed, as numbers; None where nothing is expected."""
    if found is None:
        return None
    known = {s: names[s.name] for d in found for s in _named(d)}
    numbers = [evaluate(d, known) for d in found]
    wanted = expected if isinstance(expected, tuple) else ()
    open_places = {i for i, w in enumerate(wanted) if w is None}
    return tuple(None if i in open_places else n for i, n in enumerate(numbers))


def cases(table: Mapping[str, Case]) -> pytest.MarkDecorator:
    """One test for each case, by its name."""
    return pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in table.items()])
