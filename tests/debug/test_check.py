from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from rich.console import Console
from typer.testing import CliRunner

from looplift.cli import app
from looplift.debug import check as checking
from looplift.debug.check import (
    ORIGINAL,
    RELAX,
    REWRITTEN,
    CheckResult,
    Column,
    RunComparison,
    check,
    render,
)
from looplift.debug.relax import RelaxSession
from looplift.lowering.tail_duplication import DuplicateTail
from looplift.request import Settings
from looplift.rewrite.engine.rule import fixture
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.running.child_process import ChildProcess
from looplift.rewrite.running.remarks import ENDED_EARLY
from looplift.rewrite.running.runtime import ExecutionError
from looplift.rules.branches.demanded_branch import InlineDemandedBranch

from ..full_disk import full_disk
from ..gated import write

tvm = pytest.importorskip("tvm")

LOOPS = """<ir_version: 8, opset_import: ["" : 17]>
loops (float[t, 1, 2] x, int64[t] times, float[1, 8, 2] w, float[1, 8, 2] r) => (float[k, 2] rows)
<float[0, 2] none = {}> {
    [recur] all, last, cell = LSTM <hidden_size = 2> (x, w, r)
    pairs = Constant <value_ints = [-1, 2]> ()
    table = Reshape (all, pairs)
    count = Size (times)
    [grow] rows = Loop (count, "", none) <body = repeat (
        int64 i, bool go, float[m, 2] before) => (bool goes, float[m1, 2] after
    ) {
        goes = Identity (go)
        axis = Constant <value_ints = [0]> ()
        width = Constant <value_ints = [2]> ()
        at = Unsqueeze (i, axis)
        row = Gather (table, at)
        often = Gather (times, at)
        shape = Concat <axis = 0> (often, width)
        copies = Expand (row, shape)
        after = Concat <axis = 0> (before, copies)
    }>
}"""
"""A recurrence, and a loop that repeats rows as often as the data says."""


def shown(found: CheckResult) -> str:
    console = Console(width=500, no_color=True)
    with console.capture() as captured:
        for part in render(found, "model"):
            console.print(part)
    return captured.get()


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("check") / "gated.onnx")


@pytest.fixture(scope="module")
def found(gated: Path) -> CheckResult:
    return check(gated, Settings(), sizes={"batch": [1, 4]})


def test_three_ways(found: CheckResult) -> None:
    assert found.status == 0
    assert [column.name for column in found.columns] == [ORIGINAL, REWRITTEN, RELAX]
    assert [column.operators["If"] for column in found.columns] == [1, 1, 1]
    assert {run.sizes["batch"] for run in found.runs} == {1, 4}
    assert 16000 in {run.scalars["rate"] for run in found.runs}
    for run in found.runs:
        assert run.verdicts == {REWRITTEN: "equal", RELAX: "equal"}
        assert set(run.seconds) == {ORIGINAL, REWRITTEN, RELAX}
        assert all(0 < seconds < 1 for seconds in run.seconds.values())


def test_the_table(found: CheckResult) -> None:
    text = shown(found)
    assert "onnxruntime" in text
    assert "batch=4, samples=" in text
    assert "rate=16000" in text
    runs = len(found.runs)
    assert f"rewritten: equal in all {runs} runs; Relax: equal in all {runs} runs" in text


def test_without_tvm(gated: Path) -> None:
    found = check(
        gated,
        Settings(Assertions(inputs={"rate": 16000})),
        with_tvm=False,
        with_latency=False,
    )
    assert [column.name for column in found.columns] == [ORIGINAL, REWRITTEN]
    assert found.columns[1].operators == {"Relu": 1}
    assert found.notes == ["input `rate` is 16000"]
    assert all(not run.seconds for run in found.runs)


def test_a_side_that_does_not_run(tmp_path: Path) -> None:
    """TVM has no such operator; the other two are compared nevertheless."""
    text = "g (string[N] x) => (string[N] y) { y = StringNormalizer(x) }"
    path = write(tmp_path / "text.onnx", text)
    result = CliRunner().invoke(app, ["check", str(path), "--no-latency"])
    assert result.exit_code == 2
    assert "Relax does not run: " in result.stdout
    assert re.search(r"rewritten: equal in all [1-9]\d* runs; Relax: did not run", result.stdout)
    assert CliRunner().invoke(app, ["check", str(path), "--no-tvm"]).exit_code == 0


def test_accepts_what_the_import_accepts() -> None:
    """The rank of a value depends on a size, so that the import copies what follows the If."""
    found = check(fixture(DuplicateTail.fires), Settings(), with_latency=False)
    assert {run.verdicts[RELAX] for run in found.runs} == {"equal"}
    assert found.status == 0


def test_the_module_takes_what_is_asserted(tmp_path: Path) -> None:
    """An asserted input is no parameter, and names of others need not be identifiers."""
    model = onnx.load(write(tmp_path / "gated.onnx"))
    for names in (model.graph.node[1].input, model.graph.node[2].input):
        names[0] += ".0"
    for value in model.graph.input:
        value.name += ".0"
    settings = Settings(Assertions(inputs={"rate.0": 16000}))
    found = check(model, settings, with_latency=False)
    assert found.status == 0
    assert found.columns[2].operators == {"relax.nn.relu": 1}


def test_the_module_is_made_with_the_rules_of_the_user(
    gated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that a command runs in has the module; its child process must find it, too."""
    (tmp_path / "slow_rules.py").write_text("from looplift.rules import PHASES")
    monkeypatch.chdir(tmp_path)
    found = check(gated, Settings(rules=("slow_rules",)), with_latency=False)
    assert found.status == 0, shown(found)


class EndsTheProcess:
    """A value that ends the process that receives it."""

    def __reduce__(self) -> Any:
        return os.abort, ()


def test_a_run_that_ends_its_process() -> None:
    """The next run finds the module in another process."""
    text = "g (int64[N] x) => (int64[N] y) { y = Neg(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    with ChildProcess() as process:
        session = RelaxSession(model, Settings(), process)
        with pytest.raises(ExecutionError):
            session.run({"x": [EndsTheProcess()]})
        given = {"x": np.array([5, 6, 7])}
        np.testing.assert_array_equal(session.run(given), [-given["x"]])
        assert 0 < session.latency(given, 0.01) < 1


def test_a_difference() -> None:
    """One run of three differs: the status and the table say so."""
    columns = [Column(ORIGINAL, "onnxruntime"), Column(REWRITTEN, "onnxruntime")]
    runs = [
        RunComparison({"T": size}, verdicts={REWRITTEN: "equal"}, distances={REWRITTEN: 0.0})
        for size in (1, 2)
    ]
    wrong = RunComparison(
        {"T": 3}, verdicts={REWRITTEN: "different"}, differences=["rewritten: output 'y'"]
    )
    found = CheckResult(columns, [*runs, wrong])
    assert found.status == 1
    assert "rewritten: different in 1, equal in 2 of 3 runs" in shown(found)
    assert "rewritten: output 'y'" in shown(found)
    assert "equal within" not in shown(found)
    runs[1].distances[REWRITTEN] = 2e-4
    assert "equal within 2e-04" in shown(found)
    wrong.verdicts = {REWRITTEN: "crashed"}
    assert found.status == 0
    assert "rewritten: crashed in 1, equal in 2 of 3 runs" in shown(found)
    found.runs = [wrong]
    assert found.status == 2
    assert "rewritten: crashed in 1 of 1 runs" in shown(found)


def test_a_branch_that_no_run_takes(tmp_path: Path) -> None:
    text = """g (float[N] x) => (float[K] y) <int64 many = {1000}, int64 zero = {0}> {
        sizes = Shape(x) n = Gather(sizes, zero) c = Greater(n, many)
        y = If(c) <then_branch = t () => (float[P] a) { a = Relu(x) },
                   else_branch = e () => (float[Q] b) { b = Neg(x) }> }"""
    found = check(write(tmp_path / "branch.onnx", text), Settings(), with_tvm=False)
    assert found.status == 0
    assert any("no run took then_branch of If of `y`" in note for note in found.notes)


def test_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """g (float[N] x, int64 n) => (float[N] y) <bool go = {1}, int64 many = {1000000000}> {
        e = Equal(n, many) m = Where(e, n, many)
        y = Loop (m, go, x) <body = b (int64 i, bool c, float[N] s) => (bool d, float[N] t) {
            d = Identity(c) t = Sin(s) }> }"""
    path = write(tmp_path / "endless.onnx", text)
    result = CliRunner().invoke(app, ["check", str(path), "--no-tvm", "--time-limit", "1"])
    assert result.exit_code == 2
    assert "the original model does not end within the time limit of a run" in result.stdout
    monkeypatch.setattr(checking, "CASES", 1000)
    text = "g (float[N] x) => (float[N] y) { y = Sin(x) }"
    few = check(write(tmp_path / "m.onnx", text), Settings(), with_tvm=False, seconds=0.02)
    assert 0 < len(few.runs) < 200
    assert ENDED_EARLY in few.notes


def test_results_in_any_order(tmp_path: Path) -> None:
    """onnxruntime does not sort them, the module does."""
    text = """g (float[N, 40] x) => (float[N, 20] y, int64[N, 20] i, float[N, 20] z)
        <int64[1] k = {20}> { y, i = TopK <sorted = 0> (x, k) z, j = TopK (x, k) }"""
    found = check(write(tmp_path / "topk.onnx", text), Settings(), with_latency=False)
    assert found.status == 0
    assert found.notes[0].startswith("only types and shapes of `y`, `i` were compared")


def test_an_original_that_does_not_run(tmp_path: Path) -> None:
    text = "g (float[N] x) => (float[N] y) { y = Softmax<axis = 5>(x) }"
    found = check(write(tmp_path / "bad.onnx", text), Settings(), with_tvm=False)
    assert found.status == 2
    assert "does not run the original, with which the other columns are compared" in found.reason
    assert "--no-verify" in found.reason


def test_nothing_to_compare(tmp_path: Path) -> None:
    text = "g (float[N] x) => (float[100003] y) <int64[1] s = {100003}> { y = Reshape(x, s) }"
    found = check(write(tmp_path / "never.onnx", text), Settings(), with_tvm=False)
    assert found.status == 2
    assert "generated inputs" in found.reason
    assert "nothing was compared" in shown(found)


def test_a_module_that_was_not_imported_is_not_counted(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
    g (float[N] x) => (float[N] y) { e = Exp(x) y = mine.Foo(e) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "own.onnx")
    found = check(tmp_path / "own.onnx", Settings())
    assert found.status == 2
    assert re.search(r"^nodes +2 +2 +- *$", shown(found), re.MULTILINE)


def test_json(gated: Path) -> None:
    arguments = ["check", str(gated), "--json", "--no-latency", "--input", "rate=1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["status"] == 0
    assert printed["columns"][2]["runtime"] == "TVM"
    assert printed["runs"][0]["verdicts"] == {REWRITTEN: "equal", RELAX: "equal"}


class TestImport:
    def test_text_and_library(self, gated: Path, tmp_path: Path) -> None:
        for name in ("m.py", "m.so"):
            output = tmp_path / name
            result = CliRunner().invoke(app, ["import", str(gated), "-o", str(output)])
            assert result.exit_code == 0, result.output
            assert ("--target native is faster" in result.output) == (name == "m.so")
        text = (tmp_path / "m.py").read_text()
        assert "def main(rate" in text
        library = tvm.runtime.load_module(str(tmp_path / "m.so"))
        machine = tvm.relax.VirtualMachine(library, tvm.cpu())
        x = tvm.runtime.tensor(np.array([[1, -2]], np.float32))
        rate = tvm.runtime.tensor(np.array(16000))
        assert machine["main"](rate, x).numpy().tolist() == [[1, 0]]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["m.py", "m.so"]

    def test_says_what_the_module_relies_on(self, tmp_path: Path) -> None:
        model, output = tmp_path / "squeezed.onnx", tmp_path / "m.py"
        onnx.save(fixture(InlineDemandedBranch.fires), model)
        result = CliRunner().invoke(app, ["import", str(model), "-o", str(output)])
        assert result.exit_code == 0, result.output
        assert "note: If of `v` always takes" in result.stdout

    def test_says_what_became_of_the_loops(self, tmp_path: Path) -> None:
        model, output = tmp_path / "loops.onnx", tmp_path / "m.py"
        onnx.save(onnx.parser.parse_model(LOOPS), model)
        result = CliRunner().invoke(app, ["import", str(model), "-o", str(output)])
        assert result.exit_code == 0, result.output
        lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
        assert "LSTM 'recur' kernel" in lines
        assert any(line.startswith("Loop 'grow' functions its body has values") for line in lines)
        assert any(line.startswith("operators: ") and " concat " in line for line in lines)

        result = CliRunner().invoke(app, ["import", str(model), "-o", str(output), "--json"])
        printed = json.loads(result.stdout)
        assert [(loop["operator"], loop["form"]) for loop in printed["loops"]] == [
            ("LSTM", "kernel"),
            ("Loop", "functions"),
        ]
        assert printed["operators"]["relax.concat"] >= 1
        assert printed["output"] == str(output)

    @pytest.mark.parametrize(
        ("output", "options", "words"),
        [
            ("m.txt", [], "End the name with .py, .json or .so"),
            ("gone/m.py", [], "does not exist"),
            ("m.so", ["--target", "nonsense"], "does not know the target 'nonsense'"),
            ("m.py", ["--input", "sr=1"], "no input 'sr'"),
            ("m.json", ["--target", "llvm"], "--target has no effect"),
        ],
    )
    def test_wrong_calls(
        self, output: str, options: list[str], words: str, gated: Path, tmp_path: Path
    ) -> None:
        arguments = ["import", str(gated), "-o", str(tmp_path / output), *options]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert words in result.stderr
        assert "Traceback" not in result.output
        assert list(tmp_path.iterdir()) == []

    def test_a_full_disk(self, gated: Path, tmp_path: Path) -> None:
        """LLVM ends the process that cannot write the library."""
        with full_disk(1000):
            result = CliRunner().invoke(app, ["import", str(gated), "-o", str(tmp_path / "m.so")])
        assert result.exit_code == 2
        assert "The module cannot be written: File too large" in result.stderr
        assert "m.so'). Check the permissions of the folder and the space left" in result.stderr
        assert list(tmp_path.iterdir()) == []

    def test_a_linker_that_fails(
        self, gated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        linker = tmp_path / "ld"
        linker.write_text(
            "#!/bin/sh\necho 'ld: final link failed: No space left on device'\nexit 1"
        )
        linker.chmod(0o700)
        monkeypatch.setenv("CXX", str(linker))
        result = CliRunner().invoke(app, ["import", str(gated), "-o", str(tmp_path / "m.so")])
        assert result.exit_code == 2
        assert "The module cannot be written: ld: final link failed: No space left" in result.stderr
        assert list(tmp_path.iterdir()) == [linker]

    @pytest.mark.parametrize("text", ["#!/bin/sh\necho 'ld: unknown relocation'\nexit 1", None])
    def test_a_linker_for_another_target(
        self, gated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
    ) -> None:
        linker, output = tmp_path / "ld", tmp_path / "m.so"
        if text is not None:
            linker.write_text(text)
            linker.chmod(0o700)
        monkeypatch.setenv("CXX", str(linker))
        result = CliRunner().invoke(app, ["import", str(gated), "-o", str(output)])
        assert result.exit_code == 2
        assert "The library cannot be linked: " in result.stderr
        assert "Set the environment variable CXX" in result.stderr
        assert not output.exists()

    def test_no_compiler(
        self, gated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.delenv("CC", raising=False)
        result = CliRunner().invoke(app, ["import", str(gated), "-o", str(tmp_path / "m.so")])
        assert result.exit_code == 2
        assert "there is no C++ compiler. Set the environment variable CXX" in result.stderr
        assert list(tmp_path.iterdir()) == []

    def test_json_is_whole_or_an_error(self, gated: Path, tmp_path: Path) -> None:
        """apache-tvm-ffi 0.1.15 ends the process that asks it for JSON."""
        output = tmp_path / "m.json"
        result = CliRunner().invoke(app, ["import", str(gated), "-o", str(output)])
        if result.exit_code == 0:
            assert tvm.ir.load_json(output.read_text())["main"].attrs["num_input"] == 2
        else:
            assert result.exit_code == 2
            assert "apache-tvm-ffi" in result.stderr
            assert list(tmp_path.iterdir()) == []
