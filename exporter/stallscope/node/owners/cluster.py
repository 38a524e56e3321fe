"""Facts from the Kubernetes API about pods with GPUs and claimed devices.

Two collectors exchange them: the collector of owners publishes what it needs, the collector of the API answers. Each
attribute is replaced as a whole, so neither waits for the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stallscope.node.owners.pod_resources import ClaimedDevice

Pod = tuple[str, str]
"""Namespace and name."""


class Workload(NamedTuple):
    """Queue and owner of a pod; unknown parts are empty."""

    queue: str = ""
    """Queue of Kueue or Volcano."""
    kind: str = ""
    """Kind of the object that the user created, such as Job, PyTorchJob, RayJob or TrainJob."""
    name: str = ""


class KubernetesApiFailed(Exception):
    """The API did not respond, refused, or returned something else. The message has the remedy."""


class Cluster:
    """Requests of one collector, and the answers of the other."""

    def __init__(self) -> None:
        self.pods: frozenset[Pod] = frozenset()
        """Pods that hold a GPU."""
        self.claims: frozenset[ClaimedDevice] = frozenset()
        """Devices that claims were given."""
        self.workloads: Mapping[Pod, Workload] = {}
        """Known workloads of these pods."""
        self.device_names: Mapping[ClaimedDevice, tuple[str, ...]] = {}
        """UUID or PCI address of each published device."""
