from __future__ import annotations

import math
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

from looplift import LoopliftError, Match, Phase, Rule
from looplift.debug.bisect import bisect, render
from looplift.debug.model_checks import CommandCheck, OutputCheck
from looplift.plugins import all_phases
from looplift.request import Request
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.graph.ir import Node

COUNT = 20


class NegIsAbs(Rule[Node]):
    """Replaces a Neg by an Abs, which is wrong."""

    root = "Neg"

    def match(self, m: Match) -> Node:
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        patch.replace(found.outputs[0], patch.node("Abs", found.inputs, found.outputs)[0])
        patch.remove(found)
        patch.toward_normal_form()


def chain(ops: list[str]) -> onnx.ModelProto:
    nodes = [helper.make_node(op, [f"v{k}"], [f"v{k + 1}"]) for k, op in enumerate(ops)]
    info = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N"])
        for name in ("v0", f"v{len(ops)}")
    ]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def request_for(ops: list[str]) -> Request:
    phases = (*all_phases(), Phase("wrong", (NegIsAbs,), "Wrong."))
    return Request.of(chain(ops), phases=phases)


def test_one_place() -> None:
    given = request_for(["Identity", "Sin"] * COUNT + ["Neg", "Sin"])
    messages: list[str] = []
    found = bisect(given, OutputCheck.of(given), messages.append)
    assert (found.rule, found.node) == ("NegIsAbs", f"Neg of `v{2 * COUNT + 1}`")
    assert found.number == found.commits
    assert "output 'v" in found.finding
    assert found.without_place == ""
    assert found.without_rule is None
    assert found.checks == len(messages) <= math.log2(found.commits) + 4
    assert found.status == 1


def test_several_places() -> None:
    """With 32 commits, a check is left for the rule as a whole."""
    given = request_for(["Sin", "Neg", "Sin", "Neg", "Sin"] + ["Identity", "Sin"] * 30)
    found = bisect(given, OutputCheck.of(given))
    assert found.commits == 32
    assert found.rule == "NegIsAbs"
    assert found.without_place
    assert found.without_rule == ""
    assert found.checks <= math.log2(found.commits) + 4


def test_a_good_rewrite() -> None:
    given = Request.of(chain(["Identity", "Sin"] * COUNT))
    found = bisect(given, OutputCheck.of(given))
    assert (found.number, found.checks, found.status) == (0, 2, 0)


class SinIsUnknown(NegIsAbs):
    """Replaces a Sin by an operator that does not exist, so that the patch is undone."""

    root = "Sin"

    def apply(self, patch: Patch, found: Node) -> None:
        patch.node("NoSuchOperator", found.inputs, found.outputs)
        patch.remove(found)


def test_defects_are_reported() -> None:
    phases = (*all_phases(), Phase("wrong", (SinIsUnknown,), "Wrong."))
    given = Request.of(chain(["Identity", "Sin"]), phases=phases)
    found = bisect(given, OutputCheck.of(given))
    assert found.defects
    assert found.defects[0].startswith("SinIsUnknown at Sin of `v2`")
    shown = " ".join(str(part) for part in render(found, "m"))
    assert f"defect: {found.defects[0]}" in shown


def test_a_note_of_the_check_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    given = request_for(["Identity", "Sin"])
    check = OutputCheck.of(given)
    monkeypatch.setattr(check.reference, "original_crash", "its process was ended by SIGSEGV")
    found = bisect(given, check)
    assert "fails on the original: its process was ended by SIGSEGV" in found.note
    assert found.note in " ".join(str(part) for part in render(found, "m"))


class TestCommands:
    def test_any_command(self, tmp_path: Path) -> None:
        """A device that does not support Abs."""
        script = tmp_path / "device.py"
        script.write_text(
            "import pathlib, sys\n"
            "model = pathlib.Path(sys.argv[1]).read_bytes()\n"
            "sys.exit('no Abs here' if b'Abs' in model else 0)\n"
        )
        given = request_for(["Identity", "Sin", "Neg", "Identity", "Sin"])
        found = bisect(given, CommandCheck(f"{sys.executable} {script} {{}}"))
        assert found.rule == "NegIsAbs"
        assert found.finding == "the command ends with 1: no Abs here"

    def test_a_model_that_is_bad_before(self) -> None:
        messages: list[str] = []
        given = request_for(["Identity", "Neg"])
        with pytest.raises(LoopliftError, match="before any rewrite: the command ends with 1"):
            bisect(given, CommandCheck("false"), messages.append)
        assert len(messages) == 1

    def test_no_rewrite_at_all(self) -> None:
        given = Request.of(chain(["Sin"]))
        with pytest.raises(LoopliftError, match="before any rewrite"):
            bisect(given, CommandCheck("false"))
        found = bisect(given, CommandCheck("true"))
        assert (found.checks, found.status) == (2, 0)

    @pytest.mark.parametrize("text", ["", "no-such-program-anywhere {}", "'"])
    def test_what_cannot_be_run(self, text: str) -> None:
        with pytest.raises(LoopliftError, match="command cannot be run"):
            CommandCheck(text).finding(chain(["Sin"]))

    def test_one_that_takes_too_long(self) -> None:
        slow = CommandCheck(f"{sys.executable} -c 'import time; time.sleep(5)'", seconds=0.2)
        assert "takes more than" in slow.finding(chain(["Sin"]))


def test_nothing_to_compare_with() -> None:
    model = chain(["Sin"])
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT8E4M3FN
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT8E4M3FN
    model.graph.node[0].op_type = "Identity"
    model.ir_version, model.opset_import[0].version = 9, 19
    with pytest.raises(LoopliftError, match="nothing to compare with"):
        OutputCheck.of(Request.of(model))
