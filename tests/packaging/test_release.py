"""A release: one version everywhere, pinned and restricted workflows, archives without programs, documented limits."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.release import LIMITS, ROOT, ReleaseError, archived, check_versions, shared, versions, write_archive
from stallscope.common.version import __version__

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PERMITTED = {
    "ci.yml": {"lint": {"contents": "read"}, "test": {"contents": "read"}, "release": {"contents": "read"}},
    "release.yml": {
        "build": {"contents": "read"},
        "attest": {"id-token": "write", "attestations": "write"},
        "pypi": {"id-token": "write"},
        "github": {"contents": "write"},
        "pages": {"pages": "write", "id-token": "write"},
    },
}
"""The permissions of each job: a further one needs a reason here and in the workflow."""


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_all_places_state_one_version() -> None:
    assert set(versions().values()) == {__version__}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that state the version."""
    for place in versions():
        name = place.partition(" ")[0]
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def changed(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_a_tag_must_equal_the_version_and_the_changelog_must_have_a_date(checkout: Path) -> None:
    heading = re.search(r"^## \[.*?\] - .*$", (checkout / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heading is not None
    changed(checkout / "CHANGELOG.md", heading[0], f"## [{__version__}] - unreleased")
    assert check_versions(root=checkout) == __version__
    with pytest.raises(ReleaseError, match="has no date"):
        check_versions(f"v{__version__}", checkout)
    changed(checkout / "CHANGELOG.md", "unreleased", "2026-12-01")
    assert check_versions(f"v{__version__}", checkout) == __version__
    with pytest.raises(ReleaseError, match=r"tag: 99\.0\.0"):
        check_versions("v99.0.0", checkout)


@pytest.mark.parametrize("name", ["deploy/helm/stallscope/Chart.yaml", "deploy/Dockerfile", "CITATION.cff"])
def test_a_place_with_another_version_is_named(name: str, checkout: Path) -> None:
    changed(checkout / name, __version__, "99.0.0")
    with pytest.raises(ReleaseError, match=re.escape(f"{name}: 99.0.0")):
        check_versions(root=checkout)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_a_commit_with_its_version(workflow: Path) -> None:
    used = re.findall(r"^ +(?:- )?uses: (.*)$", workflow.read_text(encoding="utf-8"), re.MULTILINE)
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_workflows_agree_on_the_commit_of_an_action() -> None:
    used = {each["uses"] for workflow in WORKFLOWS for each in steps(workflow) if "uses" in each}
    assert len({each.partition("@")[0] for each in used}) == len(used)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_have_the_least_permissions_and_a_time_limit(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert content["permissions"] == {}
    assert {name: job["permissions"] for name, job in content["jobs"].items()} == PERMITTED[workflow.name]
    assert all(job["timeout-minutes"] <= 120 for job in content["jobs"].values())
    checkouts = [each for each in steps(workflow) if each.get("uses", "").startswith("actions/checkout@")]
    assert all(each["with"]["persist-credentials"] is False for each in checkouts)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_shell_step_is_a_target_of_the_makefile(workflow: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    commands = [each["run"] for each in steps(workflow) if "run" in each]
    assert commands
    for command in commands:
        found = re.fullmatch(r'make ([a-z-]+)(?: [A-Z]+="[^"$]*\$[A-Z_]+[^"$]*")?', command)
        assert found, command
        assert found[1] in targets


def test_no_job_of_a_release_uses_a_cache() -> None:
    assert "cache:" not in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")


def test_the_archive_has_every_rule_alert_and_dashboard_and_no_program(tmp_path: Path) -> None:
    names = {name for name, _ in archived()}
    for folder, suffix in (("prometheus/rules", ".yml"), ("alerts", ".yml"), ("grafana/dashboards", ".json")):
        assert {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob(f"*{suffix}")} <= names
    assert not [name for name in names if name.endswith((".py", ".pyc"))]
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    archive, other = (write_archive("1.2.3", tmp_path / folder) for folder in ("one", "two"))
    assert archive.read_bytes() == other.read_bytes()
    with tarfile.open(archive) as tar:
        top = "stallscope-monitoring-1.2.3/"
        assert set(tar.getnames()) == {f"{top}{name}" for name in (*names, "README.md", "SHA256SUMS")}


def test_a_shared_dashboard_has_no_identity_and_lists_what_it_requires() -> None:
    dashboard = json.loads((ROOT / "grafana/dashboards/stallscope-fleet.json").read_text(encoding="utf-8"))
    form = shared(dashboard)
    assert form["id"] is None
    required = {(each["type"], each["id"]) for each in form["__requires"]}
    assert {("grafana", "grafana"), ("datasource", "prometheus"), ("panel", "table")} <= required
    assert form["panels"] == dashboard["panels"]


def test_the_documented_sizes_are_the_limits_of_the_dry_run() -> None:
    page = (ROOT / "deploy/RELEASE.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+) \| [\d.]+ MB \| ([\d.]+ MB) \|$", page, re.MULTILINE))
    assert rows == {name: f"{limit / 1e6:g} MB" for name, limit in LIMITS.items()}
