"""A model with an If and a Loop that remain, and the text that explains a model."""

from __future__ import annotations

import onnx
from onnx import parser
from rich.console import Console

from looplift.debug.explain.explain import Explanation
from looplift.debug.explain.render import render

TEXT = """g (float[N] x, int64 rate, int64 m) => (float[N] y) <int64 fast = {16000}> {
    same = Cast<to = 7>(rate)
    c = Equal(same, fast)
    y = If (c) <
        then_branch = t () => (float[N] p) {
            p = Loop (m, , x) <body = b (int64 i, bool go, float[N] s) => (bool on, float[N] n) {
                on = Identity(go) k = Sin(s) h = Exp(k) n = Tanh(h)
            }>
        },
        else_branch = e () => (float[N] q) { q = Neg(x) }
    >
}"""


def model(text: str = TEXT) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


def shown(found: Explanation) -> str:
    console = Console(width=500, no_color=True)
    with console.capture() as captured:
        for part in render(found, "model", everything=True, origins=True):
            console.print(part)
    return captured.get()
