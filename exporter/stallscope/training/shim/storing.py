"""Store the reports of a run for the summary at the end of `stallscope run`."""

from __future__ import annotations

from stallscope.training.shim.observer import Observer
from stallscope.training.shim.slow_steps import WARM_UP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stallscope.training.shim.session import Session
    from stallscope.training.shim.stored_reports import StoredReports


class Storage(Observer):
    """The newest report, and the first after the steps that are slow by nature, for the summary."""

    task = "storing a report"

    def __init__(self, session: Session, store: StoredReports) -> None:
        self._timeline = session.timeline
        self._store = store
        session.on_step(self._warm_up)

    def before_sending(self, payload: bytes, _last: bool) -> None:
        """Store the report."""
        self._store.store(payload, self._timeline.steps >= WARM_UP)

    def _warm_up(self, _steps: int) -> bool:
        """Make a report due at the end of the first steps, which the summary leaves out."""
        timeline = self._timeline
        if timeline.steps < WARM_UP:
            return True
        timeline.due = min(timeline.due, timeline.now())
        return False
