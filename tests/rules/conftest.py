from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.rulebook import Notebook, Rulebook, ask_promtool
from tests.rules.together import Together, rehearse


@pytest.fixture(scope="module")
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Together:
    """The stories of this file."""
    notebook = Notebook()
    rehearse([item for item in request.session.items if item.path == request.path], notebook)
    path = tmp_path_factory.mktemp("together") / "stories.test.yml"
    return Together(notebook.documents, lambda document: ask_promtool(document, path))


@pytest.fixture
def rulebook(tmp_path: Path, together: Together) -> Rulebook:
    return Rulebook(tmp_path, together)
