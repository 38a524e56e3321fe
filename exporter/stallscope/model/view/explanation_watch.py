"""Explanations of the verdicts on the displayed runs, queried on a background thread while the page shows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from stallscope.model.clients.expressions import any_of, quoted
from stallscope.model.view import explanation
from stallscope.model.view.watch import INTERVAL, Watch

if TYPE_CHECKING:
    from stallscope.model.view.verdicts import RunName


class Server(explanation.Server, Protocol):
    """A server with recorded series that knows the time; `stallscope.model.clients.prometheus.Prometheus` is one."""

    name: str

    def now(self) -> float:
        """Return the server's Unix time."""


class Explanations(NamedTuple):
    """The explanations at one moment."""

    runs: Mapping[RunName, explanation.Explanation]
    """Without runs that do not report, and without names that Prometheus has in several clusters."""
    age: float | None
    """Seconds since the query; None without explanations, or if they are too old."""
    problem: str
    """Error of the latest query, or the time that it has been pending; empty if all is well."""


class ExplanationWatch(Watch[tuple["RunName", ...], Mapping["RunName", explanation.Explanation]]):
    """Queries explanations in the background."""

    def __init__(
        self, server: Server, *, interval: float = INTERVAL, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare; nothing is queried yet."""
        super().__init__("explanations", server.name, interval=interval, monotonic=monotonic)
        self._server = server

    def look(self, runs: Iterable[RunName]) -> Explanations:
        """Return the latest explanations from memory, and query these runs from now on."""
        answer, age, problem = self._read(tuple(runs))
        return Explanations(answer or {}, age, problem)

    def _query(self, subjects: tuple[RunName, ...]) -> Mapping[RunName, explanation.Explanation]:
        now = self._server.now()
        found = {}
        for name in subjects:
            run = f"namespace={quoted(name.namespace)}, run={quoted(name.run)}"
            reporting = self._server.query(f"count by (cluster, instance) (rank:live:info{{{run}}})", at=now)
            clusters = {each.labels.get("cluster", "") for each in reporting}
            if len(clusters) == 1:  # an exporter does not know its cluster
                (cluster,) = clusters
                instances = sorted({each.labels.get("instance", "") for each in reporting})
                found[name] = explanation.explain(
                    self._server,
                    (cluster, name.namespace, name.run),
                    f"cluster={quoted(cluster)}, {run}",
                    f"instance=~{any_of(instances)}",
                    now,
                )
        return found
