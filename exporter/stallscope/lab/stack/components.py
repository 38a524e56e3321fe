"""The stack's programs with their command lines and configuration, ready to start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stallscope.common.bundle import bundle_folder
from stallscope.lab.simulation.scenarios import Scenario, scenario
from stallscope.lab.stack.component import Component
from stallscope.lab.stack.configuration import write_alertmanager, write_prometheus
from stallscope.lab.stack.errors import StackError
from stallscope.lab.stack.grafana import grafana_component
from stallscope.lab.stack.ports import ADDRESS
from stallscope.lab.stack.programs import Programs
from stallscope.lab.stack.settings import RUN, Settings

_LONGEST_SOCKET_PATH = 100
_RETENTION = "1d"
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
"""Limits the demonstration to one CPU."""


def build_components(
    settings: Settings, programs: Programs, folder: Path, scenario: Scenario | None
) -> list[Component]:
    """Write and check the configuration of every program, and describe the programs; nothing runs yet.

    Raises:
        StackError: a program rejects its configuration; the message has the program's output.
    """
    (folder / "logs").mkdir(exist_ok=True)
    socket = _socket(folder)
    components = [
        _exporter(settings, folder, scenario, simulates_host=bool(scenario and scenario.simulates_host)),
        _prometheus(settings, programs, folder),
        _alertmanager(settings, programs, folder),
    ]
    if settings.training_job:
        components.append(_training_job(settings, folder, socket, scenario))
    if programs.grafana:
        components.append(
            grafana_component(
                programs.grafana,
                folder,
                bundle_folder("grafana"),
                settings.grafana,
                settings.prometheus,
                settings.alertmanager,
            )
        )
    return components


def repaired_exporter(settings: Settings, folder: Path, faulty: Scenario) -> Component:
    """Describe the exporter after the scenario's fault: a healthy job on other GPUs, without the run before."""
    return _exporter(
        settings,
        folder,
        scenario("repaired"),
        simulates_host=faulty.simulates_host,
        state_file="reports-after-the-fault.state",
    )


def _socket(folder: Path) -> Path | None:
    """Return the path of the exporter's socket. The kernel limits its length; beyond it, reports arrive by UDP only."""
    socket = folder / "report.sock"
    return None if len(os.fsencode(socket)) > _LONGEST_SOCKET_PATH else socket


def _exporter(
    settings: Settings,
    folder: Path,
    scenario: Scenario | None,
    *,
    simulates_host: bool,
    state_file: str = "reports.state",
) -> Component:
    address = f"{ADDRESS}:{settings.exporter.number}"
    command = [
        *(sys.executable, "-m", "stallscope", "exporter"),
        f"--web.listen-address={address}",
        f"--report.unix-socket={_socket(folder) or ''}",
        f"--report.udp-address={address}",
        f"--report.state-file={folder / state_file}",
        f"--prometheus.url={settings.prometheus.url}",
    ]
    if scenario:
        command += [f"--simulation.scenario={scenario.name}", f"--simulation.onset={scenario.onset:.3f}s"]
        command += ["--simulation.host"] if simulates_host else []
    return Component("the exporter", command, folder / "logs" / "exporter.log")


def _prometheus(settings: Settings, programs: Programs, folder: Path) -> Component:
    file = write_prometheus(
        bundle_folder("prometheus"),
        folder,
        exporter=settings.exporter,
        alertmanager=settings.alertmanager,
    )
    _have_checked(programs.promtool, "check", "config", file)
    command = [
        _found(programs.prometheus),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--storage.tsdb.retention.time={_RETENTION}",
        # Alerts that fire before Alertmanager is discovered are dropped and resent after this delay (default 1m).
        "--rules.alert.resend-delay=5s",
        # Alerts with a shorter `for` than this restart after a restart of Prometheus (default 10m).
        "--rules.alert.for-grace-period=30s",
        f"--web.listen-address={ADDRESS}:{settings.prometheus.number}",
        f"--web.external-url={settings.prometheus.url}/",
    ]
    return Component("Prometheus", command, folder / "logs" / "prometheus.log")


def _alertmanager(settings: Settings, programs: Programs, folder: Path) -> Component:
    file = write_alertmanager(bundle_folder("alerts"), folder, webhook=settings.webhook)
    _have_checked(programs.amtool, "check-config", file)
    command = [
        _found(programs.alertmanager),
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={ADDRESS}:{settings.alertmanager.number}",
        f"--web.external-url={settings.alertmanager.url}/",
        "--cluster.listen-address=",  # a single Alertmanager needs no cluster port
    ]
    return Component("Alertmanager", command, folder / "logs" / "alertmanager.log")


def _training_job(settings: Settings, folder: Path, socket: Path | None, scenario: Scenario | None) -> Component:
    address = f"unix://{socket}" if socket else f"udp://{ADDRESS}:{settings.exporter.number}"
    environment = {"STALLSCOPE_ADDRESS": address, "STALLSCOPE_RUN": RUN, "STALLSCOPE_DISABLE": "0", **_ONE_THREAD}
    command = [sys.executable, "-m", "stallscope.lab.stack.training_job"]
    if scenario and scenario.coupled:
        command.append("0")
    return Component("the training job", command, folder / "logs" / "training-job.log", environment)


def _found(program: str | None) -> str:
    assert program is not None, "the launcher checks for missing programs first"
    return program


def _have_checked(program: str | None, *arguments: str | Path) -> None:
    """Check a configuration with the program's own tool, if that is installed."""
    if program is None:
        return
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()
        raise StackError(f"{Path(program).name} rejects the bundle's configuration:\n{output}")
