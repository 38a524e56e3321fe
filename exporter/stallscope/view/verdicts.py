"""What Prometheus says of the runs and GPUs that somebody looks at: asked now and then, on a thread of its own.

Who looks gets what is known and never waits. While nobody looks, nothing is asked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from stallscope.clients.expressions import any_of

if TYPE_CHECKING:
    from stallscope.clients.prometheus import Series  # whose library is loaded only where a server is configured

INTERVAL = 20.0
"""Seconds between two questions: rules are evaluated every 15 to 60 s."""
WATCHED_SECONDS = 120.0
"""For so long after somebody looked it goes on asking, so that the next look finds something new."""
USEFUL_SECONDS = 300.0
"""Verdicts look at five minutes: older ones speak of another time."""

_logger = logging.getLogger(__name__)
_Name = TypeVar("_Name")


class RunName(NamedTuple):
    """What tells runs apart, as far as an exporter knows: it is not told its own cluster."""

    run: str
    namespace: str


class Culprit(NamedTuple):
    """The rank and GPU that a run's verdict is about, and the root cause, as in `run:culprit:info`."""

    rank: str
    instance: str
    gpu: str
    """Index of the GPU; empty if the rank has no known GPU."""
    mig: str
    cause: str


class Verdict(NamedTuple):
    """A primary cause."""

    cause: str
    share: float
    """Share of GPU time that it costs."""
    lost: float | None = None
    """Share that all causes together cost, where told."""
    culprit: Culprit | None = None
    """None for a GPU, and for a run whose verdict names no single rank."""
    missing: tuple[str, ...] = ()
    """Why a run can't be judged, as in `rank:missing:info`; empty for a GPU, and if the verdict names a cause."""


class Verdicts(NamedTuple):
    """What is known at one moment."""

    server: str
    runs: Mapping[RunName, Verdict]
    ambiguous: frozenset[RunName]
    """Runs of which Prometheus knows several, as in two clusters, that it doesn't judge alike."""
    gpus: Mapping[str, Verdict]
    """By UUID."""
    age: float | None
    """Seconds since these were asked for; None where there are none, or none that are useful still."""
    problem: str
    """Why the newest question was not answered, or not yet; empty where all is well."""


class Server(Protocol):
    """What answers; `stallscope.clients.prometheus.Prometheus` is one."""

    name: str

    def query(self, expression: str) -> Sequence[Series]:
        """The series that an expression has now."""


class _Answer(NamedTuple):
    at: float
    runs: Mapping[RunName, Verdict]
    ambiguous: frozenset[RunName]
    gpus: Mapping[str, Verdict]


class VerdictWatch:
    """See the module. `start` makes the thread; `ask` asks once in the calling thread, for tests."""

    def __init__(
        self,
        server: Server,
        *,
        interval: float = INTERVAL,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is asked yet."""
        self._server = server
        self._interval = interval
        self._monotonic = monotonic
        self._runs: tuple[RunName, ...] = ()
        self._gpus: tuple[str, ...] = ()
        self._looked_at: float | None = None
        self._asking_since: float | None = None
        self._answer: _Answer | None = None
        self._problem = ""
        self._woken = threading.Event()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Ask from now on, while somebody looks."""
        threading.Thread(target=self._ask_for_ever, name="verdicts", daemon=True).start()

    def stop(self) -> None:
        """Ask no more; does not wait for a question that is under way."""
        self._stopping.set()
        self._woken.set()

    def look(self, runs: Iterable[RunName], gpus: Iterable[str]) -> Verdicts:
        """What is known now; from here on these runs and GPUs are asked for. Memory only."""
        now = self._monotonic()
        self._runs, self._gpus, self._looked_at = tuple(runs), tuple(gpus), now
        self._woken.set()
        answer, problem, since = self._answer, self._problem, self._asking_since
        if since is not None and now - since > self._interval:
            problem = f"{self._server.name}: no answer for {now - since:.0f} s"
        if answer is None or now - answer.at > USEFUL_SECONDS:
            return Verdicts(self._server.name, {}, frozenset(), {}, None, problem)
        return Verdicts(
            self._server.name, answer.runs, answer.ambiguous, answer.gpus, max(0.0, now - answer.at), problem
        )

    def ask(self) -> None:
        """Ask once, and keep the answer or what stood in its way."""
        began = self._asking_since = self._monotonic()
        try:
            runs, ambiguous = self._judged_runs(self._runs)
            self._answer = _Answer(began, runs, ambiguous, self._judged_gpus(self._gpus))
            problem = ""
        except Exception as failure:  # noqa: BLE001 - whatever it is, the page stays up and says so
            problem = str(failure) or type(failure).__name__
        if problem != self._problem:
            _logger.log(logging.WARNING if problem else logging.INFO, "verdicts: %s", problem or "told again")
        self._problem = problem
        self._asking_since = None

    def _judged_runs(self, names: tuple[RunName, ...]) -> tuple[dict[RunName, Verdict], frozenset[RunName]]:
        if not names:
            return {}, frozenset()
        matcher = f"{{run=~{any_of(sorted({name.run for name in names}))}}}"
        lost: dict[RunName, float] = {}
        for name, _cause, share in _shares(self._server.query(f"run:time_lost:ratio5m{matcher}"), _run_name):
            lost[name] = max(share, lost.get(name, 0.0))
        culprits = _culprits(self._server.query(f"run:culprit:info{matcher}"))
        missing: dict[RunName, set[str]] = {}
        for labels, _value in self._server.query(f"count by (run, namespace, missing) (rank:missing:info{matcher})"):
            missing.setdefault(_run_name(labels), set()).add(labels.get("missing", ""))
        runs: dict[RunName, Verdict] = {}
        ambiguous = set()
        for name, cause, share in _shares(self._server.query(f"run:verdict:ratio5m{matcher}"), _run_name):
            if name in runs and runs[name].cause != cause:
                ambiguous.add(name)
            reasons = missing.get(name, set()) if cause == "insufficient_data" else ()
            runs[name] = Verdict(cause, share, lost.get(name), culprits.get(name), tuple(sorted(reasons)))
        asked = frozenset(names)
        return {name: runs[name] for name in runs.keys() & (asked - ambiguous)}, asked & ambiguous

    def _judged_gpus(self, uuids: tuple[str, ...]) -> dict[str, Verdict]:
        gpus: dict[str, Verdict] = {}
        if uuids:
            # Not by instance: only Prometheus knows by which name it scrapes this exporter.
            question = f"gpu:verdict:ratio5m{{uuid=~{any_of(uuids)}}}"
            for uuid, cause, share in _shares(self._server.query(question), lambda labels: labels.get("uuid", "")):
                if uuid not in gpus or share > gpus[uuid].share:  # two jobs may scrape one exporter
                    gpus[uuid] = Verdict(cause, share)
        return gpus

    def _ask_for_ever(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()  # before looking: who looks after this wakes it again
            looked_at = self._looked_at
            if looked_at is None or self._monotonic() - looked_at > WATCHED_SECONDS:
                self._woken.wait()
                continue
            self.ask()
            self._stopping.wait(self._interval)


def culprit_of(labels: Mapping[str, str]) -> Culprit:
    """Return the culprit that the labels of a series of `run:culprit:info` name."""
    return Culprit(*(labels.get(name, "") for name in Culprit._fields))


def _culprits(series: Iterable[Series]) -> dict[RunName, Culprit]:
    """Return the culprit by run, without runs of one name that have different ones."""
    found: dict[RunName, set[Culprit]] = {}
    for labels, _value in series:
        found.setdefault(_run_name(labels), set()).add(culprit_of(labels))
    return {name: next(iter(culprits)) for name, culprits in found.items() if len(culprits) == 1}


def _run_name(labels: Mapping[str, str]) -> RunName:
    return RunName(labels.get("run", ""), labels.get("namespace", ""))


def _shares(series: Iterable[Series], name: Callable[[Mapping[str, str]], _Name]) -> Iterable[tuple[_Name, str, float]]:
    """Whom each series names, its cause, and the share, held to what a share can be."""
    for labels, value in series:
        if isfinite(value):
            yield name(labels), labels.get("cause", ""), min(1.0, max(0.0, value))
