"""A real Prometheus filled with the scraped and recorded series of the test installation.

    with filled_prometheus() as filled:
        filled.server.get("query", query='run:verdict:ratio5m{run="waiting"}', time=str(filled.end))

`tests/installation.py` defines the machines and runs. promtool evaluates the bundle's rules over their series: only
promtool can evaluate past hours. Scraped and recorded series are then written into a server without rules. Tests
use the fixture `filled`, because filling takes half a minute.
"""

from __future__ import annotations

import fcntl
import math
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stallscope.lab.replay.series import Series
from tests.installation import PARTS, Part, moved, recorded_before, series
from tests.known_names import READ
from tests.prometheus_server import Server, prometheus
from tests.remote_write import STALE, Receiver, labels_of, samples_of, series_of, times_of
from tests.rules.rulebook import EVALUATION_INTERVAL
from tests.scenarios import runner

_RECORDED = '{__name__=~".+:.+|ALERTS.*"}'
_MESSAGE_BYTES = 8_000_000


@dataclass(frozen=True)
class FilledPrometheus:
    """The server and the time range of its data."""

    server: Server
    start: float
    """Unix time of the first scrape."""
    end: float
    """Unix time of the last scrape and evaluation, about a minute before the server came up. Instant queries without
    a time return the same samples until five minutes after it."""

    @property
    def parts(self) -> dict[str, Part]:
        """The parts of the installation, by name."""
        return {part.name: part for part in PARTS}

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an expression at the end of the data."""
        found: list[dict[str, Any]] = self.server.get("query", query=expression, time=f"{self.end}")["data"]["result"]
        return found


@contextmanager
def filled_prometheus(end: float | None = None, *, kept: Path | None = None) -> Iterator[FilledPrometheus]:
    """Fill a Prometheus, and stop it at the end.

    Args:
        end: Unix time at which the data end, rounded down to a whole minute; now if left out.
        kept: The file in which processes that fill one each share what the rules recorded, so that one alone has
            them evaluated.
    """
    scraped = series()
    given = [*scraped, *recorded_before(scraped)]
    judged = recorded(given) if kept is None else _recorded_once(given, kept)
    scrapes = max(len(each.values) for each in scraped)
    # A whole minute, so that range queries always sample the stories at the same times.
    last = 60.0 * math.floor((time.time() if end is None else end) / 60)
    start = last - (scrapes - 1) * runner.EVALUATION_SECONDS
    with prometheus() as server:
        write([server.port], [*scraped, *judged], start, scrapes)
        yield FilledPrometheus(server, start, last)


def _recorded_once(given: Sequence[Series], kept: Path) -> list[Series]:
    """Evaluate the rules in the first process that calls this; other processes wait and read its result."""
    with kept.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if written := file.read():
            found: list[Series] = pickle.loads(written)
            return found
        found = recorded(given)
        pickle.dump(found, file)
        file.flush()
        return found


def recorded(given: Sequence[Series]) -> list[Series]:
    """Return every series that rules and alerts record for the given series, held between evaluations."""
    scrapes = max(len(each.values) for each in given)
    seconds = range(0, scrapes * runner.EVALUATION_SECONDS, EVALUATION_INTERVAL)
    read = [each for each in given if each.name in READ]  # an eighth of the time less
    said = runner.evaluate(read, {_RECORDED: seconds}, evaluation_seconds=EVALUATION_INTERVAL)
    answers = said.samples[_RECORDED]
    scrapes_each = EVALUATION_INTERVAL // runner.EVALUATION_SECONDS
    found: dict[frozenset[tuple[str, str]], Series] = {}
    # The first evaluation is at Unix time 0, which rules treat as unset.
    for second in seconds[1:]:
        number = second // runner.EVALUATION_SECONDS
        for sample in answers[second]:
            key = frozenset(sample.labels.items())
            if key not in found:
                labels = {name: value for name, value in sample.labels.items() if name != "__name__"}
                found[key] = Series(sample.name, labels, [None] * scrapes)
            kept = found[key].values[number : number + scrapes_each]
            found[key].values[number : number + scrapes_each] = [sample.value] * len(kept)
    return list(found.values())


def write(
    ports: Sequence[int],
    everything: Sequence[Series],
    start: float,
    scrapes: int,
    *,
    more: Sequence[Receiver] = (),
) -> None:
    """Write series into servers by their remote-write receivers.

    Args:
        ports: of the servers on this machine that receive where Prometheus does.
        everything: what to write; a series that ends is marked as ended.
        start: Unix time of the first scrape.
        scrapes: how many the longest series has.
        more: receivers of other servers; closed at the end.
    """
    times = times_of(start + runner.EVALUATION_SECONDS * np.arange(scrapes, dtype=np.float64))
    receivers = [*map(Receiver, ports), *more]
    pieces: list[bytes] = []
    for each in everything:
        values = moved(each.name, each.values, start)
        numbers = np.array([math.nan if value is None else value for value in values])
        there = np.array([value is not None for value in values])
        ended = np.concatenate([[False], there[:-1] & ~there[1:]])
        # A gap in what was scraped is a scrape that lacks the series: Prometheus marks its end.
        bits = np.where(ended, STALE, numbers.view(np.uint64))
        kept = there | ended
        labels = labels_of({"__name__": each.name, **each.labels})
        pieces += series_of(labels, samples_of(bits[kept], times[: len(values)][kept]))
        if sum(map(len, pieces[-4:])) * len(pieces) / 4 > _MESSAGE_BYTES:
            _post(receivers, pieces)
    _post(receivers, pieces)
    for receiver in receivers:
        receiver.close()


def _post(receivers: Sequence[Receiver], pieces: list[bytes]) -> None:
    message = b"".join(pieces)
    pieces.clear()
    for receiver in receivers:
        receiver.post(message)
