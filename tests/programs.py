"""Runs commands as a user types them, in this process.

A Python process that imports looplift takes a second, one that imports TVM three. A test of what
commands print runs them here; a test of how they start runs them in a process of their own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from looplift.cli import app


class Done(NamedTuple):
    """How a program ended."""

    status: int
    stdout: str
    stderr: str


def run_program(
    program: str, arguments: Sequence[str | Path], folder: Path, *, in_process: bool = True
) -> Done:
    """Runs `looplift` or `python` with arguments in a folder.

    `python -m` always runs in a process of its own.
    """
    words = [str(argument) for argument in arguments]
    if not in_process or (program == "python" and words[0] == "-m"):
        return _run_process(program, words, folder)
    with _in_folder(folder):
        return _run_script(words) if program == "python" else _run_command(words)


def _run_process(program: str, words: list[str], folder: Path) -> Done:
    module = {"looplift": ["-m", "looplift"], "python": []}[program]
    done = subprocess.run(
        [sys.executable, *module, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "1000"},
    )
    return Done(done.returncode, done.stdout, done.stderr)


def _run_command(words: list[str]) -> Done:
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def _run_script(words: list[str]) -> Done:
    """`python FILE ARGUMENTS` or `python -c TEXT`."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if words[0] == "-c":
                exec(words[1], {"__name__": "__main__"})
            else:
                sys.argv = words
                sys.path.insert(0, str(Path(words[0]).resolve().parent))
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """Makes a folder the current one; afterwards undoes what a program leaves in its process."""
    path, arguments, writes_none = sys.path[:], sys.argv, sys.dont_write_bytecode
    before, environment = Path.cwd(), dict(os.environ)
    # Files that are written again within a second would have stale bytecode.
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    try:
        os.chdir(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:], sys.argv, sys.dont_write_bytecode = path, arguments, writes_none
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).is_relative_to(folder.resolve()):
                del sys.modules[name]
