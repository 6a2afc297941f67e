"""A carried value that is split and concatenated in each iteration becomes several."""

from __future__ import annotations

import pytest

from looplift import rewrite
from looplift.rewrite.graph.views import LoopView, ScanView
from looplift.rules.loops.split_carried_value import SplitCarriedValue

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of
from ..recurrence.cell_models import CELL, constant, integers

FEEDS = Feeds(values={"n": [0, 1, 2, 7]}, sizes=(0, 1, 2, 7))
NUMBERS = integers(nil=[0], one=[1], two=[2], three=[3], k0=0, k1=1)
NEW = "u = Sin(q) v0 = Add(p, q) v = Sin(v0)"


def _loop(
    reads: str, nodes: str = NEW, shape: str = "3,B", concat: str = "axis=0", n: str = "n"
) -> str:
    """A Loop that carries s, reads its parts p and q, and concatenates the new parts u and v."""
    return f"""m (float[{shape}] s0, int64 n) => (float[{shape}] y, float[L,M,N] rows) <{NUMBERS}> {{
      y, rows = Loop ({n}, , s0) <body = b (int64 i, bool ci, float[{shape}] s)
            => (bool co, float[{shape}] so, float[M,N] row) {{
          {reads} {nodes} co = Identity(ci) row = Identity(v)
          so = Concat<{concat}>(u, v) }}> }}"""


READS = {
    "slices": ("p = Slice(s, nil, one, nil) q0 = Slice(s, one, three, nil) q = Identity(q0)",
               "u = Sin(p) v = Sin(q)", "3,B", "axis=0"),
    "a Split": ("p, q = Split<axis=0>(s, sizes)", "u = Sin(p) v = Sin(q)", "3,B", "axis=0"),
    "negative axes": ("p = Slice(s, nil, one, back) q = Slice(s, one, three, back)",
                      "u = Sin(p) v = Sin(q)", "B,3", "axis=-1"),
    "halves": ("p, q = Split<axis=0, num_outputs=2>(s)", NEW, "4,B", "axis=0"),
    "one part is not read": ("p = Slice(s, nil, one, nil)", "u = Sin(p) v = Expand(p, pair)",
                             "3,B", "axis=0"),
    "elements": ("p0 = Gather<axis=0>(s, k0) q0 = Gather<axis=0>(s, k1) p = Unsqueeze(p0, nil) "
                 "q = Unsqueeze(q0, nil)", NEW, "2,B", "axis=0"),
}  # fmt: skip


@pytest.mark.parametrize(("reads", "nodes", "shape", "concat"), READS.values(), ids=READS.keys())
def test_split_carried_value(reads: str, nodes: str, shape: str, concat: str) -> None:
    text = _loop(reads, nodes, shape, concat)
    text = text.replace(NUMBERS, f"{NUMBERS}, {integers(sizes=[1, 2], back=[-1], pair=[2, 1])}")
    model = parse(text, opset=18)
    after, trace, engine = run_rules(model, [SplitCarriedValue])
    assert trace.defects() == []
    assert [commit.rule for commit in trace.commits()] == [SplitCarriedValue.name()]
    (loop,) = (node for node in engine.index.walk() if node.op == "Loop")
    assert len(LoopView(loop).carried) == 2
    assert_equivalent(model, after, FEEDS, 1e-6)


def test_a_part_that_stays_as_it_is_leaves_the_loop() -> None:
    reads = "u = Slice(s, nil, one, nil) q = Slice(s, one, three, nil)"
    model = parse(_loop(reads, "v0 = Add(u, q) v = Sin(v0)", "3,B"), opset=18)
    result = rewritten(model, FEEDS, 1e-6)
    assert SplitCarriedValue.name() in [c.rule for c in result.engine.trace.commits()]
    (loop,) = (node for node in result.engine.index.walk() if node.op == "Loop")
    assert len(LoopView(loop).carried) == 1


def test_split_carried_value_of_a_scan() -> None:
    """Also where the carried value is not read after the loop."""
    text = f"""m (float[T,B] x, float[2,B] s0) => (float[T,B] rows) <{NUMBERS}> {{
      y, rows = Scan <num_scan_inputs=1, body = b (float[2,B] s, float[B] xt)
            => (float[2,B] so, float[B] row) {{
          p = Gather<axis=0>(s, k0) q = Gather<axis=0>(s, k1) u0 = Add(q, xt) v0 = Sin(p)
          row = Add(u0, v0) u = Unsqueeze(u0, nil) v = Unsqueeze(v0, nil)
          so = Concat<axis=0>(u, v) }}> (s0, x) }}"""
    model = parse(text, opset=18)
    after, trace, engine = run_rules(model, [SplitCarriedValue])
    assert len(trace.commits()) == 1
    (scan,) = (node for node in engine.index.walk() if node.op == "Scan")
    assert len(ScanView(scan).carried) == 2
    assert_equivalent(model, after, Feeds(sizes=(0, 1, 2, 7)), 1e-6)


DECLINED = {
    "other parts": ("p = Slice(s, nil, two, nil) q = Slice(s, two, three, nil)",
                    "u = Slice(p, nil, one, nil) v = Concat<axis=0>(q, q)",
                    "reads other parts of `s` than those that are concatenated"),
    "every second element": ("p = Slice(s, nil, one, nil) q = Slice(s, nil, three, nil, two)",
                             "u = Sin(p) v = Sin(q)", "reads other parts of `s`"),
    "computed with as a whole": ("p = Sin(s)", "u = Slice(p, nil, one, nil) v = Slice(p, one, three, nil)",
                                 "Sin of `p` reads other parts of `s`"),
    "along another axis": ("p = Slice(s, nil, one, one) p0 = ReduceSum(p) u = Slice(s, nil, one, nil)",
                           "q = Slice(s, one, three, nil) v = Add(p0, q)", "reads other parts of `s`"),
}  # fmt: skip


@pytest.mark.parametrize(("reads", "nodes", "reason"), DECLINED.values(), ids=DECLINED.keys())
def test_split_carried_value_declines(reads: str, nodes: str, reason: str) -> None:
    model = parse(_loop(reads, nodes, "3,4"), opset=18)
    assert reason in reason_of(SplitCarriedValue, model)
    rewritten(model, FEEDS, 1e-6)


def test_split_carried_value_declines_a_value_that_is_returned() -> None:
    """The scan output needs all of it."""
    text = _loop(READS["halves"][0], NEW, "4,B").replace("Identity(v)", "Identity(s)")
    model = parse(text.replace("float[M,N] row)", "float[4,B] row)"), opset=18)
    assert "Identity of `row` reads other parts of `s`" in reason_of(SplitCarriedValue, model)
    rewritten(model, FEEDS, 1e-6)


def test_split_carried_value_declines_parts_of_unknown_size() -> None:
    reads = "h = Shape<start=1, end=2>(s) p = Slice(s, nil, h, one) q = Slice(s, h, three, one)"
    model = parse(_loop(reads, "u = Sin(p) v = Sin(q)", "3,B", "axis=1"), opset=18)
    assert "the sizes of the parts of `so` are not known" in reason_of(SplitCarriedValue, model)


def test_slices_that_omit_their_axes() -> None:
    """They slice the first axis, also where strides are given."""
    text = """g (float[2,2] s0, int64 m) => (float[2,2] y)
        <int64[1] zero={0}, int64[1] one={1}, int64[1] two={2}, int64[2] sh={2,1}> {
        y = Loop (m, , s0) <body = b (int64 i, bool ci, float[2,2] s) => (bool co, float[2,2] so) {
            p = Slice(s, zero, one, , one) r = Reshape(p, sh) q = Slice(s, one, two, one)
            u = Sin(r) v = Add(q, u) co = Identity(ci) so = Concat<axis=1>(u, v) }> }"""
    rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 1, 2, 7]}), 1e-5)


def test_hidden_and_cell_state_in_one_carried_value() -> None:
    """The split is what lets the loop become an LSTM."""
    numbers = integers(at0=[0, 0], at1=[0, 3], to1=[2, 3], to2=[2, 6], axes=[0, 1])
    weights = f"{constant('w', 2, 12)}, {constant('r', 3, 12)}"
    text = f"""m (float[T,2,2] x, float[2,6] s0) => (float[T,2,3] y, float[2,6] sl)
      <{weights}, {numbers}> {{
      sl, y = Scan <num_scan_inputs=1, body = cell (float[2,6] s, float[2,2] xt)
            => (float[2,6] sn, float[2,3] row) {{
          h = Slice(s, at0, to1, axes) c = Slice(s, at1, to2, axes)
          p = MatMul(xt, w) q = MatMul(h, r) k = Add(p, q)
          gi, gf, gg, go = Split<axis=1, num_outputs=4>(k) {CELL} sn = Concat<axis=1>(hn, cn) }}>
        (s0, x) }}"""
    counts = ops(rewritten(parse(text, opset=21), Feeds(sizes=(1, 2, 5), most=24), 1e-5).model)
    assert (counts["LSTM"], counts.get("Scan", 0)) == (1, 0)


def test_a_part_that_is_a_slice_from_which_another_part_reads() -> None:
    """The parts are a slice that moves to the front and an outer value."""
    before = parse(
        """g (bool go, float[2] x, bool more, float[1] row) => (float[2] y) <int64 two = {2}> {
        y = Loop (two, go, x) <body = b (int64 i, bool c, float[] s) => (bool co, float[] so)
          <int64[1] one = {1}, int64[1] end = {99}, int64[1] zero = {0}> {
            last = Slice(s, one, end, zero) so = Concat<axis = 0>(last, row) co = Identity(more) }> }""",
        18,
        10,
    )
    result = rewrite(before, verify=True)
    assert not result.report.defects
    assert result.report.commits["SplitCarriedValue"] == 1


# --- rows that are written one by one ---

RUNNING = Feeds(values={"n": [1, 2, 7]}, sizes=(0, 1, 2, 7))
"""A loop that does not run leaves sizes of its scan outputs open."""
AT = "int64[1,1] at0 = {0}, int64[1,1] at1 = {1}, int64[1,1] at2 = {-1}, int64 k2 = {2}"


def _written(nodes: str, row: str = "row = Identity(u)", given: str = "") -> str:
    """A Loop that carries three rows s; `nodes` make so of them."""
    return f"""m (float[3,B] s0, int64 n) => (float[3,B] y, float[L,M,N] rows)
      <{NUMBERS}, {AT}{given}> {{
      y, rows = Loop (n, , s0) <body = b (int64 i, bool ci, float[3,B] s)
            => (bool co, float[3,B] so, float[M,N] row) {{
          {nodes} co = Identity(ci) {row} }}> }}"""


P = "p0 = Gather<axis=0>(s, k0) p = Unsqueeze(p0, nil) q = Slice(s, one, two, nil) u = Sin(q)"
WRITES = {
    "all rows": f"{P} v = Sin(p) r = Add(p, q) a = ScatterND(s, at0, u) c = ScatterND(a, at1, v) "
    "so = ScatterND(c, at2, r)",
    "some rows": f"{P} v = Sin(p) a = ScatterND(s, at2, u) so = ScatterND(a, at0, v)",
    "one row twice": f"{P} v = Sin(p) a = ScatterND(s, at1, u) so = ScatterND(a, at1, v)",
    "what is read after it was written": f"{P} a = ScatterND(s, at0, u) w0 = Gather<axis=0>(a, k0) "
    "w = Unsqueeze(w0, nil) o = Slice(a, one, two, nil) v = Add(w, o) so = ScatterND(a, at1, v)",
    "a row that is moved": "u = Slice(s, nil, one, nil) so = ScatterND(s, at1, u)",
    "an exchange": "u = Slice(s, nil, one, nil) v = Slice(s, one, two, nil) "
    "a = ScatterND(s, at0, v) so = ScatterND(a, at1, u)",
}


@pytest.mark.parametrize("nodes", WRITES.values(), ids=WRITES.keys())
def test_rows_that_are_written_one_by_one(nodes: str) -> None:
    model = parse(_written(nodes), opset=18)
    after, trace, engine = run_rules(model, [SplitCarriedValue])
    assert trace.defects() == []
    assert [commit.rule for commit in trace.commits()] == [SplitCarriedValue.name()]
    (loop,) = (node for node in engine.index.walk() if node.op == "Loop")
    assert len(LoopView(loop).carried) == 3
    assert "ScatterND" not in ops(after)
    assert_equivalent(model, after, FEEDS, 1e-6)
    rewritten(model, RUNNING, 1e-6)


def test_a_new_value_that_is_read_in_the_body() -> None:
    nodes = f"{P} a = ScatterND(s, at0, u) so = ScatterND(a, at2, p)"
    read = "z0 = Gather<axis=0>(so, k2) z1 = Gather<axis=0>(so, k0) z = Add(z0, z1) row = Unsqueeze(z, nil)"
    model = parse(_written(nodes, read), opset=18)
    after, trace, _ = run_rules(model, [SplitCarriedValue])
    assert len(trace.commits()) == 1
    assert_equivalent(model, after, FEEDS, 1e-6)


@pytest.mark.parametrize(
    ("nodes", "row", "reason"),
    [
        (f"{P} so = ScatterND<reduction=\"add\">(s, at0, u)", "", "does not write one row"),
        (f"{P} t = Reshape(i, square) so = ScatterND(s, t, u)", "", "does not write one row"),
        (f"{P} w = Concat<axis=0>(u, p) so = ScatterND(s, pair, w)", "", "does not write one row"),
        (f"{P} c = Sin(s) so = ScatterND(c, at0, u)", "", "does not write into"),
        (f"{P} so = ScatterND(s, at0, u)", "row = Sin(so)", "reads other parts"),
        (f"{P} so = ScatterND(s, at0, u)", "row = Identity(so)", "reads other parts"),
    ],
)  # fmt: skip
def test_other_writes_stay(nodes: str, row: str, reason: str) -> None:
    given = ", int64[2] square = {1, 1}, int64[2,1] pair = {0, 1}"
    text = _written(nodes, row or "row = Identity(u)", given)
    model = parse(text, opset=18)
    assert reason in reason_of(SplitCarriedValue, model)
    rewritten(model, RUNNING, 1e-6)
