"""List the driver's GPUs as JSON: `python -m tests.hardware.day.gpus`, in its own process: a driver may hang."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def found() -> dict[str, Any]:
    """Return versions and GPUs."""
    import pynvml

    pynvml.nvmlInit()
    cuda = pynvml.nvmlSystemGetCudaDriverVersion()
    return {
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "gpus": [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())],
    }


def _gpu(pynvml: Any, index: int) -> dict[str, Any]:
    def answer_of(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(handle, *arguments)
        except (pynvml.NVMLError, AttributeError):
            return None

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    mig = answer_of(pynvml.nvmlDeviceGetMigMode)
    support = answer_of(pynvml.nvmlGpmQueryDeviceSupport)
    memory_clock = answer_of(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM)
    bus = answer_of(pynvml.nvmlDeviceGetMemoryBusWidth)
    return {
        "index": index,
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "name": pynvml.nvmlDeviceGetName(handle),
        "mig": bool(mig and mig[0]),
        "instances": _instances(pynvml, handle) if mig and mig[0] else [],
        "gpm": bool(support is not None and support.isSupportedDevice),
        "processes": [process.pid for process in answer_of(pynvml.nvmlDeviceGetComputeRunningProcesses) or []],
        # Two transfers for each clock, eight bits a byte.
        "memory_bytes_per_second": memory_clock * 1e6 * 2 * bus / 8 if memory_clock and bus else None,
    }


def _instances(pynvml: Any, handle: Any) -> list[str]:
    def uuid(place: int) -> str:
        try:
            return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)))
        except pynvml.NVMLError:  # no instance at this place
            return ""

    return list(filter(None, map(uuid, range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)))))


def main() -> int:
    """Print the list, or the problem on standard error."""
    try:
        content = found()
    except ModuleNotFoundError:
        print("nvidia-ml-py: not installed; carry its wheel to this machine", file=sys.stderr)
        return 1
    except Exception as problem:
        print(f"driver: {problem}; `nvidia-smi` must work first", file=sys.stderr)
        return 1
    print(json.dumps(content))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
