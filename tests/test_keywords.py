"""Messages name keyword arguments in Python and options on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import looplift
from looplift.keywords import in_keywords

from .programs import run_program
from .small_models import model


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('assert `--dim "batch>=1"` if', 'assert `dims=["batch>=1"]` if'),
        ("try --dim T=16, or", 'try dims=["T=16"], or'),
        ("give them one name with --shape", "give them one name with shapes"),
        ("`--shape x=1,T`", '`shapes={"x": [1, "T"]}`'),
        ('`--prefix-mask "m axis 1"`', '`prefix_masks={"m": 1}`'),
        ("`--input sr=16000`", '`inputs={"sr": 16000}`'),
        ("(--input NAME=VALUE)", '(inputs={"NAME": VALUE})'),
        ("(--dim NAME=N, --shape NAME=…)", '(dims=["NAME=N"], shapes={"NAME": […]})'),
        ("--strict: {} may be empty", "strict=True: {} may be empty"),
        ("or give --follow-links", "or give follow_links=True"),
        ("end `rewrite` early with --steps", "end `rewrite` early with step_limit"),
        ("--strictly speaking", "--strictly speaking"),
        ("no option", "no option"),
    ],
)
def test_options_become_arguments(text: str, expected: str) -> None:
    assert in_keywords(text) == expected


def test_an_error_names_what_its_reader_can_give(tmp_path: Path) -> None:
    weights = np.array([1.0, 2.0], np.float32)
    proto = model("g (float[2] x) => (float[2] y) { y = Add(x, w) }", w=weights)
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w", size_threshold=0)
    (folder / "w").rename(tmp_path / "elsewhere")
    (folder / "w").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(looplift.ModelError) as raised:
        looplift.rewrite(path)
    assert "give follow_links=True" in str(raised.value)
    assert looplift.rewrite(path, follow_links=True).report.commits == {}
    run = run_program("looplift", ["rewrite", path, "-o", "out.onnx"], tmp_path)
    assert "give --follow-links" in run.stderr
