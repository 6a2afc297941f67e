"""What a reduction has found so far, in a file, so that one that was interrupted goes on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import IO

import onnx

from ...rewrite.errors import ModelError
from ...rewrite.storage.files import save
from .questions import Verdict


class Progress:
    """Verdicts by candidate, kept in a file beside the result, and the smallest model so far.

    A reduction is deterministic: begun again it meets the same candidates and asks only about those
    it has no verdict of. A file of another model or question is begun anew. Raises ModelError if
    the file cannot be written.
    """

    def __init__(
        self, output: Path, model: onnx.ModelProto, question: str, base_dir: str = ""
    ) -> None:
        self._output = output
        self._base_dir = base_dir
        self.path = output.with_suffix(".progress.jsonl")
        content = model.SerializeToString(deterministic=True)
        self._subject = {"model": hashlib.sha256(content).hexdigest(), "question": question}
        self._verdicts = self._remembered()
        self._file: IO[str] | None = None

    def verdict(self, key: str) -> Verdict | None:
        return self._verdicts.get(key)

    def note(self, key: str, verdict: Verdict) -> None:
        self._verdicts[key] = verdict
        self._write({"candidate": key, "verdict": verdict.value})

    def keep(self, model: onnx.ModelProto) -> None:
        """Writes the smallest model so far."""
        save(model, self._output, base_dir=self._base_dir)

    def close(self, finished: bool) -> None:
        """A finished reduction needs no file any more."""
        if self._file is not None:
            self._file.close()
        if finished:
            self.path.unlink(missing_ok=True)

    def _remembered(self) -> dict[str, Verdict]:
        if not self.path.is_file():
            return {}
        lines = self.path.read_text(encoding="utf-8").splitlines()
        try:
            parsed = [json.loads(line) for line in lines]
        except ValueError:
            # The last line of a call that was ended while it wrote.
            parsed = [json.loads(line) for line in lines[:-1]]
        if not parsed or parsed[0] != self._subject:
            return {}
        return {line["candidate"]: Verdict(line["verdict"]) for line in parsed[1:]}

    def _write(self, line: dict[str, str]) -> None:
        if self._file is None:
            self._file = self._opened()
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _opened(self) -> IO[str]:
        known = list(self._verdicts.items())[:-1]  # the last one is written by the caller
        try:
            file = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise ModelError(
                f"The progress cannot be written: {error.strerror or error}",
                where=f"file '{self.path}'",
                remedy="Name an output in a folder that can be written to",
            ) from error
        file.write(json.dumps(self._subject) + "\n")
        for key, verdict in known:
            file.write(json.dumps({"candidate": key, "verdict": verdict.value}) + "\n")
        return file
