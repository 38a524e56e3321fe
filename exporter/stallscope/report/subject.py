"""What a report tells of: one run, the GPUs of some nodes, or all that a server knows; and from when to when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from stallscope.analysis.runs import Run
from stallscope.clients.expressions import any_of, quoted
from stallscope.clients.prometheus import Series

Scope = Literal["run", "nodes", "everything"]
RUN_LABELS = "cluster, namespace, run"
GPU_LABELS = "cluster, job, instance, gpu, uuid, mig"
_LIVE_STEP = 60
"""Seconds to which the end of a run is told."""


class Server(Protocol):
    """What answers; `stallscope.clients.prometheus.Prometheus` is one."""

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """The series of an expression at a moment."""


@dataclass(frozen=True)
class Subject:
    """Whom and what time a report tells of, with the PromQL that stands for it.

    Make it with `of_run`, `of_nodes` or `of_everything`.
    """

    scope: Scope
    start: float
    """Unix time, as is the end."""
    end: float
    live: bool
    """Whether it goes on at the end."""
    run: Run | None
    instances: tuple[str, ...]
    """The nodes, by the names under which they are scraped; none where all count."""
    cluster: str | None = None
    """Whose nodes, where clusters have some of the same name; None where their names alone say that."""

    @property
    def seconds(self) -> float:
        """Length of the time, one at least."""
        return max(1.0, self.end - self.start)

    @property
    def title(self) -> str:
        """Its name in a heading."""
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
    def told_by_run(self) -> str:
        """Matchers of series that are recorded for a run and its ranks."""
        if self.run is None:
            raise ValueError(f"{self.title} is no run")
        return (
            f"cluster={quoted(self.run.cluster)}, namespace={quoted(self.run.namespace)}, run={quoted(self.run.name)}"
        )

    @property
    def told_by_ranks(self) -> str:
        """Matchers of what ranks tell, which may know no namespace: told apart by the nodes that they run on."""
        if self.run is None:
            raise ValueError(f"{self.title} is no run")
        return self.run.matchers

    @property
    def told_by_nodes(self) -> str:
        """Matchers of what the nodes' exporters tell."""
        cluster = self.cluster if self.run is None else self.run.cluster
        return self._on_nodes if cluster is None else f"cluster={quoted(cluster)}, {self._on_nodes}"

    @property
    def _on_nodes(self) -> str:
        return f"instance=~{any_of(self.instances)}" if self.instances else 'instance!=""'

    @property
    def gpus(self) -> str:
        """How many GPUs it has at a moment; of a run that claims none, how many ranks."""
        if self.scope == "run":
            return f"(run:gpus:count{{{self.told_by_run}}} or run:ranks:count{{{self.told_by_run}}})"
        if self.scope == "nodes":
            return f"count(group by (cluster, job, instance, gpu) (gpu:up:max{{{self.told_by_nodes}}}))"
        return "sum(cluster:gpus_known:count)"

    @property
    def gpus_lost_by_cause(self) -> str:
        """How many GPUs' whole time each cause costs at a moment, by `cause`."""
        if self.scope == "run":
            return self._of_gpus(f"run_cause:time_lost:ratio5m{{{self.told_by_run}}}")
        if self.scope == "nodes":
            lost = f"card_cause:time_lost:ratio5m{{{self.told_by_nodes}}}"
            card = "cluster, job, instance, gpu"
            # What several causes claim of a card beyond its time, they share, as in `cause:gpus_lost:sum5m`.
            return f"sum by (cause) ({lost} / on ({card}) group_left () clamp_min(sum by ({card}) ({lost}), 1))"
        return "sum by (cause) (cause:gpus_lost:sum5m)"

    @property
    def gpus_lost(self) -> str:
        """How many GPUs' whole time all causes cost together, where that can be judged."""
        if self.scope == "run":
            return self._of_gpus(f"run:time_lost:ratio5m{{{self.told_by_run}}}")
        return f"sum({self.gpus_lost_by_cause})"

    @property
    def gpus_judged(self) -> str:
        """How many GPUs are judged at a moment."""
        if self.scope == "run":
            verdict = f'run:verdict:ratio5m{{cause!="insufficient_data", {self.told_by_run}}}'
            return f"({self.gpus} and on ({RUN_LABELS}) {verdict})"
        if self.scope == "nodes":
            verdicts = f'gpu:verdict:ratio5m{{cause!="insufficient_data", {self.told_by_nodes}}}'
            return f"count(group by (cluster, job, instance, gpu) ({verdicts}))"
        return 'sum(cause:gpus:count{cause!="insufficient_data"})'

    @property
    def gpus_by_verdict(self) -> str:
        """How many GPUs each verdict holds for at a moment, by `cause`; a run's verdict is that of all its GPUs."""
        if self.scope == "run":
            return self._of_gpus(f"(run:verdict:ratio5m{{{self.told_by_run}}} >= bool 0)")
        if self.scope == "nodes":
            return f"count by (cause) (gpu:verdict:ratio5m{{{self.told_by_nodes}}})"
        return "sum by (cause) (cause:gpus:count)"

    @property
    def watts_lost_by_cause(self) -> str:
        """Power that goes into that time, by `cause`."""
        if self.scope == "everything":
            return "sum by (cause) (cause:power_lost:watts5m)"
        which = self.told_by_run if self.scope == "run" else self.told_by_nodes
        energy = f"max by ({GPU_LABELS}, cause) (gpu_cause:energy_lost:joules5m{{{which}}})"
        if self.scope == "nodes":  # shared like the time, and as in `cause:power_lost:watts5m`
            claimed = f"sum by ({GPU_LABELS}) (gpu_cause:share:ratio5m{{{which}}})"
            energy = f"{energy} / on ({GPU_LABELS}) group_left () clamp_min({claimed}, 1)"
        return f"sum by (cause) ({energy}) / 300"

    def of_its_gpus(self, among: str = "", before: str = "") -> str:
        """What has no series but for GPUs that count, to be put behind a figure by GPU.

        Args:
            among: matchers that the figure has as well, so that no others are looked at.
            before: how long ago they counted: `5m`.
        """
        offset = f" offset {before}" if before else ""
        record = "rank_gpu:claim:info" if self.scope == "run" else "gpu:up:max"
        which = self.told_by_run if self.scope == "run" else self.told_by_nodes
        return f" and on ({GPU_LABELS}) {record}{{{', '.join(part for part in (which, among) if part)}}}{offset}"

    def _of_gpus(self, share: str) -> str:
        return f"sum by (cause) ({share} * on ({RUN_LABELS}) group_left () {self.gpus})"


def of_run(server: Server, run: Run) -> Subject:
    """A run, from its first scrape on. What has ended is told of until its last live moment, not until it is forgotten.

    Args:
        server: whom to ask for that moment.
        run: as `stallscope.analysis.runs.find_run` finds it.

    Raises:
        PrometheusError: the server gave no answer.
    """
    subject = Subject("run", run.start, run.end, run.goes_on, run, run.instances)
    if run.goes_on:
        return subject
    alive = f"timestamp(run:ranks:count{{{subject.told_by_run}}})"
    found = server.query(f"max_over_time({alive}[{subject.seconds:.0f}s:{_LIVE_STEP}s])", at=run.end)
    last = max((each.value for each in found), default=run.end) + _LIVE_STEP
    return replace(subject, end=min(run.end, last))


def of_nodes(instances: Sequence[str], start: float, end: float, cluster: str | None = None) -> Subject:
    """The GPUs of some nodes, whatever runs there; of one cluster alone, where that is told."""
    return Subject("nodes", start, end, True, None, tuple(instances), cluster)


def of_everything(start: float, end: float) -> Subject:
    """Every run and GPU that the server knows."""
    return Subject("everything", start, end, True, None, ())
