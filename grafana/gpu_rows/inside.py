"""What happens inside: multiprocessors, pipes, bandwidth."""

from __future__ import annotations

from grafana.builders.dashboard import Row
from grafana.builders.field import limit_line
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query, threshold
from grafana.gpu_rows.asking import CURVE, NAME, share


def row() -> Row:
    """Return the row."""
    return Row(
        "Inside: multiprocessors, pipes, bandwidth",
        (_sm_active(), _occupancy(), _tensor(), _pipes(), _dram(), _engines()),
        collapsed=True,
    )


def _sm_active() -> Panel:
    return time_series(
        "Multiprocessors at work",
        "Share of multiprocessors with work. Far under the utilisation: kernels are too small; enlarge the batch or "
        "fuse kernels. Under the dashed line, the rules look for a batch that is too small.",
        [
            Query(share("stallscope_gpu_sm_active_seconds_total"), NAME),
            threshold("small_batch_sm", "too few"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("too few"),
        links=CURVE,
    )


def _occupancy() -> Panel:
    return time_series(
        "Occupancy",
        "Resident warps over the most that the multiprocessors can hold. Low with many multiprocessors at work is a "
        "matter of the kernels' own limits (registers, shared memory), not of the batch.",
        [Query(share("stallscope_gpu_sm_occupancy_seconds_total"), NAME)],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )


def _tensor() -> Panel:
    return time_series(
        "Tensor cores",
        "Share of time in which they issued work. Under the dashed line while multiprocessors work: enable mixed "
        "precision or TF32, and dimensions that are multiples of eight.",
        [
            Query(share("stallscope_gpu_pipe_active_seconds_total", ', pipe="tensor"'), NAME),
            threshold("tensor_low", "unused"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("unused"),
        links=CURVE,
    )


def _pipes() -> Panel:
    return time_series(
        "Other pipes",
        "Share of time in which the floating-point and integer pipes issued work: which arithmetic the kernels really "
        "use.",
        [Query(share("stallscope_gpu_pipe_active_seconds_total", ', pipe!="tensor"'), f"{NAME} {{{{pipe}}}}")],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )


def _dram() -> Panel:
    return time_series(
        "Memory bandwidth",
        "Share of the peak bandwidth of device memory. Over the dashed line with idle tensor cores, memory is the "
        "limit: fuse elementwise operations, use 16-bit activations.",
        [
            Query(share("stallscope_gpu_dram_active_seconds_total"), NAME),
            threshold("bandwidth_high", "bound by memory"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("bound by memory"),
        links=CURVE,
    )


def _engines() -> Panel:
    return time_series(
        "Engines",
        "Share of time in which encoder, decoder, JPEG and optical-flow engines worked. Decoding of images and video "
        "on the GPU shows here.",
        [Query(share("stallscope_gpu_engine_busy_seconds_total"), f"{NAME} {{{{engine}}}}")],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )
