"""A real VictoriaMetrics with vmalert, for the duration of a test."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.free_ports import free_port
from tests.prometheus_server import Prometheus
from tests.waiting import until

PROGRAMS = ("victoria-metrics", "vmalert")


@dataclass(frozen=True)
class VictoriaMetrics(Prometheus):
    """A running VictoriaMetrics."""

    port: int


def missing() -> list[str]:
    """Return the programs that are not on PATH."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


@contextmanager
def victoria_metrics(folder: Path) -> Iterator[VictoriaMetrics]:
    """Run a VictoriaMetrics without data.

    Args:
        folder: where it keeps data and log.
    """
    port = free_port()
    flags = (
        f"-storageDataPath={folder / 'victoria-metrics'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=1d",
        # Else its answers are half a minute old, and what a test writes into the past stays unseen.
        "-search.latencyOffset=0s",
        "-search.disableCache",
        "-memory.allowedPercent=10",
        "-loggerLevel=WARN",
    )
    with _running(folder, "victoria-metrics", *flags):
        until(
            lambda: _answers(f"http://127.0.0.1:{port}/health"),
            "nothing answers at " + f"http://127.0.0.1:{port}/health",
        )
        yield VictoriaMetrics(f"http://127.0.0.1:{port}", port)


@contextmanager
def vmalert(folder: Path, storage: VictoriaMetrics, files: Sequence[Path], interval: int) -> Iterator[None]:
    """Evaluate rules on the data of a VictoriaMetrics, and write the results into it; alerts notify no one.

    Args:
        folder: for its log.
        storage: read and written.
        files: of rules and alerts.
        interval: seconds between two evaluations.
    """
    port = free_port()
    flags = (
        *(f"-rule={path}" for path in files),
        f"-datasource.url={storage.address}",
        f"-remoteWrite.url={storage.address}",
        "-remoteWrite.flushInterval=200ms",
        f"-evaluationInterval={interval}s",
        # It insists on having one as soon as there are alerts; a port that refuses costs nothing.
        "-notifier.url=http://127.0.0.1:1",
        "-disableAlertgroupLabel",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-loggerLevel=ERROR",
    )
    with _running(folder, "vmalert", *flags):
        until(
            lambda: _answers(f"http://127.0.0.1:{port}/health"),
            "nothing answers at " + f"http://127.0.0.1:{port}/health",
        )
        yield


@contextmanager
def _running(folder: Path, program: str, *flags: str) -> Iterator[None]:
    with ExitStack() as stack:
        log = stack.enter_context((folder / f"{program}.log").open("wb"))
        process = stack.enter_context(subprocess.Popen([program, *flags], stderr=log, stdout=log))
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=30).close()
    except OSError:
        return False
    return True
