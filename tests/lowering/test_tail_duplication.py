"""Nodes that read values of several ranks run in the branches of the If that decides the rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from tvm import relax

import looplift
from looplift.lowering import tail_duplication
from looplift.lowering.tail_duplication import DuplicateTail
from looplift.rewrite.engine.rule import fixture
from looplift.rewrite.errors import UnsupportedError

from ..equivalence import assert_equivalent, ops, run_rules
from ..samples import one_of
from ..small_models import parse
from .compiled import compile_quickly, virtual_machine

CONSTANTS = "<int64 zero = {0}, int64 one = {1}, int64[1] zeros = {0}, int64[1] ones = {1}>"


def squeezed(output: str, data: str, condition: str = "c") -> str:
    """`output` is `data`, of rank 2, without its first axis if that has size 1."""
    return f"""{output} = If ({condition})
        <then_branch = then_{output} () => (float[M] a) {{ a = Squeeze({data}, zeros) }},
         else_branch = else_{output} () => (float[N, M] b) {{ b = Identity({data}) }}>"""


IS_ONE = "s = Shape(x) n = Gather(s, zero) c = Equal(n, one)"
SHAPES = [(1, 3), (2, 3), (3, 1), (1, 1), (0, 3), (1, 0), (2, 0)]

MODELS = {
    "ranks_agree_again": f"""g (float[N, M] x) => (float y, float z) {CONSTANTS} {{
        {IS_ONE} {squeezed("v", "x")}
        w = Exp(v) y = ReduceSum<keepdims = 0>(w) z = Sqrt(y) }}""",
    "to_the_end": f"""g (float[N, M] x) => (float any) {CONSTANTS} {{
        {IS_ONE} {squeezed("v", "x")} w = Exp(v) any = Neg(w) }}""",
    "operands_after_the_if": f"""g (float[N, M] x) => (float y, float u) {CONSTANTS} {{
        {IS_ONE} {squeezed("v", "x")}
        e = Exp(x) k = ReduceMean<keepdims = 0>(e) w = Mul(v, k) t = ReduceSum<keepdims = 0>(w)
        u = Sin(t) w2 = Mul(w, u) y = ReduceSum<keepdims = 0>(w2) }}""",
    "both_forms_of_the_condition": f"""g (float[N, M] x) => (float[K, M] y) {CONSTANTS} {{
        {IS_ONE} {squeezed("v", "x")} w = Softmax<axis = -1>(v)
        m = Gather(s, zeros) d = Equal(m, ones)
        u = If (d) <
            then_branch = t2 () => (float[1, M] a) {{ a = Unsqueeze(w, zeros) }},
            else_branch = e2 () => (float[N, M] b) {{ b = Identity(w) }}
        >
        y = Neg(u) }}""",
    "another_if_follows": f"""g (float[N, M] x) => (float y) {CONSTANTS} {{
        {IS_ONE} {squeezed("v", "x")} w = Exp(v)
        total = ReduceSum<keepdims = 0>(w) two = CastLike(one, total) d = Less(two, total)
        u = If (d) <
            then_branch = t2 () => (float[K] a) {{ a = Neg(w) }},
            else_branch = e2 () => (float[K] b) {{ b = Unsqueeze(w, zeros) }}
        >
        q = Abs(u) y = ReduceMax<keepdims = 0>(q) }}""",
    "in_a_loop": f"""g (float[N, M] x) => (float[N, M] y, float[L] rows) {CONSTANTS} {{
        {IS_ONE} trips = Constant<value_int = 3>()
        y, rows = Loop(trips, , x) <
            body = b (int64 i, bool k, float[N, M] x1) => (bool k1, float[N, M] o, float r) {{
                k1 = Identity(k) {squeezed("v", "x1")} w = Sin(v)
                r = ReduceSum<keepdims = 0>(w) o = Add(x1, w)
            }}> }}""",
    "read_by_a_loop": f"""g (float[N, M] x) => (float y) {CONSTANTS} {{
        {IS_ONE} {squeezed("v", "x")} trips = Constant<value_int = 3>() start = CastLike(zero, x)
        y = Loop(trips, , start) <
            body = b (int64 i, bool k, float t) => (bool k1, float t1) {{
                k1 = Identity(k) w = Sin(v) r = ReduceSum<keepdims = 0>(w) t1 = Sub(r, t)
            }}> }}""",
    "in_a_branch": f"""g (float[N, M] x) => (float y) {CONSTANTS} {{
        {IS_ONE} d = Less(one, n)
        v = If (d) <
            then_branch = t2 () => (float[K] r) {{
                m = Gather(s, one) e = Equal(m, one)
                r = If (e) <
                    then_branch = t3 () => (float[N] a) {{ a = Squeeze(x, ones) }},
                    else_branch = e3 () => (float[N, M] b) {{ b = Exp(x) }}
                > }},
            else_branch = e2 () => (float[1, N, M] q) {{ q = Unsqueeze(x, zeros) }}
        >
        w = Neg(v) y = ReduceSum<keepdims = 0>(w) }}""",
}  # fmt: skip


def model(name: str) -> onnx.ModelProto:
    parsed = parse(MODELS[name])
    for output in parsed.graph.output:
        if output.name == "any":
            output.type.tensor_type.ClearField("shape")
    return parsed


def check(proto: onnx.ModelProto) -> tvm.IRModule:
    """Imports a model; its results are those of onnxruntime for all shapes."""
    module = looplift.from_onnx(proto)
    machine = virtual_machine(compile_quickly(module, relax_pipeline="default"))
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for shape in SHAPES:
        if "ReduceMax" in ops(proto) and 0 in shape:
            continue
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        wanted = session.run(None, {"x": x})
        outputs = machine["main"](tvm.runtime.tensor(x))
        for got, want in zip([outputs] if len(wanted) == 1 else outputs, wanted, strict=True):
            assert got.numpy().shape == want.shape
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)
    return module


@pytest.mark.parametrize("name", one_of(2, MODELS))
@pytest.mark.filterwarnings("ignore:Field 'shape' of 'type'")
def test_both_ranks(name: str) -> None:
    check(model(name))


def test_only_the_nodes_between_are_copied() -> None:
    result, trace, _ = run_rules(model("ranks_agree_again"), [DuplicateTail])
    assert [commit.rule for commit in trace.commits()] == ["DuplicateTail"]
    counts = ops(result)
    assert (counts["Exp"], counts["ReduceSum"], counts["Sqrt"]) == (2, 2, 1)


def test_two_comparisons_of_one_size_are_one_if() -> None:
    functions = check(model("both_forms_of_the_condition")).functions_items()
    ifs = [f for _, f in functions if isinstance(f, relax.Function) and "if " in str(f.body)]
    assert len(ifs) == 1


class TestRule:
    def test_fires(self) -> None:
        proto = fixture(DuplicateTail.fires)
        result, trace, _ = run_rules(proto, [DuplicateTail])
        assert trace.defects() == []
        assert [commit.rule for commit in trace.commits()] == ["DuplicateTail"]
        assert_equivalent(proto, result, tolerance=1e-5)

    @pytest.mark.parametrize("reason", DuplicateTail.spares)
    def test_declines(self, reason: str) -> None:
        proto = fixture(DuplicateTail.spares[reason])
        _, trace, engine = run_rules(proto, [DuplicateTail])
        assert trace.commits() == []
        (node,) = (node for node in engine.index.walk() if node.op == "If")
        with pytest.raises(looplift.Miss) as caught:
            engine.match(DuplicateTail(), node)
        assert reason in str(caught.value)


class TestRefusals:
    @pytest.fixture
    def most(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        return lambda count: monkeypatch.setattr(tail_duplication, "_MOST_NODES", count)

    def test_more_copies_than_the_bound(self, most: Callable[[int], None]) -> None:
        most(4)
        check(model("ranks_agree_again"))
        most(3)
        with pytest.raises(UnsupportedError, match="the rank of 'v' is not known") as caught:
            looplift.from_onnx(model("ranks_agree_again"))
        assert "2 nodes depend on it, and copies in 2 branches" in str(caught.value)
        assert "would exceed 3 nodes" in str(caught.value)
        assert "dims=" in str(caught.value)

    def test_a_rank_that_changes_from_iteration_to_iteration(self) -> None:
        proto = parse(f"""g (float[N, M] x, int64 trips) => (float[K] y) {CONSTANTS} {{
            {IS_ONE}
            y = Loop(trips, , x) <
                body = b (int64 i, bool k, float[N, M] x1) => (bool k1, float[M] o) {{
                    k1 = Identity(k) w = Sin(x1) {squeezed("o", "w")}
                }}> }}""")
        with pytest.raises(UnsupportedError, match="the rank of 'x1' is not known") as caught:
            looplift.from_onnx(proto)
        assert "The rank of 'x1' changes between iterations of Loop" in str(caught.value)
