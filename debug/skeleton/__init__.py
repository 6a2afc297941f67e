"""Writes a package with one rule that works and whose tests pass, as a start for a user."""

from __future__ import annotations

import keyword
import re
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from ...rewrite.errors import LoopliftError

_CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9]*")
_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def write_package(name: str, folder: Path) -> list[Path]:
    """Writes the package of a new rule into a folder, which must be empty or not exist yet.

    Returns the files. Raises LoopliftError for a name that is not a class name, or if the folder is
    in use.
    """
    package = module_name(name)
    _check_folder(folder)
    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    major, minor = version("looplift").split(".")[:2]
    values = {
        "rule": name,
        "package": package,
        "project": package.replace("_", "-"),
        "lowest": f"{major}.{minor}",
        "phase": package.replace("_", " "),
    }
    places = {
        "pyproject.toml": "pyproject.toml",
        "init.py": f"{package}/__init__.py",
        "rules.py": f"{package}/rules.py",
        "test_rules.py": "tests/test_rules.py",
    }
    written = []
    for template, place in places.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(environment.get_template(f"{template}.jinja").render(values), "utf-8")
        written.append(path)
    return written


def module_name(rule: str) -> str:
    """`DropDoubleNeg` as `drop_double_neg`. Raises LoopliftError for other than a class name."""
    if not _CLASS_NAME.fullmatch(rule) or keyword.iskeyword(rule):
        raise LoopliftError(
            f"'{rule}' is not a name for a rule",
            remedy="Say what the rule does, in the form of a class name: DropDoubleNeg",
        )
    return _WORD_ENDS.sub("_", rule).lower()


def _check_folder(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LoopliftError(
            "The output exists already",
            where=f"'{folder}'",
            remedy="Name a folder that is empty or does not exist yet",
        )
