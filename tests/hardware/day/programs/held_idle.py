"""Planted: a process that holds GPU memory and computes nothing. It runs until SIGTERM, without `stallscope run`."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before the slow import, in which it may come

import torch  # noqa: E402

from tests.hardware.day.programs.truth import DEVICE  # noqa: E402

held = torch.ones((2 << 30) // 4 if DEVICE == "cuda" else 1, device=DEVICE)
began = time.time()
signal.sigtimedwait({signal.SIGTERM}, float(sys.argv[1]))
truth = {
    "steps": 0,
    "step_seconds": None,
    "lost": 1.0,
    "lost_by": "idle",
    "gpu_busy": 0.0,
    "measured_from": began,
    "measured_to": time.time(),
    "device": DEVICE,
    "allocated_bytes": held.numel() * 4,
}
Path(sys.argv[2]).write_text(json.dumps(truth))
