"""SpaceToDepth, see https://onnx.ai/onnx/operators/onnx__SpaceToDepth.html."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from ...rewrite.errors import UnsupportedError
from .broadcasting import known_dims, with_size

_ORDERS = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}
"""By mode: where the axes [batch, channel, row, row in block, column, column in block] go."""


def convert_space_to_depth(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """TVM's converter ignores the mode. A run in which blocks do not fill the data, fails."""
    data, block = inputs[0], attrs["blocksize"]
    dims = known_dims(data)
    if dims is None:
        raise UnsupportedError("the shape of the data is not known")
    batch, channels, *sides = dims
    rows, columns = (tirx.floordiv(side, block) for side in sides)
    for axis, count in ((2, rows), (3, columns)):
        data = with_size(bb, data, axis, count * block)
    split = relax.op.reshape(data, (batch, channels, rows, block, columns, block))
    moved = relax.op.permute_dims(split, _ORDERS[attrs.get("mode", b"DCR").decode()])
    return relax.op.reshape(moved, (batch, channels * block * block, rows, columns))
