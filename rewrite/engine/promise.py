"""What a rule promises of the models that it rewrites; docs/soundness.md shows all promises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Promise:
    """How a rewritten model may differ from the original; the default is: not at all.

    A run is one evaluation of a model on some inputs. Each field is a sentence without a full stop,
    empty if the model cannot differ in this way.
    """

    rounds: str = ""
    """Why floats may be rounded differently. Integers, shapes and types are always the same."""
    nonfinite: str = ""
    """How infinities and NaN may change, beyond a sum that overflows in another order."""
    assumes: str = ""
    """What the rule relies on beyond the file; each rewrite that relies on it says so in a note."""
    accepts: str = ""
    """Which runs fail in the original and may succeed in the rewritten model. With --strict, the
    rule declines where this could happen."""
    always_accepts: str = ""
    """The same, but also with --strict."""

    @property
    def is_exact(self) -> bool:
        """Whether all runs that succeed in the original give the same bits."""
        return not (self.rounds or self.nonfinite)
