"""Rules written as two patterns in ONNX text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
import pytest

from looplift import Match, PatternRule, Rule
from looplift.rewrite.engine.miss import Miss
from looplift.rewrite.engine.pattern import Bindings

from ...equivalence import assert_equivalent, ops, run_rules
from ...small_models import parse
from ..fact_oracle import Feeds

SIZES = Feeds(sizes=(0, 1, 2, 7), values={"m": [0, 1, 2, 7], "c": [True, False]})
Guard = Callable[[Any, Match, Bindings], Mapping[str, Any] | None]


def _rule(
    pattern: str, replacement: str, *, normal_form: bool = False, guard: Guard | None = None
) -> type[PatternRule]:
    """A rule of these patterns."""
    members: dict[str, Any] = {
        "__doc__": "A rule of a test.",
        "pattern": pattern,
        "replacement": replacement,
        "normal_form": normal_form,
    }
    if guard is not None:
        members["guard"] = guard
    return type("ARule", (PatternRule,), members)


def _applied(rule: type[Rule], model: onnx.ModelProto, commits: int = 1) -> onnx.ModelProto:
    """The result of one rule, compared with the model on onnxruntime."""
    result, trace, _ = run_rules(model, [rule])
    assert trace.defects() == []
    assert [commit.rule for commit in trace.commits()] == [rule.name()] * commits
    assert_equivalent(model, result, SIZES, 1e-6)
    return result


def _reason(rule: type[Rule], model: onnx.ModelProto) -> str:
    """Why a rule declines at the last node that it can start from."""
    _, trace, engine = run_rules(model, [rule])
    assert trace.commits() == []
    assert trace.defects() == []
    node = [n for n in engine.index.walk() if n.op in rule.roots()][-1]
    with pytest.raises(Miss) as miss:
        rule().match(Match(node, engine.facts, engine.options))
    return str(miss.value)


class CancelTransposes(PatternRule):
    """Removes two Transposes that undo each other."""

    pattern = "(x) => (y) { a = Transpose<perm = @p>(x)  y = Transpose<perm = @q>(a) }"
    replacement = "x"

    def guard(self, m: Match, found: Bindings) -> None:
        axes = [found.p[axis] for axis in found.q]
        m.need(axes == sorted(axes), "the axes end up as {}", axes)


PRODUCT_OF_NEGATIVES = _rule(
    "(a, b) => (y) { p = Neg(a)  q = Neg(b)  y = Mul(p, q) }", "(a, b) => (y) { y = Mul(a, b) }"
)
ZEROS = _rule("(x) => (y) { n = Neg(x)  y = Add(x, n) }", "(x) => (y) { y = Sub(x, x) }")
COMMON_FACTOR = _rule(
    "(a, b, c) => (y) { p = Mul(a, c)  q = Mul(b, c)  y = Add(p, q) }",
    "(a, b, c) => (y) { s = Add(a, b)  y = Mul(s, c) }",
)


class TestMatching:
    def test_the_root_is_the_last_operator(self) -> None:
        assert CancelTransposes.roots() == ("Transpose",)
        assert ZEROS.roots() == ("Add",)

    @pytest.mark.parametrize(("p", "q"), [([1, 2, 0], [2, 0, 1]), ([0, 2, 1], [0, 2, 1])])
    def test_a_pattern_is_replaced_by_an_operand(self, p: list[int], q: list[int]) -> None:
        model = parse(f"""g (float[A,B,2] x) => (float[A,B,2] z) {{
            a = Transpose<perm = {p}>(x) y = Transpose<perm = {q}>(a) z = Neg(y) }}""")
        assert ops(_applied(CancelTransposes, model)) == {"Neg": 1}

    def test_a_guard_declines(self) -> None:
        model = parse("""g (float[A,B,2] x) => (float[B,2,A] z) {
            a = Transpose<perm = [2,0,1]>(x) y = Transpose<perm = [2,0,1]>(a) z = Neg(y) }""")
        assert _reason(CancelTransposes, model) == "the axes end up as 1, 2, 0"

    def test_another_operator(self) -> None:
        model = parse("""g (float[A,B] x) => (float[B,A] z) {
            a = Neg(x) y = Transpose<perm = [1,0]>(a) z = Neg(y) }""")
        assert _reason(CancelTransposes, model) == "`a` is not computed by Transpose"

    def test_an_operator_of_another_domain(self) -> None:
        model = parse("""g (float[A] x) => (float[A] z) {
            a = com.microsoft.Transpose(x) y = Transpose<perm = [0]>(a) z = Neg(y) }""")
        model.opset_import.add(domain="com.microsoft", version=1)
        assert "is not computed by Transpose" in _reason(CancelTransposes, model)

    @pytest.mark.parametrize("operands", ["x, n", "n, x"])
    def test_commutative_operands(self, operands: str) -> None:
        model = parse(f"g (float[N] x) => (float[N] y) {{ n = Neg(x) y = Add({operands}) }}")
        assert ops(_applied(ZEROS, model)) == {"Sub": 1}

    def test_a_name_stands_for_one_tensor(self) -> None:
        model = parse("g (float[N] x, float[N] w) => (float[N] y) { n = Neg(w) y = Add(x, n) }")
        assert _reason(ZEROS, model) == "`x` and `w` differ"

    @pytest.mark.parametrize("first", ["a, d", "d, a"])
    @pytest.mark.parametrize("second", ["b, d", "d, b"])
    @pytest.mark.parametrize("last", ["p, q", "q, p"])
    def test_every_order_of_commutative_operands(self, first: str, second: str, last: str) -> None:
        model = parse(f"""g (float[N] a, float[N] b, float[N] d) => (float[N] y) {{
            p = Mul({first}) q = Mul({second}) y = Add({last}) }}""")
        assert ops(_applied(COMMON_FACTOR, model)) == {"Add": 1, "Mul": 1}

    def test_operands_of_other_operators_keep_their_order(self) -> None:
        rule = _rule("(x) => (y) { n = Neg(x)  y = Sub(x, n) }", "(x) => (y) { y = Add(x, x) }")
        text = "g (float[N] x) => (float[N] y) {{ n = Neg(x) y = Sub({0}) }}"
        assert ops(_applied(rule, parse(text.format("x, n")))) == {"Add": 1}
        assert "is not computed by Neg" in _reason(rule, parse(text.format("n, x")))

    def test_one_node_for_two_equal_nodes_of_the_pattern(self) -> None:
        model = parse("g (float[N] x) => (float[N] y) { n = Neg(x) y = Mul(n, n) }")
        assert ops(_applied(PRODUCT_OF_NEGATIVES, model)) == {"Mul": 1}


class TestAttributes:
    DEFAULT = _rule("(x) => (y) { a = LeakyRelu(x)  y = Relu(a) }", "(x) => (y) { y = Relu(x) }")
    HALF = _rule(
        "(x) => (y) { a = LeakyRelu<alpha = 0.5>(x)  y = Relu(a) }", "(x) => (y) { y = Relu(x) }"
    )

    @staticmethod
    def _model(attribute: str) -> onnx.ModelProto:
        return parse(f"""g (float[N] x) => (float[N] y) {{
            a = LeakyRelu{attribute}(x) y = Relu(a) }}""")

    @pytest.mark.parametrize("attribute", ["", "<alpha = 0.01>"])
    def test_an_attribute_that_is_not_mentioned_has_its_default(self, attribute: str) -> None:
        assert ops(_applied(self.DEFAULT, self._model(attribute))) == {"Relu": 1}

    def test_another_value_than_the_default(self) -> None:
        reason = _reason(self.DEFAULT, self._model("<alpha = 0.5>"))
        assert reason.startswith("`alpha` of LeakyRelu of `a` is 0.5, not 0.0")

    def test_a_literal_value(self) -> None:
        assert ops(_applied(self.HALF, self._model("<alpha = 0.5>"))) == {"Relu": 1}
        assert "not 0.5" in _reason(self.HALF, self._model(""))

    def test_an_attribute_without_default_is_absent(self) -> None:
        rule = _rule("(x) => (y) { a = Transpose(x)  y = Transpose(a) }", "x")
        text = """g (float[A,B] x) => (float[A,B] z) {{
            a = Transpose{0}(x) y = Transpose(a) z = Neg(y) }}"""
        assert ops(_applied(rule, parse(text.format("")))) == {"Neg": 1}
        assert "`perm` of Transpose" in _reason(rule, parse(text.format("<perm = [1,0]>")))

    def test_one_name_stands_for_one_value(self) -> None:
        rule = _rule(
            "(x) => (y) { a = Concat<axis = @k>(x, x)  y = Concat<axis = @k>(a, a) }",
            "(x) => (y) { y = Concat<axis = @k>(x, x, x, x) }",
        )
        text = """g (float[A,B] x) => (float[C,D] y) {{
            a = Concat<axis = 1>(x, x) y = Concat<axis = {0}>(a, a) }}"""
        result = _applied(rule, parse(text.format(1)))
        assert [a.i for a in result.graph.node[0].attribute] == [1]
        assert "`axis` of Concat of `a` is 1, not 0" in _reason(rule, parse(text.format(0)))

    def test_texts(self) -> None:
        rule = _rule(
            '(x, p) => (y) { a = Pad<mode = "reflect">(x, p)  y = Identity(a) }',
            '(x, p) => (y) { y = Pad<mode = "reflect">(x, p) }',
        )
        text = """g (float[4] x) => (float[6] y) <int64[2] p = {{1, 1}}> {{
            a = Pad<mode = "{0}">(x, p) y = Identity(a) }}"""
        assert ops(_applied(rule, parse(text.format("reflect")))) == {"Pad": 1}
        assert "is edge, not reflect" in _reason(rule, parse(text.format("edge")))

    def test_tensors(self) -> None:
        rule = _rule(
            "(s) => (y) { a = ConstantOfShape<value = float[1] {1}>(s)  y = Neg(a) }",
            "(s) => (y) { y = ConstantOfShape<value = float[1] {-1}>(s) }",
        )
        text = """g (float[N] x) => (float[N] z) {{ s = Shape(x)
            a = ConstantOfShape{0}(s) y = Neg(a) z = Add(x, y) }}"""
        result = _applied(rule, parse(text.format("<value = float[1] {1}>")))
        assert "Neg" not in ops(result)
        assert "`value`" in _reason(rule, parse(text.format("<value = float[1] {2}>")))
        assert "`value`" in _reason(rule, parse(text.format("")))

    @pytest.mark.parametrize(
        ("saturate", "fires"), [("", True), (", saturate = 1", True), (", saturate = @s", True),
                                (", saturate = 0", False)]
    )  # fmt: skip
    def test_an_attribute_that_the_opset_lacks(self, saturate: str, fires: bool) -> None:
        """There, the operator does as the default says."""
        rule = _rule(
            f"(x) => (y) {{ a = Cast<to = @to{saturate}>(x)  y = Identity(a) }}",
            f"(x) => (y) {{ y = Cast<to = @to{saturate}>(x) }}",
        )
        model = parse("g (int64[2] x) => (float[2] y) { a = Cast<to = 1>(x) y = Identity(a) }", 13)
        if fires:
            node = _applied(rule, model).graph.node[0]
            assert [a.name for a in node.attribute] == ["to"]
        else:
            assert "`saturate` of Cast of `a` is 1, not 0" in _reason(rule, model)


class TestOperands:
    BOTH = _rule("(x, l, h) => (y) { a = Clip(x, l, h)  y = Identity(a) }",
                 "(x, l, h) => (y) { y = Clip(x, l, h) }")  # fmt: skip
    UPPER = _rule("(x, h) => (y) { a = Clip(x, , h)  y = Identity(a) }",
                  "(x, h) => (y) { y = Clip(x, , h) }")  # fmt: skip
    LOWER = _rule("(x, l) => (y) { a = Clip(x, l)  y = Identity(a) }",
                  "(x, l) => (y) { y = Clip(x, l) }")  # fmt: skip

    @staticmethod
    def _clip(operands: str) -> onnx.ModelProto:
        return parse(f"""g (float[N] x, float l, float h) => (float[N] y) {{
            a = Clip({operands}) y = Identity(a) }}""")

    @pytest.mark.parametrize(
        ("operands", "fits"),
        [("x, l, h", "both"), ("x, , h", "upper"), ("x, l", "lower"), ("x", "none")],
    )
    def test_optional_operands(self, operands: str, fits: str) -> None:
        rules = {"both": self.BOTH, "upper": self.UPPER, "lower": self.LOWER}
        for name, rule in rules.items():
            if name == fits:
                (node,) = _applied(rule, self._clip(operands)).graph.node
                assert list(node.input) == [n.strip() for n in operands.split(",")]
            else:
                assert _reason(rule, self._clip(operands))

    def test_an_omitted_operand_at_the_end(self) -> None:
        model = self._clip("x, l")
        model.graph.node[0].input.append("")
        assert ops(_applied(self.LOWER, model)) == {"Clip": 1}

    @pytest.mark.parametrize(
        ("operands", "words"),
        [
            ("x, l", "has 2 operands, not 3"),
            ("x, , h", "the operand `l` of the pattern is omitted"),
        ],
    )
    def test_reasons_for_omitted_operands(self, operands: str, words: str) -> None:
        assert words in _reason(self.BOTH, self._clip(operands))

    def test_the_reason_for_an_operand_that_the_pattern_omits(self) -> None:
        assert _reason(self.UPPER, self._clip("x, l, h")) == "`l` is given"

    def test_a_constant_matches_any_value_that_equals_it(self) -> None:
        rule = _rule("(x) => (y) { one = Constant<value_float = 1.0>()  y = Mul(x, one) }", "x")
        text = "g (float[N] x) => (float[N] z) <{0} k = {{{1}}}> {{ y = Mul({2}) z = Neg(y) }}"
        for operands in ("x, k", "k, x"):
            assert ops(_applied(rule, parse(text.format("float", 1, operands)))) == {"Neg": 1}
        assert "`k` is not known to be 1.0" in _reason(rule, parse(text.format("float", 2, "x, k")))
        assert "not known" in _reason(rule, parse(text.format("float[1]", 1, "x, k")))
        computed = """g (float[N,1] x) => (int64[2] z) {
            s = Shape(x) a = Constant<value_ints = [1]>() u = Gather(s, a) v = Mul(s, u) z = Neg(v) }"""
        unit = _rule("(x) => (y) { one = Constant<value_ints = [1]>()  y = Mul(x, one) }", "x")
        assert "Mul" not in ops(_applied(unit, parse(computed)))


class TestOutputs:
    HALVES = _rule(
        "(x) => (y) { a, b = Split<axis = @k, num_outputs = 2>(x)  y = Concat<axis = @k>(a, b) }",
        "x",
    )
    SECOND = _rule(
        "(x) => (b) { n = Neg(x)  a, b = Split<axis = 0, num_outputs = 2>(n) }",
        "(x) => (b) { a, c = Split<axis = 0, num_outputs = 2>(x)  b = Neg(c) }",
        normal_form=True,
    )

    def test_all_outputs_of_a_node(self) -> None:
        model = parse("""g (float[A,4] x) => (float[A,4] z) {
            a, b = Split<axis = 1, num_outputs = 2>(x) y = Concat<axis = 1>(a, b) z = Neg(y) }""", 21)  # fmt: skip
        assert ops(_applied(self.HALVES, model)) == {"Neg": 1}

    @pytest.mark.parametrize(
        ("split", "joined", "words"),
        [
            ("a, b = Split<axis = 1, num_outputs = 2>(x)", "b, a", "is another output of"),
            ("a, b = Split<axis = 0, num_outputs = 2>(x)", "a, b", "`axis` of Split"),
            ("a, b, d = Split<axis = 1, num_outputs = 3>(x)", "a, b", "has 3 results, not 2"),
        ],
    )
    def test_other_outputs(self, split: str, joined: str, words: str) -> None:
        model = parse(f"""g (float[6,6] x) => (float[A,B] z) {{
            {split} y = Concat<axis = 1>({joined}) z = Neg(y) }}""", 21)  # fmt: skip
        assert words in _reason(self.HALVES, model)

    def test_the_result_may_be_another_output_than_the_first(self) -> None:
        model = parse("""g (float[4] x) => (float[2] y) {
            n = Neg(x) a, b = Split<axis = 0, num_outputs = 2>(n) y = Exp(b) }""", 21)  # fmt: skip
        result = _applied(self.SECOND, model)
        assert [node.op_type for node in result.graph.node] == ["Split", "Neg", "Exp"]

    def test_another_output_of_the_root_keeps_the_root(self) -> None:
        model = parse("""g (float[4] x) => (float[2] y) {
            n = Neg(x) a, b = Split<axis = 0, num_outputs = 2>(n) y = Add(a, b) }""", 21)  # fmt: skip
        result = _applied(self.SECOND, model)
        assert ops(result) == {"Split": 2, "Neg": 2, "Add": 1}

    def test_a_result_that_nothing_reads_is_not_replaced(self) -> None:
        model = parse("""g (float[4] x) => (float[2] a) {
            n = Neg(x) a, b = Split<axis = 0, num_outputs = 2>(n) }""", 21)  # fmt: skip
        assert _reason(self.SECOND, model) == "nothing reads `b`"


class TestReplacing:
    def test_a_result_that_is_an_output_of_the_model(self) -> None:
        """A new node takes its name; an input of the model cannot."""
        model = parse("""g (float[A,B] x) => (float[A,B] y) {
            a = Transpose<perm = [1,0]>(x) y = Transpose<perm = [1,0]>(a) }""")
        assert _reason(CancelTransposes, model) == "`y` is an output of the model"
        model = parse("""g (float[A,B] x) => (float[A,B] y) { n = Neg(x)
            a = Transpose<perm = [1,0]>(n) y = Transpose<perm = [1,0]>(a) }""")
        result = _applied(CancelTransposes, model)
        assert [list(node.output) for node in result.graph.node] == [["y"]]
        model = parse("g (float[N] x) => (float[N] y) { n = Neg(x) y = Add(x, n) }")
        assert list(_applied(ZEROS, model).graph.node[0].output) == ["y"]

    def test_an_inner_tensor_may_replace_the_result(self) -> None:
        rule = _rule("(x) => (y) { a = Relu(x)  y = Relu(a) }", "a")
        model = parse("g (float[N] x) => (float[N] z) { a = Relu(x) y = Relu(a) z = Neg(y) }")
        assert ops(_applied(rule, model)) == {"Relu": 1, "Neg": 1}

    def test_a_node_with_other_readers_stays(self) -> None:
        model = parse("""g (float[A,B] x) => (float[A,B] z, float[B,A] w) {
            a = Transpose<perm = [1,0]>(x) y = Transpose<perm = [1,0]>(a) z = Neg(y) w = Exp(a) }""")  # fmt: skip
        assert ops(_applied(CancelTransposes, model)) == {"Transpose": 1, "Neg": 1, "Exp": 1}

    def test_a_replacement_that_would_not_be_smaller_declines(self) -> None:
        model = parse("""g (float[N] x) => (float[N] y, float[N] z) {
            n = Neg(x) y = Add(x, n) z = Exp(n) }""")
        words = "the replacement would not be smaller: Neg of `n` stays for its other readers"
        assert _reason(ZEROS, model) == words
        model = parse("""g (float[N] a, float[N] b) => (float[N] y, float[N] z) {
            p = Neg(a) q = Neg(b) y = Mul(p, q) z = Exp(p) }""")
        result = _applied(PRODUCT_OF_NEGATIVES, model)
        assert ops(result) == {"Neg": 1, "Mul": 1, "Exp": 1}

    def test_a_diamond_is_removed_as_a_whole(self) -> None:
        rule = _rule(
            "(x) => (y) { a = Neg(x)  b = Abs(a)  y = Sub(b, a) }",
            "(x) => (y) { b = Abs(x)  y = Add(b, x) }",
        )
        model = parse("g (float[N] x) => (float[N] y) { a = Neg(x) b = Abs(a) y = Sub(b, a) }")
        assert ops(_applied(rule, model)) == {"Abs": 1, "Add": 1}

    def test_inside_a_loop_body(self) -> None:
        model = parse("""g (float[N] x, int64 m) => (float[N] y) {
            y = Loop (m, , x) <body = b (int64 i, bool ci, float[N] s) => (bool co, float[N] so) {
                co = Identity(ci) n = Neg(s) z = Add(s, n) so = Add(x, z) }> }""")
        assert ops(_applied(ZEROS, model)) == {"Loop": 1, "Identity": 1, "Sub": 1, "Add": 1}

    def test_a_result_that_a_body_returns(self) -> None:
        model = parse("""g (float[A,A] x, bool c) => (float[A,A] y) {
            y = If (c) <
                then_branch = t () => (float[A,A] z) {
                    a = Transpose<perm = [1,0]>(x) z = Transpose<perm = [1,0]>(a) },
                else_branch = e () => (float[A,A] w) { w = Neg(x) }> }""")
        assert "Transpose" not in ops(_applied(CancelTransposes, model))

    def test_an_operand_from_outside_the_body(self) -> None:
        """The outer node stays where it has other readers, and the body must still shrink."""
        model = parse("""g (float[N] a, float[N] x, int64 m) => (float[N] y) { p = Neg(a)
            y = Loop (m, , x) <body = b (int64 i, bool ci, float[N] s) => (bool co, float[N] so) {
                co = Identity(ci) q = Neg(s) so = Mul(p, q) }> }""")
        assert ops(_applied(PRODUCT_OF_NEGATIVES, model)) == {"Loop": 1, "Identity": 1, "Mul": 1}
        model = parse("""g (float[N] x, bool c) => (float[N] y) { n = Neg(x)
            y = If (c) <then_branch = t () => (float[N] p) { p = Add(x, n) },
                        else_branch = e () => (float[N] q) { q = Exp(x) }> }""")
        assert ops(_applied(ZEROS, model))["Sub"] == 1

    def test_a_body_does_not_get_more_nodes_for_fewer_outside(self) -> None:
        model = parse("""g (float[N] a, float[N] b, float[N] c, float[N] x, int64 m) => (float[N] y) {
            p = Mul(a, c) q = Mul(b, c)
            y = Loop (m, , x) <body = b (int64 i, bool ci, float[N] s) => (bool co, float[N] so) {
                co = Identity(ci) t = Add(p, q) so = Sub(s, t) }> }""")
        assert "would add nodes to the body" in _reason(COMMON_FACTOR, model)

    def test_a_normal_form_may_have_as_many_nodes(self) -> None:
        rule = _rule("(x, z) => (y) { n = Neg(z)  y = Add(x, n) }",
                     "(x, z) => (y) { n = Identity(z)  y = Sub(x, n) }", normal_form=True)  # fmt: skip
        model = parse("g (float[N] x, float[N] z) => (float[N] y) { n = Neg(z) y = Add(x, n) }")
        assert ops(_applied(rule, model)) == {"Identity": 1, "Sub": 1}

    def test_an_operator_that_the_opset_lacks(self) -> None:
        rule = _rule("(x) => (y) { s = Sigmoid(x)  y = Mul(x, s) }", "(x) => (y) { y = Swish(x) }")
        model = parse("g (float[N] x) => (float[N] y) { s = Sigmoid(x) y = Mul(x, s) }")
        _, trace, engine = run_rules(model, [rule])
        assert (trace.commits(), trace.defects()) == ([], [])
        (miss,) = engine.declined.values()
        assert str(miss) == "the result needs Swish, which opset 17 lacks"


class TestComputedValues:
    def test_numbers_and_arrays_are_constants(self) -> None:
        """A float has the type of the result."""

        def guard(rule: Any, m: Match, found: Bindings) -> Mapping[str, Any]:
            total = m.need(m.facts.constant(found.a), "{} is not constant", found.a)
            return {"half": 0.5, "sum": total + total}

        rule = _rule(
            "(x, a) => (y) { b = Add(x, a)  c = Add(b, a)  y = Div(c, a) }",
            "(x, a) => (y) { b = Add(x, sum)  y = Mul(b, half) }",
            guard=guard,
        )
        for kind in ("float", "double"):
            model = parse(f"""g ({kind}[N] x) => ({kind}[N] y) <{kind} a = {{2}}> {{
                b = Add(x, a) c = Add(b, a) y = Div(c, a) }}""", 17)  # fmt: skip
            result = _applied(rule, model)
            assert ops(result) == {"Add": 1, "Mul": 1}
            assert {i.data_type for i in result.graph.initializer} == {
                result.graph.input[0].type.tensor_type.elem_type
            }
        model = parse("""g (float[N] x, float[N] a) => (float[N] y) {
            b = Add(x, a) c = Add(b, a) y = Div(c, a) }""")
        assert _reason(rule, model) == "`a` is not constant"

    def test_attributes(self) -> None:
        def guard(rule: Any, m: Match, found: Bindings) -> Mapping[str, Any]:
            return {"perm": [found.p[axis] for axis in found.q]}

        rule = _rule(
            "(x) => (y) { a = Transpose<perm = @p>(x)  b = Transpose<perm = @q>(a)"
            "  y = ReduceMax<keepdims = 0>(b) }",
            "(x) => (y) { a = Transpose<perm = @perm>(x)  y = ReduceMax<keepdims = 0>(a) }",
            guard=guard,
        )
        model = parse("""g (float[2,3] x) => (float y) {
            a = Transpose<perm = [1,0]>(x) b = Transpose<perm = [1,0]>(a)
            y = ReduceMax<keepdims = 0>(b) }""", 20)  # fmt: skip
        result = _applied(rule, model)
        assert [list(a.ints) for a in result.graph.node[0].attribute] == [[0, 1]]

    def test_constants_of_the_replacement(self) -> None:
        rule = _rule(
            "(x) => (y) { a = Add(x, x)  b = Add(x, x)  y = Add(a, b) }",
            "(x) => (y) { four = Constant<value_float = 4.0>()  y = Mul(x, four) }",
        )
        model = parse("g (float[N] x) => (float[N] y) { a = Add(x, x) b = Add(x, x) y = Add(a, b) }")  # fmt: skip
        result = _applied(rule, model)
        assert ops(result) == {"Mul": 1}
        assert len(result.graph.initializer) == 1

    def test_a_value_that_nothing_gives_is_named(self) -> None:
        rule = _rule("(x) => (y) { a = Neg(x)  y = Neg(a) }", "(x) => (y) { y = Mul(x, k) }")
        model = parse("g (float[N] x) => (float[N] z) { a = Neg(x) y = Neg(a) z = Exp(y) }")
        _, trace, _ = run_rules(model, [rule])
        (defect,) = {d.reason.partition(" at ")[0] for d in trace.defects()}
        assert (
            defect == "apply raised AttributeError: the pattern has no tensor or attribute named k"
        )


@pytest.mark.parametrize(
    ("pattern", "replacement", "words"),
    [
        ("(x) => (y) { y = Neg(x ", "x", "is not ONNX text: line 1, column"),
        ("(x) => (y) { y = Add(x x) }", "x", r"line 1, column 24: Expected character \) not"),
        ("(x) => (y) {\n  y = Add(x x) }", "x", "line 2, column 13: "),
        ("(x) => (y) { a = Transpose<perm = @p>(x)  y = Add(a a) }", "x", "column 53: "),
        ("(x) => (y) {\na = Transpose<perm = @p>(x)\n  y = Add(a a) }", "x", "line 3, column 13: "),
        ("(x) => (y) { y = Transpose<perm = @p>(x x) }", "x", "column 41: "),
        ("(x) => (y) { y = Ngeg(x) }", "x", "Ngeg is not an operator of ONNX"),
        ("(x) => (y) { y = Transpose<prem = @p>(x) }", "x", "Transpose has no attribute `prem`"),
        ("(x) => (y) { y = Transpose<prem = [0]>(x) }", "x", "Transpose has no attribute `prem`"),
        ("(x) => (y) { y = other.Neg(x) }", "x", "other.Neg is not an operator of ONNX"),
        ("(x) => (y, z) { y = Neg(x) z = Exp(x) }", "x", "does not have nodes and one output"),
        ("(x) => (y) { }", "x", "does not have nodes and one output"),
        ("(x) => (y) { y = Neg(x) z = Exp(y) }", "x", "does not compute its output"),
        ("(x) => (y) { y = Add(x, z) }", "x", "nothing before Add"),
        ("(x) => (y) { b = Neg(a) a = Neg(x) y = Neg(b) }", "x", "nothing before Neg"),
        ("(x) => (y) { z = Exp(x) y = Neg(x) }", "x", "reads the result of Exp"),
        ("(nodes) => (y) { y = Neg(nodes) }", "nodes", "`nodes` is not a name for a tensor"),
        (
            "(c) => (y) { y = If(c) <then_branch = t () => (a) { a = Neg(c) },"
            " else_branch = e () => (b) { b = Neg(c) }> }",
            "c",
            "has control flow: If",
        ),
        ("(x) => (y) { y = Neg(x) }", "", "has no tensor `` in its pattern"),
        ("(x) => (y) { y = Neg(x) }", "z", "has no tensor `z` in its pattern"),
        ("(x) => (y) { y = Neg(x) }", "(z) => (y) { y = Exp(z) }", "has no tensor `z`"),
        ("(x) => (y) { y = Neg(x) }", "(x) => (y) { y = Ngeg(x) }", "Ngeg is not an operator"),
        ("(x) => (y) { y = Neg(x) }", "(x) => (y) { y = Exp(x) }", "replaces 1 node by 1"),
    ],
)
def test_an_invalid_rule_is_refused_when_it_is_defined(
    pattern: str, replacement: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words.replace("`", ".")):
        _rule(pattern, replacement)


def test_a_name_that_the_pattern_lacks() -> None:
    with pytest.raises(AttributeError, match="no tensor or attribute named q"):
        _ = Bindings().q
