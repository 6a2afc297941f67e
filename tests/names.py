"""Finds what the documents call by a dotted name."""

from __future__ import annotations

import importlib
from functools import reduce
from pathlib import Path

ROOT = Path(__file__).parents[1]


def resolve(name: str) -> object:
    """The module, class, function or attribute that a dotted name below `looplift` stands for.

    Raises ModuleNotFoundError or AttributeError if there is none.
    """
    # `looplift.rewrite` is a function, too: modules are found by their file.
    parts = name.split(".")
    length = len(parts)
    while length and not _is_module(parts[:length]):
        length -= 1
    module = importlib.import_module(".".join(["looplift", *parts[:length]]))
    return reduce(getattr, parts[length:], module)


def _is_module(parts: list[str]) -> bool:
    path = ROOT.joinpath(*parts)
    return path.with_suffix(".py").exists() or path.is_dir()
