"""Rewriting time of one loop with a large body: how it grows.

    python benchmarks/large_body.py [--sizes 100 200 400]

Each kind of body repeats one construct: carried values that are sums, counters, lists or buffers,
equal carried values, carried values that never change, reads of sequences, or nodes in a chain. A
linear rewriter takes twice as long for twice as many.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import onnx
import onnx.parser
from harness import report, seconds

import looplift


@dataclass(frozen=True)
class Kind:
    """The construct that a body repeats, in ONNX text.

    `{k}` stands for its number, `{next}` for the next number.
    """

    body: str
    state: str = ""
    """The type of the state; it is `s{k}` at the start of an iteration and `o{k}` at its end."""
    start: str = "z{k}"
    given: str = ""
    """What the model is given for it."""
    before: str = ""
    after: str = ""
    """What is done with `l{k}`, the state after the loop."""
    result: str = ""
    """What the model returns of it."""
    trip: str = "m"
    shape: str = "3"
    """The shape of the state that stays."""


KINDS = {
    "sums": Kind("o{k} = Add(s{k}, x)", "float[3]", given="float[3] z{k}", result="float[3] l{k}"),
    "counters": Kind("o{k} = Add(s{k}, one)", "int64", given="int64 z{k}", result="int64 l{k}"),
    "lists": Kind(
        "r{k} = Mul(x, c{k}) o{k} = SequenceInsert(s{k}, r{k})",
        "seq(float[3])",
        given="float[3] c{k}",
        before="z{k} = SequenceEmpty()",
        after="y{k} = ConcatFromSequence<axis=0, new_axis=1>(l{k})",
        result="float[R,3] y{k}",
    ),
    "buffers": Kind(
        "r{k} = Mul(x, c{k}) u{k} = Unsqueeze(r{k}, first) o{k} = ScatterND(s{k}, at, u{k})",
        "float[9,3]",
        given="float[9,3] z{k}, float[3] c{k}",
        result="float[9,3] l{k}",
        trip="nine",
    ),
    "equal states": Kind("o{k} = Sin(s{k})", "float[3]", start="h0", result="float[3] l{k}"),
    "other states": Kind(
        "p{k} = Mul(s{k}, s{next}) o{k} = Sin(p{k})",
        "float[3]",
        given="float[3] z{k}",
        result="float[3] l{k}",
    ),
    "reads": Kind(
        "v{k} = Gather(w{k}, i) e{k} = Exp(v{k}) a{next} = Mul(a{k}, e{k})",
        given="float[T,3] w{k}",
    ),
    "slices": Kind(
        "v{k} = Slice(w{k}, from, to, first) a{next} = Mul(a{k}, v{k})",
        given="float[9,3] w{k}",
        trip="nine",
        shape="1,3",
    ),
    "chain": Kind("a{next} = Tanh(a{k})"),
}


def model(kind: Kind, count: int) -> onnx.ModelProto:
    """One Loop; its body also has a carried value that the rules leave."""

    def each(text: str, joint: str = ", ") -> str:
        circle = "s{next}" in text
        parts = (text.format(k=k, next=(k + 1) % count if circle else k + 1) for k in range(count))
        return joint.join(parts)

    def more(text: str) -> str:
        return f", {each(text)}" if text else ""

    state = kind.state
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
g (int64 m, float[T,3] xs, float[{kind.shape}] h0{more(kind.given)})
    => (float[{kind.shape}] h{more(kind.result)})
<int64 one = {{1}}, int64 nine = {{9}}, int64[1] first = {{0}}, int64[2] square = {{1, 1}}> {{
  {each(kind.before, " ")}
  h{more("l{k}" if state else "")} = Loop ({kind.trip}, , h0{more(kind.start if state else "")}) <
      body = b (int64 i, bool c, float[{kind.shape}] g{more(state and state + " s{k}")})
      => (bool co, float[{kind.shape}] hn{more(state and state + " o{k}")}) {{
    co = Identity(c) x = Gather(xs, i) at = Reshape(i, square) from = Unsqueeze(i, first)
    to = Add(from, one) a0 = Mul(g, g) {each(kind.body, " ")}
    hn = Sin({"a0" if state else f"a{count}"}) }}>
  {each(kind.after, " ")}
}}""")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 200, 400])
    sizes = parser.parse_args().sizes
    rows: list[dict[str, object]] = []
    for name, kind in KINDS.items():
        row: dict[str, object] = {"many": name}
        looplift.rewrite(model(kind, 4))  # Imports and caches do not count.
        before = 0.0
        for size in sizes:
            proto = model(kind, size)
            time = min(seconds(lambda: looplift.rewrite(proto)) for _ in range(3))  # noqa: B023
            row[f"seconds for {size}"] = round(time, 3)
            if before:
                row[f"{size} / before"] = round(time / before, 2)
            before = time
        rows.append(row)
    report("large_body", "Rewriting time of a loop with a large body", rows)


if __name__ == "__main__":
    main()
