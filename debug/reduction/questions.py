"""What a reduced model must still show.

differs              rewriting changes what the model computes
fires RULE           the rule fires
left OP              such a node is left after rewriting
reason WORDS         a rule declines at an If, Loop or Scan that is left, with these words
error WORDS          rewriting ends with an error or a defect that has these words
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

import onnx

from ...api import count_operators
from ...commands.arguments import Assertions
from ...rewrite.engine.engine import Engine
from ...rewrite.engine.reasons import reasons_at
from ...rewrite.errors import AssumptionError, LoopliftError, ModelError
from ...rewrite.graph.ir import CONTROL_FLOW
from ...rewrite.running.cases import Effort
from ...rewrite.running.runtime import ExecutionError, IsolatedSession, SerializedModel
from ...rewrite.storage.model import export_model, import_model
from ..checks import Check, Command
from ..subject import Subject
from ..trials import Trials

EFFORT = Effort(cases=4, attempts=24, seconds=10.0, run_seconds=5.0)
"""Small: the question is asked hundreds of times."""


class Verdict(Enum):
    """What a candidate is."""

    SHOWS = "shows"
    CLEAN = "clean"
    """A model that runs and does not show it."""
    INVALID = "invalid"


class Question(Protocol):
    """Judges candidates."""

    @property
    def text(self) -> str:
        """As the user wrote it."""

    def ask(self, model: onnx.ModelProto) -> Verdict:
        """Whether a candidate shows what is looked for."""


@dataclass(frozen=True)
class Differs:
    """Rewriting changes what the model computes."""

    subject: Subject
    seed: int = 0
    text: str = "differs"

    def ask(self, model: onnx.ModelProto) -> Verdict:
        try:
            subject = fitted(self.subject, model)
            engine = _run(subject)
        except LoopliftError:
            return Verdict.INVALID
        with Trials(subject, self.seed, EFFORT) as trials:
            if not trials.cases:
                return Verdict.INVALID
            different = trials.differences(export_model(engine.model))
        return Verdict.SHOWS if different else Verdict.CLEAN


@dataclass(frozen=True)
class Rewrites:
    """Something that is seen in a rewrite or its result."""

    subject: Subject
    text: str
    sees: Callable[[Engine], bool]

    def ask(self, model: onnx.ModelProto) -> Verdict:
        try:
            engine = _run(fitted(self.subject, model))
        except LoopliftError:
            return Verdict.INVALID
        if not runs(model, self.subject.base_dir):
            return Verdict.INVALID
        return Verdict.SHOWS if self.sees(engine) else Verdict.CLEAN


@dataclass(frozen=True)
class Errs:
    """Rewriting ends with an error, or a rule with a defect."""

    subject: Subject
    words: str
    text: str

    def ask(self, model: onnx.ModelProto) -> Verdict:
        if not runs(model, self.subject.base_dir):
            return Verdict.INVALID
        try:
            engine = _run(fitted(self.subject, model))
        except AssumptionError:
            return Verdict.INVALID
        except LoopliftError as error:
            said = [str(error)]
        else:
            said = [defect.reason for defect in engine.trace.defects()]
        return Verdict.SHOWS if any(self.words in each for each in said) else Verdict.CLEAN


@dataclass(frozen=True)
class Asks:
    """A command, which exits with another status than 0 for a model that shows it.

    The candidate must be a valid model that onnxruntime takes: a command fails for any other.
    """

    check: Check
    base_dir: str
    text: str

    def ask(self, model: onnx.ModelProto) -> Verdict:
        try:
            import_model(model, self.base_dir)
        except ModelError:
            return Verdict.INVALID
        if not runs(model, self.base_dir):
            return Verdict.INVALID
        return Verdict.SHOWS if self.check.finds(model) else Verdict.CLEAN


def question(subject: Subject, keep: str, command: str, seed: int = 0) -> Question:
    """What `--keep` or `--check` asks. Raises LoopliftError for a text that asks nothing."""
    if command:
        return Asks(Command(command, subject.base_dir), subject.base_dir, command)
    word, _, rest = keep.strip().partition(" ")
    rest = rest.strip()
    if keep.strip() == "differs":
        return Differs(subject, seed)
    if word == "error" and rest:
        return Errs(subject, rest, keep)
    sees = {"fires": _fires, "left": _left, "reason": _gives_reason}.get(word)
    if sees is None or not rest:
        raise LoopliftError(
            f"'{keep}' says nothing that a model could show",
            where="--keep",
            remedy="Write differs, fires RULE, left OP, reason WORDS or error WORDS; "
            "or give a command as --check",
        )
    return Rewrites(subject, keep, sees(rest))


def _fires(rule: str) -> Callable[[Engine], bool]:
    return lambda engine: any(commit.rule == rule for commit in engine.trace.commits())


def _left(op: str) -> Callable[[Engine], bool]:
    return lambda engine: count_operators(export_model(engine.model))[op] > 0


def _gives_reason(words: str) -> Callable[[Engine], bool]:
    return lambda engine: any(
        words in f"{reason.rule}: {reason.sentence}"
        for node in engine.index.walk()
        if node.op in CONTROL_FLOW and not node.domain
        for reason in reasons_at(engine, node)
    )


def runs(model: onnx.ModelProto, base_dir: str) -> bool:
    """Whether onnxruntime takes the model."""
    try:
        with closing(IsolatedSession(SerializedModel(model, base_dir))):
            return True
    except ExecutionError:
        return False


def fitted(subject: Subject, model: onnx.ModelProto) -> Subject:
    """The same of a smaller model, without assertions on inputs, dims and values that are gone."""
    given = subject.assertions
    names = {info.name for info in model.graph.input}
    values = names | {name for node in model.graph.node for name in node.output}
    dims = {dim.dim_param for info in model.graph.input for dim in info.type.tensor_type.shape.dim}
    kept = Assertions(
        {name: value for name, value in given.inputs.items() if name in names},
        tuple(text for text in given.dims if text.split(">")[0].split("=")[0].strip() in dims),
        {name: shape for name, shape in given.shapes.items() if name in names},
        given.strict,
        {name: axis for name, axis in given.prefix_masks.items() if name in values},
    )
    return replace(subject, proto=model, assertions=kept)


def _run(subject: Subject) -> Engine:
    engine = subject.engine()
    engine.run()
    return engine
