"""Start a server, watch what it costs, scrape it; or run a command to its end: what every benchmark needs."""

from __future__ import annotations

import http.client
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

SERVER_CPU, CLIENT_CPU = 1, 0


@dataclass(frozen=True)
class Scrapes:
    """Durations of a row of scrapes in milliseconds."""

    p50: float
    p99: float
    cpu: float
    """CPU time of the server for a scrape, net of its use without scrapes."""
    body: bytes


class Finished(NamedTuple):
    """Cost of a command from its start to its end."""

    output: bytes
    """Of its standard output."""
    seconds: float
    cpu: float
    """Seconds of all its threads."""
    megabytes: float
    """Most memory that it had, MiB."""


def finished(command: Sequence[str]) -> Finished:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed.
    """
    began = time.monotonic()
    # The environment's own limits on threads stay: what is measured is what a user gets.
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return Finished(output, time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


@contextmanager
def repeatedly(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Repeat an action during the measurement, with this pause before each time."""
    over = threading.Event()

    def act_until_over() -> None:
        while not over.wait(seconds):
            act()

    actor = threading.Thread(target=act_until_over)
    actor.start()
    try:
        yield
    finally:
        over.set()
        actor.join()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of the process so far, to the nanosecond (its CPU clock)."""
    return time.clock_gettime(~pid << 3 | 2)


def proportional_memory(pid: int) -> int:
    """PSS in bytes."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no Pss line")


@contextmanager
def running(command: Sequence[str], environment: dict[str, str], cpu: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server on one CPU, and end it."""
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


class Client:
    """A scraper with one keep-alive connection, as far as the server keeps it."""

    def __init__(self, port: int, *, gzip: bool) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._headers = {"Accept": "text/plain; version=0.0.4", "Accept-Encoding": "gzip" if gzip else "identity"}

    def get(self) -> bytes:
        """Scrape once."""
        self._connection.request("GET", "/metrics", headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"the server answered {response.status}")
        return body

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def first_page(port: int, wanted: bytes, started: float, timeout: float = 30) -> tuple[float, float]:
    """Seconds from `started` to the first answer, and to the first page that holds `wanted`."""
    answered: float | None = None
    while time.perf_counter() - started < timeout:
        client = Client(port, gzip=False)
        try:
            body = client.get()
        except (OSError, http.client.HTTPException):
            time.sleep(0.005)
            continue
        finally:
            client.close()
        now = time.perf_counter() - started
        answered = answered if answered is not None else now
        if wanted in body:
            return answered, now
        time.sleep(0.005)
    raise RuntimeError(f"no page with {wanted!r} within {timeout} s")


def scrape(port: int, pid: int, *, gzip: bool, idle_share: float, scrapes: int = 300, warm: int = 200) -> Scrapes:
    """Scrape back to back after a warm-up.

    Args:
        port: where the server listens.
        pid: the server's process.
        gzip: request gzip.
        idle_share: CPU share that the server uses without scrapes, subtracted.
        scrapes: how many are counted.
        warm: how many come first.
    """
    client = Client(port, gzip=gzip)
    try:
        for _ in range(warm):
            client.get()
        times = []
        cpu_before, began = cpu_seconds(pid), time.perf_counter()
        for _ in range(scrapes):
            start = time.perf_counter()
            body = client.get()
            times.append((time.perf_counter() - start) * 1000)
        wall, cpu = time.perf_counter() - began, cpu_seconds(pid) - cpu_before
    finally:
        client.close()
    times.sort()
    return Scrapes(
        p50=statistics.median(times),
        p99=times[int(len(times) * 0.99) - 1],
        cpu=max(0.0, cpu - idle_share * wall) / scrapes * 1000,
        body=body,
    )


def idle_share(pid: int, seconds: float) -> float:
    """Return the CPU share that the process uses without load."""
    before, began = cpu_seconds(pid), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.perf_counter() - began)
