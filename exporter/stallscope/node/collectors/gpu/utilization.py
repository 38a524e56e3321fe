"""Utilisation of a GPU and its memory: busy, idle and low seconds, dips, and the distribution of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stallscope.model.catalogue.metrics import BELOW_LEVELS, Family, family
from stallscope.node.collectors.gpu.poll import Answer, Poll, Session
from stallscope.node.drivers.device import SampleKind, TimedSample, Unsupported
from stallscope.node.sampling.integrals import Interval, TimeIntegral, Timeline, UtilizationIntegral
from stallscope.node.sampling.reading import Distribution

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stallscope.node.collectors.gpu.activity import ActivityPoll

BUSY = family("stallscope_gpu_busy_seconds_total")
OBSERVED = family("stallscope_gpu_observed_seconds_total")
MEMORY_BUSY = family("stallscope_gpu_memory_busy_seconds_total")
IDLE = family("stallscope_gpu_idle_seconds_total")
BELOW = family("stallscope_gpu_below_seconds_total")
DIPS = family("stallscope_gpu_dips_total")
DIP_INTERVAL = family("stallscope_gpu_dip_interval_seconds")
DIP_INTERVAL_SQUARES = family("stallscope_gpu_dip_interval_seconds_sumsq")
UTILIZATION_SAMPLES = family("stallscope_gpu_utilization_samples")
UTILIZATION = family("stallscope_gpu_utilization_ratio")
MEMORY_UTILIZATION = family("stallscope_gpu_memory_utilization_ratio")


class UtilizationPoll(Poll):
    """Integrates the driver's samples, or its snapshot without samples, or activity without a snapshot."""

    name = "utilization"
    families = (BUSY, MEMORY_BUSY)
    in_parts = True

    def __init__(self, activity: ActivityPoll, interval: float, longest: float) -> None:
        """Start without readings.

        Args:
            activity: used for MIG instances.
            interval: seconds between two readings.
            longest: seconds after which a reading is stale.
        """
        self._activity = activity
        self._interval = interval
        self._timelines: dict[SampleKind, Timeline] = {"gpu": Timeline(longest), "memory": Timeline(longest)}
        self.timelines = self._timelines.values()
        self._busy = UtilizationIntegral()
        self._memory_busy = TimeIntegral()
        self._means: dict[SampleKind, float | None] = {"gpu": None, "memory": None}

    def read(self, session: Session) -> Answer | None:
        """Integrate the samples since the previous reading."""
        spans = {kind: self._new_spans(session, kind) for kind in self._timelines}
        silent = [
            kind
            for kind, new in spans.items()
            if not new and (f"{kind} samples" in session.retry or self._timelines[kind].silent(session.now))
        ]
        if silent:
            snapshot = session.optional("utilization snapshot", session.device.utilization)
            if snapshot is not None:
                for kind in silent:
                    value = snapshot.gpu if kind == "gpu" else snapshot.memory
                    spans[kind] = [self._timelines[kind].poll(value, session.now)]
            elif (
                "gpu samples" in session.retry
                and "memory samples" in session.retry
                and not self._active_instead(session, spans)
            ):
                self._activity.require_turn(session)
                return None
        integrals: dict[SampleKind, TimeIntegral] = {"gpu": self._busy, "memory": self._memory_busy}
        for kind, integral in integrals.items():
            for span in spans[kind]:
                integral.add(span)
            if spans[kind]:
                mean = integral.take_mean()
                self._means[kind] = spans[kind][-1].value if mean is None else mean
        return self._answer()

    def _active_instead(self, session: Session, spans: dict[SampleKind, list[Interval]]) -> bool:
        """Use the share of time with any work as utilisation, as on MIG instances; return False while it is unknown."""
        activity = session.activity
        if activity is None and self._activity.name not in session.retry:
            return False
        if activity is None or activity.graphics is None:
            raise Unsupported("this GPU reports no utilisation")
        session.served[BUSY.signal] = "the share of time with any work (GPM)"
        self._timelines["gpu"].poll(activity.graphics, session.now)  # later samples must not count this time again
        spans["gpu"] = [Interval(activity.graphics, activity.seconds)]
        return True

    def _new_spans(self, session: Session, kind: SampleKind) -> list[Interval]:
        timeline = self._timelines[kind]
        samples = buffered(session, kind, timeline)
        if not samples:
            return []
        if not timeline.newest_us:
            # The buffer's history is older than this process; one interval of it makes the first reading whole.
            begin = samples[-1].timestamp_us - self._interval * 1e6
            samples = [sample for sample in samples if sample.timestamp_us >= begin]
        return timeline.samples(samples, session.now)

    def _answer(self) -> Answer:
        busy = self._busy
        found: dict[Family, float | Distribution | Mapping[str, float]] = {}
        if self._means["memory"] is not None:
            found |= {MEMORY_BUSY: self._memory_busy.total, MEMORY_UTILIZATION: self._means["memory"]}
        if self._means["gpu"] is None:
            return found
        counts = tuple(busy.observations)
        return {
            **found,
            BUSY: busy.total,
            OBSERVED: busy.elapsed,
            UTILIZATION: self._means["gpu"],
            IDLE: busy.idle,
            BELOW: {f"{level:g}": busy.below[level] for level in BELOW_LEVELS},
            DIPS: busy.dips,
            DIP_INTERVAL: Distribution((), busy.dip_interval_sum, busy.dip_intervals),
            DIP_INTERVAL_SQUARES: busy.dip_interval_sum_of_squares,
            UTILIZATION_SAMPLES: Distribution(counts, busy.observation_sum, sum(counts)),
        }


def buffered(session: Session, kind: SampleKind, timeline: Timeline) -> Sequence[TimedSample] | None:
    """Return new samples from the driver's buffer; None if it keeps no such samples."""
    newest_us = timeline.request_from(session.now)
    return session.optional(f"{kind} samples", session.device.utilization_samples, kind, newest_us)
