"""The random models of `make fuzz`: loops, recurrent cells, and changed fixtures of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import onnx

from looplift.rewrite.engine.rule import fixture
from looplift.rules import PHASES

from ..rewrite.fact_oracle import Feeds
from ..rules.downgrade import downgraded
from ..rules.validation import COUNTS, is_count
from ..spellings.cells import FLAWS
from ..spellings.models import make_model as make_cell
from . import loops
from .mutations import mutated

RULES = tuple(dict.fromkeys(rule for phase in PHASES for rule in phase.rules))
_FIXTURES = tuple(
    text for rule in RULES for text in (rule.fires, rule.fires, *rule.spares.values())
)
_FEEDS = Feeds(sizes=(0, 1, 2, 7), most=10)


@dataclass(frozen=True)
class Case:
    """A random model."""

    kind: str
    model: onnx.ModelProto


def make_case(seed: int) -> Case:
    """The model of a seed, the same in every process."""
    kind, random = _kind(seed)
    return Case(kind, _MAKERS[kind](seed, random))


def _kind(seed: int) -> tuple[str, Random]:
    random = Random(f"case {seed}")
    return random.choices(list(_MAKERS), (6, 5, 1))[0], random


def _loops(seed: int, random: Random) -> onnx.ModelProto:
    return loops.make_model(seed)


def _fixture(seed: int, random: Random) -> onnx.ModelProto:
    model = mutated(fixture(random.choice(_FIXTURES)), random)
    if random.random() < 0.3:
        return downgraded(model, random.choice((11, 12, 13, 15, 17, 18, 20)))
    return model


def _cell(seed: int, random: Random) -> onnx.ModelProto:
    op = random.choice(list(FLAWS))
    flaw = random.choice(FLAWS[op]) if random.random() < 0.3 else ""
    return mutated(make_cell(op, seed, flaw), random)


_MAKERS: dict[str, Callable[[int, Random], onnx.ModelProto]] = {
    "loops": _loops,
    "fixtures": _fixture,
    "cells": _cell,
}


def make_feeds(model: onnx.ModelProto, seed: int) -> list[dict[str, Any]]:
    """Values for the inputs of the model of a seed, or of a smaller one made of it."""
    if _kind(seed)[0] == "loops":
        return loops.make_feeds(model, seed)
    whole = [i.name for i in model.graph.input if is_count(i)]
    feeds = Feeds(_FEEDS.sizes, dict.fromkeys(whole, COUNTS), _FEEDS.most)
    return list(feeds.of(model))
