from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.rulebook import INTERVAL, Notebook, Rulebook, run_promtool
from tests.rules.together import Together, rehearse


@pytest.fixture(scope="module")
def evaluation_interval(request: pytest.FixtureRequest) -> int:
    return int(getattr(request.module, "EVALUATION_INTERVAL", INTERVAL))


@pytest.fixture(scope="module")
def together(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, evaluation_interval: int
) -> Together:
    """The stories of this file."""
    notebook = Notebook(evaluation_interval=evaluation_interval)
    rehearse([item for item in request.session.items if item.path == request.path], notebook)
    path = tmp_path_factory.mktemp("together") / "stories.test.yml"
    return Together(notebook.documents, lambda document: run_promtool(document, path))


@pytest.fixture
def rulebook(tmp_path: Path, together: Together, evaluation_interval: int) -> Rulebook:
    return Rulebook(tmp_path, together, evaluation_interval=evaluation_interval)
