"""Single edits of a graph, each with its inverse, and the check of all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from onnx import TensorProto

from ..facts.facts import Fact, Facts
from ..graph.body_outputs import copied_slots, has_copies
from ..graph.declarations import without_shape
from ..graph.index import Index, Use
from ..graph.ir import Constant, Graph, Node, Tensor, bodies
from .opset_check import need_in_opset
from .rule import Miss, describe


class PatchError(Exception):
    """A patch that would leave the graph invalid: a defect of the rule that made it."""


CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""The control-flow operators: those with bodies."""


class Edits:
    """A list of edits that can be undone."""

    def __init__(self, facts: Facts, root: Node) -> None:
        self.facts = facts
        """The facts of the graph as it was before the patch, and of the values that it added."""
        self.index: Index = facts.index
        """Def-use chains, up to date with each edit."""
        self.opset = facts.opset
        """The version of the standard operator set that new nodes are made for."""
        self.root = root
        """The node at which the rule matched."""
        self.edits: list[str] = []
        """What was changed, one line each."""
        self.notes: list[str] = []
        """What the rewrite relies on beyond the file."""
        self.touched: dict[Node, None] = {}
        """Nodes that are new or read other values than before."""
        self._returned: dict[Node, list[tuple[Graph, Tensor, Tensor]]] = {}
        """Touched nodes that changed only in what their bodies return: the body, the value that it
        returned before, and the one that it returns now."""
        self.disturbed: dict[Node, None] = {}
        """Owners of bodies that nodes left."""
        self.freed: dict[Tensor, None] = {}
        """Values that lost a reader."""
        self.removed: list[Node] = []
        """Removed nodes, including those in bodies of removed nodes."""
        self.returned: dict[int, None] = {}
        """Outputs of the main graph, by number, that changed."""
        self.delta: Counter[str] = Counter()
        """The change of each component of the termination measure."""
        self._copied: list[Tensor] = []
        """Values for which an Identity was added because they became outputs of the model."""
        self.replaced: list[tuple[Tensor, Tensor]] = []
        """Pairs of a value and the one that its readers read instead."""
        self._undo: list[Callable[[], None]] = []
        self._added: set[Node] = set()
        self._written: list[Node] = []
        """New or changed nodes, whose operator or form the opset may lack."""
        self._first: dict[Graph, Node] = {}
        """The node that stood first in each body."""
        self.made = 0
        """The number of constants added."""
        self.stored: list[Constant] = []
        """The constants added."""

    def touch(self, node: Node) -> None:
        """Records that a node is new or changed."""
        self.touched[node] = None
        self._returned.pop(node, None)

    def changed(self) -> list[Node]:
        """The touched nodes whose results may have other facts now.

        Skips a node when only outputs of its bodies changed and their facts did not: a loop is not
        inferred anew for each edit in its body.
        """
        return [
            node
            for node in self.touched
            if node not in self._returned
            or any(
                self.facts.derived([old]).get(old) != self.facts.of(new)
                for _, old, new in self._returned[node]
            )
        ]

    def _take_name(self, new: Tensor, old: Tensor) -> None:
        name, info = new.name, new.info
        declared = self.index.root.output_info
        new.name, new.info = old.name, old.info
        if old in declared:
            declared[new] = declared[old]

        def undo() -> None:
            new.name, new.info = name, info
            declared.pop(new, None)

        self._undo.append(undo)

    @staticmethod
    def _swap(node: Node) -> None:
        attrs = node.attrs
        attrs["then_branch"], attrs["else_branch"] = attrs["else_branch"], attrs["then_branch"]

    def _reads(self, node: Node) -> list[Tensor]:
        return [t for t in node.inputs if t.name] + self.index.captures(node)

    def _put_interface(
        self,
        node: Node,
        inputs: list[Tensor],
        parameters: list[Tensor],
        results: list[Tensor],
        outputs: list[Tensor],
    ) -> None:
        body: Graph = node.attrs["body"]
        self.index.set_operands(node, inputs)
        self.index.set_parameters(body, parameters)
        self.index.set_outputs(body, results)
        self.index.set_results(node, outputs)

    @staticmethod
    def _put_attribute(node: Node, name: str, value: Any) -> None:
        if value is None:
            node.attrs.pop(name, None)
        else:
            node.attrs[name] = value

    def _set(self, use: Use, old: Tensor, new: Tensor) -> None:
        reader, slot = use
        values = reader.inputs if isinstance(reader, Node) else reader.outputs
        values[slot] = new
        self.index.set_use(use, old, new)
        self.freed[old] = None
        if reader is self.index.root:
            self.returned[slot] = None
        elif isinstance(reader, Graph):
            self._keep_declaration(reader, old, new)

        def undo() -> None:
            values[slot] = old
            self.index.set_use(use, new, old)

        self._undo.append(undo)
        if isinstance(reader, Node):
            self.touch(reader)
            return
        owner = self.index.owner(reader)
        if owner is not None:
            if owner not in self.touched:
                self._returned[owner] = []
            if owner in self._returned:
                self._returned[owner].append((reader, old, new))
            self.touched[owner] = None

    def _keep_declaration(self, body: Graph, old: Tensor, new: Tensor) -> None:
        """Keeps what a body declares of an output: the scan outputs of a loop that never runs take
        their shape from the declaration.
        """
        declared, before = body.output_info, dict(body.output_info)
        info = declared.get(old, old.info)
        if info is not None:
            declared.setdefault(new, info)

        def undo() -> None:
            body.output_info = before

        self._undo.append(undo)

    def _insert(self, node: Node, graph: Graph) -> None:
        graph.nodes.append(node)
        self.index.add_node(node, graph)
        self.index.newcomers[node] = None
        self._added.add(node)
        self._count(node, 1)
        self.touch(node)

        def undo() -> None:
            self.index.remove_node(node)
            _drop_last(graph.nodes, node)

        self._undo.append(undo)

    def _move(self, node: Node, graph: Graph) -> None:
        home, order, floor = self.index.graph_of(node), node.order, self.index.floor(node)
        self._count(node, -1)
        self._disturb(home)
        graph.nodes.append(node)
        self.index.move_node(node, graph)
        self._count(node, 1)
        infos = [tensor.info for tensor in node.outputs]
        for tensor in node.outputs:
            tensor.info = without_shape(tensor.info)
        self.touch(node)

        def undo() -> None:
            for tensor, info in zip(node.outputs, infos):
                tensor.info = info
            _drop_last(graph.nodes, node)
            self.index.put_back(node, order, floor)
            self.index.move_node(node, home)

        self._undo.append(undo)

    def _disturb(self, graph: Graph) -> None:
        """Records that a body changed, and with it perhaps the facts of its owner."""
        owner = self.index.owner(graph)
        if owner is not None:
            self.disturbed[owner] = None

    def _add_constant(self, constant: Constant, graph: Graph) -> None:
        graph.initializers.append(constant)
        self.stored.append(constant)
        self.index.add_constant(constant, graph)

        def undo() -> None:
            self.index.remove_constant(constant)
            _drop_last(graph.initializers, constant)

        self._undo.append(undo)

    def _move_constant(self, constant: Constant, home: Graph, graph: Graph) -> None:
        graph.initializers.append(constant)
        self.index.add_constant(constant, graph)
        for reader, _ in self.index.uses(constant):  # there may be an equal one here
            if isinstance(reader, Node):
                self.touch(reader)

        def undo() -> None:
            _drop_last(graph.initializers, constant)
            self.index.add_constant(constant, home)

        self._undo.append(undo)

    def _set_body_outputs(self, body: Graph, outputs: list[Tensor]) -> None:
        before = list(body.outputs)
        self.index.set_outputs(body, outputs)
        self._undo.append(lambda: self.index.set_outputs(body, before))

    def _count(self, node: Node, sign: int) -> None:
        self.delta["nodes"] += sign
        self.delta["inner"] += sign * self.index.depth(self.index.graph_of(node))
        if node.op in CONTROL:
            self.delta["control"] += sign
        for body in bodies(node):
            for inner in self.index.nodes(body):
                self._count(inner, sign)

    def check(self) -> None:
        """Raises PatchError when a touched node reads a value that is not there before it."""
        for node in self.touched:
            if node not in self.index:
                continue
            if node in self._returned:
                for body, _, tensor in self._returned[node]:
                    home = self.index.home(tensor)
                    if home is None or not self.index.encloses(body, home):
                        self._check_read(node, tensor)
                continue
            for tensor in self._reads(node):
                self._check_read(node, tensor)

    def check_types(self) -> None:
        """Raises PatchError when a value replaces one that is known to have another type or shape,
        and Miss when the opset of the model cannot express the result.
        """
        facts = self.facts
        for old, new in self.replaced:
            difference = mismatch(facts.known(old), facts.of(new))
            if difference is not None:
                raise PatchError(f"`{new.name}` replaces `{old.name}`, but {difference}")
        for node in self._written:
            if node in self.index and not node.domain:
                need_in_opset(node, facts, self.opset)
        for tensor in (*self._copied, *self._to_be_copied()):
            if not has_copies(facts.of(tensor).kind, self.opset):
                sentence = "`{}` would have to be copied, which opset {} has no operator for"
                raise Miss(sentence, tensor.name, self.opset, at=tensor)

    def _to_be_copied(self) -> Iterator[Tensor]:
        """Values that changed bodies return and that a file can return only through a copy."""
        if has_copies("other", self.opset):
            return
        for owner in {**self.touched, **self.disturbed}:
            for body in bodies(owner) if owner in self.index else ():
                for slot in copied_slots(self.index, body):
                    yield body.outputs[slot]

    def _check_read(self, node: Node, tensor: Tensor) -> None:
        home = self.index.home(tensor)
        if home is None:
            raise PatchError(f"{describe(node)} reads `{tensor.name}`, which nothing defines")
        reader = self.index.ancestor_in(node, home)
        if reader is None:
            raise PatchError(
                f"{describe(node)} reads `{tensor.name}` from a body that it is not in"
            )
        producer = self.index.producer(tensor)
        if producer is not None and producer.order >= reader.order:
            raise PatchError(f"{describe(node)} reads `{tensor.name}` before it is computed")

    def keep(self) -> None:
        """Ends the patch: it can no longer be undone, and what undoing needs is released."""
        self._undo.clear()

    def roll_back(self) -> None:
        """Undoes every edit, the last one first."""
        for undo in reversed(self._undo):
            undo()


def mismatch(old: Fact, new: Fact) -> str | None:
    """How the type or shape of two values is known to differ; None where it may be the same."""
    if "other" in (old.kind, new.kind) or not old.dtype or not new.dtype:
        return None
    if old.kind != new.kind:
        return f"it is a {new.kind}, not a {old.kind}"
    if old.dtype != new.dtype:
        names = [TensorProto.DataType.Name(fact.dtype).lower() for fact in (new, old)]
        return f"its type is {names[0]}, not {names[1]}"
    if old.kind == "sequence" or old.shape is None or new.shape is None:
        return None
    if len(old.shape) != len(new.shape):
        return f"its rank is {len(new.shape)}, not {len(old.shape)}"
    for axis, (was, now) in enumerate(zip(old.shape, new.shape)):
        if isinstance(was, int) and isinstance(now, int) and was != now:
            return f"dim {axis} of it is {now}, not {was}"
    return None


def _drop_last(items: list[Any], item: object) -> None:
    """Removes the last occurrence, searching from the end, where it was appended."""
    for place in range(len(items) - 1, -1, -1):
        if items[place] is item:
            del items[place]
            return
