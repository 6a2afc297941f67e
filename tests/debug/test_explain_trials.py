"""Assertions that help: the ones that `explain` tries, and the ones that the user states."""

from __future__ import annotations

import math
import shlex

import numpy as np
import pytest

from looplift import AssumptionError
from looplift.commands.arguments import parse_assumptions
from looplift.debug.command_options import settings_options
from looplift.debug.explain.explain import explain
from looplift.request import Request, Settings
from looplift.rewrite.facts.assertions import Assertions

from .explained import model, shown

TWO_BATCHES = """g (float[T,xb,3] x, float[hb,3] h0) => (float[k,3] h) <int64 zero = {0}> {
    sizes = Shape(x) n = Gather(sizes, zero)
    h = Loop(n, , h0) <body = step (int64 i, bool c, float[?,3] s) => (bool d, float[?,3] next) {
        d = Identity(c) xi = Gather(x, i) e = Mul(xi, s) next = Tanh(e) }> }"""


def test_two_names_of_one_size() -> None:
    """The advice is the option that gives both sizes one name."""
    (left,) = explain(Request.of(model(TWO_BATCHES))).remaining
    assert "broadcasts sizes xb and hb" in left.why[0].reason
    effects = {trial.option: trial.effect for trial in left.trials}
    assert effects["--shape h0=xb,3"] == "LoopToPaddedScan makes it a Scan"


def test_two_names_of_one_size_in_several_inputs() -> None:
    text = TWO_BATCHES.replace("float[hb,3] h0)", "float[hb,3] h1, float[hb,3] h2)")
    text = text.replace("h = Loop", "h0 = Add(h1, h2) h = Loop")
    (left,) = explain(Request.of(model(text))).remaining
    effects = {trial.option: trial.effect for trial in left.trials}
    assert effects["--shape h1=xb,3 --shape h2=xb,3"] == "LoopToPaddedScan makes it a Scan"


def test_sizes_that_looplift_named_get_no_name_from_the_user() -> None:
    far = "far = NonZero(h0) flat = Cast<to = 1>(far) h1 = Reshape(flat, rows) h = Loop"
    text = TWO_BATCHES.replace("h = Loop", far).replace("(n, , h0)", "(n, , h1)")
    text = text.replace("<int64 zero = {0}>", "<int64 zero = {0}, int64[2] rows = {-1, 3}>")
    (left,) = explain(Request.of(model(text))).remaining
    assert "which are not known to be equal" in left.why[0].reason
    assert not any("--shape" in trial.option for trial in left.trials)


WEIGHTS = "float[4,3] w = {1,2,3,4,5,6,7,8,9,1,2,3}, float[3,3] r = {1,2,3,4,5,6,7,8,9}"


RNN = """h = Loop(n, , h0) <body = step (int64 i, bool c, float[?,3] s) => (bool d, float[?,3] next) {
    d = Identity(c) xi = Gather(x, i) a = MatMul(xi, w) b = MatMul(s, r) e = Add(a, b)
    next = Tanh(e) }>"""


def test_a_size_that_the_reason_does_not_name() -> None:
    """Where T may be 0, the shape after the Reshapes is not known."""
    zeros = (
        "b = Gather(sizes, zeros) shape = Concat<axis = 0>(b, three) h0 = ConstantOfShape(shape)"
    )
    rows = """t = Gather(sizes, ones) k = Mul(b, t) flat = Concat<axis = 0>(k, minus)
        back = Concat<axis = 0>(b, t, minus) m0 = Reshape(u, flat) m1 = MatMul(m0, p)
        v = Reshape(m1, back) x = Transpose<perm = [1, 0, 2]>(v)"""
    given = model(f"""g (float[B,T,4] u) => (float[k,3] h) <int64 one = {{1}}, int64[1] zeros = {{0}},
        int64[1] ones = {{1}}, int64[1] three = {{3}}, int64[1] minus = {{-1}}, {WEIGHTS},
        float[4,4] p = {{1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}}> {{
        sizes = Shape(u) n = Gather(sizes, one) {zeros} {rows} {RNN} }}""")
    (left,) = explain(Request.of(given)).remaining
    assert "--dim T=…" not in left.why[0].remedies
    effects = {trial.option: trial.effect for trial in left.trials}
    assert effects == {'--dim "T>=1"': "FuseRecurrence removes it; no control flow remains"}


def test_what_an_engine_does_not_run() -> None:
    zeros = "b = Gather(sizes, one) shape = Concat<axis = 0>(b, three) h0 = ConstantOfShape(shape)"
    given = model(f"""g (float[T,B,4] x) => (float[k,3] h) <int64 zero = {{0}}, int64[1] one = {{1}},
        int64[1] three = {{3}}, {WEIGHTS}> {{
        sizes = Shape(x) n = Gather(sizes, zero) {zeros} {RNN} }}""")
    assert not explain(Request.of(given)).remaining
    (left,) = explain(Request.of(given, engine="tract")).remaining
    assert left.why[0].reason == (
        "tract does not support RNN with a batch whose size is not known (here B)"
    )
    assert left.why[0].remedies == ["--dim B=…"]
    assert left.cost == "if it stays: tract does not run a Loop"
    effects = {trial.option: trial.effect for trial in left.trials}
    assert effects["--dim B=1"] == "FuseRecurrence removes it; no control flow remains"
    (left,) = explain(Request.of(given, engine="mnn")).remaining
    assert (left.why[0].reason, left.why[0].remedies) == ("mnn does not support RNN", [])
    assert left.cost == ""


LINEAR_ATTENTION = """g (float[T,32] q, float[T,32] k, float[T,B] v, float[32,B] s0) => (float[T,B] y)
    <int64 zero = {0}, int64[1] first = {0}, int64[1] last = {1}, float decay = {0.9}> {
    sizes = Shape(k)
    n = Gather(sizes, zero)
    s, y = Loop(n, , s0) <
        body = step (int64 i, bool c, float[32,B] s) => (bool d, float[32,B] next, float[B] o) {
            d = Identity(c) qi = Gather(q, i) ki = Gather(k, i) vi = Gather(v, i)
            column = Unsqueeze(ki, last) row = Unsqueeze(vi, first) outer = Mul(column, row)
            decayed = Mul(s, decay) next = Add(decayed, outer) o = MatMul(qi, next) }> }"""


def test_assertions_that_only_shorten_a_loop_are_no_advice() -> None:
    """Without the chunks that a rule makes, the Scans over them are not missed."""
    found = explain(Request.of(model(LINEAR_ATTENTION)))
    assert [(left.op, left.number, left.trials) for left in found.remaining] == [
        ("Scan", None, []),
        ("Scan", None, []),
    ]


def test_both_values_of_a_condition() -> None:
    """The second branch makes the loop linear attention; only one of them leaves the loop."""
    text = LINEAR_ATTENTION.replace("float[T,32] k", "float[one,T,32] ks").replace(
        "sizes = Shape(k)",
        """whole = Shape(ks) count = Gather(whole, zero) unit = Constant<value_int = 1>()
        is_one = Equal(count, unit)
        k = If(is_one) <then_branch = t () => (float[a,b] squeezed) { squeezed = Squeeze(ks, first) },
                        else_branch = e () => (float[a,b,c] kept) { kept = Identity(ks) }>
        sizes = Shape(q)""",
    )
    (choice, *_) = explain(Request.of(model(text))).remaining
    assert choice.op == "If"
    assert {t.option: t.effect.partition(":")[0] for t in choice.trials} == {
        '--dim "one>=2"': "InlineDecidedIf removes it; 1 Loop remains; "
        "`explain` with this option says why",
        "--dim one=1": "InlineDecidedIf removes it; 2 Scans remain",
    }


def test_the_headline_counts_new_nodes_apart() -> None:
    found = explain(Request.of(model(LINEAR_ATTENTION)))
    assert "model: 0 of 1 remain, 2 Scans are new" in shown(found)


MASKED = """g (float[T,B,3] x, bool[B,T] mask, float[B,3] h0) => (float[B,3] h) <int64[1] last = {2}> {
    m3 = Unsqueeze(mask, last) ms = Transpose<perm=[1,0,2]>(m3)
    h = Scan <num_scan_inputs=2, body = b (float[B,3] s, float[B,3] xt, bool[B,1] m) => (float[B,3] so) {
        a = Add(s, xt) n = Tanh(a) so = Where(m, n, s) }> (h0, x, ms) }"""


class TestPrefixMasks:
    def test_advice(self) -> None:
        found = explain(Request.of(model(MASKED)), rule="FuseRecurrence")
        (why,) = found.remaining[0].why
        assert "not known to be a prefix mask" in why.reason
        assert why.remedies == ['--prefix-mask "mask axis 1"']

    def test_what_if(self) -> None:
        given = Request.of(model(MASKED))
        before = given.proto.SerializeToString()
        found = explain(given.asserting(parse_assumptions(["prefix mask mask axis 1"])))
        assert explain(given.asserting(parse_assumptions(["prefix mask mask"]))).remaining == []
        assert found.remaining == []
        assert any(how.startswith("FuseRecurrence at commit") for how in found.removed.values())
        assert given.proto.SerializeToString() == before
        assert explain(given).remaining

    def test_along_another_axis(self) -> None:
        found = explain(
            Request.of(model(MASKED)).asserting(parse_assumptions(["prefix mask mask axis 0"])),
            rule="FuseRecurrence",
        )
        (why,) = found.remaining[0].why
        start = "the mask `mask` is asserted along axis 0, but the loop runs along axis 1, where"
        assert why.reason.startswith(start)
        assert why.remedies == ['--prefix-mask "mask axis 1"']

    def test_another_mask_does_not_help(self) -> None:
        text = MASKED.replace("float[B,3] h0)", "float[B,3] h0, bool[B,T] other)")
        assumed = parse_assumptions(["prefix mask other"])
        assert explain(Request.of(model(text)).asserting(assumed)).remaining

    def test_a_decay_is_no_mask(self) -> None:
        """No option can assert that gates are 0 or 1."""
        text = MASKED.replace("so = Where(m, n, s)", "f = Sigmoid(xt) u = Mul(f, s) so = Add(u, n)")
        for left in explain(Request.of(model(text))).remaining:
            assert not any("--prefix-mask" in r for why in left.why for r in why.remedies)

    def test_unknown(self) -> None:
        with pytest.raises(AssumptionError, match="no value 'nothing'"):
            explain(Request.of(model(MASKED)).asserting(parse_assumptions(["prefix mask nothing"])))


class TestWhatIfs:
    def test_what_an_assumption_changes(self) -> None:
        given = Request.of(model())
        assumed = ["input rate=8000"]
        found = explain(given.asserting(parse_assumptions(assumed)))
        assert found.remaining == []
        assert "If of `y`" in found.labels.values()
        assert any(how.startswith("InlineDecidedIf at commit") for how in found.removed.values())
        assert "with --input rate=8000" in shown(found)
        assert explain(given).remaining

    def test_they_add_to_assertions(self) -> None:
        more = parse_assumptions(["input b=2", "dim N>=1", "shape x=1,T"])
        given = Assertions({"a": 1}, {"T": 2}).extended(more)
        assert given.inputs == {"a": 1, "b": 2}
        assert (given.dims, given.minima) == ({"T": 2}, {"N": 1})
        assert given.shapes == {"x": (1, "T")}

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("dim Q=3", "No input of the model has a dim named 'Q'"),
            ("dim N", "'N' does not assert a dim"),
            ("input rat=3", "The model has no input 'rat'"),
            ("input rate", "'rate' has no value"),
            ("input rate=fast", "does not fit input 'rate'"),
            ("shape y=1", "The model has no input 'y'"),
        ],
    )
    def test_those_that_do_not_fit(self, text: str, words: str) -> None:
        with pytest.raises(AssumptionError, match=words) as caught:
            explain(Request.of(model()).asserting(parse_assumptions([text])))
        assert caught.value.remedy

    @pytest.mark.parametrize(
        "text", ["", "dim", "T=16", "wish luck", "prefix", "prefix mask", "dimT=16"]
    )
    def test_those_that_assume_nothing(self, text: str) -> None:
        with pytest.raises(AssumptionError, match="not an assumption"):
            parse_assumptions([text])


class TestAdviceAsText:
    @pytest.mark.parametrize("value", [[True], [[False, True]], [1.5, math.inf], [[-math.inf]], 3])
    def test_the_command_line_reads_what_advice_writes(self, value: object) -> None:
        (option,) = settings_options(Settings(Assertions.of({"x": np.array(value)}, (), None, ())))
        _, text = shlex.split(option)
        read = parse_assumptions([f"input {text}"]).inputs["x"]
        np.testing.assert_array_equal(read, value)
