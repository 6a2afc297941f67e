"""200 random models with loops compute the same after rewriting. `make fuzz` runs more."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest
from onnx import parser

from .check_rewrite import check_rewrite, reproducer
from .loops import make_feeds, make_model
from .report import explained
from .shrink import shrink

MODELS = 200
GROUPS = 8


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_loops_compute_the_same(group: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(group, MODELS, GROUPS):
        findings = check_rewrite(make_model(seed), make_feeds(seed), tally)
        assert not findings, explained(seed, findings)
    # Checks that the generator makes models that run and have loops.
    assert tally["runs"] >= MODELS // GROUPS * 4
    assert tally["Loops before"] >= MODELS // GROUPS // 2
    assert tally["Loops after"] < tally["Loops before"]


def test_a_seed_gives_one_model() -> None:
    assert make_model(7).SerializeToString() == make_model(7).SerializeToString()
    assert make_model(7).SerializeToString() != make_model(8).SerializeToString()


def test_the_models_hold_what_the_rules_are_about() -> None:
    operators: Counter[str] = Counter()
    for seed in range(MODELS):
        pending = [make_model(seed).graph]
        while pending:
            graph = pending.pop()
            operators.update(node.op_type for node in graph.node)
            pending += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    wanted = {
        "Loop",
        "Scan",
        "If",
        "Gather",
        "Concat",
        "ScatterND",
        "ScatterElements",
        "Slice",
        "SplitToSequence",
        "SequenceAt",
        "SequenceInsert",
        "ConcatFromSequence",
        "LessOrEqual",
    }
    assert wanted <= set(operators)


WRONG = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3] x, float[3] y, int64 m) => (float[3] a, float[3] b) {
    u = Neg(y)
    a, b = Loop (m, , x, u) <body = body (int64 i, bool go, float[3] s, float[3] t)
        => (bool on, float[3] s1, float[3] t1) { on = Identity(go) s1 = Sin(s) t1 = Exp(t) }>
}"""


def test_a_reproducer_holds_the_model_it_speaks_of() -> None:
    model = parser.parse_model(WRONG)
    text = reproducer(model, ["output 'a': 1 instead of 2"], 3)
    start, end = text.index('"""') + 3, text.rindex('"""')
    again = parser.parse_model(text[start:end])
    assert again.graph.node[1].op_type == "Loop"
    assert "# output 'a': 1 instead of 2" in text


def test_shrinking_keeps_what_fails_and_little_else() -> None:
    def holds_sin(model: onnx.ModelProto) -> bool:
        return "Sin" in str(model) and len(model.graph.output) > 0

    small = shrink(parser.parse_model(WRONG), holds_sin)
    loop = next(node for node in small.graph.node if node.op_type == "Loop")
    assert [output.name for output in small.graph.output] == ["a"]
    assert [node.op_type for node in loop.attribute[0].g.node].count("Exp") == 0
