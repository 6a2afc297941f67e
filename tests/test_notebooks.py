"""The notebooks in examples/ print what they show."""

from __future__ import annotations

import ast
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def run_cell(source: str, names: dict[str, Any]) -> str:
    """What a cell prints, and the text of its last expression, as Jupyter shows them."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            if value is not None:
                printed.write(f"{value!r}\n")
    return printed.getvalue()


def shown(cell: dict[str, Any]) -> str:
    """The text of the outputs that a notebook stores for a cell."""
    texts = []
    for output in cell["outputs"]:
        lines = (
            output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
        )
        texts.append("".join(lines).rstrip("\n") + "\n")
    return "".join(texts)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_cell_prints_what_is_shown(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    for cell in cells:
        assert run_cell("".join(cell["source"]), names) == shown(cell)


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
