"""The fixtures of each rule: the model that it fires on, and near misses with the reasons."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from looplift import Match, Miss, Rule, rewrite
from looplift.rewrite.engine.reasons import reasons_at
from looplift.rewrite.engine.rule import ANY, fixture
from looplift.rules import PHASES
from looplift.rules.values.dead_nodes import EliminateIdentity

from ..equivalence import assert_equivalent, is_valid, ops, rewritten, run_rules
from ..rewrite.fact_oracle import Feeds

RULES = list(dict.fromkeys(rule for phase in PHASES for rule in phase.rules))
SPARES = {
    f"{rule.name()}-{words}".replace(" ", "_"): (rule, words, text)
    for rule in RULES
    for words, text in rule.spares.items()
}
EXPLAINED = {name: case for name, case in SPARES.items() if ANY not in case[0].roots()}
FEEDS = Feeds(sizes=(0, 1, 2, 5), values={"m": [0, 1, 3], "n": [0, 1, 3]}, most=60)


def _by_name(rule: type[Rule]) -> str:
    return rule.name()


each_rule = pytest.mark.parametrize("rule", RULES, ids=_by_name)


def _commits(rule: type[Rule], model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    result, trace, _ = run_rules(model, [rule])
    assert trace.defects() == []
    return result, [commit.rule for commit in trace.commits()]


@each_rule
def test_fires(rule: type[Rule]) -> None:
    assert rule.fires, "a rule shows a model it fires on"
    model = fixture(rule.fires)
    assert is_valid(model)
    result, commits = _commits(rule, model)
    if not commits:
        # In text a branch cannot return an outer value; without the copy it does.
        result, trace, _ = run_rules(model, [EliminateIdentity, rule])
        assert trace.defects() == []
        commits = [c.rule for c in trace.commits() if c.rule != EliminateIdentity.name()]
    assert set(commits) == {rule.name()}
    assert result.SerializeToString() != model.SerializeToString()
    assert_equivalent(model, result, FEEDS, 1e-5)


@each_rule
def test_fires_among_all_rules(rule: type[Rule]) -> None:
    """The model is also right when all rules run together."""
    rewritten(fixture(rule.fires), FEEDS, 1e-5)


@each_rule
def test_fails_where_the_original_does(rule: type[Rule]) -> None:
    """Under --strict, on inputs that the model accepts and on those that it refuses."""
    model = fixture(rule.fires)
    result = rewrite(model, strict=True)
    assert result.report.defects == []
    # onnxruntime runs no Scan over an empty axis, whatever the model.
    feeds = replace(FEEDS, sizes=(1, 2, 5)) if "Scan" in ops(model) else FEEDS
    assert_equivalent(model, result.model, feeds, 1e-5, fails_alike=True)


@each_rule
def test_is_documented(rule: type[Rule]) -> None:
    assert rule.summary().endswith(".")
    assert rule.spares, "a rule shows near misses"


@pytest.mark.parametrize(("rule", "words", "text"), SPARES.values(), ids=SPARES)
def test_spares(rule: type[Rule], words: str, text: str) -> None:
    model = fixture(text)
    assert is_valid(model)
    result, commits = _commits(rule, model)
    assert commits == []
    assert_equivalent(model, result, FEEDS)
    assert any(words in reason for reason in _reasons(rule, model))


def _reasons(rule: type[Rule], model: onnx.ModelProto) -> Iterator[str]:
    """Why the rule does not fire at each node that it can start from."""
    _, _, engine = run_rules(model, [])
    roots = rule.roots()
    for node in engine.index.walk():
        if ANY in roots or node.op in roots:
            try:
                rule().match(Match(node, engine.facts, engine.options))
            except Miss as miss:
                yield str(miss)


@pytest.mark.parametrize(("rule", "words", "text"), EXPLAINED.values(), ids=EXPLAINED)
def test_spares_is_explained(rule: type[Rule], words: str, text: str) -> None:
    """`explain` gives the same reason, together with the place that it is about."""
    model = fixture(text)
    _, _, engine = run_rules(model, [rule])
    reasons = [reason for node in engine.index.walk() for reason in reasons_at(engine, node)]
    assert any(words in r.sentence and r.rule == rule.name() and r.at for r in reasons)


MIRRORED = ("values", "branches", "loops")
"""Packages of rules whose tests have a file for each module."""


@each_rule
def test_has_a_test_of_its_own(rule: type[Rule]) -> None:
    """`tests/rules/loops/test_trip_count.py` names the rules of `rules/loops/trip_count.py`."""
    _, _, package, module = rule.__module__.split(".")
    if package in MIRRORED:
        text = (Path(__file__).parent / package / f"test_{module}.py").read_text()
        names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        assert rule.name() in names, "the test file only imports it"


def test_names_are_unique() -> None:
    assert len({rule.name() for rule in RULES}) == len(RULES)
    assert len({phase.name for phase in PHASES}) == len(PHASES)
