"""What a value of a loop body is in terms of what the body reads.

A value with K features is a `Form`: a bias and a sum of atoms, each times a matrix. An atom is a
source (a slice of a sequence, a state) or an elementwise function of forms: an activation, or a
product. Products are multiplied out, so `n + z*(h - n)` and `(1 - z)*n + z*h` are one form; an
affine form with a dense matrix counts as one factor, because multiplying it out has no use.

Two values that are equal by this algebra have forms with equal keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from . import weights
from .atoms import Activation, Affine, Atom, Factor, Picked, Product, Source, product_of
from .coefficients import (
    Coefficient,
    NotAffine,
    Pick,
    coefficient_key,
    digest,
    is_nothing,
    padded,
    scale_columns,
    spread,
    take_columns,
    total,
)
from .weights import Array, Weight

_MOST_TERMS = 32
"""Terms a product may have when it is multiplied out."""


@dataclass(frozen=True, eq=False)
class Form:
    """`sum of atom · coefficient + bias`, over the features of one value."""

    width: int
    terms: dict[bytes, tuple[Atom, Coefficient]]
    """By the atom's key."""
    bias: Weight

    @cached_property
    def key(self) -> bytes:
        parts = []
        for atom_key in sorted(self.terms):
            coefficient = self.terms[atom_key][1]
            parts += [atom_key, coefficient_key(coefficient)]
        return digest(b"form", weights.weight_key(self.bias), *parts)

    @property
    def atoms(self) -> list[tuple[Atom, Coefficient]]:
        return list(self.terms.values())

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return self.bias.dtype

    def sources(self) -> Iterable[Source]:
        for atom, _ in self.terms.values():
            if isinstance(atom, Source):
                yield atom
            else:
                yield from atom.sources()

    def only(self) -> tuple[Atom, Weight] | None:
        """The one atom of which every feature is the same feature times a scale; None if the form
        is anything else.
        """
        if len(self.terms) != 1 or not weights.is_zero(self.bias):
            return None
        ((atom, coefficient),) = self.terms.values()
        if not isinstance(coefficient, Pick) or not coefficient.is_whole(atom.width):
            return None
        return atom, coefficient.scale

    # --- linear operations ---

    def take(self, columns: Array) -> Form:
        """The form of some features, by number."""
        if len(columns) == self.width and np.array_equal(columns, np.arange(self.width)):
            return self
        found = [
            (atom, take_columns(coefficient, columns)) for atom, coefficient in self.terms.values()
        ]
        return made(len(columns), found, weights.take(self.bias, columns, 0))

    def scaled(self, factor: Weight) -> Form:
        """Times a vector, or one number, per feature."""
        found = [(atom, scale_columns(coefficient, factor)) for atom, coefficient in self.atoms]
        bias = weights.multiply(self.bias, factor)
        return simplified(made(self.width, found, bias))

    def plus(self, vector: Weight) -> Form:
        return simplified(Form(self.width, self.terms, weights.add(self.bias, vector)))

    def times(self, matrix: Weight) -> Form:
        """`form · matrix`; the matrix has the shape (features in, features out)."""
        found: list[tuple[Atom, Coefficient]] = []
        for atom, coefficient in self.terms.values():
            if isinstance(coefficient, Pick):
                found.append((atom, spread(coefficient, atom.width, matrix)))
            else:
                found.append((atom, weights.matmul(coefficient, matrix)))
        width = matrix.shape[1]
        bias: Weight = np.zeros(width, self.dtype)
        if not weights.is_zero(self.bias):
            row = weights.reshaped(self.bias, (1, self.width))
            bias = weights.reshaped(weights.matmul(row, matrix), (width,))
        return made(width, found, bias)


def constant(vector: Weight) -> Form:
    return Form(vector.shape[0], {}, vector)


def of_atom(atom: Atom, dtype: np.dtype[np.generic]) -> Form:
    """The atom itself."""
    pick = Pick(np.arange(atom.width), np.ones(atom.width, dtype))
    return Form(atom.width, {atom.key: (atom, pick)}, np.zeros(atom.width, dtype))


def added(a: Form, b: Form) -> Form:
    return simplified(made(a.width, [*a.atoms, *b.atoms], weights.add(a.bias, b.bias)))


def joined(parts: Sequence[Form]) -> Form:
    """The features of several forms, one after the other."""
    width = sum(p.width for p in parts)
    found: list[tuple[Atom, Coefficient]] = []
    first = 0
    for part in parts:
        behind = width - first - part.width
        found += [(atom, padded(c, first, behind)) for atom, c in part.atoms]
        first += part.width
    return made(width, found, weights.concat([p.bias for p in parts], 0))


def product(a: Form, b: Form) -> Form:
    """The elementwise product. Raises NotAffine where it has too many terms."""
    if not a.terms:
        return b.scaled(a.bias)
    if not b.terms:
        return a.scaled(b.bias)
    left, right = _summands(a), _summands(b)
    if len(left) * len(right) > _MOST_TERMS:
        raise NotAffine("the product has too many terms")
    dtype = a.dtype
    width = a.width
    found: list[tuple[Atom, Coefficient]] = []
    bias: Weight = np.zeros(width, dtype)
    for factors, scale in left:
        for others, other in right:
            together, both = [*factors, *others], weights.multiply(scale, other)
            if not together:
                bias = weights.add(bias, both)
            else:
                found.append(_monomial(together, both))
    return simplified(made(width, found, bias))


def activated(function: str, parameters: tuple[float, ...], argument: Form) -> Form:
    """An elementwise function of a form."""
    return of_atom(Activation(function, parameters, argument), argument.dtype)


# --- how forms are put together ---


def made(width: int, found: Iterable[tuple[Atom, Coefficient]], bias: Weight) -> Form:
    """A form in which every atom stands once and elementwise atoms have the form's features."""
    terms: dict[bytes, tuple[Atom, Coefficient]] = {}
    for atom, coefficient in found:
        settled = _settled(atom, coefficient)
        if settled is None:
            continue
        atom, coefficient = settled
        if atom.key in terms:
            coefficient = total(terms[atom.key][1], coefficient, atom.width)
            if is_nothing(coefficient):
                del terms[atom.key]
                continue
        terms[atom.key] = (atom, coefficient)
    return Form(width, terms, bias)


def _settled(atom: Atom, coefficient: Coefficient) -> tuple[Atom, Coefficient] | None:
    if not isinstance(coefficient, Pick):
        return (atom, coefficient) if not weights.is_zero(coefficient) else None
    if is_nothing(coefficient):
        return None
    if isinstance(atom, Source) or not coefficient.complete or coefficient.is_whole(atom.width):
        return atom, coefficient
    own = atom.take(coefficient.columns)
    return own, Pick(np.arange(own.width), coefficient.scale)


def _summands(form: Form) -> list[tuple[list[Factor], Weight]]:
    """A form as a sum of products of factors; one factor where a matrix is dense."""
    found: list[tuple[list[Factor], Weight]] = []
    for atom, coefficient in form.atoms:
        if not isinstance(coefficient, Pick) or not coefficient.complete:
            return [([Affine(form)], np.ones(form.width, form.dtype))]
        if isinstance(atom, Source):
            found.append(([Picked(atom, coefficient.columns)], coefficient.scale))
        elif isinstance(atom, Product):
            found.append((list(atom.factors), coefficient.scale))
        else:
            found.append(([atom], coefficient.scale))
    if not weights.is_zero(form.bias):
        found.append(([], form.bias))
    return found


def _monomial(factors: list[Factor], scale: Weight) -> tuple[Atom, Coefficient]:
    if len(factors) == 1:
        (factor,) = factors
        if isinstance(factor, Picked):
            return factor.source, Pick(factor.columns, scale)
        if isinstance(factor, Activation):
            return factor, Pick(np.arange(factor.width), scale)
    atom = product_of(factors)
    return atom, Pick(np.arange(atom.width), scale)


def simplified(form: Form) -> Form:
    """Activations written through others: `0.5 + 0.5*tanh(x/2)` is a sigmoid."""
    if len(form.terms) != 1 or weights.is_zero(form.bias):
        return form
    ((atom, coefficient),) = form.terms.values()
    if not isinstance(atom, Activation) or not isinstance(coefficient, Pick):
        return form
    if not isinstance(coefficient.scale, np.ndarray) or not isinstance(form.bias, np.ndarray):
        return form
    if not coefficient.is_whole(atom.width) or atom.parameters:
        return form
    two, half = (np.full(form.width, v, form.dtype) for v in (2, 0.5))
    if atom.function == "Tanh" and np.all(coefficient.scale == 0.5) and np.all(form.bias == 0.5):
        return activated("Sigmoid", (), atom.argument.scaled(two))
    if atom.function == "Sigmoid" and np.all(coefficient.scale == 2) and np.all(form.bias == -1):
        return activated("Tanh", (), atom.argument.scaled(half))
    return form
