"""Checks facts against onnxruntime: they must hold in every run that succeeds.

A model runs at several sizes and returns all its values (see `fact_probe`). Then every fact (type,
rank, dims, elements, length, "this node always fails") is compared with the values. A symbol that
is a dim or an element by itself is bound to the number at its first occurrence; at all others it
must have the same value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from looplift.rewrite import symbolic
from looplift.rewrite.facts import inference
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.facts.fact import Fact
from looplift.rewrite.facts.facts import Facts
from looplift.rewrite.graph import ir
from looplift.rewrite.graph.index import Index
from looplift.rewrite.graph.ir import bodies
from looplift.rewrite.storage.model import import_model, opsets

from .fact_probe import Probe, probe

SIZES = (0, 1, 2, 7)
Environment = dict[symbolic.Symbol, int]


class NothingRan(AssertionError):
    """onnxruntime took none of the inputs: nothing was compared."""


def facts_of(model: onnx.ModelProto, assertions: Assertions | None = None) -> Facts:
    """The facts of a model as a rewrite derives them first."""
    imported = import_model(model)
    return inference.facts_of(Index(imported.graph), opsets(imported.header), assertions)


def value(facts: Facts, name: str) -> ir.Tensor:
    """The value of this name; outer graphs come first."""
    for graph in facts.index.graphs(facts.index.root):
        tensors = [*graph.inputs, *graph.initializers]
        tensors += [t for node in graph.nodes for t in node.outputs]
        for tensor in tensors:
            if tensor.name == name:
                found: ir.Tensor = tensor
                return found
    raise KeyError(name)


def evaluate(dim: symbolic.Dim | bool | None, known: Environment) -> int | None:
    """The value of a dim; None where a symbol is not bound yet."""
    if dim is None or isinstance(dim, int):
        return dim
    if any(s not in known for s in dim.symbols()):
        return None
    number = symbolic.substitute(dim, dict(known.items()))
    assert isinstance(number, int)
    return number


# --- inputs ---


@dataclass(frozen=True)
class Feeds:
    """The inputs a model is run with."""

    sizes: Sequence[int] = SIZES
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values for single inputs, each tried at every size; all others are drawn."""
    most: int = 80
    """Runs at most, drawn from all combinations."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Named dims of one size."""

    def of(self, model: onnx.ModelProto) -> Iterator[dict[str, Any]]:
        given = {tensor.name for tensor in model.graph.initializer}
        inputs = [info for info in model.graph.input if info.name not in given]
        names = list(dict.fromkeys(n for info in inputs for n in _open_dims(info)))
        pools = [[(name, value) for value in self._pool(info)] for info in inputs
                 for name in [info.name] if self._pool(info)]  # fmt: skip
        combinations = list(
            itertools.product(*([(n, s) for s in self._sizes(n)] for n in names), *pools)
        )
        rng = np.random.default_rng(0)
        if len(combinations) > self.most:
            chosen = rng.choice(len(combinations), self.most, replace=False)
            combinations = [combinations[i] for i in sorted(chosen)]
        for combination in combinations:
            fixed = dict(combination)
            yield {
                info.name: fixed[info.name] if info.name in fixed else _drawn(info, fixed, rng)
                for info in inputs
            }

    def _sizes(self, name: str) -> Sequence[int]:
        return (self.fixed[name],) if name in self.fixed else self.sizes

    def _pool(self, info: onnx.ValueInfoProto) -> Sequence[Any]:
        dtype = info.type.tensor_type.elem_type
        if info.name in self.values and info.type.HasField("sequence_type"):
            inner = info.type.sequence_type.elem_type.tensor_type.elem_type
            kind = helper.tensor_dtype_to_np_dtype(inner)
            return [[np.asarray(e, kind) for e in v] for v in self.values[info.name]]
        if info.name in self.values:
            kind = helper.tensor_dtype_to_np_dtype(dtype)
            return [np.asarray(v, kind) for v in self.values[info.name]]
        if dtype == TensorProto.BOOL and not info.type.tensor_type.shape.dim:
            return [np.array(True), np.array(False)]
        return ()


def _open_dims(info: onnx.ValueInfoProto) -> list[str]:
    dims = info.type.tensor_type.shape.dim
    return [
        d.dim_param or f"{info.name}.{i}" for i, d in enumerate(dims) if not d.HasField("dim_value")
    ]


def _drawn(info: onnx.ValueInfoProto, sizes: Mapping[str, Any], rng: np.random.Generator) -> Any:
    dims = info.type.tensor_type.shape.dim
    shape = [
        d.dim_value if d.HasField("dim_value") else sizes[d.dim_param or f"{info.name}.{i}"]
        for i, d in enumerate(dims)
    ]
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
    if kind.kind == "f":
        return rng.standard_normal(shape).astype(kind)
    if kind.kind == "b":
        return np.asarray(rng.integers(0, 2, shape) == 1)
    if kind.kind == "O":
        return np.full(shape, "a", object)
    return np.asarray(rng.integers(0, 4, shape)).astype(kind)


# --- the check ---


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The model without onnxruntime's own rewriting, which would hide failures."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def check(
    model: onnx.ModelProto, feeds: Feeds | None = None, assertions: Assertions | None = None
) -> Facts:
    """Asserts that all facts of a model hold in every run that succeeds; one must.

    Facts are derived twice, bodies first (as the engine asks) and outputs first.
    """
    inside_out, outside_in = facts_of(model, assertions), facts_of(model, assertions)
    _derive(inside_out, list(inside_out.index.walk()))
    _derive(outside_in, list(outside_in.index.root.nodes)[::-1])
    tapped = {id(facts): probe(model, facts) for facts in (inside_out, outside_in)}
    runs = 0
    runnable = {key: session(one.model) for key, one in tapped.items()}
    for feed in (feeds or Feeds()).of(model):
        for facts in (inside_out, outside_in):
            one = tapped[id(facts)]
            try:
                results = runnable[id(facts)].run(None, feed)
            except Exception as error:
                if "ONNXRuntimeError" not in str(error) and "empty" not in str(error):
                    raise
                continue
            runs += 1
            try:
                _check_run(facts, one, feed, dict(zip(one.outputs, results)))
            except AssertionError as error:
                shown = {k: getattr(v, "tolist", lambda v=v: v)() for k, v in feed.items()}
                raise AssertionError(f"{error}\nwith {shown}") from None
    if not runs:
        raise NothingRan
    return outside_in


def _derive(facts: Facts, nodes: Iterable[ir.Node]) -> None:
    for node in nodes:
        for tensor in node.outputs:
            facts.of(tensor)
        for body in bodies(node):
            for tensor in body.inputs:
                facts.of(tensor)


def _check_run(facts: Facts, one: Probe, feed: dict[str, Any], results: dict[str, Any]) -> None:
    root = facts.index.root
    seen: dict[ir.Tensor, Any] = {t: feed[t.name] for t in root.inputs if t.name in feed}
    for node in root.nodes:
        seen.update({t: results[t.name] for t in node.outputs if t.name})
    for node in facts.failures:
        assert facts.index.graph_of(node) is not root, (
            f"{node.op} is said to fail ({facts.failures[node]}), yet the run succeeds"
        )
    known: Environment = {}
    _check_values(facts, seen, known)
    _check_bodies(facts, one, results, known)


def _check_bodies(facts: Facts, one: Probe, results: dict[str, Any], known: Environment) -> None:
    """Compares each iteration of each body (or a taken branch) on its own."""
    columns: dict[ir.Graph, dict[ir.Tensor, Sequence[Any]]] = {}
    for name, tensor in one.taps.items():
        home = facts.index.home(tensor)
        assert home is not None
        columns.setdefault(home, {})[tensor] = results[name]
    for body, taps in columns.items():
        for row in range(min(len(column) for column in taps.values())):
            for node in facts.failures:
                assert facts.index.graph_of(node) is not body, (
                    f"{node.op} is said to fail ({facts.failures[node]}), yet it ran"
                )
            values = {t: np.asarray(column[row]) for t, column in taps.items()}
            _check_values(facts, values, dict(known))


def _check_values(facts: Facts, seen: Mapping[ir.Tensor, Any], known: Environment) -> None:
    claims = {tensor: facts.of(tensor) for tensor in seen}
    for tensor, fact in claims.items():
        if isinstance(seen[tensor], np.ndarray):
            _bind(fact, seen[tensor], known)
    for symbol, number in known.items():
        assert symbol.low is None or symbol.low <= number, f"{symbol} is {number} < {symbol.low}"
        assert symbol.high is None or number <= symbol.high, (
            f"{symbol} is {number}, claimed to be at most {symbol.high}"
        )
    for tensor, fact in claims.items():
        if isinstance(seen[tensor], list):
            _check_sequence(tensor.name, fact, seen[tensor], _of_inputs(facts, known))
        else:
            _check_tensor(tensor.name, fact, seen[tensor], known)


def _of_inputs(facts: Facts, known: Environment) -> Environment:
    """The sizes of the model's inputs. Other symbols in a sequence's element shape stand for dims
    that may differ from element to element.
    """
    names = {tensor.name for tensor in facts.index.root.inputs}
    return {
        symbol: number
        for symbol, number in known.items()
        if symbol.serial < 0 or symbol.name.rpartition(".")[0] in names
    }


def _bind(fact: Fact, seen: np.ndarray, known: Environment) -> None:
    pairs: list[tuple[Any, int]] = []
    if fact.shape is not None and len(fact.shape) == seen.ndim:
        pairs += zip(fact.shape, seen.shape)
    if fact.values is not None and len(fact.values) == seen.size:
        pairs += zip(fact.values, seen.reshape(-1).tolist())
    for dim, number in pairs:
        if isinstance(dim, symbolic.Expr) and not dim.constant and len(dim.terms) == 1:
            ((monomial, factor),) = dim.terms
            if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], symbolic.Symbol):
                known.setdefault(monomial[0], number)


def _check_tensor(name: str, fact: Fact, seen: Any, known: Environment) -> None:
    seen = np.asarray(seen)
    assert fact.kind == "tensor", f"`{name}` is a tensor, claimed to be {fact.kind}"
    _check_type(name, fact, seen.dtype)
    _check_dims(name, fact, seen.shape, known)
    if fact.values is None:
        return
    assert len(fact.values) == seen.size, f"`{name}` has {seen.size} elements: {fact.values}"
    for claimed, number in zip(fact.values, seen.reshape(-1).tolist()):
        wanted = evaluate(claimed, known)
        assert wanted is None or wanted == number, (
            f"`{name}` is {seen.tolist()}, claimed to be {fact.values}: {wanted} is not {number}"
        )


def _check_type(name: str, fact: Fact, seen: np.dtype[Any]) -> None:
    claimed = helper.tensor_dtype_to_np_dtype(fact.dtype) if fact.dtype else seen
    assert claimed == seen, f"`{name}` has type {seen}, claimed to be {claimed}"


def _check_dims(name: str, fact: Fact, seen: tuple[int, ...], known: Environment) -> None:
    ranks = fact.possible_ranks()
    assert ranks is None or len(seen) in ranks, f"`{name}` has shape {seen}, claimed ranks {ranks}"
    for claimed, number in zip(fact.shape or (), seen):
        wanted = evaluate(claimed, known)
        assert wanted is None or wanted == number, (
            f"`{name}` has shape {seen}, claimed to be {fact.shape}: {wanted} is not {number}"
        )


def _check_sequence(name: str, fact: Fact, seen: list[Any], known: Environment) -> None:
    assert fact.kind == "sequence", f"`{name}` is a sequence, claimed to be a {fact.kind}"
    length = evaluate(fact.length, known)
    assert length is None or length == len(seen), (
        f"`{name}` has {len(seen)} elements, claimed {fact.length}"
    )
    for element in seen:
        array = np.asarray(element)
        _check_type(name, fact, array.dtype)
        _check_dims(name, fact, array.shape, known)
