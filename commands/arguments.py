"""What the user writes on the command line about a model: `NAME=VALUE`, `NAME=1,576` and so on."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..rewrite.errors import AssumptionError

T = TypeVar("T")

_WORDS = {
    "true": True,
    "false": False,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
}


@dataclass(frozen=True)
class Assertions:
    """What the user asserts, in the form `looplift.rewrite` takes."""

    inputs: dict[str, Any] = field(default_factory=dict)
    dims: tuple[str, ...] = ()
    shapes: dict[str, tuple[int | str | None, ...]] = field(default_factory=dict)
    strict: bool = False
    prefix_masks: dict[str, int | None] = field(default_factory=dict)


def parse_assertions(
    inputs: Iterable[str],
    dims: Iterable[str],
    shapes: Iterable[str],
    strict: bool,
    prefix_masks: Iterable[str] = (),
) -> Assertions:
    """The options `--input`, `--dim`, `--shape`, `--strict` and `--prefix-mask` of one call.

    Raises AssumptionError for a text that asserts nothing or contradicts another one; what does
    not fit the model shows later.
    """
    return Assertions(
        _collect("--input", inputs, parse_value),
        tuple(dims),
        _collect("--shape", shapes, parse_shape),
        strict,
        _parse_masks(prefix_masks),
    )


def _parse_masks(texts: Iterable[str]) -> dict[str, int | None]:
    """`mask axis 0`, or `mask` alone. Names may contain colons and, but for this end, blanks."""
    axes: dict[str, int | None] = {}
    for text in texts:
        found = re.fullmatch(r"\s*(.*?)(?:\s+axis\s+(-?\d+))?\s*", text, re.DOTALL)
        assert found is not None, "the name takes any text"
        name, axis = found[1], None if found[2] is None else int(found[2])
        if axes.setdefault(name, axis) != axis:
            raise AssumptionError(
                f"The time of '{name}' cannot be along two axes",
                where="--prefix-mask",
                remedy="Give it once",
            )
    return axes


def mask_option(name: str, axis: int | None) -> str:
    """The option that `parse_assertions` reads, as a shell takes it."""
    text = name if axis is None else f"{name} axis {axis}"
    return f'--prefix-mask "{text}"' if " " in text else f"--prefix-mask {text}"


def parse_value(text: str) -> Any:
    """`16000`, `0.5`, `true`, `1,2,3`, `[[1, 2], [3, 4]]`, `@file.npy`, or else a text."""
    if text.startswith("@"):
        return _read_array(Path(text[1:]))
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def parse_shape(text: str) -> tuple[int | str | None, ...]:
    """`1,T,?` as (1, "T", None); nothing at all is the shape of a scalar."""
    return tuple(_parse_size(part.strip()) for part in text.split(",")) if text.strip() else ()


def parse_sizes(texts: Iterable[str]) -> dict[str, list[int]]:
    """The option `--size NAME=1,2,7`."""
    return _collect("--size", texts, _parse_sizes)


def _parse_size(text: str) -> int | str | None:
    if text in ("?", ""):
        return None
    return int(text) if text.lstrip("-").isdigit() else text


def _parse_sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise AssumptionError(
            f"'{text}' is not a list of sizes", remedy="Write numbers with commas between them"
        )
    return [int(part) for part in parts]


def _collect(option: str, texts: Iterable[str], parse: Callable[[str], T]) -> dict[str, T]:
    found: dict[str, T] = {}
    given: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign or not name:
            raise AssumptionError(
                f"'{text}' names nothing", where=option, remedy=f"Write {option} NAME=VALUE"
            )
        if given.setdefault(name, value) != value:
            raise AssumptionError(
                f"'{name}' cannot be both {given[name]} and {value}",
                where=option,
                remedy="Give it once",
            )
        found[name] = parse(value)
    return found


def _read_array(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise AssumptionError(
            f"No array can be read from '{path}': {error}",
            where="--input",
            remedy="Write it with numpy.save, without Python objects",
        ) from error
