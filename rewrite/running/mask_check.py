"""Rejects inputs for which a value that is asserted to be a prefix mask is not one.

Masks that are inputs are generated as prefix masks. For masks that the model computes, the original
model is run first; inputs for which they are not prefix masks say nothing about the rewrite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import onnx

from ..facts.prefix_masks import is_prefix_mask
from .runtime import ExecutionError, Feed, IsolatedSession, SerializedModel


class PrefixMaskCheck(AbstractContextManager["PrefixMaskCheck"]):
    """Checks the values that a model computes and that are asserted to be prefix masks.

    As a context manager, it closes onnxruntime's session at the end.
    """

    def __init__(
        self, model: onnx.ModelProto | None, base_dir: str, axes: Mapping[str, int]
    ) -> None:
        """`model` returns the masks; None if there are none to check. `axes`: by name."""
        self._model = model
        self._base_dir = base_dir
        self._axes = axes
        self._session: IsolatedSession | None = None

    @classmethod
    def of(cls, model: onnx.ModelProto, base_dir: str, masks: Mapping[str, int]) -> PrefixMaskCheck:
        """The check of those masks that are not inputs; `masks` has the time axes by name."""
        given = {info.name for info in model.graph.input}
        computed = [name for name in masks if name not in given]
        return cls(_returning(model, computed) if computed else None, base_dir, masks)

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def check(self, feed: Feed) -> None:
        """Raises `ExecutionError` if a mask is not a prefix mask or cannot be computed."""
        if self._model is None:
            return
        if self._session is None:
            packed = SerializedModel(self._model, self._base_dir)
            self._session = IsolatedSession(packed, optimizes=False)
        for name, value in zip(self._session.outputs, self._session.run(feed)):
            if not is_prefix_mask(value, self._axes[name]):
                raise ExecutionError(
                    f"`{name}` is asserted to be a prefix mask along axis {self._axes[name]}, "
                    "but is not one for these inputs"
                )


def _returning(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with these values as its only outputs; onnxruntime infers their types."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    for name in names:
        copy.graph.output.add(name=name)
    return copy
