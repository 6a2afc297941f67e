"""Constants: computed where everything is known, stored once.

y = Add(x, Mul(2, 3))   ->   y = Add(x, 6)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import ANY, Match, Rule
from ...rewrite.facts.purity import is_pure
from ...rewrite.graph.ir import Constant, Node, Tensor, bodies, constant_value
from ...rewrite.running.evaluate import NotEvaluated, evaluate


@dataclass(frozen=True)
class StoredValue:
    """The value of a Constant node: an array, or one that is still in the file."""

    values: Any


class ConstantToInitializer(Rule[StoredValue]):
    """Turns a Constant node into an initializer."""

    root = "Constant"
    fires = (
        "g (float[2] x) => (float[2] y) { c = Constant<value_floats=[1.0,2.0]>() y = Add(x, c) }"
    )
    spares = {
        "output of the model": "g () => (float[2] y) { y = Constant<value_floats=[1.0,2.0]>() }",
        "neither a dense tensor nor numbers": 'g (string[1] x) => (bool[1] y) { c = Constant<value_strings=["a"]>() y = Equal(x, c) }',
    }

    def match(self, m: Match) -> StoredValue:
        output = m.node.outputs[0]
        m.need(not m.index.is_model_output(output), "{} is an output of the model", output)
        stored = m.node.attrs.get("value")
        values = stored._values if isinstance(stored, Constant) else constant_value(m.node)
        m.need(
            values is not None and values.dtype != object,
            "the value is neither a dense tensor nor numbers",
        )
        return StoredValue(values)

    def apply(self, patch: Patch, found: StoredValue) -> None:
        output = patch.root.outputs[0]
        patch.replace_node(patch.root, [patch.constant(found.values, like=output)])


@dataclass(frozen=True)
class FoldedOutputs:
    """The outputs of a node, which are the same in every run."""

    arrays: list[np.ndarray]


class FoldConstants(Rule[FoldedOutputs]):
    """Replaces a node whose results are the same in every run by constants."""

    root = ANY
    fires = "g (float[2] x) => (float[2] y) <float[2] a = {1,2}> { b = Neg(a) y = Add(x, b) }"
    spares = {
        "already a constant": """g (float[2] x) => (float[2] y) {
            b = Constant<value = float {1.0}>() y = Add(x, b) }""",
        "operand `x`": "g (float[2] x) => (float[2] y) { b = Neg(x) y = Add(x, b) }",
        "may differ from run to run": "g (float[2] x) => (float[2] y) { b = RandomNormal<shape=[2]>() y = Add(x, b) }",
        "recognise quantised operators": """g (float[2] x) => (float[2] y)
      <int8[2] a = {1,2}, float s = {0.5}> { b = DequantizeLinear(a, s) y = Add(x, b) }""",
        "more than the": "g (float[4000000] x) => (float[4000000] y) <int64[1] n = {4000000}>"
        + " { b = ConstantOfShape(n) y = Add(x, b) }",
    }

    def match(self, m: Match) -> FoldedOutputs:
        node = m.node
        m.need(node.outputs and not m.index.is_unused(node), "nothing reads the result")
        m.need(node.op != "Constant" or bool(node.domain), "it is already a constant")
        m.need(
            node.op != "DequantizeLinear" or bool(node.domain),
            "runtimes recognise quantised operators by their DequantizeLinear",
        )
        m.need(
            is_pure(node, m.index),
            "the result may differ from run to run, or the operator is not known",
        )
        arrays = _known_outputs(m) or _evaluated_outputs(m)
        for output, array in zip(node.outputs, arrays):
            m.need(not m.index.is_model_output(output), "{} is an output of the model", output)
            m.need(
                not _is_zero_divisor(m, output, array),
                "a node divides by {}, which is 0: onnxruntime would refuse the model",
                output,
            )
        return FoldedOutputs(arrays)

    def apply(self, patch: Patch, found: FoldedOutputs) -> None:
        values = [
            patch.constant(array, like=output) if patch.index.use_count(output) else None
            for output, array in zip(patch.root.outputs, found.arrays)
        ]
        patch.replace_node(patch.root, values)


def _is_zero_divisor(m: Match, tensor: Tensor, array: np.ndarray) -> bool:
    """Whether a node divides integers by this constant, which has a 0.

    The node may stand in a branch that no run takes.
    """
    if array.dtype.kind not in "iu" or array.all():
        return False
    return any(
        isinstance(reader, Node) and reader.op in ("Div", "Mod") and slot == 1
        for reader, slot in m.index.uses(tensor)
    )


def _known_outputs(m: Match) -> list[np.ndarray] | None:
    """The outputs that follow from facts without the operands, as those of a Shape; or None."""
    arrays = []
    for tensor in m.node.outputs:
        value = m.facts.constant(tensor) if tensor.name else np.empty(0)
        if value is None:
            return None
        arrays.append(value)
    return arrays


def _evaluated_outputs(m: Match) -> list[np.ndarray]:
    """The outputs on constant operands.

    Raises Miss if an operand is not constant, or an output is large or cannot be computed.
    """
    node = m.node
    m.need(not bodies(node), "it has bodies")
    operands: list[np.ndarray | None] = []
    for tensor in node.inputs:  # check all operands before reading any: weights may be large
        known = not tensor.name or m.facts.is_constant(tensor)
        m.need(known, "operand {} is not constant", tensor, at=tensor)
    for tensor in node.inputs:
        value = m.facts.constant(tensor) if tensor.name else None
        m.need(value is not None or not tensor.name, "{} cannot be read", tensor, at=tensor)
        operands.append(value)
    # An operand that is read twice counts once: else Concat(a, a) could double for ever.
    replaced = dict(zip(node.inputs, operands))
    budget = max(m.options.fold_bytes, sum(a.nbytes for a in replaced.values() if a is not None))
    for tensor in node.outputs:
        size = _bytes(m, tensor) if tensor.name else 0
        size = m.need(size, "the size of {} is not known", tensor, at=tensor)
        m.need(size <= budget, "the result has {} bytes, more than the {} allowed", size, budget)
        total, most = m.index.added_bytes + size, m.options.all_fold_bytes
        m.need(total <= most, "all new constants would have {} bytes, more than {}", total, most)
    try:
        return evaluate(node, operands, m.facts.opsets)
    except NotEvaluated as error:
        raise Miss("evaluating it fails: {}", error, at=node) from None


def _bytes(m: Match, tensor: Tensor) -> int | None:
    """The size of a tensor in bytes; None if its type or shape is not known."""
    fact = m.facts.of(tensor)
    if fact.shape is None or not fact.dtype or fact.kind != "tensor":
        return None
    dims = [d for d in fact.shape if isinstance(d, int)]
    if len(dims) < len(fact.shape):
        return None
    size = onnx.helper.tensor_dtype_to_np_dtype(fact.dtype).itemsize
    return math.prod(dims) * size


@dataclass(frozen=True)
class EqualConstants:
    """Two constants of one graph with the same type, shape and content."""

    repeated: Constant
    kept: Constant


class DeduplicateConstants(Rule[EqualConstants]):
    """Merges equal constants of one graph."""

    root = ANY
    fires = (
        "g (float[2] x) => (float[2] y) <float[2] a = {1,2}, float[2] b = {1,2}>"
        " { t = Mul(x, a) y = Add(t, b) }"
    )
    spares = {
        "no other constant": "g (float[2] x) => (float[2] y) <float[2] a = {1,2}, float[2] b = {1,3}>"
        + " { t = Mul(x, a) y = Add(t, b) }",
    }

    def match(self, m: Match) -> EqualConstants:
        for tensor in m.node.inputs:
            if isinstance(tensor, Constant) and not m.index.is_model_output(tensor):
                twin = m.facts.value_numbering.equal_constant(tensor)
                if twin is not None:
                    return EqualConstants(tensor, twin)
        raise Miss("this graph has no other constant with the same content", at=m.node)

    def apply(self, patch: Patch, found: EqualConstants) -> None:
        patch.merge_constant(found.repeated, found.kept)
