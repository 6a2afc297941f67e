"""Inputs that a model takes, found by trying."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..errors import AssumptionError
from ..facts.assertions import Assertions
from .feeds import INTEGER_STYLES, Draw, comparisons, make_feed
from .mask_watch import MaskWatch
from .runtime import Array, Feed, Refused, Runner, Value
from .signature import Signature, Sizes, declared_sizes, signature
from .sizes import candidates

MOST_ELEMENTS = 2**24
"""Sizes that would make the inputs larger than this together are not tried."""

RANKS = (2, 1, 3, 0, 4)
"""What is tried for inputs whose rank is not declared."""

MOST_GOALS = 8
CASES_OF_GOAL = 2
"""How many constants that an input is compared with are given to it, and how often each."""


@dataclass(frozen=True)
class Effort:
    """How much is tried."""

    cases: int = 8
    """Inputs the model has to take before the search is over; more if more sizes are asked for."""
    attempts: int = 200
    """Runs, including those the model refuses."""
    seconds: float = 120.0
    """No new run begins after this."""
    run_seconds: float = 30.0
    """A run that takes longer is stopped and counts as refused."""


@dataclass(frozen=True)
class Case:
    """Inputs that the model took, and what it made of them."""

    feed: Feed
    outputs: list[Value]
    sizes: Sizes
    """The sizes of the open dimensions, by name."""
    seconds: float
    """How long the run took."""


class Cases:
    """An iterable of inputs that a model takes, at several sizes.

    `inputs` and those of `assertions` are given values, which the made-up ones agree with in their
    sizes; `choices` lists the sizes to try for some dimensions, all combinations of them. External
    data is relative to `base_dir`. Raises `NoValues` if values for an input cannot be made up, and
    AssumptionError for a choice that is none.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        session: Runner,
        *,
        base_dir: str = "",
        inputs: Mapping[str, Any] | None = None,
        assertions: Assertions | None = None,
        choices: Mapping[str, Sequence[int]] | None = None,
        seed: int = 0,
        effort: Effort | None = None,
    ) -> None:
        assertions = assertions or Assertions()
        whole = signature(model, assertions.shapes)
        self.refused = 0
        """How many inputs the model did not take."""
        self.last_refusal = Refused()
        """What onnxruntime said of the last of them."""
        self._session = session
        self._given = given_values(model, {**assertions.inputs, **(inputs or {})})
        self._exact = {**assertions.dims, **_sizes_of(whole, self._given)}
        self._minima = assertions.minima
        rest = {name: i for name, i in whole.inputs.items() if name not in self._given}
        self._signature = Signature(rest)
        self._choices = dict(choices or {})
        self._check_choices()
        self._compared = comparisons(model)
        self._likely = declared_sizes(model)
        self._masks = assertions.mask_axes()
        self._watched = MaskWatch.of(model, base_dir, self._masks)
        self._seed = seed
        self._effort = effort or Effort()

    def _check_choices(self) -> None:
        ranked = [self._signature.with_rank(rank) for rank in RANKS]
        names = dict.fromkeys(name for each in ranked for name in each.open_dims())
        open_dims = [name for name in names if name not in self._exact]
        unknown = next((name for name in self._choices if name not in open_dims), None)
        if unknown is not None:
            told = ", ".join(open_dims) or "none"
            raise AssumptionError(
                f"'{unknown}' is no open dimension of the inputs",
                remedy=f"The open dimensions are: {told}",
            )

    def __iter__(self) -> Iterator[Case]:
        """First what the sizes ask for, then what the constants in comparisons do."""
        with self._watched:
            yield from self._found()

    def _found(self) -> Iterator[Case]:
        end = time.monotonic() + self._effort.seconds
        goals = self._goals()
        for case in self._search({}, self._wanted, end):
            goals = [goal for goal in goals if not _reaches(case, *goal)]
            yield case
        for name, constant in goals:
            yield from self._search({name: constant}, CASES_OF_GOAL, end)

    def _search(self, pinned: Mapping[str, Any], wanted: int, end: float) -> Iterator[Case]:
        accepted: list[Sizes] = []
        proposals = enumerate(self._proposals(accepted))
        for number, (given, sizes) in itertools.islice(proposals, self._effort.attempts):
            if time.monotonic() > end:
                return
            case = self._try(given, sizes, number, pinned)
            if case is not None:
                accepted.append(case.sizes)
                yield case
            if len(accepted) >= wanted:
                return

    def _goals(self) -> list[tuple[str, Any]]:
        """Values that decide between branches: inputs of one element, with constants that they
        are compared with.
        """
        tensors = self._signature.tensors()
        single = [n for n, t in tensors.items() if t.dims is not None and {*t.dims} <= {1}]
        goals = [(name, found) for name in single for found in self._compared.get(name, ())]
        return list(dict.fromkeys(goals))[:MOST_GOALS]

    @property
    def _wanted(self) -> int:
        combinations = int(np.prod([len(sizes) for sizes in self._choices.values()]))
        return max(combinations, self._effort.cases)

    def _proposals(self, accepted: list[Sizes]) -> Iterator[tuple[Signature, dict[str, int]]]:
        """What to try; afterwards what was accepted, again and again, with other values."""
        last = self._signature
        for ranked in self._ranked():
            last = ranked
            yield from ((ranked, sizes) for sizes in self._assignments(ranked, accepted))
            if accepted:
                break
        if accepted:
            for sizes in itertools.cycle(list(accepted)):
                yield last, dict(sizes)

    def _ranked(self) -> Iterator[Signature]:
        if not self._signature.unranked():
            yield self._signature
            return
        for rank in RANKS:
            yield self._signature.with_rank(rank)

    def _assignments(self, given: Signature, accepted: Sequence[Sizes]) -> Iterator[dict[str, int]]:
        names = [name for name in given.open_dims() if name not in self._exact]
        choices = {name: self._choices[name] for name in names if name in self._choices}
        tried: set[tuple[int, ...]] = set()
        for proposal in candidates(names, choices, self._likely, accepted):
            sizes = {name: max(proposal[name], self._minima.get(name, 0)) for name in names}
            if tuple(sizes.values()) in tried:
                continue
            tried.add(tuple(sizes.values()))
            if given.elements({**self._exact, **sizes}) <= MOST_ELEMENTS or not names:
                yield sizes

    def _try(
        self, given: Signature, chosen: Sizes, number: int, pinned: Mapping[str, Any]
    ) -> Case | None:
        sizes = {**self._exact, **chosen}
        for integers in self._integer_styles(number):
            draw = Draw(number, self._seed, integers, pinned, self._masks)
            try:
                feed = {**make_feed(given, sizes, draw, self._compared), **self._given}
                start = time.perf_counter()
                self._watched.check(feed)
                outputs = self._session.run(feed, self._effort.run_seconds)
            except Refused as refusal:
                self.refused += 1
                self.last_refusal = refusal
                continue
            return Case(feed, outputs, dict(chosen), time.perf_counter() - start)
        return None

    def _integer_styles(self, number: int) -> Sequence[str]:
        if not any(tensor.dtype.kind in "iu" for tensor in self._signature.tensors().values()):
            return INTEGER_STYLES[:1]
        return INTEGER_STYLES if number % 2 == 0 else INTEGER_STYLES[::-1]


def given_values(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """The given values as arrays of the declared types.

    Raises AssumptionError for a name that is not an input.
    """
    types = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    unknown = next((name for name in inputs if name not in types), None)
    if unknown is not None:
        raise AssumptionError(
            f"The model has no input '{unknown}'", remedy=f"Its inputs are: {', '.join(types)}"
        )
    return {
        name: np.asarray(value, helper.tensor_dtype_to_np_dtype(types[name]))
        for name, value in inputs.items()
    }


def _reaches(case: Case, name: str, constant: Any) -> bool:
    value = case.feed.get(name)
    return isinstance(value, np.ndarray) and value.size == 1 and value.item() == constant


def _sizes_of(whole: Signature, given: Mapping[str, Array]) -> dict[str, int]:
    """The sizes that given values imply for dimensions they share with other inputs."""
    tensors = whole.tensors()
    return {
        dim: size
        for name, value in given.items()
        if name in tensors
        for dim, size in zip(tensors[name].dims or (), value.shape)
        if isinstance(dim, str)
    }
