"""What a debugging command works on: a model, what is asserted of it, and the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from ..commands.arguments import Assertions
from ..plugins import all_phases
from ..rewrite.engine.engine import Engine, Observer
from ..rewrite.engine.rule import Options, Phase
from ..rewrite.engine.trace import Trace
from ..rewrite.facts.assertions import assert_facts, parse_dims
from ..rewrite.facts.facts import Assumptions
from ..rewrite.storage.files import load
from ..rewrite.storage.model import Model, import_model


@dataclass(frozen=True)
class Subject:
    """A model that can be rewritten again and again, each time in the same way."""

    proto: onnx.ModelProto
    base_dir: str = ""
    """The folder that external data is relative to."""
    assertions: Assertions = field(default_factory=Assertions)
    phases: Sequence[Phase] = ()

    @classmethod
    def of(
        cls,
        model: str | Path | onnx.ModelProto,
        assertions: Assertions | None = None,
        phases: Sequence[Phase] | None = None,
    ) -> Subject:
        """Reads a model; the phases are by default looplift's and those of installed packages.

        Raises ModelError if it cannot be read.
        """
        proto, folder = load(model)
        chosen = all_phases() if phases is None else phases
        return cls(proto, folder, assertions or Assertions(), chosen)

    def engine(self, observer: Observer | None = None, step_limit: int | None = None) -> Engine:
        """A rewrite that has not begun. Raises what `rewrite` raises."""
        model, assumptions = self._imported()
        options, trace = Options(strict=self.assertions.strict), Trace()
        return Engine(model, self.phases, assumptions, options, step_limit, trace, observer)

    @cached_property
    def assumptions(self) -> Assumptions:
        """The assertions as the model takes them. Raises AssumptionError for what does not fit."""
        return self._imported()[1]

    def _imported(self) -> tuple[Model, Assumptions]:
        model, given = import_model(self.proto, self.base_dir), self.assertions
        assumptions, _ = assert_facts(
            model, given.inputs, parse_dims(given.dims), given.shapes, given.prefix_masks
        )
        return model, assumptions

    def asserted(self) -> dict[str, Any]:
        """The assertions as the parameters of `rewrite`."""
        given = self.assertions
        return {
            "inputs": given.inputs,
            "dims": given.dims,
            "shapes": given.shapes,
            "prefix_masks": given.prefix_masks,
            "strict": given.strict,
        }
