"""What cannot be a model is refused with the place and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from looplift.rewrite.errors import ModelError
from looplift.rewrite.storage.files import load
from looplift.rewrite.storage.model import import_model
from looplift.rewrite.storage.validate import check_runtime

from ...bad_models import CASES, BadModel


def accept(path: Path) -> None:
    """What happens to every model before it is rewritten and run."""
    proto, base_dir = load(path)
    import_model(proto, base_dir)
    check_runtime(proto)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_is_refused(case: BadModel, tmp_path: Path) -> None:
    path = case.make(tmp_path)
    with pytest.raises(ModelError) as caught:
        accept(path)
    message = str(caught.value)
    assert [word for word in case.words if word not in message] == [], message
    assert caught.value.where
    assert caught.value.remedy
    assert "\n" not in message


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 40
