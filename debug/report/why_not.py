"""Why control flow is left, tied to the nodes that the page draws."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..counts import CONTROL
from ..explaining.explain import Explanation
from ..replay import Replay


def left_json(explanation: Explanation, replay: Replay) -> list[dict[str, Any]]:
    """What is left, with the node's number in the finished replay of the same rewrite.

    Rewriting is deterministic: both have the same nodes in the same order.
    """
    index = replay.engine.index
    numbers = [
        replay.numbers[node]
        for graph in index.graphs(replay.engine.model.graph)
        for node in graph.nodes
        if node.op in CONTROL and not node.domain and node in index
    ]
    found = [asdict(left) for left in explanation.left]
    for left, number in zip(found, numbers):
        left["number"] = number
    return found
