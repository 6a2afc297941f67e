"""`rewrite` as a user calls it: on real models, small ones, and with wrong arguments."""

from __future__ import annotations

import doctest
import inspect
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import looplift
from looplift import AssumptionError, LoopliftError, ModelError, Phase, api, rewrite
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.graph.ir import Node
from looplift.rewrite.running.verify import verify
from looplift.rules import PHASES

from .equivalence import (
    assert_equal,
    assert_equivalent,
    is_valid,
    ops,
    optimized_session,
    outcome,
    session,
)
from .rewrite.fact_oracle import Feeds
from .samples import one_of
from .small_models import parse

Cases = dict[str, tuple[dict[str, Any], dict[str, Any]]]

TEXT = """g (float[N,3] x, bool c) => (float[N,3] y) {
    n = Not(c) u = Identity(x)
    y = If (n) <then_branch = t () => (float[N,3] a) { a = Neg(u) },
                else_branch = e () => (float[N,3] b) { b = Exp(u) }> }"""


def _recorded(path: Path) -> Cases:
    """The recorded inputs and outputs of a model by case; keys are `case|in|name`, `case|out|name`."""
    cases: Cases = {}
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
        for key in arrays.files:
            parts = key.split("|")
            if len(parts) == 3:
                case = cases.setdefault(parts[0], ({}, {}))
                case[parts[1] == "out"][parts[2]] = arrays[key]
    return cases


def _interface(model: onnx.ModelProto) -> list[list[Any]]:
    stored = {tensor.name for tensor in model.graph.initializer}
    return [
        [i for i in model.graph.input if i.name not in stored],
        list(model.graph.output),
    ]


def _check_recorded(path: Path, after: onnx.ModelProto) -> int:
    """Compares with the recorded outputs, or with the original where its own outputs differ."""
    original, rewritten = optimized_session(onnx.load(path)), optimized_session(after)
    runs = 0
    for inputs, outputs in _recorded(path).values():
        expected = outcome(original, inputs)
        if expected is None:
            continue
        actual = outcome(rewritten, inputs)
        assert actual is not None, "the original runs, the rewritten model fails"
        runs += 1
        for info, wanted, got in zip(original.get_outputs(), expected, actual):
            recorded = outputs.get(info.name)
            if recorded is None or not _equal(recorded, got):
                assert_equal(wanted, got, 1e-4)
    return runs


def _equal(expected: Any, actual: Any) -> bool:
    try:
        assert_equal(expected, actual, 1e-4)
    except AssertionError:
        return False
    return True


def _assert_same_interface(before: onnx.ModelProto, after: onnx.ModelProto, case: str) -> None:
    """Only a number that an output declares may change, to the name of a size of an input."""
    names = {dim.dim_param for v in before.graph.input for dim in v.type.tensor_type.shape.dim}
    corrected = onnx.ModelProto()
    corrected.CopyFrom(before)
    for old, new in zip(corrected.graph.output, after.graph.output, strict=True):
        dims = zip(old.type.tensor_type.shape.dim, new.type.tensor_type.shape.dim, strict=True)
        for was, now in dims:
            if was.HasField("dim_value") and now.dim_param in names - {""}:
                was.CopyFrom(now)
    assert _interface(after) == _interface(corrected), case


class TestCollection:
    @pytest.mark.parametrize("part", one_of(2, range(4)))
    def test_outputs_are_as_recorded(self, corpus: Path, part: int) -> None:
        """Every fourth model of four exporters, in parts, so that a failure names few."""
        paths = sorted(corpus.glob("*.onnx"))[part::8]
        assert paths
        runs = 0
        for path in paths:
            before = onnx.load(path)
            result = rewrite(path)
            assert result.report.defects == [], path.name
            if is_valid(before):
                onnx.checker.check_model(result.model, full_check=True)
            _assert_same_interface(before, result.model, path.name)
            runs += _check_recorded(path, result.model)
        assert runs >= len(paths)

    @pytest.mark.parametrize("seed", one_of(2, range(2)))
    def test_rules_in_any_order(self, corpus: Path, seed: int) -> None:
        """Rules are shuffled within their phases: the models differ, their outputs do not."""
        rng = random.Random(seed)
        for path in rng.sample(sorted(corpus.glob("*.onnx")), 10):
            phases = [
                Phase(p.name, tuple(rng.sample(p.rules, len(p.rules))), p.summary) for p in PHASES
            ]
            result = rewrite(path, rules=phases)
            assert result.report.defects == [], path.name
            assert _check_recorded(path, result.model), path.name

    def test_no_model_gets_more_control_flow(self, corpus: Path) -> None:
        for path in sorted(corpus.glob("*.onnx"))[::6]:
            report = rewrite(path).report
            before, after = report.before, report.after
            assert after["If"] <= before["If"], path.name
            assert after["Loop"] + after["Scan"] <= before["Loop"] + before["Scan"], path.name


class TestPublishedModels:
    def test_silero_with_everything_given(self, models_dir: Path) -> None:
        path = models_dir / "silero_vad.onnx"
        result = rewrite(path, inputs={"sr": 16000}, shapes={"input": [1, 576]})
        assert ops(onnx.load(path))["If"] == 25
        assert "If" not in ops(result.model)
        assert ops(result.model)["LSTM"] == 1
        assert result.report.defects == []
        feed = _silero_feed(576, 1)
        expected = outcome(session(onnx.load(path)), {**feed, "sr": np.array(16000)})
        assert expected is not None
        assert_equal(expected, outcome(session(result.model), feed), 1e-5)

    def test_silero_with_nothing_given(self, models_dir: Path) -> None:
        """Only the If on the sample rate remains."""
        path = models_dir / "silero_vad.onnx"
        result = rewrite(path)
        assert ops(result.model)["If"] == 1
        (left,) = [n for n in result.model.graph.node if n.op_type == "If"]
        assert left.input
        for rate, samples in ((16000, 576), (8000, 288)):
            for batch in (1, 3):
                feed = {**_silero_feed(samples, batch), "sr": np.array(rate)}
                expected = outcome(session(onnx.load(path)), feed)
                assert expected is not None
                assert_equal(expected, outcome(session(result.model), feed), 1e-5)

    def test_silero_strict_takes_no_branch_by_demand(self, models_dir: Path) -> None:
        result = rewrite(models_dir / "silero_vad.onnx", strict=True)
        assert result.report.notes == []
        assert ops(result.model)["If"] > 1

    def test_silero_16k(self, models_dir: Path) -> None:
        path = models_dir / "silero_vad_16k_op15.onnx"
        result = rewrite(path, dims={"sequence": 576})
        assert "If" not in ops(result.model)
        for batch in (1, 2, 7):
            feed = _silero_feed(576, batch)
            feed |= {"sr": np.array(16000)}
            expected = outcome(session(onnx.load(path)), feed)
            assert expected is not None
            assert_equal(expected, outcome(session(result.model), feed), 1e-5)

    def test_dtln(self, models_dir: Path) -> None:
        path = models_dir / "dtln_1.onnx"
        result = rewrite(path)
        assert result.report.defects == []
        assert verify(path, result.model).verified


def _silero_feed(samples: int, batch: int) -> dict[str, Any]:
    rng = np.random.default_rng(samples + batch)
    return {
        "input": rng.standard_normal((batch, samples)).astype(np.float32) * 0.1,
        "state": rng.standard_normal((2, batch, 128)).astype(np.float32) * 0.1,
    }


class TestMatrix:
    """The small models with one If each, with the expected number of Ifs next to each model."""

    def test_ifs(self, matrix_dir: Path) -> None:
        wanted = {
            "if_nested_inner_captures_branch_local": 1,
        }  # all others: none
        paths = sorted(matrix_dir.glob("if_*.onnx"))
        assert len(paths) >= 7
        for path in paths:
            model = onnx.load(path)
            result = rewrite(model)
            assert result.report.defects == []
            assert ops(result.model).get("If", 0) == wanted.get(path.stem, 0), path.stem
            assert_equivalent(model, result.model, Feeds(values={"m": [0, 1, 3]}))

    def test_loops(self, matrix_dir: Path) -> None:
        gone = (
            "trip0",
            "trip1",
            "cond_false",
            "condout_false",
            "constfold_all",
            "unroll",
            "scan_trip1",
        )
        for path in sorted(matrix_dir.glob("*.onnx")):
            model = onnx.load(path)
            result = rewrite(model)
            assert result.report.defects == []
            feeds = Feeds(sizes=(1, 2, 5), values={"m": [0, 1, 3]})
            assert_equivalent(model, result.model, feeds, 1e-5)
            if any(word in path.stem for word in gone):
                assert not {"Loop", "Scan"} & ops(result.model).keys(), path.stem


class TestSources:
    def test_path_text_bytes_and_proto(self, tmp_path: Path) -> None:
        model = parse(TEXT, 21, 10)
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        results = [rewrite(s).model for s in (path, str(path), model.SerializeToString(), model)]
        assert all(result == results[0] for result in results)
        assert ops(results[0]) == {"If": 1, "Neg": 1, "Exp": 1}

    def test_the_given_model_is_not_changed(self) -> None:
        model = parse(TEXT, 21, 10)
        model.graph.initializer.append(onnx.helper.make_tensor("spare", 1, [1], [1.0]))
        before = model.SerializeToString()
        result = rewrite(model, inputs={"c": True}, dims={"N": 4})
        assert model.SerializeToString() == before
        result.model.graph.node[0].op_type = "Sin"
        result.model.graph.initializer.clear()
        assert model.SerializeToString() == before

    def test_metadata_and_interface_stay(self) -> None:
        model = parse(TEXT, 21, 10)
        onnx.helper.set_model_props(model, {"author": "somebody"})
        model.producer_name, model.doc_string = "exporter", "what it is for"
        model.graph.input[0].doc_string = "frames"
        result = rewrite(model).model
        assert result.metadata_props == model.metadata_props
        assert (result.producer_name, result.doc_string) == ("exporter", "what it is for")
        assert (result.ir_version, result.opset_import) == (model.ir_version, model.opset_import)
        assert _interface(result) == _interface(model)

    def test_external_data(self, tmp_path: Path) -> None:
        model = parse(
            "g (float[N,64] x, bool c) => (float[N,64] y) { i = Identity(x) y = MatMul(i, w) }",
            21,
            10,
        )
        weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        path = tmp_path / "model.onnx"
        onnx.save(
            model, path, save_as_external_data=True, location="weights.bin", size_threshold=100
        )
        result = rewrite(path)
        assert ops(result.model) == {"MatMul": 1}
        (stored,) = result.model.graph.initializer
        assert stored.data_location == onnx.TensorProto.EXTERNAL
        assert result.base_dir == str(tmp_path)
        assert verify(path, result.model, base_dir=result.base_dir).verified

    def test_functions_are_seen_through(self) -> None:
        text = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
            g (float[3] x) => (float[3] y) <bool t = {1}> { y = local.choose(x, t) }
            <domain: "local", opset_import: ["" : 21]>
            choose (x, c) => (y) {
                y = If (c) <then_branch = t () => (a) { a = Neg(x) }, else_branch = e () => (b) { b = Exp(x) }> }"""
        model = onnx.parser.parse_model(text)
        result = rewrite(model)
        assert ops(result.model) == {"Neg": 1}
        assert_equivalent(model, result.model)


class TestReport:
    def test_counts_and_rules(self) -> None:
        report = rewrite(parse(TEXT, 21, 10)).report
        assert report.before == {"Not": 1, "Identity": 1, "If": 1, "Neg": 1, "Exp": 1}
        assert report.after == {"If": 1, "Neg": 1, "Exp": 1}
        assert report.commits == {
            "AbsorbNegatedCondition": 1,
            "EliminateIdentity": 1,
            "EliminateDeadNode": 1,
        }
        assert report.control(report.before) == {"If": 1}
        assert report.notes == report.defects == []
        assert report.seconds > 0

    def test_the_engine_answers_why(self) -> None:
        result = rewrite(parse(TEXT, 21, 10))
        (node,) = [n for n in result.engine.index.walk() if n.op == "If"]
        reasons = {r.rule: r.sentence for r in result.reasons(node)}
        assert reasons["InlineDecidedIf"] == "the condition `c` is not known before the run"
        assert len(reasons) > 5
        assert not any("{}" in sentence for sentence in reasons.values())


class TestErrors:
    @pytest.mark.parametrize("source", [b"", b"no model", "/nowhere/model.onnx"])
    def test_no_model(self, source: Any) -> None:
        with pytest.raises(ModelError):
            rewrite(source)

    def test_an_invalid_model(self) -> None:
        model = parse(TEXT, 21, 10)
        model.graph.node[-1].input[0] = "missing"
        with pytest.raises(ModelError, match="missing"):
            rewrite(model)

    def test_every_error_is_one_of_ours(self) -> None:
        for options in ({"dims": ["?"]}, {"inputs": {"q": 1}}, {"shapes": {"x": [1]}}):
            with pytest.raises(LoopliftError) as caught:
                rewrite(parse(TEXT, 21, 10), **options)
            assert re.search(r"\w", str(caught.value))


def test_what_is_public() -> None:
    for name in ("rewrite", "from_onnx", "Rule", "Miss", "Match", "Phase", "AssumptionError"):
        assert hasattr(looplift, name)
    assert set(looplift.__all__) <= set(dir(looplift))


class TestVerification:
    TEXT = "g (float[N] x) => (float[N] y) { a = Neg(x) y = Neg(a) }"

    def test_on_demand(self) -> None:
        result = looplift.rewrite(parse(self.TEXT, 21, 10))
        assert result.verification is None
        assert result.verify().verified
        assert "equal in" in str(result.verification)

    def test_of_a_wrong_result(self) -> None:
        class NegIsAbs(looplift.Rule):
            """Wrong."""

            root = "Neg"

            def match(self, m: looplift.Match) -> Node:
                return m.node

            def apply(self, patch: Patch, found: Node) -> None:
                patch.toward_normal_form()
                patch.replace_node(found, patch.node("Abs", found.inputs, found.outputs))

        wrong = [looplift.Phase("wrong", (NegIsAbs,), "")]
        with pytest.raises(looplift.VerificationError, match="differs from the original") as error:
            looplift.rewrite(parse(self.TEXT, 21, 10), rules=wrong, verify=True)
        assert error.value.result.model.graph.node[0].op_type == "Abs"


class TestResult:
    """What a result shows in a session or notebook."""

    TEXT = """g (float[T,3] x, bool flag) => (float[T,3] y) {
        y = If (flag) <then_branch = a () => (float[T,3] p) { p = Exp(x) },
                       else_branch = b () => (float[T,3] q) { q = Neg(x) }> }"""

    def test_texts(self) -> None:
        result = rewrite(parse(self.TEXT), inputs={"flag": True})
        assert repr(result) == "<RewriteResult: nodes 3 → 1, If 1 → 0; 1 commit>"
        lines = str(result.report).splitlines()
        assert lines[0].startswith("nodes 3 → 1, If 1 → 0 in ")
        assert lines[1:] == ["InlineDecidedIf: 1", "note: input `flag` is True"]

    def test_the_table_in_a_notebook(self) -> None:
        text = self.TEXT.replace(" flag)", " flag_less)").replace("(flag)", "(flag_less)")
        table = rewrite(parse(text), inputs={"flag_less": True})._repr_html_()
        assert table.startswith("<table><tr><td>input</td><td>x: float32[T, 3]</td>")
        assert "<td>flag_less: bool[] (removed)</td>" in table
        assert "<tr><td>If</td><td>1</td><td>0</td></tr>" in table

    def test_saving(self, tmp_path: Path) -> None:
        result = rewrite(parse(self.TEXT), inputs={"flag": True})
        result.save(tmp_path / "out.onnx")
        assert onnx.load(tmp_path / "out.onnx") == result.model

    def test_saving_over_the_original(self, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        onnx.save(parse(self.TEXT), path)
        (tmp_path / "link.onnx").symlink_to(path)
        result = rewrite(path, inputs={"flag": True})
        for name in ("model.onnx", "link.onnx"):
            with pytest.raises(ModelError, match="The output is the model itself") as caught:
                result.save(tmp_path / name)
            assert "overwrite_original=True" in caught.value.remedy
            assert onnx.load(path) == parse(self.TEXT)
        result.save(path, overwrite_original=True)
        assert onnx.load(path) == result.model

    def test_examples_in_docstrings(self) -> None:
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        for each in (rewrite, api.RewriteResult, api.from_onnx, api.compile):
            for found in doctest.DocTestFinder().find(inspect.unwrap(each)):
                runner.run(found)
        assert runner.tries >= 4
        assert runner.failures == 0

    def test_unknown_keywords(self) -> None:
        model: Any = parse(self.TEXT)
        call: Any = rewrite
        with pytest.raises(
            TypeError, match=r"no argument 'dim'; did you mean 'dims'\? .* inputs, d"
        ):
            call(model, dim={"T": 1})
        verify: Any = call(model).verify
        with pytest.raises(TypeError, match=r"no argument 'x'\. Its arguments are: sizes, seed"):
            verify(x=1)

    def test_sizes_to_verify(self) -> None:
        result = rewrite(parse(self.TEXT), inputs={"flag": True})
        assert str(result.verify(sizes={"T": [1, 100]})) == "equal in 10 runs (T=1|100)"
        numpy: Any = {"T": np.array([1, 3])}
        assert str(result.verify(sizes=numpy)) == "equal in 10 runs (T=1|3)"
        with pytest.raises(AssumptionError, match="'S' is not an open dimension"):
            result.verify(sizes={"S": [1]})
        not_sizes: Any = {"T": 1}
        with pytest.raises(AssumptionError, match="The sizes of 'T' are 1, not a list of integers"):
            result.verify(sizes=not_sizes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shapes": {"x": 3}}, "The shape of input 'x' is 3, which is not a list"),
        ({"shapes": {"x": "1,T"}}, "The shape of input 'x' is '1,T', which is not a list"),
        ({"shapes": ["x"]}, r"\['x'\] does not assert the shapes of inputs"),
        ({"inputs": ["x"]}, r"\['x'\] does not assert the values of inputs"),
        ({"inputs": np.zeros(2)}, "does not assert the values of inputs"),
        ({"dims": [1]}, "'1' does not assert a dim"),
    ],
)
def test_assertions_of_wrong_types(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AssumptionError, match=words):
        rewrite(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }"), **options)


def test_none_asserts_nothing() -> None:
    nothing: dict[str, Any] = dict.fromkeys(("inputs", "dims", "shapes", "prefix_masks"))
    result = rewrite(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }"), **nothing)
    assert result.report.notes == []


@pytest.mark.parametrize("size", ["x", -1, 1.5, None])
def test_a_size_that_is_no_number(size: object) -> None:
    """The error speaks of the argument, not of an option of the command line."""
    with pytest.raises(AssumptionError, match=f"The size of dim 'N' is {size!r}, which is not a"):
        Assertions.of(dims={"N": size})  # type: ignore[dict-item]
