"""Shift buffers: carried values that hold the last k elements of what iterations append.

    buffer' = Concat(buffer, x_t)[1:]   ->   all = Concat(initial, x)    buffer = all[t:t + k]

Streaming models keep the context of a convolution in one. A run appends `step` elements in each
iteration, so iteration t reads the window of `all` that starts at step * t, or a part of it. Such
a window is a Gather of all elements, so the loop no longer carries the buffer. A buffer whose new
elements precede the older ones is the same in reverse order. Where the new elements depend on other
carried values, the loop collects them, and the windows are gathered after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, NO_EMPTY_RESHAPES, Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import axis_range
from ...rewrite.graph.index import Index, Use
from ...rewrite.graph.ir import Graph, Node, Tensor
from ...rewrite.graph.views import CarriedValue
from ...rewrite.symbolic import Dim
from ..loops.counted_loop_checks import need_counted_loop
from ..vectorization.after_loop import Size, existing_scan_output, need_sizes, with_slice_shape
from ..vectorization.independent_work import HoistedValues, IndependentWork, need_independent_work
from ..vectorization.sliding_windows import MAX_WIDTH


@dataclass(frozen=True)
class Window:
    """Elements start … end - 1, from the oldest: of the buffer and what an iteration appends to it."""

    start: int
    end: int
    keeps_axis: bool = True
    """False for a single element whose axis was removed."""


@dataclass(frozen=True)
class Append:
    """The elements that an iteration appends to a buffer."""

    value: Tensor
    axis: int
    start: int
    """The number of elements of the buffer, which are older."""
    step: int
    """The number of new elements."""
    at_front: bool
    """Whether new elements precede older ones."""


@dataclass(frozen=True)
class ShiftBuffer:
    """A carried value that holds the newest elements of an axis."""

    number: int
    """The number of the carried value."""
    carried: CarriedValue
    append: Append
    rank: int
    reads: dict[Tensor, Window]
    """The values of the body that are windows and that something else than a shift reads."""
    collected: bool
    """Whether the loop collects the new elements, which it computes from other carried values."""
    sizes: list[Size]
    """The shape of the new elements, known outside; empty if the loop runs at least once."""


@dataclass(frozen=True)
class ShiftBuffers:
    """The shift buffers of one loop."""

    work: IndependentWork
    buffers: list[ShiftBuffer]


class ShiftBufferToWindows(Rule[ShiftBuffers]):
    """Replaces a carried value that holds the last elements of a sequence by windows of the sequence.

       y, ys = Loop(n, , b) { w = Concat(b, x_t)  return true, w[1:], f(w) }
    -> all = Concat(b, x[:n])    ys = f(all[t:t + k + 1] for each t)    y = all[n:]
    """

    root = ("Loop", "Scan")
    promise = Promise(accepts="those that read past the end of the sequence")
    fires = """g (float[T,1,3] xs, float[2,3] b0, float[3] u0, int64 n) => (float[2,3] y, float[3] z)
      <int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {9223372036854775807}> {
      y, z = Loop (n, , b0, u0) <body = b (int64 i, bool ci, float[2,3] s, float[3] u) => (bool co, float[2,3] so, float[3] uo) {
        co = Identity(ci) xt = Gather(xs, i) w = Concat<axis=0>(s, xt) so = Slice(w, one, end, zero)
        m = ReduceMax<keepdims=0>(w) d = Mul(u, m) uo = Sin(d) }> }"""
    spares = {
        "is a buffer that": """g (float[T,3] xs, float[2,3] s0, int64 n) => (float[2,3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        co = Identity(ci) xt = Gather(xs, i) a = Mul(s, xt) so = Sin(a) }> }""",
        "depends on a carried value": """g (float[2,3] s0, int64 n) => (float[2,3] y)
      <int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {9223372036854775807}> {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        co = Identity(ci) h = Slice(s, zero, one, zero) a = Sin(h) w = Concat<axis=0>(s, a) so = Slice(w, one, end, zero) }> }""",
        "does not keep the newest": """g (float[T,1,3] xs, float[2,3] s0, int64 n) => (float[2,3] y)
      <int64[1] zero = {0}, int64[1] two = {2}> {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        co = Identity(ci) xt = Gather(xs, i) w = Concat<axis=0>(s, xt) so = Slice(w, zero, two, zero) }> }""",
        "windows of more than": """g (float[T,1,3] xs, float[99,3] b0, int64 n) => (float[99,3] y, float[R] ms)
      <int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {9223372036854775807}> {
      y, ms = Loop (n, , b0) <body = b (int64 i, bool ci, float[99,3] s) => (bool co, float[99,3] so, float m) {
        co = Identity(ci) xt = Gather(xs, i) w = Concat<axis=0>(s, xt) so = Slice(w, one, end, zero)
        m = ReduceMax<keepdims=0>(w) }> }""",
    }

    def match(self, m: Match) -> ShiftBuffers:
        carried = need_counted_loop(m).carried
        work = need_independent_work(m)
        none = "no carried value is a buffer that iterations append to"
        buffers = m.every(
            lambda k: _shift_buffer(m, work, k, carried[k]), range(len(carried)), none
        )
        return ShiftBuffers(work, buffers)

    def apply(self, patch: Patch, found: ShiftBuffers) -> None:
        work, loop = found.work, found.work.loop
        edit = patch.loop(loop.node)
        edit.declare_scan_outputs(loop)
        hoisted = HoistedValues(patch, loop, work.plans)
        slices: list[tuple[Tensor, Tensor]] = []
        for buffer in found.buffers:
            if buffer.collected:
                _replace_scan_outputs(patch, loop, buffer)
            else:
                slices += _windows_before_loop(patch, work, hoisted, buffer)
        edit.read_slices(slices)
        for buffer in found.buffers:
            # Dead nodes still read it until EliminateDeadNode removes them.
            patch.replace(buffer.carried.input, buffer.carried.initial)
        edit.drop_carried([buffer.number for buffer in found.buffers])
        edit.remove_if_unused()
        patch.toward_normal_form()


def _shift_buffer(
    m: Match, work: IndependentWork, number: int, carried: CarriedValue
) -> ShiftBuffer | None:
    """The carried value as a shift buffer; None if nothing is appended to it.

    Raises Miss for a buffer that the rule cannot handle.
    """
    facts, body = m.facts, work.loop.body
    concat = _appending_concat(facts, body, carried)
    if concat is None:
        return None
    at_front = _is_part_of(facts, concat.inputs[1], carried.input)
    if at_front is _is_part_of(facts, concat.inputs[0], carried.input):
        return None
    changes = "the shape of {} may change in the loop"
    shape = m.need(facts.shape(carried.initial), changes, carried.input, at=concat)
    m.need(
        symbolic.equal_shapes(facts.shape(carried.input), shape), changes, carried.input, at=concat
    )
    append = _need_append(m, concat, at_front, shape)
    windows, makers = _windows_in_body(facts, body, carried.input, append)
    kept = windows.get(carried.output)
    newest = kept == Window(append.step, append.start + append.step)
    m.need(newest, "{} does not keep the newest elements", carried.input, at=concat)
    m.need(append.step == 1 or facts.opset >= EMPTY_RESHAPES, NO_EMPTY_RESHAPES)
    uses = {t: _other_uses(m.index, work.loop, t, makers, number) for t in windows}
    reads = {t: window for t, window in windows.items() if uses[t]}
    widest = max((window.end - window.start for window in reads.values()), default=0)
    many = "the body reads windows of more than {} elements of {}"
    m.need(widest <= MAX_WIDTH, many, MAX_WIDTH, carried.input, at=concat)
    collected = not work.is_independent(m.index, append.value)
    sizes = []
    if collected:
        returned = all(work.loop.is_scan_output_use(use) for t in reads for use in uses[t])
        depends = "{} depends on a carried value, and the body computes on what the buffer holds"
        m.need(returned, depends, append.value, at=append.value)
        sizes = [] if work.loop.runs_at_least_once else need_sizes(m, work.loop, append.value)
    return ShiftBuffer(number, carried, append, len(shape), reads, collected, sizes)


def _appending_concat(facts: Facts, body: Graph, carried: CarriedValue) -> Node | None:
    """The Concat of two values whose result, or a part of it, is the next buffer."""
    tensor = facts.index.original(carried.output)
    part = axis_range(facts, tensor)
    node = facts.index.producer(tensor if part is None else facts.index.original(part.source))
    if node is None or node.op != "Concat" or node.domain or len(node.inputs) != 2:
        return None
    return node if facts.index.graph_of(node) is body else None


def _is_part_of(facts: Facts, tensor: Tensor, buffer: Tensor) -> bool:
    """Whether a value is a buffer or a range of its elements."""
    while (tensor := facts.index.original(tensor)) is not buffer:
        part = axis_range(facts, tensor)
        if part is None:
            return False
        tensor = part.source
    return True


def _need_append(m: Match, concat: Node, at_front: bool, shape: tuple[Dim, ...]) -> Append:
    """What a Concat appends to a buffer of a shape. Raises Miss if that does not fit the buffer."""
    value = concat.inputs[0 if at_front else 1]
    axis = int(concat.attrs["axis"]) % len(shape)
    added = m.need(m.facts.shape(value), "the rank of {} is not known", value, at=value)
    fits = len(added) == len(shape) and all(
        k == axis or symbolic.eq(*pair) is True for k, pair in enumerate(zip(added, shape))
    )
    m.need(fits, "{} and the buffer differ in more than one axis", value, at=value)
    width, step = shape[axis], added[axis]
    if not isinstance(width, int) or not isinstance(step, int) or not width or not step:
        raise Miss(
            "{} is a buffer of {} elements, to which {} new ones are appended, not fixed numbers",
            concat,
            width,
            step,
            at=concat,
        )
    return Append(value, axis, width, step, at_front)


def _windows_in_body(
    facts: Facts, body: Graph, buffer: Tensor, append: Append
) -> tuple[dict[Tensor, Window], set[Node]]:
    """The values of a body that are windows, and the nodes that make windows of windows."""
    windows, makers = {buffer: Window(0, append.start)}, set()
    waiting = [buffer]
    while waiting:
        tensor = waiting.pop()
        for node in facts.index.consumers(tensor):
            if facts.index.graph_of(node) is not body or node in makers:
                continue
            made = {t: _window_of(facts, node, t, windows, append) for t in node.outputs}
            known = {t: window for t, window in made.items() if window is not None}
            if len(known) == len(made):
                makers.add(node)
                windows.update(known)
                waiting += known
    return windows, makers


def _other_uses(
    index: Index, loop: CountedLoop, window: Tensor, makers: set[Node], number: int
) -> list[Use]:
    """The uses of a window but by nodes that make windows of it, and by the next iteration."""
    uses = (use for use in index.uses(window) if use.reader not in makers)
    return [use for use in uses if loop.carried_number(use) != number]


def _window_of(
    facts: Facts, node: Node, result: Tensor, windows: dict[Tensor, Window], append: Append
) -> Window | None:
    """The window that a node makes of another one; None if it does something else."""
    if node.op == "Identity" and not node.domain:
        return windows[node.inputs[0]]
    if node.op == "Concat" and not node.domain:
        return _appended_window(facts, node, windows, append)
    part = axis_range(facts, result)
    whole = None if part is None else windows.get(part.source)
    if part is None or whole is None or not whole.keeps_axis or part.axis != append.axis:
        return None
    if part.end <= part.start:
        return None
    if append.at_front:
        return Window(whole.end - part.end, whole.end - part.start, part.keeps_axis)
    return Window(whole.start + part.start, whole.start + part.end, part.keeps_axis)


def _appended_window(
    facts: Facts, node: Node, windows: dict[Tensor, Window], append: Append
) -> Window | None:
    """The window that a Concat makes of the newest elements of the buffer and those appended."""
    if len(node.inputs) != 2:
        return None
    older, value = node.inputs[::-1] if append.at_front else node.inputs
    window = windows.get(older)
    if window is None or window.end != append.start or value is not append.value:
        return None
    rank = facts.rank(value)
    if not rank or int(node.attrs["axis"]) % rank != append.axis:
        return None
    return Window(window.start, append.start + append.step)


def _windows_before_loop(
    patch: Patch, work: IndependentWork, hoisted: HoistedValues, buffer: ShiftBuffer
) -> list[tuple[Tensor, Tensor]]:
    """The windows that the body reads, with their values in all iterations; replaces the result."""
    carried, value = buffer.carried, buffer.append.value
    emit = patch.builder(carried.input)
    hoisted.build_producers([value])
    added = hoisted[value]
    if value not in work.batched:
        added = emit.repeat(added, emit.trip_count(work.loop))
    everything = _all_elements(emit, added, buffer)
    if carried.final is not None and patch.index.use_count(carried.final):
        patch.replace(carried.final, _newest(emit, everything, buffer))
    return _all_windows(emit, work.loop, everything, buffer)


def _replace_scan_outputs(patch: Patch, loop: CountedLoop, buffer: ShiftBuffer) -> None:
    """Collects the new elements; replaces the result, and scan outputs that hold windows."""
    carried, value = buffer.carried, buffer.append.value
    outputs = loop.read_scan_outputs(patch.index)
    outputs = [(output, stacked) for output, stacked in outputs if output.slice in buffer.reads]
    results = [stacked for _, stacked in outputs]
    final = carried.final
    if final is not None and patch.index.use_count(final):
        results.append(final)
    if not results:
        return
    added = existing_scan_output(loop, value) or patch.loop(loop.node).add_scan_outputs([value])[0]
    emit = patch.builder_after(carried.input, results)
    if not loop.runs_at_least_once:
        added = with_slice_shape(emit, added, buffer.sizes)
    everything = _all_elements(emit, added, buffer)
    windows = dict(_all_windows(emit, loop, everything, buffer))
    for output, stacked in outputs:
        rank = patch.facts.rank(output.slice)
        patch.replace(stacked, emit.scan_output(windows[output.slice], output, rank))
    if final in results:
        patch.replace(final, _newest(emit, everything, buffer))


def _all_elements(emit: Builder, added: Tensor, buffer: ShiftBuffer) -> Tensor:
    """The initial elements and those of all iterations, stacked, in one axis 0, the oldest first."""
    append, rank = buffer.append, buffer.rank
    if append.step == 1:
        added = emit.squeeze(added, [append.axis + 1])
    else:
        added = emit.move_axis(added, append.axis + 1, 1, rank + 1)
        added = emit.reverse(added, 1) if append.at_front else added
        added = emit.merge_axes(added, 0, rank + 1)
    initial = emit.move_axis(buffer.carried.initial, append.axis, 0, rank)
    initial = emit.reverse(initial, 0) if append.at_front else initial
    return emit("Concat", initial, added, axis=0)


def _all_windows(
    emit: Builder, loop: CountedLoop, everything: Tensor, buffer: ShiftBuffer
) -> list[tuple[Tensor, Tensor]]:
    """The windows that something reads, each with its values in all iterations, stacked."""
    if not buffer.reads:
        return []
    append = buffer.append
    starts = emit.iteration_numbers(loop)
    if append.step != 1:
        starts = emit("Mul", starts, emit.scalar(append.step))
    columns = emit.unsqueeze(starts, [1])
    found = []
    for inner, window in buffer.reads.items():
        offsets = np.arange(window.start, window.end, dtype=np.int64)
        offsets = offsets[::-1] if append.at_front else offsets
        positions = emit("Add", columns, emit.constant(offsets))
        windows = emit("Gather", everything, positions, axis=0)
        if window.keeps_axis:
            windows = emit.move_axis(windows, 1, append.axis + 1, buffer.rank + 1)
        else:
            windows = emit.squeeze(windows, [1])
        found.append((inner, windows))
    return found


def _newest(emit: Builder, everything: Tensor, buffer: ShiftBuffer) -> Tensor:
    """The buffer after the last iteration."""
    newest = emit.slice(everything, 0, slice(-buffer.append.start, None, 1))
    newest = emit.reverse(newest, 0) if buffer.append.at_front else newest
    return emit.move_axis(newest, 0, buffer.append.axis, buffer.rank)
