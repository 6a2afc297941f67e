"""Random models with loops on TVM: every loop as a tower computes what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
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

from looplift.lowering import emit, loop_forms

from .judge import shown
from .loops import make_feeds, make_model

SEEDS = range(100, 116)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_loops_compute_the_same_on_tvm(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(seed)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString())
    except (Fail, InvalidGraph):
        pytest.skip("onnxruntime does not take the model")
    monkeypatch.setattr(loop_forms, "try_kernel", lambda emitter, plan: "not asked for")
    machine = relax.VirtualMachine(tvm.compile(emit(model), target="llvm"), tvm.cpu())
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
        return  # onnxruntime does not know the shape of rows that no iteration gave
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4, err_msg=feed)
