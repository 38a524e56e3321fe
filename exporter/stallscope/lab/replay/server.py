"""A Prometheus that holds a recording and its verdicts, so that every view can show them."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TextIO

from stallscope.common.bundle import bundle_folder
from stallscope.lab.replay.verdicts import INTERVAL, Replayed, is_unix_time
from stallscope.lab.stack.component import Component, stop_all
from stallscope.lab.stack.grafana import grafana_component
from stallscope.lab.stack.ports import ADDRESS, Port, reserved_ports
from stallscope.lab.stack.programs import Programs
from stallscope.lab.stack.signals import stop_signals
from stallscope.model.clients.prometheus import Prometheus, PrometheusError

_PORTS = (
    Port("Prometheus", 19090, "--open", chosen=False),
    Port("the recorded exporter", 19490, "--open", chosen=False),
    Port("Grafana", 13000, "--open", chosen=False),
)
_START_SECONDS = 60.0
_POLL_SECONDS = 0.2
_LOOKBACK_SECONDS = INTERVAL + 5
"""A series that the recording no longer has ends here: backfilled data have no marks of an end."""


class ServerError(Exception):
    """Prometheus does not serve the recording; the message is the reason."""


RecordedExporter = Callable[[Port, str, float], AbstractContextManager[None]]
"""Serves the recorded pages during a block. Its arguments are its port, the URL of a Prometheus with the recording, and
the Unix time of the recording's start there."""


def serve(
    replayed: Replayed, programs: Programs, show: Callable[[str], None], recorded_exporter: RecordedExporter
) -> None:
    """Serve a recording until Ctrl-C.

    Args:
        replayed: results with all recorded series.
        programs: paths of Prometheus, promtool, and Grafana if it is installed.
        show: prints a line.
        recorded_exporter: serves the recorded pages.

    Raises:
        ServerError: a program is missing or fails.
    """
    if programs.prometheus is None or programs.promtool is None:
        raise ServerError("--open needs Prometheus; install it, or put it on PATH")
    with tempfile.TemporaryDirectory(prefix="stallscope-replay-") as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        end = time.time()
        _backfill(replayed, programs.promtool, folder, end)
        (folder / "prometheus.yml").write_text("global: {}\n", encoding="utf-8")
        with reserved_ports(_PORTS[: 3 if programs.grafana else 2], show) as ports:
            server = Component(
                "Prometheus", _command(programs.prometheus, folder, ports[0]), folder / "logs" / "prometheus.log"
            )
            components = [server]
            if programs.grafana:
                components.append(
                    grafana_component(programs.grafana, folder, bundle_folder("grafana"), ports[2], ports[0], None)
                )
            with stop_signals() as stop:
                try:
                    for component in components:
                        component.start()
                    _wait(server, ports[0])
                    with recorded_exporter(ports[1], ports[0].url, _start(replayed, end)):
                        show(_addresses(replayed, ports))
                        while server.running and not stop.wait(_POLL_SECONDS):
                            pass
                finally:
                    stop_all(components)


def _command(prometheus: str, folder: Path, port: Port) -> list[str]:
    return [
        prometheus,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--query.lookback-delta={_LOOKBACK_SECONDS}s",
        f"--web.listen-address={ADDRESS}:{port.number}",
    ]


def _start(replayed: Replayed, end: float) -> int:
    """Return the Unix time of the recording's start if it ends at another one."""
    return int(end - replayed.seconds)


def _backfill(replayed: Replayed, promtool: str, folder: Path, end: float) -> None:
    file = folder / "samples.om"
    with file.open("w", encoding="utf-8") as out:
        write_samples(replayed, out, end=end)
    done = subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "data")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ServerError(f"promtool rejects the samples: {(done.stderr or done.stdout).strip()[-300:]}")
    file.unlink()


def write_samples(replayed: Replayed, out: TextIO, *, end: float) -> None:
    """Write scraped and recorded series as OpenMetrics text.

    Args:
        replayed: results with all recorded series.
        out: opened for writing.
        end: Unix time at the end of the recording; all times are moved.
    """
    start = _start(replayed, end)
    for series in replayed.series:
        moments = ((place * INTERVAL, value) for place, value in enumerate(series.values) if value is not None)
        _write_series(out, {"__name__": series.name, **series.labels}, moments, start)
    recorded: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    for moment, samples in sorted(replayed.answers.items()):
        for sample in samples:
            recorded.setdefault(tuple(sample.labels.items()), []).append((moment, sample.value))
    for labels, values in recorded.items():
        _write_series(out, dict(labels), values, start)
    out.write("# EOF\n")


def _write_series(out: TextIO, labels: Mapping[str, str], values: Iterable[tuple[float, float]], start: int) -> None:
    name = labels["__name__"]
    shift = start - 1.0 if is_unix_time(name) else 0.0
    text = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items() if label != "__name__" and value)
    out.writelines(f"{name}{{{text}}} {value + shift!r} {start + moment}\n" for moment, value in values)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _wait(server: Component, port: Port) -> None:
    prometheus = Prometheus(port.url, timeout=5.0)
    deadline = time.monotonic() + _START_SECONDS
    while problem := _problem(prometheus):
        if not server.running or time.monotonic() > deadline:
            raise ServerError(f"Prometheus does not start ({problem}):\n{server.log_tail()}")
        time.sleep(_POLL_SECONDS)


def _problem(prometheus: Prometheus) -> str:
    try:
        prometheus.query("vector(1)")
    except PrometheusError as problem:
        return str(problem)
    return ""


def _addresses(replayed: Replayed, ports: list[Port]) -> str:
    runs = [dict(subject)["run"] for subject in replayed.runs]
    lines = [f"Prometheus with the recording: {ports[0].url}"]
    if len(ports) > len(_PORTS) - 1:
        lines.append(f"Grafana: {ports[-1].url}")
    lines.append(f"status page, as it was: {ports[1].url}")
    lines.append(f"stallscope top --exporter.url {ports[1].url} --prometheus.url {ports[1].url}")
    lines += [f"stallscope report --run {run} --prometheus.url {ports[0].url}" for run in runs[:3]]
    return "\n".join([*lines, "Ctrl-C ends it"])
