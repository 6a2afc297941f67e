"""docs/architecture.md: the names in it exist, and its model becomes what it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from looplift import rewrite
from looplift.rewrite.engine.rule import fixture

from .names import resolve

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
NAMES = sorted(set(re.findall(r"`(\w+(?:\.\w+)+)`", PAGE)))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name: str) -> None:
    assert resolve(name) is not None


def test_each_stop_names_code() -> None:
    stops = re.findall(r"^## (\d+)\. .*\n(?:(?!## ).*\n)*", PAGE, flags=re.MULTILINE)
    assert [int(number) for number in stops] == list(range(1, len(stops) + 1))
    assert len(stops) <= 10
    texts = re.split(r"^## .*$", PAGE, flags=re.MULTILINE)[1:]
    assert [text for text in texts if not re.search(r"`\w+\.[\w.]+`", text)] == []


def test_the_model_becomes_what_the_page_shows() -> None:
    before, after = (
        fixture(text) for text in re.findall(r"^```onnx\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    )
    result = rewrite(before)
    assert list(_shape(result.model)) == list(_shape(after))
    fired = {commit.rule for commit in result.trace.commits()}
    on_the_page = set(re.findall(r"`rules\.[\w.]+\.([A-Z]\w+)`", PAGE))
    assert len(on_the_page) >= 3
    assert on_the_page <= fired


def test_the_module_reads_as_the_page_shows() -> None:
    pytest.importorskip("tvm", reason="the module is one of TVM")
    from looplift.lowering import emit

    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        grow (float[n] x, float limit) => (float[n] y) {
          t = Constant <value = bool {1}> ()
          y = Loop ("", t, x) <body = b (int64 i, bool ci, float[n] a) => (bool co, float[n] sum) {
            sum = Add (a, x) total = ReduceSum <keepdims = 0> (sum) co = Less (total, limit) }> }"""
    )
    script = re.sub(r": R\.\w+\(.*?\) = ", " = ", emit(model).script())
    script = re.sub(r"out_ty=.*", "...)", script)
    script = re.sub(r"(def \w+\().*", lambda found: found[1], script)
    (shown,) = re.findall(r"^```python\n(def y_body.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    lines = [re.sub(r"(def \w+\().*", r"\1", line).strip() for line in shown.splitlines()]
    wanted = [line for line in lines if line not in ("", "...")]
    printed = [line.strip() for line in script.splitlines()]
    assert [line for line in wanted if line not in printed] == []


def _shape(model: onnx.ModelProto) -> Iterator[tuple[str, list[int]]]:
    """The operator of each node, and which value of the graph each operand is."""
    graph = model.graph
    names = [value.name for value in (*graph.input, *graph.initializer)]
    names += [output for node in graph.node for output in node.output]
    for node in graph.node:
        yield node.op_type, [names.index(name) for name in node.input]
