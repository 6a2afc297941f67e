"""Pauses Python's cycle collector, which would traverse a large model again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """A context in which only reference counts free memory.

    The collector traverses all live objects each time many were added, and a model stays alive from
    import to export; without the collector, the time is linear in the size of the model. Nodes and
    values form no cycles, so no garbage accumulates meanwhile. What a compilation leaves is freed
    after it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
