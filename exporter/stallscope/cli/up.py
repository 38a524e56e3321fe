"""The local stack: exporter, Prometheus, Alertmanager and a training job on this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from stallscope.cli._extras import missing
from stallscope.cli._parser import Parser
from stallscope.configuration import parse_duration
from stallscope.simulation.scenarios import SCENARIOS, scenario

_DEFAULT_SCENARIO = "thermal_throttle"
_SERVICES = (
    ("exporter", "the exporter", 19400),
    ("prometheus", "Prometheus", 19090),
    ("alertmanager", "Alertmanager", 19093),
    ("grafana", "Grafana", 13000),
)
"""Flag, name and usual port of each part that listens."""
_HIGHEST_PORT = 65_535
_LONGEST_SECONDS = 86_400.0


def parser() -> Parser:
    """The command line."""
    made = Parser(
        "up",
        usage="stallscope up [flags]",
        description="Run exporter, Prometheus, Alertmanager (and Grafana where it is installed) with the bundle's own "
        "configuration and a small real training job, wait until data flows, and tell of alerts until Ctrl-C. "
        "Everything listens on 127.0.0.1 only. Where no NVIDIA driver answers, GPUs are simulated.",
        examples={
            "stallscope up": "everything, with an overheating GPU simulated where there is none",
            "stallscope up --scenario gpu_lost --scenario.onset 5": "another fault, soon",
            "stallscope up --once --data-dir stack": "whether all of it comes up; what it wrote is kept",
        },
        notes="Exit status: 0 when it was stopped, 1 when something failed, 2 for a wrong command line.",
    )
    ports = made.add_argument_group("ports")
    for service, title, number in _SERVICES:
        ports.add_argument(
            f"--{service}.port",
            type=_port,
            default=number,
            metavar="PORT",
            help=f"port of {title} (default: %(default)s)",
        )
    made.add_argument(
        "--scenario",
        default=_DEFAULT_SCENARIO,
        metavar="NAME",
        help=f"what the simulated GPUs and their job play: {', '.join(SCENARIOS)} (default: %(default)s)",
    )
    made.add_argument(
        "--scenario.onset",
        dest="onset",
        type=_seconds,
        default=30.0,
        metavar="TIME",
        help="time from the start to the scenario's fault, in seconds or such as 2m (default: %(default)g)",
    )
    # Help comes afterwards, since Python 3.10 would add its own words on the default.
    job = made.add_argument("--training-job", action=argparse.BooleanOptionalAction, default=True)
    job.help = "run the small training job (default: yes)"
    made.add_argument(
        "--alertmanager.webhook", dest="webhook", metavar="URL", help="post notifications there (default: nowhere)"
    )
    made.add_argument(
        "--data-dir", type=Path, metavar="FOLDER", help="write there and keep it (default: a temporary folder)"
    )
    install = made.add_argument("--install", action=argparse.BooleanOptionalAction, default=True)
    install.help = "on Debian and Ubuntu, install what is missing with apt-get (default: yes)"
    made.add_argument("--once", action="store_true", help="stop as soon as data flows")
    made.add_argument(
        "--timeout",
        type=_seconds,
        default=120.0,
        metavar="TIME",
        help="time until data must flow, likewise (default: %(default)g)",
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 0 when it was stopped, 1 when something failed, 2 for a wrong command line."""
    command_line = parser()
    parsed = command_line.parse_args(arguments)

    try:
        from stallscope.stack import launcher
        from stallscope.stack.errors import StackError
        from stallscope.stack.ports import Port
        from stallscope.stack.settings import Settings
    except ModuleNotFoundError as error:
        return missing("up", error, "up")

    def port(service: str, flag: str, datagrams: bool = False) -> Port:
        return Port(service, getattr(parsed, f"{flag}.port"), f"--{flag}.port", datagrams)

    try:
        settings = Settings(
            exporter=port("the exporter", "exporter", datagrams=True),
            prometheus=port("Prometheus", "prometheus"),
            alertmanager=port("Alertmanager", "alertmanager"),
            grafana=port("Grafana", "grafana"),
            scenario=scenario(parsed.scenario, onset=parsed.onset),
            training_job=parsed.training_job,
            webhook=parsed.webhook,
            data_folder=parsed.data_dir,
            install=parsed.install,
            once=parsed.once,
            timeout=parsed.timeout,
        )
    except ValueError as error:
        command_line.error(f"--scenario: {error}")
    try:
        return launcher.run(settings)
    except StackError as error:
        print(f"stallscope up: {error}", file=sys.stderr)
        return 1


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _HIGHEST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 1 to {_HIGHEST_PORT}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if text.replace(".", "", 1).isdecimal() else parse_duration(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no time above 0 and at most 1d, such as 30 (seconds) or 2m")
    return seconds
