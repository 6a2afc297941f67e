"""Makes things while others are in use."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The items, each made in another thread while the one before it is in use; what making one
    raises is raised when its turn comes.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        pending = thread.submit(list, islice(items, 1))
        while item := pending.result():
            pending = thread.submit(list, islice(items, 1))
            yield from item
