"""What a node is like, out of the pages of its exporter.

Rates come from two pages: those of GPUs and host from the newest two, those of training from one that lies a quarter
to half a minute back, since a step may take seconds. Nothing here judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stallscope.catalogue.metrics import Family, MetricType, family
from stallscope.clients.exposition import Labels, Page, labels_of
from stallscope.view.model import ENDED, Gpu, Host, Node, Owner, Rank, Recent, Source

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

SOURCE_UP = family("stallscope_exporter_source_up")
SOURCE_SUCCESS = family("stallscope_exporter_source_last_success_timestamp_seconds")
SOURCE_FAILURES = family("stallscope_exporter_source_failures_total")
SERIES_DROPPED = family("stallscope_exporter_series_dropped_total")

_COUNT, _SUM = "_count", "_sum"
_FAMILIES = [each for each in list(globals().values()) if isinstance(each, Family)]
WANTED = frozenset(
    {each.name for each in _FAMILIES if each.type is not MetricType.HISTOGRAM}
    | {STEP_SECONDS.name + _COUNT, STEP_SECONDS.name + _SUM}
)
"""Names of the samples that are read."""

MARK_SECONDS = 15.0
"""Between two pages that are kept: the older of two lies this far back, or twice as far."""
_NEARLY = 0.9
"""Of a distance between pages, since reading them takes its time."""


class Observer:
    """Makes nodes out of the pages of one exporter. For one thread at a time."""

    def __init__(self, *, mark_seconds: float = MARK_SECONDS) -> None:
        """Start without any page."""
        self._mark_seconds = mark_seconds
        self._newest: tuple[Page, Node] | None = None
        self._marks: list[tuple[float, Page]] = []

    def observe(self, page: Page, at: float) -> Node:
        """Take a page that was read at that monotonic time; a page that was taken before tells what it told then."""
        if self._newest is not None and page.tells_the_same(self._newest[0]):
            return self._newest[1]  # a large page is not renewed as often as somebody may look
        if self._marks and _restarted(self._marks[-1][1], page):
            self._marks, self._newest = [], None
        older = self._marks[0] if self._marks and at - self._marks[0][0] >= self._mark_seconds * _NEARLY else None
        node = _node(page, self._newest[0] if self._newest else None, older[1] if older else None)
        if not self._marks or at - self._marks[-1][0] >= self._mark_seconds * _NEARLY:
            self._marks = [*self._marks[-1:], (at, page)]
        self._newest = page, node
        return node


def wanted(text: str) -> Page:
    """A page with what is looked at here."""
    return Page(text, WANTED)


def _restarted(before: Page, page: Page) -> bool:
    """Whether the exporter's own counters began anew."""
    old, new = before.series(BUSY), page.series(BUSY)
    return any(value < old.get(labels, 0.0) for labels, value in new.items())


def _node(page: Page, previous: Page | None, older: Page | None) -> Node:
    times = (LAST_READING, SOURCE_SUCCESS, LAST_PUSH)
    version = next((labels.get("version", "") for labels, _ in page.samples(BUILD_INFO)), "")
    return Node(
        time=max((value for each in times for value in page.series(each).values()), default=None),
        version=version,
        gpus=_gpus(page, previous, older),
        ranks=_ranks(page, older),
        host=_host(page, previous),
        sources=_sources(page),
        series_dropped=sum(page.series(SERIES_DROPPED).values()),
    )


def _gpus(page: Page, previous: Page | None, older: Page | None) -> tuple[Gpu, ...]:
    told = {each: _by_uuid(page, each) for each in _OF_A_GPU}
    busy, active, bandwidth = (
        {labels.get("uuid", ""): share for labels, share in _gpu_shares(page, previous, each)}
        for each in (BUSY, SM_ACTIVE, DRAM_ACTIVE)
    )
    throttled: dict[str, dict[str, float]] = {}
    for labels, share in _gpu_shares(page, older or previous, THROTTLED):
        if share > 0:
            throttled.setdefault(labels.get("uuid", ""), {})[labels.get("reason", "")] = share
    processes: dict[str, float] = {}
    for labels, value in page.samples(PROCESSES):
        uuid = labels.get("uuid", "")
        processes[uuid] = processes.get(uuid, 0.0) + value
    temperature = _by_uuid(page, TEMPERATURE, sensor="gpu")
    clock, clock_max = (_by_uuid(page, each, clock="sm") for each in (CLOCK, CLOCK_MAX))
    reasons = {labels.get("uuid", ""): labels.get("reason", "") for labels, _ in page.samples(LOST_INFO)}
    owners = _owners(page, older or previous)
    known: dict[str, Labels] = {}
    for each in (GPU_UP, GPU_INFO):  # the latter says more, and is not there of a GPU that is gone
        known.update((labels.get("uuid", ""), labels) for labels, _ in page.samples(each))
    gpus = [
        Gpu(
            index=labels.get("gpu", ""),
            uuid=uuid,
            mig=labels.get("mig", ""),
            model=labels.get("model", ""),
            up=bool(told[GPU_UP][uuid]) if uuid in told[GPU_UP] else None,
            reason=reasons.get(uuid, ""),
            last_reading=told[LAST_READING].get(uuid),
            utilization=busy.get(uuid, told[UTILIZATION].get(uuid)),
            sm_active=active.get(uuid),
            memory_bandwidth=bandwidth.get(uuid),
            memory_used=told[MEMORY_USED].get(uuid),
            memory_total=told[MEMORY_TOTAL].get(uuid),
            power=told[POWER].get(uuid),
            power_limit=told[POWER_LIMIT].get(uuid),
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


def _owners(page: Page, before: Page | None) -> dict[str, list[Owner]]:
    memory = {(labels.get("uuid", ""), Owner.of(labels)): value for labels, value in page.samples(OWNER_MEMORY)}
    # The driver tells of processes' activity late, and in lumps.
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


def _by_uuid(page: Page, what: Family, **only: str) -> dict[str, float]:
    return {
        labels.get("uuid", ""): value
        for labels, value in page.samples(what)
        if all(labels.get(name) == wanted for name, wanted in only.items())
    }


def _increases(page: Page, before: Page | None, what: Family) -> Iterator[tuple[Labels, float]]:
    """How much each counter grew since an earlier page that has it too."""
    if before is not None:
        old = before.series(what)
        for text, value in page.series(what).items():
            if text in old and value >= old[text]:
                yield labels_of(text), value - old[text]


def _gpu_shares(page: Page, before: Page | None, what: Family) -> Iterator[tuple[Labels, float]]:
    """Counters of seconds as shares of the time between a GPU's two readings."""
    if before is not None:
        began, ended = _by_uuid(before, LAST_READING), _by_uuid(page, LAST_READING)
        for labels, seconds in _increases(page, before, what):
            uuid = labels.get("uuid", "")
            elapsed = ended.get(uuid, 0.0) - began.get(uuid, 0.0)
            if uuid in began and elapsed > 0:
                yield labels, min(1.0, seconds / elapsed)


_RankKey = tuple[str, str]
_RANK_DIGITS = 9


def _ranks(page: Page, older: Page | None) -> tuple[Rank, ...]:
    told = {each: _by_rank(page, each) for each in _OF_A_RANK}
    counts, sums = _by_rank(page, STEP_SECONDS, _COUNT), _by_rank(page, STEP_SECONDS, _SUM)
    states, activities = (
        {_rank(labels): labels.get(each.labels[-1], "") for labels, value in page.samples(each) if value}
        for each in (RANK_STATE, ACTIVITY)
    )
    gpus: dict[_RankKey, list[str]] = {}
    for labels, _ in page.samples(RANK_GPU):
        gpus.setdefault(_rank(labels), []).append(labels.get("gpu", ""))
    recents = _recents(page)
    before = _recents(older) if older is not None else {}
    pushed = _by_rank(older, LAST_PUSH) if older is not None else {}
    ranks = []
    for labels, _ in page.samples(RANK_INFO):
        key = _rank(labels)
        if not key[1].isdecimal() or len(key[1]) > _RANK_DIGITS:
            continue
        recent, mean = recents[key], counts.get(key) or None
        if states.get(key) not in ENDED and key in before and key in pushed:
            recent = _since(recent, before[key], told[LAST_PUSH].get(key, 0.0) - pushed[key])
        ranks.append(
            Rank(
                run=key[0],
                number=int(key[1]),
                info=labels,
                state=states.get(key, ""),
                activity=activities.get(key, ""),
                gpus=tuple(gpus.get(key, ())),
                step=told[STEP].get(key, counts.get(key)),
                steps_planned=told[STEPS_PLANNED].get(key),
                epoch=told[EPOCH].get(key),
                loss=told[LOSS].get(key),
                restarts=told[RESTARTS].get(key, 0.0),
                last_step=told[LAST_STEP].get(key),
                last_push=told[LAST_PUSH].get(key),
                recent=recent,
                mean_step=sums.get(key, 0.0) / mean if mean else None,
            )
        )
    return tuple(sorted(ranks, key=lambda rank: (rank.run, rank.number)))


_OF_A_RANK = (STEP, STEPS_PLANNED, EPOCH, LOSS, RESTARTS, LAST_STEP, LAST_PUSH)


def _rank(labels: Labels) -> _RankKey:
    return labels.get("run", ""), labels.get("rank", "")


def _by_rank(page: Page, what: Family, suffix: str = "") -> dict[_RankKey, float]:
    return {_rank(labels): value for labels, value in page.samples(what, suffix)}


def _recents(page: Page) -> dict[_RankKey, Recent]:
    """What each rank's counters say, since its process began."""
    phases: dict[_RankKey, dict[str, float]] = {}
    for labels, value in page.samples(PHASE_SECONDS):
        phases.setdefault(_rank(labels), {})[labels.get("phase", "")] = value
    counts, sums = _by_rank(page, STEP_SECONDS, _COUNT), _by_rank(page, STEP_SECONDS, _SUM)
    samples, tokens = _by_rank(page, SAMPLES), _by_rank(page, TOKENS)
    return {
        key: Recent(
            steps=counts.get(key, 0.0),
            step_seconds=sums.get(key, 0.0),
            phases=phases.get(key, {}),
            samples=samples.get(key),
            tokens=tokens.get(key),
            since=None,
        )
        for key in (_rank(labels) for labels, _ in page.samples(RANK_INFO))
    }


def _since(now: Recent, before: Recent, seconds: float) -> Recent:
    """What came on top of it in that many seconds; all of it where the process is another one meanwhile."""
    grown = {name: amount - before.phases.get(name, 0.0) for name, amount in now.phases.items()}
    if seconds <= 0 or now.steps < before.steps or any(amount < 0 for amount in grown.values()):
        return now
    return Recent(
        steps=now.steps - before.steps,
        step_seconds=now.step_seconds - before.step_seconds,
        phases={name: amount for name, amount in grown.items() if amount > 0},
        samples=_difference(now.samples, before.samples),
        tokens=_difference(now.tokens, before.tokens),
        since=seconds,
    )


def _host(page: Page, previous: Page | None) -> Host:
    cpus = page.number(CPUS)
    by_mode = {labels.get("mode", ""): grown for labels, grown in _increases(page, previous, CPU_SECONDS)}
    cpu_time = sum(by_mode.values())
    idle = by_mode.get("idle", 0.0) + by_mode.get("iowait", 0.0)
    busiest = next((grown for _, grown in _increases(page, previous, BUSIEST_CPU)), None)
    total, available = page.number(HOST_MEMORY_TOTAL), page.number(HOST_MEMORY_AVAILABLE)
    return Host(
        cpus=cpus,
        cpu=1 - idle / cpu_time if cpu_time else None,
        iowait=by_mode.get("iowait", 0.0) / cpu_time if cpu_time else None,
        # All processors' time is the clock of one of them.
        busiest_cpu=min(1.0, busiest * cpus / cpu_time) if cpu_time and cpus and busiest is not None else None,
        memory_used=_difference(total, available),
        memory_total=total,
        shared_memory_used=page.number(SHARED_MEMORY_USED),
        shared_memory_total=page.number(SHARED_MEMORY_TOTAL),
        pressure=_host_rates(page, previous, PRESSURE_WAITING, "pressure", "resource"),
        disks=_host_rates(page, previous, DISK_BUSY, "disk", "device"),
        read=_total(_host_rates(page, previous, DISK_READ, "disk", "device")),
        written=_total(_host_rates(page, previous, DISK_WRITTEN, "disk", "device")),
        received=_total(_host_rates(page, previous, NETWORK_RECEIVED, "network", "device")),
        sent=_total(_host_rates(page, previous, NETWORK_SENT, "network", "device")),
    )


def _host_rates(page: Page, previous: Page | None, what: Family, source: str, label: str) -> dict[str, float]:
    """Counters per second of their source's own clock, by a label."""
    if previous is None:
        return {}
    ended, began = (
        next((value for labels, value in each.samples(SOURCE_SUCCESS) if labels.get("source") == source), None)
        for each in (page, previous)
    )
    elapsed = _difference(ended, began)
    if elapsed is None or elapsed <= 0:
        return {}
    return {labels.get(label, ""): grown / elapsed for labels, grown in _increases(page, previous, what)}


def _sources(page: Page) -> tuple[Source, ...]:
    def by_source(what: Family) -> dict[str, float]:
        return {labels.get("source", ""): value for labels, value in page.samples(what)}

    successes, failures = by_source(SOURCE_SUCCESS), by_source(SOURCE_FAILURES)
    return tuple(
        Source(name, bool(up), successes.get(name), failures.get(name, 0.0))
        for name, up in sorted(by_source(SOURCE_UP).items())
    )


def _total(by_label: Mapping[str, float]) -> float | None:
    return sum(by_label.values()) if by_label else None


def _difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second
