"""The model of a node that the status page, `stallscope top` and its JSON show: GPUs, ranks, runs, host, sources.

A value that is not exported is None.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stallscope.common.formatting import duration
from stallscope.model.catalogue.metrics import GONE_STATES, NOT_OF_THE_LOOP, OUTSIDE_PHASES, OWNER_LABELS
from stallscope.model.view.verdicts import RunName
from stallscope.training.protocol.stacks import Place

Labels = Mapping[str, str]
ENDED = ("finished", *GONE_STATES)
OWNERS_SOURCE = "owners"
"""Name of the exporter's source for owners of GPUs."""


class Owner(NamedTuple):
    """The owner of a GPU; fields that do not apply are empty."""

    namespace: str
    pod: str
    container: str
    slurm_job: str
    user: str
    memory: float | None = None
    """Bytes of frame buffer used by its processes."""
    busy: float | None = None
    """Share of the last seconds with kernels of its processes on the GPU."""

    @classmethod
    def of(cls, labels: Labels) -> Owner:
        """Read an owner from the labels of a series."""
        namespace, pod, container, slurm_job, user = (labels.get(name, "") for name in OWNER_LABELS)
        return cls(namespace, pod, container, slurm_job, user)

    @property
    def names(self) -> tuple[str, ...]:
        """All its names."""
        return self.namespace, self.pod, self.container, self.slurm_job, self.user

    @property
    def title(self) -> str:
        """A short name, such as `research/trainer-0` or `alice, job 41`."""
        if self.pod:
            return f"{self.namespace}/{self.pod}" if self.namespace else self.pod
        if self.slurm_job:
            thing = f"job {self.slurm_job}"
        elif self.container:
            thing = f"container {self.container[:12]}"
        else:
            return self.user or "unknown owner"
        return f"{self.user}, {thing}" if self.user else thing


@dataclass(frozen=True)
class Gpu:
    """A GPU or MIG instance."""

    index: str
    uuid: str
    mig: str
    model: str
    sharing: str
    """As in `gpu_info`: `mig` for a GPU that is split into instances."""
    up: bool | None
    """None before its first reading."""
    reason: str
    """Reason why it is down."""
    last_reading: float | None
    """Unix time."""
    utilization: float | None
    """Share of time with a kernel on it since the previous page; on the first page the newest second."""
    sm_active: float | None
    """Share of active SMs, over the same time."""
    memory_bandwidth: float | None
    """Share of the peak memory bandwidth, over the same time."""
    memory_used: float | None
    memory_total: float | None
    power: float | None
    power_limit: float | None
    temperature: float | None
    clock: float | None
    """SM clock in hertz."""
    clock_max: float | None
    throttled: Mapping[str, float]
    """Share of time by throttle reason, without zeros."""
    processes: int | None
    owners: tuple[Owner, ...]
    unified_memory: bool = False
    """True if its memory is the host's."""

    @property
    def order(self) -> tuple[int, str, bool, str, str]:
        """Sort key among GPUs."""
        return (int(self.index) if self.index.isdecimal() else 0, self.index, bool(self.mig), self.mig, self.uuid)


@dataclass(frozen=True, slots=True)
class Recent:
    """The activity of a rank over the observed time."""

    steps: float
    step_seconds: float
    phases: Mapping[str, float]
    """Seconds by phase."""
    samples: float | None
    tokens: float | None
    since: float | None
    """Length of the time in seconds; None if it is the whole time since the process started."""

    @property
    def loop(self) -> Mapping[str, float]:
        """Seconds by phase of the loop, as summary and report count them; of all phases if no step ended."""
        inside = {name: spent for name, spent in self.phases.items() if name not in NOT_OF_THE_LOOP}
        return inside if self.steps > 0 else self.phases

    @property
    def total(self) -> float:
        """Wall time of the loop in seconds."""
        return sum(self.loop.values())

    def rate(self, work: float | None) -> float | None:
        """Return the work per second of wall time, excluding time outside of steps; steps are never counted in part.

        None if no step was finished.
        """
        if work is None or self.steps <= 0 or self.step_seconds <= 0:
            return None
        outside = sum(self.loop.get(name, 0.0) for name in OUTSIDE_PHASES)
        inside = 1.0 if self.total <= 0 else max(0.0, 1.0 - outside / self.total)
        return work / self.step_seconds * inside


@dataclass(frozen=True)
class Rank:
    """One rank of a run."""

    run: str
    number: int
    info: Labels
    """Labels of `rank_info`."""
    state: str
    activity: str
    gpus: tuple[str, ...]
    """Indices of the GPUs that it computes on."""
    step: float | None
    """The reported step number, else the number of steps."""
    steps_planned: float | None
    epoch: float | None
    loss: float | None
    restarts: float
    last_step: float | None
    """Unix time."""
    last_push: float | None
    """Unix time."""
    recent: Recent
    mean_step: float | None
    """Mean over all steps in seconds."""
    without_step: float | None
    """Seconds since the last step of a live rank, if that is far longer than a step."""
    place: Place | None = None
    """The place in its code, if the rank is at a standstill and left its stack."""

    @property
    def ended(self) -> bool:
        """True if no more reports are expected."""
        return self.state in ENDED

    @property
    def step_seconds(self) -> float | None:
        """Mean step time of recent steps, else of all steps; None if no step is made any more."""
        if self.without_step is not None:
            return None
        return self.recent.step_seconds / self.recent.steps if self.recent.steps > 0 else self.mean_step

    def per_second(self, work: float | None) -> float | None:
        """Return the recent work per second; None for a rank that makes no steps."""
        return None if self.ended or self.without_step is not None else self.recent.rate(work)


class RankRow(NamedTuple):
    """A row of a table of ranks."""

    rank: Rank
    """The first of the ranks."""
    alike: int = 1
    """Number of ranks that the row stands for."""
    is_odd: bool = False
    """True if its place in the code differs from most ranks'."""

    @property
    def name(self) -> str:
        """The rank's number, or as `7 ranks as rank 0`."""
        return f"{self.alike:,} ranks as rank {self.rank.number}" if self.alike > 1 else str(self.rank.number)


@dataclass(frozen=True)
class Run:
    """A training run with its ranks on all observed nodes."""

    name: RunName
    ranks: tuple[Rank, ...]
    """By number."""

    @property
    def states(self) -> dict[str, int]:
        """Ranks by state."""
        return _counted(rank.state for rank in self.ranks)

    @property
    def ended(self) -> bool:
        """True if every rank has ended."""
        return all(rank.ended for rank in self.ranks)

    @property
    def has_gpus(self) -> bool:
        """True if any rank computes on a GPU."""
        return any(rank.gpus for rank in self.ranks)

    def shown(self, most: int) -> tuple[Rank, ...]:
        """Return up to `most` ranks by number, preferring failed, terminated and lost ranks."""
        first = sorted(self.ranks, key=lambda rank: rank.state not in GONE_STATES)[:most]
        return tuple(sorted(first, key=lambda rank: rank.number))

    def rows(self, most: int, odd: Collection[int] = ()) -> tuple[RankRow, ...]:
        """Return up to `most` rows of ranks by number.

        At a standstill, equal ranks share a row: their place in the code, state and step are the same. The ranks `odd`
        come first, because the others wait for them.
        """
        if self.without_step is None:
            return tuple(RankRow(rank) for rank in self.shown(most))
        equal: dict[object, list[Rank]] = {}
        for rank in self.ranks:
            equal.setdefault((rank.number in odd, rank.place, rank.state, rank.activity, rank.step), []).append(rank)
        rows = [RankRow(ranks[0], len(ranks), ranks[0].number in odd) for ranks in equal.values()]
        rows.sort(key=lambda row: (not row.is_odd, row.rank.state not in GONE_STATES, row.rank.number))
        return tuple(rows[:most])

    @property
    def activities(self) -> tuple[str, ...]:
        """Activities of the ranks that have not ended."""
        return tuple(sorted({rank.activity for rank in self.ranks if rank.activity and not rank.ended}))

    @property
    def world_size(self) -> int:
        """Number of ranks on all nodes."""
        reported = self.ranks[0].info.get("world_size", "")
        return max(len(self.ranks), int(reported) if reported.isdecimal() and len(reported) < 8 else 0)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, summed over all ranks."""
        seconds: dict[str, float] = {}
        for rank in self.ranks:
            for name, amount in rank.recent.loop.items():
                seconds[name] = seconds.get(name, 0.0) + amount
        return seconds

    @property
    def since(self) -> float | None:
        """Length of the time of `phases` in seconds; None if a rank's phases cover the time since its start."""
        known = [rank.recent.since for rank in self.ranks if rank.recent.since is not None]
        return max(known) if len(known) == len(self.ranks) else None

    @property
    def step(self) -> float | None:
        """Highest step of any rank."""
        return _most(rank.step for rank in self.ranks)

    @property
    def steps_planned(self) -> float | None:
        """Planned number of steps, if reported."""
        return _most(rank.steps_planned for rank in self.ranks)

    @property
    def progress(self) -> float | None:
        """Completed share of the planned steps."""
        if self.step is None or self.steps_planned is None or self.steps_planned <= 0:
            return None
        return min(1.0, max(0.0, self.step / self.steps_planned))

    @property
    def restarts(self) -> int:
        """Restarts of the rank that has most, as the rules count them: where one rank fails, all start again."""
        return round(max((rank.restarts for rank in self.ranks), default=0.0))

    @property
    def epoch(self) -> float | None:
        """Highest epoch of any rank."""
        return _most(rank.epoch for rank in self.ranks)

    @property
    def loss(self) -> float | None:
        """Loss of the first rank that reports one."""
        return next((rank.loss for rank in self.ranks if rank.loss is not None), None)

    @property
    def last_step(self) -> float | None:
        """Unix time of the latest finished step of any rank."""
        return _most(rank.last_step for rank in self.ranks)

    @property
    def last_push(self) -> float | None:
        """Unix time of the latest report of any rank."""
        return _most(rank.last_push for rank in self.ranks)

    @property
    def without_step(self) -> float | None:
        """Seconds since the last step of any live rank, if that is far longer than a step."""
        times = [rank.without_step for rank in self.ranks if not rank.ended]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else None

    @property
    def step_seconds(self) -> float | None:
        """Mean step time of recent steps, else of all steps; None if no step is made any more."""
        if self.without_step is not None:
            return None
        steps = sum(rank.recent.steps for rank in self.ranks)
        if steps > 0:
            return sum(rank.recent.step_seconds for rank in self.ranks) / steps
        return _most(rank.mean_step for rank in self.ranks)

    @property
    def samples_per_second(self) -> float | None:
        """Sum over all observed ranks."""
        return _added(rank.per_second(rank.recent.samples) for rank in self.ranks)

    @property
    def tokens_per_second(self) -> float | None:
        """Sum over all observed ranks."""
        return _added(rank.per_second(rank.recent.tokens) for rank in self.ranks)

    @property
    def seconds_left(self) -> float | None:
        """Time until the last planned step at the pace of the slowest rank, including time between steps."""
        paces = [r.recent.total / r.recent.steps for r in self.ranks if not r.ended and r.recent.steps > 0]
        if self.step is None or self.steps_planned is None or not paces or self.without_step is not None:
            return None
        return max(0.0, self.steps_planned - self.step) * max(paces)


@dataclass(frozen=True)
class Host:
    """The host. Shares are of the time since the previous page."""

    cpus: float | None
    cpu: float | None
    """Busy share of all CPUs."""
    iowait: float | None
    busiest_cpu: float | None
    memory_used: float | None
    memory_total: float | None
    shared_memory_used: float | None
    shared_memory_total: float | None
    pressure: Mapping[str, float]
    """Share of time in which a task waited, by resource."""
    disks: Mapping[str, float]
    """Busy share of time by disk."""
    read: float | None
    """Bytes per second from all disks."""
    written: float | None
    received: float | None
    """Bytes per second over all interfaces."""
    sent: float | None


class Source(NamedTuple):
    """A source of the exporter."""

    name: str
    up: bool
    last_success: float | None
    """Unix time."""
    failures: float


@dataclass(frozen=True)
class Node:
    """A node at one moment."""

    time: float | None
    """Unix time by the exporter's clock; for a page of metrics the time of its newest reading."""
    version: str
    gpus: tuple[Gpu, ...]
    ranks: tuple[Rank, ...]
    host: Host
    sources: tuple[Source, ...]
    closed_receivers: tuple[str, ...]
    """Transports of training reports whose receiver is not open."""
    series_dropped: float

    @property
    def whole_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs without MIG instances."""
        return tuple(gpu for gpu in self.gpus if not gpu.mig)

    @property
    def owners_known(self) -> bool:
        """True if a GPU without owners is free; otherwise its owners are unknown."""
        return any(source.name == OWNERS_SOURCE and source.up for source in self.sources)


def no_step_for(seconds: float) -> str:
    """Return the state of a live run or rank that makes no steps, such as `no step for 9 min 20 s`."""
    return f"no step for {duration(seconds // 10 * 10)}"


def runs_of(ranks: Iterable[Rank]) -> tuple[Run, ...]:
    """Group ranks of any nodes into runs: live runs before ended runs, then by name."""
    found: dict[RunName, list[Rank]] = {}
    for rank in ranks:
        found.setdefault(RunName(rank.run, rank.info.get("namespace", "")), []).append(rank)
    runs = (Run(name, tuple(sorted(each, key=lambda rank: rank.number))) for name, each in found.items())
    return tuple(sorted(runs, key=lambda run: (run.ended, run.name)))


def _counted(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _added(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
