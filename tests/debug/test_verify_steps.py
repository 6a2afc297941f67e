from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import parser

from looplift import Match, Phase, Rule
from looplift.debug.subject import Subject
from looplift.debug.trials import Trials, exposing, trip_inputs
from looplift.debug.verify_steps import verify_steps
from looplift.plugins import all_phases
from looplift.rewrite.ir import Node
from looplift.rewrite.patch import Patch

LOOP = """g (float[2] x, int64 m, bool c) => (float[2] y) {
    near = Identity(x)
    y = If (c) <
        then_branch = t () => (float[2] a) {
            a = Loop (m, , near) <body = b (int64 i, bool go, float[2] s) => (bool on, float[2] n) {
                on = Identity(go) n = Sin(s)
            }>
        },
        else_branch = e () => (float[2] b) { b = Neg(near) }
    >
}"""


def model(text: str = LOOP) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


class SinIsCos(Rule):
    """Which it is not."""

    root = "Sin"

    def match(self, m: Match) -> dict[str, Node]:
        return {"node": m.node}

    def apply(self, patch: Patch, node: Node) -> None:
        patch.replace(node.outputs[0], patch.node("Cos", node.inputs, node.outputs)[0])
        patch.remove(node)
        patch.toward_normal_form()


WRONG = (*all_phases(), Phase("wrong", (SinIsCos,), "Wrong."))


def test_a_good_rewrite() -> None:
    found = verify_steps(Subject.of(model()))
    assert found.bad is None
    assert found.status == 0
    assert found.checked == found.steps + 1
    assert found.coverage == {"If of `y`": "True, False"}


def test_trip_counts() -> None:
    assert trip_inputs(model()) == ["m"]
    with Trials(Subject.of(model())) as trials:
        counts = {int(np.asarray(case.feed["m"])) for case in trials.cases}
    assert counts >= {0, 1, 2, 7}


def test_the_first_bad_step() -> None:
    told: list[tuple[int, int]] = []
    found = verify_steps(Subject.of(model(), phases=WRONG), progress=lambda *n: told.append(n))
    bad = found.bad
    assert bad is not None
    assert (bad.rule, bad.phase, bad.step) == ("SinIsCos", "wrong", found.steps)
    assert Path(bad.file).name == "test_verify_steps.py"
    assert bad.place == "body of Loop of `a`, in then_branch of If of `y`"
    assert (bad.tensor, bad.output) == ("y", "y")
    assert bad.expected is not None
    assert bad.actual is not None
    assert abs(bad.expected - bad.actual) > 1e-3
    assert "n" in bad.touched
    assert found.status == 1
    assert told[-1] == (found.steps, found.steps)


def test_the_first_tensor_that_differs() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Abs(x) b = Sin(a) d = Neg(b) y = Tanh(d) }"
    bad = verify_steps(Subject.of(model(text), phases=WRONG)).bad
    assert bad is not None
    assert (bad.tensor, bad.output) == ("b", "y")
    assert bad.sizes["N"] > 0


def test_nothing_to_run() -> None:
    text = "g (float8e4m3fn[N] x) => (float8e4m3fn[N] y) { z = Identity(x) y = Identity(z) }"
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["": 19]> {text}')
    found = verify_steps(Subject.of(proto))
    assert "no values are made up" in found.reason
    assert found.status == 2


def test_exposing_leaves_the_model_as_it_is() -> None:
    proto = model()
    before = proto.SerializeToString()
    more = exposing(proto, ["near", "y", "x"])
    assert [info.name for info in more.graph.output] == ["y", "near"]
    assert proto.SerializeToString() == before
