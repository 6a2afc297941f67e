"""Names for computed sizes, so that kernels read them from the shapes of their tensors.

    x: (n, (h - 1) // 2 + 1)                      m = (h - 1) // 2 + 1, checked once
    call_tir(relu, (x, h))              ->        x: (n, m)
                                                  call_tir(relu, (x,))

TVM binds a size of a kernel where a dimension is a variable, and passes it as a number elsewhere.
FuseOps must then leave the kernel alone (see `_keep_scalars_apart`). Later passes prove nothing
about `m`, because the quotient is `m - 1` everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, sym, tirx

from ...values import ANY_SIZE
from ..kernels.nests import substituted
from .dataflow import with_body
from .kernel_arguments import called_kernels, with_other_kernels
from .reshapes import reshapes

ELEMENTWISE, BROADCAST, INJECTIVE, OPAQUE = 0, 1, 2, 8
"""Kinds of kernels for FuseOps, of TVM's `OpPatternKind`.

It fuses kernels up to broadcasts after products, and never opaque ones.
"""
_ONES = tuple(itertools.combinations(range(4), 2))
"""The examples in which each of the first six variables is 1. For any two of them, there is an
example in which the one is 1 and the other is not."""
_SUMS = (tirx.Add, tirx.Sub, tirx.Mul)
_ATOMS = (tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max, tirx.Select, ir.Call)


def name_sizes(module: tvm.IRModule) -> tvm.IRModule:
    """The module with named sizes in functions and kernels, and equal kernels merged.

    Requires that every `match_cast` lies outside of dataflow blocks.
    """
    module = name_kernel_sizes(module)
    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            module[variable] = _with_open_casts(_function_with_named_sizes(function))
    return relax.transform.Normalize()(module)


def name_kernel_sizes(module: tvm.IRModule) -> tvm.IRModule:
    """The module with named sizes in kernels, and equal kernels merged."""
    named = {variable: _named_kernel(module[variable]) for variable in called_kernels(module)}
    return with_other_kernels(
        module,
        {
            variable: (kernel, partial(_at, places))
            for variable, (kernel, places) in named.items()
            if not kernel.same_as(module[variable])
        },
    )


def _at(places: Sequence[int], arguments: Sequence[Any]) -> list[Any]:
    """The arguments at the places of parameters; parameters after them are for results."""
    return [arguments[place] for place in places if place < len(arguments)]


@dataclass
class _Names:
    """The names of computed sizes of a function or kernel."""

    dimensions: set[Any]
    """The variables that are sizes of tensors, and so not negative."""
    sizes: list[tuple[Any, Any]] = field(default_factory=list)
    """Each name with the size that it stands for."""
    _values: dict[int, list[tuple[Any, Any]]] = field(default_factory=dict)
    """Expressions and what replaces them, by structural hash."""
    _names: dict[tuple[int, ...], list[tuple[Any, Any]]] = field(default_factory=dict)
    """`sizes`, by what they are in the examples."""
    _examples: tuple[dict[Any, Any], ...] = field(default_factory=lambda: ({}, {}, {}, {}, {}))
    """The number that stands for each variable in each example. Broadcast sizes depend on which
    sizes are 1; in the last example, none is."""
    _analyzer: Any = field(default_factory=sym.Analyzer)

    def __post_init__(self) -> None:
        for variable in self.dimensions:
            self._analyzer.bind(variable, ANY_SIZE)

    @property
    def replaces_anything(self) -> bool:
        """Whether a size has a name or a simpler form."""
        return bool(self._values)

    def add(self, size: Any) -> None:
        """Names a size, if it is a sum of one expression that is no polynomial, and of others."""
        if _is_plain(size) or self._value(size) is not None:
            return
        # Once: TVM simplifies some sizes to and fro between two forms.
        simple = self._analyzer.simplify(size)
        self._add_simplified(simple)
        if not tvm_ffi.structural_equal(simple, size):
            self._set(size, self.applied(simple))

    def _add_simplified(self, size: Any) -> None:
        inner = _atoms(size)
        if not inner or self._value(size) is not None:
            return
        # Only sizes that are equal in the examples can be equal, and a proof takes long.
        found = self._in_examples(size)
        for more in (0, 1, -1):
            for name, known in self._names.get(tuple(number - more for number in found), ()):
                if self._analyzer.can_prove_equal(size, known + more):
                    self._set(size, self._analyzer.simplify(name + more))
                    return
        if len(inner) != 1 or self._value(inner[0]) is not None:
            return
        if not any(inner[0].same_as(summand) for summand in _summands(size)):
            return
        rest = self._analyzer.simplify(size - inner[0])
        if _atoms(rest):
            return
        name = self._named(size)
        self._set(inner[0], self._analyzer.simplify(name - rest))

    def add_whole(self, size: Any) -> None:
        """Names a size whatever it is. What is known of the sizes in it is lost for the name."""
        size = self.applied(size)
        if not _is_plain(size) and self._value(size) is None:
            name = self._named(size)
            multiples = [term for term in _summands(size) if isinstance(term, tirx.Mul)]
            if len(multiples) == 1 and not multiples[0].same_as(size):
                rest = self._analyzer.simplify(size - multiples[0])
                if _is_plain(rest):
                    self._set(multiples[0], self._analyzer.simplify(name - rest))

    def _named(self, size: Any) -> Any:
        name = tirx.Var("size", size.ty.dtype)
        self._analyzer.bind(name, ANY_SIZE)
        self.sizes.append((name, size))
        self._names.setdefault(self._in_examples(size), []).append((name, size))
        self._set(size, name)
        return name

    def _in_examples(self, size: Any) -> tuple[int, ...]:
        """The size in each example, or its hash there if it is not a number."""
        for variable in _variables_in_order(size):
            count = len(self._examples[-1])
            if variable in self._examples[-1]:
                continue
            ones = _ONES[count] if count < len(_ONES) else ()
            for place, example in enumerate(self._examples):
                number = 1 if place in ones else 1009 * (count + 1)
                example[variable] = tirx.IntImm("int64", number)
        return tuple(self._number(substituted(size, example)) for example in self._examples)

    def _number(self, size: Any) -> int:
        """The number that an expression of numbers is, or a hash."""
        try:
            simple = self._analyzer.simplify(size)
        except tvm.error.InternalError:  # It divides by 0 in this example.
            simple = size
        return int(simple if isinstance(simple, tirx.IntImm) else tvm_ffi.structural_hash(simple))

    def applied(self, root: Any) -> Any:
        """A function, type or expression with names in place of the sizes."""
        if _is_plain(root):
            return root
        known: dict[int, tuple[Any, Any]] = {}

        def replace(expression: Any) -> Any:
            # The hash of an expression is its address; `==` would build a comparison.
            if hash(expression) not in known:
                known[hash(expression)] = (self._replaced(expression), expression)
            return known[hash(expression)][0]

        return tvm_ffi.structural_map(root, ((*_SUMS, *_ATOMS), replace), order="pre")

    def _replaced(self, expression: Any) -> Any:
        if not _is_size(expression):
            return expression
        value = self._value(expression)
        if value is not None:
            return self._whole(value)
        if isinstance(expression, _SUMS) and any(
            self._value(part) is not None for part in (*_atoms(expression), *_summands(expression))
        ):
            parts = [self.applied(part) for part in (expression.a, expression.b)]
            return self._whole(self._analyzer.simplify(type(expression)(*parts)))
        return expression

    def _whole(self, size: Any) -> Any:
        """The name that `add_whole` gave a size written in other names, or the size itself.

        It names sizes as they are once the names in them stand in their places.
        """
        name = self._value(size)
        return size if name is None else name

    def _value(self, expression: Any) -> Any:
        for known, value in self._values.get(tvm_ffi.structural_hash(expression), ()):
            if tvm_ffi.structural_equal(known, expression):
                return value
        return None

    def _set(self, expression: Any, value: Any) -> None:
        self._values.setdefault(tvm_ffi.structural_hash(expression), []).append((expression, value))


def _is_size(expression: Any) -> bool:
    return str(getattr(expression.ty, "dtype", "")) == "int64"


def _atoms(expression: Any) -> list[Any]:
    """The largest parts of an expression that are not sums, products, variables or numbers."""
    if isinstance(expression, _SUMS):
        return _atoms(expression.a) + _atoms(expression.b)
    return [] if isinstance(expression, (tirx.IntImm, ir.Var)) else [expression]


def _summands(expression: Any) -> list[Any]:
    """What an expression adds up, without what it subtracts."""
    if isinstance(expression, tirx.Add):
        return _summands(expression.a) + _summands(expression.b)
    return _summands(expression.a) if isinstance(expression, tirx.Sub) else [expression]


def _variables(root: Any) -> set[Any]:
    return set(_variables_in_order(root))


def _variables_in_order(root: Any) -> list[Any]:
    """The variables in an expression or statement, in the order of a traversal, each once."""
    if _is_plain(root):
        return [root] if isinstance(root, ir.Var) else []
    found: dict[int, Any] = {}

    def visit(variable: Any) -> None:
        # The hash of a variable is its address; a set would build a comparison for each repetition.
        found[hash(variable)] = variable

    tvm_ffi.structural_walk(root, (ir.Var, visit))
    return list(found.values())


# --- kernels ---


def _named_kernel(kernel: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[int]]:
    """The kernel with named sizes and the places of the parameters that it keeps.

    A kernel whose shapes are not all variables and numbers in the end is not to be fused: FuseTIR
    puts the sizes of the caller in its shapes, and then compares them as they are written. Nor is
    one of types without schedule rules, such as truth values: a convolution with a mask after it
    lost its rule, and Deep Speech 2 took twice the time.
    """
    sizes = [size for param in kernel.params for size in getattr(param, "shape", ())]
    if all(map(_is_plain, sizes)):
        return _without_unused_sizes(kernel)
    names = _Names({size for size in sizes if isinstance(size, ir.Var)})
    for size in sizes:
        names.add(size)
    related = _without_unused_sizes(names.applied(kernel))
    if _has_plain_shapes(related[0]) and _has_rule(kernel):
        return related
    # What reshapes must know how its sizes relate.
    if not reshapes(kernel):
        for size in sizes:
            names.add_whole(size)
        whole = _without_unused_sizes(names.applied(kernel))
        if _has_plain_shapes(whole[0]) and _has_rule(kernel):
            return whole
    return related[0].with_attr("op_pattern", OPAQUE), related[1]


def _has_rule(kernel: tirx.PrimFunc) -> bool:
    """Whether there are schedule rules for the types of a kernel."""
    types = {str(p.dtype) for p in kernel.params if hasattr(p, "shape")}
    return types <= {"float32", "float16", "uint8", "int8", "int32"}


def _is_plain(size: Any) -> bool:
    return isinstance(size, (tirx.IntImm, ir.Var))


def _has_plain_shapes(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel takes tensors only, and every dimension is a variable or a number."""
    return all(hasattr(p, "shape") and all(map(_is_plain, p.shape)) for p in kernel.params)


def _without_unused_sizes(kernel: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[int]]:
    """The kernel without numbers among its parameters that nothing reads; the places of others.

    Its numbers are in the order in which its shapes and then its body read them, because TVM's
    order differs between equal kernels.
    """
    shapes = [list(param.shape) for param in kernel.params if hasattr(param, "shape")]
    places_of_numbers = {
        param: place for place, param in enumerate(kernel.params) if not hasattr(param, "shape")
    }
    read = _variables_in_order([shapes, kernel.body])
    numbers = iter([places_of_numbers[v] for v in read if v in places_of_numbers])
    filled = [
        place if hasattr(param, "shape") else next(numbers, None)
        for place, param in enumerate(kernel.params)
    ]
    places = [place for place in filled if place is not None]
    if places == list(range(len(kernel.params))):
        return kernel, places
    params = [kernel.params[place] for place in places]
    return tirx.PrimFunc(params, kernel.body, kernel.ret_type, attrs=kernel.attrs), places


# --- functions ---


def _function_with_named_sizes(function: relax.Function) -> relax.Function:
    visible = _defined(function)
    sizes: list[Any] = []

    def visit(binding: Any) -> None:
        shape = getattr(binding.var.ty, "shape", None)
        sizes.extend(getattr(shape, "values", None) or ())

    tvm_ffi.structural_walk(function.body, (relax.Binding, visit))
    of_params = [size for param in function.params for size in _tensor_sizes(param.ty)]
    names = _Names({size for size in (*of_params, *sizes) if isinstance(size, ir.Var)})
    taken = _variables([param.ty for param in function.params])
    for size in sizes:
        if _variables(size) <= visible:
            names.add(size)
    computed = [_atoms(size) for p in function.params for size in _sizes(p.ty)]
    if not names.replaces_anything or any(computed):
        return function
    named = names.applied(function.body)
    blocks = list(_with_definitions(named.blocks, names.sizes, taken))
    return with_body(function, relax.SeqExpr(blocks, named.body))


def _with_open_casts(function: relax.Function) -> relax.Function:
    """The function with a `match_cast` only of tensors whose types state no sizes.

    FuseTIR in TVM 0.27 replaces the symbols of one type by those of the other, even before these
    are computed.
    """

    def opened(binding: Any) -> list[Any]:
        given = binding.value.ty if isinstance(binding, relax.MatchCast) else None
        if not isinstance(given, relax.TensorType) or not isinstance(given.shape, relax.ShapeExpr):
            return [binding]
        kind = relax.TensorType(None, given.dtype, ndim=given.ndim)
        copy = relax.op.call_pure_packed("vm.builtin.copy", binding.value, ty_args=[kind])
        open_tensor = relax.Var("any_sizes", kind)
        cast = relax.MatchCast(binding.var, open_tensor, binding.ty)
        return [relax.VarBinding(open_tensor, copy), cast]

    blocks = []
    for block in function.body.blocks:
        bindings = [each for binding in block.bindings for each in opened(binding)]
        unchanged = len(bindings) == len(block.bindings)
        blocks.append(block if unchanged else type(block)(bindings))
    return with_body(function, relax.SeqExpr(blocks, function.body.body))


def _tensor_sizes(type_: Any) -> list[Any]:
    found: list[Any] = []

    def visit(tensor: Any) -> None:
        found.extend(getattr(tensor.shape, "values", None) or ())

    tvm_ffi.structural_walk(type_, (relax.TensorType, visit))
    return found


def _sizes(type_: Any) -> list[Any]:
    found: list[Any] = []

    def visit(shape: Any) -> None:
        found.extend(shape.values or ())

    tvm_ffi.structural_walk(type_, ((relax.ShapeExpr, relax.ShapeType), visit))
    return found


def _defined(function: relax.Function) -> set[Any]:
    """The sizes that are defined in the outermost blocks of a function, or by its parameters."""
    casts = [b.ty for block in function.body.blocks for b in block.bindings
             if isinstance(b, relax.MatchCast)]  # fmt: skip
    types = [*(param.ty for param in function.params), *casts]
    sizes = [size for type_ in types for size in _sizes(type_)]
    return {size for size in sizes if isinstance(size, ir.Var)}


def _with_definitions(
    blocks: Sequence[Any], sizes: Iterable[tuple[Any, Any]], defined: set[Any]
) -> Iterable[Any]:
    """The blocks, with the definition of each name after those of the sizes that it depends on."""
    waiting = list(sizes)

    def ready() -> list[Any]:
        now = [item for item in waiting if _variables(item[1]) <= defined]
        waiting[:] = [item for item in waiting if not _variables(item[1]) <= defined]
        return [_definition(now)] if now else []

    yield from ready()
    for block in blocks:
        rest: list[Any] = []
        for binding in block.bindings:
            rest.append(binding)
            if isinstance(binding, relax.MatchCast):
                defined |= {size for size in _sizes(binding.ty) if isinstance(size, ir.Var)}
                definition = ready()
                if definition:
                    yield type(block)(rest)
                    yield from definition
                    rest = []
        if rest:
            yield type(block)(rest)


def _definition(sizes: Sequence[tuple[Any, Any]]) -> Any:
    """A block that computes sizes and names them.

    By way of a copy: FuseOps puts a size that it knows back in the place of its name.
    """
    computed = relax.Var("computed_sizes", relax.ShapeType(ndim=len(sizes)))
    shape = relax.ShapeExpr([size for _, size in sizes])
    copy = relax.op.call_pure_packed("vm.builtin.copy", shape, ty_args=[computed.ty])
    named = relax.ShapeType([name for name, _ in sizes])
    cast = relax.MatchCast(relax.Var("sizes", named), computed, named)
    return relax.BindingBlock([relax.VarBinding(computed, copy), cast])
