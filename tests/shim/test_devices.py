"""The GPU of a rank, from the kernel driver's files and the variables of launchers and orchestrators."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from stallscope.training.shim.devices import gpus

NODE = Path(__file__).parents[1] / "recorded_trees" / "kubernetes_node"
A = "GPU-7e1c3a52-0f4b-4d6e-9a3c-51d2b8e0f001"
B = "GPU-7e1c3a52-0f4b-4d6e-9a3c-51d2b8e0f002"
MIG = "MIG-5a1c3a52-0f4b-4d6e-9a3c-51d2b8e0f009"
FIRST, SECOND = {"gpu": "0", "uuid": A}, {"gpu": "1", "uuid": B}

AddGpu = Callable[..., None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine without any GPU."""
    (tmp_path / "dev").mkdir()
    return tmp_path


@pytest.fixture
def add_gpu(root: Path) -> AddGpu:
    """Adds an NVIDIA GPU, by default one that may be used."""

    def add(address: str, uuid: str, minor: int, model: str = "NVIDIA A100", *, usable: bool = True) -> None:
        folder = root / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t {model}\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
        if usable:  # what may not be opened might as well not be there: root is refused by the device cgroup alone
            (root / f"dev/nvidia{minor}").touch()

    return add


@pytest.fixture
def two(add_gpu: AddGpu) -> None:
    """Two alike; device files are numbered the other way round than addresses."""
    add_gpu("0000:07:00.0", A, 1)
    add_gpu("0000:0f:00.0", B, 0)


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("visible", "local_rank", "expected"),
    [
        (None, 0, [FIRST]),
        (None, 1, [SECOND]),
        (None, 2, []),
        (None, None, []),
        ("1", 0, [SECOND]),
        ("1,0", 0, [SECOND]),
        ("1,0", 1, [FIRST]),
        ("1,0", None, []),
        ("0,-1,1", 1, [FIRST]),  # CUDA stops at the first invalid entry
        ("7", 0, []),
        ("", 0, []),
        ("NoDevFiles", 0, []),
        (B, None, [SECOND]),
        (f"{B},{A}", 1, [FIRST]),
        ("GPU-7e1c3a52-0f4b-4d6e-9a3c-51d2b8e0f002", 0, [SECOND]),
        ("GPU-7e1c", 0, []),  # both begin so
        (MIG, None, [{"gpu": "", "uuid": MIG}]),
        ("MIG-GPU-7e1c3a52-0f4b-4d6e-9a3c-51d2b8e0f001/1/0", 0, [{"gpu": "", "uuid": f"MIG-{A}/1/0"}]),
    ],
)
def test_a_rank_s_gpu_is_known_by_uuid_before_any_framework_is_loaded(
    visible: str | None, local_rank: int | None, expected: list[dict[str, str]], root: Path
) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpus(environment, local_rank, str(root)) == expected


def test_a_uuid_cut_short_is_the_only_one_that_begins_so(root: Path, add_gpu: AddGpu) -> None:
    add_gpu("0000:07:00.0", A, 0)
    assert gpus({"CUDA_VISIBLE_DEVICES": "GPU-7e"}, None, str(root)) == [FIRST]
    assert gpus({"CUDA_VISIBLE_DEVICES": "GPU-8"}, None, str(root)) == []


def test_different_gpus_are_numbered_by_address_only_where_cuda_is_set_to(root: Path, add_gpu: AddGpu) -> None:
    add_gpu("0000:01:00.0", A, 0, "NVIDIA GeForce GTX 1080")
    add_gpu("0000:02:00.0", B, 1, "NVIDIA GeForce RTX 4090")
    assert gpus({"CUDA_VISIBLE_DEVICES": "0"}, 0, str(root)) == []  # CUDA's first is the fastest, whichever that is
    by_address = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert gpus({"CUDA_VISIBLE_DEVICES": "0", **by_address}, 0, str(root)) == [FIRST]
    assert gpus(by_address, 1, str(root)) == [SECOND]


def test_gpus_that_the_cgroup_keeps_away_are_not_counted_by_cuda_but_by_the_driver(root: Path, add_gpu: AddGpu) -> None:
    add_gpu("0000:01:00.0", A, 0, usable=False)
    add_gpu("0000:02:00.0", B, 1)
    assert gpus({"CUDA_VISIBLE_DEVICES": "0"}, 0, str(root)) == [SECOND]  # as Slurm gives a job the second GPU


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open any file")
def test_a_device_file_without_permission_is_not_counted(root: Path, add_gpu: AddGpu) -> None:
    add_gpu("0000:01:00.0", A, 0)
    (root / "dev/nvidia0").chmod(0)
    assert gpus({}, 0, str(root)) == []


def test_a_gpu_never_used_is_known_by_its_place_alone(root: Path, add_gpu: AddGpu) -> None:
    add_gpu("0000:01:00.0", "GPU-????????-????-????-????-????????????", 0)
    assert gpus({}, 0, str(root)) == [{"gpu": "0", "uuid": ""}]


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("environment", "local_rank", "expected"),
    [
        # A container counts what it was given from 0: such a number names no GPU outside.
        ({"NVIDIA_VISIBLE_DEVICES": f"{A},{B}"}, 1, [{"gpu": "", "uuid": B}]),
        ({"NVIDIA_VISIBLE_DEVICES": f"{B},{A}", "CUDA_VISIBLE_DEVICES": "0"}, 1, [{"gpu": "", "uuid": A}]),
        ({"NVIDIA_VISIBLE_DEVICES": B}, None, [{"gpu": "", "uuid": B}]),
        ({"NVIDIA_VISIBLE_DEVICES": MIG}, None, [{"gpu": "", "uuid": MIG}]),
        ({"NVIDIA_VISIBLE_DEVICES": "0:1"}, 0, []),  # an instance by number
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 1, [SECOND]),
        ({"NVIDIA_VISIBLE_DEVICES": "void", "KUBERNETES_SERVICE_HOST": "x"}, 1, [{"gpu": "", "uuid": B}]),
    ],
)
def test_in_a_container_only_uuids_name_a_gpu(
    environment: dict[str, str], local_rank: int | None, expected: list[dict[str, str]], root: Path
) -> None:
    assert gpus(environment, local_rank, str(root)) == expected


@pytest.mark.parametrize(
    ("environment", "local_rank", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3"}, 0, [{"gpu": "3", "uuid": ""}]),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, 1, [{"gpu": "5", "uuid": ""}]),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, 2, []),
        ({"CUDA_VISIBLE_DEVICES": A}, 0, [{"gpu": "", "uuid": A}]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-7e1c"}, 0, []),
        ({}, 1, [{"gpu": "1", "uuid": ""}]),
        ({}, 2, []),
        ({"NVIDIA_VISIBLE_DEVICES": "3,2"}, 0, [{"gpu": "2", "uuid": ""}]),
        ({"NVIDIA_VISIBLE_DEVICES": "3,2"}, 2, []),
        ({"NVIDIA_VISIBLE_DEVICES": A, "CUDA_VISIBLE_DEVICES": "0"}, 0, [{"gpu": "", "uuid": A}]),
        ({"NVIDIA_VISIBLE_DEVICES": f"{A},{B}", "CUDA_VISIBLE_DEVICES": "0"}, 0, []),
        ({"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "0"}, 0, []),
        ({"KUBERNETES_SERVICE_HOST": "x", "CUDA_VISIBLE_DEVICES": "0"}, 0, []),
    ],
)
def test_variables_are_the_only_evidence_without_the_kernel_driver(
    environment: dict[str, str], local_rank: int | None, expected: list[dict[str, str]], root: Path
) -> None:
    (root / "dev/nvidia1").touch()
    assert gpus(environment, local_rank, str(root)) == expected


def test_a_container_is_known_by_the_file_that_its_runtime_leaves(root: Path) -> None:
    (root / ".dockerenv").touch()
    assert gpus({"CUDA_VISIBLE_DEVICES": "0"}, 0, str(root)) == []


def test_without_device_files_nothing_is_claimed() -> None:
    assert gpus({"CUDA_VISIBLE_DEVICES": "0"}, 0, str(NODE)) == []  # a tree of files, without devices
    assert gpus({"CUDA_VISIBLE_DEVICES": B}, 0, str(NODE)) == [SECOND]


@pytest.mark.parametrize(
    ("environment", "local_rank", "expected"),
    [
        ({}, 2, [{"gpu": "2", "uuid": ""}]),
        ({}, None, []),
        ({"HIP_VISIBLE_DEVICES": "4,5"}, 1, [{"gpu": "5", "uuid": ""}]),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, 1, [{"gpu": "5", "uuid": ""}]),
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, 1, [{"gpu": "5", "uuid": ""}]),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, 0, [{"gpu": "5", "uuid": ""}]),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "2"}, 0, []),
        ({"ROCR_VISIBLE_DEVICES": "GPU-3F9C1A2B00112233"}, 0, [{"gpu": "", "uuid": "GPU-3f9c1a2b00112233"}]),
        ({"ROCR_VISIBLE_DEVICES": "4", "KUBERNETES_SERVICE_HOST": "x"}, 0, []),
    ],
)
def test_amd_s_runtime_counts_within_what_it_was_given(
    environment: dict[str, str], local_rank: int | None, expected: list[dict[str, str]], root: Path
) -> None:
    (root / "dev/kfd").touch()
    assert gpus(environment, local_rank, str(root)) == expected


def torch_at(monkeypatch: pytest.MonkeyPatch, position: int, uuid: str | None) -> None:
    properties = SimpleNamespace() if uuid is None else SimpleNamespace(uuid=uuid)
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: position,
        get_device_properties=lambda _: properties,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


@pytest.mark.usefixtures("two")
def test_a_framework_that_uses_a_gpu_knows_its_uuid(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    torch_at(monkeypatch, 1, B.removeprefix("GPU-"))
    assert gpus({}, 0, str(root)) == [SECOND]
    assert gpus({"CUDA_VISIBLE_DEVICES": f"0,{MIG}"}, 0, str(root)) == [{"gpu": "", "uuid": MIG}]
    torch_at(monkeypatch, 0, "01234567-89ab-cdef-0123-456789abcdef")
    assert gpus({}, 0, str(root)) == [{"gpu": "", "uuid": "GPU-01234567-89ab-cdef-0123-456789abcdef"}]


@pytest.mark.usefixtures("two")
def test_an_older_framework_knows_the_place_at_least(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    torch_at(monkeypatch, 1, None)
    assert gpus({}, 0, str(root)) == [SECOND]


def test_the_frameworks_id_of_an_amd_gpu_is_the_kernels(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    (root / "dev/kfd").touch()
    torch_at(monkeypatch, 0, "33663963-3161-3262-3030-313132323333")
    assert gpus({}, 0, str(root)) == [{"gpu": "", "uuid": "GPU-3f9c1a2b00112233"}]


def test_a_framework_that_uses_no_gpu_yet_is_left_alone(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: False, current_device=lambda: pytest.fail("queried"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert gpus({}, None, str(root)) == []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())  # while it is being imported
    assert gpus({}, None, str(root)) == []
