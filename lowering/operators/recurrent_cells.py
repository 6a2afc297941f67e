"""One time step of an LSTM, a GRU and an RNN: vector values, activations and update equations.

Hidden units are updated in blocks. For each block, the sums of all gates (x·W + Wb + h·R + Rb) are
computed in registers and turned into the new state at once. Every block reads the whole previous
`h`, so the new one is written to a second place, and the two swap from time step to time step.

The equations are those of the ONNX operator specification of LSTM, GRU and RNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as ib

from ..scheduling.kernels.affine import int64
from ..scheduling.kernels.emission import bound
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


def keep(value: Expr) -> Expr:
    """Stores a value, so that a second use does not compute it again. Emits statements."""
    dtype = value.ty.dtype
    place = ib.alloc_buffer((dtype.lanes,), dtype.with_lanes(1), layout=None)
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
class RowTiles:
    """Register tiles of equally many rows, which follow each other."""

    size: int
    first: Expr
    """The first row of the first tile, counted from the first of `BatchRows`."""
    count: Expr
    """The number of tiles."""


@dataclass(frozen=True)
class BatchRows:
    """Rows of the batch that take each time step together in one direction, and their state.

    The state has room for `most` rows.
    """

    recurrence: Recurrence
    buffers: Buffers
    chunk: Chunk
    direction: Expr
    activations: tuple[Activation, ...]
    first: Expr
    """Index in the batch of the first row."""
    count: Expr
    """The number of rows."""
    tiles: Sequence[RowTiles]
    start: Expr
    """The index in the sequence of the first time step in `buffers.product`."""
    hidden: Any
    """h before and after a time step, [2, most, padded]."""
    cell: Any
    """LSTM: c, [most, padded]."""
    update: Any
    """GRU: z, [most, padded]."""
    reset: Any
    """GRU: r ∘ h, [most, padded]."""

    def length(self, row: Expr) -> Expr:
        """The number of time steps of a row."""
        lengths = self.buffers.lengths
        return (
            self.buffers.steps if lengths is None else tirx.Cast("int64", lengths[self.first + row])
        )


@dataclass(frozen=True)
class TimeStep:
    """One time step of rows of the batch.

    A row that has ended keeps its state until the longest of the rows ends.
    """

    rows: BatchRows
    number: Expr
    """The number of time steps before this one."""
    before: Expr
    """Index in `rows.hidden` of h before the time step."""
    after: Expr
    """Index in `rows.hidden` of h after the time step."""

    @property
    def reads_backward(self) -> Expr:
        """1 if the step reads the weight from its end: every other step.

        The end of the weight is then in the first-level cache, from the step before.
        """
        return self.number % 2

    def is_within(self, row: Expr) -> Expr:
        """Whether a row has this time step, as a bool."""
        return self.number < self.rows.length(row)

    def time(self, row: Expr) -> Expr:
        """The index of the time step in the sequence; some valid index for a row that has ended."""
        reverse = self.rows.recurrence.is_reverse(self.rows.direction)
        from_the_end = tirx.max(self.rows.length(row) - 1 - self.number, int64(0))
        return tirx.Select(reverse, from_the_end, self.number)

    def row_tiles(self, is_backward: Expr | None = None) -> Iterator[RowTile]:
        """Yields each register tile of rows for each block of hidden units, in the loops over them.

        A panel of the weight stays in the first-level cache while all tiles pass over it. If
        `is_backward` is 1, the blocks and the rows of each panel are read from the last to the
        first (only the rows where cores share the blocks).
        """
        recurrence = self.rows.recurrence
        backward = int64(0) if is_backward is None else is_backward
        loop = ib.parallel if recurrence.shares_units else ib.serial
        same = None if recurrence.lengths else bound(self.time(int64(0)) - self.rows.start)
        with loop(recurrence.layout.blocks) as position:
            # Cores that share the blocks keep theirs, which their second-level caches hold.
            order = int64(0) if recurrence.shares_units else backward
            block = bound(_in_order(position, recurrence.layout.blocks, order))
            for tiles in self.rows.tiles:
                with ib.serial(tiles.count) as number:
                    first = bound(tiles.first + number * tiles.size)
                    product_steps = [
                        bound(self.time(first + row) - self.rows.start) if same is None else same
                        for row in range(tiles.size)
                    ]
                    yield RowTile(self, block, first, product_steps, backward)


@dataclass(frozen=True)
class RowTile:
    """A register tile of rows at one time step, with the terms of the equations of one block."""

    step: TimeStep
    block: Expr
    first: Expr
    """The first row, counted from the first of `step.rows`."""
    product_steps: Sequence[Expr]
    """The index of the time step in `buffers.product`, by row."""
    is_backward: Expr
    """1 if the rows of the panel are read from the last to the first, 0 if not."""

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.product_steps)

    @property
    def rows(self) -> BatchRows:
        return self.step.rows

    @property
    def layer(self) -> Layer:
        return self.rows.recurrence.layer

    @property
    def layout(self) -> Layout:
        return self.rows.recurrence.layout

    @property
    def units(self) -> Expr:
        """The hidden units of the block."""
        return span(self.block * self.layout.lanes, self.layout.lanes)

    @property
    def panel(self) -> Expr:
        """The index of the panel with the weights of the block."""
        return self.rows.direction * self.layout.blocks + self.block

    def lanes(self, gate: int) -> Expr:
        """The indices of a gate in its panel."""
        return span(gate * self.layout.lanes, self.layout.lanes)

    def input(self, row: int, gate: int) -> Expr:
        """x·W + Wb of one gate."""
        column = self.panel * self.layout.panel + gate * self.layout.lanes
        position = span(column, self.layout.lanes)
        row_in_batch = self.rows.first + self.first + row
        return self.rows.buffers.product[self.product_steps[row], row_in_batch, position]

    def recurrent_bias(self, gate: int) -> Expr:
        """Rb of one gate."""
        return self.rows.buffers.bias[self.panel, 0, self.lanes(gate)]

    def peephole(self, index: int, cell: Expr) -> Expr:
        """P∘c of gate i (0), o (1) or f (2)."""
        weight = self.rows.buffers.peepholes
        if weight is None:
            return constant(0, cell)
        return weight[self.panel, 0, self.lanes(index)] * cell

    def gate(self, index: int, value: Expr) -> Expr:
        """The activation f (0) or g (1) of a clipped value."""
        clip = self.layer.clip
        return self.activate(index, value if clip is None else clamp(keep(value), -clip, clip))

    def activate(self, index: int, value: Expr) -> Expr:
        """The activation f (0), g (1) or h (2) of a value."""
        return apply(self.rows.activations[index], value)

    def hidden(self, row: int, units: Expr) -> Expr:
        """h before the time step."""
        return self.rows.hidden[self.step.before, self.first + row, units]

    def add_products(
        self, sums: Sequence[Mapping[int, Expr]], state: Callable[[int, Expr], Expr]
    ) -> None:
        """Emits the addition of `state·R` to the sums, which are given by row and gate."""
        with ib.serial(self.layer.hidden) as position:
            unit = bound(_in_order(position, self.layer.hidden, self.is_backward))
            for row, gates in enumerate(sums):
                for gate, total in gates.items():
                    weight = self.rows.buffers.weight[self.panel, unit, self.lanes(gate)]
                    add_to(total, state(row, unit) * weight)

    def gates(
        self, gates: Sequence[int], state: Callable[[int, Expr], Expr]
    ) -> list[dict[int, Expr]]:
        """x·W + Wb + state·R + Rb, by row and gate."""
        sums = [
            {g: keep(self.input(row, g) + self.recurrent_bias(g)) for g in gates}
            for row in range(self.count)
        ]
        self.add_products(sums, state)
        return sums

    def hold(self, row: int, value: Expr, before: Expr) -> Expr:
        """The new value of a state, or the one before for a row that has ended."""
        if not self.rows.recurrence.lengths:
            return value
        is_within = tirx.Broadcast(self.step.is_within(self.first + row), self.layout.lanes)
        return tirx.Select(is_within, value, before)

    def store(self, target: Any, row: int, value: Expr) -> None:
        """Emits the store of one row's value for the units of the block."""
        ib.buffer_store(target, value, [self.first + row, self.units])

    def store_hidden(self, row: int, value: Expr) -> None:
        """Emits the store of h after the time step."""
        value = self.hold(row, value, self.hidden(row, self.units))
        ib.buffer_store(self.rows.hidden, value, [self.step.after, self.first + row, self.units])


def _in_order(position: Expr, count: int, is_backward: Expr) -> Expr:
    """The index of the element at a position in the order in which `count` elements are read."""
    return is_backward * (count - 1) + position * (1 - 2 * is_backward)


def emit_time_step(step: TimeStep) -> None:
    """Emits the update of the state of `step.rows`."""
    layer = step.rows.recurrence.layer
    if layer.op == "LSTM":
        _lstm(step)
    elif layer.op == "RNN":
        _rnn(step)
    elif layer.linear_before_reset:
        _gru_reset_after(step)
    else:
        _gru(step)


def _lstm(step: TimeStep) -> None:
    """LSTM: c' = f∘c + i∘g(c̃) and h' = o∘h(c'); the gates in the order i, o, f, c̃."""
    rows = step.rows
    for tile in step.row_tiles(step.reads_backward):
        for row, sums in enumerate(tile.gates(range(4), tile.hidden)):
            before = keep(rows.cell[tile.first + row, tile.units])
            inward = tile.gate(0, sums[0] + tile.peephole(0, before))
            if tile.layer.input_forget:
                forget = constant(1, inward) - inward
            else:
                forget = tile.gate(0, sums[2] + tile.peephole(2, before))
            cell = keep(forget * before + inward * tile.gate(1, sums[3]))
            outward = tile.gate(0, sums[1] + tile.peephole(1, cell))
            tile.store(rows.cell, row, tile.hold(row, cell, before))
            tile.store_hidden(row, outward * tile.activate(2, cell))


def _gru(step: TimeStep) -> None:
    """GRU: h' = (1 - z)∘g(x·W + (r∘h)·R) + z∘h; the gates in the order z, r, h̃."""
    rows = step.rows
    for tile in step.row_tiles():
        for row, sums in enumerate(tile.gates((0, 1), tile.hidden)):
            tile.store(rows.update, row, tile.gate(0, sums[0]))
            tile.store(rows.reset, row, tile.gate(0, sums[1]) * tile.hidden(row, tile.units))
    for tile in step.row_tiles():

        def reset(row: int, unit: Expr, tile: RowTile = tile) -> Expr:
            return rows.reset[tile.first + row, unit]

        for row, sums in enumerate(tile.gates((2,), reset)):
            update = keep(rows.update[tile.first + row, tile.units])
            _mix(tile, row, update, tile.gate(1, sums[2]))


def _gru_reset_after(step: TimeStep) -> None:
    """GRU with linear_before_reset: h̃ = g(x·W + Wb + r∘(h·R + Rb))."""
    for tile in step.row_tiles(step.reads_backward):
        sums = [
            {
                0: keep(tile.input(row, 0) + tile.recurrent_bias(0)),
                1: keep(tile.input(row, 1) + tile.recurrent_bias(1)),
                2: keep(tile.recurrent_bias(2)),
            }
            for row in range(tile.count)
        ]
        tile.add_products(sums, tile.hidden)
        for row, (update, reset, hidden) in enumerate(gates.values() for gates in sums):
            update, reset = tile.gate(0, update), tile.gate(0, reset)
            candidate = tile.gate(1, tile.input(row, 2) + reset * hidden)
            _mix(tile, row, update, candidate)


def _mix(tile: RowTile, row: int, update: Expr, candidate: Expr) -> None:
    """h' = (1 - z)∘h̃ + z∘h."""
    kept = update * tile.hidden(row, tile.units)
    tile.store_hidden(row, (constant(1, update) - update) * candidate + kept)


def _rnn(step: TimeStep) -> None:
    """RNN: h' = f(x·W + h·R)."""
    for tile in step.row_tiles(step.reads_backward):
        for row, sums in enumerate(tile.gates((0,), tile.hidden)):
            tile.store_hidden(row, tile.gate(0, sums[0]))
