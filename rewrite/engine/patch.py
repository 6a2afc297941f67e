"""The only way to change a graph: every edit is recorded, checked, and undone if it is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx_graphsurgeon.ir.tensor import LazyValues

from ..graph.clone import clone_nodes
from ..graph.declarations import without_shape
from ..graph.index import Index, Use
from ..graph.ir import Constant, Graph, Node, Tensor, Variable, bodies
from .builder import Builder, Place
from .edits import Edits, PatchError
from .loop_edit import LoopEdit
from .rule import describe


class Patch(Edits):
    """The edits of one rule application around one root node."""

    def note(self, sentence: str) -> None:
        """Reports to the user what this rewrite relies on beyond the file."""
        if not isinstance(sentence, str):
            raise PatchError(f"a note is a sentence, not {sentence!r}")
        self.notes.append(sentence)

    # --- new values ---

    def builder(self, like: Tensor, before: Place | None = None) -> Builder:
        """A builder of nodes just before another node, by default the root.

        The results of the nodes are named after `like`.
        """
        return Builder(self, like, before)

    def builder_after(self, like: Tensor, results: Iterable[Tensor] = ()) -> Builder:
        """A builder of nodes after the root and before the first reader of `results`.

        `results` are results of the root, by default `like` alone.
        """
        return Builder(self, like, self.after(tuple(results) or (like,)))

    def loop(self, node: Node) -> LoopEdit:
        """Edits a Loop or Scan by role."""
        return LoopEdit(self, node)

    def constant(
        self, values: np.ndarray | LazyValues, like: Tensor, graph: Graph | None = None
    ) -> Constant:
        """Adds an initializer, by default to the graph of the root.

        It is named after `like`, the value that it replaces. `values` may be lazy values of a file.
        """
        graph = graph if graph is not None else self.index.graph_of(self.root)
        constant = Constant(like.name, values)
        self._add_constant(constant, graph)
        self.made += 1
        self.edits.append(f"constant `{constant.name}` {constant.dtype}{list(constant.shape)}")
        return constant

    def node(
        self,
        op: str,
        inputs: Sequence[Tensor],
        like: Sequence[Tensor],
        attrs: Mapping[str, Any] | None = None,
        before: Place | None = None,
    ) -> list[Tensor]:
        """Adds a node of the standard domain just before another, by default the root; or at the
        end of a graph. Returns its outputs, which are named after `like`.
        """
        before = before if before is not None else self.root
        outputs = [Variable(tensor.name) for tensor in like]
        node = Node(op, "", dict(attrs or {}), list(inputs), outputs, "")
        if isinstance(before, Node):
            self.index.place_before(before, [node])
        else:
            self.index.place_last(before, node)
        self._insert(node, self.home(before))
        self._written.append(node)
        self.edits.append(f"new {describe(node)}")
        return list(outputs)

    def home(self, place: Place) -> Graph:
        """The graph that a place is in."""
        return self.index.graph_of(place) if isinstance(place, Node) else place

    def after(self, results: Iterable[Tensor]) -> Place:
        """The last place in the graph of the root where nothing has read these results of it yet:
        just before their first reader, which may be a node with a body, or the end of the graph.
        """
        home = self.index.graph_of(self.root)
        uses = (use for result in results for use in self.index.uses(result))
        readers = [reader for use in uses if (reader := self._reader_in(home, use)) is not None]
        return min(readers, key=lambda n: n.order, default=home)

    def _reader_in(self, home: Graph, use: Use) -> Node | None:
        """The node of `home` that reads a value itself or in a body; None where `home` returns the
        value.
        """
        reader = use.reader if isinstance(use.reader, Node) else self.index.owner(use.reader)
        inside = reader is not None and use.reader is not home
        return self.index.ancestor_in(reader, home) if inside and reader is not None else None

    def node_first(
        self,
        body: Graph,
        op: str,
        inputs: Sequence[Tensor],
        like: Sequence[Tensor],
        attrs: Mapping[str, Any] | None = None,
    ) -> list[Tensor]:
        """Adds a node at the start of a body. It may read body inputs, outer values, and what
        earlier calls for the same body returned.
        """
        return self.node(op, inputs, like, attrs, before=self.start(body))

    def start(self, body: Graph) -> Place:
        """The place before all nodes that a body had before the patch."""
        first = self._first.get(body)
        if first is None or first not in self.index or self.index.graph_of(first) is not body:
            there = [n for n in self.index.nodes(body) if n not in self._added]
            if not there:
                return body
            first = self._first[body] = min(there, key=lambda n: n.order)
        return first

    def clone_before(
        self, nodes: Sequence[Node], renamed: dict[Tensor, Tensor], anchor: Node
    ) -> None:
        """Copies nodes to just before another one.

        `renamed` maps values to those that the copies read instead; the results of the copies are
        added to it.
        """
        copies = clone_nodes(nodes, renamed, self.index)
        self.index.place_before(anchor, copies)
        graph = self.index.graph_of(anchor)
        for copy in copies:
            for tensor in copy.outputs:
                tensor.info = without_shape(tensor.info)
            self._insert(copy, graph)
        self.edits.append(f"copied {len(copies)} nodes")

    # --- readers ---

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Makes every reader of `old` read `new`. Outputs of the model keep their names."""
        self.replaced.append((old, new))
        for use in self.index.uses(old):
            if use.reader is self.index.root:
                self._replace_output(use, old, new)
            else:
                self._set(use, old, new)
        self.edits.append(f"`{old.name}` is now `{new.name}`")

    def _replace_output(self, use: Use, old: Tensor, new: Tensor) -> None:
        """Replaces an output of the main graph, whose name and declaration stay.

        `new` takes them over if it can; otherwise an Identity returns it.
        """
        if can_be_output(self.index, new):
            self._take_name(new, old)
            self._set(use, old, new)
            return
        self._copied.append(new)
        copy = _copy_of(old)
        node = Node("Identity", "", {}, [new], [copy], "")
        self.index.place_last(self.index.root, node)
        self._insert(node, self.index.root)
        self._set(use, old, copy)

    def merge(self, old: Constant, new: Constant) -> None:
        """Makes every reader of a constant read an equal one."""
        self.replace(old, new)
        self.delta["constants"] -= 1

    def replace_in(self, node: Node, slot: int, new: Tensor) -> None:
        """Makes one input of one node read `new`."""
        old = node.inputs[slot]
        self._set(Use(node, slot), old, new)
        self.edits.append(f"{describe(node)} input {slot} is now `{new.name}`")

    def replace_inside(self, body: Graph, old: Tensor, new: Tensor) -> None:
        """Makes the readers of `old` in a body, and in bodies inside it, read `new`."""
        self.replaced.append((old, new))
        for use in self.index.uses(old):
            home = self.index.graph_of(use.reader) if isinstance(use.reader, Node) else use.reader
            if self.index.encloses(body, home):
                self._set(use, old, new)

    # --- moving and removing ---

    def remove(self, node: Node) -> None:
        """Removes a node. Raises PatchError if something reads its results."""
        if not self.index.is_unused(node):
            raise PatchError(f"{describe(node)} is removed but still read")
        self._count(node, -1)
        self._disturb(self.index.graph_of(node))
        for tensor in self._reads(node):
            self.freed[tensor] = None
        removal = self.index.remove_node(node)
        self.removed += [gone for gone, _ in removal.nodes]
        self._undo.append(lambda: self.index.restore(removal))
        self.edits.append(f"removed {describe(node)}")

    def replace_node(self, node: Node, values: Iterable[Tensor | None]) -> None:
        """Makes every reader of a node's results read these values, and removes the node.

        None stands for a result that nothing reads.
        """
        for output, value in zip(list(node.outputs), values):
            if value is not None and self.index.use_count(output):
                self.replace(output, value)
        self.remove(node)

    def inline(self, body: Graph) -> list[Tensor]:
        """Moves everything in a body of the root to just before the root; returns the outputs of
        the body. The inputs of the body must have been replaced before.
        """
        outputs = list(body.outputs)
        self.hoist(self.index.nodes(body), self.root)
        home = self.index.graph_of(self.root)
        for constant in list(body.initializers):
            self.hoist_constant(constant, home)
        self.edits.append(f"inlined body `{body.name}` of {describe(self.root)}")
        return outputs

    def hoist(self, nodes: Sequence[Node], before: Node) -> None:
        """Moves nodes, in their order, to just before another node of an outer graph."""
        target = self.index.graph_of(before)
        ordered = sorted(nodes, key=lambda n: n.order)
        for node in ordered:
            self._move(node, target)
        self.index.place_before(before, ordered)

    def hoist_constant(self, constant: Constant, target: Graph) -> None:
        """Moves an initializer of a body to an outer graph, unless it is defined further out."""
        home = self.index.home(constant)
        if home is not None and home is not target and self.index.encloses(target, home):
            self._move_constant(constant, home, target)

    # --- branches of an If ---

    def swap_branches(self, node: Node) -> None:
        """Exchanges the branches of an If."""
        self._swap(node)
        self._undo.append(lambda: self._swap(node))
        self.touch(node)
        self.delta["negated"] -= 1
        self.edits.append(f"swapped the branches of {describe(node)}")

    def prepend_body(self, body: Graph, target: Graph) -> list[Tensor]:
        """Moves everything in one branch to the start of another; returns the branch's outputs."""
        nodes = sorted(self.index.nodes(body), key=lambda n: n.order)
        there = self.index.nodes(target)
        first = min(there, key=lambda n: n.order, default=None)
        for node in nodes:
            self._move(node, target)
        if first is not None:
            self.index.place_before(first, nodes)
        for constant in list(body.initializers):
            if self.index.home(constant) is body:
                self._move_constant(constant, body, target)
        self.edits.append(f"moved body `{body.name}` into `{target.name}`")
        return list(body.outputs)

    def add_results(
        self, node: Node, like: Sequence[Tensor], results: Mapping[Graph, Sequence[Tensor]]
    ) -> list[Tensor]:
        """Adds outputs to an If; `results` has what each branch returns for them."""
        before = list(node.outputs)
        added: list[Tensor] = [_copy_of(tensor) for tensor in like]
        self.index.newcomers.update(dict.fromkeys(added))
        self.index.set_results(node, before + added)
        self._undo.append(lambda: self.index.set_results(node, before))
        for body, more in results.items():
            self._set_body_outputs(body, [*body.outputs, *more])
        self.touch(node)
        self.delta["outputs"] += len(added)
        self.edits.append(f"{describe(node)} returns {len(added)} values more")
        return added

    def drop_outputs(self, node: Node, keep: Sequence[int]) -> None:
        """Keeps only these outputs of an If, in both branches. The others must be unread."""
        kept = set(keep)
        for slot, tensor in enumerate(node.outputs):
            if slot not in kept and self.index.use_count(tensor):
                raise PatchError(f"output `{tensor.name}` of {describe(node)} is still read")
        before = list(node.outputs)
        self.index.set_results(node, [before[slot] for slot in keep])
        self._undo.append(lambda: self.index.set_results(node, before))
        for body in bodies(node):
            for slot in set(range(len(before))) - kept:
                self.freed[body.outputs[slot]] = None
            self._set_body_outputs(body, [body.outputs[slot] for slot in keep])
        self.touch(node)
        self.delta["outputs"] -= len(before) - len(keep)
        self.edits.append(f"{describe(node)} returns {len(keep)} of {len(before)} values")

    # --- loops; `loop` offers these edits by role ---

    def set_interface(
        self,
        node: Node,
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        results: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        """Gives a Loop or Scan other inputs, body inputs, body outputs and outputs.

        Outputs and body inputs that are dropped must be unread.
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
        self.index.newcomers.update(dict.fromkeys(added))
        self.touch(node)
        self._written.append(node)
        self.delta["carried"] += len(parameters) - len(old[1]) + len(outputs) - len(old[3])
        self.edits.append(f"{describe(node)}: {len(inputs)} inputs, {len(outputs)} outputs")

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
        self.edits.append(f"{before} is now {describe(node)}")

    def declare_row(self, body: Graph, row: Tensor, dtype: int, shape: Sequence[object]) -> None:
        """Declares an output of a loop body; sizes that are not numbers stay open.

        onnxruntime takes the shape of a scan output of no iterations from the declaration.
        """
        before = dict(body.output_info)
        sizes = [size if isinstance(size, int) else None for size in shape]
        info = onnx.helper.make_tensor_value_info(row.name, dtype, sizes)
        body.output_info[row] = info

        def undo() -> None:
            body.output_info = before

        self._undo.append(undo)

    def set_attribute(self, node: Node, name: str, value: Any) -> None:
        """Sets an attribute other than a body, or removes it if the value is None."""
        old = node.attrs.get(name)
        self._put_attribute(node, name, value)
        self._undo.append(lambda: self._put_attribute(node, name, old))
        self.touch(node)

    # --- progress that the graph does not show; see `MEASURE` in the engine ---

    def split_loop(self) -> None:
        """Counts as progress that one loop was split into two simpler ones.

        The rule must be able to do so only finitely often.
        """
        self.delta["split"] -= 1

    def toward_normal_form(self) -> None:
        """Counts as progress a rewrite that makes nothing smaller.

        The rule must be able to make such a rewrite only finitely often.
        """
        self.delta["normal form"] -= 1

    def decompose_operator(self) -> None:
        """Counts as progress that an operator was decomposed for a backend that lacks it.

        The rule must not run together with one that makes the operator.
        """
        self.delta["decomposed"] -= 1


def can_be_output(index: Index, tensor: Tensor) -> bool:
    """Whether a value can take the name of an output of the main graph."""
    producer = index.producer(tensor)
    if producer is None or index.graph_of(producer) is not index.root:
        return False
    return not index.is_model_output(tensor)


def _copy_of(tensor: Tensor) -> Variable:
    variable = Variable(tensor.name)
    variable.info = tensor.info
    return variable
