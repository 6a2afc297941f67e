from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from typer.testing import CliRunner, Result

from looplift.cli import app
from looplift.commands import console
from looplift.commands.arguments import parse_assertions
from looplift.debug.command_options import settings_options
from looplift.request import Settings
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.symbolic import symbol
from looplift.rules.recurrence.emission import empty_note

from .bad_models import CASES, BadModel
from .gated import write
from .rewrite.storage.test_files import write_external

WRONG_RULES = '''
from looplift import Phase, Rule

class NegIsRelu(Rule):
    """Replaces a Neg by a Relu, which is wrong."""

    root = "Neg"

    def match(self, m):
        return m.node

    def apply(self, patch, node):
        patch.replace(node.outputs[0], patch.node("Relu", node.inputs, node.outputs)[0])
        patch.remove(node)
        patch.delta["constants"] -= 1

PHASES = (Phase("wrong", (NegIsRelu,), "Wrong."),)
'''


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    return write(tmp_path / "gated.onnx")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def complaint(result: Result) -> str:
    """The error message of a wrong call; asserts status 2, one paragraph and no traceback."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


class TestRewrite:
    def test_one_model(self, gated: Path, tmp_path: Path) -> None:
        output = tmp_path / "out.onnx"
        result = call("rewrite", gated, "-o", output, "--input", "rate=16000")
        assert result.exit_code == 0, result.output
        assert operators(output) == ["Relu"]
        assert [info.name for info in onnx.load(output).graph.input] == ["x"]
        assert "InlineDecidedIf" in result.stdout
        assert "note: input `rate` is 16000" in result.stdout
        assert (
            "verified: equal in 10 runs (batch=0|1|2|3|7|8, samples=0|1|2|3|7|8)" in result.stdout
        )
        assert result.stderr == ""

    def test_what_is_asserted_is_written(self, gated: Path, tmp_path: Path) -> None:
        output = tmp_path / "out.onnx"
        result = call("rewrite", gated, "-o", output, "--dim", "batch=3", "--shape", "x=?,40", "-q")
        assert result.exit_code == 0, result.output
        assert result.output == ""
        sizes = [d.dim_value for d in onnx.load(output).graph.input[1].type.tensor_type.shape.dim]
        assert sizes == [3, 40]

    def test_a_slash_names_a_folder(self, gated: Path, tmp_path: Path) -> None:
        assert call("rewrite", gated, "-o", f"{tmp_path}/new/", "-q").exit_code == 0
        assert [path.name for path in (tmp_path / "new").iterdir()] == [gated.name]

    def test_quiet_says_what_is_not_verified(self, gated: Path, tmp_path: Path) -> None:
        """The original fails for all inputs of this size."""
        model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x) => (float[m] y) {
            s = Constant <value_ints = [3, 7]> () r = Reshape (x, s) y = Flatten (r) }""")
        onnx.save(model, tmp_path / "in.onnx")
        call_ = (
            "rewrite",
            tmp_path / "in.onnx",
            "-o",
            tmp_path / "out.onnx",
            "--size",
            "n=5",
            "-q",
        )
        result = call(*call_)
        assert result.exit_code == 0
        assert result.stdout == ""
        assert "not verified: " in result.stderr

    def test_an_array_from_a_file(self, gated: Path, tmp_path: Path) -> None:
        np.save(tmp_path / "rate.npy", np.array(16000))
        output = tmp_path / "out.onnx"
        given = f"rate=@{tmp_path / 'rate.npy'}"
        assert call("rewrite", gated, "-o", output, "--input", given).exit_code == 0
        assert operators(output) == ["Relu"]

    def test_json(self, gated: Path, tmp_path: Path) -> None:
        result = call("rewrite", gated, "-o", tmp_path / "o.onnx", "--input", "rate=1", "--json")
        (outcome,) = json.loads(result.stdout)
        assert outcome["status"] == "written"
        assert outcome["before"]["If"] == 1
        assert "If" not in outcome["after"]
        assert outcome["rules"]["InlineDecidedIf"] == 1
        assert outcome["verification"].startswith("equal in 10 runs")

    def test_a_step_limit(self, gated: Path, tmp_path: Path) -> None:
        output = tmp_path / "out.onnx"
        arguments = ("rewrite", gated, "-o", output, "--input", "rate=16000")
        assert call(*arguments, "--steps", "0").exit_code == 0
        assert "If" in operators(output)

    def test_hidden_folders_are_not_looked_into(self, tmp_path: Path) -> None:
        (tmp_path / "in" / ".venv").mkdir(parents=True)
        write(tmp_path / "in" / "a.onnx")
        write(tmp_path / "in" / ".venv" / "b.onnx")
        result = call("rewrite", tmp_path / "in", "-o", tmp_path / "out")
        assert result.exit_code == 0, result.output
        assert [p.name for p in (tmp_path / "out").rglob("*.onnx")] == ["a.onnx"]
        assert "in 1 model;" in call("explain", tmp_path / "in", "--summary").stdout

    def test_a_folder_in_several_processes(self, tmp_path: Path) -> None:
        models = tmp_path / "models"
        (models / "deep").mkdir(parents=True)
        write(models / "a.onnx")
        write(models / "deep" / "b.onnx")
        (models / "c.onnx").write_bytes(b"no model")
        output = tmp_path / "out"
        result = call("rewrite", models, "-o", output, "-j", "2", "--input", "rate=1")
        assert result.exit_code == 2
        assert "2 of 3 written" in result.stdout
        assert result.stderr.startswith(f"looplift: {models / 'c.onnx'}: ")
        assert sorted(p.name for p in output.rglob("*") if p.is_file()) == ["a.onnx", "b.onnx"]
        assert operators(output / "deep" / "b.onnx") == ["Neg"]

    def test_several_files(self, gated: Path, tmp_path: Path) -> None:
        other = write(tmp_path / "other.onnx")
        result = call("rewrite", gated, other, "-o", tmp_path / "out")
        assert result.exit_code == 0, result.output
        assert (tmp_path / "out" / "gated.onnx").exists()
        assert (tmp_path / "out" / "other.onnx").exists()

    def test_a_difference_is_not_written(
        self, gated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "wrong_rules.py").write_text(WRONG_RULES)
        monkeypatch.chdir(tmp_path)
        arguments = ("rewrite", gated, "-o", "out.onnx", "--input", "rate=1", "-q")
        result = call(*arguments, "--rules", "wrong_rules")
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        assert "nothing was written" in result.stderr
        assert "output 'y': " in result.stderr
        assert "elements differ" in result.stderr
        assert not Path("out.onnx").exists()
        loud = call(*arguments[:-1], "--rules", "wrong_rules")
        assert "not written: outputs differ" in loud.stdout
        assert "elements differ" not in loud.stdout  # the error has the differences
        other = write(tmp_path / "other.onnx")
        several = call(
            "rewrite", gated, other, "-o", "out", *arguments[4:-1], "--rules", "wrong_rules"
        )
        assert several.stdout.count(": different") == 2
        assert "elements differ" not in several.stdout
        unverified = call(*arguments, "--rules", "wrong_rules", "--no-verify")
        assert unverified.exit_code == 0, unverified.output
        assert operators(Path("out.onnx")) == ["Relu"]

    def test_a_users_rules_count_everywhere(
        self, gated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "negs.py").write_text(WRONG_RULES)
        monkeypatch.chdir(tmp_path)
        options = (gated, "--input", "rate=1", "--rules", "negs")
        checked = call("check", *options, "--no-tvm", "--no-latency", "--json")
        assert checked.exit_code == 1, checked.output
        assert "differ" in checked.stdout
        assert call("import", *options, "-o", "module.py").exit_code == 0
        text = Path("module.py").read_text()
        assert "R.nn.relu" in text
        assert "R.negative" not in text
        assert call("inspect", *options).exit_code == 0

    def test_what_cannot_be_verified_is_written_and_said(self, tmp_path: Path) -> None:
        text = "g (float8e4m3fn[N] x) => (float8e4m3fn[N] y) { z = Identity(x) y = Identity(z) }"
        model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]>\n{text}')
        onnx.save(model, tmp_path / "in.onnx")
        result = call("rewrite", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx")
        assert result.exit_code == 0, result.output
        assert "not verified: no values can be generated for the input 'x'" in result.stdout
        assert (tmp_path / "out.onnx").exists()


class TestBadModels:
    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_rewrite(self, case: BadModel, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        model = case.make(tmp_path / "in")
        output = tmp_path / "out.onnx"
        error = complaint(call("rewrite", model, "-o", output))
        assert [word for word in case.words if word not in error] == [], error
        assert [path.name for path in tmp_path.iterdir()] == ["in"]

    @pytest.mark.parametrize("case", CASES[::8], ids=lambda case: case.name)
    def test_other_commands(self, case: BadModel, tmp_path: Path) -> None:
        model = case.make(tmp_path)
        complaint(call("check", model, "--no-tvm"))
        if "too new" not in case.words:
            complaint(call("inspect", model))


WRONG_CALLS = {
    "no value": (["--input", "rate"], "'rate' has no value", "--input NAME=VALUE"),
    "a bound of an input": (["--input", "T>=1"], "is a lower bound", '--dim "T>=1"'),
    "an input that is not there": (["--input", "sr=1"], "no input 'sr'", "rate, x"),
    "a value of another type": (["--input", "rate=fast"], "'rate'", "int64"),
    "a value that is not whole": (["--input", "rate=1.5"], "'rate'", "int64"),
    "a value of another shape": (["--input", "rate=1,2"], "[2]", "'rate'"),
    "two values": (["--input", "rate=1", "--input", "rate=2"], "cannot be both 1 and 2"),
    "an array that is not there": (["--input", "rate=@no.npy"], "no.npy", "numpy.save"),
    "a dimension that is not there": (["--dim", "T=2"], "'T'", "batch, samples"),
    "no size": (["--dim", "batch"], "'batch' does not assert a dim", "NAME>=NUMBER"),
    "two sizes": (["--dim", "batch=1", "--dim", "batch=2"], "both 1 and 2"),
    "a size below the least": (["--dim", "batch=1", "--dim", "batch>=2"], "at least 2"),
    "a shape of another rank": (["--shape", "x=1,2,3"], "rank 2, not 3"),
    "rules that are not there": (["--rules", "no.such"], "cannot be imported", "no.such"),
    "rules that are none": (["--rules", "json"], "lists no rules", "PHASES"),
    "a negative size": (["--shape", "x=1,-2"], "negative", "-2"),
    "a size that is not whole": (["--shape", "x=1,5.5"], "'5.5' is neither a size nor a name"),
    "half a bracket": (["--shape", "x=[1,2"], "'[1' is neither a size nor a name", "1,T,?"),
    "a shape against a dimension": (["--shape", "x=2,?", "--dim", "batch=3"], "'batch'"),
    "a shape of what is not there": (["--shape", "z=1"], "no input 'z'"),
}


class TestWrongCalls:
    @pytest.mark.parametrize(
        ("options", "words"), [(o, w) for o, *w in WRONG_CALLS.values()], ids=list(WRONG_CALLS)
    )
    def test_assertions(
        self, options: list[str], words: list[str], gated: Path, tmp_path: Path
    ) -> None:
        error = complaint(call("rewrite", gated, "-o", tmp_path / "out.onnx", *options))
        assert [word for word in words if word not in error] == [], error
        assert not (tmp_path / "out.onnx").exists()

    @pytest.mark.parametrize(
        "arguments",
        [
            ["rewrite", "-o", "-"],
            ["rewrite", "-o", "out.onnx", "--trace", "-"],
            ["report", "-o", "-"],
            ["reduce", "-o", "-"],
        ],
    )
    def test_standard_output(
        self, arguments: list[str], gated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        before = sorted(tmp_path.iterdir())
        assert "standard output" in complaint(call(arguments[0], gated, *arguments[1:]))
        assert sorted(tmp_path.iterdir()) == before

    def test_the_longest_name(self, gated: Path, tmp_path: Path) -> None:
        target = tmp_path / f"{'n' * 250}.onnx"
        trace = tmp_path / f"{'t' * 249}.jsonl"
        shown = call("rewrite", gated, "-o", target, "--trace", trace)
        assert (shown.exit_code, target.exists(), trace.exists()) == (0, True, True)

    def test_output_equal_to_input(self, gated: Path, tmp_path: Path) -> None:
        before = gated.read_bytes()
        link = tmp_path / "link.onnx"
        link.symlink_to(gated)
        for output in (gated, link, tmp_path):
            assert "is the model itself" in complaint(call("rewrite", gated, "-o", output))
        assert gated.read_bytes() == before

    @pytest.mark.parametrize(
        ("command", "weights"),
        [
            (("rewrite",), "w.bin"),
            (("report",), "w.html"),
            (("import",), "w.json"),
            (("import",), "w.py"),
            (("import", "--target", "native"), "w.so"),
            (("reduce", "--keep", "left If"), "w.bin"),
        ],
        ids=lambda given: given if isinstance(given, str) else given[0],
    )
    def test_weights_are_not_overwritten(
        self, command: tuple[str, ...], weights: str, tmp_path: Path
    ) -> None:
        write_external(tmp_path / "m.onnx", weights)
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        error = complaint(call(*command, tmp_path / "m.onnx", "-o", tmp_path / weights))
        assert "would replace the file with the weights" in error
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

    @pytest.mark.parametrize("weights", ["out/b.onnx", "out/b.onnx.data"])
    def test_weights_of_another_model_are_not_overwritten(
        self, weights: str, tmp_path: Path
    ) -> None:
        write_external(tmp_path / "in" / "a.onnx", weights)
        write_external(tmp_path / "in" / "b.onnx", "b.bin")
        before = (tmp_path / "in" / weights).read_bytes()
        error = complaint(call("rewrite", tmp_path / "in", "-o", tmp_path / "in" / "out"))
        assert "replace the file with the weights of file " in error
        assert str(tmp_path / "in" / "a.onnx") in error
        assert (tmp_path / "in" / weights).read_bytes() == before
        assert sorted(path.name for path in (tmp_path / "in" / "out").iterdir()) == [
            Path(weights).name
        ]

    def test_another_model_is_not_overwritten(self, gated: Path, tmp_path: Path) -> None:
        (tmp_path / "in" / "sub").mkdir(parents=True)
        write(tmp_path / "in" / "sub" / "m.onnx")
        (tmp_path / "out" / "sub").mkdir(parents=True)
        other = write(tmp_path / "out" / "sub" / "m.onnx")
        before = other.read_bytes()
        call_ = ("rewrite", tmp_path / "in", other, "-o", tmp_path / "out")
        assert "is the model itself" in complaint(call(*call_))
        assert other.read_bytes() == before

    def test_a_trace_overwrites_no_model(self, gated: Path, tmp_path: Path) -> None:
        other = write(tmp_path / "other.onnx")
        output = tmp_path / "out.onnx"
        before = gated.read_bytes()
        for trace, words in (
            (gated, "over a model"),
            (output, "over a model"),
            (tmp_path / "out.onnx.data", "over the weights of a rewritten model"),
            (other, "is not a trace"),
        ):
            assert words in complaint(call("rewrite", gated, "-o", output, "--trace", trace))
        assert gated.read_bytes() == other.read_bytes() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["gated.onnx", "other.onnx"]

    def test_a_trace_is_replaced(self, gated: Path, tmp_path: Path) -> None:
        trace = tmp_path / "t.jsonl"
        arguments = ("rewrite", gated, "-o", tmp_path / "out.onnx", "--trace", trace, "-q")
        assert call(*arguments, "--steps", "0").exit_code == 0
        before = trace.read_text()
        complaint(call(*arguments, "--input", "no=1"))
        assert trace.read_text() == before
        assert call(*arguments, "--input", "rate=1").exit_code == 0
        assert len(trace.read_text()) > len(before)
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["gated.onnx", "out.onnx", "t.jsonl"]

    def test_outputs_that_cannot_be(self, gated: Path, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        (tmp_path / "file").touch()
        missing = tmp_path / "missing" / "out.onnx"
        assert "does not exist" in complaint(call("rewrite", gated, "-o", missing))
        assert not missing.parent.exists()
        inside = tmp_path / "file" / "out.onnx"
        complaint(call("rewrite", gated, "-o", inside))
        assert "no .onnx file" in complaint(call("rewrite", folder, "-o", tmp_path / "out"))
        assert "must be a folder" in complaint(call("rewrite", tmp_path, "-o", tmp_path / "file"))
        complaint(call("rewrite", gated, "-o", "/proc/out.onnx"))
        absent = complaint(call("rewrite", tmp_path / "absent.onnx", "-o", tmp_path / "o.onnx"))
        assert "absent.onnx" in absent

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_that_cannot_be_written(self, gated: Path, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        assert "permissions" in complaint(call("rewrite", gated, "-o", closed / "out.onnx"))

    def test_two_models_for_one_file(self, gated: Path, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        other = write(tmp_path / "other" / "gated.onnx")
        error = complaint(call("rewrite", gated, other, "-o", tmp_path / "out"))
        assert "same file" in error

    def test_a_model_with_the_name_of_weights(self, gated: Path, tmp_path: Path) -> None:
        other = write(tmp_path / "gated.onnx.data")
        error = complaint(call("rewrite", gated, other, "-o", tmp_path / "out"))
        assert "would be written to the same file" in error

    def test_sizes(self, gated: Path) -> None:
        error = complaint(call("check", gated, "--no-tvm", "--size", "batch=1,x"))
        assert "'1,x' is not a list of sizes" in error

    def test_sizes_of_what_is_no_dimension(self, gated: Path) -> None:
        error = complaint(call("check", gated, "--no-tvm", "--size", "nosuch=2"))
        assert "'nosuch' is not an open dimension" in error
        assert "batch, samples" in error
        fixed = complaint(call("check", gated, "--no-tvm", "--dim", "batch=1", "--size", "batch=2"))
        assert "'batch' is asserted to be 1" in fixed
        bound = ("--dim", "batch>=2", "--size", "batch=3,1")
        below = complaint(call("check", gated, "--no-tvm", *bound))
        assert "The size 1 of 'batch' cannot be tried: 'batch' is at least 2" in below

    def test_more_of_no_trace(self, gated: Path, tmp_path: Path) -> None:
        error = complaint(call("rewrite", gated, "-o", tmp_path / "out.onnx", "--trace-all"))
        assert "--trace FILE" in error

    def test_a_file_for_several_models(self, gated: Path, tmp_path: Path) -> None:
        other = write(tmp_path / "other.onnx")
        error = complaint(call("rewrite", gated, other, "-o", tmp_path / "one.onnx"))
        assert "must be a folder" in error
        assert not (tmp_path / "one.onnx").exists()

    def test_a_folder_for_itself(self, gated: Path) -> None:
        error = complaint(call("rewrite", gated.parent, "-o", gated.parent))
        assert "is the folder that is read" in error

    def test_options(self) -> None:
        for arguments in (["rewrite"], ["rewrite", "m.onnx"], ["nonsense"], ["check", "--nope"]):
            result = call(*arguments)
            assert result.exit_code == 2
            assert "Usage: " in result.stderr


class TestMasks:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("mask", {"mask": None}),
            ("mask axis 0", {"mask": 0}),
            (" mask  axis  -1 ", {"mask": -1}),
            ("Greater__4182:0", {"Greater__4182:0": None}),
            ("Greater__4182:0 axis 1", {"Greater__4182:0": 1}),
            ("a b axis 1 axis 0", {"a b axis 1": 0}),
            ("axis 0", {"axis 0": None}),
        ],
    )
    def test_spelled(self, text: str, expected: dict[str, int | None]) -> None:
        """A name may be any text: the option that is written from it parses to the same name."""
        settings = Settings(Assertions(prefix_masks=expected))
        (written,) = map(shlex.split, settings_options(settings))
        for spelled in (text, written[1]):
            assert parse_assertions([], [], [], [spelled]).prefix_masks == expected


class TestTheRest:
    def test_version_and_help(self) -> None:
        assert call("--version").stdout.startswith("looplift 0.")
        assert "inspect" in call("--help").stdout
        for command in ("rewrite", "inspect", "import", "check"):
            assert "Example" in call(command, "--help").stdout
        assert call().exit_code == 2

    def test_rules(self) -> None:
        listed = call("rules").stdout
        contents = json.loads(call("rules", "--json").stdout)
        assert contents[0]["phase"] == "contrib operators"
        for phase in contents:
            for rule in phase["rules"]:
                assert f"  {rule['name']} " in listed
                assert rule["summary"] in listed

    def test_inspect(self, gated: Path) -> None:
        shown = call("inspect", gated).stdout
        assert re.match(
            r"gated.onnx: \d+ B, opset 17, \d+ nodes\ninputs +rate: int64\[\] *\n", shown
        )
        assert "1 If: 1 remains" in shown
        assert "If of `y`: the condition Equal(`rate`, 16000) is not known before the run" in shown
        assert "try --input rate=16000" in shown
        assert "condition: Equal(`rate`, 16000)" in call("inspect", gated, "--why").stdout
        given = call("inspect", gated, "--input", "rate=1", "--why").stdout
        assert "1 If: removed" in given
        assert "removed: InlineDecidedIf" in given
        (found,) = json.loads(call("inspect", gated, "--json").stdout)["control"]
        assert found["op"] == "If"
        assert found["captures"] == ["x"]  # `z` is a copy of `x`, which the rewrite removes

    def test_as_a_module_and_as_a_script(self, gated: Path, tmp_path: Path) -> None:
        script = Path(sys.executable).with_name("looplift")
        done = subprocess.run(
            [sys.executable, "-m", "looplift", "rewrite", gated.name, "-o", "out.onnx"],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "verified: equal" in done.stdout
        wrong = subprocess.run([script, "inspect", "none.onnx"], capture_output=True, text=True)
        assert wrong.returncode == 2
        assert wrong.stderr.startswith("looplift: ")
        assert "Traceback" not in wrong.stderr

    def test_nothing_loads_tvm(self, gated: Path, tmp_path: Path) -> None:
        code = (
            "import sys; from looplift.cli import app; "
            f"app(['rewrite', {str(gated)!r}, '-o', {str(tmp_path / 'o.onnx')!r}],"
            " standalone_mode=False); sys.exit('tvm' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0

    def test_import_without_tvm(
        self, gated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "hidden").mkdir()
        (tmp_path / "hidden" / "tvm.py").write_text("raise ImportError('as if not installed')\n")
        monkeypatch.syspath_prepend(tmp_path / "hidden")
        error = complaint(call("import", gated, "-o", tmp_path / "out.py"))
        assert "needs TVM" in error
        assert 'pip install ".[tvm]"' in error
        assert not (tmp_path / "out.py").exists()


class TestTables:
    def test_before_and_after(self, gated: Path, tmp_path: Path) -> None:
        result = call("rewrite", gated, "-o", tmp_path / "o.onnx", "--input", "rate=1")
        lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
        assert lines[0] == "inputs rate: int64[] (removed)"
        assert lines[1] == "x: float32[batch, samples]"
        assert "opset 17 17" in lines
        assert "If 1 0" in lines
        assert "Equal 1 0" in lines
        size = next(line for line in lines if line.startswith("size "))
        assert re.fullmatch(r"size \d+ B \d+ B", size)
        end = [line.partition(":")[0] for line in lines[-3:]]
        assert end == ["verified", "written", "note"]

    def test_json_has_them_too(self, gated: Path, tmp_path: Path) -> None:
        (outcome,) = json.loads(call("rewrite", gated, "-o", tmp_path / "o.onnx", "--json").stdout)
        assert outcome["original"]["inputs"] == ["rate: int64[]", "x: float32[batch, samples]"]
        assert outcome["original"]["size"] == gated.stat().st_size
        assert outcome["before"] == outcome["original"]["operators"]

    def test_sizes_that_the_original_refuses(self, tmp_path: Path) -> None:
        """The table says why a size that was asked for is missing."""
        path = tmp_path / "first.onnx"
        text = """g (float[T,3] x) => (float[3] y) <int64 zero = {0}> {
            a = Gather<axis=0>(x, zero) y = Exp(a) }"""
        onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), path)
        shown = call("check", path, "--no-tvm", "--size", "T=0,1").stdout
        assert re.search(r"^T=1 \(\d+ runs\) .* ms .* ms +\d+\.\dx +equal$", shown, re.MULTILINE)
        assert "T=0: the original does not run: " in shown


def test_similar_notes_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_notes(["`a` is 1", "`b` is 2", "other", "`a` is 1"])
    assert capsys.readouterr().out == "note: `a` is 1 (and 1 more like this)\nnote: other\n"


def test_all_assertions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    both = {"a": 1, "b": 2}
    asserted = Assertions(
        inputs=both, dims=both, minima=both, shapes={"a": (1,), "b": (2,)}, prefix_masks=both
    )
    notes = [*asserted.notes(), *(empty_note("GRU", "batch", symbol(name)) for name in "TB")]
    console.print_notes(notes)
    assert capsys.readouterr().out.splitlines() == [f"note: {note}" for note in notes]


def test_a_model_on_standard_input(gated: Path, tmp_path: Path) -> None:
    data = gated.read_bytes()
    runner = CliRunner()
    shown = runner.invoke(app, ["inspect", "-"], input=data)
    assert "stdin.onnx" in shown.stdout
    assert "1 If: 1 remains" in shown.stdout
    out = tmp_path / "o.onnx"
    assert runner.invoke(app, ["rewrite", "-", "-o", str(out)], input=data).exit_code == 0
    assert out.exists()


@pytest.mark.parametrize("arguments", [["explain"], ["rewrite", "-o", "o.onnx"]])
def test_errors_name_standard_input(arguments: list[str]) -> None:
    shown = CliRunner().invoke(app, [*arguments, "-"], input=b"abc")
    error = complaint(shown)
    assert "it is a text file (standard input)" in error
    assert "stdin.onnx" not in error


def test_a_model_on_standard_input_has_no_folder(
    gated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(gated)
    values = onnx.numpy_helper.from_array(np.ones(2048, np.float32), "weights")
    model.graph.initializer.append(values)
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data")
    assert call("inspect", "m.onnx").exit_code == 0
    shown = CliRunner().invoke(app, ["inspect", "-"], input=Path("m.onnx").read_bytes())
    assert "external data, and standard input has no folder" in complaint(shown)


def test_the_trace_and_the_outcome_name_standard_input(gated: Path, tmp_path: Path) -> None:
    arguments = ["rewrite", "-", "-o", tmp_path / "o.onnx", "--json", "--trace", tmp_path / "t"]
    shown = CliRunner().invoke(app, [*map(str, arguments)], input=gated.read_bytes())
    (outcome,) = json.loads(shown.stdout)
    trace = json.loads((tmp_path / "t").read_text().splitlines()[0])
    assert (outcome["source"], trace["source"]) == ("-", "-")


def test_a_folder_that_does_not_exist_has_no_summary() -> None:
    assert "does not exist" in complaint(call("explain", "no-such-folder", "--summary"))


def test_an_output_in_a_file(gated: Path) -> None:
    error = complaint(call("rewrite", gated, "-o", gated / "out.onnx"))
    assert "The folder to write to is a file" in error


@pytest.mark.parametrize("group", [[], ["rules"]])
def test_the_help_cuts_no_summary(group: list[str]) -> None:
    commands = call(*group, "--help").stdout.partition("Commands:\n")[2]
    assert len(commands.splitlines()) > 5
    assert "..." not in commands


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_that_nothing_reads(gated: Path, stream: str) -> None:
    """A pipe whose reader is gone; 1 would mean a finding."""
    reader, writer = os.pipe()
    os.close(reader)
    model = gated if stream == "stdout" else gated / "nothing.onnx"
    command = [sys.executable, "-m", "looplift", "inspect", str(model)]
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {stream: writer}
    done = subprocess.run(command, **streams, timeout=100)
    os.close(writer)
    assert (done.returncode, done.stdout or b"", done.stderr or b"") == (141, b"", b"")


@pytest.mark.parametrize("arguments", [["rewrite", "m.onnx", "-o", ""], ["inspect", ""]])
def test_an_empty_argument_is_refused(
    arguments: list[str], gated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-o "$OUT"` without OUT would otherwise write into the present folder."""
    monkeypatch.chdir(gated.parent)
    before = sorted(gated.parent.iterdir())
    shown = CliRunner().invoke(app, [gated.name if a == "m.onnx" else a for a in arguments])
    assert shown.exit_code == 2
    assert "An argument is empty" in shown.output
    assert sorted(gated.parent.iterdir()) == before
