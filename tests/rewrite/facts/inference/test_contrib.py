"""Facts of operators of com.microsoft hold on onnxruntime."""

from __future__ import annotations

import pytest

from ...fact_cases import Case, cases
from ...fact_oracle import NothingRan, facts_of


def _zeros(count: int) -> str:
    return ", ".join("0" for _ in range(count))


OPERATORS = {
    "BiasGelu": Case(
        "g (float[N,3,4] x) => (y) <float[4] b = {1, 0, 2, -1}> { y = com.microsoft.BiasGelu(x, b) }",
        {"y": "(N, 3, 4)"},
    ),
    "FastGelu": Case("g (float[N,M] x) => (y) { y = com.microsoft.FastGelu(x) }", {"y": "(N, M)"}),
    "Gelu": Case("g (float[N,M] x) => (y) { y = com.microsoft.Gelu(x) }", {"y": "(N, M)"}),
    "QuickGelu": Case("g (float[N,M] x) => (y) { y = com.microsoft.QuickGelu(x) }", {"y": "(N, M)"}),
    "QLinearLeakyRelu": Case(
        """g (uint8[N,3] x) => (y) <float s = {0.5}, uint8 z = {3}> {
        y = com.microsoft.QLinearLeakyRelu(x, s, z, s, z) }""",
        {"y": "(N, 3)"},
    ),
    "QLinearSigmoid": Case(
        """g (uint8[N,3] x) => (y) <float s = {0.5}, uint8 z = {3}> {
        y = com.microsoft.QLinearSigmoid(x, s, z, s, z) }""",
        {"y": "(N, 3)"},
    ),
    "RotaryEmbedding": Case(
        """g (float[N,1,8] x) => (y) <int64[1] p = {0}, float[2,2] c = {1, 2, 3, 4}> {
        y = com.microsoft.RotaryEmbedding<num_heads = 2>(x, p, c, c) }""",
        {"y": "(N, 1, 8)"},
        sizes=(1, 2),
    ),
    "SkipLayerNormalization": Case(
        """g (float[N,3,4] x) => (y, s) <float[4] g = {1, 2, 3, 4}> {
        y, , , s = com.microsoft.SkipLayerNormalization(x, x, g) }""",
        {"y": "(N, 3, 4)", "s": "(N, 3, 4)"},
    ),
    "SkipSimplifiedLayerNormalization": Case(
        """g (float[N,3,4] x) => (y) <float[4] g = {1, 2, 3, 4}> {
        y = com.microsoft.SkipSimplifiedLayerNormalization(x, x, g) }""",
        {"y": "(N, 3, 4)"},
    ),
    "CDist": Case(
        "g (float[N,3] x, float[M,3] z) => (y) { y = com.microsoft.CDist(x, z) }", {"y": "(N, M)"}
    ),
    "GatherBlockQuantized": Case(
        f"""g (int64[N,M] i) => (y, h, z)
        <uint8[3,8] d = {{{_zeros(24)}}}, float[3,1] s = {{{_zeros(3)}}}> {{
        y = com.microsoft.GatherBlockQuantized<bits = 4, block_size = 16>(d, i, s)
        h = com.microsoft.GatherBlockQuantized<bits = 8, block_size = 16, gather_axis = -2>(d, i, s)
        z = com.microsoft.GatherBlockQuantized<block_size = 16>(d, i, s) }}""",
        {"y": "(N, M, 16)", "h": "(N, M, 8)", "z": "(N, M, 16)"},
    ),
    "MatMulNBits": Case(
        f"""g (float[N,M,32] x) => (y) <uint8[5,1,16] w = {{{_zeros(80)}}}, float[5] s = {{{_zeros(5)}}}> {{
        y = com.microsoft.MatMulNBits<K = 32, N = 5, bits = 4, block_size = 32>(x, w, s) }}""",
        {"y": "(N, M, 5)"},
    ),
}  # fmt: skip


@cases(OPERATORS)
def test_operator(case: Case) -> None:
    case.check()


FAILS = {
    "rank_of_bias": Case("g (float[N,3] x, float[3] b) => (y) { y = com.microsoft.BiasGelu(b, x) }"),
    "size_of_bias": Case("g (float[N,3] x, float[4] b) => (y) { y = com.microsoft.BiasGelu(x, b) }"),
    "rank_of_skip": Case(
        """g (float[N,3,4] x, float[4] b) => (y) {
        y = com.microsoft.SkipLayerNormalization(b, x, b) }"""
    ),
}  # fmt: skip


@cases(FAILS)
def test_operands_that_do_not_fit(case: Case) -> None:
    """The node is known to fail, and onnxruntime refuses each run."""
    facts = facts_of(case.model())
    assert facts.failure(next(iter(facts.index.walk()))) is not None
    with pytest.raises(NothingRan):
        case.check()
