"""Where the time goes: every moment of a session belongs to exactly one phase."""

from __future__ import annotations

from bisect import bisect_left
from math import inf

from stallscope.protocol.vocabulary import MAX_LABEL_LENGTH, MAX_PHASES
from stallscope.shim.slow_steps import SlowSteps
from stallscope.shim.tolerance import complain, is_label, shown, tolerate

TYPE_CHECKING = False  # importing typing takes longer than all of the shim
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import CodeType

    Snapshot = dict["Phase", tuple[float, int, float]]
    """Seconds, occurrences and longest recent occurrence of each phase."""

STEP_BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0),
)
"""The catalogue's bounds, held equal by a test: importing the catalogue would cost more than the shim."""
OUTSIDE_PHASES = ("initialization", "evaluation", "restore", "paused")
"""Phases outside of steps: while they last, the step's clock is stopped."""
STEP_PHASES = ("data_wait", "host_copy", "forward", "backward", "communication", "optimizer", "other")
"""Phases that make up a step. Any other phase inside a step explains its being long."""
_OPENING = ("data_wait", "host_copy", "forward", "backward", "optimizer")
_EPOCH_BEGINS = 2
"""First steps of a pass over the data, never held to be slow: the loader's workers start again and fill their queue."""
_RECENT = 60.0
_HELD_AT_MOST = 1.0
"""Seconds by which a report may be held back until it is known which phase the newest time belongs to."""


class Phase:
    """A named part of the loop's time, and the context manager that books to it.

    Time in a phase opened inside this one is the inner one's alone. A phase opened inside itself, or a step's phase
    inside a phase outside of steps (`data_wait` of an evaluation), changes nothing: the time stays where it is.
    """

    __slots__ = (
        "_hidden",
        "_longest",
        "_timeline",
        "announced",
        "around",
        "gpu_seconds",
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
        self.announced = self.outside or name == "checkpoint"
        self.opened = False
        self.around: Phase = self  # while it is open, the one that it was opened in
        self.mark = 0.0  # `seconds` when the present occurrence began
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
            if self.opened or outer.outside:
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
        """True if the innermost opening of this phase books nothing."""
        return self._hidden > 0

    def longest(self, now: float) -> float:
        """Longest occurrence of the last minute in seconds, the open one included."""
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
        """End an opening that booked nothing, or one that is left out of order, as generators can do it."""
        if self._hidden:
            self._hidden -= 1
        elif self.opened:
            now = timeline.now()
            timeline.book(now)
            inside = timeline.current  # which goes on
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
        return outer.outside and not self.outside


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
"""Books nothing, for a run that is off and for a phase that can't be had."""


class Timeline:
    """A session's time, step by step and phase by phase.

    All phases together are the time since the beginning; those of the steps, `other` as their rest included, are the
    steps' time and that of the step under way. Time before the loop is `initialization`: until the first wait for
    data, copy, forward, backward or optimizer, or until the first `step()`.
    """

    __slots__ = (
        "_above",
        "_below",
        "_bucket",
        "_durations",
        "_excused",
        "_explained",
        "_publish",
        "_samples",
        "_special",
        "_step_began",
        "_tokens",
        "after_step",
        "counts",
        "current",
        "due",
        "first_step",
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
        "slow_steps",
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
        """Up to when time is booked."""
        self.due = inf
        """When the next report is due; never, until the owner says so."""
        self._publish = publish
        self.pending: Callable[[], None] | None = None
        """Books the events that are noted and not booked yet."""
        self.peek: Callable[[], str] | None = None
        """Returns the phase that is open by the noted events, in any thread; an empty string if there are none."""
        self.rebooked: Callable[[float, float, str, Collection[str]], None] | None = None
        """Called when time has moved between phases: with its interval, the phase that has it now, and the others."""
        self.input_functions: set[CodeType] = set()
        """Functions that draw batches: their time is moved from `other` to `data_wait` after it was booked."""
        self.listener: Callable[[], None] | None = None
        """Called at each boundary, before a report that is due."""
        self.after_step: Callable[[], object] | None = None
        """Called once at the end of the current boundary. What it raises reaches the program."""
        self.interval = interval
        """Seconds between reports; what one report may come early."""
        self.held = False
        """True if a due report waits, because an integration does not yet know the phase of the newest time."""
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
        self.slow_steps = SlowSteps()
        self._durations = self.slow_steps.durations
        self._step_began = self.mark
        self._bucket = 0
        """The bucket that the newest step fell into, and mostly the next one's too."""
        self._above = 0.0
        self._below = 0.0
        """Its bounds."""
        self._special = False
        """True if the current step is not judged by its length, but by the code that follows."""
        self._explained = 0.0
        """Seconds of it in phases that explain its being long."""
        self._excused = 0
        """Steps from this one on that are not judged at all."""
        self._tokens = self._samples = 0.0
        """Tokens and samples that the client has reported for the step under way."""

    def phase(self, name: str) -> Phase:
        """The phase of that name, the same object each time; one that books nothing where the name is not usable."""
        found = self.phases.get(name)
        return found if found is not None else self._new_phase(name)

    def step(self, opening: Phase | None = None) -> None:
        """Mark a step's boundary. Does nothing inside a phase outside of steps.

        Args:
            opening: a phase that the next step begins with, opened at the same moment.
        """
        try:
            if self.pending is not None:
                self.settle()
            current = self.current
            if current.outside:
                self._first_boundary()
                return
            now = self.now()
            current.seconds += now - self.mark
            self.mark = now
            duration = now - self._step_began
            self._step_began = self.last_step = now
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
            if self._special:
                self._end_special_step(duration)
            else:
                self._durations.append(duration)
            if self.first_step is None:
                self.first_step = now
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
        """Book the events that are noted and not booked yet. Required before the timeline is read or changed."""
        if self.pending is not None:
            self.pending()

    @property
    def open(self) -> tuple[Phase, ...]:
        """The phases that are open, the outermost first."""
        found = [self.current]
        while found[-1].around is not found[-1]:
            found.append(found[-1].around)
        return tuple(reversed(found))

    @property
    def open_now(self) -> str:
        """The name of the phase that is open. May be read in any thread."""
        peek = self.peek
        return (peek() if peek is not None else "") or self.current.name

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
        self._step_began = now
        self._explained = self._tokens = self._samples = 0.0
        self.excuse(1)
        self.activity_changed(now)

    @property
    def step_by_now(self) -> float:
        """Seconds of the step under way, up to when time is booked."""
        return self.mark - self._step_began

    def end_last_step(self, duration: float) -> None:
        """Mark the boundary of a step that ended a while ago, because no next step showed it.

        Args:
            duration: its length in seconds, without what came after its work was done.
        """
        self._step_began = self.now() - duration
        self.step()

    def begin_pass(self) -> None:
        """A pass over the data begins: the steps that fetch its first batches are never held to be slow."""
        self.excuse(_EPOCH_BEGINS)

    def excuse(self, steps: int) -> None:
        """Exclude the next `number` steps, including the current one, from the judgement of slow steps only."""
        if steps > self._excused:
            self._excused = steps
            self._special = True

    def worked(self, tokens: float, samples: float) -> None:
        """Add tokens and samples to the step under way, which is then judged by them and not by its length alone."""
        self.settle()
        if not self.current.outside:
            self._tokens += tokens
            self._samples += samples
            self._special = True

    def book(self, now: float) -> None:
        """Book open time up to now."""
        self.current.seconds += now - self.mark
        self.mark = now
        self.other.occurrences = sum(self.counts)

    def snapshot(self) -> Snapshot:
        """Book open time, and return what each phase has by now."""
        self.settle()
        now = self.now()
        self.current.seconds += now - self.mark
        self.mark = now
        return {phase: (phase.seconds, phase.occurrences, phase.peak) for phase in self.phases.values()}

    def rebook(self, before: Snapshot, target: Phase, sources: Collection[str], after: Snapshot | None = None) -> None:
        """Move time to the phase that it turned out to belong to. Only time that no report contained may be moved.

        Args:
            before: the snapshot from when that time began.
            target: the phase that the time belongs to.
            sources: names of the phases that may lose time.
            after: the snapshot from when that time ended; now by default.
        """
        now = self.snapshot()
        after = now if after is None else after
        moved = from_steps = 0.0
        for phase in self.phases.values():
            seconds, occurrences, peak = before.get(phase, (0.0, 0, 0.0))
            until, occurred, _ = after.get(phase, (0.0, 0, 0.0))
            added = until - seconds
            if added <= 0.0 or phase is target or phase.name not in sources:
                continue
            phase.seconds -= added
            phase.mark = min(phase.mark, phase.seconds)
            if not phase.opened:
                phase.occurrences -= occurred - occurrences
                phase.peak = peak if after is now else phase.peak
            moved += added
            if not phase.outside:
                from_steps += added
        if moved <= 0.0:
            return
        if self.rebooked is not None:
            # All phases together are the time since the beginning.
            origin = self.mark - sum(seconds for seconds, _, _ in now.values())
            began, ended = (sum(seconds for seconds, _, _ in each.values()) for each in (before, after))
            self.rebooked(origin + began, origin + ended, target.name, sources)
        self.move(None, target, moved)
        shift = from_steps if target.outside else from_steps - moved
        self._step_began = min(self._step_began + shift, self.mark)
        if target.outside:
            self.excuse(1)

    def move(self, source: Phase | None, target: Phase, seconds: float) -> None:
        """Move seconds that no report contained from one phase of the step to another, as an occurrence of its own."""
        if source is not None:
            source.seconds -= seconds
            source.mark = min(source.mark, source.seconds)
        target.seconds += seconds
        if target.opened:
            target.mark += seconds
        target.occurrences += 1
        target.peak = max(target.peak, seconds)

    def publish(self, now: float) -> None:
        """Send the report that is due, unless it is held back."""
        self.settle()
        if not self.held or now >= self.due + _HELD_AT_MOST:
            self._publish(now)

    def activity_changed(self, now: float) -> None:
        """Report a new activity at once, in exchange for the next report.

        Without it, a checkpoint that hangs would look like a step that does.
        """
        due = self.due
        if now >= due:
            self._publish(now)
        elif due - now <= self.interval:
            self._publish(now)
            self.due += due - now

    def special_phase_ended(self, phase: Phase, spent: float, now: float) -> None:
        """Take a phase out of the step that contains it, wholly or as an excuse."""
        if phase.outside:
            self._step_began += spent
            self.excuse(1)  # caches are cold, and what was queued has run dry
            self.activity_changed(now)
            return
        self._explained += spent
        self._special = True
        if phase.name == "checkpoint":
            self.activity_changed(now)
        elif now >= self.due:
            self.publish(now)

    @property
    def activity(self) -> str:
        """The session's activity, one of the contract's."""
        if self.current.outside:
            return self.current.name
        checkpoint = self.phases.get("checkpoint")
        return "checkpoint" if checkpoint is not None and checkpoint.opened else "training"

    def _find_bucket(self, duration: float) -> None:
        found = self._bucket = bisect_left(STEP_BUCKETS, duration)
        self._above = STEP_BUCKETS[found - 1] if found else -inf
        self._below = STEP_BUCKETS[found] if found < len(STEP_BUCKETS) else inf

    def _end_special_step(self, duration: float) -> None:
        if self._excused:
            self._excused -= 1
        elif self._tokens or self._samples:
            self._durations.append((duration - self._explained, self._tokens, self._samples))
        else:
            self._durations.append(duration - self._explained)
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
        if self.listener is not None:
            self.listener()

    def _new_phase(self, name: str) -> Phase:
        if not is_label(name, MAX_LABEL_LENGTH):
            complain(
                f"a phase is called {shown(name)}; expected printable text of at most {MAX_LABEL_LENGTH} characters",
                "phase: name",
            )
            return NO_PHASE
        if len(self.phases) >= MAX_PHASES:
            complain(f"phase {shown(name)} is one too many; at most {MAX_PHASES} are booked", "phase: too many")
            return NO_PHASE
        found = self.phases[name] = Phase(self, name)
        return found
