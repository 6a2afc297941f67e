"""Modules that are compiled by the pipeline of looplift; they take inputs by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from looplift.lowering.emit import emit

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]

UNOPTIMIZED = tvm.target.Target({"kind": "llvm", "opt-level": 0})
"""The target of most tests. LLVM's optimisations take a third of a compilation; the tests of the
pipeline run them."""


class Compiled:
    """A module for one model, compiled; `options` are those of `tvm.compile`."""

    def __init__(self, model: onnx.ModelProto, module: Any = None, **options: Any) -> None:
        module = emit(model) if module is None else module
        options.setdefault("relax_pipeline", "looplift")
        self.executable = tvm.compile(module, UNOPTIMIZED, **options)
        self.machine = relax.VirtualMachine(self.executable, tvm.cpu())
        self.inputs = [i.name for i in model.graph.input]

    def __call__(self, feed: Feed) -> list[Array]:
        arguments = [tvm.runtime.tensor(feed[name]) for name in self.inputs]
        result = self.machine["main"](*arguments)
        results = [result] if hasattr(result, "numpy") else list(result)
        return [r.numpy() for r in results]
