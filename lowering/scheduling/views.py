"""Views: the elements of a tensor in the same order, in another shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import topi

from .ordered_copies import KEEPS_ORDER
from .size_names import OPAQUE


def view(builder: Any, tensor: Any, shape: Sequence[Any]) -> Any:
    """A reshape that `restore_reshapes` need not prove to be one, and that is not fused."""
    attributes = {KEEPS_ORDER: True, "op_pattern": OPAQUE}
    call = builder.call_te(topi.reshape, tensor, list(shape), primfunc_attrs=attributes)
    return builder.emit(call)
