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
have its default. Operands of commutative operators match in either order. A Constant of the pattern
matches any value that is known to equal it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.defs
import onnx.parser
from onnx import AttributeProto, FunctionProto, NodeProto

from ..graph.index import Index
from ..graph.ir import Constant, Node, Tensor, Variable
from ..graph.operators import newest_known, operator
from ..storage.attributes import decode
from .edits import can_be_output
from .onnx_text import Edit, edited, explain_syntax_error
from .patch import Patch
from .rule import Match, Rule

Replacement = FunctionProto | str
"""Nodes, or the name of a tensor of the pattern."""
COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum"})
"""Operators whose two operands match in either order."""

_NEWEST = newest_known("")
"""The opset that patterns are written in."""
_NAMED_ATTRIBUTE = re.compile(r"(\w+)\s*(?::\s*\w+\s*)?=\s*@(\w+)")
_OPERATOR = re.compile(r"(\w+)\s*<([^>]*)>")
_HEADER = '<domain: "pattern", opset_import: ["" : {opset}]> pattern\n'


class Bindings:
    """What a pattern matched: tensors and attributes by the names that the pattern gives them."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.attributes: dict[str, Any] = {}
        """The values of named attributes; None where the opset lacks one or it has no default."""
        self.nodes: list[Node] = []
        """The matched nodes, each once, the root first."""

    def __getattr__(self, name: str) -> Any:
        for values in (self.__dict__.get("tensors", {}), self.__dict__.get("attributes", {})):
            if name in values:
                return values[name]
        raise AttributeError(f"the pattern has no tensor or attribute named {name}")


class PatternRule(Rule[Bindings]):
    """A rule that replaces one straight-line pattern by another.

    The pattern has one output. `root` follows from it. A class with an invalid pattern or
    replacement raises ValueError when it is defined.
    """

    pattern: ClassVar[str] = ""
    """`(x) => (y) { … }`: the nodes that compute y from x, in ONNX text. Operands of commutative
    operators, such as Add, match in either order."""
    replacement: ClassVar[str] = ""
    """The name of a tensor of the pattern, or nodes in the form of the pattern with its inputs.
    A matched node with other readers stays, and the rule declines if the graph would not shrink."""
    normal_form: ClassVar[bool] = False
    """Whether the replacement may have as many nodes as the pattern, and the graph need not shrink.
    The rule must not be able to fire on its own result for ever."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.pattern:
            pattern, replacement = parse(cls.pattern), parse_replacement(cls.replacement)
            _check_pattern(cls.pattern, pattern)
            _check_replacement(cls, pattern, replacement)
            cls.root = pattern.node[-1].op_type

    def guard(self, m: Match, found: Bindings) -> Mapping[str, Any] | None:
        """Declines through `m.need`. May return values that the replacement uses by name.

        A number or array is a constant operand of the replacement, or the attribute `@name`. A
        float becomes a scalar of the type of the result, an integer an int64 scalar.
        """

    def match(self, m: Match) -> Bindings:
        pattern, replacement = parse(self.pattern), parse_replacement(self.replacement)
        found = _matched(m, pattern)
        result = found.tensors[pattern.output[0]]
        m.need(m.index.use_count(result) > 0, "nothing reads {}", result)
        found.attributes.update(self.guard(m, found) or {})
        if isinstance(replacement, str) and m.index.is_model_output(result):
            own = can_be_output(m.index, found.tensors[replacement])
            m.need(own, "{} is an output of the model", result)
        if not self.normal_form:
            _need_fewer_nodes(m, found, result, replacement)
        return found

    def apply(self, patch: Patch, found: Bindings) -> None:
        replacement = parse_replacement(self.replacement)
        result = found.tensors[parse(self.pattern).output[0]]
        if isinstance(replacement, str):
            patch.replace(result, found.tensors[replacement])
        else:
            patch.replace(result, _build(patch, replacement, found, result))
        for node in _last_first(patch.index, found.nodes):
            if patch.index.is_unused(node):
                patch.remove(node)
        if self.normal_form:
            patch.toward_normal_form()


# --- reading patterns ---


@functools.cache
def parse(text: str) -> FunctionProto:
    """A pattern as an ONNX function. Raises ValueError naming what is wrong with it."""
    edits = list(_attribute_types_to_add(text))
    try:
        typed = _HEADER.format(opset=_NEWEST) + edited(text, edits)
        function: FunctionProto = onnx.parser.parse_function(typed)
    except onnx.parser.ParseError as error:
        reason = explain_syntax_error(error, text, lines_before=1, edits=edits)
        raise ValueError(f"the pattern {text!r} is not ONNX text: {reason}") from error
    if len(function.output) != 1 or not function.node:
        raise ValueError(f"the pattern {text!r} does not have nodes and one output")
    if function.output[0] not in function.node[-1].output:
        raise ValueError(f"the last node of the pattern {text!r} does not compute its output")
    for node in function.node:
        if node.domain:
            raise ValueError(f"{node.domain}.{node.op_type} is not an operator of ONNX")
        known = _attribute_types(node.op_type)
        for attribute in node.attribute:
            if attribute.name not in known:
                raise ValueError(f"{node.op_type} has no attribute `{attribute.name}`")
            if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                raise ValueError(f"the pattern {text!r} has control flow: {node.op_type}")
    return function


def parse_replacement(text: str) -> Replacement:
    """A replacement as an ONNX function, or the name of a tensor of the pattern as it is."""
    return parse(text) if "{" in text else text


def _attribute_types_to_add(text: str) -> Iterator[Edit]:
    """Adds the types of named attributes, `perm = @p` -> `perm: ints = @p`, as the parser wants."""
    for found in _OPERATOR.finditer(text):
        known = _attribute_types(found[1])
        for attribute in _NAMED_ATTRIBUTE.finditer(text, *found.span(2)):
            if attribute[1] not in known:
                raise ValueError(f"{found[1]} has no attribute `{attribute[1]}`")
            kind = AttributeProto.AttributeType.Name(known[attribute[1]]).lower()
            yield Edit(*attribute.span(), f"{attribute[1]}: {kind} = @{attribute[2]}")


def _attribute_types(op: str) -> Mapping[str, Any]:
    """The AttributeProto types of an operator's attributes. Raises ValueError if ONNX lacks it."""
    found = operator(op, "", _NEWEST)
    if found is None:
        raise ValueError(f"{op} is not an operator of ONNX")
    return found.attributes


def _check_pattern(text: str, pattern: FunctionProto) -> None:
    """Raises ValueError for a pattern that can never match, or that has nodes of no effect."""
    defined = set(pattern.input)
    for node in pattern.node:
        unknown = [name for name in node.input if name and name not in defined]
        if unknown:
            raise ValueError(f"nothing before {node.op_type} in {text!r} defines `{unknown[0]}`")
        defined.update(node.output)
    reserved = sorted(defined & {"tensors", "attributes", "nodes"})
    if reserved:
        raise ValueError(f"`{reserved[0]}` is not a name for a tensor of a pattern: {text!r}")
    read = {*pattern.output, *(name for node in pattern.node for name in node.input)}
    for node in pattern.node:
        if read.isdisjoint(node.output):
            raise ValueError(f"nothing in {text!r} reads the result of {node.op_type}")


def _check_replacement(
    rule: type[PatternRule], pattern: FunctionProto, replacement: Replacement
) -> None:
    """Raises ValueError for a replacement that does not fit the pattern."""
    tensors = {*pattern.input, *(name for node in pattern.node for name in node.output)}
    names = [replacement] if isinstance(replacement, str) else replacement.input
    unknown = [name for name in names if name not in tensors]
    if unknown:
        raise ValueError(f"{rule.__name__} has no tensor `{unknown[0]}` in its pattern")
    new, old = _operators(replacement), _operators(pattern)
    if len(new) >= len(old) and not rule.normal_form:
        raise ValueError(
            f"{rule.__name__} replaces {len(old)} node{'s' * (len(old) != 1)} by {len(new)}: set "
            "normal_form = True if it cannot fire on its own result for ever"
        )


def _operators(function: Replacement) -> list[NodeProto]:
    """The nodes other than constants, which become initializers."""
    return (
        [] if isinstance(function, str) else [n for n in function.node if n.op_type != "Constant"]
    )


def _reads(replacement: Replacement) -> set[str]:
    """The names that a replacement reads and does not define itself."""
    if isinstance(replacement, str):
        return {replacement}
    read: set[str] = set()
    defined: set[str] = set()
    for node in replacement.node:
        read.update(name for name in node.input if name and name not in defined)
        defined.update(node.output)
    return read


# --- matching ---


def _matched(m: Match, pattern: FunctionProto) -> Bindings:
    """The first way in which the pattern matches; raises the Miss of the first that fails."""
    producers = {name: node for node in pattern.node for name in node.output if name}

    def bindings(swapped: frozenset[str]) -> Bindings:
        attempt = _Attempt(m, producers, swapped)
        attempt.match_node(pattern.node[-1], m.node)
        return attempt.found

    return m.first(bindings, _operand_orders(pattern), "the pattern has no nodes")


def _operand_orders(pattern: FunctionProto) -> Iterator[frozenset[str]]:
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

    def match_node(self, expected: NodeProto, node: Node) -> None:
        """Binds what a node of the pattern names. Raises Miss where the node differs."""
        self._need_as_many("operands", expected.input, node.inputs, node)
        self._need_as_many("results", expected.output, node.outputs, node)
        if node not in self.found.nodes:
            self.found.nodes.append(node)
        self._match_attributes(expected, node)
        for name, tensor in zip(expected.output, node.outputs):
            if name:
                self._bind(name, tensor)
        names = list(expected.input)
        if expected.output[0] in self._swapped:
            names.reverse()
        for name, tensor in zip(names, node.inputs):
            self._match_operand(name, tensor)

    def _need_as_many(
        self, kind: str, names: Sequence[str], tensors: Sequence[Tensor], node: Node
    ) -> None:
        """Needs as many operands or results as the pattern; omitted last ones do not count."""
        there = _given([tensor.name for tensor in tensors])
        sentence = "{} has {} {}, not {}"
        self._m.need(there == _given(names), sentence, node, there, kind, _given(names), at=node)

    def _match_operand(self, name: str, tensor: Tensor) -> None:
        m = self._m
        if not name:
            m.need(not tensor.name, "{} is given", tensor, at=tensor)
            return
        m.need(bool(tensor.name), "the operand `{}` of the pattern is omitted", name)
        expected = self._producers.get(name)
        if expected is None or name in self.found.tensors:
            self._bind(name, tensor)
        elif expected.op_type == "Constant":
            wanted, value = _constant_of(expected), m.facts.constant(tensor)
            equal = value is not None and value.dtype == wanted.dtype and _equal(value, wanted)
            m.need(equal, "{} is not known to be {}", tensor, wanted, at=tensor)
            self._bind(name, tensor)
        else:
            op = expected.op_type
            node = m.need(m.producer(tensor, op), "{} is not computed by {}", tensor, op, at=tensor)
            slot = list(expected.output).index(name)
            there = node.outputs[slot] is tensor if slot < len(node.outputs) else False
            m.need(there, "{} is another output of {}", tensor, node, at=tensor)
            self.match_node(expected, node)

    def _bind(self, name: str, tensor: Tensor) -> None:
        bound = self.found.tensors.setdefault(name, tensor)
        self._m.need(bound is tensor, "{} and {} differ", bound, tensor, at=tensor)

    def _match_attributes(self, expected: NodeProto, node: Node) -> None:
        m = self._m
        mentioned = {attribute.name: attribute for attribute in expected.attribute}
        known = _defaults(node.op, m.facts.opset)
        for name in {**known, **mentioned}:
            actual = node.attrs.get(name, known.get(name))
            wanted = mentioned.get(name)
            if wanted is not None and wanted.ref_attr_name:
                value = self.found.attributes.setdefault(wanted.ref_attr_name, actual)
            elif wanted is None:
                value = known[name]
            else:
                value = decode(wanted, "")
                if name not in known:  # an opset without the attribute does as the default says
                    actual = _defaults(node.op)[name]
            sentence = "`{}` of {} is {}, not {}"
            m.need(_equal(actual, value), sentence, name, node, actual, value, at=node)


@functools.cache
def _defaults(op: str, opset: int = _NEWEST) -> dict[str, Any]:
    """The attributes of an operator with their defaults, None where there is none.

    Empty where the opset lacks the operator.
    """
    if operator(op, "", opset) is None:
        return {}
    attributes = onnx.defs.get_schema(op, opset).attributes
    return {
        name: decode(formal.default_value, "") if formal.default_value.type else None
        for name, formal in attributes.items()
    }


def _given(names: Sequence[str]) -> int:
    """The number of names without the empty ones at the end."""
    return max((place + 1 for place, name in enumerate(names) if name), default=0)


def _equal(a: Any, b: Any) -> bool:
    """Whether two values of attributes, or two arrays, are equal."""
    a, b = (value.values if isinstance(value, Constant) else value for value in (a, b))
    if a is None or b is None:
        return a is b
    return bool(np.array_equal(a, b))


def _constant_of(node: NodeProto) -> np.ndarray:
    """The array that a Constant node of a pattern stands for."""
    (attribute,) = node.attribute
    value = decode(attribute, "")
    if isinstance(value, Constant):
        return np.asarray(value.values)
    return np.asarray(value, np.float32 if "float" in attribute.name else np.int64)


def _need_fewer_nodes(m: Match, found: Bindings, result: Tensor, replacement: Replacement) -> None:
    """Declines where so many matched nodes have other readers that the graph would not shrink."""
    index, added = m.index, len(_operators(replacement))
    kept = {found.tensors[name] for name in _reads(replacement) if name in found.tensors}
    removed: list[Node] = []
    shared: Node | None = None
    for node in _last_first(index, found.nodes):
        readers = [use.reader for t in node.outputs if t is not result for use in index.uses(t)]
        if kept.isdisjoint(node.outputs) and all(reader in removed for reader in readers):
            removed.append(node)
        else:
            shared = node
    depth = index.depth(m.graph())
    inner = depth * added - sum(index.depth(index.graph_of(node)) for node in removed)
    smaller = (inner, added - len(removed)) < (0, 0)
    sentence = "the replacement would not be smaller: {} stays for its other readers"
    m.need(smaller or shared is None, sentence, shared, at=shared)
    m.need(smaller, "the replacement would add nodes to the body that the root stands in")


def _last_first(index: Index, nodes: Sequence[Node]) -> list[Node]:
    """Nodes in the order in which they can be removed."""
    return sorted(nodes, key=index.position, reverse=True)


# --- replacing ---


def _build(patch: Patch, replacement: FunctionProto, found: Bindings, result: Tensor) -> Tensor:
    """Builds the nodes of a replacement before the root; returns what takes the result's place."""
    emit = patch.builder(result)
    values = dict(found.tensors)
    for node in replacement.node:
        if node.op_type == "Constant":
            values[node.output[0]] = emit.constant(_constant_of(node))
            continue
        for name in node.input:
            if name and name not in values:
                values[name] = emit.constant(_array(patch, result, getattr(found, name)))
        operands = [values[name] if name else Variable("") for name in node.input]
        attributes = _attributes(patch, node, found)
        outputs = emit.outputs(node.op_type, operands, [result] * len(node.output), **attributes)
        values.update(zip(node.output, outputs))
    return values[replacement.output[0]]


def _array(patch: Patch, result: Tensor, value: Any) -> np.ndarray:
    """A number or array of a guard as a constant."""
    if isinstance(value, float):
        dtype = patch.facts.dtype(result)
        return np.array(value, onnx.helper.tensor_dtype_to_np_dtype(dtype) if dtype else np.float32)
    return np.asarray(value)


def _attributes(patch: Patch, node: NodeProto, found: Bindings) -> dict[str, Any]:
    """The attributes of a new node, without those that are absent or have their default."""
    defaults = {**_defaults(node.op_type), **_defaults(node.op_type, patch.opset)}
    attributes = {
        a.name: getattr(found, a.ref_attr_name) if a.ref_attr_name else decode(a, "")
        for a in node.attribute
    }
    return {
        name: value
        for name, value in attributes.items()
        if value is not None and not _equal(value, defaults.get(name))
    }
