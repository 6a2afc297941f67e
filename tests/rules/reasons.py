"""Why a rule does not fire at the only node of a model that it can start from."""

from __future__ import annotations

import onnx
import pytest

from looplift.rewrite.engine.miss import Miss
from looplift.rewrite.engine.rule import Match, Options, Rule

from ..equivalence import run_rules


def reason_of(rule: type[Rule], model: onnx.ModelProto, options: Options | None = None) -> str:
    """The sentence of the Miss; fails if the rule fires, or if there is not exactly one such node."""
    _, _, engine = run_rules(model, [], options=options)
    (node,) = (node for node in engine.index.walk() if node.op in rule.roots())
    with pytest.raises(Miss) as miss:
        rule().match(Match(node, engine.facts, engine.options))
    return str(miss.value)
