"""Shape functions: from the facts of a node's inputs to the facts of its outputs.

They follow the ONNX operator specification, and onnxruntime where it differs. A function raises
AlwaysFails when its node fails in every run, for instance because an operand has a wrong rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...graph.index import Index
from ...graph.ir import Node
from ..assertions import Assertions
from ..fact import Fact
from ..facts import Facts, Inference
from . import (  # noqa: F401  (each registers its shape functions)
    contrib,
    control,
    creation,
    elementwise,
    machine_learning,
    movement,
    neural,
    reduction,
    reshaping,
    sequences,
    slicing,
)
from .fallback import infer_by_schema, types_by_schema
from .inputs import infer_input
from .registry import SHAPE_FUNCTIONS, NodeContext


def infer(node: Node, facts: Facts) -> Sequence[Fact]:
    """The facts of a node's outputs. Raises AlwaysFails when the node cannot succeed."""
    is_standard = node.domain in ("", "ai.onnx", None)
    function = SHAPE_FUNCTIONS.get(node.op if is_standard else f"{node.domain}::{node.op}")
    ctx = NodeContext(node, facts)
    return function(ctx) if function is not None else infer_by_schema(ctx)


def infer_failed(node: Node, facts: Facts) -> Sequence[Fact]:
    """The element types of the outputs of a node that cannot succeed."""
    return types_by_schema(NodeContext(node, facts))


def facts_of(
    index: Index, opsets: Mapping[str, int], assertions: Assertions | None = None
) -> Facts:
    """The facts of a model, derived on demand. `opsets` has the version of each domain."""
    return Facts(
        index, opsets, Inference(infer, infer_failed, infer_input), assertions or Assertions()
    )
