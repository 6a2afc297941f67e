"""The activations of LSTM, GRU and RNN on vectors.

In float32, tanh and the sigmoid are a rational polynomial: a call of the C library's tanhf per
element would cost more than the recurrence itself. All other types and functions use TVM's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import tirx
from tvm.tirx.script import builder as ib

from .recurrent_attributes import Activation
from .recurrent_vectors import Expr, clamp, constant, keep

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
    """activation(x), kept. Emits statements."""
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
    """log(1 + e^x), written so that no e^x overflows."""
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
