"""CUDA_VISIBLE_DEVICES restricts the choice of GPUs."""

from __future__ import annotations

import pytest

from stallscope.node.drivers.device import Identity
from stallscope.tools.capacity.gpu import GpuNow
from stallscope.tools.capacity.visible import visible


def gpu(index: int, uuid: str, *, model: str = "H100", parent: str = "", instance: int | None = None) -> GpuNow:
    return GpuNow(Identity(index, uuid, model, "", "", "", "", "", "", parent, instance))


NODE = [
    gpu(0, "GPU-aa11"),
    gpu(1, "GPU-bb22"),
    gpu(1, "MIG-cc33", parent="GPU-bb22", instance=7),
    gpu(1, "MIG-cc44", parent="GPU-bb22", instance=9),
    gpu(2, "GPU-bb55"),
]
MIG = {"GPU-bb22", "MIG-cc33", "MIG-cc44"}


@pytest.mark.parametrize(
    ("setting", "left"),
    [
        ("", set()),
        ("-1", set()),
        ("NoDevFiles", set()),
        ("0,2", {"GPU-aa11", "GPU-bb55"}),
        (" 2 , 0 ", {"GPU-aa11", "GPU-bb55"}),
        ("0,9,2", {"GPU-aa11"}),
        ("1", MIG),
        ("GPU-bb22", MIG),
        ("GPU-aa", {"GPU-aa11"}),
        ("GPU-bb", set()),
        ("MIG-cc44", {"MIG-cc44"}),
        ("MIG-GPU-bb22/7/0", {"MIG-cc33"}),
        ("GPU-zz,0", set()),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(setting: str, left: set[str]) -> None:
    assert visible(setting, NODE) == frozenset(left)


def test_without_it_all_may_be_taken() -> None:
    assert visible(None, NODE) is None


def test_numbers_are_ambiguous_among_gpus_of_several_models() -> None:
    mixed = [*NODE, gpu(3, "GPU-dd66", model="L40S")]
    with pytest.raises(ValueError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible("0", mixed)
    assert visible("3", mixed, "PCI_BUS_ID") == frozenset({"GPU-dd66"})
    assert visible("GPU-dd66", mixed) == frozenset({"GPU-dd66"})
