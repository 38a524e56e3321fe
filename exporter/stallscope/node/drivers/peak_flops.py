"""Peak arithmetic by GPU model: a dated table, because no driver reports it.

A figure is the maker's own for one device as the driver shows it, dense (no structured sparsity), at boost clock, on
tensor or matrix cores where the GPU has them for that precision. Consumer cards that add up 32-bit sums at half speed
are listed with that half, since training sums in 32 bits. Unverified models, and names that stand for
several boards, are left out: absent beats wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

TABLE_DATE = "2026-11-21"
"""When the table was last revised."""


class Model(NamedTuple):
    """One row: the board, and what it reaches."""

    name: str
    """Regular expression for the whole name, as `_normalise` leaves it."""
    source: str
    """Title of the maker's document."""
    teraflops: Mapping[str, float]
    """By precision."""


def _row(
    name: str, source: str, *, fp32: float, tf32: float | None = None, half: float, bf16: bool = True, **others: float
) -> Model:
    """A row; `half` is the figure of fp16, and of bf16 where the GPU has that."""
    figures = {**others, "fp32": fp32, "fp16": half}
    if tf32 is not None:
        figures["tf32"] = tf32
    if bf16:
        figures["bf16"] = half
    return Model(name, source, MappingProxyType(figures))


_VOLTA = "NVIDIA V100 Tensor Core GPU datasheet"
_TURING = "NVIDIA Turing GPU Architecture whitepaper"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper"
_ADA = "NVIDIA Ada GPU Architecture whitepaper"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet"
_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture whitepaper"
_CDNA2 = "AMD Instinct MI200 series datasheet"
_CDNA3 = "AMD CDNA 3 Architecture whitepaper"
_CDNA4 = "AMD Instinct MI350 series datasheet"

MODELS = (
    _row(r"V100-SXM2-(16|32)GB", _VOLTA, fp64=7.8, fp32=15.7, half=125, bf16=False),
    _row(r"V100-PCIE-(16|32)GB", _VOLTA, fp64=7, fp32=14, half=112, bf16=False),
    _row(r"V100S-PCIE-32GB", _VOLTA, fp64=8.2, fp32=16.4, half=130, bf16=False),
    _row(r"T4", "NVIDIA T4 Tensor Core GPU datasheet", fp32=8.1, half=65, bf16=False),
    _row(r"GEFORCE RTX 2080 TI", _TURING, fp32=13.4, half=53.8, bf16=False),
    _row(r"TITAN RTX", _TURING, fp32=16.3, half=130.5, bf16=False),
    _row(r"QUADRO RTX [68]000", _TURING, fp32=16.3, half=130.5, bf16=False),
    _row(r"QUADRO RTX 5000", "NVIDIA Quadro RTX 5000 datasheet", fp32=11.2, half=89.2, bf16=False),
    # NVIDIA names the two forms of one board in two ways; others, such as A100-SXM-64GB, are other boards.
    _row(r"A100-(SXM4-(40|80)GB|PCIE-40GB)|A100 80GB PCIE", _A100, fp64=19.5, fp32=19.5, tf32=156, half=312),
    _row(r"A800-SXM4-80GB|A800 80GB PCIE", "NVIDIA A800 datasheet", fp32=19.5, tf32=156, half=312),
    _row(r"A10", "NVIDIA A10 Tensor Core GPU datasheet", fp32=31.2, tf32=62.5, half=125),
    _row(r"A30", "NVIDIA A30 Tensor Core GPU datasheet", fp64=10.3, fp32=10.3, tf32=82, half=165),
    _row(r"A40", "NVIDIA A40 datasheet", fp32=37.4, tf32=74.8, half=149.7),
    _row(r"RTX A6000", _GA102, fp32=38.7, tf32=77.4, half=154.8),
    _row(r"RTX A5000", "NVIDIA RTX A5000 datasheet", fp32=27.8, tf32=55.6, half=111.1),
    _row(r"RTX A4000", "NVIDIA RTX A4000 datasheet", fp32=19.2, half=76.7),
    _row(r"GEFORCE RTX 3090 TI", _ADA, fp32=40, tf32=40, half=80),
    _row(r"GEFORCE RTX 3090", _GA102, fp32=35.6, tf32=35.6, half=71),
    _row(r"GEFORCE RTX 3070", _GA102, fp32=20.3, tf32=20.3, half=40.6),
    _row(r"L4", "NVIDIA L4 Tensor Core GPU datasheet", fp32=30.3, tf32=60, half=121, fp8=242.5),
    _row(r"L40", "NVIDIA L40 datasheet", fp32=90.5, tf32=90.5, half=181, fp8=362),
    _row(r"L40S", "NVIDIA L40S datasheet", fp32=91.6, tf32=183, half=362, fp8=733),
    _row(r"RTX 6000 ADA GENERATION", "NVIDIA RTX 6000 Ada datasheet", fp32=91.1, tf32=182.1, half=364.2, fp8=728.5),
    _row(r"GEFORCE RTX 4090", _ADA, fp32=82.6, tf32=82.6, half=165.2, fp8=330.3),
    _row(r"GEFORCE RTX 4080", _ADA, fp32=48.7, tf32=48.7, half=97.5, fp8=194.9),
    _row(r"H100 80GB HBM3", _H100, fp64=67, fp32=67, tf32=494.5, half=989.5, fp8=1979),
    _row(r"H100 PCIE", _H100, fp64=51, fp32=51, tf32=378, half=756.5, fp8=1513),
    _row(r"H100 NVL", _H100, fp64=60, fp32=60, tf32=417.5, half=835.5, fp8=1670.5),
    _row(r"H800", "NVIDIA H800 datasheet", fp32=67, tf32=494.5, half=989.5, fp8=1979),
    _row(r"H20", "NVIDIA H20 datasheet", fp32=44, tf32=74, half=148, fp8=296),
    _row(r"H200", _H200, fp64=67, fp32=67, tf32=494.5, half=989.5, fp8=1979),
    _row(r"H200 NVL", _H200, fp64=60, fp32=60, tf32=417.5, half=835.5, fp8=1670.5),
    _row(
        r"GH200 (120GB|480GB|144G HBM3E)",
        "NVIDIA GH200 Grace Hopper Superchip datasheet",
        fp64=67,
        fp32=67,
        tf32=494.5,
        half=989.5,
        fp8=1979,
    ),
    # Editions of these two datasheets disagree about fp64 and fp32.
    Model(r"B200", "NVIDIA HGX B200 datasheet", {"tf32": 1125, "fp16": 2250, "bf16": 2250, "fp8": 4500, "fp4": 9000}),
    Model(
        r"GB200", "NVIDIA GB200 NVL72 datasheet", {"tf32": 1250, "fp16": 2500, "bf16": 2500, "fp8": 5000, "fp4": 10000}
    ),
    _row(r"GEFORCE RTX 5090", _BLACKWELL, fp32=104.8, tf32=104.8, half=209.5, fp8=419, fp4=1676),
    _row(r"GEFORCE RTX 5080", _BLACKWELL, fp32=56.3, tf32=56.3, half=112.6, fp8=225.1, fp4=900.4),
    # The bf16 rate of MI100 is half that of fp16.
    Model(r"MI100", "AMD Instinct MI100 datasheet", {"fp64": 11.5, "fp32": 46.1, "fp16": 184.6, "bf16": 92.3}),
    _row(r"MI210", _CDNA2, fp64=45.3, fp32=45.3, half=181),
    # The driver shows each half of these boards as a GPU of its own.
    _row(r"MI250", _CDNA2, fp64=45.25, fp32=45.25, half=181.05),
    _row(r"MI250X", _CDNA2, fp64=47.85, fp32=47.85, half=191.5),
    _row(r"MI300A", _CDNA3, fp64=122.6, fp32=122.6, tf32=490.3, half=980.6, fp8=1961.2),
    _row(r"MI300X", _CDNA3, fp64=163.4, fp32=163.4, tf32=653.7, half=1307.4, fp8=2614.9),
    _row(
        r"MI325X",
        "AMD Instinct MI325X datasheet",
        fp64=163.4,
        fp32=163.4,
        tf32=653.7,
        half=1307.4,
        fp8=2614.9,
    ),
    _row(r"MI350X", _CDNA4, fp64=72.1, fp32=144.2, half=2306.9, fp8=4613.7),
    _row(r"MI355X", _CDNA4, fp64=78.6, fp32=157.3, half=2516.6, fp8=5033.2),
)

_PREFIXES = re.compile(r"(SIMULATED )?((NVIDIA|TESLA|AMD|INSTINCT) )*")
# What follows a model's name on AMD's boards says how it is mounted, not how fast it is; a VF is a share of one.
_MOUNTED = re.compile(r"(MI\d{3}[AX]?) (\(MCM\) )?OAM(?!.*\bVF\b).*")


def peak_flops(model: str) -> Mapping[str, float]:
    """Dense peak in floating-point operations a second, by precision.

    Args:
        model: The name as the driver reports it, such as `NVIDIA H100 80GB HBM3`. It must match as a whole: laptop
            and power-limited variants, vGPU profiles and MIG instances have other peaks than their namesakes.

    Returns:
        Nothing where the model is not known.
    """
    name = _normalise(model)
    for row in MODELS:
        if re.fullmatch(row.name, name):
            return {precision: figure * 1e12 for precision, figure in row.teraflops.items()}
    return {}


def _normalise(model: str) -> str:
    name = _PREFIXES.sub("", " ".join(model.upper().split()), count=1)
    return _MOUNTED.sub(r"\1", name)
