"""The core of a run: what it has measured so far, and the report that has it.

A session measures time with a `Timeline`, and writes and sends a report when one is due. What else belongs to a run
(stacks, lines of code, stored reports, traces) follows it as an `Observer`, and is unknown here.
"""

from __future__ import annotations

import os
import time
from math import inf

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol import vocabulary
from stallscope.training.shim.timeline import NO_PHASE, Phase, Timeline
from stallscope.training.shim.tolerance import complain, label, shown, tolerate, warn
from stallscope.training.shim.writing import amounts, quoted, texts, values, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import TypeVar

    from stallscope.training.shim.hot_lines import HotLines
    from stallscope.training.shim.observer import Observer
    from stallscope.training.shim.reported_values import ReportedValues
    from stallscope.training.shim.slow_steps import SlowSteps
    from stallscope.training.shim.sources import Clock, Probe
    from stallscope.training.shim.transport import Sender

    Kind = TypeVar("Kind", bound="Observer")
    OwnType = TypeVar("OwnType", bound="Session")

_PHASE = '%s:{"seconds":%.6f,"occurrences":%d,"max":%.6f%s}'
_STEPS = '"step_seconds":{"counts":%s,"sum":%.6f,"count":%d}'
_FOLLOWED = 64
"""Steps of other optimizers, without one of the first, after which that one is held to be gone."""
_ALONE = 16
"""Steps of the first one in a row, after which two steps in a row of another one are enough for that."""
_LEFT_LOOP = 2.0
"""Multiple of a step's usual time up to which the time from its batch to the end of the run is a step."""
_CLOCK_SET = 1.0
"""Seconds by which the wall clock must part from the monotonic one to have been set."""
_LAST_TRIES = 10
"""How often the last report is sent again while the exporter's queue is full."""
_LAST_PAUSE = 0.005
"""Seconds between them."""


class Session:
    """One rank from its beginning to its end: the values that it has measured, and its reports.

    `Run` is the session of this process, with the environment's settings, and has the description for users.
    """

    silent = True
    name = ""
    rank = 0
    claimed_by = ""
    """The trainer's integration that marks the steps; while there is one, steps of optimizers count for nothing."""
    hot_lines: HotLines | None = None
    """The lines of the program in which it loses time; None until the loop has begun."""
    is_scripted = False
    """True if the clock is not the machine's, so that it does not include the shim's cost."""
    _clock: Clock = time
    _probe: Probe | None = None
    _pid = 0
    _rests = False
    _awaits_observers = False
    """True until the observers of the environment follow the reports."""

    def __init__(self, interval: float = 0.5) -> None:
        """Create a session that is silent until it begins.

        Args:
            interval: fewest seconds between two reports.
        """
        self.timeline = Timeline(time.monotonic, self._publish, interval)
        self._phases: dict[str, Phase] = {}
        self.open_loops: dict[int, int] = {}
        """Batches in a step of each tracked loop that is under way, by the identity of its object."""
        self._interval = interval
        self._owner = os.getpid()
        self.identifier = os.urandom(8).hex()
        """Identifier of the session, unique to this process' life as this rank."""
        self._sequence = 0
        self._state = "starting"
        self._dropped: dict[str, int] = {}
        self._delivered = False
        self._overhead = 0.0
        self._gauges: dict[str, float] = {}
        self._values: dict[str, float] = {}
        self._counters: dict[str, float] = {"nonfinite_losses": 0}
        self._reported: ReportedValues | None = None
        self._pass = -1
        self._pass_began = 0
        self._epoch_reported = False
        self._watchers: list[Callable[[], object]] = []
        self._observers: list[Observer] = []
        self._listeners: list[Callable[[int], object]] = []
        self._optimizer: int | None = None
        self._followed = self._alone = 0
        self._failure = ""
        self._heading = ""
        self._booking_cost: Callable[[Timeline], float] | None = None
        self._judge: SlowSteps | None = None
        self._restarts = 0
        self._info: dict[str, str] = {}
        self._gpus: list[dict[str, str]] = []
        self._precision: list[str] = []
        self._seeks_gpus = False

    def _begin(self, head_start: float) -> None:
        """Take the time that this process has worked for the session already; the clock runs from now on."""
        self._start = self._clock.time() - head_start
        self._begun = self._clock.monotonic() - head_start
        self._pid = self._pid or self._owner

    def _measure(self, sender: Sender, room: int) -> None:
        """Measure from now on.

        Args:
            sender: receives the reports.
            room: maximum bytes of a report.
        """
        self._sender = sender
        self._room = room
        self.timeline = Timeline(self._clock.monotonic, self._publish, self._interval)
        self.timeline.mark = self._begun
        self.silent = False
        self._phases = self.timeline.phases

    def step(self) -> None:
        """Mark the end of a step, which is the beginning of the next. Does nothing inside an outside phase."""
        if not self.silent:
            self.timeline.step()

    def phase(self, name: str) -> Phase:
        """Book the time of a `with` block to a phase, at most 32 of them.

        Known phases: `data_wait`, `host_copy`, `forward`, `backward`, `communication`, `optimizer`, `checkpoint`,
        `logging`; of reinforcement learning `rollout`, `reward` and `weight_sync`; outside of steps `evaluation`,
        `restore`, `paused` and `initialization`; and any name of your own. Phases nest: time in an inner one is taken
        out of the outer, so that all of them sum to the loop's time.

        It is the host's time. Where a device computes on its own, the host may wait for data while that device still
        has work (a wait that costs nothing), and whatever first needs a result (`.item()`, logging a loss) waits for
        all that was queued before. Nothing here waits for a device to find out: an integration that has device events
        reports the GPU's time in addition, with `gpu_time`.
        """
        try:
            return self._phases[name]
        except Exception:
            return self._other_phase(name)

    def report(
        self,
        *,
        loss: float | None = None,
        learning_rate: float | None = None,
        gradient_norm: float | None = None,
        epoch: float | None = None,
        step: int | None = None,
        steps_planned: int | None = None,
        batch_size: float | None = None,
        samples: float | None = None,
        tokens: float | None = None,
        flops: float | None = None,
        **values: float,
    ) -> None:
        """Report values; each stays until it is reported again. Accepts Python and NumPy numbers, never tensors.

        Args:
            loss: the training loss; one that isn't finite is counted instead.
            learning_rate: the present learning rate.
            gradient_norm: the gradients' norm.
            epoch: the present epoch; a tracked loader counts epochs from 0 until one is reported.
            step: steps done by now, for a run that goes on from a checkpoint.
            steps_planned: steps of the whole run.
            batch_size: samples of this rank in each step from now on.
            samples: samples processed since the last call, where steps differ; instead of a number for each step.
            tokens: tokens processed since the last call, likewise.
            flops: floating-point operations done since the last call, likewise.
            values: further gauges, at most 32 names a run.
        """
        if self.silent:
            return
        try:
            reported = self._reported or self.reported
            if learning_rate is not None:
                reported.gauge("learning_rate", learning_rate)
            if gradient_norm is not None:
                reported.gauge("gradient_norm", gradient_norm)
            if epoch is not None:
                self._epoch_reported = True
                reported.gauge("epoch", epoch)
            if step is not None:
                reported.step(step)
            if loss is not None:
                reported.loss(loss)
            if steps_planned is not None or batch_size is not None:
                self.plan(batch_size, None, None, steps_planned)
            if samples is not None or tokens is not None or flops is not None:
                for key, done in (("samples", samples), ("tokens", tokens), ("flops", flops)):
                    if done is not None:
                        reported.work(key, done)
            if values:
                for name, value in values.items():
                    reported.value(name, value)
            timeline = self.timeline
            if (now := timeline.now()) >= timeline.due:
                timeline.publish(now)
        except Exception as error:
            tolerate(error, "reporting")

    def finish(self, state: str = "finished") -> None:
        """End the run as `finished`, `failed` or `terminated` and send the last report; calls after it do nothing."""
        if self.silent:
            return
        try:
            known = type(state) is str and state in vocabulary.LAST_STATES
            self._state = state if known else "failed"
            if not known:
                complain(
                    f"run state: expected one of {', '.join(vocabulary.LAST_STATES)}, got {shown(state)}; using failed",
                    "finish",
                )
            if self._state == "finished" and [*self.open_loops.values()] == [1]:  # the program has called next()
                self.timeline.end_left_step(_LEFT_LOOP)
            self._publish(self.timeline.now(), last=True)
        except Exception as error:
            tolerate(error, "finishing a run")
        finally:
            self._close()

    def fail(self, error: BaseException | None = None) -> None:
        """End the run as failed, with the exception's type; an out-of-memory error is counted.

        An exception by which SIGTERM, SIGHUP or Ctrl-C ends the program ends the run as terminated, and SystemExit
        without a failure as finished.
        """
        if self.silent:
            return
        state = "failed"
        try:
            if error is None:
                return
            with standard_library():
                from stallscope.training.shim import endings

            state = endings.state_after(error)
            if state != "failed":
                return
            self._failure = endings.failure_of(error)
            self._heading = ""
            # If an integration reports the framework's own count, it includes this error already.
            if endings.is_out_of_memory(error) and not (
                self._reported is not None and self._reported.is_counted_elsewhere("out_of_memory")
            ):
                self._counters["out_of_memory"] = self._counters.get("out_of_memory", 0.0) + 1
        except Exception as problem:
            tolerate(problem, "reporting a failure")
        finally:
            self.finish(state)

    def __enter__(self: OwnType) -> OwnType:  # noqa: PYI019 (Self needs Python 3.11)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.fail(error)

    # What follows is for track, integrations and this package's other modules.

    def plan(
        self,
        samples_per_step: float | None,
        tokens_per_step: float | None,
        flops_per_step: float | None,
        steps_planned: int | None,
    ) -> None:
        """Set what each step from now on is worth, and how many steps there will be; None leaves as it is."""
        given = (samples_per_step, tokens_per_step, flops_per_step, steps_planned)
        if self.silent or all(each is None for each in given):
            return
        try:
            slow_steps = self._slow_steps()
            reported = self.reported
            reported.plan(steps_planned, samples=samples_per_step, tokens=tokens_per_step, flops=flops_per_step)
            if slow_steps is not None:
                slow_steps.plan(*reported.planned_work)
        except Exception as error:
            tolerate(error, "planning a run")

    @property
    def batch_size(self) -> float | None:
        """Samples of each step, as planned; None if they are unknown."""
        return None if self._reported is None else self._reported.batch_size

    @property
    def reported(self) -> ReportedValues:
        """The values that the program reports; imported with the first one."""
        if self._reported is None:
            with standard_library():
                from stallscope.training.shim.reported_values import ReportedValues

            self._reported = ReportedValues(self.timeline, self._gauges, self._counters, self._values)
        return self._reported

    def gauge(self, key: str, value: object) -> None:
        """Set one of `measurements.GAUGES`."""
        self._report_one("gauge", key, value)

    def value(self, name: str, value: object) -> None:
        """Set one of the user's own values, also one whose name `report` has for something else."""
        self._report_one("value", name, value)

    def count(self, key: str, total: float) -> None:
        """Set one of `measurements.COUNTERS` to what was counted elsewhere; a total that falls was reset there."""
        self._report_one("count", key, total)

    def add(self, key: str, amount_added: float) -> None:
        """Add to one of `measurements.COUNTERS`."""
        self._report_one("add", key, amount_added)

    def watch(self, refresh: Callable[[], object]) -> None:
        """Call this just before each report, for what is cheaper to look up then; no more once it has raised."""
        if not self.silent:
            self._watchers.append(refresh)

    def observe(self, observer: Observer) -> None:
        """Let an observer follow the reports."""
        if not self.silent:
            self._observers.append(observer)

    def observer(self, kind: type[Kind]) -> Kind | None:
        """Return the observer of this class, or None."""
        return next((each for each in self._observers if isinstance(each, kind)), None)

    def on_step(self, listener: Callable[[int], object]) -> None:
        """Call this at each boundary with the number of steps done, until it returns False."""
        if not self.silent:
            self._listeners = [*self._listeners, listener]
            self.timeline.settle()
            self.timeline.listener = self._call_listeners

    def describe(
        self,
        *,
        framework: str | None = None,
        precision: str | Sequence[str] | None = None,
        gpus: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        """Set values of this rank that were found late; None changes nothing."""
        if self.silent:
            return
        try:
            with standard_library():
                from stallscope.training.shim.described import gpu_labels, precision_names

            self._heading = ""
            if framework is not None:
                self._info["framework"] = label(framework, vocabulary.MAX_LABEL_LENGTH)
            if precision is not None:
                self._precision = precision_names(precision)
            if gpus is not None:
                self._gpus = gpu_labels(gpus)
                self._seeks_gpus = False
        except Exception as error:
            tolerate(error, "describing a run")

    def optimizer_step(self, optimizer: object) -> None:
        """Mark a step's boundary where one of several optimizers steps: each iteration of the first one counts.

        Should the first one step no more, as one that was only for warming up, another takes its place.
        """
        self.step_of(id(optimizer))

    def step_of(self, optimizer: int) -> None:
        """Mark a step's boundary like `optimizer_step`, for the optimizer with this id."""
        if self.silent or self.claimed_by:
            return
        if self._optimizer == optimizer:
            self._alone = 0 if self._followed else self._alone + 1
        else:
            self._followed += 1
            if self._optimizer is not None and self._followed < (2 if self._alone >= _ALONE else _FOLLOWED):
                return
            self._optimizer, self._alone = optimizer, 0
        self._followed = 0
        self.timeline.step()

    def add_overhead(self, seconds: float) -> None:
        """Add the seconds that an integration measured of its own work, beyond the booking of steps and phases."""
        self._overhead += seconds

    def gpu_time(self, phase: str, seconds: float) -> None:
        """Add time of a phase by the GPU's clock, where device events measure it: kept beside the host's time.

        For `data_wait` that is how long the GPU had nothing to do meanwhile: 0 for a wait that computing hid.
        """
        self._report_one("gpu_time", phase, seconds)

    def begin_pass(self) -> None:
        """A pass over a tracked loader begins."""
        if self.silent:
            return
        self.timeline.begin_pass()
        if self._pass >= 0 and self.timeline.steps == self._pass_began:
            return  # the pass before was only for a look at the first batch, or is another loader of the same loop
        self._pass += 1
        self._pass_began = self.timeline.steps
        if not self._epoch_reported:
            self._gauges["epoch"] = self._pass

    def loop_over(self) -> None:
        """A tracked loop has ended, by itself or by `break`; while steps of a plan remain, another one follows."""
        if not self.silent and not self.open_loops and (self.is_complete or "steps_planned" not in self._gauges):
            self.timeline.end_loop()

    @property
    def is_complete(self) -> bool:
        """True if all steps of the plan are done; False without a plan."""
        return self.steps_done >= self._gauges.get("steps_planned", inf)

    @property
    def is_resting(self) -> bool:
        """True if the loop of this run is over and another run has begun since."""
        return self._rests and not self.silent and self.timeline.is_over

    def rest(self) -> bool:
        """Report the run as finished if its loop is over; return whether it is. It runs again if its loop does."""
        if self.is_resting:
            return True
        self._rests = self.timeline.is_over
        if self._rests:
            self._publish(self.timeline.now())
            self._notify("resting")
        return self._rests

    @property
    def ending(self) -> bool:
        """True if the current report is the last one."""
        return not self.silent and self._state in vocabulary.LAST_STATES

    @property
    def overhead(self) -> float:
        """Seconds that the shim has cost so far, about."""
        self.timeline.settle()
        sampling = 0.0 if self.hot_lines is None else self.hot_lines.cost
        return self._overhead + sampling + self.booking_overhead

    @property
    def booking_overhead(self) -> float:
        """Seconds that the booking of steps and phases has cost so far, as measured outside of the loop."""
        return 0.0 if self._booking_cost is None else self._booking_cost(self.timeline)

    @property
    def steps_done(self) -> int:
        """Steps done, those before a restored checkpoint included."""
        if self.silent:
            return 0
        self.timeline.settle()
        return self.timeline.steps + (0 if self._reported is None else self._reported.step_offset)

    @property
    def gpus(self) -> list[dict[str, str]]:
        """The GPUs of this rank, as far as known: NVML index and UUID, of which one may be empty."""
        return [] if self.silent else [dict(gpu) for gpu in self._gpus]

    @property
    def sender(self) -> Sender | None:
        """Receiver of the reports."""
        return None if self.silent else self._sender

    def wall_time(self) -> float:
        """Unix time, in seconds, by the run's clock."""
        return time.time() if self.silent else self._clock.time()

    def about(self) -> dict[str, str | int]:
        """Who this is: run, rank, session, and the report's `info`."""
        if self.silent:
            return {"run": self.name, "rank": self.rank}
        return {"run": self.name, "rank": self.rank, "session": self.identifier, **self._info}

    def silence(self) -> None:
        """Send nothing any more: this is a forked child, or the run could not start."""
        self.silent = True
        self.timeline.settle()
        self.timeline.due = inf
        self.timeline.listener = None
        self._phases = {}
        if self.hot_lines is not None:
            self.hot_lines.close()

    def _other_phase(self, name: str) -> Phase:
        """A phase that isn't there yet, or of a run that is off."""
        if self.silent:
            return NO_PHASE
        try:
            return self.timeline.phase(name)
        except Exception as error:
            tolerate(error, "finding a phase")
            return NO_PHASE

    def _refresh(self) -> None:
        for watcher in tuple(self._watchers):
            try:
                watcher()
            except Exception as error:
                self._watchers.remove(watcher)
                tolerate(error, "reading the values of a report")

    def _call_listeners(self) -> None:
        """Notify the listeners of a boundary."""
        steps = self.steps_done
        for listener in self._listeners:
            try:
                wanted = listener(steps) is not False
            except Exception as error:
                wanted = False
                tolerate(error, "notifying of a step")
            if not wanted:
                self._listeners = [other for other in self._listeners if other is not listener]
        if not self._listeners:
            self.timeline.listener = None

    def _read_process(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        try:
            return ({}, {}) if self._probe is None else self._probe.read()
        except Exception as error:
            tolerate(error, "reading the process")
            return {}, {}

    def _report_one(self, kind: str, key: str, value: object) -> None:
        if self.silent:
            return
        try:
            getattr(self.reported, kind)(key, value)
        except Exception as error:
            tolerate(error, "reporting")

    def _slow_steps(self) -> SlowSteps | None:
        """Return the judge of steps; None before there is a step to judge."""
        if self._judge is None and self.timeline.durations:
            planned = (0.0, 0.0) if self._reported is None else self._reported.planned_work
            try:
                with standard_library():
                    from stallscope.training.shim.slow_steps import SlowSteps

                self._judge = SlowSteps(self.timeline.durations, *planned)
            except ImportError as error:
                tolerate(error, "judging steps")
        return self._judge

    def _publish(self, now: float, last: bool = False) -> None:
        if self.silent:
            return
        if os.getpid() != self._owner:  # forked by a library without the fork hooks
            self.silence()
            return
        timeline = self.timeline
        timeline.settle()
        timeline.due = now + timeline.interval
        began, started = now, timeline.now()
        cause: str | None = "error"
        try:
            if self._awaits_observers and not last and getattr(self._sender, "passes", False):
                self._follow()
            if self._watchers:
                self._refresh()
                now = timeline.now()
            if self._observers:
                self._notify("before_report", now, last)
                now = timeline.now()
            payload = self._written(now).encode()
            if len(payload) > self._room:
                payload = self._shortened(payload)
            if self._observers:
                self._notify("before_sending", payload, last)
            cause = "too_large" if len(payload) > self._room else self._sender(payload)
            if last and cause is not None:
                cause = self._sent_again(payload, cause)
            self._delivered = self._delivered or cause is None
            if cause is None and not last:
                self._follow()
                self._notify("accepted")
            timeline.interval = max(self._interval, getattr(self._sender, "interval", 0.0))
            timeline.due = began + timeline.interval
        finally:
            if cause is not None:
                self._dropped[cause] = self._dropped.get(cause, 0) + 1
            self._overhead += timeline.now() - started
        if cause is not None and cause != "absent":
            warn(f"a report could not be sent ({cause}); the next one includes its values", f"dropped: {cause}")

    def _follow(self) -> None:
        """Let the observers of the environment follow the reports: a step has ended, or there is an exporter."""

    def _sent_again(self, payload: bytes, cause: str | None) -> str | None:
        """Send the last report again while the exporter is busy or starts again; return the cause if it is dropped."""
        for _ in range(_LAST_TRIES):
            # An exporter that was there and is not may be on its way back.
            if cause != "queue_full" and not (cause == "absent" and self._delivered):
                break
            time.sleep(_LAST_PAUSE)
            cause = self._sender(payload)
        return cause

    def _notify(self, event: str, *arguments: object) -> None:
        for observer in tuple(self._observers):
            try:
                getattr(observer, event)(*arguments)
            except Exception as error:
                self._observers.remove(observer)
                observer.close()
                tolerate(error, observer.task)

    def _shortened(self, payload: bytes) -> bytes:
        with standard_library():
            import json

            from stallscope.training.shim.fitting import fit

        self._dropped["shortened"] = self._dropped.get("shortened", 0) + 1
        warn("reports are too long for one datagram; values, phases or GPUs are left out: give shorter names")
        return fit(json.loads(payload), self._room)[0]

    def _written(self, now: float) -> str:
        timeline = self.timeline
        sent = self._clock.time()  # next to `now`: imports may follow
        timeline.book(now)
        slow_steps = self._slow_steps()
        if slow_steps is not None:
            slow_steps.judge()
        own_work = timeline.evaluate_own_work()
        if self._reported is not None:
            self._reported.count_work()
        if self._state == "starting" and timeline.looping:
            self._state = "running"
        self._update_identity()
        counters, gauges = self._read_process()
        gauges = {**gauges, **self._gauges, "step": self.steps_done}
        self._sequence += 1
        if abs((start := sent - (now - self._begun)) - self._start) > _CLOCK_SET:
            self._start = start  # so that all times of one report go by the same clock
        counters = {
            **counters,
            **self._counters,
            "slow_steps": 0 if slow_steps is None else slow_steps.count,
            "slow_step_excess_seconds": 0.0 if slow_steps is None else slow_steps.excess,
            **own_work,
            "shim_overhead_seconds": self.overhead,
        }
        fields = [
            self._heading or self._headed(),
            # The start to the microsecond: runs of one name may follow each other fast.
            f'"sequence":{self._sequence},"start":{self._start:.6f},"sent":{sent:.3f}',
            f'"state":"{"finished" if self.is_resting else self._state}","activity":"{timeline.activity}"',
            f'"phases":{self._written_phases(now)}',
            f'"counters":{amounts(counters)},"gauges":{values(gauges)}',
            f'"values":{values(self._values)},"dropped":{amounts(self._dropped)}',
        ]
        if timeline.first_step is not None and timeline.last_step is not None:
            offset = sent - now  # to the wall clock of now, which may have been set since
            fields += [
                f'"first_step":{timeline.first_step + offset:.3f}',
                f'"last_step":{timeline.last_step + offset:.3f}',
                _STEPS % (timeline.counts, timeline.step_seconds, timeline.other.occurrences),
            ]
        if self.hot_lines is not None and (lines := self.hot_lines.written()):
            fields.append(lines)
        return f"{{{','.join(fields)}}}"

    def _written_phases(self, now: float) -> str:
        written = []
        for phase in self.timeline.phases.values():
            if phase.occurrences or phase.seconds or phase.gpu_seconds is not None:
                gpu = "" if phase.gpu_seconds is None else f',"gpu_seconds":{phase.gpu_seconds:.6f}'
                written.append(_PHASE % (quoted(phase.name), phase.seconds, phase.occurrences, phase.longest(now), gpu))
        return f"{{{','.join(written)}}}"

    def _update_identity(self) -> None:
        """Look for values of the identity that the program has settled by now. Called for each report."""

    def _headed(self) -> str:
        """Encode the values that rarely change, and cache them."""
        fields = [
            f'"version":{vocabulary.VERSION}',
            f'"run":{quoted(self.name)}',
            f'"rank":{self.rank}',
            f'"session":{quoted(self.identifier)}',
            f'"pid":{self._pid}',
            f'"info":{texts(self._info)}',
            f'"gpus":[{",".join([texts(gpu) for gpu in self._gpus])}]',
            f'"precision":{words(self._precision)}',
        ]
        if self._failure:
            fields.append(f'"failure":{quoted(self._failure)}')
        if self._restarts:
            fields.append(f'"restarts":{self._restarts}')
        self._heading = ",".join(fields)
        return self._heading

    def _close(self) -> None:
        self.silence()
        for part in (*self._observers, self._probe, self._sender):
            close = getattr(part, "close", None)
            if close is not None:
                try:
                    close()
                except Exception as error:
                    tolerate(error, "closing a run")
        self._observers.clear()
