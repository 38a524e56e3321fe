"""Values of the exporter's metrics in a recording, compared with loads whose value is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stallscope.lab.replay.pages import Page, Recording
from stallscope.model.clients.exposition import labels_of
from tests.hardware.judge_inputs import Signal


@dataclass(frozen=True)
class Measured:
    """A signal and its value in the recording."""

    signal: Signal
    value: float | None
    """None if no page of the time has the metric."""

    @property
    def is_right(self) -> bool:
        """True if the difference is within the tolerance."""
        return self.value is not None and abs(self.value - self.signal.truth) <= self.signal.tolerance


def measured(recording: Recording, signals: Sequence[Signal]) -> list[Measured]:
    """Return the value of each signal: the mean of a gauge, the increase per second of a total.

    Raises:
        RecordingError: the recording is damaged.
    """
    start = float(recording.header["start"])
    found: list[list[tuple[float, float]]] = [[] for _ in signals]
    for page in recording.pages():
        for signal, values in zip(signals, found, strict=True):
            if signal.begin <= start + page.time <= signal.end and not page.error:
                values += [(page.time, sum(numbers))] if (numbers := list(_values(page, signal))) else []
    return [Measured(signal, _value(signal, values)) for signal, values in zip(signals, found, strict=True)]


def _values(page: Page, signal: Signal) -> Iterator[float]:
    for series, value in page.samples.items():
        name, _, labels = series.removesuffix("}").partition("{")
        if name == signal.metric and signal.labels.items() <= labels_of(labels).items():
            yield float(value)


def _value(signal: Signal, values: Sequence[tuple[float, float]]) -> float | None:
    if not values:
        return None
    if not signal.metric.endswith("_total"):
        return sum(value for _, value in values) / len(values)
    (begin, first), (end, last) = values[0], values[-1]
    return (last - first) / (end - begin) if end > begin else None
