from __future__ import annotations

import os
from pathlib import Path

import pytest

from looplift.rewrite.errors import ModelError
from looplift.rewrite.storage.output_checks import check_inputs_kept, check_output

from .test_files import write_external


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_external(tmp_path / "m.onnx", "sub/weights.bin")
    return tmp_path / "m.onnx"


class TestInputsAreKept:
    def test_the_weights(self, model: Path) -> None:
        weights = model.with_name("sub") / "weights.bin"
        with pytest.raises(ModelError, match=r"with the weights of .*m\.onnx.*another name"):
            check_output(weights, model)

    def test_other_names_of_the_weights(self, model: Path) -> None:
        weights = model.with_name("sub") / "weights.bin"
        link, hard_link = model.with_name("link"), model.with_name("hard_link")
        link.symlink_to(weights)
        os.link(weights, hard_link)
        for name in (link, hard_link, model.with_name("sub") / ".." / "sub" / "weights.bin"):
            with pytest.raises(ModelError, match="with the weights"):
                check_output(name, model)

    def test_weights_of_a_model_that_lacks_others(self, model: Path) -> None:
        """The part of a download that is there is not lost."""
        proto = write_external(model, "sub/weights.bin")
        proto.graph.initializer[1].external_data[0].value = "missing.bin"
        model.write_bytes(proto.SerializeToString())
        with pytest.raises(ModelError, match="with the weights"):
            check_output(model.with_name("sub") / "weights.bin", model)

    def test_the_model(self, model: Path) -> None:
        with pytest.raises(ModelError, match="is the model itself"):
            check_output(model, model)

    def test_other_files(self, model: Path) -> None:
        model.with_name("old.onnx").write_bytes(b"old")
        broken = model.with_name("broken.onnx")
        broken.write_bytes(b"broken")
        outputs = [model.with_name("old.onnx"), model.with_name("new.onnx")]
        check_inputs_kept(outputs, [model, broken, model.with_name("absent.onnx")])
