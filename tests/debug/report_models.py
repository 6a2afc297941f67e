"""Models that the tests of the report draw."""

from __future__ import annotations

import onnx
from onnx import parser

HOSTILE = "</script><img src=x onerror='window.hacked=1'>\"&amp;`"
"""A name that would break out of a page that parses names as markup."""

DEMO = """g (int64 rate, int64 n, float[N] x) => (float[N] y, float[N] last) {
    k = Constant<value_int = 16000>()
    wide = Equal(rate, k)
    z = Identity(x)
    y = If(wide) <
        then_branch = fast () => (float[N] p) { u = Relu(z) p = Exp(u) },
        else_branch = slow () => (float[N] q) { q = Neg(z) }
    >
    go = Constant<value = bool {1}>()
    last = Loop(n, go, x) <
        body = step (int64 i, bool c, float[N] h) => (bool d, float[N] next) {
            d = Identity(c)
            one = Constant<value_float = 1.0>()
            t = Sin(h)
            s = Mul(t, t)
            f = Add(s, one)
            next = Mul(f, z)
        }
    >
}"""


def model(text: str = DEMO) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')


def hostile() -> onnx.ModelProto:
    """The model with names, values and a doc string that are markup."""
    proto = model()
    for node in proto.graph.node:
        node.input[:] = [HOSTILE if name == "x" else name for name in node.input]
        if node.op_type in ("If", "Loop"):
            node.name = f"{node.op_type}{HOSTILE}"
    proto.graph.input[2].name = HOSTILE
    proto.graph.doc_string = HOSTILE
    return proto


def chain(length: int) -> onnx.ModelProto:
    """A long model: rules remove each fourth node, and its first value has many readers."""
    lines = ["v0 = Relu(x)"]
    for number in range(length):
        op = ("Add", "Neg", "Identity", "Mul")[number % 4]
        operand = ", v0" if op in ("Add", "Mul") else ""
        lines.append(f"v{number + 1} = {op}(v{number}{operand})")
    lines.append(f"y = Relu(v{length})")
    return model(f"g (float[N] x) => (float[N] y) {{ {' '.join(lines)} }}")
