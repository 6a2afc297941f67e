"""The commands on the pages in docs/ print what the pages show, and the models behave as stated."""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import onnx
import pytest

from looplift import rewrite
from looplift.debug import operator_docs, soundness
from looplift.debug.rule_api import SECTIONS, Section, markdown
from looplift.rewrite.engine.rule import fixture

from .programs import run_program

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SESSIONS = ("why-did-my-loop-not-fuse.md", "write-a-rule-in-ten-minutes.md")


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).read_text()
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found]


class Session:
    """Runs the blocks of a page in order, as a reader does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.has_run_looplift = False

    def do(self, block: Block) -> None:
        if block.language == "python":
            self._write(block.text)
        elif block.language == "console":
            for command in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                line, _, expected = command.partition("\n")
                self._run(line, expected)

    def _write(self, text: str) -> None:
        """Writes a file, whose name is in the first line of its text."""
        name = re.match(r"# (\S+\.py)\n", text)
        assert name is not None, f"no file is named by: {text.splitlines()[0]}"
        path = self.folder / name[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _run(self, line: str, expected: str) -> None:
        program, *arguments = shlex.split(line)
        if program == "cd":
            self.folder /= arguments[0]
            return
        # The first `looplift` of a page runs as a reader runs it.
        is_first = program == "looplift" and not self.has_run_looplift
        self.has_run_looplift |= is_first
        done = run_program(program, arguments, self.folder, in_process=not is_first)
        assert done.status == 0, done.stdout + done.stderr
        assert_printed(expected, done.stdout, line)


def assert_printed(expected: str, output: str, command: str) -> None:
    """Asserts that a command printed what the page shows, in this order.

    `…` stands for any text, and one space for several.
    """
    shown, printed = (" ".join(text.split()) for text in (expected, output))
    pattern = ".*?".join(re.escape(part.strip()) for part in shown.split("…"))
    assert re.search(pattern, printed), f"{command}\nprinted:\n{output}\nthe page says:\n{expected}"


@pytest.mark.parametrize("page", SESSIONS)
def test_the_session_goes_as_written(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("out"))
    session = Session(tmp_path)
    session_blocks = blocks(page)
    assert sum(block.language == "console" for block in session_blocks) >= 3
    for block in session_blocks:
        session.do(block)


def test_a_page_that_is_wrong_is_noticed() -> None:
    with pytest.raises(AssertionError, match="the page says"):
        assert_printed("3 passed…", "2 passed, 1 failed in 0.1s", "pytest")
    with pytest.raises(AssertionError, match="the page says"):
        assert_printed("a\n…\nb\n", "b\nx\na\n", "cat")
    assert_printed("a\n…\nb …\n", "a\nx\nb  1\n", "cat")


def test_the_reference_for_rules_is_up_to_date() -> None:
    assert (DOCS / "rule-api.md").read_text() == markdown(), (
        "write it again: looplift rules api > docs/rule-api.md"
    )


def test_the_reference_of_operators_is_up_to_date() -> None:
    assert (DOCS / "operators.md").read_text() == operator_docs.markdown(), (
        "write it again: python -m looplift.debug.operator_docs > docs/operators.md"
    )


def test_the_promises_of_rules_are_up_to_date() -> None:
    assert (DOCS / "soundness.md").read_text() == soundness.markdown(), (
        "write it again: looplift rules soundness > docs/soundness.md"
    )


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.kind.__name__)
def test_all_that_rules_can_use_is_documented(section: Section) -> None:
    members = list(section.members())
    assert members
    assert [member.signature for member in members if not member.summary] == []
    assert [member.name for member in members if member.name == member.signature] == []  # no type
    assert sorted(section.names.split()) == sorted(m.name for m in members if section.names)


FORMS = [block.text for block in blocks("canonical-forms.md") if block.language == "onnx"]


@pytest.mark.parametrize("text", FORMS, ids=range(len(FORMS)))
def test_canonical_forms_are_left_as_they_are(text: str) -> None:
    result = rewrite(fixture(text))
    assert [commit.rule for commit in result.trace.commits()] == []


WORK = "near = Add(h, now) ranked, order = TopK<axis = 0>(near, four) next = Sin(ranked)"
STACKED = "row = Identity(next)"
VARIANTS = {
    "a condition that stays": ("n, yes", "", "go = Identity(c) now = Gather(x, i)", STACKED),
    "slices by Slice": (
        "n, ",
        "",
        """go = Identity(c) j = Add(i, one) a = Unsqueeze(i, first) b = Unsqueeze(j, first)
        part = Slice(x, a, b, first) now = Squeeze(part, first)""",
        STACKED,
    ),
    "slices from a list": (
        "n, ",
        "parts = SplitToSequence<axis = 0, keepdims = 0>(x)",
        "go = Identity(c) now = SequenceAt(parts, i)",
        STACKED,
    ),
    "backwards": (
        "n, ", "", "go = Identity(c) m = Sub(n, one) k = Sub(m, i) now = Gather(x, k)", STACKED,
    ),
    "a counter": ("n, ", "", "go = Identity(c) k1 = Add(k, one) now = Gather(x, k)", STACKED),
    "a condition that counts": (
        ", run", "run = Less(zero, n)", "k1 = Add(k, one) go = Less(k1, n) now = Gather(x, k)", STACKED,
    ),
    "work that is always the same": (
        "n, ", "", "go = Identity(c) w = Exp(s) t = Gather(x, i) now = Mul(t, w)", STACKED,
    ),
    "rows in a list": (
        "n, ", "none = SequenceEmpty()", "go = Identity(c) now = Gather(x, i)", "r1 = SequenceInsert(r, next)",
    ),
    "rows in a tensor that grows": (
        "n, ",
        "none = Identity(nothing)",
        "go = Identity(c) now = Gather(x, i)",
        "one_row = Unsqueeze(next, first) r1 = Concat<axis = 0>(r, one_row)",
    ),
}  # fmt: skip
"""Other spellings of the counted loop: trip count and condition, the nodes before the loop, and those
of the body before and after its work."""


@pytest.mark.parametrize("words", VARIANTS)
def test_other_spellings_arrive_at_the_canonical_form(words: str) -> None:
    (canonical,) = [text for text in FORMS if "rows = Loop" in text]
    result = rewrite(_spelled(*VARIANTS[words])).model
    assert _loop_and_body(result) == _loop_and_body(fixture(canonical))


def _spelled(trip: str, before: str, begin: str, end: str) -> onnx.ModelProto:
    counts, keeps = "k1" in begin, "r1" in end
    kind = "seq(float[4])" if "none = SequenceEmpty" in before else "float[?, 4]"
    states = ["float[4] h", *["int64 k"] * counts, *[f"{kind} r"] * keeps]
    after = ["float[4] next", *["int64 k1"] * counts, f"{kind} r1" if keeps else "float[4] row"]
    results = ["last", *["last_k"] * counts, "list" if "Sequence" in end else "rows"]
    joined = "rows = ConcatFromSequence<axis = 0, new_axis = 1>(list)"
    return fixture(
        f"""g (float[T, 4] x, float[4] s) => (float[4] last, float[T, 4] rows)
        <int64 zero = {{0}}, int64 one = {{1}}, int64[1] four = {{4}}, int64[1] first = {{0}},
         bool yes = {{1}}, float[0, 4] nothing = {{}}> {{
            sizes = Shape(x) n = Gather(sizes, zero) {before}
            {", ".join(results)} = Loop({trip}, {", ".join(["s", *["zero"] * counts, *["none"] * keeps])}) <
                body = step (int64 i, bool c, {", ".join(states)}) => (bool go, {", ".join(after)})
                {{ {begin} {WORK} {end} }}>
            {joined if "Sequence" in end else ""}
        }}"""
    )


def _loop_and_body(model: onnx.ModelProto) -> tuple[int, bool, Counter[str]]:
    """The only loop: its inputs, whether its condition is computed, and the operators of its body."""
    (loop,) = [node for node in model.graph.node if node.op_type == "Loop"]
    (body,) = [attribute.g for attribute in loop.attribute]
    true = {t.name for t in model.graph.initializer if onnx.numpy_helper.to_array(t).all()}
    is_computed = loop.input[1] not in {"", *true}
    return len(loop.input), is_computed, Counter(node.op_type for node in body.node)


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if f"docs/{page.name}" not in readme] == []
    assert [page.name for page in ROOT.glob("*.md") if page.name not in readme] == []


def test_the_commands_for_contributors_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    targets = re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"`make\s(\w+)`", text)) <= set(targets)
    files = re.findall(r"`((?:rewrite|rules|lowering|tests|benchmarks|\.ci)/[\w./]*)`", text)
    assert len(files) >= 10
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_the_pre_commit_hook_runs_what_make_lint_runs() -> None:
    assert re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text()) == [
        "make lint"
    ]
