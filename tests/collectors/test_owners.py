from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from stallscope.node.collectors.base import Environment, NotPresent
from stallscope.node.collectors.owners import BUSY, ERRORS, INFO, MEMORY, Owners
from stallscope.node.drivers.device import GpuProcess
from stallscope.node.drivers.occupancy import Occupancies, Occupancy
from stallscope.node.owners.pod_resources import SOCKET
from stallscope.node.owners.slurm_allocations import FOLDER
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.reading import Sample, checked
from stallscope.node.sampling.sampler import Sampler
from tests.collectors.recorded import TREES, copy_of, edit
from tests.owners.kubelet import Kubelet, claim, container, devices, kubelet_at, pod
from tests.owners.machines import GIB, MIGS, UUIDS, gpu, mig, on

Series = dict[tuple[str, ...], float]
RESNET = ("research", "resnet-train-0", "trainer")
BERT = ("inference", "bert-serving-6d5f7c9b8-x2x7q", "server")


class Node:
    """A machine with the source of owners on it; GPUs are put on it by hand."""

    def __init__(self, root: Path) -> None:
        self.clock = ScriptedClock()
        self.environment = Environment(root=root, clock=self.clock, occupancies=Occupancies())
        # Other tests run at the same time: the kubelet here may respond late.
        self.source = Owners(self.environment, pods_timeout=60.0)
        self.read: tuple[Sample, ...] = ()

    def show(self, *occupancies: Occupancy, seconds: float = 1.0) -> None:
        """Let the GPUs' source say so, read owners, and let time pass."""
        self.environment.occupancies.publish("nvidia", {each.identity.uuid: each for each in occupancies})
        self.read = checked(self.source.read())
        keys = [(sample.family, sample.labels) for sample in self.read]
        assert len(keys) == len(set(keys)), "two samples of one series"
        self.clock.advance(seconds)

    def _series(self, family: object) -> Series:
        return {
            sample.labels: sample.value
            for sample in self.read
            if sample.family is family and isinstance(sample.value, (int, float))
        }

    @property
    def held(self) -> set[tuple[str, ...]]:
        return {(labels[0], *labels[2:7]) for labels in self._series(INFO)}

    @property
    def memory(self) -> Series:
        return {(labels[0], *labels[2:7]): value for labels, value in self._series(MEMORY).items()}

    @property
    def busy(self) -> Series:
        return {(labels[0], *labels[2:7]): value for labels, value in self._series(BUSY).items()}

    @property
    def errors(self) -> dict[str, float]:
        return {labels[0]: value for labels, value in self._series(ERRORS).items() if value}


@contextmanager
def node_at(root: Path) -> Iterator[Node]:
    node = Node(root)
    try:
        yield node
    finally:
        node.source.close()


@pytest.fixture
def slurm() -> Iterator[Node]:
    with node_at(TREES / "slurm_node") as node:
        yield node


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    with kubelet_at(TREES / "kubernetes_node") as kubelet:
        yield kubelet


@pytest.fixture
def kubernetes(kubelet: Kubelet) -> Iterator[Node]:
    with node_at(kubelet.root) as node:
        yield node


def given(who: tuple[str, str, str], device: str, resource: str = "nvidia.com/gpu") -> bytes:
    namespace, name, part = who
    return pod(namespace, name, container(part, devices(resource, device)))


def test_without_gpus_there_is_nothing_to_own() -> None:
    with node_at(TREES / "slurm_node") as node, pytest.raises(NotPresent, match="no GPU"):
        node.show()


def test_processes_that_are_not_on_this_machine_are_not_looked_for(caplog: pytest.LogCaptureFixture) -> None:
    occupancies = Occupancies()
    environment = Environment(root=TREES / "slurm_node", occupancies=occupancies, processes_elsewhere=True)
    occupancies.publish("nvidia", {UUIDS[0]: on(gpu(), (4_194_305, GIB), used=GIB)})
    with pytest.raises(NotPresent, match="simulated: their processes are not on this machine"):
        list(Owners(environment).read())
    assert not caplog.records


def test_an_idle_gpu_has_no_owner(slurm: Node) -> None:
    slurm.show(on(gpu(), used=0))
    assert (slurm.held, slurm.memory, slurm.busy, slurm.errors) == (set(), {}, {}, {})


def test_errors_of_every_reason_are_there_from_the_beginning(slurm: Node) -> None:
    slurm.show(on(gpu(), used=0))
    reasons = {sample.labels[0] for sample in slurm.read if sample.family is ERRORS}
    assert reasons == {
        "pod_resources_unavailable",
        "pod_resources_malformed",
        "slurm_allocation_invalid",
        "unknown_device",
        "pid_not_visible",
        "pid_reused",
        "memory_not_told",
        "too_many_owners",
    }


def test_slurm_jobs_hold_gpus_through_their_processes(slurm: Node) -> None:
    slurm.show(
        on(gpu(0), (31337, 2 * GIB), (31338, GIB), used=3 * GIB, busy={31337: 4.0, 31338: 1.0}),
        on(gpu(1), (40400, 5 * GIB), (40600, GIB // 4), used=6 * GIB),
    )
    ada, grace, root = (
        ("0", "", "", "", "1234567", "ada"),
        ("1", "", "", "", "88", "grace"),
        ("1", "", "", "", "", "root"),
    )
    assert slurm.held == {ada, grace, root}
    assert slurm.memory == {
        ada: 3 * GIB,
        grace: 5 * GIB,
        root: GIB // 4,
        ("1", "", "", "", "", ""): GIB - GIB // 4,
    }
    assert slurm.busy == {ada: 5.0}
    slurm.show(on(gpu(0), used=0), on(gpu(1), used=0))
    assert (slurm.held, slurm.memory) == (set(), {})
    assert slurm.busy == {ada: 5.0}


def allocation(root: Path, job: str, gpus: str, *, devices: str = "", user: str = "ada") -> Path:
    """Write an allocation as Slurm's prolog does, of this boot."""
    boot = root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True, exist_ok=True)
    boot.write_text("b007\n")
    file = root / FOLDER / job
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    file.write_text(f"boot=b007\njob={job}\nuser={user}\ngpus={gpus}\ndevices={devices}\n")
    file.chmod(0o644)
    return file


@pytest.fixture
def slurm_root(tmp_path: Path) -> Path:
    return copy_of("slurm_node", tmp_path)


def test_a_slurm_job_holds_its_gpus_from_start_to_end_whether_or_not_a_process_uses_them(slurm_root: Path) -> None:
    file = allocation(slurm_root, "88", "0,1", user="grace")
    grace = {(number, "", "", "", "88", "grace") for number in ("0", "1")}
    with node_at(slurm_root) as node:
        node.show(on(gpu(0), used=0), on(gpu(1), used=0))
        assert (node.held, node.memory, node.errors) == (grace, {}, {})
        node.show(on(gpu(0), (40400, GIB), used=GIB), on(gpu(1), used=0))
        assert node.held == grace
        assert node.memory == {("0", "", "", "", "88", "grace"): GIB}
        node.show(on(gpu(0), used=0))
        assert node.held == grace, "a lost GPU is still held"
        file.unlink()
        node.show(on(gpu(0), used=0), on(gpu(1), used=0), seconds=10)
        node.show(on(gpu(0), used=0), on(gpu(1), used=0))
        assert node.held == set()
        assert node.errors == {}


def test_a_process_of_another_job_holds_the_gpu_next_to_the_job_that_has_it(slurm_root: Path) -> None:
    allocation(slurm_root, "7", "1", user="ada")
    with node_at(slurm_root) as node:
        node.show(on(gpu(0), used=0), on(gpu(1), (40400, GIB), used=GIB))
        assert node.held == {("1", "", "", "", "7", "ada"), ("1", "", "", "", "88", "grace")}


def test_jobs_with_shards_of_one_gpu_share_it(slurm_root: Path) -> None:
    allocation(slurm_root, "7", "0")
    allocation(slurm_root, "8", "0", user="bob")
    allocation(slurm_root, "9", "1,1")
    with node_at(slurm_root) as node:
        node.show(on(gpu(0), used=0), on(gpu(1), used=0))
        sharing = node.environment.occupancies.sharing
        assert [sharing(uuid) for uuid in UUIDS] == ["time_sliced", ""]
        assert {labels[4] for labels in node.held} == {"7", "8", "9"}


def test_a_job_with_mig_instances_holds_them_by_uuid_and_slurms_numbers_name_none(slurm_root: Path) -> None:
    allocation(slurm_root, "7", "0", devices=MIGS[1])
    with node_at(slurm_root) as node:
        shown = (on(gpu(0), used=0), on(mig(0), used=0), on(mig(1), used=0))
        node.show(*shown)
        held = {sample.labels[1] for sample in node.read if sample.family is INFO}
        assert held == {MIGS[1]}
        allocation(slurm_root, "7", "0")
        node.clock.advance(10)
        node.show(*shown)
        assert (node.held, node.errors) == (set(), {"unknown_device": 1})


def test_a_number_of_slurm_names_a_gpu_only_if_device_files_and_addresses_agree(slurm_root: Path) -> None:
    allocation(slurm_root, "7", "0,2")
    for address, minor in (("0000:07:00.0", 1), ("0000:0f:00.0", 0)):
        information = slurm_root / "proc/driver/nvidia/gpus" / address / "information"
        information.parent.mkdir(parents=True)
        information.write_text(f"Device Minor: \t {minor}\n")
    with node_at(slurm_root) as node:
        node.show(on(gpu(0), used=0), on(gpu(1), used=0))
        assert (node.held, node.errors) == (set(), {"unknown_device": 2})
        allocation(slurm_root, "7", "0,2", devices=UUIDS[1])
        node.clock.advance(10)
        node.show(on(gpu(0), used=0), on(gpu(1), used=0))
        assert node.held == {("1", "", "", "", "7", "ada")}


def test_an_allocation_that_is_refused_is_counted_and_logged_once(
    slurm_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    allocation(slurm_root, "7", "0").chmod(0o666)
    with node_at(slurm_root) as node:
        for _ in range(3):
            node.show(on(gpu(0), used=0), seconds=10)
        assert (node.held, node.errors) == (set(), {"slurm_allocation_invalid": 1})
    assert len(caplog.records) == 1
    assert "7: other users may write it; let only root write there" in caplog.text


def test_a_workstation_names_containers_and_users() -> None:
    with node_at(TREES / "docker_workstation") as node:
        node.show(on(gpu(), (2201, GIB), (2504, GIB), used=2 * GIB))
        identifier = sha256(b"trainer").hexdigest()[:12]  # as the tree was made
        assert node.held == {("0", "", "", identifier, "", "root"), ("0", "", "", "", "", "ada")}


def test_pods_hold_the_gpus_that_the_kubelet_gave_them(kubelet: Kubelet, kubernetes: Node) -> None:
    kubelet.hand_out(given(RESNET, UUIDS[0]), given(BERT, "nvidia0"))
    kubernetes.show(on(gpu(0), (41207, 2 * GIB), (41388, GIB), used=3 * GIB), on(gpu(1), used=0))
    assert kubernetes.held == {("0", *RESNET, "", "1000"), ("1", *BERT, "", "")}
    assert kubernetes.memory == {("0", *RESNET, "", "1000"): 3 * GIB}
    assert kubernetes.errors == {}


def test_pods_on_replicas_share_a_gpu_by_their_processes(kubelet: Kubelet, kubernetes: Node) -> None:
    kubelet.hand_out(given(RESNET, f"{UUIDS[0]}::0"), given(BERT, f"{UUIDS[0]}::1", "nvidia.com/gpu.shared"))
    kubernetes.show(on(gpu(), (41207, 2 * GIB), (41388, GIB), (52001, 4 * GIB), (1803, GIB), used=9 * GIB))
    assert kubernetes.memory == {
        ("0", *RESNET, "", "1000"): 3 * GIB,
        ("0", *BERT, "", "root"): 4 * GIB,
        ("0", "", "", "", "", "root"): GIB,
        ("0", "", "", "", "", ""): GIB,
    }
    assert kubernetes.environment.occupancies.sharing(UUIDS[0]) == "time_sliced"
    assert kubernetes.environment.occupancies.sharing(UUIDS[1]) == ""
    kubernetes.source.close()
    assert kubernetes.environment.occupancies.sharing(UUIDS[0]) == "", "a closed source could never remove it"


def test_replicas_with_processes_of_mps_are_shared_that_way_until_they_are_given_back(
    kubelet: Kubelet, kubernetes: Node
) -> None:
    kubelet.hand_out(given(RESNET, f"{UUIDS[0]}::0"))
    sharing = kubernetes.environment.occupancies.sharing
    kubernetes.show(Occupancy(gpu(), GIB, (GpuProcess(41207, GIB, "mps"),), {}))
    assert sharing(UUIDS[0]) == "mps"
    kubernetes.show(on(gpu(), used=0))
    assert sharing(UUIDS[0]) == "mps"
    kubelet.hand_out()
    kubernetes.clock.advance(10.0)
    kubernetes.show(on(gpu(), used=0))
    assert sharing(UUIDS[0]) == ""


def test_an_exclusive_gpu_is_not_reported_as_shared(kubelet: Kubelet, kubernetes: Node) -> None:
    kubelet.hand_out(given(RESNET, UUIDS[0]))
    kubernetes.show(on(gpu(), used=0))
    assert kubernetes.environment.occupancies.sharing(UUIDS[0]) == ""


def test_an_instance_is_held_for_itself_and_its_gpu_through_instances_only(kubelet: Kubelet, kubernetes: Node) -> None:
    kubelet.hand_out(given(RESNET, MIGS[0], "nvidia.com/mig-1g.10gb"), given(BERT, f"{MIGS[1]}::3"))
    parent = on(gpu(), (41207, GIB), (52001, GIB), used=2 * GIB)
    kubernetes.show(parent, on(mig(0), (41207, GIB), used=GIB), on(mig(1), (52001, GIB), used=GIB))
    labels = [sample.labels for sample in kubernetes.read if sample.family is MEMORY]
    assert labels == [
        ("0", MIGS[0], *RESNET, "", "1000", "1g.10gb"),
        ("0", MIGS[1], *BERT, "", "root", "1g.10gb"),
    ]


def test_a_claimed_gpu_is_held_and_one_claimed_by_two_is_shared(kubelet: Kubelet, kubernetes: Node) -> None:
    held = claim("gpu.nvidia.com", "gpu-1", "k8s.gpu.nvidia.com/claim=0f1e-gpu-1")
    kubelet.hand_out(*(pod(namespace, name, container(part, held)) for namespace, name, part in (RESNET, BERT)))
    kubernetes.show(on(gpu(0), used=0), on(gpu(1), used=0))
    assert kubernetes.held == {("0", *RESNET, "", ""), ("0", *BERT, "", "")}
    assert kubernetes.environment.occupancies.sharing(UUIDS[0]) == "time_sliced"


def test_pods_on_different_partitions_of_a_gpu_hold_it_without_sharing_it_in_turns(
    kubelet: Kubelet, kubernetes: Node
) -> None:
    whole = gpu(0)
    nodes = kubelet.root / "sys/class/kfd/kfd/topology/nodes/5"
    nodes.mkdir(parents=True)
    (nodes / "properties").write_text(f"location_id {7 << 8 | 1 << 28}\ndomain 0\ndrm_render_minor 137\n")
    (kubelet.root / "sys/devices/platform/amdgpu_xcp_1/drm/renderD137").mkdir(parents=True)
    first, second = ("team", "a", "main"), ("team", "b", "main")
    kubelet.hand_out(
        given(first, "0000:07:00.0", "amd.com/cpx_nps4"), given(second, "amdgpu_xcp_1", "amd.com/cpx_nps4")
    )
    kubernetes.show(on(whole, used=0))
    assert kubernetes.held == {("0", *first, "", ""), ("0", *second, "", "")}
    assert not kubernetes.environment.occupancies.sharing(whole.uuid)
    assert not kubernetes.errors


def test_a_lost_gpu_is_still_held_by_its_pod(kubelet: Kubelet, kubernetes: Node) -> None:
    kubelet.hand_out(given(RESNET, UUIDS[0]))
    kubernetes.show(on(gpu(0), (41207, GIB), used=GIB), on(gpu(1), used=0))
    kubernetes.show(on(gpu(1), used=0))
    assert {labels[:4] for labels in kubernetes.held} == {("0", *RESNET)}
    assert kubernetes.memory == {}
    assert kubernetes.errors == {}


def test_a_device_that_is_no_known_gpu_is_counted_once(kubelet: Kubelet, kubernetes: Node) -> None:
    kubelet.hand_out(given(RESNET, "GPU-00000000-0000-0000-0000-000000000000"))
    for _ in range(3):
        kubernetes.show(on(gpu(), used=0))
    assert kubernetes.errors == {"unknown_device": 1}


def test_the_kubelet_is_queried_every_ten_seconds_and_for_a_new_process(kubelet: Kubelet, kubernetes: Node) -> None:
    for _ in range(10):
        kubernetes.show(on(gpu(), used=0))
    assert kubelet.calls == 1
    kubernetes.show(on(gpu(), used=0))
    assert kubelet.calls == 2
    kubernetes.show(on(gpu(), (41207, GIB)))
    assert kubelet.calls == 3
    kubernetes.show(on(gpu(), (41207, GIB)))
    assert kubelet.calls == 3


def test_many_new_processes_query_the_kubelet_at_most_once_a_second(kubelet: Kubelet, kubernetes: Node) -> None:
    for pid in range(10):
        kubernetes.show(on(gpu(), (pid, GIB)), seconds=0.25)
    assert kubelet.calls == 3


def test_the_kubelets_last_answer_stands_for_a_minute_without_a_new_one(kubelet: Kubelet, kubernetes: Node) -> None:
    kubelet.hand_out(given(RESNET, UUIDS[0]))
    kubernetes.show(on(gpu(), used=0))
    kubelet.stop()
    held = []
    for _ in range(8):
        kubernetes.clock.advance(9.0)
        kubernetes.show(on(gpu(), used=0))
        held.append(bool(kubernetes.held))
    assert held == [True] * 5 + [False] * 3
    assert kubernetes.errors == {"pod_resources_unavailable": 6}
    kubelet.start()
    kubernetes.clock.advance(9.0)
    kubernetes.show(on(gpu(), used=0))
    assert kubernetes.held == {("0", *RESNET, "", "")}


def test_a_malformed_answer_is_counted_and_loses_nothing(
    kubelet: Kubelet, kubernetes: Node, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet.hand_out(given(RESNET, UUIDS[0]))
    kubernetes.show(on(gpu(), used=0))
    kubelet.hand_out(given(RESNET, UUIDS[0])[:-1])
    for _ in range(3):
        kubernetes.clock.advance(10.0)
        kubernetes.show(on(gpu(), used=0))
    assert kubernetes.held == {("0", *RESNET, "", "")}
    assert kubernetes.errors == {"pod_resources_malformed": 3}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "breaks off" in caplog.text


def test_a_node_without_a_kubelet_simply_has_no_pods(slurm: Node) -> None:
    for _ in range(3):
        slurm.show(on(gpu(), (31337, GIB)), seconds=10.0)
    assert slurm.errors == {}
    assert not (TREES / "slurm_node" / SOCKET).exists()


def test_processes_that_cannot_be_seen_are_counted_once_and_the_log_says_what_to_do(
    slurm: Node, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        slurm.show(on(gpu(), (777, GIB), (778, GIB), used=2 * GIB))
    assert slurm.errors == {"pid_not_visible": 2}
    assert slurm.held == {("0", "", "", "", "", "")}
    assert slurm.memory == {("0", "", "", "", "", ""): 2 * GIB}
    assert len(caplog.records) == 1
    assert "pid_not_visible: 777, 778; run the exporter in the host's PID namespace (hostPID: true" in caplog.text


def test_a_process_that_is_gone_before_it_was_looked_up_is_no_error(slurm: Node) -> None:
    slurm.show(on(gpu(), (777, GIB)))
    slurm.show(on(gpu(), used=0))
    assert slurm.errors == {}


def test_a_process_that_ends_before_the_driver_knows_keeps_its_owner(tmp_path: Path) -> None:
    with node_at(copy_of("slurm_node", tmp_path)) as node:
        node.show(on(gpu(), (40400, GIB)))
        held = node.held
        (node.environment.root / "proc/40400/stat").unlink()
        for _ in range(3):
            node.show(on(gpu(), (40400, GIB)))
        assert node.held == held
        assert node.errors == {}


def test_a_reused_number_is_counted_and_moves_to_its_new_owner(tmp_path: Path) -> None:
    with node_at(copy_of("slurm_node", tmp_path)) as node:
        node.show(on(gpu(), (40400, GIB), busy={40400: 5.0}))
        edit(node.environment.root / "proc/40400/stat", "9500000", "9900000")
        edit(node.environment.root / "proc/40400/cgroup", "job_88", "job_99")
        node.show(on(gpu(), (40400, GIB), busy={40400: 0.5}))
        assert node.errors == {"pid_reused": 1}
        assert {labels[4] for labels in node.held} == {"99"}
        assert {labels[4]: value for labels, value in node.busy.items()} == {"88": 5.0, "99": 0.5}


def test_untold_memory_is_counted_once_a_process(slurm: Node) -> None:
    for _ in range(3):
        slurm.show(on(gpu(), (31337, None), used=GIB))
    assert slurm.errors == {"memory_not_told": 1}
    assert slurm.memory == {}


def test_a_problem_that_comes_back_is_counted_again_but_not_logged_at_once(
    slurm: Node, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        slurm.show(on(gpu(), (31337, None), used=GIB))
        slurm.show(on(gpu(), (31337, GIB), used=GIB))
    assert slurm.errors == {"memory_not_told": 3}
    assert len(caplog.records) == 1
    slurm.clock.advance(301.0)
    slurm.show(on(gpu(), (31337, None), used=GIB))
    assert len(caplog.records) == 2


def test_owners_are_on_the_page_whatever_their_names_look_like(tmp_path: Path) -> None:
    root = copy_of("slurm_node", tmp_path)
    (root / "etc/passwd").write_bytes(b'a"d\\a\r\xff\t{}\x00:x:10001:1::/:/bin/sh\n')
    environment = Environment(root=root, clock=ScriptedClock(), occupancies=Occupancies())
    environment.occupancies.publish("nvidia", {UUIDS[0]: on(gpu(), (31337, GIB), used=GIB)})
    sampler = Sampler(clock=environment.clock)
    sampler.add(Owners(environment))
    sampler.run_round()
    page = sampler.page(openmetrics=True, gzip=False).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    (info,) = families["stallscope_gpu_owner_info"].samples
    assert info.labels["slurm_job"] == "1234567"
    assert info.labels["user"].startswith('a"d\\a\r\N{REPLACEMENT CHARACTER}')
    assert "mig" not in info.labels


def test_this_machine_is_read_with_the_real_files() -> None:
    with node_at(Path("/")) as node:
        node.show(on(gpu(), (os.getpid(), GIB), used=GIB))
        assert len(node.held) == 1
        assert list(node.memory.values()) == [GIB]
