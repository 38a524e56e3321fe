from pathlib import Path

import pytest

from tests.rules.rulebook import Rulebook


@pytest.fixture
def rulebook(tmp_path: Path) -> Rulebook:
    return Rulebook(tmp_path)
