"""Merges an LSTM, GRU or RNN that a loop runs chunk by chunk into one over the whole sequence.

    Y, h, c = Loop(n, , h0, c0) { y, h', c' = LSTM(chunks[i], W, R, B, , h, c)  return h', c', y }
 -> y, h, c = LSTM(Reshape(chunks, [n * L, batch, features]), W, R, B, , h0, c0)
    Y       = Reshape(y, [n, L, 1, batch, hidden])

Each iteration starts with the state that the previous one ends with. Exported streaming models
contain such loops.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop, SliceRead
from ...rewrite.graph.ir import Constant, Node, Tensor
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from ..loops.counted_loop_checks import need_counted_loop
from .cells import GATE_COUNT
from .emission import note_empty_sequence
from .time_steps import direction

_INITIAL_STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}
"""The inputs of the operators that are initial states; the results are Y and the final states."""
_LENGTHS = 4
"""The input that is the length of each row."""


@dataclass(frozen=True)
class ChunkedRecurrence:
    """An operator that each iteration applies to the next chunk of a sequence."""

    loop: CountedLoop
    node: Node
    read: SliceRead
    states: list[CarriedValue]
    """The carried values that are its states, in the order of its inputs."""


class MergeRecurrentChunks(Rule[ChunkedRecurrence]):
    """Runs an LSTM, GRU or RNN once over a sequence that a loop reads in chunks.

    Needs opset 14: before it, Reshape cannot merge two axes that may be empty.
    """

    root = ("Loop", "Scan")
    promise = Promise(
        rounds="the products of all chunks are computed at once",
        assumes="sequences that onnxruntime's operator takes: its GRU crashes on empty ones",
        accepts="those that read past the end of the sequence",
    )
    fires = """g (float[T,5,B,2] x, float[1,3,2] w, float[1,3,3] r, float[1,B,3] h0) => (float[1,B,3] y) <int64 zero = {0}> {
      all = Shape(x) n = Gather(all, zero)
      y = Loop (n, , h0) <body = s (int64 i, bool ci, float[1,B,3] h) => (bool co, float[1,B,3] ho) {
        co = Identity(ci) chunk = Gather(x, i) u, ho = RNN<hidden_size = 3>(chunk, w, r, , , h) }> }"""
    spares = {
        "no LSTM, GRU or RNN": """g (float[T,3] x, float[3] h0, int64 n) => (float[3] y) {
      y = Loop (n, , h0) <body = s (int64 i, bool ci, float[3] h) => (bool co, float[3] ho) {
        co = Identity(ci) v = Gather(x, i) a = Mul(v, h) ho = Sin(a) }> }""",
        "is not a carried value": """g (float[T,5,B,2] x, float[1,3,2] w, float[1,3,3] r, float[1,B,3] h0, int64 n) => (float[1,B,3] y) {
      y = Loop (n, , h0) <body = s (int64 i, bool ci, float[1,B,3] h) => (bool co, float[1,B,3] ho) {
        co = Identity(ci) chunk = Gather(x, i) u, v = RNN<hidden_size = 3>(chunk, w, r, , , h0) ho = Add(v, h) }> }""",
        "forward": """g (float[T,5,B,2] x, float[1,3,2] w, float[1,3,3] r, float[1,B,3] h0, int64 n) => (float[1,B,3] y) {
      y = Loop (n, , h0) <body = s (int64 i, bool ci, float[1,B,3] h) => (bool co, float[1,B,3] ho) {
        co = Identity(ci) chunk = Gather(x, i) u, ho = RNN<hidden_size = 3, direction = "reverse">(chunk, w, r, , , h) }> }""",
        "also read": """g (float[T,5,B,2] x, float[1,3,2] w, float[1,3,3] r, float[1,B,3] h0, int64 n) => (float[1,B,3] y, float[K,1,B,3] ys) {
      y, ys = Loop (n, , h0) <body = s (int64 i, bool ci, float[1,B,3] h) => (bool co, float[1,B,3] ho, float[1,B,3] row) {
        co = Identity(ci) chunk = Gather(x, i) u, ho = RNN<hidden_size = 3>(chunk, w, r, , , h) row = Neg(h) }> }""",
    }

    def match(self, m: Match) -> ChunkedRecurrence:
        loop = need_counted_loop(m)
        operators = [
            (read, node)
            for read in loop.reads
            for node in m.index.consumers(read.slice)
            if node.op in _INITIAL_STATES and not node.domain and node.inputs[0] is read.slice
        ]
        none = "the body applies no LSTM, GRU or RNN to a slice that it reads"
        return m.first(lambda each: _chunked(m, loop, *each), operators, none)

    def apply(self, patch: Patch, found: ChunkedRecurrence) -> None:
        loop, node, states = found.loop, found.node, found.states
        home = patch.index.graph_of(patch.root)
        for tensor in node.inputs:
            if isinstance(tensor, Constant) and tensor.name:
                patch.hoist_constant(tensor, home)
        emit = patch.builder(node.inputs[0])
        chunks = emit.all_slices(patch.facts, loop, found.read)
        operands = list(node.inputs)
        operands[0] = emit.merge_axes(chunks, 0, 4)
        for slot, state in zip(_INITIAL_STATES[node.op], states):
            operands[slot] = state.initial
        y, *finals = emit.outputs(node.op, operands, node.outputs, **node.attrs)
        if patch.index.use_count(node.outputs[0]):
            counts = emit.concat([emit.shape(chunks, 0, 2), emit.shape(y, 1, 4)])
            _replace_slices(patch, found, emit.reshape(y, counts))
        for state, final in zip(states, finals):
            if state.final is not None and patch.index.use_count(state.final):
                if not loop.runs_at_least_once and loop.trip is not None:
                    is_empty = emit("Less", loop.trip, emit.scalar(1))
                    final = emit("Where", is_empty, state.initial, final)
                patch.replace(state.final, final)
        note_empty_sequence(patch, node.op, loop)
        patch.toward_normal_form()


def _operands_fit(m: Match, node: Node) -> bool:
    """Whether the operands are known to have the sizes that the operator needs."""
    shapes = [m.facts.shape(tensor) if tensor.name else () for tensor in node.inputs]
    sequence, recurrent = shapes[0], shapes[2]
    if sequence is None or recurrent is None or (len(sequence), len(recurrent)) != (3, 3):
        return False
    _, batch, features = sequence
    hidden = node.attrs.get("hidden_size", recurrent[2])
    rows = symbolic.mul(GATE_COUNT[node.op], hidden)
    needed: list[tuple[Dim, ...]] = [
        sequence, (1, rows, features), (1, rows, hidden), (1, symbolic.mul(2, rows)), (batch,),
        (1, batch, hidden), (1, batch, hidden), (1, symbolic.mul(3, hidden)),
    ]  # fmt: skip
    return all(
        not tensor.name or symbolic.equal_shapes(shape, wanted)
        for tensor, shape, wanted in zip(node.inputs, shapes, needed)
    )


def _chunked(m: Match, loop: CountedLoop, read: SliceRead, node: Node) -> ChunkedRecurrence:
    """The operator with its states. Raises Miss where the iterations do not continue each other."""
    # A chunk may be empty: the specification does not say what the operator then returns.
    m.need(m.facts.rank(read.slice) == 3, "{} is not known to have 3 axes", read.slice, at=node)
    m.need(not read.reverse, "it reads the last chunk first", at=node)
    m.need(m.index.graph_of(node) is loop.body, "{} is in another body", node, at=node)
    m.need(direction(node) == "forward", "the direction of {} is not forward", node, at=node)
    m.need(not node.attrs.get("layout", 0), "it has layout 1, with the batch first", at=node)
    # A loop without iterations does not notice an operator that always fails.
    fits = loop.runs_at_least_once or _operands_fit(m, node)
    unknown = "the operands of {} are not known to have sizes that fit each other"
    m.need(fits, unknown, node, at=node)
    slots = _INITIAL_STATES[node.op]
    given = [tensor for tensor in node.inputs[_LENGTHS : _LENGTHS + 1] if tensor.name]
    m.need(not given, "{} has lengths of its rows", node, at=node)
    for slot, tensor in enumerate(node.inputs):
        outer = not tensor.name or loop.is_outer_value(m.index, tensor)
        changes = "{} may change from iteration to iteration"
        m.need(slot in (0, *slots) or outer, changes, tensor, at=tensor)
    states = [_need_state(m, loop, node, number, slot) for number, slot in enumerate(slots)]
    stacked = [o.stacked for o in loop.scan_outputs if o.slice is node.outputs[0]]
    results = [*stacked, *(state.final for state in states)]
    is_read = any(t is not None and t.name and m.index.use_count(t) for t in results)
    used = any(use.reader is not loop.body for use in m.index.uses(node.outputs[0]))
    m.need(is_read or used, "nothing reads a result of {}", node, at=node)
    return ChunkedRecurrence(loop, node, read, states)


def _need_state(m: Match, loop: CountedLoop, node: Node, number: int, slot: int) -> CarriedValue:
    """The carried value that an operator starts with and updates, and that nothing else reads."""
    initial = node.inputs[slot] if slot < len(node.inputs) else None
    state = next((c for c in loop.carried if c.input is initial), None)
    state = m.need(state, "an initial state of {} is not a carried value", node, at=node)
    final = node.outputs[number + 1] if number + 1 < len(node.outputs) else None
    m.need(state.output is final, "{} does not update its state {}", node, state.input, at=node)
    for tensor in (state.input, state.output):
        m.need(m.index.use_count(tensor) == 1, "the state {} is also read", tensor, at=tensor)
    return state


def _replace_slices(patch: Patch, found: ChunkedRecurrence, stacked: Tensor) -> None:
    """Lets the body, and readers of scan outputs, read the stacked results."""
    loop, slices = found.loop, found.node.outputs[0]
    for output in loop.scan_outputs:
        if output.slice is slices and output.stacked is not None:
            emit = patch.builder(output.stacked)
            patch.replace(output.stacked, emit.scan_output(stacked, output, 4))
    if any(use.reader is not loop.body for use in patch.index.uses(slices)):
        patch.loop(loop.node).read_slices([(slices, stacked)])
