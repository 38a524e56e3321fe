"""Move time between phases, for integrations that find out later what the time belongs to.

Only time that was not yet reported may be moved.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from stallscope.training.shim.timeline import Phase, Timeline

    Snapshot = dict[Phase, tuple[float, int, float]]
    """Seconds, occurrences and longest recent occurrence of each phase."""


def snapshot(timeline: Timeline) -> Snapshot:
    """Add the time since `mark` to the open phase, and return the current values of each phase."""
    timeline.settle()
    now = timeline.now()
    timeline.current.seconds += now - timeline.mark
    timeline.mark = now
    return {phase: (phase.seconds, phase.occurrences, phase.peak) for phase in timeline.phases.values()}


def rebook(
    timeline: Timeline, before: Snapshot, target: Phase, sources: Collection[str], after: Snapshot | None = None
) -> None:
    """Move time to another phase, once its phase is known.

    Args:
        timeline: the timeline of the phases.
        before: the snapshot at the beginning of that time.
        target: the phase that the time belongs to.
        sources: names of the phases from which time may be moved.
        after: the snapshot at the end of that time; now by default.
    """
    now = snapshot(timeline)
    after = now if after is None else after
    moved = from_steps = 0.0
    for phase in timeline.phases.values():
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
    if timeline.rebooked is not None:
        # The sum of all phases is the time since the beginning.
        origin = timeline.mark - sum(seconds for seconds, _, _ in now.values())
        began, ended = (sum(seconds for seconds, _, _ in each.values()) for each in (before, after))
        timeline.rebooked(origin + began, origin + ended, target.name, sources)
    move(None, target, moved)
    delayed = from_steps if target.outside else from_steps - moved
    timeline.step_began = min(timeline.step_began + delayed, timeline.mark)  # not after the time that is booked
    if target.outside:
        timeline.excuse(1)


def move(source: Phase | None, target: Phase, seconds: float) -> None:
    """Move seconds from one phase of the step to another, as a separate occurrence."""
    if source is not None:
        source.seconds -= seconds
        source.mark = min(source.mark, source.seconds)
    target.seconds += seconds
    if target.opened:
        target.mark += seconds
    target.occurrences += 1
    target.peak = max(target.peak, seconds)


def extend(timeline: Timeline, phase: Phase, seconds: float) -> None:
    """Move the newest seconds of `other` to a phase of the step that precedes them."""
    snapshot(timeline)
    other = timeline.other
    seconds = min(seconds, other.seconds)
    other.seconds -= seconds
    other.mark = min(other.mark, other.seconds)
    phase.seconds += seconds
    phase.peak = max(phase.peak, seconds)
    timeline.explain(seconds)
    if timeline.rebooked is not None:
        timeline.rebooked(timeline.mark - seconds, timeline.mark, phase.name, ("other",))


def end_last_step(timeline: Timeline, duration: float) -> None:
    """End a step that ended earlier, which was not detected because no step followed.

    Args:
        timeline: the timeline of the step.
        duration: length of the step in seconds, without the time after its work.
    """
    timeline.step_began = timeline.now() - duration
    timeline.step()
