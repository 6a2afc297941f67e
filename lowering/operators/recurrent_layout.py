"""How the weights of a recurrent layer lie in memory, and how they get there.

A weight [directions, gates·hidden, columns] becomes [directions·blocks, columns, panel]: the
hidden units are taken in blocks of `lanes`, and a panel holds every gate of one block side by
side, so that one pass over the columns reads memory in order and yields whole gates. The last
block is padded with zeros.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from ..constants import constant
from ..processor import vector_bytes

_PANEL_VECTORS = 6
"""As many independent sums as hide the latency of multiply-add; twice as many still fit into 16
registers."""


@dataclass(frozen=True)
class Layout:
    """The blocking of one weight."""

    gates: int
    hidden: int
    lanes: int
    """Hidden units in a block."""

    @property
    def blocks(self) -> int:
        return -(-self.hidden // self.lanes)

    @property
    def padded(self) -> int:
        """Hidden units with padding."""
        return self.blocks * self.lanes

    @property
    def panel(self) -> int:
        """Values of one block: all its gates."""
        return self.gates * self.lanes


def vector_lanes(dtype: str) -> int:
    """Values in one vector of the kernels."""
    return vector_bytes() // np.dtype(dtype).itemsize


def choose_layout(gates: int, hidden: int, dtype: str) -> Layout:
    """Blocks wide enough to keep the processor busy, not wider than the layer."""
    lanes = vector = vector_lanes(dtype)
    while lanes < hidden and 2 * lanes * gates <= _PANEL_VECTORS * vector:
        lanes *= 2
    return Layout(gates, hidden, lanes)


def pack(bb: relax.BlockBuilder, weight: Any, layout: Layout) -> Any:
    """[directions, gates·hidden, columns] to [directions·blocks, columns, panel].

    Constants are packed here, once; anything else at run time.
    """
    if isinstance(weight, tvm.ir.GenericConst):
        return constant(pack_array(weight.value.numpy(), layout))
    packed = functools.partial(_packed, layout=layout)
    return bb.emit_te(packed, weight, primfunc_name_hint="pack_recurrent_weight")


def pack_array(weight: np.ndarray[Any, Any], layout: Layout) -> np.ndarray[Any, Any]:
    """`pack` on an array."""
    directions, _, columns = weight.shape
    gates = weight.reshape(directions, layout.gates, layout.hidden, columns)
    missing = layout.padded - layout.hidden
    gates = np.pad(gates, ((0, 0), (0, 0), (0, missing), (0, 0)))
    panels = gates.reshape(directions, layout.gates, layout.blocks, layout.lanes, columns)
    return np.ascontiguousarray(panels.transpose(0, 2, 4, 1, 3).reshape(-1, columns, layout.panel))


def _packed(weight: te.Tensor, layout: Layout) -> te.Tensor:
    directions, _, columns = weight.shape

    def element(block: Any, column: Any, position: Any) -> Any:
        unit = block % layout.blocks * layout.lanes + position % layout.lanes
        row = position // layout.lanes * layout.hidden + unit
        value = weight[block // layout.blocks, row, column]
        return tirx.if_then_else(unit < layout.hidden, value, tirx.const(0, weight.dtype))

    shape = (directions * layout.blocks, columns, layout.panel)
    return te.compute(shape, element, name="packed")
