"""Build the model of a node from samples: from pages of its exporter, or from the exporter's memory.

Rates need two moments. Rates of GPUs and host use the newest two pages; rates of training use an older one, because a
step may take seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from stallscope.model.catalogue.metrics import Family, MetricType, family
from stallscope.model.clients.exposition import Page
from stallscope.model.view.model import ENDED, Gpu, Host, Labels, Node, Owner, Rank, Recent, Source
from stallscope.training.protocol.stacks import Place

BUILD_INFO = family("stallscope_build_info")
GPU_INFO = family("stallscope_gpu_info")
GPU_UP = family("stallscope_gpu_up")
LOST_INFO = family("stallscope_gpu_lost_info")
LAST_READING = family("stallscope_gpu_last_reading_timestamp_seconds")
UTILIZATION = family("stallscope_gpu_utilization_ratio")
BUSY = family("stallscope_gpu_busy_seconds_total")
SM_ACTIVE = family("stallscope_gpu_sm_active_seconds_total")
DRAM_ACTIVE = family("stallscope_gpu_dram_active_seconds_total")
MEMORY_TOTAL = family("stallscope_gpu_memory_total_bytes")
MEMORY_USED = family("stallscope_gpu_memory_used_bytes")
POWER = family("stallscope_gpu_power_watts")
POWER_LIMIT = family("stallscope_gpu_power_limit_watts")
TEMPERATURE = family("stallscope_gpu_temperature_celsius")
CLOCK = family("stallscope_gpu_clock_hertz")
CLOCK_MAX = family("stallscope_gpu_clock_max_hertz")
THROTTLED = family("stallscope_gpu_throttled_seconds_total")
PROCESSES = family("stallscope_gpu_processes")
OWNER_INFO = family("stallscope_gpu_owner_info")
OWNER_MEMORY = family("stallscope_gpu_owner_memory_used_bytes")
OWNER_BUSY = family("stallscope_gpu_owner_busy_seconds_total")

CPUS = family("stallscope_host_cpus")
CPU_SECONDS = family("stallscope_host_cpu_seconds_total")
BUSIEST_CPU = family("stallscope_host_busiest_cpu_seconds_total")
HOST_MEMORY_TOTAL = family("stallscope_host_memory_total_bytes")
HOST_MEMORY_AVAILABLE = family("stallscope_host_memory_available_bytes")
SHARED_MEMORY_TOTAL = family("stallscope_host_shared_memory_total_bytes")
SHARED_MEMORY_USED = family("stallscope_host_shared_memory_used_bytes")
PRESSURE_WAITING = family("stallscope_host_pressure_waiting_seconds_total")
DISK_BUSY = family("stallscope_host_disk_busy_seconds_total")
DISK_READ = family("stallscope_host_disk_read_bytes_total")
DISK_WRITTEN = family("stallscope_host_disk_written_bytes_total")
NETWORK_RECEIVED = family("stallscope_host_network_receive_bytes_total")
NETWORK_SENT = family("stallscope_host_network_transmit_bytes_total")

RANK_INFO = family("stallscope_training_rank_info")
RANK_GPU = family("stallscope_training_rank_gpu_info")
RANK_STATE = family("stallscope_training_state")
ACTIVITY = family("stallscope_training_activity")
START = family("stallscope_training_start_timestamp_seconds")
LAST_STEP = family("stallscope_training_last_step_timestamp_seconds")
LAST_PUSH = family("stallscope_training_last_push_timestamp_seconds")
RESTARTS = family("stallscope_training_restarts_total")
STEP_SECONDS = family("stallscope_training_step_seconds")
PHASE_SECONDS = family("stallscope_training_phase_seconds_total")
SAMPLES = family("stallscope_training_samples_total")
TOKENS = family("stallscope_training_tokens_total")
STEP = family("stallscope_training_step")
STEPS_PLANNED = family("stallscope_training_steps_planned")
EPOCH = family("stallscope_training_epoch")
LOSS = family("stallscope_training_loss")
STACK_INFO = family("stallscope_training_stack_info")

SOURCE_UP = family("stallscope_exporter_source_up")
SOURCE_SUCCESS = family("stallscope_exporter_source_last_success_timestamp_seconds")
SOURCE_FAILURES = family("stallscope_exporter_source_failures_total")
RECEIVER_UP = family("stallscope_exporter_receiver_up")
SERIES_DROPPED = family("stallscope_exporter_series_dropped_total")

COUNT, SUM = "_count", "_sum"
_FAMILIES = [each for each in list(globals().values()) if isinstance(each, Family)]
WANTED = frozenset(
    {each.name for each in _FAMILIES if each.type is not MetricType.HISTOGRAM}
    | {STEP_SECONDS.name + COUNT, STEP_SECONDS.name + SUM}
)
"""Names of the samples that are parsed."""

MARK_SECONDS = 15.0
"""Interval between two stored pages: the older of the two is one to two intervals old."""
_TOLERANCE = 0.9
"""Share of the interval that is long enough, because reading a page takes time."""

RankKey = tuple[str, ...]
"""Run and number of a rank, as in the labels."""


class Samples(Protocol):
    """The samples of a node at one moment."""

    def series(self, family: Family, suffix: str = "") -> Mapping[Any, float]:
        """Return the values of a family by a key that is stable over time."""

    def samples(self, family: Family, suffix: str = "") -> Iterable[tuple[Labels, float]]:
        """Return labels and value of each series of a family, in the same order."""

    def by(self, family: Family, *names: str, suffix: str = "") -> Iterable[tuple[tuple[str, ...], float]]:
        """Return the values of some labels, and the value, of each series of a family."""


class Counters(NamedTuple):
    """The counters of a rank's process at one moment."""

    start: float | None
    """Unix time of the start of the process."""
    pushed: float | None
    """Unix time of the report."""
    total: Recent
    """Totals since the start of the process."""


class Observer:
    """Builds nodes from the pages of one exporter. Use it in one thread at a time."""

    def __init__(self) -> None:
        """Start without a page."""
        self._newest: tuple[Page, Node] | None = None
        self._marks: list[tuple[float, Page]] = []

    def observe(self, page: Page, at: float) -> Node:
        """Return the node after a page read at monotonic time `at`; for an unchanged page the same node again."""
        if self._newest is not None and page.has_same_samples(self._newest[0]):
            return self._newest[1]  # the exporter renews a large page less often than it is read
        if self._marks and _restarted(self._marks[-1][1], page):
            self._marks, self._newest = [], None
        older = self._marks[0][1] if self._marks and at - self._marks[0][0] >= MARK_SECONDS * _TOLERANCE else None
        previous = self._newest[0] if self._newest else None
        node = node_of(page, previous, older or previous, counters_of(older) if older is not None else {})
        if not self._marks or at - self._marks[-1][0] >= MARK_SECONDS * _TOLERANCE:
            self._marks = [*self._marks[-1:], (at, page)]
        self._newest = page, node
        return node


def wanted(text: str) -> Page:
    """Parse a page for the families of the model."""
    return Page(text, WANTED)


def _restarted(before: Page, page: Page) -> bool:
    """Return whether the exporter's own counters were reset."""
    old, new = before.series(BUSY), page.series(BUSY)
    return any(value < old.get(labels, 0.0) for labels, value in new.items())


def node_of(
    now: Samples,
    previous: Samples | None = None,
    older: Samples | None = None,
    before: Mapping[RankKey, Counters] | None = None,
    *,
    time: float | None = None,
) -> Node:
    """Build the model of a node.

    Args:
        now: current samples.
        previous: previous samples, for rates of GPUs and host; without them a GPU's activity is that of its gauge.
        older: older samples, for values that change rarely or in bursts: throttling and owners' activity.
        before: counters of ranks at an earlier moment; a rank without them is described since its process started.
        time: Unix time of the samples; by default the newest reading among them.
    """
    times = (LAST_READING, SOURCE_SUCCESS, LAST_PUSH)
    time = time or max((value for each in times for value in now.series(each).values()), default=None)
    version = next((labels.get("version", "") for labels, _ in now.samples(BUILD_INFO)), "")
    return Node(
        time=time,
        version=version,
        gpus=_gpus(now, previous, older),
        ranks=_ranks(now, before or {}, time),
        host=_host(now, previous),
        sources=_sources(now),
        closed_receivers=tuple(sorted(transport for (transport,), up in now.by(RECEIVER_UP, "transport") if not up)),
        series_dropped=sum(now.series(SERIES_DROPPED).values()),
    )


def _gpus(page: Samples, previous: Samples | None, older: Samples | None) -> tuple[Gpu, ...]:
    values = {each: _by_uuid(page, each) for each in _OF_A_GPU}
    busy, active, bandwidth = (
        {labels.get("uuid", ""): share for labels, share in _gpu_shares(page, previous, each)}
        for each in (BUSY, SM_ACTIVE, DRAM_ACTIVE)
    )
    throttled: dict[str, dict[str, float]] = {}
    for labels, share in _gpu_shares(page, older, THROTTLED):
        if share > 0:
            throttled.setdefault(labels.get("uuid", ""), {})[labels.get("reason", "")] = share
    processes: dict[str, float] = {}
    for (uuid,), value in page.by(PROCESSES, "uuid"):
        processes[uuid] = processes.get(uuid, 0.0) + value
    temperature = {uuid: value for (uuid, sensor), value in page.by(TEMPERATURE, "uuid", "sensor") if sensor == "gpu"}
    clock, clock_max = (
        {uuid: value for (uuid, name), value in page.by(each, "uuid", "clock") if name == "sm"}
        for each in (CLOCK, CLOCK_MAX)
    )
    reasons = {uuid: reason for (uuid, reason), _ in page.by(LOST_INFO, "uuid", "reason")}
    owners = _owners(page, older)
    known: dict[str, Labels] = {}
    for each in (GPU_UP, GPU_INFO):  # the latter has more labels, but is absent for a lost GPU
        known.update((labels.get("uuid", ""), labels) for labels, _ in page.samples(each))
    gpus = [
        Gpu(
            index=labels.get("gpu", ""),
            uuid=uuid,
            mig=labels.get("mig", ""),
            model=labels.get("model", ""),
            sharing=labels.get("sharing", ""),
            unified_memory=labels.get("memory") == "unified",
            up=bool(values[GPU_UP][uuid]) if uuid in values[GPU_UP] else None,
            reason=reasons.get(uuid, ""),
            last_reading=values[LAST_READING].get(uuid),
            utilization=busy.get(uuid, values[UTILIZATION].get(uuid)),
            sm_active=active.get(uuid),
            memory_bandwidth=bandwidth.get(uuid),
            memory_used=values[MEMORY_USED].get(uuid),
            memory_total=values[MEMORY_TOTAL].get(uuid),
            power=values[POWER].get(uuid),
            power_limit=values[POWER_LIMIT].get(uuid),
            temperature=temperature.get(uuid),
            clock=clock.get(uuid),
            clock_max=clock_max.get(uuid),
            throttled=throttled.get(uuid, {}),
            processes=round(processes[uuid]) if uuid in processes else None,
            owners=tuple(owners.get(uuid, ())),
        )
        for uuid, labels in known.items()
    ]
    return tuple(sorted(gpus, key=lambda gpu: gpu.order))


_OF_A_GPU = (GPU_UP, LAST_READING, UTILIZATION, MEMORY_USED, MEMORY_TOTAL, POWER, POWER_LIMIT)


def _owners(page: Samples, before: Samples | None) -> dict[str, list[Owner]]:
    memory = {(labels.get("uuid", ""), Owner.of(labels)): value for labels, value in page.samples(OWNER_MEMORY)}
    # The driver reports the activity of processes late and in bursts.
    busy = {
        (labels.get("uuid", ""), Owner.of(labels)): share for labels, share in _gpu_shares(page, before, OWNER_BUSY)
    }
    owners: dict[str, list[Owner]] = {}
    for labels, _ in page.samples(OWNER_INFO):
        uuid, owner = labels.get("uuid", ""), Owner.of(labels)
        owners.setdefault(uuid, []).append(
            owner._replace(memory=memory.get((uuid, owner)), busy=busy.get((uuid, owner)))
        )
    return owners


def _by_uuid(page: Samples, what: Family) -> dict[str, float]:
    return {uuid: value for (uuid,), value in page.by(what, "uuid")}


def _increases(page: Samples, before: Samples | None, what: Family) -> Iterator[tuple[Labels, float]]:
    """Yield the increase of each counter since an earlier page that has it too."""
    if before is not None:
        old = before.series(what)
        for key, (labels, value) in zip(page.series(what), page.samples(what), strict=True):
            if key in old and value >= old[key]:
                yield labels, value - old[key]


def _gpu_shares(page: Samples, before: Samples | None, what: Family) -> Iterator[tuple[Labels, float]]:
    """Yield counters of seconds as shares of the time between a GPU's two readings."""
    if before is not None:
        began, ended = _by_uuid(before, LAST_READING), _by_uuid(page, LAST_READING)
        for labels, seconds in _increases(page, before, what):
            uuid = labels.get("uuid", "")
            elapsed = ended.get(uuid, 0.0) - began.get(uuid, 0.0)
            if uuid in began and elapsed > 0:
                yield labels, min(1.0, seconds / elapsed)


_RANK_DIGITS = 9
_WITHOUT_STEP_SECONDS = 60.0
_WITHOUT_STEP_FACTOR = 5
"""Shortest time without a step that is shown, in seconds and in mean steps: steps may be long and rare."""


def _ranks(page: Samples, before: Mapping[RankKey, Counters], time: float | None) -> tuple[Rank, ...]:
    values = {each: _by_rank(page, each) for each in _OF_A_RANK}
    counts = _by_rank(page, STEP_SECONDS, COUNT)
    states, activities = (
        {(run, rank): word for (run, rank, word), value in page.by(each, "run", "rank", each.labels[-1]) if value}
        for each in (RANK_STATE, ACTIVITY)
    )
    gpus: dict[RankKey, list[str]] = {}
    for (run, rank, gpu), _ in page.by(RANK_GPU, "run", "rank", "gpu"):
        gpus.setdefault((run, rank), []).append(gpu)
    counters = counters_of(page)
    places = {
        (run, rank): Place(*place)
        for (run, rank, *place), _ in page.by(STACK_INFO, "run", "rank", "location", "function", "call")
    }
    ranks = []
    for labels, _ in page.samples(RANK_INFO):
        key = labels.get("run", ""), labels.get("rank", "")
        if not key[1].isdecimal() or len(key[1]) > _RANK_DIGITS:
            continue
        total = counters[key].total
        ended = states.get(key) in ENDED
        mean_step = total.step_seconds / total.steps if total.steps else None
        silence = _difference(time, values[LAST_STEP].get(key))
        longest = max(_WITHOUT_STEP_SECONDS, _WITHOUT_STEP_FACTOR * (mean_step or 0.0))
        ranks.append(
            Rank(
                run=key[0],
                number=int(key[1]),
                info=labels,
                state=states.get(key, ""),
                activity=activities.get(key, ""),
                gpus=tuple(gpus.get(key, ())),
                step=values[STEP].get(key, counts.get(key)),
                steps_planned=values[STEPS_PLANNED].get(key),
                epoch=values[EPOCH].get(key),
                loss=values[LOSS].get(key),
                restarts=values[RESTARTS].get(key, 0.0),
                last_step=values[LAST_STEP].get(key),
                last_push=values[LAST_PUSH].get(key),
                recent=total if ended or key not in before else _recent(counters[key], before[key]),
                mean_step=mean_step,
                without_step=silence if silence is not None and silence >= longest and not ended else None,
                place=places.get(key),
            )
        )
    return tuple(sorted(ranks, key=lambda rank: (rank.run, rank.number)))


_OF_A_RANK = (STEP, STEPS_PLANNED, EPOCH, LOSS, RESTARTS, LAST_STEP, LAST_PUSH)


def _by_rank(page: Samples, what: Family, suffix: str = "") -> dict[RankKey, float]:
    return dict(page.by(what, "run", "rank", suffix=suffix))


def counters_of(page: Samples) -> dict[RankKey, Counters]:
    """Return the counters of every rank."""
    phases: dict[RankKey, dict[str, float]] = {}
    for (run, rank, phase), value in page.by(PHASE_SECONDS, "run", "rank", "phase"):
        phases.setdefault((run, rank), {})[phase] = value
    counts, sums = _by_rank(page, STEP_SECONDS, COUNT), _by_rank(page, STEP_SECONDS, SUM)
    starts, pushes, samples, tokens = (_by_rank(page, each) for each in (START, LAST_PUSH, SAMPLES, TOKENS))
    return {
        key: Counters(
            starts.get(key),
            pushes.get(key),
            Recent(
                steps=counts.get(key, 0.0),
                step_seconds=sums.get(key, 0.0),
                phases=phases.get(key, {}),
                samples=samples.get(key),
                tokens=tokens.get(key),
                since=None,
            ),
        )
        for key in _by_rank(page, RANK_INFO)
    }


def _recent(now: Counters, before: Counters) -> Recent:
    """Return the activity between two reports; since the start of the process if that was restarted in between."""
    new, old = now.total, before.total
    seconds = _difference(now.pushed, before.pushed)
    increase = {name: amount - old.phases.get(name, 0.0) for name, amount in new.phases.items()}
    same_process = now.start == before.start and new.steps >= old.steps and min(increase.values(), default=0.0) >= 0
    if not same_process or seconds is None or seconds <= 0:
        return new
    return Recent(
        steps=new.steps - old.steps,
        step_seconds=new.step_seconds - old.step_seconds,
        phases={name: amount for name, amount in increase.items() if amount > 0},
        samples=_difference(new.samples, old.samples),
        tokens=_difference(new.tokens, old.tokens),
        since=seconds,
    )


def _host(page: Samples, previous: Samples | None) -> Host:
    cpus = _number(page, CPUS)
    by_mode = {labels.get("mode", ""): increase for labels, increase in _increases(page, previous, CPU_SECONDS)}
    cpu_time = sum(by_mode.values())
    idle = by_mode.get("idle", 0.0) + by_mode.get("iowait", 0.0)
    busiest = next((increase for _, increase in _increases(page, previous, BUSIEST_CPU)), None)
    total, available = _number(page, HOST_MEMORY_TOTAL), _number(page, HOST_MEMORY_AVAILABLE)
    return Host(
        cpus=cpus,
        cpu=1 - idle / cpu_time if cpu_time else None,
        iowait=by_mode.get("iowait", 0.0) / cpu_time if cpu_time else None,
        # The elapsed time is the time of all CPUs divided by their number.
        busiest_cpu=min(1.0, busiest * cpus / cpu_time) if cpu_time and cpus and busiest is not None else None,
        memory_used=_difference(total, available),
        memory_total=total,
        shared_memory_used=_number(page, SHARED_MEMORY_USED),
        shared_memory_total=_number(page, SHARED_MEMORY_TOTAL),
        pressure=_host_rates(page, previous, PRESSURE_WAITING, "pressure", "resource"),
        disks=_host_rates(page, previous, DISK_BUSY, "disk", "device"),
        read=_total(_host_rates(page, previous, DISK_READ, "disk", "device")),
        written=_total(_host_rates(page, previous, DISK_WRITTEN, "disk", "device")),
        received=_total(_host_rates(page, previous, NETWORK_RECEIVED, "network", "device")),
        sent=_total(_host_rates(page, previous, NETWORK_SENT, "network", "device")),
    )


def _host_rates(page: Samples, previous: Samples | None, what: Family, source: str, label: str) -> dict[str, float]:
    """Return the rates of counters by a label, over the time between two readings of their source."""
    if previous is None:
        return {}
    ended, began = (
        next((value for labels, value in each.samples(SOURCE_SUCCESS) if labels.get("source") == source), None)
        for each in (page, previous)
    )
    elapsed = _difference(ended, began)
    if elapsed is None or elapsed <= 0:
        return {}
    return {labels.get(label, ""): increase / elapsed for labels, increase in _increases(page, previous, what)}


def _sources(page: Samples) -> tuple[Source, ...]:
    def by_source(what: Family) -> dict[str, float]:
        return {source: value for (source,), value in page.by(what, "source")}

    successes, failures = by_source(SOURCE_SUCCESS), by_source(SOURCE_FAILURES)
    return tuple(
        Source(name, bool(up), successes.get(name), failures.get(name, 0.0))
        for name, up in sorted(by_source(SOURCE_UP).items())
    )


def _number(page: Samples, what: Family) -> float | None:
    """Return the value of a family without labels."""
    return next(iter(page.series(what).values()), None)


def _total(by_label: Mapping[str, float]) -> float | None:
    return sum(by_label.values()) if by_label else None


def _difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second
