"""Shape functions: from the facts of a node's inputs to the facts of its outputs.

They follow the ONNX operator specification. A function raises `Impossible` when its node fails in
every run, for instance when a fixed rank is violated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...graph.index import Index
from ...graph.ir import Node
from ..assertions import Assertions
from ..facts import Fact, Facts, Inference
from . import (  # noqa: F401  (each fills the table)
    control,
    creation,
    elementwise,
    movement,
    neural,
    reduction,
    reshaping,
    sequences,
    slicing,
)
from .fallback import infer_by_schema
from .registry import TABLE, Site
from .sources import source


def infer(node: Node, facts: Facts) -> Sequence[Fact]:
    """The facts of a node's outputs. Raises Impossible when the node cannot succeed."""
    function = TABLE.get(node.op) if node.domain in ("", "ai.onnx", None) else None
    site = Site(node, facts)
    return function(site) if function is not None else infer_by_schema(site)


def facts_of(
    index: Index, opsets: Mapping[str, int], assertions: Assertions | None = None
) -> Facts:
    """The facts of a model, derived when they are asked for.

    `opsets`: the version of each domain.
    """
    return Facts(index, opsets, Inference(infer, source), assertions or Assertions())
