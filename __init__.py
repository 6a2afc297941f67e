"""looplift rewrites dynamic ONNX models until they compile.

`rewrite` returns a standard ONNX model with less control flow. `from_onnx` turns a model into a TVM
Relax module, and `compile` compiles that with fast kernels. `verify` compares two models on
onnxruntime.
"""

from __future__ import annotations

from .api import Report, RewriteResult, compile, from_onnx, rewrite  # noqa: A004
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
    "compile",
    "from_onnx",
    "rewrite",
    "verify",
]
