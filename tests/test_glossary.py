"""docs/glossary.md: sorted, one meaning per term, and every name in it exists."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from functools import reduce
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "glossary.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| term ")
]
NAMES = [name for row in ROWS for name in re.findall(r"`([\w./-]+)`", row[3])]


def _resolve(name: str) -> object:
    """The module, class, function or attribute that a dotted name below `looplift` stands for."""
    # `looplift.rewrite` is a function, too: modules are found by their file.
    parts = name.split(".")
    length = len(parts)
    while length and not _is_module(parts[:length]):
        length -= 1
    module = importlib.import_module(".".join(["looplift", *parts[:length]]))
    return reduce(getattr, parts[length:], module)


def _is_module(parts: list[str]) -> bool:
    path = ROOT.joinpath(*parts)
    return path.with_suffix(".py").exists() or path.is_dir()


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name: str) -> None:
    if "/" in name:
        assert (ROOT / name).exists()
    else:
        assert _resolve(name) is not None


def test_a_name_that_is_gone_is_noticed() -> None:
    with pytest.raises(AttributeError):
        _resolve("rewrite.engine.rule.State")
    with pytest.raises(AttributeError):
        _resolve("rewrite.engine.steps")


def test_every_term_is_explained_once_and_in_order() -> None:
    terms = [row[0] for row in ROWS]
    assert len(terms) >= 30
    assert all(len(row) == 4 and row[1] for row in ROWS)
    assert [term for term, count in Counter(terms).items() if count > 1] == []
    assert terms == sorted(terms)


SECOND_MEANINGS = {
    "step": r"\bclass (?!\w*TimeStep)\w*Steps?\b|\bdef (?:count_)?steps?\(",
    "row": r"\bclass \w*Rows?\b",
    "state": r"\bclass (?:State|States)\b",
}
"""Words that once had several meanings, and definitions that would give them another again."""


@pytest.mark.parametrize("word", SECOND_MEANINGS)
def test_no_definition_gives_a_word_a_second_meaning(word: str) -> None:
    sources = [path for part in ("rewrite", "rules") for path in (ROOT / part).rglob("*.py")]
    assert sources
    found = {
        path.name: names
        for path in sources
        if (names := re.findall(SECOND_MEANINGS[word], path.read_text()))
    }
    assert found == {}
