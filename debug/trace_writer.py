"""Writes the trace of a rewrite, one JSON object per line; `docs/trace.md` describes the format.

Lines are written during the rewrite, so that a place or value is described as it was at that
moment. Attempts that failed are written only on request: there are many more of them than commits.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import onnx

from ..request import Settings
from ..rewrite.engine.engine import Engine, Observer
from ..rewrite.engine.graph_hash import GraphHash
from ..rewrite.engine.miss import Miss, describe
from ..rewrite.engine.numbering import NodeNumbers, NotReplayable
from ..rewrite.engine.patch import Patch
from ..rewrite.engine.pattern import Bindings, PatternRule
from ..rewrite.engine.rule import Phase, Rule
from ..rewrite.engine.trace import Commit, Defect
from ..rewrite.errors import ModelError
from ..rewrite.graph.ir import Graph, Node, Tensor
from ..rewrite.storage.exporter import copy_fields
from ..rewrite.storage.output_files import cannot_be_written, temporary_path
from .fact_text import value_text

FORMAT = 4
"""The version of the format; readers refuse any other."""
FOUND = "found"
"""The name of a match without fields among the bindings."""
_LARGE = 1 << 16
"""The most bytes of weights that count in the digest: hashing more takes noticeable time."""
_WEIGHTS = frozenset(("initializer", "sparse_initializer"))
"""The fields of a graph that hold weights."""
_START = b'{"kind"'
"""The first bytes of every trace."""


# Made once, because `json.dumps` makes an encoder for each call.
_encoded = json.JSONEncoder(separators=(",", ":"), default=str).encode
_quoted = json.encoder.encode_basestring_ascii  # what `json.dumps` does with a string


class TraceWriter(Observer):
    """Writes a trace. Use it as a context manager: the last line is written at the end."""

    def __init__(
        self,
        file: IO[str],
        settings: Settings | None = None,
        *,
        source: str | Path = "",
        in_full: bool = False,
    ) -> None:
        """`settings` and `source` go into the first line. `in_full` adds attempts and hashes."""
        settings = settings or Settings()
        self.sees_attempts = in_full
        self._file = file
        self._about = {
            "source": str(source),
            **settings_fields(settings),
            "rules": list(settings.rules),
            "in_full": in_full,
        }
        self._numbers: NodeNumbers
        self._engine: Engine
        self._hash: GraphHash | None = None
        self._rule_lines: dict[type[Rule], tuple[str, int]] = {}
        self._rule_fields: dict[tuple[str, type[Rule]], str] = {}
        self._hits: Counter[str] = Counter()
        self._applying: defaultdict[str, float] = defaultdict(float)
        self._matching: defaultdict[str, float] = defaultdict(float)
        self._misses: list[str] = []
        self._miss_lines: dict[tuple[str, str], str] = {}
        self._visited: Node | None = None
        self._found = "null"
        self._bindings: dict[str, Any] = {}
        self._facts: dict[str, str] = {}
        self._began = self._since = 0.0

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._began:
            self._flush()
            self._end("" if error is None else str(error))

    def _write(self, kind: str, content: Mapping[str, Any]) -> None:
        self._file.write(_encoded({"kind": kind, **content}) + "\n")

    # --- events ---

    def begins(self, engine: Engine) -> None:
        self._began = self._since = time.perf_counter()
        self._engine = engine
        self._numbers = NodeNumbers(engine.index)
        if self.sees_attempts:
            self._hash = GraphHash(engine.index, self._numbers)
        rules = dict.fromkeys(rule for phase in engine.phases for rule in phase.rules)
        self._rule_lines = {rule: match_line(rule) for rule in rules}
        self._write(
            "model",
            {
                "format": FORMAT,
                "looplift": _installed_version(),
                **self._about,
                "digest": digest(engine),
                "step_limit": engine.step_limit,
                "nodes": len(self._numbers),
                "hash": self._hash_text(),
                "phases": [_phase(phase) for phase in engine.phases],
                "sources": {rule.name(): line for rule, line in self._rule_lines.items()},
            },
        )

    def visited(self, node: Node) -> None:
        if self._misses:
            self._flush()
        self._visited = node
        self._since = time.perf_counter()

    def missed(self, rule: Rule, node: Node, miss: Miss) -> None:
        name, at = type(rule).__name__, miss.at
        now = time.perf_counter()
        self._matching[name] += now - self._since
        self._since = now
        if miss.values or at is not node:
            where = "" if at is None or at is node else describe(at)
            self._misses.append(f'["{name}",{_quoted(str(miss))},{_quoted(where)}]')
            return
        # Most sentences have no values, so they are encoded once.
        line = self._miss_lines.get((name, miss.sentence))
        if line is None:
            line = f'["{name}",{_quoted(str(miss))},""]'
            self._miss_lines[name, miss.sentence] = line
        self._misses.append(line)

    def matched(self, rule: Rule, node: Node, found: object) -> None:
        try:
            self._found = self._numbers.encode(found)
        except NotReplayable:
            self._found = "null"
        if self.sees_attempts:
            self._flush()
            self._bindings = bindings(found)
            self._facts = self._operand_facts(node)

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        root, before = self._numbers[node], self._hash_text()
        added = self._numbers.update(patch)
        self._hits[commit.rule] += 1
        self._applying[commit.rule] += commit.seconds
        numbers = self._numbers
        in_full = ""
        if self._hash is not None:
            self._hash.update(patch, added)
            in_full = (
                f',"before":"{before}","after":"{self._hash_text()}"'
                f',"bindings":{_encoded(self._bindings)},"facts":{_encoded(self._facts)}'
            )
        # Formatted by hand: encoding a dictionary would take as long as a typical commit.
        self._file.write(
            f'{{"kind":"commit","number":{commit.number},{self._fields_of(commit.phase, rule)},'
            f'"root":{root},"node":{_quoted(commit.node)},"place":{_quoted(commit.place)},'
            f'"found":{self._found},'
            f'"edits":[{",".join(map(_quoted, commit.edits))}],'
            f'"notes":[{",".join(map(_quoted, commit.notes))}],'
            f'"touched":{numbers.of(patch.touched)},"removed":{numbers.of(patch.removed)},'
            f'"added":{numbers.of(added)},'
            f'"seconds":{commit.seconds:.7f},"time":{time.perf_counter() - self._began:.6f}'
            f"{in_full}}}\n"
        )

    def _fields_of(self, phase: str, rule: Rule) -> str:
        """Phase, rule, file and line as JSON; the same for many commits, so encoded once."""
        key = (phase, type(rule))
        text = self._rule_fields.get(key)
        if text is None:
            file, line = self._rule_lines[type(rule)]
            about = {"phase": phase, "rule": rule.name(), "file": file, "line": line}
            text = self._rule_fields[key] = _encoded(about)[1:-1]
        return text

    def failed(self, defect: Defect, rule: Rule, node: Node) -> None:
        self._flush()
        content = {"phase": defect.phase, "rule": defect.rule, "node": defect.node}
        self._write("defect", {**content, "root": self._numbers[node], "reason": defect.reason})

    def _flush(self) -> None:
        """Writes the attempts at one node."""
        node = self._visited
        if node is not None and self._misses:
            label = _quoted(describe(node))
            start = f'{{"kind":"attempts","root":{self._numbers[node]},"node":{label},"misses":['
            self._file.write(start + ",".join(self._misses) + "]}\n")
        self._misses.clear()

    def _operand_facts(self, node: Node) -> dict[str, str]:
        """The facts of the operands that were derived already: deriving more would take time."""
        known = self._engine.facts.cached
        return {t.name: value_text(known(t)) for t in node.inputs if t.name}

    def _hash_text(self) -> str:
        return str(self._hash) if self._hash is not None else ""

    def _end(self, error: str) -> None:
        trace = self._engine.trace
        self._write(
            "end",
            {
                "commits": len(trace.commits()),
                "error": error,
                "hash": self._hash_text(),
                "attempts": trace.attempts,
                "hits": self._hits,
                "match_seconds": _rounded(self._matching),
                "apply_seconds": _rounded(self._applying),
                "seconds": round(time.perf_counter() - self._began, 6),
            },
        )


# --- what the lines consist of ---


@functools.cache
def _installed_version() -> str:
    """The version of looplift, read from a file of the installation."""
    return version("looplift")


def digest(engine: Engine) -> str:
    """A hash of the graph in the file, which identifies the model.

    Of large weights only types and shapes count: hashing them would take longer than rewriting.
    """
    content = hashlib.sha256()
    graph = engine.model.graph.origin
    if graph is not None and sum(t.ByteSize() for t in graph.initializer) > _LARGE:
        for tensor in graph.initializer:
            content.update(f"{tensor.name} {tensor.data_type} {list(tensor.dims)}".encode())
        structure = onnx.GraphProto()
        copy_fields(graph, structure, _WEIGHTS)
        graph = structure
    if graph is not None:
        content.update(graph.SerializeToString(deterministic=True))
    return content.hexdigest()


def match_line(rule: type[Rule]) -> tuple[str, int]:
    """The file of a rule and the line at which its `match` begins.

    For a rule that inherits the `match` of PatternRule, the line is that of its class.
    """
    code = rule.match.__code__
    if issubclass(rule, PatternRule) and code is PatternRule.match.__code__:
        try:
            return inspect.getfile(rule), inspect.getsourcelines(rule)[1]
        except (OSError, TypeError):  # its source cannot be read
            code = rule.guard.__code__
    return code.co_filename, code.co_firstlineno


def bindings(found: object) -> dict[str, Any]:
    """What a match found in words: by field for a dataclass, by name for a pattern."""
    if isinstance(found, Bindings):
        named = {**found.tensors, **found.attributes}
        return {name: _in_words(value) for name, value in named.items()}
    if is_dataclass(found):
        return {f.name: _in_words(getattr(found, f.name)) for f in fields(found)}
    return {FOUND: _in_words(found)}


def _in_words(value: object) -> str | int | list[Any] | dict[str, Any] | None:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (Node, Tensor)):
        return describe(value)
    if isinstance(value, Graph):
        return f"body `{value.name}`"
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_in_words(each) for each in value]
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    inner = getattr(value, "node", None)
    if isinstance(inner, Node):
        return describe(inner)
    return bindings(value) if is_dataclass(value) else type(value).__name__


def settings_fields(settings: Settings) -> dict[str, Any]:
    """Assertions, strictness and inference engine as the first line of a trace has them."""
    given = settings.assertions
    inputs = {}
    for name, value in given.inputs.items():
        array = np.asarray(value)
        inputs[name] = {"dtype": str(array.dtype), "values": array.tolist()}
    return {
        "inputs": inputs,
        "dims": given.dim_texts(),
        "shapes": {name: list(shape) for name, shape in given.shapes.items()},
        "prefix_masks": dict(given.prefix_masks),
        "strict": settings.strict,
        "engine": settings.engine,
    }


def _phase(phase: Phase) -> dict[str, Any]:
    return {
        "name": phase.name,
        "summary": phase.summary,
        "rules": [rule.name() for rule in phase.rules],
    }


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in seconds.items()}


# --- the file ---


@contextmanager
def trace_file(path: Path) -> Iterator[IO[str]]:
    """Opens a file for a trace; unless it is empty, it gets its name at the end of the block.

    Keeps the trace even after an error, because it shows what ended the rewrite. Replaces only
    another trace, so that a model named by mistake is not lost. Raises ModelError for any other
    file, and if the trace cannot be written whole; then it is not kept.
    """
    temporary = temporary_path(path)
    try:
        if path.exists():
            _check_is_trace(path)
        raw = _RawTrace(temporary, path)
    except OSError as error:
        raise cannot_be_written("The trace", path, error) from error
    try:
        with io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8") as file:
            yield file
    finally:
        if raw.is_whole and temporary.stat().st_size:
            temporary.replace(path)
        temporary.unlink(missing_ok=True)


class _RawTrace(io.FileIO):
    """The bytes of a trace. Its errors name the file, because they end the rewrite of another."""

    def __init__(self, temporary: Path, path: Path) -> None:
        super().__init__(temporary, "x")
        self.is_whole = True
        """Whether no write failed."""
        self._path = path

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.is_whole = False
            raise cannot_be_written("The trace", self._path, error) from error


def _check_is_trace(path: Path) -> None:
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(len(_START))
        if start in (b"", _START):
            return
    raise ModelError(
        "The file exists and is not a trace, so it is not overwritten",
        where=f"--trace {path}",
        remedy="Name a file that does not exist yet",
    )
