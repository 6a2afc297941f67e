"""Random shape arithmetic: facts and rewritten models against onnxruntime.

A failure names the seed; `random_models.model(seed)` gives the model.
"""

from __future__ import annotations

import onnx
import pytest
from onnx import printer

from looplift import rewrite

from ..equivalence import assert_equivalent, session
from .fact_oracle import Feeds, NothingRan, check
from .random_models import model

CHUNK = 20
"""Models per test. Of some, onnxruntime takes no input at all; of a chunk it takes several."""
SAMPLE = 160
"""The models that `make test` checks."""
FEEDS = Feeds(sizes=(0, 1, 2, 3), values={"v": [[0], [-1], [2], [3]]}, most=20)


def _is_refused(proto: onnx.ModelProto) -> bool:
    """onnxruntime finds before the run that the model cannot work."""
    try:
        session(proto)
    except Exception as error:
        if "ONNXRuntimeError" not in str(error):
            raise
        return True
    return False


@pytest.mark.parametrize(
    "first",
    [
        *range(0, SAMPLE, CHUNK),
        *(pytest.param(n, marks=pytest.mark.soak) for n in range(SAMPLE, 600, CHUNK)),
    ],
)
def test_random_models(first: int) -> None:
    compared = 0
    for seed in range(first, first + CHUNK):
        proto = model(seed, length=6 + seed % 8)
        if _is_refused(proto):
            continue
        try:
            check(proto, FEEDS)
            result = rewrite(proto)
            assert result.report.defects == []
            assert_equivalent(proto, result.model, FEEDS, 1e-5)
            compared += 1
        except NothingRan:
            continue
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}\n{printer.to_text(proto)}") from None
    assert compared > CHUNK // 5
