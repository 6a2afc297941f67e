"""The checks of a patch: defined reads, progress, unchanged types, operators that the opset has."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from ..facts.fact import Fact
from ..facts.facts import Facts
from ..graph.body_forms import can_copy, copied_slots
from ..graph.ir import Node, Tensor, bodies
from ..graph.operators import operator
from .edits import Edits, PatchError
from .miss import Miss, describe

MEASURE = (
    "decomposed", "split", "control", "normal form", "carried", "inner", "nodes", "outputs",
    "negated", "constants",
)  # fmt: skip
"""The termination measure: a commit must lower the first component that it changes.

The components are operators decomposed for a backend that lacks them, loops split in two,
control-flow nodes, deviations from the normal form, carried values and results of loops, nodes
weighted by the depth of their body, nodes, outputs of Ifs, negated conditions, distinct constants.
`decomposed`, `split` and `normal form` are not counted in the graph: rules report them (see
`Patch.decompose_operator`, `split_loop` and `toward_normal_form`) and must do so only finitely
often."""


def check_patch(patch: Edits) -> None:
    """Raises PatchError for a patch that is wrong, and Miss where the opset cannot express it."""
    check_reads(patch)
    check_progress(patch)
    check_types(patch)
    check_opset(patch)


# --- reads ---


def check_reads(patch: Edits) -> None:
    """Raises PatchError when a touched node reads a value that is not defined before it."""
    index = patch.index
    for node in patch.touched:
        if node not in index:
            continue
        if node in patch.body_output_changes:
            for body, _, tensor in patch.body_output_changes[node]:
                home = index.home(tensor)
                if home is None or not index.encloses(body, home):
                    _check_read(patch, node, tensor)
            continue
        for tensor in patch.reads(node):
            _check_read(patch, node, tensor)


def _check_read(patch: Edits, node: Node, tensor: Tensor) -> None:
    home = patch.index.home(tensor)
    if home is None:
        raise PatchError(f"{describe(node)} reads `{tensor.name}`, which nothing defines")
    reader = patch.index.ancestor_in(node, home)
    if reader is None:
        raise PatchError(f"{describe(node)} reads `{tensor.name}` from a body that it is not in")
    producer = patch.index.producer(tensor)
    if producer is not None and producer.order >= reader.order:
        raise PatchError(f"{describe(node)} reads `{tensor.name}` before it is computed")


# --- progress ---


def check_progress(patch: Edits) -> None:
    """Raises PatchError if the measure does not fall: rules could undo each other forever."""
    change = tuple(patch.delta[key] for key in MEASURE)
    if change >= (0,) * len(MEASURE):
        counts = ", ".join(f"{key} {number:+d}" for key, number in zip(MEASURE, change) if number)
        raise PatchError(
            f"the rewrite makes nothing smaller ({counts or 'no count changes'}); if the rule can "
            "make it only finitely often, call patch.toward_normal_form() in apply"
        )


# --- types ---


def check_types(patch: Edits) -> None:
    """Raises PatchError when a value replaces one that is known to have another type or shape."""
    for old, new in patch.replaced:
        difference = mismatch(patch.facts.cached(old), patch.facts.of(new))
        if difference is not None:
            raise PatchError(f"`{new.name}` replaces `{old.name}`, but {difference}")


def mismatch(old: Fact, new: Fact) -> str | None:
    """How the type or shape of two values is known to differ; None where it may be the same."""
    if "other" in (old.kind, new.kind) or not old.dtype or not new.dtype:
        return None
    if old.kind != new.kind:
        return f"it is a {new.kind}, not a {old.kind}"
    if old.dtype != new.dtype:
        names = [TensorProto.DataType.Name(fact.dtype).lower() for fact in (new, old)]
        return f"its type is {names[0]}, not {names[1]}"
    if old.kind == "sequence" or old.shape is None or new.shape is None:
        return None
    if len(old.shape) != len(new.shape):
        return f"its rank is {len(new.shape)}, not {len(old.shape)}"
    for axis, (was, now) in enumerate(zip(old.shape, new.shape)):
        if isinstance(was, int) and isinstance(now, int) and was != now:
            return f"its size along axis {axis} is {now}, not {was}"
    return None


# --- the opset ---


def check_opset(patch: Edits) -> None:
    """Raises Miss when the opset of the model lacks an operator, or a form of it, that is used.

    Operators got inputs, attributes and element types over time: Squeeze takes its axes as an input
    since opset 13, Max takes integers since opset 12 (ONNX operator specification, changelog).
    """
    for node in patch.written:
        if node in patch.index and not node.domain:
            need_in_opset(node, patch.facts, patch.opset)
    for tensor in (*patch.copied_outputs, *_copied_body_outputs(patch)):
        if not can_copy(patch.facts.of(tensor).kind, patch.opset):
            sentence = (
                "the result needs a copy of `{}`, and opset {} has no operator that copies it"
            )
            raise Miss(sentence, tensor.name, patch.opset, at=tensor)


def _copied_body_outputs(patch: Edits) -> Iterator[Tensor]:
    """The outputs of changed bodies that a file can return only through a copy."""
    if can_copy("other", patch.opset):
        return
    for owner in {**patch.touched, **patch.shrunk_owners}:
        for body in bodies(owner) if owner in patch.index else ():
            for slot in copied_slots(patch.index, body):
                yield body.outputs[slot]


def need_in_opset(node: Node, facts: Facts, opset: int) -> None:
    """Raises Miss where an opset lacks an operator of the standard domain, or its form."""
    found = operator(node.op, "", opset)
    if found is None:
        raise Miss("the result needs {}, which opset {} lacks", node.op, opset)
    fits = found.min_inputs <= len(node.inputs) <= found.max_inputs
    if not fits or not found.attributes.keys() >= node.attrs.keys():
        raise Miss("the result needs {} in a form that opset {} lacks", node.op, opset)
    for place, tensor in enumerate(node.inputs):
        formal = found.inputs[min(place, len(found.inputs) - 1)]  # the last one may be variadic
        fact = facts.of(tensor)
        if not tensor.name or fact.kind != "tensor" or not fact.dtype:
            continue
        name = TensorProto.DataType.Name(fact.dtype).lower()
        if formal.allowed and f"tensor({name})" not in formal.allowed:
            sentence = "the result needs {} of {}, which opset {} lacks"
            raise Miss(sentence, node.op, name, opset)
