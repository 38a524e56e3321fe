"""Run a local stack: exporter, Prometheus, Alertmanager and a training job on this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from stallscope.common.local_stack import newest_stack
from stallscope.lab.simulation.scenarios import SCENARIOS, scenario
from stallscope.node.configuration import parse_duration
from stallscope.tools.cli._extras import missing
from stallscope.tools.cli._parser import Parser

_DEFAULT_SCENARIO = "thermal_throttle"
_SERVICES = (
    ("exporter", "the exporter", 19400),
    ("prometheus", "Prometheus", 19090),
    ("alertmanager", "Alertmanager", 19093),
    ("grafana", "Grafana", 13000),
)
"""Flag, name and default port of each service."""
_HIGHEST_PORT = 65_535
_LONGEST_SECONDS = 86_400.0


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "up",
        usage="stallscope up [flags]",
        description="Run exporter, Prometheus, Alertmanager (and Grafana if it is installed) with the bundled "
        "configuration and a small real training job. Wait until data flows, then print verdicts and alerts until "
        "Ctrl-C. All services listen on 127.0.0.1 only. GPUs are simulated if no NVIDIA driver responds.",
        examples={
            "stallscope up": "the whole stack, with a simulated overheating GPU on a machine without GPUs",
            "stallscope up --scenario gpu_lost --scenario.onset 5": "another fault, after five seconds",
            "stallscope up --end": "in another terminal: end the fault, and see its alerts resolve",
            "stallscope up --once --data-dir stack": "check that the stack starts; keep its files",
        },
        notes="Exit status: 0 if it was stopped, 1 if something failed, 2 for an invalid command line.",
    )
    ports = made.add_argument_group("ports")
    for service, title, number in _SERVICES:
        ports.add_argument(
            f"--{service}.port",
            type=_port,
            metavar="PORT",
            help=f"port of {title} (default: {number}, or a higher one if a default port is in use)",
        )
    made.add_argument(
        "--scenario",
        default=_DEFAULT_SCENARIO,
        metavar="NAME",
        help="scenario of the simulated GPUs and their job; --list-scenarios lists them (default: %(default)s)",
    )
    made.add_argument(
        "--end",
        action="store_true",
        help="end the fault of the stack that runs in another terminal, so that its alerts resolve, and exit",
    )
    made.add_argument("--list-scenarios", action="store_true", help="print one scenario per line, and exit")
    made.add_argument(
        "--scenario.onset",
        dest="onset",
        type=_seconds,
        default=30.0,
        metavar="TIME",
        help="time until the scenario's fault begins, in seconds or such as 2m (default: %(default)g)",
    )
    # The help is set afterwards, since Python 3.10 would append its own text about the default.
    job = made.add_argument("--training-job", action=argparse.BooleanOptionalAction, default=True)
    job.help = "run the small training job (default: yes)"
    made.add_argument(
        "--alertmanager.webhook", dest="webhook", metavar="URL", help="send notifications to this URL (default: none)"
    )
    made.add_argument(
        "--data-dir", type=Path, metavar="FOLDER", help="folder to write to and keep (default: a temporary folder)"
    )
    install = made.add_argument("--install", action=argparse.BooleanOptionalAction, default=True)
    install.help = "on Debian and Ubuntu, install missing programs with apt-get (default: yes)"
    made.add_argument("--once", action="store_true", help="exit as soon as data flows")
    made.add_argument(
        "--timeout",
        type=_seconds,
        default=120.0,
        metavar="TIME",
        help="time limit until data flows, in seconds or such as 2m (default: %(default)g)",
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 0 if it was stopped, 1 if something failed, 2 for an invalid command line."""
    command_line = parser()
    parsed = command_line.parse_args(arguments)
    if parsed.list_scenarios:
        width = max(map(len, SCENARIOS))
        for each in SCENARIOS.values():
            print(f"{each.name:<{width}}  {each.description}")
        return 0

    if parsed.end:
        return _end_fault()
    try:
        from stallscope.lab.stack import launcher
        from stallscope.lab.stack.errors import StackError
        from stallscope.lab.stack.ports import Port
        from stallscope.lab.stack.settings import Settings
    except ModuleNotFoundError as error:
        return missing("up", error, "up")

    ports = {}
    for service, title, number in _SERVICES:
        chosen = getattr(parsed, f"{service}.port")
        ports[service] = Port(
            title, chosen or number, f"--{service}.port", datagrams=service == "exporter", chosen=chosen is not None
        )
    try:
        settings = Settings(
            **ports,
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


def _end_fault() -> int:
    """Request the end of the running stack's fault; return the exit status."""
    stack = newest_stack()
    if stack is None or stack.pid <= 0:
        print("stallscope up: no stack of this user is running; start one with `stallscope up`", file=sys.stderr)
        return 1
    if not stack.fault:
        print(
            "stallscope up: the running stack simulates no fault; name one with --scenario when you start it",
            file=sys.stderr,
        )
        return 1
    try:
        os.kill(stack.pid, signal.SIGUSR1)
    except OSError as problem:
        print(f"stallscope up: the stack can't be signalled: {problem.strerror}; end it with Ctrl-C", file=sys.stderr)
        return 1
    print(f"the fault of scenario {stack.fault} ends; most alerts resolve within 15 minutes")
    return 0


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _HIGHEST_PORT):
        raise argparse.ArgumentTypeError(f"expected a port from 1 to {_HIGHEST_PORT}, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if text.replace(".", "", 1).isdecimal() else parse_duration(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"expected a time above 0, at most 1d, such as 30 (seconds) or 2m, got {text!r}"
        )
    return seconds
