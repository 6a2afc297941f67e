"""Inference engines with one interface: created from a model file, `run(inputs)` -> outputs.

They are classes of a module, so that a child process can create them.
"""

from __future__ import annotations

import tempfile
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


class OpenCv:
    """A model read by the DNN module of OpenCV."""

    def __init__(self, path: str) -> None:
        import cv2

        self._net = cv2.dnn.readNetFromONNX(path)
        self._outputs = [value.name for value in onnx.load(path).graph.output]

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs, in the order of the model."""
        for name, value in inputs.items():
            self._net.setInput(value, name)
        return [np.asarray(result) for result in self._net.forward(self._outputs)]


class Iree:
    """A model compiled by IREE for the CPU."""

    def __init__(self, path: str) -> None:
        from iree import compiler, runtime
        from iree.compiler.tools.import_onnx import __main__ as importer

        self._inputs = [value.name for value in onnx.load(path).graph.input]
        with tempfile.TemporaryDirectory() as folder:
            text = str(Path(folder, "model.mlir"))
            importer.main(importer.parse_arguments([path, "-o", text]))
            module = compiler.compile_file(
                text, input_type="onnx", target_backends=["llvm-cpu"], extra_args=IREE_FLAGS
            )
        config = runtime.Config("local-sync")
        context = runtime.SystemContext(config=config)
        loaded = runtime.VmModule.copy_buffer(context.instance, module)
        context.add_vm_module(loaded)
        (name,) = (n for n in loaded.function_names if not n.startswith("__") and "$" not in n)
        function = loaded.lookup_function(name)
        self._invoke = runtime.FunctionInvoker(context.vm_context, config.device, function)

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs, in the order of the model."""
        results = self._invoke(*(inputs[name] for name in self._inputs))
        several = results if isinstance(results, tuple | list) else [results]
        return [np.asarray(result) for result in several]


IREE_FLAGS = ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O1"]


class Mnn:
    """A model converted by MNN."""

    def __init__(self, path: str) -> None:
        # Of the package only its converter: the command `mnnconvert` installs a package that sends
        # usage data.
        import _tools
        from MNN import nn

        graph = onnx.load(path).graph
        self._inputs = [value.name for value in graph.input]
        with tempfile.TemporaryDirectory() as folder:
            converted = str(Path(folder, "model.mnn"))
            options = ["-f", "ONNX", "--modelFile", path, "--MNNModel", converted]
            _tools.mnnconvert(["", *options, "--bizCode", "none", "--keepInputFormat", "1"])
            outputs = [value.name for value in graph.output]
            self._module = nn.load_module_from_file(converted, self._inputs, outputs)

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs, in the order of the model; all integers are 32 bits wide."""
        from MNN import expr

        given = []
        for name in self._inputs:
            value = inputs[name]
            is_float = value.dtype.kind == "f"
            elements = value.astype(np.float32 if is_float else np.int32).ravel().tolist()
            kind = expr.float if is_float else expr.int
            given.append(expr.const(elements, list(value.shape), expr.NCHW, kind))
        results = self._module.forward(given if len(given) > 1 else given[0])
        several = results if isinstance(results, list) else [results]
        return [np.array(expr.convert(result, expr.NCHW).read()) for result in several]


class Tinygrad:
    """A model run by tinygrad's ONNX frontend on its CPU device, which needs a clang (CC)."""

    def __init__(self, path: str) -> None:
        from tinygrad.nn.onnx import OnnxRunner

        self._runner = OnnxRunner(path)

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs, in the order of the model."""
        from tinygrad import Tensor

        results = self._runner({name: Tensor(value) for name, value in inputs.items()})
        return [result.numpy() for result in results.values()]


class Tvm:
    """A model that TVM's own ONNX importer converts, compiled for the CPU."""

    def __init__(self, path: str) -> None:
        self._inputs = [value.name for value in onnx.load(path).graph.input]
        self._machine = self._compiled(path)

    def _compiled(self, path: str) -> Any:
        import tvm
        from tvm import relax
        from tvm.relax.frontend.onnx import from_onnx

        module = from_onnx(onnx.load(path), keep_params_in_input=False)
        return relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs, in the order of the model."""
        import tvm

        given = [tvm.runtime.tensor(np.asarray(inputs[name], order="C")) for name in self._inputs]
        results = self._machine["main"](*given)
        return [results.numpy()] if hasattr(results, "numpy") else [r.numpy() for r in results]


class TvmByLooplift(Tvm):
    """A model that `looplift.from_onnx` converts, compiled for the CPU."""

    def _compiled(self, path: str) -> Any:
        import tvm
        from tvm import relax

        import looplift

        module = looplift.compile(looplift.from_onnx(path), "llvm")
        return relax.VirtualMachine(module, tvm.cpu())


ENGINES = {
    "tvm": Tvm,
    "openvino": OpenVino,
    "tract": Tract,
    "opencv": OpenCv,
    "iree": Iree,
    "mnn": Mnn,
    "tinygrad": Tinygrad,
}
"""The engines by the name that `--for` has for them."""

IMPORTERS = {"tvm": TvmByLooplift}
"""Engines into which looplift imports the original itself."""

MODULES = {"opencv": "cv2", "iree": "iree.compiler", "mnn": "MNN"}
"""The Python module of an engine, where it is not the name."""

PACKAGES = {
    "tvm": "apache-tvm",
    "opencv": "opencv-python-headless",
    "iree": "iree-base-compiler[onnx] iree-base-runtime",
    "mnn": "MNN",
}
"""What pip installs for an engine, where it is not the name."""
