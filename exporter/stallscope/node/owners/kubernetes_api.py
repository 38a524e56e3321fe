"""Requests to the Kubernetes API, as the pod's service account: pods' metadata, a node's devices, its conditions.

The account may `get` pods, jobsets and rayclusters, and `list` resourceslices; for the collector of node conditions
also `patch` nodes/status and `create` events. Of the first three only the metadata is requested; slices are requested
whole, because their metadata has no devices. This module is imported only with `--kubernetes.node`, because ssl takes
memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stallscope.common.cluster_tls import client_context
from stallscope.node.owners.cluster import KubernetesApiFailed, Workload
from stallscope.node.owners.pod_resources import ClaimedDevice

ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"
_MOST_BYTES = 16 * 2**20
_LONGEST = 253
_LONGEST_TOKEN = 4096
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_WHOLE = "application/json"
_MERGE = "application/strategic-merge-patch+json"
"""Type of a patch that merges conditions by their type, and leaves the others as they are."""
_EVENTS_IN = "default"
"""Namespace of events about objects that have none."""
_READING = "get pods, jobsets and rayclusters, and list resourceslices"
_PAGE = 50
"""Slices of one response; a slice has up to 128 devices."""
_MOST_PAGES = 20
_VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Versions of resource.k8s.io with devices in slices, newest first: Kubernetes 1.34, 1.33 and 1.32."""
_QUEUES = (
    "kueue.x-k8s.io/local-queue-name",  # set on pods by Kueue
    "kueue.x-k8s.io/queue-name",  # set by users, on plain pods and in pod templates
    "scheduling.volcano.sh/queue-name",
    "volcano.sh/queue-name",
)
"""Labels and annotations with the queue of a pod."""
_JOB_SETS = "jobset.sigs.k8s.io/jobset-name"
_MADE_BY_OTHERS = {
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets/{}",  # by a TrainJob
    "RayCluster": "/apis/ray.io/v1/namespaces/{}/rayclusters/{}",  # by a RayJob or a RayService
}
"""Kinds of owners that are often not created by the user, and their paths in the API."""
_UUID = "uuid"
_PCI_ADDRESSES = ("pciBusID", "pciAddr", "pciAddress")


class KubernetesApi:
    """Client of the API server. Opens a connection for each request, since requests are rare. Not thread-safe."""

    def __init__(self, root: Path, address: tuple[str, int], node: str) -> None:
        """Prepare; nothing is opened before the first request.

        Args:
            root: folder that contains `var`.
            address: host and port of the API server.
            node: name of this node.
        """
        self._account = root / ACCOUNT
        self._address = address
        self._node = node

    def workload(self, namespace: str, pod: str, seconds: float) -> Workload:
        """Return queue and owner of a pod; an empty workload if the pod is gone.

        Raises:
            KubernetesApiFailed: the API did not return the pod or its owner.
        """
        found = self._workload("/api/v1/namespaces/{}/pods/{}", namespace, pod, seconds)
        if found.kind not in _MADE_BY_OTHERS:
            return found
        above = self._workload(_MADE_BY_OTHERS[found.kind], namespace, found.name, seconds)
        owner = above if above.kind else found
        return Workload(found.queue or above.queue, owner.kind, owner.name)

    def device_names(self, seconds: float) -> Mapping[ClaimedDevice, tuple[str, ...]]:
        """Return UUID or PCI address of each device that drivers have published for this node.

        Raises:
            KubernetesApiFailed: the API did not return the slices.
        """
        for version in _VERSIONS:
            slices = self._slices(f"/apis/resource.k8s.io/{version}/resourceslices", seconds)
            if slices is not None:
                return devices_of(slices)
        return {}

    def patch_conditions(self, conditions: Iterable[Mapping[str, str]], seconds: float) -> list[Mapping[str, Any]]:
        """Merge conditions into those of this node; return all that it has now. Without conditions nothing changes.

        Raises:
            KubernetesApiFailed: the API did not change them.
        """
        changed = list(conditions)
        # An empty patch returns the node without a permission to get it.
        patch = {"status": {"conditions": changed}} if changed else {}
        node = self._request(
            "PATCH",
            f"/api/v1/nodes/{quote(self._node, '')}/status",
            seconds,
            {"Accept": _WHOLE, "Content-Type": _MERGE},
            "patch nodes/status",
            json.dumps(patch),
        )
        if node is None:
            raise KubernetesApiFailed(f"the cluster has no node {self._node}; check --kubernetes.node")
        return list(_mappings(_mapping(node.get("status")).get("conditions")))

    def create_event(self, kind: str, reason: str, message: str, moment: str, seconds: float) -> None:
        """Create an event about this node, which `kubectl describe node` lists.

        Args:
            kind: Normal or Warning.
            reason: a word in CamelCase.
            message: a sentence.
            moment: time in RFC 3339.
            seconds: longest wait.

        Raises:
            KubernetesApiFailed: the API did not create it.
        """
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{self._node}-", "namespace": _EVENTS_IN},
            # Components that write events about nodes use the name as its UID, and kubectl searches for that.
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node},
            "source": {"component": "stallscope", "host": self._node},
            "type": kind,
            "reason": reason,
            "message": message,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        headers = {"Accept": _WHOLE, "Content-Type": "application/json"}
        path = f"/api/v1/namespaces/{_EVENTS_IN}/events"
        if self._request("POST", path, seconds, headers, "create events", json.dumps(event)) is None:
            raise KubernetesApiFailed(f"the cluster has no namespace {_EVENTS_IN}, for events about nodes; create it")

    def _slices(self, path: str, seconds: float) -> list[Mapping[str, Any]] | None:
        """Return the slices of this node; None if the server does not have this version."""
        query = f"fieldSelector=spec.nodeName%3D{quote(self._node, '')}&limit={_PAGE}"
        found: list[Mapping[str, Any]] = []
        more = ""
        for _ in range(_MOST_PAGES):
            page = self._get(f"{path}?{query}{more and f'&continue={more}'}", seconds, _WHOLE)
            if page is None:
                return found if more else None
            found += _mappings(page.get("items"))
            more = quote(_text(_mapping(page.get("metadata")), "continue", _LONGEST_TOKEN), "")
            if not more:
                return found
        raise KubernetesApiFailed(
            f"{path}: this node has more than {_PAGE * _MOST_PAGES} slices; delete those that no driver maintains"
        )

    def _workload(self, path: str, namespace: str, name: str, seconds: float) -> Workload:
        """Return what the metadata of an object contains; an empty workload if the object is gone."""
        found = self._get(path.format(quote(namespace, ""), quote(name, "")), seconds, _METADATA)
        return Workload() if found is None else workload_of(_mapping(found.get("metadata")))

    def _get(self, path: str, seconds: float, accept: str) -> Mapping[str, Any] | None:
        """Return the object at a path, in this media type; None if there is none."""
        return self._request("GET", path, seconds, {"Accept": accept}, _READING)

    def _request(
        self,
        method: str,
        path: str,
        seconds: float,
        headers: Mapping[str, str],
        permission: str,
        body: str | None = None,
    ) -> Mapping[str, Any] | None:
        """Return the object of a response; None if the API has no such object.

        Args:
            method: GET, PATCH or POST.
            path: path and query.
            seconds: longest wait.
            headers: headers in addition to the authorization.
            permission: what the service account must be allowed to do.
            body: what to send.
        """
        host, port = self._address
        resource = path.partition("?")[0]
        try:
            token = (self._account / "token").read_text(encoding="ascii").strip()
            context = client_context(str(self._account / "ca.crt"))
        except (OSError, ValueError) as problem:
            raise KubernetesApiFailed(
                f"service account: {problem}; mount its token (automountServiceAccountToken: true)"
            ) from None
        connection = HTTPSConnection(host, port, timeout=seconds, context=context)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {token}", **headers})
            with connection.getresponse() as response:
                answer = response.read(_MOST_BYTES + 1)
        except (OSError, HTTPException) as problem:
            raise KubernetesApiFailed(
                f"Kubernetes API at {host}:{port}: no response ({problem or type(problem).__name__}); check that "
                "network policies permit TCP to the API server"
            ) from None
        finally:
            connection.close()
        if response.status == 404:
            return None
        if response.status in (401, 403):
            raise KubernetesApiFailed(
                f"{resource}: refused with HTTP status {response.status}; let the exporter's service account "
                f"{permission}"
            )
        try:
            if len(answer) > _MOST_BYTES:
                raise ValueError(f"more than {_MOST_BYTES} bytes")
            document = json.loads(answer)
            if not isinstance(document, dict):
                raise ValueError("it is no object")
        except ValueError as problem:
            raise KubernetesApiFailed(
                f"{resource}: the response with HTTP status {response.status} cannot be read ({problem}); check that "
                f"{host}:{port} is the API server"
            ) from None
        if response.status not in (200, 201):
            why = _text(document, "message") or "no reason given"
            raise KubernetesApiFailed(f"{resource}: HTTP status {response.status} ({why}); see the API server's log")
        return document


def workload_of(metadata: Mapping[str, Any]) -> Workload:
    """Return queue and owner of an object with this metadata."""
    labels, annotations = _mapping(metadata.get("labels")), _mapping(metadata.get("annotations"))
    queue = next((text for name in _QUEUES for each in (labels, annotations) if (text := _text(each, name))), "")
    return Workload(queue, *_owner(metadata, labels))


def _owner(metadata: Mapping[str, Any], labels: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name of the topmost owner that the metadata contains."""
    job_set = _text(labels, _JOB_SETS)
    if job_set:
        return "JobSet", job_set
    for owner in _mappings(metadata.get("ownerReferences")):
        if owner.get("controller") is True:
            kind, name = _text(owner, "kind"), _text(owner, "name")
            template = _text(labels, "pod-template-hash")
            if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
                return "Deployment", name.removesuffix(f"-{template}")
            return kind, name
    return "", ""


def devices_of(slices: Iterable[Mapping[str, Any]]) -> Mapping[ClaimedDevice, tuple[str, ...]]:
    """Return the names of each device in these ResourceSlices, if any; of each pool only its newest generation."""
    newest: dict[tuple[str, str], int] = {}
    found: list[tuple[int, ClaimedDevice, tuple[str, ...]]] = []
    for each in slices:
        spec = _mapping(each.get("spec"))
        pool = _mapping(spec.get("pool"))
        driver, pool_name, generation = _text(spec, "driver"), _text(pool, "name"), pool.get("generation")
        if not isinstance(generation, int):
            continue
        newest[driver, pool_name] = max(generation, newest.get((driver, pool_name), generation))
        for device in _mappings(spec.get("devices")):
            # Up to v1beta1 the attributes are in `basic`.
            attributes = _mapping(_mapping(device.get("basic", device)).get("attributes"))
            claimed = ClaimedDevice(driver, pool_name, _text(device, "name"))
            found.append((generation, claimed, tuple(_names(attributes))))
    return {
        claimed: names for generation, claimed, names in found if generation == newest[claimed.driver, claimed.pool]
    }


def _names(attributes: Mapping[str, Any]) -> Iterator[str]:
    """Yield the UUID of a device, or the PCI address of a whole GPU."""
    # A name without a domain is of the driver's own domain.
    texts = {name.rpartition("/")[2]: _text(_mapping(value), "string") for name, value in attributes.items()}
    if texts.get(_UUID):
        yield texts[_UUID]
    elif not re.search("mig|partition", texts.get("type", "")):
        yield from (texts[name] for name in _PCI_ADDRESSES if texts.get(name))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())


def _text(values: Mapping[str, Any], name: str, longest: int = _LONGEST) -> str:
    """Return a text that is short enough, by default for a label; the empty string if it is missing."""
    value = values.get(name)
    return value[:longest] if isinstance(value, str) else ""
