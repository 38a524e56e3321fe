"""Kubernetes' Pod Security levels, for the fields of pods on Linux: the controls that a pod violates.

Written from the text of the standard (kubernetes.io/docs/concepts/security/pod-security-standards), names included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Pod = dict[str, Any]

_BASELINE_CAPABILITIES = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_SYSCTLS = frozenset(
    [
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
    ]
)
_SELINUX_TYPES = frozenset(["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"])
_VOLUMES = frozenset(
    [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ]
)


def baseline(pod: Pod) -> set[str]:
    """Return the controls of level baseline that a pod's spec violates."""
    return set(_baseline(pod))


def restricted(pod: Pod) -> set[str]:
    """Return the controls of level restricted that a pod's spec violates, including those of baseline."""
    return baseline(pod) | set(_restricted(pod))


def level(pod: Pod) -> str:
    """Return the strictest level that admits the pod."""
    if not restricted(pod):
        return "restricted"
    return "privileged" if baseline(pod) else "baseline"


def _baseline(pod: Pod) -> Iterator[str]:
    if pod.get("hostNetwork") or pod.get("hostPID") or pod.get("hostIPC"):
        yield "Host Namespaces"
    if any("hostPath" in volume for volume in pod.get("volumes", ())):
        yield "HostPath Volumes"
    if any(each["name"] not in _SYSCTLS for each in pod.get("securityContext", {}).get("sysctls", ())):
        yield "Sysctls"
    for each in _containers(pod):
        security = each.get("securityContext", {})
        if security.get("privileged"):
            yield "Privileged Containers"
        if not set(security.get("capabilities", {}).get("add", ())) <= _BASELINE_CAPABILITIES:
            yield "Capabilities"
        if any(port.get("hostPort") for port in each.get("ports", ())):
            yield "Host Ports"
        if security.get("procMount", "Default") != "Default":
            yield "/proc Mount Type"
        probes = (each.get(name, {}) for name in ("livenessProbe", "readinessProbe", "startupProbe"))
        if any(probe.get(kind, {}).get("host") for probe in probes for kind in ("httpGet", "tcpSocket")):
            yield "Host Probes / Lifecycle Hooks"
    for security in _contexts(pod):
        if security.get("seccompProfile", {}).get("type") == "Unconfined":
            yield "Seccomp"
        if security.get("appArmorProfile", {}).get("type") == "Unconfined":
            yield "AppArmor"
        options = security.get("seLinuxOptions", {})
        if options.get("user") or options.get("role") or options.get("type", "") not in _SELINUX_TYPES:
            yield "SELinux"


def _restricted(pod: Pod) -> Iterator[str]:
    if any(not set(volume) - {"name"} <= _VOLUMES for volume in pod.get("volumes", ())):
        yield "Volume Types"
    general = pod.get("securityContext", {})
    for each in _containers(pod):
        security = {**general, **each.get("securityContext", {})}
        if security.get("allowPrivilegeEscalation") is not False:
            yield "Privilege Escalation"
        if security.get("runAsNonRoot") is not True:
            yield "Running as Non-root"
        if security.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "Seccomp (v1.19+)"
        capabilities = security.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", ()) or set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
            yield "Capabilities (v1.22+)"
    if any(security.get("runAsUser") == 0 for security in _contexts(pod)):
        yield "Running as Non-root user (v1.23+)"


def _containers(pod: Pod) -> list[Pod]:
    return [each for name in ("containers", "initContainers", "ephemeralContainers") for each in pod.get(name, ())]


def _contexts(pod: Pod) -> list[Pod]:
    return [each.get("securityContext", {}) for each in (pod, *_containers(pod))]
