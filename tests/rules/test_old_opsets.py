"""Rules fire in old opsets, where axes, sizes and bounds are attributes and integers have no Max.

Where an opset lacks an operator that a rule would make, the rule declines and says so.
"""

from __future__ import annotations

import onnx
import pytest

from looplift import Rule
from looplift.rewrite.engine.reasons import reasons_at
from looplift.rewrite.engine.rule import fixture
from looplift.rewrite.errors import ModelError
from looplift.rewrite.storage.model import import_model
from looplift.rules.values.dead_nodes import EliminateIdentity

from ..equivalence import assert_equivalent, ops, rewritten, run_rules, session
from ..rewrite.fact_oracle import Feeds
from ..small_models import parse
from .downgrade import downgraded
from .test_fixtures import FEEDS, RULES
from .vectorization.test_batching import ALL, map_text

MUST_FIRE = (12, 11)
MAY_LACK = (10, 9, 8, 7)
NEEDS_EMPTY_RESHAPES = {"ChunkLinearAttention", "ConcatToScanOutput", "MergeRecurrentChunks"}


def _loads(model: onnx.ModelProto) -> bool:
    """Whether a model can be read and run: an older opset cannot express every model."""
    try:
        import_model(model)
        session(model)
    except ModelError:
        return False
    except Exception as error:
        if "ONNXRuntimeError" not in str(error):
            raise
        return False
    return True


OLDER = {
    f"{rule.name()}-{opset}": (rule, opset, model)
    for rule in RULES
    for opset in (*MUST_FIRE, *MAY_LACK)
    if _loads(model := downgraded(fixture(rule.fires), opset))
}
OLDER_MAPS = {
    f"{name}-{opset}": model
    for name, work in ALL.items()
    for opset in MUST_FIRE
    if _loads(model := downgraded(parse(map_text(work, loop=False), opset=18), opset))
    and name != "layer norm"  # onnxruntime runs one in these opsets, but no rule makes one
}


@pytest.mark.parametrize(("rule", "opset", "model"), OLDER.values(), ids=OLDER)
def test_fires_or_lacks_an_operator(rule: type[Rule], opset: int, model: onnx.ModelProto) -> None:
    result, trace, engine = run_rules(model, [rule])
    if not trace.commits():
        result, trace, engine = run_rules(model, [EliminateIdentity, rule])
    assert trace.defects() == []
    assert_equivalent(model, result, FEEDS, 1e-5)
    if rule.name() in [commit.rule for commit in trace.commits()]:
        return
    assert opset in MAY_LACK or rule.name() in NEEDS_EMPTY_RESHAPES
    reasons = [r for node in engine.index.walk() for r in reasons_at(engine, node)]
    assert any(r.rule == rule.name() and "opset" in r.sentence for r in reasons)


TOGETHER = {name: model for name, (_, opset, model) in OLDER.items() if opset in (7, 9, 11)}


@pytest.mark.parametrize("model", TOGETHER.values(), ids=TOGETHER)
def test_all_rules_together(model: onnx.ModelProto) -> None:
    rewritten(model, FEEDS, 1e-5)


def test_most_rules_have_a_model_in_old_opsets() -> None:
    tried = {opset: sum(1 for _, o, _ in OLDER.values() if o == opset) for opset in MUST_FIRE}
    assert min(tried.values()) > 0.9 * len(RULES)
    assert len(OLDER_MAPS) > 1.6 * len(ALL)


@pytest.mark.parametrize("model", OLDER_MAPS.values(), ids=OLDER_MAPS)
def test_a_map_is_batched(model: onnx.ModelProto) -> None:
    """Including Softmax and similar operators, which there work on all axes from one on."""
    result = rewritten(model, Feeds(sizes=(1, 2, 7)), 1e-5).model
    assert not ops(result).keys() & {"Scan", "Loop"}


LSTM = """g (float[T,B,2] x) => (float[T,B,3] y, float[B,3] h_last)
    <float[5,12] w = {%s}, float[12] b = {%s}, int64 zero = {0}, int64 one = {1},
     int64[1] two = {2}, int64[1] three = {3}, int64[1] back = {-1}, float[1] nothing = {0}> {
    sizes = Shape(x) steps = Gather(sizes, zero) batch = Gather(sizes, one)
    rows = Unsqueeze<axes=[0]>(batch) shape = Concat<axis=0>(rows, three)
    start = Expand(nothing, shape) c0 = Less(zero, steps)
    k, h_last, c_last, v, y = Loop (, c0, zero, start, start, w) <body = step
        (int64 i, bool ci, int64 t, float[B,3] h, float[B,3] c, float[5,12] u)
        => (bool co, int64 t1, float[B,3] h1, float[B,3] c1, float[5,12] u1, float[B,3] row) {
        xt = Gather(x, t) both = Concat<axis=1>(xt, h) p = MatMul(both, u) q = Add(p, b)
        gi, gf, gg, go = Split<axis=1, split=[3, 3, 3, 3]>(q)
        i1 = Sigmoid(gi) f1 = Sigmoid(gf) g1 = Tanh(gg) o1 = Sigmoid(go)
        kept = Mul(f1, c) new = Mul(i1, g1) c1 = Add(kept, new) s1 = Tanh(c1) h1 = Mul(o1, s1)
        wide = Unsqueeze<axes=[0]>(h1) row = Squeeze<axes=[0]>(wide)
        t1 = Add(t, one) co = Less(t1, steps) u1 = Identity(u) }> }"""


def _numbers(count: int) -> str:
    return ", ".join(f"{(7 * k % 11 - 5) / 8}" for k in range(count))


@pytest.mark.parametrize("opset", [9, 10, 11, 12])
def test_a_counted_cell_is_the_operator(opset: int) -> None:
    """As TensorFlow exports it: a while loop that carries its weights."""
    model = parse(LSTM % (_numbers(60), _numbers(12)), opset)
    result = rewritten(model, Feeds(sizes=(1, 2, 7)), 1e-5).model
    assert ops(result)["LSTM"] == 1
    assert "Loop" not in ops(result)


SOFTMAX = """g (float[T,2,4] x, float[3] s0) => (float[T,2,4] y, float[3] s_last)
    <int64 zero = {0}, bool true = {1}> {
    sizes = Shape(x) n = Gather(sizes, zero)
    s_last, y = Loop (n, true, s0) <body = step (int64 i, bool ci, float[3] s)
        => (bool co, float[3] so, float[2,4] row) {
        co = Identity(ci) so = Tanh(s) xt = Gather(x, i) e = Exp(xt) row = %s(e) }> }"""


@pytest.mark.parametrize("op", ["Softmax<axis=0>", "LogSoftmax<axis=0>", "Softmax", "Hardmax"])
@pytest.mark.parametrize("opset", [7, 9, 12, 13])
def test_softmax_works_on_all_axes_from_one_on(op: str, opset: int) -> None:
    result = rewritten(parse(SOFTMAX % op, opset), Feeds(sizes=(0, 1, 5)), 1e-6).model
    assert op.partition("<")[0] in [node.op_type for node in result.graph.node]


ONLY_CARRIED = """g (float[T,4] x, float[4] s0, int64 n) => (float[K,4] y) <float big = {1.5}, bool true = {1}> {
    s_last, y = Loop (n, true, s0) <body = step (int64 i, bool ci, float[4] s)
        => (bool co, float[4] so, float[4] row) {
        xt = Gather(x, i) row = Add(xt, s) m = ReduceMax<keepdims=0>(xt) co = Less(m, big)
        so = Identity(s) }> }"""


@pytest.mark.parametrize(("opset", "carried"), [(7, 1), (10, 1), (11, 0), (13, 0)])
def test_a_loop_keeps_a_carried_value_where_it_must_have_one(opset: int, carried: int) -> None:
    """Before opset 11 a Loop has at least one (ONNX operator specification)."""
    model = parse(ONLY_CARRIED, opset)
    result = rewritten(model, Feeds(sizes=(3,), values={"n": [0, 1, 3]})).model
    (loop,) = (node for node in result.graph.node if node.op_type == "Loop")
    assert len(loop.input) == 2 + carried
