"""The day's own exporter, and the recording of its pages."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from stallscope.model.clients.exporter import ExporterClient, ExporterError
from tests.free_ports import free_port
from tests.hardware.day.child import Child
from tests.hardware.day.node import Node

_START_SECONDS = 30.0
_POLL_SECONDS = 0.1
_STOP_SECONDS = 15.0


class Exporter:
    """An exporter with one poll a second, in a process of its own."""

    def __init__(self, folder: Path, node: Node) -> None:
        """Start it, and wait for its first page with the GPU.

        Raises:
            StepError: there is none.
        """
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.address = f"unix://{folder / 'report.sock'}"
        """Where training reports go."""
        self.client = ExporterClient(self.url)
        self.child = Child(
            "exporter",
            [
                *("-m", "stallscope", "exporter", f"--web.listen-address=127.0.0.1:{port}"),
                *(f"--report.unix-socket={folder / 'report.sock'}", "--report.udp-address=", "--sampling.interval=1s"),
            ],
            folder / "exporter.log",
            node.variables,
        )
        self._began = time.monotonic()
        deadline = self._began + _START_SECONDS
        while "stallscope_gpu_up{" not in self.page():
            if self.child.wait(0) or time.monotonic() > deadline:
                self.child.end()
                raise self.child.failure("run `stallscope doctor` here")
            time.sleep(_POLL_SECONDS)

    def page(self) -> str:
        """Return the page; empty while the exporter does not respond."""
        try:
            return self.client.read()
        except ExporterError:
            return ""

    def cpu_share(self) -> float | None:
        """Return the CPU seconds a second since the start; None if it has ended."""
        seconds = self.child.cpu_seconds()
        return None if seconds is None else seconds / (time.monotonic() - self._began)

    def close(self) -> None:
        """End it."""
        self.client.close()
        self.child.end(seconds=_STOP_SECONDS)


class Recording:
    """`stallscope record --pages` in a process of its own."""

    def __init__(self, exporter: Exporter, output: Path, folder: Path, node: Node) -> None:
        """Start to record.

        Raises:
            StepError: it ended at once.
        """
        self._output = output
        self.child = Child(
            "recording",
            [
                *("-m", "stallscope", "record", "--pages", "60m", f"--exporter.url={exporter.url}", "--force"),
                str(output),
            ],
            folder / "record.log",
            node.variables,
        )
        self._began = time.monotonic()
        deadline = self._began + _START_SECONDS
        # The file begins with a capture of the driver, then a page a second follows.
        while not (output.exists() and output.stat().st_size):
            if self.child.wait(_POLL_SECONDS) or time.monotonic() > deadline:
                self.child.end(signal.SIGKILL)
                raise self.child.failure("see if the disk has room, and name another folder")

    def cpu_share(self) -> float | None:
        """Return the CPU seconds a second since the start; None if it has ended."""
        seconds = self.child.cpu_seconds()
        return None if seconds is None else seconds / (time.monotonic() - self._began)

    def close(self) -> str:
        """End it as Ctrl-C does, and return its last line.

        Raises:
            StepError: it failed.
        """
        self.child.end(signal.SIGINT, _STOP_SECONDS)
        if self.child.status:
            raise self.child.failure("free space on the disk, and run the day again")
        return self.child.last_line().replace(str(self._output), self._output.name)
