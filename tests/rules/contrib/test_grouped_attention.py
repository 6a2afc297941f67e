"""DecomposeGroupQueryAttention, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import looplift
from looplift.rewrite.engine.rule import Rule, fixture
from looplift.rules.contrib.grouped_attention import DecomposeGroupQueryAttention

from ...equivalence import assert_equal, ops, outcome, run_rules, session
from ...lowering.compiled import virtual_machine
from .contrib_models import Arrays, assert_decomposed, assert_kept, floats, one_node

KEYS, GROUP, SIZE, LONGEST = 2, 3, 16, 16
QUERIES = KEYS * GROUP


def _operands(
    length: int,
    past: int | None,
    *,
    capacity: int | None = None,
    packed: bool = False,
    rotated: int = 0,
    batch: int = 1,
    dtype: Any = np.float32,
) -> Arrays:
    """Operands for `length` new tokens after `past` earlier ones, in a buffer of `capacity`."""
    total = length + (past or 0)
    held = None if past is None else floats(2, batch, KEYS, capacity or past, SIZE).astype(dtype)
    angles = floats(LONGEST, rotated // 2).astype(dtype)

    def states(heads: int) -> np.ndarray:
        return floats(batch, length, heads * SIZE).astype(dtype)

    return {
        "q": states(QUERIES + 2 * KEYS if packed else QUERIES),
        "k": None if packed else states(KEYS),
        "v": None if packed else states(KEYS),
        "past_k": None if held is None else held[0],
        "past_v": None if held is None else held[1],
        "last": np.full(batch, total - 1, np.int32),
        "longest": np.array(total, np.int32),
        "cosines": np.cos(angles) if rotated else None,
        "sines": np.sin(angles) if rotated else None,
    }


def _rows(length: int, lengths: Sequence[int], **options: Any) -> dict[str, np.ndarray | None]:
    """Operands of rows that have so many keys each, the new ones included."""
    most = max(lengths)
    feed = dict(_operands(length, most - length, batch=len(lengths), **options))
    feed["last"] = np.array(lengths, np.int32) - 1
    return feed


def _model(feed: Arrays, *, is_known: bool = True, **attributes: Any) -> onnx.ModelProto:
    """The batch is known unless `is_known` is false, the number of tokens is not."""
    attributes = {"num_heads": QUERIES, "kv_num_heads": KEYS, **attributes}
    model = one_node("GroupQueryAttention", feed, 3, read=(0, 1, 2), **attributes)
    for info in model.graph.input:
        dims = info.type.tensor_type.shape.dim
        batch = feed[info.name]
        if len(dims) > 2 and batch is not None and is_known:
            dims[0].dim_value = batch.shape[0]
        if info.name == "last" and not is_known:
            dims[0].dim_param = "rows"
    return model


@pytest.mark.parametrize(
    "rotary", [{}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}]
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("length", "past"), [(5, 0), (1, 0), (1, 7), (3, 4)])
def test_prompts_and_single_tokens(
    length: int, past: int, packed: bool, rotary: dict[str, Any]
) -> None:
    feed = _operands(length, past, packed=packed, rotated=SIZE if rotary else 0)
    assert_decomposed(_model(feed, **rotary), feed, 1e-4)


@pytest.mark.parametrize(("length", "past"), [(5, 0), (1, 7), (3, 4)])
def test_a_buffer_that_is_longer_than_all_keys(length: int, past: int) -> None:
    feed = _operands(length, past, capacity=12)
    assert_decomposed(_model(feed), feed, 1e-4)


@pytest.mark.parametrize(
    "attributes",
    [
        {"local_window_size": 2},
        {"softcap": 0.5},
        {"scale": 0.3},
        {"local_window_size": 1, "softcap": 2.0},
    ],
)
@pytest.mark.parametrize(("length", "past"), [(6, 0), (1, 7)])
def test_how_keys_are_weighed(length: int, past: int, attributes: dict[str, Any]) -> None:
    feed = _operands(length, past)
    assert_decomposed(_model(feed, **attributes), feed, 1e-4)


def test_half_precision() -> None:
    feed = _operands(4, 3, dtype=np.float16)
    assert_decomposed(_model(feed), feed, 2e-2)


@pytest.mark.parametrize(("length", "past"), [(5, 0), (1, 7), (3, 4)])
def test_the_last_keys_as_a_column(length: int, past: int) -> None:
    """onnxruntime-genai gives them as [batch], the optimizer of PyTorch models as [batch, 1]."""
    feed = dict(_operands(length, past))
    feed["last"] = np.array([[length + past - 1]], np.int32)
    assert_decomposed(_model(feed), feed, 1e-4)
    assert_decomposed(_model(feed, is_known=False), feed, 1e-4)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("capacity", [None, 12])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"packed": True},
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1, "packed": True},
        {"local_window_size": 2},
        {"local_window_size": 1, "softcap": 2.0, "do_rotary": 1},
    ],
)
def test_tokens_of_rows_of_different_lengths(
    options: dict[str, Any], capacity: int | None, is_known: bool
) -> None:
    """Each token is after the keys of its row, and the rest of the buffer becomes zero."""
    attributes = dict(options)
    packed, rotated = attributes.pop("packed", False), SIZE * attributes.get("do_rotary", 0)
    feed = _rows(1, [8, 3, 1], capacity=capacity, packed=packed, rotated=rotated)
    assert_decomposed(_model(feed, is_known=is_known, **attributes), feed, 1e-4)


@pytest.mark.parametrize(("length", "past"), [(5, 0), (1, 7), (3, 4)])
def test_one_row_in_a_batch_of_unknown_size(length: int, past: int) -> None:
    feed = _operands(length, past, rotated=SIZE)
    assert_decomposed(_model(feed, is_known=False, do_rotary=1), feed, 1e-4)


def test_half_precision_of_several_rows() -> None:
    feed = _rows(1, [8, 3, 1], dtype=np.float16)
    assert_decomposed(_model(feed), feed, 2e-2)


@pytest.mark.parametrize("capacity", [None, 0, 7])
@pytest.mark.parametrize("attributes", [{}, {"local_window_size": 2}, {"do_rotary": 1}])
def test_prompts_of_different_lengths(attributes: dict[str, Any], capacity: int | None) -> None:
    """The queries of padding at the end of a row are undefined in onnxruntime, its keys are not.

    Keys that are in the buffer before a prompt are dropped.
    """
    feed = dict(_operands(5, None, batch=3, rotated=SIZE if attributes else 0))
    if capacity is not None:
        feed["past_k"], feed["past_v"] = floats(2, 3, KEYS, capacity, SIZE)
    lengths = [5, 2, 1]
    feed["last"] = np.array(lengths, np.int32) - 1
    model = _model(feed, is_known=False, **attributes)
    rewritten = looplift.rewrite(model).model
    assert "GroupQueryAttention" not in ops(rewritten)
    given = {name: value for name, value in feed.items() if value is not None}
    results = [outcome(session(m), given) for m in (model, rewritten)]
    (y, *presents), (got, *others) = (result or [] for result in results)
    assert_equal(presents, others, 1e-4)
    for row, length in enumerate(lengths):
        assert_equal(y[row, :length], got[row, :length], 1e-4)


def test_a_length_that_is_more_than_a_prompt() -> None:
    """A prompt has no earlier keys, whatever its length."""
    feed = dict(_operands(3, None, batch=2))
    feed["past_k"], feed["past_v"] = floats(2, 2, KEYS, 6, SIZE)
    feed["last"] = np.array([2, 5], np.int32)
    assert_decomposed(_model(feed, is_known=False), feed, 1e-4)


def test_compiled_for_any_batch() -> None:
    """Also for no rows, for which onnxruntime divides by zero."""
    cases = [_rows(1, [8, 3, 1], rotated=SIZE), _rows(1, [2], rotated=SIZE, capacity=5)]
    cases += [_rows(5, [5, 5], rotated=SIZE), _rows(3, [7], rotated=SIZE)]
    model = _model(cases[0], is_known=False, do_rotary=1)
    session_, machine = session(model), _machine(model)
    for feed in cases:
        given = {name: value for name, value in feed.items() if value is not None}
        got = machine["main"](*map(tvm.runtime.tensor, given.values()))
        assert_equal(outcome(session_, given), [value.numpy() for value in got], 1e-4)
    batched = ("q", "k", "v", "past_k", "past_v", "last")
    empty = [value[:0] if name in batched else value for name, value in given.items()]
    shapes = [value.shape for value in machine["main"](*map(tvm.runtime.tensor, empty))]
    assert shapes == [(0, 3, QUERIES * SIZE), *[(0, KEYS, 7, SIZE)] * 2]


def test_lengths_that_do_not_fit() -> None:
    """onnxruntime refuses them. The compiled module reads and writes no memory beyond the buffer,
    and fails for another number of lengths than rows.
    """
    feed = _rows(1, [4, 3], capacity=8)
    machine = _machine(_model(feed, is_known=False))

    def run(last: list[int]) -> Any:
        given = {**feed, "last": np.array(last, np.int32)}
        return machine["main"](*[tvm.runtime.tensor(v) for v in given.values() if v is not None])

    for last in ([40, 2], [1 << 30, 2], [-1, 2], [-(1 << 30), 2]):
        y, keys, _ = run(last)
        assert np.isfinite(y.numpy()).all()
        assert keys.shape[:2] == (2, KEYS)
    with pytest.raises(Exception, match="mismatch"):
        run([3, 2, 1])


def _machine(model: onnx.ModelProto) -> Any:
    for info in model.graph.output:
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return virtual_machine(looplift.compile(looplift.from_onnx(model), "native"))


@pytest.mark.parametrize(
    "attributes",
    [{"smooth_softmax": 1}, {"causal": 0}, {"sliding_window_cache": 1, "local_window_size": 2}],
)
def test_what_is_kept(attributes: dict[str, Any]) -> None:
    assert_kept(_model(_operands(3, 4), **attributes))


@pytest.mark.parametrize("rule", [DecomposeGroupQueryAttention])
def test_the_rule_alone(rule: type[Rule[Any]]) -> None:
    assert isinstance(rule.fires, str)
    _, trace, _ = run_rules(fixture(rule.fires), [rule])
    assert {commit.rule for commit in trace.commits()} == {rule.name()}
