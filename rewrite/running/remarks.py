"""What is said of a comparison of two models besides its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .cases import MOST_TIMEOUTS, Cases
from .signature import DimSizes

ENDED_EARLY = "the time limit ended the comparison before all runs"
"""The remark on a search for inputs that found fewer than it wanted."""

EMPTY_REDUCTION = (
    "onnxruntime gives a reduction of an empty tensor along a negative axis the wrong shape"
)
EMPTY_RECURRENCE = (
    "it crashes for an LSTM or GRU over an empty batch, and for a GRU over an empty sequence"
)
EMPTY_STACK = (
    "the original stacks tensors of different sizes, which onnxruntime does not refuse if one is "
    "empty; it returns memory that nothing wrote"
)
EMPTY_SCAN_OUTPUT = (
    "the specification leaves open the sizes of an empty scan output, except the first, "
    "and onnxruntime returns 0 for sizes it cannot infer"
)


def refusal_notes(refused: Mapping[str, str]) -> list[str]:
    """The remarks on sizes asked for at which the original does not run, with its error."""
    return [f"{sizes}: the original does not run: {why}" for sizes, why in refused.items()]


def crash_note(sizes: Sequence[DimSizes], reduces: bool) -> str:
    """The remark that runs are left out in which onnxruntime crashes at empty sizes, and why.

    `reduces` is whether the original has a reduction on which an output depends.
    """
    place = ", ".join(tested_sizes(sizes))
    why = EMPTY_REDUCTION if reduces else EMPTY_RECURRENCE
    runs = "one run is" if len(sizes) == 1 else f"{len(sizes)} runs are"
    return (
        f"{runs} left out: onnxruntime crashes for the rewritten model at {place}, not for the "
        f"original; {why}"
    )


def unstable_note(name: str, sizes: Sequence[DimSizes]) -> str:
    """The remark that runs do not count in which an output depends on rounding errors, or on
    onnxruntime's optimizer for an empty input.
    """
    place = ", ".join(tested_sizes(sizes))
    why = (
        "without onnxruntime's optimizer it does not"
        if sizes and all(0 in each.values() for each in sizes)
        else "rounding errors in the inputs or weights, or onnxruntime's optimizer, change the "
        "original by as much"
    )
    return f"`{name}` differs{f' at {place}' if place else ''}, which does not count: {why}"


def optimizer_note(crash: str) -> str:
    """The remark that both models were run without graph optimizations, and why."""
    return (
        "compared with graph optimizations off, because onnxruntime's optimizer fails on the "
        f"original: {crash}"
    )


def timeout_note(timeouts: int) -> str:
    """That the original did not end for some inputs."""
    inputs = "an input" if timeouts == 1 else f"{timeouts} inputs"
    search = ", so the search for more inputs stopped" if timeouts >= MOST_TIMEOUTS else ""
    return (
        f"the original did not end within the time limit of a run for {inputs}{search}: give "
        "inputs for which it ends (`--input`)"
    )


def no_case_reason(cases: Cases) -> str:
    """Why no run was compared."""
    if cases.timeouts:
        return "the original model does not end within the time limit of a run"
    if not cases.refused:
        return "there was no time to run the original model"
    found = f"with: {cases.last_refusal}"
    if cases.refused == 1:
        every = found = f"the generated input {found}"
    else:
        found = f"{cases.refused} generated inputs, the last one {found}"
        every = f"all of {found}"
    if cases.ended_early:
        return f"the time limit ended after the original model failed for {found}"
    return f"the original model fails for {every}"


def tested_sizes(sizes: Sequence[DimSizes]) -> Iterator[str]:
    """The tested sizes of each open dimension: `T=1|2|7`."""
    for name in dict.fromkeys(name for assignment in sizes for name in assignment):
        used = sorted({assignment[name] for assignment in sizes if name in assignment})
        yield f"{name}={'|'.join(map(str, used))}"
