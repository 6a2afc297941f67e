"""Facts of reductions, arg-reductions and running sums hold on onnxruntime."""

from __future__ import annotations

import pytest

from ...fact_cases import Case, cases

_REDUCTIONS = [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
]


@pytest.mark.parametrize("op", _REDUCTIONS)
def test_reduction(op: str) -> None:
    text = f"""g (float[N,3,M] x) => (a, b, c, d, e) <int64[2] two = {{0, -1}}, int64[1] one = {{1}}> {{
        a = {op}(x) b = {op}<keepdims=0>(x) c = {op}(x, two) d = {op}<keepdims=0>(x, one)
        e = {op}<noop_with_empty_axes=1>(x) }}"""
    # Of an axis without elements onnxruntime keeps it, so that a and c are not known.
    knows = {"b": "()", "d": "(N, M)", "e": "(N, 3, M)"}
    Case(text, knows, sizes=(1, 2, 7)).check()


@pytest.mark.parametrize("op", _REDUCTIONS)
def test_reduction_with_axes_as_attribute(op: str) -> None:
    text = f"""g (float[N,3,M] x) => (a, b, c) {{ a = {op}(x) b = {op}<axes=[1]>(x)
        c = {op}<axes=[-1, 0], keepdims=0>(x) }}"""
    Case(text, {"b": "(N, 1, M)", "c": "(3,)"}, opset=11, sizes=(1, 2, 7)).check()


REDUCTIONS = {
    "dims": Case(
        """g (float[N,3,M] x) => (a, b, c, d) { s = Shape(x) a = ReduceProd(s)
        b = ReduceSum<keepdims=0>(s) c = ReduceMax<keepdims=0>(s) d = ReduceMin(s) }""",
        {"a=": "(3 * N * M,)", "a": "(1,)", "b=": "(N + M + 3,)", "b": "()"},
    ),
    "all_of_none_to_a_scalar": Case(
        "g (float[N,M] x) => (y) { e = Size(x) a = Concat<axis = 1>(x) y = ReduceMax<keepdims=0>(a) }",
        {"y": "()"},
    ),
    "all_of_any_rank_to_a_scalar": Case(
        """g (float[N,1] x, bool c) => (y, z) <int64[1] one = {1}> {
        v = If (c) <then_branch = t () => (float[N] a) { a = Squeeze(x, one) },
                    else_branch = e () => (float[N,1] b) { b = Neg(x) }>
        y = ReduceSum<keepdims=0>(v) z = ReduceSum(v) }""",
        {"y": "()"},
    ),
    "none_to_a_scalar": Case(
        """g (float[N,3] x) => (y) <int64[1] z = {0}> { a = Slice(x, z, z, z)
        y = ReduceMin<keepdims=0>(a) }""",
        {"y": "()"},
    ),
    "nothing_to_reduce": Case(
        """g (float[N,3] x) => (y) { s = Shape(x) y = ReduceSum<noop_with_empty_axes=1>(s) }"""
    ),
    "scalar": Case("g (int64 x) => (y) { y = ReduceSum(x) }", {"y": "()"}),
    "run_time_axes": Case(
        """g (float[N,3] x, int64[1] a) => (y, z) { y = ReduceSum(x, a)
        z = ReduceSum<keepdims=0>(x, a) }""",
        values={"a": [[0], [1], [-1]]},
    ),
    "empty_axes": Case(
        """g (float[N,3] x) => (y, z) <int64[0] a = {}> { y = ReduceSum(x, a)
        z = ReduceSum<noop_with_empty_axes=1>(x, a) }"""
    ),
    "sum_at_opset_13": Case(
        "g (float[N,3] x) => (y) <int64[1] a = {1}> { y = ReduceSum<keepdims=0>(x, a) }",
        {"y": "(N,)"},
        opset=13,
    ),
    "small_numbers": Case("g (int32[3] x) => (y) { y = ReduceSum(x) }", values={"x": [[2**31 - 1, 1, 0]]}),
    "arg": Case(
        """g (float[N,3] x) => (a, b, c) { a = ArgMax<axis=1>(x) b = ArgMin<axis=-1, keepdims=0>(x)
        c = ArgMax<axis=1, keepdims=0>(x) }""",
        {"a": "(N, 1)", "b": "(N,)"},
        sizes=(1, 2, 7),  # of nothing onnxruntime keeps the axis
    ),
    "running": Case(
        "g (float[N,3] x) => (y) <int64 a = {0}> { y = CumSum(x, a) }", {"y": "(N, 3)"}
    ),
    "top": Case(
        "g (float[N,3] x) => (y, z) <int64[1] k = {2}> { y, z = TopK(x, k) }", {"y": "(N, 2)", "z": "(N, 2)"}
    ),
    "top_of_axis": Case(
        "g (float[N,3] x, int64[1] k) => (y, z) { y, z = TopK<axis=0>(x, k) }",
        values={"k": [[0], [1], [2]]},
    ),
    "top_attribute": Case("g (float[N,3] x) => (y, z) { y, z = TopK<k=2>(x) }", {"y": "(N, 2)"}, opset=9),
    "top_by_dim": Case(
        """g (float[N,8] x, float[M] z) => (v, i) { k = Shape(z) v, i = TopK(x, k) }""", {"v": "(N, M)"}
    ),
}  # fmt: skip


@cases(REDUCTIONS)
def test_reductions_over_dims_and_axes(case: Case) -> None:
    case.check()
