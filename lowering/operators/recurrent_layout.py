"""The memory layout of a recurrence: packed weights, chunks, and the parameters of its kernel.

A weight [directions, gates·hidden, columns] becomes [directions·blocks, columns, panel]. The hidden
units are taken in blocks of `lanes`, and a panel has all gates of one block side by side, so that
one pass over the columns reads memory in order and computes whole gates. The last block is padded
with zeros.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, te, tirx
from tvm.tirx.script import builder as ib

from ..constants import constant
from ..processor import GRAIN, vector_bytes
from ..scheduling.kernels.affine import int64
from ..values import Constant, Value
from .recurrent_attributes import Layer

PEEPHOLES = 3
"""Pi, Po and Pf."""

_CHUNK_ELEMENTS = 1 << 17
"""Elements of the input product of a chunk, about: half of a second-level cache of 1 MiB, in
float32."""
_LEAST_ROWS = 96
"""The least rows of that product, time steps times rows of the batch, even if they leave the cache:
with fewer, reading the weight takes longer than the multiplications."""
_LEAST_STEPS = 8
"""The least time steps of a chunk, because cores wait for each other after each one."""

_PANEL_VECTORS = 6
"""The vectors in a panel: enough independent sums to hide the latency of multiply-add. Twice as
many fit into 16 registers."""

_STEP_GRAIN = GRAIN // 2
"""Multiply-adds from which cores share a time step. Each reads a weight that is used once, which
takes longer than the multiply-adds of a matrix product."""


@dataclass(frozen=True)
class Layout:
    """How one weight is packed into blocks of hidden units."""

    gates: int
    hidden: int
    lanes: int
    """Hidden units in a block."""

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.hidden // self.lanes)

    @property
    def padded(self) -> int:
        """The number of hidden units with padding."""
        return self.blocks * self.lanes

    @property
    def panel(self) -> int:
        """The number of values of one block: all its gates."""
        return self.gates * self.lanes


def vector_lanes(dtype: str) -> int:
    """The number of values in one vector of the kernels."""
    return vector_bytes() // np.dtype(dtype).itemsize


def choose_layout(gates: int, hidden: int, dtype: str) -> Layout:
    """A layout with blocks wide enough to keep the processor busy, but no wider than the layer."""
    lanes = vector = vector_lanes(dtype)
    while lanes < hidden and 2 * lanes * gates <= _PANEL_VECTORS * vector:
        lanes *= 2
    return Layout(gates, hidden, lanes)


def pack(bb: relax.BlockBuilder, weight: Value, layout: Layout) -> Value:
    """A weight [directions, gates·hidden, columns], packed to [directions·blocks, columns, panel].

    A constant is packed now, other weights at run time.
    """
    if isinstance(weight, Constant):
        return constant(pack_array(weight.value.numpy(), layout))
    packed = functools.partial(_packed, layout=layout)
    return bb.emit_te(packed, weight, primfunc_name_hint="pack_recurrent_weight")


def pack_array(weight: npt.NDArray[Any], layout: Layout) -> npt.NDArray[Any]:
    """`pack` for an array."""
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


# --- The parameters of the kernel ----------------------------------------------------------------


@dataclass(frozen=True)
class Recurrence:
    """The properties of a recurrence that its kernel is generated from."""

    layer: Layer
    layout: Layout
    columns: int
    """Elements of an input: of one row at one time step."""
    dtype: str
    batch: int | None
    """The size of the batch; None if it is known at run time only."""
    peepholes: bool
    lengths: bool
    """Whether each row of the batch has its own length (`sequence_lens`)."""

    @property
    def step_work(self) -> int:
        """The multiply-adds for one row and time step in one direction."""
        return self.layer.hidden * self.layout.blocks * self.layout.panel

    @property
    def width(self) -> int:
        """The elements of x·W + Wb for one row and time step."""
        return len(self.layer.directions) * self.layout.blocks * self.layout.panel

    def chunk_steps(self, steps: Any, rows: Any) -> Any:
        """The most time steps of a chunk, for a sequence of `steps` and a batch of `rows`; int64.

        In reverse, each row starts at the end of its own length, so that a chunk would cover other
        positions for each row. The whole sequence is one chunk then.
        """
        if self.lengths and any(direction.reverse for direction in self.layer.directions):
            return steps
        most = int64(max(_CHUNK_ELEMENTS // self.width, _LEAST_ROWS))
        size = tirx.max(most // tirx.max(rows, int64(1)), int64(_LEAST_STEPS))
        return tirx.min(steps, size)

    def is_reverse(self, direction: Any) -> Any:
        """Whether a direction is from the end of the sequence to its start, as a bool."""
        reverse = [place for place, d in enumerate(self.layer.directions) if d.reverse]
        return tirx.any(tirx.const(False, "bool"), *(direction == place for place in reverse))

    @property
    def shares_units(self) -> bool:
        """Whether cores share the hidden units of each time step.

        All of them wait for the last one after each time step.
        """
        return self.step_work >= _STEP_GRAIN

    @property
    def states(self) -> tuple[str, ...]:
        """The tensors of the state."""
        return ("h", "c") if self.layer.op == "LSTM" else ("h",)


@dataclass(frozen=True)
class Buffers:
    """The parameters, for D directions, n time steps, b rows of the batch and H hidden units.

    Weights, biases, peepholes and the product are packed as `Layout` describes.
    """

    x: Any
    """X, [n, b, columns]."""
    input_weight: Any
    """W, [D·blocks, columns, panel]."""
    input_bias: Any
    """Wb, [D·blocks, 1, panel]."""
    weight: Any
    """R, [D·blocks, H, panel]."""
    bias: Any
    """Rb, [D·blocks, 1, panel]."""
    peepholes: Any
    """[D·blocks, 1, 3·lanes], or None."""
    initial: tuple[Any, ...]
    """The initial state: h and, for an LSTM, c, each [D, b, H]."""
    lengths: Any
    """[b], int32, or None."""
    sequence: Any
    """Y, [n, D, b, H]."""
    final: tuple[Any, ...]
    """The final state: Y_h and, for an LSTM, Y_c, each [D, b, H]."""
    product: Any
    """x·W + Wb of the time steps of a chunk, [chunk steps, b, D·blocks·panel]."""
    chunk_steps: Any
    """The most time steps of a chunk."""
    steps: Any
    """n."""
    rows: Any
    """b."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive time steps, counted from where each direction starts."""

    first: Any
    """The number of time steps before."""
    count: Any
    """The number of time steps in the chunk."""

    def start(self, recurrence: Recurrence, buffers: Buffers, direction: Any) -> Any:
        """The index in the sequence of the earliest time step in the chunk, for a direction."""
        from_the_end = buffers.steps - self.first - self.count
        return tirx.Select(recurrence.is_reverse(direction), from_the_end, self.first)


def declare_buffers(recurrence: Recurrence) -> Buffers:
    """Declares the parameters in the order of `Buffers`, without those that are None."""
    layer, layout, states = recurrence.layer, recurrence.layout, recurrence.states
    directions = len(layer.directions)
    panels = directions * layout.blocks
    names = ["x", "input_weight", "input_bias", "weight", "bias"]
    if recurrence.peepholes:
        names.append("peepholes")
    names += [f"initial_{state}" for state in states]
    if recurrence.lengths:
        names.append("lengths")
    names += ["sequence", *(f"final_{state}" for state in states), "product"]
    handles = {name: ib.arg(name, ib.handle()) for name in names}
    steps, chunk_steps = ib.int64(), ib.int64()
    rows = ib.int64() if recurrence.batch is None else tirx.IntImm("int64", recurrence.batch)

    def match(name: str, *shape: Any, dtype: str = recurrence.dtype) -> Any:
        return ib.match_buffer(handles[name], shape, dtype) if name in handles else None

    state_shape = (directions, rows, layer.hidden)
    return Buffers(
        x=match("x", steps, rows, recurrence.columns),
        input_weight=match("input_weight", panels, recurrence.columns, layout.panel),
        input_bias=match("input_bias", panels, 1, layout.panel),
        weight=match("weight", panels, layer.hidden, layout.panel),
        bias=match("bias", panels, 1, layout.panel),
        peepholes=match("peepholes", panels, 1, PEEPHOLES * layout.lanes),
        initial=tuple(match(f"initial_{state}", *state_shape) for state in states),
        lengths=match("lengths", rows, dtype="int32"),
        sequence=match("sequence", steps, directions, rows, layer.hidden),
        final=tuple(match(f"final_{state}", *state_shape) for state in states),
        product=match("product", chunk_steps, rows, recurrence.width),
        chunk_steps=chunk_steps,
        steps=steps,
        rows=rows,
    )
