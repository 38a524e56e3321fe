"""Compare the responses of the GPU drivers with the GPUs on the PCI bus. The drivers are called in another process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stallscope.common.installation import install_command
from stallscope.common.program_files import OWN_FOLDERS
from stallscope.model.catalogue.gpu_losses import LOSSES, remedy
from stallscope.node.drivers.pci import pci_gpus
from stallscope.tools.doctor.checkup import Finding, Stop, failed, ok, skipped, warning

_PROBE_LIMIT = 40.0
"""Seconds for all drivers, including the start of the process on a busy machine."""
_REMEDIES = {
    "driver_not_loaded": "load it with modprobe nvidia; if this machine has no NVIDIA GPU, remove the library",
    "no_permission": "let this user open /dev/nvidia*, or run stallscope doctor as the exporter's user",
}
"""Remedies that differ from those of the exporter, by reason."""
_NOT_INSTALLED = ("library_not_found", "binding_missing")
"""Reasons of a driver that is not there: no failure on a machine without a GPU."""


def drivers(root: Path, call_limit: float) -> Iterator[Finding]:
    """Check each maker's driver.

    Args:
        root: root of `sys`.
        call_limit: seconds for each GPU, and for each driver's list of GPUs.

    Raises:
        Stop: the exporter's libraries are not installed, or the drivers do not respond in time.
    """
    present = pci_gpus(root)
    has_bus = any((root / "sys/bus/pci/devices").glob("*"))
    answers = _probe(call_limit)
    found = False
    for maker, answer in (("NVIDIA", answers["nvidia"]), ("AMD", answers["amd"])):
        gpus, problem, reason = answer["gpus"], answer["problem"], answer["reason"]
        is_fault = maker == "NVIDIA" and bool(reason) and reason not in _NOT_INSTALLED
        found = found or bool(gpus or answer["hung"] or present.get(maker) or is_fault)
        if answer["hung"]:
            yield failed(f"{maker}'s driver hangs: {problem}", "see dmesg for the reason; usually only a reboot helps")
        elif gpus:
            version = next((gpu["driver"] for gpu in gpus if gpu["driver"]), "")
            if version:
                nvml = f", NVML {answer['nvml']}" if answer["nvml"] else ""
                yield ok(f"{maker}'s driver responds: driver {version}{nvml}")
            else:
                yield warning(
                    f"{maker}'s driver responds, but reports no version", "see dmesg for the driver's messages"
                )
            if problem:
                yield failed(
                    f"{maker}'s driver does not report all GPUs: {problem}",
                    "see dmesg for the driver's messages; a lost GPU needs a reset or a reboot",
                )
            yield from _gpus(maker, gpus, present.get(maker, 0))
        elif present.get(maker):
            yield failed(
                f"this machine has {present[maker]} {maker} GPUs, but {problem}",
                remedy(reason)
                if is_fault and reason != "driver_not_loaded"
                else "`nvidia-smi` must work first: install or load the driver; start containers with their GPUs "
                "(docker run --gpus all)"
                if maker == "NVIDIA"
                else "load the kernel driver (modprobe amdgpu); start containers with /dev/kfd and /dev/dri",
            )
        elif is_fault:
            # Machines without a GPU may have the library too. Where the bus is not visible, there may be a GPU.
            report = warning if reason == "driver_not_loaded" and has_bus else failed
            yield report(
                f"NVIDIA's library is installed, but {problem}",
                _REMEDIES.get(reason) or remedy(reason),
            )
    if not found and has_bus:
        yield skipped("this machine has no NVIDIA or AMD GPU")
    elif not found:
        yield skipped("no GPU driver is installed, and the PCI bus is not visible here")


def _gpus(maker: str, gpus: Sequence[dict[str, Any]], present: int) -> Iterator[Finding]:
    whole = [gpu for gpu in gpus if "MIG" not in gpu["name"]]
    for gpu in gpus:
        if gpu["trouble"]:
            yield failed(
                f"{gpu['name']} ({gpu['uuid']}) cannot be read: {gpu['trouble']}",
                LOSSES.get(gpu["trouble"].partition(":")[0], "see dmesg for the driver's messages"),
            )
    if any(gpu["persistence_off"] for gpu in whole):
        yield warning(
            "persistence mode is off: the first use of an idle GPU can take seconds",
            "turn it on with nvidia-persistenced, or nvidia-smi -pm 1",
        )
    if present > len(whole):
        yield warning(
            f"the PCI bus has {present} {maker} GPUs, but the driver reports {len(whole)}",
            "see dmesg for the missing GPUs; a container sees only the GPUs that it was given",
        )
    responding = sum(not gpu["trouble"] for gpu in gpus)
    if responding == len(gpus):
        yield ok(f"{responding} {maker} GPUs and instances respond")


_PROBE = f"{OWN_FOLDERS}from stallscope.tools.doctor.driver_probe import main; main(float(sys.argv[1]))"


def _probe(call_limit: float) -> dict[str, dict[str, Any]]:
    """Return the response of each maker's driver, by collector.

    Raises:
        Stop: the exporter's libraries are not installed, or the drivers do not respond in time.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _PROBE, f"{call_limit:g}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        ready, _, _ = select.select([process.stdout], [], [], _PROBE_LIMIT)
        # Reads one line, not until the end of the file: a process that is stuck in the kernel never closes it.
        line = process.stdout.readline() if ready else ""
        errors = process.stderr.read() if ready and not line else ""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    if not ready:
        raise Stop(
            failed(
                f"GPU drivers do not respond within {_PROBE_LIMIT:g} s",
                "see dmesg for the reason; usually only a reboot helps",
            )
        )
    if not line:
        missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", errors)
        if missing:
            raise Stop(skipped(f"{missing[1]} is not installed", install_command("exporter")))
        last = errors.strip().rpartition("\n")[2]
        raise Stop(failed(f"cannot query the drivers: {last}", "run `stallscope gpus`"))
    return {answer["source"]: answer for answer in json.loads(line)}


def text_of(file: Path) -> str:
    """Return the content of a small kernel file; empty if it cannot be read."""
    try:
        return file.read_text(errors="replace").strip("\n")
    except OSError:
        return ""
