"""GPUs, processes and occupancies for tests of owners."""

from __future__ import annotations

from collections.abc import Mapping

from stallscope.node.drivers.device import GpuProcess, Identity
from stallscope.node.drivers.occupancy import Occupancy
from stallscope.node.owners.processes import Process

GIB = 2**30
UUIDS = ("GPU-7e1c3a52-0f4b-4d6e-9a3c-51d2b8e0f001", "GPU-7e1c3a52-0f4b-4d6e-9a3c-51d2b8e0f002")
MIGS = ("MIG-0a6b1c9e-3d1f-5b7a-8c2e-4f5061728394", "MIG-1b7c2d0f-4e20-5c8b-9d3f-506172839405")
PCI = ("00000000:07:00.0", "00000000:0F:00.0")


def gpu(index: int = 0) -> Identity:
    """Return a whole GPU, as NVML reports it."""
    return Identity(index, UUIDS[index], "NVIDIA A100-SXM4-80GB", "", PCI[index], "", "ampere", "8.0")


def mig(number: int = 0, index: int = 0, *, profile: str = "1g.10gb", gpu_instance: int | None = None) -> Identity:
    """An instance cut from the GPU."""
    return Identity(
        index,
        MIGS[number],
        "NVIDIA A100",
        "",
        PCI[index],
        "",
        "ampere",
        "8.0",
        mig=profile,
        parent_uuid=UUIDS[index],
        gpu_instance=gpu_instance,
    )


def on(
    identity: Identity,
    *processes: tuple[int, int | None],
    used: int | None = None,
    busy: Mapping[int, float] | None = None,
) -> Occupancy:
    """An occupancy with these processes, by number and memory."""
    return Occupancy(identity, used, tuple(GpuProcess(*each) for each in processes), busy or {})


def process(
    user: str = "root",
    *,
    container: str = "",
    pod_uid: str = "",
    slurm_job: str = "",
    host_name: str = "",
    pod_name: str = "",
    pod_namespace: str = "",
    outside: bool = False,
) -> Process:
    """A process that can be seen."""
    return Process(1, user, container, pod_uid, slurm_job, host_name, pod_name, pod_namespace, outside)
