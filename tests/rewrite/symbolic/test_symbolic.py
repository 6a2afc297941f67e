"""Symbolic integers against Python's: decisions must hold for every assignment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from looplift.rewrite import symbolic
from looplift.rewrite.symbolic import Dim, Symbol

SYMBOLS = {
    "n": Symbol("n"),
    "m": Symbol("m", low=1),
    "t": Symbol("t", low=2, high=5),
    "k": Symbol("k", low=None),
    "d": Symbol("d", low=-3, high=4),
}

Values = dict[str, int]


@dataclass(frozen=True)
class Pair:
    """A symbolic expression and the same as a Python function."""

    dim: Dim
    number: Callable[[Values], int]
    """Raises ZeroDivisionError where the expression has no value."""
    text: str

    def __repr__(self) -> str:
        return self.text


def _leaf(name: str) -> Pair:
    return Pair(symbolic.of(SYMBOLS[name]), lambda values: values[name], name)


def _number(number: int) -> Pair:
    return Pair(number, lambda values: number, str(number))


_OPERATIONS: dict[str, tuple[Callable[[Dim, Dim], Dim], Callable[[int, int], int]]] = {
    "add": (symbolic.add, lambda a, b: a + b),
    "sub": (symbolic.sub, lambda a, b: a - b),
    "mul": (symbolic.mul, lambda a, b: a * b),
    "floordiv": (symbolic.floordiv, lambda a, b: a // b),
    "ceildiv": (symbolic.ceildiv, lambda a, b: -(-a // b)),
    "mod": (symbolic.mod, lambda a, b: a % b),
    "min": (symbolic.minimum, min),
    "max": (symbolic.maximum, max),
}


def _combined(op: str, left: Pair, right: Pair) -> Pair:
    build, compute = _OPERATIONS[op]
    if op in ("floordiv", "ceildiv", "mod"):
        assume(right.dim != 0)
    return Pair(
        build(left.dim, right.dim),
        lambda values: compute(left.number(values), right.number(values)),
        f"{op}({left}, {right})",
    )


_leaves = st.one_of(st.sampled_from(sorted(SYMBOLS)).map(_leaf), st.integers(-6, 9).map(_number))
expressions = st.recursive(
    _leaves,
    lambda inner: st.builds(_combined, st.sampled_from(sorted(_OPERATIONS)), inner, inner),
    max_leaves=8,
)
assignments = st.fixed_dictionaries(
    {
        "n": st.integers(0, 40),
        "m": st.integers(1, 40),
        "t": st.integers(2, 5),
        "k": st.integers(-40, 40),
        "d": st.integers(-3, 4),
    }
)


def _value(pair: Pair, values: Values) -> int:
    try:
        return pair.number(values)
    except ZeroDivisionError:
        assume(False)
        raise


def _substituted(dim: Dim, values: Values) -> Dim:
    return symbolic.substitute(dim, {SYMBOLS[name]: number for name, number in values.items()})


_thorough = settings(max_examples=200, deadline=None)


class TestAgainstIntegers:
    @_thorough
    @given(expressions, assignments)
    def test_value_and_bounds(self, pair: Pair, values: Values) -> None:
        number = _value(pair, values)
        assert _substituted(pair.dim, values) == number
        low, high = symbolic.bounds(pair.dim)
        assert low is None or low <= number
        assert high is None or number <= high

    @_thorough
    @given(expressions, expressions, assignments)
    def test_decisions(self, left: Pair, right: Pair, values: Values) -> None:
        a, b = _value(left, values), _value(right, values)
        assert symbolic.eq(left.dim, right.dim) in (a == b, None)
        assert symbolic.le(left.dim, right.dim) in (a <= b, None)
        assert symbolic.lt(left.dim, right.dim) in (a < b, None)
        if symbolic.positive(left.dim):
            assert a > 0
        if symbolic.nonnegative(left.dim):
            assert a >= 0
        if symbolic.nonzero(left.dim):
            assert a != 0

    @_thorough
    @given(expressions, st.sampled_from(sorted(SYMBOLS)), expressions, assignments)
    def test_substituting_an_expression(
        self, pair: Pair, name: str, inner: Pair, values: Values
    ) -> None:
        replaced = _value(inner, values)
        number = _value(pair, {**values, name: replaced})
        dim = symbolic.substitute(pair.dim, {SYMBOLS[name]: inner.dim})
        # The replacement must be within the bounds that were used before.
        symbol = SYMBOLS[name]
        assume(symbol.low is None or symbol.low <= replaced)
        assume(symbol.high is None or replaced <= symbol.high)
        assert _substituted(dim, values) == number

    @_thorough
    @given(expressions, expressions, expressions)
    def test_one_normal_form(self, a: Pair, b: Pair, c: Pair) -> None:
        add, mul = symbolic.add, symbolic.mul
        assert add(a.dim, b.dim) == add(b.dim, a.dim)
        assert mul(a.dim, b.dim) == mul(b.dim, a.dim)
        assert add(add(a.dim, b.dim), c.dim) == add(a.dim, add(b.dim, c.dim))
        assert mul(a.dim, add(b.dim, c.dim)) == add(mul(a.dim, b.dim), mul(a.dim, c.dim))
        assert symbolic.sub(a.dim, a.dim) == 0
        assert hash(add(a.dim, b.dim)) == hash(add(b.dim, a.dim))
        assert symbolic.eq(add(a.dim, b.dim), add(b.dim, a.dim)) is True

    @_thorough
    @given(expressions, st.integers(1, 7), st.integers(1, 7))
    def test_division_by_numbers(self, a: Pair, b: int, c: int) -> None:
        floordiv, mul = symbolic.floordiv, symbolic.mul
        assert floordiv(mul(a.dim, b), b) == a.dim
        assert floordiv(symbolic.add(mul(a.dim, b), b - 1), b) == a.dim
        assert symbolic.mod(mul(a.dim, b), b) == 0
        nested = floordiv(floordiv(a.dim, b), c)
        assert symbolic.eq(nested, floordiv(a.dim, b * c)) is not False

    @_thorough
    @given(expressions, expressions)
    def test_smallest_and_largest(self, a: Pair, b: Pair) -> None:
        low, high = symbolic.minimum(a.dim, b.dim), symbolic.maximum(a.dim, b.dim)
        assert symbolic.eq(symbolic.minimum(b.dim, a.dim), low) is not False
        assert symbolic.maximum(a.dim, a.dim) == a.dim
        assert symbolic.le(low, high) is not False


N, M = symbolic.of(SYMBOLS["n"]), symbolic.of(SYMBOLS["m"])


class TestDecided:
    """What shape arithmetic of real models needs to be decided."""

    def test_linear(self) -> None:
        twice = symbolic.mul(N, 2)
        assert symbolic.eq(symbolic.add(N, 1), N) is False
        assert symbolic.eq(symbolic.sub(twice, N), N) is True
        assert symbolic.le(0, N) is True
        assert symbolic.lt(0, N) is None
        assert symbolic.lt(0, M) is True
        assert symbolic.eq(N, M) is None

    def test_parity(self) -> None:
        even, odd = symbolic.mul(N, 2), symbolic.add(symbolic.mul(M, 2), 1)
        assert symbolic.eq(even, odd) is False

    def test_a_dim_divides_its_multiples(self) -> None:
        assert symbolic.floordiv(symbolic.mul(symbolic.mul(M, 6), N), symbolic.mul(M, 2)) == (
            symbolic.mul(N, 3)
        )
        # N may be 0: nothing cancels.
        assert symbolic.floordiv(symbolic.mul(N, N), N) != N
        assert symbolic.floordiv(M, M) == 1

    def test_halves(self) -> None:
        half = symbolic.floordiv(symbolic.add(symbolic.mul(N, 2), 1), 2)
        assert half == N
        assert symbolic.bounds(symbolic.mod(N, 4)) == (0, 3)
        assert symbolic.bounds(symbolic.floordiv(symbolic.of(SYMBOLS["t"]), 2)) == (1, 2)

    def test_extremes(self) -> None:
        assert symbolic.maximum(N, -1) == N
        assert symbolic.minimum(M, 1) == 1
        assert symbolic.bounds(symbolic.minimum(N, 3)) == (0, 3)
        assert symbolic.bounds(symbolic.maximum(N, 3)) == (3, None)


class TestMultiplesOfQuotients:
    """`k * (n // k)` is n without the remainder, so at most n and more than n - k."""

    QUOTIENT = symbolic.mul(symbolic.floordiv(N, 4), 4)

    def test_are_compared_with_what_was_divided(self) -> None:
        assert symbolic.le(self.QUOTIENT, N) is True
        assert symbolic.lt(symbolic.sub(N, 4), self.QUOTIENT) is True
        assert symbolic.lt(N, self.QUOTIENT) is False
        assert symbolic.le(N, self.QUOTIENT) is None

    def test_may_be_part_of_a_sum(self) -> None:
        last = symbolic.mul(symbolic.sub(symbolic.floordiv(N, 4), 1), 4)
        assert symbolic.le(symbolic.add(last, 4), N) is True
        assert symbolic.le(symbolic.add(self.QUOTIENT, M), symbolic.add(N, M)) is True

    def test_of_another_factor_stay(self) -> None:
        assert symbolic.le(symbolic.mul(symbolic.floordiv(N, 4), 3), symbolic.add(N, -1)) is None


class TestSymbols:
    def test_a_symbol_with_one_possible_value_is_that_number(self) -> None:
        assert symbolic.symbol("n", low=3, high=3) == 3

    def test_equal_names_are_one_symbol(self) -> None:
        assert symbolic.symbol("n") == symbolic.symbol("n")

    def test_fresh_symbols_differ(self) -> None:
        first, second = symbolic.fresh("n"), symbolic.fresh("n")
        assert first != second
        assert symbolic.eq(first, second) is None
        assert symbolic.sub(first, second) != 0

    def test_symbols_are_found_inside_terms(self) -> None:
        dim = symbolic.minimum(symbolic.floordiv(N, 3), symbolic.mod(M, 5))
        assert symbolic.symbols(dim) == {SYMBOLS["n"], SYMBOLS["m"]}
        assert symbolic.symbols(7) == set()

    @pytest.mark.parametrize("numerator", [6, N, symbolic.add(N, 1)])
    def test_division_by_zero_raises(self, numerator: Dim) -> None:
        with pytest.raises(ZeroDivisionError):
            symbolic.floordiv(numerator, 0)

    def test_text_reads_like_arithmetic(self) -> None:
        assert str(symbolic.add(symbolic.mul(N, 2), 1)) == "2*n + 1"
        assert str(symbolic.sub(N, 1)) == "n - 1"
        assert str(symbolic.minimum(N, 3)) in ("min(3, n)", "min(n, 3)")


def test_equal_shapes() -> None:
    n, m = symbolic.symbol("n"), symbolic.symbol("m")
    assert symbolic.equal_shapes((n, 3), [n, 3])
    assert symbolic.equal_shapes((), ())
    assert not symbolic.equal_shapes((n, 3), (m, 3))
    assert not symbolic.equal_shapes((n, 3), (n, 3, 1))
    assert not symbolic.equal_shapes(None, None)


def test_broadcastable() -> None:
    n, m = symbolic.symbol("n"), symbolic.symbol("m")
    assert symbolic.broadcastable([(n, 3), (1, 3), (3,), ()])
    assert symbolic.broadcastable([(symbolic.add(n, n),), (symbolic.mul(2, n),)])
    assert not symbolic.broadcastable([(n, 3), (m, 3)])
    assert not symbolic.broadcastable([(n, 3), (2,)])


def test_the_divisor_stands_in_parentheses() -> None:
    n = symbolic.fresh("n")
    quotient = symbolic.floordiv(symbolic.add(n, 3), symbolic.floordiv(symbolic.add(n, 7), 8))
    assert str(quotient) == "(n + 3)//((n + 7)//8)"
    assert str(symbolic.floordiv(n, 2)) == "n//2"


def test_a_quotient_in_a_product_stands_in_parentheses() -> None:
    n, m = symbolic.symbol("n"), symbolic.symbol("m")
    quarter = symbolic.floordiv(n, 4)
    assert str(symbolic.neg(quarter)) == "-(n//4)"
    assert str(symbolic.mul(m, quarter)) in ("m*(n//4)", "(n//4)*m")
    assert str(symbolic.mul(3, symbolic.mod(n, 4))) == "3*(n%4)"
    assert str(symbolic.sub(m, n)) == "m - n"


def test_division_by_a_negative_number() -> None:
    n = symbolic.symbol("n")
    assert symbolic.floordiv(n, -1) == symbolic.neg(n)
    assert symbolic.ceildiv(symbolic.neg(n), -1) == n
    assert symbolic.floordiv(n, -4) == symbolic.floordiv(symbolic.neg(n), 4)
