"""What onnxruntime computes wrongly for empty inputs is not held against a rewrite."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import pytest

from looplift.rewrite.running import verify as verifying
from looplift.rewrite.running.cases import Case
from looplift.rewrite.running.compare import Tolerances
from looplift.rewrite.running.nondeterminism import scan_outputs
from looplift.rewrite.running.runtime import (
    IsolatedSession,
    RuntimeValue,
    SerializedModel,
    Session,
)
from looplift.rewrite.running.verify import Candidate, Verification, is_empty_stack, verify

from ...small_models import model


@dataclass
class Returns:
    """A model that always returns the same."""

    outputs: list[Any]

    def run(self, feed: Any, seconds: float | None = None) -> list[Any]:
        return self.outputs


class _UnwrittenForEmpty(IsolatedSession):
    """Simulates an optimizer after which results for empty inputs are memory that nothing wrote."""

    contents = itertools.count(1)

    def __init__(
        self, packed: SerializedModel, threads: int, *, optimizes: bool, seconds: float | None
    ) -> None:
        super().__init__(packed, threads, optimizes=optimizes, seconds=seconds)
        self._forgets = optimizes

    def run(
        self, feed: Mapping[str, RuntimeValue], seconds: float | None = None
    ) -> list[RuntimeValue]:
        outputs = super().run(feed, seconds)
        if not self._forgets or all(np.asarray(value).size for value in feed.values()):
            return outputs
        return [np.full_like(value, next(self.contents)) for value in outputs]


def test_an_optimizer_that_leaves_results_of_empty_sums_unwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both models are compared without it then; a difference that remains counts."""
    monkeypatch.setattr(verifying, "IsolatedSession", _UnwrittenForEmpty)

    def summed(nodes: str) -> onnx.ModelProto:
        return model(
            f"""g (float[T,3] x) => (float[1,3] y) <int64[1] a = {{0}}, float one = {{1}}> {{
              s = ReduceSum(x, a) {nodes} }}"""
        )

    before = summed("y = Neg(s)")
    result = verify(before, summed("z = Sub(s, s) y = Sub(z, s)"))
    assert result.verified
    assert {"T": 0} not in result.sizes
    (note,) = result.notes()
    assert (
        note
        == "`y` differs at T=0, which does not count: without onnxruntime's optimizer it does not"
    )
    at_zero = "c = Shape<start=0, end=1>(x) d = Cast<to=1>(c) e = Sub(one, d) f = Relu(e)"
    wrong = verify(before, summed(f"{at_zero} n = Neg(s) y = Add(n, f)"))
    assert {tuple(found.sizes.items()) for found in wrong.differences} == {(("T", 0),)}


class TestReductionsOfEmptyTensors:
    """onnxruntime gives their results the shape of the operand, which a rewrite may not share."""

    SUM = "g (float[T,3] x) => (float[?] y) { y = ReduceSum<axes = [-2], keepdims = 0>(x) }"
    RIGHT = """g (float[T,3] x) => (float[?] y) <float[1] one = {1}> {
        s = Shape<start = 0, end = 1>(x) row = Expand(one, s)
        y = MatMul(row, x) }"""

    def test_are_not_held_against_the_rewrite(self) -> None:
        before = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 11]> {self.SUM}')
        after = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 15]> {self.RIGHT}')
        result = verify(before, after)
        assert result.verified
        assert result.empty_reductions == [{"T": 0}]
        assert any("reduction of an empty tensor" in note for note in result.notes())

    def test_positions_of_extremes(self) -> None:
        text = "g (float[T,3] x) => (int64[?] y) <int64[1] a = {1}> { BODY }"
        before = text.replace("BODY", "y = ArgMax<axis = -1, keepdims = 0>(x)")
        after = text.replace("BODY", "k = ArgMax<axis = 1>(x) y = Squeeze(k, a)")
        result = verify(model(before), model(after))
        assert result.verified
        assert result.empty_reductions == [{"T": 0}]

    def test_others_still_count(self) -> None:
        wrong = self.RIGHT.replace("{1}", "{2}")
        before = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 11]> {self.SUM}')
        after = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 15]> {wrong}')
        assert verify(before, after).differences


class TestScanOutputsOfNoIterations:
    """onnxruntime gives sizes that it does not know as 0; the specification does not define them."""

    LOOP = """g (float[T,1] x, int64 m, bool c) => (float[K,T,1] y) {
        y = Loop (m, c) <body = b (int64 i, bool go) => (bool on, float[T,1] r) {
            on = Identity(go) r = Neg(x) }> }"""
    TILED = """g (float[T,1] x, int64 m, bool c) => (float[K,T,1] y) <int64[1] zero = {0}> {
        n = OP(x) i = Cast<to = 7>(c) p = Mul(m, i) v = Unsqueeze(p, zero) k = Max(v, zero)
        t = Shape(x)
        s = Concat<axis = 0>(k, t) y = Expand(n, s) }"""

    def verified(self, op: str) -> Verification:
        text = self.TILED.replace("OP", op)

        before = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {self.LOOP}')
        after = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
        return verify(before, after)

    def test_are_not_held_against_the_rewrite(self) -> None:
        assert self.verified("Neg").verified

    def test_others_still_count(self) -> None:
        assert self.verified("Abs").differences

    def test_are_of_any_rank_where_the_body_states_none(self) -> None:
        text = """g (float[T,1] x, int64 m, bool c) => (float[K,T,1] y) {
            z, y = Loop (m, c, x) <body = b (int64 i, bool go, float[T,1] p)
                => (bool on, float[T,1] q, float[T,1] r) {
                on = Identity(go) q = Identity(p) r = Neg(p) }> }"""
        before, after = (
            onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
            for graph in (text, self.TILED.replace("OP", "Neg"))
        )
        body = before.graph.node[0].attribute[0].g
        for info in (body.input[2], *body.output[1:]):
            info.type.tensor_type.ClearField("shape")
        verification = verify(before, after, sizes={"T": [2]})
        assert verification.verified
        assert verification.empty_scan_outputs == {"y": "shape [0, 2, 1] instead of [0]"}

    def test_a_note_says_what_differs(self) -> None:
        verification = self.verified("Neg")
        assert verification.empty_scan_outputs == {"y": "shape [0, 3, 1] instead of [0, 0, 1]"}
        (note,) = verification.notes()
        assert "`y` has shape [0, 3, 1] instead of [0, 0, 1]" in note

    @pytest.mark.parametrize(
        ("row", "stacked", "equal"),
        [
            ("q = SequenceConstruct(x, x) r = SequenceAt(q, i0)", "0, 2", True),
            ("r = Identity(x)", "0", False),  # onnxruntime knows that there are two axes
            ("r = ReduceSum<keepdims = 0>(x)", "0, 2", False),
            ("q = SequenceConstruct(x, x) r = SequenceAt(q, i0)", "2, 0", False),
        ],
    )
    def test_an_unknown_number_of_axes(self, row: str, stacked: str, equal: bool) -> None:
        before = f"""g (float[2] x, bool c) => (y) <int64 i0 = {{0}}, bool t = {{1}}> {{
            k = Cast<to = 7>(c) m = Mul(k, i0) y = Loop (m, t) <
              body = b (int64 i, bool go) => (bool on, r) {{ on = Identity(go) {row} }}> }}"""
        after = f"""g (float[2] x, bool c) => (y) <int64[{stacked.count(",") + 1}] s = {{{stacked}}}> {{
            y = ConstantOfShape(s) }}"""
        models = [
            onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
            for text in (before, after)
        ]
        models[1].graph.input[0].type.CopyFrom(models[0].graph.input[0].type)
        found = verify(*models)
        assert bool(found.differences) != equal
        assert bool(found.notes()) == equal

    ROWS = "g (float[T] x, int64 m) => (float[A,B] y) { OP }"

    @pytest.mark.parametrize(
        ("body", "dependent"),
        [
            ("y = Loop (m, ) <body = b (int64 i, bool c) => (bool d, float[T] r) { d = Identity(c) r = Neg(x) }>", True),
            ("z = Loop (m, ) <body = b (int64 i, bool c) => (bool d, float[T] r) { d = Identity(c) r = Neg(x) }> y = Neg(z)", True),
            ("y, z = Loop (m, , x) <body = b (int64 i, bool c, float[T] s) => (bool d, float[T] r, float[T] q) { d = Identity(c) r = Neg(s) q = Neg(s) }>", False),
            ("y, z = Scan<num_scan_inputs = 1, body = b (float s, float e) => (float r, float q) { r = Neg(s) q = Add(s, e) }>(m, x)", False),
            ("y = Loop (m, , x) <body = b (int64 i, bool c, float[T] s) => (bool d, float[T] r) { d = Identity(c) z = Loop (m, ) <body = e (int64 j, bool f) => (bool h, float[T] k) { h = Identity(f) k = Neg(s) }> r = ReduceSum<keepdims = 0>(z) }>", True),
        ],
    )  # fmt: skip
    def test_only_outputs_that_depend_on_a_scan_output_of_a_loop(
        self, body: str, dependent: bool
    ) -> None:
        text = self.ROWS.replace("OP", body.replace("(m, )", "(m, t)")).replace(
            "(float[A,B] y) {", "(float[A,B] y) <bool t = {1}> {"
        )
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
        assert scan_outputs(model) == (["y"] if dependent else [])

    def test_a_carried_value_that_is_empty_counts(self) -> None:
        """A run of `before` at T=0 and m=0 returns [0, 0], where `after` returns [0, 3]."""
        before = """g (float[T,R] x, int64 m) => (float[A,B] y) {
            y = Loop (m, , x) <body = b (int64 i, bool c, float[T,R] s) => (bool d, float[T,R] r) {
                d = Identity(c) r = Neg(s) }> }"""
        after = """g (float[T,R] x, int64 m) => (float[A,B] y) <int64[2] size = {0, 3}> {
            z = ConstantOfShape(size) w = CastLike(z, x) n = Size(x) y = Identity(w) }"""
        models = [
            onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
            for text in (before, after)
        ]
        assert verify(*models).differences

    @pytest.mark.parametrize(
        ("old", "new", "same"),
        [
            ((0, 0, 3), (0, 2, 3), True),
            ((0,), (0, 2, 3), False),
            ((0, 0, 3), (2, 0, 3), True),
            ((0, 0, 3), (2, 1, 3), False),
            ((0, 2, 3), (0, 0, 3), False),
            ((2, 0), (2, 5), False),
            ((0, 1), (0, 2), False),
            ((1, 2), (1, 2), False),
        ],
    )
    def test_only_unknown_sizes_of_empty_tensors(
        self, old: tuple[int, ...], new: tuple[int, ...], same: bool
    ) -> None:
        assert is_empty_stack(np.zeros(old), np.zeros(new)) is same
        assert not is_empty_stack(np.zeros(old), np.zeros(new, np.float32))


class TestStacksOfEmptyTensors:
    STACK = """g (float[T] x, float[3] z) => (float[2,3] y) {
        s = SequenceConstruct(x, z) y = ConcatFromSequence<axis = 0, new_axis = 1>(s) }"""

    def test_only_elements_are_not_held_against_the_rewrite(self) -> None:
        """The original returns uninitialised memory for T=0, and the specification forbids it."""
        sizes = {"T": 0}
        case = Case({"x": np.zeros(0, np.float32)}, [np.zeros((2, 3), np.float32)], sizes, 0.0)
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {self.STACK}')
        original = Session(SerializedModel(model))
        other = Returns([np.ones((2, 3), np.float32)])
        compared = Candidate.of(model, original, other, Tolerances()).compare_run(case, 1.0)
        assert compared.stacks
        assert not compared.differences
        other = Returns([np.ones((2, 4), np.float32)])
        assert Candidate.of(model, original, other, Tolerances()).compare_run(case, 1.0).differences
        full = replace(case, feed=dict.fromkeys("xz", np.zeros(3, np.float32)), sizes={"T": 3})
        other = Returns([np.ones((2, 3), np.float32)])
        assert Candidate.of(model, original, other, Tolerances()).compare_run(full, 1.0).differences

    def test_sizes_that_the_data_decides(self) -> None:
        """The last row is empty. A stack of rows becomes a scan output, which onnxruntime checks."""
        head = """g (float[T,2] x, int64[2] n) => (float[2,L,2] y)
            <int64 two = {2}, int64[1] first = {0}>"""
        row = """d = Identity(c) k = Gather(n, i) end = Unsqueeze(k, first)
            row = Slice(x, first, end, first)"""
        before = model(f"""{head} {{ e = SequenceEmpty()
            s = Loop(two, "", e) <body = b (int64 i, bool c, seq(float[L,2]) q)
                => (bool d, seq(float[L,2]) r) {{ {row} r = SequenceInsert(q, row) }}>
            y = ConcatFromSequence<axis = 0, new_axis = 1>(s) }}""")
        after = model(f"""{head} {{
            y = Loop(two, "") <body = b (int64 i, bool c) => (bool d, float[L,2] row) {{ {row} }}> }}""")
        rows = np.ones((3, 2), np.float32)
        for lengths, stacks in (([2, 2], False), ([2, 0], True)):
            feed: dict[str, Any] = {"x": rows, "n": np.array(lengths)}
            original, rewritten = (Session(SerializedModel(each)) for each in (before, after))
            case = Case(feed, original.run(feed, 1.0), {"T": 3}, 0.0)
            compared = Candidate.of(before, original, rewritten, Tolerances()).compare_run(
                case, 1.0
            )
            assert (compared.stacks, compared.differences) == (stacks, [])
