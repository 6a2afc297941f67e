"""What a rule is: a pure `match` that must say why it declines, and an `apply` through a patch."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import onnx
import onnx.parser

from ..facts.facts import Facts
from ..graph.index import Index
from ..graph.ir import Graph, Node, Tensor
from ..graph.views import IfView, LoopView, ScanView

T = TypeVar("T")

ANY = "*"
"""The root of a rule that looks at every node."""


class Miss(Exception):
    """Why a rule does not fire: a sentence with the values and the place it speaks of.

    The sentence is put together only when somebody reads it.
    """

    def __init__(self, sentence: str, values: tuple[object, ...], at: Node | Tensor | None) -> None:
        self.sentence = sentence
        self.values = values
        self.at = at
        super().__init__(sentence)

    def __str__(self) -> str:
        try:
            return self.sentence.format(*(describe(v) for v in self.values))
        except (LookupError, ValueError):  # braces that are no places, or too many of them
            return self.sentence


def describe(thing: object) -> str:
    """A value, node or fact as a user would point at it."""
    if isinstance(thing, Node):
        outputs = ", ".join(f"`{t.name}`" for t in thing.outputs if t.name)
        return f"{thing.op} {f'`{thing.name}`' if thing.name else f'of {outputs}'}"
    if isinstance(thing, Tensor):
        return f"`{thing.name}`"
    if isinstance(thing, (tuple, list, frozenset, set)):
        return ", ".join(describe(t) for t in thing)
    return str(thing)


class Match:
    """One attempt of one rule at one node: the questions a rule may ask."""

    __slots__ = ("facts", "index", "node", "options")

    def __init__(self, node: Node, facts: Facts, options: Options) -> None:
        self.node = node
        """The root: the node that is tried."""
        self.facts = facts
        """What can be proven of values."""
        self.index: Index = facts.index
        """Who defines and who reads each value."""
        self.options = options
        """Switches that the rule respects."""

    def need(
        self, fact: T | None, sentence: str, *values: object, at: Node | Tensor | None = None
    ) -> T:
        """Returns the fact; declines with the sentence when it is None or False.

        The sentence's `{}` are filled with `values`. `at` is the place it speaks of, the root node
        by default.
        """
        if fact is None or fact is False:
            raise Miss(sentence, values, at if at is not None else self.node)
        return fact

    def branches(self) -> IfView:
        """The root by role, where it is an If."""
        return IfView(self.node)

    def loop(self) -> LoopView:
        """The root by role, where it is a Loop."""
        return LoopView(self.node)

    def scan(self) -> ScanView:
        """The root by role, where it is a Scan."""
        return ScanView(self.node)

    def producer(self, tensor: Tensor, *ops: str) -> Node | None:
        """The node that computes a value, if it is one of these standard operators."""
        node = self.index.producer(tensor)
        return node if node is not None and not node.domain and node.op in ops else None

    def graph(self) -> Graph:
        """The graph the root node stands in."""
        return self.index.graph_of(self.node)


class Options:
    """Switches that rules respect."""

    def __init__(self, strict: bool = False, fold_bytes: int = 1 << 20) -> None:
        self.strict = strict
        """Only rewrites that hold for runs that fail, too, and for counts beyond what floats hold
        exactly."""
        self.fold_bytes = fold_bytes
        """Folding never makes a constant larger than this, in bytes, unless it shrinks."""


HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'
"""What the text of a fixture begins with unless it has a header of its own."""


def fixture(text: str) -> onnx.ModelProto:
    """The model that a rule shows, from ONNX text whose header may be left out.

    Raises onnx.parser.ParseError for text that is not ONNX's.
    """
    return onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEADER + text)


class Rule:
    """A rewrite of one node and what surrounds it.

    The first line of the docstring is the rule's line in the table of contents. A rule is made
    without arguments.
    """

    root: ClassVar[str | tuple[str, ...]] = ANY
    """The operator(s) of the standard domain the rule starts from; ANY for every node."""
    fires: ClassVar[str] = ""
    """A model on which the rule fires, in ONNX text as `fixture` reads it."""
    spares: ClassVar[Mapping[str, str]] = {}
    """Near misses: such a model by the words its reason must contain."""

    def match(self, m: Match) -> dict[str, Any]:
        """What `apply` needs; declines through `m.need`. Changes nothing."""
        raise NotImplementedError

    apply: Callable[..., None]
    """`apply(self, patch, …)` makes the change, through the patch only; it takes what `match` found
    as named parameters."""

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    @classmethod
    def roots(cls) -> tuple[str, ...]:
        """The operators that the rule starts from, ANY among them for every node."""
        return (cls.root,) if isinstance(cls.root, str) else cls.root

    @classmethod
    def summary(cls) -> str:
        return (cls.__doc__ or "").strip().partition("\n")[0]


class Phase:
    """Rules that run together until none of them fires."""

    def __init__(self, name: str, rules: tuple[type[Rule], ...], summary: str) -> None:
        self.name = name
        self.rules = rules
        self.summary = summary


RAISED = (Exception, SystemExit)
"""What a user's rule may raise, and its module while it is loaded: anything but an interruption."""


def raised(step: str, kind: type[Rule], error: BaseException) -> str:
    """`match raised KeyError: 'x' at my_rules.py:12`: the line of the rule's own module."""
    frames = traceback.extract_tb(error.__traceback__)
    own = getattr(sys.modules.get(kind.__module__), "__file__", "")
    frame = next((f for f in reversed(frames) if f.filename == own), frames[-1])
    return f"{step} raised {type(error).__name__}: {error} at {frame.filename}:{frame.lineno}"
