"""Functions of float32 as plain arithmetic: exp, log, log1p, erf, tanh, sigmoid, sin, cos, asin,
acos and atan.

LLVM knows `exp` on a vector, but calls the C library for each element. These are the same
functions in plain arithmetic, for any number of lanes. Overflow, underflow, NaN and infinities
come out as in the C library. Powers with small constant exponents become products. Kernels for GPUs
get some of them, where CUDA's fast functions are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, reduce
from operator import mul
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from ...processor import has_features
from .map_kernels import map_bodies, map_kernels

Expr = Any
"""A tirx expression."""

# exp(x) = 2^n · exp(r) with n = round(x / ln 2) and |r| <= ln 2 / 2. ln 2 is split so that n · _LN2
# is exact (Cody and Waite, Software Manual for the Elementary Functions, 1980). exp(r) is a minimax
# polynomial that is off by a twentieth of the last bit, 3.1e-9.
_LN2 = 0.693359375
_LN2_REST = math.log(2) - _LN2
_EXP_POLYNOMIAL = (
    1.0,
    1.0,
    0.4999999343206681,
    0.16666520398487122,
    0.041668390795926796,
    0.008368745160530409,
    0.001381453959089663,
)
_LEAST, _MOST = -104.0, 89.0
"""Beyond these exp is 0 or infinite in float32."""
_ROUND = 1.5 * 2**23
"""Added to a small number, it leaves the nearest integer in the lowest bits."""
_EXPONENT_BIAS = 127
_EXPONENT_BITS = 23


_PRODUCTS = (2.0, 3.0, 4.0)
"""Exponents of powers that are written as products."""
_MOST_NAMED = 8
"""Named values in an argument up to which a function of it is written as arithmetic."""
FAST_MATH = "looplift.fast_math"
"""The attribute of kernels whose functions the pipeline for kernels writes as arithmetic."""
_PLACEHOLDER = "looplift.math."
"""Precedes the name of a function in an external call that stands for its arithmetic."""


def outline_functions(module: tvm.IRModule) -> tvm.IRModule:
    """The module with external calls in place of functions in its kernels marked `FAST_MATH`.

    TVM's passes take long over arithmetic with nested named values, and `LowerIntrin` would lower
    the functions in its own way. `expand_functions` replaces the external calls.
    """

    def outlined(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        return _with_outlined_functions(kernel) if FAST_MATH in (kernel.attrs or {}) else kernel

    return map_kernels(module, outlined)


def expand_functions(module: tvm.IRModule) -> tvm.IRModule:
    """The module with arithmetic in place of the external calls of `outline_functions`."""
    return map_kernels(module, _with_expanded_functions)


def with_fast_math(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with the functions of float32 of this module in plain arithmetic, and products in
    place of powers.

    Not those of a function of a function: TVM's code generator puts named values in place of their
    names, and takes 20 s over three sigmoids. Rules give each argument a buffer of its own.
    """
    return _with_expanded_functions(_with_outlined_functions(kernel))


def _with_outlined_functions(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    def replace(call: Any) -> Any:
        if getattr(call.op, "name", "") == "tirx.pow":
            return _power(call)
        if not is_fast(call):
            return call
        inner: list[int] = []

        def note(call: Any) -> None:
            function = _outlined_function(call)
            if function is not None:
                inner.append(_named_values(function))

        (argument,) = call.args
        tvm_ffi.structural_walk(argument, (ir.Call, note))
        if sum(inner) > _MOST_NAMED:
            return call
        return tirx.call_pure_extern(str(call.ty.dtype), _PLACEHOLDER + call.op.name, argument)

    return kernel.with_body(
        tvm_ffi.structural_map(kernel.body, (ir.Call, replace), order="post"),
    )


def _with_expanded_functions(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    def replace(call: Any) -> Any:
        function = _outlined_function(call)
        return call if function is None else function(_without_hidden_constant(call.args[1]))

    body = tvm_ffi.structural_map(kernel.body, (ir.Call, replace), order="post")
    if body.same_as(kernel.body):
        return kernel
    target = (kernel.attrs or {}).get("target")
    with target if target is not None else nullcontext():
        return kernel.with_body(_with_scales(body))


def _without_hidden_constant(argument: Expr) -> Expr:
    """A constant in place of an expression such as x - x, which TVM's simplifier makes one.

    Otherwise it gets a name, and TVM's code generator refuses to define a constant twice.
    """
    if isinstance(argument, (ir.TensorLoad, ir.Var)):
        return argument
    simple = sym.Analyzer().simplify(argument)
    return simple if isinstance(_scalar(simple), tirx.FloatImm) else argument


def _scalar(value: Expr) -> Expr:
    """What all lanes of a broadcast are; the value itself if it is none."""
    return value.value if isinstance(value, tirx.Broadcast) else value


def _outlined_function(call: Any) -> Callable[[Expr], Expr] | None:
    """The function that an external call stands for; None for another call."""
    if getattr(call.op, "name", "") != "tirx.call_pure_extern":
        return None
    name = str(call.args[0].value)
    return _FUNCTIONS[name.removeprefix(_PLACEHOLDER)] if name.startswith(_PLACEHOLDER) else None


@cache
def _named_values(function: Callable[[Expr], Expr]) -> int:
    """The number of named values in the arithmetic of a function."""
    found: list[Any] = []
    tvm_ffi.structural_walk(function(tirx.Var("x", "float32")), (tirx.Let, found.append))
    return len(found)


def is_fast(call: Any) -> bool:
    """Whether a call is one of those that are written in arithmetic."""
    known = getattr(call.op, "name", "") in _FUNCTIONS
    return known and str(call.ty.dtype.with_lanes(1)) == "float32"


def compute_in_float32(module: tvm.IRModule) -> tvm.IRModule:
    """The module whose kernels compute the functions of this file in float32 where their type is
    float16 or bfloat16: TVM would call a function for each element.
    """

    def widened(call: Any) -> Any:
        dtype = str(call.ty.dtype) if isinstance(call.ty, ir.PrimType) else ""
        if dtype not in ("float16", "bfloat16") or getattr(call.op, "name", "") not in _FUNCTIONS:
            return call
        (argument,) = call.args
        wide = ir.Call(call.op, [argument.astype("float32")], call.attrs, ret_ty="float32")
        return wide.astype(dtype)

    return map_bodies(module, (ir.Call, widened))


def _power(call: Any) -> Expr:
    """A product in place of a power with a small constant exponent."""
    x, exponent = call.args
    exponent = _scalar(exponent)
    number = exponent.value if isinstance(exponent, tirx.FloatImm) else None
    if number not in _PRODUCTS:
        return call
    return _named(x, lambda x: reduce(mul, [x] * int(number)))


def with_exact_functions(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with cos, pow and sin of float32 in arithmetic that is right for all arguments.

    TVM compiles them to CUDA's fast functions otherwise: the power of a negative number is NaN, and
    the sine of a large one is wrong.
    """

    def replace(call: Any) -> Any:
        name = getattr(call.op, "name", "")
        known = name in ("tirx.cos", "tirx.pow", "tirx.sin")
        if not known or str(call.ty.dtype.with_lanes(1)) != "float32":
            return call
        if name != "tirx.pow":
            return _FUNCTIONS[name](call.args[0])
        product = _power(call)
        return _signed_power(*call.args) if product.same_as(call) else product

    return kernel.with_body(
        tvm_ffi.structural_map(kernel.body, (ir.Call, replace), order="post"),
    )


def _signed_power(x: Expr, exponent: Expr) -> Expr:
    """A power in terms of one whose base is not negative."""
    return _named(
        x,
        lambda x: _named(
            exponent,
            lambda exponent: _named(
                tirx.pow(tirx.abs(x), exponent),
                lambda power: _with_sign(x, exponent, power),
            ),
        ),
    )


def _with_sign(x: Expr, exponent: Expr, power: Expr) -> Expr:
    """The power of x where `power` is that of its magnitude."""
    half = exponent * _constant(0.5, exponent)
    is_integer = tirx.EQ(tirx.floor(exponent), exponent)
    is_odd = tirx.all(is_integer, tirx.NE(tirx.floor(half), half))
    has_sign = _reinterpreted(x, "int32") < 0  # of -0.0, too
    is_negative = tirx.all(x < _constant(0, x), x > _constant(-math.inf, x))
    is_undefined = tirx.all(is_negative, tirx.Not(is_integer))
    of_negative = _select(is_undefined, _constant(math.nan, x), power)
    return _select(tirx.all(has_sign, is_odd), -power, of_negative)


def _named(value: Expr, use: Callable[[Expr], Expr]) -> Expr:
    """use(value), with the value computed once; a constant needs no name."""
    if isinstance(_scalar(value), (tirx.FloatImm, tirx.IntImm)):
        return use(value)
    variable = tirx.Var("value", value.ty)
    return tirx.Let(variable, value, use(variable))


def _select(condition: Expr, a: Expr, b: Expr) -> Expr:
    """a where the condition holds, otherwise b."""
    known = _scalar(condition)
    if isinstance(known, tirx.IntImm):
        return a if known.value else b
    return tirx.Select(condition, a, b)


def _constant(number: float, like: Expr) -> Expr:
    return tirx.const(number, like.ty.dtype)


def _cast(x: Expr, dtype: str) -> Expr:
    """The value, or vector of values, in another type."""
    lanes = int(x.ty.dtype.lanes)
    return tirx.Cast(dtype if lanes == 1 else f"{dtype}x{lanes}", x)


def _reinterpreted(x: Expr, dtype: str) -> Expr:
    """The bits of the value, or vector of values, in another type of the same size."""
    lanes = int(x.ty.dtype.lanes)
    return tirx.reinterpret(dtype if lanes == 1 else f"{dtype}x{lanes}", x)


def _integer(number: int, like: Expr) -> Expr:
    """The integer in each lane of `like`: in its type if that is an integer, otherwise int64."""
    dtype, lanes = like.ty.dtype.with_lanes(1), int(like.ty.dtype.lanes)
    value = tirx.const(number, str(dtype) if "int" in str(dtype) else "int64")
    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def _clamp(x: Expr, low: float, high: float) -> Expr:
    """x bounded to [low, high]; NaN stays NaN, unlike with min and max."""
    low_, high_ = _constant(low, x), _constant(high, x)
    # LLVM makes one instruction of each choice, but not if both compare x.
    below = _select(x > high_, high_, x)
    return _named(below, lambda below: _select(below < low_, low_, below))


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    total = _constant(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + _constant(coefficient, x)
    return total


def _exp(x: Expr) -> Expr:
    return _named(x, lambda x: _named(_clamp(x, _LEAST, _MOST), _bounded_exp))


def _bounded_exp(x: Expr) -> Expr:
    rounded = x * _constant(1 / math.log(2), x) + _constant(_ROUND, x)

    def with_rounded(rounded: Expr) -> Expr:
        number = rounded - _constant(_ROUND, x)
        rest = x - number * _constant(_LN2, x) - number * _constant(_LN2_REST, x)
        fraction = _named(rest, lambda rest: _polynomial(_EXP_POLYNOMIAL, rest))
        return tirx.call_pure_extern(str(x.ty.dtype), _SCALE, fraction, number)

    return _named(rounded, with_rounded)


_SCALE = "looplift.scale"
"""The external call that stands for x · 2^n, of floats x and n, where n is a whole number."""
_SCALE_INSTRUCTIONS = {16: "512", 8: "256", 4: "128"}
"""The size of the registers of AVX-512's instruction for it, by lanes."""


def _with_scales(code: Any) -> Any:
    """The code with the calls of `_SCALE` as the processor can compute them."""

    def replace(call: Any) -> Any:
        is_scale = getattr(call.op, "name", "") == "tirx.call_pure_extern"
        if not is_scale or str(call.args[0].value) != _SCALE:
            return call
        fraction, number = call.args[1:]
        size = _SCALE_INSTRUCTIONS.get(int(call.ty.dtype.lanes))
        if size is not None and has_features("avx512f", "avx512vl"):
            return _scaled_by_instruction(fraction, number, size)
        return _scaled(fraction, number)

    return tvm_ffi.structural_map(code, (ir.Call, replace), order="post")


def _scaled_by_instruction(fraction: Expr, number: Expr, size: str) -> Expr:
    every_lane = tirx.const(-1, "int16" if size == "512" else "int8")
    operands = [fraction, number, _constant(0, fraction), every_lane]
    if size == "512":
        operands.append(tirx.const(4, "int32"))  # It rounds as the processor is set to.
    return tirx.call_llvm_pure_intrin(
        str(fraction.ty.dtype), f"llvm.x86.avx512.mask.scalef.ps.{size}", *operands
    )


def _scaled(fraction: Expr, number: Expr) -> Expr:
    # In two steps, because neither 2^128 nor a denormal 2^n can be written directly.
    # By its bits: the cast of a NaN is undefined.
    rounded = number + _constant(_ROUND, number)
    bits = _reinterpreted(rounded, "int32") - _reinterpreted(_constant(_ROUND, number), "int32")
    return _named(
        bits,
        lambda n: fraction * _two_to(n >> 1) * _two_to(n - (n >> 1)),
    )


def _two_to(exponent: Expr) -> Expr:
    return _reinterpreted(
        (exponent + _integer(_EXPONENT_BIAS, exponent)) << _integer(_EXPONENT_BITS, exponent),
        "float32",
    )


# log(x) = e · ln 2 + log(1 + f) with 1 + f between √½ and √2, and log(1 + f) = f - f² / 2 + f³ · P
# with the polynomial P(f) of Cephes (Moshier, Methods and Programs for Mathematical Functions).
_LOG_POLYNOMIAL = (
    3.3333331174e-1,
    -2.4999993993e-1,
    2.0000714765e-1,
    -1.6668057665e-1,
    1.4249322787e-1,
    -1.2420140846e-1,
    1.1676998740e-1,
    -1.1514610310e-1,
    7.0376836292e-2,
)
_ROOT_OF_HALF_BITS = 0x3F3504F3
_LEAST_NORMAL = 2.0**-126
_LARGEST = 3.4028234663852886e38


def _log(x: Expr) -> Expr:
    return _named(x, lambda x: _with_special_values(x, _log_of_positive(x)))


def _with_special_values(x: Expr, logarithm: Expr) -> Expr:
    """`logarithm` for positive finite x; ∞, -∞ for 0, and NaN for negative numbers and NaN."""
    zero = _constant(0, x)
    of_others = _select(tirx.EQ(x, zero), _constant(-math.inf, x), _constant(math.nan, x))
    of_positive = _select(x > _constant(_LARGEST, x), x, logarithm)
    return _select(x > zero, of_positive, of_others)


def _log_of_positive(x: Expr) -> Expr:
    is_denormal = x < _constant(_LEAST_NORMAL, x)
    scale = _select(is_denormal, _constant(2**_EXPONENT_BITS, x), _constant(1, x))
    shift = _select(is_denormal, _constant(_EXPONENT_BITS, x), _constant(0, x))

    def of_normal(x: Expr) -> Expr:
        bits = _reinterpreted(x, "int32")
        exponent = (bits - _ROOT_OF_HALF_BITS) >> _EXPONENT_BITS
        return _named(exponent, lambda exponent: of_exponent(bits, exponent))

    def of_exponent(bits: Expr, exponent: Expr) -> Expr:
        fraction = _reinterpreted(bits - (exponent << _integer(_EXPONENT_BITS, bits)), "float32")
        power = _cast(exponent, "float32") - shift
        return _named(fraction - _constant(1, x), lambda f: of_parts(power, f))

    def of_parts(power: Expr, f: Expr) -> Expr:
        square = f * f
        rest = f * square * _polynomial(_LOG_POLYNOMIAL, f) - square * _constant(0.5, f)
        return f + (rest + power * _constant(_LN2_REST, f)) + power * _constant(_LN2, f)

    return _named(x * scale, of_normal)


def _log1p(x: Expr) -> Expr:
    """log(1 + x), as x · (log(u) / (u - 1)) with u = 1 + x, which keeps the digits of a small x.

    u - 1 is exact for small x, and log(u) / (u - 1) changes little where u is rounded (Kahan, see
    Goldberg, What Every Computer Scientist Should Know About Floating-Point Arithmetic, 1991,
    theorem 4, for x from 0 to 3/4); for larger x the rounding of u hardly matters.
    """
    one = _constant(1, x)

    def of_sum(x: Expr, total: Expr) -> Expr:
        ratio = x * (_log(total) / (total - one))
        is_itself = tirx.Or(tirx.EQ(total, one), x > _constant(_LARGEST, x))
        return _select(is_itself, x, ratio)

    return _named(x, lambda x: _named(x + one, lambda total: of_sum(x, total)))


def _sigmoid(x: Expr) -> Expr:
    one = _constant(1, x)
    return one / (one + _exp(-x))


# tanh(x) = x + x · x² · P(x²) below the limit, with a minimax polynomial that is off by less than
# 5e-9 of the result, and 1 - 2 / (e^2x + 1) above. The rational function that recurrent cells use
# is twice as fast, but its errors reach 5 units in the last place. The flows of VITS amplify them
# until its output differs by 1.3e-4.
_TANH_POLYNOMIAL_LIMIT = 0.625
_TANH_POLYNOMIAL = (-0.33333282, 0.13331442, -0.05373971, 0.02063906, -0.00570496)


def _tanh(x: Expr) -> Expr:
    def near_zero(x: Expr) -> Expr:
        return _named(x * x, lambda square: x + x * square * _polynomial(_TANH_POLYNOMIAL, square))

    def of_magnitude(x: Expr, magnitude: Expr) -> Expr:
        one, two = _constant(1, x), _constant(2, x)
        far = one - two / (_exp(magnitude * two) + one)
        signed = _named(far, lambda far: _select(x < _constant(0, x), -far, far))
        return _select(magnitude < _constant(_TANH_POLYNOMIAL_LIMIT, x), near_zero(x), signed)

    def of_named(x: Expr) -> Expr:
        magnitude = _select(x < _constant(0, x), -x, x)
        return _named(magnitude, lambda magnitude: of_magnitude(x, magnitude))

    return _named(x, of_named)


# erf(x) = x · P(x²) / Q(x²) for |x| <= 4, where float32 cannot tell it from 1: the coefficients of
# Eigen (unsupported/Eigen/src/SpecialFunctions, generic_fast_erf_float), off by 4e-7 at most.
_ERF_LIMIT = 4.0
_ERF_NUMERATOR = (
    -1.60960333262415e-02,
    -2.95459980854025e-03,
    -7.34990630326855e-04,
    -5.69250639462346e-05,
    -2.10102402082508e-06,
    2.77068142495902e-08,
    -2.72614225801306e-10,
)
_ERF_DENOMINATOR = (
    -1.42647390514189e-02,
    -7.37332916720468e-03,
    -1.68282697438203e-03,
    -2.13374055278905e-04,
    -1.45660718464996e-05,
)


def _erf(x: Expr) -> Expr:
    def of_square(x: Expr, square: Expr) -> Expr:
        return x * _polynomial(_ERF_NUMERATOR, square) / _polynomial(_ERF_DENOMINATOR, square)

    def of_bounded(x: Expr) -> Expr:
        return _named(x * x, lambda square: of_square(x, square))

    return _named(x, lambda x: _named(_clamp(x, -_ERF_LIMIT, _ERF_LIMIT), of_bounded))


# sin(x) = (-1)^n · sin(r) with n = round(x / π) and |r| <= π / 2. π is split into two numbers of 30
# bits and a rest, so that r is right in float32 for |x| below 2^24, with fused multiply-adds for
# |x| below 2^40. Errors grow beyond; from 2^52 on, where floats lie 2^29 apart, the result is only
# some number between -1 and 1. sin(r) is a minimax polynomial, off by less than 7e-9 of the result.
_PI = (3.141592651605606, 1.9841871583270443e-09, 1.034036596358821e-18)
_ROUND_DOUBLE = 1.5 * 2**52
_SIN_POLYNOMIAL = (1.0, -0.1666666, 0.0083330665, -0.00019809602, 2.6057805e-06)


def _sin(x: Expr) -> Expr:
    return _named(_cast(x, "float64"), lambda x: _sin_after(x, 0.0))


def _cos(x: Expr) -> Expr:
    """cos(x) = -sin(x - π / 2)"""
    return -_named(_cast(x, "float64"), lambda x: _sin_after(x, 0.5))


def _sin_after(x: Expr, start: float) -> Expr:
    """The sine of x in float64, from `start` half turns on."""
    turns = x * _constant(1 / math.pi, x) - _constant(start, x)
    rounded = turns + _constant(_ROUND_DOUBLE, x)

    def angle(rounded: Expr) -> Expr:
        """The one between -π/2 and π/2 with the same sine, in float32."""
        number = rounded - _constant(_ROUND_DOUBLE, x) + _constant(start, x)
        rest = x
        for part in _PI:
            rest = rest - number * _constant(part, x)
        # The lowest bit of the number of half turns is the sign.
        sign = _reinterpreted(rounded, "int64") << _integer(63, rounded)
        signed = _reinterpreted(_reinterpreted(rest, "int64") ^ sign, "float64")
        return _clamp(_cast(signed, "float32"), -math.pi / 2, math.pi / 2)

    return _named(rounded, lambda rounded: _named(angle(rounded), _sin_of_half_turn))


def _sin_of_half_turn(x: Expr) -> Expr:
    def of_square(square: Expr) -> Expr:
        return _named(x * _polynomial(_SIN_POLYNOMIAL, square), lambda sine: _clamp(sine, -1, 1))

    return _named(x * x, of_square)


# asin(x) = x + x · x² · P(x²) for |x| <= ½, with a minimax polynomial that is off by less than 5e-9
# of the result. Beyond, asin(x) = π/2 - 2 · asin(√((1 - x) / 2)), where 1 - x is exact; acos(x) is
# that without π/2, so that it keeps its digits near 1. π/2 is a float32 and a rest. The root of a
# negative number makes |x| > 1 NaN.
_HALF_PI = 1.57079637050628662
_HALF_PI_REST = math.pi / 2 - _HALF_PI
_ASIN_POLYNOMIAL_LIMIT = 0.5
_ASIN_POLYNOMIAL = (0.16666752, 0.074952975, 0.045470376, 0.024179514, 0.042166308)


def _asin(x: Expr) -> Expr:
    def of_near(_: Expr, signs: Expr, is_far: Expr, near: Expr) -> Expr:
        doubled = near + near - _constant(_HALF_PI_REST, near)
        far = _constant(_HALF_PI, near) - doubled
        return _negated(_select(is_far, far, near), signs)

    return _by_small_angle(x, of_near)


def _acos(x: Expr) -> Expr:
    def of_near(x: Expr, signs: Expr, is_far: Expr, near: Expr) -> Expr:
        half, rest = _constant(_HALF_PI, near), _constant(_HALF_PI_REST, near)
        doubled = near + near
        far = _select(x < _constant(0, x), half + half - (doubled - (rest + rest)), doubled)
        return _select(is_far, far, half - (_negated(near, signs) - rest))

    return _by_small_angle(x, of_near)


def _by_small_angle(x: Expr, use: Callable[[Expr, Expr, Expr, Expr], Expr]) -> Expr:
    """`use(x, signs, is_far, near)`, where `near` is asin(|x|), or half of acos(|x|) for |x| that
    `is_far` from 0.
    """

    def of_parts(x: Expr, magnitude: Expr, signs: Expr) -> Expr:
        is_far = magnitude > _constant(_ASIN_POLYNOMIAL_LIMIT, x)
        to_one = (_constant(1, x) - magnitude) * _constant(0.5, x)
        square = _select(is_far, to_one, magnitude * magnitude)

        def of_square(square: Expr) -> Expr:
            root = _select(is_far, _square_root(square), magnitude)
            return _named(root, lambda root: of_root(square, root))

        def of_root(square: Expr, root: Expr) -> Expr:
            near = root + root * square * _polynomial(_ASIN_POLYNOMIAL, square)
            return _named(near, lambda near: use(x, signs, is_far, near))

        return _named(square, of_square)

    return _with_signs_apart(x, of_parts)


def _square_root(x: Expr) -> Expr:
    """The root as an instruction: `expand_functions` runs after TVM has replaced `tirx.sqrt`."""
    return tirx.call_llvm_pure_intrin(str(x.ty.dtype), "llvm.sqrt", x)


# atan(x) = x + x · x² · P(x²) for |x| <= 1, with a minimax polynomial that is off by less than 3e-9
# of the result, and π/2 - atan(1 / x) above.
_ATAN_POLYNOMIAL = (
    -0.333332986,
    0.199985489,
    -0.142642424,
    0.109521858,
    -0.08403451,
    0.057957605,
    -0.031177856,
    0.0109146116,
    -0.00179362297,
)


def _atan(x: Expr) -> Expr:
    def of_parts(x: Expr, magnitude: Expr, signs: Expr) -> Expr:
        one = _constant(1, x)
        is_far = magnitude > one

        def of_tangent(tangent: Expr) -> Expr:
            near = _named(tangent * tangent, lambda square: angle(tangent, square))
            return _named(near, of_near)

        def angle(tangent: Expr, square: Expr) -> Expr:
            return tangent + tangent * square * _polynomial(_ATAN_POLYNOMIAL, square)

        def of_near(near: Expr) -> Expr:
            far = _constant(_HALF_PI, x) - (near - _constant(_HALF_PI_REST, x))
            return _negated(_select(is_far, far, near), signs)

        return _named(_select(is_far, one / magnitude, magnitude), of_tangent)

    return _with_signs_apart(x, of_parts)


def _with_signs_apart(x: Expr, use: Callable[[Expr, Expr, Expr], Expr]) -> Expr:
    """`use(x, magnitude, signs)`, with the signs as the bits of x that hold them."""

    def of_bits(x: Expr, bits: Expr) -> Expr:
        signs = bits & _integer(-(2**31), bits)
        magnitude = _reinterpreted(bits ^ signs, "float32")
        return _named(magnitude, lambda magnitude: use(x, magnitude, signs))

    return _named(x, lambda x: _named(_reinterpreted(x, "int32"), lambda bits: of_bits(x, bits)))


def _negated(x: Expr, signs: Expr) -> Expr:
    """x, negated where the bit of the sign is set."""
    return _reinterpreted(_reinterpreted(x, "int32") ^ signs, "float32")


_FUNCTIONS: Mapping[str, Callable[[Expr], Expr]] = {
    "tirx.acos": _acos,
    "tirx.asin": _asin,
    "tirx.atan": _atan,
    "tirx.cos": _cos,
    "tirx.erf": _erf,
    "tirx.exp": _exp,
    "tirx.log": _log,
    "tirx.log1p": _log1p,
    "tirx.sigmoid": _sigmoid,
    "tirx.sin": _sin,
    "tirx.tanh": _tanh,
}
