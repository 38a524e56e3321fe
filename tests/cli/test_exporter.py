"""The exporter as a process: what it says, how it starts, reloads and stops."""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

QUIET = ("--report.unix-socket=", "--report.udp-address=", "--collector.disable-defaults")


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
            assert self._news.wait_for(found, timeout=20), "".join(self.lines)
            match = found()
            assert match is not None
            return match

    def get(self, path: str) -> str:
        url = self.logged(r"url=(http://\S+/)")[1] + path
        with urllib.request.urlopen(url, timeout=10) as reply:
            return str(reply.read().decode())

    def eventually(self, path: str, condition: Callable[[str], bool]) -> str:
        """Wait until the page is as wanted."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(urllib.error.HTTPError):
                if condition(page := self.get(path)):
                    return page
            time.sleep(0.05)
        raise AssertionError(f"{path} never became as wanted")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reading.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def run() -> Iterator[Callable[..., Running]]:
    with contextlib.ExitStack() as stack:

        def start(*flags: str, environment: Mapping[str, str] | None = None) -> Running:
            exporter = Running(*flags, environment=environment)
            stack.callback(exporter.close)
            return exporter

        yield start


def once(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to end by itself."""
    command = [sys.executable, "-m", "stallscope", *arguments]
    settings = {**os.environ, **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=settings)


def test_says_where_it_answers_and_what_it_reads(run: Callable[..., Running]) -> None:
    exporter = run("--collector.cpu", "--collector.memory")
    line = exporter.logged("msg=answering.*").string
    assert "sources=cpu,memory" in line
    assert "stallscope_build_info" in exporter.get("metrics")
    exporter.eventually("-/ready", lambda page: page == "ready\n")
    assert "stallscope_host_cpus" in exporter.eventually("metrics", lambda page: "stallscope_host_cpus" in page)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(run: Callable[..., Running], number: signal.Signals) -> None:
    exporter = run()
    exporter.get("-/healthy")
    exporter.process.send_signal(number)
    assert exporter.process.wait(10) == 0
    exporter.logged(f"msg=stopping signal={number.name}")


def test_a_reading_that_never_returns_does_not_keep_it_from_ending(run: Callable[..., Running], tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    os.mkfifo(proc / "stat")  # opening it waits for a writer, who never comes
    exporter = run("--collector.cpu", f"--path.rootfs={tmp_path}", "--sampling.interval=100ms")
    exporter.eventually("metrics", lambda page: 'stallscope_exporter_source_up{source="cpu"} 0' in page)
    exporter.process.terminate()
    assert exporter.process.wait(10) == 0


def test_held_runs_outlive_a_restart_where_there_is_a_state_file(run: Callable[..., Running], tmp_path: Path) -> None:
    flag = f"--report.state-file={tmp_path / 'runs.jsonl'}"
    first = run(flag)
    body = b'{"version": 1, "run": "precious", "rank": 0, "session": "a", "sequence": 1, "pid": 1, "start": 1.7e9, '
    body += b'"sent": 1.7e9, "state": "finished", "activity": "training"}'
    url = first.logged(r"url=(http://\S+/)")[1]
    with urllib.request.urlopen(f"{url}api/v1/report", body, timeout=10) as reply:
        assert reply.status == 204
    first.process.terminate()
    assert first.process.wait(10) == 0
    run(flag).eventually("metrics", lambda page: 'run="precious"' in page)


def test_a_reload_applies_what_it_can_and_says_what_it_can_not(run: Callable[..., Running], tmp_path: Path) -> None:
    file = tmp_path / "exporter.yml"
    file.write_text("collector: {cpu: true}\n")
    exporter = run(f"--config.file={file}")
    exporter.eventually("metrics", lambda page: 'source="cpu"' in page)
    file.write_text("collector: {memory: true}\nsampling.interval: 2s\nlog.format: json\n")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.logged('"msg": "configuration read again"')
    exporter.logged("sampling.interval changed too, which needs a restart")
    exporter.eventually("metrics", lambda page: 'source="memory"' in page and 'source="cpu"' not in page)


def test_a_broken_file_at_a_reload_leaves_the_running_configuration(
    run: Callable[..., Running], tmp_path: Path
) -> None:
    file = tmp_path / "exporter.yml"
    file.write_text("collector: {cpu: true}\n")
    exporter = run(f"--config.file={file}")
    exporter.get("-/healthy")
    file.write_text("collector: {cpu: perhaps}\n")
    exporter.process.send_signal(signal.SIGHUP)
    exporter.logged("the running one stays: .*exporter.yml:1: collector.cpu can't be 'perhaps'")
    exporter.eventually("metrics", lambda page: 'source="cpu"' in page)


def test_a_simulated_node_is_served_and_labelled(run: Callable[..., Running]) -> None:
    exporter = run("--simulation.scenario=healthy", "--collector.nvidia")
    exporter.logged("msg=answering .*simulated=healthy")
    page = exporter.eventually("metrics", lambda page: "stallscope_gpu_info{" in page)
    assert 'model="Simulated' in page
    assert "Simulated node" in exporter.get("")


def test_a_busy_address_is_one_line_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        # The first address could be had: it must be let go of again, or the process would never end.
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
    assert once("--version").stdout.startswith("stallscope ")


def test_an_unknown_command_is_refused_with_the_nearest() -> None:
    ended = once("exprter")
    assert ended.returncode == 2
    assert "unknown command 'exprter'; did you mean exporter?" in ended.stderr
    assert once().returncode == 2
