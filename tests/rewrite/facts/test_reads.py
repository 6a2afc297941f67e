"""Reads along one axis are recognised, whatever operator reads."""

from __future__ import annotations

import pytest

from looplift.rewrite.facts.facts import Facts
from looplift.rewrite.facts.reads import AxisRange, axis_element, axis_range

from ...small_models import parse
from ..fact_oracle import facts_of, value

MAX = 2**63 - 1

STORED = f"""<int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] three = {{3}},
    int64[1] four = {{4}}, int64[1] last = {{-1}}, int64[1] past = {{-3}}, int64[1] far = {{{MAX}}},
    int64[2] both = {{0, 1}}, int64 scalar = {{2}}, int64 negative = {{-1}}, int64 beyond = {{9}},
    int64[1,1] square = {{1}}, int64[2] sizes = {{1, 3}}, int64[2] flat = {{4, 6}},
    int64[3] starts = {{0, 1, 0}}, int64[3] ends = {{{MAX}, 3, 6}}>"""
"""Constants for the models; `x` is float[4,5,6], `n` is float[N,5]."""

RANGES: dict[str, tuple[str, tuple[str, int, int, int, int, bool]]] = {
    # The source, the axis, the start, the end, the length, and whether the axis stays.
    "slice": ("y = Slice(x, one, three, two)", ("x", 2, 1, 3, 6, True)),
    "slice without axes": ("y = Slice(x, one, three)", ("x", 0, 1, 3, 4, True)),
    "slice to the end": ("y = Slice(x, two, far, one)", ("x", 1, 2, 5, 5, True)),
    "slice from the end": ("y = Slice(x, past, last, last)", ("x", 2, 3, 5, 6, True)),
    "slice of one element": ("y = Slice(x, last, far, zero)", ("x", 0, 3, 4, 4, True)),
    "slice that keeps other axes whole": ("y = Slice(x, starts, ends)", ("x", 1, 1, 3, 5, True)),
    "first part of a split": ("y, w = Split<axis=0>(x, sizes)", ("x", 0, 0, 1, 4, True)),
    "last part of a split": ("w, y = Split<axis=0>(x, sizes)", ("x", 0, 1, 4, 4, True)),
    "even split": ("v, y, w = Split<axis=-1, num_outputs=3>(x)", ("x", 2, 2, 4, 6, True)),
    "gather of a scalar": ("y = Gather<axis=1>(x, scalar)", ("x", 1, 2, 3, 5, False)),
    "gather of a vector": ("y = Gather<axis=1>(x, two)", ("x", 1, 2, 3, 5, True)),
    "gather of a negative": ("y = Gather<axis=-1>(x, negative)", ("x", 2, 5, 6, 6, False)),
    "squeezed slice": (
        "s = Slice(x, one, two, one) y = Squeeze(s, one)", ("x", 1, 1, 2, 5, False),
    ),
    "reshaped gather": (
        "s = Gather<axis=1>(x, two) y = Reshape(s, flat)", ("x", 1, 2, 3, 5, False),
    ),
    "squeezed part": (
        "s, w = Split<axis=0>(x, sizes) y = Squeeze(s)", ("x", 0, 0, 1, 4, False),
    ),
    "squeeze of another axis of size 1, which gives the same": (
        "u = Slice(x, zero, one) s = Slice(u, one, two, one) y = Squeeze(s, zero)",
        ("u", 1, 1, 2, 5, False),
    ),
    "known axis of an open size": ("y = Slice(n, one, three, one)", ("n", 1, 1, 3, 5, True)),
}  # fmt: skip

OTHERS = {
    "an input": "y = Identity(x)",
    "a whole axis": "y = Slice(x, zero, far, one)",
    "two axes": "y = Slice(x, both, sizes, both)",
    "a step": "y = Slice(x, zero, four, one, two)",
    "a reversal": "y = Slice(x, last, past, one, last)",
    "an unknown start": "y = Slice(x, k, three, one)",
    "an unknown end": "y = Slice(x, one, k, one)",
    "an unknown axis": "y = Slice(x, one, three, k)",
    "an unknown step": "y = Slice(x, zero, four, one, k)",
    "an axis of unknown length": "y = Slice(n, one, three)",
    "a gather along an axis of unknown length": "y = Gather(n, scalar)",
    "a split of an axis of unknown length": "y, w = Split(n, sizes)",
    "parts of unknown sizes": "y, w = Split(x, k2)",
    "an unknown position": "y = Gather<axis=1>(x, k)",
    "two positions": "y = Gather<axis=1>(x, both)",
    "a matrix of positions": "y = Gather<axis=1>(x, square)",
    "a position beyond the end": "y = Gather<axis=1>(x, beyond)",
    "a squeeze of a longer range": "s = Slice(x, one, three, one) y = Squeeze(s)",
    "a reshape that merges axes": "s = Slice(x, one, two, one) y = Reshape(s, last)",
    "a squeeze of an element without its axis": (
        "u = Slice(x, zero, one) s = Gather<axis=1>(u, scalar) y = Squeeze(s, zero)"
    ),
    "another domain": "y = com.microsoft.Gelu(x)",
}


def _facts(nodes: str, opset: int = 21) -> Facts:
    model = parse(
        f"g (float[4,5,6] x, float[N,5] n, int64[1] k, int64[2] k2) => (y) {STORED} {{ {nodes} }}",
        opset,
        10,
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    return facts_of(model)


@pytest.mark.parametrize("case", RANGES)
def test_ranges(case: str) -> None:
    nodes, (source, *rest) = RANGES[case]
    facts = _facts(nodes)
    found = axis_range(facts, value(facts, "y"))
    assert found is not None
    assert found.source is value(facts, source)
    assert [found.axis, found.start, found.end, found.length, found.keeps_axis] == rest


@pytest.mark.parametrize("case", OTHERS)
def test_near_misses(case: str) -> None:
    facts = _facts(OTHERS[case])
    assert axis_range(facts, value(facts, "y")) is None


@pytest.mark.parametrize(
    ("nodes", "start", "end"),
    [
        ("y = Slice<axes=[1], starts=[1], ends=[3]>(x)", 1, 3),
        ("y = Slice<axes=[1], starts=[-2], ends=[9223372036854775807]>(x)", 3, 5),
        ("y, w = Split<axis=1, split=[2, 3]>(x)", 0, 2),
        ("s = Slice<axes=[1], starts=[4], ends=[5]>(x) y = Squeeze<axes=[1]>(s)", 4, 5),
    ],
)
def test_operands_that_are_attributes(nodes: str, start: int, end: int) -> None:
    facts = facts_of(parse(f"g (float[4,5,6] x) => (y) {{ {nodes} }}", 9, 4))
    found = axis_range(facts, value(facts, "y"))
    keeps_axis = "Squeeze" not in nodes
    assert found == AxisRange(value(facts, "x"), 1, start, end, 5, keeps_axis)


def test_elements() -> None:
    facts = _facts("e = Gather<axis=1>(x, scalar) r = Slice(x, one, three, one) y = Neg(e)")
    element = axis_element(facts, value(facts, "e"))
    assert element is not None
    assert element.is_element
    assert element.element(4) == AxisRange(value(facts, "x"), 1, 4, 5, 5, False)
    assert axis_range(facts, value(facts, "r")) is not None
    assert axis_element(facts, value(facts, "r")) is None
