"""Chooses between channels first and last for each image between kernels, by a minimum cut.

    conv (1x1) -> depthwise -> conv (1x1)        in NCHW, or all three in NHWC

With channels last, a convolution with a single tap is a product of matrices, and windows over each
channel read vectors of channels where they are. Others, such as convolutions of many taps, have
faster kernels with channels first. Kernels that compute elementwise take both. TVM's ConvertLayout
converts operators whatever it costs; here the layouts with the least estimated time are a minimum
cut of the graph of kernels, in which an edge costs the time to transpose the image on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ...values import Constant
from ..relax.dataflow import with_body
from ..relax.kernel_arguments import called_kernels
from ..relax.packing import constant_operands
from ..relax.usual_sizes import estimate, estimated_elements, usual_sizes
from .image_kernels import MOVING, ImageKernel, channels_first, channels_last, image_kernel
from .minimum_cut import UNLIMITED, LabelCosts

_CALL_TIR = ir.Op.get("relax.call_tir")


def choose_image_layouts(module: tvm.IRModule) -> tvm.IRModule:
    """The module with channels last in images where that is estimated to save more time than the
    transpositions take.

    For fused kernels without a schedule. Parameters and results of functions keep their layout.
    """
    constants = constant_operands(module)
    kernels: dict[Any, ImageKernel] = {}
    for variable in called_kernels(module):
        found = image_kernel(module[variable], constants.get(variable, set()))
        if found is not None:
            kernels[variable] = found
    layouts = _Layouts(module, kernels)
    functions = [
        (variable, layouts.of_function(function))
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr)
    ]
    if not layouts.changes:
        return module
    module = layouts.builder.get()
    for variable, function in functions:
        module[variable] = function
    module = relax.transform.LegalizeOps()(relax.transform.Normalize()(module))
    return relax.transform.DeadCodeElimination()(module)


@dataclass
class _Image:
    """A tensor that kernels could read or write with channels last."""

    producer: Any = None
    """The call that can write it so; None if none can."""
    consumers: list[Any] = field(default_factory=list)
    """The calls that can read it so."""
    is_read_otherwise: bool = False
    """Whether anything else reads it."""


class _Layouts:
    """Rewrites functions to the chosen layouts."""

    def __init__(self, module: tvm.IRModule, kernels: Mapping[Any, ImageKernel]) -> None:
        self.builder = relax.BlockBuilder(module)
        self.changes = False
        """Whether a kernel has channels last."""
        self._kernels = kernels
        self._last: dict[Any, Any] = {}
        """The kernels with channels last, by those with channels first."""

    def of_function(self, function: relax.Function) -> relax.Function:
        """The function with channels last in some images of its outermost blocks."""
        sizes = usual_sizes(function.body)
        parts = [*function.body.blocks, function.body.body]
        mentions: dict[int, set[int]] = defaultdict(set)
        """The parts that mention a variable, by its hash, which is its address."""
        for number, part in enumerate(parts):
            for variable in _variables([part]):
                mentions[hash(variable)].add(number)
        shared = {variable for variable, numbers in mentions.items() if len(numbers) > 1}
        blocks = [self._of_block(block, shared, sizes) for block in function.body.blocks]
        return with_body(function, relax.SeqExpr(blocks, function.body.body))

    def _of_block(self, block: Any, shared: set[int], sizes: Mapping[Any, int]) -> Any:
        if not isinstance(block, relax.DataflowBlock):
            return block
        images = self._images(block, shared)
        chosen = self._chosen(block, images, sizes)
        if not chosen:
            return block
        self.changes = True
        return _Rewriter(self, block, chosen, images).block()

    def kernel_of(self, binding: Any) -> ImageKernel | None:
        """The kernel that a binding calls, if it is one on images."""
        call = binding.value
        if not isinstance(call, ir.Call) or not call.op.same_as(_CALL_TIR):
            return None
        kernel = self._kernels.get(call.args[0])
        if kernel is None or not isinstance(call.args[1], relax.Tuple) or len(call.args) > 2:
            return None
        operands = call.args[1].fields
        images = [operands[place].ty for place in kernel.places if place < len(operands)]
        has_shapes = all(isinstance(image.shape, relax.ShapeExpr) for image in images)
        return kernel if has_shapes else None

    def last(self, variable: Any) -> Any:
        """The variable of a kernel with channels last."""
        if variable not in self._last:
            kernel = self._kernels[variable].with_channels_last()
            self._last[variable] = self.builder.add_func(kernel, f"{variable.name_hint}_last")
        return self._last[variable]

    def _images(self, block: Any, shared: set[int]) -> dict[int, _Image]:
        """The images of a block by the hashes of their variables, which are their addresses."""
        images: dict[int, _Image] = defaultdict(_Image)
        for binding in block.bindings:
            kernel = self.kernel_of(binding)
            if kernel is None:
                for variable in _variables(binding.value):
                    images[hash(variable)].is_read_otherwise = True
                continue
            operands = binding.value.args[1].fields
            places = kernel.places
            for place, operand in enumerate(operands):
                if isinstance(operand, Constant):
                    continue
                if place in places and isinstance(operand, relax.Var):
                    images[hash(operand)].consumers.append(binding)
                else:
                    for variable in _variables(operand):
                        images[hash(variable)].is_read_otherwise = True
            if len(operands) in places:
                images[hash(binding.var)].producer = binding
        for key, image in images.items():
            image.is_read_otherwise |= key in shared
        return images

    def _chosen(
        self, block: Any, images: Mapping[int, _Image], sizes: Mapping[Any, int]
    ) -> set[Any]:
        """The calls whose images have channels last, by the hashes of their variables."""
        costs = LabelCosts()
        gains = False
        for binding in block.bindings:
            kernel = self.kernel_of(binding)
            if kernel is not None:
                gain = estimate(kernel.gain, _sizes_of_call(kernel.kernel, binding, sizes))
                gains |= gain > 0
                costs.if_false(hash(binding.var), max(gain, 0))
                costs.if_true(hash(binding.var), max(-gain, 0))
        if not gains:
            return set()
        shapes = {hash(v): v.ty for v in _variables([block])}
        for key, image in images.items():
            if not image.consumers and image.producer is None:
                continue
            elements = estimated_elements(shapes[key].shape.values, sizes)
            self._add_edges(costs, key, image, MOVING * elements)
        return costs.cheapest()

    def _add_edges(self, costs: LabelCosts, key: int, image: _Image, cost: float) -> None:
        """Adds the costs of transposing an image, once in each direction."""
        producer = None if image.producer is None else hash(image.producer.var)
        consumers = [hash(consumer.var) for consumer in image.consumers]
        to_first, to_last = (key, "to first"), (key, "to last")
        if producer is not None:
            costs.if_true_and_false(producer, to_first, cost)
            for consumer in consumers:
                costs.if_true_and_false(to_first, consumer, UNLIMITED)
            if image.is_read_otherwise:
                costs.if_true(to_first, UNLIMITED)
        for consumer in consumers:
            costs.if_true_and_false(consumer, to_last, UNLIMITED)
        if producer is None:
            costs.if_true(to_last, cost)
        else:
            costs.if_true_and_false(to_last, producer, cost)


class _Rewriter:
    """Rewrites a block: the chosen calls get channels last, and transpositions what they need."""

    def __init__(
        self, layouts: _Layouts, block: Any, chosen: set[Any], images: Mapping[int, _Image]
    ) -> None:
        self._layouts = layouts
        self._block = block
        self._chosen = chosen
        self._images = images
        self._bindings: list[Any] = []
        self._last: dict[int, Any] = {}
        """The images with channels last, by the hashes of those with channels first."""

    def block(self) -> Any:
        """The block with transpositions where layouts differ."""
        for binding in self._block.bindings:
            if self._is_chosen(binding):
                self._rewrite(binding)
            else:
                self._bindings.append(binding)
        return relax.DataflowBlock(self._bindings)

    def _is_chosen(self, binding: Any) -> bool:
        return hash(binding.var) in self._chosen and self._layouts.kernel_of(binding) is not None

    def _rewrite(self, binding: Any) -> None:
        call = binding.value
        kernel = self._layouts.kernel_of(binding)
        assert kernel is not None, "chosen calls are calls of kernels on images"
        operands = list(call.args[1].fields)
        for place in kernel.places:
            if place < len(operands):
                operands[place] = self._with_channels_last(operands[place])
        gives_image = len(operands) in kernel.places
        of_result = _last_type(binding.var.ty) if gives_image else call.ty_args[0]
        result = relax.call_tir(
            self._layouts.last(call.args[0]), relax.Tuple(operands), out_ty=of_result
        )
        if not gives_image:
            self._bindings.append(relax.VarBinding(binding.var, result))
            return
        last = self._bind(f"{binding.var.name}_last", of_result, result)
        self._last[hash(binding.var)] = last
        image = self._images[hash(binding.var)]
        if image.is_read_otherwise or not all(map(self._is_chosen, image.consumers)):
            axes = channels_first(range(len(of_result.shape.values)))
            first = relax.op.permute_dims(last, axes)
            self._bindings.append(relax.VarBinding(binding.var, first))

    def _with_channels_last(self, operand: Any) -> Any:
        if isinstance(operand, Constant):
            value = operand.value.numpy()
            return relax.const(np.ascontiguousarray(np.moveaxis(value, 1, -1)))
        if hash(operand) not in self._last:
            axes = channels_last(range(len(operand.ty.shape.values)))
            last = relax.op.permute_dims(operand, axes)
            self._last[hash(operand)] = self._bind(
                f"{operand.name}_last", _last_type(operand.ty), last
            )
        return self._last[hash(operand)]

    def _bind(self, name: str, type_: Any, value: Any) -> Any:
        variable = relax.DataflowVar(name, type_)
        self._bindings.append(relax.VarBinding(variable, value))
        return variable


def _last_type(type_: Any) -> Any:
    return relax.TensorType(relax.ShapeExpr(channels_last(list(type_.shape.values))), type_.dtype)


def _variables(expressions: Sequence[Any]) -> list[Any]:
    """The Relax variables in expressions or blocks."""
    found: list[Any] = []

    def visit(variable: Any) -> None:
        if isinstance(variable, relax.Var):
            found.append(variable)

    tvm_ffi.structural_walk(expressions, (ir.Var, visit))
    return found


def _sizes_of_call(kernel: tirx.PrimFunc, binding: Any, sizes: Mapping[Any, int]) -> dict[Any, int]:
    """The sizes of a kernel for a call of it."""
    operands = binding.value.args[1].fields
    types = [*(operand.ty for operand in operands), binding.value.ty_args[0]]
    found: dict[Any, int] = {}
    for param, type_ in zip(kernel.params, types, strict=False):
        given = getattr(getattr(type_, "shape", None), "values", None) or ()
        for name, size in zip(getattr(param, "shape", ()), given, strict=False):
            if isinstance(name, ir.Var):
                found[name] = int(estimate(size, sizes))
    return found
