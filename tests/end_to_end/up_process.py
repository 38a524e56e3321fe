"""`stallscope up` as a user's process, on ports and in folders of the test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.free_ports import free_ports

_MARK = "STALLSCOPE_TEST_MARK"


class Up:
    """A running `stallscope up`; everything it starts carries a mark in its environment."""

    def __init__(self, process: subprocess.Popen[str], screen: Path, mark: str, ports: dict[str, int]) -> None:
        self.process = process
        self.ports = ports
        self._screen = screen
        self._mark = mark

    @property
    def screen(self) -> str:
        """Return its screen output so far."""
        return self._screen.read_text(encoding="utf-8")

    def left_over(self) -> list[str]:
        """Command lines of what it started and what still lives."""
        lines = []
        for child in self.children():
            with suppress(psutil.NoSuchProcess):  # also a zombie: it has ended meanwhile
                lines.append(" ".join(child.cmdline()))
        return lines

    def wait_for(self, words: str, seconds: float) -> None:
        """Wait until the screen shows the words."""
        self.wait_until(lambda: words in self.screen, f"the screen does not show {words!r}", seconds)

    def wait_until(
        self, condition: Callable[[], object], complaint: str, seconds: float, *, running: bool = True
    ) -> None:
        """Wait until the condition holds; unless `running` is false, only while the command runs."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{complaint} after {seconds:g} s:\n{self.screen}"
            ended = running and self.process.poll() is not None
            assert not ended or condition(), f"{complaint}, and it has ended:\n{self.screen}"
            time.sleep(0.1)

    def kill_all(self) -> None:
        """End whatever is left, so that one failed test harms no other."""
        self.process.kill()
        self.process.wait()
        for child in self.children():
            with suppress(psutil.NoSuchProcess):
                child.kill()

    def children(self) -> Iterator[psutil.Process]:
        """Every living process of it, the launcher among them."""
        return (candidate for candidate in psutil.process_iter() if self._is_own(candidate))

    def _is_own(self, candidate: psutil.Process) -> bool:
        try:
            return candidate.environ().get(_MARK) == self._mark and candidate.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


@contextmanager
def started(folder: Path, *flags: str) -> Iterator[Up]:
    """Run the command until the end of the block."""
    ports = dict(zip(("exporter", "prometheus", "alertmanager", "grafana"), free_ports(4), strict=True))
    screen = folder / "screen"
    temporary = folder / "temporary files"
    temporary.mkdir()
    mark = f"{folder.name}-{os.getpid()}"
    command = [
        *(sys.executable, "-m", "stallscope", "up", "--no-install", "--timeout=180"),
        *(f"--{service}.port={port}" for service, port in ports.items()),
        *flags,
    ]
    with screen.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, _MARK: mark, "TMPDIR": str(temporary)},
            # A shell in the background may have had it ignored for all that it runs.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    up = Up(process, screen, mark, ports)
    try:
        yield up
    finally:
        up.kill_all()
