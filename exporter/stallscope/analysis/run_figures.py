"""The values by which runs are compared: means over the training time, from recorded series.

figures = read_figures(server, find_run(server, "resnet50", start, end))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Literal, Protocol

from stallscope.analysis.runs import Run, references
from stallscope.clients.expressions import quoted
from stallscope.clients.prometheus import Series

Work = Literal["samples", "tokens", "steps"]
"""The unit of work that is counted."""
SHORT_SECONDS = 300.0
"""The window of the rules. Means over less time depend mostly on how the window fills."""
_RANK = "cluster, job, instance, run, rank"


class Server(Protocol):
    """A server that evaluates queries; `stallscope.clients.prometheus.Prometheus` is one."""

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """Evaluate an expression at one time."""


@dataclass(frozen=True)
class RunFigures:
    """Means over the training time of a run; None if a value is not recorded."""

    name: str
    """Displayed name, unique within a comparison."""
    seconds: float
    """Length of the averaged time."""
    running: bool = False
    """True if the run goes on, so that the means may change."""
    gpus: float | None = None
    batch: float | None = None
    """Samples per step of all ranks together."""
    samples: float | None = None
    """Samples per second of all ranks together."""
    tokens: float | None = None
    step_seconds: float | None = None
    operations: float | None = None
    """Floating-point operations per sample, as reported by the training."""
    gpu_busy: float | None = None
    memory_used: float | None = None
    """Used share of GPU memory."""
    memory_peak: float | None = None
    """Peak share of GPU memory that tensors took."""
    watts: float | None = None
    """Power of all GPUs together."""
    time_lost: float | None = None
    """Share of GPU time that all causes together cost; None without verdicts."""
    lost: Mapping[str, float] = field(default_factory=dict)
    """Share of GPU time by cause."""
    cluster: str = ""
    namespace: str = ""

    @property
    def batch_on_gpu(self) -> float | None:
        """Samples per step on each GPU."""
        return self.batch / self.gpus if self.batch and self.gpus else None

    def rate(self, work: Work) -> float | None:
        """Return the units of work per second."""
        if work == "steps":
            return 1 / self.step_seconds if self.step_seconds else None
        return self.samples if work == "samples" else self.tokens


def read_figures(server: Server, run: Run) -> RunFigures:
    """Read the values of one run.

    If there is more, the first five minutes of steps are left out: until then, the windows of the rules include a
    time without steps.

    Raises:
        PrometheusError: the server gave no valid response.
    """
    matchers = f"cluster={quoted(run.cluster)}, namespace={quoted(run.namespace)}, run={quoted(run.name)}"
    start, end = _steps(server, matchers, run.start, run.end)
    start = max(start, min(start + SHORT_SECONDS, end - SHORT_SECONDS))
    query = _query(matchers, run.matchers, end - start)
    found = [each for each in server.query(query, at=end) if isfinite(each.value)]
    figures = {each.labels["figure"]: each.value for each in found if "figure" in each.labels}
    lost = {each.labels["cause"]: each.value for each in found if "cause" in each.labels}
    return RunFigures(
        run.name, end - start, run.goes_on, lost=lost, cluster=run.cluster, namespace=run.namespace, **figures
    )


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


def _steps(server: Server, run: str, start: float, end: float) -> tuple[float, float]:
    """Return the first and the last Unix time with recorded steps; the whole range if there are none."""
    moments = f"timestamp(run:step:seconds5m{{{run}}})[{_window(end - start)}:1m]"
    found = [
        each.value
        for function in ("min_over_time", "max_over_time")
        for each in server.query(f"{function}({moments})", at=end)
    ]
    return (min(found), max(found)) if found else (start, end)


def _query(run: str, ranks: str, seconds: float) -> str:
    """Return PromQL for all values, labelled `figure`, and the time lost, labelled `cause`."""
    window = _window(seconds)
    each = {
        "gpus": _or(_median("run:gpus:count", run, window), _median("run:ranks:count", run, window)),
        "batch": _median("run:batch_size:sum", run, window),
        "samples": _mean("run:samples:rate5m", run, window),
        "tokens": _mean("run:tokens:rate5m", run, window),
        "step_seconds": _mean("run:step:seconds5m", run, window),
        "operations": f"{_rate('flops', run, ranks)} / ({_rate('samples', run, ranks)} > 0)",
        "gpu_busy": _mean("run:gpu_busy:ratio5m", run, window),
        "memory_used": _mean("run:gpu_memory_used:ratio", run, window),
        "memory_peak": f"max(last_over_time(rank:allocator_peak:ratio{{{run}}}[5m]))",
        "watts": _mean("run:power:watts5m", run, window),
        "time_lost": _mean("run:time_lost:ratio5m", run, window),
    }
    figures = [f'label_replace({expression}, "figure", "{name}", "", "")' for name, expression in each.items()]
    # A cause has no series while it costs nothing, so divide by the lifetime of the run.
    lost = (
        f"sum by (cause) (sum_over_time(run_cause:time_lost:ratio5m{{{run}}}[{window}:1m]))"
        f" / on () group_left () sum(count_over_time(run:ranks:count{{{run}}}[{window}:1m]))"
    )
    return _or(*figures, lost)


def _mean(series: str, run: str, window: str) -> str:
    return f"avg(avg_over_time({series}{{{run}}}[{window}]))"


def _median(series: str, run: str, window: str) -> str:
    """Return the median, which stays a whole number when a scrape is missed."""
    return f"avg(quantile_over_time(0.5, {series}{{{run}}}[{window}]))"


def _rate(work: str, run: str, ranks: str) -> str:
    """Return the work per second of all ranks over the last five minutes."""
    rate = f"sum by ({_RANK}) (rate(stallscope_training_{work}_total{{{ranks}}}[5m]))"
    return f"sum(last_over_time(rank:live:info{{{run}}}[2m]) * on ({_RANK}) group_left () {rate})"


def _or(*expressions: str) -> str:
    return " or ".join(f"({each})" for each in expressions)


def _window(seconds: float) -> str:
    return f"{max(1.0, seconds):.0f}s"
