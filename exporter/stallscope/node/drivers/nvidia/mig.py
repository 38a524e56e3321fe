"""MIG instances: parts of a GPU that are monitored like GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stallscope.node.drivers.device import DeviceLost, DriverError, Identity, Unsupported
from stallscope.node.drivers.nvidia.device import NvmlDevice
from stallscope.node.drivers.nvidia.gpm import ActivityMeter
from stallscope.node.drivers.nvidia.library import Handle
from stallscope.node.drivers.nvidia.session import NotFound
from stallscope.node.drivers.retry import EARLY, Retry

_PROFILE = re.compile(r"(?:\d+c\.)?\d+g\.\d+gb\S*")
_MEBIBYTES_A_GIBIBYTE = 1024
_MOST_INSTANCES = 64
_MOST_INSTANCE_ID = 1 << 16
_UNKNOWN = "unknown"
_ANSWERED = frozenset(
    {
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetName",
        "nvmlDeviceGetAttributes",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses",
    }
)
"""Values that the driver reports for an instance; all others belong to the whole GPU."""


class MigInstances:
    """The present instances of one GPU."""

    def __init__(self, parent: NvmlDevice) -> None:
        """Start without instances."""
        self._parent = parent
        self._known: dict[str, NvmlInstance] = {}
        self._at_most: int | None = None
        self._was_on: bool | None = None

    def read(self) -> list[NvmlInstance] | None:
        """Return the present instances, as the same objects while they exist; None if MIG is off."""
        parent = self._parent
        try:
            current, _ = parent.call("nvmlDeviceGetMigMode")
        except Unsupported as refusal:
            if self._was_on:  # a GPU that is cut up does not become whole by a refusal
                raise DriverError("busy", str(refusal)) from None
            return None
        if self._was_on is not None and self._was_on != (current == 1):
            parent.forget()
        self._was_on = current == 1
        if not self._was_on:
            self._keep({})
            return None
        if self._at_most is None:
            self._at_most = min(parent.call("nvmlDeviceGetMaxMigDeviceCount"), _MOST_INSTANCES)
        found: dict[str, NvmlInstance] = {}
        for place in range(self._at_most):
            instance = self._at(place)
            if instance is not None:
                found[instance.identity().uuid] = instance
        self._keep(found)
        alone = [instance.gpu_instance for instance in found.values()]
        for instance in found.values():
            instance.shares = alone.count(instance.gpu_instance) > 1
        return list(found.values())

    def retire(self) -> None:
        """Release the driver's handles."""
        for instance in list(self._known.values()):
            instance.retire()

    def _keep(self, found: dict[str, NvmlInstance]) -> None:
        """Keep these instances, and drop those that were destroyed."""
        for uuid in self._known.keys() - found.keys():
            self._known[uuid].retire()
        self._known = found

    def _at(self, place: int) -> NvmlInstance | None:
        parent = self._parent
        try:
            handle = parent.call("nvmlDeviceGetMigDeviceHandleByIndex", place)
            uuid = parent.query("nvmlDeviceGetUUID", handle)
        except NotFound:
            return None
        except DriverError as problem:
            # Taken apart between the two calls.
            if problem.reason == "invalid_argument":
                return None
            raise
        known = self._known.get(_plain(uuid))
        if known is None:
            known = NvmlInstance(parent, handle)
        known.found_at(handle)
        return known


class NvmlInstance(NvmlDevice):
    """One MIG instance; implements `drivers.device.Device`. What belongs to the whole GPU is unsupported."""

    shares = False
    """True if other instances share the GPU instance, so that its activity can't be attributed."""

    def __init__(self, parent: NvmlDevice, handle: Handle) -> None:
        """Store parent and handle.

        Args:
            parent: the GPU that contains it.
            handle: the driver's handle of the instance.
        """
        super().__init__(parent.surroundings, parent.index, Retry(early=EARLY))
        self._parent = parent
        self._gpu_instance: int | None = None
        self._profile = ""
        self.found_at(handle)

    def found_at(self, handle: Handle) -> None:
        """Store the handle of the newest enumeration."""
        self._handle = handle

    @property
    def handle(self) -> Handle:
        """Return the driver's handle of the instance, as last enumerated."""
        if self._handle is None:
            raise DeviceLost("gpu_lost", "the instance has not been seen since its GPU was lost")
        return self._handle

    @property
    def gpu_instance(self) -> int:
        """Return the number of its GPU instance (memory and engines); queried once."""
        if self._gpu_instance is None:
            number = self.call("nvmlDeviceGetGpuInstanceId")
            self._gpu_instance = self._plausibility.needed("GPU instance", number, _MOST_INSTANCE_ID)
        return self._gpu_instance

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function that the driver supports for instances."""
        if name not in _ANSWERED:
            raise Unsupported(f"{name} is not available for a MIG instance")
        return super().call(name, *arguments)

    @property
    def served(self) -> Mapping[str, str]:
        """See `Device`."""
        return {signal: call for signal, call in super().served.items() if call in _ANSWERED or call.startswith("GPM ")}

    def instances(self) -> None:
        """None: an instance has none."""

    def activity(self) -> Any:
        """GPM of the GPU instance."""
        if self.shares:
            raise Unsupported("several compute instances share one GPU instance: its activity can't be attributed")
        return super().activity()

    def _query_identity(self) -> Identity:
        parent = self._parent.known_identity
        uuid = self._text("nvmlDeviceGetUUID", self._plausibility.text, needed=True)
        if not uuid:
            raise DriverError("implausible", f"a MIG instance of GPU {parent.index} gives no UUID")
        return Identity(
            index=parent.index,
            uuid=uuid,
            model=parent.model,
            serial=parent.serial,
            pci_bus_id=parent.pci_bus_id,
            vbios_version=parent.vbios_version,
            architecture=parent.architecture,
            compute_capability=parent.compute_capability,
            mig=self._known_profile(),
            parent_uuid=parent.uuid,
            gpu_instance=self.gpu_instance,
        )

    def _known_profile(self) -> str:
        """Return the profile, queried until it is known."""
        if self._profile in {"", _UNKNOWN}:
            self._profile = self._query_profile()
        return self._profile

    def _query_profile(self) -> str:
        """Return a profile such as `1g.10gb`: the end of the name, or computed in NVIDIA's way."""
        name = self._plausibility.text(self._optional("nvmlDeviceGetName"))
        reported = _PROFILE.search(name)
        if reported is not None:
            return reported.group()
        attributes = self._optional("nvmlDeviceGetAttributes")
        if attributes is None:
            return _UNKNOWN
        slices, computing = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
        prefix = f"{computing}c." if computing != slices else ""
        return f"{prefix}{slices}g.{round(attributes.memorySizeMB / _MEBIBYTES_A_GIBIBYTE)}gb"

    def _activity_meter(self) -> ActivityMeter:
        if not self.query("nvmlGpmQueryDeviceSupport", self._parent.handle):
            raise Unsupported("this GPU has no GPM")
        instance = self.gpu_instance
        return self._meter_of(lambda sample: self.query("nvmlGpmMigSampleGet", self._parent.handle, instance, sample))


def _plain(uuid: str | bytes) -> str:
    return uuid.decode(errors="replace") if isinstance(uuid, bytes) else uuid
