"""Checks of Prometheus: its health, scrapes, rules and alerts."""

from __future__ import annotations

from collections.abc import Iterator

from stallscope.tools.doctor import alerts, rules, scrapes
from stallscope.tools.doctor.checkup import Finding, Part, failed, ok
from stallscope.tools.doctor.exporter import MOST_SKEW, RESET_CLOCKS
from stallscope.tools.doctor.server import Server, begin, optional


def _version(server: Server) -> Iterator[Finding]:
    name = server.prometheus.name
    response = optional(server, "status/buildinfo")
    yield ok(f"{name} responds" + (f": version {response['version']}" if response else ""))


def _clock(server: Server) -> Iterator[Finding]:
    if abs(server.ahead) > MOST_SKEW:
        side = "ahead of" if server.ahead > 0 else "behind"
        yield failed(f"Prometheus' clock is {abs(server.ahead):.0f} s {side} this machine's", RESET_CLOCKS)
    else:
        yield ok("Prometheus' clock and this machine's agree")


PART = Part(
    "prometheus",
    begin,
    (("version", _version), ("clock", _clock), *scrapes.CHECKS, *rules.CHECKS, *alerts.CHECKS),
)
