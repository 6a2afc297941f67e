"""Models as ONNX text, imported, compiled and run on both TVM and onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import tvm
from tvm import relax

from looplift.lowering import emit

from .compiled import compile_quickly, virtual_machine

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


class Imported:
    """A model without rewriting, in Relax."""

    def __init__(self, model: onnx.ModelProto, pipeline: str = "looplift", **options: Any) -> None:
        self.model = model
        self.pipeline = pipeline
        self.module = emit(model, **options)
        relax.analysis.well_formed(self.module)

    @cached_property
    def machine(self) -> Any:
        return virtual_machine(self.compiled())

    def compiled(self) -> Any:
        """The executable, by the pipeline."""
        return compile_quickly(self.module, relax_pipeline=self.pipeline)

    def run(self, *inputs: Any) -> list[Any]:
        """The outputs as arrays, by TVM."""
        outputs = self.machine["main"](*(tvm.runtime.tensor(np.asarray(x)) for x in inputs))
        if len(self.model.graph.output) == 1:
            outputs = [outputs]
        return [output.numpy() for output in outputs]

    @cached_property
    def session(self) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(self.model.SerializeToString())

    def check(self, *inputs: Any) -> None:
        """TVM and onnxruntime give the same types, shapes and values."""
        names = [value.name for value in self.model.graph.input]
        feed = {name: np.asarray(x) for name, x in zip(names, inputs, strict=True)}
        wanted = self.session.run(None, feed)
        for got, want in zip(self.run(*inputs), wanted, strict=True):
            assert got.dtype == want.dtype
            if _are_no_rows(got, want):
                continue
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

    def functions(self) -> Mapping[str, Any]:
        """The Relax functions of the module by name."""
        return {
            variable.name_hint: function
            for variable, function in self.module.functions_items()
            if isinstance(function, relax.Function)
        }


def _are_no_rows(got: Any, want: Any) -> bool:
    """Whether both are rows of a loop that did not run.

    onnxruntime takes the sizes of such rows from declarations, and 0 for what is not declared.
    """
    is_empty = got.ndim == want.ndim > 0 and got.shape[0] == want.shape[0] == 0
    return is_empty and all(b in (0, a) for a, b in zip(got.shape, want.shape, strict=True))


def parse(model: str | bytes) -> onnx.ModelProto:
    if isinstance(model, bytes):
        return onnx.load_from_string(model)
    has_header = model.lstrip().startswith("<")
    return onnx.parser.parse_model(model if has_header else HEADER + model)


@pytest.fixture(scope="session")
def imported() -> Callable[..., Imported]:
    """Import a model, given as text or serialized, with options of `emit`.

    The same model with the same options is imported and compiled only once.
    """

    @cache
    def load(model: str | bytes, **options: Any) -> Imported:
        return Imported(parse(model), **options)

    return load


@pytest.fixture(scope="session")
def stock() -> Callable[..., Imported]:
    """Likewise, compiled by TVM's own pipeline, which leaves loops in their general form."""

    @cache
    def load(model: str | bytes, **options: Any) -> Imported:
        return Imported(parse(model), pipeline="default", **options)

    return load


@pytest.fixture(params=["imported", "stock"])
def load(request: pytest.FixtureRequest) -> Callable[..., Imported]:
    """Each of the two above in turn."""
    chosen: Callable[..., Imported] = request.getfixturevalue(request.param)
    return chosen
