"""The roles of a loop's parameters and results, as an attribute of its function.

Passes read them to replace the loop, as backends read the attributes of composite functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

LOOP_PART = "looplift.loop_part"
"""The attribute of the functions of a loop that only the loop calls. Its value is one of these:"""
BODY, ITERATION, NEXT, REPEAT, KERNEL = "body", "iteration", "next", "repeat", "kernel"


@dataclass(frozen=True)
class Slices:
    """A scan input or scan output: one slice for each iteration."""

    axis: int
    reverse: bool


@dataclass(frozen=True)
class LoopRoles:
    """The parameters of a loop's function are, in this order: the trip count (int64 scalar, if
    `has_limit`), the condition of the first iteration (bool scalar, if `has_condition`), the
    initial carried values, the scan inputs, the captured values. It returns the final carried
    values and the scan outputs, as a tuple if there is more than one.

    The parameters of its body's function are: the iteration number (int64 scalar, if
    `reads_iteration`), the carried values, one slice of each scan input, the captured values. It
    returns a tuple: the condition (bool scalar, if `returns_condition`), the carried values, one
    slice of each scan output.
    """

    ATTRIBUTE: ClassVar[str] = "looplift.loop"

    operator: str
    """Loop or Scan."""
    node: str
    """The node, for messages."""
    body: str
    """The name of the body's function."""
    trip_count: int | None
    """The trip count, where it is a constant."""
    has_limit: bool
    has_condition: bool
    returns_condition: bool
    reads_iteration: bool
    carried_values: int
    """The number of carried values."""
    scan_inputs: Sequence[Slices]
    scan_outputs: Sequence[Slices]
    captured: Sequence[int]
    """The parameter of the loop's function that each captured value of the body is."""
    captures_sizes: bool
    """Whether the body has a last parameter of sizes, which no tensor that it reads has."""

    @property
    def first_carried(self) -> int:
        """The position of the first carried value among the parameters."""
        return int(self.has_limit) + int(self.has_condition)

    @property
    def first_scan_input(self) -> int:
        """The position of the first scan input among the parameters."""
        return self.first_carried + self.carried_values

    def encoded(self) -> dict[str, Any]:
        """As values that an attribute can hold."""
        return {
            "operator": self.operator,
            "node": self.node,
            "body": self.body,
            "trip_count": [] if self.trip_count is None else [self.trip_count],
            "has_limit": int(self.has_limit),
            "has_condition": int(self.has_condition),
            "returns_condition": int(self.returns_condition),
            "reads_iteration": int(self.reads_iteration),
            "carried_values": self.carried_values,
            "scan_inputs": [[s.axis, int(s.reverse)] for s in self.scan_inputs],
            "scan_outputs": [[s.axis, int(s.reverse)] for s in self.scan_outputs],
            "captured": list(self.captured),
            "captures_sizes": int(self.captures_sizes),
        }

    @staticmethod
    def of(function: Any) -> LoopRoles | None:
        """The roles of a function; None if it is not a loop."""
        attributes = function.attrs
        if not attributes or LoopRoles.ATTRIBUTE not in attributes:
            return None
        found = attributes[LoopRoles.ATTRIBUTE]
        trip_count = [int(count) for count in found["trip_count"]]
        return LoopRoles(
            operator=str(found["operator"]),
            node=str(found["node"]),
            body=str(found["body"]),
            trip_count=trip_count[0] if trip_count else None,
            has_limit=bool(found["has_limit"]),
            has_condition=bool(found["has_condition"]),
            returns_condition=bool(found["returns_condition"]),
            reads_iteration=bool(found["reads_iteration"]),
            carried_values=int(found["carried_values"]),
            scan_inputs=[Slices(int(axis), bool(back)) for axis, back in found["scan_inputs"]],
            scan_outputs=[Slices(int(axis), bool(back)) for axis, back in found["scan_outputs"]],
            captured=[int(index) for index in found["captured"]],
            captures_sizes=bool(found["captures_sizes"]),
        )
