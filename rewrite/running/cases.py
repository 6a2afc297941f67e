"""Searches for inputs that a model accepts, by trying."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..errors import AssumptionError
from ..facts.assertions import Assertions
from .feeds import INDICES, INTEGER_STYLES, Sampling, comparisons, make_feed
from .mask_check import PrefixMaskCheck
from .runtime import Array, ExecutionError, Feed, LoadedModel, RuntimeValue
from .signature import (
    CannotGenerateInputs,
    DimSizes,
    InputSignature,
    declared_sizes,
    input_signature,
)
from .size_search import size_assignments

MOST_ELEMENTS = 2**24
"""The most elements of all inputs together; larger sizes are not tried."""
LARGEST_INPUTS = 2**31
"""The most elements of inputs whose sizes are all fixed."""
MOST_TIMEOUTS = 2
"""No further input is tried after this many runs exceed their time limit."""

RANKS = (2, 1, 3, 0, 4)
"""The ranks that are tried for inputs whose rank is not declared."""

RETRIES = 7
"""How often other values are tried where all sizes are fixed and the first values are rejected."""

MOST_GOALS = 8
"""The most constants that inputs are set to because the model compares the inputs with them."""
CASES_OF_GOAL = 2
"""The number of cases for each such constant."""


@dataclass(frozen=True)
class Effort:
    """The limits of a search."""

    cases: int = 10
    """The number of accepted inputs that ends the search; more if `choices` has more sizes."""
    attempts: int = 200
    """The most runs, including those that the model rejects."""
    seconds: float = 120.0
    """No new run starts after this time."""
    run_seconds: float = 30.0
    """A run that takes longer is stopped and counts as rejected."""


def limited_effort(seconds: float | None) -> Effort:
    """The default effort within a time limit; None for the default limit."""
    if seconds is None:
        return Effort()
    seconds = float(seconds)
    return Effort(seconds=seconds, run_seconds=min(Effort.run_seconds, max(seconds / 4, 0.1)))


@dataclass(frozen=True)
class Case:
    """Inputs that the model accepts, with its outputs."""

    feed: Feed
    outputs: list[RuntimeValue]
    sizes: DimSizes
    """The sizes of the open dimensions, by name."""
    seconds: float
    """The time that the run took."""


class Cases:
    """An iterable of inputs that a model accepts, at several sizes.

    `inputs` and those of `assertions` are given values, whose sizes the generated ones match.
    `choices` has sizes for some dimensions; all combinations of them are tried. External data is
    relative to `base_dir`. Raises `CannotGenerateInputs` for an input whose values cannot be
    generated, and AssumptionError for choices for an unknown dimension, or that are not sizes that
    the assertions allow.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        session: LoadedModel,
        *,
        base_dir: str = "",
        inputs: Mapping[str, Any] | None = None,
        assertions: Assertions | None = None,
        choices: Mapping[str, Sequence[int]] | None = None,
        seed: int = 0,
        effort: Effort | None = None,
    ) -> None:
        assertions = assertions or Assertions()
        whole = input_signature(model, assertions.shapes)
        self.refused = 0
        """The number of inputs that the model rejected."""
        self.last_refusal = ExecutionError()
        """The error for the last of them."""
        self._refusals: dict[str, ExecutionError] = {}
        self._accepted_choices: set[str] = set()
        self._session = session
        self._given = given_values(model, {**assertions.inputs, **(inputs or {})})
        self._exact = {**assertions.dims, **_sizes_of(whole, self._given)}
        self._minima = assertions.minima
        rest = {name: i for name, i in whole.inputs.items() if name not in self._given}
        self._signature = InputSignature(rest)
        self._choices = dict(choices or {})
        self._check_choices()
        self._compared = comparisons(model)
        self._likely = declared_sizes(model)
        self._masks = assertions.mask_axes()
        if not self._signature.open_dims():
            elements = self._signature.elements(self._exact)
            if elements > LARGEST_INPUTS:
                raise CannotGenerateInputs(
                    f"the inputs have {elements} elements, more than {LARGEST_INPUTS}"
                )
        self.timeouts = 0
        """The number of runs that exceeded their time limit."""
        self.ended_early = False
        """Whether the time of all runs ended before there were as many cases as wanted."""
        self._mask_check = PrefixMaskCheck.of(model, base_dir, self._masks)
        self._seed = seed
        self._effort = effort or Effort()

    def _check_choices(self) -> None:
        ranked = [self._signature.with_rank(rank) for rank in RANKS]
        names = dict.fromkeys(name for each in ranked for name in each.open_dims())
        open_dims = [name for name in names if name not in self._exact]
        unknown = next((name for name in self._choices if name not in open_dims), None)
        if unknown in self._exact:
            raise AssumptionError(
                f"'{unknown}' is asserted to be {self._exact[unknown]}: no other size can be tried",
                remedy=f"Drop the assertion or the sizes of '{unknown}'",
            )
        if unknown is not None:
            raise AssumptionError(
                f"'{unknown}' is not an open dimension of the inputs",
                remedy=f"The open dimensions are: {', '.join(open_dims) or 'none'}",
            )
        for name, sizes in self._choices.items():
            low = self._minima.get(name, 0)
            if not _are_sizes(sizes):
                raise AssumptionError(
                    f"The sizes of '{name}' are {sizes!r}, not a list of integers",
                    remedy=f'Write {{"{name}": [1, 2]}}',
                )
            below = [size for size in sizes if size < low]
            if below:
                raise AssumptionError(
                    f"The size {below[0]} of '{name}' cannot be tried: '{name}' is at least {low}",
                    remedy=f"Drop the size, or the assertion about '{name}'",
                )

    def __iter__(self) -> Iterator[Case]:
        """Cases at several sizes, then cases for the constants in comparisons."""
        with self._mask_check:
            yield from self._cases()

    def _cases(self) -> Iterator[Case]:
        end = time.monotonic() + self._effort.seconds
        goals = self._goals()
        for case in self._search({}, self._wanted, end):
            goals = [goal for goal in goals if not _reaches(case, *goal)]
            yield case
        for name, constant in goals:
            yield from self._search({name: constant}, CASES_OF_GOAL, end)

    def _search(self, pinned: Mapping[str, Any], wanted: int, end: float) -> Iterator[Case]:
        accepted: list[DimSizes] = []
        proposals = enumerate(self._proposals(accepted))
        for number, (given, sizes) in itertools.islice(proposals, self._effort.attempts):
            self.ended_early = time.monotonic() > end
            if self.ended_early or self.timeouts >= MOST_TIMEOUTS:
                return
            case = self._try(given, sizes, number, pinned)
            if case is not None:
                accepted.append(case.sizes)
                yield case
            if len(accepted) >= wanted:
                return

    def _goals(self) -> list[tuple[str, Any]]:
        """Pairs of an input of one element and a constant that the model compares it with."""
        tensors = self._signature.tensors()
        single = [n for n, t in tensors.items() if t.dims is not None and {*t.dims} <= {1}]
        goals = [(name, found) for name in single for found in self._compared.get(name, ())]
        return list(dict.fromkeys(goals))[:MOST_GOALS]

    @property
    def _wanted(self) -> int:
        """The number of cases that ends the search."""
        combinations = int(np.prod([len(sizes) for sizes in self._choices.values()]))
        return max(combinations, self._effort.cases)

    def _proposals(
        self, accepted: list[DimSizes]
    ) -> Iterator[tuple[InputSignature, dict[str, int]]]:
        """Sizes to try, then the accepted sizes repeatedly, with other values."""
        last = self._signature
        for ranked in self._ranked():
            last = ranked
            yield from ((ranked, sizes) for sizes in self._assignments(ranked, accepted))
            if accepted:
                break
        if accepted:
            for sizes in itertools.cycle(list(accepted)):
                yield last, dict(sizes)
        elif all(name in self._exact for name in last.open_dims()):
            yield from itertools.repeat((last, {}), RETRIES)

    def _ranked(self) -> Iterator[InputSignature]:
        if not self._signature.unranked():
            yield self._signature
            return
        for rank in RANKS:
            yield self._signature.with_rank(rank)

    def _assignments(
        self, given: InputSignature, accepted: Sequence[DimSizes]
    ) -> Iterator[dict[str, int]]:
        names = [name for name in given.open_dims() if name not in self._exact]
        choices = {name: self._choices[name] for name in names if name in self._choices}
        tried: set[tuple[int, ...]] = set()
        for proposal in size_assignments(names, choices, self._likely, accepted):
            sizes = {name: self._at_least(name, proposal[name]) for name in names}
            if tuple(sizes.values()) in tried:
                continue
            tried.add(tuple(sizes.values()))
            if given.elements({**self._exact, **sizes}) <= MOST_ELEMENTS or not names:
                yield sizes

    def _at_least(self, name: str, size: int) -> int:
        """A proposed size; where it is below the least one that is asserted, as far above that."""
        low = self._minima.get(name, 0)
        return size if size >= low else low + size

    def _try(
        self, given: InputSignature, chosen: DimSizes, number: int, pinned: Mapping[str, Any]
    ) -> Case | None:
        sizes = {**self._exact, **chosen}
        for integers in self._integer_styles(number):
            sampling = Sampling(number, self._seed, integers, pinned, self._masks)
            began = time.monotonic()
            try:
                feed = {**make_feed(given, sizes, sampling, self._compared), **self._given}
                start = time.perf_counter()
                self._mask_check.check(feed)
                outputs = self._session.run(feed, self._effort.run_seconds)
            except ExecutionError as refusal:
                self.refused += 1
                self.last_refusal = refusal
                self._refusals[self._choice_text(chosen)] = refusal
                if time.monotonic() - began >= self._effort.run_seconds:
                    self.timeouts += 1
                    return None
                continue
            self._accepted_choices.add(self._choice_text(chosen))
            return Case(feed, outputs, dict(chosen), time.perf_counter() - start)
        return None

    def refused_choices(self) -> dict[str, str]:
        """The combinations of `choices` that the model rejected for all inputs, with the error."""
        return {
            text: str(refusal)
            for text, refusal in self._refusals.items()
            if self._choices and text not in self._accepted_choices
        }

    def _choice_text(self, sizes: DimSizes) -> str:
        """The sizes of the dimensions that have choices: `T=0, B=1`."""
        return ", ".join(f"{name}={sizes[name]}" for name in self._choices if name in sizes)

    def _integer_styles(self, number: int) -> Sequence[str]:
        if not any(tensor.dtype.kind in "iu" for tensor in self._signature.tensors().values()):
            return [INDICES]
        return INTEGER_STYLES[number % 2]


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


def _are_sizes(sizes: object) -> bool:
    """Whether this is a collection of one integer or more."""
    return (
        isinstance(sizes, Collection | np.ndarray)
        and len(sizes) > 0
        and all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in sizes)
    )


def _reaches(case: Case, name: str, constant: Any) -> bool:
    value = case.feed.get(name)
    return isinstance(value, np.ndarray) and value.size == 1 and value.item() == constant


def _sizes_of(whole: InputSignature, given: Mapping[str, Array]) -> dict[str, int]:
    """The sizes of dimensions that given values determine."""
    tensors = whole.tensors()
    return {
        dim: size
        for name, value in given.items()
        if name in tensors
        for dim, size in zip(tensors[name].dims or (), value.shape)
        if isinstance(dim, str)
    }
