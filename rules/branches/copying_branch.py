"""Ifs around an operator that copies its operand where the If does not take it.

    c = Greater(T, n)
    y = If(c) <then { x[:, :n] }, else { x }>   ->   y = x[:, :n]

Where T is at most n, the Slice takes all of x. Models pad to a multiple in this way, crop to a
length, or join cached keys, if there are any, with new ones.
"""

from __future__ import annotations

from collections.abc import Callable

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.axes import attribute_or_input
from ...rewrite.facts.elements import vector
from ...rewrite.facts.fact import INTEGERS
from ...rewrite.facts.purity import cannot_fail
from ...rewrite.facts.reads import axis_slices
from ...rewrite.graph.ir import Graph, Node, Tensor, optional
from ...rewrite.symbolic import Dim
from .decided_if import inline_branch


class InlineBranchThatCopiesOtherwise(Rule[Graph]):
    """Inlines a branch that would copy what the other branch copies, whenever it is not taken."""

    root = "If"
    fires = """g (float[B,T] x) => (float[B,S] y) <int64 one = {1}, int64 most = {4}> {
      s = Shape(x) t = Gather(s, one) c = Greater(t, most)
      y = If (c) <then_branch = a () => (float[B,P] p) <int64[1] zero = {0}, int64[1] ax = {1}, int64[1] four = {4}> {
          p = Slice(x, zero, four, ax) },
        else_branch = b () => (float[B,Q] q) { q = Identity(x) }> }"""
    spares = {
        "neither branch only copies": """g (float[T] x) => (float[S] y) <int64 zero = {0}, int64 most = {4}> {
      s = Shape(x) t = Gather(s, zero) c = Greater(t, most)
      y = If (c) <then_branch = a () => (float[P] p) { p = Exp(x) }, else_branch = b () => (float[Q] q) { q = Neg(x) }> }""",
        "is not known to copy": """g (float[T] x) => (float[S] y) <int64 zero = {0}, int64 most = {4}> {
      s = Shape(x) t = Gather(s, zero) c = Greater(t, most)
      y = If (c) <then_branch = a () => (float[P] p) <int64[1] start = {0}, int64[1] three = {3}> { p = Slice(x, start, three) },
                  else_branch = b () => (float[Q] q) { q = Identity(x) }> }""",
    }

    def match(self, m: Match) -> Graph:
        view = m.branches()
        plain = [taken for taken in (False, True) if _only_copies(m, view.branch(taken))]
        m.need(bool(plain), "neither branch only copies values from outside")
        taken = plain[0]
        other = view.branch(not taken)
        supposed = _Suppositions(m, view.condition, taken)
        copying: set[Node] = set()
        for result, copy in zip(other.outputs, view.branch(taken).outputs):
            source = m.index.original(copy)
            value = m.index.original(result)
            if value is source:
                continue
            node = m.producer(value, *_COPIES)
            copies = node is not None and _COPIES[node.op](m, node, source, supposed)
            m.need(
                copies, "{} is not known to copy {} where its branch is not taken", result, source
            )
            assert node is not None
            copying.add(node)
        for node in m.index.nodes(other):
            safe = node in copying or cannot_fail(node, m.facts)
            m.need(safe, "{} may fail where its branch is not taken", node, at=node)
        return other

    def apply(self, patch: Patch, found: Graph) -> None:
        inline_branch(patch, found)


def _only_copies(m: Match, branch: Graph) -> bool:
    """Whether a branch returns nothing but values from outside."""
    return all(m.index.is_outside(m.index.original(t), branch) for t in branch.outputs)


class _Suppositions:
    """What is known about sizes where a condition has a value."""

    def __init__(self, m: Match, condition: Tensor, value: bool) -> None:
        self._m = m
        self._never_positive: list[Dim] = []
        self._zero: dict[symbolic.Atom, Dim] = {}
        self._suppose(condition, value)
        for size in self._never_positive:
            atom = symbolic.single_atom(size)
            if atom is not None and symbolic.nonnegative(size):
                self._zero[atom] = 0

    def _suppose(self, condition: Tensor, value: bool) -> None:
        node = self._m.producer(condition, "Not", "And", "Or", *_ORDERS, "Equal")
        if node is None:
            return
        if node.op == "Not":
            self._suppose(node.inputs[0], not value)
        elif node.op in ("And", "Or"):
            if value == (node.op == "And"):
                for operand in node.inputs:
                    self._suppose(operand, value)
        else:
            facts = self._m.facts
            # As floats, large sizes are rounded.
            are_integers = all(facts.dtype(t) in INTEGERS for t in node.inputs)
            left, right = (facts.scalar(t) for t in node.inputs)
            if are_integers and left is not None and right is not None:
                self._compare(node.op, left, right, value)

    def _compare(self, op: str, left: Dim, right: Dim, value: bool) -> None:
        less, more = symbolic.sub(left, right), symbolic.sub(right, left)
        if op == "Equal":
            self._never_positive += [less, more] if value else []
            return
        greater, strict = _ORDERS[op]
        if greater == value:
            less = more
        # `a > b` that is false says `a <= b`; one that is true says `b - a + 1 <= 0`.
        self._never_positive.append(symbolic.add(less, 1) if strict == value else less)

    def is_never_positive(self, size: Dim) -> bool:
        """Whether a number is known to be at most 0."""
        return any(
            symbolic.le(symbolic.sub(size, bound), 0) is True
            for bound in (0, *self._never_positive)
        )

    def is_zero(self, size: Dim) -> bool:
        """Whether a number is known to be 0."""
        if symbolic.substitute(size, self._zero) == 0:
            return True
        return symbolic.nonnegative(size) and self.is_never_positive(size)


_ORDERS = {
    "Greater": (True, True),
    "GreaterOrEqual": (True, False),
    "Less": (False, True),
    "LessOrEqual": (False, False),
}
"""Whether a comparison asks for the greater one, and whether equal numbers do not count."""


def _slice_copies(m: Match, node: Node, source: Tensor, supposed: _Suppositions) -> bool:
    """Whether a Slice takes all of a value."""
    shape, slices = m.facts.shape(source), axis_slices(m.facts, node)
    if m.index.original(node.inputs[0]) is not source or shape is None or slices is None:
        return False
    for each in slices:
        start, end, length = each.start, each.end, shape[each.axis]
        if each.step != 1 or start is None or end is None:
            return False
        from_front = start == 0 or (
            isinstance(start, int)
            and start < 0
            and supposed.is_never_positive(symbolic.add(length, start))
        )
        if not from_front or not supposed.is_never_positive(symbolic.sub(length, end)):
            return False
    return True


def _pad_copies(m: Match, node: Node, source: Tensor, supposed: _Suppositions) -> bool:
    """Whether a Pad adds nothing to a value and removes nothing.

    onnxruntime does not pad an empty axis in the mode `wrap`, not even by nothing.
    """
    if m.index.original(node.inputs[0]) is not source or optional(node.inputs, 3) is not None:
        return False
    if node.attrs.get("mode", "constant") == "wrap":
        return False
    pads = attribute_or_input(node, "pads", 1, lambda t: vector(m.facts, t))
    rank = m.facts.rank(source)
    if pads is None or rank is None or len(pads) != 2 * rank:
        return False
    return all(pad is not None and supposed.is_zero(pad) for pad in pads)


def _concat_copies(m: Match, node: Node, source: Tensor, supposed: _Suppositions) -> bool:
    """Whether a Concat joins a value with others that fit, and have no elements."""
    others = [t for t in node.inputs if m.index.original(t) is not source]
    shape = m.facts.shape(source)
    if len(others) != len(node.inputs) - 1 or not shape:
        return False
    axis = int(node.attrs["axis"]) % len(shape)
    for other in others:
        sizes = m.facts.shape(other)
        if sizes is None or len(sizes) != len(shape) or not supposed.is_zero(sizes[axis]):
            return False
        pairs = (pair for k, pair in enumerate(zip(sizes, shape)) if k != axis)
        if not all(symbolic.eq(a, b) is True for a, b in pairs):
            return False
    return True


_COPIES: dict[str, Callable[[Match, Node, Tensor, _Suppositions], bool]] = {
    "Concat": _concat_copies,
    "Pad": _pad_copies,
    "Slice": _slice_copies,
}
"""By operator, whether a node gives a copy of a value."""
