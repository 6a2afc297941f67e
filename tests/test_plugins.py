from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from looplift import LoopliftError, Phase, Rule, plugins, rewrite
from looplift.rewrite.engine.rule import fixture
from looplift.rules import PHASES
from looplift.rules.recurrence import FuseRecurrence

from .equivalence import assert_equivalent
from .rewrite.fact_oracle import Feeds

MODULE = """
from looplift import Phase, Rule

class Mine(Rule):
    "Does nothing."

PHASES = (Phase("mine", (Mine,), "Mine."),)
"""


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    plugins.installed_phases.cache_clear()
    yield
    plugins.installed_phases.cache_clear()


@pytest.fixture
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_rules.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def offer(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    def entry_points(group: str) -> list[EntryPoint]:
        assert group == "looplift.rules"
        return [EntryPoint(f"p{k}", value, group) for k, value in enumerate(values)]

    monkeypatch.setattr(plugins, "entry_points", entry_points)


@pytest.mark.usefixtures("_module")
class TestPlugins:
    def test_installed_packages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for value in ("some_rules", "some_rules:PHASES"):
            plugins.installed_phases.cache_clear()
            offer(monkeypatch, value)
            assert [phase.name for phase in plugins.all_phases()[len(PHASES) :]] == ["mine"]

    def test_modules_come_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("named_rules.py").write_text(MODULE.replace('"mine"', '"named"'))
        offer(monkeypatch, "some_rules")
        phases = plugins.all_phases(["named_rules"])
        assert phases[: len(PHASES)] == PHASES
        assert [phase.name for phase in phases[len(PHASES) :]] == ["mine", "named"]

    def test_a_module_that_is_installed_and_named_counts_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        offer(monkeypatch, "some_rules")
        phases = plugins.all_phases(["some_rules", "some_rules"])
        assert [phase.name for phase in phases[len(PHASES) :]] == ["mine"]

    def test_a_rule_runs_next_to_the_rule_that_it_names(self) -> None:
        for where, shift in (("before", 0), ("after", 1)):
            text = MODULE.replace(
                '"Does nothing."', f'"Does nothing."\n    {where} = "FoldConstants"'
            )
            Path(f"{where}_rules.py").write_text(text)
            phases = plugins.all_phases([f"{where}_rules"])
            assert [phase.name for phase in phases] == [phase.name for phase in PHASES]
            joined = 0
            for old, new in zip(PHASES, phases):
                names = [rule.name() for rule in old.rules]
                if "FoldConstants" in names:
                    names.insert(names.index("FoldConstants") + shift, "Mine")
                    joined += 1
                assert [rule.name() for rule in new.rules] == names
            assert joined > 1

    def test_a_phase_runs_next_to_the_phase_that_it_names(self) -> None:
        Path("early_rules.py").write_text(MODULE.replace('"Mine.")', '"Mine.", before="loops")'))
        names = [phase.name for phase in plugins.all_phases(["early_rules"])]
        assert names.index("mine") == names.index("loops") - 1
        assert [name for name in names if name != "mine"] == [phase.name for phase in PHASES]

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ('"Does nothing."', 'before = "NoRule"', "runs before or after NoRule, which is not"),
            ('"Mine.")', '"Mine.", after="no phase")', "runs before or after 'no phase', which"),
        ],
    )
    def test_a_place_that_does_not_exist(self, old: str, new: str, words: str) -> None:
        Path("placed_rules.py").write_text(MODULE.replace(old, new))
        sys.modules.pop("placed_rules", None)
        with pytest.raises(LoopliftError, match=words):
            plugins.all_phases(["placed_rules"])

    @pytest.mark.parametrize("value", ["no_such_module", "some_rules:NOTHING"])
    def test_what_cannot_be_imported(self, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        offer(monkeypatch, value)
        with pytest.raises(LoopliftError, match="cannot be imported") as caught:
            plugins.all_phases()
        assert "entry point 'p0'" in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("x = 1\ny = = 2\n", ["SyntaxError: invalid syntax", "broken.py:2"]),
            ("x = 1\n\nno_such_name\n", ["NameError: name 'no_such_name'", "broken.py:3"]),
            ("import json\njson.loads('{')\n", ["JSONDecodeError", "broken.py:2"]),
            ("import no_such_module\n", ["No module named 'no_such_module'", "broken.py:1"]),
            ("import sys\nsys.exit(3)\n", ["SystemExit: 3", "broken.py:2"]),
            (
                "from looplift import PatternRule\n\nclass A(PatternRule):\n"
                '    pattern = replacement = "(x) => (y) { y = Abs(x) }"\n',
                ["set normal_form = True", "broken.py:3"],
            ),
        ],
    )
    def test_a_module_with_an_error(
        self, text: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "broken.py").write_text(text)
        for modules in (["broken"], []):
            with pytest.raises(LoopliftError, match="cannot be imported") as caught:
                plugins.all_phases(modules)
            assert [word for word in words if word not in str(caught.value)] == []
            assert "Name a module" not in str(caught.value)
            plugins.installed_phases.cache_clear()
            offer(monkeypatch, "broken")

    def test_what_lists_no_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        offer(monkeypatch, "json")
        with pytest.raises(LoopliftError, match="lists no rules"):
            plugins.all_phases()

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ("class Mine(Rule)", "class Mine", "which is not a rule"),
            ("(Mine,)", "(Mine(),)", "which is not a rule"),
            ("(Mine,)", "Mine", "List them in a tuple"),
            ('"Does nothing."', "root = 7", "The root of the rule Mine is 7"),
            ('"Does nothing."', 'root = ("If", None)', "Name the operator"),
        ],
    )
    def test_what_is_no_rule(
        self, old: str, new: str, words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert old in MODULE
        Path("named_rules.py").write_text(MODULE.replace(old, new))
        monkeypatch.delitem(sys.modules, "named_rules", raising=False)
        with pytest.raises(LoopliftError, match=words) as caught:
            plugins.all_phases(["named_rules"])
        assert "module of rules 'named_rules'" in str(caught.value)


def _rule(name: str, **place: str) -> type[Rule]:
    return type(name, (Rule,), {"__doc__": "Does nothing.", **place})


def _names(phase: Phase) -> list[str]:
    return [rule.name() for rule in phase.rules]


class TestPlaces:
    """The places at which rules and phases of users run."""

    A, B, C = (_rule(name) for name in "ABC")
    OWN = (Phase("first", (A, B), "First."), Phase("second", (B, C), "Second."))

    @pytest.mark.parametrize(
        ("place", "expected"),
        [
            ({}, ["first", "second", "mine"]),
            ({"before": "first"}, ["mine", "first", "second"]),
            ({"before": "second"}, ["first", "mine", "second"]),
            ({"after": "first"}, ["first", "mine", "second"]),
            ({"after": "second"}, ["first", "second", "mine"]),
        ],
    )
    def test_a_phase(self, place: dict[str, str], expected: list[str]) -> None:
        mine = Phase("mine", (_rule("Mine"),), "Mine.", **place)
        phases = plugins.insert_phases(self.OWN, [mine])
        assert [phase.name for phase in phases] == expected
        assert [phase for phase in phases if phase.name != "mine"] == list(self.OWN)

    @pytest.mark.parametrize(
        ("place", "first", "second"),
        [
            ({"before": "A"}, ["Mine", "A", "B"], ["B", "C"]),
            ({"after": "A"}, ["A", "Mine", "B"], ["B", "C"]),
            ({"before": "B"}, ["A", "Mine", "B"], ["Mine", "B", "C"]),
            ({"after": "B"}, ["A", "B", "Mine"], ["B", "Mine", "C"]),
            ({"after": "C"}, ["A", "B"], ["B", "C", "Mine"]),
        ],
    )
    def test_a_rule(self, place: dict[str, str], first: list[str], second: list[str]) -> None:
        """A rule joins every phase that has the rule it names, and leaves its own phase."""
        mine = Phase("mine", (_rule("Mine", **place),), "Mine.")
        phases = plugins.insert_phases(self.OWN, [mine])
        assert [_names(phase) for phase in phases] == [first, second]
        assert [phase.summary for phase in phases] == ["First.", "Second."]

    def test_the_other_rules_stay_in_their_phase(self) -> None:
        rules = (_rule("D", before="C"), _rule("E"), _rule("F", after="A"), _rule("G"))
        phases = plugins.insert_phases(self.OWN, [Phase("mine", rules, "Mine.", before="second")])
        assert [phase.name for phase in phases] == ["first", "mine", "second"]
        assert [_names(phase) for phase in phases] == [["A", "F", "B"], ["E", "G"], ["B", "D", "C"]]

    def test_rules_and_phases_at_one_place_keep_their_order(self) -> None:
        places = {"D": "after", "E": "after", "F": "before", "G": "before"}
        rules = tuple(_rule(name, **{place: "A"}) for name, place in places.items())
        phases = plugins.insert_phases(self.OWN, [Phase("mine", rules, "Mine.")])
        assert _names(phases[0]) == ["F", "G", "A", "D", "E", "B"]
        mine = [Phase(name, (_rule(name),), "Mine.", after="first") for name in ("x", "y")]
        names = [phase.name for phase in plugins.insert_phases(self.OWN, mine)]
        assert names == ["first", "x", "y", "second"]

    def test_a_rule_or_phase_of_a_user_may_be_named(self) -> None:
        mine = Phase("mine", (_rule("D"),), "Mine.", before="second")
        more = Phase("more", (_rule("E", after="D"), _rule("F")), "More.", before="mine")
        phases = plugins.insert_phases(self.OWN, [mine, more])
        assert [phase.name for phase in phases] == ["first", "more", "mine", "second"]
        assert [_names(phase) for phase in phases[1:3]] == [["F"], ["D", "E"]]

    def test_places_that_are_not_there(self) -> None:
        mine = Phase("mine", (_rule("D"),), "Mine.", before="third")
        with pytest.raises(
            LoopliftError,
            match="The phase 'mine' runs before or after 'third', which is not a phase",
        ):
            plugins.insert_phases(self.OWN, [mine])
        mine = Phase("mine", (_rule("D", after="E"),), "Mine.")
        with pytest.raises(
            LoopliftError, match="The rule D runs before or after E, which is not a rule"
        ):
            plugins.insert_phases(self.OWN, [mine])


DECOMPOSES_TANH = """
from looplift import Phase, Rule
import numpy as np

class DecomposeTanh(Rule):
    "Writes a Tanh in a loop as 2 · sigmoid(2x) - 1."

    root = ("Loop", "Scan")
    before = "FuseRecurrence"

    def match(self, m):
        nodes = m.index.nodes(m.node.attrs["body"])
        return m.need(next((n for n in nodes if n.op == "Tanh"), None), "there is no Tanh")

    def apply(self, patch, tanh):
        emit = patch.builder(tanh.outputs[0], tanh)
        two, one = (emit.constant(np.array(number, np.float32)) for number in (2, 1))
        sigmoid = emit("Sigmoid", emit("Mul", tanh.inputs[0], two))
        patch.replace_node(tanh, [emit("Sub", emit("Mul", sigmoid, two), one)])
        patch.toward_normal_form()

PHASES = (Phase("mine", (DecomposeTanh,), "Mine."),)
"""


@pytest.mark.parametrize(
    ("place", "expected"),
    [("before =", ["DecomposeTanh", "FuseRecurrence"]), ("other =", ["FuseRecurrence"])],
)
def test_a_rule_of_a_user_fires_before_the_rule_that_it_names(
    place: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `before`, the rule runs last, when the loop is already an RNN."""
    name = f"decomposes_tanh_{len(expected)}"
    (tmp_path / f"{name}.py").write_text(DECOMPOSES_TANH.replace("before =", place))
    monkeypatch.chdir(tmp_path)
    model = fixture(FuseRecurrence.fires)
    result = rewrite(model, rules=plugins.all_phases([name]))
    assert result.report.defects == []
    commits = [c for c in result.trace.commits() if c.rule in ("DecomposeTanh", "FuseRecurrence")]
    assert [commit.rule for commit in commits] == expected
    assert {commit.phase for commit in commits} == {"recurrences"}
    assert_equivalent(model, result.model, Feeds(sizes=(1, 2, 5)), 1e-5)


@pytest.mark.parametrize("given", ["some_rules", plugins, (PHASES[0].rules[0],), 5], ids=str)
def test_what_is_no_phase_is_refused(given: object) -> None:
    with pytest.raises(LoopliftError, match="not a sequence of phases") as raised:
        rewrite(fixture(FuseRecurrence.fires), rules=given)  # type: ignore[arg-type]
    assert "looplift.plugins.all_phases(['" in raised.value.remedy


def test_no_rules_are_phases() -> None:
    assert rewrite(fixture(FuseRecurrence.fires), rules=[]).report.commits.total() == 0


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("package/mine.py", "Name the module: package.mine"),
        ("./package/mine.py", "Name the module: package.mine"),
        (
            "../here/package/mine.py",
            "Run the command in '../here/package', and name the module: mine",
        ),
    ],
)
def test_a_file_in_place_of_a_module(
    name: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "mine.py").write_text("PHASES = ()")
    monkeypatch.chdir(folder)
    with pytest.raises(LoopliftError, match="is a file, not a module") as caught:
        plugins.all_phases([name])
    assert caught.value.remedy == remedy
