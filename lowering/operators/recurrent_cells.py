"""One time step of an LSTM, a GRU and an RNN: the equations of the ONNX operator specification.

A step is computed in blocks of hidden units. For each block, all gates are summed up in registers
(x·W + Wb + h·R + Rb) and turned into new state at once. As every block needs the whole previous
`h`, the new one goes to a second place, and the two change roles from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.tirx.script import builder as ib

from .recurrent_activations import apply
from .recurrent_attributes import Layer
from .recurrent_buffers import Buffers, Recurrence
from .recurrent_layout import Layout
from .recurrent_vectors import Expr, add_to, clamp, constant, keep, span


@dataclass(frozen=True)
class Rows:
    """A few rows of the batch in one direction, and the state they are in."""

    recurrence: Recurrence
    buffers: Buffers
    direction: int
    first: Expr
    """Index in the batch of the first row."""
    count: int
    hidden: Any
    """h before and after a step, [2, count, padded]."""
    cell: Any
    """LSTM: c, [count, padded]."""
    update: Any
    """GRU: z, [count, padded]."""
    reset: Any
    """GRU: r ∘ h, [count, padded]."""


@dataclass(frozen=True)
class Step:
    """One time step of `rows`, and what the equations are written in."""

    rows: Rows
    time: Expr
    """Position in the sequence."""
    before: Expr
    """Index in `rows.hidden` of h before the step."""
    after: Expr
    """Index in `rows.hidden` of h after the step."""

    @property
    def layer(self) -> Layer:
        return self.rows.recurrence.layer

    @property
    def layout(self) -> Layout:
        return self.rows.recurrence.layout

    def blocks(self) -> Any:
        """A loop over the blocks of hidden units."""
        return ib.serial(self.layout.blocks)

    def units(self, block: Expr) -> Expr:
        """The hidden units of a block."""
        return span(block * self.layout.lanes, self.layout.lanes)

    def panel(self, block: Expr) -> Expr:
        """Where the weights of a block are."""
        return self.rows.direction * self.layout.blocks + block

    def place(self, gate: int) -> Expr:
        """Where a gate is in its panel."""
        return span(gate * self.layout.lanes, self.layout.lanes)

    def input(self, row: int, block: Expr, gate: int) -> Expr:
        """x·W + Wb of one gate."""
        column = self.panel(block) * self.layout.panel + gate * self.layout.lanes
        position = span(column, self.layout.lanes)
        return self.rows.buffers.product[self.time, self.rows.first + row, position]

    def recurrent_bias(self, block: Expr, gate: int) -> Expr:
        """Rb of one gate."""
        return self.rows.buffers.bias[self.panel(block), 0, self.place(gate)]

    def peephole(self, block: Expr, index: int, cell: Expr) -> Expr:
        """P∘c of gate i (0), o (1) or f (2)."""
        weight = self.rows.buffers.peepholes
        if weight is None:
            return constant(0, cell)
        return weight[self.panel(block), 0, self.place(index)] * cell

    def gate(self, index: int, value: Expr) -> Expr:
        """Clip, then apply the activation f (0) or g (1)."""
        clip = self.layer.clip
        return self.activate(index, value if clip is None else clamp(keep(value), -clip, clip))

    def activate(self, index: int, value: Expr) -> Expr:
        """Apply the activation f (0), g (1) or h (2) of the equations."""
        return apply(self.layer.directions[self.rows.direction].activations[index], value)

    def hidden(self, row: int, units: Expr) -> Expr:
        """h before the step."""
        return self.rows.hidden[self.before, row, units]

    def add_products(
        self, block: Expr, sums: Sequence[Mapping[int, Expr]], state: Callable[[int, Expr], Expr]
    ) -> None:
        """Add `state·R` to the sums, given per row and gate."""
        with ib.serial(self.layer.hidden) as unit:
            for row, gates in enumerate(sums):
                for gate, total in gates.items():
                    weight = self.rows.buffers.weight[self.panel(block), unit, self.place(gate)]
                    add_to(total, state(row, unit) * weight)

    def gates(
        self, block: Expr, gates: Sequence[int], state: Callable[[int, Expr], Expr]
    ) -> list[dict[int, Expr]]:
        """x·W + Wb + state·R + Rb, per row and gate."""
        sums = [
            {g: keep(self.input(row, block, g) + self.recurrent_bias(block, g)) for g in gates}
            for row in range(self.rows.count)
        ]
        self.add_products(block, sums, state)
        return sums


def emit_step(step: Step) -> None:
    """Emit the update of the state of `step.rows`."""
    if step.layer.op == "LSTM":
        _lstm(step)
    elif step.layer.op == "RNN":
        _rnn(step)
    elif step.layer.linear_before_reset:
        _gru_reset_after(step)
    else:
        _gru(step)


def _lstm(step: Step) -> None:
    """c' = f∘c + i∘g(c̃) and h' = o∘h(c'); the gates in the order i, o, f, c̃."""
    rows = step.rows
    with step.blocks() as block:
        units = step.units(block)
        for row, sums in enumerate(step.gates(block, range(4), step.hidden)):
            cell = keep(rows.cell[row, units])
            inward = step.gate(0, sums[0] + step.peephole(block, 0, cell))
            if step.layer.input_forget:
                forget = constant(1, inward) - inward
            else:
                forget = step.gate(0, sums[2] + step.peephole(block, 2, cell))
            cell = keep(forget * cell + inward * step.gate(1, sums[3]))
            outward = step.gate(0, sums[1] + step.peephole(block, 1, cell))
            ib.buffer_store(rows.cell, cell, [row, units])
            hidden = outward * step.activate(2, cell)
            ib.buffer_store(rows.hidden, hidden, [step.after, row, units])


def _gru(step: Step) -> None:
    """h' = (1 - z)∘g(x·W + (r∘h)·R) + z∘h; the gates in the order z, r, h̃."""
    rows = step.rows
    with step.blocks() as block:
        units = step.units(block)
        for row, sums in enumerate(step.gates(block, (0, 1), step.hidden)):
            ib.buffer_store(rows.update, step.gate(0, sums[0]), [row, units])
            reset = step.gate(0, sums[1]) * step.hidden(row, units)
            ib.buffer_store(rows.reset, reset, [row, units])
    with step.blocks() as block:
        units = step.units(block)
        candidates = step.gates(block, (2,), lambda row, unit: rows.reset[row, unit])
        for row, sums in enumerate(candidates):
            _mix(step, row, units, keep(rows.update[row, units]), step.gate(1, sums[2]))


def _gru_reset_after(step: Step) -> None:
    """The same with linear_before_reset: h̃ = g(x·W + Wb + r∘(h·R + Rb))."""
    with step.blocks() as block:
        sums = [
            {
                0: keep(step.input(row, block, 0) + step.recurrent_bias(block, 0)),
                1: keep(step.input(row, block, 1) + step.recurrent_bias(block, 1)),
                2: keep(step.recurrent_bias(block, 2)),
            }
            for row in range(step.rows.count)
        ]
        step.add_products(block, sums, step.hidden)
        for row, (update, reset, hidden) in enumerate(gates.values() for gates in sums):
            update, reset = step.gate(0, update), step.gate(0, reset)
            candidate = step.gate(1, step.input(row, block, 2) + reset * hidden)
            _mix(step, row, step.units(block), update, candidate)


def _mix(step: Step, row: int, units: Expr, update: Expr, candidate: Expr) -> None:
    """h' = (1 - z)∘h̃ + z∘h."""
    kept = update * step.hidden(row, units)
    hidden = (constant(1, update) - update) * candidate + kept
    ib.buffer_store(step.rows.hidden, hidden, [step.after, row, units])


def _rnn(step: Step) -> None:
    """h' = f(x·W + h·R)."""
    with step.blocks() as block:
        for row, sums in enumerate(step.gates(block, (0,), step.hidden)):
            hidden = step.gate(0, sums[0])
            ib.buffer_store(step.rows.hidden, hidden, [step.after, row, step.units(block)])
