"""Rewriting time of models with many loops: how it grows.

    python benchmarks/many_loops.py [--sizes 200 2000]

The loops follow each other, over a sequence of dynamic length: a recurrence that appends to a list,
a while loop with its own counter, a running sum, and a loop that writes to a buffer, in turn. A
linear rewriter takes ten times as long for ten times the loops.
"""

from __future__ import annotations

import argparse
from collections import Counter

import onnx
import onnx.parser
from harness import report, seconds

import looplift

_COUNT = "all{k} = Shape({x}) n{k} = Gather(all{k}, zero)\n"
_RECURRENCE = """e{k} = SequenceEmpty()
  h{k}, l{k} = Loop (n{k}, yes, start, e{k}) <
      body = b (int64 i, bool c, float[8] h, seq(float[8]) l)
      => (bool co, float[8] ho, seq(float[8]) lo) {{
    co = Identity(c) xt = Gather({x}, i) p = MatMul(h, w) q = Add(p, xt) ho = Tanh(q)
    lo = SequenceInsert(l, ho) }}>
  {y} = ConcatFromSequence<axis = 0, new_axis = 1>(l{k})
"""
_WHILE = """c{k} = Less(zero, n{k})
  t{k}, h{k}, {y} = Loop (, c{k}, zero, start) <body = b (int64 i, bool c, int64 t, float[8] h)
      => (bool co, int64 to, float[8] ho, float[8] row) {{
    xt = Gather({x}, t) p = Mul(h, half) ho = Sub(xt, p) row = Sin(ho) to = Add(t, one)
    co = Less(to, n{k}) }}>
"""
_SUM = """s{k}, {y} = Loop (n{k}, yes, start) <body = b (int64 i, bool c, float[8] s)
      => (bool co, float[8] so, float[8] row) {{
    co = Identity(c) xt = Gather({x}, i) so = Add(s, xt) row = Mul(so, half) }}>
"""
_BUFFER = """b{k} = ConstantOfShape(all{k})
  h{k}, {y} = Loop (n{k}, yes, start, b{k}) <body = b (int64 i, bool c, float[8] h, float[T,8] q)
      => (bool co, float[8] ho, float[T,8] qo) {{
    co = Identity(c) xt = Gather({x}, i) p = Mul(h, xt) ho = Cos(p)
    k2 = Reshape(i, square) r = Unsqueeze(ho, first) qo = ScatterND(q, k2, r) }}>
"""
KINDS = (_RECURRENCE, _WHILE, _SUM, _BUFFER)


def model(loops: int) -> onnx.ModelProto:
    """A model that passes float32 [T, 8] through this many loops."""
    weights = ", ".join("0.1" for _ in range(64))
    text = [
        '<ir_version: 10, opset_import: ["" : 21]>',
        "g (float[T,8] v0) => (float[U,8] y)",
        f"<float[8,8] w = {{{weights}}}, float[8] start = {{0, 0, 0, 0, 0, 0, 0, 0}},",
        "int64 zero = {0}, int64 one = {1}, float half = {0.5}, bool yes = {1},",
        "int64[2] square = {1, 1}, int64[1] first = {0}> {",
    ]
    for k in range(loops):
        names = {"k": k, "x": f"v{k}", "y": f"v{k + 1}"}
        text.append((_COUNT + KINDS[k % len(KINDS)]).format(**names))
    text.append(f"y = Identity(v{loops}) }}")
    return onnx.parser.parse_model("\n".join(text))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 2000])
    rows: list[dict[str, float]] = []
    looplift.rewrite(model(len(KINDS)))  # Imports and caches do not count.
    for size in parser.parse_args().sizes:
        proto = model(size)
        after: Counter[str] = Counter()
        time = seconds(lambda: after.update(looplift.rewrite(proto).report.after))  # noqa: B023
        first = rows[0]["seconds"] if rows else time
        left = after["Loop"] + after["Scan"]
        rows.append(
            {
                "loops": size,
                "seconds": round(time, 3),
                "times the first": round(time / first, 2),
                "left": left,
            }
        )
    report("many_loops", "Rewriting time of many loops", rows)


if __name__ == "__main__":
    main()
