"""The check of the project's texts finds words of its list, and honours exceptions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.language import ROOT, Finding, Rules, check, files

LIST = ROOT / "tests/language.yml"


@pytest.fixture
def rules() -> Rules:
    return Rules.read(LIST)


def found(path: str, source: str, rules: Rules) -> list[tuple[int, str]]:
    return [(finding.line, finding.word) for finding in check(path, source, rules)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("# It tells of a GPU.\n", [(1, "tells")]),
        ('x = 1\nraise ValueError("nobody answers")\n', [(2, "nobody")]),
        ('x = f"{1} is told"\n', [(1, "told")]),
        ('def f() -> None:\n    """What the driver reports."""\n', [(2, "What")]),
        ('LIMIT = 3\n"""Whether it is reached."""\n', [(2, "Whether")]),
        ("reported = ask(processor.told)\n", []),
        ('x = f"{told} of {ask(1)}"\n', []),
        ('def f() -> None:\n    """Return what the driver reports."""\n', []),
        ('x = "What is lost"\n', []),
    ],
)
def test_python_is_checked_in_comments_strings_and_docstrings(
    source: str, expected: list[tuple[int, str]], rules: Rules
) -> None:
    assert found("exporter/stallscope/new.py", source, rules) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def test_a_value_is_none() -> None: ...\n", [(1, "is none")]),
        ("def test_a_value_is_absent() -> None: ...\n", []),
        ("class _GPUDoor: ...\n", [(1, "Door")]),
        ("class Indoors: ...\n", []),
        ("def f(heard_by: int, *asked: int, **told: int) -> None: ...\n", [(1, "heard"), (1, "asked"), (1, "told")]),
        ("class A:\n    processor: int = 0\n", [(2, "processor")]),
        ("x = 1\nself.epochTold, TOLD_AS = x, x\n", [(2, "TOLD"), (2, "Told")]),
        ("for asked in x: ...\n", [(1, "asked")]),
        ("asked = 1\nasked = 2\n", [(1, "asked")]),
        ("file.tell(asked=told)\n", []),
        ("def nvml_stand_in(is_stand_in: bool) -> NvmlStandIn: ...\n", []),
        ("def counters_stand_in_the_trace() -> None: ...\n", [(1, "stand in")]),
    ],
)
def test_names_are_checked_word_by_word_where_they_are_defined(
    source: str, expected: list[tuple[int, str]], rules: Rules
) -> None:
    assert sorted(found("exporter/stallscope/new.py", source, rules)) == sorted(expected)


def test_other_files_are_checked_whole(rules: Rules) -> None:
    assert found("README.md", "A line.\n\nThe GPU is busy\nand is\nnone.\n", rules) == [(4, "is\nnone")]


def test_an_exception_covers_its_own_text_in_its_own_folder_only(rules: Rules) -> None:
    rules.allowed = [("deploy", re.compile("tell runs apart"))]
    assert found("deploy/README.md", "Names tell runs apart; they tell more.", rules) == [(1, "tell")]
    assert found("alerts/README.md", "Names tell runs apart.", rules) == [(1, "tell")]


def test_an_exception_needs_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "words.yml"
    file.write_text("allowed: [{in: deploy, text: told}]\n", encoding="utf-8")
    with pytest.raises(ValueError, match="a reason is missing"):
        Rules.read(file)


def test_a_finding_names_the_place_the_word_and_the_remedy() -> None:
    assert str(Finding("README.md", 3, "anew", "again", "start anew")) == 'README.md:3: "anew": again: …start anew…'


def test_files_that_a_person_wrote_are_checked_and_recorded_ones_are_not(rules: Rules) -> None:
    names = {str(path.relative_to(ROOT)) for path in files(rules)}
    assert {"README.md", "Makefile", "exporter/stallscope/__init__.py", "deploy/slurm/prolog.sh"} <= names
    assert not [name for name in names if name.startswith(("tests/recorded_trees/", "grafana/dashboards/"))]


def test_the_readme_has_fewer_than_900_words() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 900


def test_the_changelog_has_fewer_than_60_lines() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) < 60
