"""Activity of a GPU by GPM (Hopper and newer), from successive samples, so that no time is missed.

If the driver supports the cycle counters since reboot, shares are computed from their increases. Otherwise, or if they
contradict the documented percentages, the percentages over the same interval are used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stallscope.node.drivers.device import Activity, DeviceLost, DriverError, DriverUnavailable, Unsupported
from stallscope.node.drivers.nvidia.library import Handle
from stallscope.node.drivers.nvidia.session import INVALID_ARGUMENT, UNSUPPORTED, Session
from stallscope.node.drivers.plausibility import Plausibility
from stallscope.node.drivers.retry import Retry

# Metric ids (NVML_GPM_METRIC_*). Percentages first, each with the counter of active cycles of the same unit.
_GRAPHICS = 1
_SM = 2
_OCCUPANCY = 3
_DRAM = 10
_PIPES = {"tensor": 5, "fp64": 11, "fp32": 12, "fp16": 13, "integer": 4}
_CYCLES_ELAPSED = 248
_CYCLES_ACTIVE = {_SM: 249, _PIPES["tensor"]: 250, 4: 257, 11: 258, 12: 259, 13: 260}
_ENGINES = {
    "encoder": range(166, 170),
    "decoder": range(30, 38),
    "jpeg": range(40, 48),
    "ofa": range(50, 52),
}
# MiB a second over the interval, and bytes since reboot. TX is "traffic from this GPU".
_PCIE_TRANSMITTED, _PCIE_TRANSMITTED_BYTES = 20, 255
_PCIE_RECEIVED, _PCIE_RECEIVED_BYTES = 21, 256
_NVLINK_RECEIVED, _NVLINK_TRANSMITTED = 60, 61
_NVLINK_RECEIVED_BYTES = range(261, 297, 2)
_NVLINK_TRANSMITTED_BYTES = range(262, 298, 2)

_BASE = frozenset(
    (
        *(_GRAPHICS, _SM, _OCCUPANCY, _DRAM),
        *_PIPES.values(),
        *(metric for engine in ("decoder", "jpeg", "ofa") for metric in _ENGINES[engine]),
        *(_PCIE_TRANSMITTED, _PCIE_RECEIVED, _NVLINK_RECEIVED, _NVLINK_TRANSMITTED),
    )
)
_LATER = frozenset(
    (
        *_ENGINES["encoder"],
        _CYCLES_ELAPSED,
        *_CYCLES_ACTIVE.values(),
        _PCIE_TRANSMITTED_BYTES,
        _PCIE_RECEIVED_BYTES,
    )
)
"""Metrics of newer drivers. An older driver may refuse the whole call because of them."""
_LATER_KEY = "GPM metrics of later drivers"

_MOST_PERCENT = 100.5
"""Highest plausible percentage: rounding may exceed 100 slightly."""
_MOST_MIB = float(1 << 24)
_MOST_COUNT = 2.0**64
_MEBIBYTE = 1 << 20
_CONTRADICTION = 0.1
"""Difference between a share by cycles and its percentage, above which the cycle counter is not trusted."""
_TURN_SECONDS = 0.2

Query = Callable[..., Any]


class Turns:
    """A lock for GPM calls of one GPU at a time: concurrent calls have crashed the library."""

    def __init__(self, longest: float = _TURN_SECONDS) -> None:
        """Create the lock, with the maximum seconds to wait for it."""
        self._lock = threading.Lock()
        self._longest = longest
        self._number = 0
        self._timed_out_for = -1

    @contextmanager
    def take(self) -> Iterator[bool]:
        """Yield True if this GPU may call now. After one caller timed out, later callers do not wait for that turn."""
        number = self._number
        wait = 0 if number == self._timed_out_for else self._longest
        if not (self._lock.acquire(timeout=wait) if wait else self._lock.acquire(blocking=False)):
            self._timed_out_for = number
            yield False
            return
        self._number += 1
        try:
            yield True
        finally:
            self._lock.release()


TURNS = Turns()
"""The lock of this process."""


class ActivityMeter:
    """Reads GPM of one GPU or GPU instance. Used by one thread only."""

    def __init__(
        self,
        session: Session,
        query: Query,
        take: Callable[[Handle], None],
        plausibility: Plausibility,
        served: dict[str, str],
        monotonic: Callable[[], float],
        retry: Retry,
    ) -> None:
        """Prepare.

        Args:
            session: the driver's session; before it ends, the samples are freed.
            query: makes a driver call that needs no device.
            take: fills a GPM sample for this device.
            plausibility: checks values.
            served: receives the source of each signal.
            monotonic: clock in seconds.
            retry: stores which metrics were refused.
        """
        self._session = session
        self._query = query
        self._take = take
        self._plausibility = plausibility
        self._served = served
        self._monotonic = monotonic
        self._busy = threading.Lock()
        self._closed = False
        self._samples: tuple[Handle, Handle] | None = None
        self._taken: float | None = None
        """Time of the older sample; None before the first."""
        self._retry = retry
        self._wanted = sorted(_BASE | _LATER)
        self._silent = True
        """True if the newest query returned no metric."""
        self._totals: Mapping[int, float] = {}

    def read(self) -> Activity | None:
        """Return the activity since the previous reading; None while another GPU has the lock, or after `close`.

        Raises:
            Unsupported: the GPU does not support GPM.
            DriverError: the call failed this time.
        """
        with TURNS.take() as ours:
            if not ours:
                return None
            try:
                with self._busy:
                    return None if self._closed else self._read()
            finally:
                if self._closed:
                    self.release()

    def close(self) -> None:
        """Stop reading, and free the samples: now, or after a call in progress."""
        self._closed = True
        self.release()

    def release(self) -> None:
        """Free the samples, unless a call that does not return still uses them."""
        if self._busy.acquire(blocking=False):
            samples, self._samples, self._taken = self._samples, None, None
            for sample in samples or ():
                self._session.free("nvmlGpmSampleFree", sample)
            self._session.drop(self)
            self._busy.release()

    def _read(self) -> Activity | None:
        if self._samples is None:
            first = self._query("nvmlGpmSampleAlloc")
            self._samples = (first, self._query("nvmlGpmSampleAlloc"))
            self._session.keep(self, self.release)
        older, newer = self._samples
        before = self._monotonic()
        try:
            self._take(newer)
        except (DeviceLost, DriverUnavailable):
            self._taken = None
            raise
        # The driver takes the sample at an unknown time within the call; the middle has the smallest error.
        taken = (before + self._monotonic()) / 2
        since, self._taken = self._taken, None
        self._samples = (newer, older)
        if since is None:
            self._totals = {}
            self._taken = taken
            return Activity(0.0)
        metrics = self._metrics(older, newer, taken)
        self._taken = taken
        return self._activity(metrics, taken - since)

    def _metrics(self, older: Handle, newer: Handle, now: float) -> dict[int, float]:
        """Return the values of the supported metrics.

        Raises:
            Unsupported: no metric has a value, in this query and in the previous one.
            DriverError: no metric has a value this time, as after the driver's clock was set back between two samples.
        """
        found: dict[int, float] = {}
        refused: list[int] = []
        for metric, (code, value) in self._answers(older, newer, now):
            if code == 0:
                found[metric] = value
            elif code in UNSUPPORTED or code == INVALID_ARGUMENT:
                refused.append(metric)
        was_silent, self._silent = self._silent, not found
        if not found and not was_silent:
            raise DriverError("invalid_argument", "the driver returned no GPM metric for this interval")
        for metric in refused:
            self._retry.refused(metric, now)
        self._retry.answered(*found)
        if not found:
            raise Unsupported("this GPU supports no GPM metric")
        rates = (_NVLINK_RECEIVED, _NVLINK_TRANSMITTED)
        if all(rate in self._retry for rate in rates) and _LATER & found.keys():
            self._wanted = sorted(_BASE | _LATER | {*_NVLINK_RECEIVED_BYTES, *_NVLINK_TRANSMITTED_BYTES})
        return found

    def _answers(self, older: Handle, newer: Handle, now: float) -> Iterable[tuple[int, tuple[int, float]]]:
        """Query the metrics that are due; omit those of newer drivers if an older one refuses them."""
        ids = self._retry.select(self._wanted, now)
        base = tuple(metric for metric in ids if metric in _BASE)
        if not self._retry.due(_LATER_KEY, now):
            ids = base
        try:
            return zip(ids, self._query("nvmlGpmMetricsGet", older, newer, ids) if ids else (), strict=True)
        except DriverError as problem:
            if problem.reason != "invalid_argument" or ids == base or not base:
                raise
        answers = self._query("nvmlGpmMetricsGet", older, newer, base)
        self._retry.refused(_LATER_KEY, now)
        return zip(base, answers, strict=True)

    def _activity(self, metrics: Mapping[int, float], seconds: float) -> Activity:
        number = self._plausibility.number
        totals = {
            metric: value
            for metric, value in metrics.items()
            if metric >= _CYCLES_ELAPSED and number(value, _MOST_COUNT) is not None
        }
        growth = {metric: value - self._totals[metric] for metric, value in totals.items() if metric in self._totals}
        self._totals = totals
        serve = self._served.__setitem__
        percent = self._percent
        occupancy, dram = percent(metrics, _OCCUPANCY), percent(metrics, _DRAM)
        sm, sm_source = self._share(metrics, growth, _SM)
        if sm is not None:
            serve("sm_active_seconds_total", sm_source)
        if occupancy is not None:
            serve("sm_occupancy_seconds_total", f"GPM {_OCCUPANCY}")
        if dram is not None:
            serve("dram_active_seconds_total", f"GPM {_DRAM}")
        pipes: dict[str, float] = {}
        sources: list[str] = []
        for pipe, metric in _PIPES.items():
            share, source = self._share(metrics, growth, metric)
            if share is not None:
                pipes[pipe] = share
                sources.append(source.removeprefix("GPM "))
        if pipes:
            serve("pipe_active_seconds_total", f"GPM {', '.join(sources)}")
        engines: dict[str, float] = {}
        for engine, metrics_of_engine in _ENGINES.items():
            shares = [share for metric in metrics_of_engine if (share := percent(metrics, metric)) is not None]
            if shares:
                engines[engine] = sum(shares) / len(shares)
        if engines:
            numbers = [str(metric) for engine in engines for metric in _ENGINES[engine] if metric in metrics]
            serve("engine_busy_seconds_total", f"GPM {', '.join(numbers)}")
        pcie_received = self._bytes(metrics, growth, seconds, _PCIE_RECEIVED, (_PCIE_RECEIVED_BYTES,))
        pcie_transmitted = self._bytes(metrics, growth, seconds, _PCIE_TRANSMITTED, (_PCIE_TRANSMITTED_BYTES,))
        nvlink_received = self._rate(metrics, seconds, _NVLINK_RECEIVED)
        nvlink_transmitted = self._rate(metrics, seconds, _NVLINK_TRANSMITTED)
        if nvlink_received is None and nvlink_transmitted is None:
            nvlink_received = self._growth(growth, _NVLINK_RECEIVED_BYTES)
            nvlink_transmitted = self._growth(growth, _NVLINK_TRANSMITTED_BYTES)
        for signal, value, rate, total in (
            ("pcie_receive_bytes_total", pcie_received, _PCIE_RECEIVED, _PCIE_RECEIVED_BYTES),
            ("pcie_transmit_bytes_total", pcie_transmitted, _PCIE_TRANSMITTED, _PCIE_TRANSMITTED_BYTES),
            ("nvlink_receive_bytes_total", nvlink_received, _NVLINK_RECEIVED, 261),
            ("nvlink_transmit_bytes_total", nvlink_transmitted, _NVLINK_TRANSMITTED, 262),
        ):
            if value is not None:  # a counter of the driver takes precedence, if there is one
                self._served.setdefault(signal, f"GPM {total if total in growth else rate}")
        return Activity(
            seconds=seconds,
            graphics=percent(metrics, _GRAPHICS),
            sm=sm,
            occupancy=occupancy,
            dram=dram,
            pipes=pipes,
            engines=engines,
            pcie_received=pcie_received,
            pcie_transmitted=pcie_transmitted,
            nvlink_received=nvlink_received,
            nvlink_transmitted=nvlink_transmitted,
        )

    def _percent(self, metrics: Mapping[int, float], metric: int) -> float | None:
        value = metrics.get(metric)
        if value is None:
            return None
        value = self._plausibility.number(value, _MOST_PERCENT)
        return None if value is None else min(value / 100, 1.0)

    def _share(
        self, metrics: Mapping[int, float], growth: Mapping[int, float], metric: int
    ) -> tuple[float | None, str]:
        """Return the share of cycles in which the unit was active, and its source."""
        share = self._percent(metrics, metric)
        counter = _CYCLES_ACTIVE[metric]
        active, elapsed = growth.get(counter), growth.get(_CYCLES_ELAPSED)
        if active is not None and elapsed is not None and elapsed > 0 and 0 <= active <= elapsed * _MOST_PERCENT / 100:
            counted = min(active / elapsed, 1.0)
            if share is None or abs(counted - share) <= _CONTRADICTION:
                return counted, f"GPM {counter}/{_CYCLES_ELAPSED}"
        return share, f"GPM {metric}"

    def _bytes(
        self,
        metrics: Mapping[int, float],
        growth: Mapping[int, float],
        seconds: float,
        rate: int,
        totals: Iterable[int],
    ) -> float | None:
        counted = self._growth(growth, totals)
        reported = self._rate(metrics, seconds, rate)
        # A constant counter next to a rate with traffic is invalid.
        return reported if counted is None or (counted == 0 and reported) else counted

    def _rate(self, metrics: Mapping[int, float], seconds: float, metric: int) -> float | None:
        mebibytes = self._plausibility.number(metrics.get(metric), _MOST_MIB)
        return None if mebibytes is None else mebibytes * _MEBIBYTE * seconds

    def _growth(self, growth: Mapping[int, float], totals: Iterable[int]) -> float | None:
        found = [growth[metric] for metric in totals if metric in growth]
        if not found or not all(0 <= count <= _MOST_COUNT for count in found):
            return None
        return sum(found)
