"""Values that a program and its integrations report of a run, and the work of its steps.

Imported with the first value: a loop that only iterates reports none.
"""

from __future__ import annotations

from math import isfinite

from stallscope.training.protocol.measurements import COUNTERS, GAUGES
from stallscope.training.protocol.vocabulary import MAX_LABEL_LENGTH, MAX_VALUES
from stallscope.training.shim.checked_numbers import amount, finite, number
from stallscope.training.shim.timeline import NO_PHASE
from stallscope.training.shim.tolerance import complain, is_label, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stallscope.training.shim.timeline import Timeline

OWN_COUNTERS = (
    *("slow_steps", "slow_step_excess_seconds", "nonfinite_losses", "shim_overhead_seconds", "late_batch_steps"),
    *("own_work_seconds", "uneven_work_square_seconds", "even_work_square_seconds", "late_batch_rest_seconds"),
)
"""Counters that only the run itself sets."""
_MAX_SECONDS = 1e12
_MAX_STEP = 2**53


class ReportedValues:
    """Checks what is reported, and adds it to the values of the next report."""

    def __init__(
        self, timeline: Timeline, gauges: dict[str, float], counters: dict[str, float], values: dict[str, float]
    ) -> None:
        """Start without values.

        Args:
            timeline: counts the steps.
            gauges: gauges of the report.
            counters: counters of the report.
            values: the user's own values in the report.
        """
        self._timeline = timeline
        self._gauges = gauges
        self._counters = counters
        self._values = values
        self.batch_size: float | None = None
        """Samples of each step, as planned."""
        self.step_offset = 0
        """Steps before this session, of a run that goes on from a checkpoint."""
        self._totals: dict[str, float] = {}
        self._work_of_step: dict[str, float] = {}
        self._worked_steps = 0
        """Steps whose work is counted."""

    @property
    def planned_work(self) -> tuple[float, float]:
        """Tokens and samples of each step; 0 where they are unknown."""
        return self._work_of_step.get("tokens", 0.0), self._work_of_step.get("samples", 0.0)

    def plan(self, steps_planned: float | None, **work: float | None) -> None:
        """Set the number of steps, and the samples, tokens and flops of each step from now on; None changes nothing."""
        for key, value in work.items():
            if value is not None and (each := amount(f"{key} per step", value)) is not None:
                self.count_work()
                self._work_of_step[key] = each
                if key == "samples":
                    self.batch_size = self._gauges["batch_size"] = each
        if steps_planned is not None and (planned := amount("steps_planned", steps_planned)) is not None:
            self._gauges["steps_planned"] = planned

    def count_work(self) -> None:
        """Count the work of the steps so far: from now on, each may be worth something else."""
        self._timeline.settle()
        steps = self._timeline.steps - self._worked_steps
        self._worked_steps = self._timeline.steps
        for key, each in self._work_of_step.items():
            self._grow(key, each * steps)

    def work(self, key: str, done: object) -> None:
        """Add samples, tokens or flops to the work of the current step."""
        if (added := amount(key, done)) is not None:
            self._grow(key, added)
            if key == "tokens":
                self._timeline.worked(added, 0.0)
            elif key == "samples":
                self._timeline.worked(0.0, added)

    def step(self, step: object) -> None:
        """Set the number of steps done by now."""
        if (done := amount("step", step)) is not None:
            self._timeline.settle()
            self.step_offset = int(min(done, _MAX_STEP)) - self._timeline.steps

    def loss(self, loss: object) -> None:
        """Set the loss, or count one that is not finite."""
        value = number(loss)
        if value is None:
            finite("loss", loss)  # which complains
        elif isfinite(value):
            self._gauges["loss"] = value
            self._gauges.pop("nonfinite_since_step", None)
        else:
            self._grow("nonfinite_losses", 1)
            self._timeline.settle()
            self._gauges.setdefault("nonfinite_since_step", self._timeline.steps + self.step_offset)

    def gauge(self, key: str, value: object) -> None:
        """Set one of `measurements.GAUGES`."""
        if type(key) is not str or key not in GAUGES:
            complain(f"{shown(key)} is not a gauge; expected one of measurements.GAUGES", "gauge: key")
        elif (found := finite(key, value)) is not None:
            self._gauges[key] = found

    def value(self, name: str, value: object) -> None:
        """Set one of the user's own values."""
        if name not in self._values:  # a keyword, and so text
            if len(self._values) >= MAX_VALUES:
                complain(f"value {shown(name)} is ignored: at most {MAX_VALUES} are reported; use fewer", "values")
                return
            if not is_label(name, MAX_LABEL_LENGTH):
                complain(
                    f"a value is called {shown(name)}; expected printable text of at most {MAX_LABEL_LENGTH}"
                    " characters",
                    "values: name",
                )
                return
        found = finite(f"value {name}", value)
        if found is not None:
            self._values[name] = found

    def count(self, key: str, total: float) -> None:
        """Set one of `measurements.COUNTERS` to what was counted elsewhere; a total that falls was reset there."""
        if _is_countable(key) and (found := amount(key, total)) is not None:
            before = self._totals.get(key, 0.0)
            self._totals[key] = found
            self._grow(key, found - before if found >= before else found)

    def is_counted_elsewhere(self, key: str) -> bool:
        """Return whether totals of a counter are reported."""
        return key in self._totals

    def add(self, key: str, added: float) -> None:
        """Add to one of `measurements.COUNTERS`."""
        if _is_countable(key) and (found := amount(key, added)) is not None:
            self._grow(key, found)

    def gpu_time(self, phase: str, seconds: object) -> None:
        """Add time of a phase by the GPU's clock."""
        found = self._timeline.phase(phase)
        added = amount("gpu_time", seconds)
        if added is not None and found is not NO_PHASE:
            found.gpu_seconds = min((found.gpu_seconds or 0.0) + added, _MAX_SECONDS)

    def _grow(self, key: str, added: float) -> None:
        total = self._counters.get(key, 0.0) + added
        if isfinite(total):
            self._counters[key] = total
        else:
            complain(f"{key} has grown beyond all numbers; what goes beyond is left out", f"{key}: too large")


def _is_countable(key: str) -> bool:
    if type(key) is str and key in COUNTERS and key not in OWN_COUNTERS:
        return True
    complain(f"{shown(key)} is not a counter that can be set; expected one of measurements.COUNTERS", "count: key")
    return False
