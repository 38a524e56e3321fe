"""`Run`: one training process as one rank of a job."""

from __future__ import annotations

import os
import sys
from math import inf

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol import vocabulary
from stallscope.training.shim import forks, identity, launchers, lifetime
from stallscope.training.shim.session import Session
from stallscope.training.shim.tolerance import complain, label, shown, switched_off, switched_on, tolerate
from stallscope.training.shim.transport import room, transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from stallscope.training.shim.transport import Sender


class Run(Session):
    """One training process as one rank of a job, from its creation to its end.

        with stallscope.Run("resnet50", samples_per_step=256) as run:
            for batch in loader:
                with run.phase("forward"):
                    loss = model(batch)
                run.report(loss=loss.item())
                run.step()

    From creation until the loop begins, time is initialization. The loop begins with the first `data_wait`,
    `host_copy`, `forward`, `backward` or `optimizer` phase, or, without such phases, with the first `step()`: that
    step's length is unknown, so it counts as progress and has no duration.

    Nothing here raises: what goes wrong is logged once under the logger `stallscope`. Nothing waits either, except for
    reports over HTTP: at most once a second; it backs off while the exporter does not respond. The only thread takes
    samples of stacks, for ten seconds where the host loses much time (see `hot_lines`).
    Calls belong in one thread. A forked child and a pickled copy are silent, and so is a run that a spawned worker
    creates while it imports the program. A newer run of the same name and rank in one process ends the older one.

    Environment: STALLSCOPE_ADDRESS, STALLSCOPE_RUN, STALLSCOPE_TOKEN, STALLSCOPE_TOKEN_FILE,
    STALLSCOPE_CA_FILE, STALLSCOPE_JOB_CLASS, STALLSCOPE_PIPELINE_STAGE, STALLSCOPE_GIT_COMMIT,
    STALLSCOPE_RANK, STALLSCOPE_LOCAL_RANK, STALLSCOPE_WORLD_SIZE, STALLSCOPE_TRACE_DIR, STALLSCOPE_ALLOW_STOP;
    STALLSCOPE_STACKS=0 turns samples of stacks off, STALLSCOPE_DISABLE=1 everything, STALLSCOPE_STRICT=1 raises what
    would be logged.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        samples_per_step: float | None = None,
        tokens_per_step: float | None = None,
        flops_per_step: float | None = None,
        steps_planned: int | None = None,
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        gpus: Sequence[Mapping[str, str]] | None = None,
        precision: str | Sequence[str] | None = None,
        info: Mapping[str, str] | None = None,
        interval: float = 0.5,
        sender: Sender | None = None,
        head_start: float = 0.0,
        prepare: Callable[[Run], object] | None = None,
    ) -> None:
        """Start a run; its first report leaves at once.

        Args:
            name: the job's name, the same on all ranks; else STALLSCOPE_RUN, else script and job number or start.
            samples_per_step: samples of this rank in each step.
            tokens_per_step: tokens of this rank in each step.
            flops_per_step: floating-point operations of the model for each step of this rank.
            steps_planned: steps of the whole run.
            rank: global rank; else STALLSCOPE_RANK, else from the launcher (see `launched`), else 0.
            local_rank: rank on this node, from the same source.
            world_size: number of ranks, from the same source.
            gpus: what this rank computes on, `{"gpu": NVML index, "uuid": …}` each; one of the two may be empty.
            precision: of the model's arithmetic: fp32, tf32, fp16, bf16, fp8, or several of them.
            info: replaces what was found out, by the names of `vocabulary.INFO_KEYS`.
            interval: fewest seconds between two reports.
            sender: takes an encoded report and returns None, or the cause why it was dropped.
            head_start: seconds that this process has worked for the run already, which are initialization.
            prepare: called before the first report, to book what happened in these seconds.
        """
        try:
            super().__init__(_checked_interval(interval))
            if switched_on("STALLSCOPE_DISABLE") or lifetime.importing_for_parent():
                return
            self._begin(head_start)
            self._find_rank(rank, local_rank, world_size)
            self._find_name(name)
            self._find_information(info)
            self._find_devices(gpus, precision)
            self._succeed()
            sender = transport(os.environ) if sender is None else sender
            self._measure(sender, room(sender))
            self._observe()
            self.plan(samples_per_step, tokens_per_step, flops_per_step, steps_planned)
            if prepare is not None:
                prepare(self)
            self._register()
            self._publish(self.timeline.now())
            self._follow_environment()
        except Exception as error:
            self.silence()
            tolerate(error, "starting a run")

    def trace(self, **selection: Any) -> None:
        """Write traces of selected steps; takes the keywords of `stallscope.trace`."""
        try:
            with standard_library():  # most runs never need it
                from stallscope.training.shim.tracing.trace import trace
        except ImportError as error:
            tolerate(error, "tracing")
        else:
            trace(self, **selection)

    def __reduce__(self) -> tuple[Callable[[], Run], tuple[()]]:
        return _silent_run, ()

    def _find_rank(self, rank: int | None, local_rank: int | None, world_size: int | None) -> None:
        found_rank, found_local, found_world = launchers.ranks(os.environ)
        self.rank = found_rank if rank is None else int(rank)
        if not 0 <= self.rank <= vocabulary.MAX_RANK:
            raise ValueError(f"rank is {shown(self.rank)}; expected a whole number from 0 to {vocabulary.MAX_RANK}")
        self._local_rank = found_local if local_rank is None else int(local_rank)
        self._world_size = found_world if world_size is None else int(world_size)

    def _find_name(self, name: str | None) -> None:
        if name is not None and type(name) is not str:
            complain(f"a run is called {shown(name)}; expected text", "run: name")
        self.name = label("" if name is None else name, vocabulary.MAX_NAME_LENGTH)
        if not self.name:
            with standard_library():
                from stallscope.training.shim.run_names import run_name

            script = sys.argv[0] if getattr(sys, "argv", None) else ""
            found = run_name(os.environ, self._world_size, script, self._start)
            self.name = label(found, vocabulary.MAX_NAME_LENGTH)

    def _find_information(self, info: Mapping[str, str] | None) -> None:
        known = {
            **identity.information(os.environ),
            "local_rank": str(self._local_rank or 0),
            "world_size": str(self._world_size),
            **(info or {}),
        }
        self._info = {key: label(known[key], vocabulary.MAX_LABEL_LENGTH) for key in vocabulary.INFO_KEYS}
        self._seeks_positions = True

    def _find_devices(self, gpus: Sequence[Mapping[str, str]] | None, precision: str | Sequence[str] | None) -> None:
        self._gpu_position = identity.gpu_position()
        if gpus is not None or precision is not None:
            with standard_library():
                from stallscope.training.shim.described import gpu_labels, precision_names

            self._gpus = gpu_labels(gpus or ())
            self._precision = precision_names(() if precision is None else precision)
        self._seeks_gpus = gpus is None
        if self._seeks_gpus:
            self._find_gpus()

    def _update_identity(self) -> None:
        if not self._info["framework"] and (framework := identity.framework()):
            self._info["framework"] = framework
            self._heading = ""
        if self._seeks_positions:
            self._seeks_positions = not self.timeline.steps  # by then the program has divided its ranks
            if any(module in sys.modules for module in identity.DIVIDING):
                with standard_library():
                    from stallscope.training.shim.pipeline import fill_positions

                if fill_positions(self._info):
                    self._heading = ""
        if self._seeks_gpus and (position := identity.gpu_position()) != self._gpu_position:
            self._gpu_position = position  # the program may only now have chosen its device
            self._find_gpus()

    def _find_gpus(self) -> None:
        named = any(variable in os.environ for variable in identity.GPU_VARIABLES)
        if self._gpu_position is None and self._local_rank is None and not named:
            return  # it could be any GPU
        try:
            with standard_library():
                from stallscope.training.shim import devices
                from stallscope.training.shim.described import gpu_labels

            self._gpus = gpu_labels(devices.gpus(os.environ, self._local_rank))
            self._heading = ""
        except Exception as error:
            tolerate(error, "looking for the rank's GPU")

    def _succeed(self) -> None:
        """End the run whose place this one takes, as a notebook's cell that runs again leaves one behind."""
        for run in lifetime.watched():
            if (run.name, run.rank) == (self.name, self.rank):
                run.finish()

    def _observe(self) -> None:
        """Prepare for what follows the reports of this process."""
        self._restarts = launchers.restarts(os.environ)
        self._awaits_observers = True
        self.timeline.first_step_ended = self._end_first_step
        if not switched_off("STALLSCOPE_STACKS"):
            forks.sample_workers()
        if os.environ.get("STALLSCOPE_SUMMARY_DIR"):
            self._follow()  # also a run that ends before its first step is stored

    def _follow(self) -> None:
        """Import what is needed from now on: measure this process, and let the observers follow the reports."""
        if self.silent or not self._awaits_observers:
            return
        self._awaits_observers = False
        try:
            lifetime.prepare_for_end()
            with standard_library():
                from stallscope.training.shim import observers
                from stallscope.training.shim.process import ProcessProbe

            self._probe = ProcessProbe()
            observers.follow(self, self._sender, lambda: bool(self._gpus))
        except Exception as error:
            tolerate(error, "preparing the observers of a run")

    def _end_first_step(self) -> None:
        began = self.timeline.now()
        self._follow()
        try:
            with standard_library():
                from stallscope.training.shim.overhead import booking_cost

            self._booking_cost = booking_cost
        except Exception as error:
            tolerate(error, "measuring the shim's own cost")
        self.add_overhead(self.timeline.now() - began)

    def _register(self) -> None:
        """End this run with the process, and silence it in a forked child."""
        lifetime.rest_others(self)
        lifetime.watch(self)

    def _close(self) -> None:
        super()._close()
        lifetime.forget(self)

    def _follow_environment(self) -> None:
        """Write the traces, and obey the stop requests, that the environment allows."""
        if os.environ.get("STALLSCOPE_TRACE_DIR"):
            self.trace()
        if switched_on("STALLSCOPE_ALLOW_STOP"):
            try:
                with standard_library():
                    from stallscope.training.shim.stopping import Stopper

                Stopper(self)
            except Exception as error:
                tolerate(error, "allowing stop requests")


def _checked_interval(interval: float) -> float:
    """Return the seconds between two reports; complain of an invalid value, and return the usual one instead."""
    if type(interval) is float and 0.0 <= interval < inf:
        return interval
    with standard_library():
        from stallscope.training.shim.checked_numbers import amount

    return 0.5 if (seconds := amount("interval", interval)) is None else seconds


def open_run(name: str | None) -> Run | None:
    """Return the open run of that name; without a name, the oldest open run that has not finished its loop."""
    found = lifetime.open_session(name)
    return found if isinstance(found, Run) else None


def current() -> Run | None:
    """Return the open run of this process; if there are several, the oldest one that has not finished its loop."""
    found = lifetime.current_session()
    return found if isinstance(found, Run) else None


def _silent_run() -> Run:
    """Return the result of copying a run: another process must not report in its name."""
    copy = Run.__new__(Run)
    Session.__init__(copy)
    return copy
