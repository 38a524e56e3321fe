"""Whether data flows: questions to the exporter, Prometheus and Alertmanager through their own HTTP interfaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import requests

from stallscope.view.verdict_words import phrase_of
from stallscope.view.verdicts import culprit_of

_TIMEOUT_SECONDS = 2.0
_SELDOM_SECONDS = 60.0
"""Rules that look back over hours are evaluated so seldom that nobody is made to wait for their first time."""


class Check(NamedTuple):
    """One thing that must come true before the stack is said to work."""

    label: str
    component: str
    """Whose log tells most when it does not come true."""
    ask: Callable[[], str | None]
    """What was found, in words; None while it is not there yet."""


class Verdict(NamedTuple):
    """A run's primary cause, and the share of its time that it loses to it."""

    cause: str
    share: float
    culprit: str = ""
    """The rank and GPU to blame and the root cause; empty if no rank is to blame."""


class Prometheus:
    """A running Prometheus server."""

    def __init__(self, url: str, session: requests.Session) -> None:
        """Take its address, and the session to ask through."""
        self._url = url
        self._session = session

    def ready(self) -> str | None:
        """Whether it has loaded its configuration and its storage."""
        return _ready(self._session, f"{self._url}/-/ready")

    def value(self, expression: str) -> float | None:
        """The single value that an expression has now; None where it has none."""
        result = self._query(expression)
        return float(result[0]["value"][1]) if result else None

    def verdicts(self) -> dict[str, Verdict]:
        """Where each run's time goes, by run."""
        culprits = {
            series["metric"]["run"]: phrase_of(culprit_of(series["metric"]))
            for series in self._query("run:culprit:info")
        }
        return {
            (run := series["metric"]["run"]): Verdict(
                series["metric"]["cause"], float(series["value"][1]), culprits.get(run, "")
            )
            for series in self._query("run:verdict:ratio5m")
        }

    def _query(self, expression: str) -> list[Any]:
        response = self._session.get(
            f"{self._url}/api/v1/query", params={"query": expression}, timeout=_TIMEOUT_SECONDS
        )
        result: list[Any] = response.json().get("data", {}).get("result", [])
        return result

    def rules(self) -> str | None:
        """How many rules there are and which of them fail, once all have been evaluated that come often."""
        response = self._session.get(f"{self._url}/api/v1/rules", timeout=_TIMEOUT_SECONDS)
        groups = response.json().get("data", {}).get("groups", [])
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


class Alert(NamedTuple):
    """An alert that Alertmanager holds."""

    name: str
    severity: str
    summary: str
    description: str
    """The figure, and what to do about it."""
    labels: tuple[tuple[str, str], ...]


class Alertmanager:
    """A running Alertmanager."""

    def __init__(self, url: str, session: requests.Session) -> None:
        """Take its address, and the session to ask through."""
        self._url = url
        self._session = session

    def ready(self) -> str | None:
        """Whether it has loaded its configuration."""
        return _ready(self._session, f"{self._url}/-/ready")

    def alerts(self) -> list[Alert]:
        """The alerts that fire now and that nothing mutes."""
        response = self._session.get(
            f"{self._url}/api/v2/alerts",
            params={"silenced": "false", "inhibited": "false"},
            timeout=_TIMEOUT_SECONDS,
        )
        return [
            Alert(
                name=alert["labels"].get("alertname", ""),
                severity=alert["labels"].get("severity", ""),
                summary=alert["annotations"].get("summary", ""),
                description=alert["annotations"].get("description", ""),
                labels=tuple(sorted(alert["labels"].items())),
            )
            for alert in response.json()
        ]


def _ready(session: requests.Session, url: str) -> str | None:
    return "ready" if session.get(url, timeout=_TIMEOUT_SECONDS).status_code == requests.codes.ok else None


def answers(session: requests.Session, url: str) -> Callable[[], str | None]:
    """A question whether an address answers well."""
    return lambda: _ready(session, url)


def there(prometheus: Prometheus, expression: str, words: str) -> Callable[[], str | None]:
    """A question for a number that Prometheus must have; `words` is formatted with it."""

    def ask() -> str | None:
        value = prometheus.value(expression)
        return words.format(value) if value else None

    return ask


def growing(prometheus: Prometheus, expression: str, words: str) -> Callable[[], str | None]:
    """A question for a number that must be seen to grow."""
    before: list[float] = []

    def ask() -> str | None:
        value = prometheus.value(expression)
        if value is None:
            return None
        # Against the last look, not the first: in a kept folder an earlier session's higher count comes first.
        grown = bool(before) and value > before[-1]
        before[:] = [value]
        return words.format(value) if grown else None

    return ask


def holds_alert(alertmanager: Alertmanager, name: str) -> Callable[[], str | None]:
    """A question whether an alert has reached Alertmanager."""
    return lambda: name if any(alert.name == name for alert in alertmanager.alerts()) else None
