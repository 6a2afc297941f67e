"""Tools that simplify ONNX models, with one interface: from a path to a ModelProto.

They are functions and a class of a module, so that a child process can call them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import onnx

import looplift


def with_looplift(path: str) -> onnx.ModelProto:
    return looplift.rewrite(path).proto


def with_onnxslim(path: str) -> Any:
    import onnxslim

    return onnxslim.slim(onnx.load(path))


def with_onnxsim(path: str) -> Any:
    import onnxsim

    return onnxsim.simplify(onnx.load(path))[0]


def with_onnxscript(path: str) -> Any:
    from onnxscript import optimizer

    return optimizer.optimize(onnx.load(path))


def with_polygraphy(path: str) -> Any:
    from polygraphy.backend.onnx import FoldConstants

    return FoldConstants(onnx.load(path))()


TOOLS: dict[str, Callable[[str], Any]] = {
    "looplift": with_looplift,
    "onnxslim": with_onnxslim,
    "onnxsim": with_onnxsim,
    "onnxscript": with_onnxscript,
    "polygraphy": with_polygraphy,
}
"""The tools by their package."""


class Tool:
    """One tool in a child process, which some models end."""

    def __init__(self, name: str, first: str) -> None:
        """Runs the tool once, so that its imports are not measured."""
        self._optimize = TOOLS[name]
        self._optimize(first)

    def run(self, path: str, target: str) -> float:
        """Writes the optimised model; returns the CPU seconds without writing it."""
        started = time.process_time()
        model = self._optimize(path)
        seconds = time.process_time() - started
        onnx.save(model, target)
        return seconds
