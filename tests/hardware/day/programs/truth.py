"""The truth of a planted program: stopwatch, CUDA events and kernel time, measured in its own training loop.

A program has two arguments: seconds, and the file for its truth. Its loop calls `begin_step` and `end_step`. The first
fifth is warm-up. The last part runs under `torch.profiler`, which slows the loop: only the kernel time of a step comes
from there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
_WARM_UP = 0.2
_PROFILED_SECONDS = 1.0
_PROFILED_STEPS = 3
_MOST_PROFILED_SECONDS = 3.0
_NO_WORK = (
    *("Optimizer.", "ProfilerStep", "DistributedDataParallel.", "Iteration", "enumerate("),
    *("Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event"),
)
"""Beginnings of the names of events that PyTorch shows among the kernels, but in which the GPU may idle: parts of a
step, and the CPU's waits for the GPU."""


class Truth:
    """Measures one training loop."""

    def __init__(self) -> None:
        """Read the program's arguments."""
        self.seconds = float(sys.argv[1])
        self.more: dict[str, Any] = {}
        """Further facts for the file."""
        self._file = Path(sys.argv[2])
        self._began = time.monotonic()
        self._profiled_seconds = min(_PROFILED_SECONDS, self.seconds / 10)
        self._steps = 0
        self._measured_steps = 0
        self._waited = self._planted = 0.0
        self._planted_on_gpu: list[tuple[Any, Any]] = []
        self._step_ended: float | None = None
        self._measured_from = self._measured_to = 0.0
        self._measured_from_unix = 0.0
        self._profiler: Any = None
        self._profiled_from = 0.0
        self._profiled_from_unix = 0.0
        self._profiled_steps = 0

    def begin_step(self) -> None:
        """Note that the loop has its batch."""
        if self._step_ended is not None and self._measured_from and not self._measured_to:
            self._waited += time.perf_counter() - self._step_ended

    def end_step(self) -> bool:
        """Note that the step has ended; return True if the program's time is over."""
        self._steps += 1
        elapsed = time.monotonic() - self._began
        over = False
        if not self._measured_from:
            if elapsed > _WARM_UP * self.seconds:
                _synchronise()
                self._measured_from, self._measured_from_unix = time.perf_counter(), time.time()
                self._waited = self._planted = 0.0
                self._planted_on_gpu.clear()
        elif not self._measured_to:
            self._measured_steps += 1
            if elapsed > self.seconds - self._profiled_seconds:
                _synchronise()
                self._measured_to = time.perf_counter()
                over = not self._profile()
        else:
            self._profiled_steps += 1
            profiled = time.perf_counter() - self._profiled_from
            enough = profiled > self._profiled_seconds and self._profiled_steps >= _PROFILED_STEPS
            over = enough or profiled > _MOST_PROFILED_SECONDS
        self._step_ended = time.perf_counter()
        return over

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Measure a block that costs time: on a GPU by CUDA events, which leave out earlier kernels."""
        if CUDA:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            yield
            end.record()
            if not self._measured_to:
                self._planted_on_gpu.append((begin, end))
            return
        began = time.perf_counter()
        yield
        if not self._measured_to:
            self._planted += time.perf_counter() - began

    @contextmanager
    def planted_on_host(self) -> Iterator[None]:
        """Measure a block that costs time with a stopwatch, after all earlier kernels."""
        _synchronise()
        began = time.perf_counter()
        yield
        if not self._measured_to:
            self._planted += time.perf_counter() - began

    def write(self, lost: str = "") -> None:
        """Write the file.

        Args:
            lost: what the planted cause costs: the time "waited" for batches, the "planted" blocks, or the GPU's time
                without a kernel ("idle"); empty if the cost is unknown.
        """
        _synchronise()
        kernel_seconds = self._kernel_seconds()
        seconds = self._measured_to - self._measured_from
        step_seconds = seconds / self._measured_steps if self._measured_steps and seconds > 0 else None
        busy = None
        if kernel_seconds is not None and self._profiled_steps and step_seconds:
            busy = min(1.0, kernel_seconds / self._profiled_steps / step_seconds)
        planted = self._planted + sum(begin.elapsed_time(end) / 1e3 for begin, end in self._planted_on_gpu)
        shares = {} if not step_seconds else {"waited": self._waited / seconds, "planted": planted / seconds}
        if busy is not None:
            shares["idle"] = 1 - busy
        found = {
            "steps": self._steps,
            "step_seconds": step_seconds,
            "lost": shares.get(lost),
            "lost_by": lost or None,
            "gpu_busy": busy,
            "waited": shares.get("waited"),
            "kernel_seconds_per_step": kernel_seconds / self._profiled_steps
            if kernel_seconds is not None and self._profiled_steps
            else None,
            "measured_from": self._measured_from_unix or None,
            "measured_to": self._measured_from_unix + seconds if seconds > 0 else None,
            "profiled_from": self._profiled_from_unix or None,
            "device": DEVICE,
            **self.more,
        }
        if CUDA:
            found["allocated_bytes"] = torch.cuda.max_memory_allocated()
        self._file.write_text(json.dumps(found))

    def _profile(self) -> bool:
        """Start to profile; return False if that is impossible here."""
        if not CUDA:
            return False
        try:
            self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profiler.start()
        except Exception as problem:  # another tool may have the GPU's counters
            self._profiler = None
            self.more["profiler"] = f"torch.profiler: {problem}; gpu_busy is unknown"
            return False
        self._profiled_from, self._profiled_from_unix = time.perf_counter(), time.time()
        return True

    def _kernel_seconds(self) -> float | None:
        """Return the time in which at least one kernel or copy ran, from the profiled steps."""
        if self._profiler is None:
            return None
        try:
            self._profiler.stop()
            on_gpu = torch.autograd.DeviceType.CUDA
            spans = sorted(
                (event.start_ns(), event.start_ns() + event.duration_ns())
                for event in self._profiler.profiler.kineto_results.events()
                if event.device_type() == on_gpu and not event.name().startswith(_NO_WORK)
            )
        except Exception as problem:
            self.more["profiler"] = f"torch.profiler: {problem}; gpu_busy is unknown"
            return None
        self.more["kernels_profiled"] = len(spans)
        total = reached = 0
        for begin, end in spans:
            total += max(0, end - max(begin, reached))
            reached = max(reached, end)
        return total / 1e9 if spans else None


def _synchronise() -> None:
    if CUDA:
        torch.cuda.synchronize()
