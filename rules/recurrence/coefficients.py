"""Coefficients of atoms in a form: matrices, or mere choices of features.

Most values of a body are gates cut out of a product, or states: for those a matrix of ones and zeros
would be large and say little, so a choice of features has a class of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from . import weights
from .weights import Array, Weight


class NotAffine(Exception):
    """A value is no form of the body's inputs; the text says why."""


def digest(*parts: bytes) -> bytes:
    """A key for a list of keys."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        total.update(len(part).to_bytes(4, "little") + part)
    return total.digest()


@dataclass(frozen=True, eq=False)
class Pick:
    """Feature k of the form is feature `columns[k]` of the atom times `scale[k]`.

    A column of -1 stands for none: the form does not contain the atom there.
    """

    columns: Array
    scale: Weight

    @cached_property
    def complete(self) -> bool:
        return bool(np.all(self.columns >= 0))

    def is_whole(self, width: int) -> bool:
        """Whether the features are those of the atom, in their order."""
        return len(self.columns) == width and np.array_equal(self.columns, np.arange(width))

    @cached_property
    def key(self) -> bytes:
        return digest(self.columns.tobytes(), weights.weight_key(self.scale))


Coefficient = Pick | Weight
"""A weight has the shape (features of the atom, features of the form)."""


def coefficient_key(coefficient: Coefficient) -> bytes:
    return coefficient.key if isinstance(coefficient, Pick) else weights.weight_key(coefficient)


def is_nothing(coefficient: Coefficient) -> bool:
    if isinstance(coefficient, Pick):
        return bool(np.all(coefficient.columns < 0)) or weights.is_zero(coefficient.scale)
    return weights.is_zero(coefficient)


def take_columns(coefficient: Coefficient, columns: Array) -> Coefficient:
    if isinstance(coefficient, Pick):
        scale = weights.take(coefficient.scale, columns, 0)
        return Pick(coefficient.columns[columns], scale)
    return weights.take(coefficient, columns, 1)


def scale_columns(coefficient: Coefficient, factor: Weight) -> Coefficient:
    if isinstance(coefficient, Pick):
        return Pick(coefficient.columns, weights.multiply(coefficient.scale, factor))
    return weights.multiply(coefficient, factor)


def padded(coefficient: Coefficient, before: int, behind: int) -> Coefficient:
    if isinstance(coefficient, Pick):
        columns = np.pad(coefficient.columns, (before, behind), constant_values=-1)
        ones = [np.ones(n, coefficient.scale.dtype) for n in (before, behind)]
        return Pick(columns, weights.concat([ones[0], coefficient.scale, ones[1]], 0))
    rows = coefficient.shape[0]
    zeros = [np.zeros((rows, n), coefficient.dtype) for n in (before, behind)]
    return weights.concat([zeros[0], coefficient, zeros[1]], 1)


def spread(pick: Pick, width: int, matrix: Weight) -> Weight:
    """The product of a pick, as the matrix it stands for, with a matrix."""
    used = np.flatnonzero(pick.columns >= 0)
    columns = pick.columns[used]
    rows = weights.take(matrix, used, 0)
    scale = weights.reshaped(weights.take(pick.scale, used, 0), (len(used), 1))
    rows = weights.multiply(rows, scale)
    if len(np.unique(columns)) != len(columns):
        if not isinstance(rows, np.ndarray):
            raise NotAffine("a feature is read twice by a weight known only at run time")
        total = np.zeros((width, matrix.shape[1]), rows.dtype)
        np.add.at(total, columns, rows)
        return total
    if len(columns) == width:
        return weights.take(rows, np.argsort(columns), 0)
    # Features of the atom that are not read have rows of zeros: number len(columns).
    place = np.full(width, len(columns))
    place[columns] = np.arange(len(columns))
    zeros = np.zeros((1, matrix.shape[1]), matrix.dtype)
    return weights.take(weights.concat([rows, zeros], 0), place, 0)


def dense(coefficient: Coefficient, width: int) -> Weight:
    """A coefficient as a matrix of `width` rows."""
    if not isinstance(coefficient, Pick):
        return coefficient
    count = len(coefficient.columns)
    ones = np.ones(count, coefficient.scale.dtype)
    diagonal = weights.multiply(np.diag(ones), coefficient.scale)
    return spread(Pick(coefficient.columns, ones), width, diagonal)


def total(a: Coefficient, b: Coefficient, width: int) -> Coefficient:
    if isinstance(a, Pick) and isinstance(b, Pick):
        if np.array_equal(a.columns, b.columns):
            return Pick(a.columns, weights.add(a.scale, b.scale))
        if not np.any((a.columns >= 0) & (b.columns >= 0)):
            return merged_picks(a, b)
    return weights.add(dense(a, width), dense(b, width))


def merged_picks(a: Pick, b: Pick) -> Pick:
    """Two picks of which each feature has at most one."""
    from_a = a.columns >= 0
    columns = np.where(from_a, a.columns, b.columns)
    if isinstance(a.scale, np.ndarray) and isinstance(b.scale, np.ndarray):
        return Pick(columns, np.where(from_a, a.scale, b.scale))
    place = np.where(from_a, np.arange(len(columns)), np.arange(len(columns)) + len(columns))
    return Pick(columns, weights.take(weights.concat([a.scale, b.scale], 0), place, 0))
