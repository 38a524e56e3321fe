"""Devices of each pod's containers, from the kubelet's PodResources service.

The kubelet serves it on `/var/lib/kubelet/pod-resources/kubelet.sock` (Kubernetes 1.20 and newer). In a container,
mount that folder from the host, read-only, and not the socket itself: the kubelet makes a new one when it starts again.
Connecting takes root, or the socket's group. Devices from dynamic resource allocation (DRA) are reported where
the kubelet's feature gate KubeletPodResourcesDynamicResources is on.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stallscope.node.owners.protobuf import Malformed, fields, inner, text

if TYPE_CHECKING:
    from stallscope.node.owners.unix_grpc import UnixChannel

SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
_LIST = "/v1.PodResourcesLister/List"

# Kubernetes' resource names for GPUs; `nvidia.com` alone also stands for network devices.
_GPU_RESOURCE = re.compile(r"nvidia\.com/(?:gpu|mig-)|amd\.com/(?:gpu|[a-z]px_nps\d)")
_GPU_DEVICE = re.compile(r"(?:GPU|MIG)-")
"""Resources may be renamed in a device plugin's configuration, which leaves the ids as they are."""
_GPU_CLAIM = re.compile(r"(?:.*\.)?gpu\.(?:nvidia|amd)\.com(?:/.*)?|(?:nvidia|amd)\.com/gpu=.*")
"""Drivers of DRA, and CDI names for kubelets that are too old to report the driver."""
_LONGEST_NAME = 253
"""Longest name in Kubernetes; names become labels, which must not be longer."""


class Container(NamedTuple):
    """A container by its names in Kubernetes."""

    namespace: str
    pod: str
    name: str


class ClaimedDevice(NamedTuple):
    """A device of dynamic resource allocation, by its names in ResourceSlices."""

    driver: str
    pool: str
    device: str


class Allocation(NamedTuple):
    """One GPU device that is allocated to a container."""

    container: Container
    names: tuple[str, ...]
    """Names of the device; several for the same device under DRA, none if its driver is not known to be of GPUs."""
    claimed: ClaimedDevice | None = None
    """The device in its driver's pool, if a claim was given it and the kubelet reports the driver."""


_Device = tuple[tuple[str, ...], ClaimedDevice | None]
"""Names of a device, and the device in its driver's pool."""


class PodResourcesFailed(Exception):
    """The kubelet did not respond, or its response is malformed. `reason` is `unavailable` or `malformed`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PodResources:
    """Client of the kubelet. Not thread-safe."""

    def __init__(self, root: Path) -> None:
        """Prepare; nothing is opened before the first request.

        Args:
            root: folder that contains `var`.
        """
        self._path = str(root / SOCKET)
        self._channel: UnixChannel | None = None
        self._answer = b""
        self._allocations: tuple[Allocation, ...] = ()

    def present(self) -> bool:
        """Return True if the kubelet's socket exists, or its folder is not readable."""
        try:
            os.stat(self._path)  # noqa: PTH116 - the cheap way
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            pass  # the call will say what is wrong
        return True

    def allocations(self, seconds: float) -> tuple[Allocation, ...]:
        """Return every GPU that is allocated to a container.

        Args:
            seconds: maximum seconds to wait for the kubelet.

        Raises:
            PodResourcesFailed: no response, or a malformed one.
        """
        # Only here, for the memory that it takes.
        from stallscope.node.owners.unix_grpc import CallFailed, UnixChannel

        if self._channel is None:
            self._channel = UnixChannel(self._path)
        try:
            answer = self._channel.call(_LIST, b"", seconds)
            if answer != self._answer:  # most often nothing has changed
                self._allocations = decoded(answer)
                self._answer = answer
        except CallFailed as problem:
            raise PodResourcesFailed(problem.reason, str(problem)) from None
        except Malformed as problem:
            raise PodResourcesFailed("malformed", f"{self._path}: the list of pods can't be read: {problem}") from None
        return self._allocations

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()


def decoded(answer: bytes) -> tuple[Allocation, ...]:
    """Return the GPUs in a `ListPodResourcesResponse`.

    Raises:
        Malformed: it is not one.
    """
    found: list[Allocation] = []
    for number, content in fields(answer):
        if number == 1:
            found += _pod(inner(number, content))
    return tuple(found)


def _pod(message: bytes) -> list[Allocation]:
    name = namespace = ""
    containers: list[bytes] = []
    for number, content in fields(message):
        if number == 1:
            name = _name(number, content)
        elif number == 2:
            namespace = _name(number, content)
        elif number == 3:
            containers.append(inner(number, content))
    return [each for container in containers for each in _container(namespace, name, container)]


def _container(namespace: str, pod: str, message: bytes) -> list[Allocation]:
    name = ""
    devices: list[_Device] = []
    for number, content in fields(message):
        if number == 1:
            name = _name(number, content)
        elif number == 2:
            devices += ((names, None) for names in _devices(inner(number, content)))
        elif number == 5:
            devices += _dynamic(inner(number, content))
    container = Container(namespace, pod, name)
    return [Allocation(container, *device) for device in devices]


def _devices(message: bytes) -> list[tuple[str, ...]]:
    """Parse `ContainerDevices`: devices that a device plugin allocated."""
    resource = ""
    devices: list[str] = []
    for number, content in fields(message):
        if number == 1:
            resource = text(number, content)
        elif number == 2:
            devices.append(text(number, content)[:_LONGEST_NAME])
    return [(device,) for device in devices if _GPU_RESOURCE.match(resource) or _GPU_DEVICE.match(device)]


def _dynamic(message: bytes) -> list[_Device]:
    """Parse `DynamicResource`: devices that were allocated to a claim."""
    found = (_claim(inner(number, content)) for number, content in fields(message) if number == 4)
    return [(names, claimed) for names, claimed in found if names or claimed is not None]


def _claim(message: bytes) -> _Device:
    """Parse `ClaimResource`: one device, with its name and those of the container device interface."""
    driver = pool = device = ""
    interfaces: list[str] = []
    for number, content in fields(message):
        if number == 1:
            interfaces += [text(*field) for field in fields(inner(number, content)) if field[0] == 1]
        elif number == 2:
            driver = text(number, content)
        elif number == 3:
            pool = text(number, content)
        elif number == 4:
            device = text(number, content)
    claimed = ClaimedDevice(driver, pool, device) if driver and device else None
    if not any(_GPU_CLAIM.fullmatch(kind) for kind in (driver, *interfaces)):
        return (), claimed  # a GPU only if the driver has published a GPU's UUID or PCI address for it
    names = (device, *(interface.partition("=")[2] for interface in interfaces))
    return tuple(name[:_LONGEST_NAME] for name in names if name), claimed


def _name(number: int, content: bytes | None) -> str:
    """Parse a name of a Kubernetes object.

    Raises:
        Malformed: the name is longer than Kubernetes allows.
    """
    name = text(number, content)
    if len(name) > _LONGEST_NAME:
        raise Malformed(f"field {number} holds a name of {len(name)} characters, {_LONGEST_NAME} at most were expected")
    return name
