"""What the launcher puts on the screen: what is real, what is simulated, where to look, what went wrong."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence

from stallscope.clients.alertmanager import Alert
from stallscope.simulation.scenarios import Scenario
from stallscope.stack.component import Component
from stallscope.stack.ports import ADDRESS
from stallscope.stack.readiness import Check
from stallscope.stack.settings import RUN, THRESHOLDS, Settings
from stallscope.view.verdict_words import phrase_of
from stallscope.view.verdicts import Verdict

_LABEL_WIDTH = 16
_TEXT_WIDTH = 80
_LEAST_SHARE = 0.01


def say(text: str) -> None:
    """Print at once, also where a pipe takes it."""
    print(text, flush=True)


def clock() -> str:
    """The time of day, for what happens while the stack runs."""
    return time.strftime("%H:%M:%S")


def introduction(settings: Settings, scenario: Scenario | None, driver: str | None) -> str:
    """What is real, what is simulated, what differs from the bundle."""
    real = ["this machine's host metrics", "Prometheus, Alertmanager, rules and alerts"]
    if settings.training_job:
        real.append(f"training run {RUN}: NumPy on the CPU, slowed by its own data loader")
    if driver:
        real.append(f"GPUs: {driver}")
    rows = [("real" if entry == real[0] else "", entry) for entry in real]
    if scenario:
        simulated = "the GPUs" if scenario.coupled else "the GPUs, and a training run on them"
        rows += [
            ("simulated", f"{simulated}: no NVIDIA driver answers here"),
            *(("", line) for line in textwrap.wrap(f"scenario {scenario.name}: {scenario.description}", _TEXT_WIDTH)),
        ]
    changed = ", ".join(f"{name} {value:g}" for name, value in THRESHOLDS.items())
    rows.append(("changed", f"thresholds for a demonstration: {changed}; scrapes and rules every few seconds"))
    return "\n".join(["", *(_row(*row) for row in rows), ""])


def addresses(settings: Settings, components: Sequence[Component]) -> str:
    """Where to look, and what to do next."""
    alertmanager = settings.alertmanager.url
    rows = [
        ("Prometheus", f"{settings.prometheus.url}/alerts"),
        ("", f"{settings.prometheus.url}/graph?g0.expr=run%3Averdict%3Aratio5m&g0.tab=1"),
        ("Alertmanager", f"{alertmanager}/   or: amtool alert --alertmanager.url={alertmanager}"),
        ("Exporter", f"{settings.exporter.url}/"),
    ]
    if any(component.name == "Grafana" for component in components):
        rows.insert(0, ("Grafana", f"{settings.grafana.url}/"))
    rows.append(
        (
            "your training",
            f"STALLSCOPE_ADDRESS=udp://{ADDRESS}:{settings.exporter.number} python train.py, with the shim",
        )
    )
    return "\n".join(
        [
            "",
            "Data flows.",
            *(_row(*row) for row in rows),
            "",
            "Verdicts (where does the time go?) and alerts are told here as they come. Ctrl-C stops it all.",
            "",
        ]
    )


def found(check: Check, words: str, seconds: float) -> str:
    """A check that has come true."""
    return _row(check.label, f"{words:<56}{seconds:5.1f} s")


def verdict(run: str, judged: Verdict) -> str:
    """Where a run's time goes, as the rules see it now."""
    figure = f"{judged.share:.0%}" if judged.share >= _LEAST_SHARE else f"under {_LEAST_SHARE:.0%}"
    lost = f", {figure} of its time lost" if judged.share else ""
    culprit = f"; {phrase_of(judged.culprit)}" if judged.culprit else ""
    return f"{clock()}  verdict on run {run}: {judged.cause}{lost}{culprit}"


def alert(firing: Alert) -> str:
    """An alert that has reached Alertmanager: what it is about, and what to do."""
    return "\n".join(
        [
            f"{clock()}  {firing.severity} {firing.name}{_subject(firing)}: {firing.summary}",
            *textwrap.wrap(firing.description, _TEXT_WIDTH, initial_indent=" " * 10, subsequent_indent=" " * 10),
        ]
    )


def over(resolved: Alert) -> str:
    """An alert that Alertmanager no longer holds."""
    return f"{clock()}  over: {resolved.name}{_subject(resolved)}"


def _subject(alert: Alert) -> str:
    labels = dict(alert.labels)
    told = [f"{name} {labels[name]}" for name in ("run", "rank", "gpu") if labels.get(name)]
    return f" ({', '.join(told)})" if told else ""


def end_of(component: Component) -> str:
    """A part that ended by itself."""
    return f"{component.name} {component.ended}. The end of {component.log}:\n{_indented(component.log_tail())}"


def timeout_of(check: Check, components: Sequence[Component], seconds: float) -> str:
    """A check that did not come true in time."""
    component = next(component for component in components if component.name == check.component)
    return (
        f"{check.label}: nothing after {seconds:g} s, so {component.name} is at fault or what it depends on. "
        f"The end of {component.log}:\n{_indented(component.log_tail())}"
    )


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_WIDTH}}{text}"


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines()) or "  | (empty)"
