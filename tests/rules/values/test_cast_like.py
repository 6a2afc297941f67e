"""CastLike becomes a Cast that keeps its other attributes."""

from __future__ import annotations

import onnx
import pytest

from looplift.rules.values.cast_like import CastLikeToCast

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...small_models import parse


@pytest.mark.parametrize("kind", ["double", "int8", "bool", "float16", "string"])
def test_every_type(kind: str) -> None:
    model = parse(f"g (int64[3] x, {kind}[N] a) => ({kind}[3] y) {{ y = CastLike(x, a) }}", 21, 10)
    result, trace, _ = run_rules(model, [CastLikeToCast])
    assert [commit.rule for commit in trace.commits()] == ["CastLikeToCast"]
    assert ops(result) == {"Cast": 1}
    assert_equivalent(model, result)


def test_other_attributes_stay() -> None:
    model = parse(
        "g (float[3] x, float8e4m3fn[1] a) => (float[3] y) {"
        " u = CastLike<saturate = 0>(x, a)  y = Cast<to = 1>(u) }",
        21,
        10,
    )
    result, _, _ = run_rules(model, [CastLikeToCast])
    cast = result.graph.node[0]
    assert {a.name: a.i for a in cast.attribute} == {
        "saturate": 0,
        "to": onnx.TensorProto.FLOAT8E4M3FN,
    }


def test_a_cast_to_the_same_type_is_removed() -> None:
    result = rewritten(
        parse(
            "g (float[3] x, float[N] a) => (float[3] y) { u = CastLike(x, a) y = Neg(u) }", 21, 10
        )
    )
    assert ops(result.model) == {"Neg": 1}
