"""A Prometheus that answers, and questions that not every server of its kind answers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from stallscope.clients.client_certificate import ClientCertificate
from stallscope.doctor.checkup import Stop, Subject, failed, skipped

if TYPE_CHECKING:
    from stallscope.clients.prometheus import Prometheus  # whose library is not everywhere

_MOST_BYTES = 64 << 20
_SHOWN = 5


class Server(NamedTuple):
    """A Prometheus that answers."""

    prometheus: Prometheus
    url: str
    timeout: float
    ahead: float
    """Seconds by which its clock is ahead of this machine's."""
    certificate: ClientCertificate | None
    """Is shown to it where it wants one, and to its Alertmanagers."""


def begin(subject: Subject) -> Server:
    """Find the server.

    Raises:
        Stop: it does not answer.
    """
    try:
        from stallscope.clients.prometheus import Prometheus, PrometheusError
    except ModuleNotFoundError as error:
        raise Stop(skipped(f"{error.name} is not installed", "pip install 'stallscope[analysis]'")) from None
    prometheus = Prometheus(
        subject.prometheus_url,
        timeout=subject.prometheus_timeout,
        max_bytes=_MOST_BYTES,
        certificate=subject.certificate,
    )
    asked = time.time()
    try:
        now = prometheus.now()
    except PrometheusError as error:
        prometheus.close()
        if subject.prometheus_named:
            remedy = "say where it is with --prometheus.url, and see whether it runs"
            raise Stop(failed(str(error), remedy)) from None
        raise Stop(skipped(str(error), "name it with --prometheus.url to have it checked")) from None
    return Server(
        prometheus,
        subject.prometheus_url,
        subject.prometheus_timeout,
        now - (asked + time.time()) / 2,
        subject.certificate,
    )


def optional(server: Server, path: str) -> Any:
    """What a part of the API tells that only Prometheus itself has; None where there is none."""
    from stallscope.clients.prometheus import PrometheusError

    try:
        return server.prometheus.get(path)
    except PrometheusError as error:
        if error.passing or error.too_large:
            raise
        return None


def listed(names: Iterable[str]) -> str:
    """The first few, and how many more."""
    all_names = list(names)
    rest = len(all_names) - _SHOWN
    return ", ".join(all_names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
