"""The image: its Dockerfile is checked, its steps are executed, and its exporter is started, also without an engine."""

from __future__ import annotations

import io
import os
import re
import shutil
import socketserver
import subprocess
import sys
import tarfile
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from stallscope.common.version import __version__
from tests.deploy import dockerfile
from tests.deploy.dockerfile import DOCKERFILE, ROOT
from tests.free_ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.timeout(900)  # the image's steps install packages
USER = 65532
LOCKS = ("deploy/requirements-exporter.lock", "deploy/requirements-build.lock")
HOST = re.compile(r"https?://|(?:^|[\s=])[\w-]+\.[\w.-]+/\S+:\S+|--(?:extra-)?index|--find-links")


def pins(text: str) -> dict[str, str]:
    """Return the versions in a lock by package and marker."""
    found = re.finditer(r"^([\w.-]+)==(\S+?)(?: ; ([^\\\n]*?))?(?: \\)?$", text, re.MULTILINE)
    return {f"{each[1]} {each[3] or ''}".strip(): each[2] for each in found}


def test_hadolint_passes() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is on PyPI for Linux on x86-64 alone, and not on PATH here")
    done = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_base_is_pinned_by_a_digest_and_has_glibc() -> None:
    (image,) = (each.text.partition("=")[2] for each in dockerfile.instructions() if "PYTHON_IMAGE=" in each.text)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", image)
    assert {stage[0].text.split()[0] for stage in dockerfile.stages()} == {"${PYTHON_IMAGE}"}


def test_it_runs_as_a_numeric_user_so_that_kubernetes_can_verify_it_is_not_root() -> None:
    user, group = dockerfile.last("USER").split(":")
    assert int(user) == int(group) == USER


def test_every_package_in_it_is_pinned_by_version_and_checksum() -> None:
    installs = [
        command
        for each in dockerfile.stages()[0]
        if each.name == "RUN"
        for command in each.text.split("&&")
        if " install " in command
    ]
    assert len(installs) == 3
    for command in installs:
        assert "--no-deps --require-hashes" in command or "--no-deps --no-index" in command
    for name in LOCKS:
        text = (ROOT / name).read_text(encoding="utf-8")
        entries = [entry for entry in re.split(r"\n(?=\S)", text) if entry.strip()]
        assert entries
        assert all("--hash=sha256:" in entry for entry in entries)


def test_the_locks_have_the_versions_of_the_tests() -> None:
    tested = pins((ROOT / "requirements-dev.lock").read_text(encoding="utf-8"))
    versions = {name.split()[0]: set[str]() for name in tested}
    for name, version in tested.items():
        versions[name.split()[0]].add(version)
    locked = pins((ROOT / LOCKS[0]).read_text(encoding="utf-8"))
    assert {"h11", "nvidia-ml-py", "psutil"} <= locked.keys()
    assert not {name for name, version in locked.items() if version not in versions[name.split()[0]]}


def test_no_package_server_is_named() -> None:
    for name in ("deploy/Dockerfile", *LOCKS):
        text = (ROOT / name).read_text(encoding="utf-8").replace("https://github.com/stallscope/stallscope", "")
        assert not [line for line in text.splitlines() if HOST.search(line) and not line.startswith("LABEL")]


def test_it_has_the_standard_labels() -> None:
    labels = dict(re.findall(r'(org\.opencontainers\.image\.\w+)="([^"]*)"', dockerfile.last("LABEL")))
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.version"] == "${VERSION}"
    assert f"VERSION={__version__}" in [each.text for each in dockerfile.stages()[-1] if each.name == "ARG"]


def test_the_build_context_has_only_files_that_the_build_needs() -> None:
    files = [str(path) for path in dockerfile.context()]
    assert "exporter/stallscope/tools/cli/exporter.py" in files
    assert "grafana/dashboards/stallscope-fleet.json" in files
    for name in files:
        assert not name.startswith(("tests/", ".git", "dist/", "deploy/kubernetes/")), name
        assert "__pycache__" not in name
        assert not name.endswith((".pyc", ".env"))


class Engine(BaseHTTPRequestHandler):
    """Receive the build context that Docker's client sends to an engine."""

    received: ClassVar[list[bytes]] = []

    def log_message(self, *_arguments: object) -> None:
        """Log nothing, because the client of a UNIX socket has no address, which the log requires."""

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        self.answer(b"OK" if self.path.endswith("_ping") else b"{}")

    def do_POST(self) -> None:
        body = b""
        while chunk := self.rfile.read(int(self.rfile.readline(), 16)):
            body += chunk
            self.rfile.readline()
        self.received.append(body)
        self.answer(b'{"stream": "done"}')

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Api-Version", "1.43")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_dockers_client_sends_the_same_build_context(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("Docker's client is not on PATH")
    address = tmp_path / "engine.sock"
    Engine.received.clear()
    with socketserver.ThreadingUnixStreamServer(str(address), Engine) as engine:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        # In the classic builder the client reads .dockerignore. BuildKit has the same rules.
        environment = {**os.environ, "DOCKER_HOST": f"unix://{address}", "DOCKER_BUILDKIT": "0"}
        command = [docker, "build", "--quiet", "--file", str(DOCKERFILE), str(ROOT)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        engine.shutdown()
    assert done.returncode == 0, done.stderr
    (sent,) = Engine.received
    with tarfile.open(fileobj=io.BytesIO(sent)) as archive:
        names = {each.name for each in archive.getmembers() if each.isfile()}
    assert names == {str(path) for path in dockerfile.context()} | {".dockerignore", "deploy/Dockerfile"}


def test_the_daemonset_sets_the_images_environment() -> None:
    text = (ROOT / "deploy/kubernetes/base/daemonset.yaml").read_text(encoding="utf-8")
    (pod,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
    assert pod["command"] == dockerfile.listed("ENTRYPOINT")
    state = next(each["mountPath"] for each in pod["volumeMounts"] if each["name"] == "state")
    assert any(state in each.text for each in dockerfile.stages()[-1] if each.name == "RUN")
    environment = {each["name"]: each["value"] for each in pod["env"]}
    assert environment.items() <= dockerfile.environment().items()


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """Return the image's /opt/stallscope, built by the Dockerfile's steps and readable for other users."""
    folder = Path(tempfile.mkdtemp(prefix="stallscope-image-"))
    folder.chmod(0o755)
    try:
        yield dockerfile.build(folder)
    finally:
        shutil.rmtree(folder)


@cache
def other_user(program: str) -> int | None:
    """Return the image's user if this process can become it and it can run the program, else None."""
    if os.geteuid() != 0:
        return None
    tried = subprocess.run([program, "-c", ""], user=USER, group=USER, extra_groups=[], check=False)
    return USER if tried.returncode == 0 else None


@pytest.fixture
def port(installed: Path, tmp_path: Path) -> Iterator[int]:
    """Start the exporter as the image does, without a writable home or folder, and yield its port."""
    number = free_port()
    python = str(installed / "bin/python")
    user = other_user(python)
    as_user = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    variables = dockerfile.environment()
    variables["PATH"] = variables["PATH"].replace("/opt/stallscope", str(installed)).replace("$PATH", "/usr/bin:/bin")
    command = [*dockerfile.listed("ENTRYPOINT"), f"--web.listen-address=127.0.0.1:{number}"]
    command += [f"--report.udp-address=127.0.0.1:{number}", "--report.unix-socket=/proc/nowhere/report.sock"]
    program = shutil.which(command[0], path=variables["PATH"])
    assert program == str(installed / "bin/stallscope")
    variables["HOME"] = "/proc/nowhere"
    log = tmp_path / "log"
    with (
        log.open("w") as out,
        subprocess.Popen([program, *command[1:]], stderr=out, env=variables, cwd="/", **as_user) as process,  # type: ignore[call-overload]
    ):
        try:
            wait_for(number)
            yield number
        finally:
            process.terminate()
            assert process.wait(60) == 0, log.read_text()


def metrics(number: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{number}/metrics", timeout=30) as page:
        text: str = page.read().decode()
    return text


def wait_for(number: int) -> None:
    """Wait until the first readings of all collectors are on the page."""
    until(lambda: "stallscope_host_memory_total_bytes " in metrics(number), "the exporter did not become ready")


def health_check(installed: Path, number: int) -> int:
    """Run the image's HEALTHCHECK and return its exit status."""
    words = [word.replace("19400", str(number)) for word in dockerfile.listed("HEALTHCHECK")]
    assert words[0] == "python"
    command = [str(installed / "bin/python"), *words[1:]]
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode


def test_the_steps_of_the_dockerfile_build_an_exporter_that_runs_without_a_writable_folder(
    installed: Path, port: int
) -> None:
    text = metrics(port)
    assert f'stallscope_build_info{{version="{__version__}"' in text
    assert "stallscope_host_memory_total_bytes " in text


def test_the_health_check_passes_while_the_exporter_responds_and_fails_otherwise(installed: Path, port: int) -> None:
    until(lambda: health_check(installed, port) == 0)  # a machine that pauses may exceed its time limit
    assert health_check(installed, free_port()) != 0


def test_the_image_has_the_locks_packages_and_no_tools(installed: Path) -> None:
    names = {path.name.partition("-")[0].lower().replace("_", "-") for path in installed.rglob("*.dist-info")}
    locked = {name.split()[0] for name in pins((ROOT / LOCKS[0]).read_text(encoding="utf-8"))}
    assert names - locked == {"stallscope"}
    assert not names & {"pip", "hatchling", "pytest"}


@pytest.mark.slow
def test_an_engine_builds_and_runs_it() -> None:
    docker = shutil.which("docker") or shutil.which("podman")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("no container engine answers here")
    tag = "stallscope/stallscope-exporter:test"
    subprocess.run([docker, "build", "--file", str(DOCKERFILE), "--tag", tag, str(ROOT)], check=True, timeout=280)
    secured = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--rm", "--detach"]
    container = run([docker, "run", *secured, tag])
    try:
        healthcheck = [docker, "exec", container, *dockerfile.listed("HEALTHCHECK")]
        until(
            lambda: subprocess.run(healthcheck, capture_output=True, timeout=30, check=False).returncode == 0,
            lambda: run([docker, "logs", container]),
        )
        assert run([docker, "exec", container, "python", "-c", "import os; print(os.getuid())"]) == str(USER)
    finally:
        run([docker, "rm", "--force", container])


def run(command: list[str]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()
