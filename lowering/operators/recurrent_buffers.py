"""The parameters of a recurrence kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as ib

from .recurrent_attributes import Layer
from .recurrent_layout import Layout

PEEPHOLES = 3
"""Pi, Po and Pf."""


@dataclass(frozen=True)
class Recurrence:
    """What a kernel is generated from."""

    layer: Layer
    layout: Layout
    dtype: str
    batch: int | None
    """The number of rows, None when only known at run time."""
    peepholes: bool
    lengths: bool
    """Whether the rows have lengths of their own (`sequence_lens`)."""

    @property
    def states(self) -> tuple[str, ...]:
        return ("h", "c") if self.layer.op == "LSTM" else ("h",)


@dataclass(frozen=True)
class Buffers:
    """The parameters, for D directions, n steps, b rows and H hidden units.

    `product`, `weight`, `bias` and `peepholes` are packed as `Layout` says.
    """

    product: Any
    """x·W + Wb, [n, b, D·blocks·panel]."""
    weight: Any
    """R, [D·blocks, H, panel]."""
    bias: Any
    """Rb, [D·blocks, 1, panel]."""
    peepholes: Any
    """[D·blocks, 1, 3·lanes], or None."""
    initial: tuple[Any, ...]
    """The first state: h and, for an LSTM, c, each [D, b, H]."""
    lengths: Any
    """[b], int32, or None."""
    sequence: Any
    """Y, [n, D, b, H]."""
    final: tuple[Any, ...]
    """The last state: Y_h and, for an LSTM, Y_c, each [D, b, H]."""
    steps: Any
    """n."""
    rows: Any
    """b."""


def declare_buffers(recurrence: Recurrence) -> Buffers:
    """Declare the parameters in the order of `Buffers`; a None is left out."""
    layer, layout, states = recurrence.layer, recurrence.layout, recurrence.states
    directions = len(layer.directions)
    panels = directions * layout.blocks
    names = ["product", "weight", "bias"]
    if recurrence.peepholes:
        names.append("peepholes")
    names += [f"initial_{state}" for state in states]
    if recurrence.lengths:
        names.append("lengths")
    names += ["sequence", *(f"final_{state}" for state in states)]
    handles = {name: ib.arg(name, ib.handle()) for name in names}
    steps = ib.int64()
    rows = ib.int64() if recurrence.batch is None else tirx.IntImm("int64", recurrence.batch)

    def match(name: str, *shape: Any, dtype: str = recurrence.dtype) -> Any:
        return ib.match_buffer(handles[name], shape, dtype) if name in handles else None

    state_shape = (directions, rows, layer.hidden)
    return Buffers(
        product=match("product", steps, rows, panels * layout.panel),
        weight=match("weight", panels, layer.hidden, layout.panel),
        bias=match("bias", panels, 1, layout.panel),
        peepholes=match("peepholes", panels, 1, PEEPHOLES * layout.lanes),
        initial=tuple(match(f"initial_{state}", *state_shape) for state in states),
        lengths=match("lengths", rows, dtype="int32"),
        sequence=match("sequence", steps, directions, rows, layer.hidden),
        final=tuple(match(f"final_{state}", *state_shape) for state in states),
        steps=steps,
        rows=rows,
    )
