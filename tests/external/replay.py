"""Play a recording through the real shim and the real intake, in scripted time, and keep the stored series."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from stallscope.lab.replay.series import Series
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.model.catalogue.metrics import FAMILIES, MetricType
from stallscope.model.clients.exposition import labels_of
from stallscope.node.intake.quotas import Limits
from stallscope.node.intake.runs import RunRegistry
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.exposition import Renderer
from stallscope.training.protocol.measurements import COUNTERS
from tests.external.errors import ExternalError
from tests.external.recording import Recording, Step, Values, base

MINUTES = 40.0
"""Length of a replay; the recorded steps are repeated."""
SCRAPE_SECONDS = 30
BEGIN = 30.0
"""Unix time at which all ranks start: 0 is an unknown time."""
MAX_REPLAYED_RANKS = 1024
_SLICE_SECONDS = 5.0
"""Seconds of the ranks' time between two deliveries to the exporters."""
_REPORT_SECONDS = 5.0
_LIMITS = Limits(ranks_per_run=4096, ranks=4096, series=4_000_000, series_per_run=4_000_000)
_WAIT = "communication"
_UNMEASURED = "backward"
"""The phase in which a training without a hook for communication waits."""
_LEAST_WAIT = 1e-6
_USER = 1000


def played(recording: Recording, *, measured: bool, minutes: float = MINUTES) -> list[Series]:
    """Return the series of all exporters.

    Args:
        recording: the steps, which are repeated.
        measured: False if the shim sees communication as a part of the backward pass.
        minutes: length of the replay.

    Raises:
        ExternalError: there are too many ranks.
    """
    check_size(recording)
    with tempfile.TemporaryDirectory() as folder:
        nodes = [
            _Node(recording, number, ranks, Path(folder), measured=measured)
            for number, ranks in enumerate(_chunks(range(len(recording.ranks)), recording.ranks_per_node))
        ]
        scrapes = int(minutes * 60 / SCRAPE_SECONDS) + 1
        for place in range(scrapes):
            for _ in range(round(SCRAPE_SECONDS / _SLICE_SECONDS) if place else 0):
                for node in nodes:
                    node.advance(_SLICE_SECONDS)
            for node in nodes:
                node.scrape(place)
        return [series for node in nodes for series in node.series(scrapes)]


def check_size(recording: Recording) -> None:
    """Refuse a recording that is too large.

    Raises:
        ExternalError: there are too many ranks.
    """
    if len(recording.ranks) > MAX_REPLAYED_RANKS:
        raise ExternalError(
            f"{recording.name}: {len(recording.ranks)} ranks, a replay takes at most {MAX_REPLAYED_RANKS}; "
            "leave ranks out that are like others"
        )


def _chunks(places: Sequence[int], size: int) -> list[Sequence[int]]:
    return [places[begin : begin + size] for begin in range(0, len(places), size)]


class _Node:
    """One exporter and its ranks."""

    def __init__(
        self, recording: Recording, number: int, places: Sequence[int], folder: Path, *, measured: bool
    ) -> None:
        self._recording = recording
        self._target = {"job": "stallscope", "instance": f"node{number}:19400"}
        self._places = places
        clocks = recording.clocks or (0.0,)
        self._ahead = clocks[number % len(clocks)]
        self._clock = ScriptedClock(0.0)
        self._registry = RunRegistry(_LIMITS, clock=self._clock, root=_process_tree(folder / str(number), places))
        self._renderer = Renderer()
        self._values: dict[str, dict[int, float]] = {}
        self._waiting: list[tuple[int, str]] = [(place, f"node{number}") for place in places]
        self._measured = measured
        self._ranks: list[_Rank] = []

    def advance(self, seconds: float) -> None:
        """Let time pass, and take the reports that were sent meanwhile."""
        self._clock.advance(seconds)
        now = self._clock.time()
        if self._waiting and now >= BEGIN:
            self._ranks = [
                _Rank(self._recording, place, host, self._registry, measured=self._measured, ahead=self._ahead)
                for place, host in self._waiting
            ]
            self._waiting = []
        for rank in self._ranks:
            rank.advance(now)

    def scrape(self, place: int) -> None:
        """Keep the page of this moment."""
        self._registry.check_processes()
        groups, _, _ = self._renderer.lines(self._registry.collect(), _LIMITS.series)
        for lines in groups.values():
            for text, value in lines.items():
                self._values.setdefault(text, {})[place] = float(value)

    def series(self, scrapes: int) -> Iterator[Series]:
        """Yield everything that Prometheus stored of this exporter."""
        yield Series("up", self._target, [1.0] * scrapes)
        for text, values in self._values.items():
            yield self._one(text, [values.get(place) for place in range(scrapes)])
        recording = self._recording
        times = [float(place * SCRAPE_SECONDS) for place in range(scrapes)]
        stop = float("inf") if recording.stops_minute is None else BEGIN + 60 * recording.stops_minute
        for name, value in recording.host.items():
            yield self._one(
                f"stallscope_host_{name}", _constant(f"stallscope_host_{base(name)}", value, value, times, stop)
            )
        if recording.gpu:
            for index, place in enumerate(self._places):
                yield from self._gpu(index, place, times, stop)

    def _gpu(self, index: int, place: int, times: Sequence[float], stop: float) -> Iterator[Series]:
        working: Values = {"up": 1.0, "info": 1.0, "observed_seconds_total": 1.0, **self._recording.gpu}
        stopped: Values = {**working, **self._recording.gpu_stopped}
        own = f'gpu="{index}",uuid="{_uuid(place)}"'
        yield self._one(f"stallscope_gpu_last_reading_timestamp_seconds{{{own}}}", list(times))
        for name in stopped:
            first, _, further = name.removesuffix("}").partition("{")
            family = f"stallscope_gpu_{first}"
            labels = f"{own},{further}" if further else own
            before, after = working.get(name, 0.0), stopped[name]
            yield self._one(f"{family}{{{labels}}}", _constant(family, before, after, times, stop))

    def _one(self, text: str, values: list[float | None] | list[float]) -> Series:
        name, _, labels = text.removesuffix("}").partition("{")
        return Series(name, {**self._target, **labels_of(labels)}, list(values))


def _constant(name: str, before: float, after: float, times: Sequence[float], stop: float) -> list[float]:
    if FAMILIES[name].type is MetricType.COUNTER:
        return [before * min(time, stop) + after * max(time - stop, 0.0) for time in times]
    return [before if time < stop else after for time in times]


def _uuid(place: int) -> str:
    return f"GPU-{place:08d}"


def _pid(place: int) -> int:
    return 70_000 + place


def _process_tree(root: Path, places: Sequence[int]) -> Path:
    """Write `/proc` with the processes of all ranks, which never end."""
    for pid in (1, *map(_pid, places)):
        folder = root / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (python) S " + "0 " * 18 + "5000 0 0\n")
    return root


class _Rank:
    """One process with the shim. Its next actions are in `_pending`: phases by their end, the end of a step as None."""

    def __init__(
        self, recording: Recording, place: int, host: str, registry: RunRegistry, *, measured: bool, ahead: float
    ) -> None:
        self._clock = ScriptedClock(BEGIN + ahead)
        self._actions = _actions(recording, place, measured=measured)
        self._pending: deque[tuple[float, str | None]] = deque()
        self._run = SimulatedRun(
            "recorded",
            rank=recording.ranks[place],
            local_rank=place % recording.ranks_per_node,
            world_size=len(recording.ranks),
            gpus=[{"gpu": str(place % recording.ranks_per_node), "uuid": _uuid(place)}] if recording.gpu else [],
            info={
                "hostname": host,
                "framework": "recorded",
                "job_class": "production",
                "pipeline_stage": str(recording.stages[place]) if recording.stages else "",
            },
            interval=_REPORT_SECONDS,
            clock=self._clock,
            sender=lambda payload: _deliver(registry, payload, _pid(place)),
            process=_Process(recording.process, self._clock),
            pid=_pid(place),
        )

    def advance(self, now: float) -> None:
        """Execute the actions that end by `now`."""
        clock, run, elapsed = self._clock, self._run, now - BEGIN
        while True:
            if not self._pending:
                action = next(self._actions, None)
                if action is None:
                    return
                self._pending.append(action)
            end, phase = self._pending[0]
            if end > elapsed:
                return
            self._pending.popleft()
            passing = max(end - clock.monotonic(), 0.0)
            if phase is None:
                clock.advance(passing)
                run.step()
            elif phase == "other":
                clock.advance(passing)
            else:
                with run.phase(phase):
                    clock.advance(passing)


def _deliver(registry: RunRegistry, payload: bytes, pid: int) -> None:
    registry.accept(payload, "unix", pid, uid=_USER)


def _actions(recording: Recording, place: int, *, measured: bool) -> Iterator[tuple[float, str | None]]:
    """Yield the phases of a rank by their ends, and None for the end of a step.

    Ranks end a step together: the time until the slowest one is done is a wait.
    """
    waits_in = _WAIT if measured else _UNMEASURED
    stop = float("inf") if recording.stops_minute is None else 60 * recording.stops_minute
    lengths = [max(sum(rank.values()) for rank in step) for step in recording.steps]
    time = 0.0
    while True:
        step: Step
        for step, length in zip(recording.steps, lengths, strict=True):
            if time + length > stop:
                return
            begin = time
            for phase, seconds in step[place].items():
                time += seconds
                yield time, waits_in if phase == _WAIT else phase
            if begin + length - time > _LEAST_WAIT:
                yield begin + length, waits_in
            time = begin + length
            yield time, None


class _Process:
    """Constant use of the host by one rank's process."""

    def __init__(self, values: Values, clock: ScriptedClock) -> None:
        self._values = values
        self._clock = clock

    def read(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return counters and gauges of the report."""
        now = self._clock.monotonic()
        counters = {name: value * now for name, value in self._values.items() if name in COUNTERS}
        return counters, {name: value for name, value in self._values.items() if name not in COUNTERS}

    def close(self) -> None:
        """Release nothing."""
