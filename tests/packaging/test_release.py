"""A release: one version everywhere, pinned and restricted workflows, archives without programs, documented limits."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.image import BASE_LABEL, STAND_IN, bill_of_materials, push, sign
from deploy.release import (
    LIMITS,
    REPOSITORY,
    ROOT,
    ReleaseError,
    archived,
    check_versions,
    shared,
    versions,
    write_archive,
)
from stallscope.common.version import __version__

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PERMITTED = {
    "ci.yml": {"lint": {"contents": "read"}, "test": {"contents": "read"}, "release": {"contents": "read"}},
    "release.yml": {
        "build": {"contents": "read"},
        "image": {"contents": "read"},
        "registry": {"contents": "read", "packages": "write", "id-token": "write", "attestations": "write"},
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


STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 Status: no field

Package: removed
Status: deinstall ok config-files
Architecture: all
Version: 1.0
"""


def test_the_images_bill_of_materials_lists_python_its_packages_and_debians_installed_packages() -> None:
    installed = {
        "python": "3.13.14",
        "distribution": "debian-12",
        "distributions": [["PyYAML", "6.0.3"], ["stallscope", "0.1.0"]],
        "status": STATUS,
    }
    text = bill_of_materials(installed, version="0.1.0", digest=f"sha256:{'a' * 64}")
    document = json.loads(text)
    assert document["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert {each["name"]: each.get("purl") for each in document["components"]} == {
        "python": None,
        "PyYAML": "pkg:pypi/pyyaml@6.0.3",
        "stallscope": "pkg:pypi/stallscope@0.1.0",
        "libc6": "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12",
    }
    assert bill_of_materials(installed, version="0.1.0", digest=f"sha256:{'a' * 64}") == text


def test_signatures_name_digests_of_the_pushed_image_and_of_each_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image"
    digests = {}
    for arch in ("amd64", "arm64"):
        (image / arch).mkdir(parents=True)
        (image / arch / "manifest.json").write_text(arch)
        (image / f"stallscope-exporter-0.1.0-{arch}.cdx.json").write_text("{}")
        digests[arch] = f"sha256:{hashlib.sha256(arch.encode()).hexdigest()}"
    (image / "digest").write_text("sha256:of-all-platforms")
    cosign = tmp_path / "cosign"
    cosign.write_text(f'#!/bin/sh\necho "$1 $*" | sed "s/ .* / /" >> {tmp_path}/called\n')
    cosign.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    sign("ghcr.io/a/b", dist=tmp_path)
    name = "ghcr.io/a/b/stallscope-exporter"
    assert (tmp_path / "called").read_text().splitlines() == [
        f"sign {name}@sha256:of-all-platforms",
        f"attest {name}@{digests['amd64']}",
        f"attest {name}@{digests['arm64']}",
    ]


def test_an_image_with_a_stand_in_as_its_base_is_not_published(tmp_path: Path) -> None:
    folder = tmp_path / "image/amd64"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"config": {"digest": "sha256:1"}}))
    (folder / "1").write_text(json.dumps({"config": {"Labels": {BASE_LABEL: STAND_IN}}}))
    with pytest.raises(ReleaseError, match="amd64 has a stand-in"):
        push("ghcr.io/a/b", dist=tmp_path)


def test_a_push_without_an_image_names_the_step_before(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="make release-image"):
        push("ghcr.io/a/b", dist=tmp_path)


def test_the_packaged_chart_names_one_image_for_artifact_hub_and_for_kubernetes() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/stallscope/Chart.yaml").read_text(encoding="utf-8"))
    (image,) = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    values = yaml.safe_load((ROOT / "deploy/helm/stallscope/values.yaml").read_text(encoding="utf-8"))
    assert image["image"] == f"{values['image']['repository']}:{chart['appVersion']}"
    assert values["image"]["repository"] == REPOSITORY
