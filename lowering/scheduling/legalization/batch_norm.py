"""Batch normalization in inference as one multiplication and one addition for each element.

    (x - mean) / sqrt(variance + epsilon) * scale + bias    ->    x * factor + shift

`factor` and `shift` have one number for each channel, as in onnxruntime. TVM's
DecomposeOpsForInference keeps the division for each element.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..relax.dataflow import rewritten_functions


def decompose_batch_norms(module: tvm.IRModule) -> tvm.IRModule:
    """Replaces float32 batch normalizations in inference by a multiplication and an addition."""
    return rewritten_functions(_BatchNorms(module), module)


@mutator
class _BatchNorms(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.nn.batch_norm" or call.attrs.training:
            return call
        data, scale, bias, mean, variance = call.args
        # In half precision, `x * factor + shift` cancels where the mean is large.
        if data.ty.ndim < 0 or {str(value.ty.dtype) for value in call.args} != {"float32"}:
            return call
        attrs, op, emit = call.attrs, relax.op, self.builder_.emit
        deviation = emit(op.sqrt(emit(op.add(variance, relax.const(attrs.epsilon, "float32")))))
        ones = relax.const(1.0, "float32")
        factor = emit(op.divide(scale if attrs.scale else ones, deviation))
        shift = emit(op.negative(emit(op.multiply(mean, factor))))
        if attrs.center:
            shift = emit(op.add(bias, shift))
        per_channel = [1] * data.ty.ndim
        per_channel[int(attrs.axis)] = -1
        factor, shift = (emit(op.reshape(value, per_channel)) for value in (factor, shift))
        result = emit(op.add(emit(op.multiply(data, factor)), shift))
        return relax.Tuple([result, mean, variance])

    def visit_var_binding_(self, binding: Any) -> None:
        """Binds a field of a known tuple to its element: FuseOps does not fuse through tuples."""
        value, variable = binding.value, binding.var
        if isinstance(value, relax.TupleGetItem) and isinstance(variable, relax.DataflowVar):
            results = self.visit_expr(value.tuple_value)
            if isinstance(results, relax.Var):
                results = self.lookup_binding(results)
            if isinstance(results, relax.Tuple):
                field = results.fields[value.index]
                if isinstance(field, relax.Var):
                    self.set_var_remap(variable, field)
                    return
        super().visit_var_binding_(binding)
