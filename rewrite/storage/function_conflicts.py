"""Functions of a model that runtimes may read in different ways.

ONNX leaves it to the runtime what a node means whose operator is also a function of the model
(onnx.proto, `ModelProto.functions`). A function may import another opset than the model only if
that defines the operators of its body in the same way (`FunctionProto.opset_import`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from ..errors import ModelError
from ..graph.labels import standard_name
from ..graph.operators import is_in_runtime, operator, runtime_version, versions
from .protos import nodes

_REPORT = (
    "`looplift verify` with the same options finds the wrong commit; please report it to the "
    "author of its rule"
)


def check_function_names(proto: onnx.ModelProto) -> None:
    """Raises ModelError if a node may be a call of a function or an operator of ONNX."""
    imported = _opsets(proto)
    for function in _called(proto):
        domain = standard_name(function.domain)
        if operator(function.name, domain, imported.get(domain, 0)) is not None:
            raise ModelError(
                f"The model calls a function that has the name of ONNX's operator {function.name}, "
                "and ONNX leaves open which of the two is meant; onnxruntime takes the operator",
                where=f"function '{function.name}' of the domain '{domain or 'ai.onnx'}'",
                remedy="Move the function to a domain of its own, or remove it to mean the "
                "operator",
            )


def function_notes(proto: onnx.ModelProto) -> list[str]:
    """Where looplift takes a function of the model as it is written, and onnxruntime does not."""
    imported = _opsets(proto)
    return [note for each in _called(proto) for note in _notes(each, imported)]


def after_difference(proto: onnx.ModelProto) -> str:
    """What to do where the rewritten model of `proto` computes something else."""
    notes = function_notes(proto)
    return f"The functions of the model may be the reason: {'; '.join(notes)}" if notes else _REPORT


def _notes(function: onnx.FunctionProto, imported: Mapping[str, int]) -> Iterator[str]:
    name = f"{function.domain}.{function.name}"
    domain = standard_name(function.domain)
    if is_in_runtime(function.name, domain, imported.get(domain, runtime_version(domain))):
        yield (
            f"`{name}` is a function of the model and an operator of onnxruntime, and ONNX leaves "
            "open which is meant: looplift takes the function, onnxruntime the operator. Rename "
            "the function, or remove it to mean the operator"
        )
    own = _opsets(function)
    other = {domain for domain, version in own.items() if imported.get(domain, version) != version}
    used = ((standard_name(node.domain), node.op_type) for node in nodes(function))
    for domain, op in dict.fromkeys(used):
        if domain in other and _since(op, domain, own) != _since(op, domain, imported):
            yield (
                f"the function `{name}` imports opset {own[domain]}, the model opset "
                f"{imported[domain]}, and ONNX allows this only for operators that both define "
                f"alike, unlike {op}: looplift takes opset {own[domain]}, onnxruntime "
                f"{imported[domain]}. Export the function in the opset of the model"
            )
            return


def _called(proto: onnx.ModelProto) -> list[onnx.FunctionProto]:
    if not proto.functions:
        return []
    roots = (proto.graph, *proto.functions)
    used = {(standard_name(n.domain), n.op_type) for root in roots for n in nodes(root)}
    return [f for f in proto.functions if (standard_name(f.domain), f.name) in used]


def _opsets(owner: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    return {standard_name(entry.domain): entry.version for entry in owner.opset_import}


def _since(op: str, domain: str, imported: Mapping[str, int]) -> int:
    """The opset that defined an operator as the imported opset has it; 0 if there is none."""
    known = (since for since, _ in versions(op, domain) if since <= imported[domain])
    return max(known, default=0)
