from __future__ import annotations

import os
import signal

import ml_dtypes
import numpy as np
import pytest

from looplift.rewrite.running.child_process import ChildDied, ChildProcess, RemoteObject
from looplift.rewrite.running.runtime import (
    ExecutionError,
    IsolatedSession,
    ProcessCrashed,
    SerializedModel,
    Session,
    median_time,
)
from looplift.rewrite.running.verify import verify

from ...small_models import ADD, model


class TestProcesses:
    def test_a_run_that_ends_the_process(self) -> None:
        """onnxruntime 1.31 ends the process for an LSTM over an empty batch."""
        text = (
            "g (float[T, B, 2] x) => (float[T, 1, B, 1] y) { y = LSTM<hidden_size = 1>(x, w, r) }"
        )
        lstm = model(text, w=np.ones((1, 4, 2), np.float32), r=np.ones((1, 4, 1), np.float32))
        session = IsolatedSession(SerializedModel(lstm))
        with pytest.raises(ProcessCrashed, match="SIGABRT"):
            session.run({"x": np.zeros((3, 0, 2), np.float32)})
        assert session.run({"x": np.zeros((3, 1, 2), np.float32)})

    def test_a_crash_at_an_empty_size_is_no_difference(self) -> None:
        """A Loop accepts an empty batch; the LSTM that replaces it crashes in onnxruntime."""
        text = "g (float[T, B, 2] x) => (float[T, 1, B, 1] y) { BODY }"
        loose = "s = ReduceSum(x, last) w = Unsqueeze(s, one) y = Mul(w, zero)"
        before = model(
            text.replace("BODY", loose),
            last=np.array([2]), one=np.array([1]), zero=np.array(0, np.float32),
        )  # fmt: skip
        after = model(
            text.replace("BODY", "y = LSTM<hidden_size = 1>(x, w, r)"),
            w=np.zeros((1, 4, 2), np.float32), r=np.zeros((1, 4, 1), np.float32),
        )  # fmt: skip
        result = verify(before, after)
        assert result.verified
        assert result.ended == [{"T": 2, "B": 0}, {"T": 0, "B": 0}]
        left_out = "2 runs are left out: onnxruntime crashes for the rewritten model at T=0|2, B=0,"
        assert left_out in str(result)
        assert result.notes() == []

        empty = verify(before, after, sizes={"B": [0]})
        assert not empty.verified
        assert str(empty).startswith("not verified: 10 runs are left out: onnxruntime crashes")

    def test_the_child_starts_again(self) -> None:
        with ChildProcess() as process:
            remote = RemoteObject(process, _Thing, 5)
            assert remote.call("value") == 5
            with pytest.raises(ChildDied, match=signal.Signals.SIGKILL.name):
                remote.call("end")
            assert remote.call("value") == 5
            assert process.generation == 2

    def test_errors_come_back(self) -> None:
        with ChildProcess() as process:
            remote = RemoteObject(process, _Thing, 5)
            with pytest.raises(ExecutionError, match="no"):
                remote.call("refuse")
            with pytest.raises(RuntimeError, match="Odd"):
                remote.call("odd")
            with pytest.raises(ChildDied, match="in time"):
                remote.call("sleep", seconds=-9.8)

    def test_latency(self) -> None:
        session = IsolatedSession(SerializedModel(ADD))
        feed = {"x": np.ones((2, 3), np.float32), "y": np.ones(3, np.float32)}
        assert 0 < session.latency(feed, 0.01) < 1
        session.close()
        assert median_time(lambda: None, 0.0) < 0.1


@pytest.mark.parametrize("shape", [(), (1,), (2, 0), (3, 2)])
def test_bfloat16_keeps_its_shape(shape: tuple[int, ...]) -> None:
    """onnxruntime's Python binding does not convert the type."""
    session = Session(SerializedModel(model("g (bfloat16 x) => (bfloat16 y) { y = Identity (x) }")))
    given = np.full(shape, 1.5, ml_dtypes.bfloat16)
    (got,) = session.run({"x": given})
    np.testing.assert_array_equal(got, given, strict=True)


class _Thing:
    def __init__(self, number: int) -> None:
        self._number = number

    def value(self) -> int:
        return self._number

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def refuse(self) -> None:
        raise ExecutionError("no")

    def odd(self) -> None:
        class OddError(Exception):
            pass

        raise OddError

    def sleep(self) -> None:
        signal.pause()
