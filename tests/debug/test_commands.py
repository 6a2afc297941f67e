"""The debugging commands as a user calls them: exit statuses, JSON, errors of one paragraph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser
from typer.testing import CliRunner, Result

from looplift.cli import app
from looplift.debug.trace_reader import read_trace

from ..full_disk import full_disk
from ..gated import write
from ..rewrite.storage.test_files import write_external

COMMANDS = ("explain", "step", "verify", "bisect", "reduce")
WRONG_RULES = '''
from looplift import Phase, Rule

class NegIsAbs(Rule):
    """Replaces a Neg by an Abs, which is wrong."""

    root = "Neg"

    def match(self, m):
        return m.node

    def apply(self, patch, node):
        patch.replace(node.outputs[0], patch.node("Abs", node.inputs, node.outputs)[0])
        patch.remove(node)
        patch.toward_normal_form()

PHASES = (Phase("wrong", (NegIsAbs,), "Wrong."),)
'''


@pytest.fixture
def gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "wrong_signs.py").write_text(WRONG_RULES)
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "gated.onnx")


def call(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def content(result: Result) -> dict[str, Any]:
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("command", COMMANDS)
class TestAll:
    def test_help_has_examples(self, command: str) -> None:
        assert "Example" in call(command, "--help").stdout

    def test_a_wrong_call(self, command: str, gated: Path) -> None:
        extra = ["-o", "small.onnx"] if command == "reduce" else []
        missing = call(command, gated.with_name("none.onnx"), *extra)
        assert missing.exit_code == 2
        assert missing.stderr.startswith("looplift: ")
        assert call(command, gated, *extra, "--rules", "no.such").exit_code == 2
        assert call(command, gated, *extra, "--no-such-option").exit_code == 2


def test_completion_is_there() -> None:
    assert "--install-completion" in call("--help").stdout


MASKED = """g (float[T,B,3] x, bool[B,T] mask, float[B,3] h0) => (float[B,3] h) <int64[1] last = {2}> {
    m3 = Unsqueeze(mask, last) ms = Transpose<perm=[1,0,2]>(m3)
    h = Scan <num_scan_inputs=2, body = b (float[B,3] s, float[B,3] xt, bool[B,1] m) => (float[B,3] so) {
        a = Add(s, xt) n = Tanh(a) so = Where(m, n, s) }> (h0, x, ms) }"""

RAISING = '''from looplift import Phase, Rule
class Raises(Rule):
    """Looks up what is not there."""
    root = "If"

    def match(self, m):
        return {}["gone"]

PHASES = (Phase("bad", (Raises,), "Bad."),)
'''


FIVES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[T] x) => (float[T] y) <int64 five = {5}> {
    size = Size(x)
    fits = Equal(size, five)
    y = If(fits) <
        then_branch = t () => (float[T] a) { b = Sin(x)  a = Neg(b) },
        else_branch = e () => (float[T] d) { d = Exp(x) }
    >
}"""
REMOVES_SIN = '''from looplift import PatternRule, Phase
class RemoveSin(PatternRule):
    """Removes a Sin, which is wrong."""
    pattern = "(x) => (y) { y = Sin(x) }"
    replacement = "x"

PHASES = (Phase("wrong", (RemoveSin,), "Wrong."),)
'''


class TestExplain:
    def test_statuses(self, gated: Path) -> None:
        left = call("explain", gated)
        assert left.exit_code == 0
        assert "InlineDecidedIf" in left.stdout
        assert "IfToWhere" not in left.stdout
        assert "try --input rate=16000: InlineDecidedIf removes it" in left.stdout
        assert "IfToWhere" in call("explain", gated, "--all").stdout
        assert call("explain", gated, "--fail-if-left").exit_code == 1
        assert call("explain", gated, "--fail-if-left", "--input", "rate=1").exit_code == 0
        assert call("explain", gated, "--fail-if-left", "--assume", "input rate=1").exit_code == 0
        assert call("explain", gated, "--assume", "luck").exit_code == 2
        assert call("explain", gated, "--node", "nobody").exit_code == 2

    def test_json(self, gated: Path) -> None:
        found = content(call("explain", gated, "--rule", "InlineDecidedIf", "--json"))
        (left,) = found["remaining"]
        assert left["op"] == "If"
        assert [why["rule"] for why in left["why"]] == ["InlineDecidedIf"]
        assert [trial["option"] for trial in left["trials"]] == ["--input rate=16000"]

    def test_a_folder(self, gated: Path) -> None:
        result = call("explain", gated.parent, "--summary")
        assert result.exit_code == 0
        assert "1 remains in 1 model;" in result.stdout
        assert call("explain", gated.parent, "--summary", "--fail-if-left").exit_code == 1
        (gated.parent / "empty").mkdir()
        refused = call("explain", gated.parent / "empty", "--summary")
        assert refused.exit_code == 2
        assert "contains no .onnx file" in refused.stderr
        (gated.parent / "bad.onnx").write_bytes(b"no model")
        assert call("explain", gated.parent, "--summary", "--json").exit_code == 2

    def test_a_folder_under_assertions(self, gated: Path) -> None:
        """A summary takes what a single model takes, except for one node."""
        assert call("explain", gated.parent, "--summary", "--input", "rate=1").exit_code == 0
        result = call("explain", gated.parent, "--summary", "--rule", "InlineDecidedIf")
        assert "InlineDecidedIf" in result.stdout
        assert "IfToWhere" not in result.stdout
        refused = call("explain", gated.parent, "--summary", "--node", "y")
        assert refused.exit_code == 2
        assert "A summary covers all nodes (--node)" in refused.stderr

    def test_prefix_masks(self, tmp_path: Path) -> None:
        path = tmp_path / "masked.onnx"
        onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {MASKED}'), path)
        before = path.read_bytes()
        result = call("explain", path, "--rule", "FuseRecurrence")
        assert '--prefix-mask "mask axis 1"' in result.stdout
        assert call("explain", path, "--assume", "prefix mask mask").exit_code == 0
        assert call("explain", path, "--prefix-mask", "mask").exit_code == 0
        assert call("explain", path, "--assume", "prefix mask nobody").exit_code == 2
        assert path.read_bytes() == before
        result = call("rewrite", path, "-o", tmp_path / "o.onnx", "--prefix-mask", "mask")
        assert result.exit_code == 0, result.output
        assert "note: `mask` is a prefix mask along axis 1" in result.stdout
        twice = call("verify", path, "--prefix-mask", "mask axis 1", "--prefix-mask", "mask axis 0")
        assert "The mask 'mask' cannot have two time axes (--prefix-mask)" in twice.stderr
        assert "verified: equal in 10 runs" in result.stdout
        assert call("verify", path, "--prefix-mask", "mask").exit_code == 0
        assert call("bisect", path, "--prefix-mask", "mask").exit_code == 0

    def test_a_trace_remembers_masks(self, tmp_path: Path) -> None:
        path, trace = tmp_path / "masked.onnx", tmp_path / "t.jsonl"
        onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {MASKED}'), path)
        given = ("--prefix-mask", "mask axis 1")
        call("rewrite", path, "-o", tmp_path / "o.onnx", *given, "--trace", trace, "-q")
        assert read_trace(trace).settings.assertions.prefix_masks == {"mask": 1}
        assert call("step", path, *given, "--trace", trace, "--do", "list").exit_code == 0
        other = call("step", path, "--trace", trace, "--do", "list")
        assert other.exit_code == 2
        assert '--prefix-mask "mask axis 1"' in other.stderr

    def test_a_rule_that_raises(self, gated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every command reports it with its line; none ends with a traceback."""
        module = gated.with_name("raises.py")
        module.write_text(RAISING)
        monkeypatch.chdir(gated.parent)
        place = f"{module}:7"
        rules = ("--rules", "raises")
        for command, status in (
            (("explain", gated, "--rule", "Raises"), 0),
            (("rewrite", gated, "-o", "out.onnx"), 0),
            (("verify", gated), 1),
        ):
            result = call(*command, *rules)
            assert result.exit_code == status, result.output
            flat = "".join(result.stdout.split())
            assert f"matchraisedKeyError:'gone'at{place}" in flat
        assert call("rules", "show", "Raises", *rules).exit_code == 0
        unmade = module.with_name("unmade.py")
        unmade.write_text(RAISING.replace("    root", "    def __init__(self, x): ...\n    root"))
        refused = call("explain", gated, "--rules", "unmade")
        assert refused.exit_code == 2
        assert "The rule Raises cannot be made" in refused.stderr


class TestStep:
    def test_commands_from_everywhere(self, gated: Path) -> None:
        result = call("step", gated, "--input", "rate=1", "--do", "next", "--do", "dump now.onnx")
        assert result.exit_code == 0, result.output
        assert "commit 1 of" in result.stdout
        onnx.checker.check_model(onnx.load("now.onnx"))
        piped = call("step", gated, "--input", "rate=1", "--json", stdin="next\nnext\nquit\n")
        assert [json.loads(line)["number"] for line in piped.stdout.splitlines()] == [1, 2]
        assert call("step", gated, "--do", "fly").exit_code == 2
        listed = call("step", gated, "--input", "rate=1", "--do", "list")
        assert call("step", gated, "--input", "rate=1", stdin="\n").stdout == listed.stdout != ""

    def test_dump_does_not_overwrite_the_model(self, gated: Path) -> None:
        before = gated.read_bytes()
        result = call("step", gated, "--do", "next", "--do", f"dump '{gated}'")
        assert result.exit_code == 2
        assert "never changed in place" in result.stdout.replace("\n", " ")
        assert gated.read_bytes() == before

    def test_a_trace(self, gated: Path) -> None:
        given = ("--input", "rate=1")
        written = call("rewrite", gated, "-o", "out.onnx", *given, "--trace", "t.jsonl", "-q")
        assert written.exit_code == 0, written.output
        result = call("step", gated, *given, "--trace", "t.jsonl", "--do", "list")
        assert result.exit_code == 0
        assert len(result.stdout.splitlines()) == len(read_trace("t.jsonl").commits) > 0
        assert call("step", gated, "--trace", "none.jsonl").exit_code == 2

    def test_a_trace_with_other_assertions(self, gated: Path) -> None:
        given = ("--input", "rate=16000", "--dim", "batch=2", "--shape", "x=?,40")
        call("rewrite", gated, "-o", "out.onnx", *given, "--trace", "t.jsonl", "-q")
        assert call("step", gated, *given, "--trace", "t.jsonl", "--do", "list").exit_code == 0
        for other in ((), ("--input", "rate=8000", *given[2:]), (*given, "--strict")):
            result = call("step", gated, *other, "--trace", "t.jsonl", "--do", "list")
            assert result.exit_code == 2
            assert '--input rate=16000 --dim batch=2 --shape "x=?,40"' in result.stderr


class TestTrace:
    def test_in_full(self, gated: Path) -> None:
        call("rewrite", gated, "-o", "out.onnx", "--trace", "t.jsonl", "--trace-all", "-q")
        trace = read_trace("t.jsonl")
        assert trace.about["source"] == str(gated)
        assert trace.attempts

    def test_several_models(self, gated: Path) -> None:
        write(gated.with_name("other.onnx"))
        arguments = ("rewrite", gated, "other.onnx", "-o", "out", "--trace", "traces", "-q")
        assert call(*arguments).exit_code == 2
        Path("traces").mkdir()
        assert call(*arguments).exit_code == 0
        assert sorted(path.name for path in Path("traces").iterdir()) == [
            "gated.jsonl", "other.jsonl",
        ]  # fmt: skip

    def test_models_of_one_name(self, gated: Path) -> None:
        """Each has a trace of its own, with the relative path of the model."""
        for folder in ("models/one", "models/two", "traces"):
            Path(folder).mkdir(parents=True)
        for folder in ("one", "two"):
            write(Path("models", folder, "gated.onnx"))
        assert call("rewrite", "models", "-o", "out", "--trace", "traces", "-q").exit_code == 0
        for folder in ("one", "two"):
            trace = read_trace(Path("traces", folder, "gated.jsonl"))
            assert trace.about["source"] == str(Path("models", folder, "gated.onnx"))
        one_trace = ("rewrite", gated, write(Path("gated.model")), "-o", "out", "--trace", "traces")
        result = call(*one_trace)
        assert result.exit_code == 2
        assert "would be written to the same file" in result.stderr

    def test_a_file_that_cannot_be_written(self, gated: Path) -> None:
        result = call("rewrite", gated, "-o", "out.onnx", "--trace", "no/t.jsonl")
        assert result.exit_code == 2
        assert "trace cannot be written" in result.stderr

    def test_a_full_disk(self, gated: Path) -> None:
        """Half a trace is not kept, and the error names the trace, not the model."""
        with full_disk(1000):
            result = call("rewrite", gated, "-o", "out.onnx", "--trace", "t.jsonl")
        assert result.exit_code == 2
        assert "The trace cannot be written: File too large (file 't.jsonl')" in result.stderr
        assert not list(Path().glob("*.jsonl"))
        assert not list(Path().glob(".looplift-*"))


class TestFindings:
    GIVEN = ("--input", "rate=1", "--rules", "wrong_signs")

    def test_verify(self, gated: Path) -> None:
        good = call("verify", gated)
        assert good.exit_code == 0, good.output
        assert "equal after each of" in good.stdout
        bad = call("verify", gated, *self.GIVEN)
        assert bad.exit_code == 1
        assert "first bad commit" in bad.stdout
        found = content(call("verify", gated, *self.GIVEN, "--json"))
        assert found["bad"]["rule"] == "NegIsAbs"

    def test_a_defect_is_a_finding_of_the_commands_that_look_for_one(self, gated: Path) -> None:
        Path("raising.py").write_text(RAISING)
        verified = call("verify", gated, "--rules", "raising")
        assert "defect: Raises at If" in verified.stdout
        assert "equal after each of" in verified.stdout
        assert verified.exit_code == 1
        assert call("report", gated, "-o", "r.html", "--rules", "raising").exit_code == 1
        rewritten = call("rewrite", gated, "-o", "r.onnx", "--rules", "raising")
        assert "rule failed: Raises at If" in rewritten.stdout
        assert rewritten.exit_code == 0

    def test_sizes_that_the_user_gives(self, gated: Path) -> None:
        """The rule is wrong only where no other size leads."""
        gated.write_bytes(parser.parse_model(FIVES).SerializeToString())
        Path("five.py").write_text(REMOVES_SIN)
        for command in (("verify",), ("bisect",), ("rewrite", "-o", "out.onnx")):
            good = call(*command, gated, "--rules", "five", "--size", "T=4")
            assert good.exit_code == 0, good.output
            bad = call(*command, gated, "--rules", "five", "--size", "T=4,5")
            assert bad.exit_code == 1, bad.output
            assert "T=5" in bad.output
            wrong = call(*command, gated, "--size", "U=5")
            assert wrong.exit_code == 2
            assert "'U' is not an open dimension" in wrong.stderr
        for options in (
            ("bisect", gated, "--check", "true"),
            ("rewrite", gated, "-o", "out.onnx", "--no-verify"),
        ):
            unused = call(*options, "--size", "T=5")
            assert unused.exit_code == 2
            assert "(--size)" in unused.stderr

    def test_bisect(self, gated: Path) -> None:
        assert call("bisect", gated).exit_code == 0
        bad = call("bisect", gated, *self.GIVEN)
        assert bad.exit_code == 1
        assert "NegIsAbs" in bad.stdout
        assert "without NegIsAbs at this node, the model is good" in bad.stdout
        wrong = call("bisect", gated, "--check", "false")
        assert wrong.exit_code == 2
        assert "before any rewrite: the command ends with 1" in wrong.stderr

    @pytest.mark.parametrize(
        ("name", "output"),
        [
            ("r.clean.onnx", "r.onnx"),
            ("r.txt", "r.onnx"),
            ("test_r.py", "r.onnx"),
            ("r.progress.jsonl", "r.onnx"),
        ],
    )
    def test_reduce_keeps_its_input(self, name: str, output: str, gated: Path) -> None:
        gated.rename(name)
        before = {path: path.read_bytes() for path in Path().iterdir()}
        result = call("reduce", name, "-o", output, "--keep", "left If")
        assert result.exit_code == 2
        assert "written next to the output is the model itself" in result.stderr
        assert name in result.stderr
        assert {path: path.read_bytes() for path in Path().iterdir()} == before

    def test_reduce_keeps_its_weights(self, gated: Path) -> None:
        write_external(Path("m.onnx"), "r.txt")
        before = Path("r.txt").read_bytes()
        result = call("reduce", "m.onnx", "-o", "r.onnx", "--keep", "left If")
        assert result.exit_code == 2
        assert "would replace the file with the weights" in result.stderr
        assert Path("r.txt").read_bytes() == before

    def test_reduce_writes_no_file_twice(self, gated: Path) -> None:
        result = call("reduce", gated, "-o", "small.txt", "--keep", "left If")
        assert result.exit_code == 2
        assert "written to the same file" in result.stderr
        assert not Path("small.txt").exists()

    def test_reduce_replaces_earlier_files(self, gated: Path) -> None:
        """As every command replaces what its output names."""
        for name in ("s.onnx", "s.txt", "s.clean.onnx", "test_s.py"):
            Path(name).write_text("old")
        assert call("reduce", gated, "-o", "s.onnx", "--keep", "left If").exit_code == 1
        for name in ("s.onnx", "s.txt", "s.clean.onnx", "test_s.py"):
            assert Path(name).read_bytes() != b"old", name

    def test_reduce_finds_out_first_what_cannot_be_written(self, gated: Path) -> None:
        Path("s.txt").mkdir()
        result = call("reduce", gated, "-o", "s.onnx", "--keep", "left If")
        assert result.exit_code == 2
        assert "The output is a folder (s.txt)" in result.stderr
        assert not Path("s.onnx").exists()

    def test_reduce(self, gated: Path) -> None:
        bad = call("reduce", gated, "-o", "small.onnx", *self.GIVEN, "--json")
        assert bad.exit_code == 1, bad.output
        assert content(bad)["after"] == 1
        assert {path.name for path in Path().iterdir()} >= {
            "small.onnx", "small.txt", "test_small.py",
        }  # fmt: skip
        assert call("reduce", gated, "-o", "good.onnx").exit_code == 2
        assert call("reduce", gated, "-o", gated).exit_code == 2
