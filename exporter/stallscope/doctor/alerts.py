"""Whether alerts reach an Alertmanager: the one that always fires tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

from stallscope.common.formatting import without_password
from stallscope.doctor.checkup import Finding, failed, ok, skipped, warning
from stallscope.doctor.rules import LOAD
from stallscope.doctor.server import Server, optional

_HERE = ("localhost", "127.0.0.1", "::1")
_MAX_BYTES = 1 << 20


def _alertmanagers(server: Server) -> Iterator[Finding]:
    told = optional(server, "alertmanagers")
    if told is None:
        yield skipped("this server does not tell its Alertmanagers")
        return
    active = [each["url"] for each in told["activeAlertmanagers"] or []]
    if not active:
        yield failed(
            "alerts go nowhere: no Alertmanager is configured", "add alerting: to prometheus.yml, as ours has it"
        )
        return
    firing = server.prometheus.query('ALERTS{alertname="Watchdog", alertstate="firing"}')
    if not firing:
        yield failed("the alert Watchdog, which always fires, does not", f"{LOAD}: it is in alerts/stallscope.yml")
    for url in active:
        yield _received(server, url, firing=bool(firing))


def _received(server: Server, url: str, *, firing: bool) -> Finding:
    """Whether an Alertmanager has the alert that always fires."""
    import requests

    from stallscope.clients.http_session import HttpSession

    shown = without_password(url)
    here = urlsplit(url).hostname in _HERE
    if here and urlsplit(server.url).hostname not in _HERE:
        return skipped(f"the Alertmanager at {shown} is to be asked from Prometheus' own machine")
    wanted = {"filter": 'alertname="Watchdog"'}
    http = HttpSession()
    http.session.cert = server.certificate
    try:
        answer = http.request("GET", url, timeout=server.timeout, max_bytes=_MAX_BYTES, params=wanted)
        if answer.status != requests.codes.ok:
            return warning(
                f"the Alertmanager at {shown} answers this machine with HTTP {answer.status}",
                "see on its own page whether it has the alert Watchdog",
            )
        alerts = json.loads(answer.body)
    except (OSError, ValueError, RecursionError) as error:
        report = failed if here else warning
        return report(
            f"the Alertmanager at {shown} gives this machine no answer ({type(error).__name__})",
            "see whether it runs" + ("" if here else "; where only Prometheus is to reach it, all may be well"),
        )
    finally:
        http.close()
    if firing and not alerts:
        return failed(f"the Alertmanager at {shown} never got the alert Watchdog", "see Prometheus' log for the reason")
    return ok(f"the Alertmanager at {shown} " + ("has the alert Watchdog" if alerts else "answers"))


CHECKS = (("alertmanagers", _alertmanagers),)
