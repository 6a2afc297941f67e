"""Rules: a pure `match` that says why it declines, and an `apply` that edits through a patch."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

import onnx
import onnx.parser

from ..facts.facts import Facts
from ..graph.index import Index
from ..graph.ir import Graph, Node, Tensor
from ..graph.views import CarriedValue, IfView, LoopView, ScanView

if TYPE_CHECKING:
    from collections.abc import Mapping

    import typing_extensions

    from ..symbolic import Dim
    from .patch import Patch

    Found = typing_extensions.TypeVar("Found", default=Any)
else:
    Found = TypeVar("Found")
    """What a rule's `match` returns and its `apply` takes."""

T = TypeVar("T")

ANY = "*"
"""The root of a rule that is tried at every node."""


class Miss(Exception):
    """Why a rule does not fire: a sentence, the values in it, and the place it is about.

    The `{}` of the sentence are filled in only when somebody reads it. The engine takes the root
    node for a Miss without a place.
    """

    def __init__(self, sentence: str, *values: object, at: Node | Tensor | None = None) -> None:
        self.sentence = sentence
        self.values = values
        self.at = at
        super().__init__(sentence)

    def __str__(self) -> str:
        try:
            return self.sentence.format(*(describe(v) for v in self.values))
        except (LookupError, ValueError):  # braces that are not placeholders, or too many of them
            return self.sentence


def describe(thing: object) -> str:
    """Names a node, tensor or other value in a message: `Add `node` `, `` `tensor` ``, `3`."""
    if isinstance(thing, Node):
        outputs = ", ".join(f"`{t.name}`" for t in thing.outputs if t.name)
        return f"{thing.op} {f'`{thing.name}`' if thing.name else f'of {outputs}'}"
    if isinstance(thing, Tensor):
        return f"`{thing.name}`"
    if isinstance(thing, (tuple, list, frozenset, set)):
        return ", ".join(describe(t) for t in thing)
    return str(thing)


class Match:
    """One attempt of one rule at one node: what the rule may ask."""

    __slots__ = ("facts", "index", "node", "options")

    def __init__(self, node: Node, facts: Facts, options: Options) -> None:
        self.node = node
        """The root: the node at which the rule is tried."""
        self.facts = facts
        """What is proven of values."""
        self.index: Index = facts.index
        """Def-use chains and the nesting of graphs."""
        self.options = options
        """Options that rules respect."""

    # Of a union, mypy would infer the common base `object` for T.
    @overload
    def need(
        self, fact: Tensor | None, sentence: str, *values: object, at: Node | Tensor | None = None
    ) -> Tensor: ...

    @overload
    def need(
        self, fact: int | None, sentence: str, *values: object, at: Node | Tensor | None = None
    ) -> int: ...

    @overload
    def need(
        self, fact: Dim | None, sentence: str, *values: object, at: Node | Tensor | None = None
    ) -> Dim: ...

    @overload
    def need(
        self, fact: T | None, sentence: str, *values: object, at: Node | Tensor | None = None
    ) -> T: ...

    def need(
        self, fact: T | None, sentence: str, *values: object, at: Node | Tensor | None = None
    ) -> T:
        """Returns the fact; raises Miss with the sentence if it is None or False.

        `values` fill the `{}` of the sentence. `at` is the node or tensor that the sentence is
        about, by default the root.
        """
        if fact is None or fact is False:
            raise Miss(sentence, *values, at=at if at is not None else self.node)
        return fact

    def branches(self) -> IfView:
        """The root, an If, by role."""
        return IfView(self.node)

    def loop(self) -> LoopView:
        """The root, a Loop, by role."""
        return LoopView(self.node)

    def scan(self) -> ScanView:
        """The root, a Scan, by role. Raises Miss before opset 9, where Scan has another form."""
        self.need(self.facts.opset >= 9, "Scan has another form before opset 9")
        return ScanView(self.node)

    def carried(self) -> list[CarriedValue]:
        """The loop-carried values of the root, a Loop or Scan. Raises Miss as `scan` does."""
        return self.loop().carried if self.node.op == "Loop" else self.scan().carried

    def producer(self, tensor: Tensor, *ops: str) -> Node | None:
        """The node that computes a tensor, if it is one of these standard operators."""
        node = self.index.producer(tensor)
        return node if node is not None and not node.domain and node.op in ops else None

    def graph(self) -> Graph:
        """The graph that the root stands in."""
        return self.index.graph_of(self.node)


class Options:
    """Options that rules respect."""

    def __init__(self, strict: bool = False, fold_bytes: int = 1 << 20) -> None:
        self.strict = strict
        """Preserve errors: inputs on which the original fails must still fail. Also excludes
        rewrites that are exact only for counts that a float holds exactly."""
        self.fold_bytes = fold_bytes
        """The most bytes of a constant that folding creates, unless it replaces larger ones."""


HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'
"""What the text of a fixture begins with unless it has a header of its own."""


def fixture(text: str) -> onnx.ModelProto:
    """Parses the model of a fixture: ONNX text whose header may be left out.

    Raises onnx.parser.ParseError for invalid text.
    """
    return onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEADER + text)


class Rule(Generic[Found]):
    """A rewrite of one node and its surroundings.

    The first line of the docstring is the rule's line in the table of contents. The engine makes
    rules without arguments. A rule holds no state: `match` must give the same answer each time.
    """

    root: ClassVar[str | tuple[str, ...]] = ANY
    """The operators of the standard domain that the rule is tried at; ANY for every node."""
    fires: ClassVar[str] = ""
    """A model on which the rule fires, in ONNX text (see `fixture`)."""
    spares: ClassVar[Mapping[str, str]] = {}
    """Near misses in ONNX text, by words that the reason for the Miss must contain."""
    before: ClassVar[str] = ""
    """The name of a rule before which this one is tried at each node, in the phases of that rule
    instead of its own."""
    after: ClassVar[str] = ""
    """Likewise, but this rule is tried after the named one."""

    def match(self, m: Match) -> Found:
        """Returns what `apply` needs, such as a small dataclass; declines through `m.need`.

        It must not change anything.
        """
        raise NotImplementedError

    def apply(self, patch: Patch, found: Found) -> None:
        """Edits the graph, through the patch only. `found` is what `match` returned."""
        raise NotImplementedError

    @classmethod
    def name(cls) -> str:
        """The name of the class."""
        return cls.__name__

    @classmethod
    def roots(cls) -> tuple[str, ...]:
        """The operators that the rule is tried at, ANY among them for every node."""
        return (cls.root,) if isinstance(cls.root, str) else cls.root

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]


class Phase:
    """Rules that run together until none of them fires."""

    def __init__(
        self,
        name: str,
        rules: tuple[type[Rule[Any]], ...],
        summary: str,
        *,
        before: str = "",
        after: str = "",
    ) -> None:
        self.name = name
        self.rules = rules
        self.summary = summary
        self.before = before
        """The name of a phase that this one runs before; for phases of users, which run last
        otherwise."""
        self.after = after
        """Likewise, but this phase runs just after the named one."""


RAISED = (Exception, SystemExit)
"""What a user's rule or its module may raise; KeyboardInterrupt passes through."""


def raised(step: str, kind: type[Rule[Any]], error: BaseException) -> str:
    """`match raised KeyError: 'x' at my_rules.py:12`, with the line of the rule's own module."""
    frames = traceback.extract_tb(error.__traceback__)
    own = getattr(sys.modules.get(kind.__module__), "__file__", "")
    frame = next((f for f in reversed(frames) if f.filename == own), frames[-1])
    return f"{step} raised {type(error).__name__}: {error} at {frame.filename}:{frame.lineno}"
