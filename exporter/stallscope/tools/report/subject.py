"""The subject of a report: a run, the GPUs of some nodes, or everything the server knows, and a time range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stallscope.model.analysis.over_time import RUN_LABELS, Server, gpus_of_runs, lived, lost_of_runs, matchers_of
from stallscope.model.analysis.runs import Run
from stallscope.model.clients.expressions import any_of, quoted

Scope = Literal["run", "nodes", "everything"]
GPU_LABELS = "cluster, job, instance, gpu, uuid, mig"


@dataclass(frozen=True)
class Subject:
    """The subject and time range of a report, with the PromQL that selects them.

    Create it with `of_run`, `of_nodes` or `of_everything`.
    """

    scope: Scope
    start: float
    """Unix time, as the end."""
    end: float
    live: bool
    """True if it goes on at the end."""
    run: Run | None
    instances: tuple[str, ...]
    """Instances of the nodes; empty for all nodes."""
    cluster: str | None = None
    """Cluster of the nodes, if clusters have nodes of the same name; else None."""

    @property
    def seconds(self) -> float:
        """Length of the time range, at least one second."""
        return max(1.0, self.end - self.start)

    @property
    def summed_seconds(self) -> float:
        """Seconds whose points a sum over time counts. Of a run both ends count, otherwise the end only."""
        return self.seconds + (1 if self.scope == "run" else -1)

    @property
    def title(self) -> str:
        """Heading of the report."""
        if self.run is not None:
            return f"Run {self.run.name}"
        if self.scope == "everything":
            return "All runs and GPUs"
        where = f" of cluster {self.cluster}" if self.cluster else ""
        if len(self.instances) == 1:
            return f"Node {self.instances[0]}{where}"
        names = f"{', '.join(self.instances[:3])}{' …' if len(self.instances) > 3 else ''}"
        return f"{len(self.instances)} nodes{where}: {names}"

    @property
    def run_matchers(self) -> str:
        """Matchers for series recorded for a run and its ranks."""
        if self.run is None:
            raise ValueError(f"{self.title} is not a run")
        return matchers_of(self.run)

    @property
    def rank_matchers(self) -> str:
        """Matchers for series of the run's ranks; nodes stand in for a namespace that ranks do not report."""
        if self.run is None:
            raise ValueError(f"{self.title} is not a run")
        return self.run.matchers

    @property
    def node_matchers(self) -> str:
        """Matchers for series of the nodes' exporters."""
        cluster = self.cluster if self.run is None else self.run.cluster
        return self._on_nodes if cluster is None else f"cluster={quoted(cluster)}, {self._on_nodes}"

    @property
    def _on_nodes(self) -> str:
        return f"instance=~{any_of(self.instances)}" if self.instances else 'instance!=""'

    @property
    def gpus(self) -> str:
        """PromQL for its number of GPUs; for a run that claims none, its number of ranks."""
        if self.scope == "run":
            return gpus_of_runs(self.run_matchers, self.seconds + 1, self.end)
        if self.scope == "nodes":
            return f"count(group by (cluster, job, instance, gpu) (gpu:up:max{{{self.node_matchers}}}))"
        return "sum(cluster:gpus_known:count)"

    @property
    def gpus_lost_by_cause(self) -> str:
        """PromQL for the lost time by `cause`, as a number of GPUs."""
        if self.scope == "run":
            return f"sum by (cause) {lost_of_runs(self.run_matchers, self.gpus, cause=True)}"
        if self.scope == "nodes":
            lost = f"card_cause:time_lost:ratio5m{{{self.node_matchers}}}"
            card = "cluster, job, instance, gpu"
            # Causes that together claim more than a GPU's time are scaled down, as in `cause:gpus_lost:sum5m`.
            return f"sum by (cause) ({lost} / on ({card}) group_left () clamp_min(sum by ({card}) ({lost}), 1))"
        return "sum by (cause) (cause:gpus_lost:sum5m)"

    @property
    def gpus_lost(self) -> str:
        """PromQL for the time lost to all causes together, as a number of GPUs, where there are verdicts."""
        if self.scope == "run":
            return f"sum {lost_of_runs(self.run_matchers, self.gpus, cause=False)}"
        return f"sum({self.gpus_lost_by_cause})"

    @property
    def gpus_judged(self) -> str:
        """PromQL for the number of GPUs with a verdict."""
        if self.scope == "run":
            verdict = f'run:verdict:ratio5m{{cause!="insufficient_data", {self.run_matchers}}}'
            return f"({self.gpus} and on ({RUN_LABELS}) {verdict})"
        if self.scope == "nodes":
            verdicts = f'gpu:verdict:ratio5m{{cause!="insufficient_data", {self.node_matchers}}}'
            return f"count(group by (cluster, job, instance, gpu) ({verdicts}))"
        return 'sum(cause:gpus:count{cause!="insufficient_data"})'

    @property
    def gpus_by_verdict(self) -> str:
        """PromQL for the number of GPUs by verdict, with label `cause`; a run's verdict counts for all its GPUs."""
        if self.scope == "run":
            verdict = f"(run:verdict:ratio5m{{{self.run_matchers}}} >= bool 0)"
            return f"sum by (cause) ({verdict} * on ({RUN_LABELS}) group_left () {self.gpus})"
        if self.scope == "nodes":
            return f"count by (cause) (gpu:verdict:ratio5m{{{self.node_matchers}}})"
        return "sum by (cause) (cause:gpus:count)"

    @property
    def watts_lost_by_cause(self) -> str:
        """PromQL for the power used during lost time, by `cause`."""
        if self.scope == "everything":
            return "sum by (cause) (cause:power_lost:watts5m)"
        which = self.run_matchers if self.scope == "run" else self.node_matchers
        energy = f"max by ({GPU_LABELS}, cause) (gpu_cause:energy_lost:joules5m{{{which}}})"
        if self.scope == "nodes":  # scaled down like the time, as in `cause:power_lost:watts5m`
            claimed = f"sum by ({GPU_LABELS}) (gpu_cause:share:ratio5m{{{which}}})"
            energy = f"{energy} / on ({GPU_LABELS}) group_left () clamp_min({claimed}, 1)"
        return f"sum by (cause) ({energy}) / 300"

    def and_own_gpus(self, among: str = "", before: str = "") -> str:
        """Return PromQL to append to an expression by GPU, which keeps only the subject's GPUs.

        Args:
            among: matchers of the expression, to select fewer series.
            before: offset at which the GPUs must belong to the subject, such as `5m`.
        """
        offset = f" offset {before}" if before else ""
        record = "rank_gpu:claim:info" if self.scope == "run" else "gpu:up:max"
        which = self.run_matchers if self.scope == "run" else self.node_matchers
        return f" and on ({GPU_LABELS}) {record}{{{', '.join(part for part in (which, among) if part)}}}{offset}"


def of_run(server: Server, run: Run) -> Subject:
    """Return a run as subject. The time range is from the start of its first process to its last live moment.

    Args:
        server: the server to query for that moment.
        run: a result of `stallscope.model.analysis.runs.find_run`.

    Raises:
        PrometheusError: the server gave no valid response.
    """
    start, end = lived(server, run)
    return Subject("run", start, end, run.goes_on, run, run.instances)


def of_nodes(instances: Sequence[str], start: float, end: float, cluster: str | None = None) -> Subject:
    """Return the GPUs of some nodes as subject, whatever runs there; optionally of one cluster only."""
    return Subject("nodes", start, end, True, None, tuple(instances), cluster)


def of_everything(start: float, end: float) -> Subject:
    """Return every run and GPU of the server as subject."""
    return Subject("everything", start, end, True, None, ())
