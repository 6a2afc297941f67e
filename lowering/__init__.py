"""From ONNX to TVM Relax. The only part of looplift that needs TVM."""

from __future__ import annotations

from ..rewrite.errors import MissingTvmError

try:
    import tvm  # noqa: F401  (asked for here, so that every module below may take it for granted)
except ImportError as error:
    raise MissingTvmError(
        f"lowering to Relax needs TVM, which cannot be imported: {error}",
        remedy='In your clone of looplift, run: pip install ".[tvm]"',
    ) from error

from .emit import emit
from .scheduling import pipeline  # noqa: F401  (it makes itself known to TVM)

__all__ = ["MissingTvmError", "emit"]
