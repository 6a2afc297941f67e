"""Invalid models are rejected with a place and a remedy."""

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
def test_is_rejected(case: BadModel, tmp_path: Path) -> None:
    path = case.make(tmp_path)
    with pytest.raises(ModelError) as caught:
        accept(path)
    message = str(caught.value)
    assert [word for word in case.words if word not in message] == [], message
    assert caught.value.where
    assert caught.value.remedy
    assert "\n" not in message


def test_cases_have_unique_names() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 40
