"""A machine with stand-in GPUs, the real exporter process on it, and what its `/metrics` shows."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.nvml_library.stand_in import NvmlStandIn
from tests.waiting import until

INTERVAL = 0.2
DEADLINE = 60.0
"""Seconds: generous, since every wait ends as soon as what it waits for is there."""
SOURCE_UP = "stallscope_exporter_source_up"
READINGS = "stallscope_exporter_source_readings_total"
FAILURES = "stallscope_exporter_source_failures_total"
STUCK_THREADS = "stallscope_exporter_source_stuck_threads"
REJECTED = "stallscope_exporter_values_rejected_total"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Page:
    """One page, by names and labels; names of GPU families go without their prefix.

    Parsed by name on demand: most conditions read two of about a hundred families.
    """

    def __init__(self, text: str, *, openmetrics: bool = False) -> None:
        self.text = text
        self._lines: dict[str, list[str]] = {}
        self._read: dict[str, list[tuple[dict[str, str], float]]] = {}
        if openmetrics:  # whose samples mean nothing without the lines before them
            for family in parse_openmetrics(text):
                for sample in family.samples:
                    self._read.setdefault(sample.name, []).append((sample.labels, sample.value))
        else:
            for line in text.splitlines():
                if not line.startswith("#"):
                    self._lines.setdefault(line.partition(" ")[0].partition("{")[0], []).append(line)

    def _named(self, name: str) -> list[tuple[dict[str, str], float]]:
        if name not in self._read:
            families = text_string_to_metric_families("".join(f"{line}\n" for line in self._lines.get(name, ())))
            self._read[name] = [(sample.labels, sample.value) for family in families for sample in family.samples]
        return self._read[name]

    def series(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of every series of that name that has these labels."""
        found = self._named(name) or self._named(f"stallscope_gpu_{name}")
        return [(has, value) for has, value in found if labels.items() <= has.items()]

    def get(self, name: str, **labels: str) -> float | None:
        """The value of the only such series, or None."""
        found = self.series(name, **labels)
        assert len(found) <= 1, f"{name}{labels} is ambiguous"
        return found[0][1] if found else None

    def all(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Name, labels and value of every series."""
        for name in list(self._lines or self._read):
            for labels, value in self._named(name):
                yield name, labels, value

    def families(self, uuid: str) -> set[str]:
        """Which series a GPU has, without the prefix."""
        return {name.removeprefix("stallscope_gpu_") for name, labels, _ in self.all() if labels.get("uuid") == uuid}

    def state(self, uuid: str) -> str | None:
        """`up`, or the reason for which a GPU is down; None where nothing is said of it."""
        up, reasons = self.get("up", uuid=uuid), [labels["reason"] for labels, _ in self.series("lost_info", uuid=uuid)]
        assert len(reasons) == (up == 0), f"{uuid}: up is {up} and the reasons are {reasons}"
        return reasons[0] if reasons else None if up is None else "up"

    def summary(self) -> str:
        """The log lines that report faults."""
        reported = re.compile(r"stallscope_(gpu_(up|lost|last|xid)|exporter_(source|values|driver))")
        return "\n".join(line for line in self.text.splitlines() if reported.match(line))

    def read_at(self, uuid: str) -> float:
        """When a GPU last answered."""
        return self.get("last_reading_timestamp_seconds", uuid=uuid) or 0.0

    def uuids(self) -> set[str]:
        """Every GPU and instance that the page knows."""
        return {labels["uuid"] for labels, _ in self.series("info")}


class Machine:
    """Stand-in GPUs, the kernel's list of them, and an exporter that reads both."""

    def __init__(self, folder: Path, *, gpus: int = 4, interval: float = INTERVAL) -> None:
        """Set the machine up; `start` starts the exporter."""
        self.node = NvmlStandIn(folder, gpus=gpus)
        self.interval = interval
        self._kernel = folder / "proc/driver/nvidia/gpus"
        self._kernel.mkdir(parents=True)
        self._folder = folder
        self.lines: list[str] = []
        """Return the exporter's log."""
        self._news = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._connection: http.client.HTTPConnection | None = None
        self._address = ""
        self.without_library = False
        self.notice_hardware()

    def hide_hardware(self) -> None:
        """Let the kernel list no GPU, as without the kernel module."""
        for each in self._kernel.iterdir():
            each.rmdir()

    def show_on_the_bus(self, *vendors: str, driver: str = "") -> None:
        """Let the PCI bus list one display controller for each vendor, and nothing else, bound to a kernel driver."""
        bus = self._folder / "sys/bus/pci/devices"
        bus.mkdir(parents=True, exist_ok=True)
        for number, vendor in enumerate(vendors):
            device = bus / f"0000:{number:02x}:00.0"
            device.mkdir()
            (device / "vendor").write_text(f"{vendor}\n")
            (device / "class").write_text("0x030200\n")
            if driver:
                (device / "driver").symlink_to(self._folder / "sys/bus/pci/drivers" / driver)

    def start(self, *flags: str) -> None:
        """Start the exporter, and wait until it answers."""
        command = [sys.executable, "-m", "stallscope", "exporter", "--web.listen-address=127.0.0.1:0"]
        command += ["--report.unix-socket=", "--report.udp-address=", "--collector.disable-defaults"]
        command += ["--collector.nvidia", "--collector.process", f"--path.rootfs={self._folder}"]
        command += [f"--sampling.interval={self.interval * 1000:.0f}ms", *flags]
        settings = os.environ | ({} if self.without_library else self.node.environment)
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=settings)
        self._log = threading.Thread(target=self._read_log)
        self._log.start()
        self._address = self.logged(r"msg=answering.* url=http://(\S+)/")[1]

    def close(self) -> None:
        """Kill the exporter: one whose threads hang in the library ends no other way."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._log.join()
            assert self._process.stderr is not None
            self._process.stderr.close()

    @property
    def process(self) -> subprocess.Popen[str]:
        """The exporter's."""
        assert self._process is not None
        return self._process

    def uuid(self, index: int) -> str:
        """The GPU that is there now."""
        return self.node.gpu[index].uuid.decode()

    def uuids(self) -> list[str]:
        """Those of the GPUs that the driver shows now, by index."""
        return [gpu.uuid.decode() for gpu in self.node.gpu]

    def notice_hardware(self) -> None:
        """Let the kernel list the GPUs that are there now."""
        self.hide_hardware()
        for slot in self.node.control.slot[: self.node.gpu_count]:
            (self._kernel / f"0000:{0x10 + slot:02x}:00.0").mkdir()

    def fetch(self, path: str = "/metrics", *, method: str = "GET", accept: str = "text/plain") -> str:
        """Return the response of the exporter."""
        kept = self._connection is not None
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._address, timeout=DEADLINE)
        try:
            self._connection.request(method, path, headers={"Accept": accept})
            answer = self._connection.getresponse()
            text = answer.read().decode()
        except ConnectionError:
            self._connection.close()
            self._connection = None
            if not kept:
                raise
            return self.fetch(path, method=method, accept=accept)  # an idle connection that the server closed
        assert answer.status in {200, 202}, f"{path}: {answer.status} {text}"
        return text

    def fetch_at_once(self, number: int) -> None:
        """Fetch the metrics on many connections at once."""

        def fetch(url: str) -> None:
            with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
                answer.read()

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(fetch, [f"http://{self._address}/metrics"] * number))

    def post(self, path: str) -> str:
        """Send the exporter a POST request."""
        return self.fetch(path, method="POST")

    def held_files(self) -> list[str]:
        """The device files that the exporter holds open."""
        return self.node.held_files(self.process.pid)

    def page(self) -> Page:
        """The newest page."""
        return Page(self.fetch())

    def until(self, condition: Callable[[Page], object]) -> Page:
        """The first page that is as wanted; fails with the last one seen where none comes."""
        return until(
            lambda: page if condition(page := self.page()) else None,
            lambda: f"no page was as awaited; the last:\n{self.page().summary()}\n{self.log()}",
            seconds=DEADLINE,
            pause=self.interval / 3,
            errors=(),
        )

    def until_healthy(self, condition: Callable[[Page], object] = lambda page: True) -> Page:
        """The first page that is as wanted, and on which every GPU that the driver shows is up, with readings.

        Requirements for healthy GPUs belong in the condition: after a moment in which the machine stood still,
        any of them may be stale on a page or two.
        """
        return self.until(
            lambda page: (
                page.get(SOURCE_UP, source="nvidia") == 1
                and all(page.state(uuid) == "up" and page.series("power_watts", uuid=uuid) for uuid in self.uuids())
                and condition(page)
            )
        )

    def until_newer(self, page: Page) -> Page:
        """A page of a later round: another source was read since, and once more after a page had shown that."""
        for _ in range(2):
            stood = page.get(READINGS, source="process") or 0.0
            page = self.until(lambda newer, stood=stood: (newer.get(READINGS, source="process") or 0.0) > stood)  # type: ignore[misc]
        return page

    def logged(self, pattern: str, *, since: int = 0) -> re.Match[str]:
        """Wait for a line that matches; the first `since` may report an earlier event."""

        def found() -> re.Match[str] | None:
            return next((match for line in self.lines[since:] if (match := re.search(pattern, line))), None)

        with self._news:
            assert self._news.wait_for(found, timeout=DEADLINE), self.log()
            match = found()
            assert match is not None
            return match

    def log(self) -> str:
        """The last lines logged."""
        return "".join(self.lines[-30:])

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Machine]:
    """A machine whose GPUs are all up."""
    machine = Machine(folder)
    try:
        machine.start()
        machine.until_healthy()
        yield machine
    finally:
        machine.close()
