"""The recipes in CONTRIBUTING.md list every file that names their example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("alerts", "deploy", "exporter", "grafana", "prometheus", "tests")
_LEFT_OUT = {"CHANGELOG.md", "CONTRIBUTING.md", "RESULTS.md"}
_LOG = ROOT / "tests" / "reports" / "README.md"
"""A log of what was tried, which names anything and is no place to edit."""
_TEXT = {".json", ".md", ".prom", ".py", ".tmpl", ".txt", ".yaml", ".yml"}


def recipes() -> dict[str, str]:
    """The sections under "Recipes" by title."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Recipes")[2]
    return {section.partition("\n")[0]: section for section in text.split("\n### ")[1:]}


WITH_EXAMPLE = {title: section for title, section in recipes().items() if "Example: `" in section}


def files_that_name(example: str) -> set[str]:
    """Every text file of the repository with this text."""
    paths = [ROOT / "README.md", *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    return {
        str(path.relative_to(ROOT))
        for path in paths
        if path.suffix in _TEXT
        and path.name not in _LEFT_OUT
        and path != _LOG
        and not path.parent.is_symlink()
        and path.is_file()
        and example in path.read_text(encoding="utf-8", errors="replace")
    }


def test_there_are_recipes() -> None:
    assert {"A host metric", "A cause", "An adapter for another exporter", "A panel"} <= recipes().keys()


@pytest.mark.parametrize("title", WITH_EXAMPLE)
def test_a_recipe_lists_the_files_that_name_its_example(title: str) -> None:
    section = WITH_EXAMPLE[title]
    example = re.search(r"Example: `([^`]+)`", section)
    assert example is not None
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    listed = {path for row in rows for path in re.findall(r"`([^`]+)`", row)}
    assert files_that_name(example[1]) == listed
