from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.rulebook import EVALUATION_INTERVAL, Notebook, Rulebook, run_promtool
from tests.rules.together import Together, rehearse


def evaluation_interval(item: pytest.Item) -> int:
    """Return the seconds between two evaluations of the rules in a test."""
    mark = item.get_closest_marker("evaluated_every")
    return int(mark.args[0]) if mark else EVALUATION_INTERVAL


@pytest.fixture(scope="module")
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Together:
    """The stories of this file."""
    notebooks: dict[int, Notebook] = {}
    for item in request.session.items:
        if item.path == request.path:
            seconds = evaluation_interval(item)
            rehearse([item], notebooks.setdefault(seconds, Notebook(evaluation_interval=seconds)))
    path = tmp_path_factory.mktemp("together") / "stories.test.yml"
    stories = [story for notebook in notebooks.values() for story in notebook.documents]
    return Together(stories, lambda document: run_promtool(document, path))


@pytest.fixture
def rulebook(request: pytest.FixtureRequest, tmp_path: Path, together: Together) -> Rulebook:
    return Rulebook(tmp_path, together, evaluation_interval=evaluation_interval(request.node))
