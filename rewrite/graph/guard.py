"""Locks a graph while a rule's own code runs, so that rules edit it through a patch only.

An edit outside of a patch would not be recorded: it could be neither checked, undone nor replayed,
and `looplift verify` could not find it. Such an edit raises `UnrecordedEdit` where it happens, and
the graph stays as it was. Objects that are not part of the graph yet may be edited freely.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class UnrecordedEdit(Exception):
    """A rule edits the graph without a patch."""


class Guard:
    """Whether the graph of one model is locked; its nodes, tensors and graphs share one guard."""

    __slots__ = ("locked",)

    def __init__(self) -> None:
        self.locked = False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the graph for a block."""
        self.locked = True
        try:
            yield
        finally:
            self.locked = False

    def check(self, what: str) -> None:
        """Raises UnrecordedEdit if the graph is locked."""
        if self.locked:
            raise UnrecordedEdit(
                f"{what} of the graph is edited outside of a patch; call the methods of `patch` in "
                "`apply`"
            )


class Guarded:
    """An object whose attributes cannot be set while the graph that it is part of is locked."""

    guard: Guard | None = None
    """The guard of the graph; None for an object that is not part of a graph."""

    def __setattr__(self, name: str, value: object) -> None:
        if self.guard is not None and self.guard.locked:
            self.guard.check(f"`{name}` of a {type(self).__name__}")
        if type(value) is list or type(value) is dict:
            value = GuardedList(value) if type(value) is list else GuardedDict(value)
            value.guard = self.guard
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if self.guard is not None:
            self.guard.check(f"`{name}` of a {type(self).__name__}")
        object.__delattr__(self, name)


class GuardedList(list[Any]):
    """A list that cannot be edited while the graph that it is part of is locked."""

    __slots__ = ("guard",)  # set when it becomes part of a graph
    guard: Guard | None

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class GuardedDict(dict[Any, Any]):
    """A dictionary that cannot be edited while the graph that it is part of is locked."""

    __slots__ = ("guard",)
    guard: Guard | None

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _guarding(kind: type, name: str) -> Any:
    plain = getattr(kind, name)

    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        guard = getattr(self, "guard", None)
        if guard is not None and guard.locked:
            guard.check(f"a {kind.__name__}")
        return plain(self, *args, **kwargs)

    return guarded


for _kind, _guarded_kind, _names in (
    (list, GuardedList, "append clear extend insert pop remove reverse sort __iadd__ __imul__"),
    (dict, GuardedDict, "clear pop popitem setdefault update __ior__"),
):
    for _name in [*_names.split(), "__setitem__", "__delitem__"]:
        setattr(_guarded_kind, _name, _guarding(_kind, _name))
