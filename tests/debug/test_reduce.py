from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

from looplift import LoopliftError, Match, Phase, Rule
from looplift.debug.model_text import shortened_text
from looplift.debug.reduce.criteria import Verdict, criterion
from looplift.debug.reduce.edits import (
    NotPossible,
    drop_nodes,
    normalised,
    size,
    tidy,
    types_of,
    walk,
)
from looplift.debug.reduce.reduce import Files, ReduceResult, reduce, render
from looplift.debug.reduce.resizing import Resizing
from looplift.debug.reduce.search import Progress, Reduction, Search
from looplift.plugins import all_phases
from looplift.request import Request
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.errors import ModelError
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.graph.ir import Node

NESTED = """g (float[T, 4] x, int64 m, bool c, float[4] b) => (float[T, 4] y, float[T, 4] z)
<float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}> {
    p = Abs(x)
    q = MatMul(p, w)
    y = If (c) <
        then_branch = t () => (float[T, 4] a) {
            a, rows = Loop (m, , q, x) <
                body = l (int64 i, bool go, float[T, 4] s, float[T, 4] u)
                => (bool on, float[T, 4] n, float[T, 4] v) {
                    on = Identity(go)
                    k = Sin(s)
                    h = Add(k, b)
                    n = Tanh(h)
                    v = Add(u, n)
                }
            >
        },
        else_branch = e () => (float[T, 4] d) { d = Neg(q) }
    >
    z = Exp(p)
}"""


class SinIsCos(Rule[Node]):
    """Replaces a Sin by a Cos, which is wrong."""

    root = "Sin"

    def match(self, m: Match) -> Node:
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        patch.replace(found.outputs[0], patch.node("Cos", found.inputs, found.outputs)[0])
        patch.remove(found)
        patch.toward_normal_form()


class SinIsWrong(Rule[Node]):
    """Raises an error at each Sin."""

    root = "Sin"

    def match(self, m: Match) -> Node:
        raise NotImplementedError("Unfinished")

    def apply(self, patch: Patch, node: Node) -> None:
        raise AssertionError


class ModIsIdentity(Rule[Node]):
    """Replaces a Mod by its first operand, which is wrong from the second operand on."""

    root = "Mod"

    def match(self, m: Match) -> Node:
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        patch.replace_node(found, [found.inputs[0]])
        patch.toward_normal_form()


WRONG = (*all_phases(), Phase("wrong", (SinIsCos,), "Wrong."))


def model(text: str = NESTED) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for _, graph in walk(proto.graph) for node in graph.node]


class TestWhatIsKept:
    def test_a_difference(self, tmp_path: Path) -> None:
        found = reduce(Request.of(model(), phases=WRONG), tmp_path / "s.onnx")
        assert operators(found.reduction.model) == ["Sin"]
        assert found.reduction.before == size(model()) == 11
        assert found.status == 1
        assert onnx.load(tmp_path / "s.onnx") == found.reduction.model
        assert found.files.text.read_text().count("Sin") == 1
        onnx.checker.check_model(found.reduction.model)

    def test_a_file_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "s.txt").mkdir()
        with pytest.raises(ModelError, match=r"text of the model cannot be written.*s\.txt"):
            reduce(Request.of(model(), phases=WRONG), tmp_path / "s.onnx")

    def test_a_difference_at_few_sizes(self, tmp_path: Path) -> None:
        """A verification tries more sizes than a search needs to; both must find the same."""
        text = """g (float[T] x, float[B] b) => (float[T] y, float[B] z) <int64 seven = {7}> {
            s = Size(x) r = Mod(s, seven) f = Cast<to = 1>(r) y = Add(x, f) z = Neg(b) }"""
        phases = (Phase("wrong", (ModIsIdentity,), "Wrong."),)
        found = reduce(Request.of(model(text), phases=phases), tmp_path / "s.onnx")
        assert operators(found.reduction.model) == ["Size", "Mod"]

    def test_the_output_of_one_iteration_has_a_type(self, tmp_path: Path) -> None:
        text = """g (float[T, 4] x, int64 m, bool c) => (float[K, T, 4] rows) {
            rows = Loop (m, c) < body = l (int64 i, bool go) => (bool on, float[T, 4] v) {
                on = Identity(go) u = Abs(x) v = Sin(u) }> }"""
        found = reduce(Request.of(model(text), phases=WRONG), tmp_path / "s.onnx")
        assert operators(found.reduction.model) == ["Sin"]
        onnx.checker.check_model(found.reduction.model, full_check=True)

    def test_control_flow_that_remains(self, tmp_path: Path) -> None:
        found = reduce(Request.of(model()), tmp_path / "s.onnx", keep="left Loop")
        assert operators(found.reduction.model).count("Loop") == 1
        assert found.reduction.after <= 5
        assert found.reduction.nearest is not None

    def test_a_rule_that_fires(self, tmp_path: Path) -> None:
        given = Request.of(model(), Assertions({"c": True}))
        found = reduce(given, tmp_path / "s.onnx", keep="fires InlineDecidedIf")
        assert sorted(operators(found.reduction.model)).count("If") == 1
        assert found.reduction.after <= 4

    def test_a_mask_with_its_axis(self, tmp_path: Path) -> None:
        """The test that is written asserts it, too, but nothing about removed inputs."""
        text = """g (float[T,B,3] x, bool[T,B] mask, bool[B] other, float[B,3] h0)
            => (float[B,3] h, bool[B] o) <int64[1] last = {2}> {
            m3 = Unsqueeze(mask, last) o = Not(other)
            h = Scan <num_scan_inputs=2, body = b (float[B,3] s, float[B,3] xt, bool[B,1] m)
                => (float[B,3] so) {
                a = Add(s, xt) n = Tanh(a) so = Where(m, n, s) }> (h0, x, m3) }"""
        given = Request.of(model(text), Assertions(prefix_masks={"mask": 1, "other": None}))
        keep = "reason FuseRecurrence: the mask `mask` is asserted along axis 1"
        found = reduce(given, tmp_path / "s.onnx", keep=keep)
        assert "Not" not in operators(found.reduction.model)
        assert "prefix_masks={'mask': 1})" in found.files.test.read_text()
        with pytest.raises(AssertionError):
            runpy.run_path(str(found.files.test))["test_s"]()

    def test_a_reason(self, tmp_path: Path) -> None:
        given = Request.of(model())
        keep = "reason InlineDecidedIf: the condition `c` is not known"
        found = reduce(given, tmp_path / "s.onnx", keep=keep)
        assert "If" in operators(found.reduction.model)

    @pytest.mark.parametrize("words", ["SinIsWrong", "Unfinished", "SinIsWrong at Sin"])
    def test_a_rule_that_fails(self, words: str, tmp_path: Path) -> None:
        """It is found by all that is printed of a defect: `rule failed: SinIsWrong at …`."""
        given = Request.of(model(), phases=(Phase("failing", (SinIsWrong,), "Fails."),))
        found = reduce(given, tmp_path / "s.onnx", keep=f"error {words}")
        assert operators(found.reduction.model) == ["Sin"]

    def test_a_command(self, tmp_path: Path) -> None:
        script = tmp_path / "device.py"
        script.write_text(
            "import pathlib, sys\n"
            "model = pathlib.Path(sys.argv[1]).read_bytes()\n"
            "sys.exit(b'Tanh' in model and b'MatMul' in model)\n"
        )
        given = Request.of(model())
        command = f"{sys.executable} {script}"
        found = reduce(given, tmp_path / "s.onnx", command=command)
        assert {"MatMul", "Tanh"} <= set(operators(found.reduction.model))
        assert found.reduction.after <= 5
        assert "subprocess" in found.files.test.read_text()

    def test_what_it_does_not_show(self, tmp_path: Path) -> None:
        with pytest.raises(LoopliftError, match="does not show what it must keep: differs"):
            reduce(Request.of(model()), tmp_path / "s.onnx")
        assert list(tmp_path.iterdir()) == []

    def test_a_model_that_onnxruntime_rejects(self, tmp_path: Path) -> None:
        text = "g (float[N] x) => (float[N] y) { y = Softmax<axis = 5>(x) }"
        given = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
        with pytest.raises(LoopliftError, match="onnxruntime rejects it") as caught:
            reduce(Request.of(given), tmp_path / "s.onnx", keep="error axis")
        assert "looplift verify" in caught.value.remedy
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("keep", ["", "fires", "nonsense", "left"])
    def test_an_unknown_criterion(self, keep: str) -> None:
        with pytest.raises(LoopliftError, match="not something that a model can show"):
            criterion(Request.of(model()), keep, "")


class TestProgress:
    def test_a_call_that_goes_on(self, tmp_path: Path) -> None:
        """A search that is interrupted again and again finds the same model."""
        given = Request.of(model(), phases=WRONG)
        straight = reduce(given, tmp_path / "a.onnx").reduction
        asked = criterion(given, "differs", "")
        checks = 0
        for _ in range(100):
            progress = Progress(tmp_path / "b.onnx", given.proto, asked.text)
            found = Search(asked, "", progress, seconds=0.05).run(given.proto)
            progress.close(found.finished)
            checks += found.checks
            if found.finished:
                break
            assert progress.path.exists()
        assert found.finished
        assert found.model == straight.model
        assert checks == straight.checks
        assert not progress.path.exists()

    def test_candidates_that_come_again_are_called_repeated(self, tmp_path: Path) -> None:
        """A call that continues nothing has some, too."""
        files = Files(tmp_path / "a.onnx", tmp_path / "a.txt", tmp_path / "test_a.py", None)
        found = Reduction(20, model(), checks=15, remembered=3, seconds=0.7)
        assert "(15 checks, 0.7 s, 3 repeated)" in str(render(ReduceResult(found, files), "m")[1])

    def test_another_criterion_starts_again(self, tmp_path: Path) -> None:
        output = tmp_path / "s.onnx"
        first = Progress(output, model(), "one")
        first.note("key", Verdict.CLEAN)
        first.close(finished=False)
        assert Progress(output, model(), "one").verdict("key") is Verdict.CLEAN
        assert Progress(output, model(), "two").verdict("key") is None

    def test_a_line_that_was_cut_off(self, tmp_path: Path) -> None:
        output = tmp_path / "s.onnx"
        first = Progress(output, model(), "one")
        first.note("key", Verdict.SHOWS)
        first.close(finished=False)
        with first.path.open("a") as file:
            file.write(json.dumps({"candidate": "half"})[:9])
        assert Progress(output, model(), "one").verdict("key") is Verdict.SHOWS


class TestEdits:
    def test_what_is_no_longer_computed_becomes_an_input(self) -> None:
        proto = normalised(model(), "")
        types = types_of(proto, "")
        drop_nodes(proto, (), 0, 2)
        tidy(proto, types)
        assert {info.name for info in proto.graph.input} >= {"p", "q", "c", "m"}
        onnx.checker.check_model(proto, full_check=True)

    def test_nothing_is_left(self) -> None:
        proto = normalised(model(), "")
        types = types_of(proto, "")
        drop_nodes(proto, (), 0, 4)
        with pytest.raises(NotPossible):
            tidy(proto, types)

    def test_names_are_given_once(self) -> None:
        text = NESTED.replace("k = Sin(s)", "d = Sin(s)").replace("Add(k, b)", "Add(d, b)")
        proto = normalised(model(text), "")
        names = [name for _, graph in walk(proto.graph) for n in graph.node for name in n.output]
        assert len(names) == len(set(names))

    def test_sizes(self) -> None:
        proto = normalised(model(), "")
        Resizing(4, 2)(proto)
        assert list(proto.graph.initializer[0].dims) == [2, 2]
        widths = [info.type.tensor_type.shape.dim[-1].dim_value for info in proto.graph.output]
        assert widths == [2, 2]


def test_large_tensors_are_shortened_in_text() -> None:
    numbers = ",".join(["7"] * 1200)
    text = shortened_text(
        model(
            f"""g (float[2, 30] x) => (float[2, 40] y) <float[30, 40] w = {{{numbers}}}> {{
            k = Constant<value = float[40] {{{numbers[:79]}}}>() p = MatMul(x, w) y = Add(p, k) }}"""
        )
    )
    assert "float[30,40] w =  {7,7,7,7,…}" in text
    assert "float[40]  {7,7,7,7,…}" in text
    assert len(text) < 400
    small = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    assert parser.parse_model(shortened_text(small)) == small
