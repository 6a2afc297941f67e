"""The commands find a wrong rule of a user and reduce the model to a few nodes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import onnx
import pytest

from ..programs import run_program
from . import swapped_gates

NODES = 500
MOST_LEFT = 12
MOST_SECONDS = 120.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("broken")
    swapped_gates.write_module(path)
    onnx.save(swapped_gates.large_model(NODES), path / "large.onnx")
    return path


def call(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status of a command with the wrong rule, and what it prints."""
    words = [*arguments, "--rules", swapped_gates.MODULE, "--json"]
    done = run_program("looplift", words, folder)
    assert done.status in (0, 1), done.stderr
    return done.status, json.loads(done.stdout)


@pytest.fixture(scope="module")
def reduced(folder: Path) -> dict[str, Any]:
    start = time.monotonic()
    status, found = call(folder, "reduce", "large.onnx", "-o", "small.onnx")
    assert status == 1
    return {**found, "took": time.monotonic() - start}


def count(path: Path) -> int:
    pending, found = [onnx.load(path).graph], 0
    while pending:
        for node in pending.pop().node:
            found += 1
            pending += [a.g for a in node.attribute if a.HasField("g")]
    return found


@pytest.mark.soak
def test_found_and_reduced_unattended(folder: Path, reduced: dict[str, Any]) -> None:
    start = time.monotonic()
    assert count(folder / "large.onnx") == NODES
    status, verified = call(folder, "verify", "large.onnx")
    bad = verified["bad"]
    assert status == 1
    assert bad["rule"] == "SplitDirections"
    assert bad["node"].startswith("LSTM")
    assert "then_branch of If `choice`" in bad["place"]
    assert bad["tensor"] == "chosen"
    assert "both" in bad["touched"]
    assert bad["output"] == "y"
    assert bad["max_absolute"] > 1e-3

    status, found = call(folder, "bisect", "large.onnx")
    assert status == 1
    for key in ("number", "rule", "node", "place"):
        assert found[key] == bad[key]
    assert found["without_place"] == ""
    assert found["checks"] <= math.log2(found["commits"]) + 4
    assert reduced["before"] == NODES
    assert reduced["after"] == count(folder / "small.onnx") <= MOST_LEFT
    assert time.monotonic() - start + reduced["took"] < MOST_SECONDS


@pytest.mark.soak
@pytest.mark.usefixtures("reduced")
def test_the_test_that_is_written(folder: Path) -> None:
    """It fails with the wrong rule and passes with the right one."""
    test = folder / "test_small.py"
    assert run_pytest(test, folder) == 1
    module = folder / f"{swapped_gates.MODULE}.py"
    wrong = module.read_text()
    try:
        module.write_text(wrong.replace("[i, f, o, c]", "[i, o, f, c]"))
        assert run_pytest(test, folder) == 0
    finally:
        module.write_text(wrong)


def run_pytest(test: Path, folder: Path) -> int:
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", str(folder)], cwd=folder, capture_output=True
    )
    return done.returncode


@pytest.mark.soak
def test_the_nearest_model_does_not_show_it(folder: Path, reduced: dict[str, Any]) -> None:
    assert reduced["clean"] is not None
    status, _ = call(folder, "verify", str(reduced["clean"]))
    assert status == 0
    text = (folder / "small.txt").read_text()
    assert "LSTM" in text
