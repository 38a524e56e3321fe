"""Profiling metrics: SMs, pipes, memory bandwidth."""

from __future__ import annotations

from grafana.builders.dashboard import Row
from grafana.builders.field import limit_line
from grafana.builders.panel import Panel, time_series
from grafana.builders.query import Query, threshold
from grafana.gpu_rows.gpu_queries import CURVE, NAME, share


def row() -> Row:
    """Return the row."""
    return Row(
        "SM activity, pipes, memory bandwidth",
        (_sm_active(), _occupancy(), _tensor(), _pipes(), _dram(), _engines()),
        collapsed=True,
    )


def _sm_active() -> Panel:
    return time_series(
        "SM activity",
        "Share of SMs with work. Far below the utilisation: kernels are too small, so enlarge the batch or fuse "
        "kernels. Below the dashed line, the rules check for a batch that is too small.",
        [
            Query(share("stallscope_gpu_sm_active_seconds_total"), NAME),
            threshold("small_batch_sm", "low"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("low"),
        links=CURVE,
    )


def _occupancy() -> Panel:
    return time_series(
        "SM occupancy",
        "Resident warps relative to the maximum of the SMs. If it is low while many SMs are active, the kernels' own "
        "limits are the reason (registers, shared memory), not the batch.",
        [Query(share("stallscope_gpu_sm_occupancy_seconds_total"), NAME)],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )


def _tensor() -> Panel:
    return time_series(
        "Tensor core activity",
        "Share of time in which the tensor cores were active. Below the dashed line while SMs are active: enable mixed "
        "precision or TF32, and use dimensions that are multiples of eight.",
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
        "FP64, FP32, FP16 and integer activity",
        "Share of time in which the floating-point and integer pipes were active: the arithmetic that the kernels "
        "really use.",
        [Query(share("stallscope_gpu_pipe_active_seconds_total", ', pipe!="tensor"'), f"{NAME} {{{{pipe}}}}")],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )


def _dram() -> Panel:
    return time_series(
        "Memory bandwidth utilisation",
        "Share of the peak memory bandwidth. Above the dashed line with idle tensor cores, memory is the limit: fuse "
        "elementwise operations, use 16-bit activations.",
        [
            Query(share("stallscope_gpu_dram_active_seconds_total"), NAME),
            threshold("bandwidth_high", "memory-bound"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("memory-bound"),
        links=CURVE,
    )


def _engines() -> Panel:
    return time_series(
        "Encoder, decoder, JPEG and optical flow",
        "Utilisation of the encoder, decoder, JPEG and optical-flow engines. Image and video decoding on the GPU "
        "appears here.",
        [Query(share("stallscope_gpu_engine_busy_seconds_total"), f"{NAME} {{{{engine}}}}")],
        unit="percentunit",
        maximum=1,
        links=CURVE,
    )
