"""Pages of metrics of a small node at any time, rendered by the exporter's own code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stallscope.model.catalogue.metrics import STEP_BUCKETS, Family, family
from stallscope.model.clients.exposition import Page
from stallscope.model.view import observer
from stallscope.model.view.model import Node
from stallscope.node.sampling.exposition import Renderer
from stallscope.node.sampling.reading import Distribution, Sample

NOW = 1_700_000_000.0
GIB = 1 << 30
MODE_SHARES = {"user": 0.25, "system": 0.05, "iowait": 0.1, "idle": 0.6}
PHASE_SHARES = {"data_wait": 0.3, "forward": 0.2, "backward": 0.4, "other": 0.1}
STEP_SECONDS = 0.5
CPUS = 16


def sample(what: str | Family, labels: Iterable[str] = (), value: float | Distribution = 1.0) -> Sample:
    return Sample(family(what) if isinstance(what, str) else what, tuple(labels), value)


def rendered(samples: Iterable[Sample]) -> str:
    """Render a page as the exporter does."""
    renderer = Renderer()
    groups, _series, _dropped = renderer.lines(samples, 1_000_000)
    return renderer.render(groups, openmetrics=False).decode()


def samples(
    second: float = 1000.0,
    *,
    gpus: int = 2,
    ranks: int = 2,
    extra: Iterable[Sample] = (),
    without: Iterable[Family] = (),
) -> list[Sample]:
    """Return the samples of a node that has been running for `second` seconds.

    Each GPU is busy for nine tenths of the time, the odd ones are slowed by heat for a quarter of it, and each has a
    rank that makes two steps of 32 samples a second, of which it waits for data for three tenths. Families in
    `without` are left out, and `extra` comes on top.
    """
    found = [*_gpus(second, gpus), *_host(second), *_ranks(second, ranks), *_exporter(second)]
    left_out = set(without)
    return [*(each for each in found if each.family not in left_out), *extra]


def text(second: float = 1000.0, **changes: object) -> str:
    """Return the samples as the exporter's page."""
    return rendered(samples(second, **changes))  # type: ignore[arg-type]


def page(second: float = 1000.0, **changes: object) -> Page:
    """Return the samples as a parsed page."""
    return observer.wanted(text(second, **changes))


def node(*seconds: float, **changes: object) -> Node:
    """Return the node after pages of these seconds."""
    watching = observer.Observer()
    for second in seconds or (1000.0, 1002.0):
        found = watching.observe(page(second, **changes), second)
    return found


def _gpus(second: float, gpus: int) -> Iterator[Sample]:
    for index in range(gpus):
        labels = (str(index), f"GPU-{index}")
        info = ("NVIDIA L40S", *[""] * 7, "exclusive")
        owner = ("", "", "", str(40 + index), "alice" if index % 2 else "bob")
        yield sample(observer.GPU_INFO, (*labels, *info))
        yield sample(observer.GPU_UP, labels)
        yield sample(observer.LAST_READING, labels, NOW + second)
        yield sample(observer.UTILIZATION, labels, 0.5)
        yield sample(observer.BUSY, labels, 0.9 * second)
        yield sample(observer.SM_ACTIVE, labels, 0.6 * second)
        yield sample(observer.MEMORY_USED, labels, (20 + index) * GIB)
        yield sample(observer.MEMORY_TOTAL, labels, 48 * GIB)
        yield sample(observer.POWER, labels, 250.4 + index)
        yield sample(observer.POWER_LIMIT, labels, 350)
        yield sample(observer.TEMPERATURE, (*labels, "gpu"), 61)
        yield sample(observer.TEMPERATURE, (*labels, "memory"), 90)
        yield sample(observer.CLOCK, (*labels, "sm"), 2.49e9)
        yield sample(observer.CLOCK, (*labels, "memory"), 9e9)
        yield sample(observer.CLOCK_MAX, (*labels, "sm"), 2.52e9)
        yield sample(observer.THROTTLED, (*labels, "hw_thermal"), 0.25 * second * (index % 2))
        yield sample(observer.THROTTLED, (*labels, "power_cap"), 0.0)
        yield sample(observer.PROCESSES, (*labels, "compute"), 1)
        yield sample(observer.PROCESSES, (*labels, "graphics"), 1)
        yield sample(observer.OWNER_INFO, (*labels, *owner))
        yield sample(observer.OWNER_MEMORY, (*labels, *owner), 18 * GIB)


def _host(second: float) -> Iterator[Sample]:
    yield sample(observer.CPUS, (), CPUS)
    for mode, share in MODE_SHARES.items():
        yield sample(observer.CPU_SECONDS, (mode,), share * CPUS * second)
    yield sample(observer.BUSIEST_CPU, (), 0.95 * second)
    yield sample(observer.HOST_MEMORY_TOTAL, (), 256 * GIB)
    yield sample(observer.HOST_MEMORY_AVAILABLE, (), 192 * GIB)
    yield sample(observer.PRESSURE_WAITING, ("cpu",), 0.125 * second)
    yield sample(observer.PRESSURE_WAITING, ("io",), 0.03125 * second)
    yield sample(observer.DISK_BUSY, ("nvme0n1",), 0.5 * second)
    yield sample(observer.DISK_READ, ("nvme0n1",), 1024.0 * second)
    yield sample(observer.DISK_WRITTEN, ("nvme0n1",), 512.0 * second)
    yield sample(observer.NETWORK_RECEIVED, ("eth0",), 2048.0 * second)
    yield sample(observer.NETWORK_SENT, ("eth0",), 256.0 * second)


def _ranks(second: float, ranks: int) -> Iterator[Sample]:
    for rank in range(ranks):
        labels = ("resnet50", str(rank))
        steps = int(second / STEP_SECONDS)
        info = (str(rank), str(ranks), "pytorch", "node1", "", "", "40", "bob", "", "production")
        yield sample(observer.RANK_INFO, (*labels, *info))
        yield sample(observer.RANK_GPU, (*labels, str(rank), f"GPU-{rank}"))
        for state in ("starting", "running", "finished", "failed", "terminated", "lost"):
            yield sample(observer.RANK_STATE, (*labels, state), float(state == "running"))
        for activity in ("training", "evaluation"):
            yield sample(observer.ACTIVITY, (*labels, activity), float(activity == "training"))
        yield sample(observer.START, labels, NOW)
        yield sample(observer.LAST_STEP, labels, NOW + second - 1)
        yield sample(observer.LAST_PUSH, labels, NOW + second)
        yield sample(observer.RESTARTS, labels, 0)
        counts = (0,) * len(STEP_BUCKETS) + (steps,)
        yield sample(observer.STEP_SECONDS, labels, Distribution(counts, steps * STEP_SECONDS, steps))
        for phase, share in PHASE_SHARES.items():
            yield sample(observer.PHASE_SECONDS, (*labels, phase), share * second)
        yield sample(observer.SAMPLES, labels, 32.0 * steps)
        yield sample(observer.STEP, labels, float(steps))
        yield sample(observer.STEPS_PLANNED, labels, 10_000.0)
        yield sample(observer.LOSS, labels, 0.25)


def _exporter(second: float) -> Iterator[Sample]:
    yield sample(observer.BUILD_INFO, ("1.2.3", "3.11.2"))
    for source in ("cpu", "disk", "network", "nvidia", "pressure"):
        yield sample(observer.SOURCE_UP, (source,))
        yield sample(observer.SOURCE_SUCCESS, (source,), NOW + second)
        yield sample(observer.SOURCE_FAILURES, (source,), 0)
