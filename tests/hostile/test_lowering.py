"""The import of hostile operators ends with a module, or with an error that names a remedy."""

from __future__ import annotations

import onnx
import pytest

import looplift
from looplift.rewrite.errors import LoopliftError

from .operators import models

MODELS = dict(models())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_ends_well(name: str) -> None:
    refusal: LoopliftError | None = None
    try:
        looplift.from_onnx(MODELS[name])
    except LoopliftError as error:
        refusal = error
    assert refusal is None or "\n" not in str(refusal)


@pytest.mark.parametrize(
    "words",
    ["along axis -9", "along axis 7", "in blocks of -1", "in blocks of 7", "of INT4 in 1 bytes"],
)
@pytest.mark.filterwarnings("ignore")
def test_what_would_compute_something_else_is_refused(words: str) -> None:
    names = [name for name in MODELS if words in name and not name.startswith("0 ")]
    assert names
    for name in names:
        with pytest.raises(LoopliftError):
            looplift.from_onnx(MODELS[name])


@pytest.mark.filterwarnings("ignore")
def test_an_operator_whose_name_is_not_text() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    data = onnx.parser.parse_model(text).SerializeToString().replace(b"Relu", b"R\xff\xfeu")
    with pytest.raises(LoopliftError, match="is not UTF-8"):
        looplift.from_onnx(onnx.ModelProto.FromString(data))


@pytest.mark.parametrize(
    "target",
    ["", "nosuch", "llvm -mcpu=nosuch", "x" * 10_000, "{", {"kind": 5}, {"kind": "nosuch"}, {}],
    ids=lambda target: str(target)[:20],
)
@pytest.mark.filterwarnings("ignore")
def test_targets_that_there_are_not(target: object) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    with pytest.raises(LoopliftError):
        looplift.compile(looplift.from_onnx(model), target)
