"""Reads trace files: what the debugging commands and the report start from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from ..commands.arguments import Assertions, mask_option
from ..rewrite.errors import AssumptionError, ModelError
from ..rewrite.running.runtime import Array
from .recording import FORMAT, Recorder, asserted
from .subject import Subject


@dataclass(frozen=True)
class CommitLine:
    """A commit as the trace tells it; `docs/trace.md` describes the fields."""

    step: int
    phase: str
    rule: str
    file: str
    line: int
    node: str
    number: int
    place: str
    found: Any
    edits: list[str]
    notes: list[str]
    touched: list[int]
    removed: list[int]
    added: list[int]
    seconds: float
    time: float
    before: str = ""
    after: str = ""
    bindings: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AttemptLine:
    """One attempt that ended in a miss."""

    number: int
    node: str
    rule: str
    reason: str
    at: str
    """Empty where the reason speaks of the node itself."""


@dataclass
class TraceFile:
    """A whole trace."""

    about: dict[str, Any]
    """The first line: model, assertions, rules."""
    commits: list[CommitLine] = field(default_factory=list)
    attempts: list[AttemptLine] = field(default_factory=list)
    defects: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    """The last line: totals by rule. Empty if the rewrite was cut off."""

    @property
    def assertions(self) -> Assertions:
        """What was asserted when the trace was written."""
        about = self.about
        inputs = {
            name: np.array(given["values"], given["dtype"])
            for name, given in about["inputs"].items()
        }
        shapes = {name: tuple(shape) for name, shape in about["shapes"].items()}
        masks = about["prefix_masks"]
        return Assertions(inputs, tuple(about["dims"]), shapes, about["strict"], masks)

    @property
    def undone(self) -> list[str]:
        """Rules whose patch was wrong, with the place and what was wrong."""
        return [f"{d['rule']} at {d['node']}: {d['reason']}" for d in self.defects]

    def check_assertions(self, given: Assertions) -> None:
        """Raises AssumptionError if others were made when the trace was written: its steps follow
        from those.
        """
        wanted, made = ({**told, "dims": sorted(told["dims"])} for told in self._told(given))
        # As text: a NaN among the values is not equal to itself.
        if json.dumps(wanted, sort_keys=True) != json.dumps(made, sort_keys=True):
            raise AssumptionError(
                "The trace was written with other assertions",
                where=f"trace of '{self.about['source']}'",
                remedy=f"Give these: {_options(self.assertions) or 'none'}",
            )

    def _told(self, given: Assertions) -> tuple[dict[str, Any], dict[str, Any]]:
        wanted = asserted(given)
        return {name: self.about[name] for name in wanted}, wanted


def _options(made: Assertions) -> str:
    """Assertions as the command line takes them."""
    return " ".join(
        [
            *(f"--input {name}={_compact(value)}" for name, value in made.inputs.items()),
            *(f'--dim "{dim}"' for dim in made.dims),
            *(f"--shape {name}={_spelled(shape)}" for name, shape in made.shapes.items()),
            *(mask_option(name, axis) for name, axis in made.prefix_masks.items()),
            *(["--strict"] if made.strict else []),
        ]
    )


def _compact(value: Array) -> str:
    text = json.dumps(value.tolist(), separators=(",", ":"))
    return text if len(text) <= 60 else "…"


def _spelled(shape: tuple[int | str | None, ...]) -> str:
    return ",".join("?" if size is None else str(size) for size in shape)


def read_trace(path: str | Path) -> TraceFile:
    """Reads a trace. Raises ModelError if it cannot be read or has another format."""
    try:
        with Path(path).open(encoding="utf-8") as lines:
            parsed = (json.loads(line) for line in lines)
            return _assembled(parsed, path)
    except OSError as error:
        raise ModelError(
            f"The trace cannot be read: {error.strerror or error}",
            where=f"file '{path}'",
            remedy="Write it with: looplift rewrite MODEL -o OUT --trace FILE",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise _no_trace(path, str(error)) from error


def trace_of(subject: Subject, in_full: bool = False, step_limit: int | None = None) -> TraceFile:
    """Rewrites a model and gives the trace of it. Raises what `rewrite` raises."""
    lines = StringIO()
    with Recorder(lines, assertions=subject.assertions, in_full=in_full) as recorder:
        subject.engine(recorder, step_limit).run()
    lines.seek(0)
    return _assembled(map(json.loads, lines), "")


def _assembled(lines: Iterator[dict[str, Any]], path: str | Path) -> TraceFile:
    about = next(lines, {})
    if not isinstance(about, dict) or about.get("kind") != "model" or about.get("format") != FORMAT:
        raise _no_trace(path, f"its first line is not that of a trace of format {FORMAT}")
    trace = TraceFile(about)
    for line in lines:
        kind = line.pop("kind")
        if kind == "commit":
            trace.commits.append(CommitLine(**line))
        elif kind == "attempts":
            trace.attempts += _attempts(line)
        elif kind == "defect":
            trace.defects.append(line)
        elif kind == "end":
            trace.end = line
    return trace


def _attempts(line: dict[str, Any]) -> Iterator[AttemptLine]:
    for rule, reason, at in line["misses"]:
        yield AttemptLine(line["number"], line["node"], rule, reason, at)


def _no_trace(path: str | Path, why: str) -> ModelError:
    return ModelError(
        f"This is no trace of looplift: {why}",
        where=f"file '{path}'",
        remedy="Write it with: looplift rewrite MODEL -o OUT --trace FILE",
    )
