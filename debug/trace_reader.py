"""Reads traces: what the commands that debug a rewrite start from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..request import Request, Settings
from ..rewrite.errors import AssumptionError, ModelError
from ..rewrite.facts.assertions import Assertions
from ..rewrite.storage.model import export_model
from .command_options import settings_options
from .trace_writer import FORMAT, TraceWriter, settings_fields


@dataclass(frozen=True)
class CommitLine:
    """A commit as the trace has it; `docs/trace.md` describes the fields."""

    number: int
    phase: str
    rule: str
    file: str
    line: int
    root: int
    node: str
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

    @property
    def location(self) -> str:
        """The root and the body that contains it: ``Add of `y` in body of Loop `l` ``."""
        return f"{self.node} in {self.place}" if self.place else self.node


@dataclass(frozen=True)
class AttemptLine:
    """An attempt of a rule that ended in a Miss."""

    root: int
    node: str
    rule: str
    reason: str
    at: str
    """What the reason is about; empty if that is the root."""


@dataclass
class RecordedTrace:
    """A whole trace."""

    about: dict[str, Any]
    """The first line: model, assertions, rules."""
    commits: list[CommitLine] = field(default_factory=list)
    attempts: list[AttemptLine] = field(default_factory=list)
    defects: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    """The last line: totals by rule. Empty if the rewrite was cut off."""
    result: onnx.ModelProto | None = None
    """The model that the traced rewrite made; None for a trace that was read from a file."""

    @property
    def settings(self) -> Settings:
        """What was asserted when the trace was written, and the rules."""
        about = self.about
        assertions = Assertions.of(
            {
                name: np.array(given["values"], given["dtype"])
                for name, given in about["inputs"].items()
            },
            about["dims"],
            about["shapes"],
            about["prefix_masks"],
        )
        return Settings(assertions, about["strict"], about.get("engine"), tuple(about["rules"]))

    @property
    def defect_texts(self) -> list[str]:
        """The defects in words: the rule, the node, and the reason."""
        return [f"{d['rule']} at {d['node']}: {d['reason']}" for d in self.defects]

    def check_settings(self, settings: Settings) -> None:
        """Raises AssumptionError unless the trace was written with the same assertions, on which
        its commits depend.
        """
        given, recorded = (_comparable(each) for each in (settings, self.settings))
        if given != recorded:
            raise AssumptionError(
                "The trace was written with other assertions",
                where=f"trace of '{self.about['source']}'",
                remedy=f"Give these: {' '.join(settings_options(self.settings)) or 'none'}",
            )


def _comparable(settings: Settings) -> str:
    """The assertions as text; as values, a NaN would not be equal to itself."""
    found = settings_fields(settings)
    return json.dumps({**found, "dims": sorted(found["dims"])}, sort_keys=True)


def read_trace(path: str | Path) -> RecordedTrace:
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
    except ModelError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise _not_a_trace(path, str(error)) from error


def trace_of(request: Request, in_full: bool = False) -> RecordedTrace:
    """Rewrites a model and returns the trace. Raises what `rewrite` raises."""
    lines = StringIO()
    settings = Settings(
        request.assertions, request.options.strict, request.options.engine.name or None
    )
    with TraceWriter(lines, settings, in_full=in_full) as writer:
        engine = request.engine(writer)
        engine.run()
    lines.seek(0)
    trace = _assembled(map(json.loads, lines), "")
    trace.result = export_model(engine.model)
    return trace


def _assembled(lines: Iterator[dict[str, Any]], path: str | Path) -> RecordedTrace:
    about = next(lines, {})
    if not isinstance(about, dict) or about.get("kind") != "model" or about.get("format") != FORMAT:
        raise _not_a_trace(path, f"the first line is not that of a trace of format {FORMAT}")
    trace = RecordedTrace(about)
    for line in lines:
        kind = line.pop("kind")
        if kind == "commit":
            trace.commits.append(CommitLine(**line))
        elif kind == "attempts":
            trace.attempts += (
                AttemptLine(line["root"], line["node"], *miss) for miss in line["misses"]
            )
        elif kind == "defect":
            trace.defects.append(line)
        elif kind == "end":
            trace.end = line
    return trace


def _not_a_trace(path: str | Path, why: str) -> ModelError:
    return ModelError(
        f"This is not a trace of looplift: {why}",
        where=f"file '{path}'",
        remedy="Write it with: looplift rewrite MODEL -o OUT --trace FILE",
    )
