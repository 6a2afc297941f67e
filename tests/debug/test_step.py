from __future__ import annotations

import io
import json
from pathlib import Path

import onnx
import pytest
from onnx import parser
from rich.console import Console

import looplift
from looplift import LoopliftError
from looplift.debug.step import CommitCursor, Shell
from looplift.request import Request
from looplift.rewrite.facts.assertions import Assertions

TEXT = """g (float[2] x, bool c) => (float[2] y) {
    near = Identity(x)
    y = If (c) <
        then_branch = t () => (float[2] a) { k = Sin(near) a = Exp(k) },
        else_branch = e () => (float[2] b) { b = Neg(near) }
    >
}"""


def request_for() -> Request:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {TEXT}')
    return Request.of(model, Assertions({"c": True}))


def shell(as_json: bool = False) -> tuple[Shell, io.StringIO]:
    said = io.StringIO()
    return Shell(CommitCursor(request_for()), Console(file=said, width=300), as_json), said


def lines(cursor: CommitCursor, number: int) -> list[str]:
    there = cursor.go_to(number)
    assert there is not None
    return [str(line) for line in there.lines]


class TestWalk:
    def test_there_and_back(self) -> None:
        cursor = CommitCursor(request_for())
        last = len(cursor.commits)
        texts = [lines(cursor, number) for number in range(1, last + 1)]
        assert cursor.position == last
        for number in range(last, 0, -1):
            assert lines(cursor, number) == texts[number - 1]
        assert cursor.go_to(0) is None
        assert cursor.position == 0

    def test_changes_are_marked(self) -> None:
        cursor = CommitCursor(request_for())
        diff = cursor.run_to(lambda commit: commit.rule == "InlineDecidedIf", "")
        assert diff is not None
        assert diff.bindings
        lines = {str(line) for line in diff.lines}
        (gone,) = (line for line in lines if "= If<" in line)
        assert gone.startswith("- y = If<then_branch={2 nodes → a}")
        assert any(line.startswith("- k = Sin(") and line.endswith("(in If `y`)") for line in lines)
        assert any(line.startswith("+ k = Sin(") and line.endswith(")") for line in lines)

    def test_places_that_are_not_there(self) -> None:
        cursor = CommitCursor(request_for())
        for number in (-1, len(cursor.commits) + 1):
            with pytest.raises(LoopliftError, match=f"no commit {number}"):
                cursor.go_to(number)
        with pytest.raises(LoopliftError, match="No commit after 0 is silly"):
            cursor.run_to(lambda commit: False, "is silly")

    def test_the_model_at_any_commit(self, tmp_path: Path) -> None:
        cursor = CommitCursor(request_for())
        for number in (2, 0, len(cursor.commits), 1):
            cursor.go_to(number)
            cursor.dump(tmp_path / "m.onnx")
            given = {"c": True}
            expected = looplift.rewrite(request_for().proto, inputs=given, step_limit=number)
            assert onnx.load(tmp_path / "m.onnx") == expected.model


class TestShell:
    def test_a_script(self, tmp_path: Path) -> None:
        commands, said = shell()
        target = tmp_path / "m.onnx"
        commands.run_script(
            [
                "list",
                "",
                "next",
                "next 1",
                "back",
                "goto 2",
                "show",
                f"dump '{target}'",
                "quit",
                "oops",
            ]
        )
        assert commands.failure == ""
        assert target.exists()
        text = said.getvalue()
        assert "commit 1 of " in text
        assert text.count("commit 2 of ") == 3
        assert f"written: {target}" in text

    def test_rules_and_nodes(self) -> None:
        commands, said = shell()
        commands.run_script(["rule InlineDecidedIf", "back 99"])
        assert "InlineDecidedIf at If of `y`" in said.getvalue()
        assert "There is no commit" in commands.failure
        commands, said = shell()
        commands.run_script(["node y"])
        assert "`y`" in said.getvalue()

    @pytest.mark.parametrize(
        "command",
        ["next x", "goto", "goto 999", "rule Nonsense", "node nobody", "dump", "dump /no/f", "fly"],
    )
    def test_what_fails_ends_the_script(self, command: str) -> None:
        commands, said = shell()
        commands.run_script([command, "next"])
        assert commands.failure
        assert "commit 1 of" not in said.getvalue()

    def test_json(self) -> None:
        commands, said = shell(as_json=True)
        commands.run_script(["goto 0", "next"])
        first, second = map(json.loads, said.getvalue().splitlines())
        assert first == {"number": 0}
        assert second["number"] == 1
        assert {line["mark"] for line in second["lines"]} <= {"+", "-", " "}
        assert second["rule"]
        assert second["bindings"]
