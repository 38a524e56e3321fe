from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stallscope.node.owners.devices import Devices, handed_out_again
from tests.collectors.recorded import TREES, copy_of
from tests.owners.machines import MIGS, UUIDS, gpu, mig

WHOLE = (gpu(0), gpu(1))


def found(*names: str, root: Path = TREES / "slurm_node") -> str | None:
    return Devices(root, WHOLE).find(names)


@pytest.mark.parametrize(
    "name",
    [
        UUIDS[1],
        UUIDS[1].lower(),
        f"{UUIDS[1]}::0",
        f"{UUIDS[1]}::11",
        f"0f1e2d3c-claim-{UUIDS[1]}",
        "nvidia1",
        "nvidia1/vgpu3",
        "gpu-1",
        "5b3f8a0e-1234-4f5e-9abc-0123456789ab-gpu-1",
        "0000:0f:00.0",
        "00000000:0F:00.0",
    ],
)
def test_a_gpu_is_found_by_every_name_in_use(name: str) -> None:
    assert found(name) == UUIDS[1]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "GPU-00000000-0000-0000-0000-000000000000",
        f"{UUIDS[1]}x",
        "nvidia7",
        "nvidia1/gi1",
        "nvidiactl",
        "gpu-1-mig-1g.5gb-19-0",
        "gpu-1-129",
        "0001:0f:00.0",
        "card1",
        "::",
    ],
)
def test_an_unknown_device_name_is_not_guessed(name: str) -> None:
    assert found(name) is None


AMD = tuple(
    replace(gpu(index), uuid=f"GPU-amd{index}", pci_bus_id=address)
    for index, address in enumerate(("0000:05:00.0", "0000:26:00.0"))
)


@pytest.fixture
def partitioned(tmp_path: Path) -> Path:
    """A machine whose second AMD GPU has a second partition, with a render node of its own."""
    root = copy_of("amd_mi300x", tmp_path)
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    (nodes / "4").mkdir()
    whole = (nodes / "3/properties").read_text()
    partition = whole.replace("location_id 9728", f"location_id {9728 | 1 << 28}").replace("minor 136", "minor 137")
    assert partition != whole
    (nodes / "4/properties").write_text(partition)
    for number, node in {"1": "renderD137", "9": "renderD199"}.items():
        (root / f"sys/devices/platform/amdgpu_xcp_{number}/drm/{node}").mkdir(parents=True)
    return root


@pytest.mark.parametrize("name", ["amdgpu_xcp_1", "gpu-2-136", "gpu-3-137", "renderD137", "0000:26:00.0"])
def test_an_amd_gpu_is_found_by_its_partitions_and_render_nodes(partitioned: Path, name: str) -> None:
    assert Devices(partitioned, AMD).find([name]) == "GPU-amd1"


@pytest.mark.parametrize("name", ["amdgpu_xcp_2", "amdgpu_xcp_9", "gpu-3-138", "gpu-137", "amdgpu_xcp_1/..", "gpu-0-0"])
def test_a_partition_or_render_node_of_no_gpu_is_not_guessed(partitioned: Path, name: str) -> None:
    assert Devices(partitioned, AMD).find([name]) is None


def test_the_first_name_that_is_known_counts() -> None:
    assert found("channel-0", "gpu-0") == UUIDS[0]


def test_numbers_are_those_of_device_files_where_the_driver_lists_them() -> None:
    node = TREES / "kubernetes_node"
    assert found("nvidia0", root=node) == UUIDS[1]
    assert found("gpu-1", root=node) == UUIDS[0]
    assert found("gpu-2", root=node) is None


@pytest.mark.parametrize("name", [MIGS[0], f"{MIGS[0]}::1"])
def test_an_instance_is_found_by_its_own_uuid(name: str) -> None:
    assert Devices(TREES, (gpu(), mig(0), mig(1))).find([name]) == MIGS[0]


@pytest.mark.parametrize("name", ["nvidia0/gi7", "nvidia0/gi7/vgpu0", "nvidia0/gi7/vgpu11", f"MIG-{UUIDS[0]}/7/0"])
def test_an_instance_is_found_by_the_number_of_its_gpu_instance(name: str) -> None:
    assert Devices(TREES, (gpu(), mig(0, gpu_instance=1), mig(1, gpu_instance=7))).find([name]) == MIGS[1]


@pytest.mark.parametrize("name", ["nvidia0/gi7", f"MIG-{UUIDS[0]}/7/0"])
def test_compute_instances_that_share_a_gpu_instance_are_ambiguous_by_its_number(name: str) -> None:
    assert Devices(TREES, (gpu(), mig(0, gpu_instance=7), mig(1, gpu_instance=7))).find([name]) is None


@pytest.mark.parametrize("name", ["nvidia0/gi2", f"MIG-{UUIDS[0]}/2/0", f"MIG-{UUIDS[1]}/1/0", "nvidia1/gi1"])
def test_a_number_that_no_instance_has_is_nobodys(name: str) -> None:
    assert Devices(TREES, (gpu(), mig(0, gpu_instance=1))).find([name]) is None


@pytest.mark.parametrize("name", ["nvidia0/gi1", "nvidia0/gi1/vgpu0", "gpu-0-mig-19-0-1"])
def test_an_instance_without_a_number_is_found_only_where_it_is_the_only_one(name: str) -> None:
    assert Devices(TREES, (gpu(), mig(0))).find([name]) == MIGS[0]
    assert Devices(TREES, (gpu(), mig(0), mig(1))).find([name]) is None


@pytest.mark.parametrize("name", ["gpu-0-mig-3g40gb-9-4", "gpu-0-mig-3g.40gb-9-4", "claim-gpu-0-mig-3g40gb-9-4"])
def test_an_allocated_instance_is_found_by_its_profile_where_it_is_the_only_one(name: str) -> None:
    big = mig(1, profile="3g.40gb")
    assert Devices(TREES, (gpu(), mig(0), big)).find([name]) == MIGS[1]
    assert Devices(TREES, (gpu(), mig(0, profile="3g.40gb"), big)).find([name]) is None
    assert Devices(TREES, (gpu(), mig(0))).find([name]) is None


def test_a_profile_with_a_media_engine_is_another_profile() -> None:
    devices = Devices(TREES, (gpu(), mig(0), mig(1, profile="1g.10gb+me")))
    assert devices.find(["gpu-0-mig-1g10gb-19-0"]) == MIGS[0]
    assert devices.find(["gpu-0-mig-1g10gb-me-20-1"]) == MIGS[1]


def test_the_old_form_of_an_instance_is_found_where_the_driver_uses_it_too() -> None:
    old = f"MIG-{UUIDS[0]}/1/0"
    assert Devices(TREES, (gpu(), replace(mig(0), uuid=old))).find([old]) == old


@pytest.mark.parametrize("name", [f"{UUIDS[0]}::0", f"{MIGS[0]}::2", "nvidia0/vgpu0"])
def test_replicas_are_recognised_by_their_names(name: str) -> None:
    assert handed_out_again(name)


@pytest.mark.parametrize("name", [UUIDS[0], MIGS[0], f"MIG-{UUIDS[0]}/1/0", "nvidia0/gi1", "gpu-0"])
def test_what_is_handed_out_once_is_no_replica(name: str) -> None:
    assert not handed_out_again(name)
