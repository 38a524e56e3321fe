"""How long dashboards take to open, with Prometheus on this machine watching a cluster.

`python -m tests.benchmarks.rules 1024 4096` prints this as well, once the rules of a cluster have been measured and it
is known what they record. `python -m tests.benchmarks.dashboards http://127.0.0.1:9090` opens them on a Prometheus that
is there already.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.cluster import HOUR, Cluster
from tests.benchmarks.remote_write import RemoteWriter
from tests.grafana.dashboard_queries import Chosen, Window, choose, run_query
from tests.grafana.pages import PAGES, Json, drawn, first_screen, queries_of
from tests.prometheus_server import Prometheus, Server, prometheus
from tests.promql_names import names_in
from tests.remote_write import Receiver, labels_of, samples_of, series_of, times_of

_INTERVAL = 30
_AT_ONCE = 6
"""Queries that a browser has under way to one server."""
_OPENINGS = 3
_GOAL_SECONDS = 1.0
_SERIES_A_MESSAGE = 10_000
_MOMENTS_A_WRITING = 40

Recorded = tuple[Mapping[str, str], float]
"""Labels with the name, and the value."""


@dataclass(frozen=True)
class Opening:
    """One dashboard, opened with everything chosen that is chosen by default, for an hour."""

    uid: str
    choices: float
    """Seconds in which its variables are filled."""
    first: float
    """Seconds in which the queries of its first screen are answered, six at a time."""
    alone: float
    """Seconds that the same queries take one after the other."""
    queries: int
    """How many these are."""
    empty: int
    """How many of them find nothing: what the cluster does not suffer from, or has no series of."""
    slowest: str
    """The panel of the slowest one, with its seconds."""
    whole: float
    """Seconds for the queries of all its panels, those in closed rows as well, six at a time."""
    all_queries: int


def measure(gpus: int, recorded: Iterable[Recorded]) -> list[Opening]:
    """Fill a Prometheus with an hour of samples of exporters and rules of this many GPUs, and open all dashboards.

    Args:
        gpus: of the simulated cluster.
        recorded: what the rules record of it, now; the hour before is taken to have been like that.
    """
    now = math.floor(time.time())
    raw = {name for page in PAGES.values() for _where, text in queries_of(page) for name in names_in(text).metrics}
    names = {name for name in raw if name.startswith("stallscope_")}
    with prometheus() as server:
        writer = RemoteWriter(Cluster(gpus, names, now), server.port)
        moments = np.arange(now - HOUR, now + 1, _INTERVAL, dtype=np.float64)
        for begin in range(0, len(moments), _MOMENTS_A_WRITING):
            writer.send(moments[begin : begin + _MOMENTS_A_WRITING])
        writer.close()
        _write(server, recorded, moments)
        return opened(server, now)


def opened(server: Prometheus, now: float) -> list[Opening]:
    """Open every dashboard of a Prometheus, for the hour before that Unix time."""
    return [_open(server, uid, page, Window(now - HOUR, now)) for uid, page in PAGES.items()]


def _open(server: Prometheus, uid: str, page: Json, window: Window) -> Opening:
    began = time.perf_counter()
    chosen = choose(server, page, window, {})
    choices = time.perf_counter() - began
    first, every = list(_queries(first_screen(page))), list(_queries(drawn(page)))
    alone = [_timed(server, chosen, query) for query in first]
    took, slowest, _found = max(alone)
    return Opening(
        uid=uid,
        choices=choices,
        first=statistics.median(_together(server, chosen, first) for _ in range(_OPENINGS)),
        alone=sum(seconds for seconds, _panel, _found in alone),
        queries=len(first),
        empty=sum(not found for _seconds, _panel, found in alone),
        slowest=f"{slowest}: {took:.3f}",
        whole=_together(server, chosen, every),
        all_queries=len(every),
    )


def _queries(panels: Iterable[Json]) -> Iterator[tuple[Json, Json]]:
    return ((panel, target) for panel in panels for target in panel.get("targets", ()))


def _timed(server: Prometheus, chosen: Chosen, query: tuple[Json, Json]) -> tuple[float, str, int]:
    panel, target = query
    began = time.perf_counter()
    found = run_query(server, chosen, target, panel)["data"]["result"]
    return time.perf_counter() - began, f"{panel['title']} {target['refId']}", len(found)


def _together(server: Prometheus, chosen: Chosen, queries: Sequence[tuple[Json, Json]]) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda query: _timed(server, chosen, query), queries))
    return time.perf_counter() - began


def _write(server: Server, recorded: Iterable[Recorded], moments: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    """Write an hour of series that stay about as they are."""
    times = times_of(moments)
    # As long as real ones in a block: constant values would be read too fast.
    swing = 1 + 0.01 * np.sin(np.arange(len(moments)))
    receiver = Receiver(server.port)
    pieces: list[bytes] = []
    for labels, value in recorded:
        values = np.full(len(moments), value) if value in (0.0, 1.0) else value * swing
        pieces += series_of(labels_of(labels), samples_of(values.view(np.uint64), times))
        if len(pieces) >= 4 * _SERIES_A_MESSAGE:
            receiver.post(b"".join(pieces))
            pieces.clear()
    receiver.post(b"".join(pieces))
    receiver.close()


def table(openings: Sequence[Opening]) -> str:
    """Return what was measured as Markdown."""
    head = "| dashboard | queries | empty | first screen | one by one | slowest | choices | all queries | whole |"
    conditions = (
        "Seconds in which dashboards open for an hour, all queries of the first screen together (six at a time, as a "
        f"browser requests them), median of {_OPENINGS}; to reach: under {_GOAL_SECONDS:g} s."
    )
    return "\n".join(
        [
            conditions,
            "",
            head,
            "|---" * (head.count("|") - 1) + "|",
            *(
                f"| {each.uid} | {each.queries} | {each.empty} | {each.first:.3f} | {each.alone:.3f} | {each.slowest} "
                f"| {each.choices:.3f} | {each.all_queries} | {each.whole:.3f} |"
                for each in openings
            ),
        ]
    )


if __name__ == "__main__":
    print(table(opened(Prometheus(sys.argv[1].rstrip("/")), time.time())))
