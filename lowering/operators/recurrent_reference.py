"""LSTM, GRU and RNN in plain Relax: the product of all inputs, and a loop over the time steps.

Any Relax pipeline runs it. `looplift.transform.LowerRecurrent` replaces it by kernels. The
equations are those of the ONNX operator specification of LSTM, GRU and RNN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from ..loops.repeat import emit_counted
from ..small_kernels import slice_at, writer
from ..values import Value, as_int
from .recurrent_attributes import Activation, Direction, Layer


@dataclass(frozen=True)
class Operands:
    """The inputs of a layer, of the type it is computed in, the batch as the second axis."""

    x: Value
    """[time steps, batch, input]"""
    w: Value
    """[directions, gates·hidden, input]"""
    r: Value
    """[directions, gates·hidden, hidden]"""
    b: Value | None
    """[directions, 2·gates·hidden]"""
    lengths: Value | None
    """[batch], int32"""
    states: Sequence[Value]
    """h and, of an LSTM, c: [directions, batch, hidden]"""
    p: Value | None
    """[directions, 3·hidden]"""


def emit_reference(bb: Any, layer: Layer, given: Operands) -> list[Value]:
    """Emits a layer; returns Y [time steps, directions, batch, hidden] and the final states."""
    found = [_emit_direction(bb, layer, number, given) for number in range(len(layer.directions))]
    axes = [1] + [0] * len(given.states)
    results = []
    for slot, axis in enumerate(axes):
        parts = [bb.emit(relax.op.expand_dims(values[slot], axis)) for values in found]
        results.append(parts[0] if len(parts) == 1 else bb.emit(relax.op.concat(parts, axis)))
    return results


def _emit_direction(bb: Any, layer: Layer, number: int, given: Operands) -> list[Value]:
    """Y [time steps, batch, hidden] and the final states [batch, hidden] of one direction."""
    direction = layer.directions[number]
    dtype = str(given.x.ty.dtype)
    steps, batch = list(given.x.ty.shape.values)[:2]
    w, r = (_transposed(bb, _part(bb, each, number)) for each in (given.w, given.r))
    products = bb.emit(relax.op.matmul(given.x, w))
    captured: dict[Any, Any] = {"r": r}
    if given.b is not None:
        halves = bb.emit(relax.op.split(_part(bb, given.b, number), 2, axis=0))
        input_bias, captured["rb"] = (bb.emit(relax.TupleGetItem(halves, i)) for i in range(2))
        products = bb.emit(relax.op.add(products, input_bias))
    captured["products"] = products
    if given.lengths is not None:
        captured["lengths"] = given.lengths
    if given.p is not None:
        captured["p"] = _part(bb, given.p, number)
    shape = relax.ShapeExpr([steps, batch, tirx.IntImm("int64", layer.hidden)])
    names = ("h", "c")[: len(given.states)]
    initial = {
        name: _part(bb, state, number) for name, state in zip(names, given.states, strict=True)
    }
    initial["y"] = bb.emit(relax.op.builtin.alloc_tensor(shape, dtype, 0))

    def emit(carried: Mapping[str, Any], closure: Any, iteration: Any) -> dict[str, Any]:
        cell = _Cell(bb, layer, direction, closure.values, carried, iteration)
        return cell.updated()

    name = f"{layer.op.lower()}_time_steps"
    final = emit_counted(bb, name, steps, captured, initial, emit)
    y = bb.match_cast(final["y"], relax.TensorType(shape, dtype))
    state_type = relax.TensorType([batch, layer.hidden], dtype)
    states = [bb.match_cast(final[name], state_type) for name in names]
    if given.lengths is not None:
        runs = bb.emit(relax.op.greater(given.lengths, relax.const(0, "int32")))
        states = [_where(bb, _column(bb, runs), state, dtype) for state in states]
    return [y, *states]


class _Cell:
    """One time step of all rows of a batch."""

    def __init__(
        self,
        bb: Any,
        layer: Layer,
        direction: Direction,
        values: Mapping[str, Value],
        carried: Mapping[str, Value],
        iteration: Value,
    ) -> None:
        self._bb, self._layer, self._direction = bb, layer, direction
        self._values, self._iteration = values, iteration
        products = values["products"]
        self._steps, self._batch = list(products.ty.shape.values)[:2]
        self._dtype = str(products.ty.dtype)
        self._state_type = relax.TensorType([self._batch, layer.hidden], self._dtype)
        self._before = {
            name: bb.match_cast(carried[name], self._state_type)
            for name in ("h", "c")
            if name in carried
        }
        self._y = carried["y"]
        arguments = [products, iteration, 0, direction.reverse]
        self._inputs = self._split(bb.emit(bb.call_te(slice_at, *arguments)))

    def updated(self) -> dict[str, Value]:
        """The carried values after the time step."""
        after = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self._layer.op]()
        y = after["h"]
        if "lengths" in self._values:
            is_inside = self._bb.call_te(
                _within, self._iteration, self._values["lengths"], self._steps,
                self._direction.reverse,
            )  # fmt: skip
            mask = self._bb.emit(is_inside)
            y = _where(self._bb, mask, y, self._dtype)
            after = {
                name: self._bb.emit(relax.op.where(mask, value, self._before[name]))
                for name, value in after.items()
            }
        return {**after, "y": self._written(y)}

    def _written(self, row: Value) -> Value:
        dims = [as_int(self._batch), self._layer.hidden]
        kernel = writer(dims, self._dtype, 0, self._direction.reverse)
        function = self._bb.add_func(kernel, "write_slice")
        shape = [self._steps, self._batch, self._layer.hidden]
        whole = relax.TensorType(shape, self._dtype)
        args = [self._bb.match_cast(self._y, whole), row, self._iteration]
        return self._bb.emit(relax.op.call_tir_inplace(function, args, [0], whole))

    # --- update equations ---

    def _lstm(self) -> dict[str, Value]:
        c = self._before["c"]
        i, o, f, g = self._sums(self._before["h"], range(4))
        i = self._gate(0, self._with_peephole(i, 0, c))
        if self._layer.input_forget:
            f = self._bb.emit(relax.op.subtract(relax.const(1, self._dtype), i))
        else:
            f = self._gate(0, self._with_peephole(f, 2, c))
        kept = self._bb.emit(relax.op.multiply(f, c))
        new = self._bb.emit(relax.op.multiply(i, self._gate(1, g)))
        c = self._bb.emit(relax.op.add(kept, new))
        o = self._gate(0, self._with_peephole(o, 1, c))
        h = self._bb.emit(relax.op.multiply(o, self._activated(2, c)))
        return {"h": h, "c": c}

    def _gru(self) -> dict[str, Value]:
        bb, h = self._bb, self._before["h"]
        z, r = (self._gate(0, each) for each in self._sums(h, range(2)))
        if self._layer.linear_before_reset:
            product = bb.emit(relax.op.multiply(r, self._recurrent(h, [2])[0]))
            candidate = bb.emit(relax.op.add(self._inputs[2], product))
        else:
            candidate = self._sums(bb.emit(relax.op.multiply(r, h)), [2])[0]
        new = self._gate(1, candidate)
        rest = bb.emit(relax.op.subtract(relax.const(1, self._dtype), z))
        parts = [bb.emit(relax.op.multiply(*pair)) for pair in ((rest, new), (z, h))]
        return {"h": bb.emit(relax.op.add(*parts))}

    def _rnn(self) -> dict[str, Value]:
        return {"h": self._gate(0, self._sums(self._before["h"], [0])[0])}

    def _sums(self, state: Value, gates: Sequence[int]) -> list[Value]:
        """x·W + Wb + state·R + Rb of some gates."""
        recurrent = self._recurrent(state, gates)
        return [
            self._bb.emit(relax.op.add(self._inputs[gate], product))
            for gate, product in zip(gates, recurrent, strict=True)
        ]

    def _recurrent(self, state: Value, gates: Sequence[int]) -> list[Value]:
        """state·R + Rb of some gates."""
        product = self._bb.emit(relax.op.matmul(state, self._values["r"]))
        if "rb" in self._values:
            product = self._bb.emit(relax.op.add(product, self._values["rb"]))
        parts = self._split(product)
        return [parts[gate] for gate in gates]

    def _split(self, value: Value) -> list[Value]:
        """The parts [batch, hidden] of all gates."""
        count = self._layer.gates
        if count == 1:
            return [value]
        parts = self._bb.emit(relax.op.split(value, count, axis=1))
        return [self._bb.emit(relax.TupleGetItem(parts, gate)) for gate in range(count)]

    def _with_peephole(self, value: Value, index: int, c: Value) -> Value:
        """P∘c of gate i (0), o (1) or f (2) added."""
        if "p" not in self._values:
            return value
        first = index * self._layer.hidden
        part = relax.op.strided_slice(
            self._values["p"], axes=[0], begin=[first], end=[first + self._layer.hidden]
        )
        product = self._bb.emit(relax.op.multiply(self._bb.emit(part), c))
        return self._bb.emit(relax.op.add(value, product))

    def _gate(self, index: int, value: Value) -> Value:
        """The activation f (0) or g (1) of a clipped value."""
        clip = self._layer.clip
        if clip is not None:
            low, high = (relax.const(bound, self._dtype) for bound in (-clip, clip))
            is_low = self._bb.emit(relax.op.less(value, low))
            is_high = self._bb.emit(relax.op.greater(value, high))
            value = self._bb.emit(relax.op.where(is_high, high, value))
            value = self._bb.emit(relax.op.where(is_low, low, value))
        return self._activated(index, value)

    def _activated(self, index: int, value: Value) -> Value:
        activation = self._direction.activations[index]
        return _FUNCTIONS[activation.name](_Activated(self._bb, activation, value))


@dataclass(frozen=True)
class _Activated:
    """An activation and its operand."""

    bb: Any
    activation: Activation
    x: Value

    def constant(self, number: float) -> Value:
        return relax.const(number, self.x.ty.dtype)

    @property
    def alpha(self) -> Value:
        return self.constant(self.activation.alpha)

    @property
    def beta(self) -> Value:
        return self.constant(self.activation.beta)

    def affine(self) -> Value:
        scaled = self.bb.emit(relax.op.multiply(self.alpha, self.x))
        return self.bb.emit(relax.op.add(scaled, self.beta))

    def choose(self, is_first: Any, first: Value, second: Value) -> Value:
        return self.bb.emit(relax.op.where(self.bb.emit(is_first), first, second))

    def elu(self) -> Value:
        grown = self.bb.emit(
            relax.op.subtract(self.bb.emit(relax.op.exp(self.x)), self.constant(1))
        )
        negative = self.bb.emit(relax.op.multiply(self.alpha, grown))
        return self.choose(relax.op.less(self.x, self.constant(0)), negative, self.x)

    def hard_sigmoid(self) -> Value:
        value = self.affine()
        value = self.choose(relax.op.greater(value, self.constant(1)), self.constant(1), value)
        return self.choose(relax.op.less(value, self.constant(0)), self.constant(0), value)

    def leaky_relu(self) -> Value:
        scaled = self.bb.emit(relax.op.multiply(self.alpha, self.x))
        return self.choose(relax.op.less(self.x, self.constant(0)), scaled, self.x)

    def scaled_tanh(self) -> Value:
        inner = self.bb.emit(relax.op.multiply(self.beta, self.x))
        return self.bb.emit(relax.op.multiply(self.alpha, self.bb.emit(relax.op.tanh(inner))))

    def softplus(self) -> Value:
        """log(1 + e^x), in a form in which e^x does not overflow."""
        magnitude = self.bb.emit(relax.op.abs(self.x))
        small = self.bb.emit(relax.op.exp(self.bb.emit(relax.op.negative(magnitude))))
        rest = self.bb.emit(relax.op.log(self.bb.emit(relax.op.add(self.constant(1), small))))
        positive = self.choose(relax.op.less(self.x, self.constant(0)), self.constant(0), self.x)
        return self.bb.emit(relax.op.add(positive, rest))

    def softsign(self) -> Value:
        size = self.bb.emit(relax.op.add(self.constant(1), self.bb.emit(relax.op.abs(self.x))))
        return self.bb.emit(relax.op.divide(self.x, size))

    def thresholded_relu(self) -> Value:
        is_small = relax.op.less(self.x, self.alpha)
        return self.choose(is_small, self.constant(0), self.x)


_FUNCTIONS: Mapping[str, Callable[[_Activated], Value]] = {
    "affine": _Activated.affine,
    "elu": _Activated.elu,
    "hardsigmoid": _Activated.hard_sigmoid,
    "leakyrelu": _Activated.leaky_relu,
    "relu": lambda a: a.choose(relax.op.less(a.x, a.constant(0)), a.constant(0), a.x),
    "scaledtanh": _Activated.scaled_tanh,
    "sigmoid": lambda a: a.bb.emit(relax.op.sigmoid(a.x)),
    "softplus": _Activated.softplus,
    "softsign": _Activated.softsign,
    "tanh": lambda a: a.bb.emit(relax.op.tanh(a.x)),
    "thresholdedrelu": _Activated.thresholded_relu,
}


def _within(number: Any, lengths: Any, steps: Any, reverse: bool) -> Any:
    """Whether each row of the batch has the time step that an iteration computes: [batch, 1]."""
    time = steps - 1 - number() if reverse else number()
    shape = (lengths.shape[0], tirx.IntImm("int64", 1))
    return te.compute(
        shape, lambda row, _: time < tirx.Cast("int64", lengths(row)), name="is_within"
    )


def _part(bb: Any, value: Value, number: int) -> Value:
    """The part of one direction, without the axis of the directions."""
    part = relax.op.strided_slice(value, axes=[0], begin=[number], end=[number + 1])
    return bb.emit(relax.op.squeeze(bb.emit(part), [0]))


def _transposed(bb: Any, value: Value) -> Value:
    return bb.emit(relax.op.permute_dims(value, [1, 0]))


def _column(bb: Any, value: Value) -> Value:
    return bb.emit(relax.op.expand_dims(value, 1))


def _where(bb: Any, mask: Value, value: Value, dtype: str) -> Value:
    """The value where a mask holds, else zero."""
    return bb.emit(relax.op.where(mask, value, relax.const(0, dtype)))
