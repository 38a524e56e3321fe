"""Real exporters that are killed again and again under real training, and what a real Prometheus counts meanwhile.

    python -m tests.faults.kills 100

kills an exporter with a state file and one without it 100 times each, and prints what was counted of each run. Each
exporter has a rank that trains all the time and one that begins a new session every few seconds.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.free_ports import free_port
from tests.prometheus_server import Prometheus, prometheus
from tests.waiting import until

STEADY, RESTARTED = "steady", "restarted"
STEPS = "stallscope_training_step_seconds_count"
RESTARTS = "stallscope_training_restarts_total"
_SCRAPE_INTERVAL = 0.5
_EARLY = 0.2
"""Ratio of the signals that come within half a second of the start, before the exporter answers."""
_LIFE = (0.0, 1.0)
"""Seconds from the first page with the counters of the run to the other signals."""
_DEAD = (0.0, 0.5)
"""Seconds from its end to the next start."""
_SESSION = 8.0
"""Seconds of a session of the run that is restarted."""
_DEADLINE = 60.0
_RANK = """
import os, sys, time
import stallscope
name, seconds, training, scraped = sys.argv[1:]
run = stallscope.Run(name, rank=0, world_size=1, samples_per_step=2)
until, steps = time.monotonic() + float(seconds), 0
run.step()  # the first one is progress without a duration
while time.monotonic() < until and os.path.exists(training):
    with run.phase("forward"):
        # increase() can't know what was counted before the first scrape.
        time.sleep(0.004 if os.path.exists(scraped) else 0.2)
    run.step()
    steps += 1
run.finish()
print(steps)
"""


@dataclass
class Count:
    """Steps that the ranks of one exporter did, and the steps that Prometheus counted."""

    kills: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    """By run: steps that its ranks counted themselves."""
    sessions: dict[str, int] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    """By run: the last value of the counter."""
    increase: dict[str, float] = field(default_factory=dict)
    """By run: PromQL's increase() over the whole test."""
    falls: dict[str, int] = field(default_factory=dict)
    """By run: how often the counter fell from one sample to the next that did so most often."""
    scrapes: int = 0

    def error(self, run: str) -> float:
        """Return the ratio by which increase() differs from the truth: positive where too much was counted."""
        return self.increase[run] / self.steps[run] - 1.0


class Victim:
    """An exporter that is killed, with its ranks."""

    def __init__(self, name: str, folder: Path, *, state_file: bool, seed: int) -> None:
        self.name = name
        self.port = free_port()
        self.count = Count()
        self._random = random.Random(seed)
        self._folder = folder / name
        self._folder.mkdir()
        self._training = self._folder / "training"
        self._training.touch()
        self._scraped = self._folder / "scraped"
        self._socket = self._folder / "report.sock"
        self._command = [
            *(sys.executable, "-m", "stallscope", "exporter", "--log.level=error", "--report.udp-address="),
            *("--collector.disable-defaults", "--sampling.interval=200ms"),
            f"--web.listen-address=127.0.0.1:{self.port}",
            f"--report.unix-socket={self._socket}",
            *([f"--report.state-file={self._folder / 'state'}"] if state_file else []),
        ]
        self._exporter: subprocess.Popen[bytes] | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start exporter and ranks."""
        self._run_exporter()
        self._in_background(self._train)
        self._in_background(self._train_again_and_again)

    def begin(self, kills: int) -> None:
        """Let the ranks train in earnest, and kill the exporter so often."""
        self._scraped.touch()
        self._in_background(self._kill, kills)

    def finish(self) -> None:
        """Wait until everybody was killed as often as wanted, and let the ranks finish under an exporter that lives."""
        self._threads.pop().join()
        _await_counters(self.port)
        self._training.unlink()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """End exporter and ranks."""
        self._training.unlink(missing_ok=True)
        for thread in self._threads:
            thread.join()
        if self._exporter is not None:
            self._exporter.kill()
            self._exporter.wait()

    def _in_background(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        thread.start()
        self._threads.append(thread)

    def _run_exporter(self) -> None:
        self._exporter = subprocess.Popen(self._command)

    def _kill(self, kills: int) -> None:
        for _ in range(kills):
            assert self._exporter is not None
            if self._random.random() < _EARLY:
                time.sleep(self._random.uniform(0.0, 0.5))
            else:
                _await_counters(self.port)
                time.sleep(self._random.uniform(*_LIFE))
            self._random.choice((self._exporter.kill, self._exporter.terminate))()
            self._exporter.wait()
            self.count.kills += 1
            time.sleep(self._random.uniform(*_DEAD))
            self._run_exporter()

    def _train(self) -> None:
        self._run_rank(STEADY, 1e9)

    def _train_again_and_again(self) -> None:
        while self._training.exists():
            self._run_rank(RESTARTED, _SESSION)

    def _run_rank(self, run: str, seconds: float) -> None:
        command = [sys.executable, "-c", _RANK, run, str(seconds), str(self._training), str(self._scraped)]
        address = {"STALLSCOPE_ADDRESS": f"unix://{self._socket}", "PATH": ""}
        done = subprocess.run(command, env=address, stdout=subprocess.PIPE, check=True, text=True)
        self.count.steps[run] = self.count.steps.get(run, 0) + int(done.stdout)
        self.count.sessions[run] = self.count.sessions.get(run, 0) + 1


def counted(kills: int, seed: int | None = None) -> dict[str, Count]:
    """Kill exporters so often, and return what was counted of each: with a state file, and without one."""
    seed = random.randrange(10_000) if seed is None else seed
    print(f"seed {seed}", file=sys.stderr)
    began = time.time()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        victims = [
            Victim(name, Path(folder), state_file=state_file, seed=seed + state_file)
            for name, state_file in (("with a state file", True), ("without a state file", False))
        ]
        scrape = {
            "job_name": "stallscope",
            "scrape_interval": f"{_SCRAPE_INTERVAL * 1000:.0f}ms",
            "scrape_timeout": f"{_SCRAPE_INTERVAL * 1000:.0f}ms",
            "static_configs": [
                {"targets": [f"127.0.0.1:{each.port}"], "labels": {"exporter": each.name}} for each in victims
            ],
        }
        server = stack.enter_context(prometheus(scrapes=[scrape]))
        for victim in victims:
            stack.callback(victim.close)
            victim.start()
        for victim in victims:
            _await_result(server, f'{STEPS}{{exporter="{victim.name}",run="{STEADY}"}}')
        for victim in victims:
            victim.begin(kills)
        for victim in victims:
            victim.finish()
        for victim in victims:
            _read(server, victim, began)
        return {victim.name: victim.count for victim in victims}


def _read(server: Prometheus, victim: Victim, began: float) -> None:
    """Read what Prometheus holds, once it has scraped the end of the run."""
    count = victim.count
    selector = f'exporter="{victim.name}",rank="0"'
    _await_result(server, f'stallscope_training_state{{{selector},run="{STEADY}",state="finished"}} == 1')
    window = f"{time.time() - began + 1:.0f}s"
    ends: dict[str, str] = {}
    counters = f'{{__name__=~"stallscope_training_.+_(total|count|sum|bucket)",{selector}}}[{window}]'
    for series in server.get("query", query=counters)["data"]["result"]:
        labels, values = series["metric"], [float(value) for _at, value in series["values"]]
        run, name = labels["run"], labels["__name__"]
        if name == STEPS:
            count.last[run] = values[-1]
            count.scrapes = max(count.scrapes, len(values))
            ends[run] = str(series["values"][-1][0])
        if name != RESTARTS:
            falls = sum(after < before for before, after in pairwise(values))
            count.falls[run] = max(count.falls.get(run, 0), falls)
    for run in count.steps:
        increase = f'increase({STEPS}{{{selector},run="{run}"}}[{window}])'
        # At the last sample, or it would add what it expects since then.
        (series,) = server.get("query", query=increase, time=ends[run])["data"]["result"]
        count.increase[run] = float(series["value"][1])


def _await_result(server: Prometheus, query: str) -> None:
    until(
        lambda: server.get("query", query=query)["data"]["result"],
        f"Prometheus has nothing for {query}",
        seconds=_DEADLINE,
    )


def _await_counters(port: int) -> None:
    def shown() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            return f'{STEPS}{{run="{STEADY}"'.encode() in page.read()

    until(shown, f"the exporter at port {port} has not shown the run", seconds=_DEADLINE)


def _lines(counts: dict[str, Count]) -> Iterator[str]:
    for name, count in counts.items():
        yield f"{name}: {count.kills} kills, {count.scrapes} scrapes with counters"
        for run, steps in count.steps.items():
            yield (
                f"  {run}: {steps} steps in {count.sessions[run]} sessions, increase() {count.increase[run]:.0f} "
                f"({count.error(run):+.2%}), last value {count.last[run]:.0f}, {count.falls[run]} falls of a counter"
            )


if __name__ == "__main__":
    print("\n".join(_lines(counted(int(sys.argv[1]) if len(sys.argv) > 1 else 30))))
