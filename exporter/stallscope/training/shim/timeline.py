"""Measure phases and steps: every moment of a session belongs to exactly one phase."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from math import inf

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol.vocabulary import MAX_LABEL_LENGTH, MAX_PHASES
from stallscope.training.shim.tolerance import complain, is_label, shown, tolerate

TYPE_CHECKING = False  # importing typing takes longer than all of the shim
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import CodeType

    from stallscope.training.shim.own_work import OwnWork
    from stallscope.training.shim.slow_steps import Step

STEP_BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0),
)
"""Bounds of the catalogue, compared by a test: importing the catalogue takes longer than importing the shim."""
OUTSIDE_PHASES = ("initialization", "evaluation", "restore", "paused")
"""Phases outside of steps: while one is open, the clock of the step is stopped."""
STEP_PHASES = ("data_wait", "host_copy", "forward", "backward", "communication", "optimizer", "other")
"""Phases of every step. Any other phase inside a step is the reason why the step is long."""
ROLLOUT_PHASES = ("rollout", "reward", "weight_sync")
"""Phases of reinforcement learning inside a step: calls of modules and copies in them are no part of the training."""
DEVICE_PHASES = ("host_copy", "forward", "backward", "communication", "optimizer")
"""Phases of every step in which a GPU may have work."""
NOT_LOST = (*DEVICE_PHASES, "initialization", "restore", "paused")
"""Phases whose time is not lost by the program: their lines of code are sampled only on request."""
_SEPARATING = ("communication", "forward")
"""Phases that separate the rank's own work from the rest of a step."""
_OPENING = ("data_wait", "host_copy", "forward", "backward", "optimizer", *ROLLOUT_PHASES)
_EPOCH_BEGINS = 2
"""First steps of an epoch that never count as slow, because the loader's workers start again and fill their queue."""
_LEFT_STEP = 0.5
"""Share of the usual time of a step's work, from which on a step whose loop was left by `break` was done."""
_SHORT_LOOP = 0.01
"""Seconds of a loop that are too short for a report at its end: programs that loop thousands of times a second."""
_RECENT = 60.0
_HELD_AT_MOST = 1.0
"""Maximum seconds to delay a report until the phase of the newest time is known."""


class Phase:
    """A named part of the loop's time, and the context manager that adds time to it.

    Time in a nested phase counts for the nested phase only. A phase nested in itself, or a phase of the step nested in
    a phase outside of steps (`data_wait` of an evaluation) or in a rollout, has no effect: the time counts for the
    outer phase.
    """

    __slots__ = (
        "_covers",
        "_hidden",
        "_longest",
        "_timeline",
        "announced",
        "around",
        "gpu_seconds",
        "is_rollout",
        "mark",
        "name",
        "occurrences",
        "opened",
        "outside",
        "peak",
        "seconds",
        "special",
    )

    def __init__(self, timeline: Timeline, name: str) -> None:
        self.name = name
        self.seconds = 0.0
        self.occurrences = 0
        self.gpu_seconds: float | None = None
        self.outside = name in OUTSIDE_PHASES
        self.special = name not in STEP_PHASES
        self.is_rollout = name in ROLLOUT_PHASES
        self._covers = self.outside or self.is_rollout
        self.announced = self._covers or name == "checkpoint"
        self.opened = False
        self.around: Phase = self  # while it is open, the phase in which it was opened
        self.mark = 0.0  # `seconds` when the current occurrence began
        self.peak = 0.0  # longest occurrence since the last report
        self._hidden = 0
        self._longest: list[tuple[float, float]] = []  # falling, so that the first is the longest
        self._timeline = timeline

    def __enter__(self) -> Phase:  # noqa: PYI034 (subclasses of other kinds are not supported)
        timeline = self._timeline
        try:
            if timeline.pending is not None:
                timeline.settle()
            outer = timeline.current
            if self.opened or outer._covers:  # noqa: SLF001 - its own class
                if self._stays_hidden(timeline, outer):
                    self._hidden += 1
                    return self
                outer = timeline.current
            now = timeline.now()
            outer.seconds += now - timeline.mark
            timeline.mark = now
            self.around = outer
            timeline.current = self
            self.opened = True
            self.occurrences += 1
            self.mark = self.seconds
            if self.announced:
                timeline.activity_changed(now)
        except Exception as error:
            tolerate(error, "opening a phase")
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        timeline = self._timeline
        try:
            if timeline.pending is not None:
                timeline.settle()
            if self._hidden or timeline.current is not self:
                self._leave_oddly(timeline)
                return
            now = timeline.now()
            seconds = self.seconds = self.seconds + now - timeline.mark
            timeline.mark = now
            timeline.current = self.around
            self.opened = False
            spent = seconds - self.mark
            if spent > self.peak:
                self.peak = spent
            if self.special:
                timeline.special_phase_ended(self, spent, now)
            elif now >= timeline.due:
                timeline.publish(now)
        except Exception as problem:
            tolerate(problem, "closing a phase")

    @property
    def hidden(self) -> bool:
        """True if the innermost use of this phase has no effect."""
        return self._hidden > 0

    def longest(self, now: float) -> float:
        """Return the seconds of the longest occurrence in the last minute, including an open one."""
        longest = self._longest
        peak = self.peak
        if peak > 0.0:
            while longest and longest[-1][1] <= peak:
                del longest[-1]
            longest.append((now, peak))
            self.peak = 0.0
        while longest and longest[0][0] < now - _RECENT:
            del longest[0]
        recent = longest[0][1] if longest else 0.0
        if self.opened and self.seconds - self.mark > recent:
            return self.seconds - self.mark
        return recent

    def _leave_oddly(self, timeline: Timeline) -> None:
        """Close a phase that had no effect, or that is closed out of order, as in a generator."""
        if self._hidden:
            self._hidden -= 1
            timeline.report_if_due()
        elif self.opened:
            now = timeline.now()
            timeline.book(now)
            inside = timeline.current  # stays open
            while inside.around is not self:
                inside = inside.around
            inside.around = self.around
            self.opened = False
            spent = self.seconds - self.mark
            self.peak = max(self.peak, spent)
            if self.special:
                timeline.special_phase_ended(self, spent, now)

    def _stays_hidden(self, timeline: Timeline, outer: Phase) -> bool:
        if self.opened:
            return True
        if outer is timeline.initialization and outer.around is outer and not outer.hidden and self.name in _OPENING:
            timeline.begin_loop(timeline.now())
            return False
        return not (self.outside or (self.is_rollout and outer.is_rollout))


class _NoPhase(Phase):
    __slots__ = ()

    def __init__(self) -> None:
        self.name = ""
        self.opened = False
        self._hidden = 0

    def __enter__(self) -> _NoPhase:  # noqa: PYI034 (as above)
        return self

    def __exit__(self, *_: object) -> None:
        return None


NO_PHASE = _NoPhase()
"""A phase without effect, for a run that is off and for a phase that is refused."""


class Timeline:
    """The time of a session by step and phase.

    The sum of all phases is the time since the beginning. The sum of the phases of steps, including `other`, is the
    time of all steps and of the current step. Time before the loop is `initialization`: until the first wait for data,
    copy, forward, backward or optimizer, or until the first `step()`.
    """

    __slots__ = (
        "_above",
        "_below",
        "_bucket",
        "_excused",
        "_explained",
        "_is_long_loop",
        "_left_after",
        "_loop_began",
        "_over",
        "_own_work",
        "_publish",
        "_samples",
        "_special",
        "_tokens",
        "after_step",
        "counts",
        "current",
        "due",
        "durations",
        "first_step",
        "first_step_ended",
        "held",
        "initialization",
        "input_functions",
        "interval",
        "last_step",
        "listener",
        "looping",
        "mark",
        "now",
        "other",
        "peek",
        "pending",
        "phases",
        "rebooked",
        "step_began",
        "step_seconds",
        "steps",
    )

    def __init__(self, now: Callable[[], float], publish: Callable[[float], None], interval: float) -> None:
        """Begin now.

        Args:
            now: a monotonic clock, in seconds.
            publish: called inside the loop when a report is due; it sets `due`.
            interval: seconds from one report to the next.
        """
        self.now = now
        self.mark = now()
        """Time up to which the phases are counted."""
        self.due = inf
        """Time of the next report; never, until the owner sets it."""
        self._publish = publish
        self.pending: Callable[[], None] | None = None
        """Adds the time of recorded events to their phases."""
        self.peek: Callable[[], str] | None = None
        """Returns the phase that recorded events have opened, in any thread; empty without such events."""
        self.rebooked: Callable[[float, float, str, Collection[str]], None] | None = None
        """Called when time was moved between phases, with its interval, the new phase, and the former phases."""
        self.input_functions: set[CodeType] = set()
        """Functions that produce batches: their time is first counted as `other`, then moved to `data_wait`."""
        self.listener: Callable[[], None] | None = None
        """Called at the end of each step, before a report that is due."""
        self.after_step: Callable[[], object] | None = None
        """Called once at the end of the current step. Its exceptions reach the program."""
        self.first_step_ended: Callable[[], object] = lambda: None
        """Called once, at the end of the first step."""
        self.interval = interval
        """Seconds between reports; a report may be this much early."""
        self.held = False
        """True if a due report is delayed, because an integration does not yet know the phase of the newest time."""
        self.initialization = Phase(self, "initialization")
        self.other = Phase(self, "other")
        self.phases = {"initialization": self.initialization, "other": self.other}
        self.current = self.initialization
        self.initialization.opened = True
        self.initialization.occurrences = 1
        self.looping = False
        """True if the first step has begun."""
        self.counts = [0] * (len(STEP_BUCKETS) + 1)
        self.step_seconds = 0.0
        self.steps = 0
        """Steps so far, including the one that ended initialization, whose length is unknown."""
        self.first_step: float | None = None
        self.last_step: float | None = None
        self.durations: deque[Step] = deque(maxlen=4096)  # beyond 8000 steps a second, the newest are enough
        """Steps that were not yet judged; see `slow_steps`."""
        self._own_work: OwnWork | None = None
        self.step_began = self.mark
        """Time at which the current step began."""
        self._bucket = 0
        """Bucket of the newest step, and usually of the next one."""
        self._above = 0.0
        self._below = 0.0
        """Bounds of the bucket."""
        self._special = False
        """True if the current step is not judged by its length alone; see `_end_special_step`."""
        self._explained = 0.0
        """Seconds of the current step in phases that explain why it is long."""
        self._left_after = 0
        """Number of waits for a batch when a step ended whose loop was left."""
        self._loop_began = self.mark
        self._is_long_loop = False
        """True if the newest loop that is over took long enough for a report at its end."""
        self._over: int | None = None
        """Number of phases and steps at the end of the newest loop; None during a loop."""
        self._excused = 0
        """Number of steps, from the current one on, that are not judged."""
        self._tokens = self._samples = 0.0
        """Tokens and samples that the program has reported for the current step."""

    def phase(self, name: str) -> Phase:
        """Return the phase of that name, always the same object; a phase without effect if the name is invalid."""
        found = self.phases.get(name)
        return found if found is not None else self._new_phase(name)

    def step(self, opening: Phase | None = None) -> None:
        """End the current step and begin the next one. Do nothing inside a phase outside of steps.

        Args:
            opening: a phase to open at the beginning of the next step.
        """
        try:
            if self.pending is not None:
                self.settle()
            current = self.current
            if current.outside:
                self._first_boundary()
                self.report_if_due()
                return
            now = self.now()
            current.seconds += now - self.mark
            self.mark = now
            duration = now - self.step_began
            self.step_began = self.last_step = now
            if not self._above < duration <= self._below:
                self._find_bucket(duration)
            self.counts[self._bucket] += 1
            self.step_seconds += duration
            self.steps += 1
            other = self.other
            spent = other.seconds - other.mark
            if spent > 0.0:
                if spent > other.peak:
                    other.peak = spent
                other.mark = other.seconds
            own_work = self._own_work
            if own_work is not None:
                communication, forward, wait = own_work.phases
                own_work.steps.append(
                    (duration - self._explained, communication.seconds, forward.seconds, wait.seconds)
                )
            if self._special:
                self._end_special_step(duration)
            else:
                self.durations.append(duration)
            if self.first_step is None:
                self.first_step = now
                self.first_step_ended()
            if opening is not None and not opening.opened:
                opening.around = current
                self.current = opening
                opening.opened = True
                opening.occurrences += 1
                opening.mark = opening.seconds
            if self.listener is not None:
                self.listener()
                now = self.now()
            if now >= self.due:
                self.publish(now)
        except Exception as error:
            tolerate(error, "marking a step")
        if self.after_step is not None:
            action, self.after_step = self.after_step, None
            action()

    def settle(self) -> None:
        """Add the time of recorded events to their phases. Required before the timeline is read or changed."""
        if self.pending is not None:
            self.pending()

    def begin_loop(self, now: float) -> None:
        """End initialization: the first step begins."""
        initialization = self.initialization
        initialization.seconds += now - self.mark
        self.mark = now
        initialization.opened = False
        initialization.peak = initialization.seconds
        self.current = self.other
        self.other.opened = self.looping = True
        self.other.around = self.other
        self.step_began = now
        self._explained = self._tokens = self._samples = 0.0
        self.excuse(1)
        self.activity_changed(now)

    @property
    def step_by_now(self) -> float:
        """Seconds of the current step, up to `mark`."""
        return self.mark - self.step_began

    def begin_pass(self) -> None:
        """Begin an epoch: the steps that fetch its first batches never count as slow."""
        self.excuse(_EPOCH_BEGINS)
        self._loop_began = now = self.now()
        if self._over is not None:
            self._over = None
            self._loop_changed(now)

    def excuse(self, steps: int) -> None:
        """Exclude the next `steps` steps, including the current one, from the detection of slow steps."""
        if steps > self._excused:
            self._excused = steps
            self._special = True

    def worked(self, tokens: float, samples: float) -> None:
        """Add tokens and samples to the current step, whose length is then judged in relation to them."""
        self.settle()
        if not self.current.outside:
            self._tokens += tokens
            self._samples += samples
            self._special = True

    def explain(self, seconds: float) -> None:
        """Exclude seconds of the current step from the detection of slow steps: their phase is the reason."""
        self._explained += seconds
        self._special = True

    def book(self, now: float) -> None:
        """Add the time since `mark` to the open phase."""
        self.current.seconds += now - self.mark
        self.mark = now
        self.other.occurrences = sum(self.counts)

    def end_left_step(self, longest: float = inf) -> None:
        """End the current step, whose loop was left, if its work took at least half as long as that of other steps.

        Args:
            longest: multiple of the usual time from which on other work is included.
        """
        wait = self.phase("data_wait")  # closed
        self.settle()
        self.book(self.now())
        steps = sum(self.counts)
        if not steps or self.current.outside or self._left_after == wait.occurrences:
            return
        waited = wait.seconds - wait.mark
        usual = (self.step_seconds - wait.seconds + waited) / steps
        if 0.0 < _LEFT_STEP * usual <= self.step_by_now - waited <= longest * usual:
            self._left_after = wait.occurrences
            self.step()

    def end_loop(self) -> None:
        """Report that no loop is under way: until something begins, a standstill is not expected to end."""
        self.settle()
        now = self.now()
        self.book(now)
        self._over = self._occurrences()
        self._is_long_loop = now - self._loop_began >= _SHORT_LOOP
        self._loop_changed(now)

    def _loop_changed(self, now: float) -> None:
        try:
            if self._is_long_loop:
                self._publish(now)  # the next report may be an hour away
            else:
                self.activity_changed(now)
        except Exception as error:
            tolerate(error, "reporting a loop")

    @property
    def is_over(self) -> bool:
        """True from the end of a loop until a step or a phase."""
        return self._over is not None and self._over == self._occurrences()

    def _occurrences(self) -> int:
        return sum([phase.occurrences for phase in self.phases.values() if phase is not self.other]) + self.steps

    def publish(self, now: float) -> None:
        """Send the report that is due, unless it is delayed."""
        self.settle()
        if not self.held or now >= self.due + _HELD_AT_MOST:
            self._publish(now)

    def report_if_due(self) -> None:
        """Send a report that is due in the middle of a phase, so that a long evaluation does not look like a hang."""
        now = self.now()
        if now >= self.due:
            self.publish(now)

    def activity_changed(self, now: float) -> None:
        """Report a new activity at once, and skip the next report in exchange.

        Otherwise, a checkpoint that hangs would look like a step that hangs.
        """
        due = self.due
        if now >= due:
            self._publish(now)
        elif due - now <= self.interval:
            self._publish(now)
            self.due += due - now

    def special_phase_ended(self, phase: Phase, spent: float, now: float) -> None:
        """Exclude the time of a phase from the current step, or from the detection of slow steps."""
        if phase.outside:
            self.step_began += spent
            self.excuse(1)  # caches are cold, and queues are empty
            self.activity_changed(now)
            return
        self.explain(spent)
        if phase.announced:
            self.activity_changed(now)
        elif now >= self.due:
            self.publish(now)

    @property
    def activity(self) -> str:
        """Current activity of the session, one of the report's activities."""
        if self.current.outside:
            return self.current.name
        if self.current.is_rollout:
            return "rollout"
        checkpoint = self.phases.get("checkpoint")
        if checkpoint is not None and checkpoint.opened:
            return "checkpoint"
        return "paused" if self.is_over else "training"

    def _find_bucket(self, duration: float) -> None:
        found = self._bucket = bisect_left(STEP_BUCKETS, duration)
        self._above = STEP_BUCKETS[found - 1] if found else -inf
        self._below = STEP_BUCKETS[found] if found < len(STEP_BUCKETS) else inf

    def _end_special_step(self, duration: float) -> None:
        if self._excused:
            self._excused -= 1
            if self._own_work is not None:
                self._own_work.excuse()
        elif self._tokens or self._samples:
            self.durations.append((duration - self._explained, self._tokens, self._samples))
        else:
            self.durations.append(duration - self._explained)
        self._explained = self._tokens = self._samples = 0.0
        self._special = self._excused > 0

    def _first_boundary(self) -> None:
        initialization = self.initialization
        if self.current is not initialization or initialization.around is not initialization or initialization.hidden:
            return
        now = self.now()
        self.steps = 1
        self.first_step = self.last_step = now
        self.begin_loop(now)
        self.first_step_ended()
        if self.listener is not None:
            self.listener()

    def _new_phase(self, name: str) -> Phase:
        if not is_label(name, MAX_LABEL_LENGTH):
            complain(
                f"a phase is named {shown(name)}; expected printable text of at most {MAX_LABEL_LENGTH} characters",
                "phase: name",
            )
            return NO_PHASE
        if len(self.phases) >= MAX_PHASES:
            complain(
                f"phase {shown(name)} is ignored: a run has at most {MAX_PHASES} phases; use fewer names",
                "phase: too many",
            )
            return NO_PHASE
        found = self.phases[name] = Phase(self, name)
        if name in _SEPARATING or self._own_work is not None:
            self.own_work.separate(self.phases)
        return found

    @property
    def own_work(self) -> OwnWork:
        """The part of the steps that does not wait for other ranks; imported where there is such a phase."""
        if self._own_work is None:
            with standard_library():
                from stallscope.training.shim.own_work import OwnWork

            self._own_work = OwnWork()
        return self._own_work

    def evaluate_own_work(self) -> dict[str, float]:
        """Add the steps since the last call to the own work; return its counters, none where it is unknown."""
        return {} if self._own_work is None else self._own_work.updated_counters(self.steps, self.phases)
