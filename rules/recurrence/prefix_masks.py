"""Masks of which the user says that each row is true for its first steps and false after.

   d = Sub(1, mask)    Loop(…) { m_t = Gather(mask, i)  d_t = Gather(d, i)  h' = m_t*new + d_t*h }

Whatever is computed from such a mask element by element is one number within the length of a row
and another one beyond it. The length is the number of true elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from onnx import helper

from ...rewrite.facts.counted_loop import SliceRead
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.purity import TOTAL_ELEMENTWISE
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.running.evaluate import NotEvaluated, evaluate
from .length_reads import Comparison, Length, axis_before


def asserted_outside(facts: Facts, read: SliceRead) -> Comparison | None:
    """The length that the mask of which iteration i reads the slice for i has by assertion; None
    where it is other data, or a mask along another axis.
    """
    for tensor, axis, acting in origins(facts, read) if facts.prefix_masks else ():
        if facts.prefix_masks.get(tensor) == axis:
            sides, known = _sides(facts, tensor, acting[::-1]), ([1, 0], [0, 1])
            return (Length(tensor, counted=axis), sides == [1, 0]) if sides in known else None
    return None


def asserted_otherwise(facts: Facts, reads: Iterable[SliceRead]) -> tuple[Tensor, int, int] | None:
    """A mask that is asserted to be one along another axis than a loop steps along, with the axis
    of the assertion and that of the loop.
    """
    for read in reads if facts.prefix_masks else ():
        for tensor, axis, _ in origins(facts, read):
            asserted = facts.prefix_masks.get(tensor, axis)
            if asserted != axis:
                return tensor, asserted, axis
    return None


def origins(facts: Facts, read: SliceRead) -> Iterator[tuple[Tensor, int, list[Node]]]:
    """From what a loop reads in its order back to what that is computed from element by element:
    each value, its axis that the loop steps along, and the operators behind it, the last one first.
    """
    tensor, axis = read.sequence, read.axis
    acting: list[Node] = []
    while not read.reverse:
        yield tensor, axis, acting
        node = facts.index.producer(tensor)
        if node is None or node.domain:
            return
        operand = _only_operand(facts, node)
        if operand is not None:
            acting.append(node)
            tensor = operand
            continue
        before = axis_before(facts, node, axis)
        if before is None:
            return
        tensor, axis = node.inputs[0], before


def _only_operand(facts: Facts, node: Node) -> Tensor | None:
    """What an operator acts on element by element, together with single numbers alone."""
    if node.op not in TOTAL_ELEMENTWISE:
        return None
    operands = {tensor for tensor in node.inputs if not _is_number(facts, tensor)}
    operand = operands.pop() if len(operands) == 1 else None
    shape = None if operand is None else facts.shape(operand)
    return operand if shape is not None and shape == facts.shape(node.outputs[0]) else None


def _is_number(facts: Facts, tensor: Tensor) -> bool:
    shape = facts.shape(tensor)
    return facts.is_constant(tensor) and shape is not None and all(n == 1 for n in shape)


def _sides(facts: Facts, mask: Tensor, acting: Sequence[Node]) -> list[float]:
    """What operators one behind the other make of true and of false; empty if it is not known."""
    values = np.array([1, 0]).astype(helper.tensor_dtype_to_np_dtype(facts.dtype(mask)))
    for node in acting:
        numbers = (facts.constant(t) if _is_number(facts, t) else None for t in node.inputs)
        operands = [values if number is None else number.reshape(1) for number in numbers]
        try:
            (values,) = evaluate(node, operands, facts.opsets)
        except NotEvaluated:
            return []
    return [float(value) for value in values]
