"""The model in the middle of a rewrite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx

from ..rewrite.engine.engine import Engine
from ..rewrite.facts.assertions import Assertions
from ..rewrite.facts.fact import Fact
from ..rewrite.facts.facts import Facts
from ..rewrite.graph.index import Index
from ..rewrite.graph.ir import Annotation, Constant, Graph, Node, Tensor, Variable
from ..rewrite.storage.model import Model, export_model

Copies = dict[tuple[Graph, Tensor], list[Node]]


def snapshot(engine: Engine) -> onnx.ModelProto:
    """The model that the rewrite would write if it ended here; leaves the rewrite unchanged."""
    return _finished(engine, _Copy(engine), engine.assertions)


def cut_out(
    engine: Engine, nodes: Sequence[Node], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> onnx.ModelProto:
    """A model of some nodes of the main graph, with the initializers that they read."""
    return _finished(engine, _CutOut(engine, nodes, inputs, outputs), Assertions())


def _finished(engine: Engine, copy: _Copy, assertions: Assertions) -> onnx.ModelProto:
    # An engine without rules only does what ends a rewrite: it leaves valid ONNX.
    model = Model(copy.root, engine.model.header, engine.model.base_dir)
    end = Engine(model, (), assertions)
    end.index.added_or_moved.update(copy.newcomers())
    end.body_forms.removed_copies.update(copy.body_output_copies(engine.body_forms.removed_copies))
    end.body_forms.input_conditions.update(copy.constants(engine.body_forms.input_conditions))
    end.body_forms.first_conditions = copy.first_conditions()
    for tensor, fact in copy.facts(engine.facts):
        end.facts.set_fact(tensor, fact)
    end.run()
    return export_model(end.model)


class _Copy:
    """A copy of the live part of a graph, including bodies."""

    def __init__(self, engine: Engine) -> None:
        self._index: Index = engine.index
        self._unread = engine.unused_initializers
        self._first_conditions = {
            loop: condition
            for loop, condition in engine.body_forms.first_conditions.items()
            if loop in engine.index
        }
        self._values: dict[Tensor, Tensor] = {}
        self._nodes: dict[Node, Node] = {}
        self._graphs: dict[Graph, Graph] = {}
        self.root = self._graph(engine.model.graph)

    def newcomers(self) -> dict[Node | Constant, None]:
        """The copies of nodes and constants that are new in their graph, in the order of their
        addition.
        """
        copies = (
            self._nodes.get(each) if isinstance(each, Node) else self._values.get(each)
            for each in self._index.added_or_moved
        )
        return {copy: None for copy in copies if isinstance(copy, (Node, Constant))}

    def body_output_copies(self, copies: Copies) -> Copies:
        """The Identities that are in no graph now and return at the end (see `BodyForms`)."""
        return {
            (self._graphs[body], self._values[source]): [self._node(node) for node in nodes]
            for (body, source), nodes in copies.items()
            if body in self._graphs and source in self._values
        }

    def constants(self, originals: Iterable[Constant]) -> Iterator[Constant]:
        """The copies of constants."""
        for original in originals:
            copy = self._values.get(original)
            if isinstance(copy, Constant):
                yield copy

    def first_conditions(self) -> dict[Node, Constant | None]:
        """The Loops whose first condition is true in the file (see `BodyForms`)."""
        found: dict[Node, Constant | None] = {}
        for loop, condition in self._first_conditions.items():
            copy = None if condition is None else self._values.get(condition)
            if loop in self._nodes and (copy is None or isinstance(copy, Constant)):
                found[self._nodes[loop]] = copy
        return found

    def facts(self, facts: Facts) -> Iterator[tuple[Tensor, Fact]]:
        """The facts of values that the file declares, which the end of a rewrite needs.

        Deriving them again would take more time than everything else.
        """
        declared = {tensor for graph in self._graphs for tensor in graph.output_info}
        for tensor, copy in self._values.items():
            if tensor.info is not None or tensor in declared:
                yield copy, facts.of(tensor)

    def _graph(self, graph: Graph) -> Graph:
        copy = Graph(name=graph.name, doc_string=graph.doc_string)
        self._graphs[graph] = copy
        copy.origin = graph.origin
        copy.inputs = [self._value(tensor) for tensor in graph.inputs]
        copy.initializers = [self._value(constant) for constant in self._stored(graph)]
        copy.nodes = [self._node(n) for n in self._index.nodes_in_order(graph)]
        copy.outputs = [self._value(tensor) for tensor in graph.outputs]
        copy.output_info = {
            self._values[tensor]: info
            for tensor, info in graph.output_info.items()
            if tensor in self._values
        }
        copy.annotations = [self._annotation(each) for each in graph.annotations]
        return copy

    def _stored(self, graph: Graph) -> list[Constant]:
        """The initializers that the graph would be written with, each once."""
        kept = {*self._unread, *self._first_conditions.values()}
        return [
            constant
            for constant in dict.fromkeys(graph.initializers)
            if self._index.home(constant) is graph
            and (self._index.use_count(constant) or constant in kept)
        ]

    def _node(self, node: Node) -> Node:
        inputs = [self._value(tensor) for tensor in node.inputs]
        attrs = {
            name: self._graph(value) if isinstance(value, Graph) else value
            for name, value in node.attrs.items()
        }
        outputs = [self._value(tensor) for tensor in node.outputs]
        copy = Node(node.op, node.name, attrs, inputs, outputs, node.domain)
        copy.origin, copy.order = node.origin, node.order
        self._nodes[node] = copy
        return copy

    def _value(self, tensor: Tensor) -> Tensor:
        copy = self._values.get(tensor)
        if copy is None:
            copy = _copy_of(tensor)
            if tensor.name:  # two nodes do not share an omitted input
                self._values[tensor] = copy
        return copy

    def _annotation(self, annotation: Annotation) -> Annotation:
        def copied(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else self._values.get(tensor, tensor)

        return Annotation(
            annotation.origin,
            copied(annotation.tensor),
            tuple(copied(tensor) for tensor in annotation.parameters),
        )


class _CutOut(_Copy):
    """A copy of some nodes of the main graph."""

    def __init__(
        self,
        engine: Engine,
        nodes: Sequence[Node],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        self._chosen = nodes
        self._interface = inputs, outputs
        self._main = engine.model.graph
        super().__init__(engine)

    def _graph(self, graph: Graph) -> Graph:
        if graph is not self._main:
            return super()._graph(graph)
        copy = Graph(name="cut_out")
        self._graphs[graph] = copy
        inputs, outputs = self._interface
        read = dict.fromkeys(
            tensor
            for node in self._chosen
            for tensor in (*node.inputs, *self._index.captures(node))
            if isinstance(tensor, Constant) and tensor.name
        )
        copy.inputs = [self._value(tensor) for tensor in inputs]
        copy.initializers = [self._value(constant) for constant in read]
        copy.nodes = [self._node(node) for node in self._chosen]
        copy.outputs = [self._value(tensor) for tensor in outputs]
        return copy


def _copy_of(tensor: Tensor) -> Tensor:
    if isinstance(tensor, Constant):
        constant = Constant(tensor.name, tensor._values)
        constant.info = tensor.info
        constant.overridable, constant.listed = tensor.overridable, tensor.listed
        return constant
    variable = Variable(tensor.name, tensor.dtype, tensor.shape)
    variable.info, variable.type = tensor.info, tensor.type
    return variable
