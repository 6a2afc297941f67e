"""Products with constant weights of few bits, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ....samples import one_of
from ...conftest import Imported, parse

BLOCK = 32


def _model(bits: int, depth: int, width: int, zeros: str, data: str = "float") -> onnx.ModelProto:
    rng = np.random.default_rng(bits)
    blocks = -(-depth // BLOCK)
    weights: dict[str, np.ndarray[Any, Any]] = {
        "w": rng.integers(0, 256, (width, blocks, BLOCK * bits // 8)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.1, (width, blocks)).astype(np.float32),
    }
    if zeros == "packed":
        weights["z"] = rng.integers(0, 256, (width, -(-blocks * bits // 8))).astype(np.uint8)
    elif zeros == "floats":
        weights["z"] = rng.uniform(0, 2**bits, (width, blocks)).astype(np.float32)
    model = parse(f"""<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        g ({data}[n, {depth}] x) => ({data}[n, {width}] y) {{
            y = com.microsoft.MatMulNBits <bits = {bits}, block_size = {BLOCK}, K = {depth}, N = {width}>
                (x, w, s{", z" if "z" in weights else ""}) }}""")
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in weights.items())
    return model


def _reads_packed(model: onnx.ModelProto, load: Callable[..., Imported]) -> bool:
    """Whether a kernel of the module reads packed weights."""
    with as_target("native"):
        kernels = lower_to_kernels(load(model.SerializeToString()).module)
    return any("few_bit_product" in name.name_hint for name in kernels.get_global_vars())


@pytest.mark.parametrize(
    ("bits", "width", "zeros"),
    [
        (4, 32, "none"),
        *one_of(2, [(4, 35, "packed"), (4, 5, "floats"), (8, 16, "packed"), (2, 33, "floats")]),
    ],
)
def test_weights_stay_packed(
    imported: Callable[..., Imported], bits: int, width: int, zeros: str
) -> None:
    model = _model(bits, 3 * BLOCK, width, zeros)
    assert _reads_packed(model, imported)
    module = imported(model.SerializeToString())
    for rows in (0, 1, 3, 4, 8, 9, 17):
        x = np.random.default_rng(rows).standard_normal((rows, 3 * BLOCK))
        module.check(x.astype(np.float32))


def test_blocks_that_are_not_whole(imported: Callable[..., Imported]) -> None:
    """The weights become floats when the module is compiled."""
    model = _model(4, 3 * BLOCK - 8, 7, "none")
    assert not _reads_packed(model, imported)
    x = np.random.default_rng(0).standard_normal((3, 3 * BLOCK - 8)).astype(np.float32)
    imported(model.SerializeToString()).check(x)
