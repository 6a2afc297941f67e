"""Inference engines with one interface: created from a model file, `run(inputs)` -> outputs.

They are classes of a module, so that a child process can create them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

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


class Mnn:
    """A model converted by MNN."""

    def __init__(self, path: str) -> None:
        import MNN

        converted = str(Path(path).with_suffix(".mnn"))
        arguments = ["-f", "ONNX", "--modelFile", path, "--MNNModel", converted]
        command = [sys.executable, "-m", "MNN.tools.mnnconvert", *arguments, "--bizCode", "MNN"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        graph = onnx.load(path, load_external_data=False).graph
        stored = {tensor.name for tensor in graph.initializer}
        self._inputs = [value.name for value in graph.input if value.name not in stored]
        outputs = [value.name for value in graph.output]
        self._module = MNN.nn.load_module_from_file(converted, self._inputs, outputs)

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs, in the order of the model."""
        import MNN

        given = []
        for name in self._inputs:
            value = inputs[name]
            narrow = value.astype({"i": np.int32, "b": np.int32}.get(value.dtype.kind, value.dtype))
            given.append(MNN.expr.const(narrow, list(value.shape), MNN.expr.NCHW))
        return [np.asarray(result.read()) for result in self._module.onForward(given)]


ENGINES = {"openvino": OpenVino, "tract": Tract, "MNN": Mnn}
"""The engines by the name of their Python package."""
