"""Keeps inputs apart under which a value, asserted to be a prefix mask, is none.

Where the mask is an input it is made up accordingly. Where the model computes it, nobody knows
which inputs lead to one: the original is asked, and other inputs say nothing about a rewrite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
import onnx

from .runtime import Feed, IsolatedSession, Packed, Refused, Value


class MaskWatch(AbstractContextManager["MaskWatch"]):
    """The values of a model that are computed and asserted to be prefix masks.

    Leaving it as a context manager lets go of onnxruntime's session.
    """

    def __init__(
        self, model: onnx.ModelProto | None, base_dir: str, axes: Mapping[str, int]
    ) -> None:
        """The outputs of the model are the masks; None where there is no such value."""
        self._model = model
        self._base_dir = base_dir
        self._axes = axes
        self._session: IsolatedSession | None = None

    @classmethod
    def of(cls, model: onnx.ModelProto, base_dir: str, masks: Mapping[str, int]) -> MaskWatch:
        """The watch over those of the masks that are no inputs. `masks`: their axes by name."""
        given = {info.name for info in model.graph.input}
        computed = [name for name in masks if name not in given]
        return cls(_returning(model, computed) if computed else None, base_dir, masks)

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def check(self, feed: Feed) -> None:
        """Raises `Refused` where a mask is true again after it was false, or is not computed."""
        if self._model is None:
            return
        if self._session is None:
            packed = Packed(self._model, self._base_dir)
            self._session = IsolatedSession(packed, optimizes=False)
        for name, value in zip(self._session.outputs, self._session.run(feed)):
            if not is_prefix_mask(value, self._axes[name]):
                raise Refused(
                    f"`{name}` is asserted to be a prefix mask along axis {self._axes[name]}, "
                    "but is none then"
                )


def is_prefix_mask(value: Value, axis: int) -> bool:
    """Whether a value is 1 first and 0 from some place on along an axis."""
    array = np.asarray(value).astype(float)
    if axis >= array.ndim or not np.all((array == 0) | (array == 1)):
        return False
    return bool(np.all(np.diff(array, axis=axis) <= 0))


def _returning(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with these values as its only outputs, whose types onnxruntime finds itself."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    for name in names:
        copy.graph.output.add(name=name)
    return copy
