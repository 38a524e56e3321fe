"""The client of the Kubernetes API, with answers written from documentation (kubernetes_answers/README.md)."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stallscope.node.owners.cluster import KubernetesApiFailed, Workload
from stallscope.node.owners.kubernetes_api import KubernetesApi, devices_of, workload_of
from stallscope.node.owners.pod_resources import ClaimedDevice
from tests.free_ports import free_port
from tests.owners.api_server import ApiServer, answer, api_server_at
from tests.owners.machines import MIGS, UUIDS
from tests.web.certificates import Authority, needs_openssl

pytestmark = needs_openssl
PATIENCE = 60.0
SLICES = "/apis/resource.k8s.io/{}/resourceslices"
POD = "/api/v1/namespaces/research/pods/resnet-0"
PODS: dict[str, Any] = answer("pods.json")
OWNERS: dict[str, Any] = answer("owners.json")
CLUSTER = "/apis/ray.io/v1/namespaces/research/rayclusters/tune-x1"
JOB_SET = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/research/jobsets/llama"
NAMES = {
    ClaimedDevice("gpu.nvidia.com", "gpu-node-3", "gpu-8"): (UUIDS[0],),
    ClaimedDevice("gpu.nvidia.com", "gpu-node-3", "gpu-9"): ("0000:0f:00.0",),
    ClaimedDevice("gpu.nvidia.com", "gpu-node-3", "gpu-8-mig-1g10gb-19-0"): (MIGS[0],),
    ClaimedDevice("gpu.nvidia.com", "gpu-node-3", "gpu-8-mig-1g10gb-19-1"): (),
    ClaimedDevice("compute-domain.nvidia.com", "gpu-node-3", "channel-0"): (),
}
"""The newest generation alone; an instance without a UUID is not its whole GPU."""
WORKLOADS = {
    "Kueue and Job": Workload("team-a", "Job", "resnet"),
    "a plain pod of Kueue": Workload("team-a"),
    "PyTorchJob": Workload("", "PyTorchJob", "bert"),
    "a pod of a RayCluster": Workload("", "RayCluster", "tune-x1"),
    "a pod of a JobSet": Workload("", "JobSet", "llama"),
    "Volcano": Workload("research", "Job", "gpt"),
    "Volcano's scheduler with another operator": Workload("research", "PyTorchJob", "bert"),
    "Deployment": Workload("", "Deployment", "serving"),
    "ReplicaSet without a template's hash": Workload("", "ReplicaSet", "serving-6d5f7c9b8"),
    "a plain pod": Workload(),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server_at(tmp_path_factory.mktemp("api")) as server:
        yield server


@pytest.fixture
def server(shared: ApiServer) -> ApiServer:
    shared.answers.clear()
    shared.requests.clear()
    return shared


@pytest.fixture
def client(server: ApiServer) -> KubernetesApi:
    return KubernetesApi(server.account.parents[4], server.address, "gpu-node-3")


@pytest.mark.parametrize("name", PODS)
def test_the_queue_and_the_owner_in_a_pods_metadata_are_found(name: str) -> None:
    assert PODS.keys() == WORKLOADS.keys()
    assert workload_of(PODS[name]["metadata"]) == WORKLOADS[name]


def test_names_are_limited_to_the_length_of_names_in_kubernetes() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "q" * 9999}
    owner = {"kind": "k" * 9999, "name": "n" * 9999, "controller": True}
    found = workload_of({"labels": labels, "ownerReferences": [owner]})
    assert [len(each) for each in found] == [253, 253, 253]


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": None, "annotations": [], "ownerReferences": {}},
        {"labels": {"kueue.x-k8s.io/queue-name": 7}, "ownerReferences": [None, 1, {"controller": True}]},
        {"ownerReferences": [{"controller": "true", "kind": "Job", "name": "n"}]},
    ],
)
def test_metadata_of_other_types_is_unknown(metadata: dict[str, Any]) -> None:
    assert workload_of(metadata) == Workload()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_devices_are_known_by_uuid_or_pci_address(version: str) -> None:
    assert devices_of(answer(f"resourceslices_{version}.json")["items"]) == NAMES


@pytest.mark.parametrize(
    "items",
    [
        None,
        [None, {}, {"spec": {"driver": "d", "pool": {"name": "p"}, "devices": [{"name": "gpu-0"}]}}],
        [{"spec": {"driver": "d", "pool": {"name": "p", "generation": 1}, "devices": [2]}}],
    ],
)
def test_slices_of_other_shapes_have_no_devices(items: Any, server: ApiServer, client: KubernetesApi) -> None:
    server.answers[SLICES.format("v1")] = (200, {"kind": "ResourceSlices", "items": items})
    assert client.device_names(PATIENCE) == {}


def test_a_device_without_uuid_and_address_is_known_without_a_name() -> None:
    spec = {"driver": "nic.example.com", "pool": {"name": "p", "generation": 1}, "devices": [{"name": "nic-0"}]}
    assert devices_of([{"spec": spec}]) == {ClaimedDevice("nic.example.com", "p", "nic-0"): ()}


def test_all_pages_of_the_slices_are_read(server: ApiServer, client: KubernetesApi) -> None:
    whole = answer("resourceslices_v1.json")
    devices = [{"name": f"gpu-{number}", "attributes": {"uuid": {"string": str(number)}}} for number in range(120)]
    items = [
        {"spec": {"driver": "gpu.nvidia.com", "pool": {"name": "p", "generation": 1}, "devices": [device]}}
        for device in devices
    ]
    server.answers[SLICES.format("v1")] = (200, {**whole, "items": items})
    assert sorted(name for (name,) in client.device_names(PATIENCE).values()) == sorted(map(str, range(120)))
    assert len(server.requests) == 3


def test_slices_without_end_are_refused(server: ApiServer, client: KubernetesApi) -> None:
    item = {"spec": {"driver": "d", "pool": {"name": "p", "generation": 1}, "devices": []}}
    server.answers[SLICES.format("v1")] = (200, {**answer("resourceslices_v1.json"), "items": [item] * 2_000})
    with pytest.raises(KubernetesApiFailed, match=r"more than 1000 slices; delete those that no driver maintains"):
        client.device_names(PATIENCE)


def test_a_list_that_is_requested_as_metadata_is_refused_as_by_a_real_server(
    server: ApiServer, client: KubernetesApi
) -> None:
    server.answers[POD] = (200, answer("resourceslices_v1.json"))
    with pytest.raises(KubernetesApiFailed, match=r"HTTP status 406 \(you requested PartialObjectMetadata, but"):
        client.workload("research", "resnet-0", PATIENCE)


def test_only_the_metadata_of_a_pod_is_requested(server: ApiServer, client: KubernetesApi) -> None:
    server.answers[POD] = (200, PODS["Kueue and Job"])
    assert client.workload("research", "resnet-0", PATIENCE) == Workload("team-a", "Job", "resnet")
    assert server.requests == [POD]


@pytest.mark.parametrize(
    ("owned", "path", "owner", "expected"),
    [
        (
            "a pod of a RayCluster",
            CLUSTER,
            (200, OWNERS["RayCluster of a RayJob"]),
            Workload("team-b", "RayJob", "tune"),
        ),
        (
            "a pod of a RayCluster",
            CLUSTER,
            (200, OWNERS["RayCluster of its own"]),
            Workload("", "RayCluster", "tune-x1"),
        ),
        ("a pod of a RayCluster", CLUSTER, (404, {}), Workload("", "RayCluster", "tune-x1")),
        ("a pod of a JobSet", JOB_SET, (200, OWNERS["JobSet of a TrainJob"]), Workload("", "TrainJob", "llama")),
        ("a pod of a JobSet", JOB_SET, (404, {}), Workload("", "JobSet", "llama")),
    ],
)
def test_the_object_that_the_user_created_is_found(
    owned: str, path: str, owner: tuple[int, Any], expected: Workload, server: ApiServer, client: KubernetesApi
) -> None:
    server.answers.update({POD: (200, PODS[owned]), path: owner})
    assert client.workload("research", "resnet-0", PATIENCE) == expected
    assert server.requests == [POD, path]


def test_names_in_a_pods_metadata_do_not_lead_to_other_paths(server: ApiServer, client: KubernetesApi) -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "../../secrets/x?y"}
    server.answers[POD] = (200, {"metadata": {"labels": labels}})
    client.workload("research", "resnet-0", PATIENCE)
    assert server.requests[1].startswith("/apis/jobset.x-k8s.io/v1alpha2/namespaces/research/jobsets/..%2F..%2Fsecrets")
    assert server.requests[1].endswith("x%3Fy")


def test_a_pod_that_is_gone_has_no_workload(client: KubernetesApi) -> None:
    assert client.workload("research", "resnet-0", PATIENCE) == Workload()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_newest_version_that_the_server_has_is_read(version: str, server: ApiServer, client: KubernetesApi) -> None:
    server.answers[SLICES.format(version)] = (200, answer(f"resourceslices_{version}.json"))
    assert client.device_names(PATIENCE) == NAMES
    assert server.requests[-1] == f"{SLICES.format(version)}?fieldSelector=spec.nodeName%3Dgpu-node-3&limit=50"


def test_a_cluster_without_dynamic_resource_allocation_has_no_devices(client: KubernetesApi) -> None:
    assert client.device_names(PATIENCE) == {}


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (
            (403, {}),
            "refused with HTTP status 403; let the exporter's service account get pods, jobsets and rayclusters",
        ),
        ((500, {}), "HTTP status 500 (no reason given); see the API server's log"),
        ((503, {"message": "etcd is down"}), "HTTP status 503 (etcd is down); see the API server's log"),
        ((200, b"<html>"), "the response with HTTP status 200 cannot be read (Expecting value"),
        ((200, []), "the response with HTTP status 200 cannot be read (it is no object); check that 127.0.0.1"),
        ((200, b"\xff\xfe"), "the response with HTTP status 200 cannot be read"),
        ((200, bytes(17 * 2**20)), "the response with HTTP status 200 cannot be read (more than 16777216 bytes)"),
    ],
)
def test_a_refusal_is_reported_with_its_remedy(
    response: tuple[int, Any], message: str, server: ApiServer, client: KubernetesApi
) -> None:
    server.answers[POD] = response
    with pytest.raises(KubernetesApiFailed) as failed:
        client.workload("research", "resnet-0", PATIENCE)
    assert str(failed.value).startswith(POD)
    assert message in str(failed.value)


def test_a_renewed_token_is_used(server: ApiServer, client: KubernetesApi) -> None:
    valid = (server.account / "token").read_text()
    (server.account / "token").write_text("expired")
    try:
        with pytest.raises(KubernetesApiFailed, match="HTTP status 401"):
            client.workload("research", "resnet-0", PATIENCE)
    finally:
        (server.account / "token").write_text(valid)
    assert client.workload("research", "resnet-0", PATIENCE) == Workload()


def test_a_server_that_is_not_the_clusters_gets_no_token(server: ApiServer, tmp_path: Path) -> None:
    account = tmp_path / server.account.relative_to(server.account.parents[4])
    account.mkdir(parents=True)
    (account / "token").write_text("secret")
    (account / "ca.crt").write_bytes(Authority(tmp_path).certificate.read_bytes())
    with pytest.raises(KubernetesApiFailed, match="certificate verify failed"):
        KubernetesApi(tmp_path, server.address, "n").workload("research", "resnet-0", PATIENCE)
    assert server.requests == []


def test_certificates_are_not_checked_as_strictly_as_python_3_13_does(
    server: ApiServer, client: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ssl.SSLContext] = []
    create = ssl.create_default_context

    def strict(cafile: str) -> ssl.SSLContext:
        made.append(create(cafile=cafile))
        made[0].verify_flags |= ssl.VERIFY_X509_STRICT
        return made[0]

    monkeypatch.setattr(ssl, "create_default_context", strict)
    client.workload("research", "resnet-0", PATIENCE)
    assert not made[0].verify_flags & ssl.VERIFY_X509_STRICT
    assert made[0].verify_mode is ssl.CERT_REQUIRED
    assert made[0].check_hostname


def test_without_a_token_the_remedy_is_to_mount_it(tmp_path: Path) -> None:
    with pytest.raises(KubernetesApiFailed, match="automountServiceAccountToken: true"):
        KubernetesApi(tmp_path, ("127.0.0.1", 1), "n").device_names(PATIENCE)


def test_a_server_that_does_not_respond_is_reported(server: ApiServer) -> None:
    client = KubernetesApi(server.account.parents[4], ("127.0.0.1", free_port()), "n")
    with pytest.raises(KubernetesApiFailed, match=r"no response .*check that network policies permit TCP"):
        client.device_names(PATIENCE)
