"""Proposes sizes for the open dimensions of a model.

A model rarely declares which sizes it works with: an input may have to be long enough for its
convolutions, two dimensions without a name may have to be equal. So the search proposes sizes, the
caller reports which of them the model accepts, and later proposals vary the accepted ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from .signature import DimSizes

SMALL = (2, 1, 3, 7, 0, 8)
"""Sizes that are tried for all dimensions at once: 0, 1, a few small primes, and 8, because models
often ask whether a size is divisible by 2, 4 or 8."""

DISTINCT = (2, 3, 5, 7, 4, 6, 11, 9, 13, 8)
"""Different sizes for different dimensions, which expose dimensions that were mixed up."""

WIDE = (16, 64, 256, 4, 8, 32, 128, 512, 1024, 576, 100, 1000, 224)
"""Sizes that are tried where no small one works: powers of two, usual frame and image sizes."""

MOST_EMPTY = 3
"""The most dimensions that are tried with size 0 while the others are not empty."""


def size_assignments(
    names: Sequence[str],
    choices: Mapping[str, Sequence[int]],
    likely: Sequence[int],
    accepted: Sequence[DimSizes],
) -> Iterator[dict[str, int]]:
    """Assignments of sizes to names, the most informative ones first, maybe with repetitions.

    `choices` restricts some of the names; each combination of them is proposed until it is accepted
    once. `likely` are sizes to try where no small one works. The caller appends what the model
    accepts to `accepted`.
    """
    wide = tuple(dict.fromkeys((*likely, *WIDE)))
    if not choices:
        yield from _free_candidates(names, (2, 1), wide, accepted)
        return
    free = [name for name in names if name not in choices]
    for combination in itertools.product(*choices.values()):
        fixed = dict(zip(choices, combination))
        before = len(accepted)
        small = tuple(dict.fromkeys((*combination, 2, 1)))
        for rest in _free_candidates(free, small, wide, accepted):
            yield {**rest, **fixed}
            if len(accepted) > before:
                break


def _free_candidates(
    names: Sequence[str], small: Sequence[int], wide: Sequence[int], accepted: Sequence[DimSizes]
) -> Iterator[dict[str, int]]:
    if not names:
        yield {}
        return
    before = len(accepted)
    distinct = dict(zip(names, itertools.cycle(DISTINCT)))
    yield distinct
    are_independent = len(accepted) > before
    for size in SMALL[:2]:
        yield dict.fromkeys(names, size)
    # Sizes that must be equal may differ from 0: onnxruntime concatenates an empty tensor with any.
    if are_independent and len(names) > 1:
        for name in names[:MOST_EMPTY]:
            yield {**distinct, name: 0}
    for size in SMALL[2:]:
        yield dict.fromkeys(names, size)
    yield dict(zip(reversed(names), itertools.cycle(DISTINCT)))
    if len(accepted) == before:
        yield from _until_accepted(_one_large(names, small, wide), accepted)
    if len(accepted) > before:
        yield from _around(names, accepted[before])


def _one_large(
    names: Sequence[str], small: Sequence[int], wide: Sequence[int]
) -> Iterator[dict[str, int]]:
    """One dimension large and the others small, or all of one size."""
    for size in wide:
        for rest in small:
            for name in names:
                yield {**dict.fromkeys(names, rest), name: size}
        yield dict.fromkeys(names, size)


def _until_accepted(
    proposals: Iterator[dict[str, int]], accepted: Sequence[DimSizes]
) -> Iterator[dict[str, int]]:
    before = len(accepted)
    for proposal in proposals:
        yield proposal
        if len(accepted) > before:
            return


def _around(names: Sequence[str], base: DimSizes) -> Iterator[dict[str, int]]:
    """Variations of accepted sizes: of all dimensions with the same size, and of single ones."""
    groups = [[n for n in names if base[n] == size] for size in dict.fromkeys(base.values())]
    singles = [[name] for name in names]
    for size in SMALL:
        for group in [*groups, *singles]:
            yield {**{name: base[name] for name in names}, **dict.fromkeys(group, size)}
