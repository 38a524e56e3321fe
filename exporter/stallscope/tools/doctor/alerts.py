"""Check that alerts reach an Alertmanager, by the alert StallscopeWatchdog, which always fires."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from stallscope.common.address import is_this_machine
from stallscope.common.formatting import without_password
from stallscope.tools.doctor.checkup import Finding, failed, ok, skipped, warning
from stallscope.tools.doctor.rules import LOAD, left_out
from stallscope.tools.doctor.server import Server, optional

_API = re.compile(r"/api/v\d/alerts$")
_WATCHDOGS_GROUP = "stallscope-alerts-stallscope"


def _alertmanagers(server: Server) -> Iterator[Finding]:
    response = optional(server, "alertmanagers")
    if response is None:
        yield skipped("this server does not report its Alertmanagers")
        return
    active = [each["url"] for each in response["activeAlertmanagers"] or []]
    if not active:
        yield failed(
            "no Alertmanager is configured, so no alert is delivered",
            "add alerting: to prometheus.yml, as in prometheus/prometheus.yml",
        )
        return
    firing = server.prometheus.query('ALERTS{cause="watchdog", alertstate="firing"}')
    if not firing and _WATCHDOGS_GROUP in left_out(optional(server, "rules?exclude_alerts=true") or {"groups": []}):
        yield skipped(f"{_WATCHDOGS_GROUP} is not installed: whether alerts are delivered cannot be checked")
    elif not firing:
        yield failed(
            "the alert StallscopeWatchdog does not fire, although it always should", f"{LOAD} (alerts/stallscope.yml)"
        )
    for url in active:
        yield _received(server, url, firing=bool(firing))


def _received(server: Server, url: str, *, firing: bool) -> Finding:
    """Check that an Alertmanager has the alert StallscopeWatchdog."""
    from stallscope.model.clients.alertmanager import Alertmanager
    from stallscope.model.clients.prometheus import PrometheusError

    shown = without_password(url)
    here = is_this_machine(urlsplit(url).hostname or "")
    if here and not is_this_machine(urlsplit(server.url).hostname or ""):
        return skipped(f"the Alertmanager at {shown} is reachable only from Prometheus' own machine")
    client = Alertmanager(_API.sub("", url), timeout=server.timeout, certificate=server.certificate)
    try:
        alerts = client.alerts(filter='cause="watchdog"')
    except PrometheusError as error:
        if error.status is not None:
            return warning(
                f"the Alertmanager at {shown} responds to this machine with HTTP {error.status}",
                "check on its web page that it has the alert StallscopeWatchdog",
            )
        report = failed if here else warning
        return report(
            f"the Alertmanager at {shown} does not respond to this machine ({error})",
            "check that it runs" + ("" if here else "; ignore this if only Prometheus can reach it"),
        )
    if firing and not alerts:
        return failed(
            f"the Alertmanager at {shown} has no alert StallscopeWatchdog", "see Prometheus' log for the reason"
        )
    return ok(f"the Alertmanager at {shown} " + ("has the alert StallscopeWatchdog" if alerts else "responds"))


CHECKS = (("alertmanagers", _alertmanagers),)
