"""The end of a rewrite: makes the graph that the rules left valid ONNX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import onnx
from onnx import TensorProto

from ..facts.facts import Facts
from ..graph.body_forms import BodyForms
from ..graph.declarations import with_proven_sizes, without_false_sizes
from ..graph.index import Index
from ..graph.ir import Constant, Graph, Node, Tensor, optional
from ..graph.names import UniqueNames, defined
from ..graph.views import LoopView, ScanView
from ..symbolic import Dim, symbols


def finish(index: Index, facts: Facts, unused: Collection[Constant], body_forms: BodyForms) -> None:
    """Sorts the graphs, drops removed nodes, and makes names, declarations and body outputs valid.

    Drops initializers that nothing reads unless they are in `unused`.
    """
    body_forms.to_file_form()
    for graph in list(index.graphs(index.root)):
        graph.initializers[:] = [c for c in graph.initializers if index.use_count(c) or c in unused]
    if index.added_or_moved:
        _separate_value_names(index)
        for graph in list(index.graphs(index.root)):
            _separate_node_names(graph, index)
    for graph in list(index.graphs(index.root)):
        if graph is not index.root:
            _correct_declarations(graph, facts)
            _correct_carried_values(index.owner(graph), facts)
            _declare_scalars(graph, index)
            if index.added_or_moved:
                _declare_interface(graph, facts)
    _correct_outputs(index.root, facts)


def _separate_value_names(index: Index) -> None:
    """Gives new and moved values names that no other value of the model has.

    A file may use one name in several bodies, so a value that leaves its body may meet another one
    of the same name.
    """
    names = UniqueNames(index.root)
    present = {t for g in index.graphs(index.root) for t in defined(g)}
    counts = Counter(t.name for t in present)
    interface = {*index.root.inputs, *index.root.outputs}
    for each in index.added_or_moved:
        values: Sequence[Tensor] = each.outputs if isinstance(each, Node) else (each,)
        for value in values:
            if value not in present or value in interface:
                continue
            if value.name and counts[value.name] > 1:
                counts[value.name] -= 1
                value.name = names.fresh(value.name)


def _separate_node_names(graph: Graph, index: Index) -> None:
    """Renames new and moved nodes where two nodes of a graph have the same name.

    onnxruntime rejects such a graph.
    """
    taken = {node.name for node in graph.nodes if node not in index.added_or_moved}
    numbers: dict[str, int] = {}
    for node in graph.nodes:
        if node in index.added_or_moved and node.name:
            name = node.name
            while node.name in taken:
                numbers[name] = numbers.get(name, 0) + 1
                node.name = f"{name}_{numbers[name]}"
            taken.add(node.name)


def _correct_declarations(body: Graph, facts: Facts) -> None:
    """Removes declared sizes of values of a body that contradict proven ones.

    onnxruntime may find such a contradiction only after the rewrite, which makes more sizes known.
    """
    for tensor in defined(body):
        if tensor.info is not None:
            tensor.info = without_false_sizes(tensor.info, facts.shape(tensor))
    for tensor in body.outputs:
        info = body.output_info.get(tensor)
        if info is not None:
            body.output_info[tensor] = without_false_sizes(
                info, facts.shape(tensor), is_constant=isinstance(tensor, Constant)
            )


def _correct_carried_values(loop: Node | None, facts: Facts) -> None:
    """Removes declared sizes of carried values that contradict those of the initial values.

    onnxruntime shares memory between values that have one size by their declarations.
    """
    if loop is None or loop.domain or loop.op not in ("Loop", "Scan"):
        return
    if loop.op == "Scan" and facts.opset < 9:  # which has another form
        return
    for carried in (LoopView if loop.op == "Loop" else ScanView)(loop).carried:
        if carried.input.info is not None:
            proven = facts.shape(carried.initial)
            carried.input.info = without_false_sizes(carried.input.info, proven)


def _correct_outputs(root: Graph, facts: Facts) -> None:
    """Corrects declared shapes of outputs of the model that contradict proven ones.

    Exporters that trace a model write the sizes of their example where the inputs are open.
    """
    for tensor in root.outputs:
        info, shape = root.output_info.get(tensor, tensor.info), facts.shape(tensor)
        if info is not None and info.type.HasField("sequence_type"):
            root.output_info[tensor] = without_false_sizes(info, shape)
        declared = None if info is None else info.type.tensor_type
        if info is None or declared is None or shape is None or not declared.HasField("shape"):
            continue
        sizes = [
            d.dim_value if d.HasField("dim_value") else d.dim_param for d in declared.shape.dim
        ]
        if len(sizes) == len(shape):
            right = [_true_size(*pair) for pair in zip(sizes, shape)]
        else:
            right = [_true_size(None, size) for size in shape]
        if right != sizes:
            element = declared.elem_type
            open_sizes = [size if size != "" else None for size in right]
            root.output_info[tensor] = onnx.helper.make_tensor_value_info(
                tensor.name, element, open_sizes, info.doc_string
            )


def _true_size(declared: int | str | None, proven: Dim) -> int | str:
    """The size of an axis: as declared unless that is false; "" where it has no name."""
    if declared is not None and not isinstance(declared, int):
        return declared
    if isinstance(proven, int):
        return proven
    parts = symbols(proven)
    if any(symbol.serial >= 0 for symbol in parts):  # unknown, so it may be what is declared
        return "" if declared is None else declared
    return next((symbol.name for symbol in parts if str(proven) == symbol.name), "")


def _declare_scalars(body: Graph, index: Index) -> None:
    """Declares the shape of the iteration number and the condition where a Loop gives neither.

    onnxruntime takes the shape from the trip count or condition outside, or else needs it here.
    """
    owner = index.owner(body)
    if owner is None or owner.op != "Loop" or owner.domain:
        return
    for slot, element in enumerate((TensorProto.INT64, TensorProto.BOOL)):
        tensor, given = body.inputs[slot], optional(owner.inputs, slot) is not None
        if given or (tensor.info is not None and tensor.info.type.tensor_type.HasField("shape")):
            continue
        info = onnx.helper.make_tensor_value_info(tensor.name, element, ())
        if tensor.info is not None:
            info.MergeFrom(tensor.info)
        tensor.info = info


def _declare_interface(body: Graph, facts: Facts) -> None:
    """Declares type and shape of the inputs and outputs of a body that have no declaration.

    Open sizes of outputs become the numbers that are proven: onnxruntime takes the sizes of an
    empty scan output from the declaration, and can infer fewer once nodes have left the body.
    OpenVINO 2026.4 compiles a Scan whose scan input has no declared rank, but does not run it, and
    OpenCV 5.0 refuses such an output. Names of sizes are left out: in a body they mean something
    else (see `without_shape`).
    """
    for tensor in (*body.inputs, *body.outputs):
        if body.output_info.get(tensor, tensor.info) is not None or isinstance(tensor, Constant):
            continue
        fact = facts.of(tensor)
        if fact.kind == "tensor" and fact.dtype and fact.shape is not None:
            sizes = [size if isinstance(size, int) else None for size in fact.shape]
            tensor.info = onnx.helper.make_tensor_value_info(tensor.name, fact.dtype, sizes)
    for tensor in body.outputs:
        info = body.output_info.get(tensor, tensor.info)
        if info is not None:
            body.output_info[tensor] = with_proven_sizes(info, facts.shape(tensor))
