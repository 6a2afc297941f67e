"""What forms are sums of: sources, elementwise functions of forms, and products of those."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .coefficients import digest
from .weights import Array

if TYPE_CHECKING:  # forms are made of atoms, and these of forms
    from .forms import Form


@dataclass(frozen=True, eq=False)
class Source:
    """What a body reads: a slice of a sequence, a state, or a value nothing is known of."""

    name: object
    """Equal for the same source. A string or tuple of strings and numbers."""
    width: int
    origin: object
    """What the source stands for, for whoever made it."""

    @cached_property
    def key(self) -> bytes:
        return digest(b"source", repr(self.name).encode())


@dataclass(frozen=True, eq=False)
class Picked:
    """Some features of a source, as a factor of a product."""

    source: Source
    columns: Array

    @property
    def width(self) -> int:
        return len(self.columns)

    @cached_property
    def key(self) -> bytes:
        return digest(b"picked", self.source.key, self.columns.tobytes())

    def take(self, columns: Array) -> Picked:
        return Picked(self.source, self.columns[columns])

    def sources(self) -> Iterable[Source]:
        yield self.source


@dataclass(frozen=True, eq=False)
class Activation:
    """An elementwise function of a form."""

    function: str
    parameters: tuple[float, ...]
    argument: Form

    @property
    def width(self) -> int:
        return self.argument.width

    @cached_property
    def key(self) -> bytes:
        name = f"{self.function}{self.parameters}"
        return digest(b"activation", name.encode(), self.argument.key)

    def take(self, columns: Array) -> Activation:
        return Activation(self.function, self.parameters, self.argument.take(columns))

    def sources(self) -> Iterable[Source]:
        return self.argument.sources()


@dataclass(frozen=True, eq=False)
class Affine:
    """A form that is not multiplied out, as a factor of a product."""

    form: Form

    @property
    def width(self) -> int:
        return self.form.width

    @cached_property
    def key(self) -> bytes:
        return digest(b"affine", self.form.key)

    def take(self, columns: Array) -> Affine:
        return Affine(self.form.take(columns))

    def sources(self) -> Iterable[Source]:
        return self.form.sources()


Factor = Picked | Activation | Affine


@dataclass(frozen=True, eq=False)
class Product:
    """An elementwise product of two or more factors, in the order of their keys."""

    factors: tuple[Factor, ...]

    @property
    def width(self) -> int:
        return self.factors[0].width

    @cached_property
    def key(self) -> bytes:
        return digest(b"product", *(f.key for f in self.factors))

    def take(self, columns: Array) -> Product:
        return product_of([f.take(columns) for f in self.factors])

    def sources(self) -> Iterable[Source]:
        for factor in self.factors:
            yield from factor.sources()


Atom = Source | Activation | Product


def product_of(factors: Iterable[Factor]) -> Product:
    """The product of factors in whatever order."""
    return Product(tuple(sorted(factors, key=lambda f: f.key)))
