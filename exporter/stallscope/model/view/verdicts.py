"""Verdicts on the displayed runs and GPUs, queried from Prometheus on a background thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from stallscope.model.clients.expressions import any_of
from stallscope.model.view.watch import INTERVAL, Watch
from stallscope.training.protocol.stacks import Place

if TYPE_CHECKING:
    from stallscope.model.clients.prometheus import Series  # loads its library only if a server is configured

_Name = TypeVar("_Name")


class RunName(NamedTuple):
    """The identity of a run as far as an exporter knows it; an exporter does not know its cluster."""

    run: str
    namespace: str


class Culprit(NamedTuple):
    """The rank and GPU that a run's verdict names, and the root cause, as in `run:culprit:info`."""

    rank: str
    instance: str
    gpu: str
    """Index of the GPU; empty if the rank has no known GPU."""
    mig: str
    cause: str


class CodeLine(NamedTuple):
    """The line of code in which the phase of a verdict spends most of its time, as in `run:code:ratio2m`."""

    phase: str
    location: str
    function: str
    share: float
    """Share of the phase."""
    workers: int = 0
    """Loader workers of a rank, for the phase `data_wait`; 0 if there are none."""


class OddRank(NamedTuple):
    """A rank of a run at a standstill whose place in the code differs from most ranks', as in `rank:odd_stack:info`."""

    rank: str
    place: Place


class Verdict(NamedTuple):
    """A primary cause."""

    cause: str
    share: float
    """Share of GPU time that it costs."""
    lost: float | None = None
    """Share of GPU time that all causes together cost, if known."""
    culprit: Culprit | None = None
    """None for a GPU, and for a run whose verdict names no single rank."""
    missing: tuple[str, ...] = ()
    """Reasons for insufficient data, as in `rank:missing:info`; empty for a GPU, and if the verdict names a cause."""
    line: CodeLine | None = None
    """None for a GPU, and for a run whose verdict names no line of code."""
    odd: tuple[OddRank, ...] = ()
    """By rank; empty for a GPU, and for a run without a standstill."""


class Verdicts(NamedTuple):
    """The verdicts at one moment."""

    server: str
    runs: Mapping[RunName, Verdict]
    ambiguous: frozenset[RunName]
    """Names that Prometheus has for several runs, as in two clusters, with different verdicts."""
    gpus: Mapping[str, Verdict]
    """By UUID."""
    age: float | None
    """Seconds since the query; None without verdicts, or if they are too old."""
    problem: str
    """Error of the latest query, or the time that it has been pending; empty if all is well."""


class Server(Protocol):
    """A server that evaluates queries; `stallscope.model.clients.prometheus.Prometheus` is one."""

    name: str

    def query(self, expression: str) -> Sequence[Series]:
        """Evaluate an expression now."""


class _Subjects(NamedTuple):
    runs: tuple[RunName, ...]
    gpus: tuple[str, ...]


class _Answer(NamedTuple):
    runs: Mapping[RunName, Verdict]
    ambiguous: frozenset[RunName]
    gpus: Mapping[str, Verdict]


class VerdictWatch(Watch[_Subjects, _Answer]):
    """Queries verdicts in the background."""

    def __init__(
        self, server: Server, *, interval: float = INTERVAL, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare; nothing is queried yet."""
        super().__init__("verdicts", server.name, interval=interval, monotonic=monotonic)
        self._server = server

    def look(self, runs: Iterable[RunName], gpus: Iterable[str]) -> Verdicts:
        """Return the latest verdicts from memory, and query these runs and GPUs from now on."""
        answer, age, problem = self._read(_Subjects(tuple(runs), tuple(gpus)))
        if answer is None:
            return Verdicts(self._server.name, {}, frozenset(), {}, None, problem)
        return Verdicts(self._server.name, *answer, age, problem)

    def _query(self, subjects: _Subjects) -> _Answer:
        runs, ambiguous = self._judged_runs(subjects.runs)
        return _Answer(runs, ambiguous, self._judged_gpus(subjects.gpus))

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
        lines = self._lines(matcher)
        odd = _odd_ranks(self._server.query(f"rank:odd_stack:info{matcher}"))
        runs: dict[RunName, Verdict] = {}
        ambiguous = set()
        for name, cause, share in _shares(self._server.query(f"run:verdict:ratio5m{matcher}"), _run_name):
            if name in runs and runs[name].cause != cause:
                ambiguous.add(name)
            reasons = missing.get(name, set()) if cause == "insufficient_data" else ()
            runs[name] = Verdict(
                cause,
                share,
                lost.get(name),
                culprits.get(name),
                tuple(sorted(reasons)),
                lines.get((name, cause)),
                odd.get(name, ()),
            )
        wanted = frozenset(names)
        return {name: runs[name] for name in runs.keys() & (wanted - ambiguous)}, wanted & ambiguous

    def _lines(self, matcher: str) -> dict[tuple[RunName, str], CodeLine]:
        """Return the line of code by run and cause, except for names of several runs with different lines."""
        found: dict[tuple[RunName, str], set[CodeLine]] = {}
        series = self._server.query(f"run:code:ratio2m{matcher}")
        workers: dict[str, int] = {}
        if series:
            for labels, value in self._server.query(f"max by (run) (stallscope_training_dataloader_workers{matcher})"):
                workers[labels.get("run", "")] = int(value)
        for labels, share in series:
            if isfinite(share):
                line = code_line_of(labels, share, workers.get(labels.get("run", ""), 0))
                found.setdefault((_run_name(labels), labels.get("cause", "")), set()).add(line)
        return {key: next(iter(lines)) for key, lines in found.items() if len(lines) == 1}

    def _judged_gpus(self, uuids: tuple[str, ...]) -> dict[str, Verdict]:
        gpus: dict[str, Verdict] = {}
        if uuids:
            # Not by instance: the exporter does not know the instance label that Prometheus gives it.
            query = f"gpu:verdict:ratio5m{{uuid=~{any_of(uuids)}}}"
            for uuid, cause, share in _shares(self._server.query(query), lambda labels: labels.get("uuid", "")):
                if uuid not in gpus or share > gpus[uuid].share:  # two jobs may scrape the same exporter
                    gpus[uuid] = Verdict(cause, share)
        return gpus


def culprit_of(labels: Mapping[str, str]) -> Culprit:
    """Read a culprit from the labels of a series of `run:culprit:info`."""
    return Culprit(*(labels.get(name, "") for name in Culprit._fields))


def code_line_of(labels: Mapping[str, str], share: float, workers: int) -> CodeLine:
    """Read a line of code from the labels of a series of `run:code:ratio2m`.

    Args:
        labels: the labels.
        share: share of the phase.
        workers: loader workers of a rank, which only matter for `data_wait`.
    """
    phase, location, function = (labels.get(name, "") for name in ("phase", "location", "function"))
    limited = min(1.0, max(0.0, share))
    return CodeLine(phase, location, function, limited, workers if phase == "data_wait" else 0)


def _culprits(series: Iterable[Series]) -> dict[RunName, Culprit]:
    """Return the culprits by run, except for names of several runs with different culprits."""
    found: dict[RunName, set[Culprit]] = {}
    for labels, _value in series:
        found.setdefault(_run_name(labels), set()).add(culprit_of(labels))
    return {name: next(iter(culprits)) for name, culprits in found.items() if len(culprits) == 1}


def _odd_ranks(series: Iterable[Series]) -> dict[RunName, tuple[OddRank, ...]]:
    """Return the ranks that differ by run, except for names of several runs, as in two clusters."""
    found: dict[RunName, set[OddRank]] = {}
    clusters: dict[RunName, set[str]] = {}
    for labels, _value in series:
        name = _run_name(labels)
        found.setdefault(name, set()).add(odd_rank_of(labels))
        clusters.setdefault(name, set()).add(labels.get("cluster", ""))
    return {
        name: tuple(sorted(ranks, key=lambda each: (len(each.rank), each)))
        for name, ranks in found.items()
        if len(clusters[name]) == 1
    }


def odd_rank_of(labels: Mapping[str, str]) -> OddRank:
    """Read a rank that differs from the labels of a series of `rank:odd_stack:info`."""
    place = Place(*(labels.get(name, "") for name in ("location", "function", "call")))
    return OddRank(labels.get("rank", ""), place)


def _run_name(labels: Mapping[str, str]) -> RunName:
    return RunName(labels.get("run", ""), labels.get("namespace", ""))


def _shares(series: Iterable[Series], name: Callable[[Mapping[str, str]], _Name]) -> Iterable[tuple[_Name, str, float]]:
    """Yield the subject of each series, its cause, and the share limited to 0 to 1."""
    for labels, value in series:
        if isfinite(value):
            yield name(labels), labels.get("cause", ""), min(1.0, max(0.0, value))
