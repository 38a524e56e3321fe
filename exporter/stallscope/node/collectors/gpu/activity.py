"""Activity of a GPU's units (NVIDIA GPM), integrated, and its fixed-function engines."""

from __future__ import annotations

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.gpu.poll import Answer, Poll, Session, known
from stallscope.node.collectors.gpu.utilization import buffered
from stallscope.node.drivers.device import ENGINES, DriverError, Unsupported
from stallscope.node.drivers.signals import SECONDS_5
from stallscope.node.sampling.integrals import Timeline

SM_ACTIVE = family("stallscope_gpu_sm_active_seconds_total")
SM_OCCUPANCY = family("stallscope_gpu_sm_occupancy_seconds_total")
PIPE_ACTIVE = family("stallscope_gpu_pipe_active_seconds_total")
DRAM_ACTIVE = family("stallscope_gpu_dram_active_seconds_total")
ENGINE_BUSY = family("stallscope_gpu_engine_busy_seconds_total")


class ActivityPoll(Poll):
    """Seconds for which units were active, from their shares of the time between two readings."""

    name = "activity"
    families = (SM_ACTIVE, SM_OCCUPANCY, PIPE_ACTIVE, DRAM_ACTIVE, ENGINE_BUSY)

    def __init__(self) -> None:
        """Start without totals."""
        self.engines: dict[str, float] = {}
        """Busy seconds by engine."""
        self.active_engines: frozenset[str] = frozenset()
        """The engines in the newest activity."""
        self._shares: dict[str, float] = {}
        """Active seconds by unit; pipes are called `pipe NAME`."""
        self._active: frozenset[str] = frozenset()
        """The units in the newest activity."""
        self._active_at: float | None = None
        """Monotonic seconds of the newest activity."""

    def reopened(self) -> None:
        """See `Poll`."""
        self._active_at = None

    def read(self, session: Session) -> Answer | None:
        """Integrate the activity since the previous reading."""
        activity = session.device.activity()
        if activity is None or not activity.seconds:
            self.require_turn(session)
            return self._answer() or None
        session.activity = activity
        self._active_at = session.now
        shares = {"sm": activity.sm, "occupancy": activity.occupancy, "dram": activity.dram}
        active = {name: ratio for name, ratio in shares.items() if ratio is not None}
        active.update({f"pipe {pipe}": ratio for pipe, ratio in activity.pipes.items()})
        self._active = frozenset(active)
        for name, ratio in active.items():
            self._shares[name] = self._shares.get(name, 0.0) + ratio * activity.seconds
        self.active_engines = frozenset(activity.engines)
        for engine, ratio in activity.engines.items():
            self.engines[engine] = self.engines.get(engine, 0.0) + ratio * activity.seconds
        return self._answer()

    def require_turn(self, session: Session) -> None:
        """Raise an error if activity has been missing until its values are stale.

        Raises:
            DriverError: another GPU's call is in the way, and may hang.
        """
        if self._active_at is not None and session.now - self._active_at > session.longest:
            raise DriverError("busy", "the GPU's activity can't be read while another GPU's call is under way")

    def _answer(self) -> Answer:
        shares = {name: seconds for name, seconds in self._shares.items() if name in self._active}
        return known(
            {
                SM_ACTIVE: shares.get("sm"),
                SM_OCCUPANCY: shares.get("occupancy"),
                DRAM_ACTIVE: shares.get("dram"),
                PIPE_ACTIVE: {name[5:]: seconds for name, seconds in shares.items() if name.startswith("pipe ")},
                ENGINE_BUSY: {engine: self.engines[engine] for engine in sorted(self.active_engines)},
            }
        )


class EnginePoll(Poll):
    """Polls the engines through the driver's sample buffers, if activity does not report them."""

    name = "engines"
    families = (ENGINE_BUSY,)
    every = SECONDS_5
    in_parts = True

    def __init__(self, activity: ActivityPoll) -> None:
        """Create the poll; its totals are those of `activity`."""
        self._activity = activity
        self._timelines = {engine: Timeline(4 * self.every) for engine in ENGINES}
        self.timelines = self._timelines.values()

    def read(self, session: Session) -> Answer | None:
        """Integrate the new samples."""
        if ActivityPoll.name not in session.has:
            return None  # it is not known yet which engines activity has
        totals, found = self._activity.engines, dict[str, float]()
        for engine, timeline in self._timelines.items():
            if engine in self._activity.active_engines and ActivityPoll.name not in session.retry:
                timeline.poll(0.0, session.now)  # samples that come later count no time before it
                continue
            samples = buffered(session, engine, timeline)
            if samples is None:
                continue
            total = totals.get(engine, 0.0)
            if samples:
                if not timeline.newest_us:
                    samples = samples[-1:]
                total += sum(each.value * each.seconds for each in timeline.samples(samples, session.now))
            found[engine] = total
        if not found:
            raise Unsupported("this GPU does not report how busy its engines are")
        totals.update(found)
        return {ENGINE_BUSY: found}
