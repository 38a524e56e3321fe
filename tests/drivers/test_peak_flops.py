from __future__ import annotations

import re

import pytest

from stallscope.node.drivers.peak_flops import MODELS, TABLE_DATE, peak_flops


@pytest.mark.parametrize(
    ("model", "bf16_teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA GH200 480GB", 989.5),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("NVIDIA RTX A6000", 154.8),
        ("NVIDIA RTX 6000 Ada Generation", 364.2),
        ("NVIDIA B200", 2250),
        ("AMD Instinct MI210", 181),
        ("AMD Instinct MI300X", 1307.4),
        ("AMD Instinct MI300X OAM", 1307.4),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", 181.05),
        ("AMD Instinct MI250X OAM", 191.5),
    ],
)
def test_a_model_as_its_driver_names_it_has_its_dense_peak(model: str, bf16_teraflops: float) -> None:
    assert peak_flops(model)["bf16"] == pytest.approx(bf16_teraflops * 1e12)


def test_consumer_cards_stand_with_the_rate_of_32_bit_sums() -> None:
    peaks = peak_flops("NVIDIA GeForce RTX 4090")
    assert peaks["fp16"] == pytest.approx(165.2e12)
    assert peaks["fp8"] == pytest.approx(330.3e12)


@pytest.mark.parametrize("model", ["Tesla V100-SXM2-16GB", "Tesla T4", "NVIDIA GeForce RTX 2080 Ti"])
def test_a_gpu_from_before_bf16_has_no_peak_for_it(model: str) -> None:
    assert "fp16" in peak_flops(model)
    assert "bf16" not in peak_flops(model)
    assert "fp8" not in peak_flops(model)


def test_a_simulated_gpu_counts_as_its_model() -> None:
    assert peak_flops("Simulated NVIDIA H100 80GB HBM3") == peak_flops("NVIDIA H100 80GB HBM3") != {}


def test_case_and_spacing_do_not_matter() -> None:
    assert peak_flops(" nvidia  geforce rtx 4090 ") == peak_flops("NVIDIA GeForce RTX 4090") != {}


@pytest.mark.parametrize(
    "model",
    [
        "",
        "NVIDIA",
        "NVIDIA H1000",
        "NVIDIA H100",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A100X",
        "NVIDIA A10G",
        "NVIDIA A1000",
        "NVIDIA L400",
        "NVIDIA L4-6Q",
        "GRID A100D-80C",
        "GRID T4-16Q",
        "NVIDIA A10-24Q",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 2080 Ti with Max-Q Design",
        "NVIDIA GeForce RTX 3080",
        "AMD Instinct MI300",
        "AMD Instinct MI300X VF",
        "AMD Instinct MI300X OAM VF",
        "AMD Instinct MI250X / MI250",
        "AMD GPU 0x744c",
    ],
)
def test_a_look_alike_has_none(model: str) -> None:
    assert peak_flops(model) == {}


def test_every_row_is_dated_has_a_source_and_lower_precision_is_never_slower() -> None:
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", TABLE_DATE)
    order = ("fp32", "tf32", "fp16", "fp8", "fp4")
    for row in MODELS:
        assert row.source
        figures = [row.teraflops[precision] for precision in order if precision in row.teraflops]
        assert figures == sorted(figures), row.name
        assert set(row.teraflops) <= {"fp64", "bf16", *order}


def test_no_name_matches_two_rows() -> None:
    names = [name for row in MODELS for name in re.findall(r"[A-Z0-9 -]{2,}", row.name.replace("[68]", "6"))]
    for name in names:
        assert sum(bool(re.fullmatch(row.name, name)) for row in MODELS) <= 1, name
