"""Namespace and name of the pod that this process runs in, where its environment does not have them."""

from __future__ import annotations

import os
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMESPACE = "var/run/secrets/kubernetes.io/serviceaccount/namespace"


def namespace(root: str) -> str:
    """Return the namespace of the pod's service account; empty without one."""
    with suppress(OSError), open(os.path.join(root, _NAMESPACE), encoding="utf-8", errors="replace") as file:
        return file.read(256).strip()
    return ""


def name(environment: Mapping[str, str], root: str) -> str:
    """Return the name of the pod if it is that of its host, empty where that is not certain."""
    host = environment.get("HOSTNAME", "")
    if len(host) >= 63:  # a longer pod's name is cut for its host
        return ""
    index = environment.get("JOB_COMPLETION_INDEX", "")
    if index and host.endswith(f"-{index}"):  # an indexed job gives hosts other names than their pods
        return ""
    with suppress(OSError), open(os.path.join(root, "etc/hosts"), encoding="utf-8", errors="replace") as file:
        return host if file.readline().strip() == "# Kubernetes-managed hosts file." else ""  # the node's says so
    return ""
