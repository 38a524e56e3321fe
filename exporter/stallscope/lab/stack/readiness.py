"""Checks that data flows, through the HTTP interfaces of the exporter, Prometheus and Alertmanager."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stallscope.model.clients.alertmanager import Alert, Alertmanager
from stallscope.model.clients.prometheus import Prometheus
from stallscope.model.view.verdicts import Verdict, culprit_of

_RARE_SECONDS = 60.0
"""Evaluation interval from which the check does not wait for the first evaluation of a rule group."""


class Check(NamedTuple):
    """A condition that must hold before the stack counts as ready."""

    label: str
    component: str
    """The program whose log explains a failure best."""
    poll: Callable[[], str | None]
    """Returns a description of the result; None while the condition does not hold."""


def verdicts(prometheus: Prometheus) -> dict[str, Verdict]:
    """Return the verdict on each run, by run."""
    culprits = {labels["run"]: culprit_of(labels) for labels, _ in prometheus.query("run:culprit:info")}
    return {
        labels["run"]: Verdict(labels["cause"], share, culprit=culprits.get(labels["run"]))
        for labels, share in prometheus.query("run:verdict:ratio5m")
    }


def responds(request: Callable[[], object]) -> Callable[[], str]:
    """Return a poll for a server, whose request raises an error until the server is ready."""

    def poll() -> str:
        request()
        return "ready"

    return poll


def rules(prometheus: Prometheus) -> str | None:
    """Return the number of rules and the failing ones, once all frequent groups have been evaluated."""
    groups = prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    frequent = [rule for group in groups if group["interval"] < _RARE_SECONDS for rule in group["rules"]]
    if not frequent or any(rule["health"] == "unknown" for rule in frequent):
        return None
    alerting = sum(rule["type"] == "alerting" for rule in rules)
    failing = sorted({rule["name"] for rule in rules if rule["health"] not in ("ok", "unknown")})
    verb = f"these fail: {', '.join(failing)}" if failing else "none fails"
    awaited = sum(rule["health"] == "unknown" for rule in rules)
    pending = f"; {awaited} are evaluated once a minute and still pending" if awaited else ""
    return f"{len(rules) - alerting} recording and {alerting} alert rules, {verb}{pending}"


def _value(prometheus: Prometheus, expression: str) -> float | None:
    """Return the current value of an expression with one series; None if it is empty."""
    found = prometheus.query(expression)
    return found[0].value if found else None


def nonzero(prometheus: Prometheus, expression: str, message: str) -> Callable[[], str | None]:
    """Return a poll for a nonzero value; `message` is formatted with the value."""

    def poll() -> str | None:
        value = _value(prometheus, expression)
        return message.format(value) if value else None

    return poll


def increasing(prometheus: Prometheus, expression: str, message: str) -> Callable[[], str | None]:
    """Return a poll for a value that increases; `message` is formatted with the value."""
    previous: float | None = None

    def poll() -> str | None:
        nonlocal previous
        value = _value(prometheus, expression)
        if value is None:
            return None
        # Compared with the previous poll, not the first: a kept folder may start with an earlier, higher count.
        has_increased = previous is not None and value > previous
        previous = value
        return message.format(value) if has_increased else None

    return poll


def unmuted_alerts(alertmanager: Alertmanager) -> list[Alert]:
    """Return the firing alerts that are neither silenced nor inhibited."""
    return alertmanager.alerts(silenced="false", inhibited="false")


def has_alert(alertmanager: Alertmanager, name: str) -> Callable[[], str | None]:
    """Return a poll for an alert that must have reached Alertmanager."""
    return lambda: name if any(alert.name == name for alert in unmuted_alerts(alertmanager)) else None
