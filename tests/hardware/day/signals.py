"""Truth of signals: loads of known value, and what `nvidia-smi` reports meanwhile."""

from __future__ import annotations

import csv
import json
import os
import shutil
import statistics
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.hardware.day import child
from tests.hardware.day.node import IDLE, Load, Node

_LOADS = 10
_START_SECONDS = 60.0
_SMI_FIELDS = {
    "power.draw": ("stallscope_gpu_power_watts", {}, 1.0, 0.05, 5.0),
    "clocks.sm": ("stallscope_gpu_clock_hertz", {"clock": "sm"}, 1e6, 0.05, 15e6),
    "clocks.mem": ("stallscope_gpu_clock_hertz", {"clock": "memory"}, 1e6, 0.02, 15e6),
    "temperature.gpu": ("stallscope_gpu_temperature_celsius", {"sensor": "gpu"}, 1.0, 0.0, 2.0),
    "memory.used": ("stallscope_gpu_memory_used_bytes", {}, float(1 << 20), 0.01, float(64 << 20)),
    "utilization.gpu": ("stallscope_gpu_utilization_ratio", {}, 0.01, 0.0, 0.06),
}
"""Metric, labels, factor to its unit, relative and absolute tolerance of each field of nvidia-smi."""
_SMI_MILLISECONDS = 500
_LEAST_READINGS = 3
_PLAYED = {
    "idle": IDLE,
    "busy for half of the time": Load(busy=0.5, sm=0.4, watts=300),
    "tensor cores": Load(busy=1.0, sm=0.9, tensor=0.8, watts=680),
    "single precision": Load(busy=1.0, sm=0.95, fp32=0.9, watts=600),
    "DRAM": Load(busy=1.0, sm=0.6, dram=0.9, watts=450),
    "PCIe": Load(busy=0.9, received=20e9, transmitted=15e9, watts=150),
}


def measured(seconds: float, node: Node, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run the loads on a real GPU.

    Args:
        seconds: of each load.
        node: the GPU.
        folder: for logs.

    Returns:
        Lines of `signals.json`, and the side effects of the profiler, which may be empty.

    Raises:
        StepError: the loads failed.
    """
    log = folder / "loads.log"
    arguments = ["-m", "tests.hardware.day.signal_loads", f"{seconds:g}"]
    arguments += [str(node.gpu["memory_bytes_per_second"] or 0), str(int(node.gpu["gpm"])), node.gpu["uuid"]]
    readings = folder / "nvidia-smi.csv"
    smi = _nvidia_smi(node, readings)
    try:
        ended = child.run("signals", arguments, log, node.cuda, _START_SECONDS + _LOADS * (seconds + 3))
    finally:
        if smi is not None:
            smi.kill()
            smi.wait()
    lines: list[dict[str, Any]] = []
    windows: list[dict[str, Any]] = []
    effects: dict[str, Any] = {}
    for text in log.read_text(errors="replace").splitlines():
        if not text.startswith("{"):
            continue
        line = json.loads(text)
        if "window" in line:
            windows.append(line["window"])
        elif "profiler_side_effects" in line:
            effects = line["profiler_side_effects"]
        else:
            lines.append(line)
    lines += from_nvidia_smi(readings, windows)
    for line in lines:
        line["labels"] = {**line["labels"], "uuid": node.gpu["uuid"]}
    if not lines:
        raise ended.failure("see if PyTorch can use the GPU")
    return lines, effects


def _nvidia_smi(node: Node, output: Path) -> subprocess.Popen[bytes] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = f"--query-gpu=timestamp,{','.join(_SMI_FIELDS)}"
    with output.open("wb") as file:
        return subprocess.Popen(
            [program, f"--id={node.gpu['uuid']}", query, "--format=csv,noheader,nounits", f"-lms={_SMI_MILLISECONDS}"],
            stdout=file,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def from_nvidia_smi(readings: Path, windows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the means of nvidia-smi's readings in each window, as lines of `signals.json`."""
    if not readings.exists():
        return []
    rows: list[tuple[float, list[float | None]]] = []
    for row in csv.reader(readings.read_text(errors="replace").splitlines()):
        try:
            moment = datetime.strptime(row[0].strip(), "%Y/%m/%d %H:%M:%S.%f").timestamp()  # noqa: DTZ007 - local time
        except (ValueError, IndexError):
            continue
        rows.append((moment, [_number(text) for text in row[1:]]))
    found = []
    for window in windows:
        for place, (metric, labels, factor, relative, absolute) in enumerate(_SMI_FIELDS.values()):
            values = [
                value * factor
                for moment, row in rows
                if window["from"] <= moment <= window["to"] and len(row) > place and (value := row[place]) is not None
            ]
            if len(values) < _LEAST_READINGS:
                continue
            mean = statistics.fmean(values)
            tolerance = max(absolute, relative * mean)
            line = {**window, "metric": metric, "labels": labels, "truth": mean, "tolerance": tolerance}
            found.append({**line, "source": "nvidia-smi"})
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A]
        return None


def played(seconds: float, node: Node) -> list[dict[str, Any]]:
    """Let the stand-in play loads; return lines of `signals.json`, whose truth is what it played."""
    found = []
    for name, load in _PLAYED.items():
        node.play(load, [os.getpid()] if load is not IDLE else [])
        time.sleep(1.5)
        begin = time.time()
        time.sleep(seconds)
        window = {"load": name, "from": begin, "to": time.time()}
        for metric, labels, truth, tolerance in (
            ("stallscope_gpu_busy_seconds_total", {}, load.busy, 0.05),
            ("stallscope_gpu_sm_active_seconds_total", {}, load.sm, 0.05),
            ("stallscope_gpu_pipe_active_seconds_total", {"pipe": "tensor"}, load.tensor, 0.05),
            ("stallscope_gpu_dram_active_seconds_total", {}, load.dram, 0.05),
            ("stallscope_gpu_power_watts", {}, load.watts, 2.0),
            ("stallscope_gpu_energy_joules_total", {}, load.watts, 0.05 * load.watts),
            ("stallscope_gpu_pcie_receive_bytes_total", {}, load.received, 0.1 * load.received),
        ):
            labels = {**labels, "uuid": node.gpu["uuid"]}
            line = {**window, "metric": metric, "labels": labels, "truth": truth, "tolerance": tolerance}
            found.append({**line, "source": "stand-in"})
    node.play(IDLE)
    return found
