"""The collector of the Kubernetes API together with the collector of owners."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.node.collectors.base import Environment, KubernetesSettings, NotPresent
from stallscope.node.collectors.kubernetes import Kubernetes
from stallscope.node.collectors.owners import ERRORS, INFO, WORKLOAD, Owners
from stallscope.node.drivers.occupancy import Occupancy
from stallscope.node.owners.cluster import KubernetesApiFailed
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.reading import Sample, checked
from tests.free_ports import free_port
from tests.owners.api_server import ApiServer, answer, api_server_at
from tests.owners.kubelet import Kubelet, claim, container, devices, kubelet_at, pod
from tests.owners.machines import MIGS, UUIDS, gpu, mig, on
from tests.web.certificates import needs_openssl

pytestmark = needs_openssl
PATIENCE = 60.0
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
POD = "/api/v1/namespaces/research/pods/resnet-0"
PODS = answer("pods.json")
PLUGGED = pod("research", "resnet-0", container("trainer", devices("nvidia.com/gpu", UUIDS[0])))
CLAIMED = pod("research", "resnet-0", container("trainer", claim("gpu.nvidia.com", "gpu-8", "k8s.gpu.nvidia.com/c=8")))


class Node:
    """A node with a kubelet, and both collectors."""

    def __init__(self, kubelet: Kubelet, api: ApiServer) -> None:
        self.kubelet, self.api = kubelet, api
        self.clock = ScriptedClock()
        shutil.copytree(api.account, kubelet.root / api.account.relative_to(api.account.parents[4]))
        settings = KubernetesSettings("gpu-node-3", api.address)
        self.environment = Environment(root=kubelet.root, clock=self.clock, kubernetes=settings)
        self.owners, self.kubernetes = Owners(self.environment, PATIENCE), Kubernetes(self.environment)
        self.read: tuple[Sample, ...] = ()

    def show(self, *occupancies: Occupancy, seconds: float = 1.0) -> None:
        """Read owners, the API, and owners again, as both threads do; then let time pass."""
        found = occupancies or (on(gpu(0), used=0), on(gpu(1), used=0))
        self.environment.occupancies.publish("nvidia", {each.identity.uuid: each for each in found})
        self.owners.read()
        try:
            assert list(self.kubernetes.read()) == []
        finally:
            self.read = checked(self.owners.read())
            self.clock.advance(seconds)

    @property
    def held(self) -> set[tuple[str, ...]]:
        """UUID and pod of each holder."""
        return {(labels[1], labels[3]) for labels in self._labels(INFO)}

    @property
    def workloads(self) -> set[tuple[str, ...]]:
        return set(self._labels(WORKLOAD))

    @property
    def errors(self) -> dict[str, object]:
        return {each.labels[0]: each.value for each in self.read if each.family is ERRORS and each.value}

    def _labels(self, family: object) -> list[tuple[str, ...]]:
        return [each.labels for each in self.read if each.family is family]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server_at(tmp_path_factory.mktemp("api")) as server:
        yield server


@pytest.fixture
def node(shared: ApiServer) -> Iterator[Node]:
    shared.answers.clear()
    shared.requests.clear()
    with kubelet_at() as kubelet:
        made = Node(kubelet, shared)
        yield made
        made.owners.close()
        made.kubernetes.close()


def test_without_the_nodes_name_nothing_is_requested() -> None:
    with pytest.raises(NotPresent, match=r"--kubernetes\.node is not set"):
        Kubernetes(Environment()).read()


def test_without_a_pod_on_a_gpu_nothing_is_requested(node: Node) -> None:
    node.show()
    assert node.api.requests == []


def test_queue_and_workload_of_a_holder_are_exported(node: Node) -> None:
    node.kubelet.hand_out(PLUGGED)
    node.api.answers[POD] = (200, PODS["Kueue and Job"])
    node.show()
    assert node.workloads == {("0", UUIDS[0], "research", "resnet-0", "team-a", "Job", "resnet", "")}
    assert node.api.requests == [POD]  # no slices without a claim


def test_an_unknown_workload_has_no_series(node: Node) -> None:
    node.kubelet.hand_out(PLUGGED)
    node.api.answers[POD] = (200, PODS["a plain pod"])
    node.show()
    assert node.held == {(UUIDS[0], "resnet-0")}
    assert node.workloads == set()


def test_a_pod_is_requested_once_and_again_after_five_minutes(node: Node) -> None:
    node.kubelet.hand_out(PLUGGED)
    node.api.answers[POD] = (200, PODS["Kueue and Job"])
    for _ in range(3):
        node.show(seconds=100)
    assert node.api.requests == [POD]
    node.api.answers[POD] = (200, PODS["PyTorchJob"])
    node.show()
    assert node.api.requests == [POD, POD]
    assert {labels[4:7] for labels in node.workloads} == {("", "PyTorchJob", "bert")}


def test_a_pod_that_ends_is_forgotten(node: Node) -> None:
    node.kubelet.hand_out(PLUGGED)
    node.api.answers[POD] = (200, PODS["Kueue and Job"])
    node.show(seconds=11)
    node.kubelet.hand_out()
    node.show()
    assert node.workloads == set()
    assert node.environment.cluster.workloads == {}


def test_many_pods_are_requested_a_few_at_a_time(node: Node) -> None:
    many = [pod("n", f"p{number}", container("c", devices("nvidia.com/gpu", UUIDS[0]))) for number in range(40)]
    node.kubelet.hand_out(*many)
    node.show()
    assert len(node.api.requests) == 16
    for _ in range(2):
        node.show()
    assert len(node.api.requests) == len(set(node.api.requests)) == 40


def test_a_claimed_gpu_is_found_by_the_uuid_in_the_resource_slice(node: Node) -> None:
    node.kubelet.hand_out(CLAIMED)
    node.api.answers[SLICES] = (200, answer("resourceslices_v1.json"))
    node.show()
    assert node.held == {(UUIDS[0], "resnet-0")}
    assert [each for each in node.api.requests if "slices" in each] == [
        f"{SLICES}?fieldSelector=spec.nodeName%3Dgpu-node-3&limit=50"
    ]


def claim_published(node: Node, driver: str, device: str, **attributes: str) -> None:
    """Give a pod this device, for which the driver has published these attributes."""
    node.kubelet.hand_out(pod("research", "resnet-0", container("trainer", claim(driver, device))))
    published = {"name": device, "attributes": {name: {"string": value} for name, value in attributes.items()}}
    spec = {"driver": driver, "pool": {"name": "gpu-node-3", "generation": 1}, "devices": [published]}
    node.api.answers[SLICES] = (200, {"kind": "ResourceSliceList", "metadata": {}, "items": [{"spec": spec}]})


def test_a_claimed_gpu_of_any_driver_is_found_by_what_the_driver_has_published(node: Node) -> None:
    claim_published(node, "accel.example.com", "a-1", uuid=UUIDS[1])
    node.show()
    assert node.held == {(UUIDS[1], "resnet-0")}


def test_a_claimed_device_that_is_no_gpu_is_not_requested_again_and_again(node: Node) -> None:
    claim_published(node, "nic.example.com", "nic-1", pciBusID="0000:99:00.0")
    node.show()
    node.show(seconds=60)
    assert node.held == set()
    assert node.errors == {}
    assert len(node.api.requests) == 1


def test_a_published_gpu_counts_even_if_the_device_is_named_like_another_one(node: Node) -> None:
    claim_published(node, "gpu.nvidia.com", "gpu-1", uuid=UUIDS[0])
    node.show()
    assert node.held == {(UUIDS[0], "resnet-0")}


def test_a_published_gpu_that_is_not_here_has_no_owner_rather_than_a_wrong_one(node: Node) -> None:
    claim_published(node, "gpu.nvidia.com", "gpu-1", uuid="GPU-00000000-0000-0000-0000-00000000ffff")
    node.show()
    assert node.held == set()
    assert node.errors == {"unknown_device": 1}


def test_a_claimed_gpu_without_a_uuid_is_found_by_its_pci_address(node: Node) -> None:
    node.kubelet.hand_out(pod("research", "resnet-0", container("trainer", claim("gpu.nvidia.com", "gpu-9"))))
    node.api.answers[SLICES] = (200, answer("resourceslices_v1.json"))
    node.show()
    assert node.held == {(UUIDS[1], "resnet-0")}


def test_a_claimed_instance_is_found_by_its_uuid(node: Node) -> None:
    held = claim("gpu.nvidia.com", "gpu-8-mig-1g10gb-19-0")
    node.kubelet.hand_out(pod("research", "resnet-0", container("trainer", held)))
    node.api.answers[SLICES] = (200, answer("resourceslices_v1.json"))
    node.show(on(gpu(0), used=0), on(mig(0), used=0), on(mig(1), used=0))
    assert node.held == {(MIGS[0], "resnet-0")}


def test_a_device_that_is_published_later_is_requested_again(node: Node) -> None:
    node.kubelet.hand_out(CLAIMED)
    node.show()
    assert node.held == set()
    node.api.answers[SLICES] = (200, answer("resourceslices_v1.json"))
    node.show(seconds=30)
    assert node.held == set()
    node.show()
    assert node.held == {(UUIDS[0], "resnet-0")}


def test_without_the_api_a_claimed_gpu_is_found_by_its_name_as_before(node: Node) -> None:
    node.kubelet.hand_out(pod("research", "resnet-0", container("trainer", claim("gpu.nvidia.com", "gpu-1"))))
    node.api.answers[SLICES] = (403, {})
    with pytest.raises(KubernetesApiFailed, match="list resourceslices"):
        node.show()
    assert node.held == {(UUIDS[1], "resnet-0")}
    assert node.errors == {}


def test_a_refusal_of_slices_prevents_no_workload(node: Node) -> None:
    node.kubelet.hand_out(CLAIMED)
    node.api.answers.update({SLICES: (403, {}), POD: (200, PODS["Kueue and Job"])})
    with pytest.raises(KubernetesApiFailed):
        node.show(on(gpu(0), used=0))
    assert node.environment.cluster.workloads.keys() == {("research", "resnet-0")}


def test_a_refusal_of_one_pods_owner_prevents_no_other_workload(node: Node) -> None:
    ray = pod("research", "a-0", container("worker", devices("nvidia.com/gpu", UUIDS[1])))
    node.kubelet.hand_out(ray, PLUGGED)
    node.api.answers.update(
        {
            "/api/v1/namespaces/research/pods/a-0": (200, PODS["a pod of a RayCluster"]),
            "/apis/ray.io/v1/namespaces/research/rayclusters/tune-x1": (403, {}),
            POD: (200, PODS["Kueue and Job"]),
        }
    )
    with pytest.raises(KubernetesApiFailed, match="rayclusters"):
        node.show()
    assert {labels[3] for labels in node.workloads} == {"resnet-0"}


def test_while_the_api_fails_facts_stay_and_requests_are_rare(node: Node) -> None:
    node.kubelet.hand_out(PLUGGED)
    node.api.answers[POD] = (200, PODS["Kueue and Job"])
    node.show(seconds=300)
    node.api.answers[POD] = (500, {})
    before = node.workloads
    for _ in range(5):
        with pytest.raises(KubernetesApiFailed, match="HTTP status 500"):
            node.show(seconds=10)
        assert node.workloads == before
    assert len(node.api.requests) == 3  # one before, one at once, one after 30 s
    node.api.answers[POD] = (200, PODS["PyTorchJob"])
    node.clock.advance(30)
    node.show()
    assert {labels[5] for labels in node.workloads} == {"PyTorchJob"}


def test_an_api_that_does_not_respond_leaves_owners_as_they_are(node: Node, tmp_path: Path) -> None:
    settings = KubernetesSettings("gpu-node-3", ("127.0.0.1", free_port()))
    environment = Environment(
        root=node.kubelet.root, clock=node.clock, occupancies=node.environment.occupancies, kubernetes=settings
    )
    node.environment, node.owners, node.kubernetes = environment, Owners(environment, PATIENCE), Kubernetes(environment)
    node.kubelet.hand_out(PLUGGED)
    with pytest.raises(KubernetesApiFailed, match="no response"):
        node.show()
    assert node.held == {(UUIDS[0], "resnet-0")}
    assert node.workloads == set()


def test_an_exporter_that_stops_the_collector_withdraws_its_answers(node: Node) -> None:
    node.kubelet.hand_out(PLUGGED)
    node.api.answers[POD] = (200, PODS["Kueue and Job"])
    node.show()
    node.kubernetes.close()
    node.read = checked(node.owners.read())
    assert node.workloads == set()
