"""What inference engines take of the forms that rules choose between.

A rule chooses a form, such as LSTM instead of Loop, because it is the fastest or smallest one.
Where the user names an engine (`--for openvino`), a patch that adds a form which that engine
refuses or computes wrongly is undone, and the rule declines. Forms that the file already has may
stay.

Each entry was measured with `benchmarks/engines.py`; a new release may take more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import LoopliftError
from ..facts.facts import Facts
from ..graph.ir import Node, bodies
from .edits import Edits
from .miss import Miss

_RECURRENT = ("LSTM", "GRU", "RNN")
_OPERANDS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_RESULTS = ("Y", "Y_h", "Y_c")
_DEFAULT_ACTIVATIONS = frozenset(("Sigmoid", "Tanh"))


@dataclass(frozen=True)
class InferenceEngine:
    """The forms that an engine lacks, in the terms of the ONNX operator specification.

    The default lacks nothing, as onnxruntime and TVM.
    """

    name: str = ""
    operators: frozenset[str] = frozenset()
    """The operators that it lacks."""
    operands: frozenset[str] = frozenset()
    """The operands and results of LSTM, GRU and RNN that it lacks, such as `sequence_lens`."""
    other_activations: bool = True
    """Whether these take activations other than Sigmoid and Tanh."""
    reverse: bool = True
    """Whether these take the direction `reverse`."""
    open_batch: bool = True
    """Whether these take a batch whose size is not known before the run."""

    def refusals(self, node: Node, facts: Facts) -> Iterator[str]:
        """What the engine does not take about a node, apart from its bodies."""
        if node.domain:
            return
        if node.op in self.operators:
            yield node.op
        if node.op in _RECURRENT:
            yield from self._recurrent_refusals(node, facts)

    def _recurrent_refusals(self, node: Node, facts: Facts) -> Iterator[str]:
        given = {
            formal
            for formals, tensors in ((_OPERANDS, node.inputs), (_RESULTS, node.outputs))
            for formal, tensor in zip(formals, tensors)
            if tensor.name
        }
        yield from (f"{node.op} with {formal}" for formal in sorted(given & self.operands))
        functions = {str(name) for name in node.attrs.get("activations", ())}
        if not self.other_activations and not functions <= _DEFAULT_ACTIVATIONS:
            yield f"{node.op} with activations {', '.join(sorted(functions))}"
        if not self.reverse and node.attrs.get("direction") == "reverse":
            yield f"{node.op} with direction reverse"
        shape = facts.shape(node.inputs[0])
        batch = None if shape is None else shape[0 if node.attrs.get("layout") else 1]
        if not self.open_batch and not isinstance(batch, int):
            yield f"{node.op} with a batch whose size is not known"


ANY_ENGINE = InferenceEngine()

ENGINES = MappingProxyType(
    {
        engine.name: engine
        for engine in (
            InferenceEngine("onnxruntime"),
            InferenceEngine("tvm"),
            # 2026.4 ignores sequence_lens and peepholes, and does not compile HardSigmoid.
            InferenceEngine(
                "openvino", operands=frozenset(("sequence_lens", "P")), other_activations=False
            ),
            # 0.23 ends the process for an open batch, ignores `activations` and computes `reverse`
            # forward; an LSTM of a batch other than 1 takes no initial state and returns no Y_c.
            InferenceEngine(
                "tract",
                operators=frozenset(("Loop",)),
                operands=frozenset(("sequence_lens", "initial_h", "initial_c", "Y_c")),
                other_activations=False,
                reverse=False,
                open_batch=False,
            ),
        )
    }
)
"""The engines that `--for` knows, by name."""


def inference_engine(name: str | None) -> InferenceEngine:
    """The engine of a name; one that lacks nothing for None. Raises LoopliftError if unknown."""
    if name is None:
        return ANY_ENGINE
    if name not in ENGINES:
        raise LoopliftError(
            f"'{name}' is no inference engine that looplift knows",
            remedy=f"Choose one of {', '.join(ENGINES)}, or leave it out for a model that follows "
            "the ONNX specification",
        )
    return ENGINES[name]


class UnsupportedNodes:
    """The nodes of a graph that an engine does not take; no patch may add others."""

    def __init__(self, engine: InferenceEngine, facts: Facts) -> None:
        self._engine, self._facts = engine, facts
        self._refusals = {node: self._refused(node) for node in facts.index.walk()}

    def check(self, patch: Edits) -> None:
        """Raises Miss if a patch adds a form that the engine does not take and removes none."""
        changed = [*patch.touched, *(node for each in patch.added for node in _with_inner(each))]
        after = {node: self._refused(node) for node in changed if node in patch.index}
        gone = Counter(
            reason for node in patch.removed if node not in after for reason in self._of(node)
        )
        for node, reasons in after.items():
            new = Counter(reasons) - Counter(self._of(node)) - gone
            for reason in new:
                raise Miss("{} does not take {}", self._engine.name, reason, at=node)
            gone -= Counter(reasons) - Counter(self._of(node))
        self._refusals.update(after)

    def _of(self, node: Node) -> tuple[str, ...]:
        return self._refusals.get(node, ())

    def _refused(self, node: Node) -> tuple[str, ...]:
        return tuple(self._engine.refusals(node, self._facts))


def _with_inner(node: Node) -> Iterator[Node]:
    yield node
    for body in bodies(node):
        for inner in body.nodes:
            yield from _with_inner(inner)
