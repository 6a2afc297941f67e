"""The wheel is complete, and importing looplift does not import TVM."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from .programs import run_program

ROOT = Path(__file__).parents[1]
NOT_PACKAGED = {"tests", "examples", "benchmarks", "docs", "build", "dist"}


@cache
def source_modules() -> tuple[str, ...]:
    """The dotted name of every Python file that belongs to the package.

    Read from the folders, not from pyproject.toml: a package that is missing there, or that has no
    `__init__.py`, is in this list but not in the wheel.
    """
    names = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] in NOT_PACKAGED or any(part.startswith(".") for part in parts):
            continue
        if parts[-1] == "__init__":
            parts = parts[:-1]
        names.append(".".join(("looplift", *parts)))
    return tuple(names)


LAYERS = ("rewrite", "rules", "lowering", "debug", "commands")
"""The subpackages; each imports only those before it."""
SCHEDULING = (
    "kernels", "functions", "injective", "codegen", "reductions",
    "relax", "products", "convolutions", "layouts", "legalization",
)  # fmt: skip
"""The packages of the lowering's schedules; each imports only those before it."""


def imported_parts(path: Path, root: Path = ROOT) -> set[str]:
    """The packages and modules of a folder that a file in it imports, as relative imports."""
    depth = len(path.relative_to(root).parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            found |= {(node.module or name.name).partition(".")[0] for name in node.names}
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_one_way(layer: str) -> None:
    later = {*LAYERS[LAYERS.index(layer) + 1 :], "cli"}
    imports = {
        (path.name, part) for path in (ROOT / layer).rglob("*.py") for part in imported_parts(path)
    }
    assert [(name, part) for name, part in imports if part in later] == []


@pytest.mark.parametrize("package", SCHEDULING)
def test_imports_of_schedules_go_one_way(package: str) -> None:
    folder = ROOT / "lowering" / "scheduling"
    earlier = set(SCHEDULING[: SCHEDULING.index(package) + 1])
    imports = {
        (path.name, part)
        for path in (folder / package).glob("*.py")
        for part in imported_parts(path, folder)
    }
    assert [(name, part) for name, part in imports if part not in earlier] == []


def test_every_package_of_the_schedules_has_its_place() -> None:
    folders = (ROOT / "lowering" / "scheduling").glob("*/__init__.py")
    assert sorted(SCHEDULING) == sorted(path.parent.name for path in folders)


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command outside of the sources and without this process's PYTHONPATH."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True
    )


def succeed(*command: str | Path, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment in which only the wheel is installed.

    A path file makes the dependencies visible: the packages of this environment, but not its
    editable install of looplift.
    """
    base = tmp_path_factory.mktemp("wheel")
    # A copy, because a build leaves files that would hide a missing package the next time.
    hidden = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "results")
    shutil.copytree(ROOT, base / "source", ignore=hidden)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    succeed(
        *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", base, base / "source",
        cwd=base,
    )  # fmt: skip
    (wheel,) = base.glob("looplift-*.whl")

    succeed(sys.executable, "-m", "venv", "--without-pip", base / "env", cwd=base)
    python = base / "env" / "bin" / "python"
    succeed(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=base)
    site = succeed(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=base)
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(site.strip(), "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return python


def test_the_wheel_holds_every_module(installed: Path, tmp_path: Path) -> None:
    modules = source_modules()
    assert "looplift.rewrite.errors" in modules
    script = tmp_path / "import_all.py"
    script.write_text(
        "import importlib\n"
        f"for name in {modules!r}:\n"
        "    if name != 'looplift.__main__':\n"
        "        print(importlib.import_module(name).__file__)\n"
    )
    files = succeed(installed, script, cwd=tmp_path).split()
    assert len(files) == len([name for name in modules if name != "looplift.__main__"])
    environment = str(installed.parents[1])
    assert [file for file in files if not file.startswith(environment)] == []


def test_the_wheel_is_marked_as_typed(installed: Path, tmp_path: Path) -> None:
    show = (
        "import importlib.resources as r; print(r.files('looplift').joinpath('py.typed').is_file())"
    )
    assert succeed(installed, "-c", show, cwd=tmp_path).strip() == "True"


def test_the_wheel_holds_the_templates(installed: Path, tmp_path: Path) -> None:
    """With only the wheel, a report and a new rule can be written.

    The files of the rule are those that the sources write; `test_rules_command.py` runs their test.
    """
    script = tmp_path / "model.py"
    script.write_text(
        "import onnx, onnx.parser\n"
        "text = '<ir_version: 8, opset_import: [\"\" : 17]>'\n"
        "text += 'g (float[2] x) => (float[2] y) { a = Neg(x) b = Neg(a) y = Relu(b) }'\n"
        "onnx.save(onnx.parser.parse_model(text), 'model.onnx')\n"
    )
    succeed(installed, script, cwd=tmp_path)
    looplift = (installed, "-m", "looplift")
    succeed(*looplift, "report", "model.onnx", "-o", "model.html", cwd=tmp_path)
    assert "dagre" in (tmp_path / "model.html").read_text()
    new = ("rules", "new", "DropDoubleNeg", "-o")
    succeed(*looplift, *new, "mine", cwd=tmp_path)
    assert run_program("looplift", [*new, "same"], tmp_path).status == 0
    mine, same = (_files(tmp_path / name) for name in ("mine", "same"))
    assert len(mine) >= 4
    assert mine == same


def _files(folder: Path) -> dict[str, str]:
    """The text of each file in a folder by its path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


@pytest.mark.parametrize("command", [("python", "-m", "looplift"), ("looplift",)])
def test_the_command_line_starts(installed: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    program = installed.parent / command[0]
    text = succeed(program, *command[1:], "--help", cwd=tmp_path)
    for subcommand in ("rewrite", "inspect", "import", "check", "rules"):
        assert subcommand in text


def test_importing_looplift_imports_neither_tvm_nor_the_rules(
    installed: Path, tmp_path: Path
) -> None:
    """The help and processes that only run models start without them."""
    script = (
        "import sys, looplift, looplift.cli; "
        "print([m for m in sys.modules if 'tvm' in m or m.startswith('looplift.rules')])"
    )
    assert succeed(installed, "-c", script, cwd=tmp_path).strip() == "[]"


def test_without_tvm_the_lowering_says_how_to_install_it(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "without_tvm.py"
    script.write_text(
        "import sys\n"
        "sys.modules['tvm'] = None  # an import of it fails now, as if it were not installed\n"
        "import looplift, onnx.parser\n"
        "model = onnx.parser.parse_model('''<ir_version: 8, opset_import: [\"\" : 17]>\n"
        "    g (float[2] x) => (float[2] y) { y = Relu(x) }''')\n"
        "print(looplift.rewrite(model).model.graph.node[0].op_type)\n"
        "try:\n"
        "    looplift.from_onnx(model)\n"
        "except looplift.LoopliftError as error:\n"
        "    print(error)\n"
    )
    operator, message = succeed(installed, script, cwd=tmp_path).splitlines()
    assert operator == "Relu"
    assert 'pip install ".[tvm]"' in message


def test_collecting_tests_does_not_import_the_package_under_a_second_name() -> None:
    """The root folder is a package, and pytest imports the packages it collects from."""
    copies = {
        name
        for name, module in sys.modules.items()
        if (getattr(module, "__file__", None) or "") == str(ROOT / "__init__.py")
    }
    assert copies <= {"looplift"}


REWRITE_ORDER: dict[str, set[str]] = {
    "errors": set(),
    "garbage_collection": set(),
    "symbolic": set(),
    "graph": {"symbolic"},
    "storage": {"symbolic", "graph"},
    "facts": {"symbolic", "graph", "storage"},
    "engine": {"symbolic", "graph", "storage", "facts"},
    "running": {"symbolic", "graph", "storage", "facts"},
}
"""What each part of `looplift.rewrite` may import, besides errors and garbage_collection."""


def imports_of(module: str) -> set[str]:
    """The modules of the package that a module imports, also for type checking only."""
    path = ROOT.joinpath(*module.split(".")[1:])
    is_package = path.is_dir()
    tree = ast.parse((path / "__init__.py" if is_package else path.with_suffix(".py")).read_text())
    package = module.split(".") if is_package else module.split(".")[:-1]
    modules = source_modules()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                found.add(inner if inner in modules else source)
    return found


@cache
def rewrite_imports() -> dict[str, set[str]]:
    """The imports of all modules of `looplift.rewrite`."""
    return {m: imports_of(m) for m in source_modules() if m.startswith("looplift.rewrite.")}


def test_the_parts_of_rewrite_depend_on_each_other_in_one_order() -> None:
    wrong = []
    for module, imported in rewrite_imports().items():
        part = module.split(".")[2]
        allowed = {part, "errors", "garbage_collection"} | REWRITE_ORDER[part]
        for other in imported:
            names = other.split(".")
            if names[:2] != ["looplift", "rewrite"] or names[2] not in allowed:
                wrong.append(f"{module} imports {other}")
    assert wrong == []


def test_no_two_modules_of_rewrite_import_each_other() -> None:
    imported = rewrite_imports()
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a circle of imports: {' -> '.join((*path, module))}"
        if module not in done:
            for other in sorted(imported.get(module, ())):
                visit(other, (*path, module))
            done.add(module)

    for module in imported:
        visit(module, ())
