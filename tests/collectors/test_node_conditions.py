"""Conditions of a node: from the samples of the exporter to a server that merges patches as Kubernetes does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stallscope.common.xids import xids_of_hardware
from stallscope.model.catalogue.gpu_losses import HARDWARE, LOSSES
from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Environment, KubernetesSettings, NotPresent
from stallscope.node.collectors.node_conditions import (
    ECC,
    LOST,
    REMAP_FAILED,
    REMAP_PENDING,
    UP,
    XID,
    NodeConditions,
)
from stallscope.node.owners.cluster import KubernetesApiFailed
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.reading import Sample, checked
from tests.free_ports import free_port
from tests.owners.api_server import ApiServer, api_server_at
from tests.web.certificates import needs_openssl

pytestmark = needs_openssl
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": "2026-11-01T00:00:00Z"}
Labels = tuple[str, ...]


class Node:
    """A node with two GPUs, and the collector."""

    def __init__(self, api: ApiServer, *conditions: dict[str, str]) -> None:
        self.api = api
        api.patches.clear()
        api.events.clear()
        api.event_refusals.clear()
        api.refusals.clear()
        api.nodes = {"gpu-node-3": {"kind": "Node", "status": {"conditions": [READY, *conditions]}}}
        self.clock = ScriptedClock()
        self.samples: dict[tuple[Any, Labels], float] = {}
        for index in "01":
            self.set(UP, 1, index)
            self.set(ECC, 0, index, "uncorrected")
            self.set(ECC, 7, index, "corrected")
            self.set(REMAP_PENDING, 0, index)
        self.collector = NodeConditions(
            Environment(
                root=api.account.parents[4],
                clock=self.clock,
                kubernetes=KubernetesSettings("gpu-node-3", api.address),
                exposed=lambda: checked(Sample(key, labels, value) for (key, labels), value in self.samples.items()),
            )
        )
        self.read(0)

    def set(self, key: Any, value: float | None, index: str, *labels: str) -> None:
        """Expose a value of a GPU, or none."""
        series = key, (index, f"GPU-{index}", *labels)
        if value is None:
            del self.samples[series]
        else:
            self.samples[series] = value

    def lose(self, index: str, reason: str) -> None:
        """Lose a GPU: it reports nothing else, except the Xids from before."""
        for key, labels in list(self.samples):
            if labels[0] == index and key not in (UP, XID):
                del self.samples[key, labels]
        self.set(UP, 0, index)
        self.set(LOST, 1, index, reason)

    def read(self, seconds: float = 30.0) -> None:
        """Let time pass, and read."""
        self.clock.advance(seconds)
        assert list(self.collector.read()) == []

    @property
    def conditions(self) -> dict[str, dict[str, str]]:
        return {each["type"]: each for each in self.api.nodes["gpu-node-3"]["status"]["conditions"]}

    def status(self, alert: str) -> str | None:
        found = self.conditions.get(f"Stallscope{alert}")
        return None if found is None else found["status"]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server_at(tmp_path_factory.mktemp("api")) as server:
        yield server


@pytest.fixture
def node(api: ApiServer) -> Node:
    return Node(api)


def test_a_healthy_node_has_conditions_that_are_false_for_what_its_driver_reports(node: Node) -> None:
    node.read()
    assert {kind: each["status"] for kind, each in node.conditions.items()} == {
        "Ready": "True",
        "StallscopeGpuLost": "False",
        "StallscopeGpuXidHw": "False",
        "StallscopeGpuEccUncorrected": "False",
        "StallscopeGpuRowRemapPending": "False",  # row_remap_failed is not reported by this driver
    }
    assert node.conditions["Ready"] == READY
    assert node.conditions["StallscopeGpuLost"]["reason"] == "NoGpuLost"


@pytest.mark.parametrize(
    ("alert", "key", "value", "labels", "message"),
    [
        ("GpuEccUncorrected", ECC, 2, ("uncorrected",), "2 uncorrectable memory errors"),
        ("GpuRowRemapPending", REMAP_PENDING, 1, (), "in use until it is reset"),
        ("GpuRowRemapFailed", REMAP_FAILED, 1, (), "No spare row"),
    ],
)
def test_a_fault_sets_its_condition_and_recovery_clears_it(
    alert: str, key: Any, value: float, labels: Labels, message: str, node: Node
) -> None:
    node.read()
    node.set(key, value, "1", *labels)
    node.read()
    fault = node.conditions[f"Stallscope{alert}"]
    assert (fault["status"], fault["reason"]) == ("True", alert)
    assert message in fault["message"]
    assert fault["message"].startswith("GPU 1 (GPU-1): ")
    assert node.status("GpuLost") == "False"
    node.set(key, 0, "1", *labels)
    node.read()
    cleared = node.conditions[f"Stallscope{alert}"]
    assert (cleared["status"], cleared["reason"]) == ("False", f"No{alert}")
    assert cleared["lastTransitionTime"] > fault["lastTransitionTime"]


@pytest.mark.parametrize("reason", sorted(LOSSES))
def test_only_a_loss_of_the_hardware_is_a_lost_gpu(reason: str, node: Node) -> None:
    node.lose("0", reason)
    node.read()
    assert node.status("GpuLost") == ("True" if reason in HARDWARE else "False")


def test_a_lost_gpu_keeps_the_faults_that_it_can_no_longer_report(node: Node) -> None:
    node.set(ECC, 1, "0", "uncorrected")
    node.read()
    node.lose("0", "gpu_lost")
    node.read()
    assert (node.status("GpuLost"), node.status("GpuEccUncorrected")) == ("True", "True")
    assert "drain the node and reboot" in node.conditions["StallscopeGpuLost"]["message"]


def test_an_xid_of_the_hardware_counts_as_long_as_in_the_rules(node: Node) -> None:
    node.set(XID, node.clock.time(), "0", "31")
    node.read()
    assert node.status("GpuXidHw") == "False"
    node.set(XID, node.clock.time(), "0", "48")
    node.read()
    assert node.conditions["StallscopeGpuXidHw"]["message"] == "GPU 0 (GPU-0): It reported Xid 48."
    node.read(3500)
    assert node.status("GpuXidHw") == "True"
    node.read(100)
    assert node.status("GpuXidHw") == "False"


def test_an_xid_from_before_a_loss_does_not_count_when_the_gpu_is_back(node: Node) -> None:
    node.set(XID, node.clock.time(), "0", "79")
    node.lose("0", "gpu_lost")
    node.read()
    node.set(UP, 1, "0")
    node.set(LOST, None, "0", "gpu_lost")
    node.read()
    assert (node.status("GpuLost"), node.status("GpuXidHw")) == ("False", "False")
    node.set(XID, node.clock.time(), "0", "79")
    node.read()
    assert node.status("GpuXidHw") == "True"


def test_the_classes_of_xids_are_those_of_the_rules() -> None:
    assert {"48", "79", "95"} <= xids_of_hardware().keys()
    assert not {"13", "31", "63", "94"} & xids_of_hardware().keys()


def test_mig_instances_set_no_condition(node: Node) -> None:
    node.samples[UP, ("0", "MIG-0", "1g.10gb")] = 0
    node.samples[family("stallscope_gpu_lost_info"), ("0", "MIG-0", "gpu_lost", "1g.10gb")] = 1
    node.read()
    assert node.status("GpuLost") == "False"


def test_an_unchanged_condition_is_sent_every_five_minutes_with_its_old_transition(node: Node) -> None:
    node.read()
    first = node.conditions["StallscopeGpuLost"]
    sent = len(node.api.patches)
    node.read(100)
    assert len(node.api.patches) == sent
    node.read(200)
    assert len(node.api.patches) == sent + 1
    second = node.conditions["StallscopeGpuLost"]
    assert second["lastHeartbeatTime"] > first["lastHeartbeatTime"]
    assert second["lastTransitionTime"] == first["lastTransitionTime"]


def test_the_transition_is_kept_over_a_restart_of_the_exporter(api: ApiServer) -> None:
    since = "2026-11-20T08:00:00Z"
    node = Node(api, {"type": "StallscopeGpuLost", "status": "True", "reason": "GpuLost", "lastTransitionTime": since})
    assert api.patches == []  # not before each GPU was read
    node.lose("1", "reset_required")
    node.read()
    assert (node.status("GpuLost"), node.conditions["StallscopeGpuLost"]["lastTransitionTime"]) == ("True", since)


def test_a_condition_that_was_removed_by_others_is_sent_again(node: Node) -> None:
    node.read()
    node.api.nodes["gpu-node-3"]["status"]["conditions"] = [READY]
    node.read(300)
    assert node.status("GpuLost") == "False"


def test_a_refusal_names_the_permission_and_is_tried_again_later(node: Node) -> None:
    node.api.refusals = [403]
    for _ in range(2):
        with pytest.raises(KubernetesApiFailed, match=r"HTTP status 403; let the exporter's service account patch"):
            node.read(30 if node.api.refusals else 1)
    node.read()
    assert node.status("GpuLost") == "False"


@pytest.mark.parametrize("status", [409, 500, 422])
def test_a_status_that_is_an_error_leaves_the_conditions(status: int, node: Node) -> None:
    node.read()
    node.set(ECC, 1, "0", "uncorrected")
    node.api.refusals = [status]
    with pytest.raises(KubernetesApiFailed, match=f"HTTP status {status}"):
        node.read()
    assert node.status("GpuEccUncorrected") == "False"
    node.read()
    assert node.status("GpuEccUncorrected") == "True"


def test_an_unknown_node_and_a_silent_server_are_failures(node: Node, api: ApiServer) -> None:
    api.nodes.clear()
    with pytest.raises(KubernetesApiFailed, match="the cluster has no node gpu-node-3"):
        node.read()
    settings = KubernetesSettings("gpu-node-3", ("127.0.0.1", free_port()))
    environment = Environment(
        api.account.parents[4], clock=node.clock, kubernetes=settings, exposed=node.collector.environment.exposed
    )
    silent = NodeConditions(environment)
    silent.read()
    node.clock.advance(30)
    with pytest.raises(KubernetesApiFailed, match="no response"):
        silent.read()


def test_without_the_nodes_name_or_a_gpu_nothing_is_sent(node: Node, api: ApiServer) -> None:
    with pytest.raises(NotPresent, match=r"--kubernetes\.node is not set"):
        NodeConditions(Environment()).read()
    node.samples.clear()
    with pytest.raises(NotPresent, match="no GPU so far"):
        node.read()
    assert api.patches == []


def test_each_change_of_a_condition_is_an_event_about_the_node(node: Node) -> None:
    node.read()
    assert node.api.events == []
    node.set(ECC, 2, "1", "uncorrected")
    node.read()
    node.read(300)  # a heartbeat
    (fault,) = node.api.events
    assert (fault["type"], fault["reason"]) == ("Warning", "GpuEccUncorrected")
    assert fault["message"] == node.conditions["StallscopeGpuEccUncorrected"]["message"]
    assert fault["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "gpu-node-3", "uid": "gpu-node-3"}
    node.set(ECC, 0, "1", "uncorrected")
    node.read()
    assert [(each["type"], each["reason"]) for each in node.api.events[1:]] == [("Normal", "NoGpuEccUncorrected")]


def test_a_fault_from_before_a_restart_is_no_new_event(api: ApiServer) -> None:
    known = {"type": "StallscopeGpuLost", "status": "True", "reason": "GpuLost"}
    node = Node(api, {**known, "lastTransitionTime": "2026-11-20T08:00:00Z"})
    node.lose("1", "reset_required")
    node.read()
    assert (node.status("GpuLost"), api.events) == ("True", [])


def test_an_event_that_is_refused_leaves_the_condition_and_is_created_later(node: Node) -> None:
    node.read()
    node.set(REMAP_PENDING, 1, "0")
    node.api.event_refusals = [403]
    with pytest.raises(KubernetesApiFailed, match=r"events: refused with HTTP status 403; .* create events"):
        node.read()
    assert (node.status("GpuRowRemapPending"), node.api.events) == ("True", [])
    node.read()
    assert [each["reason"] for each in node.api.events] == ["GpuRowRemapPending"]


def test_conditions_are_off_by_default() -> None:
    assert not NodeConditions.enabled_by_default
