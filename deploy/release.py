"""Build and try everything that a release publishes: `python -m deploy.release versions|build|try`.

`build` writes into dist/: `python/` (wheel, sdist), `chart/`, `files/` (archives of rules, alerts and dashboards, and
of the documentation, the dashboards for grafana.com, the bill of materials, the shim as one file), and SHA256SUMS.
`try` installs each as a user does. Nothing is published here.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CHART = ROOT / "deploy/helm/stallscope"
SITE = ROOT / "build/site"
REPOSITORY = "stallscope/stallscope-exporter"
LIMITS = {
    "wheel": 1_800_000,
    "sdist": 4_500_000,
    "chart": 250_000,
    "archive": 350_000,
    "documentation": 4_000_000,
    "shim as one file": 300_000,
    "image, without its base": 15_000_000,
    "installed, shim alone": 6_000_000,
    "installed, with the exporter's packages": 20_000_000,
}
"""The largest permitted size of each artifact in bytes. deploy/RELEASE.md has the same table."""
_ARCHIVED = ("prometheus/prometheus.yml", "prometheus/rules", "alerts", "grafana/dashboards", "grafana/provisioning")
_SKIPPED = ("__pycache__", ".py", "actions", "kustomization.yaml")
_README = """\
# Stallscope {version}: rules, alerts and dashboards

Plain YAML and JSON, for a Prometheus, Alertmanager and Grafana that you configure yourself. Verify the files with
`sha256sum --check SHA256SUMS`.

- Prometheus: add `prometheus/rules/*.yml` and `alerts/*.yml` (without `alertmanager.yml`) to `rule_files`.
- Alertmanager: `alerts/alertmanager.yml` and `alerts/templates/`.
- Grafana: `grafana/dashboards/` and `grafana/provisioning/`.
"""


class ReleaseError(Exception):
    """An artifact is missing or does not work."""


def versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version that each place of the checkout states."""
    found = {}
    for name, pattern in (
        ("exporter/stallscope/common/version.py", r'^__version__ = "(.+)"$'),
        ("deploy/helm/stallscope/Chart.yaml", r"^version: (.+)$"),
        ("deploy/helm/stallscope/Chart.yaml (appVersion)", r"^appVersion: (.+)$"),
        ("deploy/helm/stallscope/Chart.yaml (image)", r"^ +image: .*:(.+)$"),
        ("deploy/Dockerfile", r"^ARG VERSION=(.+)$"),
        ("CHANGELOG.md", r"^## \[(\d.*?)\]"),
        ("CITATION.cff", r'^version: "?([^"\n]+)"?$'),
    ):
        match = re.search(pattern, (root / name.partition(" ")[0]).read_text(encoding="utf-8"), re.MULTILINE)
        found[name] = match[1] if match else "missing"
    return found


def check_versions(tag: str = "", root: Path = ROOT) -> str:
    """Return the version of the checkout.

    Args:
        tag: the tag of the release, such as `v0.1.0`; with it the changelog must state the day.
        root: the checkout.

    Raises:
        ReleaseError: places differ from each other or from the tag.
    """
    found = versions(root)
    if tag:
        found["tag"] = tag.removeprefix("v")
        if re.search(r"^## \[\d.*?\] - unreleased$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE):
            raise ReleaseError('CHANGELOG.md: the release has no date; write its day in place of "unreleased"')
    if len(set(found.values())) != 1:
        listed = ", ".join(f"{place}: {version}" for place, version in found.items())
        raise ReleaseError(f"versions differ ({listed}); state one version in all places")
    return next(iter(found.values()))


def build(repository: str = REPOSITORY, dist: Path = DIST) -> None:
    """Write every artifact into the folder.

    Args:
        repository: the image's name in the packaged chart.
        dist: the folder; its subfolders of an earlier build are removed.
    """
    version = check_versions()
    shutil.rmtree(dist / "image", ignore_errors=True)
    for name in ("python", "chart", "files"):
        shutil.rmtree(dist / name, ignore_errors=True)
        (dist / name).mkdir(parents=True)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist / "python"), str(ROOT)])
    _package_chart(version, repository, dist / "chart")
    write_archive(version, dist / "files")
    site = {path.relative_to(SITE).as_posix(): path.read_bytes() for path in SITE.rglob("*") if path.is_file()}
    _write_tar(f"stallscope-documentation-{version}", site, dist / "files")
    (dist / "files/grafana").mkdir()
    for path in sorted((ROOT / "grafana/dashboards").glob("*.json")):
        text = json.dumps(shared(json.loads(path.read_text(encoding="utf-8"))), indent=2)
        (dist / "files/grafana" / path.name).write_text(text + "\n", encoding="utf-8")
    bill = dist / "files" / f"stallscope-exporter-{version}.cdx.json"
    lock = str(ROOT / "deploy/requirements-exporter.lock")
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible"]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(bill), lock]
    run(command)
    sys.path.insert(0, str(ROOT))
    from exporter.tools.shim_zip import write

    write(dist / "files" / "stallscope_shim.zip")
    sums = dist / "SHA256SUMS"
    paths = sorted(path for name in ("python", "chart", "files") for path in (dist / name).rglob("*") if path.is_file())
    sums.write_text("".join(f"{_sha256(path.read_bytes())}  {path.relative_to(dist)}\n" for path in paths))
    print(sums.read_text(), end="")


def _package_chart(version: str, repository: str, into: Path) -> None:
    helm = program("helm")
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name, "stallscope")
        shutil.copytree(CHART, copy)  # follows the links in files/
        for file, suffix in (("values.yaml", "\n"), ("Chart.yaml", f":{version}\n")):
            text = (copy / file).read_text(encoding="utf-8")
            (copy / file).write_text(text.replace(f"{REPOSITORY}{suffix}", f"{repository}{suffix}"), encoding="utf-8")
        command = [helm, "package", str(copy), "--version", version, "--app-version", version]
        run([*command, "--destination", str(into)])


def archived() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of the archive."""
    for folder in _ARCHIVED:
        found = ROOT / folder
        for path in sorted(found.rglob("*")) if found.is_dir() else [found]:
            name = str(path.relative_to(ROOT))
            if path.is_file() and not any(part in _SKIPPED for part in (*Path(name).parts, path.suffix)):
                yield name, path.read_bytes()
    yield "LICENSE", (ROOT / "LICENSE").read_bytes()


def write_archive(version: str, folder: Path) -> Path:
    """Write the archive of rules, alerts and dashboards, with equal bytes for equal files; return its path."""
    files = dict(archived()) | {"README.md": _README.format(version=version).encode()}
    files["SHA256SUMS"] = "".join(f"{_sha256(content)}  {name}\n" for name, content in sorted(files.items())).encode()
    return _write_tar(f"stallscope-monitoring-{version}", files, folder)


def _write_tar(name: str, files: dict[str, bytes], folder: Path) -> Path:
    output = folder / f"{name}.tar.gz"
    with (
        output.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return output


def shared(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return a dashboard in the form that grafana.com accepts: without an identity, and with what it requires."""
    kinds = sorted({panel["type"] for panel in _panels(dashboard) if panel["type"] != "row"})
    requires = [{"type": "grafana", "id": "grafana", "name": "Grafana", "version": "9.4.0"}]
    requires += [{"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}]
    requires += [{"type": "panel", "id": kind, "name": kind, "version": ""} for kind in kinds]
    return {"__inputs": [], "__elements": {}, "__requires": requires, **dashboard, "id": None}


def _panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def attempt(dist: Path = DIST) -> None:
    """Install and use each artifact as a user does; print the sizes.

    Raises:
        ReleaseError: an artifact is missing, too large, or does not work.
    """
    version = check_versions()
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = only(dist / "python", "*.whl"), only(dist / "python", "*.tar.gz")
        sizes |= {"wheel": wheel.stat().st_size, "sdist": sdist.stat().st_size}
        sizes["installed, shim alone"] = _try_python(folder / "sdist", str(sdist), version)
        sizes["installed, with the exporter's packages"] = _try_python(folder / "wheel", f"{wheel}[exporter]", version)
        scrape([str(folder / "wheel/bin/stallscope"), "exporter"], folder / "log", f"{folder}/report.sock")
        chart = only(dist / "chart", "*.tgz")
        sizes["chart"] = chart.stat().st_size
        _try_chart(chart, version)
        archive = only(dist / "files", "stallscope-monitoring-*.tar.gz")
        sizes["archive"] = archive.stat().st_size
        site = only(dist / "files", "stallscope-documentation-*.tar.gz")
        sizes["documentation"] = site.stat().st_size
        _try_documentation(site, version)
        _try_archive(archive, folder / "archive")
        sizes["shim as one file"] = (dist / "files/stallscope_shim.zip").stat().st_size
    bill = json.loads(only(dist / "files", "*.cdx.json").read_text(encoding="utf-8"))
    if not bill["components"]:
        raise ReleaseError("bill of materials: it lists no package; check deploy/requirements-exporter.lock")
    for what, size in sizes.items():
        print(f"{what}: {size:,} bytes (at most {LIMITS[what]:,})")
        if size > LIMITS[what]:
            raise ReleaseError(f"{what}: {size:,} bytes; make it smaller, or raise the limit in deploy/release.py")


def _try_python(folder: Path, requirement: str, version: str) -> int:
    """Install into an empty environment; return the bytes that were added."""
    venv.create(folder, with_pip=True)
    before = _bytes_below(folder)
    python, command = str(folder / "bin/python"), str(folder / "bin/stallscope")
    run([python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", requirement])
    added = _bytes_below(folder) - before
    if run([command, "--version"], cwd="/") != f"stallscope {version}\n":
        raise ReleaseError(f"{requirement}: stallscope --version does not print {version}")
    run([python, "-c", "import stallscope; assert sum(stallscope.track([1, 2], run='release')) == 3"], cwd="/")
    if not (folder / "share/man/man1/stallscope.1").is_file():
        raise ReleaseError(f"{requirement}: the manual page is missing from share/man")
    return added


def scrape(exporter: Sequence[str], log: Path, socket: str) -> None:
    """Start an exporter with simulated GPUs, and scrape it.

    Args:
        exporter: the command that starts it.
        log: where it logs to.
        socket: the path of its socket for reports.

    Raises:
        ReleaseError: it exposes no simulated GPU.
    """
    command = [*exporter, "--web.listen-address=127.0.0.1:0", "--report.udp-address=", f"--report.unix-socket={socket}"]
    command += ["--simulation.scenario=thermal_throttle"]
    with log.open("w") as out, subprocess.Popen(command, stderr=out, cwd="/", env=_environment()) as process:
        try:
            deadline = time.monotonic() + 120
            page = ""
            while "stallscope_gpu_" not in page or "simulated" not in page:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise ReleaseError(f"exporter: it exposed no simulated GPU; its log:\n{log.read_text()}")
                time.sleep(0.5)
                if found := re.search(r"127\.0\.0\.1:(\d+)", log.read_text()):
                    with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/metrics", timeout=60) as answer:
                        page = answer.read().decode()
        finally:
            process.terminate()


def _try_chart(chart: Path, version: str) -> None:
    import yaml  # publishing needs no package

    helm = program("helm")
    run([helm, "lint", str(chart)])
    objects = list(yaml.safe_load_all(run([helm, "template", "stallscope", str(chart)])))
    images = [
        container["image"]
        for each in objects
        if each and each["kind"] == "DaemonSet"
        for container in each["spec"]["template"]["spec"]["containers"]
    ]
    if not images or any(not image.endswith(f":{version}") for image in images):
        raise ReleaseError(f"{chart.name}: the image is {images}, not version {version}; check appVersion")


def _try_archive(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(folder)  # noqa: S202
    (top,) = folder.iterdir()
    for line in (top / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, name = line.split("  ")
        if _sha256((top / name).read_bytes()) != digest:
            raise ReleaseError(f"{archive.name}: {name} differs from its checksum")
    alerts = [path for path in sorted((top / "alerts").glob("*.yml")) if path.name != "alertmanager.yml"]
    rules = [*sorted((top / "prometheus/rules").glob("*.yml")), *alerts]
    run([program("promtool"), "check", "rules", "--lint=none", *map(str, rules)])
    for path in (top / "grafana/dashboards").glob("*.json"):
        json.loads(path.read_text(encoding="utf-8"))


def _try_documentation(site: Path, version: str) -> None:
    """Check that each page of the archive states the version, and that the index for the search is not empty."""
    with tarfile.open(site) as tar:
        files = {each.name.partition("/")[2]: tar.extractfile(each) for each in tar.getmembers()}
        texts = {
            name: file.read().decode() for name, file in files.items() if file and name.endswith((".html", "json"))
        }
    missing = [name for name, text in texts.items() if name.endswith(".html") and f"Stallscope {version}" not in text]
    if missing or "index.html" not in texts or len(json.loads(texts["search/search_index.json"])["docs"]) < 100:
        raise ReleaseError(f"{site.name}: pages without the version: {missing}, or no search; check deploy/mkdocs.yml")


def only(folder: Path, pattern: str) -> Path:
    """Return the folder's only file that matches."""
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise ReleaseError(f"{folder}: {len(found)} files match {pattern}; run `make release-build`")
    return found[0]


def _bytes_below(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sum(path.stat().st_size for path in files)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def program(name: str) -> str:
    """Return the path of a program of this environment or of the machine."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        raise ReleaseError(f"{name}: not found; run `make prepare`")
    return path


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "STALLSCOPE"))}


def run(command: Sequence[str], cwd: str | Path = ROOT) -> str:
    """Return what a program prints.

    Raises:
        ReleaseError: it failed.
    """
    done = subprocess.run(command, cwd=cwd, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("step", choices=("versions", "build", "try"))
    parser.add_argument("--tag", default="", help="the tag of the release, such as v0.1.0")
    parser.add_argument("--repository", default=REPOSITORY, help="the image's name in the chart (default: %(default)s)")
    parsed = parser.parse_args(arguments)
    try:
        if parsed.step == "versions":
            print(check_versions(parsed.tag))
        elif parsed.step == "build":
            build(parsed.repository)
        else:
            attempt()
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
