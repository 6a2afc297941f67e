"""Why operators have no translation to Relax, by domain and name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_STRINGS = "TVM has no tensors of strings"
_IMAGES = "it decodes image files, which no tensor operator does"
_TRAINING = "it trains a model, and looplift compiles models for inference"
_LEARNING = "classical machine learning has no form in Relax"

_REASONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"), _STRINGS
        ),
        "ImageDecoder": _IMAGES,
    }
)
"""By name in the standard domain."""

_DOMAINS: Mapping[str, str] = MappingProxyType(
    {
        "ai.onnx.ml": _LEARNING,
        "ai.onnx.preview.training": _TRAINING,
        "ai.onnx.training": _TRAINING,
    }
)


def refusal(domain: str, op_type: str) -> str | None:
    """Why an operator without a translation has none; None if nothing is known of it."""
    return _REASONS.get(op_type) if domain in ("", "ai.onnx") else _DOMAINS.get(domain)
