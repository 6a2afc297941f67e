"""Every shape function is tested against onnxruntime by a file of this folder."""

from __future__ import annotations

import re
from pathlib import Path

import looplift.rewrite.facts.inference  # noqa: F401  (fills the table)
from looplift.rewrite.facts.inference.registry import SHAPE_FUNCTIONS


def test_every_operator_of_the_table_is_tested() -> None:
    files = Path(__file__).parent.glob("test_*.py")
    words = {word for path in files for word in re.findall(r"\w+", path.read_text())}
    operators = {name.rpartition("::")[2] for name in SHAPE_FUNCTIONS}
    assert sorted(operators - words) == []
