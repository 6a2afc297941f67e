"""The search for the smallest model: edits are tried while one helps (delta debugging, Zeller and
Hildebrandt 2002: first large parts, then smaller ones).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import onnx

from ...rewrite.errors import LoopliftError
from .control import bypass_copies, control_edits, trip_edits
from .edits import (
    NotPossible,
    Path,
    at,
    copied,
    drop_nodes,
    drop_outputs,
    end_earlier,
    forward,
    normalised,
    size,
    tidy,
    walk,
)
from .progress import Progress
from .questions import Question, Verdict
from .resizing import Resizing, resizings
from .types import types_of

Edit = Callable[[onnx.ModelProto], None]


@dataclass
class Reduction:
    """What came of a reduction."""

    before: int
    """Nodes of the model, those in bodies included."""
    model: onnx.ModelProto
    """The smallest model that shows it."""
    nearest: onnx.ModelProto | None = None
    """The largest model one edit away from the smallest that does not show it; if there is none,
    the last one that was met on the way."""
    checks: int = 0
    remembered: int = 0
    """Candidates whose verdict an earlier, interrupted call had found."""
    finished: bool = True
    """False if the time was up before all edits were tried."""
    seconds: float = 0.0

    @property
    def after(self) -> int:
        return size(self.model)


@dataclass
class Search:
    """One reduction. `tell` hears of each smaller model."""

    question: Question
    base_dir: str
    progress: Progress
    seconds: float = 3600.0
    tell: Callable[[str], None] = field(default=lambda _: None)

    def run(self, model: onnx.ModelProto) -> Reduction:
        """Raises LoopliftError if the model itself does not show what is looked for."""
        start = time.monotonic()
        self._end = start + self.seconds
        self._current = normalised(model, self.base_dir)
        self._types = types_of(self._current, self.base_dir)
        self._result = Reduction(size(model), self._current)
        self._earlier: onnx.ModelProto | None = None
        if self._ask(self._current) is not Verdict.SHOWS:
            raise LoopliftError(
                f"The model does not show what is to be kept: {self.question.text}",
                remedy="With `--keep differs`, the default, rewriting must change what the model "
                "computes; check the text, the assertions and the rules",
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
        """All kinds of edits in turn until none helps; sizes come last, where models are small."""
        while True:
            before = self._current
            self._thin_outputs()
            self._thin_nodes()
            self._try_each(lambda: control_edits(self._current))
            self._try(bypass_copies)
            self._try_each(self._forwards)
            if self._current is before:
                self._try_each(lambda: trip_edits(self._current))
                self._resize()
            if self._current is before:
                return

    # --- many at once ---

    def _thin_outputs(self) -> None:
        self._thin(lambda: len(self._current.graph.output), drop_outputs)

    def _thin_nodes(self) -> None:
        """The nodes of each graph, outer graphs first: bodies often go with their owners."""
        seen: set[Path] = set()
        while True:
            paths = [path for path, _ in walk(self._current.graph) if path not in seen]
            if not paths:
                return
            path = min(paths, key=len)
            seen.add(path)
            self._shorten(path)
            self._thin(partial(self._length, path), partial(_drop_in, path))

    def _shorten(self, path: Path) -> None:
        """Lets a graph end earlier, by half of its nodes, a quarter …"""
        run = self._length(path) // 2
        while run:
            place = self._length(path) - run
            edit = partial(end_earlier, path=path, place=place, types=self._types)
            if place < 1 or not self._try(edit):
                run //= 2

    def _length(self, path: Path) -> int:
        paths = {each for each, _ in walk(self._current.graph)}
        return len(at(self._current, path).node) if path in paths else 0

    def _thin(
        self,
        length: Callable[[], int],
        drop: Callable[[onnx.ModelProto, int, int], None],
    ) -> None:
        """Takes away runs of items, each half as long as the ones before."""
        run = max(1, length() // 2)
        while True:
            last = length()
            while last > 0:
                first = max(0, last - run)
                self._try(partial(_drop_run, drop, first, last))
                last = min(first, length())
            if run == 1:
                return
            run = max(1, min(run, length()) // 2)

    # --- one at a time ---

    def _try_each(self, edits: Callable[[], Iterator[Edit]]) -> None:
        """Tries the edits of the current model; after one that helps goes on with those that
        follow it in the smaller model.
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

    def _resize(self) -> None:
        done = 0
        while True:
            for resizing in list(resizings(self._current))[done:]:
                if self._try(resizing):
                    break
                done += 1
            else:
                return

    # --- one candidate ---

    def _try(self, edit: Edit) -> bool:
        """Takes a smaller model if it still shows what is looked for."""
        candidate = copied(self._current)
        types = edit.types(self._types) if isinstance(edit, Resizing) else self._types
        try:
            edit(candidate)
            tidy(candidate, types)
        except NotPossible:
            return False
        if candidate == self._current:
            return False
        verdict = self._ask(candidate)
        if verdict is Verdict.CLEAN:
            self._note_clean(candidate)
        if verdict is not Verdict.SHOWS:
            return False
        self._current, self._types = candidate, types
        self._earlier, self._result.nearest = self._result.nearest or self._earlier, None
        self.progress.keep(candidate)
        self.tell(f"{size(candidate)} nodes after {self._result.checks} checks")
        return True

    def _note_clean(self, candidate: onnx.ModelProto) -> None:
        nearest = self._result.nearest
        if nearest is None or size(candidate) > size(nearest):
            self._result.nearest = candidate

    def _ask(self, candidate: onnx.ModelProto) -> Verdict:
        key = hashlib.sha256(candidate.SerializeToString(deterministic=True)).hexdigest()
        known = self.progress.verdict(key)
        if known is not None:
            self._result.remembered += 1
            return known
        if time.monotonic() > self._end:
            raise _TimeIsUp
        verdict = self.question.ask(candidate)
        self._result.checks += 1
        self.progress.note(key, verdict)
        return verdict


class _TimeIsUp(Exception):
    pass


def _drop_in(path: Path, model: onnx.ModelProto, first: int, last: int) -> None:
    drop_nodes(model, path, first, last)


def _drop_run(
    drop: Callable[[onnx.ModelProto, int, int], None],
    first: int,
    last: int,
    model: onnx.ModelProto,
) -> None:
    drop(model, first, last)
