"""The reference of operators that the lowering translates, as docs/operators.md.

    python -m looplift.debug.operator_docs > docs/operators.md

Everything on the page is read from the registry of converters, from ONNX's schemas and from TVM's
importer.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import onnx

from ..lowering.emit import CONTROL
from ..lowering.operators import find
from ..lowering.operators.registry import BY_TVM, CONVERTERS
from ..lowering.small_types import STORED
from ..lowering.support import refusal
from ..lowering.tvm_onnx import converter, operators
from ..rules import PHASES

_REQUESTED = (
    "BitCast", "CastLike", "CausalConvWithState", "Celu", "CenterCropPad", "Col2Im", "ConvInteger",
    "DeformConv", "Det", "GroupNormalization", "LinearAttention", "LpNormalization",
    "QLinearConv", "QLinearMatMul", "ReverseSequence", "SequenceMap", "Swish", "TensorScatter",
    "RNN", "GRU", "LSTM", "Loop", "Scan",
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
    "BlackmanWindow", "DFT", "HammingWindow", "HannWindow", "MelWeightMatrix", "STFT",
    "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss",
)  # fmt: skip
"""Operators that users of TVM's importer ask for."""

_NONE = "\N{EN DASH}"
"""A cell that says that nothing is translated."""

_STORED_ROWS = "\n".join(f"| {small} | {stored} |" for small, stored in STORED.items())

_HEADER = f"""# Operators

Written by `python -m looplift.debug.operator_docs` from the code. For each operator, *versions*
lists the opsets in which its definition changed; *looplift* and *TVM* list the versions that the
lowering and `tvm.relax.frontend.onnx` of TVM 0.27 translate. *How* says what translates it:

| | |
|---|---|
| looplift | a converter in `lowering/operators/`, which may leave some cases to TVM's |
| TVM | the converter of TVM's importer |
| composed | the definition in ONNX's schema, made of other operators |
| control flow | `lowering/loops/` and `lowering/branches.py` |

A version in parentheses has a definition that depends on the types of the inputs: it is composed if
ONNX's shape inference finds these types.

**Small types.** TVM 0.27 has no kernels for types with fewer than eight bits. A module stores them
in the next wider type, which holds each of their values:

| | |
|---|---|
{_STORED_ROWS}

Parameters and results of `main` have the wider type. Casts and quantisation round, wrap and
saturate as ONNX defines it for the small type.

**Random numbers.** With a `seed`, each is a function of the seed and of its position: the same in
every run and on every target. Without one, the generator of TVM's runtime draws them, on the CPU.
"""


@functools.cache
def _schemas() -> dict[tuple[str, str], list[Any]]:
    """The schemas of all versions of every operator, oldest first."""
    found = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        found[schema.domain, schema.name].append(schema)
    for each in found.values():
        each.sort(key=lambda schema: schema.since_version)
    return dict(found)


def _how(domain: str, op_type: str) -> str:
    if domain == "" and op_type in CONTROL:
        return "control flow"
    own = find(domain, op_type)
    if own is not None:
        return "TVM" if own is BY_TVM else "looplift"
    return "composed"


@functools.cache
def _translates(domain: str, op_type: str, opset: int) -> str:
    """A version as the table shows it; empty if it is not translated."""
    version = max(
        schema.since_version
        for schema in _schemas()[domain, op_type]
        if schema.since_version <= opset
    )
    how = _how(domain, op_type)
    if how == "TVM":
        return str(version) if _stock_translates(op_type, opset) else ""
    if how != "composed":
        return str(version)
    schema: Any = onnx.defs.get_schema(op_type, opset, domain)
    if schema.has_context_dependent_function:
        return f"({version})"
    if not schema.has_function:
        return ""
    parts = {(node.domain, node.op_type) for node in schema.function_body.node}
    is_whole = all(_is_translated(*part, opset) for part in parts)
    return str(version) if is_whole else ""


def _is_translated(domain: str, op_type: str, opset: int) -> bool:
    return bool(_translates(domain, op_type, opset))


def _stock_translates(op_type: str, opset: int) -> bool:
    return op_type in operators() and converter(op_type, opset) is not None


def _versions(domain: str, op_type: str) -> tuple[list[str], list[str], list[str]]:
    """All versions, those that looplift translates, and those that TVM translates."""
    all_versions, own, stock = [], [], []
    schemas = _schemas()[domain, op_type]
    newest = onnx.defs.onnx_opset_version()
    ends = [schema.since_version - 1 for schema in schemas[1:]] + [newest]
    # TVM converts the Attention of com.microsoft, whatever the domain.
    is_stock = domain == "" and op_type != "Attention"
    for schema, end in zip(schemas, ends, strict=True):
        if schema.deprecated:
            continue
        version = str(schema.since_version)
        all_versions.append(version)
        translated = _translates(domain, op_type, end)
        if translated:
            own.append(translated)
        if is_stock and _stock_translates(op_type, end):
            stock.append(version)
    return all_versions, own, stock


def _row(domain: str, op_type: str) -> str | None:
    versions, own, stock = _versions(domain, op_type)
    if not versions:
        return None
    how = _how(domain, op_type) if own else _NONE
    cells = [op_type, " ".join(versions), _cell(own, versions), how, _cell(stock, versions)]
    return f"| {' | '.join(cells)} |"


def _cell(translated: list[str], versions: list[str]) -> str:
    if translated == versions:
        return "all"
    return " ".join(translated) or _NONE


def _table(keys: Sequence[tuple[str, str]]) -> str:
    rows = [row for key in keys if (row := _row(*key)) is not None]
    head = ["| operator | versions | looplift | how | TVM |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def _refused(domain: str) -> list[str]:
    return [
        op_type
        for (of, op_type), schemas in sorted(_schemas().items())
        if of == domain and not schemas[-1].deprecated and not _versions(domain, op_type)[1]
    ]


def _refused_table() -> str:
    by_reason = defaultdict(list)
    for domain in ("", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.preview"):
        for op_type in _refused(domain):
            reason = refusal(domain, op_type) or "no translation yet"
            by_reason[reason].append(f"{domain}.{op_type}" if domain else op_type)
    rows = [f"| {reason} | {', '.join(names)} |" for reason, names in by_reason.items()]
    return "\n".join(["| reason | operators |", "|---|---|", *rows]) + "\n"


def _contrib_table() -> str:
    rows = []
    for phase in PHASES:
        for rule in phase.rules:
            roots = [rule.root] if isinstance(rule.root, str) else list(rule.root)
            for root in roots:
                domain, _, name = str(root).rpartition(".")
                if domain == "com.microsoft":
                    stock = "yes" if name in operators() else _NONE
                    rows.append(f"| {name} | {rule.name()} | {stock} |")
    for key in CONVERTERS:
        domain, _, name = key.rpartition("::")
        if domain == "com.microsoft":
            rows.append(f"| {name} | {_NONE}; a converter translates it | {_NONE} |")
    head = ["| operator | decomposed by the rule | TVM |", "|---|---|---|"]
    return "\n".join([*head, *sorted(set(rows))]) + "\n"


# --- Forms that are refused ----------------------------------------------------------------------


def _refused_forms() -> Iterator[str]:
    """A row for the converters whose errors, and those of their helpers, say the same."""
    by_sentences = defaultdict(list)
    for op_type in sorted(CONVERTERS):
        function: Any = inspect.unwrap(CONVERTERS[op_type].convert)
        sentences = _sentences(inspect.getmodule(function), function.__name__)
        if sentences:
            by_sentences["; ".join(sentences)].append(op_type.replace("::", "."))
    for joined, op_types in by_sentences.items():
        yield f"| {', '.join(op_types)} | {joined} |"


def _sentences(module: ModuleType | None, name: str) -> list[str]:
    if module is None:
        return []
    functions = _functions(module)
    pending, seen, found = [name], {name}, []
    while pending:
        for node in ast.walk(functions[pending.pop(0)]):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                found.append(_text(node.exc))
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name) and called.id in functions.keys() - seen:
                seen.add(called.id)
                pending.append(called.id)
    return list(dict.fromkeys(sentence for sentence in found if sentence))


@functools.cache
def _functions(module: ModuleType) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _text(call: ast.Call) -> str:
    """The sentence of an UnsupportedError, with … for values."""
    if not (isinstance(call.func, ast.Name) and call.func.id == "UnsupportedError"):
        return ""
    first = call.args[0]
    parts = first.values if isinstance(first, ast.JoinedStr) else [first]
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts
    ).replace("|", "\\|")


def markdown() -> str:
    """The page."""
    standard = sorted(key for key in _schemas() if key[0] == "")
    translated = [key for key in standard if _versions(*key)[1]]
    learning = sorted(key for key in _schemas() if key[0] == "ai.onnx.ml" and _versions(*key)[1])
    return "\n".join(
        [
            _HEADER,
            "## Operators that users of TVM's importer ask for\n",
            _table([("", name) for name in _REQUESTED]),
            "## The standard domain\n",
            _table(translated),
            "## ai.onnx.ml\n",
            _table(learning),
            "## com.microsoft\n",
            "Rules decompose most of these operators into standard ones, so that the rewritten\n"
            "model runs on any runtime. TVM converts others as the standard operators of the same\n"
            "names.\n",
            _contrib_table(),
            "## Refused\n",
            "One error lists all nodes of a model that have no translation.\n",
            _refused_table(),
            "## Forms that are refused\n",
            "What the converters of looplift say where they cannot translate a node as it is\n"
            "used; … stands for a name or a number.\n",
            "\n".join(["| operator | refused |", "|---|---|", *_refused_forms()]) + "\n",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(markdown())
