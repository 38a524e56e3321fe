"""Decides which names of phases, values and lines in a report become series.

New names in reports of a held rank that exceed a limit are dropped, and the rank stays.
"""

from __future__ import annotations

from stallscope.node.intake.held import Holdings
from stallscope.node.intake.quotas import Key, names_of, without_new_names
from stallscope.training.protocol.report import Report

_MAX_KNOWN = 256
"""Names of a rank to remember; a report has at most 145."""


class KnownNames:
    """The names of every rank's series, and those of every run's values."""

    def __init__(self) -> None:
        self.dropped_series = 0
        self.dropped_values = 0
        self._of_rank: dict[Key, set[int]] = {}
        """Hashes of all names of a rank, in this and former sessions."""
        self._values: dict[str, set[str]] = {}

    def start(self, key: Key, report: Report) -> None:
        """Take over the names of a rank's first report."""
        self._of_rank[key] = set(names_of(report))

    def new_series(self, key: Key, report: Report) -> int:
        """Return the number of series with names that a rank has not had."""
        known = self._of_rank.get(key, set())
        return sum(series for name, series in names_of(report).items() if name not in known)

    def extend(self, key: Key, report: Report) -> None:
        """Take over the new names of a rank's report."""
        names = names_of(report).keys()
        known = self._of_rank.get(key, set()) | names
        self._of_rank[key] = known if len(known) <= _MAX_KNOWN else set(names)

    def without_new(self, before: Report, after: Report, series: int) -> Report:
        """Drop the names, with that many series, that a rank's report adds."""
        self.dropped_series += series
        return without_new_names(before, after)

    def restart_values(self, key: Key, ranks: Holdings) -> None:
        """Reset the run's value names to those of its other ranks, for a new session."""
        run = key[0]
        others = [held.report.values for other, held in ranks.items() if other != key and other[0] == run]
        self._values[run] = set().union(*others)

    def within_value_names(self, report: Report, most: int) -> Report:
        """Drop values whose names exceed the limit of the run over all of its ranks."""
        names = self._values.setdefault(report.run, set())
        if report.values.keys() <= names:
            return report
        for name in report.values:
            if len(names) < most:
                names.add(name)
        kept = {name: value for name, value in report.values.items() if name in names}
        self.dropped_values += len(report.values) - len(kept)
        return report._replace(values=kept)

    def keep(self, ranks: Holdings) -> None:
        """Forget the names of all other ranks and runs."""
        self._of_rank = {key: names for key, names in self._of_rank.items() if key in ranks}
        runs = {run for run, _rank in ranks}
        self._values = {run: names for run, names in self._values.items() if run in runs}
