"""Checks a commit of a large model by running only the nodes that it touched.

A cut-out is a model of these nodes of the main graph, with everything in their bodies. Its inputs
are the values that they read, as a run of the original computed them. If every result that other
nodes read is the same as before the commit, so are all outputs of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ..rewrite.engine.engine import Engine
from ..rewrite.engine.patch import Patch
from ..rewrite.errors import LoopliftError
from ..rewrite.graph.ir import Constant, Node, Tensor
from ..rewrite.running.compare import Tolerances, compare
from ..rewrite.running.runtime import ExecutionError, RuntimeValue, SerializedModel
from ..rewrite.running.verify import is_empty_stack
from .batch_runner import BatchRunner
from .reference_runs import ReferenceRuns
from .snapshot import cut_out

MOST_BYTES = 1 << 30
"""The most memory for the values of the main graph in all cases."""
LARGEST_SHARE = 0.2
"""The largest share of the nodes of the main graph that a cut-out may have."""

Values = dict[Tensor, RuntimeValue]


@dataclass
class CutOuts:
    """The values of the main graph in each case, kept up to date commit by commit."""

    engine: Engine
    reference: ReferenceRuns
    values: list[Values]
    tolerances: Tolerances

    @classmethod
    def of(cls, engine: Engine, reference: ReferenceRuns, model: onnx.ModelProto) -> CutOuts | None:
        """For an engine that has made no commit, and its model; None if the values are too large or
        cannot be computed.
        """
        found = reference.main_values(model, MOST_BYTES)
        if found is None:
            return None
        root = engine.index.root
        tensors = [*root.inputs, *(t for node in engine.index.nodes(root) for t in node.outputs)]
        values = [
            {tensor: named[tensor.name] for tensor in tensors if tensor.name in named}
            for named in found
        ]
        return cls(engine, reference, values, reference.tolerances)

    def is_same_after(self, patch: Patch) -> bool:
        """Whether the last commit changed nothing that the model computes.

        Also False if a run of the touched nodes does not prove it; then the whole model must run.
        """
        nodes = self._touched(patch)
        root = self.engine.index.root
        if nodes is None or len(nodes) > max(8, LARGEST_SHARE * len(root.nodes)):
            return False
        if not nodes:
            return self._has_outputs()
        outputs = [t for node in nodes for t in node.outputs if t.name]
        try:
            computed = self._run(nodes, outputs)
        except (ExecutionError, LoopliftError, _Unknown):
            return False
        same = self._has_outputs() and all(
            self._is_same(tensor, nodes, [each[tensor] for each in computed]) for tensor in outputs
        )
        for known, new in zip(self.values, computed):
            for tensor, value in new.items():
                known.setdefault(tensor, value)
        return same

    def accept_whole_model(self) -> None:
        """Records that a run of the whole model showed no difference after the last commit."""
        self._outputs = self._returned()

    def _has_outputs(self) -> bool:
        """Whether the model returns the same values as before, and all of them are known."""
        return all(t in self.values[0] or isinstance(t, Constant) for t in self._returned()) and (
            self._returned() == self._outputs
        )

    def __post_init__(self) -> None:
        self._outputs = self._returned()

    def _returned(self) -> list[Tensor]:
        return list(self.engine.index.root.outputs)

    def _touched(self, patch: Patch) -> list[Node] | None:
        """The live nodes of the main graph that are touched or contain touched nodes, in order."""
        index = self.engine.index
        found: dict[Node, None] = {}
        for node in patch.touched:
            if node in index:
                ancestor = index.ancestor_in(node, index.root)
                if ancestor is None:
                    return None
                found[ancestor] = None
        return sorted(found, key=lambda node: node.order)

    def _is_same(
        self, tensor: Tensor, nodes: Sequence[Node], computed: Sequence[RuntimeValue]
    ) -> bool:
        """Whether a result is as before; one that only touched nodes read need not be."""
        if tensor not in self.values[0]:
            return not self._is_read_outside(tensor, set(nodes))
        for known, new in zip(self.values, computed):
            old = known[tensor]
            if not is_empty_stack(old, new) and compare(
                [tensor.name], [old], [new], self.tolerances
            ):
                return False
        return True

    def _is_read_outside(self, tensor: Tensor, nodes: set[Node]) -> bool:
        index = self.engine.index
        for use in index.uses(tensor):
            reader = use.reader if isinstance(use.reader, Node) else index.owner(use.reader)
            if reader is None or index.ancestor_in(reader, index.root) not in nodes:
                return True
        return False

    def _run(self, nodes: Sequence[Node], outputs: Sequence[Tensor]) -> list[Values]:
        """The outputs of the cut-out in each case. Raises _Unknown if an input is not known."""
        inputs = list(self._inputs(nodes))
        if any(tensor not in self.values[0] for tensor in inputs):
            raise _Unknown
        model = cut_out(self.engine, nodes, inputs, outputs)
        # The export renames values that share a name, so inputs are found by position.
        names = [info.name for info in model.graph.input]
        for info, tensor in zip(model.graph.input, inputs, strict=True):
            _declare(info, self.values[0][tensor])
        seconds = self.reference.effort.run_seconds
        runner = BatchRunner(
            [({name: known[t] for name, t in zip(names, inputs)}, seconds) for known in self.values]
        )
        try:
            done = runner.outputs(SerializedModel(model, self.engine.model.base_dir), False)
        finally:
            runner.close()
        return [dict(zip(outputs, values, strict=True)) for values in done.results]

    def _inputs(self, nodes: Sequence[Node]) -> Iterator[Tensor]:
        """What other nodes compute. Raises _Unknown for a default that a run may replace."""
        made = {tensor for node in nodes for tensor in node.outputs}
        seen: set[Tensor] = set()
        for node in nodes:
            for tensor in (*node.inputs, *self.engine.index.captures(node)):
                if not tensor.name or tensor in made or tensor in seen:
                    continue
                seen.add(tensor)
                if not isinstance(tensor, Constant):
                    yield tensor
                elif tensor.overridable:
                    raise _Unknown


class _Unknown(Exception):
    """The value of an input of a cut-out is not known."""


def _declare(info: onnx.ValueInfoProto, value: RuntimeValue) -> None:
    """Declares the type of a tensor with open sizes. Raises _Unknown for anything else."""
    if not isinstance(value, np.ndarray):
        raise _Unknown
    kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, kind, [None] * value.ndim))
