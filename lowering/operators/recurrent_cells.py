"""One time step of an LSTM, a GRU and an RNN: vector values, activations and update equations.

Hidden units are updated in blocks. For each block, the sums of all gates (x·W + Wb + h·R + Rb) are
computed in registers and turned into the new state at once. Every block reads the whole previous
`h`, so the new one is written to a second place, and the two swap from time step to time step.

The equations are those of the ONNX operator specification of LSTM, GRU and RNN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as ib

from ..processor import is_for_gpu
from .recurrent_attributes import Activation, Layer
from .recurrent_layout import Buffers, Chunk, Layout, Recurrence

Expr = Any
"""A tirx expression, a vector unless said otherwise."""


# --- Vector values -------------------------------------------------------------------------------
#
# A kernel is written in whole vectors rather than in vectorised loops, because a value that is used
# more than once can then be named by storing it in a buffer of its own, which becomes a register.
# TVM's simplifier would inline bound names, and nested activations would grow without bound.


def span(start: Expr | int, lanes: int) -> Expr:
    """The `lanes` consecutive indices from the scalar `start` on."""
    return tirx.Ramp(start, 1, lanes)


def scope() -> str:
    """Where the values of a thread lie: the stack of a CPU, and registers where they fit.

    A GPU's threads have no other memory than "local" of their own. On a CPU that name would mean a
    call that allocates memory, for each value and each iteration of a loop that runs on all cores.
    """
    return "local" if is_for_gpu() else "global"


def keep(value: Expr) -> Expr:
    """Stores a value, so that a second use does not compute it again. Emits statements."""
    dtype = value.ty.dtype
    place = ib.alloc_buffer((dtype.lanes,), dtype.with_lanes(1), scope=scope(), layout=None)
    ib.buffer_store(place, value, [span(0, dtype.lanes)])
    return place[span(0, dtype.lanes)]


def add_to(kept: Expr, value: Expr) -> None:
    """Adds to a value that `keep` returned, in place. Emits a statement."""
    ib.buffer_store(kept.source, kept + value, kept.indices)


def constant(value: float, like: Expr) -> Expr:
    """`value` in every lane, in the type of `like`."""
    return tirx.const(value, like.ty.dtype)


def clamp(x: Expr, low: float, high: float) -> Expr:
    """x clamped to [low, high]; NaN stays NaN, unlike with min and max."""
    low_, high_ = constant(low, x), constant(high, x)
    return tirx.Select(x < low_, low_, tirx.Select(x > high_, high_, x))


# --- Activations ---------------------------------------------------------------------------------
#
# In float32, tanh and the sigmoid are a rational polynomial: a call of the C library's tanhf for
# each element would cost more than the recurrence itself. Other types and functions use TVM's own.

# tanh(x) = x · P(x²) / Q(x²) for |x| <= 9, fitted for the least relative error (2e-8); in float32
# the rounding of the evaluation dominates (4e-7). Beyond 9, tanh is 1 to float32 precision.
TANH_LIMIT = 9.0
TANH_NUMERATOR = (
    0.9999999794462844,
    0.13381025109514377,
    0.003495587524069089,
    2.0609073105895753e-05,
    1.3354649678551454e-08,
)
TANH_DENOMINATOR = (
    1.0,
    0.4671434070011233,
    0.025876979841549682,
    0.0003285633865955965,
    7.776553282958186e-07,
)


def apply(activation: Activation, x: Expr) -> Expr:
    """activation(x), stored by `keep`. Emits statements."""
    x = keep(x)
    function = _FUNCTIONS[activation.name]
    return keep(function(x, constant(activation.alpha, x), constant(activation.beta, x)))


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    total = constant(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + constant(coefficient, x)
    return total


def _tanh(x: Expr) -> Expr:
    if x.ty.dtype.with_lanes(1) != "float32":
        return ib.tanh(x)
    bounded = keep(clamp(x, -TANH_LIMIT, TANH_LIMIT))
    square = keep(bounded * bounded)
    return bounded * _polynomial(TANH_NUMERATOR, square) / _polynomial(TANH_DENOMINATOR, square)


def _sigmoid(x: Expr) -> Expr:
    half = constant(0.5, x)
    return _tanh(x * half) * half + half


def _softplus(x: Expr) -> Expr:
    """log(1 + e^x), in a form in which e^x does not overflow."""
    zero, one = constant(0, x), constant(1, x)
    magnitude = keep(tirx.Select(x < zero, -x, x))
    return tirx.Select(x < zero, zero, x) + ib.log(one + ib.exp(-magnitude))


def _elu(x: Expr, alpha: Expr) -> Expr:
    negative = keep(alpha * (ib.exp(x) - constant(1, x)))
    return tirx.Select(x >= constant(0, x), x, negative)


def _softsign(x: Expr) -> Expr:
    zero, one = constant(0, x), constant(1, x)
    return x / (one + tirx.Select(x < zero, -x, x))


_FUNCTIONS: Mapping[str, Callable[[Expr, Expr, Expr], Expr]] = {
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "elu": lambda x, alpha, beta: _elu(x, alpha),
    "hardsigmoid": lambda x, alpha, beta: clamp(keep(alpha * x + beta), 0, 1),
    "leakyrelu": lambda x, alpha, beta: tirx.Select(x >= constant(0, x), x, alpha * x),
    "relu": lambda x, alpha, beta: tirx.Select(x < constant(0, x), constant(0, x), x),
    "scaledtanh": lambda x, alpha, beta: alpha * _tanh(beta * x),
    "sigmoid": lambda x, alpha, beta: _sigmoid(x),
    "softplus": lambda x, alpha, beta: _softplus(x),
    "softsign": lambda x, alpha, beta: _softsign(x),
    "tanh": lambda x, alpha, beta: _tanh(x),
    "thresholdedrelu": lambda x, alpha, beta: tirx.Select(x >= alpha, x, constant(0, x)),
}


# --- Update equations ----------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchRows:
    """A group of rows of the batch in one direction, and their state."""

    recurrence: Recurrence
    buffers: Buffers
    chunk: Chunk
    direction: Expr
    activations: tuple[Activation, ...]
    first: Expr
    """Index in the batch of the first row."""
    count: int
    hidden: Any
    """h before and after a time step, [2, count, padded]."""
    cell: Any
    """LSTM: c, [count, padded]."""
    update: Any
    """GRU: z, [count, padded]."""
    reset: Any
    """GRU: r ∘ h, [count, padded]."""


@dataclass(frozen=True)
class TimeStep:
    """One time step of a group of rows, with the terms of the update equations."""

    rows: BatchRows
    product_step: Expr
    """The index of the time step in `buffers.product`."""
    before: Expr
    """Index in `rows.hidden` of h before the time step."""
    after: Expr
    """Index in `rows.hidden` of h after the time step."""

    @property
    def layer(self) -> Layer:
        return self.rows.recurrence.layer

    @property
    def layout(self) -> Layout:
        return self.rows.recurrence.layout

    def blocks(self) -> Any:
        """A loop over the blocks of hidden units."""
        loop = ib.parallel if self.rows.recurrence.shares_units else ib.serial
        return loop(self.layout.blocks)

    def units(self, block: Expr) -> Expr:
        """The hidden units of a block."""
        return span(block * self.layout.lanes, self.layout.lanes)

    def panel(self, block: Expr) -> Expr:
        """The index of the panel with the weights of a block."""
        return self.rows.direction * self.layout.blocks + block

    def lanes(self, gate: int) -> Expr:
        """The indices of a gate in its panel."""
        return span(gate * self.layout.lanes, self.layout.lanes)

    def input(self, row: int, block: Expr, gate: int) -> Expr:
        """x·W + Wb of one gate."""
        column = self.panel(block) * self.layout.panel + gate * self.layout.lanes
        position = span(column, self.layout.lanes)
        return self.rows.buffers.product[self.product_step, self.rows.first + row, position]

    def recurrent_bias(self, block: Expr, gate: int) -> Expr:
        """Rb of one gate."""
        return self.rows.buffers.bias[self.panel(block), 0, self.lanes(gate)]

    def peephole(self, block: Expr, index: int, cell: Expr) -> Expr:
        """P∘c of gate i (0), o (1) or f (2)."""
        weight = self.rows.buffers.peepholes
        if weight is None:
            return constant(0, cell)
        return weight[self.panel(block), 0, self.lanes(index)] * cell

    def gate(self, index: int, value: Expr) -> Expr:
        """The activation f (0) or g (1) of a clipped value."""
        clip = self.layer.clip
        return self.activate(index, value if clip is None else clamp(keep(value), -clip, clip))

    def activate(self, index: int, value: Expr) -> Expr:
        """The activation f (0), g (1) or h (2) of a value."""
        return apply(self.rows.activations[index], value)

    def hidden(self, row: int, units: Expr) -> Expr:
        """h before the time step."""
        return self.rows.hidden[self.before, row, units]

    def add_products(
        self, block: Expr, sums: Sequence[Mapping[int, Expr]], state: Callable[[int, Expr], Expr]
    ) -> None:
        """Emits the addition of `state·R` to the sums, which are given by row and gate."""
        with ib.serial(self.layer.hidden) as unit:
            for row, gates in enumerate(sums):
                for gate, total in gates.items():
                    weight = self.rows.buffers.weight[self.panel(block), unit, self.lanes(gate)]
                    add_to(total, state(row, unit) * weight)

    def gates(
        self, block: Expr, gates: Sequence[int], state: Callable[[int, Expr], Expr]
    ) -> list[dict[int, Expr]]:
        """x·W + Wb + state·R + Rb, by row and gate."""
        sums = [
            {g: keep(self.input(row, block, g) + self.recurrent_bias(block, g)) for g in gates}
            for row in range(self.rows.count)
        ]
        self.add_products(block, sums, state)
        return sums


def emit_time_step(step: TimeStep) -> None:
    """Emits the update of the state of `step.rows`."""
    if step.layer.op == "LSTM":
        _lstm(step)
    elif step.layer.op == "RNN":
        _rnn(step)
    elif step.layer.linear_before_reset:
        _gru_reset_after(step)
    else:
        _gru(step)


def _lstm(step: TimeStep) -> None:
    """LSTM: c' = f∘c + i∘g(c̃) and h' = o∘h(c'); the gates in the order i, o, f, c̃."""
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


def _gru(step: TimeStep) -> None:
    """GRU: h' = (1 - z)∘g(x·W + (r∘h)·R) + z∘h; the gates in the order z, r, h̃."""
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


def _gru_reset_after(step: TimeStep) -> None:
    """GRU with linear_before_reset: h̃ = g(x·W + Wb + r∘(h·R + Rb))."""
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


def _mix(step: TimeStep, row: int, units: Expr, update: Expr, candidate: Expr) -> None:
    """h' = (1 - z)∘h̃ + z∘h."""
    kept = update * step.hidden(row, units)
    hidden = (constant(1, update) - update) * candidate + kept
    ib.buffer_store(step.rows.hidden, hidden, [step.after, row, units])


def _rnn(step: TimeStep) -> None:
    """RNN: h' = f(x·W + h·R)."""
    with step.blocks() as block:
        for row, sums in enumerate(step.gates(block, (0,), step.hidden)):
            hidden = step.gate(0, sums[0])
            ib.buffer_store(step.rows.hidden, hidden, [step.after, row, step.units(block)])
