"""The client of the Kubernetes API, with each answer of a real API server as it came (kubernetes_answers/README.md)."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from stallscope.node.owners import kubernetes_api
from stallscope.node.owners.cluster import KubernetesApiFailed, Workload
from stallscope.node.owners.kubernetes_api import ACCOUNT, KubernetesApi
from stallscope.node.owners.pod_resources import ClaimedDevice
from tests.handled import handled, reply
from tests.owners.api_server import answer
from tests.web.certificates import Authority, needs_openssl

pytestmark = needs_openssl
PATIENCE = 60.0
RECORDED: list[dict[str, Any]] = answer("recorded_1.36.3.json")
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DEVICES = {
    ClaimedDevice("gpu.nvidia.com", "gpu-node-3", "gpu-0"): ("GPU-57a1d000-0000-4000-8000-000000000000",),
    ClaimedDevice("gpu.nvidia.com", "gpu-node-3", "gpu-1"): ("0000:20:00.0",),
    ClaimedDevice("gpu.example.org", "others", "card-0"): ("GPU-57a1d000-0000-4000-8000-000000000001",),
}


class Handler(BaseHTTPRequestHandler):
    """Answers with what the real server answered to the same request of the same account, and to no other request."""

    def do_GET(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def _answer(self) -> None:
        account = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        requested = (account, self.command, self.path, self.headers["Accept"])
        names = ("account", "method", "path", "accept")
        found = [each for each in RECORDED if tuple(each[name] for name in names) == requested]
        assert len(found) == 1, f"not recorded: {requested}"
        content = found[0]["answer"]
        body = content if isinstance(content, str) else json.dumps(content)
        reply(self, body.encode(), status=found[0]["status"], headers={"Content-Type": found[0]["content_type"]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, KubernetesApi]]:
    root = tmp_path_factory.mktemp("api")
    (root / ACCOUNT).mkdir(parents=True)
    authority = Authority(root)
    (root / ACCOUNT / "ca.crt").write_bytes(authority.certificate.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server"))
    with handled(Handler, context) as address:
        host, _, port = address.partition(":")
        yield root / ACCOUNT / "token", KubernetesApi(root, (host, int(port)), "gpu-node-3")


@pytest.fixture
def client(server: tuple[Path, KubernetesApi]) -> KubernetesApi:
    server[0].write_text("exporter")
    return server[1]


def pod_of(owner: str) -> str:
    """Return the pod whose name begins like this."""
    names = {each["path"].rpartition("/")[2] for each in RECORDED if "/pods/" in each["path"]}
    (name,) = (each for each in names if each.startswith(owner))
    return str(name)


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("resnet-", Workload("team-a", "Job", "resnet")),
        ("llama-workers-", Workload("team-b", "TrainJob", "llama")),
        ("tune-0", Workload("", "RayJob", "tune")),
        ("gone", Workload()),
    ],
    ids=["Job", "JobSet", "RayCluster", "deleted pod"],
)
def test_queue_and_owner_are_found(client: KubernetesApi, pod: str, workload: Workload) -> None:
    assert client.workload("research", pod_of(pod), PATIENCE) == workload


def test_an_owner_whose_api_the_server_does_not_have_is_the_workload(
    client: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/apis/ray.io/v2/namespaces/{}/rayclusters/{}"
    monkeypatch.setitem(kubernetes_api._MADE_BY_OTHERS, "RayCluster", path)
    assert client.workload("research", "tune-0", PATIENCE) == Workload("", "RayCluster", "tune-x1")


@pytest.mark.parametrize("page", [50, 1])
def test_devices_are_found_on_one_page_and_on_several(
    client: KubernetesApi, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "_PAGE", page)
    assert client.device_names(PATIENCE) == DEVICES


def test_a_version_of_slices_that_the_server_does_not_have_is_no_failure(
    client: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "_VERSIONS", ("v1beta9", "v1"))
    assert client.device_names(PATIENCE) == DEVICES


def test_slices_that_are_requested_as_metadata_are_refused(client: KubernetesApi) -> None:
    query = "fieldSelector=spec.nodeName%3Dgpu-node-3&limit=50"
    with pytest.raises(
        KubernetesApiFailed, match=r"HTTP status 406 \(you requested PartialObjectMetadata, but the req"
    ):
        client._get(f"{SLICES}?{query}", PATIENCE, kubernetes_api._METADATA)


def test_a_condition_of_the_node_is_merged(client: KubernetesApi) -> None:
    condition = {"type": "StallscopeGpu", "status": "True", "reason": "R", "message": "m"}
    found = client.patch_conditions([condition], PATIENCE)
    assert [{name: each[name] for name in condition} for each in found if each["type"] == "StallscopeGpu"] == [
        condition
    ]


@pytest.mark.parametrize(
    ("account", "status", "permission"),
    [("other", 403, "get pods, jobsets and rayclusters"), ("unknown", 401, "get pods, jobsets and rayclusters")],
)
def test_a_refused_account_is_reported_with_the_permission(
    server: tuple[Path, KubernetesApi], account: str, status: int, permission: str
) -> None:
    server[0].write_text(account)
    with pytest.raises(KubernetesApiFailed, match=f"refused with HTTP status {status}; let the .* {permission}"):
        server[1].workload("research", pod_of("resnet-"), PATIENCE)


def test_an_account_without_permissions_gets_no_devices_and_no_conditions(
    server: tuple[Path, KubernetesApi],
) -> None:
    server[0].write_text("other")
    with pytest.raises(KubernetesApiFailed, match="HTTP status 403"):
        server[1].device_names(PATIENCE)
    with pytest.raises(KubernetesApiFailed, match=r"HTTP status 403; let the .* patch nodes/status"):
        server[1].patch_conditions([], PATIENCE)
