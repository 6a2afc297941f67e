"""The only way for a rule to change a graph: edits are recorded, checked, and undone if wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..graph.clone import clone_nodes
from ..graph.declarations import without_shape
from ..graph.index import Use
from ..graph.ir import Constant, Graph, Node, Tensor, bodies
from .builder import Builder
from .edits import Edits, PatchError, Place, copy_of, edit
from .loop_edit import LoopEdit
from .miss import describe


class Patch(Edits):
    """The edits of one rule application around one root node."""

    def note(self, sentence: str) -> None:
        """Reports to the user what this rewrite relies on beyond the file."""
        if not isinstance(sentence, str):
            raise PatchError(f"a note is a sentence, not {sentence!r}")
        self.notes.append(sentence)

    # --- builders ---

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

    def after(self, results: Iterable[Tensor]) -> Place:
        """The place just before the first reader of these results, in the graph of the root.

        A node also counts as a reader if a body of it reads. Without readers, the end of the graph.
        """
        home = self.index.graph_of(self.root)
        uses = (use for result in results for use in self.index.uses(result))
        readers = [reader for use in uses if (reader := self._reader_in(home, use)) is not None]
        return min(readers, key=lambda n: n.order, default=home)

    def _reader_in(self, home: Graph, use: Use) -> Node | None:
        """The node of `home` that reads a value, maybe in a body; None if `home` returns it."""
        reader = use.reader if isinstance(use.reader, Node) else self.index.owner(use.reader)
        inside = reader is not None and use.reader is not home
        return self.index.ancestor_in(reader, home) if inside and reader is not None else None

    def loop(self, node: Node) -> LoopEdit:
        """Edits a Loop or Scan by role."""
        return LoopEdit(self, node)

    # --- readers ---

    @edit
    def merge_constant(self, old: Constant, new: Constant) -> None:
        """Makes every reader of a constant read an equal one."""
        self.replace(old, new)
        self.delta["constants"] -= 1

    @edit
    def replace_in_body(self, body: Graph, old: Tensor, new: Tensor) -> None:
        """Makes the readers of `old` in a body, and in bodies inside it, read `new`."""
        self.replaced.append((old, new))
        for use in self.index.uses(old):
            home = self.index.graph_of(use.reader) if isinstance(use.reader, Node) else use.reader
            if self.index.encloses(body, home):
                self._redirect(use, old, new)

    @edit
    def replace_node(self, node: Node, values: Iterable[Tensor | None]) -> None:
        """Makes every reader of a node's results read these values, and removes the node.

        None stands for a result that nothing reads.
        """
        for output, value in zip(list(node.outputs), values):
            if value is not None and self.index.use_count(output):
                self.replace(output, value)
        self.remove(node)

    # --- copying and moving ---

    @edit
    def clone_before(
        self, nodes: Sequence[Node], renamed: dict[Tensor, Tensor], anchor: Node
    ) -> None:
        """Copies nodes to just before another one.

        `renamed` maps values to those that the copies read instead; the results of the copies are
        added to it.
        """
        copies = clone_nodes(nodes, renamed, self.index)
        self.index.place_before(anchor, copies)
        self._insert_copies(copies, self.index.graph_of(anchor))

    @edit
    def clone_last(
        self, nodes: Sequence[Node], renamed: dict[Tensor, Tensor], graph: Graph
    ) -> None:
        """Copies nodes to the end of a graph. `renamed` is as in `clone_before`."""
        copies = clone_nodes(nodes, renamed, self.index)
        for copy in copies:
            self.index.place_last(graph, copy)
        self._insert_copies(copies, graph)

    def _insert_copies(self, copies: Sequence[Node], graph: Graph) -> None:
        for copy in copies:
            for tensor in copy.outputs:
                tensor.info = without_shape(tensor.info)
            self._insert(copy, graph)
        self.log.append(f"copied {len(copies)} nodes")

    @edit
    def inline(self, body: Graph) -> list[Tensor]:
        """Moves everything in a body of the root to just before the root; returns its outputs.

        The inputs of the body must have been replaced before.
        """
        outputs = list(body.outputs)
        self.hoist(self.index.nodes(body), self.root)
        home = self.index.graph_of(self.root)
        for constant in list(body.initializers):
            self.hoist_constant(constant, home)
        self.log.append(f"inlined body `{body.name}` of {describe(self.root)}")
        return outputs

    @edit
    def hoist(self, nodes: Sequence[Node], before: Node) -> None:
        """Moves nodes, in their order, before another node of the same or an outer graph."""
        target = self.index.graph_of(before)
        ordered = sorted(nodes, key=lambda n: n.order)
        for node in ordered:
            if self.index.graph_of(node) is target:
                self._reorder(node)
            else:
                self._move(node, target)
        self.index.place_before(before, ordered)

    @edit
    def hoist_constant(self, constant: Constant, target: Graph) -> None:
        """Moves an initializer of a body to an outer graph, unless it is defined further out."""
        home = self.index.home(constant)
        if home is not None and home is not target and self.index.encloses(target, home):
            self._move_constant(constant, home, target)

    # --- branches of an If ---

    @edit
    def swap_branches(self, node: Node) -> None:
        """Exchanges the branches of an If."""
        self._swap(node)
        self._undo.append(lambda: self._swap(node))
        self.touch(node)
        self.delta["negated"] -= 1
        self.log.append(f"swapped the branches of {describe(node)}")

    @edit
    def prepend_body(self, body: Graph, target: Graph) -> list[Tensor]:
        """Moves everything in one branch to the start of another; returns the branch's outputs."""
        nodes = self.index.nodes_in_order(body)
        for node in nodes:
            self._move(node, target)
        self.index.place_first(target, nodes)
        for constant in list(body.initializers):
            if self.index.home(constant) is body:
                self._move_constant(constant, body, target)
        self.log.append(f"moved body `{body.name}` into `{target.name}`")
        return list(body.outputs)

    @edit
    def add_outputs(
        self, node: Node, like: Sequence[Tensor], results: Mapping[Graph, Sequence[Tensor]]
    ) -> list[Tensor]:
        """Adds outputs to an If; `results` has what each branch returns for them."""
        before = list(node.outputs)
        added: list[Tensor] = [copy_of(tensor) for tensor in like]
        self.index.added_or_moved.update(dict.fromkeys(added))
        self.index.set_node_outputs(node, before + added)
        self._undo.append(lambda: self.index.set_node_outputs(node, before))
        for body, more in results.items():
            self._set_body_outputs(body, [*body.outputs, *more])
        self.touch(node)
        self.delta["outputs"] += len(added)
        self.log.append(f"{describe(node)} returns {len(added)} more values")
        return added

    @edit
    def drop_outputs(self, node: Node, keep: Sequence[int]) -> None:
        """Keeps only these outputs of an If, in both branches.

        Raises PatchError if another output is read.
        """
        kept = set(keep)
        for slot, tensor in enumerate(node.outputs):
            if slot not in kept and self.index.use_count(tensor):
                raise PatchError(f"output `{tensor.name}` of {describe(node)} is still read")
        before = list(node.outputs)
        self.index.set_node_outputs(node, [before[slot] for slot in keep])
        self._undo.append(lambda: self.index.set_node_outputs(node, before))
        for body in bodies(node):
            for slot in set(range(len(before))) - kept:
                self.freed[body.outputs[slot]] = None
            self._set_body_outputs(body, [body.outputs[slot] for slot in keep])
        self.touch(node)
        self.delta["outputs"] -= len(before) - len(keep)
        self.log.append(f"{describe(node)} returns {len(keep)} of {len(before)} values")

    # --- progress that the graph does not show; see `patch_check.MEASURE` ---

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
