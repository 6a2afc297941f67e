"""Rules: a pure `match` that says why it declines, and an `apply` that edits through a patch."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast, overload

import numpy as np
import onnx
import onnx.parser

from ..errors import ModelError, error_text
from ..facts.facts import Facts
from ..graph.index import Index
from ..graph.ir import Graph, Node, Tensor
from ..graph.views import CarriedValue, IfView, LoopView, ScanView
from .inference_engine import ANY_ENGINE, InferenceEngine
from .miss import Miss
from .onnx_text import explain_syntax_error
from .patch import Patch
from .promise import Promise

if TYPE_CHECKING:
    import typing_extensions

    from ..symbolic import Dim

    Found = typing_extensions.TypeVar("Found", default=Any)
else:
    Found = TypeVar("Found")
    """What a rule's `match` returns and its `apply` takes."""

T = TypeVar("T")
Candidate = TypeVar("Candidate")

ANY = "*"
"""The root of a rule that is tried at every node."""


class Match:
    """Attempts of rules at one node, with everything that they may query."""

    __slots__ = ("_found", "facts", "index", "node", "options")

    def __init__(self, node: Node, facts: Facts, options: Options) -> None:
        self.node = node
        """The root: the node at which the rule is tried."""
        self.facts = facts
        """What is proven about the values of the model."""
        self.index: Index = facts.index
        """Def-use chains and the nesting of graphs."""
        self.options = options
        """Options that rules respect."""
        self._found: dict[Callable[[Match], object], object] = {}

    # For a union, mypy would infer the common base `object` for T.
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
        if fact is None or fact is False or (type(fact) is np.bool_ and not fact):
            raise Miss(sentence, *values, at=at if at is not None else self.node)
        return fact

    def first(
        self,
        find: Callable[[Candidate], T | None],
        candidates: Iterable[Candidate],
        sentence: str,
    ) -> T:
        """Returns the first result of `find`, which rejects a candidate by None or a Miss.

        If `find` rejects all candidates, raises its first Miss, or one with the sentence if it
        raised none.
        """
        return next(self._results(find, candidates, sentence))

    def every(
        self,
        find: Callable[[Candidate], T | None],
        candidates: Iterable[Candidate],
        sentence: str,
    ) -> list[T]:
        """Returns all results of `find`, at least one. Raises Miss as `first` does."""
        return list(self._results(find, candidates, sentence))

    def _results(
        self,
        find: Callable[[Candidate], T | None],
        candidates: Iterable[Candidate],
        sentence: str,
    ) -> Iterator[T]:
        first_miss: Miss | None = None
        found = False
        for candidate in candidates:
            try:
                result = find(candidate)
            except Miss as miss:
                first_miss = first_miss or miss
                continue
            if result is not None:
                found = True
                yield result
        if not found:
            raise first_miss or Miss(sentence, at=self.node)

    def once(self, find: Callable[[Match], T]) -> T:
        """Returns `find(self)`, found once for all rules that are tried at the node.

        The graph and the facts must be the only other source of the result.
        """
        if find not in self._found:
            self._found[find] = find(self)
        return cast("T", self._found[find])

    def branches(self) -> IfView:
        """The root, an If, with named inputs, outputs and bodies."""
        return IfView(self.node)

    def loop(self) -> LoopView:
        """The root, a Loop, with named inputs, outputs and body."""
        return self.once(_loop_view)

    def scan(self) -> ScanView:
        """The root, a Scan, with named inputs, outputs and body. Raises Miss before opset 9."""
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
        """The graph that the root is in."""
        return self.index.graph_of(self.node)


def _loop_view(m: Match) -> LoopView:
    return LoopView(m.node)


class Options:
    """Options that rules respect."""

    def __init__(
        self,
        strict: bool = False,
        fold_bytes: int = 1 << 20,
        all_fold_bytes: int = 1 << 30,
        engine: InferenceEngine = ANY_ENGINE,
    ) -> None:
        self.strict = strict
        """Preserve errors: inputs on which the original fails must still fail. Also excludes
        rewrites that are exact only for counts that a float holds exactly."""
        self.fold_bytes = fold_bytes
        """The largest constant in bytes that constant folding creates, unless it replaces larger
        ones."""
        self.all_fold_bytes = all_fold_bytes
        """The most bytes of all new constants together; constant folding ends there."""
        self.engine = engine
        """The inference engine that the result is for."""


_FIXTURE_HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'
"""The header of a fixture whose text has none."""


def fixture(text: str, where: str = "") -> onnx.ModelProto:
    """Parses the model of a fixture: ONNX text whose header may be omitted.

    Raises ModelError for invalid text; `where` says whose fixture it is.
    """
    header = "" if text.lstrip().startswith("<") else _FIXTURE_HEADER
    try:
        return onnx.parser.parse_model(header + text)
    except onnx.parser.ParseError as error:
        reason = explain_syntax_error(error, text, lines_before=header.count("\n"))
        raise ModelError(
            f"A fixture is not ONNX text: {reason}",
            where=where,
            remedy="Correct the `fires` or `spares` of the rule",
        ) from error


def root_name(node: Node) -> str:
    """How `Rule.root` names the operator of a node: with its domain, unless that is standard."""
    return f"{node.domain}.{node.op}" if node.domain else node.op


class Rule(Generic[Found]):
    """A rewrite of one node and its surroundings.

    The first line of the docstring is the rule's line in the table of contents. The engine
    instantiates rules without arguments. A rule is stateless: `match` must always return the same.
    """

    root: ClassVar[str | tuple[str, ...]] = ANY
    """The operators that the rule is tried at; ANY for every node. An operator of another domain
    than the standard one is written with its domain: `com.microsoft.FastGelu`."""
    fires: ClassVar[str] = ""
    """A model on which the rule fires, in ONNX text (see `fixture`)."""
    spares: ClassVar[Mapping[str, str]] = {}
    """Near misses in ONNX text, by words that the reason of the Miss must contain."""
    promise: ClassVar[Promise] = Promise()
    """How a rewritten model may differ from the original; by default not at all."""
    before: ClassVar[str] = ""
    """The name of another rule: this rule is tried just before it, in its phases."""
    after: ClassVar[str] = ""
    """The name of another rule: this rule is tried just after it, in its phases."""

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
    def is_tried_at(cls, node: Node) -> bool:
        """Whether the engine tries the rule at a node."""
        return ANY in cls.roots() or root_name(node) in cls.roots()

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]


class Phase:
    """Rules that run together until none of them fires: `Phase(name, rules, summary)`."""

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
        """How messages, and `before` and `after` of other phases, name the phase."""
        self.rules = rules
        """The rules in the order in which they are tried at a node."""
        self.summary = summary
        """One sentence for `looplift rules list`. It has no default."""
        self.before = before
        """The name of another phase: a user's phase runs just before it, by default last."""
        self.after = after
        """The name of another phase: a user's phase runs just after it, by default last."""


RULE_ERRORS = (Exception, SystemExit, GeneratorExit)
"""The exceptions of a user's rule or module that the engine handles; not KeyboardInterrupt."""


def describe_error(method: str, kind: type[Rule[Any]], error: BaseException) -> str:
    """`match raised KeyError: 'x' at my_rules.py:12`, with a line of the rule's module."""
    frames = traceback.extract_tb(error.__traceback__)
    own = getattr(sys.modules.get(kind.__module__), "__file__", "")
    frame = next((f for f in reversed(frames) if f.filename == own), frames[-1])
    what = f"{type(error).__name__}: {error_text(error)}"
    return f"{method} raised {what} at {frame.filename}:{frame.lineno}"
