"""What to change in the source of a model, and what an If or loop costs if it stays.

An exporter writes what the source says. For most reasons why control flow remains, the source can
be written so that the exported model has none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...rewrite.engine.inference_engine import InferenceEngine
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Node, bodies
from ...rewrite.graph.views import LoopView
from ...rules.recurrence.cell_diagnostics import EXTERNAL_GATE, INPUT_FACTOR
from ...rules.recurrence.length_masks import UNKNOWN_MASK

_EXPORTERS = (("tf2onnx", "TensorFlow"), ("jax2onnx", "JAX"), ("pytorch", "PyTorch"))
"""The `producer_name` of an exporter contains the first word."""


@dataclass(frozen=True)
class Recipe:
    """What to change in the source, for reasons that contain some words."""

    words: str
    """Words of the reason, without its values."""
    advice: str
    pytorch: str = ""
    """The advice for one framework; empty where `advice` says all."""
    tensorflow: str = ""
    jax: str = ""

    def text(self, framework: str) -> str:
        """The advice in the terms of a framework, or in general terms."""
        special = {"PyTorch": self.pytorch, "TensorFlow": self.tensorflow, "JAX": self.jax}
        code = special.get(framework, "")
        return f"{self.advice}: {code}" if code else self.advice


_ENDS_EARLY = "may end early"
_APPENDS = "an operator other than SequenceInsert"

RECIPES = (
    Recipe(
        _ENDS_EARLY,
        "a loop is needed if each iteration needs the one before, as in a decoder or a solver; a "
        "fixed number of iterations can be unrolled, and all of them run",
        "`for i in range(50)` with a constant, traced, and `h = torch.where(done, h, new_h)` "
        "instead of `while` or `break`",
        "Python's `range(50)` (not `tf.range`) with `h = tf.where(done, h, new_h)` instead of "
        "`tf.while_loop` on data",
        "Python's `range(50)` (not `lax.scan`) with `h = jnp.where(done, h, new_h)` instead of "
        "`lax.while_loop`",
    ),
    Recipe(
        UNKNOWN_MASK,
        "if the mask marks padding at the end, compute it from the lengths",
        "`mask = torch.arange(T) < lengths[:, None]`, or `torch.arange(T)[:, None] < lengths` "
        "where time comes first",
        "`mask = tf.sequence_mask(lengths, T)`",
        "`mask = jnp.arange(T) < lengths[:, None]`, or `jnp.arange(T)[:, None] < lengths` where "
        "time comes first",
    ),
    Recipe(
        EXTERNAL_GATE.removeprefix("{} "),
        "no ONNX operator has such a gate, so a loop is needed; if it only marks padding at the "
        "end, compute it from the lengths by a comparison",
    ),
    Recipe(
        "no batching rule for",
        "apply the operator to the whole sequence, outside of the loop, if it can take one more "
        "axis",
        "the operator on the stacked tensor, or `torch.vmap` of the body, instead of a Python loop",
        "the operator on the whole tensor instead of `tf.map_fn`",
        "`jax.vmap` instead of `lax.map` or `lax.scan`",
    ),
    Recipe(
        "a linear recurrence",
        "no operator computes it, so a loop is needed; a constant decay makes it a convolution, "
        "and for a fixed number of steps an associative scan has no loop",
        "`associative_scan` of `torch._higher_order_ops`, exported with dynamo",
        jax="`lax.associative_scan` instead of `lax.scan`",
    ),
    Recipe(
        "a filter of second order",
        "no operator computes it, so a loop is needed; with constant coefficients it is a "
        "convolution with the impulse response, and for a fixed number of steps an associative "
        "scan of matrices has no loop",
        "`associative_scan` of `torch._higher_order_ops`, exported with dynamo",
        jax="`lax.associative_scan` instead of `lax.scan`",
    ),
    Recipe(
        "moves elements without arithmetic",
        "concatenate the buffer and all time steps before the loop, and apply to them at once what "
        "the loop applies to the buffer in each iteration",
        "`F.conv1d(torch.cat([buffer, x], -1), weight)`, or `unfold` for other operators",
        "`tf.nn.conv1d` of `tf.concat([buffer, x], 1)`, or `tf.signal.frame` for other operators",
        "`lax.conv_general_dilated` of `jnp.concatenate([buffer, x], -1)`",
    ),
    Recipe(
        INPUT_FACTOR.partition("; ")[2],
        "no ONNX operator has such a cell, so a loop is needed; compute what depends on no carried "
        "value before the loop, for all time steps at once, so that little remains in it",
    ),
    Recipe(
        "an Euler or residual step",
        "each step needs the one before, so a loop is needed; with a fixed number of steps, unroll "
        "it",
        "a Python `for` over a constant range, traced",
        "a Python `for` over a constant range",
        "a Python `for` over a constant range, not `lax.scan`",
    ),
    Recipe(
        "no operator has a projection",
        "ONNX's LSTM has no projection; the loop fuses if its initial state is known to be zero",
        "`nn.LSTM` without `proj_size`, followed by `nn.Linear`, if the model can be trained again",
        "`LSTMCell` without `num_proj`, followed by `Dense`, if the model can be trained again",
        "drop the projection of the carried state, if the model can be trained again",
    ),
    Recipe(
        "belongs to a layer normalisation",
        "ONNX's LSTM has no normalisation of its gates; normalise the input before the loop or "
        "the output after it, if the model can be trained again",
    ),
    Recipe(
        "a convolution in place of a product",
        "no ONNX operator has a convolutional cell; apply convolutions of the input to all time "
        "steps before the loop, so that only the one of the state remains in it",
    ),
    Recipe(
        "zoneout)",
        "no ONNX cell keeps a fixed share of its state, as a leaky unit does; if it is zoneout, "
        "export the model in inference mode without it",
        "`model.eval()`, or set its rate to 0",
        "`training=False`, or set its rate to 0",
        "set its rate to 0",
    ),
    Recipe(
        "depends on the carried value",
        "each step reads what the step before returned, so a loop is needed; export one step as "
        "the model, and run the loop in your program, if the runtime should not run it",
    ),
    Recipe(
        "If is neither an affine operator nor an activation",
        "compute both results in each iteration and choose",
        "`x = torch.where(flag, a, b)` instead of `if` in the loop",
        "`x = tf.where(flag, a, b)` instead of `tf.cond` in the loop",
        "`x = jnp.where(flag, a, b)` instead of `lax.cond` in the loop",
    ),
    Recipe(
        "the cell depends on",
        "no ONNX operator has such a cell, so a loop is needed; everything that can leave the loop "
        "has left it",
    ),
    Recipe(
        "no carried value keeps its shape",
        "only a recurrence of floats of a fixed shape can become an LSTM, GRU or RNN; if each "
        "iteration follows the one before, as in backtracking, a loop is needed, otherwise collect "
        "what the iterations compute in one tensor, and use operators over it after the loop",
        "`torch.cumsum`, `torch.cummax`, `Tensor.scatter`",
        "`tf.cumsum`, `tf.scan`, `tf.scatter_nd`",
        "`jnp.cumsum`, `lax.cummax`, `.at[...].set`",
    ),
    Recipe(
        _APPENDS,
        "append in every iteration, and select what is needed after the loop",
        "`out.append(x)` without an `if`, then `torch.stack(out)[keep]`",
        "`ta.write(i, x)` in every iteration, then `tf.boolean_mask`",
        "return `x` from every step of `lax.scan`, then select",
    ),
    Recipe(
        "is not known before the run",
        "compute both results and choose, if neither can fail or is expensive",
        "`torch.where(condition, a, b)` instead of `if`",
        "`tf.where(condition, a, b)` instead of `tf.cond`",
        "`jnp.where(condition, a, b)` instead of `lax.cond`",
    ),
)


FIXED = Recipe(
    "",
    "make the choice before the export",
    "pass it as a Python value that `torch.export` or tracing sees, or export one model for each",
    "pass it as a Python value to the function that is traced, or export one model for each",
    "pass it as a static argument, or export one model for each",
)
"""For an If that the value of an input decides."""
SIZES = Recipe(
    "",
    "write it without a choice by size, or export with that size fixed",
    "`torch.where(torch.full((), T) > n, a, b)` if both results have one shape, a Python `if` with "
    "`Dim('T', min=n + 1)`, `x[:, 0]` instead of `if T == 1: squeeze`, or `F.pad(x, (0, -T % n))` "
    "instead of `if T % n: pad`",
    "`tf.where(tf.shape(x)[1] > n, a, b)` if both results have one shape, `tf.reshape` instead of "
    "`tf.cond` on `tf.shape(x)`, or a static `input_signature`",
    "static shapes decide `if` during tracing; export without symbolic sizes there",
)
"""For an If that sizes decide."""


def framework_of(producer: str) -> str:
    """The framework that a model was exported from, by the name of its exporter; may be empty."""
    return next((name for word, name in _EXPORTERS if word in producer.lower()), "")


def words_for_if(index: Index, node: Node) -> str:
    """The words of the recipe for an If that ends a loop, or that appends to a list in one.

    The source has a `break`, or an `append` under a condition. Empty for other Ifs.
    """
    owner = index.owner(index.graph_of(node))
    if node.op != "If" or owner is None or owner.op != "Loop":
        return ""
    waiting = [LoopView(owner).condition_out]
    while waiting:
        producer = index.producer(waiting.pop())
        if producer is node:
            return _ENDS_EARLY
        if producer is not None and producer.op in ("And", "Or", "Not", "Cast", "Identity"):
            waiting += producer.inputs
    branches = bodies(node)
    appends = any(each.op == "SequenceInsert" for body in branches for each in body.nodes)
    return _APPENDS if appends else ""


def recipe(reason: str, decided_by: Collection[str], framework: str) -> str:
    """What to change in the source for a reason; empty if there is no recipe.

    `decided_by` has the options that decide the condition of an If, and is empty for a loop or
    where the data decides.
    """
    if decided_by:
        by_size = all(option.startswith("--dim") for option in decided_by)
        return (SIZES if by_size else FIXED).text(framework)
    found = next((each for each in RECIPES if each.words in reason), None)
    return "" if found is None else found.text(framework)


def cost(op: str, engine: InferenceEngine) -> str:
    """What a node costs if it stays; empty if the cost on this engine is unknown."""
    if op in engine.lacks:
        return f"if it stays: {engine.name} does not run a {op}"
    if not engine.cost_is_known:
        return ""
    if op == "If":
        return "if it stays: onnxruntime and Relax run only the branch that is taken"
    return (
        "if it stays: onnxruntime runs the body node by node in each iteration; `looplift import` "
        "says whether it becomes one kernel in Relax"
    )
