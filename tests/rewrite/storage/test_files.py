"""Model files: external data stays external, and writing is atomic."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, checker, helper, numpy_helper, parser

import looplift
from looplift.rewrite.errors import ModelError
from looplift.rewrite.storage.files import load, save
from looplift.rewrite.storage.model import export_model, import_model
from looplift.rewrite.storage.output_files import (
    AtomicFiles,
    WeightsFile,
    move_weights,
    write_text,
)

from ...full_disk import full_disk

X = np.array([3.0, -4.0], np.float32)
W = np.array([1.0, 2.0], np.float32)


def plain() -> onnx.ModelProto:
    return parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }""")


def write_external(path: Path, location: str = "weights.bin", padding: int = 0) -> onnx.ModelProto:
    """A model with three tensors in a data file: two that share bytes, one in a branch."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[2] x) => (float[2] y) {
            a = Add(x, w)
            b = Add(a, same)
            y = If (c) <
                then_branch = t () => (float[2] r) { r = Add(b, inner) },
                else_branch = e () => (float[2] r) { r = Identity(b) }>
        }""")
    branch = helper.get_node_attr_value(model.graph.node[2], "then_branch")
    graphs = {"w": model.graph, "same": model.graph, "inner": branch}
    for name, graph in graphs.items():
        tensor = graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=[2])
        tensor.data_location = TensorProto.EXTERNAL
        offset = padding + (8 if name == "inner" else 0)
        for key, value in {"location": location, "offset": str(offset), "length": "8"}.items():
            tensor.external_data.add(key=key, value=value)
    path.parent.mkdir(exist_ok=True)
    data = path.parent / location
    data.parent.mkdir(exist_ok=True)
    data.write_bytes(bytes(padding) + W.tobytes() + (10 * W).tobytes())
    path.write_bytes(model.SerializeToString())
    return model


def run(path: Path, **feeds: Any) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestLoad:
    def test_path(self, tmp_path: Path) -> None:
        path = tmp_path / "m.onnx"
        onnx.save(plain(), path)
        assert load(path) == (plain(), str(tmp_path))
        assert load(str(path)) == (plain(), str(tmp_path))

    def test_relative_path_outlives_a_change_of_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_external(tmp_path / "m.onnx")
        monkeypatch.chdir(tmp_path)
        proto, base_dir = load("m.onnx")
        monkeypatch.chdir("/")
        constant = import_model(proto, base_dir).graph.initializers[0]
        np.testing.assert_array_equal(constant.values, W)

    def test_bytes_and_proto(self) -> None:
        model = plain()
        assert load(model.SerializeToString()) == (model, "")
        assert load(model)[0] is model

    def test_external_data_stays_on_disk(self, tmp_path: Path) -> None:
        model = write_external(tmp_path / "m.onnx")
        proto, base_dir = load(tmp_path / "m.onnx")
        assert proto == model
        assert not any(tensor.HasField("raw_data") for tensor in proto.graph.initializer)
        assert base_dir == str(tmp_path)

    def test_a_model_larger_than_memory_is_not_read(self, tmp_path: Path) -> None:
        model = plain()
        tensor = model.graph.initializer.add(name="huge", data_type=1, dims=[1 << 40])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="huge.bin")
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with (tmp_path / "huge.bin").open("wb") as file:
            file.truncate(4 << 40)
        proto, base_dir = load(tmp_path / "m.onnx")
        assert export_model(import_model(proto, base_dir)) == model

    def test_data_behind_a_link(self, tmp_path: Path) -> None:
        write_external(tmp_path / "blobs" / "m.onnx")
        snapshot = tmp_path / "snapshot"
        snapshot.mkdir()
        for name in ("m.onnx", "weights.bin"):
            (snapshot / name).symlink_to(tmp_path / "blobs" / name)
        proto, base_dir = load(snapshot / "m.onnx")
        constant = import_model(proto, base_dir).graph.initializers[0]
        np.testing.assert_array_equal(constant.values, W)

    def test_unreadable_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(ModelError, match=r"cannot be read: Not a directory .*file/m\.onnx"):
            load(tmp_path / "file" / "m.onnx")

    def test_bytes_with_external_data_need_a_path(self, tmp_path: Path) -> None:
        data = write_external(tmp_path / "m.onnx").SerializeToString()
        with pytest.raises(
            ModelError, match=r"'weights.bin' is missing .* give the model as a path"
        ):
            load(data)


class TestSave:
    def test_plain(self, tmp_path: Path) -> None:
        save(plain(), tmp_path / "m.onnx")
        assert files(tmp_path) == ["m.onnx"]
        assert onnx.load(tmp_path / "m.onnx") == plain()

    def test_replaces_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx").write_bytes(b"old")
        save(plain(), tmp_path / "m.onnx")
        assert onnx.load(tmp_path / "m.onnx") == plain()

    def test_permissions_are_those_of_any_new_file(self, tmp_path: Path) -> None:
        (tmp_path / "other").touch()
        save(plain(), tmp_path / "m.onnx")
        assert (tmp_path / "m.onnx").stat().st_mode == (tmp_path / "other").stat().st_mode

    def test_external_data_in_the_same_folder_is_referred_to(self, tmp_path: Path) -> None:
        model = write_external(tmp_path / "m.onnx")
        save(model, tmp_path / "out.onnx", base_dir=str(tmp_path))
        assert files(tmp_path) == ["m.onnx", "out.onnx", "weights.bin"]
        assert onnx.load(tmp_path / "out.onnx", load_external_data=False) == model

    @pytest.mark.parametrize("location", ["weights.bin", "sub/weights.bin", "out.onnx.data"])
    def test_external_data_is_copied_to_another_folder(self, location: str, tmp_path: Path) -> None:
        write_external(tmp_path / "in" / "m.onnx", location, padding=1 << 20)
        target = tmp_path / "out" / "out.onnx"
        target.parent.mkdir()
        proto, base_dir = load(tmp_path / "in" / "m.onnx")
        model = import_model(proto, base_dir)
        save(export_model(model), target, base_dir=base_dir)
        # Copies only used data, and shared data once.
        assert (target.parent / "out.onnx.data").stat().st_size == 4096 + 8
        (tmp_path / "in").rename(tmp_path / "gone")
        checker.check_model(str(target))
        np.testing.assert_array_equal(run(target, c=np.array(True), x=X), X + 12 * W)

    def test_data_that_no_tensor_needs_any_more_is_not_copied(self, tmp_path: Path) -> None:
        write_external(tmp_path / "in" / "m.onnx")
        proto, base_dir = load(tmp_path / "in" / "m.onnx")
        model = import_model(proto, base_dir)
        constant = next(c for c in model.graph.initializers if c.name == "w")
        same = next(c for c in model.graph.initializers if c.name == "same")
        for node in model.graph.nodes:
            node.inputs[:] = [same if tensor is constant else tensor for tensor in node.inputs]
        model.graph.initializers.remove(constant)
        (tmp_path / "out").mkdir()
        save(export_model(model), tmp_path / "out" / "m.onnx", base_dir=base_dir)
        names = {t.name for t in load(tmp_path / "out" / "m.onnx")[0].graph.initializer}
        assert names == {"same"}

    def test_weights_where_the_copy_would_be(self, tmp_path: Path) -> None:
        """They belong to the original, so the copy gets another name."""
        model = write_external(tmp_path / "m.onnx", "out/m.onnx.data", padding=512)
        before = (tmp_path / "out" / "m.onnx.data").read_bytes()
        save(model, tmp_path / "out" / "m.onnx", base_dir=str(tmp_path))
        assert (tmp_path / "out" / "m.onnx.data").read_bytes() == before
        assert files(tmp_path / "out") == ["m.onnx", "m.onnx.1.data", "m.onnx.data"]
        np.testing.assert_array_equal(
            run(tmp_path / "out" / "m.onnx", x=X, c=np.array(False)), X + 2 * W
        )

    def test_weights_too_many_for_one_file(self, tmp_path: Path) -> None:
        # What `save` does beyond 2 GiB, with less.
        model = plain()
        large = np.arange(2048, dtype=np.float32)
        typed = helper.make_tensor("typed", TensorProto.FLOAT, [2048], large)
        model.graph.initializer.extend([typed, numpy_helper.from_array(large[::-1], "raw")])
        model.graph.initializer[1].doc_string = "kept"
        with AtomicFiles() as pending:
            moved = move_weights(model, WeightsFile(tmp_path / "m.onnx.data", pending))
            pending.create(tmp_path / "m.onnx").write(moved.SerializeToString())
        assert files(tmp_path) == ["m.onnx", "m.onnx.data"]
        small, *rest = moved.graph.initializer
        assert small == model.graph.initializer[0]
        assert [tensor.data_location for tensor in rest] == [TensorProto.EXTERNAL] * 2
        assert rest[0].doc_string == "kept"
        read = onnx.load(tmp_path / "m.onnx")
        for tensor, expected in zip(read.graph.initializer, (W, large, large[::-1]), strict=True):
            np.testing.assert_array_equal(numpy_helper.to_array(tensor), expected)
        np.testing.assert_array_equal(run(tmp_path / "m.onnx", x=X), X + W)


class TestSaveRefuses:
    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"output is a folder .*Name a file"):
            save(plain(), tmp_path)

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"nowhere' does not exist .*Create it"):
            save(plain(), tmp_path / "nowhere" / "m.onnx")

    def test_a_device(self) -> None:
        with pytest.raises(ModelError, match=r"device or pipe.*/dev/null"):
            save(plain(), "/dev/null")
        assert not Path("/dev/null").is_file()

    def test_the_weights_of_the_model(self, tmp_path: Path) -> None:
        model = write_external(tmp_path / "m.onnx")
        before = (tmp_path / "weights.bin").read_bytes()
        with pytest.raises(ModelError, match=r"replace the file with the weights .*another name"):
            save(model, tmp_path / "weights.bin", base_dir=str(tmp_path))
        assert (tmp_path / "weights.bin").read_bytes() == before

    def test_an_unwritable_folder(self, tmp_path: Path) -> None:
        # Root can write to a folder without permission, but not to /proc.
        folder = Path("/proc/self") if os.geteuid() == 0 else tmp_path
        tmp_path.chmod(0o500)
        with pytest.raises(ModelError, match=r"cannot be written: .*Check the permissions"):
            save(plain(), folder / "m.onnx")
        tmp_path.chmod(0o700)
        assert files(tmp_path) == []

    def test_external_data_that_is_gone(self, tmp_path: Path) -> None:
        model = write_external(tmp_path / "in" / "m.onnx")
        (tmp_path / "in" / "weights.bin").unlink()
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "m.onnx").write_bytes(b"old")
        with pytest.raises(ModelError, match=r"'weights\.bin' is missing"):
            save(model, tmp_path / "out" / "m.onnx", base_dir=str(tmp_path / "in"))
        assert files(tmp_path / "out") == ["m.onnx"]
        assert (tmp_path / "out" / "m.onnx").read_bytes() == b"old"

    def test_half_of_the_data_is_missing(self, tmp_path: Path) -> None:
        # The failure occurs after the new data file was created.
        model = write_external(tmp_path / "in" / "m.onnx")
        inner = helper.get_node_attr_value(model.graph.node[2], "then_branch").initializer[0]
        inner.external_data[0].value = "other.bin"
        (tmp_path / "out").mkdir()
        with pytest.raises(ModelError, match=r"'other.bin' is missing .*tensor 'inner'"):
            save(model, tmp_path / "out" / "m.onnx", base_dir=str(tmp_path / "in"))
        assert files(tmp_path / "out") == []


class TestLinks:
    """What a link leads to counts, not where the link is."""

    def linked(self, folder: Path, target: Path, location: str = "weights.bin") -> Path:
        write_external(folder / "model.onnx", location)
        (folder / location).rename(target)
        (folder / location).symlink_to(target)
        return folder / "model.onnx"

    def test_out_of_the_folder(self, tmp_path: Path) -> None:
        path = self.linked(tmp_path / "m", tmp_path / "secret")
        with pytest.raises(ModelError, match=r"is a link to .*secret.*--follow-links"):
            load(path)
        model, folder = load(path, follows_links=True)
        save(model, tmp_path / "copy.onnx", base_dir=folder)
        assert run(tmp_path / "copy.onnx", c=np.array(True), x=X).tolist() == [
            X[i] + W[i] * 12 for i in (0, 1)
        ]

    def test_of_a_folder(self, tmp_path: Path) -> None:
        write_external(tmp_path / "m" / "model.onnx", "data/weights.bin")
        (tmp_path / "m" / "data").rename(tmp_path / "elsewhere")
        (tmp_path / "m" / "data").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ModelError, match="is a link to"):
            load(tmp_path / "m" / "model.onnx")

    def test_inside_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "m" / "sub").mkdir(parents=True)
        load(self.linked(tmp_path / "m", tmp_path / "m" / "sub" / "data"))

    def test_the_folder_is_a_link(self, tmp_path: Path) -> None:
        write_external(tmp_path / "m" / "model.onnx")
        (tmp_path / "link").symlink_to(tmp_path / "m")
        load(tmp_path / "link" / "model.onnx")

    def test_the_cache_of_a_hub(self, tmp_path: Path) -> None:
        """The model and its data are links into one folder, under other names."""
        snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
        blobs.mkdir()
        snapshot.parent.mkdir()
        path = self.linked(snapshot, blobs / "222")
        path.rename(blobs / "111")
        path.symlink_to("../../blobs/111")
        result = looplift.rewrite(path, verify=True)
        assert result.verification is not None
        assert result.verification.verified, result.verification.reason
        save(result.model, tmp_path / "out.onnx", base_dir=result.base_dir)
        assert run(tmp_path / "out.onnx", c=np.array(False), x=X).tolist() == [
            X[i] + W[i] * 2 for i in (0, 1)
        ]


def test_a_text_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    write_text(path, "the old text", "The text")
    with (
        full_disk(10_000),
        pytest.raises(ModelError, match=r"The text cannot be written: File too large .*text\.txt"),
    ):
        write_text(path, "new" * 10_000, "The text")
    assert (files(tmp_path), path.read_text()) == (["text.txt"], "the old text")
