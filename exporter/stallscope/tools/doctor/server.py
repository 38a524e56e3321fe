"""Connection to a Prometheus server, and API requests that some compatible servers do not support."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from stallscope.common.installation import install_command
from stallscope.model.clients.client_certificate import ClientCertificate
from stallscope.tools.doctor.checkup import Stop, Subject, failed, skipped

if TYPE_CHECKING:
    from stallscope.model.clients.prometheus import Prometheus  # its HTTP library may not be installed

_MOST_BYTES = 64 << 20
_SHOWN = 5


class Server(NamedTuple):
    """A Prometheus server that responds."""

    prometheus: Prometheus
    url: str
    timeout: float
    ahead: float
    """Seconds by which the server's clock is ahead of this machine's."""
    certificate: ClientCertificate | None
    """Client certificate for the server and its Alertmanagers."""


def begin(subject: Subject) -> Server:
    """Connect to the server.

    Raises:
        Stop: the server does not respond.
    """
    try:
        from stallscope.model.clients.prometheus import Prometheus, PrometheusError
    except ModuleNotFoundError as error:
        report = failed if subject.prometheus_named else skipped
        raise Stop(report(f"{error.name} is not installed", install_command("analysis"))) from None
    prometheus = Prometheus(
        subject.prometheus_url,
        timeout=subject.prometheus_timeout,
        max_bytes=_MOST_BYTES,
        certificate=subject.certificate,
    )
    requested = time.time()
    try:
        now = prometheus.now()
    except PrometheusError as error:
        prometheus.close()
        if subject.prometheus_named:
            remedy = "check that it runs, or set --prometheus.url"
            raise Stop(failed(str(error), remedy)) from None
        raise Stop(skipped(str(error), "set --prometheus.url to check a server")) from None
    return Server(
        prometheus,
        subject.prometheus_url,
        subject.prometheus_timeout,
        now - (requested + time.time()) / 2,
        subject.certificate,
    )


def optional(server: Server, path: str) -> Any:
    """Return the response of an API path that only Prometheus itself has; None if the server does not support it."""
    from stallscope.model.clients.prometheus import PrometheusError

    try:
        return server.prometheus.get(path)
    except PrometheusError as error:
        if error.passing or error.too_large:
            raise
        return None


def has_rules(server: Server) -> bool:
    """Return True if the server records results of the rules."""
    return bool(server.prometheus.query("max(timestamp(stallscope:threshold))"))


def listed(names: Iterable[str]) -> str:
    """Return the first few names, and the number of the others."""
    all_names = list(names)
    others = len(all_names) - _SHOWN
    return ", ".join(all_names[:_SHOWN]) + (f" and {others} more" if others > 0 else "")
