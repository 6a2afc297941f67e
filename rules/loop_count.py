"""While loops that count: the condition becomes a trip count.

   c0 = k0 < n
   k, y = Loop(big, c0, k0, x) { k' = k + s; return k' < n, k', … }
-> m = Max(Ceil((n - k0) / s), 0)
   k, y = Loop(m, , k0, x) { k' = k + s; return true, k', … }
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from ..rewrite import symbolic
from ..rewrite.facts import INT64, INTEGERS, Value
from ..rewrite.ir import Graph, Node, Tensor, Variable
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Miss, Rule
from ..rewrite.views import LoopView, State
from .loop_states import without_states

_HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'


INT32 = onnx.TensorProto.INT32
_FOREVER = 1 << 62
"""A trip count at least this large is no bound."""


@dataclass(frozen=True)
class Counter:
    """`state + step` goes on while it is less than `limit` (at most `limit`, with `inclusive`)."""

    state: State
    step: int
    limit: Tensor
    inclusive: bool
    after: bool
    """Whether the value compared is the one after the step."""


class CountIterations(Rule):
    """A loop that ends when a counter reaches a limit gets a trip count."""

    root = "Loop"
    fires = (
        _HEADER
        + """g (float[3] x, int64 n) => (float[3] y, int64 k) <int64 z = {0}> {
      c = Less(z, n)
      k, y = Loop (, c, z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        one = Constant<value_int=1>() tn = Add(t, one) co = Less(tn, n) so = Add(s, s) }> }"""
    )
    spares = {
        "not a comparison": _HEADER
        + """g (float[3] x, float lim) => (float[3] y) {
      y = Loop (, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        so = Add(s, s) q = ReduceMax<keepdims=0>(so) f = IsNaN(q) co = Not(f) }> }""",
        "counter": _HEADER
        + """g (float[3] x, int64 n) => (float[3] y, int64 k) <int64 z = {1}> {
      c = Less(z, n)
      k, y = Loop (, c, z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        tn = Add(t, t) co = Less(tn, n) so = Add(s, s) }> }""",
        "first condition": _HEADER
        + """g (float[3] x, int64 n, bool c) => (float[3] y, int64 k) <int64 z = {0}> {
      k, y = Loop (, c, z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        one = Constant<value_int=1>() tn = Add(t, one) co = Less(tn, n) so = Add(s, s) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        counter = _counter(m, view)
        dtype = m.facts.dtype(counter.state.initial)
        m.need(
            dtype in INTEGERS and dtype == m.facts.dtype(counter.limit), "the counter is no integer"
        )
        m.need(m.facts.shape(counter.state.initial) == (), "the counter is no scalar")
        m.need(m.facts.shape(counter.limit) == (), "the limit is no scalar", at=counter.limit)
        _check_first(m, view, counter)
        m.need(m.facts.opset >= 12, "Max and Min take no integers before opset 12")
        most = None if view.trip is None else m.facts.scalar(view.trip)
        bounded = view.trip is not None and not (isinstance(most, int) and most >= _FOREVER)
        return {"node": m.node, "counter": counter, "cast": dtype != INT64, "bounded": bounded}

    def apply(self, patch: Patch, node: Node, counter: Counter, cast: bool, bounded: bool) -> None:
        view = LoopView(node)
        least = counter.step if view.condition is None else 0
        count = _count(patch, counter, cast, least)
        if bounded and view.trip is not None:
            count = patch.node("Min", [count, view.trip], like=[count])[0]
        always = patch.constant(np.array(True), like=view.condition_out, graph=view.body)
        inputs = [count, Variable(""), *node.inputs[2:]]
        results = [always, *view.body.outputs[1:]]
        patch.set_interface(node, inputs, view.body.inputs, results, node.outputs)
        patch.toward_normal_form()


def _count(patch: Patch, counter: Counter, cast: bool, least: int) -> Tensor:
    """max(ceil((limit - initial) / step), 0) as int64 scalar; one more when the limit counts.

    `least` is the step where the first iteration runs unasked, else 0.
    """
    like = counter.state.initial
    start, limit = counter.state.initial, counter.limit
    if cast:
        start = patch.node("Cast", [start], [like], {"to": INT64})[0]
        limit = patch.node("Cast", [limit], [like], {"to": INT64})[0]
    span = patch.node("Sub", [limit, start], [like])[0]
    extra = counter.step - (0 if counter.inclusive else 1)
    if extra:
        more = patch.constant(np.array(extra, np.int64), like=like)
        span = patch.node("Add", [span, more], [like])[0]
    floor = patch.constant(np.array(least, np.int64), like=like)
    span = patch.node("Max", [span, floor], [like])[0]
    if counter.step == 1:
        return span
    step = patch.constant(np.array(counter.step, np.int64), like=like)
    return patch.node("Div", [span, step], [like])[0]


def _counter(m: Match, view: LoopView) -> Counter:
    """The counter that the condition for the next iteration compares with a limit."""
    out = view.condition_out
    less = m.need(
        m.producer(out, "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
        "the condition `{}` is not a comparison",
        out.name,
        at=out,
    )
    low, high = less.inputs if less.op.startswith("Less") else less.inputs[::-1]
    inclusive = less.op.endswith("Equal")
    outside = m.index.home(high)
    m.need(
        outside is not view.body
        and outside is not None
        and not m.index.encloses(view.body, outside),
        "the limit `{}` may change from iteration to iteration",
        high.name,
        at=high,
    )
    for state in view.states:
        step = _step(m, state)
        if step is not None and low in (state.output, state.input):
            return Counter(state, step, high, inclusive, low is state.output)
    raise Miss("`{}` is no counter: no state that grows by a fixed step", (low.name,), low)


def _step(m: Match, state: State) -> int | None:
    """The positive constant that is added to an integer state in each iteration."""
    add = m.producer(state.output, "Add")
    if add is None or state.input not in add.inputs:
        return None
    other = add.inputs[1] if add.inputs[0] is state.input else add.inputs[0]
    value = m.facts.scalar(other)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _check_first(m: Match, view: LoopView, counter: Counter) -> None:
    """The first condition must ask of the initial value what later ones ask of the counter."""
    m.need(
        counter.after,
        "the condition compares `{}` from before the step",
        counter.state.input.name,
    )
    first = view.condition
    if first is None:
        return
    less = m.producer(first, "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
    found = False
    if less is not None:
        low, high = less.inputs if less.op.startswith("Less") else less.inputs[::-1]
        found = (
            _same(m, low, counter.state.initial)
            and _same(m, high, counter.limit)
            and less.op.endswith("Equal") == counter.inclusive
        )
    m.need(
        found,
        "the first condition `{}` is not that `{}` is below `{}`",
        first.name,
        counter.state.initial.name,
        counter.limit.name,
        at=first,
    )


def _same(m: Match, a: Tensor, b: Tensor) -> bool:
    if a is b:
        return True
    left, right = m.facts.scalar(a), m.facts.scalar(b)
    return left is not None and right is not None and symbolic.eq(left, right) is True


class CounterFromIteration(Rule):
    """A state that grows by a fixed step is computed from the iteration number."""

    root = "Loop"
    fires = (
        _HEADER
        + """g (float[3] x, int64 n, int64 z) => (float[3] y, int64 k) {
      k, y = Loop (n, , z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        two = Constant<value_int=2>() tn = Add(t, two) co = Identity(ci) f = Cast<to=1>(t) so = Add(s, f) }> }"""
    )
    spares = {
        "no integer state": _HEADER
        + """g (float[3] x, int64 n) => (float[3] y) {
      y = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "number of iterations": _HEADER
        + """g (float[3] x, int64 n, int64 z) => (float[3] y, int64 k) {
      k, y = Loop (n, , z, x) <body = b (int64 i, bool ci, int64 t, float[3] s) => (bool co, int64 tn, float[3] so) {
        one = Constant<value_int=1>() tn = Add(t, one) so = Add(s, s) q = ReduceMax<keepdims=0>(so) f = IsNaN(q) co = Not(f) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        counted = view.trip is not None and view.never_stops_early(m.facts)
        blocked = None
        for number, state in enumerate(view.states):
            step = _step(m, state)
            dtype = m.facts.dtype(state.initial)
            if step is None or dtype not in (INT32, INT64) or m.facts.shape(state.initial) != ():
                continue
            read = state.final is not None and m.index.use_count(state.final) > 0
            if read and not counted:
                blocked = state
                continue
            found = {"state": state, "number": number, "step": step, "dtype": dtype}
            return {"node": m.node, "start": m.facts.scalar(state.initial), **found}
        m.need(
            blocked is None, "its final value is read, but the number of iterations is not known"
        )
        raise Miss("no integer state grows by a fixed step", (), m.node)

    def apply(
        self,
        patch: Patch,
        node: Node,
        state: State,
        number: int,
        step: int,
        dtype: int,
        start: Value,
    ) -> None:
        view = LoopView(node)
        is_zero = isinstance(start, int) and start == 0
        value = _progress(patch, view.iteration, state, step, dtype, is_zero, view.body)
        patch.replace(state.input, value)
        if state.final is not None and patch.index.use_count(state.final) and view.trip is not None:
            none = patch.constant(np.array(0, np.int64), like=state.initial)
            count = patch.node("Max", [view.trip, none], [state.initial])[0]
            final = _progress(patch, count, state, step, dtype, is_zero, None)
            patch.replace(state.final, final)
        without_states(patch, node, [number])


def _progress(
    patch: Patch,
    count: Tensor,
    state: State,
    step: int,
    dtype: int,
    from_zero: bool,
    body: Graph | None,
) -> Tensor:
    """initial + step * count, in the type of the state, in the body or before the loop."""
    like = state.initial
    add = patch.node if body is None else partial(patch.node_first, body)
    value = count
    if dtype != INT64:
        value = add("Cast", [value], [like], {"to": dtype})[0]
    if step != 1:
        kind = np.int64 if dtype == INT64 else np.int32
        factor = patch.constant(np.array(step, kind), like=like, graph=body)
        value = add("Mul", [value, factor], [like])[0]
    if not from_zero:
        value = add("Add", [value, state.initial], [like])[0]
    return value
