"""From ONNX to TVM Relax. The only part of looplift that needs TVM."""

from __future__ import annotations

from ..rewrite.errors import UnsupportedError


class MissingTvmError(UnsupportedError, ImportError):
    """TVM is not installed, or its libraries cannot be loaded."""


try:
    import tvm  # noqa: F401  (asked for here, so that every module below may take it for granted)
except ImportError as error:
    raise MissingTvmError(
        f"lowering to Relax needs TVM, which cannot be imported: {error}",
        remedy='Install it with: pip install "looplift[tvm]"',
    ) from error

from . import pipeline  # noqa: E402, F401  (it makes itself known to TVM)
from .emit import emit  # noqa: E402  (only now is TVM known to be there)

__all__ = ["MissingTvmError", "emit"]
