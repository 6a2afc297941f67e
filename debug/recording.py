"""Writes the trace of a rewrite, one JSON object a line; `docs/trace.md` describes them.

The lines are made while rewriting: a place or a value is told as it was at that moment. Everything
that is known of each attempt is told only where it is asked for, because there are many times more
attempts than commits.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import onnx

from ..commands.arguments import Assertions
from ..rewrite.engine.engine import Engine, Observer
from ..rewrite.engine.graph_hash import GraphHash
from ..rewrite.engine.miss import Miss, describe
from ..rewrite.engine.numbering import NodeNumbers, NotReplayable
from ..rewrite.engine.patch import Patch
from ..rewrite.engine.rule import Phase, Rule
from ..rewrite.engine.trace import Commit, Defect
from ..rewrite.errors import ModelError
from ..rewrite.graph.ir import Graph, Node, Tensor
from ..rewrite.storage.exporter import copy_fields
from .control import value_text

FORMAT = 4
"""Version of the lines; readers refuse others."""
_LARGE = 1 << 16
"""Bytes of weights that take no time to hash; more of them are left out of the digest."""
_WEIGHTS = frozenset(("initializer", "sparse_initializer"))
"""The fields of a graph that hold them."""
_START = b'{"kind"'
"""What every trace begins with."""


# Made once: `json.dumps` would make an encoder for each line.
_encoded = json.JSONEncoder(separators=(",", ":"), default=str).encode
_quoted = json.encoder.encode_basestring_ascii  # what `json.dumps` does with a text


class Recorder(Observer):
    """Writes a trace. Use it as a context manager: the last line is written on leaving."""

    def __init__(
        self,
        file: IO[str],
        *,
        source: str | Path = "",
        assertions: Assertions | None = None,
        rules: Sequence[str] = (),
        in_full: bool = False,
    ) -> None:
        self.sees_attempts = in_full
        self._file = file
        self._about = {
            "source": str(source),
            **asserted(assertions or Assertions()),
            "rules": list(rules),
            "in_full": in_full,
        }
        self._numbers: NodeNumbers
        self._engine: Engine
        self._hash: GraphHash | None = None
        self._places: dict[type[Rule], tuple[str, int]] = {}
        self._origins: dict[tuple[str, type[Rule]], str] = {}
        self._hits: Counter[str] = Counter()
        self._applying: defaultdict[str, float] = defaultdict(float)
        self._matching: defaultdict[str, float] = defaultdict(float)
        self._misses: list[str] = []
        self._sentences: dict[tuple[str, str], str] = {}
        self._visited: Node | None = None
        self._found = "null"
        self._bindings: dict[str, Any] = {}
        self._facts: dict[str, str] = {}
        self._began = self._since = 0.0

    def __enter__(self) -> Recorder:
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

    # --- what happens ---

    def begins(self, engine: Engine) -> None:
        self._began = self._since = time.perf_counter()
        self._engine = engine
        self._numbers = NodeNumbers(engine.index)
        if self.sees_attempts:
            self._hash = GraphHash(engine.index, self._numbers)
        rules = dict.fromkeys(rule for phase in engine.phases for rule in phase.rules)
        self._places = {rule: source_of(rule) for rule in rules}
        self._write(
            "model",
            {
                "format": FORMAT,
                "looplift": _installed(),
                **self._about,
                "digest": digest(engine),
                "step_limit": engine.step_limit,
                "nodes": len(self._numbers),
                "hash": self._hash_text(),
                "phases": [_phase(phase) for phase in engine.phases],
                "sources": {rule.name(): place for rule, place in self._places.items()},
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
        # Most sentences are the same each time.
        line = self._sentences.get((name, miss.sentence))
        if line is None:
            line = f'["{name}",{_quoted(str(miss))},""]'
            self._sentences[name, miss.sentence] = line
        self._misses.append(line)

    def matched(self, rule: Rule, node: Node, found: object) -> None:
        try:
            self._found = self._numbers.encode(found)
        except NotReplayable:
            self._found = "null"
        if self.sees_attempts:
            self._flush()
            self._bindings = bindings(found)
            self._facts = self._facts_of(node)

    def committed(self, commit: Commit, rule: Rule, node: Node, patch: Patch) -> None:
        number, before = self._numbers[node], self._hash_text()
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
        # Put together by hand: encoding a dictionary would take as long as many a commit.
        self._file.write(
            f'{{"kind":"commit","step":{commit.step},{self._origin(commit.phase, rule)},'
            f'"node":{_quoted(commit.node)},"number":{number},"place":{_quoted(commit.place)},'
            f'"found":{self._found},'
            f'"edits":[{",".join(map(_quoted, commit.edits))}],'
            f'"notes":[{",".join(map(_quoted, commit.notes))}],'
            f'"touched":{numbers.of(patch.touched)},"removed":{numbers.of(patch.removed)},'
            f'"added":{numbers.of(added)},'
            f'"seconds":{commit.seconds:.7f},"time":{time.perf_counter() - self._began:.6f}'
            f"{in_full}}}\n"
        )

    def _origin(self, phase: str, rule: Rule) -> str:
        """Phase, rule, file and line, which are the same for many commits."""
        key = (phase, type(rule))
        text = self._origins.get(key)
        if text is None:
            file, line = self._places[type(rule)]
            about = {"phase": phase, "rule": rule.name(), "file": file, "line": line}
            text = self._origins[key] = _encoded(about)[1:-1]
        return text

    def failed(self, defect: Defect, rule: Rule, node: Node) -> None:
        self._flush()
        content = {"phase": defect.phase, "rule": defect.rule, "node": defect.node}
        self._write("defect", {**content, "number": self._number(node), "reason": defect.reason})

    def _flush(self) -> None:
        """Writes the attempts at one node."""
        node = self._visited
        if node is not None and self._misses:
            label = _quoted(describe(node))
            start = f'{{"kind":"attempts","number":{self._number(node)},"node":{label},"misses":['
            self._file.write(start + ",".join(self._misses) + "]}\n")
        self._misses.clear()

    def _number(self, node: Node) -> int:
        return self._numbers[node]

    def _facts_of(self, node: Node) -> dict[str, str]:
        """What is known of the operands: only what was derived already, which costs nothing."""
        known = self._engine.facts.cached
        return {t.name: value_text(known(t)) for t in node.inputs if t.name}

    def _hash_text(self) -> str:
        return str(self._hash) if self._hash is not None else ""

    def _end(self, error: str) -> None:
        trace = self._engine.trace
        self._write(
            "end",
            {
                "steps": len(trace.commits()),
                "error": error,
                "hash": self._hash_text(),
                "attempts": trace.attempts,
                "hits": self._hits,
                "match_seconds": _rounded(self._matching),
                "apply_seconds": _rounded(self._applying),
                "seconds": round(time.perf_counter() - self._began, 6),
            },
        )


@contextmanager
def trace_file(path: Path) -> Iterator[IO[str]]:
    """A file for a trace, which gets its name when the block is left. It does not if nothing was
    written; what ended a rewrite stands in its trace.

    Only another trace is replaced: a model named by mistake would be lost. Raises ModelError for
    any other file, and if the trace cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        if path.exists():
            _check_is_trace(path)
        file = temporary.open("x", encoding="utf-8")
    except OSError as error:
        raise ModelError(
            f"The trace cannot be written: {error.strerror or error}",
            where=f"file '{path}'",
            remedy="Name a file in a folder that can be written to",
        ) from error
    try:
        with file:
            yield file
    finally:
        if temporary.stat().st_size:
            temporary.replace(path)
        temporary.unlink(missing_ok=True)


def _check_is_trace(path: Path) -> None:
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(len(_START))
        if start in (b"", _START):
            return
    raise ModelError(
        "The file is there and is no trace, so it is not overwritten",
        where=f"--trace {path}",
        remedy="Name a file that does not exist yet",
    )


@functools.cache
def _installed() -> str:
    """The version of looplift, which stands in a file of the installation."""
    return version("looplift")


def digest(engine: Engine) -> str:
    """What tells models apart: a hash of the graph as it stood in the file.

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


def source_of(rule: type[Rule]) -> tuple[str, int]:
    """The file of a rule and the line where its `match` begins."""
    code = rule.match.__code__
    return code.co_filename, code.co_firstlineno


def bindings(found: object) -> dict[str, Any]:
    """What a match found, by name, in words."""
    if is_dataclass(found):
        return {f.name: bound(getattr(found, f.name)) for f in fields(found)}
    return {"found": bound(found)}


def bound(value: object) -> str | int | list[Any]:
    """One value that a match found, in words."""
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (Node, Tensor)):
        return describe(value)
    if isinstance(value, Graph):
        return f"body `{value.name}`"
    if isinstance(value, (list, tuple, set, frozenset)):
        return [bound(each) for each in value]
    inner = getattr(value, "node", None)
    return describe(inner) if isinstance(inner, Node) else type(value).__name__


def asserted(given: Assertions) -> dict[str, Any]:
    """Assertions as the first line of a trace has them."""
    inputs = {}
    for name, value in given.inputs.items():
        array = np.asarray(value)
        inputs[name] = {"dtype": str(array.dtype), "values": array.tolist()}
    shapes = {name: list(shape) for name, shape in given.shapes.items()}
    return {
        "inputs": inputs,
        "dims": list(given.dims),
        "shapes": shapes,
        "prefix_masks": dict(given.prefix_masks),
        "strict": given.strict,
    }


def _phase(phase: Phase) -> dict[str, Any]:
    return {
        "name": phase.name,
        "summary": phase.summary,
        "rules": [rule.name() for rule in phase.rules],
    }


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in seconds.items()}
