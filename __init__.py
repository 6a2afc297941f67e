"""looplift rewrites dynamic ONNX models until they compile.

`rewrite` returns a standard ONNX model with less control flow. `from_onnx` turns a model into a TVM
Relax module, and `compile` compiles that with fast kernels. `verify` compares two models on
onnxruntime.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

from .api import (
    Report,
    RewriteResult,
    VerificationError,
    compile,  # noqa: A004
    from_onnx,
    rewrite,
)
from .rewrite.engine.miss import Miss
from .rewrite.engine.pattern import PatternRule
from .rewrite.engine.rule import Match, Phase, Rule
from .rewrite.errors import AssumptionError, LoopliftError, ModelError, UnsupportedError
from .rewrite.running.verify import Verification, verify

__all__ = [
    "AssumptionError",
    "LoopliftError",
    "Match",
    "Miss",
    "ModelError",
    "PatternRule",
    "Phase",
    "Report",
    "RewriteResult",
    "Rule",
    "UnsupportedError",
    "Verification",
    "VerificationError",
    "compile",
    "from_onnx",
    "rewrite",
    "verify",
]


def __getattr__(name: str) -> Any:
    # Only when they are asked for: sources that are not installed have no version, and passes need
    # TVM.
    if name == "__version__":
        return version("looplift")
    if name == "transform":
        return import_module(".transform", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
