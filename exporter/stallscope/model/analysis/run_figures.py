"""The values by which runs are compared, from recorded series; reports show the same values.

figures = read_figures(server, find_run(server, "resnet50", start, end))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal

from stallscope.model.analysis.over_time import (
    Server,
    gpus_of_runs,
    lived,
    lost_of_runs,
    matchers_of,
    over_time,
    resolution,
)
from stallscope.model.analysis.run_totals import read_totals
from stallscope.model.analysis.runs import Run, references

Work = Literal["samples", "tokens", "steps"]
"""The unit of work that is counted."""
WINDOW_SECONDS = 300.0
"""The window of the rules."""
LEAST_SECONDS = WINDOW_SECONDS + 120.0
"""Time with steps from which on rates of work are known: a window, and the interval of the rules that record them."""
_RANK = "cluster, job, instance, run, rank"


@dataclass(frozen=True)
class RunFigures:
    """Means of a run; None if a value is not recorded.

    Work and step time are means over the training time. Use and loss of GPUs are means over the whole time of the run.
    """

    name: str
    """Displayed name, unique within a comparison."""
    seconds: float
    """Length of the training time: from the fifth minute of steps on, except of a young run."""
    end: float | None = None
    """Unix time at the end of the training time."""
    young: bool = False
    """True while the windows of the rules include a time without steps: rates of work are those of the whole loop, by
    the run's own counters."""
    running: bool = False
    """True if the run goes on, so that the means may change."""
    gpus: float | None = None
    batch: float | None = None
    """Samples per step of all ranks together."""
    samples: float | None = None
    """Samples per second of all ranks together."""
    tokens: float | None = None
    step_seconds: float | None = None
    step_uncertainty: float | None = None
    """Relative standard error of the step time, by its scatter between five-minute windows."""
    operations: float | None = None
    """Floating-point operations per sample, as reported by the training."""
    gpu_busy: float | None = None
    memory_used: float | None = None
    """Used share of GPU memory."""
    memory_peak: float | None = None
    """Peak share of GPU memory that tensors took."""
    watts: float | None = None
    """Power of all GPUs together."""
    ranks: float | None = None
    time_lost: float | None = None
    """Share of GPU time that all causes together cost, of rank time without a GPU; None without verdicts."""
    lost: Mapping[str, float] = field(default_factory=dict)
    """Share of GPU time by cause."""
    cluster: str = ""
    namespace: str = ""

    @property
    def units(self) -> float | None:
        """Number of GPUs that share the work; of ranks, if the run claims no GPU."""
        return self.gpus or self.ranks

    @property
    def batch_on_unit(self) -> float | None:
        """Samples per step on each GPU, or of each rank without one."""
        return self.batch / self.units if self.batch and self.units else None

    def rate(self, work: Work) -> float | None:
        """Return the units of work per second."""
        if work == "steps":
            return 1 / self.step_seconds if self.step_seconds else None
        return self.samples if work == "samples" else self.tokens


def read_figures(server: Server, run: Run) -> RunFigures:
    """Read the values of one run.

    The first five minutes of steps are left out of the training time: until then, the windows of the rules include a
    time without steps.

    Raises:
        PrometheusError: the server gave no valid response.
    """
    run_matchers = matchers_of(run)
    first, last = lived(server, run)
    recorded = _steps(server, run_matchers, run.start, run.end)
    start, end = recorded or (first, last)
    young = recorded is None or end - start < LEAST_SECONDS
    start = start if young else start + WINDOW_SECONDS
    found = [
        each
        for query, at in (
            (_of_training(run_matchers, run.matchers, end - start, young=young), end),
            (_of_whole_time(run_matchers, last - first, last), last),
        )
        for each in server.query(query, at=at)
        if isfinite(each.value)
    ]
    figures: dict[str, Any] = {each.labels["figure"]: each.value for each in found if "figure" in each.labels}
    lost = {each.labels["cause"]: each.value for each in found if "cause" in each.labels}
    figures |= {"cluster": run.cluster, "namespace": run.namespace}
    if young:  # the rules' rates include a time without steps; the run's own counters do not
        totals = read_totals(server, run)
        own = {
            "step_seconds": totals.mean_step,
            "step_uncertainty": totals.step_uncertainty,
            "samples": totals.rate(totals.samples),
            "tokens": totals.rate(totals.tokens),
        }
        figures |= {name: value for name, value in own.items() if value is not None}
    return RunFigures(run.name, end - start, end=end, young=young, running=run.goes_on, lost=lost, **figures)


def with_distinct_names(runs: Sequence[RunFigures]) -> list[RunFigures]:
    """Prefix runs of the same name with their clusters and namespaces."""
    by_name: dict[str, list[RunFigures]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
    names = {
        id(run): name
        for shared, alike in by_name.items()
        if len(alike) > 1
        for run, name in zip(alike, references(shared, [(run.cluster, run.namespace) for run in alike]), strict=True)
    }
    return [replace(run, name=names.get(id(run), run.name)) for run in runs]


def _steps(server: Server, run: str, start: float, end: float) -> tuple[float, float] | None:
    """Return the first and the last Unix time with recorded steps; None without any, as for a short run."""
    moments = f"timestamp(run:step:seconds5m{{{run}}})[{_window(end - start)}:1m]"
    found = [
        each.value
        for function in ("min_over_time", "max_over_time")
        for each in server.query(f"{function}({moments})", at=end)
    ]
    return (min(found), max(found)) if found else None


def _of_training(run: str, ranks: str, seconds: float, *, young: bool) -> str:
    """Return PromQL for the values of the training time, each with a label `figure`."""
    window, step = _window(seconds), f"run:step:seconds5m{{{run}}}"
    rates = {} if young else {work: _mean(f"run:{work}:rate5m", run, window) for work in ("samples", "tokens")}
    if seconds >= 2 * WINDOW_SECONDS:
        # Windows that overlap repeat one another: only one in five minutes counts.
        scatter = f"avg(stddev_over_time({step}[{window}]) / avg_over_time({step}[{window}]))"
        rates["step_uncertainty"] = f"{scatter} / {(seconds / WINDOW_SECONDS) ** 0.5:.3f}"
    return _named(
        **rates,
        gpus=_median("run:gpus:count", run, window),
        ranks=_median("run:ranks:count", run, window),
        batch=_median("run:batch_size:sum", run, window),
        step_seconds=_mean("run:step:seconds5m", run, window),
        operations=f"{_rate('flops', run, ranks)} / ({_rate('samples', run, ranks)} > 0)",
        memory_peak=f"max(last_over_time(rank:allocator_peak:ratio{{{run}}}[5m]))",
    )


def _of_whole_time(run: str, seconds: float, end: float) -> str:
    """Return PromQL for the values of the whole time: labelled `figure`, and the time lost, labelled `cause`."""
    points = resolution(seconds)

    def total(expression: str) -> str:
        return over_time("sum_over_time", expression, seconds + 1, points)

    def mean(record: str) -> str:
        # The first five minutes of a five-minute mean cover the time before the run.
        settled = f"{record}{{{run}}} and run:gpus:count{{{run}}} offset 5m"
        return f"avg({over_time('avg_over_time', settled, seconds + 1, points)})"

    gpus = gpus_of_runs(run, seconds + 1, end)
    figures = _named(
        gpu_busy=mean("run:gpu_busy:ratio5m"),
        memory_used=mean("run:gpu_memory_used:ratio"),
        watts=mean("run:power:watts5m"),
        time_lost=f"sum({total(lost_of_runs(run, gpus, cause=False))}) / sum({total(gpus)})",
    )
    # A cause has no series while it costs nothing, so divide by the whole time.
    lost = f"sum by (cause) ({total(lost_of_runs(run, gpus, cause=True))}) / on () group_left () sum({total(gpus)})"
    return f"{figures} or ({lost})"


def _named(**figures: str) -> str:
    return " or ".join(
        f'label_replace({expression}, "figure", "{name}", "", "")' for name, expression in figures.items()
    )


def _mean(series: str, run: str, window: str) -> str:
    return f"avg(avg_over_time({series}{{{run}}}[{window}]))"


def _median(series: str, run: str, window: str) -> str:
    """Return the median, which stays a whole number when a scrape is missed."""
    return f"avg(quantile_over_time(0.5, {series}{{{run}}}[{window}]))"


def _rate(work: str, run: str, ranks: str) -> str:
    """Return the work per second of all ranks over the last five minutes."""
    rate = f"sum by ({_RANK}) (rate(stallscope_training_{work}_total{{{ranks}}}[5m]))"
    return f"sum(last_over_time(rank:live:info{{{run}}}[2m]) * on ({_RANK}) group_left () {rate})"


def _window(seconds: float) -> str:
    return f"{max(1.0, seconds):.0f}s"
