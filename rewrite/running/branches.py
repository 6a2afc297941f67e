"""Records which branches of Ifs run: runs say nothing about the branches that they do not take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx

from ..errors import LoopliftError
from ..facts.apply_assertions import apply_assertions
from ..facts.assertions import Assertions
from ..facts.inference import facts_of
from ..graph.index import Index
from ..graph.ir import Node
from ..storage.model import import_model, opsets
from .runtime import IsolatedSession, RuntimeValue


@dataclass
class BranchRecorder:
    """The values of the conditions of Ifs in the runs of a model."""

    conditions: Mapping[str, str]
    """The name of the condition by that of the If."""
    seen: dict[str, set[bool]] = field(default_factory=dict)
    """The values by the name of the condition."""

    @classmethod
    def of(
        cls, model: onnx.ModelProto, base_dir: str = "", assertions: Assertions | None = None
    ) -> BranchRecorder:
        """For the Ifs of the main graph whose branch is not known before the run."""
        if all(node.op_type != "If" for node in model.graph.node):
            return cls({})
        try:
            imported = import_model(model, base_dir)
            asserted = apply_assertions(imported, assertions or Assertions())
        except LoopliftError:  # whoever asked for the runs gets the error
            return cls({})
        # The Ifs of functions are inlined; their conditions need not be values of the main graph.
        outside = {name for node in model.graph.node for name in node.output}
        outside |= {info.name for info in model.graph.input}
        facts = facts_of(Index(imported.graph), opsets(imported.header), asserted)
        ifs = [node for node in imported.graph.nodes if node.op == "If" and not node.domain]
        return cls(
            {
                _label(node): node.inputs[0].name
                for node in ifs
                if node.inputs[0].name in outside and facts.scalar(node.inputs[0]) is None
            }
        )

    def record(self, values: Mapping[str, RuntimeValue]) -> None:
        """Records a run by its values, inputs included."""
        for name in {*self.conditions.values()}.intersection(values):
            condition = values[name]
            if isinstance(condition, np.ndarray) and condition.size == 1:
                self.seen.setdefault(name, set()).add(bool(condition.item()))

    def notes(self) -> list[str]:
        """A remark on each If that took the same branch in all runs."""
        found = ((label, self.seen.get(name, ())) for label, name in self.conditions.items())
        return [
            f"no run took {'else' if True in seen else 'then'}_branch of {label}, so none compared "
            "it: try other sizes (--size) or values (--seed)"
            for label, seen in found
            if len(seen) == 1
        ]


class RecordingSession:
    """A `LoadedModel` that also returns conditions, to a recorder instead of to callers."""

    def __init__(self, session: IsolatedSession, recorder: BranchRecorder, count: int) -> None:
        """`count` is the number of outputs for callers."""
        self._session, self._recorder, self._count = session, recorder, count
        self.inputs, self.defaults = session.inputs, session.defaults
        self.outputs, self.not_vectors = session.outputs[:count], session.not_vectors

    def unrecorded(self) -> RecordingSession:
        """The same session for runs that are not compared."""
        return RecordingSession(self._session, BranchRecorder({}), len(self.outputs))

    def run(
        self, feed: Mapping[str, RuntimeValue], seconds: float | None = None
    ) -> list[RuntimeValue]:
        values = self._session.run(feed, seconds)
        self._recorder.record({**feed, **dict(zip(self._session.outputs, values))})
        return values[: self._count]

    def close(self) -> None:
        self._session.close()


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """A copy of the model with more outputs, whose types onnxruntime infers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    there = {info.name for info in copy.graph.output}
    given = {info.name for info in copy.graph.input} | {t.name for t in copy.graph.initializer}
    for name in dict.fromkeys(names):
        if name not in there | given:
            copy.graph.output.add(name=name)
    return copy


def _label(node: Node) -> str:
    return f"If `{node.name}`" if node.name else f"If of `{node.outputs[0].name}`"
