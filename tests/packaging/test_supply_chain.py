"""Installs follow the locks, builds are reproducible, and both can be listed and audited."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from deploy.audit import LOCKS, OSV, main
from tests.free_ports import free_port
from tests.handled import handled, reply

CHECKOUT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
EPOCH = 1_700_000_000


def entries(lock: str) -> list[str]:
    """The requirements of a lock, each with its hashes."""
    text = (CHECKOUT / lock).read_text(encoding="utf-8")
    return [entry for entry in re.split(r"\n(?=\S)", text) if entry.strip()]


def pinned(lock: str) -> set[tuple[str, str]]:
    """Names and versions that a lock holds."""
    found = [re.match(r"([\w.-]+)==(\S+)", entry) for entry in entries(lock)]
    return {(each[1], each[2]) for each in found if each}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_of_a_lock_has_a_version_and_hashes(lock: str) -> None:
    assert len(entries(lock)) > 5
    for entry in entries(lock):
        assert re.match(r"[\w.-]+==[\w.+]+( ;.*)? \\\n( +--hash=sha256:[0-9a-f]{64}( \\\n)?)+\s*$", entry), entry


def test_all_locks_that_the_makefile_and_the_image_install_are_audited() -> None:
    texts = [(CHECKOUT / name).read_text(encoding="utf-8") for name in ("Makefile", "deploy/Dockerfile")]
    installed = {Path(name).name for text in texts for name in re.findall(r"--requirement (\S+\.lock)", text)}
    assert installed == {Path(lock).name for lock in LOCKS}


def test_whatever_the_makefile_installs_is_held_to_hashes_or_comes_from_the_checkout() -> None:
    text = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    installs = re.findall(r"^\t *@?\$\((?:\w+_)?PIP\) (.*)$", text, re.MULTILINE)
    assert len(installs) == 7
    for flags in installs:
        assert "--no-deps --require-hashes" in flags or "--no-deps --no-build-isolation --editable ." in flags
    # The only other install is the tool that updates the locks, which nothing else uses.
    others = re.findall(r"^\t.*pip install (.*)$", text, re.MULTILINE)
    assert others == ["--quiet uv"]


def tiny_wheel(folder: Path, *, content: str) -> Path:
    """A wheel of one module, in a folder that pip finds links in."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    files = {
        "tiny.py": content,
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
        for name, text in files.items()
    ]
    files["tiny-1.0.dist-info/RECORD"] = "\n".join([*rows, "tiny-1.0.dist-info/RECORD,,"]) + "\n"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


@pytest.mark.nightly
@pytest.mark.parametrize("tampered", [False, True])
def test_a_package_with_other_bytes_than_the_locks_is_not_installed(tampered: bool, tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not on PATH")
    links = tmp_path / "links"
    links.mkdir()
    wheel = tiny_wheel(links, content="x = 1\n")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if tampered:
        tiny_wheel(links, content="import os  # evil\n")
    for name in ("requirements-dev.lock", "requirements-frameworks.lock"):
        (tmp_path / name).write_text(f"tiny==1.0 \\\n    --hash=sha256:{digest}\n")
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}
    # The recipe of the frameworks alone: that of the development tools installs a checkout besides.
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / ".venv")], check=True)
    done = subprocess.run(
        [make, "frameworks", "STAMP="], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    installed = list((tmp_path / ".venv").rglob("tiny.py"))
    if tampered:
        assert done.returncode != 0
        assert "DO NOT MATCH THE HASHES" in done.stderr
        assert not installed
    else:
        assert done.returncode == 0, done.stderr
        assert [path.read_text() for path in installed] == ["x = 1\n"]


def checkout_in(folder: Path, *, umask: int, moment: float) -> Path:
    """A copy of what the wheel is built from, as a checkout there and then would have it."""
    before = os.umask(umask)
    try:
        for name in ("exporter", "prometheus", "alerts", "grafana"):
            shutil.copytree(
                CHECKOUT / name,
                folder / name,
                ignore=shutil.ignore_patterns("__pycache__"),
                copy_function=shutil.copyfile,
            )
        for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
            shutil.copyfile(CHECKOUT / name, folder / name)
    finally:
        os.umask(before)
    for path in folder.rglob("*"):
        os.utime(path, (moment, moment))
    return folder


def built(checkout: Path, *, umask: int, **environment: str) -> Path:
    kept = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "out", "."],
        cwd=checkout,
        umask=umask,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (checkout / "out").glob("*.whl")
    return wheel


@pytest.mark.nightly
@pytest.mark.parametrize("epoch", [None, EPOCH])
def test_the_wheel_has_the_same_bytes_wherever_whenever_and_by_whomever_it_is_built(
    epoch: int | None, tmp_path: Path
) -> None:
    dated = {} if epoch is None else {"SOURCE_DATE_EPOCH": str(epoch)}
    one = checkout_in(tmp_path / "one", umask=0o022, moment=1_500_000_000)
    other = checkout_in(tmp_path / "a" / "deeper folder" / "other", umask=0o077, moment=1_790_000_000)
    # What tests and imports leave behind is no part of it.
    (other / "exporter/stallscope/__pycache__").mkdir()
    (other / "exporter/stallscope/__pycache__/version.cpython-311.pyc").write_bytes(b"left over")
    first = built(one, umask=0o022, TZ="UTC", PYTHONHASHSEED="1", LANG="C", **dated)
    second = built(other, umask=0o077, TZ="Asia/Tokyo", PYTHONHASHSEED="2", LANG="C.UTF-8", **dated)
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as wheel:
        files = wheel.infolist()
        assert {(each.external_attr >> 16) & 0o777 for each in files} == {0o644}
        assert len({each.date_time for each in files}) == 1
        assert (files[0].date_time == (2023, 11, 14, 22, 13, 20)) == (epoch is not None)


@pytest.mark.nightly
def test_the_bill_of_materials_lists_what_the_lock_holds_and_nothing_else(tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not on PATH")
    bills = [tmp_path / "one.json", tmp_path / "folder" / "two.json"]
    for bill in bills:
        command = [make, "sbom", f"BIN={BIN}", "STAMP=", f"SBOM={bill}"]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert bills[0].read_bytes() == bills[1].read_bytes()
    document = json.loads(bills[0].read_text())
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == "stallscope"
    lock = LOCKS[0]
    assert {(each["name"], each["version"]) for each in document["components"]} == pinned(lock)
    hashes = {
        one["content"]
        for each in document["components"]
        for reference in each["externalReferences"]
        for one in reference.get("hashes", ())
    }
    assert hashes == set(re.findall(r"--hash=sha256:([0-9a-f]{64})", (CHECKOUT / lock).read_text(encoding="utf-8")))


@contextmanager
def database(vulnerable: str = "", status: int = 200) -> Iterator[str]:
    """An OSV database in which one package has a vulnerability."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            package = query["package"]["name"]
            ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.1"}]}]
            affected = [{"package": {"name": package, "ecosystem": "PyPI"}, "ranges": ranges}]
            found = {"id": "PYSEC-2026-1", "summary": "made up", "aliases": [], "affected": affected}
            body = json.dumps({"vulns": [found]} if package == vulnerable else {}).encode()
            reply(self, body, status=status)

    with handled(Handler) as address:
        yield f"http://{address}/v1/query"


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own pip-audit cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("PIP_AUDIT_OSV_URL", "PIP_AUDIT_VULNERABILITY_SERVICE"):
        monkeypatch.delenv(name, raising=False)


def test_the_audit_fails_on_a_known_vulnerability_and_names_the_version_that_has_it_fixed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    version = dict(pinned(LOCKS[0]))["requests"]
    with database(vulnerable="requests") as url:
        assert main(["--osv-url", url, "--lock", str(CHECKOUT / LOCKS[0])]) == 1
    assert f"  requests {version}: PYSEC-2026-1; fixed in 99.1\n" in capsys.readouterr().out


def test_the_audit_passes_where_nothing_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    with database() as url:
        assert main(["--osv-url", url, "--lock", str(CHECKOUT / LOCKS[1])]) == 0
    assert ", 0 known vulnerabilities" in capsys.readouterr().out


@pytest.mark.parametrize("answer", ["nothing listens", "404", "503"])
def test_the_audit_is_skipped_with_a_notice_where_no_database_answers(
    answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with database(status=int(answer) if answer.isdecimal() else 200) as url:
        address = url if answer.isdecimal() else f"http://127.0.0.1:{free_port()}/v1/query"
        assert main(["--osv-url", address, "--lock", str(CHECKOUT / LOCKS[1])]) == 0
    said = capsys.readouterr().out
    assert said == f"audit skipped: {address}: no response; set --osv-url to a mirror\n"


def test_the_audit_fails_on_a_lock_without_hashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("requests==2.0\n")
    assert main(["--osv-url", OSV, "--lock", str(lock)]) == 1
    assert "does not contain a hash" in capsys.readouterr().err
