"""The demo, its models, the benchmarks and the commands of the README run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from voice_activity import HIDDEN, RATES, Rate, example_inputs, voice_activity_model

import looplift

from .programs import run_program

ROOT = Path(__file__).parents[1]


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a graph, including those in branches."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes(attribute.g)


def count(model: onnx.ModelProto, op_type: str) -> int:
    return sum(node.op_type == op_type for node in nodes(model.graph))


def run_model(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    taken = {item.name: inputs[item.name] for item in session.get_inputs()}
    outputs: list[np.ndarray] = session.run(None, taken)
    return outputs


def succeed(program: str, *arguments: str | Path, cwd: Path, in_process: bool = True) -> str:
    done = run_program(program, arguments, cwd, in_process=in_process)
    assert done.status == 0, f"{program} {arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def detector() -> onnx.ModelProto:
    return voice_activity_model()


def test_the_detector_is_valid_and_small(detector: onnx.ModelProto) -> None:
    onnx.checker.check_model(detector, full_check=True)
    assert detector.ByteSize() < 1_000_000
    assert (count(detector, "If"), count(detector, "LSTM")) == (25, 4)


def test_the_detector_is_the_same_every_time(detector: onnx.ModelProto) -> None:
    assert voice_activity_model() == detector
    assert voice_activity_model(seed=1) != detector


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("rate", RATES)
def test_the_detector_runs(detector: onnx.ModelProto, rate: Rate, batch: int) -> None:
    inputs = example_inputs(rate, batch)
    probability, state = run_model(detector, inputs)
    assert probability.shape == (batch, 1)
    assert state.shape == (2, batch, HIDDEN)
    assert ((probability > 0) & (probability < 1)).all()
    next_probability, _ = run_model(detector, {**inputs, "state": state})
    assert not np.array_equal(probability, next_probability)


def test_batch_members_do_not_see_each_other(detector: onnx.ModelProto) -> None:
    inputs = example_inputs(RATES[0], 3)
    together, _ = run_model(detector, inputs)
    alone, _ = run_model(
        detector, {**inputs, "input": inputs["input"][1:2], "state": inputs["state"][:, 1:2]}
    )
    np.testing.assert_allclose(together[1:2], alone, atol=1e-6)


@pytest.mark.parametrize("rate", RATES)
def test_rewritten_for_one_rate_no_if_is_left(detector: onnx.ModelProto, rate: Rate) -> None:
    rewritten = looplift.rewrite(detector, inputs={"sr": rate.sr}).model
    assert (count(rewritten, "If"), count(rewritten, "LSTM")) == (0, 1)
    for batch in (1, 3):
        inputs = example_inputs(rate, batch)
        for before, after in zip(run_model(detector, inputs), run_model(rewritten, inputs)):
            np.testing.assert_allclose(after, before, atol=1e-6)


def test_with_nothing_given_the_rate_is_the_only_if(detector: onnx.ModelProto) -> None:
    rewritten = looplift.rewrite(detector).model
    assert (count(rewritten, "If"), count(rewritten, "LSTM")) == (1, 2)
    for rate in RATES:
        for batch in (1, 3):
            inputs = example_inputs(rate, batch)
            for before, after in zip(run_model(detector, inputs), run_model(rewritten, inputs)):
                np.testing.assert_allclose(after, before, atol=1e-6)


def test_the_demo_runs() -> None:
    text = succeed("python", ROOT / "examples" / "demo.py", cwd=ROOT, in_process=False)
    steps = [line for line in text.splitlines() if re.match(r"\d\. ", line)]
    assert [step[0] for step in steps] == list("123456")
    assert re.search(r"one_lstm.onnx: .*opset[^│]*no control flow", text, re.DOTALL)


BENCHMARKS = {
    "branches": "--rounds 1 --size 8",
    "chain": "--sizes 40 80 --peer-size 40 --repeats 1 --peers",
    "dense": "--only 7x7 --rounds 1 --target llvm",
    "engines": "--filter GRU",
    "fused": "--rounds 1 --steps 2",
    "import_time": "--rounds 1 --layers 1",
    "large_body": "--sizes 2 4",
    "loop_scale": "--most 20",
    "loops_vs_ort": "--rounds 1 --most 3 --target llvm",
    "many_loops": "--sizes 6 12",
    "optimizers": "--filter GRU",
    "recurrent": "--rounds 1 --steps 2 --target llvm",
    "tracing": "--rounds 1 --size 40",
    "whole_networks": "",
}
"""All benchmarks, with the smallest sizes."""
SAMPLE = ("chain", "many_loops", "tracing")
"""The benchmarks that do not compile."""


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_benchmarks_start(name: str) -> None:
    help_text = succeed("python", f"{name}.py", "--help", cwd=ROOT / "benchmarks")
    given = re.findall(r"--[\w-]+", BENCHMARKS[name])
    assert [option for option in given if option not in help_text] == []


@pytest.mark.parametrize(
    "name",
    [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.soak) for n in BENCHMARKS],
)
def test_the_benchmarks_run(tmp_path: Path, name: str) -> None:
    if name == "engines":
        pytest.importorskip("openvino", reason="no engine is installed: pip install openvino")
    if name == "whole_networks":
        pytest.skip("takes minutes and needs a folder of networks")
    folder = tmp_path / "benchmarks"
    shutil.copytree(ROOT / "benchmarks", folder, ignore=shutil.ignore_patterns("results"))
    options = BENCHMARKS[name].split()
    text = succeed("python", f"{name}.py", *options, cwd=folder, in_process=name in SAMPLE)
    written = list((folder / "results").glob("*.json"))
    assert written
    for path in written:
        assert f"written to {path}" in text
        assert json.loads(path.read_text())["rows"]


def test_make_bench_runs_them_all() -> None:
    recipes = (ROOT / "Makefile").read_text()
    listed = re.findall(r"^\t.*python benchmarks/(\w+)\.py$", recipes, flags=re.MULTILINE)
    scripts = [path for path in (ROOT / "benchmarks").glob("*.py") if "main()" in path.read_text()]
    measuring = {path.stem for path in scripts} - {"readme_tables"}
    assert sorted(listed) == sorted(measuring) == sorted(BENCHMARKS)


def blocks(language: str) -> list[str]:
    """The fenced blocks of the README in one language."""
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    """Runs all commands except those that install or build, and those that the demo runs."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    commands = [
        line[2:] for block in blocks("console") for line in block.splitlines() if line[:2] == "$ "
    ]
    ours = [shlex.split(command, comments=True) for command in commands]
    ours = [command for command in ours if command[0] in ("looplift", "python")]
    demo = (ROOT / "examples" / "demo.py").read_text()
    of_demo = [
        ["looplift", *shlex.split(c)] for c in re.findall(r'looplift_command\("(.*)"\)', demo)
    ]
    ours = [command for command in ours if command not in of_demo]
    assert len(ours) >= 4
    for program, *arguments in ours:
        succeed(program, *arguments, cwd=tmp_path)


def test_the_python_of_the_readme_runs(tmp_path: Path, detector: onnx.ModelProto) -> None:
    onnx.save(detector, tmp_path / "detector.onnx")
    scripts = blocks("python")
    assert scripts
    for script in scripts:
        printed = succeed("python", "-c", script, cwd=tmp_path)
        for result in re.findall(r"^print\(result\.verify\(\)\)  # (.+)$", script, re.MULTILINE):
            assert result in printed
