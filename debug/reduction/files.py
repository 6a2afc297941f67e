"""What a reduction leaves: the model, its text, a test, the nearest model that does not show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.parser
import onnx.printer

from ...commands.arguments import Assertions
from ...rewrite.storage.files import save
from ..subject import Subject
from .questions import fitted
from .search import Reduction


@dataclass(frozen=True)
class Written:
    """The files of a reduction."""

    model: Path
    text: Path
    test: Path
    clean: Path | None
    """The nearest model that does not show it."""


def write_files(
    output: Path,
    found: Reduction,
    subject: Subject,
    *,
    keep: str,
    command: str = "",
    rules: Sequence[str] = (),
) -> Written:
    """Writes everything beside the model. Raises ModelError if something cannot be written."""
    save(found.model, output, base_dir=subject.base_dir)
    text = output.with_suffix(".txt")
    text.write_text(onnx.printer.to_text(found.model) + "\n", encoding="utf-8")
    name = "".join(c if c.isalnum() else "_" for c in output.stem)
    test = output.with_name(f"test_{name}.py")
    given = fitted(subject, found.model).assertions
    test.write_text(_test(name, output, keep, command, rules, given), encoding="utf-8")
    clean = None
    if found.nearest is not None:
        clean = output.with_suffix(".clean.onnx")
        save(found.nearest, clean, base_dir=subject.base_dir)
    return Written(output, text, test, clean)


def _test(
    name: str, model: Path, keep: str, command: str, rules: Sequence[str], given: Assertions
) -> str:
    """A test that fails as long as the model shows what it was reduced for."""
    header = [
        f'"""Reduced by looplift; it fails while the model shows: {command or keep}"""',
        "",
        "from pathlib import Path",
        "",
    ]
    place = f'MODEL = Path(__file__).with_name("{model.name}")'
    body = _command_test(command) if command else _rewrite_test(keep, rules, given)
    return "\n".join(
        [*header, *body[0], "", place, "", "", f"def test_{name}() -> None:", *body[1]]
    )


def _command_test(command: str) -> tuple[list[str], list[str]]:
    words = command if "{}" in command else f"{command} {{}}"
    return (
        ["import shlex", "import subprocess"],
        [
            f"    words = shlex.split({words!r})",
            "    done = subprocess.run([word.replace('{}', str(MODEL)) for word in words])",
            "    assert done.returncode == 0",
            "",
        ],
    )


def _rewrite_test(
    keep: str, rules: Sequence[str], given: Assertions
) -> tuple[list[str], list[str]]:
    word, _, rest = keep.strip().partition(" ")
    arguments = [f"rules=all_phases({list(rules)!r})"]
    if given.inputs:
        arguments.append(f"inputs={ {n: _literal(v) for n, v in given.inputs.items()}!r}")
    if given.dims:
        arguments.append(f"dims={list(given.dims)!r}")
    if given.shapes:
        arguments.append(f"shapes={dict(given.shapes)!r}")
    if given.prefix_masks:
        arguments.append(f"prefix_masks={given.prefix_masks!r}")
    if given.strict:
        arguments.append("strict=True")
    call = f"    result = looplift.rewrite(MODEL, {', '.join(arguments)})"
    imports = ["import looplift", "from looplift.plugins import all_phases"]
    if word == "fires":
        return imports, [call, f"    assert {rest!r} not in result.report.commits", ""]
    if word == "left":
        return imports, [call, f"    assert not result.report.after[{rest!r}]", ""]
    if word == "error":
        return imports, [call, "    assert result.report.defects == []", ""]
    if word == "reason":
        return imports, [
            call,
            "    reasons = [",
            '        f"{reason.rule}: {reason.sentence}"',
            "        for node in result.engine.index.walk()",
            '        if node.op in ("If", "Loop", "Scan")',
            "        for reason in result.reasons(node)",
            "    ]",
            f"    assert not any({rest!r} in reason for reason in reasons)",
            "",
        ]
    verify = "    verification = looplift.verify(MODEL, result.model"
    if given.inputs:
        verify += f", inputs={ {n: _literal(v) for n, v in given.inputs.items()}!r}"
    return imports, [
        call,
        verify + ", assumptions=result.engine.assumptions)",
        "    assert verification.verified, str(verification)",
        "",
    ]


def _literal(value: object) -> object:
    return value.tolist() if hasattr(value, "tolist") else value
