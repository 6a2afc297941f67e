"""Random models compute the same after rewriting. `make fuzz` runs more of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import onnx
import pytest
from onnx import parser

from looplift.rules.values.dead_nodes import EliminateIdentity

from . import campaign
from .campaign import BLOCK, State, check_block, run_campaign
from .cases import RULES, make_case, make_feeds
from .check_rewrite import check_rewrite, reproducer
from .report import Wrong, check_seed
from .shrink import shrink

SAMPLE = 60
"""The models that `make test` checks."""
MORE = 600
GROUP = 20


@pytest.mark.parametrize(
    "first",
    [
        *range(0, SAMPLE, GROUP),
        *(pytest.param(f, marks=pytest.mark.soak) for f in range(SAMPLE, MORE, GROUP)),
    ],
)
def test_random_models_compute_the_same(first: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(first, first + GROUP):
        wrong = check_seed(seed, tally)
        assert wrong is None, wrong.shrunk().test()
    # Checks that the generator makes models that run and have loops.
    assert tally["runs"] >= GROUP * 3
    assert tally["Loops before"] >= GROUP // 3
    assert tally["Loops after"] < tally["Loops before"]


@pytest.mark.soak
def test_every_rule_fires() -> None:
    tally: Counter[str] = Counter()
    for first in range(0, 5000, BLOCK):
        counted, findings = check_block(range(first, first + BLOCK), 0)
        assert findings == {}
        tally += counted
    assert [rule.name() for rule in RULES if not tally[f"rule {rule.name()}"]] == []


def test_a_seed_gives_one_model() -> None:
    first, second = ([make_case(seed).model for seed in range(30)] for _ in range(2))
    assert first == second
    assert all(a != b for a, b in zip(first, second[1:]))


def test_the_models_hold_what_the_rules_are_about() -> None:
    operators: Counter[str] = Counter()
    for seed in range(200):
        pending = [make_case(seed).model.graph]
        while pending:
            graph = pending.pop()
            operators.update(node.op_type for node in graph.node)
            pending += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    wanted = {
        "Loop",
        "Scan",
        "If",
        "Gather",
        "Concat",
        "ScatterND",
        "ScatterElements",
        "Slice",
        "SplitToSequence",
        "SequenceAt",
        "SequenceInsert",
        "ConcatFromSequence",
        "LessOrEqual",
    }
    assert wanted <= set(operators)


WRONG = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3] x, float[3] y, int64 m) => (float[3] a, float[3] b) {
    u = Neg(y)
    a, b = Loop (m, , x, u) <body = body (int64 i, bool go, float[3] s, float[3] t)
        => (bool on, float[3] s1, float[3] t1) { on = Identity(go) s1 = Sin(s) t1 = Exp(t) }>
}"""


def test_a_reproducer_holds_the_model_it_speaks_of() -> None:
    model = parser.parse_model(WRONG)
    text = reproducer(model, ["output 'a': 1 instead of 2"], 3)
    start, end = text.index('"""') + 3, text.rindex('"""')
    again = parser.parse_model(text[start:end])
    assert again.graph.node[1].op_type == "Loop"
    assert "# output 'a': 1 instead of 2" in text


def test_a_wrong_rewrite_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that drops a Neg is noticed, and its test shows little else."""
    monkeypatch.setattr(EliminateIdentity, "root", ("Identity", "Neg"))
    monkeypatch.setattr(
        EliminateIdentity,
        "apply",
        lambda self, patch, found: patch.replace(patch.root.outputs[0], patch.root.inputs[0]),
    )
    model = parser.parse_model(WRONG)
    findings = check_rewrite(model, make_feeds(model, 1))
    assert findings
    test = Wrong(1, model, findings, check_rewrite).shrunk().test()
    assert "Neg" in test
    assert "Sin" not in test
    compile(test, "test", "exec")


def test_a_campaign_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []

    def check_block(seeds: range, on_tvm: int) -> tuple[Counter[str], dict[int, str]]:
        checked.append(seeds.start)
        time.sleep(0.05)
        return Counter(models=len(seeds)), {seeds.start: "a test"} if seeds.start == BLOCK else {}

    monkeypatch.setattr(campaign, "check_block", check_block)
    for _ in range(2):
        run_campaign(State.load(tmp_path), 0.12, 2, 0, lambda line: None)
    state = State.load(tmp_path)
    assert sorted(checked) == [BLOCK * number for number in range(len(checked))]
    assert len(checked) >= 6
    assert state.tally["models"] == BLOCK * len(checked)
    assert state.wrong == [BLOCK]
    assert (tmp_path / f"test_seed_{BLOCK}.py").read_text() == "a test"


def test_a_model_that_ends_the_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models after it are checked, too; a model that ends onnxruntime's process is no finding."""

    def worker(first: int, count: int, on_tvm: int) -> subprocess.Popen[str]:
        last = next(seed for seed in (3, 5, 7) if seed >= first)
        line = """print('{"seed": %d, "tally": {"models": 1}, "test": "", "shrinks": false}')\n"""
        end = "import sys; sys.exit(1)" if (first, count) == (5, 0) else ""
        code = "".join(line % seed for seed in range(first, last if count else 0)) + end
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(campaign, "_worker", worker)
    tally, findings = check_block(range(7), 0)
    assert list(findings) == [3]
    assert tally["models"] == 5


@pytest.mark.parametrize(("work", "endless"), [("time.sleep(0.6); break", False), ("0", True)])
def test_a_model_is_endless_if_it_computes_for_long(
    monkeypatch: pytest.MonkeyPatch, work: str, endless: bool
) -> None:
    """One that waits for a processor is not."""

    def worker(first: int, count: int, on_tvm: int) -> subprocess.Popen[str]:
        line = """print('{"seed": %d, "tally": {"models": 1}, "test": "", "shrinks": false}')\n"""
        code = f"import time\nwhile {count} > 1: {work}\n" if first == 0 else ""
        code += "".join(line % seed for seed in range(first, first + count))
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(campaign, "_worker", worker)
    monkeypatch.setattr(campaign, "PATIENCE", 0.4)
    monkeypatch.setattr(campaign, "MOST_WAITS", 50)
    _, findings = check_block(range(3), 0)
    assert list(findings) == ([0] if endless else [])


def test_a_smaller_model_that_ends_the_process_is_no_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search for a smaller model of seed 2 ends the process: the seeds after it are checked."""

    def worker(first: int, count: int, on_tvm: int) -> subprocess.Popen[str]:
        line = """print('{"seed": %d, "tally": {"models": 1}, "test": "%s", "shrinks": %s}')\n"""
        if first < 3:
            code = line % (0, "", "false") + line % (1, "", "false") + line % (2, "wrong", "true")
        else:
            code = "".join(line % (seed, "", "false") for seed in range(first, first + count))
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(campaign, "_worker", worker)
    tally, findings = check_block(range(7), 0)
    assert findings == {2: "wrong"}
    assert tally["models"] == 7


def test_shrinking_keeps_what_fails_and_little_else() -> None:
    def holds_sin(model: onnx.ModelProto) -> bool:
        return "Sin" in str(model) and len(model.graph.output) > 0

    small = shrink(parser.parse_model(WRONG), holds_sin)
    loop = next(node for node in small.graph.node if node.op_type == "Loop")
    assert [output.name for output in small.graph.output] == ["a"]
    assert [node.op_type for node in loop.attribute[0].g.node].count("Exp") == 0
