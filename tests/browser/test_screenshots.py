"""The pictures of the README."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.screenshots import FOLDER

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("picture", sorted(FOLDER.iterdir()), ids=lambda picture: picture.name)
def test_a_picture_is_small_and_shown(picture: Path) -> None:
    assert picture.stat().st_size < 150_000
    assert f'src="{picture.relative_to(README.parent)}"' in README.read_text(encoding="utf-8")
