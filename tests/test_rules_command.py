"""`looplift rules`: the documentation of the rules, and a new rule of a user."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner, Result

from looplift import LoopliftError, Match, Miss, ModelError, PatternRule, Phase, Rule, testing
from looplift.cli import app
from looplift.debug.report.rule_sources import rule_source
from looplift.debug.rule_docs import RuleDoc, contents, document, find_rule
from looplift.debug.rule_reasons import sentences
from looplift.debug.skeleton import module_name
from looplift.debug.trace_writer import match_line
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.rule import fixture
from looplift.rewrite.graph.ir import Node
from looplift.rules import PHASES
from looplift.testing import assert_fires, assert_spares, near_misses

from .programs import run_program

RULES = list(dict.fromkeys(rule for phase in PHASES for rule in phase.rules))


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["rules", *map(str, arguments)])


def by_name(rule: type[Rule]) -> str:
    return rule.name()


# --- list ---


@pytest.mark.parametrize("arguments", [(), ("list",)])
def test_all_rules_are_listed(arguments: tuple[str, ...]) -> None:
    listed = call(*arguments).stdout
    for rule in RULES:
        assert rule.name() in listed
    assert json.loads(call(*arguments, "--json").stdout)[: len(PHASES)] == contents(PHASES)


# --- show ---


@cache
def documented(name: str) -> RuleDoc:
    return document(find_rule(name, PHASES), PHASES)


@pytest.mark.parametrize("rule", RULES, ids=by_name)
def test_each_rule_is_documented(rule: type[Rule]) -> None:
    doc = documented(rule.name())
    assert doc.summary
    assert doc.phases
    assert doc.roots
    assert Path(doc.file).is_file()
    assert doc.before != doc.after
    assert doc.reasons, "a rule that always fires needs no m.need"
    assert [near.words for near in doc.near_misses] == list(rule.spares)
    assert all(near.words in near.reason for near in doc.near_misses)


def test_rules_of_users_are_listed_where_they_run(tmp_path: Path) -> None:
    """A rule is listed next to the rule that it names, a phase at the end, both with their module."""
    (tmp_path / "joined.py").write_text(
        "from looplift import Phase, Rule\n"
        "class First(Rule):\n    'Comes first.'\n    before = 'IfToWhere'\n"
        "class Last(Rule):\n    'Comes last.'\n"
        "PHASES = (Phase('mine', (First, Last), 'My own.'),)\n"
    )
    done = run_program("looplift", ["rules", "list", "--rules", "joined"], tmp_path)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    first = lines.index("First Comes first. (joined, before IfToWhere)")
    assert lines[first + 1].startswith("IfToWhere ")
    assert lines[-2:] == ["mine: My own. (joined)", "Last Comes last."]
    listed = run_program("looplift", ["rules", "list", "--rules", "joined", "--json"], tmp_path)
    mine = json.loads(listed.stdout)[-1]
    assert (mine["module"], mine["rules"][0]["module"]) == ("joined", "joined")


def test_show_prints_examples_and_reasons() -> None:
    shown = call("show", "IfToWhere").stdout
    assert "y = Where (c, x, z)" in shown
    assert "running both branches is too much work" in shown
    assert "Declines: `a` has shape [3] and `b` has shape [N] (at If of `y`)" in shown


def test_a_reason_of_another_file_has_its_file() -> None:
    lines = call("show", "FuseRecurrence").stdout.splitlines()
    places = {
        text.strip(): place for place, _, text in (line.strip().partition(" ") for line in lines)
    }
    assert places["it carries no value"].isdigit()
    assert re.fullmatch(
        r"\.\./loops/counted_loop_checks\.py:\d+",
        places["it never ends: it has no trip count"].replace(os.sep, "/"),
    )


def test_show_as_json() -> None:
    content = json.loads(call("show", "IfToWhere", "--json").stdout)
    assert content["roots"] == ["If"]
    assert "Where" in content["after"]
    assert any(
        reason["text"] == "the condition is not known to be a single element"
        for reason in content["reasons"]
    )


def test_a_rule_that_is_not_there() -> None:
    result = call("show", "LoopScan")
    assert result.exit_code == 2
    assert "Similar rules: LoopToScan" in result.output


# --- reasons, read from the source ---

LOCAL = "`{}` is {{odd}}"


class Declined(Exception):
    """An exception that a helper raises."""


class DeclinesEveryWay(Rule[None]):
    """A rule that declines in each way that the source analysis reads."""

    root = "Add"
    nothing = "an attribute of the class"

    def match(self, m: Match) -> None:
        m.need(True, "plain")
        m.need(True, LOCAL, 1)
        sentence = "a local name"
        m.need(True, sentence)
        m.need(True, "one of two" if m.node.name else "the other of two")
        self.more(m)
        _helper(m)
        raise Miss(self.nothing, at=m.node)

    def more(self, m: Match) -> None:
        m.need(True, f"formatted {m.node.op}")

    def apply(self, patch: Patch, found: None) -> None:
        raise AssertionError("it never fires")


def _helper(m: Match) -> None:
    if not m.node.inputs:
        raise Declined(f"{m.node.op} has no input")
    if m.node.attrs:
        raise ValueError("no reason, but a mistake")


def test_reasons_are_found_wherever_they_are_given() -> None:
    assert [sentence.text for sentence in sentences(DeclinesEveryWay)] == [
        "plain",
        "`…` is {odd}",
        "a local name",
        "one of two",
        "the other of two",
        "an attribute of the class",
        "formatted …",
        "… has no input",
    ]
    assert {Path(sentence.file) for sentence in sentences(DeclinesEveryWay)} == {Path(__file__)}
    source = Path(__file__).read_text().splitlines()
    assert all("Miss" in line or "need" in line or "raise" in line
               for line in (source[s.line - 1] for s in sentences(DeclinesEveryWay)))  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=by_name)
def test_reasons_that_are_given_are_known(rule: type[Rule]) -> None:
    """The reason of a near miss is among the reasons read from the source."""
    known = [sentence.text for sentence in sentences(rule)]
    given = [near.reason for near in documented(rule.name()).near_misses]
    assert any(_says(sentence, reason) for sentence in known for reason in given)


def _says(sentence: str, reason: str) -> bool:
    return all(part in reason for part in sentence.split("…"))


def test_find_rule() -> None:
    assert find_rule("LoopToScan", PHASES).name() == "LoopToScan"
    with pytest.raises(LoopliftError, match="no rule 'X'"):
        find_rule("X", PHASES)


# --- new ---


def run(*command: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    result = call("new", "DropDoubleNeg", "-o", tmp_path / "mine")
    assert result.exit_code == 0, result.output
    return tmp_path / "mine"


def test_a_new_rule_passes_its_test(tmp_path: Path) -> None:
    """Runs its own test, and the example in the docstring of `testing`, which tests MyRule."""
    assert call("new", "MyRule", "-o", tmp_path / "mine").exit_code == 0
    tests = tmp_path / "mine" / "tests"
    _, _, example = (testing.__doc__ or "").partition("\n\n")
    (tests / "test_example.py").write_text(textwrap.dedent(example))
    done = run("-m", "pytest", "-v", cwd=tmp_path / "mine")
    assert done.returncode == 0, done.stdout
    for name in ("test_rules", "test_example"):
        assert len(re.findall(rf"^tests/{name}\.py::.*PASSED", done.stdout, re.MULTILINE)) == 3


def test_a_new_rule_is_loaded_by_its_module(package: Path) -> None:
    model = fixture("g (float[N] x) => (float[N] z) { a = Neg(x) y = Neg(a) z = Relu(y) }")
    onnx.save(model, package / "model.onnx")
    module = ("--rules", "drop_double_neg.rules")
    done = run_program("looplift", ["rewrite", "model.onnx", "-o", "out.onnx", *module], package)
    assert done.status == 0, done.stderr
    assert [node.op_type for node in onnx.load(package / "out.onnx").graph.node] == ["Relu"]
    shown = run_program("looplift", ["rules", "show", "DropDoubleNeg", *module], package)
    assert "is not computed by Neg" in shown.stdout


def test_a_new_rule_is_loaded_once_it_is_installed(package: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check", "install")
    done = run(
        *pip, "--no-deps", "--no-index", "--no-build-isolation", "--target", str(site), ".",
        cwd=package,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    listed = run("-m", "looplift", "rules", "list", "--json", cwd=tmp_path, path=site)
    names = {rule["name"] for phase in json.loads(listed.stdout) for rule in phase["rules"]}
    assert "DropDoubleNeg" in names


def test_new_prints_what_it_wrote(tmp_path: Path) -> None:
    content = json.loads(call("new", "MyRule", "-o", tmp_path / "a", "--json").stdout)
    assert content["module"] == "my_rule.rules"
    assert all(Path(file).is_file() for file in content["files"])


def test_new_does_not_write_over_anything(package: Path) -> None:
    result = call("new", "DropDoubleNeg", "-o", package)
    assert result.exit_code == 2
    assert "The output exists already" in result.output


@pytest.mark.parametrize("name", ["lower", "Not-A-Name", "None", "9Lives", ""])
def test_names_that_are_not_class_names(name: str, tmp_path: Path) -> None:
    result = call("new", name, "-o", tmp_path / "a")
    assert result.exit_code == 2
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("name", "module"),
    [("DropDoubleNeg", "drop_double_neg"), ("FuseLSTM", "fuse_lstm"), ("A2B", "a2_b"), ("X", "x")],
)
def test_module_names(name: str, module: str) -> None:
    assert module_name(name) == module


# --- checks for the tests of your own rules ---


class DropAbs(Rule[Node]):
    """Removes an Abs, which is wrong."""

    root = "Abs"
    fires = "g (float[N] x) => (float[N] z) { y = Abs(x) z = Relu(y) }"
    spares = {"never": "g (float[N] x) => (float[N] z) { y = Abs(x) z = Relu(y) }"}  # noqa: RUF012

    def match(self, m: Match) -> Node:
        m.need(m.node.inputs[0].name == "x", "it reads `{}`", m.node.inputs[0].name)
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        patch.replace(found.outputs[0], found.inputs[0])
        patch.remove(found)


def test_a_rule_that_computes_something_else_is_noticed() -> None:
    wrong = type(
        "Wrong", (DropAbs,), {"__doc__": "Wrong.", "fires": DropAbs.fires.replace("Relu", "Neg")}
    )
    with pytest.raises(AssertionError, match="different"):
        assert_fires(wrong)


def test_a_rule_that_does_not_fire_is_noticed() -> None:
    text = "g (float[N] w) => (float[N] z) { y = Abs(w) z = Relu(y) }"
    idle = type("Idle", (DropAbs,), {"__doc__": "Idle.", "fires": text})
    with pytest.raises(AssertionError, match="does not fire: it reads `w`"):
        assert_fires(idle)


def test_a_near_miss_that_matches_is_noticed() -> None:
    assert near_misses(DropAbs) == ["never"]
    with pytest.raises(AssertionError, match="fires on the near miss"):
        assert_spares(DropAbs, "never")


def test_a_near_miss_for_another_reason_is_noticed() -> None:
    text = "g (float[N] w) => (float[N] z) { y = Abs(w) z = Relu(y) }"
    other = type(
        "Other", (DropAbs,), {"__doc__": "Other.", "spares": {"reads `w`": text, "rank": text}}
    )
    assert assert_spares(other, "reads `w`") == "it reads `w`"
    with pytest.raises(AssertionError, match="is in none of"):
        assert_spares(other, "rank")


def test_a_near_miss_that_is_not_there_is_named() -> None:
    with pytest.raises(AssertionError, match="DropAbs has no near miss 'ever'; it has 'never'"):
        assert_spares(DropAbs, "ever")


@pytest.mark.parametrize("header", ["", '<ir_version: 10, opset_import: ["" : 21]>\n'])
def test_where_a_fixture_is_not_onnx_text(header: str) -> None:
    text = f"{header}g (float[N] w) => (float[N] z) {{\n  z = Relu(w w) }}"
    kind = type("Bad", (DropAbs,), {"__doc__": "Bad.", "fires": text, "spares": {"it": text}})
    line = 3 if header else 2
    words = rf"not ONNX text: line {line}, column 14: Expected character \) not found \(rule Bad\)"
    with pytest.raises(ModelError, match=words):
        assert_fires(kind)
    with pytest.raises(ModelError, match=words):
        assert_spares(kind, "it")
    with pytest.raises(ModelError, match=words):
        document(kind, ())


def test_a_rule_of_a_user_is_documented() -> None:
    phases = (Phase("mine", (DropAbs,), "Mine."),)
    doc = document(DropAbs, phases)
    assert (doc.phases, doc.description) == (["mine"], "")
    assert Path(doc.file) == Path(__file__)


class DropAbsOfAbs(PatternRule):
    """Removes an Abs of an Abs."""

    pattern = "(x) => (z) { y = Abs(x)  z = Abs(y) }"
    replacement = "(x) => (z) { z = Abs(x) }"


def test_a_rule_fires_on_more_models_than_its_fixture() -> None:
    text = "g (float[N] a) => (float[N] d) {{ b = Abs(a)  c = {}(b)  d = Exp(c) }}"
    with pytest.raises(AssertionError, match="has no fixture"):
        assert_fires(DropAbsOfAbs)
    result = assert_fires(DropAbsOfAbs, text.format("Abs"))
    assert [node.op_type for node in result.graph.node] == ["Abs", "Exp"]
    with pytest.raises(AssertionError, match="does not fire"):
        assert_fires(DropAbsOfAbs, text.format("Neg"))


def test_a_pattern_of_a_user_is_shown_at_its_class() -> None:
    doc = document(DropAbsOfAbs, (Phase("mine", (DropAbsOfAbs,), "Mine."),))
    assert Path(doc.file) == Path(__file__)
    lines = Path(__file__).read_text().splitlines()
    assert lines[doc.line - 1] == "class DropAbsOfAbs(PatternRule):"
    source = rule_source(DropAbsOfAbs)
    # The file is shown as in an installed package.
    assert Path(source.file).parts[-2:] == Path(doc.file).parts[-2:]
    assert source.line == doc.line
    assert "class PatternRule" not in re.sub("<[^>]*>", "", source.html)


def test_a_pattern_without_source_is_shown_at_its_guard() -> None:
    rule = type("Made", (PatternRule,), {**vars(DropAbsOfAbs), "guard": DropAbs.match})
    assert match_line(rule) == match_line(DropAbs)


def test_a_name_that_is_taken(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["rules", "new", "FuseRecurrence", "-o", str(tmp_path / "new")]
    )
    assert result.exit_code == 2
    assert "There is already a rule FuseRecurrence" in result.stderr
    assert not (tmp_path / "new").exists()
