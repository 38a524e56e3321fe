"""Diagnoses of simpler diagnosers from the same scrapes.

Three of them: a bound on GPU utilisation, as most clusters alert on; SageMaker Debugger's rules with their defaults;
a bound on the data wait alone. Each sees what it would see in the field, and names the cause that its text names.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, combinations, pairwise

from stallscope.lab.replay.series import Series
from tests.scenarios.runner import EVALUATION_SECONDS

HEALTHY = "healthy"
Fired = list[list[str]]
"""For each scrape the rules that fire, the one that says most first."""
Diagnoser = Callable[[Sequence[Series]], Fired]

_FIVE_MINUTES = 300 // EVALUATION_SECONDS
_GPU = ("job", "instance", "gpu", "uuid", "mig")
_HOST = ("job", "instance")
_RANK = ("job", "instance", "namespace", "run", "rank")


class Scrapes:
    """The series of a case, as a diagnoser without a query language reads them."""

    def __init__(self, series: Iterable[Series]) -> None:
        self._by_name: dict[str, list[Series]] = defaultdict(list)
        self.length = 0
        for each in series:
            self._by_name[each.name].append(each)
            self.length = max(self.length, len(each.values))

    def find(self, name: str, **labels: str) -> list[Series]:
        """The series of a family with these labels."""
        return [
            each
            for each in self._by_name.get(name, ())
            if all(each.labels.get(label, "") == value for label, value in labels.items())
        ]

    def grown(self, name: str, by: Sequence[str], **labels: str) -> dict[tuple[str, ...], list[float]]:
        """Growth of a counter's series since the start, summed by labels, at each scrape; resets count from zero."""
        sums: dict[tuple[str, ...], list[float]] = {}
        for each in self.find(name, **labels):
            total = sums.setdefault(tuple(each.labels.get(label, "") for label in by), [0.0] * self.length)
            for position, value in enumerate(_grown(each.values, self.length)):
                total[position] += value
        return sums

    def gauge(self, name: str, by: Sequence[str], **labels: str) -> dict[tuple[str, ...], list[float | None]]:
        """A gauge at each scrape; of several series with the same labels the last."""
        return {
            tuple(each.labels.get(label, "") for label in by): [
                *each.values,
                *[None] * (self.length - len(each.values)),
            ]
            for each in self.find(name, **labels)
        }


def _grown(values: Sequence[float | None], length: int) -> list[float]:
    steps: list[float] = []
    last: float | None = None
    for value in values:
        if value is None or last is None:
            steps.append(0.0)
        else:
            steps.append(value - last if value >= last else value)
        last = last if value is None else value
    return [*accumulate(steps), *[sum(steps)] * (length - len(steps))]


def _over(grown: Sequence[float], position: int, scrapes: int) -> float:
    return grown[position] - grown[max(0, position - scrapes)]


def utilisation_under_70(series: Sequence[Series]) -> Fired:
    """A GPU that is busy for less than 70 % of five minutes: the alert that most clusters have."""
    scrapes = Scrapes(series)
    busy = scrapes.grown("stallscope_gpu_busy_seconds_total", _GPU)
    up = scrapes.gauge("stallscope_gpu_up", _GPU)

    def low(position: int) -> bool:
        seconds = min(position, _FIVE_MINUTES) * EVALUATION_SECONDS
        return any(
            _over(grown, position, _FIVE_MINUTES) < 0.7 * seconds
            for gpu, grown in busy.items()
            if gpu not in up or up[gpu][position]
        )

    return [["underused"] if position >= _FIVE_MINUTES and low(position) else [] for position in range(scrapes.length)]


def data_wait_over_10(series: Sequence[Series]) -> Fired:
    """Ranks that wait for data for more than 10 % of five minutes, whatever their GPUs do meanwhile."""
    scrapes = Scrapes(series)
    wait = scrapes.grown("stallscope_training_phase_seconds_total", _RANK, phase="data_wait")
    loop = scrapes.grown("stallscope_training_phase_seconds_total", _RANK)

    def mean(position: int) -> float:
        shares = [
            _over(grown, position, _FIVE_MINUTES) / seconds
            for rank, grown in wait.items()
            if (seconds := _over(loop[rank], position, _FIVE_MINUTES)) > 0
        ]
        return sum(shares) / len(shares) if shares else 0.0

    return [["input_bound"] if mean(position) >= 0.1 else [] for position in range(scrapes.length)]


PATIENCE = 500 // EVALUATION_SECONDS
"""1000 samples at 500 ms."""
_WINDOW = 240 // EVALUATION_SECONDS
"""500 samples at 500 ms, in whole scrapes."""
_SCAN = 60 // EVALUATION_SECONDS


def sagemaker(series: Sequence[Series]) -> Fired:
    """SageMaker Debugger's profiler rules with the defaults of their code, scanned every 60 s.

    Its samples are 500 ms apart; here the distribution of GPU samples is known exactly (the exporter's histogram), and
    of CPUs the mean of each 30 s. Its rules stay silent where their signal is missing.
    """
    scrapes = Scrapes(series)
    rules = (
        ("input_cpu_saturated", _cpu_bottleneck(scrapes)),
        ("input_disk_bound", _io_bottleneck(scrapes)),
        ("small_batch", _batch_size(scrapes)),
        ("long_init", _max_initialization_time(scrapes)),
        ("gpu_mem_leak", _gpu_memory_increase(scrapes)),
        ("step_outliers", _step_outlier(scrapes)),
        ("gpu_load_imbalance", _load_balancing(scrapes)),
        ("underused", _low_gpu_utilization(scrapes)),
    )
    fired: Fired = []
    for position in range(scrapes.length):
        fresh = position % _SCAN == 0
        fired.append([cause for cause, rule in rules if rule(position)] if fresh else fired[-1])
    return fired


Rule = Callable[[int], bool]


def _host_busy(scrapes: Scrapes) -> Mapping[tuple[str, ...], Callable[[int, int], float]]:
    """Share of each host's CPU time in use, over some scrapes before a position."""
    total = scrapes.grown("stallscope_host_cpu_seconds_total", _HOST)
    resting: dict[tuple[str, ...], list[float]] = {}
    for mode in ("idle", "iowait"):
        for host, grown in scrapes.grown("stallscope_host_cpu_seconds_total", _HOST, mode=mode).items():
            resting[host] = [a + b for a, b in zip(grown, resting.get(host, [0.0] * scrapes.length), strict=True)]

    def busy(host: tuple[str, ...]) -> Callable[[int, int], float]:
        def share(position: int, window: int) -> float:
            seconds = _over(total[host], position, window)
            return 1 - _over(resting[host], position, window) / seconds if seconds > 0 and host in resting else 0.0

        return share

    return {host: busy(host) for host in total}


def _bottleneck(scrapes: Scrapes, blocked: Callable[[int], bool]) -> Rule:
    """More than half of the time since the patience ended a GPU was under 10 % while the host was blocked."""
    under = scrapes.grown("stallscope_gpu_below_seconds_total", _GPU, level="0.1")
    lost = [0.0]
    for position in range(1, scrapes.length):
        idle = max((_over(grown, position, 1) for grown in under.values()), default=0.0)
        counts = position > PATIENCE and blocked(position)
        lost.append(lost[-1] + (idle if counts else 0.0))
    return lambda position: lost[position] > 0.5 * max(1, position - PATIENCE) * EVALUATION_SECONDS


def _cpu_bottleneck(scrapes: Scrapes) -> Rule:
    """Any CPU over 90 %."""
    busiest = scrapes.grown("stallscope_host_busiest_cpu_seconds_total", _HOST)
    return _bottleneck(
        scrapes,
        lambda position: any(_over(grown, position, 1) > 0.9 * EVALUATION_SECONDS for grown in busiest.values()),
    )


def _io_bottleneck(scrapes: Scrapes) -> Rule:
    """Over half of the CPUs' time spent waiting for I/O."""
    waiting = scrapes.grown("stallscope_host_cpu_seconds_total", _HOST, mode="iowait")
    total = scrapes.grown("stallscope_host_cpu_seconds_total", _HOST)
    return _bottleneck(
        scrapes,
        lambda position: any(
            _over(grown, position, 1) > 0.5 * _over(total[host], position, 1) > 0 for host, grown in waiting.items()
        ),
    )


def _at_most(scrapes: Scrapes, bound: float) -> Mapping[tuple[str, ...], Callable[[int], float | None]]:
    """For each GPU the share of the window's samples at or under a bucket's bound; None without samples."""
    count = scrapes.grown("stallscope_gpu_utilization_samples_count", _GPU)
    buckets = {
        gpu: grown
        for label in {each.labels["le"] for each in scrapes.find("stallscope_gpu_utilization_samples_bucket")}
        if math.isclose(float(label), bound)
        for gpu, grown in scrapes.grown("stallscope_gpu_utilization_samples_bucket", _GPU, le=label).items()
    }

    def share(gpu: tuple[str, ...]) -> Callable[[int], float | None]:
        def at(position: int) -> float | None:
            samples = _over(count[gpu], position, _WINDOW) if gpu in count else 0.0
            return _over(buckets[gpu], position, _WINDOW) / samples if samples > 0 else None

        return at

    return {gpu: share(gpu) for gpu in buckets}


def _batch_size(scrapes: Scrapes) -> Rule:
    """The 95th percentiles of CPUs, GPUs and GPU memory are all under 70 %."""
    low = _at_most(scrapes, 0.7)
    used = scrapes.gauge("stallscope_gpu_memory_used_bytes", _GPU)
    total = scrapes.gauge("stallscope_gpu_memory_total_bytes", _GPU)
    hosts = _host_busy(scrapes)

    def memory_is_low(gpu: tuple[str, ...], position: int) -> bool:
        shares = [
            taken / size
            for taken, size in zip(
                used.get(gpu, [])[max(0, position - _WINDOW) : position + 1],
                total.get(gpu, [])[max(0, position - _WINDOW) : position + 1],
                strict=False,
            )
            if taken is not None and size
        ]
        return bool(shares) and max(shares) < 0.7

    def rule(position: int) -> bool:
        if position < PATIENCE + _WINDOW or not low or not hosts:
            return False
        shares_of_cpus = (busy(at, 1) for busy in hosts.values() for at in range(position - _WINDOW + 1, position + 1))
        shares = [share(position) for share in low.values()]
        return (
            all(share is not None and share >= 0.95 for share in shares)
            and all(memory_is_low(gpu, position) for gpu in low)
            and max(shares_of_cpus) < 0.7
        )

    return rule


def _low_gpu_utilization(scrapes: Scrapes) -> Rule:
    """The 95th percentile under 70 %, or over it with the 5th under 10 % (fluctuating)."""
    low, lowest = _at_most(scrapes, 0.7), _at_most(scrapes, 0.1)

    def rule(position: int) -> bool:
        if position < PATIENCE + _WINDOW:
            return False
        return any(
            ((share := low[gpu](position)) is not None and share >= 0.95)
            or (gpu in lowest and (lowest[gpu](position) or 0.0) >= 0.05)
            for gpu in low
        )

    return rule


def _load_balancing(scrapes: Scrapes) -> Rule:
    """Two GPUs' distributions of samples are over 0.5 apart (Jensen-Shannon); a GPU that is always full has none.

    The original's buckets are 2 % wide and leave out what is over 98 %; here the last bucket begins at 90 %.
    """
    bounds = sorted({float(each.labels["le"]) for each in scrapes.find("stallscope_gpu_utilization_samples_bucket")})
    shares = [_at_most(scrapes, bound) for bound in bounds if bound <= 0.9]

    def distribution(gpu: tuple[str, ...], position: int) -> list[float] | None:
        cumulative = [0.0, *(share[gpu](position) or 0.0 for share in shares)]
        if cumulative[-1] <= 0:
            return None
        return [(after - before) / cumulative[-1] for before, after in pairwise(cumulative)]

    def rule(position: int) -> bool:
        if position < PATIENCE + _WINDOW or not shares:
            return False
        known = [found for gpu in shares[0] if (found := distribution(gpu, position)) is not None]
        return any(jensen_shannon(one, other) > 0.5 for one, other in combinations(known, 2))

    return rule


def jensen_shannon(one: Sequence[float], other: Sequence[float]) -> float:
    """The distance of two distributions: 0 for equal ones, and at most the root of ln 2."""

    def divergence(distribution: Sequence[float]) -> float:
        return sum(p * math.log(2 * p / (a + b)) for p, a, b in zip(distribution, one, other, strict=True) if p > 0)

    return math.sqrt(max(0.0, (divergence(one) + divergence(other)) / 2))


def _max_initialization_time(scrapes: Scrapes) -> Rule:
    """No first step within 20 minutes of the start."""
    started = scrapes.gauge("stallscope_training_start_timestamp_seconds", _RANK)
    first = scrapes.gauge("stallscope_training_first_step_timestamp_seconds", _RANK)

    def late(rank: tuple[str, ...], position: int) -> bool:
        start = started[rank][position]
        step = first[rank][position] if rank in first else None
        return start is not None and not step and position * EVALUATION_SECONDS - start > 20 * 60

    return lambda position: any(late(rank, position) for rank in started)


def _gpu_memory_increase(scrapes: Scrapes) -> Rule:
    """GPU memory jumps by five percentage points; the original compares means of 5 s, so that a slow leak is unseen."""
    used = scrapes.gauge("stallscope_gpu_memory_used_bytes", _GPU)
    total = scrapes.gauge("stallscope_gpu_memory_total_bytes", _GPU)

    def jumps(gpu: tuple[str, ...], position: int) -> bool:
        before, after, size = used[gpu][position - 1], used[gpu][position], total[gpu][position]
        return before is not None and after is not None and bool(size) and after - before > 0.05 * (size or 0.0)

    return lambda position: any(
        jumps(gpu, at)
        for gpu in used
        if gpu in total
        for at in range(max(PATIENCE, position - _SCAN) + 1, position + 1)
    )


def _step_outlier(scrapes: Scrapes) -> Rule:
    """More than ten steps over the mean and three standard deviations, once there were a hundred."""
    by_bound = {
        float(label): scrapes.grown("stallscope_training_step_seconds_bucket", ("run",), le=label)
        for label in {each.labels["le"] for each in scrapes.find("stallscope_training_step_seconds_bucket")}
    }
    bounds = sorted(by_bound)
    runs = by_bound[bounds[-1]] if bounds else {}

    def outliers(run: tuple[str, ...], position: int) -> bool:
        cumulative = [by_bound[bound][run][position] for bound in bounds]
        steps = cumulative[-1]
        if steps < 100:
            return False
        lows = [0.0, *bounds[:-1]]
        # Within a bucket its middle stands for all; the last has no upper end.
        middles = [(low + high) / 2 if math.isfinite(high) else low for low, high in zip(lows, bounds, strict=True)]
        counts = [after - before for before, after in zip([0.0, *cumulative], cumulative, strict=False)]
        mean = sum(count * middle for count, middle in zip(counts, middles, strict=True)) / steps
        spread = math.sqrt(
            sum(count * (middle - mean) ** 2 for count, middle in zip(counts, middles, strict=True)) / steps
        )
        return sum(count for count, middle in zip(counts, middles, strict=True) if middle > mean + 3 * spread) > 10

    return lambda position: any(outliers(run, position) for run in runs)


BASELINES: Mapping[str, Diagnoser] = {
    "GPU utilisation under 70 %": utilisation_under_70,
    "SageMaker Debugger's rules": sagemaker,
    "data wait over 10 %": data_wait_over_10,
}
