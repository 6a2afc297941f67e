"""Networks with loops around derived shapes: rewritten, imported, compiled once, right at all sizes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm

import looplift

from .compiled import UNOPTIMIZED, virtual_machine
from .networks import kokoro, style_tts, yolo

SIZES: list[tuple[ModuleType, list[dict[str, Any]]]] = [
    (
        style_tts,
        [
            {"tokens": 7},
            {"tokens": 13, "padding": 4, "speed": 1.3},
            {"tokens": 1, "padding": 2, "speed": 0.7},
        ],
    ),
    (kokoro, [{"frames": frames} for frames in (2, 5, 9)]),
    (yolo, [{"height": h, "width": w} for h, w in ((32, 48), (64, 40), (96, 96))]),
]


def name(network: Any) -> str:
    return network.__name__.rpartition(".")[2] if isinstance(network, ModuleType) else ""


@pytest.mark.parametrize(
    ("network", "sizes"),
    [pytest.param(*case, marks=() if case[0] is yolo else pytest.mark.soak) for case in SIZES],
    ids=name,
)
def test_network(network: ModuleType, sizes: list[dict[str, Any]]) -> None:
    model = network.model()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    module = looplift.from_onnx(model)
    machine = virtual_machine(looplift.compile(module, UNOPTIMIZED))
    shapes = set()
    for size in sizes:
        feed = network.feed(**size)
        inputs = [info.name for info in session.get_inputs()]
        outputs = machine["main"](*(tvm.runtime.tensor(feed[name]) for name in inputs))
        wanted = session.run(None, feed)
        shapes.add(wanted[0].shape)
        for output, want in zip(outputs, wanted, strict=True):
            got = output.numpy()
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert len(shapes) == len(sizes)


def test_loops_of_fixed_steps_are_unrolled() -> None:
    """The sampler of the one network and the refinement of the other are; what runs as often as
    the data says stays.
    """
    assert looplift.rewrite(style_tts.model()).report.after["Loop"] <= 1
    assert looplift.rewrite(kokoro.model()).report.after["Loop"] == 0
