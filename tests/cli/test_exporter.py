"""The exporter as a process: what it says, how it starts, reloads and stops."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import bcrypt
import pytest

from stallscope.node.collectors.base import Collector, Environment
from stallscope.node.configuration import load
from stallscope.node.sampling.reading import Sample
from stallscope.tools.cli.exporter import Exporter
from tests.analysis.servers import answering, talking
from tests.free_ports import free_port
from tests.nvml_library.stand_in import GpuState, NvmlStandIn
from tests.owners.api_server import answer, api_server_at
from tests.owners.kubelet import claim, container, kubelet_at, pod
from tests.waiting import until
from tests.web.certificates import Authority, needs_openssl

QUIET = ("--report.unix-socket=", "--report.udp-address=", "--collector.disable-defaults")
REPORT = (
    b'{"version": 1, "run": "precious", "rank": 0, "session": "a", "sequence": 1, "pid": 1, "start": 1.7e9, '
    b'"sent": 1.7e9, "state": "finished", "activity": "training"}'
)


class Running:
    """An exporter on a free port, and all that it has logged."""

    def __init__(self, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "stallscope", "exporter", "--web.listen-address=127.0.0.1:0", *QUIET, *flags]
        settings = {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=settings)
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    def logged(self, pattern: str) -> re.Match[str]:
        """Wait for a line that matches."""

        def found() -> re.Match[str] | None:
            return next((match for line in self.lines if (match := re.search(pattern, line))), None)

        with self._news:
            assert self._news.wait_for(found, timeout=60), "".join(self.lines)
            match = found()
            assert match is not None
            return match

    def get(self, path: str) -> str:
        url = self.logged(r"url=(http://\S+/)")[1] + path
        with urllib.request.urlopen(url, timeout=60) as reply:
            return str(reply.read().decode())

    def post(self, path: str, body: bytes = b"") -> tuple[int, str]:
        url = self.logged(r"url=(http://\S+/)")[1] + path
        with urllib.request.urlopen(url, body, timeout=60) as reply:
            return reply.status, str(reply.read().decode())

    def eventually(self, path: str, condition: Callable[[str], bool]) -> str:
        """Wait until the page is as wanted."""
        return until(
            lambda: page if condition(page := self.get(path)) else "",
            f"{path} is not as wanted",
        )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reading.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


Run = Callable[..., Running]


@pytest.fixture
def run() -> Iterator[Run]:
    with contextlib.ExitStack() as stack:

        def start(*flags: str, environment: Mapping[str, str] | None = None) -> Running:
            exporter = Running(*flags, environment=environment)
            stack.callback(exporter.close)
            return exporter

        yield start


def test_a_metric_says_whether_configuration_files_were_valid_when_last_read(run: Run, tmp_path: Path) -> None:
    web, config = tmp_path / "web.yml", tmp_path / "exporter.yml"
    web.write_text("rate_limit: {interval: 1ms, burst: 100}\n")
    config.write_text("log:\n  level: info\n")
    exporter = run(f"--web.config.file={web}", f"--config.file={config}")

    def becomes(of_config: int, of_web: int) -> None:
        name = "stallscope_exporter_config_last_reload_successful"
        lines = {f'{name}{{file="config"}} {of_config}', f'{name}{{file="web_config"}} {of_web}'}
        exporter.eventually("metrics", lambda page: lines <= set(page.splitlines()))

    becomes(1, 1)
    web.write_text("rate_limit: {inter")
    config.write_text("log:\n  le")
    exporter.process.send_signal(signal.SIGHUP)
    becomes(0, 0)
    web.write_text("rate_limit: {interval: 1ms, burst: 100}\n")
    config.write_text("log:\n  level: warning\n")
    exporter.process.send_signal(signal.SIGHUP)
    becomes(1, 1)


def test_clients_can_not_fill_the_log_whatever_they_send(run: Run) -> None:
    exporter = run()
    report = {**json.loads(REPORT), "start": time.time(), "state": "failed", "failure": "Error"}
    address = exporter.logged(r"url=http://([^/]+)/")[1]
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as client:
        for number in range(25):
            names = {"run": f"run-{number}", "session": f"session-{number}", "sent": time.time()}
            client.request("POST", "/api/v1/report", json.dumps({**report, **names}))
            answer = client.getresponse()
            assert answer.status < 300, answer.read()
            answer.read()
            for path, body in (("/api/v1/report", "{}"), ("/-/release?for=x", ""), (f"/{number}", "")):
                client.request("POST", path, body)
                client.getresponse().read()
    exporter.logged(r"run 'run-19' rank 0 failed with Error")
    exporter.process.terminate()
    exporter.logged("stopping")
    assert sum("failed with Error" in line for line in exporter.lines) == 20
    assert len(exporter.lines) < 60


def once(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to end by itself."""
    command = [sys.executable, "-m", "stallscope", *arguments]
    settings = {**os.environ, **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=settings)


def hanging_tree(folder: Path) -> Path:
    """A tree whose CPU times cannot be read: opening the FIFO blocks, because it has no writer."""
    proc = folder / "proc"
    proc.mkdir()
    os.mkfifo(proc / "stat")
    return folder


class Seen(Collector):
    """A collector that records its environment and the calls of the exporter."""

    name = "seen"
    summary = "Seen."
    environments: ClassVar[list[Environment]] = []
    releases: ClassVar[list[float]] = []

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.environments.append(environment)

    def read(self) -> Iterable[Sample]:
        return ()

    def release(self, seconds: float) -> None:
        self.releases.append(seconds)


def exporter_in_this_process(*flags: str) -> Exporter:
    Seen.environments.clear()
    Seen.releases.clear()
    flags = ("--web.listen-address=127.0.0.1:0", *QUIET, "--collector.seen", *flags)
    return Exporter(load(flags, {}, {"seen": "Seen."}), {"seen": Seen})


@pytest.mark.parametrize(("flags", "expected"), [((), False), (("--nvidia.pcie-throughput",), True)])
def test_slow_pcie_throughput_is_polled_only_on_demand(flags: tuple[str, ...], expected: bool) -> None:
    exporter_in_this_process(*flags).stop()
    assert [environment.pcie_throughput for environment in Seen.environments] == [expected]


def test_a_release_reaches_the_sources_with_its_time() -> None:
    exporter = exporter_in_this_process("--gpu.release-time=30s")
    try:
        exporter.release()
        exporter.release(120)
        exporter.release(0)
    finally:
        exporter.stop()
    assert Seen.releases == [30, 120, 0]


def test_says_where_it_answers_and_what_it_reads(run: Run) -> None:
    exporter = run("--collector.cpu", "--collector.memory")
    line = exporter.logged("msg=answering.*").string
    assert "sources=cpu,memory" in line
    assert "stallscope_build_info" in exporter.get("metrics")
    exporter.eventually("-/ready", lambda page: page == "ready\n")
    assert "stallscope_host_cpus" in exporter.eventually("metrics", lambda page: "stallscope_host_cpus" in page)


def test_the_status_page_shows_gpus_runs_and_sources(run: Run) -> None:
    exporter = run("--collector.cpu", "--collector.nvidia", "--simulation.scenario=gpu_lost", "--simulation.onset=3s")
    assert exporter.post("api/v1/report", REPORT)[0] == 204
    page = exporter.eventually("", lambda page: "precious" in page and "fell off the bus" in page)
    assert "7 of 8 GPUs up" in page
    assert "they play the scenario <bdi>gpu_lost</bdi>" in page
    assert '<section aria-labelledby="sources">' in page


def test_verdicts_are_queried_only_once_the_status_page_is_requested(run: Run) -> None:
    verdict = {"metric": {"run": "precious", "cause": "input_disk_bound"}, "value": [0, "0.42"]}
    vector = {"status": "success", "data": {"resultType": "vector", "result": [verdict]}}
    with answering(body=json.dumps(vector).encode()) as (url, requests):
        exporter = run(f"--prometheus.url={url}")
        assert exporter.post("api/v1/report", REPORT)[0] == 204
        exporter.eventually("metrics", lambda page: "precious" in page)
        assert not requests
        exporter.eventually("", lambda page: "Waiting for data: disk" in page)
        assert all(b"precious" in body for _path, _headers, body in requests)


@contextlib.contextmanager
def absent() -> Iterator[str]:
    yield f"http://127.0.0.1:{free_port()}"


def silent() -> contextlib.AbstractContextManager[str]:
    def say_nothing(_connection: socket.socket, over: threading.Event) -> None:
        over.wait()

    return talking(say_nothing)


@contextlib.contextmanager
def nonsensical() -> Iterator[str]:
    with answering(body=b"<html>Grafana</html>") as (url, _requests):
        yield url


@pytest.mark.parametrize(
    ("prometheus", "words"),
    [
        (absent, "it can&#x27;t be reached: Connection refused"),
        (silent, "no answer within 5 s"),
        (nonsensical, "not a Prometheus response"),
    ],
)
def test_a_prometheus_that_gives_no_answer_leaves_the_status_page_up(
    run: Run, prometheus: Callable[[], contextlib.AbstractContextManager[str]], words: str
) -> None:
    with prometheus() as url:
        exporter = run(f"--prometheus.url={url}")
        assert exporter.post("api/v1/report", REPORT)[0] == 204
        # A status page without runs sends no query, and the next one would come 20 seconds later.
        exporter.eventually("metrics", lambda page: "precious" in page)
        page = exporter.eventually("", lambda page: "Verdicts can't be had" in page)
    assert words in page
    assert "precious" in page


def test_all_but_metrics_and_health_can_be_switched_off(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "exporter.yml"
    switches = (
        *("web.enable-status-page", "web.enable-reports", "web.enable-release"),
        *("report.allow-trace-requests", "report.allow-stop-requests"),
    )
    file.write_text("".join(f"{switch}: false\n" for switch in switches))
    exporter = run(f"--config.file={file}")
    for path in ("", "api/v1/report", "api/v1/trace", "api/v1/stop", "-/release", "-/resume"):
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            exporter.post(path, REPORT)
        with refused.value as answer:
            assert b"is switched off here" in answer.read()
    assert exporter.get("-/healthy") == "healthy\n"
    exporter.eventually("metrics", lambda page: "stallscope_build_info" in page)
    file.write_text("")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.logged("configuration reloaded")
    assert exporter.post("api/v1/report", REPORT)[0] == 204


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(run: Run, number: signal.Signals) -> None:
    exporter = run()
    exporter.get("-/healthy")
    exporter.process.send_signal(number)
    assert exporter.process.wait(60) == 0
    exporter.logged(f"msg=stopping signal={number.name}")


def test_a_reading_that_never_returns_does_not_keep_it_from_ending(run: Run, tmp_path: Path) -> None:
    exporter = run("--collector.cpu", f"--path.rootfs={hanging_tree(tmp_path)}", "--sampling.interval=100ms")
    page = exporter.eventually("metrics", lambda page: 'stallscope_exporter_source_up{source="cpu"} 0' in page)
    assert 'stallscope_exporter_source_stuck_threads{source="cpu"} 1' in page
    exporter.process.terminate()
    assert exporter.process.wait(60) == 0


def test_it_exits_for_its_supervisor_where_a_reading_is_stuck_for_too_long(run: Run, tmp_path: Path) -> None:
    state_file = f"--report.state-file={tmp_path / 'runs.jsonl'}"
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "stat").write_text("cpu  1 1 1 1 1 1 1 1\ncpu0 1 1 1 1 1 1 1 1\n")
    flags = ("--collector.cpu", f"--path.rootfs={tmp_path}", "--sampling.interval=100ms")
    exporter = run(*flags, state_file, "--sampling.exit-after-hang=1s")
    assert exporter.post("api/v1/report", REPORT)[0] == 204
    os.mkfifo(proc / "fifo")
    (proc / "fifo").replace(proc / "stat")
    assert exporter.process.wait(60) == 75
    reported = exporter.logged(r"level=error .*a poll is stuck.* reading=cpu seconds=([.0-9]+) limit=1.0")
    assert float(reported[1]) >= 1.0
    assert "precious" in (tmp_path / "runs.jsonl").read_text()


def test_a_reload_decides_again_whether_it_exits_where_a_reading_is_stuck(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "exporter.yml"
    file.write_text("collector: {cpu: true}\n")
    exporter = run(f"--config.file={file}", f"--path.rootfs={hanging_tree(tmp_path)}", "--sampling.interval=100ms")
    exporter.logged("has not come back from a reading")
    assert exporter.process.poll() is None
    file.write_text("collector: {cpu: true}\nsampling.exit-after-hang: 100ms\n")
    exporter.process.send_signal(signal.SIGHUP)
    assert exporter.process.wait(60) == 75


def test_it_exits_where_a_driver_call_hangs_and_names_the_gpu(run: Run, nvml_stand_in: NvmlStandIn) -> None:
    flags = ("--collector.nvidia", "--sampling.interval=100ms", "--sampling.exit-after-hang=5s")
    exporter = run(*flags, environment=nvml_stand_in.environment)
    exporter.eventually("metrics", lambda page: page.count("stallscope_gpu_up{") == 8)
    nvml_stand_in.gpu[3].state = GpuState.HUNG
    assert exporter.process.wait(60) == 75
    exporter.logged(f'a poll is stuck.* reading="nvidia {nvml_stand_in.uuid(3)}"')


def test_slow_readings_that_come_back_are_no_reason_to_exit(run: Run, nvml_stand_in: NvmlStandIn) -> None:
    nvml_stand_in.set_delay(2_000)
    flags = ("--collector.nvidia", "--sampling.interval=100ms", "--sampling.exit-after-hang=10s")
    exporter = run(*flags, environment=nvml_stand_in.environment)
    read_for = re.compile(r'^stallscope_exporter_source_reading_seconds_total\{source="nvidia"\} (\S+)', re.MULTILINE)

    def all_readings_together_took_longer_than_that(page: str) -> bool:
        found = read_for.search(page)
        return found is not None and float(found[1]) > 10

    exporter.eventually("metrics", all_readings_together_took_longer_than_that)
    assert exporter.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_ends_it_cleanly_too(run: Run, tmp_path: Path, number: signal.Signals) -> None:
    os.mkfifo(tmp_path / "exporter.yml")
    exporter = run(f"--config.file={tmp_path / 'exporter.yml'}")
    with (tmp_path / "exporter.yml").open("w"):  # it reads its configuration now
        exporter.process.send_signal(number)
        assert exporter.process.wait(60) == 0


def test_other_signals_during_the_start_wait_until_it_runs(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "exporter.yml")
    exporter = run(f"--config.file={tmp_path / 'exporter.yml'}")
    with (tmp_path / "exporter.yml").open("w") as file:
        exporter.process.send_signal(signal.SIGUSR1)
        file.write("gpu.release-time: 90s\n")
    exporter.logged("releasing the GPUs' device files .* after 90 s")


def test_gpus_are_released_over_http(run: Run) -> None:
    exporter = run()
    status, text = exporter.post("-/release?for=2m")
    assert status == 202
    assert text == (
        "releasing the GPUs' device files at the next poll, within 1 s; reopening them after 120 s, or at "
        "once after SIGUSR2 or POST /-/resume\n"
    )
    assert exporter.post("-/resume") == (202, "reopening the GPUs' device files at the next poll, within 1 s\n")


def test_a_reload_applies_what_it_can_and_says_what_it_can_not(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "exporter.yml"
    file.write_text("collector: {cpu: true}\n")
    exporter = run(f"--config.file={file}")
    exporter.eventually("metrics", lambda page: 'source="cpu"' in page)
    file.write_text("collector: {memory: true}\nsampling.interval: 2s\nlog.format: json\n")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.logged('"msg": "configuration reloaded"')
    exporter.logged("restart the exporter to apply changes of sampling.interval")
    exporter.eventually("metrics", lambda page: 'source="memory"' in page and 'source="cpu"' not in page)


def test_owners_have_no_series_of_gpus_that_are_no_longer_read(
    run: Run, nvml_stand_in: NvmlStandIn, tmp_path: Path
) -> None:
    file = tmp_path / "exporter.yml"
    file.write_text("collector: {nvidia: true, owners: true}\n")
    nvml_stand_in.gpu[0].run((os.getpid(), 1 << 30, False))
    exporter = run(f"--config.file={file}", "--sampling.interval=100ms", environment=nvml_stand_in.environment)
    exporter.eventually("metrics", lambda page: "stallscope_gpu_owner_info{" in page)
    file.write_text("collector: {owners: true}\n")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.eventually("metrics", lambda page: "stallscope_gpu_" not in page)


@needs_openssl
def test_in_a_pod_claimed_gpus_and_workloads_come_from_the_api_and_stay_while_it_fails(
    run: Run, nvml_stand_in: NvmlStandIn
) -> None:
    uuid = nvml_stand_in.uuid(3)
    device = {"name": "gpu-x", "attributes": {"uuid": {"string": uuid}}}
    pool = {"name": "gpu-node-3", "generation": 1}
    slices = {"items": [{"spec": {"driver": "gpu.nvidia.com", "pool": pool, "devices": [device]}}]}
    node = ("--collector.nvidia", "--collector.owners", "--collector.kubernetes", "--kubernetes.node=gpu-node-3")
    with kubelet_at() as kubelet, api_server_at(kubelet.root) as api:
        kubelet.hand_out(pod("research", "resnet-0", container("trainer", claim("gpu.nvidia.com", "gpu-x"))))
        api.answers["/apis/resource.k8s.io/v1/resourceslices"] = (403, {})
        api.answers["/api/v1/namespaces/research/pods/resnet-0"] = (200, answer("pods.json")["Kueue and Job"])
        host, port = api.address
        pods = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
        flags = (*node, f"--path.rootfs={kubelet.root}", "--sampling.interval=100ms")
        exporter = run(*flags, environment={**nvml_stand_in.environment, **pods})
        exporter.logged("source kubernetes failed: KubernetesApiFailed: .*HTTP status 403; let the exporter's service")
        page = exporter.eventually("metrics", lambda page: 'source_up{source="kubernetes"} 0' in page)
        assert 'source_up{source="owners"} 1' in page
        assert 'reason="unknown_device"} 1' in page
        exporter.process.terminate()
        exporter.process.wait(60)
        api.answers["/apis/resource.k8s.io/v1/resourceslices"] = (200, slices)
        exporter = run(*flags, environment={**nvml_stand_in.environment, **pods})
        page = exporter.eventually("metrics", lambda page: "stallscope_gpu_owner_workload_info{" in page)
    labels = f'gpu="3",uuid="{uuid}",namespace="research",pod="resnet-0",queue="team-a",workload_kind="Job"'
    assert f'stallscope_gpu_owner_workload_info{{{labels},workload="resnet"' in page
    assert 'source_up{source="kubernetes"} 1' in page


def test_the_nodes_name_is_refused_outside_of_a_pod() -> None:
    ended = once("exporter", *QUIET, "--kubernetes.node=gpu-node-3")
    assert ended.returncode == 2
    assert "kubernetes.node: KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set; " in ended.stderr


def test_web_users_must_authenticate_and_are_read_again_at_sighup(run: Run, tmp_path: Path) -> None:
    def status(user: str) -> int:
        basic = base64.b64encode(f"{user}:right".encode()).decode()
        request = urllib.request.Request(f"{url}metrics", headers={"Authorization": f"Basic {basic}"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code

    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    file = tmp_path / "web.yml"
    file.write_text(f"basic_auth_users: {{alice: {hashed}}}\n")
    exporter = run(f"--web.config.file={file}")
    url = exporter.logged(r"url=(http://\S+/)")[1]
    assert [status(user) for user in ("alice", "bob")] == [200, 401]
    file.write_text(f"basic_auth_users: {{bob: {hashed}}}\n")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.logged("web configuration reloaded")
    assert [status(user) for user in ("alice", "bob")] == [401, 200]


@needs_openssl
def test_a_training_elsewhere_reports_over_tls_only_with_the_right_token(run: Run, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign("node")
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    tokens, web = tmp_path / "tokens", tmp_path / "web.yml"
    tokens.touch(0o600)
    tokens.write_text("one token for all of them\n")
    web.write_text(
        f"tls_server_config: {{cert_file: node.crt, key_file: node.key}}\nbasic_auth_users: {{alice: {hashed}}}\n"
    )
    state = tmp_path / "runs.jsonl"
    exporter = run(f"--web.config.file={web}", f"--report.token-file={tokens}", f"--report.state-file={state}")
    address = exporter.logged(r"url=(https://\S+)/")[1]
    # Its usual second may be short for a machine with much to do.
    script = (
        "from stallscope.training.shim.transport import transport; transport.__kwdefaults__['timeout'] = 60.0; "
        "import stallscope; run = stallscope.Run(name='afar'); run.step(); run.finish()"
    )
    environment = {"STALLSCOPE_ADDRESS": address, "STALLSCOPE_CA_FILE": str(authority.certificate)}
    for token, accepted in (("", False), ("another token than theirs", False), ("one token for all of them", True)):
        settings = {**os.environ, **environment, "STALLSCOPE_TOKEN": token}
        command = [sys.executable, "-c", script]
        reported = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120, check=True).stderr
        assert ("the exporter answered 403 to a report" in reported) is not accepted, reported
    exporter.process.terminate()
    assert exporter.process.wait(60) == 0
    assert state.read_text().count('"run":"afar"') == 1


@pytest.mark.parametrize("flag", ["--report.udp-address=0.0.0.0:0", "--web.allow-remote-reports"])
def test_reports_of_other_machines_without_tokens_are_warned_of(flag: str, run: Run, tmp_path: Path) -> None:
    run(flag).logged("unsigned reports from other machines are accepted: .*set report.token-file")
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("one token for all of them\n")
    signed = run(flag, f"--report.token-file={tokens}")
    signed.logged("answering")
    assert not [line for line in signed.lines if "as they come" in line]


def test_a_token_file_without_a_token_is_one_line_and_status_2(tmp_path: Path) -> None:
    ended = once("exporter", *QUIET, f"--report.token-file={tmp_path / 'missing'}")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "report.token-file: " in ended.stderr
    assert "can't be read" in ended.stderr


def test_a_client_certificate_that_is_not_there_is_one_line_and_status_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_CLIENT_CERTIFICATE", "/absent.crt")
    ended = once("exporter", *QUIET, "--prometheus.url=https://localhost:9")
    said = "STALLSCOPE_CLIENT_CERTIFICATE: /absent.crt can't be read: No such file or directory"
    assert (ended.returncode, ended.stderr) == (2, f"stallscope exporter: {said}\n")


def test_a_broken_file_at_a_reload_leaves_the_running_configuration(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "exporter.yml"
    file.write_text("collector: {cpu: true}\n")
    exporter = run(f"--config.file={file}")
    exporter.get("-/healthy")
    file.write_text("collector: {cpu: perhaps}\n")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.logged("keeping the current one: .*exporter.yml:1: collector.cpu can't be 'perhaps'")
    exporter.eventually("metrics", lambda page: 'source="cpu"' in page)


def test_a_simulated_node_is_served_and_labelled(run: Run) -> None:
    exporter = run("--simulation.scenario=healthy", "--collector.nvidia")
    exporter.logged("msg=answering .*simulated=healthy")
    page = exporter.eventually("metrics", lambda page: "stallscope_gpu_info{" in page)
    assert 'model="Simulated' in page
    assert "Simulated node" in exporter.get("")


def test_a_simulated_host_reports_the_owners_of_the_simulated_gpus(run: Run) -> None:
    exporter = run("--simulation.scenario=healthy", "--simulation.host", "--collector.nvidia", "--collector.owners")
    page = exporter.eventually("metrics", lambda page: page.count("stallscope_gpu_owner_info{") == 8)
    assert page.count('slurm_job="4242",user="simulated"} 1') >= 8
    assert 'attribution_errors_total{reason="pid_not_visible"} 0' in page


def test_a_real_host_has_no_owners_of_simulated_gpus(run: Run) -> None:
    exporter = run("--simulation.scenario=healthy", "--collector.nvidia", "--collector.owners")
    page = exporter.eventually("metrics", lambda page: "stallscope_gpu_memory_used_bytes{" in page)
    assert "stallscope_gpu_owner" not in page
    assert 'source_up{source="owners"}' not in page
    assert "hostPID" not in "".join(exporter.lines)


def test_a_busy_address_is_one_line_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        # The first address was bound: it must be released again, or the process would never end.
        ended = once("exporter", *QUIET, "--web.listen-address=127.0.0.1:0", f"--web.listen-address={address}")
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert f"can't listen on {address}: Address already in use; stop the program that holds it" in ended.stderr


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        (["--sampling.interval=1"], {}, "did you mean 1s?"),
        (["--nonsense"], {}, "unknown flag --nonsense"),
        (["--config.file=/nowhere.yml"], {}, "/nowhere.yml: can't be read"),
        (["--web.config.file=/nowhere.yml"], {}, "/nowhere.yml: can't be read"),
        (["--simulation.scenario=helthy"], {}, "did you mean healthy?"),
        ([], {"STALLSCOPE_EXPORTER_LOG_LEVEL": "loud"}, "environment variable STALLSCOPE_EXPORTER_LOG_LEVEL"),
    ],
)
def test_a_wrong_configuration_is_one_line_and_status_2(
    flags: list[str], environment: dict[str, str], expected: str
) -> None:
    ended = once("exporter", *QUIET, "--web.listen-address=127.0.0.1:0", *flags, environment=environment)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("stallscope exporter: ")
    assert expected in ended.stderr


def test_help_lists_the_commands_and_a_command_its_flags() -> None:
    assert "exporter    Serve this node's GPU, host and training metrics" in once("--help").stdout
    ended = once("exporter", "--help")
    assert ended.returncode == 0
    assert "--collector.nvidia" in ended.stdout
    text = " ".join(ended.stdout.split())
    assert "SIGUSR1, or POST /-/release?for=2m, closes the GPUs' device files" in text
    assert "SIGUSR2, or POST /-/resume, opens them again" in text
    assert "a driver call that hangs ends only with its process" in text
    assert once("--version").stdout.startswith("stallscope ")
