"""A model with a patch, for tests of edits and of their checks."""

from __future__ import annotations

import onnx

from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.graph.ir import Graph, Node, Tensor
from looplift.rewrite.storage.model import export_model, import_model

from ..small_models import parse
from .fact_oracle import value

TEXT = """g (float[3] x, bool c) => (float[3] y, float[3] z) <float[3] k = {1, 2, 3}> {
    u = Exp(x)
    v = If (c) <then_branch = t () => (float[3] a) <float[3] w = {4, 5, 6}> { p = Mul(u, w) a = Neg(p) },
                else_branch = e () => (float[3] b) { q = Add(u, k) b = Abs(q) }>
    y = Sin(v) z = Cos(u) }"""


class Setting:
    """A model with a patch rooted at one of its nodes."""

    def __init__(self, text: str = TEXT, root: str = "v") -> None:
        self.proto = parse(text, 21, 10)
        self.model = import_model(self.proto)
        self.engine = Engine(self.model, ())
        self.index = self.engine.index
        producer = self.index.producer(self[root])
        assert producer is not None
        self.root: Node = producer
        self.patch = Patch(self.engine.facts, self.root)

    def __getitem__(self, name: str) -> Tensor:
        return value(self.engine.facts, name)

    def node(self, name: str) -> Node:
        return self.producer(self[name])

    def producer(self, tensor: Tensor) -> Node:
        found = self.index.producer(tensor)
        assert found is not None
        return found

    def body(self, name: str) -> Graph:
        found: Graph = self.root.attrs[name]
        return found

    def export(self) -> onnx.ModelProto:
        self.engine.run()
        return export_model(self.model)
