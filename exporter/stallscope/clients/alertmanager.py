"""The alerts that an Alertmanager holds, through the client for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stallscope.clients.client_certificate import ClientCertificate
from stallscope.clients.prometheus import TIMEOUT_SECONDS, Prometheus, PrometheusError


class Alert(NamedTuple):
    """An alert that Alertmanager holds."""

    name: str
    severity: str
    summary: str
    description: str
    """The evidence, and the first action."""
    labels: tuple[tuple[str, str], ...]


class Alertmanager:
    """One Alertmanager. For one thread at a time."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        certificate: ClientCertificate | None = None,
        proxies: bool = True,
    ) -> None:
        """Take the address; the arguments are those of `Prometheus`."""
        self._client = Prometheus(url, timeout=timeout, certificate=certificate, proxies=proxies, api="/api/v2/")

    def alerts(self, **parameters: str) -> list[Alert]:
        """Return the alerts.

        Args:
            **parameters: of the API: `filter`, `silenced`, `inhibited`.

        Raises:
            PrometheusError: it gave no such answer.
        """
        try:
            found = self._client.document("alerts", parameters)
            return [_alert(each["labels"], each.get("annotations", {})) for each in found]
        except (LookupError, TypeError, AttributeError):
            raise PrometheusError(
                f"{self._client.name}: its answer is none that Alertmanager gives; see what listens there"
            ) from None


def _alert(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Alert:
    return Alert(
        name=labels.get("alertname", ""),
        severity=labels.get("severity", ""),
        summary=annotations.get("summary", ""),
        description=annotations.get("description", ""),
        labels=tuple(sorted(labels.items())),
    )
