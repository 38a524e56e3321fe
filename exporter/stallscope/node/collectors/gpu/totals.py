"""Totals of energy, throttled time and bytes over links: the driver's counters, or integrals of other readings."""

from __future__ import annotations

from collections.abc import Mapping

from stallscope.model.catalogue.metrics import THROTTLE_REASONS, Family, family
from stallscope.node.collectors.gpu.poll import Answer, Poll, Session
from stallscope.node.collectors.gpu.traffic import Traffic
from stallscope.node.drivers.device import DeviceLost, DriverError, DriverUnavailable, Unsupported
from stallscope.node.drivers.signals import QUERIES, SECONDS_10
from stallscope.node.sampling.integrals import COUNTER_SLACK, DriverCounter, Timeline

ENERGY = family("stallscope_gpu_energy_joules_total")
THROTTLED = family("stallscope_gpu_throttled_seconds_total")
PCIE_RECEIVED = family("stallscope_gpu_pcie_receive_bytes_total")
PCIE_TRANSMITTED = family("stallscope_gpu_pcie_transmit_bytes_total")
NVLINK_RECEIVED = family("stallscope_gpu_nvlink_receive_bytes_total")
NVLINK_TRANSMITTED = family("stallscope_gpu_nvlink_transmit_bytes_total")

_COUNTERS = QUERIES["counters"]


class EnergyPoll(Poll):
    """Polls energy: the driver's counter, or the integral of power without one."""

    name = "energy"
    families = (ENERGY,)
    in_parts = follows = True

    def __init__(self, longest: float) -> None:
        """Create the poll; a pause of more than `longest` seconds is not integrated."""
        self._counter = DriverCounter(most_per_second=_COUNTERS[ENERGY.signal].most_per_second)
        self.counters = (self._counter,)
        self._polls = Timeline(longest)

    def read(self, session: Session) -> Answer:
        """Return the energy, from the counters or the power of this reading."""
        counted = session.readings.get("counters", {}).get(ENERGY.signal)
        if isinstance(counted, (int, float)):
            session.served.pop(ENERGY.signal, None)
            return {ENERGY: self._counter.take(counted, session=session.number, now=session.now)}
        session.require_counters()
        watts = session.readings.get("power", {}).get("power_watts")
        if not isinstance(watts, (int, float)):
            if "power" in session.retry:
                raise Unsupported("this GPU reports neither power nor energy")
            raise DriverError("implausible", "the GPU's energy can't be read now")
        if not session.uncounted(self._counter):
            raise DriverError("implausible", "the GPU's energy can't be read now")
        session.served[ENERGY.signal] = "integrated power"
        span = self._polls.poll(watts, session.now)
        return {ENERGY: self._counter.add(watts * span.seconds)}


class ThrottlingPoll(Poll):
    """Polls throttled time: the driver's counters, and samples of the throttle reasons that have no counter."""

    name = "throttling"
    families = (THROTTLED,)
    in_parts = True

    def __init__(self, longest: float) -> None:
        """Create the poll; a pause of more than `longest` seconds is not integrated."""
        most = _COUNTERS[THROTTLED.signal].most_per_second
        self._counters = {
            reason: DriverCounter(most_per_second=most, slack=COUNTER_SLACK) for reason in THROTTLE_REASONS
        }
        self.counters = self._counters.values()
        self._polls = Timeline(longest)

    def read(self, session: Session) -> Answer:
        """Return the throttled seconds by reason."""
        counted = session.readings.get("counters", {}).get(THROTTLED.signal)
        if not isinstance(counted, Mapping):
            counted = {}
        seconds = {
            reason: self._counters[reason].take(value, session=session.number, now=session.now)
            for reason, value in counted.items()
        }
        reasons: frozenset[str] | None = None
        try:
            reasons = session.optional("throttle reasons", session.device.throttle_reasons)
        except (DeviceLost, DriverUnavailable):
            raise
        except DriverError:
            if not counted:
                raise
        if not counted and reasons is None:
            session.require_counters()
            raise Unsupported("this GPU does not report why its clocks are down")
        if reasons is not None:
            span = self._polls.poll(1.0, session.now)
            for reason, counter in self._counters.items():
                if reason not in counted and session.uncounted(counter):
                    seconds[reason] = counter.add(span.seconds if reason in reasons else 0.0)
        return {THROTTLED: seconds} if seconds else {}


class TrafficPoll(Poll):
    """Polls bytes over PCIe and NVLink from the counters and the activity of the reading."""

    name = "traffic"
    families = (PCIE_RECEIVED, PCIE_TRANSMITTED, NVLINK_RECEIVED, NVLINK_TRANSMITTED)
    follows = True

    def __init__(self) -> None:
        """Start without totals."""
        self.totals = {
            each: Traffic(
                most_per_second=_COUNTERS[each.signal].most_per_second or 0.0, may_be_narrow="pcie" in each.name
            )
            for each in self.families
        }
        self.counters = self.totals.values()

    def read(self, session: Session) -> Answer | None:
        """Return the bytes, from the counters or the activity of this reading."""
        counters, activity = session.readings.get("counters", {}), session.activity
        moved = (
            dict[Family, "float | None"]()
            if activity is None
            else {
                PCIE_RECEIVED: activity.pcie_received,
                PCIE_TRANSMITTED: activity.pcie_transmitted,
                NVLINK_RECEIVED: activity.nvlink_received,
                NVLINK_TRANSMITTED: activity.nvlink_transmitted,
            }
        )
        found: dict[Family, float] = {}
        for each, traffic in self.totals.items():
            counted = counters.get(each.signal)
            traffic.take(
                counted if isinstance(counted, (int, float)) else None,
                moved.get(each),
                session.now,
                session.number,
                0.0 if activity is None else activity.seconds,
            )
            session.served.pop(each.signal, None)
            if traffic.moved_at is None or session.now - traffic.moved_at > session.longest or traffic.total is None:
                continue  # a constant total would look like an idle link
            found[each] = traffic.total
            if traffic.by_activity:
                session.served[each.signal] = "activity (GPM)"
        return found if found or {"counters", "activity"} <= session.has.keys() else None


class PcieThroughputPoll(Poll):
    """Polls PCIe bytes as the integral of throughput. Slow: only on request, and only without other PCIe signals."""

    name = "pcie_throughput"
    families = (PCIE_RECEIVED, PCIE_TRANSMITTED)
    every = SECONDS_10

    def __init__(self, traffic: TrafficPoll, *, enabled: bool) -> None:
        """Create the poll; it adds to the totals of `traffic`, if enabled."""
        self._traffic = traffic
        self._enabled = enabled
        self._polls = Timeline(60.0)

    def read(self, session: Session) -> Answer:
        """Measure the throughput, and return the bytes."""
        if not self._enabled:
            raise Unsupported("throughput is not measured without --nvidia.pcie-throughput")
        if PCIE_RECEIVED in session.has.get(self._traffic.name, ()):
            return {}
        rates = dict(zip(self.families, session.device.pcie_throughput(), strict=True))
        span = self._polls.poll(1.0, session.now)
        session.served.update({each.signal: "integrated throughput" for each in rates})
        return {each: self._traffic.totals[each].add(rate * span.seconds) for each, rate in rates.items()}
