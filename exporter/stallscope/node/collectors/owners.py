"""Owners of each GPU (pod and container, Slurm job, container, user), and their use of it.

Joins four sources: the driver's list of processes on each GPU, their entries in `/proc`, and the allocations of the
kubelet and of Slurm. The collector `kubernetes` adds workloads and the GPUs of claims, if it is enabled. Requirements
in a container are listed in `owners.processes` (`hostPID: true`) and `owners.pod_resources` (the folder of the
kubelet's socket). A Slurm job is known as soon as one of its processes is on a GPU, or from its start if Slurm's
prolog writes its allocation (`owners.slurm_allocations`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, Environment, NotPresent, register
from stallscope.node.drivers.device import Identity
from stallscope.node.drivers.occupancy import Occupancy
from stallscope.node.owners.attribution import UNKNOWN_OWNER, Attribution, Owner, Problem, attribute, pods_by_uid
from stallscope.node.owners.busy import BusyAccounts
from stallscope.node.owners.cluster import Pod
from stallscope.node.owners.devices import Devices, handed_out_again
from stallscope.node.owners.pod_resources import Allocation, Container, PodResources, PodResourcesFailed
from stallscope.node.owners.processes import Processes
from stallscope.node.owners.slurm_allocations import JobAllocation, SlurmAllocations
from stallscope.node.sampling.reading import Sample

_logger = logging.getLogger(__name__)

INFO = family("stallscope_gpu_owner_info")
WORKLOAD = family("stallscope_gpu_owner_workload_info")
MEMORY = family("stallscope_gpu_owner_memory_used_bytes")
BUSY = family("stallscope_gpu_owner_busy_seconds_total")
ERRORS = family("stallscope_exporter_attribution_errors_total")

_ADVICE = {
    "pod_resources_unavailable": "see that the kubelet runs, that the folder of its socket (not the socket itself) is "
    "mounted, and that the exporter may open it",
    "pod_resources_malformed": "check that the socket is the kubelet's; the former pods are shown for a minute",
    "slurm_allocation_invalid": "let only root write there, and install prolog.sh and epilog.sh of one release",
    "unknown_device": "the orchestrator gave a pod or job a GPU that the driver does not show, or by a name that fits "
    "none",
    "pid_not_visible": "run the exporter in the host's PID namespace (hostPID: true, or docker run --pid=host), and "
    "where /proc is mounted with hidepid, as root",
    "pid_reused": "a process number came back for another process between two readings; nothing to do",
    "memory_not_told": "the driver does not report this process' memory, so its owner has no memory series",
    "too_many_owners": "owners above the limit of 64 a GPU are shown without a name",
}
_PODS_SECONDS = 10.0
"""Seconds between two queries of the kubelet without new processes."""
_PODS_SOON_SECONDS = 1.0
"""Seconds between two queries of the kubelet with a new process."""
_PODS_HELD_SECONDS = 60.0
"""Seconds that the last response stays valid while the kubelet does not respond: as long as its restart takes."""
_PODS_TIMEOUT = 2.0
"""Longest timeout of the kubelet in seconds; at most 1.5 intervals, so that owners never become stale."""
_JOBS_SECONDS = 10.0
"""Seconds between two readings of Slurm's allocations."""
_LOG_AGAIN_SECONDS = 300.0
"""Seconds without a problem after which it is logged again."""
_EXAMPLES = 3


@register
class Owners(Collector):
    """Attributes GPUs. Missing information is counted by reason; it is not a failure of the collector."""

    name = "owners"
    summary = "Who holds each GPU: pod, Slurm job, container, user (kubelet, Slurm's prolog, /proc)."

    def __init__(self, environment: Environment, pods_timeout: float | None = None) -> None:
        super().__init__(environment)
        self._pods_timeout = pods_timeout or min(_PODS_TIMEOUT, 1.5 * environment.interval)
        self._processes = Processes(environment.root)
        self._kubelet = PodResources(environment.root)
        self._slurm = SlurmAllocations(environment.root)
        self._jobs: tuple[JobAllocation, ...] = ()
        self._jobs_invalid: frozenset[Problem] = frozenset()
        self._jobs_read_at: float | None = None
        self._jobs_of: dict[str, list[Owner]] = {}
        self._busy = BusyAccounts()
        self._errors: Counter[str] = Counter(dict.fromkeys(_ADVICE, 0))
        self._problems: frozenset[Problem] = frozenset()
        self._logged: dict[str, float] = {}
        self._pids: frozenset[int] = frozenset()
        self._unseen: frozenset[int] = frozenset()
        self._identities: dict[str, Identity] = {}
        self._allocations: tuple[Allocation, ...] = ()
        self._pods_queried_at: float | None = None
        self._pods_read_at = 0.0
        self._pods_due = True
        self._placed_for: tuple[object, ...] | None = None
        self._holders: dict[str, list[Container]] = {}
        self._replicated: frozenset[str] = frozenset()
        self._unplaced: frozenset[Problem] = frozenset()

    def read(self) -> Iterable[Sample]:
        """Look up new processes, query the kubelet when due, and return the owners.

        Raises:
            NotPresent: there is no GPU, now or before; or GPUs are simulated on a real host.
        """
        if self.environment.processes_elsewhere:
            raise NotPresent("the GPUs are simulated: their processes are not on this machine")
        now = self.environment.clock.monotonic()
        occupancies = self.environment.occupancies.current()
        self._remember({uuid: each.identity for uuid, each in occupancies.items()})
        if not self._identities:
            raise NotPresent("no GPU so far")
        pids = frozenset(process.pid for each in occupancies.values() for process in each.processes)
        self._pods_due = self._pods_due or bool(pids - self._pids)
        self._query_kubelet(now)
        self._read_jobs(now)
        self._request_facts()
        self._place()
        processes = self._processes.look_up(pids)
        pods = pods_by_uid({each.container for each in self._allocations}, processes.values())
        unseen = pids - processes.keys()
        # A process that has just started or ended may differ from the driver's list for a moment.
        brief = {("pid_not_visible", str(pid)) for pid in unseen - self._unseen}
        self._pids, self._unseen = pids, unseen
        problems: set[Problem] = {("pid_reused", str(pid)) for pid in self._processes.reused}
        problems |= self._unplaced | self._jobs_invalid
        samples: list[Sample] = []
        for uuid, occupancy in self._whole(occupancies).items():
            found = attribute(occupancy, self._holders.get(uuid, ()), processes, pods, self._jobs_of.get(uuid, ()))
            problems |= found.problems - brief
            self._busy.add(occupancy, found, now)
            samples += self._samples(occupancy.identity, found)
        self._busy.forget(now)
        self._publish_sharing(occupancies)
        self._note(frozenset(problems), now)
        samples += [Sample(ERRORS, (reason,), count) for reason, count in self._errors.items()]
        return samples

    def close(self) -> None:
        """Close the connection to the kubelet, and reset how GPUs are shared."""
        self._kubelet.close()
        self.environment.occupancies.set_sharing({})

    def _remember(self, present: Mapping[str, Identity]) -> None:
        """Remember identities: a lost GPU is still held by its pod or job."""
        held = self._holders.keys() | self._jobs_of.keys()
        kept = {uuid: each for uuid, each in self._identities.items() if uuid in present or uuid in held}
        identities = {**kept, **present}
        if identities != self._identities:
            self._identities = identities

    def _whole(self, occupancies: Mapping[str, Occupancy]) -> dict[str, Occupancy]:
        """Return the GPUs that can be held: of a GPU with MIG instances only these."""
        cut = {each.parent_uuid for each in self._identities.values() if each.parent_uuid}
        return {
            uuid: occupancies.get(uuid) or Occupancy(identity, None, (), {})
            for uuid, identity in self._identities.items()
            if uuid not in cut
        }

    def _query_kubelet(self, now: float) -> None:
        queried = self._pods_queried_at
        if queried is not None and now - queried < (_PODS_SOON_SECONDS if self._pods_due else _PODS_SECONDS):
            return
        self._pods_queried_at, self._pods_due = now, False
        try:
            if self._kubelet.present():
                self._allocations = self._kubelet.allocations(self._pods_timeout)
                self._pods_read_at = now
                return
            if self._allocations:
                raise PodResourcesFailed("unavailable", "the kubelet's socket is gone")
        except PodResourcesFailed as problem:
            reason = f"pod_resources_{problem.reason}"
            self._errors[reason] += 1
            self._log(reason, str(problem), now)
        if now - self._pods_read_at >= _PODS_HELD_SECONDS:
            self._allocations = ()

    def _read_jobs(self, now: float) -> None:
        """Read which GPUs Slurm has given to jobs, when due."""
        if self._jobs_read_at is not None and now - self._jobs_read_at < _JOBS_SECONDS:
            return
        self._jobs_read_at = now
        self._jobs, refused = self._slurm.read()
        self._jobs_invalid = frozenset(("slurm_allocation_invalid", line) for line in refused)

    def _request_facts(self) -> None:
        """Publish which pods and devices the collector of the Kubernetes API is to request."""
        cluster = self.environment.cluster
        holders = {container for each in self._holders.values() for container in each}
        cluster.pods = frozenset(
            (each.container.namespace, each.container.pod)
            for each in self._allocations
            if each.names or each.container in holders
        )
        cluster.claims = frozenset(each.claimed for each in self._allocations if each.claimed is not None)

    def _place(self) -> None:
        """Find the GPU behind each allocated device, if either has changed."""
        published = self.environment.cluster.device_names
        placed_for = (self._allocations, self._jobs, self._identities, published)
        if self._placed_for == placed_for:
            return
        devices = Devices(self.environment.root, self._identities.values())
        holders: dict[str, list[Container]] = {}
        holder_of: dict[tuple[str, str], Container] = {}
        replicated, unplaced = set(), set()
        for container, names, claimed in self._allocations:
            is_gpu = bool(names)
            # What the driver has published counts alone, even if this exporter does not see that GPU.
            names = (published.get(claimed, ()) if claimed else ()) or names
            uuid = devices.find(names)
            if uuid is None:
                if is_gpu:
                    unplaced.add(("unknown_device", f"{names[0]} of {container.namespace}/{container.pod}"))
                continue
            known = holders.setdefault(uuid, [])
            if container not in known:
                known.append(container)
            # Containers with different partitions of a GPU do not share it in turns.
            device = claimed.device if claimed is not None else names[0]
            first = holder_of.setdefault((uuid, device), container)
            if any(handed_out_again(name) for name in names) or first != container:
                replicated.add(uuid)
        jobs_of: dict[str, list[Owner]] = {}
        for job, user, names in self._jobs:
            for name in names:
                uuid = devices.find_number(int(name)) if name.isdigit() else devices.find((name,))
                owner = Owner(slurm_job=job, user=user)
                if uuid is None:
                    unplaced.add(("unknown_device", f"{name} of Slurm job {job}"))
                elif owner not in jobs_of.setdefault(uuid, []):
                    jobs_of[uuid].append(owner)
        # Slurm gives a GPU to several jobs only as shards.
        replicated |= {uuid for uuid, jobs in jobs_of.items() if len(jobs) > 1}
        self._holders, self._replicated, self._unplaced = holders, frozenset(replicated), frozenset(unplaced)
        self._jobs_of, self._placed_for = jobs_of, placed_for

    def _publish_sharing(self, occupancies: Mapping[str, Occupancy]) -> None:
        """Publish how GPUs are shared. Device names do not show it; only MPS has its own kind of process."""
        reported = {}
        for uuid in self._replicated:
            occupancy = occupancies.get(uuid)
            mps = occupancy is not None and any(process.kind == "mps" for process in occupancy.processes)
            seen_before = self.environment.occupancies.sharing(uuid) == "mps"
            reported[uuid] = "mps" if mps or seen_before else "time_sliced"
        self.environment.occupancies.set_sharing(reported)

    def _samples(self, identity: Identity, found: Attribution) -> Iterable[Sample]:
        gpu = (str(identity.index), identity.uuid)

        def labels(owner: Owner) -> tuple[str, ...]:
            return (*gpu, *owner, identity.mig)

        pods: set[Pod] = set()
        for share in found.shares:
            yield Sample(INFO, labels(share.owner), 1)
            pods.add((share.owner.namespace, share.owner.pod))
            if share.memory is not None:
                yield Sample(MEMORY, labels(share.owner), share.memory)
        for pod, workload in self.environment.cluster.workloads.items():
            if pod in pods and any(workload):
                yield Sample(WORKLOAD, (*gpu, *pod, *workload, identity.mig), 1)
        if found.unattributed is not None:
            yield Sample(MEMORY, labels(UNKNOWN_OWNER), found.unattributed)
        for owner, seconds in self._busy.of(identity.uuid):
            yield Sample(BUSY, labels(owner), seconds)

    def _note(self, problems: frozenset[Problem], now: float) -> None:
        """Count and log problems that are new since the last reading."""
        for reason, _ in problems - self._problems:
            self._errors[reason] += 1
        self._problems = problems
        affected: dict[str, list[str]] = {}
        for reason, subject in sorted(problems):
            affected.setdefault(reason, []).append(subject)
        for reason, subjects in affected.items():
            more = f" and {len(subjects) - _EXAMPLES} more" if len(subjects) > _EXAMPLES else ""
            self._log(reason, ", ".join(subjects[:_EXAMPLES]) + more, now)

    def _log(self, reason: str, what: str, now: float) -> None:
        """Log a problem when it begins, not while it lasts."""
        logged = self._logged.get(reason)
        self._logged[reason] = now
        if logged is None or now - logged > _LOG_AGAIN_SECONDS:
            _logger.warning("owners of GPUs: %s: %s; %s", reason, what, _ADVICE[reason])
