"""Messages of `stallscope up`: real and simulated components, addresses, verdicts, alerts and failures."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence

from stallscope.common.formatting import percent
from stallscope.lab.simulation.scenarios import Scenario
from stallscope.lab.stack.component import Component
from stallscope.lab.stack.directions import alertmanager_pages, commands, prometheus_pages
from stallscope.lab.stack.programs import Programs
from stallscope.lab.stack.readiness import Check
from stallscope.lab.stack.settings import RUN, Settings
from stallscope.model.clients.alertmanager import Alert
from stallscope.model.view.verdict_words import phrase_of
from stallscope.model.view.verdicts import Verdict

_LABEL_WIDTH = 16
_TEXT_WIDTH = 80


def say(text: str) -> None:
    """Print without buffering, also into a pipe."""
    print(text, flush=True)


def clock() -> str:
    """Return the time of day."""
    return time.strftime("%H:%M:%S")


def introduction(settings: Settings, scenario: Scenario | None, driver: str | None) -> str:
    """Return which components are real, which are simulated, and the differences from the bundle."""
    host = scenario is not None and scenario.simulates_host
    real = [*([] if host else ["this machine's host metrics"]), "Prometheus, Alertmanager, rules and alerts"]
    if settings.training_job:
        real.append(f"training run {RUN}: NumPy on the CPU, slowed by its own data loader")
    if driver:
        real.append(f"GPUs: {driver}")
    rows = [("real" if entry == real[0] else "", entry) for entry in real]
    if scenario:
        parts = ["the GPUs", *(["their host"] if host else []), *(["a training run on them"] if scenario.run else [])]
        simulated = ", ".join(parts[:-1]) + (", and " if len(parts) > 1 else "") + parts[-1]
        rows += [
            ("simulated", f"{simulated}: no NVIDIA driver responds here"),
            *(("", line) for line in textwrap.wrap(f"scenario {scenario.name}: {scenario.description}", _TEXT_WIDTH)),
        ]
    rows.append(("changed", "for a demonstration: scrapes and rules every few seconds"))
    return "\n".join(["", *(_row(*row) for row in rows), ""])


def addresses(settings: Settings, scenario: Scenario | None, programs: Programs) -> str:
    """Return the addresses of the services, and what to do next."""
    grafana = [f"{settings.grafana.url}/"] if programs.grafana else []
    sections = {
        "status page": [f"{settings.exporter.url}/"],
        "Grafana": grafana,
        "Prometheus": prometheus_pages(settings.prometheus.url),
        "Alertmanager": alertmanager_pages(settings.alertmanager.url, programs.amtool),
        "commands": commands(settings, scenario),
        "your training": []
        if scenario and scenario.simulates_host
        else [f"STALLSCOPE_ADDRESS=udp://{settings.exporter.address} python train.py, with the shim"],
    }
    return "\n".join(
        [
            "",
            "Data flows.",
            *(
                _row("" if place else name, line)
                for name, lines in sections.items()
                for place, line in enumerate(lines)
            ),
            "",
            "Without addresses, the commands use the stack that was started last.",
            "Verdicts (where does the time go?) and alerts appear here. Ctrl-C stops everything.",
            "",
        ]
    )


def found(check: Check, words: str, seconds: float) -> str:
    """Return the line of a check that has passed."""
    return _row(check.label, f"{words:<56}{seconds:5.1f} s")


def verdict(run: str, judged: Verdict) -> str:
    """Return the line of a run's current verdict."""
    lost = f", {percent(judged.share)} of its time lost" if judged.share else ""
    culprit = f"; {phrase_of(judged.culprit)}" if judged.culprit else ""
    return f"{clock()}  verdict on run {run}: {judged.cause}{lost}{culprit}"


def alert(firing: Alert) -> str:
    """Return the text of a firing alert: its subject, and what to do."""
    return "\n".join(
        [
            f"{clock()}  {firing.severity} {firing.name}{_subject(firing)}: {firing.summary}",
            *textwrap.wrap(firing.description, _TEXT_WIDTH, initial_indent=" " * 10, subsequent_indent=" " * 10),
        ]
    )


def over(resolved: Alert) -> str:
    """Return the line of a resolved alert."""
    return f"{clock()}  over: {resolved.name}{_subject(resolved)}"


def fault_ended(faulty: Scenario) -> str:
    """Return the line for a fault that `stallscope up --end` has ended."""
    return (
        f"{clock()}  the fault of scenario {faulty.name} has ended: "
        "a healthy job runs on GPUs that replace the faulty ones\n"
        "Most alerts end up to 15 minutes later, as after a repair."
    )


def _subject(alert: Alert) -> str:
    labels = dict(alert.labels)
    parts = [f"{name} {labels[name]}" for name in ("run", "rank", "gpu") if labels.get(name)]
    return f" ({', '.join(parts)})" if parts else ""


def end_of(component: Component) -> str:
    """Return the message for a program that ended by itself."""
    return f"{component.name} {component.ended}. The end of {component.log}:\n{_indented(component.log_tail())}"


def timeout_of(check: Check, components: Sequence[Component], seconds: float) -> str:
    """Return the message for a check that did not pass in time."""
    component = next(component for component in components if component.name == check.component)
    return (
        f"{check.label}: no data after {seconds:g} s; {component.name} or one of its dependencies has failed. "
        f"The end of {component.log}:\n{_indented(component.log_tail())}"
    )


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_WIDTH}}{text}"


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines()) or "  | (empty)"
