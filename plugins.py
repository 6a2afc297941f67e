"""Rules of users: from modules they name, and from installed packages.

A package offers phases under the entry-point group `looplift.rules`:

    [project.entry-points."looplift.rules"]
    mine = "my_package.my_rules"        # a module with PHASES, or "my_package.my_rules:PHASES"
"""

from __future__ import annotations

import functools
import importlib
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from .rewrite.engine.rule import RULE_ERRORS, Phase, Rule
from .rewrite.errors import LoopliftError, error_text

GROUP = "looplift.rules"
"""The entry-point group."""
_PACKAGE = __name__.partition(".")[0]


def all_phases(modules: Sequence[str] = ()) -> tuple[Phase, ...]:
    """The phases of looplift, of installed packages, and of modules (`PHASES`), in that order.

    A phase or rule that names another in `before` or `after` takes its place next to it instead;
    see `insert_phases`. Finds modules in the current folder, too. A module that is named twice, or
    that is installed as well, counts once.

    Raises LoopliftError for a module or an entry point that cannot be imported or has no phases,
    and for a `before` or `after` that names nothing.
    """
    # A process that only runs models, or prints a help text, starts faster without the rules.
    from .rules import PHASES

    added = [*installed_phases(), *(phase for name in modules for phase in _phases_of(name))]
    return insert_phases(PHASES, tuple(dict.fromkeys(added)))


def check_phases(phases: object) -> None:
    """Raises LoopliftError for what is not phases, such as the name of a module."""
    listed = phases if isinstance(phases, Sequence) and not isinstance(phases, str) else (None,)
    if all(isinstance(phase, Phase) for phase in listed):
        return
    module = phases if isinstance(phases, str) else getattr(phases, "__name__", "my_rules")
    raise LoopliftError(
        f"`rules` is {phases!r}, which is not a sequence of phases",
        remedy=f"Pass looplift.plugins.all_phases(['{module}']), which adds the phases of a module "
        "to those of looplift, or a tuple of looplift.Phase, which replaces them",
    )


def insert_phases(phases: Sequence[Phase], added: Sequence[Phase]) -> tuple[Phase, ...]:
    """Inserts phases among others.

    A phase comes last unless it names another phase in `before` or `after`. A rule that names
    another rule leaves its own phase and joins every phase that has the named rule. Raises
    LoopliftError for a rule or phase that names nothing among those that are there by then.
    """
    result = list(phases)
    for phase in added:
        staying = tuple(rule for rule in phase.rules if not (rule.before or rule.after))
        for rule in phase.rules:
            if rule not in staying:
                result = _with_rule(result, rule)
        if staying:
            rest = phase if staying == phase.rules else _with_rules(phase, staying)
            result.insert(_position(result, phase), rest)
    return tuple(result)


def _position(phases: Sequence[Phase], phase: Phase) -> int:
    """The index at which to insert a phase."""
    name = phase.before or phase.after
    if not name:
        return len(phases)
    names = [other.name for other in phases]
    if name not in names:
        raise LoopliftError(
            f"The phase '{phase.name}' runs before or after '{name}', which is not a phase",
            remedy=f"Name one of: {', '.join(names)}",
        )
    return _place_next_to(name, phases, names, phase)


def _place_next_to(
    name: str,
    items: Sequence[Phase] | Sequence[type[Rule]],
    names: Sequence[str],
    item: Phase | type[Rule],
) -> int:
    """Where an item goes that runs next to a named one: after those that run after it already."""
    place = names.index(name)
    if item.before:
        return place
    place += 1
    while place < len(items) and items[place].after == name:
        place += 1
    return place


def _with_rule(phases: Sequence[Phase], rule: type[Rule]) -> list[Phase]:
    """The phases, with a rule next to each occurrence of the rule that it names."""
    name = rule.before or rule.after
    result = []
    for phase in phases:
        names = [other.name() for other in phase.rules]
        if name in names:
            place = _place_next_to(name, phase.rules, names, rule)
            rules = (*phase.rules[:place], rule, *phase.rules[place:])
            result.append(_with_rules(phase, rules))
        else:
            result.append(phase)
    if result == list(phases):
        raise LoopliftError(
            f"The rule {rule.name()} runs before or after {name}, which is not a rule",
            remedy="`looplift rules list` shows the rules",
        )
    return result


def _with_rules(phase: Phase, rules: tuple[type[Rule], ...]) -> Phase:
    return Phase(phase.name, rules, phase.summary, before=phase.before, after=phase.after)


@functools.cache
def installed_phases() -> tuple[Phase, ...]:
    """The phases of installed packages, in the order of the names of their entry points."""
    entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return tuple(phase for entry in entries for phase in _phases_of_entry(entry))


def _phases_of_entry(entry: EntryPoint) -> tuple[Phase, ...]:
    where = f"entry point '{entry.name}' of the group {GROUP}"
    try:
        found = entry.load()
    except RULE_ERRORS as error:
        raise LoopliftError(
            f"The rules of an installed package cannot be imported: {_import_error(error)}",
            where=where,
            remedy="Repair or uninstall the package",
        ) from error
    return _checked(_phases_attribute(found, where, found), where)


def _phases_of(name: str) -> tuple[Phase, ...]:
    if name.endswith(".py") and Path(name).is_file():
        raise LoopliftError(
            f"The rules cannot be imported: '{name}' is a file, not a module",
            where=f"module of rules '{name}'",
            remedy=_name_of_module(Path(name)),
        )
    known = sys.path[:]
    sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except RULE_ERRORS as error:
        missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        raise LoopliftError(
            f"The rules cannot be imported: {error if missing else _import_error(error)}",
            where=f"module of rules '{name}'",
            remedy="Name a module that Python can import, such as package.module"
            if missing
            else "Correct the error in the module",
        ) from error
    finally:
        sys.path[:] = known
    place = f"module of rules '{name}'"
    return _checked(_phases_attribute(module, place), place)


def _name_of_module(file: Path) -> str:
    """The remedy that says how to name the module in a file."""
    if file.is_absolute() or ".." in file.parts:
        return f"Run the command in '{file.parent}', and name the module: {file.stem}"
    return f"Name the module: {'.'.join(file.with_suffix('').parts)}"


def _phases_attribute(module: object, where: str, default: object = ()) -> object:
    """The PHASES of a module, which may compute them. Raises LoopliftError if that fails."""
    try:
        return getattr(module, "PHASES", default)
    except RULE_ERRORS as error:
        raise LoopliftError(
            f"The rules cannot be imported: {_import_error(error)}",
            where=where,
            remedy="Define PHASES in the module, a tuple of looplift.Phase",
        ) from error


def _import_error(error: BaseException) -> str:
    """An error in a module that is imported, with the line of the module that raised it."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{kind}: {error.msg} at {error.filename}:{error.lineno}"
    line = _line_of(error)
    return f"{kind}: {error_text(error)}" + (f" at {line}" if line else "")


def _line_of(error: BaseException) -> str:
    """The last line outside Python itself, installed packages and looplift, `file:line`; or empty.

    A checkout of looplift need not be installed, and may contain rules of users.
    """
    installed = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(("<", *installed))
        and str(frame.f_globals.get("__name__")).partition(".")[0] != _PACKAGE
    ]
    return lines[-1] if lines else ""


def _checked(phases: object, where: str) -> tuple[Phase, ...]:
    """The phases of a module. Raises LoopliftError for anything else."""
    listed = tuple(phases) if isinstance(phases, (tuple, list)) else ()
    if not listed or not all(isinstance(phase, Phase) for phase in listed):
        raise LoopliftError(
            "The module lists no rules",
            where=where,
            remedy="Define PHASES in it, a tuple of looplift.Phase",
        )
    for phase in listed:
        if not isinstance(phase.rules, (tuple, list)):
            raise LoopliftError(
                f"The rules of the phase {phase.name} are {phase.rules!r}",
                where=where,
                remedy="List them in a tuple",
            )
        for rule in phase.rules:
            _check_rule(rule, where)
    return listed


def _check_rule(rule: object, where: str) -> None:
    if not isinstance(rule, type) or not issubclass(rule, Rule):
        raise LoopliftError(
            f"A phase lists {rule!r}, which is not a rule",
            where=where,
            remedy="List classes that inherit from looplift.Rule",
        )
    root: object = rule.root
    operators = root if isinstance(root, (tuple, list)) else (root,)
    if not all(isinstance(op, str) for op in operators):
        raise LoopliftError(
            f"The root of the rule {rule.name()} is {root!r}",
            where=where,
            remedy="Name the operator that the rule is tried at, or a tuple of operators",
        )
