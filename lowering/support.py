"""Finds everything the lowering has no translation for, before anything is emitted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

import tvm

from ..rewrite.errors import UnsupportedError
from ..rewrite.graph.ir import Node
from .bodies import Body, place
from .operators import find

_SHOWN = 3
"""How many nodes of one operator are named."""

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
"""Why operators of the standard domain have no translation."""

_REASONS_OF_DOMAINS: Mapping[str, str] = MappingProxyType(
    {
        "ai.onnx.ml": _LEARNING,
        "ai.onnx.preview.training": _TRAINING,
        "ai.onnx.training": _TRAINING,
    }
)


def check_support(
    body: Body, control: frozenset[str], declined: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise one UnsupportedError for all operators, in bodies too, that have no converter.

    `control` names the operators with bodies that can be emitted. `declined` says why rules that
    would decompose a node did not, by the name of its first output.
    """
    unknown: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    reasons: dict[tuple[str, str], str] = {}
    for inner in body.inside():
        for step in inner.steps:
            node = step.node
            if not _is_supported(node, bool(step.bodies), control):
                key = node.domain or "ai.onnx", node.op
                unknown[key].append(place(node, inner.path))
                reason = declined.get(node.outputs[0].name) or refusal(*key)
                if reason:
                    reasons.setdefault(key, reason)
    if not unknown:
        return
    count = sum(len(places) for places in unknown.values())
    listed = "; ".join(
        f"{key[1]} of {key[0]}{_often(places)}"
        f"{f' ({reasons[key]})' if key in reasons else ''}: {_shown(places)}"
        for key, places in unknown.items()
    )
    what = "1 node has" if count == 1 else f"{count} nodes have"
    raise UnknownOperatorError(
        f"{what} no translation to Relax: {listed}", remedy=_remedy(set(unknown))
    )


class UnknownOperatorError(UnsupportedError, tvm.error.OpNotImplemented):  # type: ignore[misc]
    """An operator has no translation; TVM's importer raises OpNotImplemented."""


def _is_supported(node: Node, has_bodies: bool, control: frozenset[str]) -> bool:
    if has_bodies:
        return not node.domain and node.op in control
    return find(node.domain, node.op) is not None


def refusal(domain: str, op_type: str) -> str | None:
    """Why an operator without a translation has none; None if nothing is known of it."""
    return _REASONS.get(op_type) if domain in ("", "ai.onnx") else _REASONS_OF_DOMAINS.get(domain)


def _often(places: list[str]) -> str:
    return f", {len(places)} times" if len(places) > 1 else ""


def _shown(places: list[str]) -> str:
    more = len(places) - _SHOWN
    return ", ".join(places[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _remedy(unknown: set[tuple[str, str]]) -> str:
    advice = []
    if any(domain == "ai.onnx" for domain, _ in unknown):
        advice.append(
            "For standard operators, replace them by simpler ones, or export the model with an "
            "opset in which they are composed of others"
        )
    if any(domain != "ai.onnx" for domain, _ in unknown):
        advice.append(
            "For operators of other domains, give the model a function (FunctionProto) that "
            "composes them of standard ones"
        )
    return ". ".join(advice)
