"""The local stack: exporter, Prometheus, Alertmanager and a training job on this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

_DEFAULT_SCENARIO = "thermal_throttle"
_HIGHEST_PORT = 65_535
_LONGEST_SECONDS = 86_400.0


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 0 when it was stopped, 1 when something failed, 2 for a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="stallscope up",
        description="Run exporter, Prometheus, Alertmanager (and Grafana where it is installed) with the bundle's own "
        "configuration and a small real training job, wait until data flows, and tell of alerts until Ctrl-C. "
        "Everything listens on 127.0.0.1 only. Where no NVIDIA driver answers, GPUs are simulated.",
        allow_abbrev=False,
    )
    for service, number in (("exporter", 19400), ("prometheus", 19090), ("alertmanager", 19093), ("grafana", 13000)):
        parser.add_argument(
            f"--{service}.port", type=_port, default=number, metavar="PORT", help=f"port of {service} (%(default)s)"
        )
    parser.add_argument(
        "--scenario",
        default=_DEFAULT_SCENARIO,
        metavar="NAME",
        help="what the simulated GPUs and their job play (%(default)s)",
    )
    parser.add_argument(
        "--scenario.onset",
        dest="onset",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="time from the start to the scenario's fault (%(default)g)",
    )
    parser.add_argument(
        "--training-job", action=argparse.BooleanOptionalAction, default=True, help="run the small training job"
    )
    parser.add_argument(
        "--alertmanager.webhook", dest="webhook", metavar="URL", help="post notifications there (nowhere by default)"
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="FOLDER", help="write there and keep it (a temporary folder by default)"
    )
    parser.add_argument(
        "--install",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="on Debian and Ubuntu, install what is missing with apt-get",
    )
    parser.add_argument("--once", action="store_true", help="stop as soon as data flows")
    parser.add_argument(
        "--timeout", type=_seconds, default=120.0, metavar="SECONDS", help="time until data must flow (%(default)g)"
    )
    parsed = parser.parse_args(list(arguments))

    try:
        from stallscope.simulation.scenarios import scenario
        from stallscope.stack import launcher
        from stallscope.stack.errors import StackError
        from stallscope.stack.ports import Port
        from stallscope.stack.settings import Settings
    except ModuleNotFoundError as error:
        print(f"stallscope up needs {error.name}: pip install 'stallscope[up]'", file=sys.stderr)
        return 1

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
        parser.error(f"--scenario: {error}")
    try:
        return launcher.run(settings)
    except StackError as error:
        print(f"stallscope up: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 1


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _HIGHEST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 1 to {_HIGHEST_PORT}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0, at most {_LONGEST_SECONDS:g}")
    return seconds
