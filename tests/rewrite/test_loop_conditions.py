"""Bodies of counted loops hand their condition on in a file, and return true to rules."""

from __future__ import annotations

import numpy as np
import pytest

from looplift import rewrite
from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.graph.ir import Constant
from looplift.rewrite.storage.model import export_model, import_model

from ..equivalence import rewritten
from ..small_models import parse
from .fact_oracle import Feeds

FEEDS = Feeds(values={"n": [0, 1, 3], "c": [True, False]})


def _text(condition: str, first: str = "c", kind: str = "bool") -> str:
    """A loop that is left whatever its condition is."""
    return f"""g (float[3] x, int64 n, bool c) => (float[3] y) <bool true = {{1}}, int64 five = {{5}}> {{
        y = Loop (n, {first}, x) <body = b (int64 i, {kind} ci, float[3] s) => ({kind} co, float[3] so) {{
            {condition} a = Sin(s) b = MatMul(a, s) so = Add(s, b) }}> }}"""


@pytest.mark.parametrize("first", ["c", "true", ""])
@pytest.mark.parametrize(
    "condition", ["co = Identity(ci)", "co = Identity(true)", "co = Or(ci, true)"]
)
def test_the_condition_is_handed_on(condition: str, first: str) -> None:
    result = rewritten(parse(_text(condition, first)), FEEDS, 1e-6)
    body = result.model.graph.node[0].attribute[0].g
    assert body.output[0].name == body.input[1].name
    assert not body.initializer
    again = rewrite(result.model)
    assert again.report.commits == {}
    assert again.model.SerializeToString() == result.model.SerializeToString()


def test_rules_see_the_constant() -> None:
    text = _text("").replace("bool co,", "bool ci,")
    model = import_model(parse(text))
    before = export_model(model).SerializeToString()
    engine = Engine(model, ())
    out = model.graph.nodes[0].attrs["body"].outputs[0]
    assert isinstance(out, Constant)
    assert np.all(out.values)
    engine.run()
    assert export_model(model).SerializeToString() == before


@pytest.mark.parametrize(
    "text",
    [
        _text("co = Less(i, five)"),
        _text("").replace("float[3] so)", "float[3] so) <bool co = {1}>"),
        _text("").replace("float[3] so)", "float[3] so) <bool co = {0}>"),
    ],
    ids=["may end", "the file's own", "ends"],
)
def test_other_conditions_stay(text: str) -> None:
    model = import_model(parse(text))
    before = export_model(model).SerializeToString()
    Engine(model, ()).run()
    assert export_model(model).SerializeToString() == before


def test_shapes_stay() -> None:
    """A body may take its condition as a vector of one element."""
    model = parse(_text("co = Identity(ci)", "", "bool[1]"))
    result = rewritten(model, FEEDS, 1e-6)
    body = result.model.graph.node[0].attribute[0].g
    assert body.output[0].name == body.input[1].name
