"""`stallscope up`: check, configure, start, wait until data flows, watch, and stop everything."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from stallscope.common.installation import install_command
from stallscope.common.local_stack import LocalStack, announced, runtime_folder
from stallscope.lab.simulation.scenarios import Scenario
from stallscope.lab.stack import installation, screen
from stallscope.lab.stack.component import Component, stop_all
from stallscope.lab.stack.components import build_components, repaired_exporter
from stallscope.lab.stack.driver import driver_answer
from stallscope.lab.stack.errors import StackError
from stallscope.lab.stack.ports import reserved_ports
from stallscope.lab.stack.programs import Programs, find_programs, require_version
from stallscope.lab.stack.readiness import (
    Check,
    has_alert,
    increasing,
    nonzero,
    responds,
    rules,
    unmuted_alerts,
    verdicts,
)
from stallscope.lab.stack.settings import RUN, WATCHDOG, Settings
from stallscope.lab.stack.signals import StopRequest, stop_signals
from stallscope.lab.stack.verdict_log import VerdictLog
from stallscope.model.clients.alertmanager import Alert, Alertmanager
from stallscope.model.clients.exporter import ExporterClient, ExporterError
from stallscope.model.clients.prometheus import Prometheus, PrometheusError

_POLL_SECONDS = 0.25
_WATCH_SECONDS = 2.0
_ANSWER_SECONDS = 2.0
_STATUS_PAGE_SECONDS = 60.0
"""Interval of requests for the status page. The exporter queries verdicts for two minutes after a request, so that the
page shows them at once."""


def run(settings: Settings) -> int:
    """Run the stack until it is stopped.

    Returns:
        0 if it was stopped (or, with `once`, if data flowed); 1 if a program ended by itself.

    Raises:
        StackError: the stack cannot start, or data did not flow in time; all programs are stopped.
    """
    # Cheap checks come before the installation of programs.
    if settings.training_job and importlib.util.find_spec("numpy") is None:
        raise StackError(f"the training job needs NumPy: {install_command('up')}, or leave it out: --no-training-job")
    grafana = [settings.grafana] if find_programs().grafana else []
    wanted = [settings.exporter, settings.prometheus, settings.alertmanager, *grafana]
    with reserved_ports(wanted, screen.say) as (exporter, prometheus, alertmanager, *grafana):
        settings = replace(settings, exporter=exporter, prometheus=prometheus, alertmanager=alertmanager)
        return _run(replace(settings, grafana=grafana[0]) if grafana else settings)


def _run(settings: Settings) -> int:
    programs = _programs(settings)
    driver = driver_answer()
    scenario = None if driver else settings.scenario
    if scenario and scenario.simulates_host and settings.training_job:
        # A real process is not among those of the simulated host.
        screen.say(f"scenario {scenario.name} needs a simulated host; the real training job is left out")
        settings = replace(settings, training_job=False)
    with _folder(settings.data_folder) as folder:
        components = build_components(settings, programs, folder, scenario)
        with stop_signals() as stop:
            try:
                return _live(settings, programs, folder, components, scenario, driver, stop)
            finally:
                # Stopped first, since printing may fail.
                stop_all(components)
                screen.say("stopped; no program is left running")


def _live(
    settings: Settings,
    programs: Programs,
    folder: Path,
    components: list[Component],
    scenario: Scenario | None,
    driver: str | None,
    stop: StopRequest,
) -> int:
    screen.say(screen.introduction(settings, scenario, driver))
    for component in components:
        component.start()
    alertmanager = Alertmanager(settings.alertmanager.url, timeout=_ANSWER_SECONDS)
    prometheus = Prometheus(settings.prometheus.url, timeout=_ANSWER_SECONDS)
    exporter = ExporterClient(settings.exporter.url, timeout=_ANSWER_SECONDS)
    checks = _checks(settings, exporter, prometheus, alertmanager, scenario)
    if not _wait(checks, components, settings.timeout, stop):
        return 1 if settings.once else 0
    if settings.once:
        return 0
    faulty = scenario if scenario and scenario.is_faulty else None

    def end_fault() -> None:
        if faulty is None:
            return
        stop_all(components[:1])
        components[0] = repaired_exporter(settings, folder, faulty)
        components[0].start()
        screen.say(screen.fault_ended(faulty))

    with _announced(settings, faulty):
        screen.say(screen.addresses(settings, scenario, programs))
        return _watch(components, exporter, prometheus, alertmanager, stop, end_fault)


@contextmanager
def _announced(settings: Settings, faulty: Scenario | None) -> Iterator[None]:
    """Let other commands find the stack for the duration of the block, if possible."""
    with ExitStack() as block:
        try:
            fault = faulty.name if faulty else ""
            stack = LocalStack(settings.exporter.url, settings.prometheus.url, os.getpid(), fault)
            block.enter_context(announced(stack))
        except OSError as error:
            screen.say(f"other commands need the addresses below: cannot write to {runtime_folder()}: {error.strerror}")
        yield


def _programs(settings: Settings) -> Programs:
    programs = find_programs()
    if programs.missing and settings.install and installation.can_install():
        installation.install(programs.missing, screen.say)
        programs = find_programs()
    if programs.missing:
        raise StackError(installation.instructions(programs.missing))
    require_version(programs.prometheus or "")
    return programs


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    """Yield the data folder: the user's own, or a temporary one that is removed unless the stack failed."""
    if kept is not None:
        try:
            kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StackError(f"cannot write to {kept}: {error.strerror}") from None
        if not os.access(kept, os.W_OK | os.X_OK):
            raise StackError(f"cannot write to {kept}: it belongs to another user")
        with (kept / "lock").open("ab") as lock:  # released with the process, however it ends
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StackError(f"{kept}: a running stack uses this folder; name another with --data-dir") from None
            yield kept.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="stallscope-up-"))
    try:
        yield folder
    except StackError:
        screen.say(f"logs and configuration are kept in {folder}")
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _checks(
    settings: Settings,
    exporter: ExporterClient,
    prometheus: Prometheus,
    alertmanager: Alertmanager,
    scenario: Scenario | None,
) -> list[Check]:
    simulated = "simulated " if scenario else ""
    host = "simulated" if scenario and scenario.simulates_host else "real"
    # In a kept folder, Prometheus still has the last minutes of an earlier stack, perhaps with other ports.
    fresh = f"and on (job, instance) timestamp(up) > {time.time():.3f}"
    hosts = f'count({{__name__=~"stallscope_host_.+"}} {fresh})'
    gpus = f"count(stallscope_gpu_up == 1 {fresh})"
    steps = f'sum(stallscope_training_step_seconds_count{{run="{RUN}"}} {fresh})'
    checks = [
        Check("exporter", "the exporter", responds(lambda: exporter.read("/-/ready"))),
        Check("Prometheus", "Prometheus", responds(prometheus.now)),
        Check("Alertmanager", "Alertmanager", responds(alertmanager.alerts)),
        Check(
            "host metrics",
            "the exporter",
            nonzero(prometheus, hosts, f"{{:.0f}} {host} series in Prometheus"),
        ),
        Check(
            "GPU metrics",
            "the exporter",
            nonzero(prometheus, gpus, f"{{:.0f}} {simulated}GPUs in Prometheus"),
        ),
        Check(
            "training steps",
            "the training job",
            increasing(prometheus, steps, f"{{:.0f}} real steps of {RUN}, and growing"),
        ),
        Check("rules", "Prometheus", lambda: rules(prometheus)),
        Check("alert", "Alertmanager", has_alert(alertmanager, WATCHDOG)),
    ]
    return checks if settings.training_job else [check for check in checks if check.component != "the training job"]


def _wait(checks: Sequence[Check], components: Sequence[Component], timeout: float, stop: StopRequest) -> bool:
    """Wait until all checks pass; return False if a stop was requested before."""
    screen.say("waiting until data flows")
    start = time.monotonic()
    for check in checks:
        while (found := _found(check)) is None:
            for component in components:
                if component.ended:
                    raise StackError(screen.end_of(component))
            if time.monotonic() - start > timeout:
                raise StackError(screen.timeout_of(check, components, timeout))
            if stop.wait(_POLL_SECONDS):
                return False
        screen.say(screen.found(check, found, time.monotonic() - start))
    return True


def _found(check: Check) -> str | None:
    try:
        return check.poll()
    except (ExporterError, PrometheusError, LookupError, TypeError):
        return None  # not listening yet, or an incomplete response


def _watch(
    components: Sequence[Component],
    exporter: ExporterClient,
    prometheus: Prometheus,
    alertmanager: Alertmanager,
    stop: StopRequest,
    end_fault: Callable[[], None],
) -> int:
    """Print new and changed verdicts, alerts, and programs that end, until a stop is requested."""
    due = 0.0
    log = VerdictLog()
    shown: dict[tuple[tuple[str, str], ...], Alert] = {}
    ended: set[str] = set()
    while not stop.wait(_WATCH_SECONDS):
        if stop.ends_fault:
            stop.ends_fault = False
            end_fault()
        for component in components:
            if component.ended and component.name not in ended:
                ended.add(component.name)
                screen.say(f"{screen.clock()}  {screen.end_of(component)}\nThe other programs keep running.")
        if len(ended) == len(components):
            break
        if time.monotonic() >= due:
            due = time.monotonic() + _STATUS_PAGE_SECONDS
            with suppress(ExporterError):  # its end is reported above
                exporter.request("GET", "/")
        try:
            judged = verdicts(prometheus)
            firing = {alert.labels: alert for alert in unmuted_alerts(alertmanager) if alert.name != WATCHDOG}
        except (PrometheusError, LookupError):
            continue  # one of the two has ended or is overloaded
        for run, verdict in log.due(judged, time.monotonic()):
            screen.say(screen.verdict(run, verdict))
        for labels in firing.keys() - shown.keys():
            screen.say(screen.alert(firing[labels]))
        for labels in shown.keys() - firing.keys():
            screen.say(screen.over(shown[labels]))
        shown = firing
    return 1 if ended else 0
