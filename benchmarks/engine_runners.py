"""Inference engines with one interface: created from a model file, `run(inputs)` -> outputs.

They are classes of a module, so that a child process can create them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class OpenVino:
    """A model compiled by OpenVINO for the CPU."""

    def __init__(self, path: str) -> None:
        import openvino

        core = openvino.Core()
        model = core.read_model(path)
        self._compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs, in the order of the model."""
        results = self._compiled(dict(inputs))
        return [np.asarray(results[i]) for i in range(len(self._compiled.outputs))]


class Tract:
    """A model optimised by tract."""

    def __init__(self, path: str) -> None:
        import tract

        model = tract.onnx().load(path)
        self._names = [model.input_name(i) for i in range(model.input_count())]
        self._runnable = model.into_model().into_runnable()

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs, in the order of the model."""
        results = self._runnable.run([inputs[name] for name in self._names])
        return [np.asarray(result.to_numpy()) for result in results]


ENGINES = {"openvino": OpenVino, "tract": Tract}
"""The engines by the name of their Python package."""
