"""The life of training processes as a real exporter sees it: each test has both, as processes of their own."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import until

TIMEOUT = 60.0
EXPIRY = 4.0
"""Seconds, where a test waits for it: what has ended is shown for as long, and has to be seen by then."""

PROGRAM = """
import os, sys, time, stallscope
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""

BEHIND = """
import sys, time
right = time.time
time.time = lambda: right() - 3600
exec(sys.argv[4])
"""


class Exporter:
    """The real thing, with nothing but reports."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "report.sock"
        self._state_file = folder / "runs"
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.udp_port = 0

    def start(self, expiry: float = 3600.0) -> None:
        command = [sys.executable, "-m", "stallscope", "exporter", "--web.listen-address=127.0.0.1:0"]
        command += [f"--report.unix-socket={self.socket}", "--report.udp-address=127.0.0.1:0"]
        command += [f"--report.state-file={self._state_file}", f"--report.expiry={expiry:.0f}s"]
        command += ["--collector.disable-defaults", "--sampling.interval=100ms"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        until(self.socket.exists)

    def end(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.communicate(timeout=TIMEOUT)
            self._process = None

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """Values of a family by run, rank and further labels."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        connection.request("GET", "/metrics", headers={"Accept": "text/plain"})
        text = connection.getresponse().read().decode()
        connection.close()
        return {
            tuple(sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"stallscope_{name}"
        }

    def state(self, run: str = "job") -> str:
        states = self.values("training_state")
        return next((labels[-1] for labels, value in states.items() if labels[0] == run and value), "")

    def steps(self, run: str = "job") -> float:
        return self.values("training_step").get((run, "0"), 0.0)


class Trainer:
    """A training process that executes commands, one per line."""

    def __init__(self, address: str, *, before: list[str] | None = None, **environment: str) -> None:
        self.process = subprocess.Popen(
            [*(before or []), sys.executable, "-u", "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "STALLSCOPE_ADDRESS": address, **environment},
        )
        self.do("run = stallscope.Run('job', interval=0.0)")

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "done\n"

    def step(self) -> None:
        self.do("run.step()")

    def end(self, last_line: str = "") -> None:
        """End the process with a last command, or by closing its input."""
        self.process.communicate(last_line, timeout=TIMEOUT)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        # Before the pipe closes: a trainer under `unshare` would read its end as the end of the work, and finish.
        self.process.wait(timeout=TIMEOUT)
        self.process.communicate(timeout=TIMEOUT)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    exporter = Exporter(tmp_path)
    yield exporter
    exporter.end()


@pytest.fixture
def train(exporter: Exporter) -> Iterator[Callable[..., Trainer]]:
    trainers = []

    def start(address: str = "", *, before: list[str] | None = None, **environment: str) -> Trainer:
        trainers.append(Trainer(address or f"unix://{exporter.socket}", before=before, **environment))
        return trainers[-1]

    yield start
    for trainer in trainers:
        if trainer.process.poll() is None:
            trainer.kill()


Train = Callable[..., Trainer]


def steps_after_another(trainer: Trainer, exporter: Exporter) -> float:
    trainer.step()
    return exporter.steps()


def test_an_exporter_that_comes_late_receives_everything(exporter: Exporter, train: Train) -> None:
    trainer = train()
    for _ in range(20):
        trainer.step()
    exporter.start()
    until(lambda: steps_after_another(trainer, exporter) > 20)
    assert exporter.values("training_step_seconds_count")["job", "0"] >= 19
    dropped = exporter.values("training_shim_dropped_reports_total")
    assert set(dropped) == {("job", "0", "absent")}


def test_an_exporter_that_was_killed_goes_on_where_it_was(exporter: Exporter, train: Train) -> None:
    exporter.start()
    trainer = train()
    for _ in range(5):
        trainer.step()
    until(lambda: exporter.steps() == 5)
    exporter.end()  # which leaves its socket's file behind
    for _ in range(5):
        trainer.step()
    exporter.start()
    until(lambda: steps_after_another(trainer, exporter) > 10)
    assert exporter.values("training_restarts_total") == {("job", "0"): 0}
    trainer.end()
    until(lambda: exporter.state() == "finished")


@pytest.mark.parametrize(("number", "state"), [(signal.SIGKILL, "lost"), (signal.SIGTERM, "terminated")])
def test_the_end_of_a_killed_process_is_known_at_once_and_its_next_life_is_a_restart(
    number: int, state: str, exporter: Exporter, train: Train
) -> None:
    exporter.start()
    trainer = train()
    trainer.step()
    until(lambda: exporter.state() == "running")
    trainer.kill(number)
    until(lambda: exporter.state() == state)
    train()
    until(lambda: exporter.state() == "starting")
    assert exporter.values("training_restarts_total") == {("job", "0"): 1}


def test_running_out_of_memory_is_distinguished_from_other_failures(exporter: Exporter, train: Train) -> None:
    exporter.start()
    train().end("class OutOfMemoryError(RuntimeError): pass\nraise OutOfMemoryError('CUDA out of memory')\n")
    until(lambda: exporter.state() == "failed")
    assert exporter.values("training_out_of_memory_total") == {("job", "0"): 1}
    train().end("raise ValueError('CUDA out of memory')\n")
    until(lambda: exporter.values("training_restarts_total") == {("job", "0"): 1})
    until(lambda: exporter.state() == "failed")
    assert not any(exporter.values("training_out_of_memory_total").values())


def silent_for(exporter: Exporter, seconds: float) -> bool:
    return time.time() - exporter.values("training_last_push_timestamp_seconds")["job", "0"] > seconds


def test_a_process_that_hangs_is_neither_lost_nor_seems_to_go_on(exporter: Exporter, train: Train) -> None:
    exporter.start(EXPIRY)
    trainer = train()
    trainer.step()
    until(lambda: exporter.state() == "running")
    trainer.process.send_signal(signal.SIGSTOP)
    until(lambda: silent_for(exporter, EXPIRY + 1.5))
    assert exporter.state() == "running"
    assert exporter.steps() == 1
    trainer.kill()
    until(lambda: exporter.state() == "lost")


UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0,
    reason="this user may make no pid namespace",
)
def test_a_silent_rank_in_a_pid_namespace_of_its_own_is_known_by_its_number_outside(
    exporter: Exporter, train: Train
) -> None:
    exporter.start(EXPIRY)
    trainer = train(before=UNSHARE)
    trainer.do("assert os.getpid() == 1")
    trainer.step()
    until(lambda: exporter.state() == "running")
    until(lambda: silent_for(exporter, EXPIRY + 1.5))  # a long evaluation, say
    assert exporter.state() == "running"
    trainer.kill()
    until(lambda: exporter.state() == "lost")


def test_a_rank_that_cannot_be_seen_is_lost_after_the_expiry_time_and_found_again(
    exporter: Exporter, train: Train
) -> None:
    exporter.start(EXPIRY)
    trainer = train(f"http://127.0.0.1:{exporter.port}")

    def state_after_a_step() -> str:
        """Report a step now, not at the longer HTTP interval: a report may take more than its second."""
        trainer.do("run._sender.interval = run.timeline.due = 0.0; run.step()")
        return exporter.state()

    until(lambda: state_after_a_step() == "running")
    until(lambda: exporter.state() == "lost")
    until(lambda: state_after_a_step() == "running")


def test_of_two_programs_of_one_name_both_are_shown_and_neither_flaps(exporter: Exporter, train: Train) -> None:
    exporter.start()
    first, second = train(), train()
    own_name = f"job-{second.process.pid}"
    for _ in range(3):
        first.step()
        second.step()
        second.step()
    until(lambda: (exporter.steps(), exporter.steps(own_name)) == (3, 6))
    first.end()
    until(lambda: exporter.state() == "finished")
    second.step()
    until(lambda: (exporter.steps(), exporter.steps(own_name)) == (3, 7))
    assert set(exporter.values("training_restarts_total").values()) == {0}


def test_a_cell_that_runs_again_is_a_restart_of_its_run(exporter: Exporter, train: Train) -> None:
    exporter.start()
    trainer = train()
    trainer.step()
    trainer.do("run = stallscope.Run('job', interval=0.0)")
    until(lambda: exporter.values("training_restarts_total") == {("job", "0"): 1})
    assert exporter.state() == "starting"


def test_a_rank_that_its_launcher_started_again_elsewhere_has_its_restarts(exporter: Exporter, train: Train) -> None:
    exporter.start()
    train(RANK="0", WORLD_SIZE="2", TORCHELASTIC_RESTART_COUNT="2")
    until(lambda: exporter.values("training_restarts_total") == {("job", "0"): 2})


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_clock_that_is_set_loses_nothing_and_leaves_times_that_fit_together(
    hours: int, exporter: Exporter, train: Train
) -> None:
    exporter.start()
    trainer = train()
    trainer.step()
    until(lambda: exporter.steps() == 1)
    before = exporter.values("training_start_timestamp_seconds")
    trainer.do(f"right = time.time; time.time = lambda: right() + {hours * 3600}")
    for _ in range(3):
        trainer.step()
    until(lambda: exporter.steps() == 4)
    (start,) = exporter.values("training_start_timestamp_seconds").values()
    (first,) = exporter.values("training_first_step_timestamp_seconds").values()
    (last,) = exporter.values("training_last_step_timestamp_seconds").values()
    assert start <= first <= last <= start + TIMEOUT
    assert all(abs(start - each - hours * 3600) < 5.0 for each in before.values())


def test_a_run_that_begins_after_the_clock_was_set_back_takes_its_place(exporter: Exporter, train: Train) -> None:
    exporter.start()
    trainer = train()
    trainer.kill()
    train(before=[sys.executable, "-c", BEHIND])
    until(lambda: exporter.values("training_restarts_total") == {("job", "0"): 1})
    assert exporter.state() == "starting"
