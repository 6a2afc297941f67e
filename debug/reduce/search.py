"""The search for the smallest model: tries edits as long as one helps.

Delta debugging (Zeller and Hildebrandt 2002): first large parts, then smaller ones.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path as FilePath
from typing import IO

import onnx

from ...rewrite.errors import LoopliftError, ModelError
from ...rewrite.storage.files import save
from .control_edits import Edit, bypass_identities, control_edits, trip_count_edits
from .criteria import Criterion, Verdict
from .edits import (
    NotPossible,
    Path,
    at,
    copied,
    drop_declarations,
    drop_nodes,
    drop_outputs,
    forward,
    normalised,
    size,
    tidy,
    truncate,
    types_of,
    walk,
)
from .resizing import Resizing, resizings


@dataclass
class Reduction:
    """The result of a search."""

    before: int
    """The nodes of the original model, including those in bodies."""
    model: onnx.ModelProto
    """The smallest model that shows the finding."""
    nearest: onnx.ModelProto | None = None
    """The largest model one edit away from the smallest that does not show the finding; if there
    is none, the last one found before."""
    checks: int = 0
    remembered: int = 0
    """The candidates whose verdict was known, from this call or an interrupted one."""
    finished: bool = True
    """False if the time was up before all edits were tried."""
    seconds: float = 0.0

    @property
    def after(self) -> int:
        return size(self.model)


@dataclass
class Search:
    """One reduction. `report` is called with each smaller model."""

    criterion: Criterion
    base_dir: str
    progress: Progress
    seconds: float = 3600.0
    report: Callable[[str], None] = field(default=lambda _: None)

    def run(self, model: onnx.ModelProto) -> Reduction:
        """Raises LoopliftError if the model itself does not show the finding."""
        start = time.monotonic()
        self._end = start + self.seconds
        self._current = normalised(model, self.base_dir)
        self._types = types_of(self._current, self.base_dir)
        self._result = Reduction(size(model), self._current)
        self._earlier: onnx.ModelProto | None = None
        verdict = self._test(self._current)
        if verdict is Verdict.INVALID:
            raise LoopliftError(
                "The model cannot be reduced: looplift or onnxruntime rejects it, or no run of it "
                "succeeds, and a reduced model has to be valid",
                remedy="`looplift verify` says why",
            )
        if verdict is not Verdict.SHOWS:
            is_default = self.criterion.text == "differs"
            raise LoopliftError(
                f"The model does not show what it must keep: {self.criterion.text}",
                remedy="With `--keep differs`, the default, rewriting must change what the model "
                "computes; check `--keep`, the assertions and the rules"
                if is_default
                else "Check `--keep`, the assertions and the rules",
            )
        try:
            self._reduce()
        except _TimeIsUp:
            self._result.finished = False
        self._result.model = self._current
        self._result.nearest = self._result.nearest or self._earlier
        self._result.seconds = time.monotonic() - start
        return self._result

    def _reduce(self) -> None:
        """Tries all kinds of edits in turn until none helps; sizes last, on a small model."""
        self._try(drop_declarations)
        while True:
            before = self._current
            self._drop_runs(lambda: len(self._current.graph.output), drop_outputs)
            self._drop_nodes()
            self._try_each(lambda: control_edits(self._current))
            self._try(bypass_identities)
            self._try_each(self._forwards)
            if self._current is before:
                self._try_each(lambda: trip_count_edits(self._current))
                self._try_each(lambda: resizings(self._current))
            if self._current is before:
                return

    # --- runs of items ---

    def _drop_nodes(self) -> None:
        """Drops nodes of each graph, outer graphs first: bodies often go with their owners."""
        seen: set[Path] = set()
        while True:
            paths = [path for path, _ in walk(self._current.graph) if path not in seen]
            if not paths:
                return
            path = min(paths, key=len)
            seen.add(path)
            self._truncate(path)
            self._drop_runs(partial(self._length, path), partial(drop_nodes, path=path))

    def _truncate(self, path: Path) -> None:
        """Drops the last half of the nodes of a graph, then the last quarter, and so on."""
        run = self._length(path) // 2
        while run:
            place = self._length(path) - run
            edit = partial(truncate, path=path, place=place, types=self._types)
            if place < 1 or not self._try(edit):
                run //= 2

    def _length(self, path: Path) -> int:
        paths = {each for each, _ in walk(self._current.graph)}
        return len(at(self._current, path).node) if path in paths else 0

    def _drop_runs(
        self,
        length: Callable[[], int],
        drop: Callable[..., None],
    ) -> None:
        """Drops runs of consecutive items; halves the length of the runs each time."""
        run = max(1, length() // 2)
        while True:
            last = length()
            while last > 0:
                first = max(0, last - run)
                self._try(partial(drop, first=first, last=last))
                last = min(first, length())
            if run == 1:
                return
            run = max(1, min(run, length()) // 2)

    # --- single edits ---

    def _try_each(self, edits: Callable[[], Iterator[Edit]]) -> None:
        """Tries the edits of the current model; after one that helps, continues with the edits of
        the smaller model at the same position.
        """
        done = 0
        while True:
            remaining = list(edits())[done:]
            for edit in remaining:
                if self._try(edit):
                    break
                done += 1
            else:
                return

    def _forwards(self) -> Iterator[Edit]:
        for path, graph in walk(self._current.graph):
            for place, node in enumerate(graph.node):
                for slot in range(len(node.input)):
                    yield partial(forward, path=path, place=place, slot=slot, types=self._types)

    # --- one candidate ---

    def _try(self, edit: Edit) -> bool:
        """Makes an edit if the smaller model still shows the finding."""
        candidate = copied(self._current)
        types = edit.types(self._types) if isinstance(edit, Resizing) else self._types
        try:
            edit(candidate)
            tidy(candidate, types)
        except NotPossible:
            return False
        if candidate == self._current:
            return False
        verdict = self._test(candidate)
        if verdict is Verdict.CLEAN:
            self._note_clean(candidate)
        if verdict is not Verdict.SHOWS:
            return False
        self._current, self._types = candidate, types
        self._earlier, self._result.nearest = self._result.nearest or self._earlier, None
        self.progress.keep(candidate)
        self.report(f"{size(candidate)} nodes after {self._result.checks} checks")
        return True

    def _note_clean(self, candidate: onnx.ModelProto) -> None:
        nearest = self._result.nearest
        if nearest is None or size(candidate) > size(nearest):
            self._result.nearest = candidate

    def _test(self, candidate: onnx.ModelProto) -> Verdict:
        key = hashlib.sha256(candidate.SerializeToString(deterministic=True)).hexdigest()
        known = self.progress.verdict(key)
        if known is not None:
            self._result.remembered += 1
            return known
        if time.monotonic() > self._end:
            raise _TimeIsUp
        verdict = self.criterion.test(candidate)
        self._result.checks += 1
        self.progress.note(key, verdict)
        return verdict


class _TimeIsUp(Exception):
    pass


# --- progress ---


def progress_path(output: FilePath) -> FilePath:
    """The file with the verdicts of a search whose result is written to `output`."""
    return output.with_suffix(".progress.jsonl")


class Progress:
    """The verdicts so far, in a file next to the result, so that an interrupted search continues.

    A search is deterministic: started again, it meets the same candidates and tests only those
    without a verdict. A file of another model or criterion starts again. Raises ModelError if the
    file cannot be written.
    """

    def __init__(
        self, output: FilePath, model: onnx.ModelProto, criterion: str, base_dir: str = ""
    ) -> None:
        self._output = output
        self._base_dir = base_dir
        self.path = progress_path(output)
        content = model.SerializeToString(deterministic=True)
        self._header = {"model": hashlib.sha256(content).hexdigest(), "criterion": criterion}
        self._verdicts = self._read()
        self._file: IO[str] | None = None

    def verdict(self, key: str) -> Verdict | None:
        return self._verdicts.get(key)

    def note(self, key: str, verdict: Verdict) -> None:
        self._verdicts[key] = verdict
        if self._file is None:
            self._file = self._opened()
        self._file.write(_verdict_line(key, verdict))
        self._file.flush()

    def keep(self, model: onnx.ModelProto) -> None:
        """Writes the smallest model so far."""
        save(model, self._output, base_dir=self._base_dir)

    def close(self, finished: bool) -> None:
        """Closes the file; removes it if the search is finished."""
        if self._file is not None:
            self._file.close()
        if finished:
            self.path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Verdict]:
        if not self.path.is_file():
            return {}
        lines = self.path.read_text(encoding="utf-8").splitlines()
        try:
            parsed = [json.loads(line) for line in lines]
        except ValueError:
            # A call that was interrupted while it wrote leaves half a line.
            parsed = [json.loads(line) for line in lines[:-1]]
        if not parsed or parsed[0] != self._header:
            return {}
        return {line["candidate"]: Verdict(line["verdict"]) for line in parsed[1:]}

    def _opened(self) -> IO[str]:
        known = list(self._verdicts.items())[:-1]  # the caller writes the last one
        try:
            file = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise ModelError(
                f"The progress cannot be written: {error.strerror or error}",
                where=f"file '{self.path}'",
                remedy="Name an output in a folder that can be written to",
            ) from error
        file.write(json.dumps(self._header) + "\n")
        file.writelines(_verdict_line(key, verdict) for key, verdict in known)
        return file


def _verdict_line(key: str, verdict: Verdict) -> str:
    return json.dumps({"candidate": key, "verdict": verdict.value}) + "\n"
