"""The exporter's GPU half in a process of its own: the real sampler, source and pynvml on the stand-in library.

A process each, because pynvml loads the library once, and a reader that hangs in it can only be ended with its process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from prometheus_client.parser import text_string_to_metric_families

from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.nvidia import NvidiaCollector
from stallscope.node.sampling.sampler import Sampler
from tests.nvml_library.stand_in import NvmlStandIn
from tests.waiting import until

INTERVAL = 0.3
DEADLINE = 60.0


class Page:
    """Samples of one page by name, without the prefix of GPUs, and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._values[sample.name, frozenset(sample.labels.items())] = sample.value

    def get(self, name: str, gpu: int | None = None, **labels: str) -> float | None:
        """The value of the only series that has these labels, or None; names of GPU metrics go without prefix."""
        if gpu is not None:
            name = f"stallscope_gpu_{name}"
            labels["uuid"] = NvmlStandIn.uuid(gpu)
        wanted = frozenset(labels.items())
        found = [value for (each, has), value in self._values.items() if each == name and wanted <= has]
        assert len(found) <= 1, f"{name}{labels} is ambiguous"
        return found[0] if found else None

    def names(self, gpu: int) -> set[str]:
        """Names of the series that a GPU has, without prefix."""
        uuid = ("uuid", NvmlStandIn.uuid(gpu))
        return {name.removeprefix("stallscope_gpu_") for name, labels in self._values if uuid in labels}

    def labels(self, name: str, gpu: int) -> list[dict[str, str]]:
        """The label sets of a GPU's series of that name."""
        uuid = ("uuid", NvmlStandIn.uuid(gpu))
        return [dict(has) for each, has in self._values if each == f"stallscope_gpu_{name}" and uuid in has]


class ReadingProcess:
    """Runs while the context lasts."""

    def __init__(self, node: NvmlStandIn | None, interval: float = INTERVAL) -> None:
        """Prepare; None for a machine without the library."""
        environment = os.environ | (node.environment if node is not None else {})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nvml_library.reading_process", str(interval)],
            env=environment,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> ReadingProcess:  # noqa: PYI034 - Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def page(self) -> Page:
        """The newest page."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Page(json.loads(self._process.stdout.readline()))

    def until(self, condition: Callable[[Page], object]) -> Page:
        """The first page that satisfies the condition; fails with the last one seen when none comes in time."""
        return until(
            lambda: page if condition(page := self.page()) else None,
            lambda: f"no page was as awaited; the last:\n{self.page().text}",
            seconds=DEADLINE,
            pause=INTERVAL / 4,
            errors=(),
        )


def main(interval: float) -> None:
    """Sample, and answer each line with the page as JSON."""
    sampler = Sampler(interval=interval)
    sampler.add(NvidiaCollector(Environment(interval=interval)))
    sampler.start()
    # With a buffer of its own: where the environment takes that of `sys.stdout`, what the pipe has no room for is lost.
    with open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as answers:
        for _ in sys.stdin:
            print(json.dumps(sampler.page(openmetrics=False, gzip=False).decode()), file=answers, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
