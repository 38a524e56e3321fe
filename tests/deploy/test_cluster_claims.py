"""The claims of the test of a cluster: its driver with a real gRPC client, and the owners that are right and wrong."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from stallscope.node.owners.protobuf import fields
from tests.deploy import claims_driver
from tests.deploy.claims_driver import field
from tests.deploy.cluster_claims import differences

Series = list[tuple[str, dict[str, str], float]]
OWNED: Series = [
    ("stallscope_gpu_owner_info", {"pod": "stallscope-known", "uuid": "GPU-7"}, 1),
    ("stallscope_gpu_owner_info", {"pod": "another", "uuid": "GPU-1"}, 1),
    ("stallscope_gpu_owner_workload_info", {"pod": "stallscope-known", "uuid": "GPU-7", "queue": "research"}, 1),
    ("stallscope_exporter_source_up", {"source": "kubernetes"}, 1),
    ("stallscope_exporter_source_up", {"source": "rdma"}, 0),
]


def test_the_claimed_gpu_has_its_pod_as_the_owner() -> None:
    assert differences(OWNED, "GPU-7") == []


@pytest.mark.parametrize(
    ("series", "problem"),
    [
        (OWNED[1:], "claims GPU GPU-7, but the exporter reports none"),
        ([*OWNED, ("stallscope_gpu_owner_info", {"pod": "stallscope-known", "uuid": "GPU-0"}, 1)], "GPU-7, GPU-0"),
        ([*OWNED, ("stallscope_gpu_owner_info", {"pod": "stallscope-unknown", "uuid": "GPU-0"}, 1)], "is unknown, but"),
        (OWNED[:2] + OWNED[3:], "has the queue research, but the exporter reports none"),
        ([*OWNED[:3], ("stallscope_exporter_source_up", {"source": "kubernetes"}, 0)], "source kubernetes is not up"),
    ],
    ids=["no owner", "two GPUs", "an unknown device", "no queue", "the API fails"],
)
def test_a_wrong_owner_is_a_problem(series: Series, problem: str) -> None:
    found = differences(series, "GPU-7")
    assert len(found) == 1
    assert problem in found[0]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    made = Path(tempfile.mkdtemp(prefix="ss"))
    yield made
    shutil.rmtree(made)


def test_the_driver_registers_and_prepares_the_device_of_a_claim(folder: Path) -> None:
    ready = folder / "ready"
    threading.Thread(target=claims_driver.main, args=("d.example.org", "node-a", folder, ready), daemon=True).start()

    def call(socket: Path, method: str, request: bytes = b"") -> bytes:
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            answer: bytes = channel.unary_unary(method)(request, timeout=60, wait_for_ready=True)
        return answer

    registration = folder / "plugins_registry/d.example.org.sock"
    info = dict(fields(call(registration, "/pluginregistration.Registration/GetInfo")))
    endpoint = folder / "plugins/d.example.org/dra.sock"
    assert info == {1: b"DRAPlugin", 2: b"d.example.org", 3: str(endpoint).encode(), 4: b"v1.DRAPlugin"}
    assert call(registration, "/pluginregistration.Registration/NotifyRegistrationStatus", b"\x08\x01") == b""
    assert endpoint.exists()
    claim = field(1, field(1, "training") + field(2, "uid-1") + field(3, "gpu-a"))
    service = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    device = field(1, field(2, "node-a") + field(3, "gpu-a"))
    assert call(endpoint, f"{service}/NodePrepareResources", claim) == field(1, field(1, "uid-1") + field(2, device))
    assert call(endpoint, f"{service}/NodeUnprepareResources", claim) == field(1, field(1, "uid-1") + field(2, b""))
    with pytest.raises(grpc.RpcError) as refused:
        call(endpoint, "/v1.DRAResourceHealth/NodeWatchResources")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
