"""`stallscope record --pages`: an exporter's pages once a second, in a file that `stallscope replay` judges."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from stallscope.common.version import __version__
from stallscope.lab.replay.pages import MAX_BYTES, Writer
from stallscope.lab.stack.component import Component, stop_all
from stallscope.lab.stack.ports import ADDRESS, Port, reserved_ports
from stallscope.model.clients.address import default_exporter
from stallscope.model.clients.exporter import ExporterClient, ExporterError
from stallscope.tools.cli._progress import progress

INTERVAL = 1.0
"""Seconds between two pages."""
_MASKED = re.compile(r'(?<=[{,])(user|pod|namespace|container|workload|queue|hostname|slurm_job)="((?:[^"\\]|\\.)+)"')
"""Labels whose values may name people, their projects or machines."""
_START_SECONDS = 20.0
_POLL_SECONDS = 0.2
_PORT = 19400


class NoPagesError(Exception):
    """No exporter responds; the message is one line."""


class Done(NamedTuple):
    """Result of a recording."""

    pages: int
    errors: int
    """Requests that returned no page."""
    ended: str
    """Why the recording ended early; empty if it did not."""


class Mask:
    """Replaces the values of some labels by numbers, each always by the same one."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], str] = {}

    def __call__(self, page: str) -> str:
        """Return the page without these values."""
        return _MASKED.sub(self._masked, page)

    def _masked(self, found: re.Match[str]) -> str:
        label, value = found.groups()
        number = self._numbers.setdefault((label, value), f"{label}-{len(self._numbers) + 1}")
        return f'{label}="{number}"'


@contextmanager
def exporter(address: str) -> Iterator[ExporterClient]:
    """Yield the exporter at an address; without an address this node's, or one that runs during the block.

    Raises:
        NoPagesError: none responds.
    """
    client = ExporterClient(address or default_exporter())
    try:
        client.read()
    except ExporterError as problem:
        client.close()
        if address:
            raise NoPagesError(f"{client.name}: {problem}") from None
    else:
        with closing(client):
            yield client
        return
    with _own_exporter() as own:
        yield own


@contextmanager
def _own_exporter() -> Iterator[ExporterClient]:
    ports = [Port("the exporter", _PORT, "--exporter.url", datagrams=True, chosen=False)]
    with tempfile.TemporaryDirectory() as folder, reserved_ports(ports, _show) as (port,):
        command = [sys.executable, "-m", "stallscope", "exporter", f"--web.listen-address={ADDRESS}:{port.number}"]
        command += [f"--report.udp-address={ADDRESS}:{port.number}"]
        component = Component("the exporter", command, Path(folder) / "exporter.log")
        component.start()
        try:
            client = ExporterClient(port.address)
            deadline = time.monotonic() + _START_SECONDS
            while True:
                try:
                    client.read()
                    break
                except ExporterError as problem:
                    if component.ended or time.monotonic() > deadline:
                        raise NoPagesError(
                            f"an own exporter did not start ({component.ended or problem}):\n{component.log_tail()}"
                        ) from None
                time.sleep(_POLL_SECONDS)
            _show(f"no exporter responded: one was started at {port.address} for the recording")
            with closing(client):
                yield client
        finally:
            stop_all([component])


def header(client: ExporterClient, *, masked: bool, capture: str) -> dict[str, Any]:
    """Return what identifies a recording: time, versions, machine. No password, token or command line is in it."""
    return {
        "stallscope": __version__,
        "start": round(time.time(), 3),
        "interval": INTERVAL,
        "instance": "recorded" if masked else f"{platform.node()}:{client.port}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "masked": masked,
        "capture": capture,
    }


def write_pages(
    file: BinaryIO,
    client: ExporterClient,
    about: dict[str, Any],
    *,
    duration: float,
    stop: threading.Event,
    mask: Callable[[str], str] | None = None,
    max_bytes: int = MAX_BYTES,
    quiet: bool = False,
) -> Done:
    """Write one page each second.

    Args:
        file: opened for writing.
        client: the exporter.
        about: the header.
        duration: seconds.
        stop: ends the recording early.
        mask: changes each page.
        max_bytes: ends the recording when the file is larger.
        quiet: show no progress.

    Raises:
        OSError: the file can't be written.
    """
    writer = Writer(file, about)
    pages = errors = 0
    ended = ""
    begin = time.monotonic()
    try:
        with progress("Recording", total=duration, quiet=quiet) as advance:
            for number in range(round(duration / INTERVAL) + 1):
                if stop.wait(max(0.0, begin + number * INTERVAL - time.monotonic())):
                    ended = "interrupted"
                    break
                moment = time.monotonic() - begin
                try:
                    page = client.read()
                except ExporterError as problem:
                    writer.write_error(moment, str(problem))
                    errors += 1
                else:
                    writer.write(moment, mask(page) if mask else page)
                    pages += 1
                advance(INTERVAL)
                if writer.size > max_bytes:
                    ended = f"the file has {max_bytes // 2**20} MiB"
                    break
    finally:
        writer.close()
    return Done(pages, errors, ended)


def _show(line: str) -> None:
    print(line, file=sys.stderr)
