"""Find a run on a server by its name: whose it is, where its ranks were, which GPUs they claimed, from when to when."""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, Protocol

from stallscope.analysis.ranges import Ranges, joined
from stallscope.clients.expressions import any_of, quoted
from stallscope.clients.prometheus import RangeSeries, Series
from stallscope.common.formatting import NAME_LENGTH, readable

GOES_ON_SECONDS = 300.0
"""A run whose newest scrape is no older than this goes on, unless its ranks said that they ended."""
_LOOKS = 200
"""Windows that a time is divided into, to find out in which of them there is something."""
_SHORTEST_WINDOW = 60.0
_BORDER = 0.001
"""Seconds: some servers count a sample on a window's border in, and others don't."""
_NEAREST = 3
_LISTED = 8
_LONGEST = 3 * NAME_LENGTH
"""Characters of a cluster, a namespace and a name together."""
_GOING_ON = frozenset({"starting", "running"})
_FLAGS = {"--cluster": 0, "--namespace": 1}
"""Of every command that takes a run, and which part of its place each tells."""


class Server(Protocol):
    """What answers; `stallscope.clients.prometheus.Prometheus` is one."""

    name: str

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """The series that an expression has at a moment."""

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[RangeSeries]:
        """What an expression was from one moment to another."""

    def samples(self, selector: str, start: float, end: float) -> list[RangeSeries]:
        """The samples of series as they were scraped."""

    def label_values(
        self, label: str, selector: str, start: float | None = None, end: float | None = None
    ) -> list[str]:
        """The values that a label has in a selector's series."""


class RunError(Exception):
    """A run can't be told of; the message is one line with what was wrong and what to do."""


class UnknownRunError(RunError):
    """There is no such run in that time."""


class AmbiguousRunError(RunError):
    """Several runs have that name, and it was not said which is meant."""


class NoDataError(RunError):
    """The server has nothing of any run in that time."""


class Place(NamedTuple):
    """Where a rank was."""

    rank: str
    job: str
    instance: str


class Claim(NamedTuple):
    """A GPU on which a rank computes, as the rank names it."""

    rank: str
    job: str
    instance: str
    gpu: str
    """Index; empty where the rank knows the UUID only."""
    uuid: str
    """Empty where the rank knows the index only."""


class _Reading(NamedTuple):
    """A way to read what somebody calls a run."""

    name: str
    cluster: str | None
    namespace: str | None


@dataclass(frozen=True)
class Run:
    """One run, as a server knows it from a time that somebody asked about."""

    name: str
    namespace: str
    """As its ranks told it; empty where they told none."""
    cluster: str
    """As scraping labels it; empty where it does not."""
    start: float
    """Unix time of the first scrape in which one of its ranks was."""
    end: float
    """Unix time of the last one."""
    goes_on: bool
    """Whether it was alive at the end of the time that was asked about."""
    states: Mapping[str, int]
    """How many ranks were in which state at its end."""
    places: tuple[Place, ...]
    """Of each rank, by number; a rank that moved has several."""
    claims: tuple[Claim, ...]
    """Of its ranks, in the same order."""
    told: Mapping[str, str]
    """What its first rank told last of itself: framework, world_size, user, job_class, git_commit, slurm_job ..."""

    @property
    def instances(self) -> tuple[str, ...]:
        """The exporters that told of its ranks, by the names under which they are scraped."""
        return tuple(dict.fromkeys(place.instance for place in self.places))

    @property
    def ranks(self) -> tuple[str, ...]:
        """Those that reported, by number."""
        return tuple(dict.fromkeys(place.rank for place in self.places))

    @property
    def world_size(self) -> int | None:
        """Ranks that it should have, where told."""
        size = self.told.get("world_size", "")
        return int(size) if size.isdecimal() else None

    @property
    def matchers(self) -> str:
        """PromQL's matchers of what its ranks told, each once: `stallscope_training_…{HERE}`."""
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
    reader: Ranges | None = None,
) -> Run:
    """Find a run by its name.

    Args:
        server: whom to ask.
        name: the run's; where several have it, CLUSTER/NAMESPACE/RUN or NAMESPACE/RUN, with nothing for what it has
            none of. A name may hold slashes itself: it is taken for a whole name first.
        start: Unix time after which it is looked for.
        end: Unix time until which it is.
        cluster: which is meant, where several have a run of that name, and the name doesn't say.
        namespace: likewise.
        reader: asks long questions; one is made where left out.

    Raises:
        UnknownRunError: there is none in that time; the message offers the nearest names.
        AmbiguousRunError: there are several; the message lists them.
        NoDataError: there is no run at all in that time.
        PrometheusError: the server gave no answer.
    """
    reader = reader or Ranges(server)
    window = ceil(max(_SHORTEST_WINDOW, (end - start) / _LOOKS))
    readings = _readings(name, cluster, namespace)
    info = f"stallscope_training_rank_info{{run=~{any_of(each.name for each in readings)}}}"
    # A rank is a number: what is none, no exporter of Stallscope told.
    described = [each for each in _seen(reader, info, start, end, window) if each.labels.get("rank", "").isdecimal()]
    if not described:
        raise _unknown(server, readings, start, end)
    name, described = _chosen(described, readings)
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
        for each in _seen(reader, f"stallscope_training_rank_gpu_info{{{chosen}}}", start, end, window)
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
        told=newest.labels,
    )


def run_names(server: Server, start: float, end: float) -> list[str]:
    """The names of all runs of that time, give or take the hours that the server's index is exact to.

    Raises:
        PrometheusError: the server gave no answer.
    """
    return server.label_values("run", "stallscope_training_rank_info", start, end)


def references(name: str, places: Iterable[tuple[str, str]]) -> list[str]:
    """Runs of one name told apart, each as `find_run` takes it.

    Args:
        name: of them all.
        places: cluster and namespace of each.
    """
    told = list(places)
    one_cluster = len({cluster for cluster, _ in told}) == 1
    return [f"{namespace}/{name}" if one_cluster else f"{cluster}/{namespace}/{name}" for cluster, namespace in told]


def _seen(reader: Ranges, selector: str, start: float, end: float, window: int) -> list[RangeSeries]:
    """The series of a selector that there are in a time, each with the ends of the windows in which it is."""
    number = ceil((end - start) / window)
    return joined(reader.stepped(f"count_over_time({selector}[{window}s])", end - (number - 1) * window, end, window))


def _places(described: Iterable[RangeSeries]) -> list[Place]:
    """Where ranks were, each once: where two jobs scrape an exporter, the first one's series count.

    A job that only takes over from another, as one that is renamed, shares one window with it at most.
    """
    windows: dict[Place, set[float]] = {}
    for each in described:
        windows.setdefault(_place(each.labels), set()).update(each.times)
    told: dict[tuple[str, str], set[float]] = {}
    found = []
    for place in sorted(windows, key=_by_number):
        before, own = told.setdefault((place.rank, place.instance), set()), windows[place]
        if len(before & own) < min(2, len(own)):
            found.append(place)
            before |= own
    return found


def _readings(text: str, cluster: str | None, namespace: str | None) -> list[_Reading]:
    """What a name may mean: itself, or with its place before it."""
    readings = []
    parts = text.split("/", 2)
    if len(parts) > 2:
        readings.append(_Reading(parts[2], parts[0], parts[1]))
    if len(parts) > 1:
        readings.append(_Reading(text.partition("/")[2], cluster, parts[0]))
    return [_Reading(text, cluster, namespace), *(each for each in readings if each.name)]


def _chosen(described: Sequence[RangeSeries], readings: Sequence[_Reading]) -> tuple[str, list[RangeSeries]]:
    """The name and the series of the one run that is meant."""
    runs: dict[str, dict[tuple[str, str], list[RangeSeries]]] = {}
    for each in described:
        place = each.labels.get("cluster", ""), each.labels.get("namespace", "")
        runs.setdefault(each.labels.get("run", ""), {}).setdefault(place, []).append(each)
    known = [reading for reading in readings if reading.name in runs]
    for name, cluster, namespace in known:
        meant = [key for key in runs[name] if cluster in (None, key[0]) and namespace in (None, key[1])]
        if len(meant) == 1:
            return name, runs[name][meant[0]]
        if meant:
            flags = [flag for flag, part in _FLAGS.items() if len({key[part] for key in meant}) > 1]
            form = "CLUSTER/NAMESPACE/RUN" if "--cluster" in flags else "NAMESPACE/RUN"
            raise AmbiguousRunError(
                f"several runs are called {name!r}; choose one with {' and '.join(flags)}, or as {form}: "
                f"{_listed(references(name, meant))}"
            )
    name = known[0].name
    places = _listed(f"{cluster}/{namespace}/{name}" for cluster, namespace in runs[name])
    raise UnknownRunError(f"there is a run {name!r} elsewhere only, as CLUSTER/NAMESPACE/RUN: {places}")


def _listed(names: Iterable[str]) -> str:
    known = sorted(names)
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"{', '.join(readable(name, _LONGEST) for name in known[:_LISTED])}{more}"


def _unknown(server: Server, readings: Sequence[_Reading], start: float, end: float) -> RunError:
    """What to say where there is no such run."""
    name = readings[0].name
    when = f"between {_shown(start)} and {_shown(end)}"
    asked = any_of(each.name for each in readings)
    if server.label_values("run", f"stallscope_training_rank_info{{run=~{asked}}}"):
        return UnknownRunError(f"the run {name!r} reported nothing {when}; ask about another time (--since, --end)")
    names = run_names(server, start, end)
    if names:
        near = (difflib.get_close_matches(each.name, names, n=_NEAREST, cutoff=0.5) for each in reversed(readings))
        nearest = next(filter(None, near), None)
        if nearest:
            return UnknownRunError(
                f"there is no run {name!r} {when}; did you mean {' or '.join(map(readable, nearest))}?"
            )
        return UnknownRunError(f"there is no run {name!r} {when}; there are {_listed(names)}")
    exporters = server.label_values("instance", "stallscope_build_info", start, end)
    if exporters:
        return NoDataError(
            f"{server.name} scrapes {len(exporters)} of Stallscope's exporters, but no training reported to them "
            f"{when}; start it with `stallscope run`, or see `stallscope doctor`"
        )
    return NoDataError(
        f"{server.name} has no data of Stallscope {when}; is it the right server, and does it scrape the exporters?"
    )


def _place(labels: Mapping[str, str]) -> Place:
    return Place(labels.get("rank", ""), labels.get("job", ""), labels.get("instance", ""))


def _by_number(subject: Iterable[str]) -> tuple[int, tuple[str, ...]]:
    """Sorts by rank, as numbers are sorted."""
    told = tuple(subject)
    return int(told[0]), told


def _shown(moment: float) -> str:
    return dt.datetime.fromtimestamp(moment, dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
