"""Stores of results, and the elementwise operators that were fused after what computes them.

The result of an item lies in a scratch buffer first. From there, vectors of it go through the
*epilogue* into the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.tirx.script import builder as ib

from .affine import Affine, affine, flat_views, int64, static_size
from .blocks import has_scalar_functions, joins_truth_values, may_trap
from .emission import bound, ceil_div, is_false, is_true, prefetch
from .math_functions import is_fast
from .nests import Nest, depends, is_number, loads, substituted, without_loads


class Written(Protocol):
    """What is stored for each element of an output."""

    output: Any
    """The buffer."""

    def indices(self) -> list[Any]:
        """The indices of the output in the variables of the loops."""

    def value(self, element: Any) -> Any:
        """The expression that is stored, in those variables and an element of a product."""


class NestValue:
    """What a nest stores, as `Store` takes it; with an element in place of `replaced`, if given."""

    def __init__(self, nest: Nest, replaced: Any = None) -> None:
        self._nest = nest
        self._replaced = replaced
        self.output = nest.buffer

    def indices(self) -> list[Any]:
        """The indices of the output."""
        return self._nest.indices

    def value(self, element: Any) -> Any:
        """The expression that is stored."""
        if self._replaced is None:
            return self._nest.value

        def replace(part: Any) -> Any:
            return element if tvm_ffi.structural_equal(part, self._replaced) else part

        kind = type(self._replaced)
        return tvm_ffi.structural_map(self._nest.value, (kind, replace), order="pre")


class Epilogue:
    """What becomes of each element of a product before it is stored.

    `output[…] = value(c[…], …)`: the nest that follows the product, or none.
    """

    def __init__(self, product_buffer: Any, c: Sequence[Any], nest: Nest | None) -> None:
        self._source = product_buffer
        self._nest = nest
        self.output = product_buffer if nest is None else nest.buffer
        self._values: dict[Any, Any] = {}
        """The nest's variables in those of the product."""
        if nest is not None:
            load = next(x for x in loads(nest.value) if x.source.same_as(product_buffer))
            for index, value in zip(load.indices, c, strict=True):
                if not isinstance(index, tirx.IntImm):
                    self._values[index] = value
            for variable in nest.spatial:
                self._values.setdefault(variable, int64(0))
        self._c = list(c)

    @property
    def is_identity(self) -> bool:
        """Whether elements are stored as they are."""
        return self._nest is None

    def indices(self) -> list[Any]:
        """The indices of the output in the product's variables."""
        if self._nest is None:
            return self._c
        return [substituted(index, self._values) for index in self._nest.indices]

    def value(self, element: Any) -> Any:
        """The expression that is stored for an element of the product, in its variables."""
        if self._nest is None:
            return element

        def replace(load: Any) -> Any:
            return element if load.source.same_as(self._source) else load

        value = substituted(self._nest.value, self._values)
        return tvm_ffi.structural_map(value, (ir.TensorLoad, replace), order="post")


def epilogue_of(product: Nest, c: Sequence[Any], following: Sequence[Nest]) -> Epilogue | None:
    """The epilogue of a product; None where what follows it is not one elementwise nest."""
    if not following:
        return Epilogue(product.buffer, c, None)
    nest = following[0]
    if len(following) > 1 or nest.reduced or nest.block.init is not None:
        return None
    reads = [load for load in loads(nest.value) if load.source.same_as(product.buffer)]
    if len({tuple(str(index) for index in read.indices) for read in reads}) != 1:
        return None
    plain = [i for i in reads[0].indices if not isinstance(i, tirx.IntImm)]
    variables = nest.spatial
    distinct = len({str(v) for v in plain}) == len(plain)
    inverse = distinct and all(any(v.same_as(x) for x in variables) for v in plain)
    covered = all(
        any(v.same_as(x) for x in plain) or is_number(nest.extent(v), 1) for v in variables
    )
    return Epilogue(product.buffer, c, nest) if inverse and covered else None


class Store:
    """Writes runs of neighbouring elements of a product through an epilogue.

    Columns of several axes count as one, if the output and all that the epilogue reads are laid out
    so; `flattens` says whether they are. `dtype` is the type of the elements.
    """

    def __init__(
        self, epilogue: Written, variables: Sequence[Any], extents: Mapping[Any, Any],
        columns: Sequence[Any], dtype: str = "float32",
    ) -> None:  # fmt: skip
        self._epilogue = epilogue
        self._columns = list(columns)
        self._positions: dict[Any, Affine | None] = {}
        self._views: dict[Any, Any] = {}
        self._variables = list(variables)
        self._extents = extents
        output = epilogue.output
        self._target = affine(list(output.shape), epilogue.indices(), variables)
        element = tirx.Var("element", dtype)
        self._element = element
        self._value = epilogue.value(element)
        self._loads = loads(self._value)
        for load in self._loads:
            self._positions[load] = affine(list(load.source.shape), list(load.indices), variables)
        places = (self._target, *self._positions.values())
        is_affine = all(place is not None for place in places)
        is_vector = not (
            has_scalar_functions(self._value)
            or may_trap(self._value, element)
            or joins_truth_values(self._value)
        )
        self.is_storable = is_affine and is_vector
        """Whether all places are affine, and the value can be computed for vectors."""
        self.flattens = self.is_even(self._columns)

    def is_even(self, variables: Sequence[Any]) -> bool:
        """Whether all places move by one step for each value of variables counted as one."""
        # A value that depends on the place itself (a triangle) needs the index on each axis.
        apart = without_loads(self._value)
        if not self.is_storable or (len(variables) > 1 and depends(apart, self._variables)):
            return False
        places = (self._target, *self._positions.values())
        return all(
            len(place.evenly_spaced(variables, self._extents.__getitem__)) == len(variables)
            for place in places
            if place is not None
        )

    @property
    def is_contiguous(self) -> bool:
        """Whether neighbouring columns are neighbours in the output."""
        return self._target is not None and is_number(self._target.of(self._columns[-1]), 1)

    @property
    def is_vector(self) -> bool:
        """Whether all that is read is read in order along the last axis, or is the same there."""
        steps = [p.of(self._columns[-1]) for p in self._positions.values() if p is not None]
        return all(static_size(step) in (0, 1) for step in steps)

    @property
    def written(self) -> Any:
        """The buffer that is written."""
        return self._epilogue.output

    @property
    def buffers(self) -> list[Any]:
        """The buffers that are written and read."""
        return [self._epilogue.output, *(load.source for load in self._loads)]

    def declare(self, views: Mapping[Any, Any] | None = None) -> None:
        """Declares flat views of the buffers that `views` lacks, where all stores see them."""
        self._views = flat_views(self.buffers, views)

    @property
    def is_in_place(self) -> bool:
        """Whether what is written is read, too, as in what `call_tir_inplace` calls."""
        return any(load.source.same_as(self._epilogue.output) for load in self._loads)

    def step(self, variable: Any) -> Any:
        """The distance in the output between neighbours along a variable."""
        assert self._target is not None
        return self._target.of(variable)

    def target(self, values: Mapping[Any, Any]) -> Any:
        """The position of an element in the flat output."""
        assert self._target is not None
        return self._target.at(values)

    @property
    def output(self) -> Any:
        """The flat view of the output."""
        return self._views[self._epilogue.output]

    def run(
        self,
        values: Mapping[Any, Any],
        count: Any,
        element: Callable[[Any], Any],
        lanes: int,
        following: Mapping[Any, Any] | None = None,
        in_tail: Callable[[Any], Any] | None = None,
    ) -> None:
        """Writes `count` elements that follow each other along the last axis of columns.

        `values` are those of the variables at the first element; `element(k)` is the product's
        element k. Fewer than `lanes` elements are read as a whole vector, by `in_tail` if given.
        `following` are those at the first of elements that are written soon: their cache lines are
        prefetched.
        """
        store = partial(self._store, values, element, self._stages(lanes))
        in_tail = element if in_tail is None else in_tail
        count = sym.Analyzer().simplify(count)
        if not self.is_contiguous:
            with ib.serial(count) as offset:
                store(offset, int64(0))
            return
        fills = sym.Analyzer().simplify(count >= int64(lanes))
        if is_false(fills):
            self._run_tail(values, int64(0), count, in_tail, lanes)
        elif self.is_in_place:
            # An element that is written twice would be computed from its result.
            whole = bound(tirx.floordiv(count, lanes))
            with ib.serial(whole) as number, ib.vectorized(int64(lanes)) as lane:
                store(number * lanes + lane, lane)
            self._run_tail(
                values, bound(whole * lanes), bound(count - whole * lanes), element, lanes
            )
        else:
            with ib.If(fills):
                with ib.Then():
                    self._run_vectors(store, count, lanes, following)
                if not is_true(fills):
                    with ib.Else():
                        self._run_tail(values, int64(0), bound(count), in_tail, lanes)

    def _store(
        self,
        values: Mapping[Any, Any],
        element: Callable[[Any], Any],
        stages: Sequence[Any],
        offset: Any,
        lane: Any,
    ) -> None:
        """Writes the element at an offset from `values`, as one lane of a vector."""
        last = self._columns[-1]
        here = {**values, last: values[last] + offset}

        def view(load: Any) -> Any:
            position = self._positions.get(load)
            if position is None:
                return load
            return self._views[load.source][position.at(here)]

        value = tvm_ffi.structural_map(self._value, (ir.TensorLoad, view), order="post")
        value = substituted(value, {**here, self._element: element(offset)})
        value = _in_stages(value, stages, lane)
        ib.buffer_store(self.output, value, [self.target(here)])

    def _run_vectors(
        self,
        store: Callable[[Any, Any], None],
        count: Any,
        lanes: int,
        following: Mapping[Any, Any] | None,
    ) -> None:
        """Writes at least as many elements as a vector has, as vectors.

        The last one ends with the last element: it writes some elements again.
        """
        last = self._columns[-1]
        with ib.serial(ceil_div(count, lanes)) as number:
            first = bound(tirx.min(number * lanes, count - lanes))
            if following is not None:
                place = self.target({**following, last: following[last] + first})
                prefetch(self.output, bound(place), is_write=1, locality=3)
            with ib.vectorized(int64(lanes)) as lane:
                store(first + lane, lane)

    def _stages(self, lanes: int) -> list[Any]:
        """A buffer for the argument of each function in the value that is stored."""
        calls: list[Any] = []
        tvm_ffi.structural_walk(self._value, (ir.Call, calls.append))
        return [ib.alloc_buffer((lanes,), "float32") for call in calls if is_fast(call)]

    def _run_tail(
        self, values: Mapping[Any, Any], first: Any, count: Any,
        element: Callable[[Any], Any], lanes: int,
    ) -> None:  # fmt: skip
        """Writes fewer elements than a vector has, as one vector by way of buffers of that size.

        A loop over single elements would be as right, but LLVM makes a vector loop of it, with a
        loop for its rest, and takes as long over it as over the remaining kernel.
        """
        last = self._columns[-1]
        here = {**values, last: values[last] + first}
        narrow: dict[Any, Any] = {}
        for load in self._loads:
            position = self._positions[load]
            assert position is not None
            step = position.of(last)
            if static_size(step) == 0 or load in narrow:
                continue
            narrow[load] = ib.alloc_buffer((lanes,), str(load.source.dtype))
            _copy(narrow[load], int64(0), self._views[load.source], position.at(here), count, step)
        result = ib.alloc_buffer((lanes,), str(self.output.dtype))
        stages = self._stages(lanes)
        with ib.vectorized(int64(lanes)) as lane:

            def view(load: Any) -> Any:
                if load in narrow:
                    return narrow[load][lane]
                position = self._positions.get(load)
                return load if position is None else self._views[load.source][position.at(here)]

            value = tvm_ffi.structural_map(self._value, (ir.TensorLoad, view), order="post")
            variables = {**here, last: here[last] + lane, self._element: element(first + lane)}
            value = _in_stages(substituted(value, variables), stages, lane)
            ib.buffer_store(result, value, [lane])
        _copy(self.output, self.target(here), result, int64(0), count, int64(1))


def _in_stages(value: Any, stages: Sequence[Any], lane: Any) -> Any:
    """The value, with the arguments of its functions stored in buffers first."""
    free = iter(stages)

    def stage(call: Any) -> Any:
        if not is_fast(call):
            return call
        buffer = next(free)
        ib.buffer_store(buffer, call.args[0], [lane])
        return ir.Call(call.op, [buffer[lane]], ret_ty=call.ty)

    return tvm_ffi.structural_map(value, (ir.Call, stage), order="post")


def _copy(target: Any, to: Any, source: Any, start: Any, count: Any, stride: Any) -> None:
    """Copies elements that lie at a stride in a flat buffer next to each other."""
    with ib.serial(count) as k:
        ib.buffer_store(target, source[start + k * stride], [to + k])


def element_of(scratch: Any, first: Any, offset: Any) -> Any:
    """An element of a scratch buffer, for `Store.run`."""
    return scratch[first + offset]
