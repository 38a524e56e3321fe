"""Alertmanager's active alerts, read with the Prometheus client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stallscope.model.clients.client_certificate import ClientCertificate
from stallscope.model.clients.prometheus import TIMEOUT_SECONDS, Prometheus, PrometheusError


class Alert(NamedTuple):
    """An alert in Alertmanager."""

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
    ) -> None:
        """Store the address. The arguments are those of `Prometheus`."""
        self._client = Prometheus(url, timeout=timeout, certificate=certificate, api="/api/v2/")

    def alerts(self, **parameters: str) -> list[Alert]:
        """Return the alerts.

        Args:
            **parameters: parameters of the API, such as `filter`, `silenced`, `inhibited`.

        Raises:
            PrometheusError: there is no valid response.
        """
        try:
            found = self._client.document("alerts", parameters)
            return [_alert(each["labels"], each.get("annotations", {})) for each in found]
        except (LookupError, TypeError, AttributeError):
            raise PrometheusError(
                f"{self._client.name}: not an Alertmanager response; check what listens at that address"
            ) from None


def _alert(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Alert:
    return Alert(
        name=labels.get("alertname", ""),
        severity=labels.get("severity", ""),
        summary=annotations.get("summary", ""),
        description=annotations.get("description", ""),
        labels=tuple(sorted(labels.items())),
    )
