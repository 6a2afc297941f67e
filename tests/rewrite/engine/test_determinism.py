"""Every process makes the same commits in the same order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from ...fuzz.loops import make_model

PROGRAM = """
import sys
padding = [[] for _ in range(int(sys.argv[1]))]
import looplift
for path in sys.argv[2:]:
    for commit in looplift.rewrite(path).trace.commits():
        print(commit.number, commit.rule, commit.node, commit.place, commit.edits, commit.notes)
"""
"""Rewrites models and prints what was done; objects that are kept shift all others in memory."""


def commits(paths: list[str], process: int) -> str:
    command = [sys.executable, "-c", PROGRAM, str(997 * process), *paths]
    environment = {**os.environ, "PYTHONHASHSEED": str(process)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 90), marks=pytest.mark.soak)])
def test_processes_agree(seeds: range, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{seed}.onnx") for seed in seeds]
    for seed, path in zip(seeds, paths):
        onnx.save(make_model(seed), path)
    first, *others = (commits(paths, process) for process in range(3))
    assert first.count("\n") > len(seeds)
    for other in others:
        assert other == first


@pytest.mark.soak
def test_processes_agree_on_published_models(corpus: Path, matrix_dir: Path) -> None:
    paths = [
        str(path) for path in sorted([*corpus.glob("*while*.onnx"), *matrix_dir.glob("*.onnx")])
    ]
    first, *others = (commits(paths, process) for process in range(3))
    for other in others:
        assert other == first
