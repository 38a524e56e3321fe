"""Loads of known value, on a real GPU: `python -m tests.hardware.day.signal_loads SECONDS PEAK_BYTES GPM UUID`.

Prints a line of JSON for each signal of each load: what the exporter should report for that time.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml
import torch

_SETTLE_SECONDS = 1.5
"""The exporter's polls are a second apart; a window begins when the load has lasted longer than one."""
_BF16_FLOPS = {(8, 0): 2048, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192}
"""Dense bfloat16 FLOPs of a multiprocessor in each cycle, by compute capability: a data sheet's FLOP/s divided by its
clock and number of multiprocessors. The clock falls under this load, so that the data sheet's FLOP/s is no truth."""
_SIDE = 8192
_COPIED = 1 << 30
_GROUP = 4
"""Repetitions between two events: five milliseconds or more of work."""


def main() -> None:
    """Run the loads one after the other."""
    seconds, peak_bytes, has_gpm = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "1"
    properties = torch.cuda.get_device_properties(0)
    flops_per_cycle = _BF16_FLOPS.get((properties.major, properties.minor), 0) * properties.multi_processor_count
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(sys.argv[4])
    clocks: list[int] = []
    left = torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16)
    right = torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16)
    product = left @ right

    def multiply() -> None:
        torch.mm(left, right, out=product)

    torch.cuda.synchronize()
    began = time.time()
    time.sleep(_SETTLE_SECONDS + seconds)
    busy = {"metric": "stallscope_gpu_busy_seconds_total", "labels": {}}
    show("idle", began, [{**busy, "truth": 0.0, "tolerance": 0.02}])

    # Half of the time, in pieces shorter than a sample of the driver's utilisation.
    began, share, _ = run(multiply, seconds, duty=0.5)
    show("matrix products, half of the time", began, [{**busy, "truth": share, "tolerance": 0.06}])

    began, share, each = run(
        multiply, seconds, meanwhile=lambda: clocks.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
    )
    found = [{**busy, "truth": share, "tolerance": 0.03}]
    if has_gpm and flops_per_cycle:
        peak = flops_per_cycle * 1e6 * statistics.fmean(clocks)
        found.append(pipe("tensor", 2 * _SIDE**3 * each / peak, 0.1))
    show("bf16 matrix products", began, found)

    single, other = left.float()[:4096, :4096].contiguous(), right.float()[:4096, :4096].contiguous()
    torch.set_float32_matmul_precision("highest")
    began, share, _ = run(lambda: single @ other, seconds)
    found = [{**busy, "truth": share, "tolerance": 0.03}]
    if has_gpm:
        found.append(pipe("tensor", 0.0, 0.02))
    show("fp32 matrix products", began, found)

    source = torch.empty(_COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    began, share, each = run(lambda: target.copy_(source), seconds)
    found = [{**busy, "truth": share, "tolerance": 0.03}]
    if has_gpm and peak_bytes:
        # A copy reads and writes each byte.
        dram = 2 * _COPIED * each / peak_bytes
        found.append(
            {"metric": "stallscope_gpu_dram_active_seconds_total", "labels": {}, "truth": dram, "tolerance": 0.1}
        )
    show("copies within the GPU", began, found)

    host = torch.empty(_COPIED // 4, dtype=torch.uint8, pin_memory=True)
    near = torch.empty_like(host, device="cuda")
    for direction, copy in (
        ("receive", lambda: near.copy_(host, non_blocking=True)),
        ("transmit", lambda: host.copy_(near, non_blocking=True)),
    ):
        began, _, each = run(copy, seconds)
        rate = host.numel() * each
        # The link carries headers too.
        signal = {"metric": f"stallscope_gpu_pcie_{direction}_bytes_total", "labels": {}}
        show(f"copies over PCIe, {direction}", began, [{**signal, "truth": rate, "tolerance": 0.15 * rate}])

    held = torch.empty(10 << 30, dtype=torch.uint8, device="cuda")
    began = time.time()
    time.sleep(_SETTLE_SECONDS + seconds)
    free, total = torch.cuda.mem_get_info()
    signal = {"metric": "stallscope_gpu_memory_used_bytes", "labels": {}}
    # CUDA counts what the driver reserves as used.
    show("memory held", began, [{**signal, "truth": float(total - free), "tolerance": 1.5e9}])
    del held

    side_effects(multiply, seconds)


def run(
    work: Callable[[], Any], seconds: float, duty: float = 1.0, meanwhile: Callable[[], None] = lambda: None
) -> tuple[float, float, float]:
    """Repeat the work.

    Args:
        work: enqueues a kernel or a copy.
        seconds: duration after the load has settled.
        duty: share of the time.
        meanwhile: called while the GPU works.

    Returns:
        The start in Unix time, the share of time in which the GPU worked by CUDA events, and repetitions a second.
    """
    work()
    torch.cuda.synchronize()
    began, begin = time.time(), time.perf_counter()
    groups: list[tuple[Any, Any]] = []
    while time.perf_counter() - begin < _SETTLE_SECONDS + seconds:
        piece = time.perf_counter()
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(_GROUP):
            work()
        last.record()
        groups.append((first, last))
        meanwhile()
        if duty < 1:
            torch.cuda.synchronize()
            time.sleep((time.perf_counter() - piece) * (1 / duty - 1))
        elif len(groups) > 1:
            groups[-2][1].synchronize()  # one group waits while another runs: never idle, and nothing piles up
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - begin
    worked = sum(first.elapsed_time(last) for first, last in groups) / 1e3
    return began, min(1.0, worked / elapsed), _GROUP * len(groups) / elapsed


def pipe(name: str, truth: float, tolerance: float) -> dict[str, Any]:
    """Return the signal of a pipe's activity."""
    return {
        "metric": "stallscope_gpu_pipe_active_seconds_total",
        "labels": {"pipe": name},
        "truth": truth,
        "tolerance": tolerance,
    }


def show(load: str, began: float, signals: list[dict[str, Any]]) -> None:
    """Print the signals of a load that ends now."""
    window = {"load": load, "from": began + _SETTLE_SECONDS, "to": time.time()}
    for signal in signals:
        print(json.dumps({**window, **signal, "source": "known load"}), flush=True)
    print(json.dumps({"window": window}), flush=True)


def side_effects(multiply: Callable[[], None], seconds: float) -> None:
    """Print what `torch.profiler` changes: the speed, and the times to compare the exporter's signals."""
    plain_from, _, plain = run(multiply, seconds)
    plain_to = time.time()
    found: dict[str, Any] = {"plain": {"from": plain_from, "to": plain_to, "per_second": plain}}
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
            began, _, profiled = run(multiply, seconds)
        found["profiled"] = {"from": began, "to": time.time(), "per_second": profiled}
        found["slowdown"] = plain / profiled
    except Exception as problem:
        found["problem"] = f"torch.profiler: {problem}; see if another profiler runs"
    print(json.dumps({"profiler_side_effects": found}), flush=True)


if __name__ == "__main__":
    main()
