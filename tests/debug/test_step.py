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
from looplift.commands.arguments import Assertions
from looplift.debug.step import Shell, Walk
from looplift.debug.subject import Subject

TEXT = """g (float[2] x, bool c) => (float[2] y) {
    near = Identity(x)
    y = If (c) <
        then_branch = t () => (float[2] a) { k = Sin(near) a = Exp(k) },
        else_branch = e () => (float[2] b) { b = Neg(near) }
    >
}"""


def subject() -> Subject:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {TEXT}')
    return Subject.of(model, Assertions({"c": True}))


def shell(as_json: bool = False) -> tuple[Shell, io.StringIO]:
    said = io.StringIO()
    return Shell(Walk(subject()), Console(file=said, width=300), as_json), said


def lines(walk: Walk, step: int) -> list[str]:
    there = walk.go_to(step)
    assert there is not None
    return [str(line) for line in there.lines]


class TestWalk:
    def test_there_and_back(self) -> None:
        walk = Walk(subject())
        last = len(walk.commits)
        texts = [lines(walk, step) for step in range(1, last + 1)]
        assert walk.step == last
        for step in range(last, 0, -1):
            assert lines(walk, step) == texts[step - 1]
        assert walk.go_to(0) is None
        assert walk.step == 0

    def test_changes_are_marked(self) -> None:
        walk = Walk(subject())
        step = walk.run_to(lambda commit: commit.rule == "InlineDecidedIf", "")
        assert step is not None
        lines = {str(line) for line in step.lines}
        (gone,) = (line for line in lines if "= If<" in line)
        assert gone.startswith("- y = If<then_branch={2 nodes → a}")
        assert any(line.startswith("- k = Sin(") and line.endswith("(in If `y`)") for line in lines)
        assert any(line.startswith("+ k = Sin(") and line.endswith(")") for line in lines)

    def test_places_that_are_not_there(self) -> None:
        walk = Walk(subject())
        for step in (-1, len(walk.commits) + 1):
            with pytest.raises(LoopliftError, match=f"no step {step}"):
                walk.go_to(step)
        with pytest.raises(LoopliftError, match="No step after 0 is silly"):
            walk.run_to(lambda commit: False, "is silly")

    def test_the_model_at_any_step(self, tmp_path: Path) -> None:
        walk = Walk(subject())
        for step in (2, 0, len(walk.commits), 1):
            walk.go_to(step)
            walk.dump(tmp_path / "m.onnx")
            expected = looplift.rewrite(subject().proto, inputs={"c": True}, step_limit=step).model
            assert onnx.load(tmp_path / "m.onnx") == expected


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
        assert "step 1 of " in text
        assert text.count("step 2 of ") == 3
        assert f"written: {target}" in text

    def test_rules_and_nodes(self) -> None:
        commands, said = shell()
        commands.run_script(["rule InlineDecidedIf", "back 99"])
        assert "InlineDecidedIf at If of `y`" in said.getvalue()
        assert "There is no step" in commands.failure
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
        assert "step 1 of" not in said.getvalue()

    def test_json(self) -> None:
        commands, said = shell(as_json=True)
        commands.run_script(["goto 0", "next"])
        first, second = map(json.loads, said.getvalue().splitlines())
        assert first == {"step": 0}
        assert second["step"] == 1
        assert {line["mark"] for line in second["lines"]} <= {"+", "-", " "}
        assert second["rule"]
