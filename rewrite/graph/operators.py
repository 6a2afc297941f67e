"""Operator schemas in a form that is quick to query for every node of a model.

The schemas are those of the onnx package, and those of onnxruntime for operators that only
onnxruntime has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from onnx import defs
from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_state

STANDARD_DOMAINS = frozenset(
    ("", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "ai.onnx.preview")
)


@dataclass(frozen=True)
class Formal:
    """A formal input or output."""

    name: str
    type_name: str
    """A type (`tensor(int64)`), or the name of a type variable."""
    allowed: frozenset[str]
    """The types it may have."""
    required: bool
    variadic: bool
    """Whether it takes any number of values. None of them may be omitted."""
    homogeneous: bool
    """Whether all actual values share one type; False only for some variadic formals."""


@dataclass(frozen=True)
class Operator:
    """One version of an operator. Its last formal input or output may be variadic."""

    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    attributes: dict[str, int]
    """The AttributeProto type of each attribute."""
    required_attributes: tuple[str, ...]

    def missing_input(self, given: Sequence[bool]) -> tuple[int, str] | None:
        """The slot and the name of the first input that is needed and not given, if there is one.

        `given` says for each slot of a node whether it has a value.
        """
        for index, formal in enumerate(self.inputs):
            end = max(len(given), self.min_inputs) if formal.variadic else index + 1
            for slot in range(index, end) if formal.variadic or formal.required else ():
                if slot >= len(given) or not given[slot]:
                    return slot, formal.name
        return None


@cache
def operator(op: str, domain: str, opset: int) -> Operator | None:
    """The operator in an opset; None if the onnx package lacks it there.

    The first version of GroupNormalization was deprecated later, when the second replaced it.
    Models have it, and runtimes run it.
    """
    try:
        schema = defs.get_schema(op, opset, domain)
    except defs.SchemaError:
        return None
    if schema.deprecated and schema.since_version > versions(op, domain)[0][0]:
        return None
    return _operator(schema)


@cache
def runtime_operator(op: str, domain: str) -> Operator | None:
    """The operator in the newest version that onnxruntime has; None if it lacks it."""
    schema = _runtime_schemas().get((domain, op))
    return None if schema is None else _operator(schema)


def _operator(schema: Any) -> Operator:
    return Operator(
        inputs=tuple(map(_formal, schema.inputs)),
        outputs=tuple(map(_formal, schema.outputs)),
        min_inputs=schema.min_input,
        max_inputs=schema.max_input,
        min_outputs=schema.min_output,
        max_outputs=schema.max_output,
        attributes={name: _kind(a) for name, a in schema.attributes.items()},
        required_attributes=tuple(n for n, a in schema.attributes.items() if a.required),
    )


def _kind(attribute: Any) -> int:
    return int(attribute.type.value)


def _formal(formal: Any) -> Formal:
    # onnxruntime's classes have the same names in another notation.
    is_onnx = isinstance(formal, defs.OpSchema.FormalParameter)
    option = formal.option.name
    is_homogeneous = formal.is_homogeneous if is_onnx else formal.isHomogeneous
    return Formal(
        name=formal.name,
        type_name=formal.type_str if is_onnx else formal.typeStr,
        allowed=frozenset(formal.types),
        required=option == "Single",
        variadic=option == "Variadic",
        homogeneous=option != "Variadic" or is_homogeneous,
    )


def unknown_attributes(names: Iterable[str], found: Operator) -> list[str]:
    """The attributes that an operator does not have.

    Names that begin with `__` are internal to a tool; onnx and onnxruntime do not check them.
    """
    return [name for name in names if name not in found.attributes and not name.startswith("__")]


@cache
def runtime_operators() -> frozenset[tuple[str, str]]:
    """Domain and name of every operator of onnxruntime."""
    return frozenset(_runtime_schemas())


@cache
def is_in_runtime(op: str, domain: str, opset: int) -> bool:
    """Whether onnxruntime has the operator in an opset.

    It had LayerNormalization before ONNX, for instance, and its tools write it in any opset.
    """
    schemas = onnxruntime_state.get_all_operator_schema()
    found = [s for s in schemas if (s.domain, s.name) == (domain, op) and s.since_version <= opset]
    return bool(found) and not max(found, key=lambda s: int(s.since_version)).deprecated


@cache
def runtime_version(domain: str) -> int:
    """The newest version of an operator set that onnxruntime has; 0 if it has none."""
    found = (s.since_version for (each, _), s in _runtime_schemas().items() if each == domain)
    return max(found, default=0)


@cache
def _runtime_schemas() -> dict[tuple[str, str], Any]:
    """The newest schema of each operator of onnxruntime, by domain and name."""
    schemas = sorted(onnxruntime_state.get_all_operator_schema(), key=lambda s: s.since_version)
    return {(schema.domain, schema.name): schema for schema in schemas}


@cache
def versions(op: str, domain: str) -> tuple[tuple[int, bool], ...]:
    """Each opset that changed the operator, with False if that opset deprecates it."""
    found = {
        (schema.since_version, not schema.deprecated)
        for schema in defs.get_all_schemas_with_history()
        if schema.name == op and schema.domain == domain
    }
    return tuple(sorted(found))


@cache
def newest_known(domain: str) -> int:
    """The newest version of an operator set that the onnx package has; 0 if it has none."""
    if domain == "":
        return int(defs.onnx_opset_version())
    schemas = defs.get_all_schemas_with_history()
    return max((s.since_version for s in schemas if s.domain == domain), default=0)
