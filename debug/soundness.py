"""The page docs/soundness.md: what each rule promises, read from the rules."""

from __future__ import annotations

from ..rewrite.engine.rule import Rule
from ..rules import PHASES

_HEAD = """# What each rule promises

Written by `looplift rules soundness`. A *run* is one evaluation of a model on some inputs. Types,
shapes, integers and texts of a run that succeeds in the original are always the same afterwards,
except for [empty scan outputs](#empty-scan-outputs). Beyond that, a rule promises what its row
says:

- **Floats**: *exact* means the same bits, also for infinities, NaN, -0.0 and denormals. Otherwise
  the column says why results may be rounded differently, and how infinities and NaN may change.
  In half precision, onnxruntime itself rounds differently where nodes change.
- **Relies on**: what the rewrite assumes beyond the file. It says so in a note.
- **Accepts more runs**: which runs fail in the original and may succeed afterwards. With
  `--strict`, the rule declines where this could happen, unless the column says otherwise.

`tests/rules/test_promises.py` runs each rule alone on its example, and with `make soak` on random
variants of it, and compares with onnxruntime: at sizes 0, 1, 2 and 7, with infinities, NaN, -0.0,
denormals and extreme integers. No difference may occur that the row does not declare.

## What comparisons leave open

The runs in which a rewritten model may differ although no row says so:

- A run in which an output of the original has another shape than the file declares for it, or a
  carried value other sizes than its initial value. Facts follow from declarations. In a model with
  such a run, `make fuzz` also leaves out the runs that
  return an empty tensor or fail, because onnxruntime plans its memory by the declarations.
- [Empty scan outputs](#empty-scan-outputs), in sizes that the specification does not define.
- Elements of a stack (ConcatFromSequence with `new_axis`) where an input is empty: onnxruntime
  does not check the sizes of the parts, and returns memory that nothing wrote. `make fuzz` leaves
  such an output out only where ONNX's reference evaluator computes other elements, and a run only
  where that refuses it. All other outputs are compared.
- Elements after a Concat of an empty operand whose other sizes differ, where again nothing wrote
  the memory. `make fuzz` leaves such an output out only where it depends on a Concat and the
  reference evaluator computes another shape.
- A recurrent operator that ends onnxruntime's process on an empty input, where a note of the
  rewrite says so.
- A model with an input that is declared with a size of 0: onnxruntime fuses a product with a sum in
  a way that gives it other sizes, and may load the rewritten model only without optimizations.
- A run that fails because onnxruntime removes a Cast whose result only a body reads, as it does
  with a Cast and its Cast back. `make fuzz` then runs the model with these results as outputs.
- An output that differs by at most 20 times as much as the original does if its inputs change by a
  rounding error. A comparison or a rounding of floats makes any difference of such a change.
- An output for which ONNX's reference evaluator computes what the rewritten model does, and
  onnxruntime something else for the original.
- Sizes of a scan output that has no slice in any run: onnxruntime takes them from declarations, or
  infers them from nodes that fail in every iteration.
- On TVM: a run with an empty input that the reference evaluator refuses. onnxruntime accepts an
  empty operand of a Concat whatever its other sizes are.
- On TVM: casts of a float to an integer type that cannot hold it, and integers that are the
  integral part of a rounded number, such as tanh(9), by 1.
- Operators of com.microsoft have no specification: what onnxruntime computes for a non-empty
  input is right.

## Empty scan outputs

The specification defines only the first size of a scan output of a Loop that has no iterations: 0.
onnxruntime takes the others from what the body declares or what it infers, and returns 0 for those
that it does not know, or the shape `[0]` if it does not even know how many there are. The rewritten
model may return their true values: `[0, 3, 4]` instead of `[0, 0, 4]` or `[0]`. `verify` accepts
this, with a note, only for outputs that depend on a scan output of a Loop, and only if both tensors
are empty and of one type and differ in such sizes alone. A tensor with elements never equals an
empty one.
"""


def markdown() -> str:
    """The page."""
    parts = [_HEAD]
    seen: set[str] = set()
    for phase in PHASES:
        rules = [rule for rule in phase.rules if rule.name() not in seen]
        seen |= {rule.name() for rule in rules}
        if rules:
            parts.append(_section(phase.name, rules))
    return "\n".join(parts)


def _section(title: str, rules: list[type[Rule]]) -> str:
    lines = [
        f"## {title.capitalize()}\n",
        "| rule | floats | relies on | accepts more runs |",
        "|---|---|---|---|",
    ]
    for rule in rules:
        promise = rule.promise
        floats = "; ".join(filter(None, (promise.rounds, promise.nonfinite))) or "exact"
        always = f"{promise.always_accepts} (also with --strict)" if promise.always_accepts else ""
        accepts = "; ".join(filter(None, (promise.accepts, always)))
        lines.append(f"| {rule.name()} | {floats} | {promise.assumes} | {accepts} |")
    return "\n".join(lines) + "\n"
