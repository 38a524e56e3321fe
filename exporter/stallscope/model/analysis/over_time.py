"""PromQL for sums and means over the time of a report or comparison, and for the GPU time of a run.

Every command takes the GPU-hours and the lost time of a run from here, so that they show the same numbers.
"""

from __future__ import annotations

from typing import Protocol

from stallscope.model.analysis.runs import Run, RunError
from stallscope.model.clients.expressions import quoted
from stallscope.model.clients.prometheus import Series

RULES_SECONDS = 30.0
"""Finest resolution of sums over time: five-minute means hardly change in between."""
RUN_LABELS = "cluster, namespace, run"
_MAX_POINTS = 10_080
"""Points of a sum over time: a week by the minute."""
_LIVE_STEP = 60
"""Resolution in seconds of the end of a run."""
_EXACT_STEP = 5
"""Resolution in seconds around the end of a run."""
_REPORTED_ENDS = frozenset({"finished", "failed"})
"""States that a process reports at its end; before a signal ends it, it may have been silent for long."""
FIRST_SCRAPE_SECONDS = 120.0
"""Greatest time between the start of a process and its first scrape."""
_FORGOTTEN_SECONDS = 180.0
"""Maximum time for which the rules count a run's GPUs after the last scrape of its ranks."""


class NoRulesError(RunError):
    """The server has no results of the recording rules; the message is one line."""


class Server(Protocol):
    """A server that evaluates queries; `stallscope.model.clients.prometheus.Prometheus` is one."""

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """Evaluate an expression at one time."""


def resolution(seconds: float) -> float:
    """Return the seconds between the points of a sum over `seconds` seconds."""
    return multiple_of(RULES_SECONDS, seconds / _MAX_POINTS)


def multiple_of(unit: float, least: float) -> float:
    """Return the smallest positive multiple of a unit that is at least `least`."""
    return unit * max(1, -(-least // unit))


def over_time(function: str, expression: str, seconds: float, points: float) -> str:
    """Return PromQL for an `_over_time` function of any expression.

    Args:
        function: such as `avg_over_time`, or with the argument of a quantile: `quantile_over_time(0.5, `.
        expression: PromQL.
        seconds: length of the window.
        points: seconds between two points.
    """
    opened = function if "(" in function else f"{function}("
    return f"{opened}({expression})[{max(1.0, seconds):.0f}s:{points:.0f}s])"


def settled(record: str) -> str:
    """Return PromQL that omits the first five minutes of a five-minute mean, which cover the time before."""
    return f"{record} and {record} offset 5m"


def matchers_of(run: Run) -> str:
    """Return the matchers of the series recorded for a run and its ranks."""
    return f"cluster={quoted(run.cluster)}, namespace={quoted(run.namespace)}, run={quoted(run.name)}"


def gpus_of_runs(matchers: str, seconds: float, end: float) -> str:
    """Return PromQL for the number of GPUs of each run; of a run that claims none in the whole time, of its ranks.

    Args:
        matchers: matchers of the runs.
        seconds: length of the time.
        end: Unix time at its end.
    """
    claimed = f"last_over_time(run:gpus:count{{{matchers}}}[{max(1.0, seconds):.0f}s] @ {end:.3f})"
    return f"(run:gpus:count{{{matchers}}} or (run:ranks:count{{{matchers}}} unless on ({RUN_LABELS}) {claimed}))"


def lost_of_runs(matchers: str, gpus: str, cause: bool) -> str:
    """Return PromQL for the lost time of runs as a number of GPUs: by cause, or of all causes together.

    Args:
        matchers: matchers of the runs.
        gpus: PromQL for their number of GPUs.
        cause: True for one series per cause.
    """
    record = "run_cause:time_lost:ratio5m" if cause else "run:time_lost:ratio5m"
    return f"({record}{{{matchers}}} * on ({RUN_LABELS}) group_left () {gpus})"


def require_rules(server: Server, name: str, start: float, end: float) -> None:
    """Check that the server has results of Stallscope's recording rules in a time range.

    Raises:
        NoRulesError: it has none.
        PrometheusError: the server gave no valid response.
    """
    # The first is absent from a long-term storage that keeps only results.
    records = "stallscope:threshold|run:ranks:count|cluster:gpus_known:count|gpu:up:max"
    seconds = max(1.0, end - start)
    if not server.query(f'count(last_over_time({{__name__=~"{records}"}}[{seconds:.0f}s]))', at=end):
        raise NoRulesError(
            f"{name} recorded no results of Stallscope's rules in this time; load prometheus/rules/*.yml "
            "(`stallscope doctor` checks it), or choose a later time"
        )


def lived(server: Server, run: Run) -> tuple[float, float]:
    """Return the Unix times of the start of the run's first process and of its last live moment.

    A process starts before its first scrape. A run that has ended ends with its last report, or, if ranks were lost,
    with the last evaluation of the rules that counted a live rank.

    Raises:
        PrometheusError: the server gave no valid response.
    """

    def values(expression: str, at: float) -> list[float]:
        return [each.value for each in server.query(expression, at=at)]

    started = values(f"min(stallscope_training_start_timestamp_seconds{{{run.matchers}}})", run.start)
    start = max((each for each in started if run.start - FIRST_SCRAPE_SECONDS < each), default=run.start)
    start = min(start, run.start)
    if run.goes_on:
        return start, run.end
    end = run.end + _FORGOTTEN_SECONDS
    alive = f"timestamp(run:ranks:count{{{matchers_of(run)}}})"
    for step, seconds in ((_LIVE_STEP, end - run.start), (_EXACT_STEP, 2 * _LIVE_STEP)):
        found = values(f"max_over_time({alive}[{max(1.0, seconds):.0f}s:{step}s])", end)
        if not found:
            break
        last, end = max(found), max(found) + _LIVE_STEP
    else:
        end = last
    reported = values(f"max(stallscope_training_last_push_timestamp_seconds{{{run.matchers}}})", run.end)
    if reported and (not found or (run.states and run.states.keys() <= _REPORTED_ENDS)):
        end = min(reported)
    elif not found:
        end = run.end
    return start, max(start, min(end, run.end + _FORGOTTEN_SECONDS))
