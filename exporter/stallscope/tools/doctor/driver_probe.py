"""Print the responses of GPU drivers as JSON: `python -m stallscope.tools.doctor.driver_probe SECONDS`.

Each GPU is polled once, as by the exporter, within the given time limit. This runs in a separate process, since a
driver call that hangs ends only with its process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from stallscope.common.formatting import gpu_name
from stallscope.node.collectors.base import Environment, available
from stallscope.node.collectors.gpu.source import GpuCollector
from stallscope.node.collectors.gpu.survey import survey
from stallscope.node.drivers.nvidia.library import MissingFunction, NvmlFailure, PynvmlLibrary
from stallscope.node.drivers.nvidia.nvml import NvmlDriver


def main(limit: float) -> None:
    """Print the response of each maker's driver."""
    logging.getLogger("stallscope").addHandler(logging.NullHandler())
    print(json.dumps([_response(name, limit) for name, each in available().items() if issubclass(each, GpuCollector)]))
    sys.stdout.flush()
    os._exit(0)  # does not wait for threads that hang


def _response(name: str, limit: float) -> dict[str, Any]:
    library = PynvmlLibrary()
    environment = Environment(driver=(lambda: NvmlDriver(library)) if name == "nvidia" else None)
    source = available()[name](environment)
    assert isinstance(source, GpuCollector)
    found = survey(source, readings=1, limit=limit)
    has_nvml = name == "nvidia" and bool(found.gpus)
    return {
        "source": name,
        "problem": found.problem,
        "reason": found.reason,
        "hung": found.hung,
        "nvml": _nvml_version(library) if has_nvml and not any(gpu.hung for gpu in found.gpus) else "",
        "gpus": [
            {
                "name": gpu_name(gpu.info["gpu"], gpu.info.get("mig", "")),
                "uuid": gpu.info["uuid"],
                "driver": gpu.info["driver_version"],
                "trouble": gpu.trouble,
                "persistence_off": gpu.persistence_off,
            }
            for gpu in found.gpus
        ],
    }


def _nvml_version(library: PynvmlLibrary) -> str:
    try:
        library.load()
        library.call("nvmlInit")
        try:
            version = library.call("nvmlSystemGetNVMLVersion")
        finally:
            library.call("nvmlShutdown")
    except (NvmlFailure, MissingFunction, OSError):
        return ""
    return version if isinstance(version, str) else version.decode(errors="replace")
