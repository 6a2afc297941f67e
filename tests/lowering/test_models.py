"""Published models, rewritten and imported: one compiled module serves every size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm

import looplift
from looplift.lowering import emit

from .compiled import compile_quickly, virtual_machine


class Model:
    """A model of the collection on onnxruntime, and its rewritten form on TVM."""

    def __init__(self, path: Path, **assertions: Any) -> None:
        self.session = onnxruntime.InferenceSession(path)
        self.rewritten = looplift.rewrite(path, **assertions).model
        module = emit(self.rewritten, base_dir=str(path.parent))
        self.machine = virtual_machine(compile_quickly(module))

    def operators(self) -> list[str]:
        pending, found = [self.rewritten.graph], []
        while pending:
            for node in pending.pop().node:
                found.append(node.op_type)
                pending.extend(a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)
        return found

    def check(self, feed: dict[str, Any]) -> None:
        """Equal outputs, up to 1e-5; inputs that were fixed are not passed on."""
        wanted = self.session.run(None, feed)
        names = [value.name for value in self.rewritten.graph.input]
        outputs = self.machine["main"](*(tvm.runtime.tensor(feed[name]) for name in names))
        for got, want in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(got.numpy(), want, atol=1e-5)


def speech(batch: int, samples: int, rate: int) -> dict[str, Any]:
    """Inputs of the voice-activity detector."""
    random = np.random.default_rng(0)
    return {
        "input": random.standard_normal((batch, samples), np.float32) / 10,
        "state": random.standard_normal((2, batch, 128), np.float32) / 10,
        "sr": np.array(rate),
    }


@pytest.fixture(scope="module")
def any_rate(models_dir: Path) -> Model:
    return Model(models_dir / "silero_vad.onnx")


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("rate", "samples"), [(16000, 576), (8000, 288)])
def test_silero_for_any_rate(any_rate: Model, batch: int, rate: int, samples: int) -> None:
    """Only the choice by sampling rate is left, and made when the module runs."""
    assert any_rate.operators().count("If") == 1
    any_rate.check(speech(batch, samples, rate))


def test_silero_for_one_rate(models_dir: Path) -> None:
    path = models_dir / "silero_vad.onnx"
    model = Model(path, inputs={"sr": np.int64(16000)}, shapes={"input": [1, 576]})
    assert "If" not in model.operators()
    model.check(speech(1, 576, 16000))


def test_silero_for_any_batch(models_dir: Path) -> None:
    model = Model(models_dir / "silero_vad_16k_op15.onnx", dims={"sequence": 576})
    assert "If" not in model.operators()
    for batch in (1, 2, 7):
        model.check(speech(batch, 576, 16000))


def test_dtln(models_dir: Path) -> None:
    random = np.random.default_rng(0)
    feed = {
        "input_2": random.standard_normal((1, 1, 257), np.float32),
        "input_3": random.standard_normal((1, 2, 128, 2), np.float32),
    }
    Model(models_dir / "dtln_1.onnx").check(feed)
