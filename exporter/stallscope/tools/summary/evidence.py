"""Evidence that a training process does not have: the exporter's view of its GPUs, and Prometheus' verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stallscope.common.address import split_url
from stallscope.common.formatting import readable, without_password
from stallscope.model.catalogue.metrics import family
from stallscope.model.clients.address import default_url
from stallscope.model.clients.exporter import ExporterClient, ExporterError
from stallscope.model.clients.exposition import Page
from stallscope.model.view.model import ENDED, Gpu, Owner
from stallscope.model.view.observer import PROCESSES, RANK_GPU, RANK_STATE, WANTED, node_of
from stallscope.model.view.verdicts import RunName, Verdict, VerdictWatch
from stallscope.tools.summary.measured import RunTime

_ADDRESS_LENGTH = 200
_EXPORTER_SECONDS = 2.0
_PROMETHEUS_SECONDS = 3.0
_XIDS = family("stallscope_gpu_xid_events_total")
FAMILIES = WANTED | {_XIDS.name}


@dataclass(frozen=True)
class GpuEvidence:
    """A GPU of a run, over the time of the program."""

    gpu: Gpu
    busy: float | None
    """Share of the time with a kernel on it; None if the exporter did not respond before the program."""
    throttled: Mapping[str, float]
    """Share of the time by reason of throttling."""
    xids: Mapping[str, int]
    """Xid events by number, since the start of the program."""
    processes_before: int | None
    """Processes on it before the program started; None if unknown."""
    other_runs: tuple[str, ...]
    """Other runs that compute on it."""
    other_owners: tuple[Owner, ...]
    """Other pods, jobs and users that hold it."""


@dataclass(frozen=True)
class Evidence:
    """Evidence about several runs, and what is missing."""

    gpus: Mapping[str, tuple[GpuEvidence, ...]]
    """By run."""
    verdicts: Mapping[str, Verdict]
    """By run."""
    missing: tuple[str, ...]
    """Sentences."""


def gather(runs: list[RunTime], exporter: str, page_before: str, prometheus: str) -> Evidence:
    """Query exporter and Prometheus, within a few seconds.

    Args:
        runs: the runs of this node.
        exporter: URL of the exporter.
        page_before: the exporter's series before the program started; empty if it did not respond.
        prometheus: URL of Prometheus; empty for one on this machine, if there is any.
    """
    missing = []
    gpus: dict[str, tuple[GpuEvidence, ...]] = {}
    if any(rank.report.gpus for run in runs for rank in run.ranks):
        try:
            client = ExporterClient(exporter, timeout=_EXPORTER_SECONDS)
            page = Page(client.read(), FAMILIES)
            client.close()
            gpus = {run.name: gpus_of(run, page, Page(page_before, FAMILIES) if page_before else None) for run in runs}
            if not any(gpus.values()):
                missing.append(f"GPUs: the exporter at {without_password(exporter)} does not have those of this run.")
        except (ExporterError, ValueError) as problem:
            missing.append(f"Heat, Xids and neighbours of the GPUs: {without_password(exporter)}: {problem}.")
    server = prometheus or default_url()
    verdicts, problem_of_server = verdicts_of(runs, server)
    if problem_of_server and prometheus:
        missing.append(f"Verdict: {problem_of_server}.")
    elif not verdicts and not problem_of_server:
        missing.append(
            f"Verdict: {without_password(server)} has none of this run: it needs Stallscope's rules there, and some "
            "minutes of steps."
        )
    elif not verdicts:
        missing.append("Verdict: it needs a Prometheus that has this run and Stallscope's rules (--prometheus.url).")
    return Evidence(gpus, verdicts, tuple(missing))


def gpus_of(run: RunTime, page: Page, before: Page | None) -> tuple[GpuEvidence, ...]:
    """Return the GPUs that the ranks of a run report.

    Args:
        run: the run.
        page: the exporter's page.
        before: the page from before the program started, if there is one.
    """
    claimed = {(gpu.gpu, gpu.uuid) for rank in run.ranks for gpu in rank.report.gpus}
    uuids = {uuid for _, uuid in claimed if uuid}
    indices = {index for index, uuid in claimed if not uuid}
    node = node_of(page, before, before)
    earlier = {} if before is None else _compute_processes(before)
    states = page.by(RANK_STATE, "run", "rank", "state")
    ended = {(name, rank) for (name, rank, state), on in states if on and state in ENDED}
    # The exporter adds the process to the name of a run that is not the only one of its name.
    own = {run.name, *(f"{run.name}-{rank.report.pid}" for rank in run.ranks)}
    others: dict[str, set[str]] = {}
    for (name, rank, uuid), _ in page.by(RANK_GPU, "run", "rank", "uuid"):
        if name not in own and (name, rank) not in ended:
            others.setdefault(uuid, set()).add(name)
    return tuple(
        GpuEvidence(
            gpu=gpu,
            busy=gpu.utilization if before is not None else None,
            throttled=gpu.throttled if before is not None else {},
            xids=_xids(gpu.uuid, page, before),
            processes_before=earlier.get(gpu.uuid),
            other_runs=tuple(sorted(others.get(gpu.uuid, ()))),
            other_owners=tuple(owner for owner in gpu.owners if not _is_own(owner, run)),
        )
        for gpu in node.gpus
        if gpu.uuid in uuids or (gpu.index in indices and not gpu.mig)
    )


def _compute_processes(page: Page) -> dict[str, int]:
    return {uuid: round(value) for (uuid, kind), value in page.by(PROCESSES, "uuid", "kind") if kind == "compute"}


def _xids(uuid: str, page: Page, before: Page | None) -> dict[str, int]:
    if before is None:
        return {}
    then = dict(before.by(_XIDS, "uuid", "xid"))
    now = (
        (xid, value - then.get((each, xid), 0.0))
        for (each, xid), value in page.by(_XIDS, "uuid", "xid")
        if each == uuid
    )
    return {xid: round(increase) for xid, increase in now if increase > 0}


def _is_own(owner: Owner, run: RunTime) -> bool:
    """Return whether an owner has no name that differs from the run's."""
    info = run.first.info
    named = ((owner.pod, "pod"), (owner.slurm_job, "slurm_job"), (owner.user, "user"))
    return all(name in ("", info.get(key) or name) for name, key in named)


def verdicts_of(runs: list[RunTime], prometheus: str) -> tuple[dict[str, Verdict], str]:
    """Return the current verdicts by run, and why there are none."""
    try:
        from stallscope.model.clients.prometheus import Prometheus  # its library is optional here

        split_url(prometheus)
        watch = VerdictWatch(Prometheus(prometheus, timeout=_PROMETHEUS_SECONDS))
    except ModuleNotFoundError as problem:
        return {}, str(problem)
    except ValueError:
        shown = readable(without_password(prometheus), _ADDRESS_LENGTH)
        return {}, f'the address of Prometheus must be http://HOST:PORT or https://HOST:PORT, got "{shown}"'
    names = {run.name: RunName(run.name, run.first.info.get("namespace", "")) for run in runs}
    watch.look(names.values(), ())
    watch.poll()
    found = watch.look(names.values(), ())
    return {run: found.runs[name] for run, name in names.items() if name in found.runs}, found.problem
