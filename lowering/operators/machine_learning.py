"""Feature extraction, labels and linear models: operators of ai.onnx.ml, and TfIdfVectorizer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax

from ...rewrite.errors import UnsupportedError
from ..values import Value, as_int
from .broadcasting import dims_of
from .registry import ConverterContext, converts


@converts("ai.onnx.ml::ArrayFeatureExtractor")
def array_feature_extractor(ctx: ConverterContext) -> Value:
    """ArrayFeatureExtractor: elements of the last axis; a vector counts as one row.

    See https://onnx.ai/onnx/operators/onnx_aionnxml_ArrayFeatureExtractor.html.
    """
    data, positions = ctx.inputs[0], ctx.inputs[1]
    if len(dims_of(data, "data")) == 1:
        data = ctx.bb.normalize(relax.op.expand_dims(data, 0))
    flat = ctx.bb.normalize(relax.op.reshape(positions, [-1]))
    return ctx.apply("Gather", data, flat, axis=data.ty.ndim - 1)


@converts("ai.onnx.ml::Binarizer")
def binarizer(ctx: ConverterContext) -> Value:
    """Binarizer, see https://onnx.ai/onnx/operators/onnx_aionnxml_Binarizer.html."""
    data = ctx.inputs[0]
    threshold = relax.const(ctx.attr("threshold", 0.0), data.ty.dtype)
    return ctx.cast(ctx.bb.emit(relax.op.greater(data, threshold)), str(data.ty.dtype))


@converts("ai.onnx.ml::Scaler")
def scaler(ctx: ConverterContext) -> Value:
    """Scaler, see https://onnx.ai/onnx/operators/onnx_aionnxml_Scaler.html."""
    data = ctx.cast(ctx.inputs[0], "float32")
    offset, scale = (_floats(ctx, name) for name in ("offset", "scale"))
    return ctx.apply("Mul", ctx.apply("Sub", data, offset), scale)


@converts("ai.onnx.ml::Normalizer")
def normalizer(ctx: ConverterContext) -> Value:
    """Normalizer: divides each row by its norm; a row whose norm is 0 stays as it is.

    See https://onnx.ai/onnx/operators/onnx_aionnxml_Normalizer.html.
    """
    bb, data = ctx.bb, ctx.cast(ctx.inputs[0], "float32")
    norm = ctx.attr("norm", "MAX")
    if norm == "MAX":
        size = bb.emit(relax.op.max(data, axis=-1, keepdims=True))
    elif norm == "L1":
        size = bb.emit(relax.op.sum(bb.normalize(relax.op.abs(data)), axis=-1, keepdims=True))
    else:
        squares = bb.normalize(relax.op.multiply(data, data))
        size = bb.normalize(relax.op.sum(squares, axis=-1, keepdims=True))
        size = bb.emit(relax.op.sqrt(size))
    is_zero = bb.normalize(relax.op.equal(size, relax.const(0.0)))
    divisor = bb.normalize(relax.op.where(is_zero, relax.const(1.0), size))
    return relax.op.divide(data, divisor)


@converts("ai.onnx.ml::LinearRegressor")
def linear_regressor(ctx: ConverterContext) -> Value:
    """LinearRegressor, see https://onnx.ai/onnx/operators/onnx_aionnxml_LinearRegressor.html."""
    return _transformed(ctx, _linear(ctx, ctx.attr("targets", 1)))


@converts("ai.onnx.ml::LinearClassifier")
def linear_classifier(ctx: ConverterContext) -> Value:
    """LinearClassifier: the label with the highest score of each row, and all scores.

    See https://onnx.ai/onnx/operators/onnx_aionnxml_LinearClassifier.html.
    """
    labels = np.asarray(ctx.attr("classlabels_ints", ()), "int64")
    if not labels.size:
        raise UnsupportedError("the labels are strings, and TVM has no tensors of strings")
    scores = _linear(ctx, len(labels))
    best = ctx.apply("ArgMax", scores, axis=-1, keepdims=0)
    label = ctx.bb.emit(relax.op.take(relax.const(labels, "int64"), best, 0, mode="clip"))
    return relax.Tuple([label, ctx.bb.emit(_transformed(ctx, scores))])


def _linear(ctx: ConverterContext, count: int) -> Value:
    """[n, features] -> [n, count], the sums of products with the coefficients."""
    data = ctx.cast(ctx.inputs[0], "float32")
    if len(dims_of(data, "data")) == 1:
        data = ctx.bb.normalize(relax.op.expand_dims(data, 0))
    weights = np.asarray(ctx.attrs["coefficients"], "float32")
    width = as_int(dims_of(data, "data")[-1])
    if width is None:
        raise UnsupportedError("the number of features is not known")
    if weights.size != count * width:
        # Two labels may share one row of coefficients: the scores are then s and 1 - s, or -s.
        raise UnsupportedError(
            f"there are {weights.size} coefficients for {count} results of {width} features"
        )
    matrix = np.ascontiguousarray(weights.reshape(count, -1).T)
    result = ctx.bb.emit(relax.op.matmul(data, relax.const(matrix)))
    intercepts = ctx.attr("intercepts", ())
    if len(intercepts):
        if len(intercepts) != count:
            raise UnsupportedError(f"there are {len(intercepts)} intercepts for {count} results")
        result = ctx.bb.emit(relax.op.add(result, _floats(ctx, "intercepts")))
    return result


def _transformed(ctx: ConverterContext, scores: Value) -> Value:
    """The scores after `post_transform`."""
    name = ctx.attr("post_transform", "NONE")
    if name == "SOFTMAX":
        return ctx.apply("Softmax", scores, axis=-1)
    if name == "LOGISTIC":
        return ctx.apply("Sigmoid", scores)
    if name != "NONE":
        raise UnsupportedError(f"`post_transform` is {name}, and must be NONE, SOFTMAX or LOGISTIC")
    return scores


def _floats(ctx: ConverterContext, name: str) -> Value:
    """An attribute of numbers as a constant vector."""
    return relax.const(np.asarray(ctx.attrs[name], "float32"))


@converts("TfIdfVectorizer")
def tf_idf_vectorizer(ctx: ConverterContext) -> Value:
    """TfIdfVectorizer of integers, see https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html.

    [n] or [b, n] -> [m] or [b, m]: how often each n-gram of the pool is in a row, with up to
    `max_skip_count` elements left out between two of its elements.
    """
    if "pool_int64s" not in ctx.attrs:
        raise UnsupportedError("the n-grams are strings, and TVM has no tensors of strings")
    bb, mode = ctx.bb, ctx.attr("mode")
    data = ctx.cast(ctx.inputs[0], "int64")
    is_one_row = len(dims_of(data, "data")) == 1
    if is_one_row:
        data = bb.emit(relax.op.expand_dims(data, 0))
    indexes = ctx.attrs["ngram_indexes"]
    if not indexes or min(indexes) < 0 or max(indexes) >= _MOST_RESULTS:
        raise UnsupportedError(f"`ngram_indexes` are not all from 0 to {_MOST_RESULTS - 1}")
    count, strides = max(indexes) + 1, _strides(ctx, data)
    result = relax.const(np.zeros((1, count), "float32"))
    for length, grams, places in _pool(ctx):
        for stride in strides if length > 1 else (1,):
            found = _occurrences(ctx, data, grams, stride)
            # [b, grams] times the matrix that moves each n-gram to its place in the result.
            moved = np.zeros((len(places), count), "float32")
            moved[np.arange(len(places)), places] = 1
            placed = bb.emit(relax.op.matmul(found, relax.const(moved)))
            result = bb.emit(relax.op.add(result, placed))
    if mode == "IDF":
        result = ctx.cast(bb.emit(relax.op.greater(result, relax.const(0.0))), "float32")
    if mode != "TF" and "weights" in ctx.attrs:
        result = bb.emit(relax.op.multiply(result, relax.const(_weights(ctx, count))))
    if is_one_row:
        return relax.op.reshape(result, [count])
    return relax.op.broadcast_to(result, relax.ShapeExpr([dims_of(data, "data")[0], count]))


_MOST_RESULTS = 1 << 20
"""The most elements of a row of TfIdfVectorizer: they are counted by products with constants."""
_MOST_STRIDES = 256
"""The most distances between the elements of an n-gram: there are kernels for each."""


def _strides(ctx: ConverterContext, data: Value) -> Sequence[int]:
    """The distances between two elements of an n-gram in rows [b, n] of the data."""
    most, size = ctx.attr("max_skip_count", 0) + 1, as_int(dims_of(data, "data")[1])
    if size is not None:
        most = min(most, max(size, 1))
    if most > _MOST_STRIDES:
        found, allowed = most - 1, _MOST_STRIDES - 1
        raise UnsupportedError(f"up to {found} elements may be skipped, more than {allowed}")
    return range(1, most + 1)


def _pool(ctx: ConverterContext) -> Iterator[tuple[int, Any, list[int]]]:
    """The n-grams of each length as [k, length], and their places in the result."""
    items = np.asarray(ctx.attrs["pool_int64s"], "int64")
    starts = [*ctx.attrs["ngram_counts"], len(items)]
    places = list(ctx.attrs["ngram_indexes"])
    for length, (start, end) in enumerate(itertools.pairwise(starts), 1):
        grams = items[start:end].reshape(-1, length)
        own, places = places[: len(grams)], places[len(grams) :]
        if len(grams) and ctx.attrs["min_gram_length"] <= length <= ctx.attrs["max_gram_length"]:
            yield length, grams, own


def _weights(ctx: ConverterContext, count: int) -> Any:
    """The weight of each element of a row; the attribute has one for each n-gram of the pool."""
    given, places = ctx.attrs["weights"], ctx.attrs["ngram_indexes"]
    if len(given) != len(places):
        raise UnsupportedError(f"there are {len(given)} weights for {len(places)} n-grams")
    weights = np.zeros(count, "float32")
    weights[list(places)] = given
    return weights


def _occurrences(ctx: ConverterContext, data: Value, grams: Any, stride: int) -> Value:
    """How often each row [b, n] has each n-gram [k, length], as float32 [b, k]."""
    bb = ctx.bb
    length = grams.shape[1]
    reach = (length - 1) * stride
    # Padding repeats no element of the pool, so that every window has the full length.
    missing = int(grams.min()) - 1
    padded = bb.emit(relax.op.nn.pad(data, [0, 0, 0, reach], "constant", missing))
    size = dims_of(data, "data")[1]
    equal = None
    for place in range(length):
        part = relax.op.strided_slice(
            padded, [1], [place * stride], [relax.prim_value(size + place * stride)],
            assume_inbound=True,
        )  # fmt: skip
        column = relax.const(grams[:, place].reshape(1, 1, -1))
        same = bb.emit(relax.op.equal(bb.normalize(relax.op.expand_dims(part, 2)), column))
        equal = same if equal is None else bb.emit(relax.op.logical_and(equal, same))
    return ctx.apply("ReduceSum", ctx.cast(equal, "float32"), relax.const([1]), keepdims=0)


@converts("ai.onnx.ml::LabelEncoder")
def label_encoder(ctx: ConverterContext) -> Value:
    """LabelEncoder of numbers: the value of each element's key, or a default.

    See https://onnx.ai/onnx/operators/onnx_aionnxml_LabelEncoder.html.
    """
    keys, values = _table(ctx, "keys"), _table(ctx, "values")
    if not keys.size or keys.shape != values.shape:
        raise UnsupportedError(f"there are {keys.size} keys and {values.size} values")
    keys, first = np.unique(keys, return_index=True)
    if len(keys) < values.size or np.isnan(keys).any():
        raise UnsupportedError("two keys are equal, or a key is NaN")
    data, dtype = ctx.inputs[0], str(values.dtype)
    if str(data.ty.dtype) != str(keys.dtype):
        raise UnsupportedError(f"the data is of {data.ty.dtype}, the keys are of {keys.dtype}")
    known, results = (relax.const(array, str(array.dtype)) for array in (keys, values[first]))
    flat = ctx.bb.normalize(relax.op.reshape(data, [-1]))
    place = ctx.bb.emit(relax.op.bucketize(flat, known, right=False))
    last = relax.const(len(keys) - 1, "int64")
    place = ctx.bb.emit(relax.op.minimum(ctx.cast(place, "int64"), last))
    is_known = ctx.bb.emit(
        relax.op.equal(ctx.bb.emit(relax.op.take(known, place, 0, mode="clip")), flat)
    )
    found = ctx.bb.emit(relax.op.take(results, place, 0, mode="clip"))
    default = relax.const(_default(ctx, dtype), dtype)
    result = ctx.bb.emit(relax.op.where(is_known, found, default))
    return relax.op.reshape(result, relax.ShapeExpr(dims_of(data, "data")))


def _table(ctx: ConverterContext, name: str) -> Any:
    """The keys or values of a LabelEncoder. Raises UnsupportedError for strings."""
    tensor = ctx.attrs.get(f"{name}_tensor")
    if tensor is not None:
        array = numpy_helper.to_array(tensor).ravel()
        if array.dtype.kind in "if":
            return array
    for suffix, dtype in (("int64s", "int64"), ("floats", "float32")):
        if f"{name}_{suffix}" in ctx.attrs:
            return np.asarray(ctx.attrs[f"{name}_{suffix}"], dtype)
    raise UnsupportedError(f"the {name} are strings, and TVM has no tensors of strings")


def _default(ctx: ConverterContext, dtype: str) -> Any:
    """What a LabelEncoder gives for an element that is no key."""
    if "default_tensor" in ctx.attrs:
        return numpy_helper.to_array(ctx.attrs["default_tensor"]).ravel()[0]
    if dtype == "int64":
        return ctx.attr("default_int64", -1)
    if dtype == "float32":
        return ctx.attr("default_float", -0.0)
    raise UnsupportedError(f"there is no default of {dtype}")
