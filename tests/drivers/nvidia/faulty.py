"""The real source on a recorded GPU, whose driver answers wrongly where a test says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.nvidia import NvidiaCollector
from stallscope.node.drivers.nvidia.capture import read
from stallscope.node.drivers.nvidia.library import MissingFunction, NvmlFailure
from stallscope.node.drivers.nvidia.nvml import NvmlDriver
from stallscope.node.drivers.nvidia.replay import ReplayLibrary
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.sampler import Sampler

CAPTURES = Path(__file__).parents[2] / "captures"
H100 = CAPTURES / "stand-in__nvidia-h100-80gb-hbm3__590.48.01.capture.jsonl"
MIG = CAPTURES / "stand-in__nvidia-h200__590.48.01__mig.capture.jsonl"
FUNCTION_NOT_FOUND = 13


class FaultyLibrary:
    """A recorded library, some of whose functions, fields or metrics answer as the test says."""

    def __init__(self, capture: Path) -> None:
        recorded = read(capture)
        self.start = recorded.header.start
        self._library = ReplayLibrary(recorded)
        self._known: dict[str, dict[Any, Any]] = {"nvmlDeviceGetFieldValues": {}, "nvmlGpmMetricsGet": {}}
        """The newest recorded answer to each entry of batches."""
        self.refused: Callable[[str], int] = lambda _: 0
        """The return code of a function; 0 where it answers."""
        self.refused_entry: Callable[[str, int], int] = lambda *_: 0
        """The return code of an entry of a batch, by function and by id of field or metric; 0 where it answers."""
        self.answers: dict[str, Any] = {}
        """Answers of functions instead of the recorded ones; a function of the arguments is called."""
        self.fields: dict[int, Any] = {}
        """Answers of fields instead of the recorded ones, by id."""
        self.metrics: dict[int, Any] = {}
        """Answers of metrics of GPM instead of the recorded ones, by id."""
        self.queried: list[str] = []
        self.batches: list[tuple[Any, ...]] = []

    def load(self) -> None:
        self._library.load()

    def call(self, name: str, *arguments: Any) -> Any:
        self.queried.append(name)
        code = self.refused(name)
        if code == FUNCTION_NOT_FOUND:
            raise MissingFunction(f"this driver's library has no {name}")
        if code:
            raise NvmlFailure(code, f"error {code}")
        if name in self.answers:
            answer = self.answers[name]
            return answer(*arguments) if callable(answer) else answer
        if name in {"nvmlDeviceGetFieldValues", "nvmlGpmMetricsGet"}:
            return self._batch(name, *arguments)
        return self._library.call(name, *arguments)

    def _batch(self, name: str, *arguments: Any) -> list[tuple[int, Any]]:
        """Answer any subset of entries from the recorded answer of each."""
        *_, wanted = arguments
        self.batches.append(wanted)
        known = self._known[name]
        own = self.fields if name == "nvmlDeviceGetFieldValues" else self.metrics
        try:
            answers = self._library.call(name, *arguments)
        except MissingFunction:
            answers = [known[entry] for entry in wanted]
        known.update(zip(wanted, answers, strict=True))
        ids = [entry[0] if isinstance(entry, tuple) else entry for entry in wanted]
        answers = [(0, own[each]) if each in own else answer for each, answer in zip(ids, answers, strict=True)]
        codes = [self.refused_entry(name, each) for each in ids]
        nothing = None if name == "nvmlDeviceGetFieldValues" else 0.0
        return [(code, nothing) if code else answer for code, answer in zip(codes, answers, strict=True)]


class Node:
    """The real source and driver on that library, a reading a second, in scripted time."""

    def __init__(self, capture: Path = H100) -> None:
        self.library = FaultyLibrary(capture)
        self.clock = ScriptedClock(self.library.start)
        driver = NvmlDriver(self.library, self.clock.monotonic, self.clock.time)
        self.source = NvidiaCollector(Environment(clock=self.clock, driver=lambda: driver))
        self.sampler = Sampler(clock=self.clock)
        self.sampler.add(self.source)

    def after(self, seconds: int) -> dict[str, float]:
        """The GPUs' series after so many seconds, `name{labels}` to value."""
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.sampler.run_round()
        lines = self.sampler.page(openmetrics=False, gzip=False).decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("stallscope_gpu_")]
        return {name.removeprefix("stallscope_gpu_"): float(value) for name, value in pairs}
