"""What contradicts the specification at the boundaries of bodies is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx.parser
import pytest

from looplift.lowering import emit
from looplift.rewrite.errors import ModelError

HEADER = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>\n'
BRANCHES = """then_branch = t () => (float[2] a) { a = Exp(x) },
              else_branch = e () => (float[2] b) { b = Neg(x) }"""
STEP = (
    "body = b (int64 i, bool c, float[2] s) => (bool d, float[2] r) { r = Exp(s) d = Identity(c) }"
)

REFUSED = {
    "the condition is float32.., where one element of type bool": f"""
        g (float[2] x, float c) => (float[2] y) {{ y = If (c) <{BRANCHES}> }}""",
    "the condition is bool.2., where one element of type bool": f"""
        g (float[2] x, bool[2] c) => (float[2] y) {{ y = If (c) <{BRANCHES}> }}""",
    "the condition is float32.2., where one element of type bool": f"""
        g (float[2] x) => (float[2] y) {{ c = Exp(x) y = If (c) <{BRANCHES}> }}""",
    "then_branch has 1 outputs, but the If has 2": f"""
        g (float[2] x, bool c) => (float[2] y) {{ y, z = If (c) <{BRANCHES}> }}""",
    "the trip count is float32.., where one element of type int64": f"""
        g (float[2] x, float m) => (float[2] y) {{ y = Loop (m, , x) <{STEP}> }}""",
    "the trip count is float32.2., where one element of type int64": f"""
        g (float[2] x) => (float[2] y) {{ m = Exp(x) y = Loop (m, , x) <{STEP}> }}""",
    "the carried value 's' starts as int64.2., but the body declares float32": f"""
        g (int64[2] x, int64 m) => (float[2] y) {{ y = Loop (m, , x) <{STEP}> }}""",
    "The body has 3 inputs, but .* 2 carried values": f"""
        g (float[2] x, int64 m) => (float[2] y) {{ y = Loop (m, , x, x) <{STEP}> }}""",
    "The body has 2 outputs, but 3 are needed: .* 1 scan outputs": f"""
        g (float[2] x, int64 m) => (float[2] y) {{ y, z = Loop (m, , x) <{STEP}> }}""",
    "The body has 1 outputs, but 2 are needed: condition, 1 carried values": """
        g (float[2] x, int64 m) => (float[2] y) { y = Loop (m, , x) <
            body = b (int64 i, bool c, float[2] s) => (bool d) { d = Identity(c) }> }""",
    "the condition of the body is float32.., where one element of type bool": """
        g (float[2] x, int64 m) => (float[2] y) { y = Loop (m, , x) <
            body = b (int64 i, bool c, float[2] s) => (float d, float[2] r) {
                r = Exp(s) d = Cast <to = 1> (c) }> }""",
    "num_scan_inputs is 2, but the Scan has 1 inputs": """
        g (float[2] x) => (float[2] y) { y = Scan <num_scan_inputs = 2,
            body = b (float s) => (float r) { r = Exp(s) }> (x) }""",
    "none is number 2": """
        g (float[2] x) => (float[2] y) { y = Scan <num_scan_inputs = 1, scan_input_axes = [2],
            body = b (float s) => (float r) { r = Exp(s) }> (x) }""",
    "scan output 0 has 1 dimensions, and none is number 3": """
        g (float[2] x) => (float[2] y) { y = Scan <num_scan_inputs = 1, scan_output_axes = [3],
            body = b (float s) => (float r) { r = Exp(s) }> (x) }""",
    "scan_input_axes has 2 entries for 1 tensors": """
        g (float[2] x) => (float[2] y) { y = Scan <num_scan_inputs = 1, scan_input_axes = [0, 0],
            body = b (float s) => (float r) { r = Exp(s) }> (x) }""",
    "scan_output_directions .2. are not all 0 or 1": """
        g (float[2] x) => (float[2] y) { y = Scan <num_scan_inputs = 1, scan_output_directions = [2],
            body = b (float s) => (float r) { r = Exp(s) }> (x) }""",
    "A function of the model calls itself": """
        g (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 17, "local" : 1]> f (a) => (b) { b = local.h(a) }
        <domain: "local", opset_import: ["" : 17, "local" : 1]> h (a) => (b) { b = local.f(a) }""",
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused(message: str) -> None:
    model = onnx.parser.parse_model(HEADER + REFUSED[message])
    with pytest.raises(ModelError, match=message):
        emit(model)


def test_a_carried_value_that_changes_its_type(stock: Callable[..., Any]) -> None:
    model = onnx.parser.parse_model(
        HEADER
        + """
        g (float[2] x, int64 m) => (float[2] y) { y = Loop (m, , x) <
            body = b (int64 i, bool c, float[2] s) => (bool d, float[2] r) {
                r = Exp(s) d = Identity(c) }> }"""
    )
    body = model.graph.node[0].attribute[0].g
    body.node[0].CopyFrom(onnx.helper.make_node("Cast", ["s"], ["r"], to=onnx.TensorProto.INT64))
    with pytest.raises(
        ModelError, match="the carried value 's' starts as float32 and becomes int64"
    ):
        stock(model.SerializeToString())
