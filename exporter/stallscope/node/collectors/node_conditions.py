"""Hardware faults of GPUs as conditions and events of the node: `kubectl describe node`, and actors that read them.

Off by default (`--collector.node_conditions`); needs `--kubernetes.node`, and permissions to patch nodes/status and to
create events. Each change of a condition is an event. It
reads the samples that the exporter exposes, and judges nothing itself: a condition is a fault that the driver reports.
Which Xids are of the hardware, and how long they count, is read from the rules of this version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from stallscope.common.thresholds import default_thresholds
from stallscope.common.xids import xids_of_hardware
from stallscope.model.catalogue.gpu_losses import HARDWARE, explained
from stallscope.model.catalogue.metrics import Family, family
from stallscope.node.collectors.base import Collector, Environment, NotPresent, register
from stallscope.node.owners.cluster import KubernetesApiFailed
from stallscope.node.sampling.reading import Sample

if TYPE_CHECKING:
    from stallscope.node.owners.kubernetes_api import KubernetesApi

UP = family("stallscope_gpu_up")
LOST = family("stallscope_gpu_lost_info")
XID = family("stallscope_gpu_xid_last_timestamp_seconds")
ECC = family("stallscope_gpu_ecc_errors_total")
REMAP_FAILED = family("stallscope_gpu_row_remap_failed")
REMAP_PENDING = family("stallscope_gpu_row_remap_pending")

_TIMEOUT_SECONDS = 2.0
_LOOK_SECONDS = 10.0
"""Seconds between two comparisons of the samples with the conditions."""
_SETTLE_SECONDS = 30.0
"""Seconds after the start, until each GPU was read: conditions from before a restart must not change meanwhile."""
_HEARTBEAT_SECONDS = 300.0
"""Seconds after which an unchanged condition is sent again, as node-problem-detector does."""
_RETRY_SECONDS = 30.0
_LONGEST_MESSAGE = 1024
"""Characters, as the API permits for an event."""
_MOST_EVENTS = 16
"""Events to keep while the API does not create them."""


class _Fault(NamedTuple):
    """A condition, and the samples that set it."""

    alert: str
    """Alert on the same fault; the condition is named after it."""
    measured_by: Family
    text: Callable[[str, float, float], str]
    """Returns a sentence if a sample shows the fault, else the empty string. Arguments: the sample's last label, its
    value, and the value above which an Xid counts."""
    is_event: bool = False
    """True if the sample is absent without a fault. Others are absent where the driver does not report them."""


_FAMILIES = frozenset({UP, LOST, XID, ECC, REMAP_FAILED, REMAP_PENDING})
_FAULTS = (
    _Fault("GpuLost", LOST, lambda reason, _, __: explained(reason) if reason in HARDWARE else "", is_event=True),
    _Fault(
        "GpuXidHw",
        XID,
        lambda xid, at, since: f"It reported Xid {xid}." if at > since and xid in xids_of_hardware() else "",
        is_event=True,
    ),
    _Fault(
        "GpuEccUncorrected",
        ECC,
        lambda kind, errors, _: (
            f"It has {errors:.0f} uncorrectable memory errors since its last reset."
            if kind == "uncorrected" and errors > 0
            else ""
        ),
    ),
    _Fault(
        "GpuRowRemapFailed",
        REMAP_FAILED,
        lambda _, failed, __: "No spare row was left for a bad row of its memory." if failed == 1 else "",
    ),
    _Fault(
        "GpuRowRemapPending",
        REMAP_PENDING,
        lambda _, pending, __: "A bad row of its memory is in use until it is reset." if pending == 1 else "",
    ),
)


@register
class NodeConditions(Collector):
    """Sets a condition for each kind of fault, and writes events. Has no series of its own."""

    name = "node_conditions"
    summary = "Hardware faults of GPUs as conditions of the node (Kubernetes API; needs --kubernetes.node)."
    enabled_by_default = False

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._api: KubernetesApi | None = None
        self._faults: dict[str, dict[str, str]] = {}
        """Message by alert and UUID, as last measured; empty without a fault."""
        self._lost_at: dict[str, float] = {}
        self._sent: dict[str, Mapping[str, str]] | None = None
        """Conditions of the node by type; None before they were read."""
        self._sent_at = 0.0
        self._events: list[tuple[str, str, str, str]] = []
        """Events to create: kind, reason, message and moment."""
        self._due: float | None = None
        self._problem: KubernetesApiFailed | None = None

    def read(self) -> Iterable[Sample]:
        """Send conditions that have changed, and all of them every five minutes.

        Raises:
            NotPresent: the exporter was not given the node's name, or has no GPU so far.
            KubernetesApiFailed: the API does not respond, or refuses.
        """
        if self._api is None:
            self._api = self.environment.kubernetes_api()
        now = self.environment.clock.monotonic()
        if self._due is None:
            self._due = now + _SETTLE_SECONDS
        if now >= self._due:
            self._due = now + _LOOK_SECONDS
            try:
                self._send(self._conditions(), self._api, now)
                self._problem = None
            except KubernetesApiFailed as problem:
                self._problem, self._due = problem, now + _RETRY_SECONDS
        if self._problem is not None:
            raise self._problem
        return ()

    def _conditions(self) -> dict[str, dict[str, str]]:
        """Return type, status, reason and message of each condition that is measured on this node.

        Raises:
            NotPresent: there is no GPU so far.
        """
        now = self.environment.clock.time()
        samples: dict[tuple[Family, str], list[tuple[str, float]]] = {}
        gpus: dict[str, str] = {}
        for sample in self.environment.exposed():
            if sample.family in _FAMILIES and not _is_instance(sample) and isinstance(sample.value, (int, float)):
                index, uuid = sample.labels[:2]
                last = sample.labels[len(sample.family.labels) - 1]
                samples.setdefault((sample.family, uuid), []).append((last, sample.value))
                if sample.family is UP:
                    gpus[uuid] = index
                    # Only a reset or a reboot brings a lost GPU back: an Xid from before is dealt with then.
                    if sample.value == 0:
                        self._lost_at[uuid] = now
        if not gpus:
            raise NotPresent("no GPU so far")
        held_since = now - default_thresholds()["xid_hold_seconds"]
        found = {}
        for fault in _FAULTS:
            before = self._faults.get(fault.alert, {})
            faults = {}
            for uuid, index in gpus.items():
                since = max(held_since, self._lost_at.get(uuid, 0.0))
                measured = samples.get((fault.measured_by, uuid))
                if measured is not None:
                    texts = [text for each in measured if (text := fault.text(*each, since))]
                    faults[uuid] = f"GPU {index} ({uuid}): {' '.join(texts)}" if texts else ""
                elif fault.is_event:
                    faults[uuid] = ""
                elif uuid in before:  # a lost GPU reports nothing else
                    faults[uuid] = before[uuid]
            self._faults[fault.alert] = faults
            if faults:
                message = " ".join(filter(None, faults.values()))[:_LONGEST_MESSAGE]
                found[f"Stallscope{fault.alert}"] = {
                    "type": f"Stallscope{fault.alert}",
                    "status": "True" if message else "False",
                    "reason": fault.alert if message else f"No{fault.alert}",
                    "message": message or "No GPU of this node reports it.",
                }
        return found

    def _send(self, conditions: Mapping[str, Mapping[str, str]], api: KubernetesApi, now: float) -> None:
        if self._sent is None:
            self._sent = _by_type(api.patch_conditions((), _TIMEOUT_SECONDS))
            self._sent_at = float("-inf")
        is_heartbeat = now - self._sent_at >= _HEARTBEAT_SECONDS
        moment = datetime.fromtimestamp(self.environment.clock.time(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        due = []
        changes = []
        for kind, condition in conditions.items():
            before = self._sent.get(kind, {})
            if is_heartbeat or any(before.get(key) != value for key, value in condition.items()):
                has_changed = before.get("status") != condition["status"] or not before.get("lastTransitionTime")
                since = moment if has_changed else before["lastTransitionTime"]
                due.append({**condition, "lastHeartbeatTime": moment, "lastTransitionTime": since})
                if before.get("status", "False") != condition["status"]:
                    severity = "Warning" if condition["status"] == "True" else "Normal"
                    changes.append((severity, condition["reason"], condition["message"], moment))
        if due:
            self._sent = None  # unknown if the request fails
            self._sent = _by_type(api.patch_conditions(due, _TIMEOUT_SECONDS))
            self._sent_at = now if is_heartbeat else self._sent_at
            self._events = [*self._events, *changes][-_MOST_EVENTS:]
        while self._events:
            api.create_event(*self._events[0], _TIMEOUT_SECONDS)
            del self._events[0]


def _is_instance(sample: Sample) -> bool:
    """Return whether a sample is of a MIG instance, whose GPU reports the fault itself."""
    return len(sample.labels) > len(sample.family.labels) and bool(sample.labels[len(sample.family.labels)])


def _by_type(conditions: Iterable[Mapping[str, object]]) -> dict[str, Mapping[str, str]]:
    return {
        str(each.get("type", "")): {key: value for key, value in each.items() if isinstance(value, str)}
        for each in conditions
    }
