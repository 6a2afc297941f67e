"""Weights of a recurrence: when two are the same."""

from __future__ import annotations

import numpy as np

from looplift.rewrite.graph.ir import Variable
from looplift.rules.recurrence import weights
from looplift.rules.recurrence.weights import ArrayExpression, NumpyBackend, Weight


def test_shapes_whose_digits_run_together_differ() -> None:
    vector = np.arange(64, dtype=np.float32)
    row, square = weights.reshape(vector, (1, 64)), weights.reshape(vector, (16, 4))
    assert not weights.equal(row, square)
    assert weights.equal(row, weights.reshape(vector.copy(), (1, 64)))


def test_a_factor_of_ones_does_not_narrow_a_product() -> None:
    square, column = np.ones((3, 3), np.float32), np.full((3, 1), 2, np.float32)
    np.testing.assert_array_equal(weights.multiply(square, column), np.full((3, 3), 2))
    assert weights.multiply(square, np.ones(3, np.float32)) is square


class TestExpressions:
    """Fewer operators compute the same."""

    matrix = Variable("w")
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    whole = weights.of_tensor(matrix, (4, 6), values.dtype)

    def gates(self) -> list[Weight]:
        return [weights.take(self.whole, np.arange(k, k + 2), 1) for k in (4, 0, 2)]

    def check(self, weight: Weight, expected: np.ndarray, *operators: str) -> None:
        """Asserts the value, and the chain of operators that computes it, the last one first."""
        np.testing.assert_array_equal(
            NumpyBackend({self.matrix: self.values}).build(weight), expected
        )
        assert weight.shape == expected.shape
        for operator in operators:
            assert isinstance(weight, ArrayExpression)
            assert weight.op == operator
            weight = weight.args[0]
        assert weight is self.whole

    def test_parts_of_one_weight_are_gathered_at_once(self) -> None:
        order = [4, 5, 0, 1, 2, 3]
        self.check(weights.concat(self.gates(), 1), self.values[:, order], "Gather")
        in_order = [*self.gates()[1:], self.gates()[0]]
        self.check(weights.concat(in_order, 1), self.values)

    def test_transposed_parts_become_one_transpose(self) -> None:
        parts = [weights.transpose(gate) for gate in self.gates()]
        expected = self.values.T[[4, 5, 0, 1, 2, 3]]
        self.check(weights.concat(parts, 0), expected, "Transpose", "Gather")
        self.check(weights.transpose(weights.transpose(self.whole)), self.values)

    def test_transposed_parts_and_constants(self) -> None:
        constant = np.ones((2, 4), np.float32)
        weight = weights.concat([weights.transpose(self.whole), constant], 0)
        assert isinstance(weight, ArrayExpression)
        assert weight.op == "Transpose"
        built = NumpyBackend({self.matrix: self.values}).build(weight)
        np.testing.assert_array_equal(built, np.concatenate([self.values.T, constant]))

    def test_parts_along_another_axis_stay(self) -> None:
        weight = weights.concat(self.gates(), 0)
        assert isinstance(weight, ArrayExpression)
        assert weight.op == "Concat"
        built = NumpyBackend({self.matrix: self.values}).build(weight)
        np.testing.assert_array_equal(
            built, np.concatenate(np.split(self.values[:, [4, 5, 0, 1, 2, 3]], 3, 1))
        )

    def test_empty_parts_and_zeros_are_left_out(self) -> None:
        empty = np.zeros((4, 0), np.float32)
        self.check(weights.concat([empty, self.whole, empty], 1), self.values)
        nothing = weights.take(self.whole, np.arange(0), 1)
        assert weights.concat([nothing, empty], 1).shape == (4, 0)
        assert weights.concat([nothing, self.values], 1).shape == (4, 6)
        self.check(weights.add(np.zeros(6, np.float32), self.whole), self.values)
        wider = weights.add(self.whole, np.zeros((2, 4, 6), np.float32))
        assert wider.shape == (2, 4, 6)
