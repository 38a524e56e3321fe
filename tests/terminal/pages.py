"""Pages of metrics of a small node, written by the exporter's own exposition, at any moment of its life."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stallscope.catalogue import STEP_BUCKETS, Family, family
from stallscope.sampling.exposition import Renderer
from stallscope.sampling.reading import Distribution, Sample
from stallscope.terminal import model
from stallscope.terminal.exposition import Page

NOW = 1_700_000_000.0
GIB = 1 << 30
MODE_SHARES = {"user": 0.25, "system": 0.05, "iowait": 0.1, "idle": 0.6}
PHASE_SHARES = {"data_wait": 0.3, "forward": 0.2, "backward": 0.4, "other": 0.1}
STEP_SECONDS = 0.5
CPUS = 16


def sample(what: str | Family, labels: Iterable[str] = (), value: float | Distribution = 1.0) -> Sample:
    return Sample(family(what) if isinstance(what, str) else what, tuple(labels), value)


def rendered(samples: Iterable[Sample]) -> str:
    """A page as the exporter writes it."""
    renderer = Renderer()
    groups, _series, _dropped = renderer.lines(samples, 1_000_000)
    return renderer.render(groups, openmetrics=False).decode()


def text(
    second: float = 1000.0,
    *,
    gpus: int = 2,
    ranks: int = 2,
    extra: Iterable[Sample] = (),
    without: Iterable[Family] = (),
) -> str:
    """The page of a node that has been at work for so many seconds.

    Each GPU is busy for nine tenths of the time, the odd ones are slowed by heat for a quarter of it, and each has a
    rank that makes two steps of 32 samples a second, of which it waits for data for three tenths. Families in
    `without` are left out, and `extra` comes on top.
    """
    samples = [*_gpus(second, gpus), *_host(second), *_ranks(second, ranks), *_exporter(second)]
    left_out = set(without)
    return rendered([*(each for each in samples if each.family not in left_out), *extra])


def page(second: float = 1000.0, **changes: object) -> Page:
    """The same, read."""
    return model.wanted(text(second, **changes))  # type: ignore[arg-type]


def node(*seconds: float, **changes: object) -> model.Node:
    """What is known after pages of these seconds."""
    observer = model.Observer()
    for second in seconds or (1000.0, 1002.0):
        found = observer.observe(page(second, **changes), second)
    return found


def _gpus(second: float, gpus: int) -> Iterator[Sample]:
    for index in range(gpus):
        labels = (str(index), f"GPU-{index}")
        info = ("NVIDIA L40S", *[""] * 7, "exclusive")
        owner = ("", "", "", str(40 + index), "alice" if index % 2 else "bob")
        yield sample(model.GPU_INFO, (*labels, *info))
        yield sample(model.GPU_UP, labels)
        yield sample(model.LAST_READING, labels, NOW + second)
        yield sample(model.UTILIZATION, labels, 0.5)
        yield sample(model.BUSY, labels, 0.9 * second)
        yield sample(model.SM_ACTIVE, labels, 0.6 * second)
        yield sample(model.MEMORY_USED, labels, (20 + index) * GIB)
        yield sample(model.MEMORY_TOTAL, labels, 48 * GIB)
        yield sample(model.POWER, labels, 250.4 + index)
        yield sample(model.POWER_LIMIT, labels, 350)
        yield sample(model.TEMPERATURE, (*labels, "gpu"), 61)
        yield sample(model.TEMPERATURE, (*labels, "memory"), 90)
        yield sample(model.CLOCK, (*labels, "sm"), 2.49e9)
        yield sample(model.CLOCK, (*labels, "memory"), 9e9)
        yield sample(model.CLOCK_MAX, (*labels, "sm"), 2.52e9)
        yield sample(model.THROTTLED, (*labels, "hw_thermal"), 0.25 * second * (index % 2))
        yield sample(model.THROTTLED, (*labels, "power_cap"), 0.0)
        yield sample(model.PROCESSES, (*labels, "compute"), 1)
        yield sample(model.PROCESSES, (*labels, "graphics"), 1)
        yield sample(model.OWNER_INFO, (*labels, *owner))
        yield sample(model.OWNER_MEMORY, (*labels, *owner), 18 * GIB)


def _host(second: float) -> Iterator[Sample]:
    yield sample(model.CPUS, (), CPUS)
    for mode, share in MODE_SHARES.items():
        yield sample(model.CPU_SECONDS, (mode,), share * CPUS * second)
    yield sample(model.BUSIEST_CPU, (), 0.95 * second)
    yield sample(model.HOST_MEMORY_TOTAL, (), 256 * GIB)
    yield sample(model.HOST_MEMORY_AVAILABLE, (), 192 * GIB)
    yield sample(model.PRESSURE_WAITING, ("cpu",), 0.125 * second)
    yield sample(model.PRESSURE_WAITING, ("io",), 0.03125 * second)
    yield sample(model.DISK_BUSY, ("nvme0n1",), 0.5 * second)
    yield sample(model.DISK_READ, ("nvme0n1",), 1024.0 * second)
    yield sample(model.DISK_WRITTEN, ("nvme0n1",), 512.0 * second)
    yield sample(model.NETWORK_RECEIVED, ("eth0",), 2048.0 * second)
    yield sample(model.NETWORK_SENT, ("eth0",), 256.0 * second)


def _ranks(second: float, ranks: int) -> Iterator[Sample]:
    for rank in range(ranks):
        labels = ("resnet50", str(rank))
        steps = int(second / STEP_SECONDS)
        info = (str(rank), str(ranks), "pytorch", "node1", "", "", "40", "bob", "", "production")
        yield sample(model.RANK_INFO, (*labels, *info))
        yield sample(model.RANK_GPU, (*labels, str(rank), f"GPU-{rank}"))
        for state in ("starting", "running", "finished", "failed", "lost"):
            yield sample(model.RANK_STATE, (*labels, state), float(state == "running"))
        for activity in ("training", "evaluation"):
            yield sample(model.ACTIVITY, (*labels, activity), float(activity == "training"))
        yield sample(model.LAST_STEP, labels, NOW + second - 1)
        yield sample(model.LAST_PUSH, labels, NOW + second)
        yield sample(model.RESTARTS, labels, 0)
        counts = (0,) * len(STEP_BUCKETS) + (steps,)
        yield sample(model.STEP_SECONDS, labels, Distribution(counts, steps * STEP_SECONDS, steps))
        for phase, share in PHASE_SHARES.items():
            yield sample(model.PHASE_SECONDS, (*labels, phase), share * second)
        yield sample(model.SAMPLES, labels, 32.0 * steps)
        yield sample(model.STEP, labels, float(steps))
        yield sample(model.STEPS_PLANNED, labels, 10_000.0)
        yield sample(model.LOSS, labels, 0.25)


def _exporter(second: float) -> Iterator[Sample]:
    yield sample(model.BUILD_INFO, ("1.2.3", "3.11.2"))
    for source in ("cpu", "disk", "network", "nvidia", "pressure"):
        yield sample(model.SOURCE_UP, (source,))
        yield sample(model.SOURCE_SUCCESS, (source,), NOW + second)
        yield sample(model.SOURCE_FAILURES, (source,), 0)
