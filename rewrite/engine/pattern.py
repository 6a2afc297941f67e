"""Rules written as two patterns in ONNX text, for straight-line code without control flow.

    class CancelTransposes(PatternRule):
        \"\"\"Removes two Transposes that undo each other.\"\"\"

        pattern = "(x) => (y) { a = Transpose<perm = @p>(x)  y = Transpose<perm = @q>(a) }"
        replacement = "x"

        def guard(self, m, found):
            axes = [found.p[axis] for axis in found.q]
            m.need(axes == sorted(axes), "the axes end up as {}", axes)

The text is the body of an ONNX function (https://onnx.ai/onnx/repo-docs/Syntax.html). `@p` names an
attribute of the operator, whatever its value; an attribute that the pattern does not mention must
have its default. Operands of commutative operators match in either order.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.defs
import onnx.parser
from onnx import AttributeProto, FunctionProto, NodeProto

from ..graph.ir import Node, Tensor
from .edits import can_be_output
from .miss import Miss
from .patch import Patch
from .rule import Match, Rule

COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum"})
"""Operators whose first two operands match in either order."""

_NAMED_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*@(\w+)")
_OPERATOR = re.compile(r"(\w+)\s*<([^>]*)>")
_HEADER = '<domain: "pattern", opset_import: ["" : {opset}]> pattern '


class Bindings:
    """What a pattern matched: tensors and attributes by the names that the pattern gives them."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.attributes: dict[str, Any] = {}
        self.nodes: list[Node] = []
        """The matched nodes, the root first."""

    def __getattr__(self, name: str) -> Any:
        for values in (self.__dict__.get("tensors", {}), self.__dict__.get("attributes", {})):
            if name in values:
                return values[name]
        raise AttributeError(f"the pattern has no tensor or attribute named {name}")

    def copy(self) -> Bindings:
        """An independent copy, for matching with backtracking."""
        other = Bindings()
        other.tensors, other.attributes = dict(self.tensors), dict(self.attributes)
        other.nodes = list(self.nodes)
        return other


class PatternRule(Rule[Bindings]):
    """A rule that replaces one straight-line pattern by another.

    The pattern has one output. `root` follows from it.
    """

    pattern: ClassVar[str] = ""
    """`(x) => (y) { … }`: the nodes that compute y from x, in ONNX text."""
    replacement: ClassVar[str] = ""
    """The name of a tensor of the pattern, or nodes in the form of the pattern with its inputs."""
    normal_form: ClassVar[bool] = False
    """Whether the replacement may have as many nodes as the pattern. The rule must not be able to
    fire on its own result for ever."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.pattern:
            cls.root = parse(cls.pattern).node[-1].op_type

    def guard(self, m: Match, found: Bindings) -> Mapping[str, Any] | None:
        """Declines through `m.need`. May return values that the replacement uses by name.

        A number or array is a constant operand of the replacement, or the attribute `@name`.
        """

    def match(self, m: Match) -> Bindings:
        pattern = parse(self.pattern)
        found = _matched(m, pattern)
        found.attributes.update(self.guard(m, found) or {})
        if "{" not in self.replacement:
            result = m.node.outputs[0]
            m.need(
                not m.index.is_model_output(result)
                or can_be_output(m.index, found.tensors[self.replacement]),
                "{} is an output of the model",
                result,
            )
        return found

    def apply(self, patch: Patch, found: Bindings) -> None:
        root = patch.root
        result = root.outputs[0]
        if "{" in self.replacement:
            new = _build(patch, parse(self.replacement), found)
        else:
            new = found.tensors[self.replacement]
        patch.replace(result, new)
        for node in found.nodes:
            if patch.index.is_unused(node):
                patch.remove(node)
        if self.normal_form:
            patch.toward_normal_form()


@functools.cache
def parse(text: str) -> FunctionProto:
    """A pattern as an ONNX function. Raises ValueError naming what is wrong with it."""
    try:
        typed = _OPERATOR.sub(_with_attribute_types, text)
        header = _HEADER.format(opset=onnx.defs.onnx_opset_version())
        function: FunctionProto = onnx.parser.parse_function(header + typed)
    except (onnx.parser.ParseError, onnx.defs.SchemaError) as error:
        raise ValueError(f"the pattern {text!r} is not ONNX text: {error}") from error
    if len(function.output) != 1 or not function.node:
        raise ValueError(f"the pattern {text!r} does not have nodes and one output")
    if function.output[0] not in function.node[-1].output:
        raise ValueError(f"the last node of the pattern {text!r} does not compute its output")
    return function


def _with_attribute_types(found: re.Match[str]) -> str:
    """Adds the types of named attributes, `perm = @p` -> `perm: ints = @p`, as the parser wants."""
    schema = onnx.defs.get_schema(found[1])

    def typed(attribute: re.Match[str]) -> str:
        kind = schema.attributes[attribute[1]].type.name.lower()
        return f"{attribute[1]}: {kind} = @{attribute[2]}"

    return f"{found[1]}<{_NAMED_ATTRIBUTE.sub(typed, found[2])}>"


# --- matching ---


def _matched(m: Match, pattern: FunctionProto) -> Bindings:
    """The first way in which the pattern matches; raises the Miss of the first that fails."""
    producers = {name: node for node in pattern.node for name in node.output if name}
    first: Miss | None = None
    for order in _orders(pattern):
        attempt = _Attempt(m, producers, order)
        try:
            attempt.node(pattern.node[-1], m.node)
            return attempt.found
        except Miss as miss:
            first = first or miss
    raise first or Miss("the pattern has no nodes", at=m.node)


def _orders(pattern: FunctionProto) -> Iterator[frozenset[str]]:
    """For each way to order commutative operands, the results of the nodes with swapped ones."""
    commutative = [n for n in pattern.node if n.op_type in COMMUTATIVE and len(n.input) == 2]
    for number in range(1 << len(commutative)):
        yield frozenset(
            node.output[0] for place, node in enumerate(commutative) if number >> place & 1
        )


class _Attempt:
    """One attempt to match a pattern with a given order of commutative operands."""

    def __init__(
        self, m: Match, producers: Mapping[str, NodeProto], swapped: frozenset[str]
    ) -> None:
        self._m = m
        self._producers = producers
        self._swapped = swapped
        self.found = Bindings()

    def node(self, expected: NodeProto, node: Node) -> None:
        m = self._m
        m.need(
            len(node.inputs) == len(expected.input),
            "{} has {} operands, not {}",
            node, len(node.inputs), len(expected.input),
            at=node,
        )  # fmt: skip
        self.found.nodes.append(node)
        self._attributes(expected, node)
        for name, tensor in zip(expected.output, node.outputs):
            self._bind(name, tensor)
        names = list(expected.input)
        if expected.output[0] in self._swapped:
            names.reverse()
        for name, tensor in zip(names, node.inputs):
            self._operand(name, tensor)

    def _operand(self, name: str, tensor: Tensor) -> None:
        m = self._m
        if not name:
            m.need(not tensor.name, "{} is given", tensor, at=tensor)
            return
        expected = self._producers.get(name)
        if expected is None or name in self.found.tensors:
            self._bind(name, tensor)
            return
        node = m.producer(tensor, expected.op_type)
        node = m.need(node, "{} is not computed by {}", tensor, expected.op_type, at=tensor)
        slot = list(expected.output).index(name)
        m.need(node.outputs[slot] is tensor, "{} is another output of {}", tensor, node, at=tensor)
        self.node(expected, node)

    def _bind(self, name: str, tensor: Tensor) -> None:
        bound = self.found.tensors.setdefault(name, tensor)
        self._m.need(bound is tensor, "{} and {} differ", bound, tensor, at=tensor)

    def _attributes(self, expected: NodeProto, node: Node) -> None:
        m = self._m
        named = {a.name: a for a in expected.attribute}
        schema = onnx.defs.get_schema(node.op, m.facts.opset)
        for name, formal in schema.attributes.items():
            default = _value(formal.default_value)
            actual = node.attrs.get(name, default)
            wanted = named.get(name)
            if wanted is not None and wanted.ref_attr_name:
                self.found.attributes[wanted.ref_attr_name] = actual
                continue
            value = default if wanted is None else _value(wanted)
            m.need(
                _equal(actual, value),
                "`{}` of {} is {}, not {}",
                name,
                node,
                actual,
                value,
                at=node,
            )


def _value(attribute: AttributeProto) -> Any:
    """The value of an attribute; None where a schema has no default."""
    return onnx.helper.get_attribute_value(attribute) if attribute.type else None


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, bytes) or isinstance(b, bytes):
        a, b = (v.decode() if isinstance(v, bytes) else v for v in (a, b))
    return bool(np.array_equal(a, b)) if isinstance(a, (list, tuple)) else bool(a == b)


# --- replacing ---


def _build(patch: Patch, replacement: FunctionProto, found: Bindings) -> Tensor:
    """Builds the nodes of a replacement before the root; returns their result."""
    result = patch.root.outputs[0]
    emit = patch.builder(result)
    values = dict(found.tensors)
    for node in replacement.node:
        operands = []
        for name in node.input:
            if name not in values:
                values[name] = emit.constant(np.asarray(found.attributes[name]))
            operands.append(values[name])
        attrs = {
            a.name: found.attributes[a.ref_attr_name] if a.ref_attr_name else _value(a)
            for a in node.attribute
        }
        present = {name: value for name, value in attrs.items() if value is not None}
        outputs = emit.outputs(node.op_type, operands, [result] * len(node.output), **present)
        values.update(zip(node.output, outputs))
    return values[replacement.output[0]]
