"""What is known of one value, and the join of two facts."""

from __future__ import annotations

import onnx

from looplift.rewrite import symbolic
from looplift.rewrite.facts.fact import ABSENT, BOOL, INT64, UNKNOWN, Fact, join

from ...small_models import parse
from ..fact_oracle import facts_of

N, M = symbolic.symbol("N"), symbolic.symbol("M")
FLOAT = onnx.TensorProto.FLOAT


class TestFact:
    def test_rank(self) -> None:
        assert Fact(FLOAT, (2, N)).rank == 2
        assert Fact(FLOAT, (2, N)).possible_ranks() == frozenset({2})
        assert Fact(FLOAT, None, frozenset({1, 2})).possible_ranks() == frozenset({1, 2})
        assert UNKNOWN.rank is None
        assert UNKNOWN.possible_ranks() is None

    def test_elements(self) -> None:
        fact = Fact(INT64, (2, 2), None, (1, N, 3, 4))
        array = fact.array()
        assert array is not None
        assert array.shape == (2, 2)
        assert array[0, 1] is N
        assert fact.scalar() is None
        assert Fact(INT64, (), None, (N,)).scalar() is N
        assert Fact(INT64, (1,), None, (3,)).scalar() == 3
        assert Fact(FLOAT, (1,)).array() is None

    def test_omitted_inputs(self) -> None:
        facts = facts_of(
            parse("g (float[2] x, float k) => (float[2] y) { y = Clip(x, , k) }", 21, 10)
        )
        (node,) = facts.index.root.nodes
        assert facts.of(node.inputs[1]) == ABSENT


class TestJoin:
    FRESH = {0: symbolic.fresh("a"), 1: symbolic.fresh("b")}  # noqa: RUF012

    def test_what_agrees_stays(self) -> None:
        fact = Fact(INT64, (2,), None, (1, N))
        assert join(fact, fact, self.FRESH) == fact

    def test_dims_that_differ(self) -> None:
        joined = join(Fact(FLOAT, (2, N)), Fact(FLOAT, (3, N)), self.FRESH)
        assert joined.shape == (self.FRESH[0], N)

    def test_ranks_that_differ(self) -> None:
        joined = join(Fact(FLOAT, (2, N)), Fact(FLOAT, (3,)), self.FRESH)
        assert joined.shape is None
        assert joined.ranks == frozenset({1, 2})
        again = join(joined, Fact(FLOAT, ()), self.FRESH)
        assert again.ranks == frozenset({0, 1, 2})
        assert join(joined, UNKNOWN, self.FRESH).ranks is None

    def test_types_that_differ(self) -> None:
        assert join(Fact(FLOAT, ()), Fact(INT64, ()), self.FRESH).dtype == 0
        assert join(Fact(FLOAT, ()), Fact(kind="other"), self.FRESH).kind == "other"

    def test_elements_that_differ(self) -> None:
        numbers = join(Fact(INT64, (2,), None, (1, N)), Fact(INT64, (2,), None, (1, M)), self.FRESH)
        assert numbers.values is None
        bools = join(
            Fact(BOOL, (3,), None, (True, None, False)),
            Fact(BOOL, (3,), None, (True, True, True)),
            self.FRESH,
        )
        assert bools.values == (True, None, None)

    def test_sequences(self) -> None:
        left = Fact(FLOAT, (2,), None, None, "sequence", 1)
        right = Fact(FLOAT, (3,), None, None, "sequence", 2)
        joined = join(left, right, self.FRESH)
        assert joined.kind == "sequence"
        assert joined.length is None
        assert join(left, left, self.FRESH).length == 1
