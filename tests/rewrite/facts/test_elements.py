"""Elements of index arithmetic at symbolic coordinates."""

from __future__ import annotations

import pytest

from looplift.rewrite import symbolic
from looplift.rewrite.facts.elements import element, known_vector

from ...small_models import parse
from ..fact_oracle import facts_of, value

HEAD = """g (float[N,3] x, int64[N] free, int64 m) => (int64 y)
    <int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 far = {4294967296},
     int32 large = {1073741824}, int32 four = {4}, int64[1] at0 = {0}, int64[1] at1 = {1},
     int64[1] minus = {-1}, int64[2] square = {1, 1}, int64[4] even = {1, 3, 5, 7},
     int64[4] odd = {1, 3, 5, 8}, int64[3] cube = {2, 1, 1}, int64[1] three = {3}, bool[2] mixed = {0, 1}, bool[2] never = {0, 0},
     bool yes = {1}, int64[2] pair = {4, 5}, int64[1] one1 = {1}, int64[2] at02 = {0, 2}> {
    all = Shape(x) n = Gather(all, zero) numbers = Range(zero, n, one) """
J = symbolic.symbol("j")


@pytest.mark.parametrize(
    ("steps", "at", "wanted"),
    [
        ("v = Range(one, n, two)", (J,), "2*j + 1"),
        ("v = Neg(numbers)", (J,), None),
        ("v = Sub(two, numbers)", (J,), "-j + 2"),
        ("a = Add(numbers, numbers) v = Mul(a, two)", (J,), "4*j"),
        ("a = Unsqueeze(numbers, at1) v = Expand(a, cube)", (0, J, 0), "j"),
        ("a = Unsqueeze(numbers, at1) v = Transpose(a)", (0, J), "j"),
        ("a = Unsqueeze(numbers, at02) v = Squeeze(a, at0)", (J, 0), "j"),
        ("c = Cast<to=6>(numbers) v = Cast<to=7>(c)", (J,), "j"),
        ("a = Add(numbers, far) c = Cast<to=6>(a) v = Cast<to=7>(c)", (J,), None),
        ("c = Cast<to=6>(free) v = Cast<to=7>(c)", (J,), None),
        (
            "c = Cast<to=6>(numbers) d = Mul(c, large) e = Mul(d, four) v = Cast<to=7>(e)",
            (J,),
            None,
        ),
        ("c = Cast<to=6>(numbers) d = Mul(c, four) v = Cast<to=7>(d)", (J,), "4*j"),
        ("c = Cast<to=2>(numbers) d = Cast<to=2>(two) v = Add(c, d)", (J,), None),
        ("v = Add(numbers, m)", (J,), None),
        ("c = Cast<to=9>(numbers) v = Cast<to=7>(c)", (J,), None),
        ("c = Cast<to=2>(numbers) v = Cast<to=7>(c)", (J,), None),
        ("c = Cast<to=1>(numbers) v = Cast<to=7>(c)", (J,), None),
        ("v = Slice(numbers, at1, three)", (J,), "j + 1"),
        ("v = Slice(numbers, minus, three)", (J,), None),
        ("v = Gather(numbers, even)", (2,), "5"),
        ("v = Gather(numbers, minus)", (0,), None),
        ("v = Identity(even)", (J,), "2*j + 1"),
        ("v = Identity(odd)", (J,), None),
        ("v = Identity(odd)", (3,), "8"),
        ("v = Identity(free)", (J,), None),
        ("v = Concat<axis=0>(even, odd)", (5,), "3"),
        ("v = Slice(even, at0, at0)", (J,), "2*j + 1"),
        ("v = Identity(even)", (4,), None),
        (
            "a = Unsqueeze(m, at0) b = Unsqueeze(n, at0) c = Concat<axis=0>(a, b) d = Concat<axis=0>(b, a) v = Where(mixed, c, d)",
            (0,),
            "N",
        ),
        ("a = Unsqueeze(n, at0) c = Concat<axis=0>(a, one1) v = Where(never, pair, c)", (0,), "N"),
        ("v = Where(yes, numbers, free)", (J,), "j"),
        ("c = Less(numbers, one) v = Where(c, numbers, numbers)", (J,), None),
    ],
)
def test_elements(steps: str, at: tuple[symbolic.Dim, ...], wanted: str | None) -> None:
    facts = facts_of(parse(f"{HEAD} {steps} w = Size(v) y = Neg(w) }}"))
    found = element(facts, value(facts, "v"), at)
    assert wanted == (None if found is None else str(found))


def test_an_operand_that_may_be_broadcast_is_not_followed() -> None:
    """Where n is 1, all elements of the sum use the first number."""
    facts = facts_of(parse(f"{HEAD} v = Add(numbers, free) w = Size(v) y = Neg(w) }}"))
    stretched = parse(f"{HEAD} s = Size(free) e = Unsqueeze(m, at0) v = Expand(numbers, e) "
                      "w = Size(v) y = Neg(w) }")  # fmt: skip
    assert element(facts, value(facts, "v"), (J,)) is None
    facts = facts_of(stretched)
    assert element(facts, value(facts, "v"), (J,)) is None


def test_shared_operands_are_derived_once() -> None:
    doubled = "".join(f"d{k + 1} = Add(d{k}, d{k}) " for k in range(40))
    facts = facts_of(parse(f"{HEAD} d0 = Identity(numbers) {doubled} w = Size(d40) y = Neg(w) }}"))
    assert str(element(facts, value(facts, "d40"), (J,))) == f"{2**40}*j"


def test_known_vector() -> None:
    facts = facts_of(
        parse(f"{HEAD} a = Unsqueeze(n, at0) v = Concat<axis=0>(a, at1) w = Size(v) y = Neg(w) }}")
    )
    found = known_vector(facts, value(facts, "v"))
    assert found is not None
    assert found[1] == 1
    assert known_vector(facts, value(facts, "numbers")) is None
    assert known_vector(facts, value(facts, "x")) is None
