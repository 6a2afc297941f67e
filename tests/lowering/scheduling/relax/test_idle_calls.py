"""The virtual machine is not asked to do what changes nothing."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import onnxruntime
import pytest
import tvm

import looplift

from ...compiled import NATIVE, virtual_machine
from ...conftest import parse

PART = """m (float[n, 300] x, int64[1] start, int64[1] end) => (float[k, 300] y) {
    zero = Constant <value = int64[1] {0}> ()
    part = Slice (x, start, end, zero)
    y = Softmax (part)
}"""
SMALL = """m (float[4, 8] x) => (float[4, 8] y) { a = Softmax <axis = 0> (x) b = Softmax (a) y = Softmax <axis = 0> (b) }"""
LARGE = SMALL.replace("[4, 8]", "[n, 800]")


def _calls(text: str) -> Counter[str]:
    """How often the virtual machine calls each of its functions and kernels in `main`."""
    compiled = looplift.compile(looplift.from_onnx(parse(text)), NATIVE)
    (main,) = re.findall(r"@main:\n(.*?)\n\n", compiled.as_text(), flags=re.DOTALL)
    return Counter(re.findall(r"call +(\S+)", main))


def test_sizes_that_a_tensor_holds_are_named_once() -> None:
    calls = _calls(PART)
    assert calls["vm.builtin.tensor_to_shape"] == 2
    # One for each parameter, the bounds, the size of the part, and the tensor of that size.
    assert calls["vm.builtin.match_shape"] == 7
    assert calls["any_sizes"] == 0


def test_small_memory_is_not_released_by_itself() -> None:
    assert _calls(SMALL)["vm.builtin.null_value"] == 0
    assert _calls(LARGE)["vm.builtin.null_value"] > 0


@pytest.mark.parametrize("bounds", [(0, 2), (1, 9), (-1, 5), (3, 1), (-9, 9)])
def test_parts_of_any_size(bounds: tuple[int, int]) -> None:
    model = parse(PART)
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (0, 1, 4):
        x = np.random.default_rng(rows).standard_normal((rows, 300)).astype(np.float32)
        start, end = (np.array([bound]) for bound in bounds)
        (want,) = session.run(None, {"x": x, "start": start, "end": end})
        got = machine["main"](*map(tvm.runtime.tensor, (x, start, end))).numpy()
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
