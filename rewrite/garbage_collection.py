"""Python's cycle collector, kept from walking a model over and over while it is worked on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Within, only reference counts free memory.

    The collector looks at everything alive each time enough is added, and a model of many nodes is
    alive from its import to its export; without it the time is linear in the size of the model.
    Nodes and values form no cycles, so nothing piles up meanwhile.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
