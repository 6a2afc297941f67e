"""The pages in docs/ are true: their commands run, print what they say, and their models hold."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from looplift import rewrite
from looplift.rewrite.rule import fixture

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
    """Carries out the blocks of a page one after the other, as a reader would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def do(self, block: Block) -> None:
        if block.language == "python":
            self._write(block.text)
        elif block.language == "console":
            for command in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                line, _, expected = command.partition("\n")
                self._run(line, expected)

    def _write(self, text: str) -> None:
        """The first line of a file's text names it."""
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
        module = {"looplift": ["-m", "looplift"], "python": []}[program]
        done = subprocess.run(
            [sys.executable, *module, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "1000"},
        )
        told = done.stdout + done.stderr
        # Status 1 is a finding, which is what `explain` is asked for.
        fine = (0, 1) if arguments[:1] == ["explain"] else (0,)
        assert done.returncode in fine, told
        assert_printed(expected, done.stdout, line)


def assert_printed(expected: str, told: str, command: str) -> None:
    """What a page shows was printed, in this order; `…` stands for anything, and one space for
    several.
    """
    shown, printed = (" ".join(text.split()) for text in (expected, told))
    pattern = ".*?".join(re.escape(part.strip()) for part in shown.split("…"))
    assert re.search(pattern, printed), f"{command}\nprinted:\n{told}\nthe page says:\n{expected}"


@pytest.mark.parametrize("page", SESSIONS)
def test_the_session_goes_as_written(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("out"))
    session = Session(tmp_path)
    steps = blocks(page)
    assert sum(block.language == "console" for block in steps) >= 3
    for block in steps:
        session.do(block)


def test_a_page_that_is_not_true_is_noticed() -> None:
    with pytest.raises(AssertionError, match="the page says"):
        assert_printed("3 passed…", "2 passed, 1 failed in 0.1s", "pytest")
    with pytest.raises(AssertionError, match="the page says"):
        assert_printed("a\n…\nb\n", "b\nx\na\n", "cat")
    assert_printed("a\n…\nb …\n", "a\nx\nb  1\n", "cat")


FORMS = [block.text for block in blocks("canonical-forms.md") if block.language == "onnx"]


@pytest.mark.parametrize("text", FORMS, ids=range(len(FORMS)))
def test_canonical_forms_are_left_as_they_are(text: str) -> None:
    result = rewrite(fixture(text))
    assert [commit.rule for commit in result.trace.commits()] == []


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *DOCS.glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if f"docs/{page.name}" not in readme] == []
