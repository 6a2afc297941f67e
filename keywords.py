"""Messages in the terms of Python: keyword arguments instead of the options of the command line.

Rules and readers of files name options, such as `--dim "T>=1"`. A caller of the functions of `api`
gets the argument that says the same: `dims=["T>=1"]`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from .rewrite.errors import LoopliftError

P = ParamSpec("P")
R = TypeVar("R")

_LISTS = re.compile(
    r"""--(dim|shape|prefix-mask|input) ("[^"]+"|[^\s"`;()]+=[^\s"`;()]*[^\s"`;(),.])"""
)
_WORDS = {
    "--dim": "dims",
    "--shape": "shapes",
    "--prefix-mask": "prefix_masks",
    "--input": "inputs",
    "--rules": "rules",
    "--strict": "strict=True",
    "--follow-links": "follow_links=True",
    "--steps": "step_limit",
}
_WORD = re.compile("|".join(f"{re.escape(option)}(?![\\w-])" for option in _WORDS))


def in_keywords(text: str) -> str:
    """A message with keyword arguments for the options that it names."""
    return _WORD.sub(lambda m: _WORDS[m[0]], _LISTS.sub(_argument, text))


def _argument(match: re.Match[str]) -> str:
    option, value = match[1], match[2].strip('"')
    if option == "dim":
        return f'dims=["{value}"]'
    if option == "prefix-mask":
        name, _, axis = value.partition(" axis ")
        return f'prefix_masks={{"{name}": {axis}}}' if axis else f'prefix_masks=["{name}"]'
    name, _, given = value.partition("=")
    if option == "shape":
        sizes = ", ".join(s if s.isdigit() or s == "…" else f'"{s}"' for s in given.split(","))
        return f'shapes={{"{name}": [{sizes}]}}'
    return f'inputs={{"{name}": {given}}}'


@contextmanager
def errors_in_keywords() -> Iterator[None]:
    """Makes errors name keyword arguments instead of options."""
    try:
        yield
    except LoopliftError as error:
        error.what, error.where, error.remedy = map(
            in_keywords, (error.what, error.where, error.remedy)
        )
        raise


def names_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose TypeError for an unknown keyword says which ones it takes."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> R:
        for name in given:
            if name not in known:
                similar = difflib.get_close_matches(name, known, 1)
                meant = f"; did you mean '{similar[0]}'?" if similar else "."
                raise TypeError(
                    f"{function.__name__}() has no argument '{name}'{meant} "
                    f"Its arguments are: {', '.join(known)}"
                )
        return function(*args, **given)

    return call
