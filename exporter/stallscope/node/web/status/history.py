"""History of the last minutes for the status page: a byte for five seconds of a GPU, a rank's counters twice.

The publisher's thread notes, the page reads; what is kept is replaced, so that neither waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from stallscope.model.catalogue.metrics import family
from stallscope.model.view.observer import Counters, RankKey, counters_of
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.node.web.status.exporter_state import SnapshotSamples

OBSERVED = family("stallscope_gpu_utilization_samples")

POINT_SECONDS = 5.0
POINTS = 60
UNKNOWN = 255
"""Marks a point without a reading; all other values are percent."""
MARK_SECONDS = 150.0
"""Seconds between two marks: the older one is 2.5 to 5 minutes old, about as long as verdicts look back."""
MAX_GPUS = 128


class History:
    """See the module."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Start empty."""
        self._monotonic = monotonic
        self._noted_at = -POINT_SECONDS
        self._marked_at = -MARK_SECONDS
        self._observed: dict[str, tuple[float, int]] = {}
        self._activity: dict[str, bytes] = {}
        self._marks: tuple[Mapping[RankKey, Counters], ...] = ()

    def note(self, samples: Sequence[Sample]) -> None:
        """Take note of a new page, where it is time to."""
        now = self._monotonic()
        if now - self._noted_at >= POINT_SECONDS:
            self._noted_at = now
            self._note_gpus(samples)
        if now - self._marked_at >= MARK_SECONDS:
            self._marked_at = now
            self._marks = (*self._marks[-1:], counters_of(SnapshotSamples(samples)))

    def activity(self, uuid: str) -> bytes:
        """Percent by POINT_SECONDS, oldest first, or UNKNOWN."""
        return self._activity.get(uuid, b"")

    @property
    def before(self) -> Mapping[RankKey, Counters]:
        """Counters of ranks 2.5 to 5 minutes ago; empty where that was before the exporter began."""
        return self._marks[0] if len(self._marks) > 1 else {}

    def _note_gpus(self, samples: Iterable[Sample]) -> None:
        observed = {
            sample.labels[1]: (sample.value.total, sample.value.count)
            for sample in samples
            if sample.family is OBSERVED and isinstance(sample.value, Distribution)
        }
        activity = {}
        for uuid in [*observed, *(self._activity.keys() - observed.keys())][:MAX_GPUS]:
            point = UNKNOWN
            if uuid in observed and uuid in self._observed:
                # The mean of the driver's own samples since the last point: no clock in it that could be off.
                total, count = (new - old for new, old in zip(observed[uuid], self._observed[uuid], strict=True))
                if count > 0:
                    point = min(100, max(0, round(100 * total / count)))
            points = (self._activity.get(uuid, b"") + bytes((point,)))[-POINTS:]
            if points.count(UNKNOWN) < len(points) or uuid in observed:
                activity[uuid] = points
        self._observed = observed
        self._activity = activity
