"""A new cause takes edits in five places, and no other file enumerates causes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.model.catalogue.causes import CAUSES, Cause

ROOT = Path(__file__).parents[2]
FOLDERS = ("alerts", "deploy", "exporter", "grafana", "prometheus", "tests")
ROWS = "exporter/stallscope/model/catalogue/causes.py"
CASES = "tests/scenarios/cases"
GENERATED = (
    "alerts/CAUSES.md",
    "alerts/README.md",
    "alerts/alertmanager.yml",
    "alerts/*_*.yml",
    "alerts/host.yml",
    "prometheus/rules/causes.yml",
    "deploy/kubernetes/kube-prometheus-stack/alertmanager.yaml",
    "deploy/kubernetes/components/prometheus-operator/rules/*",
    "tests/scenarios/RESULTS.md",
)
"""Files that `make generate` or `make score` write: all others that a cause takes are edited by hand."""
MOST = 0.8
"""Share of a domain's causes that a file must name to count as a list of them."""
STORIES = re.compile(
    r"tests/rules/test_(?!bundle)\w+\.py|tests/scenarios/cases/.+|tests/hardware/day/planted\.py"
    r"|exporter/stallscope/lab/simulation/scenarios\.py"
)
"""Tests and demonstrations of single causes, to which a new cause may add one of its own."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield the text files of the repository by their path."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yml", ".yaml", ".md", ".tmpl"):
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def named(text: str) -> set[str]:
    """Return the causes that a text names, as a value or by their alert."""
    words = {word for words in _NAMES.findall(text) for word in words}
    return {cause.name for cause in CAUSES.values() if cause.name in words or cause.alert in words}


_NAMES = re.compile(r"[\"'`](\w+)[\"'`]|\bcause: (\w+)|\b((?:Training|Gpu|Host)[A-Z]\w+)")


@pytest.fixture(scope="module")
def cases() -> set[str]:
    return named("".join(path.read_text() for path in (ROOT / CASES).glob("*.py")))


@pytest.fixture(scope="module")
def rules() -> str:
    return "".join(path.read_text() for path in (ROOT / "prometheus" / "rules").glob("*.yml"))


@pytest.mark.parametrize("cause", [cause for cause in CAUSES.values() if cause.rule], ids=lambda cause: cause.name)
def test_a_cause_has_its_row_rule_runbook_and_scenario(cause: Cause, rules: str, cases: set[str]) -> None:
    assert cause.tier is None or f"cause: {cause.name}," in rules
    assert (ROOT / "alerts" / "runbooks" / f"{cause.alert}.md").exists()
    assert cause.name in cases


def test_no_other_file_lists_the_causes_of_a_domain() -> None:
    domains = {cause.domain for cause in CAUSES.values()}
    lists = set()
    for path, text in texts():
        if path == ROWS or STORIES.fullmatch(path) or any(Path(path).match(pattern) for pattern in GENERATED):
            continue
        found = named(text)
        for domain in domains - {Path(path).stem}:
            causes = {cause.name for cause in CAUSES.values() if cause.domain == domain and cause.rule}
            if len(causes & found) >= MOST * len(causes):
                lists.add((path, domain))
    assert not lists, "a new cause would take an edit there too"


def edits() -> dict[str, str]:
    """Return the text of the worked example by the file that it belongs in."""
    page = (ROOT / "prometheus" / "README.md").read_text(encoding="utf-8")
    example = page.split("## Add a cause")[1].split("## Bring your own")[0]
    steps = re.findall(
        r"^\d\. \*\*.+?`([\w/]+/[\w/.]+)`.*?\n\n(`{3,4})\w+\n(.*?)^\2\n", example, re.DOTALL | re.MULTILINE
    )
    return {path: text for path, _, text in steps}


def apply(folder: Path, path: str, text: str) -> None:
    """Make an edit of the example: at the end of the file's list, or as a new file."""
    target = folder / path
    old = target.read_text(encoding="utf-8") if target.exists() else ""
    end = ""
    if path == ROWS:
        text, end = textwrap.indent(text.rstrip(), " " * 8) + ",\n", "    )\n}\n\nREMAINDERS"
    elif path.startswith(CASES):
        text, end = textwrap.indent(text, " " * 4), "\n\nCASES: tuple"
    place = old.index(end) if end else len(old)
    target.write_text(old[:place] + text + old[place:], encoding="utf-8")


@pytest.mark.slow(45)
@pytest.mark.timeout(900)
def test_the_worked_example_adds_a_cause_with_five_edits(tmp_path: Path) -> None:
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "recorded_trees")
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=ignored)
    for name in ("README.md", "pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    found = edits()
    assert len(found) == 5
    for path, text in found.items():
        apply(tmp_path, path, text)

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "exporter")}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    generators = ("exporter.tools.causes_reference", "alerts.alert_rules", "alerts.inhibition_rules")
    for module in (*generators, "grafana", "deploy.generate"):
        run("-m", module)
    assert "alert: HostDiskBusy" in (tmp_path / "alerts" / "host.yml").read_text()
    tests = (
        "catalogue/test_causes.py",
        "catalogue/test_new_cause.py",
        "rules/test_bundle.py",
        "scenarios/test_cases.py",
        "alerting/test_routes.py",
    )
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *(f"tests/{name}" for name in tests))
    run("-c", _SCENARIOS)


_SCENARIOS = """
from tests.scenarios import CASES, score
cases = [case for case in CASES if case.cause == "disk_busy"]
(outcomes,) = score.judge_batch(score.trials((1,), (False,), cases), baselines=False).values()
assert len(outcomes) == 3
for outcome in outcomes:
    assert outcome.fired is bool(outcome.trial.case.alerts), outcome
    assert not outcome.alarms, outcome
"""
"""Judges the example's scenarios: the alert fires where it should, and no other does."""
