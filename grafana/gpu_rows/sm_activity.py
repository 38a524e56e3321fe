"""Profiling metrics: SMs, pipes, memory bandwidth."""

from __future__ import annotations

from grafana.builders.dashboard import Row
from grafana.builders.query import level
from grafana.gpu_rows.gpu_queries import NAME, line, share


def row() -> Row:
    """Return the row."""
    return Row(
        "SM activity, pipes, memory bandwidth",
        (
            line(
                "SM activity",
                "Share of SMs with work. Far below the utilisation: kernels are too small, so enlarge the batch or "
                "fuse kernels. Below the dashed line, the rules check for a batch that is too small.",
                share("stallscope_gpu_sm_active_seconds_total"),
                unit="percentunit",
                lowest=True,
                limits={"low": level("small_batch_sm")},
            ),
            line(
                "Tensor core activity",
                "Share of time in which the tensor cores were active. Below the dashed line while SMs are active: "
                "enable mixed precision or TF32, and use dimensions that are multiples of eight.",
                share("stallscope_gpu_pipe_active_seconds_total", ', pipe="tensor"'),
                unit="percentunit",
                lowest=True,
                limits={"unused": level("tensor_low")},
            ),
            line(
                "Memory bandwidth utilisation",
                "Share of the peak memory bandwidth. Above the dashed line with idle tensor cores, memory is the "
                "limit: fuse elementwise operations, use 16-bit activations.",
                share("stallscope_gpu_dram_active_seconds_total"),
                unit="percentunit",
                limits={"memory-bound": level("bandwidth_high")},
            ),
            line(
                "Encoder, decoder, JPEG and optical flow",
                "Utilisation of the encoder, decoder, JPEG and optical-flow engines. Image and video decoding on the "
                "GPU appears here.",
                share("stallscope_gpu_engine_busy_seconds_total"),
                unit="percentunit",
                name=f"{NAME} {{{{engine}}}}",
            ),
        ),
        collapsed=True,
    )
