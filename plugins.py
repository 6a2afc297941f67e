"""Rules from elsewhere: modules that a user names, and packages that offer rules when installed.

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
from .rewrite.errors import LoopliftError
from .rules import PHASES

GROUP = "looplift.rules"
"""The entry-point group."""


def all_phases(modules: Sequence[str] = ()) -> tuple[Phase, ...]:
    """looplift's phases, those of installed packages, and the `PHASES` of modules, in order.

    A phase of a package or module runs after looplift's unless it says `before` or `after`; a rule
    that says so joins the phases of the rule it names. Modules in the current folder are found;
    one that is also installed, or named twice, counts once.

    Raises LoopliftError for a module or an entry point that cannot be imported or has no phases,
    and for a place that is not there.
    """
    added = [*installed_phases(), *(phase for name in modules for phase in _phases_of(name))]
    return placed(PHASES, tuple(dict.fromkeys(added)))


def placed(phases: Sequence[Phase], added: Sequence[Phase]) -> tuple[Phase, ...]:
    """Phases with more of them, each rule and phase in the place that it asks for.

    Raises LoopliftError for a rule or phase that names none of those before it.
    """
    placed = list(phases)
    for phase in added:
        staying = tuple(rule for rule in phase.rules if not (rule.before or rule.after))
        for rule in phase.rules:
            if rule not in staying:
                placed = _with_rule(placed, rule)
        if staying:
            rest = phase if staying == phase.rules else _with_rules(phase, staying)
            placed.insert(_position(placed, phase), rest)
    return tuple(placed)


def _position(phases: Sequence[Phase], phase: Phase) -> int:
    """Where a phase goes among the others."""
    name = phase.before or phase.after
    if not name:
        return len(phases)
    names = [other.name for other in phases]
    if name not in names:
        raise LoopliftError(
            f"There is no phase '{name}' for the phase '{phase.name}' to run next to",
            remedy=f"Name one of: {', '.join(names)}",
        )
    return names.index(name) + (not phase.before)


def _with_rule(phases: Sequence[Phase], rule: type[Rule]) -> list[Phase]:
    """Phases in which a rule stands next to the one that it names."""
    name = rule.before or rule.after
    result = []
    for phase in phases:
        names = [other.name() for other in phase.rules]
        if name in names:
            place = names.index(name) + (not rule.before)
            rules = (*phase.rules[:place], rule, *phase.rules[place:])
            result.append(_with_rules(phase, rules))
        else:
            result.append(phase)
    if result == list(phases):
        raise LoopliftError(
            f"There is no rule {name} for the rule {rule.name()} to run next to",
            remedy="`looplift rules list` shows the rules",
        )
    return result


def _with_rules(phase: Phase, rules: tuple[type[Rule], ...]) -> Phase:
    return Phase(phase.name, rules, phase.summary, before=phase.before, after=phase.after)


@functools.cache
def installed_phases() -> tuple[Phase, ...]:
    """What installed packages offer, in the order of their entry points' names."""
    offers = sorted(entry_points(group=GROUP), key=lambda offer: offer.name)
    return tuple(phase for offer in offers for phase in _offered(offer))


def _offered(offer: EntryPoint) -> tuple[Phase, ...]:
    place = f"entry point '{offer.name}' of the group {GROUP}"
    try:
        found = offer.load()
    except RULE_ERRORS as error:
        raise LoopliftError(
            f"The rules of an installed package cannot be imported: {_told(error)}",
            where=place,
            remedy="Repair or uninstall the package",
        ) from error
    return _checked(getattr(found, "PHASES", found), place)


def _phases_of(name: str) -> tuple[Phase, ...]:
    known = sys.path[:]
    sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except RULE_ERRORS as error:
        missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        raise LoopliftError(
            f"The rules cannot be imported: {error if missing else _told(error)}",
            where=f"--rules {name}",
            remedy="Name a module that Python finds, such as package.module"
            if missing
            else "Repair the module",
        ) from error
    finally:
        sys.path[:] = known
    return _checked(getattr(module, "PHASES", ()), f"--rules {name}")


def _told(error: BaseException) -> str:
    """An error while a module was loaded, with the line of the module that made it."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{kind}: {error.msg} at {error.filename}:{error.lineno}"
    place = _place_of(error)
    return f"{kind}: {error}" + (f" at {place}" if place else "")


def _place_of(error: BaseException) -> str:
    """The last line that is neither Python's nor an installed package's, `file:line`; empty if
    there is none.
    """
    installed = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", __file__, *installed))
    ]
    return places[-1] if places else ""


def _checked(phases: object, place: str) -> tuple[Phase, ...]:
    listed = tuple(phases) if isinstance(phases, (tuple, list)) else ()
    if not listed or not all(isinstance(phase, Phase) for phase in listed):
        raise LoopliftError(
            "The module lists no rules",
            where=place,
            remedy="Define PHASES in it, a tuple of looplift.Phase",
        )
    for phase in listed:
        if not isinstance(phase.rules, (tuple, list)):
            raise LoopliftError(
                f"The rules of the phase {phase.name} are {phase.rules!r}",
                where=place,
                remedy="List them in a tuple",
            )
        for rule in phase.rules:
            _check_rule(rule, place)
    return listed


def _check_rule(rule: object, place: str) -> None:
    if not isinstance(rule, type) or not issubclass(rule, Rule):
        raise LoopliftError(
            f"A phase lists {rule!r}, which is no rule",
            where=place,
            remedy="List classes that inherit from looplift.Rule",
        )
    root: object = rule.root
    operators = root if isinstance(root, (tuple, list)) else (root,)
    if not all(isinstance(op, str) for op in operators):
        raise LoopliftError(
            f"The root of the rule {rule.name()} is {root!r}",
            where=place,
            remedy="Name the operator that it starts from, or a tuple of operators",
        )
