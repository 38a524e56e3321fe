"""How long `stallscope report` takes, and how much memory, for runs as large and as long as they are.

`python -m tests.benchmarks.report 8x24 512x24` measures runs of 8 GPUs over 24 hours and so on, on a Prometheus that
holds nothing else: what the report reads of one run, one scrape and one evaluation in half a minute.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import floor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.benchmarks.cluster import GPUS_A_NODE, HOUR, Cluster, Floats
from tests.benchmarks.processes import finished
from tests.benchmarks.reading_back import INTERVAL, RUN, Size
from tests.benchmarks.remote_write import RemoteWriter
from tests.prometheus_server import prometheus
from tests.remote_write import Receiver, labels_of, samples_of, series_of, times_of

SIZES = (Size(8, 24), Size(512, 24))
_GOAL_SECONDS = {Size(8, 24): 10, Size(512, 168): 60}
_MOMENTS_A_WRITING = 60
"""Half an hour: a Prometheus refuses what is an hour older than its newest sample."""
_SCRAPED = frozenset(
    {
        *(f"stallscope_gpu_{name}_seconds_total" for name in ("busy", "below", "sm_active")),
        *(f"stallscope_gpu_memory_{name}_bytes" for name in ("used", "total")),
        *("stallscope_gpu_utilization_ratio", "stallscope_gpu_temperature_celsius", "stallscope_gpu_info"),
        *("stallscope_gpu_energy_joules_total", "stallscope_gpu_dips_total", "stallscope_gpu_up"),
        *("stallscope_training_rank_info", "stallscope_training_rank_gpu_info", "stallscope_training_state"),
        *("stallscope_training_step", "stallscope_training_step_seconds_count", "stallscope_training_step_seconds_sum"),
        *("stallscope_training_phase_occurrences_total", "stallscope_training_phase_max_seconds"),
        *("stallscope_training_slow_steps_total", "stallscope_training_slow_step_excess_seconds_total"),
        *("stallscope_training_start_timestamp_seconds", "stallscope_training_last_push_timestamp_seconds"),
        *("stallscope_host_disk_read_bytes_total", "stallscope_host_network_receive_bytes_total"),
    }
)
_CAUSES = {"input_disk_bound": 0.2, "checkpoint_stall": 0.05, "straggler_input": 0.03}
_PHASES = {"data_wait": 0.2, "forward": 0.25, "backward": 0.45, "optimizer": 0.05, "checkpoint": 0.05}
_EDGES = ("0.1", "0.2", "0.5", "1", "2", "5", "+Inf")
_OF_RUN = {
    "run:time_lost:ratio5m": 0.28,
    "run:step:seconds5m": 0.4,
    "run:samples:rate5m": 1000.0,
    "run:goodput:ratio1h": 0.8,
    "run:mfu:ratio5m": 0.3,
    "run:batch_size:sum": 512.0,
    "run:gpu_busy:ratio5m": 0.8,
}
_OF_RANK = {
    "rank:data_wait:ratio5m": 0.2,
    "rank:step:seconds5m": 0.4,
    "run_rank:straggler_score:ratio5m": 0.1,
    "run_rank:communication:ratio5m": 0.05,
}
_OF_GPU = {"gpu:up:max": 1.0, "gpu:busy:ratio5m": 0.8, "gpu:sm_active:ratio5m": 0.6, "gpu:sm_clock:ratio5m": 0.95}
_OF_HOST = {f"host:{name}:ratio": 0.3 for name in ("memory_used", "shared_memory_used")} | {
    f"host:{name}:ratio5m": 0.2 for name in ("cpu_busy", "cpu_pressure", "io_pressure", "memory_waiting")
}


class Report(NamedTuple):
    """Cost of one report."""

    size: Size
    seconds: float
    cpu: float
    """Seconds of the process that reported; the server's own are not among them."""
    megabytes: float
    """Most memory that it had, MiB."""
    kilobytes: float
    """Length of the page."""


class _Recorded(NamedTuple):
    labels: Mapping[str, str]
    value: float


def recorded(cluster: Cluster, gpus: int) -> Iterator[_Recorded]:
    """Series that rules record of the run, at any moment."""
    run = {"cluster": "east", "namespace": "research", "run": RUN}
    yield _Recorded({"__name__": "run:ranks:count", **run}, gpus)
    yield _Recorded({"__name__": "run:gpus:count", **run}, gpus)
    yield _Recorded({"__name__": "run:power:watts5m", **run}, 500.0 * gpus)
    yield from (_Recorded({"__name__": name, **run}, value) for name, value in _OF_RUN.items())
    yield _Recorded({"__name__": "run:verdict:ratio5m", **run, "cause": "input_disk_bound"}, 0.2)
    for cause, share in _CAUSES.items():
        yield _Recorded({"__name__": "run_cause:time_lost:ratio5m", **run, "cause": cause}, share)
    for phase, share in _PHASES.items():
        yield _Recorded({"__name__": "run_phase:time:rate5m", **run, "phase": phase}, share * gpus)
        yield _Recorded({"__name__": "run_phase:gpu_time:rate5m", **run, "phase": phase}, share * gpus)
    for number, edge in enumerate(_EDGES):
        yield _Recorded({"__name__": "run:step_seconds_bucket:rate5m", **run, "le": edge}, gpus * min(2.5, number))
    described = [column for column in cluster.columns if column.name == "stallscope_training_rank_gpu_info"]
    for rank in (dict(labels) for column in described for labels in column.labels):
        node = {name: rank[name] for name in ("cluster", "job", "instance")}
        gpu = {**node, "gpu": rank["gpu"], "uuid": rank["uuid"]}
        place = {**node, **run, "rank": rank["rank"]}
        yield _Recorded({"__name__": "rank_gpu:claim:info", **place, **gpu}, 1.0)
        yield _Recorded({"__name__": "rank:verdict:ratio5m", **place, "cause": "input_disk_bound"}, 0.2)
        yield _Recorded({"__name__": "rank_cause:time_lost:ratio5m", **place, "cause": "input_disk_bound"}, 0.2)
        yield from (_Recorded({"__name__": name, **place}, value) for name, value in _OF_RANK.items())
        yield from (_Recorded({"__name__": name, **gpu}, value) for name, value in _OF_GPU.items())
        yield _Recorded({"__name__": "gpu:verdict:ratio5m", **gpu, "cause": "input_disk_bound"}, 0.2)
        for cause, share in _CAUSES.items():
            energy = {"__name__": "gpu_cause:energy_lost:joules5m", **gpu, **run, "cause": cause}
            yield _Recorded(energy, 150_000.0 * share)
        if int(rank["rank"]) % GPUS_A_NODE == 0:
            yield from (_Recorded({"__name__": name, **node}, value) for name, value in _OF_HOST.items())


@contextmanager
def filled(size: Size) -> Iterator[str]:
    """A Prometheus with everything that the report reads of one run; its address."""
    end = floor(time.time())
    cluster = Cluster(size.gpus, _SCRAPED, end, ranks_a_run=size.gpus)
    everything = list(recorded(cluster, size.gpus))
    labels = [labels_of(each.labels) for each in everything]
    values = np.array([each.value for each in everything])
    moments = np.arange(end - size.hours * HOUR, end, INTERVAL, dtype=np.float64)
    with prometheus() as server:
        writer, receiver = RemoteWriter(cluster, server.port), Receiver(server.port)
        for begin in range(0, len(moments), _MOMENTS_A_WRITING):
            here = moments[begin : begin + _MOMENTS_A_WRITING]
            writer.send(here)
            _write(receiver, labels, values, here)
        writer.close()
        receiver.close()
        yield server.address


def _write(receiver: Receiver, labels: Sequence[bytes], values: Floats, moments: Floats) -> None:
    times = times_of(moments)
    wave = 1 + 0.05 * np.sin(moments / 600)
    for begin in range(0, len(labels), 2000):
        pieces: list[bytes] = []
        for name, value in zip(labels[begin : begin + 2000], values[begin : begin + 2000], strict=True):
            pieces += series_of(name, samples_of((value * wave).view(np.uint64), times))
        receiver.post(b"".join(pieces))


def measure(size: Size) -> Report:
    """Write one report, by a process of its own."""
    with filled(size) as url, tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        command = [sys.executable, "-m", "stallscope", "report", "--run", RUN, "--prometheus.url", url]
        took = finished([*command, "--out", str(page)])
        return Report(size, took.seconds, took.cpu, took.megabytes, page.stat().st_size / 1000)


def table(sizes: Sequence[Size] = SIZES) -> str:
    """Measure, and return the table as Markdown."""
    conditions = (
        "`stallscope report` on a Prometheus on the same machine, which share its CPUs; one scrape and one "
        "evaluation of the rules in 30 s."
    )
    lines = [
        conditions,
        "",
        "| GPUs | hours | s | goal | CPU s, of the command | MiB | page, kB |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for size in sizes:
        each, goal = measure(size), _GOAL_SECONDS.get(size)
        lines.append(
            f"| {size.gpus} | {size.hours:g} | {each.seconds:.1f} | {goal or ''} | {each.cpu:.1f} "
            f"| {each.megabytes:.0f} | {each.kilobytes:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table([Size.parse(each) for each in sys.argv[1:]] or SIZES))
