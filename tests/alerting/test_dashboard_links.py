"""`make dashboard-links` makes the links of a plain webhook complete."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in ("alerts", "deploy/kubernetes"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("make")
    if program is None:
        pytest.skip("make is not installed")
    command = [program, "dashboard-links", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def links(folder: Path) -> list[str]:
    files = [path for kind in ("*.yml", "*.yaml") for path in folder.rglob(kind)]
    return [
        link
        for path in files
        for link in re.findall(r'dashboard_url: ["\']?(\S*?/d/)stallscope', path.read_text("utf-8"))
    ]


def test_every_alert_links_to_the_address_also_after_a_second_change(checkout: Path) -> None:
    before = links(checkout)
    assert before
    assert set(before) == {"/d/"}
    for url in ("https://first.example/", "https://grafana.example/prefix"):
        done = make(checkout, f"URL={url}")
        assert (done.returncode, done.stderr) == (0, "")
        assert links(checkout) == [f"{url.rstrip('/')}/d/"] * len(before)
    template = (checkout / "alerts/templates/links.tmpl").read_text(encoding="utf-8")
    assert "{{ with .Annotations.dashboard_url }}{{ . }}" in template
    generator = (checkout / "alerts/alert_rules.py").read_text(encoding="utf-8")
    assert '"https://grafana.example/prefix/d/stallscope-run' in generator


def test_without_an_address_nothing_is_changed(checkout: Path) -> None:
    done = make(checkout)
    assert done.returncode == 2
    assert "make dashboard-links: URL: missing; name the address of Grafana" in done.stderr
    assert set(links(checkout)) == {"/d/"}
