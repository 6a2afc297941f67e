"""Parses what the user writes on the command line: `NAME=VALUE`, `NAME=1,576`, `mask axis 0`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..rewrite.errors import AssumptionError
from ..rewrite.facts.assertions import MOST_DIGITS, Assertions, Shape

T = TypeVar("T")

_WORDS = {
    "true": True,
    "false": False,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "infinity": float("inf"),
    "-infinity": float("-inf"),
}
_KINDS = ("input", "dim", "shape", "prefix mask")
"""The first words of what `--assume` takes, in the order of `parse_assertions`."""


def parse_assertions(
    inputs: Iterable[str],
    dims: Iterable[str],
    shapes: Iterable[str],
    prefix_masks: Iterable[str] = (),
) -> Assertions:
    """Parses the options `--input`, `--dim`, `--shape` and `--prefix-mask` of one call.

    Raises AssumptionError for a text that asserts nothing or contradicts another one. Whether the
    assertions fit the model is checked later.
    """
    return Assertions.of(
        _parse_pairs("--input", inputs, parse_value),
        list(dims),
        _parse_pairs("--shape", shapes, parse_shape),
        _parse_masks(prefix_masks),
    )


def parse_assumptions(texts: Iterable[str]) -> Assertions:
    """Parses what `--assume` takes: `dim T=16`, `input sr=16000`, `shape x=1,T`,
    `prefix mask m axis 1`. Raises AssumptionError as `parse_assertions` does.
    """
    values: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for text in texts:
        stripped = text.strip()
        kind = next((k for k in _KINDS if stripped.startswith(f"{k} ")), "")
        if not kind:
            raise AssumptionError(
                f"'{text}' is not an assumption",
                where="--assume",
                remedy='Write "dim T=16", "dim T>=1", "input sr=16000", "shape x=1,T" or '
                '"prefix mask m axis 1"',
            )
        values[kind].append(stripped.removeprefix(kind).strip())
    return parse_assertions(*values.values())


def _parse_masks(texts: Iterable[str]) -> dict[str, int | None]:
    """Parses `mask axis 0` or `mask`. A name may contain colons and spaces."""
    axes: dict[str, int | None] = {}
    for text in texts:
        found = re.fullmatch(r"\s*(.*?)(?:\s+axis\s+(-?\d+))?\s*", text, re.DOTALL)
        assert found is not None, "the name may be any text"
        name, axis = found[1], None if found[2] is None else int(found[2])
        if axes.setdefault(name, axis) != axis:
            raise AssumptionError(
                f"The mask '{name}' cannot have two time axes",
                where="--prefix-mask",
                remedy="Give it once",
            )
    return axes


def parse_value(text: str) -> Any:
    """Parses `16000`, `0.5`, `true`, `1,2,3`, `[[1, 2], [3, 4]]`, `[true]` or `@file.npy`; any
    other text stands for itself.
    """
    if text.startswith("@"):
        return _read_array(Path(text[1:]))
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return _parse_json(text)


def _parse_json(text: str) -> Any:
    """Parses a list as JSON, in which messages write values: `[true]`, `[NaN]`."""
    if not text.startswith("["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parse_shape(text: str) -> Shape:
    """Parses `1,T,?` or `[1,T,?]` as (1, "T", None); an empty text is the shape of a scalar."""
    brackets = re.fullmatch(r"\s*[\[(](.*)[\])]\s*", text)
    text = brackets[1] if brackets else text
    return tuple(_parse_dim(part.strip()) for part in text.split(",")) if text.strip() else ()


def parse_sizes(texts: Iterable[str]) -> dict[str, list[int]]:
    """Parses the option `--size NAME=1,2,7`."""
    return _parse_pairs("--size", texts, _parse_numbers)


def _parse_dim(text: str) -> int | str | None:
    if text in ("?", ""):
        return None
    if re.fullmatch(r"[+-]?\d*\.\d+|.*[\[\]()].*", text):
        raise AssumptionError(
            f"'{text[:80]}' is neither a size nor a name", remedy="Write a shape as 1,T,?"
        )
    return _number(text) if text.lstrip("-").isdigit() else text


def _number(text: str) -> int:
    """A whole number. Raises AssumptionError beyond int64, which ONNX has for sizes."""
    if len(text) > MOST_DIGITS + 1 or not -(2**63) <= int(text) < 2**63:
        raise AssumptionError(
            f"'{text[:80]}' is a size beyond 2^63 - 1", remedy="Give the real size"
        )
    return int(text)


def _parse_numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise AssumptionError(
            f"'{text}' is not a list of sizes", remedy="Write numbers separated by commas"
        )
    return [_number(part) for part in parts]


def _parse_pairs(option: str, texts: Iterable[str], parse: Callable[[str], T]) -> dict[str, T]:
    """Parses texts of the form NAME=VALUE."""
    values: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign or not name:
            raise AssumptionError(
                f"'{text}' has no value", where=option, remedy=f"Write {option} NAME=VALUE"
            )
        if name.endswith(">"):
            raise AssumptionError(
                f"'{text}' is a lower bound, which only a dim can have",
                where=option,
                remedy=f'Write --dim "{text}" if {name[:-1]} is a dim',
            )
        if values.setdefault(name, value) != value:
            raise AssumptionError(
                f"'{name}' cannot be both {values[name]} and {value}",
                where=option,
                remedy="Give it once",
            )
    return {name: parse(value) for name, value in values.items()}


def _read_array(path: Path) -> Any:
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is not a file")
        # Mapping it first detects a file that is shorter than its header says.
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError, OverflowError, MemoryError, SyntaxError) as error:
        raise AssumptionError(
            f"No array can be read from '{path}': {error}",
            where="--input",
            remedy="Write it with numpy.save, without Python objects",
        ) from error
