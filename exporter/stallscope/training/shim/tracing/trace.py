"""Traces of selected steps: one file a step and rank, for Perfetto and chrome://tracing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from errno import EPERM
from typing import TYPE_CHECKING, Any

from stallscope.common.file_trust import folder_problem
from stallscope.training.shim.checked_numbers import amount
from stallscope.training.shim.gpu_counters import Exporter
from stallscope.training.shim.lifetime import current_session
from stallscope.training.shim.observer import Observer
from stallscope.training.shim.step_requests import requests_of
from stallscope.training.shim.tolerance import complain, tolerate, warn
from stallscope.training.shim.tracing.recording import Recording
from stallscope.training.shim.tracing.trace_file import folder_of, trace_document, write

if TYPE_CHECKING:
    from stallscope.training.protocol.step_request import StepRequest
    from stallscope.training.shim.session import Session

DIRECTORY = "stallscope-traces"
"""Folder of traces in the working directory, by default."""
FILES = 20
"""Most traces of one rank of a run."""
MAX_BYTES = 256 << 20
"""Most bytes of one rank's traces, profiler's included."""
PHASE = "tracing"
"""The phase that what a trace costs is booked to."""


class Tracer(Observer):
    """Selects a run's steps, records them and writes their traces.

    A step has the number of steps done before it: the first is 0, that of a run which goes on from a checkpoint the
    checkpoint's. So 50,000 steps of which each 20,000th is traced give the traces of steps 0, 20,000 and 40,000.
    """

    task = "tracing"

    def __init__(self, run: Session) -> None:
        self._run = run
        self._every_steps = 0
        self._every_seconds = 0.0
        self._next_time = 0.0
        self._steps: Collection[int] = ()
        self._when: Callable[[int], object] | None = None
        self._folder = folder_of(os.environ.get("STALLSCOPE_TRACE_DIR", "") or DIRECTORY, run.name)
        self._files = FILES
        self._torch_profiler = False
        self._exporter: Exporter | None = None
        self._listening = False
        self._requested: range = range(0)
        self._recording: Recording | None = None
        self._step = 0
        self._profiler: Any = None

    def select(
        self,
        every_steps: int | None,
        every_seconds: float | None,
        steps: Collection[int],
        when: Callable[[int], object] | None,
    ) -> None:
        """Trace these steps from now on, in place of those selected before."""
        every = amount("every_steps", every_steps) if every_steps is not None else None
        seconds = amount("every_seconds", every_seconds) if every_seconds is not None else None
        self._every_steps = max(int(every), 1) if every is not None else 0
        self._every_seconds = float(seconds) if seconds is not None else 0.0
        self._next_time = 0.0
        self._steps = steps if isinstance(steps, range) else frozenset(steps)
        self._when = when
        if not self._selecting:
            return
        self._listen()
        # There is no call before the first boundary, and the first step is often the interesting one.
        if self._run.timeline.steps == 0 and self._recording is None and self._chosen(self._run.steps_done):
            self._begin(self._run.steps_done)

    def place(self, directory: str | None, files: int, torch_profiler: bool, exporter: str | None) -> None:
        """Settle where traces go and what they hold."""
        if directory is not None:
            self._folder = folder_of(os.fspath(directory), self._run.name)
        self._files = max(int(files), 0)
        self._torch_profiler = torch_profiler
        if exporter is None:
            exporter = _exporter_of_reports(os.environ.get("STALLSCOPE_ADDRESS", "").strip())
        self._exporter = Exporter(exporter) if exporter else None

    def obey(self) -> None:
        """Trace requests from outside as well."""
        requests_of(self._run).handle("trace", self._request)

    def close(self) -> None:
        """Stop recording; also called when the run ends within a traced step."""
        recording, profiler = self._recording, self._profiler
        self._recording = self._profiler = None
        if recording is not None and not recording.stopped:
            recording.stop()
        if profiler is not None:
            profiler.stop()

    def _request(self, request: StepRequest) -> None:
        self._requested = range(request.first_step, request.first_step + request.steps)
        self._listen()

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._run.on_step(self._boundary)

    def _boundary(self, step: int) -> bool:
        """Called where one step ends and the step of that number begins; returns True to be called again."""
        try:
            if self._recording is not None:
                self._end()
            if self._chosen(step):
                self._begin(step)
            elif step >= self._requested.stop and not self._selecting:
                self._listening = False
        except Exception as error:
            tolerate(error, "tracing a step")
        return self._listening

    @property
    def _selecting(self) -> bool:
        return bool(self._every_steps or self._every_seconds or self._when or self._steps)

    def _chosen(self, step: int) -> bool:
        if self._every_steps and step % self._every_steps == 0:
            return True
        if step in self._steps or step in self._requested:
            return True
        if self._every_seconds and (now := self._run.timeline.now()) >= self._next_time:
            self._next_time = now + self._every_seconds
            return True
        if self._when is not None:
            try:
                return bool(self._when(step))
            except Exception as error:
                self._when = None
                tolerate(error, "choosing steps to trace")
        return False

    def _begin(self, step: int) -> None:
        name = f"rank{self._run.rank}-step{step}"
        if not self._has_room(name):
            self._every_steps, self._every_seconds, self._steps, self._when = 0, 0.0, (), None
            return
        self._step = step
        if self._torch_profiler:
            with self._run.phase(PHASE):
                self._profiler = _started_profiler()
        self._recording = Recording(self._run)

    def _end(self) -> None:
        recording, profiler = self._recording, self._profiler
        assert recording is not None
        recording.stop()  # first: the following code is not part of the step
        with self._run.phase(PHASE):
            self.close()
            counters = self._counters()
            path = os.path.join(self._folder, f"rank{self._run.rank}-step{self._step}")
            try:
                os.makedirs(self._folder, 0o755, exist_ok=True)
                if problem := folder_problem(os.stat(self._folder)):
                    raise PermissionError(EPERM, problem)
                write(f"{path}.trace.json", trace_document(recording, self._run, self._step, counters))
                if profiler is not None:
                    profiler.export_chrome_trace(f"{path}.torch.json")
            except OSError as error:
                complain(
                    f"traces can't be written to {self._folder}: {error.strerror or error}; use another directory",
                    f"trace: {error.errno}",
                    error,
                )

    def _has_room(self, name: str) -> bool:
        try:
            present = {
                entry.name: entry.stat().st_size
                for entry in os.scandir(self._folder)
                if entry.name.startswith(f"rank{self._run.rank}-")
            }
        except OSError:
            return True  # the folder does not exist yet
        traces = {file for file in present if file.endswith(".trace.json")}
        if f"{name}.trace.json" in traces:
            return True  # it takes the place of an earlier life's
        if len(traces) < self._files and sum(present.values()) < MAX_BYTES:
            return True
        warn(
            f"{len(traces)} traces of rank {self._run.rank} are in {self._folder}, the limit; the oldest stay, and no"
            " more are written",
            "trace: limit",
        )
        return False

    def _counters(self) -> dict[str, float]:
        if self._exporter is None:
            return {}
        try:
            return self._exporter.counters(self._run.gpus)
        except (OSError, ValueError) as error:
            warn(f"traces go without GPU counters: {error}", "trace: counters")
            return {}


def trace(
    run: Session | None = None,
    *,
    every_steps: int | None = None,
    every_seconds: float | None = None,
    steps: Collection[int] = (),
    when: Callable[[int], object] | None = None,
    directory: str | None = None,
    files: int = FILES,
    torch_profiler: bool = False,
    exporter: str | None = None,
    on_request: bool | None = None,
) -> None:
    """Write a trace of each selected step, as `<directory>/<run>/rank<rank>-step<step>.trace.json`.

        stallscope.trace(every_steps=20_000)               # 50,000 steps: 0, 20,000 and 40,000
        stallscope.trace(steps=range(100, 105), torch_profiler=True)

    Perfetto and chrome://tracing open the files: phases of the run's thread, spans of all threads, and GPU counters
    where an exporter is queried. Time is Unix time, so that ranks line up. A step is traced if any condition selects
    it; it has the number of steps done before it. A second call takes the place of the first.

    A step that is not selected costs one call; writing one takes milliseconds, booked to the phase `tracing` of the
    step after. What can't be written is warned of once.

    Args:
        run: the run; else the one that is open.
        every_steps: trace steps whose number it divides.
        every_seconds: trace the first step, and the first after each such interval; ranks then trace different ones.
        steps: numbers of steps.
        when: called with each step's number; true for those to trace.
        directory: else STALLSCOPE_TRACE_DIR, else `stallscope-traces` in the working directory.
        files: most traces of one rank; the oldest stay.
        torch_profiler: run torch.profiler in those steps too, and write its kernels beside as `….torch.json`; its first
            start takes seconds.
        exporter: `http://host:port` of an exporter to query for GPU counters after each traced step, which takes a
            second at most; else that of STALLSCOPE_ADDRESS where it is one over HTTP, else none; "" for none.
        on_request: trace requests of `stallscope trace` too; by default if STALLSCOPE_TRACE_DIR is set.
    """
    try:
        found = current_session() if run is None else run
        if found is None:
            complain("trace() found no open run; call it after track() or Run()")
        elif not found.silent:
            tracer = found.observer(Tracer)
            if tracer is None:
                tracer = Tracer(found)
                found.observe(tracer)
            tracer.place(directory, files, torch_profiler, exporter)
            if on_request or (on_request is None and os.environ.get("STALLSCOPE_TRACE_DIR")):
                tracer.obey()
            tracer.select(every_steps, every_seconds, steps, when)
    except Exception as error:
        tolerate(error, "setting up traces")


def _exporter_of_reports(address: str) -> str:
    """The address for counters if reports go over HTTP; encryption would cost more than it is worth here."""
    scheme, _, rest = address.partition("://")
    return f"http://{rest.partition('/')[0]}" if scheme == "http" else ""


def _started_profiler() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        complain("torch_profiler needs a program that has imported torch; traces go without kernels")
        return None
    activity = torch.profiler.ProfilerActivity
    profiler = torch.profiler.profile(
        activities=[activity.CPU, *([activity.CUDA] if torch.cuda.is_available() else [])]
    )
    profiler.start()
    return profiler
