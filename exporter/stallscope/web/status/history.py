"""What the status page remembers of the last minutes: a byte for five seconds of a GPU, two marks for a rank.

The publisher's thread notes, the page reads; what is kept is replaced, so that neither waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from stallscope.catalogue.metrics import family
from stallscope.intake.runs import Held
from stallscope.sampling.reading import Distribution, Sample
from stallscope.web.status.selection import select

OBSERVED = family("stallscope_gpu_utilization_samples")

POINT_SECONDS = 5.0
POINTS = 60
NOT_TOLD = 255
"""Stands for a point that no reading told of; all others are percent."""
MARK_SECONDS = 150.0
"""Between two marks: the older of two lies 2.5 to 5 minutes back, about as far as verdicts look."""
MAX_GPUS = 128


class Recent(NamedTuple):
    """What a rank did lately."""

    steps: int
    step_seconds: float
    """Time in these steps."""
    phases: Mapping[str, float]
    """Seconds by phase."""
    since: float | None
    """Seconds that it goes back; None where it is all since the process began."""

    @property
    def total(self) -> float:
        """Wall time of the loop in seconds."""
        return sum(self.phases.values())


class _Mark(NamedTuple):
    """What a rank's counters said at one moment."""

    at: float
    session: str
    steps: int
    step_seconds: float
    phases: Mapping[str, float]


class History:
    """See the module."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Start empty."""
        self._monotonic = monotonic
        self._noted_at = -POINT_SECONDS
        self._marked_at = -MARK_SECONDS
        self._observed: dict[str, tuple[float, int]] = {}
        self._activity: dict[str, bytes] = {}
        self._marks: dict[tuple[str, int], tuple[_Mark | None, _Mark]] = {}

    def note(self, samples: Iterable[Sample], held: Callable[[], Iterable[Held]]) -> None:
        """Take note of a new page, where it is time to."""
        now = self._monotonic()
        if now - self._noted_at >= POINT_SECONDS:
            self._noted_at = now
            self._note_gpus(samples)
        if now - self._marked_at >= MARK_SECONDS:
            self._marked_at = now
            self._mark_ranks(held(), now)

    def activity(self, uuid: str) -> bytes:
        """Percent by POINT_SECONDS, oldest first, or NOT_TOLD."""
        return self._activity.get(uuid, b"")

    def recent(self, held: Held) -> Recent:
        """What a rank did in the last minutes, or since it began where less is known or it has ended."""
        now = self._monotonic()
        present = _mark(held, now)
        before, _newer = self._marks.get((held.report.run, held.report.rank), (None, None))
        if held.ended is not None or before is None or before.session != present.session:
            return Recent(present.steps, present.step_seconds, present.phases, None)
        phases = {name: seconds - before.phases.get(name, 0.0) for name, seconds in present.phases.items()}
        return Recent(
            present.steps - before.steps,
            present.step_seconds - before.step_seconds,
            {name: seconds for name, seconds in phases.items() if seconds > 0},
            now - before.at,
        )

    def _note_gpus(self, samples: Iterable[Sample]) -> None:
        observed = {
            sample.labels[1]: (sample.value.total, sample.value.count)
            for sample in samples
            if sample.family is OBSERVED and isinstance(sample.value, Distribution)
        }
        activity = {}
        for uuid in [*observed, *(self._activity.keys() - observed.keys())][:MAX_GPUS]:
            point = NOT_TOLD
            if uuid in observed and uuid in self._observed:
                # The mean of the driver's own samples since the last point: no clock in it that could be off.
                total, count = (new - old for new, old in zip(observed[uuid], self._observed[uuid], strict=True))
                if count > 0:
                    point = min(100, max(0, round(100 * total / count)))
            points = (self._activity.get(uuid, b"") + bytes((point,)))[-POINTS:]
            if points.count(NOT_TOLD) < len(points) or uuid in observed:
                activity[uuid] = points
        self._observed = observed
        self._activity = activity

    def _mark_ranks(self, held: Iterable[Held], now: float) -> None:
        marks = {}
        for run in select(held).runs:
            for each in run.shown:
                key, mark = (each.report.run, each.report.rank), _mark(each, now)
                _older, newest = self._marks.get(key, (None, None))
                marks[key] = (newest if newest is not None and newest.session == mark.session else None, mark)
        self._marks = marks


def _mark(held: Held, now: float) -> _Mark:
    report = held.report
    steps = report.step_seconds
    return _Mark(
        now,
        report.session,
        steps.count if steps is not None else 0,
        steps.sum if steps is not None else 0.0,
        {name: phase.seconds for name, phase in report.phases.items()},
    )
