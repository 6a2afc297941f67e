"""VectorizeScanOutputs takes scan outputs that depend on no carried value from outside the loop."""

from __future__ import annotations

import pytest

from looplift import rewrite
from looplift.rules.values.dead_nodes import EliminateIdentity
from looplift.rules.vectorization.independent_scan_outputs import VectorizeScanOutputs

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

COUNTS = Feeds(sizes=(7, 1, 0), values={"n": [0, 1, 2, 7]})
LENGTHS = Feeds(sizes=(1, 2, 7))


@pytest.mark.parametrize("source", ["x", "w", "i", "u", "k"])
def test_slice_reads_and_outer_values(source: str) -> None:
    text = f"""g (float[T,2,3] xs, float[2,3] w, int64 n) => (rs) <bool true = {{1}}, float k = {{3}}> {{
        rs = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, r) <float[2] u = {{1, 2}}> {{
            co = Identity(ci) x = Gather(xs, i) r = Identity({source}) }}> }}"""
    assert "Loop" not in ops(rewritten(parse(text), COUNTS).model)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "uint16", "uint64", "bool"])
@pytest.mark.parametrize(
    ("shape", "returned"),
    [("", "Identity (w)"), ("[2,3]", "Identity (w)"), ("[3]", "Concat <axis = 0> (x, w)")],
)
def test_element_types(kind: str, shape: str, returned: str) -> None:
    """onnxruntime has no Expand of bfloat16."""
    text = f"""g ({kind}[T,3] xs, {kind}{shape} w, int64 n) => (rs) <bool true = {{1}}> {{
        rs = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, r) {{
            co = Identity(ci) x = Gather(xs, i) r = {returned} }}> }}"""
    result = rewrite(parse(text, 21, 10), dims={"T": 7})
    assert "Loop" not in ops(result.model)
    assert result.verify().verified


@pytest.mark.parametrize(("axis", "way"), [(0, 0), (1, 0), (-1, 1), (0, 1)])
@pytest.mark.parametrize(("source", "back"), [(0, 0), (1, 1), (2, 0)])
def test_axes_and_directions_of_a_scan(axis: int, way: int, source: int, back: int) -> None:
    shape = ["2", "3"]
    shape.insert(source, "T")
    text = f"""g (float[{",".join(shape)}] xs, float[2,3] w) => (rs, ws) {{
        rs, ws = Scan <num_scan_inputs=1, scan_input_axes=[{source}], scan_input_directions=[{back}],
            scan_output_axes=[{axis},{axis}], scan_output_directions=[{way},{way}],
            body = b (float[2,3] x) => (r, q) {{ r = Neg(x) q = Identity(w) }}> (xs) }}"""
    assert "Scan" not in ops(rewritten(parse(text), LENGTHS).model)


def test_an_output_keeps_its_name_beside_an_equal_value() -> None:
    model = parse("""g (float[T,3] xs, int64 n) => (float[R,3] kept, float[R,3] e) <bool true = {1}> {
        other, kept = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, float[3] x, float[3] y) {
            co = Identity(ci) x = Gather(xs, i) y = Identity(x) }>
        e = Exp(other) }""")
    result, _, _ = run_rules(model, [EliminateIdentity, VectorizeScanOutputs])
    assert "Loop" not in ops(result)
    assert [output.name for output in result.graph.output] == ["kept", "e"]


def test_slices_that_depend_on_a_carried_value_stay() -> None:
    text = """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,3] r) {
        y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] x) => (float[3] so, float[3] row) {
            p = Mul(s, x) so = Sin(p) row = Neg(p) }> (s0, xs) }"""
    assert "no scan output collects slice reads" in reason_of(VectorizeScanOutputs, parse(text))


def test_the_rule_alone() -> None:
    """The loop stays for the carried value."""
    model = parse("""g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y, float[R,3] r) {
        y, r = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] row) {
            co = Identity(ci) xt = Gather(xs, i) p = Mul(s, xt) so = Sin(p) row = Identity(xt) }> }""")
    result, trace, _ = run_rules(model, [VectorizeScanOutputs])
    assert [c.rule for c in trace.commits()] == ["VectorizeScanOutputs"]
    assert ops(result)["Loop"] == 1
    assert_equivalent(model, result, Feeds(sizes=(7,), values={"n": [0, 1, 2, 7]}), 1e-5)


@pytest.mark.parametrize(("declared", "stays"), [("1", True), ("T", False), ("?", False)])
def test_sizes_that_the_body_declares_hold_without_an_iteration(declared: str, stays: bool) -> None:
    """onnxruntime gives a scan output of no iterations the declared sizes, true or not."""
    text = f"""g (float[T] x, int64 n) => (int64[?,?] y) {{
        y = Loop (n, "") <body = b (int64 i, bool c) => (bool go, int64[{declared}] o) {{
            k = Cast<to = 7>(x) o = Identity(k) go = Identity(c) }}> }}"""
    feeds = Feeds(sizes=(1,) if not stays else (0, 1, 3), values={"n": [0, 1] if stays else [1, 2]})
    result = rewritten(parse(text), feeds).model
    assert ("Loop" in ops(result)) == stays
    assert not rewrite(result).report.commits
