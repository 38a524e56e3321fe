"""Whether data flows: questions to the exporter, Prometheus and Alertmanager through their own HTTP interfaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stallscope.clients.alertmanager import Alert, Alertmanager
from stallscope.clients.prometheus import Prometheus
from stallscope.view.verdicts import Verdict, culprit_of

_SELDOM_SECONDS = 60.0
"""Rules that look back over hours are evaluated so seldom that nobody is made to wait for their first time."""


class Check(NamedTuple):
    """One thing that must come true before the stack is said to work."""

    label: str
    component: str
    """Whose log tells most when it does not come true."""
    ask: Callable[[], str | None]
    """What was found, in words; None while it is not there yet."""


def verdicts(prometheus: Prometheus) -> dict[str, Verdict]:
    """Where each run's time goes, by run."""
    culprits = {labels["run"]: culprit_of(labels) for labels, _ in prometheus.query("run:culprit:info")}
    return {
        labels["run"]: Verdict(labels["cause"], share, culprit=culprits.get(labels["run"]))
        for labels, share in prometheus.query("run:verdict:ratio5m")
    }


def answers(ask: Callable[[], object]) -> Callable[[], str]:
    """A question whether a server is ready: before, asking it raises an error."""

    def asked() -> str:
        ask()
        return "ready"

    return asked


def rules(prometheus: Prometheus) -> str | None:
    """How many rules there are and which of them fail, once all have been evaluated that come often."""
    groups = prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    often = [rule for group in groups if group["interval"] < _SELDOM_SECONDS for rule in group["rules"]]
    if not often or any(rule["health"] == "unknown" for rule in often):
        return None
    alerting = sum(rule["type"] == "alerting" for rule in rules)
    failing = sorted({rule["name"] for rule in rules if rule["health"] not in ("ok", "unknown")})
    verb = f"these fail: {', '.join(failing)}" if failing else "none fails"
    awaited = sum(rule["health"] == "unknown" for rule in rules)
    rest = f"; {awaited} of them come once a minute, and are still to come" if awaited else ""
    return f"{len(rules) - alerting} recording and {alerting} alert rules, {verb}{rest}"


def _value(prometheus: Prometheus, expression: str) -> float | None:
    """The single value that an expression has now; None where it has none."""
    found = prometheus.query(expression)
    return found[0].value if found else None


def there(prometheus: Prometheus, expression: str, words: str) -> Callable[[], str | None]:
    """A question for a number that Prometheus must have; `words` is formatted with it."""

    def ask() -> str | None:
        value = _value(prometheus, expression)
        return words.format(value) if value else None

    return ask


def growing(prometheus: Prometheus, expression: str, words: str) -> Callable[[], str | None]:
    """A question for a number that must be seen to grow."""
    before: list[float] = []

    def ask() -> str | None:
        value = _value(prometheus, expression)
        if value is None:
            return None
        # Against the last look, not the first: in a kept folder an earlier session's higher count comes first.
        grown = bool(before) and value > before[-1]
        before[:] = [value]
        return words.format(value) if grown else None

    return ask


def unmuted_alerts(alertmanager: Alertmanager) -> list[Alert]:
    """The alerts that fire now and that nothing mutes."""
    return alertmanager.alerts(silenced="false", inhibited="false")


def holds_alert(alertmanager: Alertmanager, name: str) -> Callable[[], str | None]:
    """A question whether an alert has reached Alertmanager."""
    return lambda: name if any(alert.name == name for alert in unmuted_alerts(alertmanager)) else None
