"""The installed wheel: the shim alone without a dependency, the exporter with its extra, the bundle in both."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


def clean_environment() -> dict[str, str]:
    """The environment without what would let the checkout shine through."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHONPATH", "STALLSCOPE"))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(CHECKOUT)],
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("*.whl")
    return built


def empty_environment(path: Path) -> Path:
    """Make a virtual environment and return its interpreter."""
    venv.create(path)
    return path / "bin" / "python"


def install(python: Path, requirement: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(python)),
            *("install", "--quiet", "--disable-pip-version-check", requirement),
        ],
        check=False,
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def shim_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = empty_environment(tmp_path_factory.mktemp("shim") / "venv")
    install(python, str(wheel))
    return python


@pytest.fixture(scope="module")
def with_exporter(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = empty_environment(tmp_path_factory.mktemp("exporter") / "venv")
    install(python, f"{wheel}[exporter]")
    return python


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *arguments], check=False, capture_output=True, text=True, env=clean_environment(), cwd="/"
    )


def test_the_wheel_carries_the_whole_bundle(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    # What makes the dashboards stays behind: they travel as they were made.
    for folder in ("prometheus", "alerts", "grafana/dashboards", "grafana/provisioning"):
        tracked = {
            f"stallscope/bundle/{path.relative_to(CHECKOUT)}"
            for path in (CHECKOUT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert tracked, f"{folder}/ is empty"
        assert not tracked - names
    assert "stallscope/py.typed" in names


def test_the_wheel_has_the_manual_page_and_completions(shim_only: Path) -> None:
    share = shim_only.parents[1] / "share"
    assert ".TH STALLSCOPE 1" in (share / "man/man1/stallscope.1").read_text(encoding="utf-8")
    for name in (
        "bash-completion/completions/stallscope",
        "zsh/site-functions/_stallscope",
        "fish/vendor_completions.d/stallscope.fish",
    ):
        assert "stallscope completion" in (share / name).read_text(encoding="utf-8")


def test_the_shim_comes_without_any_dependency(shim_only: Path) -> None:
    listing = "from importlib.metadata import distributions; print(*(each.name for each in distributions()))"
    assert set(run(shim_only, "-c", listing).stdout.split()) == {"stallscope"}


def test_the_shim_works_from_an_empty_environment(shim_only: Path) -> None:
    done = run(
        shim_only,
        "-c",
        "import stallscope\nprint(sum(stallscope.track([1, 2, 3], run='wheel')))",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "6\n", "")


def test_the_exporter_without_its_extra_says_what_to_install(shim_only: Path) -> None:
    done = run(shim_only, "-m", "stallscope", "exporter")
    assert done.returncode != 0
    assert ".whl[exporter]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def exporter(with_exporter: Path, tmp_path: Path) -> Iterator[str]:
    """The address of an exporter that runs from the installed wheel."""
    with subprocess.Popen(
        [
            str(with_exporter.parent / "stallscope"),
            "exporter",
            "--web.listen-address=127.0.0.1:0",
            f"--report.unix-socket={tmp_path}/report.sock",
            "--report.udp-address=",
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        cwd="/",
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                found = re.search(r"127\.0\.0\.1:(\d+)", line)
                if found:
                    yield f"http://127.0.0.1:{found[1]}"
                    break
            else:
                pytest.fail("the exporter ended without saying where it listens")
        finally:
            process.terminate()
            process.communicate()


def test_the_exporter_runs_from_the_installed_wheel(exporter: str) -> None:
    with urllib.request.urlopen(f"{exporter}/metrics", timeout=60) as answer:
        assert "stallscope_build_info" in answer.read().decode()


def test_an_installed_stallscope_finds_its_bundle(with_exporter: Path) -> None:
    done = run(
        with_exporter,
        "-c",
        "from stallscope.common.bundle import bundle_folder\n"
        "assert (bundle_folder('prometheus') / 'prometheus.yml').is_file()\n"
        "print(bundle_folder('alerts'))",
    )
    assert done.returncode == 0, done.stderr
    assert str(with_exporter.parents[1]) in done.stdout
