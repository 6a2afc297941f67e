"""What a reduced model must still show.

differs              rewriting changes what the model computes
fires RULE           the rule fires
left OP              a node with this operator remains after rewriting
reason WORDS         a rule declines at a remaining If, Loop or Scan with these words
error WORDS          rewriting ends with an error or a defect that has these words, such as the
                     name of the rule that failed
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

import onnx

from ...request import Request
from ...rewrite.engine.engine import Engine
from ...rewrite.engine.reasons import reasons_at
from ...rewrite.errors import AssumptionError, LoopliftError, ModelError
from ...rewrite.facts.assertions import Assertions
from ...rewrite.graph.ir import CONTROL_FLOW
from ...rewrite.running.cases import Effort
from ...rewrite.running.runtime import ExecutionError, IsolatedSession, SerializedModel
from ...rewrite.storage.model import export_model, import_model
from ...rewrite.storage.summary import count_operators
from ..model_checks import CommandCheck, ModelCheck
from ..reference_runs import ReferenceRuns

EFFORT = Effort(cases=4, attempts=24, seconds=10.0, run_seconds=5.0)
"""Small, because a search tests hundreds of candidates."""


class Verdict(Enum):
    """The result of testing a candidate."""

    SHOWS = "shows"
    CLEAN = "clean"
    """A model that runs and does not show the finding."""
    INVALID = "invalid"


class Criterion(Protocol):
    """Tests candidates for a finding."""

    @property
    def text(self) -> str:
        """The finding as the user wrote it."""

    def test(self, model: onnx.ModelProto) -> Verdict:
        """Tests whether a candidate shows the finding."""


@dataclass(frozen=True)
class OutputsDiffer:
    """Rewriting changes what the model computes."""

    request: Request
    seed: int = 0
    text: str = "differs"
    effort: Effort = EFFORT

    def test(self, model: onnx.ModelProto) -> Verdict:
        try:
            request = for_model(self.request, model)
            engine = _run(request)
        except LoopliftError:
            return Verdict.INVALID
        with ReferenceRuns(request, self.seed, self.effort) as reference:
            if not reference.cases:
                return Verdict.INVALID
            differs = reference.differences(export_model(engine.model))
        return Verdict.SHOWS if differs else Verdict.CLEAN


@dataclass(frozen=True)
class RewriteShows:
    """The finished rewrite has a property."""

    request: Request
    text: str
    shows: Callable[[Engine], bool]

    def test(self, model: onnx.ModelProto) -> Verdict:
        try:
            engine = _run(for_model(self.request, model))
        except LoopliftError:
            return Verdict.INVALID
        if not loads(model, self.request.base_dir):
            return Verdict.INVALID
        return Verdict.SHOWS if self.shows(engine) else Verdict.CLEAN


@dataclass(frozen=True)
class RewriteFails:
    """Rewriting ends with an error, or a rule is defective."""

    request: Request
    words: str
    text: str

    def test(self, model: onnx.ModelProto) -> Verdict:
        if not loads(model, self.request.base_dir):
            return Verdict.INVALID
        try:
            engine = _run(for_model(self.request, model))
        except AssumptionError:
            return Verdict.INVALID
        except LoopliftError as error:
            messages = [str(error)]
        else:
            messages = list(map(str, engine.trace.defects()))
        return Verdict.SHOWS if any(self.words in each for each in messages) else Verdict.CLEAN


@dataclass(frozen=True)
class CommandFinds:
    """A command finds something in the model.

    The candidate must be a valid model that onnxruntime loads, because a command fails for any
    other file.
    """

    check: ModelCheck
    base_dir: str
    text: str

    def test(self, model: onnx.ModelProto) -> Verdict:
        try:
            import_model(model, self.base_dir)
        except ModelError:
            return Verdict.INVALID
        if not loads(model, self.base_dir):
            return Verdict.INVALID
        return Verdict.SHOWS if self.check.finding(model) else Verdict.CLEAN


def criterion(request: Request, keep: str, command: str, seed: int = 0) -> Criterion:
    """The criterion of `--keep` or `--check`. Raises LoopliftError for an unknown text."""
    if command:
        return CommandFinds(CommandCheck(command, request.base_dir), request.base_dir, command)
    word, _, rest = keep.strip().partition(" ")
    rest = rest.strip()
    if keep.strip() == "differs":
        quick = OutputsDiffer(request, seed)
        if quick.test(request.proto) is Verdict.SHOWS:
            return quick
        return replace(quick, effort=Effort())  # that of a verification
    if word == "error" and rest:
        return RewriteFails(request, rest, keep)
    shows = {"fires": _fires, "left": _remains, "reason": _gives_reason}.get(word)
    if shows is None or not rest:
        raise LoopliftError(
            f"'{keep}' is not something that a model can show",
            where="--keep",
            remedy="Write differs, fires RULE, left OP, reason WORDS or error WORDS; "
            "or give a command as --check",
        )
    return RewriteShows(request, keep, shows(rest))


def _fires(rule: str) -> Callable[[Engine], bool]:
    return lambda engine: any(commit.rule == rule for commit in engine.trace.commits())


def _remains(op: str) -> Callable[[Engine], bool]:
    return lambda engine: count_operators(export_model(engine.model))[op] > 0


def _gives_reason(words: str) -> Callable[[Engine], bool]:
    return lambda engine: any(
        words in f"{reason.rule}: {reason.sentence}"
        for node in engine.index.walk()
        if node.op in CONTROL_FLOW and not node.domain
        for reason in reasons_at(engine, node)
    )


def loads(model: onnx.ModelProto, base_dir: str) -> bool:
    """Whether onnxruntime loads the model."""
    try:
        with closing(IsolatedSession(SerializedModel(model, base_dir))):
            return True
    except ExecutionError:
        return False


def for_model(request: Request, model: onnx.ModelProto) -> Request:
    """The request for a smaller model, without assertions about what the model no longer has."""
    given = request.assertions
    names = {info.name for info in model.graph.input}
    values = names | {name for node in model.graph.node for name in node.output}
    dims = {dim.dim_param for info in model.graph.input for dim in info.type.tensor_type.shape.dim}
    kept = Assertions(
        {name: value for name, value in given.inputs.items() if name in names},
        {name: size for name, size in given.dims.items() if name in dims},
        {name: size for name, size in given.minima.items() if name in dims},
        {name: shape for name, shape in given.shapes.items() if name in names},
        {name: axis for name, axis in given.prefix_masks.items() if name in values},
    )
    return replace(request, proto=model, assertions=kept)


def _run(request: Request) -> Engine:
    engine = request.engine()
    engine.run()
    return engine
