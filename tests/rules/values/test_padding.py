"""FoldPadIntoConv: padding that a convolution does itself; Pads by nothing."""

from __future__ import annotations

import onnx
import pytest

from looplift.rules.values.dead_nodes import EliminateDeadNode, EliminateIdentity
from looplift.rules.values.padding import FoldPadIntoConv

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of
from ..recurrence.cell_models import constant

FEEDS = Feeds(sizes=(0, 1, 2, 7))
WEIGHT = constant("w", 3, 2, 3, 3)


def _folded(text: str, opset: int = 21) -> onnx.NodeProto:
    """The Conv of the model after the rule has run, which is as good as the model before."""
    model = parse(text, opset)
    after, trace, _ = run_rules(model, [FoldPadIntoConv, EliminateDeadNode])
    assert trace.defects() == []
    assert_equivalent(model, after, FEEDS, 1e-6)
    assert "Pad" not in ops(after)
    found: list[onnx.NodeProto] = [node for node in after.graph.node if node.op_type == "Conv"]
    assert len(found) == 1
    return found[0]


def _attributes(node: onnx.NodeProto) -> dict[str, object]:
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def test_padding_on_one_side_adds_to_that_of_the_conv() -> None:
    conv = _folded(
        f"""g (float[N,2,H,W] x) => (float[N,3,I,J] y) <{WEIGHT}, int64[8] pads = {{0, 0, 0, 2, 0, 0, 1, 0}}> {{
          p = Pad(x, pads) y = Conv<pads = [1, 0, 0, 1], strides = [2, 1]>(p, w) }}"""
    )
    assert _attributes(conv) == {"pads": [1, 2, 1, 1], "strides": [2, 1]}


def test_chosen_axes_and_a_given_zero() -> None:
    conv = _folded(
        f"""g (float[N,2,H,W] x) => (float[N,3,I,J] y) <{WEIGHT}, int64[4] pads = {{1, 2, 3, 0}}, int64[2] axes = {{-1, 2}}, float zero = {{-0.0}}> {{
          p = Pad(x, pads, zero, axes) y = Conv<auto_pad = "VALID">(p, w) }}"""
    )
    assert _attributes(conv) == {"pads": [2, 1, 0, 3]}


def test_amounts_that_are_an_attribute() -> None:
    conv = _folded(
        f"""g (float[N,2,H,W] x) => (float[N,3,I,J] y) <{WEIGHT}> {{
          p = Pad<pads = [0, 0, 1, 1, 0, 0, 1, 1], value = 0.0>(x) y = Conv(p, w) }}""",
        opset=10,
    )
    assert _attributes(conv) == {"pads": [1, 1, 1, 1]}


def test_a_pad_before_several_convs() -> None:
    model = parse(
        f"""g (float[N,2,H,W] x) => (float[N,3,I,J] y, float[N,3,K,L] z) <{WEIGHT}, int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 1}}> {{
          p = Pad(x, pads) y = Conv(p, w) z = Conv<dilations = [2, 1]>(p, w) }}""",
        opset=21,
    )
    assert ops(rewritten(model, FEEDS, 1e-6).model) == {"Conv": 2}


def test_a_pad_that_is_read_elsewhere_stays() -> None:
    model = parse(
        f"""g (float[N,2,H,W] x) => (float[N,3,I,J] y, float[N,2,K,L] z) <{WEIGHT}, int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 1}}> {{
          p = Pad(x, pads) y = Conv(p, w) z = Neg(p) }}""",
        opset=21,
    )
    assert ops(rewritten(model, FEEDS, 1e-6).model) == {"Conv": 1, "Pad": 1, "Neg": 1}


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_a_pad_by_nothing(mode: str) -> None:
    model = parse(
        f"""g (float[N,W] x) => (float[N,W] y) <int64[4] pads = {{0, 0, 0, 0}}, float one = {{1.0}}> {{
          p = Pad<mode = "{mode}">(x, pads, one) y = Neg(p) }}""",
        opset=21,
    )
    after, trace, _ = run_rules(model, [EliminateIdentity])
    assert trace.defects() == []
    assert ops(after) == {"Neg": 1}
    assert_equivalent(model, after, FEEDS)


@pytest.mark.parametrize("pads", ["0, 1, 0, 0", "0, 0, 0, 1", "0, -1, 0, 1"])
def test_a_pad_by_something_stays(pads: str) -> None:
    model = parse(
        f"""g (float[N,8] x) => (float[N,W] y) <int64[4] pads = {{{pads}}}> {{
          p = Pad(x, pads) y = Neg(p) }}""",
        opset=21,
    )
    assert "may add or remove" in reason_of(EliminateIdentity, model)


@pytest.mark.parametrize(
    ("axes", "attributes", "reason"),
    [
        ("2, 5", "", "are not known"),
        ("2, -2", "", "are not known"),
        ("2, 3", 'auto_pad = "VALID", pads = [1, 1, 1, 1]', "contradict auto_pad"),
    ],
)
def test_models_that_onnxruntime_refuses_are_declined(
    axes: str, attributes: str, reason: str
) -> None:
    model = parse(
        f"""g (float[N,2,H,W] x) => (float[N,3,I,J] y) <{WEIGHT}, int64[4] pads = {{1, 2, 3, 0}}, float zero = {{0}}, int64[2] axes = {{{axes}}}> {{
          p = Pad(x, pads, zero, axes) y = Conv{f" <{attributes}> " if attributes else ""}(p, w) }}""",
        opset=21,
    )
    assert reason in reason_of(FoldPadIntoConv, model)
