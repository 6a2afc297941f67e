"""The attributes of an ONNX LSTM, GRU or RNN node, checked and with defaults filled in.

Source: the ONNX operator specifications of LSTM, GRU and RNN, versions 1 to 22. Where the text
leaves a choice open, or onnxruntime departs from it, this follows onnxruntime, because rewritten
models are checked against it:

- an activation with a parameter alpha or beta consumes one element of `activation_alpha` or
  `activation_beta`; when the list is exhausted, Affine, ScaledTanh and ThresholdedRelu get 0;
- `clip` bounds the inputs of the gates' activations, but not the cell state in the activation h;
- `Y_h` and `Y_c` are 0 for a sequence of length 0.

`output_sequence` of version 1 allows to omit `Y`; it is ignored, and `Y` is always computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...rewrite.errors import ModelError

GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""The number of gates: iofc, zrh, i."""

_DEFAULT_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
_DIRECTIONS: Mapping[str, tuple[bool, ...]] = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}


@dataclass(frozen=True)
class _Parameters:
    """The defaults of an activation's parameters; None for one that it does not have."""

    alpha: float | None = None
    beta: float | None = None


_PARAMETERS: Mapping[str, _Parameters] = {
    "affine": _Parameters(alpha=0.0, beta=0.0),
    "elu": _Parameters(alpha=1.0),
    "hardsigmoid": _Parameters(alpha=0.2, beta=0.5),
    "leakyrelu": _Parameters(alpha=0.01),
    "relu": _Parameters(),
    "scaledtanh": _Parameters(alpha=0.0, beta=0.0),
    "sigmoid": _Parameters(),
    "softplus": _Parameters(),
    "softsign": _Parameters(),
    "tanh": _Parameters(),
    "thresholdedrelu": _Parameters(alpha=0.0),
}


@dataclass(frozen=True)
class Activation:
    """An activation function by its name in lower case, with its parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Direction:
    """One of the one or two passes over the sequence."""

    reverse: bool
    activations: tuple[Activation, ...]
    """LSTM: f, g, h. GRU: f, g. RNN: f."""


@dataclass(frozen=True)
class Layer:
    """A recurrent layer without its weights."""

    op: str
    """"LSTM", "GRU" or "RNN"."""
    hidden: int
    directions: tuple[Direction, ...]
    clip: float | None
    input_forget: bool
    """LSTM: the forget gate is one minus the input gate."""
    linear_before_reset: bool
    """GRU: the reset gate scales `h·R + Rb` instead of `h`."""
    batch_first: bool
    """`layout` is 1: X is [batch, seq, input]."""

    @property
    def gates(self) -> int:
        return GATES[self.op]


def parse_layer(op: str, attrs: Mapping[str, Any], hidden: int) -> Layer:
    """The layer that the attributes of a node describe. `hidden` is the size in the shape of R.

    Raises ModelError for an unknown direction, layout or activation, a wrong number of activations,
    a clip that is not positive, or a hidden_size that contradicts R.
    """
    declared = attrs.get("hidden_size", hidden)
    if declared != hidden:
        raise ModelError(
            f"{op} declares hidden_size {declared}, but its recurrence weight has {hidden} columns",
            remedy="correct hidden_size or the weight R",
        )
    clip = attrs.get("clip")
    if clip is not None and not clip > 0:
        raise ModelError(f"{op} has clip {clip}", remedy="use a positive clip, or none")
    layout = attrs.get("layout", 0)
    if layout not in (0, 1):
        raise ModelError(f"{op} has layout {layout}", remedy="use 0 or 1")
    return Layer(
        op=op,
        hidden=hidden,
        directions=_directions(op, attrs),
        clip=clip,
        input_forget=op == "LSTM" and bool(attrs.get("input_forget", 0)),
        linear_before_reset=op == "GRU" and bool(attrs.get("linear_before_reset", 0)),
        batch_first=layout == 1,
    )


def _directions(op: str, attrs: Mapping[str, Any]) -> tuple[Direction, ...]:
    name = _text(attrs.get("direction", "forward"))
    if name not in _DIRECTIONS:
        raise ModelError(
            f"{op} has direction {name!r}", remedy="use forward, reverse or bidirectional"
        )
    passes = _DIRECTIONS[name]
    defaults = _DEFAULT_ACTIVATIONS[op]
    names = [_text(n) for n in attrs.get("activations", ())] or list(defaults) * len(passes)
    if op == "RNN":
        # The specification's default has two activations for every direction.
        names = names[: len(passes)]
    if len(names) != len(defaults) * len(passes):
        raise ModelError(
            f"{op} with direction {name} has {len(names)} activations",
            remedy=f"give {len(defaults)} per direction, or none for the defaults",
        )
    alphas = attrs.get("activation_alpha", ())
    functions = _activations(op, names, alphas, attrs.get("activation_beta", ()))
    each = len(defaults)
    return tuple(
        Direction(reverse, functions[i * each : (i + 1) * each]) for i, reverse in enumerate(passes)
    )


def _activations(
    op: str, names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> tuple[Activation, ...]:
    """The activations with alphas and betas in order, each for the functions that have one."""
    next_alpha, next_beta = iter(alphas), iter(betas)
    found = []
    for name in names:
        parameters = _PARAMETERS.get(name.lower())
        if parameters is None:
            raise ModelError(
                f"{op} has the unknown activation {name!r}",
                remedy=f"use one of {', '.join(sorted(_PARAMETERS))}",
            )
        alpha = _next_parameter(parameters.alpha, next_alpha)
        found.append(Activation(name.lower(), alpha, _next_parameter(parameters.beta, next_beta)))
    return tuple(found)


def _next_parameter(default: float | None, given: Iterator[float]) -> float:
    return 0.0 if default is None else float(next(given, default))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
