"""Changes ONNX's test models of single operators at random, and imports them.

    python -m tests.hostile.mutations FIRST COUNT

Prints the number of each model before its import. A model is a function of its number: seeds from
FIRST on. Ends with a traceback where an import raises anything but an error of looplift, and with
the signal where TVM or onnxruntime crashes or an import takes too long.
"""

from __future__ import annotations

import logging
import random
import signal
import sys
import warnings
from collections.abc import Callable, Sequence

import onnx
from onnx import AttributeProto, TensorProto

import looplift
from looplift.rewrite.errors import LoopliftError

from ..node_cases import all_node_cases

MOST_SECONDS = 30
"""An import that takes longer hangs."""
_LARGEST = 100_000
"""The bytes of a model at most."""
_NUMBERS = (0, 1, -1, 2, 3, 7, -9, 2**31, -(2**31), 2**63 - 1, -(2**63))
_SIZES = (0, 1, 2, 3, 5, 2**31, 2**40)
_FLOATS = (0.0, -1.0, 0.5, 1e30, float("inf"), float("nan"))
_KINDS = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.STRING,
)
_OPSETS = (1, 7, 9, 10, 11, 13, 18, 22)


def mutated(models: Sequence[onnx.ModelProto], seed: int) -> onnx.ModelProto:
    """One of the models with up to three changes. The shapes of its results are left open."""
    choice = random.Random(seed)
    model = onnx.ModelProto()
    model.CopyFrom(choice.choice(models))
    for _ in range(choice.randint(1, 3)):
        choice.choice(_CHANGES)(model, choice)
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return model


def _change_attribute(model: onnx.ModelProto, choice: random.Random) -> None:
    attributes = [a for node in model.graph.node for a in node.attribute]
    if not attributes:
        return
    attribute = choice.choice(attributes)
    if attribute.type == AttributeProto.INT:
        attribute.i = choice.choice(_NUMBERS)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = choice.choice(_FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = choice.choice((b"", attribute.s[:-1], attribute.s + b"x", attribute.s[::-1]))
    elif attribute.type == AttributeProto.INTS:
        numbers = [*attribute.ints, choice.choice(_NUMBERS)]
        choice.shuffle(numbers)
        attribute.ints[:] = numbers[: choice.randint(0, len(numbers))]


def _change_operand(model: onnx.ModelProto, choice: random.Random) -> None:
    node = choice.choice(model.graph.node)
    if not node.input:
        return
    place = choice.randrange(len(node.input))
    if choice.random() < 0.2:
        node.input.append(node.input[place])
    else:
        node.input[place] = choice.choice(("", *node.input))


def _change_shape(model: onnx.ModelProto, choice: random.Random) -> None:
    tensors = [v.type.tensor_type for v in model.graph.input if v.type.HasField("tensor_type")]
    if not tensors:
        return
    tensor = choice.choice(tensors)
    sizes = tensor.shape.dim
    change = choice.random()
    if change < 0.1:
        tensor.ClearField("shape")
    elif change < 0.2 and sizes:
        del sizes[-1]
    elif change < 0.3:
        sizes.add().dim_value = choice.choice(_SIZES)
    elif change < 0.6 and sizes:
        choice.choice(sizes).dim_value = choice.choice(_SIZES)
    elif change < 0.9 and sizes:
        choice.choice(sizes).dim_param = choice.choice("NM")
    else:
        tensor.elem_type = choice.choice(_KINDS)


def _change_opset(model: onnx.ModelProto, choice: random.Random) -> None:
    model.opset_import[0].version = choice.choice(_OPSETS)


_CHANGES: Sequence[Callable[[onnx.ModelProto, random.Random], None]] = (
    _change_attribute,
    _change_attribute,
    _change_operand,
    _change_shape,
    _change_shape,
    _change_opset,
)


def main() -> None:
    """Imports the models that the command line names."""
    first, count = map(int, sys.argv[1:])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    models = [c.model for c in all_node_cases() if c.model.ByteSize() < _LARGEST]
    for seed in range(first, first + count):
        sys.stdout.write(f"{seed}\n")
        sys.stdout.flush()
        signal.alarm(MOST_SECONDS)
        try:
            looplift.from_onnx(mutated(models, seed))
        except LoopliftError as error:
            if "\n" in str(error):
                raise


if __name__ == "__main__":
    main()
