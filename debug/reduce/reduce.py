"""Reduces a model to the smallest one that still shows a finding, and writes what belongs to it:
the text of the model, a test, and the nearest model that does not show the finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from ...request import Request
from ...rewrite.errors import LoopliftError, ModelError
from ...rewrite.storage.files import save
from ...rewrite.storage.output_checks import check_inputs_kept, check_output, check_target
from ...rewrite.storage.output_files import write_text
from ..exit_status import FINDING
from ..model_text import shortened_text
from .criteria import criterion, for_model
from .search import Progress, Reduction, Search, progress_path


@dataclass(frozen=True)
class Files:
    """The files of a reduction."""

    model: Path
    text: Path
    test: Path
    clean: Path | None
    """The nearest model that does not show the finding; None if there is none."""

    @classmethod
    def of(cls, output: Path) -> Files:
        """All files that a reduction may leave when it has finished."""
        text, clean = output.with_suffix(".txt"), output.with_suffix(".clean.onnx")
        return cls(output, text, output.with_name(f"{name_of_test(output)}.py"), clean)


def check_files(output: Path, source: Path) -> None:
    """Raises ModelError if a file of a reduction cannot be written or would replace its input."""
    check_output(output, source)
    files = Files.of(output)
    if files.text == output:
        raise ModelError(
            "The model and its text would be written to the same file",
            where=f"output '{output}'",
            remedy="Name the model .onnx",
        )
    beside = list(filter(None, (files.text, files.test, files.clean, progress_path(output))))
    for path in beside:
        check_target(path, path)
    check_inputs_kept(beside, [source], "A file that is written next to the output")


@dataclass(frozen=True)
class ReduceResult:
    """A reduction and its files."""

    reduction: Reduction
    files: Files

    @property
    def status(self) -> int:
        """The exit status: a model that shows something is a finding."""
        return FINDING

    def as_json(self) -> dict[str, Any]:
        found = self.reduction
        return {
            "before": found.before,
            "after": found.after,
            "checks": found.checks,
            "remembered": found.remembered,
            "finished": found.finished,
            "seconds": found.seconds,
            "model": str(self.files.model),
            "text": str(self.files.text),
            "test": str(self.files.test),
            "clean": str(self.files.clean) if self.files.clean is not None else None,
            "status": self.status,
        }


def reduce(
    request: Request,
    output: Path,
    *,
    keep: str = "differs",
    command: str = "",
    rules: Sequence[str] = (),
    seed: int = 0,
    seconds: float = 3600.0,
    progress: Callable[[str], None] = lambda _: None,
) -> ReduceResult:
    """Makes a model smaller while it shows what `keep` says, or while a command finds something.

    `rules` are the modules of the request's rules, for the test that is written. Continues an
    interrupted call for the same model and criterion. Raises LoopliftError if the model does not
    show the finding in the first place.
    """
    wanted = criterion(request, keep, command, seed)
    options = f"{request.options.strict} {request.options.engine.name}"
    about = f"{wanted.text} {list(rules)} {request.assertions} {options}"
    verdicts = Progress(output, request.proto, about, request.base_dir)
    finished = False
    try:
        search = Search(wanted, request.base_dir, verdicts, seconds, progress)
        found = search.run(request.proto)
        finished = found.finished
    except LoopliftError:
        finished = True  # there is nothing to continue
        raise
    finally:
        verdicts.close(finished)
    test = _Test(output, keep, command, rules, for_model(request, found.model))
    files = Files.of(output)
    if found.nearest is None:
        files = replace(files, clean=None)
    _write_files(files, found, test.text(), request.base_dir)
    return ReduceResult(found, files)


# --- files ---


def _write_files(files: Files, found: Reduction, test: str, base_dir: str) -> None:
    """Writes the model and what belongs to it. Raises ModelError if a file cannot be written."""
    save(found.model, files.model, base_dir=base_dir)
    write_text(files.text, shortened_text(found.model) + "\n", "The text of the model")
    write_text(files.test, test, "The test")
    if found.nearest is not None and files.clean is not None:
        save(found.nearest, files.clean, base_dir=base_dir)


def name_of_test(model: Path) -> str:
    """The name of the test of a model, and of the test's module."""
    return "test_" + "".join(c if c.isalnum() else "_" for c in model.stem)


@dataclass(frozen=True)
class _Test:
    """A test that fails as long as the model shows what it was reduced for."""

    model: Path
    keep: str
    command: str
    rules: Sequence[str]
    request: Request
    """With the assertions that are left."""

    def text(self) -> str:
        imports, body = self._command_test() if self.command else self._rewrite_test()
        lines = [
            f'"""Reduced by looplift; fails while the model shows: {self.command or self.keep}"""',
            "",
            "from pathlib import Path",
            "",
            *imports,
            "",
            f'MODEL = Path(__file__).with_name("{self.model.name}")',
            "",
            "",
            f"def {name_of_test(self.model)}() -> None:",
            *(f"    {line}" for line in body),
        ]
        return "\n".join(lines) + "\n"

    def _command_test(self) -> tuple[list[str], list[str]]:
        command = self.command if "{}" in self.command else f"{self.command} {{}}"
        return ["import shlex", "import subprocess"], [
            f"words = shlex.split({command!r})",
            "done = subprocess.run([word.replace('{}', str(MODEL)) for word in words])",
            "assert done.returncode == 0",
        ]

    def _rewrite_test(self) -> tuple[list[str], list[str]]:
        imports = ["import looplift", "from looplift.plugins import all_phases"]
        rewrite = f"result = looplift.rewrite(MODEL, {', '.join(self._arguments())})"
        return imports, [rewrite, *self._checks()]

    def _arguments(self) -> list[str]:
        given = self.request.assertions
        arguments: dict[str, object] = {
            "inputs": {name: _literal(value) for name, value in given.inputs.items()},
            "dims": given.dim_texts(),
            "shapes": dict(given.shapes),
            "prefix_masks": dict(given.prefix_masks),
            "strict": self.request.options.strict,
            "engine": self.request.options.engine.name,
        }
        return [
            f"rules=all_phases({list(self.rules)!r})",
            *(f"{name}={value!r}" for name, value in arguments.items() if value),
        ]

    def _checks(self) -> list[str]:
        word, _, rest = self.keep.strip().partition(" ")
        if word == "fires":
            return [f"assert {rest!r} not in result.report.commits"]
        if word == "left":
            return [f"assert not result.report.after[{rest!r}]"]
        if word == "error":
            return ["assert result.report.defects == []"]
        if word == "reason":
            return [
                "reasons = [",
                '    f"{reason.rule}: {reason.sentence}"',
                "    for node in result.engine.index.walk()",
                '    if node.op in ("If", "Loop", "Scan")',
                "    for reason in result.reasons(node)",
                "]",
                f"assert not any({rest!r} in reason for reason in reasons)",
            ]
        return [
            "assertions = result.engine.assertions",
            "verification = looplift.verify(MODEL, result.model, assumptions=assertions)",
            "assert verification.verified, str(verification)",
        ]


def _literal(value: object) -> object:
    return value.tolist() if hasattr(value, "tolist") else value


# --- for the terminal ---


def render(result: ReduceResult, title: str) -> list[RenderableType]:
    """How much smaller the model is, and the files."""
    found, files = result.reduction, result.files
    checks = f"{found.checks} check{'s' * (found.checks != 1)}, {found.seconds:.1f} s"
    if found.remembered:
        checks += f", {found.remembered} repeated"
    lines = [f"model  {files.model}", f"text   {files.text}", f"test   {files.test}"]
    if files.clean:
        lines.append(f"clean  {files.clean} (the nearest model that does not show the finding)")
    if not found.finished:
        lines.append("the time is up: repeat the same call to continue")
    return [
        Text(title, style="bold"),
        Text(f"{found.before} nodes → {found.after} ({checks})", style="green"),
        *(Text(line) for line in lines),
    ]
