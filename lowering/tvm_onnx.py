"""The seam: everything looplift takes from the private parts of TVM's ONNX importer.

TVM publishes one function, `tvm.relax.frontend.onnx.from_onnx`; its converters are private. They
cover about 160 operators, so the lowering calls them one at a time instead of repeating them. No
other module may name anything private of TVM; a test checks that what is named here still works.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import tvm

from ..rewrite.errors import UnsupportedError

TvmConverter = Callable[[Any, Any, dict[str, Any], list[Any]], Any]
"""`convert(block_builder, inputs, attributes, [values by name, parameters by name]) -> expression`.

`attributes["tvm_custom"]` holds the node's `name`, its `num_outputs`, and the `opset`.
"""

_MODULE = "tvm.relax.frontend.onnx.onnx_frontend"


def _private(name: str) -> Any:
    """What TVM's importer calls `name`, or an error that says that TVM has changed."""
    try:
        return getattr(importlib.import_module(_MODULE), name)
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"TVM {tvm.__version__} has no {_MODULE}.{name}, which the lowering calls",
            remedy='Install a version it was built for: pip install "apache-tvm>=0.27,<0.28"',
        ) from error


_CONVERTERS: dict[str, Any] = _private("_get_convert_map")()

InputList: Any = _private("onnx_input")
"""The list converters take their inputs in: an index past the end gives None."""

_FOLDS_BROADCASTS = tuple(map(_private, ("BinaryBase", "MultiInputBase", "Equal", "Where")))

EmptyOptional: Any = _private("_EmptyOptional")
"""Stands for an ONNX optional without a value; `type_proto` is its type."""


def operators() -> frozenset[str]:
    """Names of the operators that TVM converts, whatever their domain."""
    return frozenset(_CONVERTERS)


@functools.cache
def converter(op_type: str, opset: int) -> TvmConverter:
    """TVM's converter of an operator, in the version that `opset` asks for."""
    chosen: TvmConverter = _CONVERTERS[op_type].get_converter(opset)
    return chosen


def folds_broadcasts(op_type: str) -> bool:
    """Whether TVM's converter folds the operator with NumPy, broadcasting its inputs."""
    return issubclass(_CONVERTERS[op_type], _FOLDS_BROADCASTS)


def unused_name(bb: Any, name: str) -> str:
    """A name that no function of the module has: `name`, with a number if that is taken."""
    module = bb.get()
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
    return next(each for each in names if each not in module)


@contextmanager
def building_function(
    bb: Any,
    name: str,
    params: Sequence[Any],
    *,
    private: bool,
    pure: bool = True,
    attributes: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[None]:
    """Builds a function; if that fails, leaves the block builder in order.

    Otherwise it would print a warning when it is destroyed. A public function whose name is taken
    gets a number.
    """
    if not private:
        name = unused_name(bb, name)
    with bb.function(name, list(params), dict(attributes), pure, private):
        try:
            yield
        except BaseException:
            bb._end_block()
            bb.end_scope()
            raise
