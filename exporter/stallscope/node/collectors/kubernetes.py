"""Workloads of pods with GPUs, and GPUs of claimed devices, from the Kubernetes API for the collector of owners.

Needs `--kubernetes.node`, a service account and its permissions (`owners.kubernetes_api`). A pod is requested once when
it gets a GPU, and again every five minutes. While the API does not respond, known facts stay, and the exporter reports
the failure of this source alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from stallscope.node.collectors.base import Collector, Environment, register
from stallscope.node.owners.cluster import KubernetesApiFailed, Pod, Workload
from stallscope.node.sampling.reading import Sample

if TYPE_CHECKING:
    from stallscope.node.owners.kubernetes_api import KubernetesApi

_TIMEOUT_SECONDS = 2.0
_REFRESH_SECONDS = 300.0
"""Seconds after which a known pod or slice is requested again."""
_RETRY_SECONDS = 30.0
"""Seconds between two attempts while the API fails, or does not know a claimed device."""
_MOST_REQUESTS = 16
"""Pods that one reading requests."""


@register
class Kubernetes(Collector):
    """Answers the requests of the collector of owners. Has no series of its own."""

    name = "kubernetes"
    summary = "Queue and job of pods with GPUs, and GPUs of claims (Kubernetes API; needs --kubernetes.node)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._api: KubernetesApi | None = None
        self._workloads: dict[Pod, tuple[float, Workload]] = {}
        self._devices_at: float | None = None
        self._problem: KubernetesApiFailed | None = None
        self._failed_at = 0.0

    def read(self) -> Iterable[Sample]:
        """Request what the collector of owners needs and is unknown or old.

        Raises:
            NotPresent: the exporter was not given the node's name.
            KubernetesApiFailed: the API does not respond, or refuses.
        """
        if self._api is None:
            self._api = self.environment.kubernetes_api()
        now = self.environment.clock.monotonic()
        if self._problem is not None and now - self._failed_at < _RETRY_SECONDS:
            raise self._problem
        # A refusal of one kind of object must not prevent requests for the other.
        problems = [
            self._problem_of(request, self._api, now) for request in (self._request_devices, self._request_pods)
        ]
        self._problem, self._failed_at = next(filter(None, problems), None), now
        if self._problem is not None:
            raise self._problem
        return ()

    def close(self) -> None:
        """Withdraw all answers."""
        self.environment.cluster.workloads, self.environment.cluster.device_names = {}, {}

    @staticmethod
    def _problem_of(
        request: Callable[[KubernetesApi, float], None], api: KubernetesApi, now: float
    ) -> KubernetesApiFailed | None:
        try:
            request(api, now)
        except KubernetesApiFailed as problem:
            return problem
        return None

    def _request_devices(self, api: KubernetesApi, now: float) -> None:
        cluster = self.environment.cluster
        if not cluster.claims:
            return
        is_complete = cluster.claims <= cluster.device_names.keys()
        if self._devices_at is None or now - self._devices_at >= (_REFRESH_SECONDS if is_complete else _RETRY_SECONDS):
            cluster.device_names = api.device_names(_TIMEOUT_SECONDS)
            self._devices_at = now

    def _request_pods(self, api: KubernetesApi, now: float) -> None:
        cluster = self.environment.cluster
        pods = cluster.pods
        self._workloads = {pod: known for pod, known in self._workloads.items() if pod in pods}
        due = {
            pod: known[0] if known else 0.0
            for pod in pods
            if (known := self._workloads.get(pod)) is None or now - known[0] >= _REFRESH_SECONDS
        }
        problem = None
        for pod in sorted(due, key=lambda pod: (due[pod], pod))[:_MOST_REQUESTS]:
            # A refusal of one pod must not prevent requests for the others.
            problem = self._problem_of(partial(self._request_pod, pod), api, now) or problem
            if self.environment.clock.monotonic() - now > _TIMEOUT_SECONDS:
                break  # a slow server gets the rest of the requests at the next reading
        cluster.workloads = {pod: workload for pod, (_, workload) in self._workloads.items()}
        if problem is not None:
            raise problem

    def _request_pod(self, pod: Pod, api: KubernetesApi, now: float) -> None:
        self._workloads[pod] = now, api.workload(*pod, _TIMEOUT_SECONDS)
