"""Find a run on a server by its name: its ranks, their nodes, the GPUs they claim, its start and end."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, Protocol

from stallscope.common.formatting import NAME_LENGTH, listed, readable, several, utc
from stallscope.model.analysis import ranges
from stallscope.model.analysis.ranges import Ranges, joined
from stallscope.model.clients.expressions import any_of, quoted
from stallscope.model.clients.prometheus import RangeSeries, Series

GOES_ON_SECONDS = 300.0
"""A run goes on if its newest scrape is no older than this, unless its ranks have ended."""
_MAX_WINDOWS = 200
"""Number of windows into which a time is divided to find when a series exists."""
_SHORTEST_WINDOW = 60.0
_BORDER = 0.001
"""In seconds. Some servers include a sample at the border of a window, others do not."""
_NEAREST = 3
_LONGEST = 3 * NAME_LENGTH
"""Characters of a cluster, a namespace and a name together."""
_GOING_ON = frozenset({"starting", "running"})
_FLAGS = {"--cluster": 0, "--namespace": 1}
"""Flags of commands that take a run, and the part of the run's place that each selects."""


class Server(ranges.Server, Protocol):
    """A server with runs; `stallscope.model.clients.prometheus.Prometheus` is one."""

    name: str

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """Evaluate an expression at one time."""

    def label_values(
        self, label: str, selector: str, start: float | None = None, end: float | None = None
    ) -> list[str]:
        """Return the values of a label in the selected series."""


class RunError(Exception):
    """The run is unavailable; the message is one line with the problem and what to do."""


class UnknownRunError(RunError):
    """There is no such run in the time range."""


class AmbiguousRunError(RunError):
    """Several runs have the name."""


class NoDataError(RunError):
    """The server has no data of any run in the time range."""


class Place(NamedTuple):
    """The place of a rank."""

    rank: str
    job: str
    instance: str


class Claim(NamedTuple):
    """A GPU that a rank computes on, as the rank reports it."""

    rank: str
    job: str
    instance: str
    gpu: str
    """Index; empty if the rank reports only the UUID."""
    uuid: str
    """Empty if the rank reports only the index."""


class _Reference(NamedTuple):
    """One interpretation of the text that names a run."""

    name: str
    cluster: str | None
    namespace: str | None


@dataclass(frozen=True)
class Run:
    """One run as a server recorded it in a time range."""

    name: str
    namespace: str
    """As its ranks report it; empty if they report none."""
    cluster: str
    """External label of the scrape; empty without one."""
    start: float
    """Unix time of the first scrape with one of its ranks."""
    end: float
    """Unix time of the last such scrape."""
    goes_on: bool
    """True if it was alive at the end of the time range."""
    states: Mapping[str, int]
    """Number of ranks by state at its end."""
    places: tuple[Place, ...]
    """Places of the ranks, by rank number; a rank that moved has several."""
    claims: tuple[Claim, ...]
    """GPUs of the ranks, in the same order."""
    info: Mapping[str, str]
    """Latest labels of its first rank: framework, world_size, user, job_class, git_commit, slurm_job ..."""

    @property
    def instances(self) -> tuple[str, ...]:
        """Instances of the exporters that its ranks report to."""
        return tuple(dict.fromkeys(place.instance for place in self.places))

    @property
    def ranks(self) -> tuple[str, ...]:
        """Ranks that reported, by number."""
        return tuple(dict.fromkeys(place.rank for place in self.places))

    @property
    def world_size(self) -> int | None:
        """Expected number of ranks, if reported."""
        size = self.info.get("world_size", "")
        return int(size) if size.isdecimal() else None

    @property
    def matchers(self) -> str:
        """PromQL matchers for the series of its ranks, without duplicates: `stallscope_training_…{HERE}`."""
        jobs = any_of(dict.fromkeys(place.job for place in self.places))
        where = f"job=~{jobs}, instance=~{any_of(self.instances)}"
        return f"cluster={quoted(self.cluster)}, run={quoted(self.name)}, {where}"


def find_run(
    server: Server,
    name: str,
    start: float,
    end: float,
    *,
    cluster: str | None = None,
    namespace: str | None = None,
    flags: str = "--since, --end",
) -> Run:
    """Find a run by its name.

    Args:
        server: the server to query.
        name: name of the run. If several have it: CLUSTER/NAMESPACE/RUN or NAMESPACE/RUN, with empty parts where the
            run has none. A name may contain slashes: the whole text is tried as a name first.
        start: Unix time; exclusive.
        end: Unix time; inclusive.
        cluster: selects one of several runs of that name.
        namespace: selects one of several runs of that name.
        flags: flags of the command that select the time, for an error.

    Raises:
        UnknownRunError: there is none in that time; the message suggests similar names.
        AmbiguousRunError: there are several; the message lists them.
        NoDataError: there is no run at all in that time.
        PrometheusError: the server gave no valid response.
    """
    reader = Ranges(server)
    window = ceil(max(_SHORTEST_WINDOW, (end - start) / _MAX_WINDOWS))
    known_names = _references(name, cluster, namespace)
    info = f"stallscope_training_rank_info{{run=~{any_of(each.name for each in known_names)}}}"
    # Stallscope's exporters only report numeric ranks; ignore series of other origin.
    described = [each for each in _present(reader, info, start, end, window) if each.labels.get("rank", "").isdecimal()]
    if not described:
        raise _unknown(server, known_names, start, end, flags)
    name, described = _select_run(described, known_names)
    labels = described[-1].labels
    chosen = f"cluster={quoted(labels.get('cluster', ''))}, run={quoted(name)}"
    of_it = f"namespace={quoted(labels.get('namespace', ''))}, {chosen}"
    first = min(each.times[0] for each in described)
    last = max(each.times[-1] for each in described)
    places = _places(described)
    exact = f"stallscope_training_rank_info{{{of_it}}}"
    begins = [each.times[0] for each in reader.scraped(exact, max(start, first - window) - _BORDER, first)]
    ends = [each.times[-1] for each in reader.scraped(exact, max(start, last - window) - _BORDER, last)]
    began, ended = min(begins, default=first), max(ends, default=last)
    known = set(places)
    states: dict[str, int] = {}
    for each in server.query(f"last_over_time(stallscope_training_state{{{chosen}}}[5m]) == 1", at=ended):
        if _place(each.labels) in known:
            state = each.labels.get("state", "")
            states[state] = states.get(state, 0) + 1
    claims = {
        Claim(*_place(each.labels), each.labels.get("gpu", ""), each.labels.get("uuid", ""))
        for each in _present(reader, f"stallscope_training_rank_gpu_info{{{chosen}}}", start, end, window)
        if _place(each.labels) in known
    }
    newest = max(described, key=lambda each: (each.times[-1], -int(each.labels["rank"])))
    return Run(
        name=name,
        namespace=labels.get("namespace", ""),
        cluster=labels.get("cluster", ""),
        start=began,
        end=ended,
        goes_on=end - ended <= GOES_ON_SECONDS and not (states and not _GOING_ON & states.keys()),
        states=states,
        places=tuple(places),
        claims=tuple(sorted(claims, key=_by_number)),
        info=newest.labels,
    )


def run_names(server: Server, start: float, end: float) -> list[str]:
    """Return the names of all runs in a time range, accurate to a few hours as the server's index is.

    Raises:
        PrometheusError: the server gave no valid response.
    """
    return server.label_values("run", "stallscope_training_rank_info", start, end)


def references(name: str, places: Iterable[tuple[str, str]]) -> list[str]:
    """Return unambiguous references to runs of one name, as `find_run` accepts them.

    Args:
        name: their common name.
        places: cluster and namespace of each.
    """
    known = list(places)
    is_one_cluster = len({cluster for cluster, _ in known}) == 1
    prefixes = [namespace if is_one_cluster else f"{cluster}/{namespace}" for cluster, namespace in known]
    return [f"{prefix}/{name}" for prefix in prefixes]


def _present(reader: Ranges, selector: str, start: float, end: float, window: int) -> list[RangeSeries]:
    """Return the series of a selector in a time range, each with the ends of the windows in which it exists."""
    number = ceil((end - start) / window)
    return joined(reader.stepped(f"count_over_time({selector}[{window}s])", end - (number - 1) * window, end, window))


def _places(described: Iterable[RangeSeries]) -> list[Place]:
    """Return the places of ranks. If two jobs scrape an exporter, only the series of the first job count.

    A job that takes over from another, for example after a renaming, shares at most one window with it.
    """
    windows: dict[Place, set[float]] = {}
    for each in described:
        windows.setdefault(_place(each.labels), set()).update(each.times)
    windows_by_rank: dict[tuple[str, str], set[float]] = {}
    found = []
    for place in sorted(windows, key=_by_number):
        before, own = windows_by_rank.setdefault((place.rank, place.instance), set()), windows[place]
        if len(before & own) < min(2, len(own)):
            found.append(place)
            before |= own
    return found


def _references(text: str, cluster: str | None, namespace: str | None) -> list[_Reference]:
    """Return the possible interpretations of a text: a plain name, or a name with its place."""
    found = []
    parts = text.split("/", 2)
    if len(parts) > 2:
        found.append(_Reference(parts[2], parts[0], parts[1]))
    if len(parts) > 1:
        found.append(_Reference(text.partition("/")[2], cluster, parts[0]))
    return [_Reference(text, cluster, namespace), *(each for each in found if each.name)]


def _select_run(described: Sequence[RangeSeries], named: Sequence[_Reference]) -> tuple[str, list[RangeSeries]]:
    """Return name and series of the one run that matches."""
    runs: dict[str, dict[tuple[str, str], list[RangeSeries]]] = {}
    for each in described:
        place = each.labels.get("cluster", ""), each.labels.get("namespace", "")
        runs.setdefault(each.labels.get("run", ""), {}).setdefault(place, []).append(each)
    known = [reference for reference in named if reference.name in runs]
    for name, cluster, namespace in known:
        matching = [key for key in runs[name] if cluster in (None, key[0]) and namespace in (None, key[1])]
        if len(matching) == 1:
            return name, runs[name][matching[0]]
        if matching:
            flags = [flag for flag, part in _FLAGS.items() if len({key[part] for key in matching}) > 1]
            form = "CLUSTER/NAMESPACE/RUN" if "--cluster" in flags else "NAMESPACE/RUN"
            raise AmbiguousRunError(
                f"several runs are called {name!r}; choose one with {' and '.join(flags)}, or as {form}: "
                f"{_listed(references(name, matching))}"
            )
    name = known[0].name
    places = _listed(f"{cluster}/{namespace}/{name}" for cluster, namespace in runs[name])
    raise UnknownRunError(f"there is a run {name!r} elsewhere only, as CLUSTER/NAMESPACE/RUN: {places}")


def _listed(names: Iterable[str]) -> str:
    return listed(sorted(names), _LONGEST)


def _unknown(server: Server, named: Sequence[_Reference], start: float, end: float, flags: str) -> RunError:
    """Return the error for a run that is not found."""
    name = named[0].name
    when = f"between {utc(start)} and {utc(end)}"
    names_matcher = any_of(each.name for each in named)
    if server.label_values("run", f"stallscope_training_rank_info{{run=~{names_matcher}}}"):
        return UnknownRunError(f"the run {name!r} reported nothing {when}; try another time ({flags})")
    names = run_names(server, start, end)
    if names:
        near = (difflib.get_close_matches(each.name, names, n=_NEAREST, cutoff=0.5) for each in reversed(named))
        nearest = next(filter(None, near), None)
        if nearest:
            return UnknownRunError(
                f"there is no run {name!r} {when}; did you mean {' or '.join(map(readable, nearest))}?"
            )
        return UnknownRunError(f"there is no run {name!r} {when}; known runs are {_listed(names)}")
    exporters = server.label_values("instance", "stallscope_build_info", start, end)
    if exporters:
        return NoDataError(
            f"{server.name} scrapes {several(len(exporters), 'Stallscope exporter')}, but no training reported to them "
            f"{when}; start it with `stallscope run`, or see `stallscope doctor`"
        )
    return NoDataError(
        f"{server.name} has no Stallscope data {when}; is it the right server, and does it scrape the exporters?"
    )


def _place(labels: Mapping[str, str]) -> Place:
    return Place(labels.get("rank", ""), labels.get("job", ""), labels.get("instance", ""))


def _by_number(subject: Iterable[str]) -> tuple[int, tuple[str, ...]]:
    """Sort by rank as a number."""
    fields = tuple(subject)
    return int(fields[0]), fields
