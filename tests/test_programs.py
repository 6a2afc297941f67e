"""`run_program` behaves like a process of its own where tests rely on it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .programs import Done, run_program


@pytest.mark.parametrize("in_process", [True, False])
def test_output_and_status(in_process: bool, tmp_path: Path) -> None:
    (tmp_path / "say.py").write_text("import sys\nprint(sys.argv[1:], __name__)\nsys.exit(3)\n")
    done = run_program("python", ["say.py", "a", "b"], tmp_path, in_process=in_process)
    assert done == Done(3, "['a', 'b'] __main__\n", "")
    done = run_program("looplift", ["inspect", "none.onnx"], tmp_path, in_process=in_process)
    assert done.status == 2
    assert done.stderr.startswith("looplift: ")


def test_an_error_is_not_lost(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run_program("python", ["-c", "1 / 0"], tmp_path)


def test_nothing_remains_of_a_run(tmp_path: Path) -> None:
    """A module that is written again is imported again; folder and environment are as before."""
    before = Path.cwd(), sys.path[:], sys.argv[:], dict(os.environ)
    (tmp_path / "main.py").write_text(
        "import os, my_part\nos.environ['SET'] = '1'\nprint(my_part.VALUE)\n"
    )
    for value in ("1", "2"):
        (tmp_path / "my_part.py").write_text(f"VALUE = {value}\n")
        assert run_program("python", ["main.py"], tmp_path).stdout == f"{value}\n"
    assert "my_part" not in sys.modules
    assert (Path.cwd(), sys.path, sys.argv, dict(os.environ)) == before
