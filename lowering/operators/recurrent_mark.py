"""The attribute that marks a function as an LSTM, GRU or RNN.

Backends and passes swap calls of such functions, as they do with composite functions; everything
else runs the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class RecurrentOperator:
    """An operator and its attributes."""

    ATTRIBUTE: ClassVar[str] = "looplift.recurrent"

    operator: str
    """LSTM, GRU or RNN."""
    present: tuple[int, ...]
    """The input of the operator that each parameter of the function is, by its slot: X, W, R, B,
    sequence_lens, initial_h, initial_c, P."""
    attributes: Mapping[str, Any]
    """The ONNX attributes of the node."""

    def encoded(self) -> dict[str, Any]:
        """As values that an attribute can hold."""
        return {
            "operator": self.operator,
            "present": list(self.present),
            "attributes": {name: _encoded(value) for name, value in self.attributes.items()},
        }

    @staticmethod
    def of(function: Any) -> RecurrentOperator | None:
        """The operator of a function; None if it is not marked."""
        attributes = function.attrs
        if not attributes or RecurrentOperator.ATTRIBUTE not in attributes:
            return None
        found = attributes[RecurrentOperator.ATTRIBUTE]
        return RecurrentOperator(
            str(found["operator"]),
            tuple(int(slot) for slot in found["present"]),
            {str(name): _decoded(value) for name, value in found["attributes"].items()},
        )


def _encoded(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_encoded(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | float):
        return value
    if hasattr(value, "value"):
        return value.value
    return tuple(_decoded(item) for item in value)
