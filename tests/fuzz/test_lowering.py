"""Random models with loops compute the same on TVM and on onnxruntime.

Each loop is compiled by the default pipeline, and after rewriting by the pipeline of looplift.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    RuntimeException,
)
from tvm import relax

import looplift
from looplift.lowering import emit

from ..lowering.compiled import UNOPTIMIZED, compile_quickly
from .check_rewrite import shown
from .loops import make_feeds, make_model


def _stock(model: onnx.ModelProto) -> Any:
    return compile_quickly(emit(model))


def _with_pipeline(model: onnx.ModelProto) -> Any:
    return looplift.compile(emit(model))


def _rewritten(model: onnx.ModelProto) -> Any:
    return looplift.compile(looplift.from_onnx(model), UNOPTIMIZED)


SAMPLE = [
    *((seed, _stock) for seed in range(100, 106)),
    *((seed, _with_pipeline) for seed in range(144, 148)),
    *((seed, _rewritten) for seed in (29, 79, 288, *range(192, 196))),
]
MORE = [
    *((seed, _stock) for seed in range(106, 112)),
    *((seed, _with_pipeline) for seed in range(148, 152)),
    *((seed, _rewritten) for seed in range(196, 200)),
]


@pytest.mark.parametrize(
    ("seed", "build"), [*SAMPLE, *(pytest.param(*case, marks=pytest.mark.soak) for case in MORE)]
)
def test_random_loops_compute_the_same_on_tvm(
    seed: int, build: Callable[[onnx.ModelProto], Any]
) -> None:
    model = make_model(seed)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString())
    except (Fail, InvalidGraph):
        pytest.skip("onnxruntime rejects the model")
    machine = relax.VirtualMachine(build(model), tvm.cpu())
    names = [value.name for value in model.graph.input]
    for feed in make_feeds(seed):
        try:
            wanted = session.run(None, feed)
        except (Fail, InvalidArgument, RuntimeException):
            continue
        outputs = machine["main"](*(tvm.runtime.tensor(np.asarray(feed[name])) for name in names))
        got = [_plain(value) for value in (outputs if len(wanted) > 1 else [outputs])]
        for a, b in zip(got, wanted, strict=True):
            _assert_same(a, b, shown(feed))


def _plain(value: Any) -> Any:
    if isinstance(value, tvm.runtime.Tensor):
        return value.numpy()
    return [_plain(item) for item in value]


def _assert_same(got: Any, wanted: Any, feed: str) -> None:
    if isinstance(wanted, list):
        assert len(got) == len(wanted), feed
        for a, b in zip(got, wanted, strict=True):
            _assert_same(a, b, feed)
        return
    wanted = np.asarray(wanted)
    assert (got.dtype, got.ndim) == (wanted.dtype, wanted.ndim), feed
    if wanted.ndim and wanted.shape[0] == got.shape[0] == 0:
        return  # onnxruntime does not know the shape of a scan output of no iterations
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4, err_msg=feed)
