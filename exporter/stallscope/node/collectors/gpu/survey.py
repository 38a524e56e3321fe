"""Reads every GPU of a source a few times, and reports the result: for `stallscope gpus`.

The exporter's own readers are used, so that the result is what the exporter will expose. Each runs on a thread
of its own with a time limit, because a GPU that hangs never responds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stallscope.common.concurrency import Attempt, run_concurrently
from stallscope.model.catalogue.metrics import GPU_FAMILIES, Family
from stallscope.node.collectors.base import NotPresent
from stallscope.node.collectors.gpu.gpu import (
    INFO,
    PEAK_FLOPS,
    SIGNAL_SUPPORTED,
    XID_EVENTS,
    XID_LAST,
    Gpu,
)
from stallscope.node.collectors.gpu.source import LOST_INFO, GpuCollector
from stallscope.node.drivers.device import DriverUnavailable
from stallscope.node.drivers.peak_flops import TABLE_DATE
from stallscope.node.sampling.reader import CollectorState, ReaderState
from stallscope.node.sampling.reading import Sample


@dataclass(frozen=True)
class SurveyedSignal:
    """One optional signal of one GPU."""

    family: Family
    supported: bool | None
    """None if unknown."""
    call: str
    """The driver's call that serves it, or another origin; empty if unknown."""
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class SurveyedGpu:
    """One GPU or MIG instance."""

    info: Mapping[str, str]
    """Labels of `stallscope_gpu_info`."""
    parent: str
    """UUID of the GPU that contains the MIG instance; empty for a whole GPU."""
    trouble: str
    """Reason why it could not be read; empty without a problem."""
    hung: bool
    signals: tuple[SurveyedSignal, ...]
    calls: int
    """Driver calls of the newest reading."""

    @property
    def persistence_off(self) -> bool:
        """True if the driver releases the GPU while no process uses it."""
        return any(
            sample.value == 0
            for each in self.signals
            if each.family.signal == "persistence_mode"
            for sample in each.samples
        )


@dataclass(frozen=True)
class Survey:
    """Result of one source."""

    source: str
    problem: str = ""
    """Reason why the list of GPUs is missing or incomplete; empty without a problem."""
    reason: str = ""
    """Reason of a driver that does not respond, in one word, as in `stallscope_gpu_lost_info`; else empty."""
    hung: bool = False
    """True if the driver itself did not respond."""
    gpus: tuple[SurveyedGpu, ...] = ()


def survey(source: GpuCollector, *, readings: int = 3, pause: float = 1.0, limit: float = 10.0) -> Survey:
    """Read all GPUs of a source, and close it unless something hangs.

    Args:
        source: a collector without other readers.
        readings: number of readings; MIG instances are listed from the second on.
        pause: seconds between two readings.
        limit: maximum seconds to wait for a response.
    """
    attempts: dict[str, Attempt[Iterable[Sample]]] = {}
    calls: dict[str, int] = {}
    problem = ""
    for number in range(readings):
        if number:
            time.sleep(pause)
        (main,) = run_concurrently({"driver": source.read}, limit, "survey").values()
        if not main.ended.is_set():
            return Survey(source.name, f"the driver did not answer within {limit:g} s", hung=True)
        problem = str(main.error or "")
        if isinstance(main.error, (NotPresent, DriverUnavailable)) and not source.gpus:
            break  # a driver does not appear while a person waits for it
        before = {uuid: gpu.calls for uuid, gpu in source.gpus.items()}
        hanging = {key: each for key, each in attempts.items() if not each.ended.is_set()}
        readers = {key: read for key, read in source.parts().items() if key not in hanging}
        attempts = hanging | run_concurrently(readers, limit, "survey")
        calls = {uuid: gpu.calls - before[uuid] for uuid, gpu in source.gpus.items() if uuid in before}
    now = time.monotonic()
    state = CollectorState(
        now=now,
        stale_after=readings * (pause + limit),
        main=ReaderState(error=main.error, attempts=readings),
        parts={key: _state(each, now) for key, each in attempts.items()},
    )
    samples: dict[str, list[Sample]] = {uuid: [] for uuid in source.gpus}
    for sample in source.collect(state):
        if sample.family.labels[:2] == INFO.labels[:2]:
            samples[sample.labels[1]].append(sample)
    gpus = tuple(
        _surveyed(gpu, samples[uuid], attempts.get(uuid), calls.get(uuid, 0), limit)
        for uuid, gpu in sorted(source.gpus.items(), key=lambda item: (item[1].identity.index, item[1].identity.mig))
    )
    if all(each.ended.is_set() for each in attempts.values()):
        source.close()
    reason = ""
    if main.error is not None and isinstance(main.error.__cause__, DriverUnavailable):
        # The collector's own error adds a remedy; the command that shows the survey has its own.
        reason, problem = main.error.__cause__.reason, str(main.error.__cause__)
    return Survey(source.name, problem, reason, gpus=gpus)


def _state(attempt: Attempt[Iterable[Sample]], now: float) -> ReaderState:
    """Return the state of a reader as the sampler would report it."""
    if not attempt.ended.is_set():
        return ReaderState(busy_since=now, attempts=1)
    if attempt.error is not None:
        return ReaderState(error=attempt.error, attempts=1)
    return ReaderState(samples=tuple(attempt.answer or ()), read_at=now, attempts=1)


def _surveyed(
    gpu: Gpu, samples: Sequence[Sample], attempt: Attempt[Iterable[Sample]] | None, calls: int, limit: float
) -> SurveyedGpu:
    place = SIGNAL_SUPPORTED.labels.index("signal")
    supported = {sample.labels[place]: bool(sample.value) for sample in samples if sample.family is SIGNAL_SUPPORTED}
    served = {**gpu.served, PEAK_FLOPS.signal: f"table of {TABLE_DATE}"}
    hung = attempt is not None and not attempt.ended.is_set()
    reasons = [sample.labels[LOST_INFO.labels.index("reason")] for sample in samples if sample.family is LOST_INFO]
    error = attempt.error if attempt is not None else None
    return SurveyedGpu(
        info=dict(zip(INFO.all_labels, gpu.info().labels, strict=False)),
        parent=gpu.identity.parent_uuid,
        trouble=f"it did not answer within {limit:g} s"
        if hung
        else ": ".join((*reasons, *([str(error)] if error else ()))),
        hung=hung,
        signals=tuple(
            SurveyedSignal(
                family=each,
                supported=supported.get(each.signal),
                call=served.get(each.signal, "") if supported.get(each.signal) else "",
                samples=tuple(sample for sample in samples if sample.family is each),
            )
            for each in GPU_FAMILIES
            # Xids are those of the whole GPU.
            if each.optional and not (gpu.identity.mig and each in (XID_EVENTS, XID_LAST))
        ),
        calls=calls,
    )
