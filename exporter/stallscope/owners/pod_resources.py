"""Which container of which pod was given which device: the kubelet's PodResources service.

The kubelet serves it on `/var/lib/kubelet/pod-resources/kubelet.sock` (Kubernetes 1.20 and newer). In a container,
mount that folder from the host, read-only, and not the socket itself: the kubelet makes a new one when it starts again.
Connecting takes root, or the socket's group. Devices that pods got by dynamic resource allocation (DRA) are told where
the kubelet's feature gate KubeletPodResourcesDynamicResources is on.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stallscope.owners.protobuf import Malformed, fields, inner, text

if TYPE_CHECKING:
    from stallscope.owners.unix_grpc import UnixChannel

SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
_LIST = "/v1.PodResourcesLister/List"

# Kubernetes' resource names for GPUs; `nvidia.com` alone also stands for network devices.
_GPU_RESOURCE = re.compile(r"(?:nvidia\.com/(?:gpu|mig-)|amd\.com/gpu)")
_GPU_DEVICE = re.compile(r"(?:GPU|MIG)-")
"""Resources may be renamed in a device plugin's configuration, which leaves the ids as they are."""
_GPU_CLAIM = re.compile(r"(?:.*\.)?gpu\.(?:nvidia|amd)\.com(?:/.*)?|(?:nvidia|amd)\.com/gpu=.*")
"""Drivers of DRA, and CDI names where the kubelet is too old to tell the driver."""
_LONGEST_NAME = 253
"""Characters of a name in Kubernetes; names become labels, and nobody may make those long."""


class Container(NamedTuple):
    """A container by its names in Kubernetes."""

    namespace: str
    pod: str
    name: str


class Allocation(NamedTuple):
    """One GPU device that a container was given."""

    container: Container
    names: tuple[str, ...]
    """What the device is called; several names for the same device under DRA."""


class PodResourcesFailed(Exception):
    """The kubelet did not answer, or not sensibly. `reason` is `unavailable` or `malformed`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PodResources:
    """Asks the kubelet. For one thread."""

    def __init__(self, root: Path) -> None:
        """Prepare; nothing is opened before the first question.

        Args:
            root: where `var` lies.
        """
        self._path = str(root / SOCKET)
        self._channel: UnixChannel | None = None
        self._answer = b""
        self._allocations: tuple[Allocation, ...] = ()

    def present(self) -> bool:
        """Whether there is a kubelet's socket, or something that only some may look into."""
        try:
            os.stat(self._path)  # noqa: PTH116 - the cheap way
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            pass  # the call will say what is wrong
        return True

    def allocations(self, seconds: float) -> tuple[Allocation, ...]:
        """Every GPU that a container was given.

        Args:
            seconds: how long the kubelet may take.

        Raises:
            PodResourcesFailed: no answer, or none that can be read.
        """
        # Only here, for the memory that it takes.
        from stallscope.owners.unix_grpc import CallFailed, UnixChannel

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
        Malformed: it is none.
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
    devices: list[tuple[str, ...]] = []
    for number, content in fields(message):
        if number == 1:
            name = _name(number, content)
        elif number == 2:
            devices += _devices(inner(number, content))
        elif number == 5:
            devices += _dynamic(inner(number, content))
    container = Container(namespace, pod, name)
    return [Allocation(container, names) for names in devices]


def _devices(message: bytes) -> list[tuple[str, ...]]:
    """`ContainerDevices`: what a device plugin handed out."""
    resource = ""
    devices: list[str] = []
    for number, content in fields(message):
        if number == 1:
            resource = text(number, content)
        elif number == 2:
            devices.append(text(number, content)[:_LONGEST_NAME])
    return [(device,) for device in devices if _GPU_RESOURCE.match(resource) or _GPU_DEVICE.match(device)]


def _dynamic(message: bytes) -> list[tuple[str, ...]]:
    """`DynamicResource`: what a claim was given."""
    return [names for number, content in fields(message) if number == 4 if (names := _claim(inner(number, content)))]


def _claim(message: bytes) -> tuple[str, ...]:
    """`ClaimResource`: one device, by its own name and those of the container device interface."""
    driver = device = ""
    interfaces: list[str] = []
    for number, content in fields(message):
        if number == 1:
            interfaces += [text(*field) for field in fields(inner(number, content)) if field[0] == 1]
        elif number == 2:
            driver = text(number, content)
        elif number == 4:
            device = text(number, content)
    if not any(_GPU_CLAIM.fullmatch(kind) for kind in (driver, *interfaces)):
        return ()
    names = (device, *(interface.partition("=")[2] for interface in interfaces))
    return tuple(name[:_LONGEST_NAME] for name in names if name)


def _name(number: int, content: bytes | None) -> str:
    """A name of Kubernetes' own.

    Raises:
        Malformed: Kubernetes has none so long.
    """
    name = text(number, content)
    if len(name) > _LONGEST_NAME:
        raise Malformed(f"field {number} holds a name of {len(name)} characters, {_LONGEST_NAME} at most were expected")
    return name
