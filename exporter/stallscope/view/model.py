"""A node as the status page, `stallscope top` and its JSON show it: GPUs, ranks, runs, host, sources.

A value that is not exported is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stallscope.catalogue.metrics import GONE_STATES, OUTSIDE_PHASES, OWNER_LABELS
from stallscope.view.verdicts import RunName

Labels = Mapping[str, str]
ENDED = ("finished", *GONE_STATES)
OWNERS_SOURCE = "owners"
"""The exporter's source of who holds a GPU."""


class Owner(NamedTuple):
    """Who holds a GPU; what does not apply is empty."""

    namespace: str
    pod: str
    container: str
    slurm_job: str
    user: str
    memory: float | None = None
    """Bytes of frame buffer that its processes hold."""
    busy: float | None = None
    """Share of the last seconds in which its own processes had kernels on the GPU."""

    @classmethod
    def of(cls, labels: Labels) -> Owner:
        """Whom the labels of a family name."""
        namespace, pod, container, slurm_job, user = (labels.get(name, "") for name in OWNER_LABELS)
        return cls(namespace, pod, container, slurm_job, user)

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that it is called."""
        return self.namespace, self.pod, self.container, self.slurm_job, self.user

    @property
    def title(self) -> str:
        """The name in short, such as `research/trainer-0` or `alice, job 41`."""
        if self.pod:
            return f"{self.namespace}/{self.pod}" if self.namespace else self.pod
        if self.slurm_job:
            thing = f"job {self.slurm_job}"
        elif self.container:
            thing = f"container {self.container[:12]}"
        else:
            return self.user or "somebody unknown"
        return f"{self.user}, {thing}" if self.user else thing


@dataclass(frozen=True)
class Gpu:
    """A GPU or MIG instance."""

    index: str
    uuid: str
    mig: str
    model: str
    sharing: str
    """As on `gpu_info`: `mig` for a GPU that is split into instances."""
    up: bool | None
    """None before its first reading."""
    reason: str
    """Why it is down."""
    last_reading: float | None
    """Unix time."""
    utilization: float | None
    """Share of time with a kernel on it since the page before; of the newest second on the first page."""
    sm_active: float | None
    """Share of its multiprocessors at work, over the same time."""
    memory_bandwidth: float | None
    """Share of the peak, likewise."""
    memory_used: float | None
    memory_total: float | None
    power: float | None
    power_limit: float | None
    temperature: float | None
    clock: float | None
    """Of its multiprocessors, in hertz."""
    clock_max: float | None
    throttled: Mapping[str, float]
    """Share of the time by reason, where there was any."""
    processes: int | None
    owners: tuple[Owner, ...]

    @property
    def order(self) -> tuple[int, str, bool, str, str]:
        """Its place among the others."""
        return (int(self.index) if self.index.isdecimal() else 0, self.index, bool(self.mig), self.mig, self.uuid)


@dataclass(frozen=True, slots=True)
class Recent:
    """What a rank did in the time that is looked at."""

    steps: float
    step_seconds: float
    phases: Mapping[str, float]
    """Seconds by phase."""
    samples: float | None
    tokens: float | None
    since: float | None
    """Seconds that it goes back; None where it is all since the process began."""

    @property
    def total(self) -> float:
        """Wall time of the loop in seconds."""
        return sum(self.phases.values())

    def rate(self, work: float | None) -> float | None:
        """Work per second of wall time: that within steps, so that no step is counted by half, less what lay outside.

        None where no step was finished.
        """
        if work is None or self.steps <= 0 or self.step_seconds <= 0:
            return None
        outside = sum(self.phases.get(name, 0.0) for name in OUTSIDE_PHASES)
        inside = 1.0 if self.total <= 0 else max(0.0, 1.0 - outside / self.total)
        return work / self.step_seconds * inside


@dataclass(frozen=True)
class Rank:
    """One rank of a run."""

    run: str
    number: int
    info: Labels
    """As on `rank_info`."""
    state: str
    activity: str
    gpus: tuple[str, ...]
    """Indices of the GPUs that it computes on."""
    step: float | None
    """The step that it tells, else the steps counted."""
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
    """Seconds, of all its steps."""

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come of it."""
        return self.state in ENDED

    @property
    def step_seconds(self) -> float | None:
        """Mean time of a step: of those made lately, else of all."""
        return self.recent.step_seconds / self.recent.steps if self.recent.steps > 0 else self.mean_step


@dataclass(frozen=True)
class Run:
    """A training run, with its ranks on all nodes that are looked at."""

    name: RunName
    ranks: tuple[Rank, ...]
    """By number."""

    @property
    def states(self) -> dict[str, int]:
        """Ranks by state."""
        return _counted(rank.state for rank in self.ranks)

    @property
    def ended(self) -> bool:
        """Whether every rank has ended."""
        return all(rank.ended for rank in self.ranks)

    @property
    def has_gpus(self) -> bool:
        """Whether any rank computes on a GPU."""
        return any(rank.gpus for rank in self.ranks)

    def shown(self, most: int) -> tuple[Rank, ...]:
        """Up to `most` ranks by number; failed, terminated and lost ranks are the last to be left out."""
        first = sorted(self.ranks, key=lambda rank: rank.state not in GONE_STATES)[:most]
        return tuple(sorted(first, key=lambda rank: rank.number))

    @property
    def activities(self) -> tuple[str, ...]:
        """What those do that have not ended."""
        return tuple(sorted({rank.activity for rank in self.ranks if rank.activity and not rank.ended}))

    @property
    def world_size(self) -> int:
        """Ranks that it has, on whatever nodes."""
        told = self.ranks[0].info.get("world_size", "")
        return max(len(self.ranks), int(told) if told.isdecimal() and len(told) < 8 else 0)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, of all ranks."""
        seconds: dict[str, float] = {}
        for rank in self.ranks:
            for name, amount in rank.recent.phases.items():
                seconds[name] = seconds.get(name, 0.0) + amount
        return seconds

    @property
    def since(self) -> float | None:
        """Seconds that the phases go back; None where some rank's are all since it began."""
        told = [rank.recent.since for rank in self.ranks if rank.recent.since is not None]
        return max(told) if len(told) == len(self.ranks) else None

    @property
    def step(self) -> float | None:
        """The step that the furthest rank is at."""
        return _most(rank.step for rank in self.ranks)

    @property
    def steps_planned(self) -> float | None:
        """Steps to make, where told."""
        return _most(rank.steps_planned for rank in self.ranks)

    @property
    def progress(self) -> float | None:
        """Share of the planned steps that are made."""
        if self.step is None or self.steps_planned is None or self.steps_planned <= 0:
            return None
        return min(1.0, max(0.0, self.step / self.steps_planned))

    @property
    def restarts(self) -> int:
        """Restarts of all ranks."""
        return round(sum(rank.restarts for rank in self.ranks))

    @property
    def epoch(self) -> float | None:
        """The furthest rank's."""
        return _most(rank.epoch for rank in self.ranks)

    @property
    def loss(self) -> float | None:
        """The first rank's that tells one."""
        return next((rank.loss for rank in self.ranks if rank.loss is not None), None)

    @property
    def last_step(self) -> float | None:
        """When any rank finished a step, Unix time."""
        return _most(rank.last_step for rank in self.ranks)

    @property
    def last_push(self) -> float | None:
        """When any rank reported, Unix time."""
        return _most(rank.last_push for rank in self.ranks)

    @property
    def step_seconds(self) -> float | None:
        """Mean time of a step: of those made lately, else of all."""
        steps = sum(rank.recent.steps for rank in self.ranks)
        if steps > 0:
            return sum(rank.recent.step_seconds for rank in self.ranks) / steps
        return _most(rank.mean_step for rank in self.ranks)

    @property
    def samples_per_second(self) -> float | None:
        """Of all ranks that are looked at."""
        return _added(rank.recent.rate(rank.recent.samples) for rank in self.ranks if not rank.ended)

    @property
    def tokens_per_second(self) -> float | None:
        """Likewise."""
        return _added(rank.recent.rate(rank.recent.tokens) for rank in self.ranks if not rank.ended)

    @property
    def seconds_left(self) -> float | None:
        """Until the last step that is planned, at the slowest rank's pace with all that lies between steps."""
        paces = [r.recent.total / r.recent.steps for r in self.ranks if not r.ended and r.recent.steps > 0]
        if self.step is None or self.steps_planned is None or not paces:
            return None
        return max(0.0, self.steps_planned - self.step) * max(paces)


@dataclass(frozen=True)
class Host:
    """The machine. Shares are of the time since the page before."""

    cpus: float | None
    cpu: float | None
    """Share of all processors that is busy."""
    iowait: float | None
    busiest_cpu: float | None
    memory_used: float | None
    memory_total: float | None
    shared_memory_used: float | None
    shared_memory_total: float | None
    pressure: Mapping[str, float]
    """Share of the time in which something waited, by resource."""
    disks: Mapping[str, float]
    """Share of the time in which a disk was busy."""
    read: float | None
    """Bytes a second from all disks."""
    written: float | None
    received: float | None
    """Bytes a second over all interfaces."""
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
    """All that is known of a node at one moment."""

    time: float | None
    """Unix time by the exporter's clock; of a page of metrics, that of the newest reading on it."""
    version: str
    gpus: tuple[Gpu, ...]
    ranks: tuple[Rank, ...]
    host: Host
    sources: tuple[Source, ...]
    series_dropped: float

    @property
    def whole_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs without MIG instances."""
        return tuple(gpu for gpu in self.gpus if not gpu.mig)

    @property
    def owners_known(self) -> bool:
        """Whether a GPU without owners is held by nobody; otherwise its owners are unknown."""
        return any(source.name == OWNERS_SOURCE and source.up for source in self.sources)


def runs_of(ranks: Iterable[Rank]) -> tuple[Run, ...]:
    """Runs out of ranks from any nodes: those that live before those that ended, then by name."""
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
    """The sum of those that are told; None where none is."""
    told = [value for value in values if value is not None]
    return sum(told) if told else None
