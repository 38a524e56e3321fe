"""What the GPUs' drivers answer, against the GPUs that are on the bus. They are asked in a process that may hang."""

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

from stallscope.catalogue.gpu_losses import LOSSES
from stallscope.doctor.checkup import Finding, Stop, failed, ok, skipped, warning

_CALL_LIMIT = 5.0
"""Seconds that each GPU, and each driver's list of them, may take to answer."""
_ANSWER_LIMIT = 40.0
"""Seconds that all of it may take, start of the asking process on a busy machine included."""
_PCI_MAKERS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_PCI_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""Display controllers, and AMD's processing accelerators."""


def drivers(root: Path) -> Iterator[Finding]:
    """Judge each maker's driver.

    Args:
        root: where `sys` lies.

    Raises:
        Stop: the exporter's libraries are not installed, or nothing answers in time.
    """
    present = pci_gpus(root)
    answers = _answers()
    for maker, answer in (("NVIDIA", answers["nvidia"]), ("AMD", answers["amd"])):
        gpus, problem = answer["gpus"], answer["problem"]
        if answer["hung"]:
            yield failed(
                f"{maker}'s driver hangs: {problem}", "see dmesg for the reason; as a rule only a reboot ends it"
            )
        elif gpus:
            versions = f"driver {gpus[0]['driver']}" + (f", NVML {answer['nvml']}" if answer["nvml"] else "")
            yield ok(f"{maker}'s driver answers: {versions}")
            if problem:
                yield failed(
                    f"{maker}'s driver does not show all: {problem}",
                    "see dmesg for the driver's messages; a lost GPU needs a reset or a reboot",
                )
            yield from _gpus(maker, gpus, present.get(maker, 0))
        elif present.get(maker):
            yield failed(
                f"this machine has {present[maker]} GPUs of {maker}, and {problem}",
                "`nvidia-smi` must work first: install or load the driver; start containers with their GPUs "
                "(docker run --gpus all)"
                if maker == "NVIDIA"
                else "load the kernel driver (modprobe amdgpu); start containers with /dev/kfd and /dev/dri",
            )
    if not present and not any(answer["gpus"] or answer["hung"] for answer in answers.values()):
        yield skipped("there is no GPU of NVIDIA or AMD in this machine")


def _gpus(maker: str, gpus: Sequence[dict[str, Any]], present: int) -> Iterator[Finding]:
    whole = [gpu for gpu in gpus if "MIG" not in gpu["name"]]
    for gpu in gpus:
        if gpu["trouble"]:
            yield failed(
                f"{gpu['name']} ({gpu['uuid']}) can't be read: {gpu['trouble']}",
                LOSSES.get(gpu["trouble"].partition(":")[0], "see dmesg for the driver's messages"),
            )
    if any(gpu["persistence_off"] for gpu in whole):
        yield warning(
            "persistence mode is off: the first use of an idle GPU takes up to seconds",
            "turn it on with nvidia-persistenced, or nvidia-smi -pm 1",
        )
    if present > len(whole):
        yield warning(
            f"the PCI bus has {present} GPUs of {maker}, and its driver shows {len(whole)}",
            "see dmesg for what became of the others; a container is shown only those that it was given",
        )
    answering = sum(not gpu["trouble"] for gpu in gpus)
    if answering == len(gpus):
        yield ok(f"{answering} GPUs and instances of {maker} answer")


def _answers() -> dict[str, dict[str, Any]]:
    """What each maker's driver says, by the source's name.

    Raises:
        Stop: the exporter's libraries are not installed, or nothing answers in time.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "stallscope.doctor.driver_question", f"{_CALL_LIMIT:g}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        ready, _, _ = select.select([process.stdout], [], [], _ANSWER_LIMIT)
        # One line, and not to the end: a process that is stuck in the kernel has none.
        said = process.stdout.readline() if ready else ""
        complaint = process.stderr.read() if ready and not said else ""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    if not ready:
        raise Stop(
            failed(
                f"GPU drivers do not answer within {_ANSWER_LIMIT:g} s",
                "see dmesg for the reason; as a rule only a reboot ends it",
            )
        )
    if not said:
        missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", complaint)
        if missing:
            raise Stop(skipped(f"{missing[1]} is not installed", "pip install 'stallscope[exporter]'"))
        last = complaint.strip().rpartition("\n")[2]
        raise Stop(failed(f"drivers can't be asked: {last}", "see `stallscope gpus`"))
    return {answer["source"]: answer for answer in json.loads(said)}


def pci_gpus(root: Path) -> dict[str, int]:
    """GPUs on the PCI bus by maker, whether or not a driver has taken them on."""
    found: dict[str, int] = {}
    for device in (root / "sys/bus/pci/devices").glob("*"):
        maker = _PCI_MAKERS.get(text_of(device / "vendor"))
        if maker and text_of(device / "class").startswith(_PCI_GPU_CLASSES):
            found[maker] = found.get(maker, 0) + 1
    return found


def text_of(file: Path) -> str:
    """A small file of the kernel; empty where it can't be read."""
    try:
        return file.read_text(errors="replace").strip("\n")
    except OSError:
        return ""
