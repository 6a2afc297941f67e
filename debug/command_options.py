"""Writes assertions as options of the command line, for advice and reports."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import numpy as np

from ..request import Settings
from ..rewrite.facts.assertions import Shape

_LONGEST = 60
"""The characters of a value that are written out."""


def settings_options(settings: Settings) -> list[str]:
    """The options that assert the same: `--input sr=16000`, `--dim "T>=2"`, `--strict`."""
    given = settings.assertions
    return [
        *(_option("--input", f"{name}={_value(value)}") for name, value in given.inputs.items()),
        *(_option("--dim", text) for text in given.dim_texts()),
        *(_option("--shape", f"{name}={_shape(shape)}") for name, shape in given.shapes.items()),
        *(mask_option(name, axis) for name, axis in given.prefix_masks.items()),
        *(["--strict"] if settings.strict else []),
        *([f"--for {settings.engine}"] if settings.engine else []),
    ]


def mask_option(name: str, axis: int | None) -> str:
    """`--prefix-mask "mask axis 1"`, or `--prefix-mask mask` without an axis."""
    return _option("--prefix-mask", name if axis is None else f"{name} axis {axis}")


def _option(name: str, value: str) -> str:
    """An option as a shell takes it."""
    if not re.search(r"[^\w@%+=:,./-]", value):
        return f"{name} {value}"
    return f"{name} {shlex.quote(value)}" if re.search(r'["$`\\!]', value) else f'{name} "{value}"'


def _value(value: Any) -> str:
    text = json.dumps(np.asarray(value).tolist(), separators=(",", ":"))
    return text if len(text) <= _LONGEST else "…"


def _shape(shape: Shape) -> str:
    return ",".join("?" if dim is None else str(dim) for dim in shape)
