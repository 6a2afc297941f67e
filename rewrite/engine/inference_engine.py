"""Which of the forms that rules choose between each inference engine supports.

A rule chooses a form, such as LSTM instead of Loop, because it is the fastest or smallest one.
Where the user names an engine (`--for openvino`), a patch that adds a form which that engine
refuses or computes wrongly is undone, and the rule declines. Forms that the file already has may
stay. A patch that decomposes one of onnxruntime's own operators is undone for onnxruntime.

Each entry was measured with `benchmarks/engines.py`; a new release may support more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import LoopliftError
from ..facts.facts import Facts
from ..graph.index import Index
from ..graph.ir import Node, bodies
from ..symbolic import Dim
from .edits import Edits
from .miss import Refusal

_RECURRENT = ("LSTM", "GRU", "RNN")
_OPERANDS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_RESULTS = ("Y", "Y_h", "Y_c")
_DEFAULT_ACTIVATIONS = frozenset(("Sigmoid", "Tanh"))
_OPEN_BATCH = "with a batch whose size is not known"


@dataclass(frozen=True)
class InferenceEngine:
    """The forms that an engine refuses or computes wrongly.

    A form is an operator, such as `Loop`, or a use of LSTM, GRU or RNN, such as
    `LSTM with sequence_lens`; `_recurrent_forms` lists the uses. The default lacks nothing, like
    onnxruntime and TVM.
    """

    name: str = ""
    lacks: frozenset[str] = frozenset()
    reshapes_iteration_numbers: bool = False
    """Whether it gives the iteration number of a Loop the shape [1], which needs a Reshape."""
    has_contrib_operators: bool = False
    """Whether it runs the operators that onnxruntime adds to ONNX. They stay, because what they are
    decomposed into is slower, but not in loops, which other rules may then remove."""

    cost_is_known: bool = False
    """Whether it is known what control flow costs that stays in a model."""

    def refusals(self, node: Node, facts: Facts) -> Iterator[str]:
        """The forms of a node that the engine does not support; ignores its bodies."""
        if self.lacks and not node.domain:
            yield from (form for form in _forms(node, facts) if form in self.lacks)


def _forms(node: Node, facts: Facts) -> Iterator[str]:
    yield node.op
    if node.op in _RECURRENT:
        yield from (f"{node.op} {form}" for form in _recurrent_forms(node, facts))


def _recurrent_forms(node: Node, facts: Facts) -> Iterator[str]:
    operands = {formal for formal, tensor in zip(_OPERANDS, node.inputs) if tensor.name}
    results = {formal for formal, tensor in zip(_RESULTS, node.outputs) if tensor.name}
    yield from (f"with {formal}" for formal in sorted(operands | results))
    if "Y_c" in results and "Y_h" not in results:
        yield "with Y_c but not Y_h"
    if "Y_c" not in results:
        yield "without Y_c"
    functions = {str(name) for name in node.attrs.get("activations", ())}
    if not functions <= _DEFAULT_ACTIVATIONS:
        yield "with activations other than Sigmoid and Tanh"
    if node.attrs.get("direction") == "reverse":
        yield "with direction reverse"
        if "Y_h" in results:
            yield "with direction reverse and Y_h"
    if not isinstance(_batch_size(node, facts), int):
        yield _OPEN_BATCH


def _batch_size(node: Node, facts: Facts) -> Dim | None:
    """The batch size of LSTM, GRU or RNN; None if the rank of its input is not known."""
    shape = facts.shape(node.inputs[0])
    return None if shape is None else shape[0 if node.attrs.get("layout") else 1]


def _recurrent(*uses: str) -> frozenset[str]:
    """These uses of each of LSTM, GRU and RNN."""
    return frozenset(f"{op} {use}" for op in _RECURRENT for use in uses)


_ACTIVATIONS = "with activations other than Sigmoid and Tanh"

ANY_ENGINE = InferenceEngine(cost_is_known=True)

ENGINES = MappingProxyType(
    {
        engine.name: engine
        for engine in (
            InferenceEngine("onnxruntime", has_contrib_operators=True, cost_is_known=True),
            InferenceEngine("tvm", cost_is_known=True),
            # 2026.4 ignores sequence_lens and peepholes, and does not compile HardSigmoid.
            InferenceEngine("openvino", _recurrent("with sequence_lens", "with P", _ACTIVATIONS)),
            # 0.23 crashes on a dynamic batch size, ignores `activations` and computes `reverse`
            # forward; an LSTM of a batch other than 1 takes no initial state and returns no Y_c.
            InferenceEngine(
                "tract",
                frozenset(("Loop",))
                | _recurrent(
                    "with sequence_lens",
                    "with initial_h",
                    "with initial_c",
                    "with Y_c",
                    "with direction reverse",
                    _OPEN_BATCH,
                    _ACTIVATIONS,
                ),
            ),
            # 5.0 has no RNN. A GRU without initial_h fails when the batch changes; where its Y_h is
            # not read, Y is only the last time step. In `reverse`, Y_h is wrong.
            InferenceEngine(
                "opencv",
                frozenset(("RNN", "GRU", "Scan"))
                | _recurrent(
                    "with sequence_lens",
                    "with Y_c but not Y_h",
                    "with direction reverse and Y_h",
                    _ACTIVATIONS,
                ),
                reshapes_iteration_numbers=True,
            ),
            # 3.6 crashes on most GRUs and on an LSTM whose Y_c is not read; it computes an
            # RNN with `reverse` or Relu wrongly.
            InferenceEngine("mnn", frozenset((*_RECURRENT, "LSTM without Y_c", "Scan"))),
            # 0.14 has none of these.
            InferenceEngine("tinygrad", frozenset((*_RECURRENT, "Loop", "Scan"))),
            # 3.13 supports all forms that rules choose; some LSTMs compile for more than a minute.
            InferenceEngine("iree"),
        )
    }
)
"""The engines that `--for` knows, by name."""


def inference_engine(name: str | None) -> InferenceEngine:
    """The engine with this name; for None, one that lacks nothing. Raises LoopliftError."""
    if name is None:
        return ANY_ENGINE
    known = name.lower() if isinstance(name, str) else None
    if known not in ENGINES:
        raise LoopliftError(
            f"{name!r} is not an inference engine that looplift knows",
            remedy=f"Choose one of {', '.join(ENGINES)}, or leave it out for a model that follows "
            "the ONNX specification",
        )
    return ENGINES[known]


_CONTRIB = frozenset({"SimplifiedLayerNormalization"})
"""Operators of onnxruntime in the standard domain."""


def _is_in_loop(index: Index, node: Node) -> bool:
    owners = map(index.owner, index.ancestors(index.graph_of(node)))
    return any(owner is not None and owner.op in ("Loop", "Scan") for owner in owners)


class UnsupportedNodes:
    """The nodes of a graph that an engine does not support; no patch may add others."""

    def __init__(self, engine: InferenceEngine, facts: Facts) -> None:
        self._engine, self._facts = engine, facts
        self._refusals = {node: self._refused(node) for node in facts.index.walk()}

    def check(self, patch: Edits) -> None:
        """Raises Refusal if a patch adds an unsupported form without removing the same form, or
        decomposes an operator that the engine runs as it is.
        """
        root = patch.root
        if self._engine.has_contrib_operators and patch.delta["decomposed"]:
            is_contrib = root.domain == "com.microsoft" or root.op in _CONTRIB
            if is_contrib and not any(_is_in_loop(patch.index, node) for node in patch.added):
                raise Refusal("{} runs {} as it is", self._engine.name, root.op, at=root)
        changed = [*patch.touched, *(node for each in patch.added for node in _with_inner(each))]
        after = {node: self._refused(node) for node in changed if node in patch.index}
        gone = Counter(
            reason for node in patch.removed if node not in after for reason in self._of(node)
        )
        for node, reasons in after.items():
            new = Counter(reasons) - Counter(self._of(node)) - gone
            for reason in new:
                batch = _batch_size(node, self._facts) if reason.endswith(_OPEN_BATCH) else None
                if batch is not None:
                    sentence = "{} does not support {} (here {})"
                    raise Refusal(sentence, self._engine.name, reason, batch, at=node)
                raise Refusal("{} does not support {}", self._engine.name, reason, at=node)
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
