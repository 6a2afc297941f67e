"""Edits of a graph: each is recorded together with its inverse, so that all can be undone."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import onnx

from ..facts.facts import Facts
from ..graph.declarations import declares_shape, without_shape
from ..graph.index import Index, Use
from ..graph.ir import CONTROL_FLOW, Constant, Graph, LazyArray, Node, Tensor, Variable, bodies
from ..graph.names import scope
from ..graph.operators import operator
from .miss import describe

Place = Node | Graph
"""Where a new node goes: just before a node, or at the end of a graph."""


P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound="Edits")


class PatchError(Exception):
    """A patch that would leave the graph invalid: a defect of the rule that made it."""


def edit(method: Callable[Concatenate[E, P], R]) -> Callable[Concatenate[E, P], R]:
    """Unlocks the graph for a method of a patch; see `graph.guard`."""

    @functools.wraps(method)
    def unlocked(self: E, *args: P.args, **kwargs: P.kwargs) -> R:
        guard = self.index.guard
        locked, guard.locked = guard.locked, False
        try:
            return method(self, *args, **kwargs)
        finally:
            guard.locked = locked

    return cast("Callable[Concatenate[E, P], R]", unlocked)


class Edits:
    """The edits around one root node, which can be undone together."""

    def __init__(self, facts: Facts, root: Node) -> None:
        self.facts = facts
        """The facts of the graph before the patch, and of the values that the patch added."""
        self.index: Index = facts.index
        """Def-use chains, up to date after each edit."""
        self.opset: int = facts.opset
        """The version of the standard operator set, which new nodes are made for."""
        self.root = root
        """The node at which the rule matched."""
        self.log: list[str] = []
        """What was changed, one line per edit."""
        self.notes: list[str] = []
        """What the rewrite relies on beyond the file."""
        self.touched: dict[Node, None] = {}
        """Nodes that are new or read other values than before."""
        self.body_output_changes: dict[Node, list[tuple[Graph, Tensor, Tensor]]] = {}
        """Touched nodes that changed only in their body outputs, each with the changes: the body,
        the value that it returned before, and the value that it returns now."""
        self.shrunk_owners: dict[Node, None] = {}
        """Owners of bodies that nodes left."""
        self.freed: dict[Tensor, None] = {}
        """Values that lost a reader."""
        self.retried: dict[Node, None] = {}
        """Nodes that stay the same, but at which other rules may match now."""
        self.removed: list[Node] = []
        """Removed nodes, including those in bodies of removed nodes."""
        self.changed_outputs: dict[int, None] = {}
        """Outputs of the main graph that changed, by number."""
        self.replaced: list[tuple[Tensor, Tensor]] = []
        """Pairs of a value and the one that its readers read instead."""
        self.copied_outputs: list[Tensor] = []
        """Values that an Identity copies because they became outputs of the model."""
        self.written: list[Node] = []
        """New or changed nodes, whose operators the opset may lack."""
        self.added_constants: list[Constant] = []
        """New constants."""
        self._unnamed_values: set[Tensor] = set()
        """New values without a final name."""
        self._unnamed_nodes: set[Node] = set()
        """New nodes without a final name."""
        self._successors: dict[Tensor, Tensor] = {}
        """For a replaced value, the one that its readers read instead."""
        self.delta: Counter[str] = Counter()
        """The change of each component of the termination measure."""
        self._undo: list[Callable[[], None]] = []
        self.added: set[Node] = set()
        """New and moved nodes."""
        self._first: dict[Graph, Node] = {}
        """The node that was first in each body before the patch."""

    # --- new values ---

    @edit
    def constant(
        self, values: np.ndarray | LazyArray, like: Tensor, graph: Graph | None = None
    ) -> Constant:
        """Adds an initializer, by default to the graph of the root.

        It is named after the first new node that reads it, or the value that it replaces, or else
        after `like`. `values` may be lazy values of a file.
        """
        graph = graph if graph is not None else self.index.graph_of(self.root)
        if isinstance(values, np.ndarray):
            view = values.view()
            view.setflags(write=False)
            values = view
        constant = Constant(self._new_name(like.name), values)
        self._unnamed_values.add(constant)
        graph.initializers.append(constant)
        self.added_constants.append(constant)
        self.index.add_constant(constant, graph)
        self.index.added_bytes += constant._values.nbytes
        self.log.append(f"constant `{constant.name}` {constant.dtype}{list(constant.shape)}")

        def undo() -> None:
            self.index.remove_constant(constant)
            self.index.added_bytes -= constant._values.nbytes
            _drop_last(graph.initializers, constant)

        self._undo.append(undo)
        return constant

    @edit
    def node(
        self,
        op: str,
        inputs: Sequence[Tensor],
        like: Sequence[Tensor],
        attrs: Mapping[str, Any] | None = None,
        before: Place | None = None,
    ) -> list[Tensor]:
        """Adds a node of the standard domain and returns its outputs, one for each of `like`.

        The node belongs to the module of the first of `like` that has one in its name, as in
        `/l/cell/Mul_6_output_0`; the node is then `/l/cell/LSTM`, and its results are named after
        it. An output is omitted where the name in `like` is empty. The node goes to the place
        `before`, by default just before the root.
        """
        check_tensors((*inputs, *like))
        before = before if before is not None else self.root
        module = next(filter(None, (scope(tensor.name) for tensor in (*like, *inputs))), "")
        name = self._new_name(f"{module}{op}")
        outputs = [
            Variable(self._new_name(f"{name}_output_{slot}") if tensor.name else "")
            for slot, tensor in enumerate(like)
        ]
        node = Node(op, name, dict(attrs or {}), list(inputs), outputs, "")
        self._name_operands(node)
        self._unnamed_values.update(outputs)
        self._unnamed_nodes.add(node)
        if isinstance(before, Node):
            self.index.place_before(before, [node])
        else:
            self.index.place_last(before, node)
        self._insert(node, self.home(before))
        self.written.append(node)
        self.log.append(f"new {describe(node)}")
        return list(outputs)

    def _new_name(self, name: str) -> str:
        """A name that no node or value has, made from the given one."""
        names = self.index.names
        new = names.unique(name)
        self._undo.append(lambda: names.release(new))
        return new

    def _name_operands(self, node: Node) -> None:
        """Names new constants after the first new node that reads them: `/l/cell/LSTM.W`."""
        schema = operator(node.op, "", self.opset)
        for slot, tensor in enumerate(node.inputs):
            if schema is None or not schema.inputs or tensor not in self._unnamed_values:
                continue
            if isinstance(tensor, Constant):
                formal = schema.inputs[min(slot, len(schema.inputs) - 1)].name
                self._rename(tensor, self._new_name(f"{node.name}.{formal}"))
                self.index.operand_names.add(tensor)

    def _rename(self, tensor: Tensor, name: str) -> None:
        """Renames a new value, which then keeps that name."""
        self._unnamed_values.discard(tensor)
        self._set_name(tensor, name)

    def _set_name(self, thing: Node | Tensor, name: str) -> None:
        before, thing.name = thing.name, name

        def undo() -> None:
            thing.name = before

        self._undo.append(undo)

    def _inherit_names(self, node: Node) -> None:
        """Gives the names of a node that is about to be removed to what replaces it.

        Its values name the new values that are read instead, and the node names the new node that
        computes them if it has the same operator. The names of its other constants are exchanged
        with those of the new node.
        """
        for old in node.outputs:
            new = self._successors.get(old)
            if new is None or new not in self._unnamed_values or not old.name:
                continue
            heir = self.index.producer(new)
            self._rename(new, old.name)
            if heir in self._unnamed_nodes and heir.op == node.op and node.name:
                self._exchange_names(node, heir)

    def _exchange_names(self, node: Node, heir: Node) -> None:
        """Exchanges the names of two nodes, and of the constants that are named after them."""
        self._unnamed_nodes.discard(heir)
        ours, theirs = node.name, heir.name
        for constant in dict.fromkeys((*node.inputs, *heir.inputs)):
            owner, _, formal = constant.name.rpartition(".")
            is_shared = constant in node.inputs and constant in heir.inputs
            if constant in self.index.operand_names and owner in (ours, theirs) and not is_shared:
                self._set_name(constant, f"{theirs if owner == ours else ours}.{formal}")
        self._set_name(node, theirs)
        self._set_name(heir, ours)

    def node_first(
        self,
        body: Graph,
        op: str,
        inputs: Sequence[Tensor],
        like: Sequence[Tensor],
        attrs: Mapping[str, Any] | None = None,
    ) -> list[Tensor]:
        """Adds a node at the start of a body.

        It may read body inputs, outer values, and results of earlier calls for the same body.
        """
        return self.node(op, inputs, like, attrs, before=self.start(body))

    def home(self, place: Place) -> Graph:
        """The graph that a place is in."""
        return self.index.graph_of(place) if isinstance(place, Node) else place

    def start(self, body: Graph) -> Place:
        """The place before all nodes that a body had before the patch."""
        first = self._first.get(body)
        if first is None or first not in self.index or self.index.graph_of(first) is not body:
            old = [n for n in self.index.nodes(body) if n not in self.added]
            if not old:
                return body
            first = self._first[body] = min(old, key=lambda n: n.order)
        return first

    # --- readers ---

    @edit
    def replace(self, old: Tensor, new: Tensor) -> None:
        """Makes every reader of `old` read `new`. Outputs of the model keep their names."""
        check_tensors((old, new))
        self.replaced.append((old, new))
        self._successors[old] = new
        for use in self.index.uses(old):
            if use.reader is self.index.root:
                self._replace_output(use, old, new)
            else:
                self._redirect(use, old, new)
        self.log.append(f"`{old.name}` is now `{new.name}`")

    def _replace_output(self, use: Use, old: Tensor, new: Tensor) -> None:
        """Replaces an output of the main graph, whose name and declaration stay.

        `new` takes them over if it can; otherwise an Identity returns it.
        """
        if can_be_output(self.index, new):
            self._take_name(new, old)
            self._redirect(use, old, new)
            return
        self.copied_outputs.append(new)
        copy = copy_of(old)
        name = self._new_name(f"{scope(old.name)}Identity")
        node = Node("Identity", name, {}, [new], [copy], "")
        self.index.place_last(self.index.root, node)
        self._insert(node, self.index.root)
        self._redirect(use, old, copy)

    @edit
    def replace_input(self, node: Node, slot: int, new: Tensor) -> None:
        """Makes one input of one node read `new`."""
        old = node.inputs[slot]
        self._redirect(Use(node, slot), old, new)
        self.log.append(f"{describe(node)} input {slot} is now `{new.name}`")

    # --- removal and attributes ---

    @edit
    def remove(self, node: Node) -> None:
        """Removes a node. Raises PatchError if something reads its results."""
        if not self.index.is_unused(node):
            raise PatchError(f"{describe(node)} is removed but still read")
        self._count(node, -1)
        self._mark_shrunk(self.index.graph_of(node))
        for tensor in self.reads(node):
            self.freed[tensor] = None
        self._inherit_names(node)
        removal = self.index.remove_node(node)
        self.removed += [gone for gone, _ in removal.nodes]
        self._undo.append(lambda: self.index.restore(removal))
        self.log.append(f"removed {describe(node)}")

    @edit
    def set_attribute(self, node: Node, name: str, value: Any) -> None:
        """Sets an attribute other than a body, or removes it if the value is None."""
        old = node.attrs.get(name)
        self._put_attribute(node, name, value)
        self._undo.append(lambda: self._put_attribute(node, name, old))
        self.touch(node)

    # --- loops; `Patch.loop` offers these edits by role ---

    @edit
    def set_interface(
        self,
        node: Node,
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        results: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        """Replaces the inputs of a Loop or Scan, the inputs and outputs of its body, its outputs.

        Raises PatchError if a dropped body input or output is still read.
        """
        body: Graph = node.attrs["body"]
        old = (list(node.inputs), list(body.inputs), list(body.outputs), list(node.outputs))
        staying = {*parameters, *outputs}
        for tensor in (*old[1], *old[3]):
            if tensor not in staying and self.index.use_count(tensor):
                raise PatchError(f"`{tensor.name}` of {describe(node)} is dropped but still read")
        still_read = {*inputs, *results}
        self.freed.update(dict.fromkeys(t for t in (*old[0], *old[2]) if t not in still_read))
        self._put_interface(node, list(inputs), list(parameters), list(results), list(outputs))
        self._undo.append(lambda: self._put_interface(node, *old))
        known = {*old[1], *old[3]}
        added = [tensor for tensor in (*parameters, *outputs) if tensor not in known]
        self.index.added_or_moved.update(dict.fromkeys(added))
        self.touch(node)
        self.written.append(node)
        self.delta["carried"] += len(parameters) - len(old[1]) + len(outputs) - len(old[3])
        self.log.append(f"{describe(node)}: {len(inputs)} inputs, {len(outputs)} outputs")

    @edit
    def turn_into(
        self,
        node: Node,
        op: str,
        attrs: Mapping[str, Any],
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        results: Sequence[Tensor],
    ) -> None:
        """Turns a Loop into a Scan with the same body and outputs; omits attributes of None."""
        before, carried = node.op, self.delta["carried"]
        self.set_interface(node, inputs, parameters, results, node.outputs)
        self.delta["carried"] = carried
        for name, value in attrs.items():
            self.set_attribute(node, name, value)
        node.op = op
        self._undo.append(lambda: setattr(node, "op", before))
        self.log.append(f"{before} is now {describe(node)}")

    @edit
    def declare_scan_output(
        self, body: Graph, output: Tensor, dtype: int, shape: Sequence[object]
    ) -> None:
        """Declares an output of a loop body; sizes that are not numbers stay open.

        onnxruntime takes the shape of an empty scan output from the declaration.
        """
        before = dict(body.output_info)
        sizes = [size if isinstance(size, int) else None for size in shape]
        info = onnx.helper.make_tensor_value_info(output.name, dtype, sizes)
        body.output_info[output] = info

        def undo() -> None:
            body.output_info = before

        self._undo.append(undo)

    # --- end of the patch ---

    def touch(self, node: Node) -> None:
        """Records that a node is new or changed."""
        self.touched[node] = None
        self.body_output_changes.pop(node, None)

    def reads(self, node: Node) -> list[Tensor]:
        """The values that a node reads, itself and in its bodies."""
        return [t for t in node.inputs if t.name] + self.index.captures(node)

    def changed(self) -> list[Node]:
        """The touched nodes whose results may have other facts now.

        Skips a node that changed only in its body outputs if their facts did not: an edit in a
        loop's body must not cost a new inference of the loop.
        """
        return [
            node
            for node in self.touched
            if node not in self.body_output_changes
            or any(
                self.facts.cached_facts([old]).get(old) != self.facts.of(new)
                for _, old, new in self.body_output_changes[node]
            )
        ]

    def keep(self) -> None:
        """Ends the patch: it can no longer be undone."""
        self._undo.clear()

    @edit
    def roll_back(self) -> None:
        """Undoes every edit, the last one first."""
        for undo in reversed(self._undo):
            undo()

    # --- single changes with their inverse ---

    @edit
    def _redirect(self, use: Use, old: Tensor, new: Tensor) -> None:
        """Makes one use of `old` a use of `new`."""
        reader, slot = use
        values = reader.inputs if isinstance(reader, Node) else reader.outputs
        values[slot] = new
        self.index.redirect(use, old, new)
        self.freed[old] = None
        if reader is self.index.root:
            self.changed_outputs[slot] = None
        elif isinstance(reader, Graph):
            self._keep_declaration(reader, old, new)

        def undo() -> None:
            values[slot] = old
            self.index.redirect(use, new, old)

        self._undo.append(undo)
        if isinstance(reader, Node):
            self.touch(reader)
            return
        owner = self.index.owner(reader)
        if owner is not None:
            if owner not in self.touched:
                self.body_output_changes[owner] = []
            if owner in self.body_output_changes:
                self.body_output_changes[owner].append((reader, old, new))
            self.touched[owner] = None

    def _keep_declaration(self, body: Graph, old: Tensor, new: Tensor) -> None:
        """Keeps the declaration of a body output, which an empty scan output needs."""
        declared, before = body.output_info, dict(body.output_info)
        info, own = declared.get(old, old.info), declared.get(new, new.info)
        if info is not None and (declares_shape(info) or not declares_shape(own)):
            declared.setdefault(new, info)

        def undo() -> None:
            body.output_info = before

        self._undo.append(undo)

    def _take_name(self, new: Tensor, old: Tensor) -> None:
        """Gives `new` the name and declaration of `old`."""
        name, info = new.name, new.info
        declared = self.index.root.output_info
        new.name, new.info = old.name, old.info
        self._unnamed_values.discard(new)
        if old in declared:
            declared[new] = declared[old]

        def undo() -> None:
            new.name, new.info = name, info
            declared.pop(new, None)

        self._undo.append(undo)

    @edit
    def _insert(self, node: Node, graph: Graph) -> None:
        """Adds a node, which has a position already, to a graph."""
        graph.nodes.append(node)
        self.index.add_node(node, graph)
        self.index.added_or_moved[node] = None
        self.added.add(node)
        self._count(node, 1)
        self.touch(node)

        def undo() -> None:
            self.index.remove_node(node)
            _drop_last(graph.nodes, node)

        self._undo.append(undo)

    @edit
    def _move(self, node: Node, graph: Graph) -> None:
        """Moves a node to another graph; the caller gives it a position."""
        home, order = self.index.graph_of(node), node.order
        lower_bound = self.index.lower_bound(node)
        self._count(node, -1)
        self._mark_shrunk(home)
        graph.nodes.append(node)
        self.index.move_node(node, graph)
        self._count(node, 1)
        infos = [tensor.info for tensor in node.outputs]
        returned = {
            tensor: info
            for tensor, info in zip(node.outputs, infos)
            if info is not None
            and tensor not in home.output_info
            and any(use.reader is home for use in self.index.uses(tensor))
        }
        home.output_info.update(returned)  # A Scan needs the rank.
        for tensor in node.outputs:
            tensor.info = without_shape(tensor.info)
        self.touch(node)

        def undo() -> None:
            for tensor in returned:
                del home.output_info[tensor]
            for tensor, info in zip(node.outputs, infos):
                tensor.info = info
            _drop_last(graph.nodes, node)
            self.index.restore_position(node, order, lower_bound)
            self.index.move_node(node, home)

        self._undo.append(undo)

    @edit
    def _reorder(self, node: Node) -> None:
        """Records that the caller gives a node another position in its graph."""
        order, lower_bound = node.order, self.index.lower_bound(node)
        self.touch(node)
        self._undo.append(lambda: self.index.restore_position(node, order, lower_bound))

    @edit
    def _move_constant(self, constant: Constant, home: Graph, graph: Graph) -> None:
        graph.initializers.append(constant)
        self.index.add_constant(constant, graph)
        for reader, _ in self.index.uses(constant):  # the graph may have an equal constant
            if isinstance(reader, Node):
                self.touch(reader)

        def undo() -> None:
            _drop_last(graph.initializers, constant)
            self.index.add_constant(constant, home)

        self._undo.append(undo)

    @edit
    def _set_body_outputs(self, body: Graph, outputs: list[Tensor]) -> None:
        before = list(body.outputs)
        self.index.set_graph_outputs(body, outputs)
        self._undo.append(lambda: self.index.set_graph_outputs(body, before))

    def _put_interface(
        self,
        node: Node,
        inputs: list[Tensor],
        parameters: list[Tensor],
        results: list[Tensor],
        outputs: list[Tensor],
    ) -> None:
        body: Graph = node.attrs["body"]
        self.index.set_node_inputs(node, inputs)
        self.index.set_graph_inputs(body, parameters)
        self.index.set_graph_outputs(body, results)
        self.index.set_node_outputs(node, outputs)

    @staticmethod
    def _put_attribute(node: Node, name: str, value: Any) -> None:
        if value is None:
            node.attrs.pop(name, None)
        else:
            node.attrs[name] = value

    @staticmethod
    def _swap(node: Node) -> None:
        attrs = node.attrs
        attrs["then_branch"], attrs["else_branch"] = attrs["else_branch"], attrs["then_branch"]

    # --- bookkeeping ---

    def _mark_shrunk(self, graph: Graph) -> None:
        """Records that a node left a graph, which may change the facts of its owner."""
        owner = self.index.owner(graph)
        if owner is not None:
            self.shrunk_owners[owner] = None

    def _count(self, node: Node, sign: int) -> None:
        """Counts a node with its bodies in the change of the measure."""
        self.delta["nodes"] += sign
        self.delta["inner"] += sign * self.index.depth(self.index.graph_of(node))
        if node.op in CONTROL_FLOW:
            self.delta["control"] += sign
        for body in bodies(node):
            for inner in self.index.nodes(body):
                self._count(inner, sign)


def check_tensors(values: Iterable[object]) -> None:
    """Raises PatchError for a value that is not a tensor, such as a name."""
    for value in values:
        if not isinstance(value, Tensor):
            raise PatchError(f"{value!r} is not a tensor")


def can_be_output(index: Index, tensor: Tensor) -> bool:
    """Whether a value can take the name of an output of the main graph."""
    producer = index.producer(tensor)
    if producer is None or index.graph_of(producer) is not index.root:
        return False
    return not index.is_model_output(tensor)


def copy_of(tensor: Tensor) -> Variable:
    """A new value with the name and the declaration of another one."""
    variable = Variable(tensor.name)
    variable.info = tensor.info
    return variable


def _drop_last(items: list[Any], item: object) -> None:
    """Removes the last occurrence, searching from the end, where it was appended."""
    for place in range(len(items) - 1, -1, -1):
        if items[place] is item:
            del items[place]
            return
