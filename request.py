"""A request to rewrite a model: what all commands and public functions start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx

from .plugins import all_phases, check_phases
from .rewrite.engine.engine import Engine, Observer
from .rewrite.engine.inference_engine import inference_engine
from .rewrite.engine.rule import Options, Phase
from .rewrite.engine.trace import Listener, Trace
from .rewrite.facts.apply_assertions import apply_assertions
from .rewrite.facts.assertions import Assertions
from .rewrite.storage.files import ModelSource, load
from .rewrite.storage.model import Model, import_model


@dataclass(frozen=True)
class Request:
    """A model, what the user asserts about it, the options, and the rules.

    Rewriting is deterministic: each engine of one request makes the same commits.
    """

    proto: onnx.ModelProto
    base_dir: str = ""
    """The folder that external data is relative to."""
    assertions: Assertions = field(default_factory=Assertions)
    """As the user states them; `resolved` has them as the model takes them."""
    options: Options = field(default_factory=Options)
    phases: Sequence[Phase] = ()

    @classmethod
    def of(
        cls,
        model: ModelSource,
        assertions: Assertions | None = None,
        *,
        strict: bool = False,
        engine: str | None = None,
        phases: Sequence[Phase] | None = None,
        follows_links: bool = False,
    ) -> Request:
        """Loads a model; without `phases`, takes those of looplift and of installed packages.

        `engine` names the inference engine that the result is for. `follows_links` allows external
        data through links to other folders. Raises ModelError if the model cannot be read, and
        LoopliftError if the engine is not known, if `phases` are not phases, or if the rules of an
        installed package cannot be imported.
        """
        options = Options(strict=strict, engine=inference_engine(engine))
        proto, base_dir = load(model, follows_links)
        if phases is None:
            phases = all_phases()
        check_phases(phases)
        return cls(proto, base_dir, assertions or Assertions(), options, phases)

    def engine(
        self,
        observer: Observer | None = None,
        step_limit: int | None = None,
        on_event: Listener | None = None,
    ) -> Engine:
        """An engine on a fresh copy of the graph, ready to run.

        Raises ModelError for a model that is not valid and AssumptionError for an assertion that
        does not fit it.
        """
        model, resolved = self._imported()
        trace = Trace(listener=on_event)
        return Engine(model, self.phases, resolved, self.options, step_limit, trace, observer)

    @cached_property
    def resolved(self) -> Assertions:
        """The assertions that `apply_assertions` returns. Raises what `engine` raises."""
        return self._imported()[1]

    def _imported(self) -> tuple[Model, Assertions]:
        model = import_model(self.proto, self.base_dir)
        return model, apply_assertions(model, self.assertions)

    def asserting(self, more: Assertions) -> Request:
        """The request with more assertions. Raises AssumptionError for a contradiction."""
        return replace(self, assertions=self.assertions.extended(more))


@dataclass(frozen=True)
class Settings:
    """A request without its model, which can be sent to another process."""

    assertions: Assertions = field(default_factory=Assertions)
    strict: bool = False
    engine: str | None = None
    """The inference engine that the result is for; None for any."""
    rules: tuple[str, ...] = ()
    """Modules with more phases than those of looplift and of installed packages."""
    follows_links: bool = False
    """Whether links may lead to external data outside the folder of the model."""

    def request(self, model: ModelSource) -> Request:
        """The request for a model. Raises what `Request.of` and `plugins.all_phases` raise."""
        phases = all_phases(self.rules)
        return Request.of(
            model,
            self.assertions,
            strict=self.strict,
            engine=self.engine,
            phases=phases,
            follows_links=self.follows_links,
        )
