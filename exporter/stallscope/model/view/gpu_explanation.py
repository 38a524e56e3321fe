"""Explain the verdict of a GPU from recorded series, whether a run computes on it or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stallscope.model.catalogue.causes import CAUSES, REMAINDERS, Cause
from stallscope.model.catalogue.conditions import USED
from stallscope.model.clients.expressions import any_of, quoted
from stallscope.model.view.explanation import (
    HOST,
    PAIR,
    RANK,
    RUN_RANK,
    Explanation,
    GpuLabels,
    OfGpu,
    RankOnGpu,
    Recorded,
    Server,
    Serving,
    Sharers,
    any_name,
    by_label,
    explain_recorded,
    run_of,
    signals_of,
)
from stallscope.model.view.model import Owner
from stallscope.model.view.verdicts import Culprit, Verdict

if TYPE_CHECKING:
    from stallscope.model.clients.prometheus import Series

_OWN = (
    *("gpu:verdict:ratio5m", "gpu_cause:share:ratio5m", "gpu_cause:remainder:info", "gpu:free:info", "ALERTS", *PAIR),
    *("rank_gpu:gone:info", "serving_gpu:server:info", "serving_gpu:verdict:ratio5m", "stallscope_gpu_info"),
    *("stallscope_gpu_lost_info", "stallscope_gpu_owner_info", "stallscope_gpu_up"),
)
"""Series with the labels of the GPU."""
_OF_RUN = ("run:verdict:ratio5m", "run:culprit:info")
"""Series with the labels of its run."""
NOT_SERVED = ("idle_allocated", "periodic_host_work", "spin_suspected", "underused")
"""Causes that the rules do not judge on the GPU of an inference server."""


def explain_gpu(server: Server, gpu: GpuLabels, at: float) -> Explanation:
    """Read what the rules recorded on a GPU.

    Args:
        server: the server to query.
        gpu: its labels.
        at: Unix time.

    Raises:
        PrometheusError: the server gave no valid response.
    """
    return explain_recorded(lambda moment: _RecordedOfGpu(server, gpu, moment), (gpu.cluster, "", ""), at)


class _RecordedOfGpu(Recorded):
    verdict_series = "gpu:verdict:ratio5m"
    lost_series = "gpu_cause:share:ratio5m"
    floor_series = "stallscope:gpu_verdict_floor:ratio"

    def __init__(self, server: Server, gpu: GpuLabels, at: float) -> None:
        self._gpu = gpu
        super().__init__(server, gpu.matchers, at)

    def _read_subject(self) -> None:
        self._read(f"{{{any_name([*_OWN, *signals_of('gpu:')])}, {self._matchers}}}")
        runs, ranks = (sorted({each.labels.get(name, "") for each in self._claims}) for name in ("run", "rank"))
        if not runs:
            return
        claims = f"{{{any_name(['rank_gpu:claim:info', 'rank_gpu:gone:info'])}, {self._matchers}}}"
        cluster, host = f"cluster={quoted(self._gpu.cluster)}", self._gpu.host_matchers
        of_run = f"{cluster}, run=~{any_of(runs)}"
        of_rank = f"{of_run}, rank=~{any_of(ranks)}"
        self._read(f"{{{any_name([*RANK, *signals_of('rank:')])}, {of_rank}}} and on ({HOST}, run, rank) {claims}")
        self._read(
            f"{{{any_name(signals_of('run_rank:'))}, {of_rank}}} and on (cluster, namespace, run, rank) {claims}"
        )
        self._read(
            f"{{{any_name([*_OF_RUN, *RUN_RANK, *signals_of('run:')])}, {of_run}}} "
            f"and on (cluster, namespace, run) {claims}"
        )
        self._read(f"{{{any_name(signals_of('host:'))}, {host}}}")

    @property
    def _claims(self) -> list[Series]:
        return [*self.of("rank_gpu:claim:info"), *self.of("rank_gpu:gone:info")]

    @property
    def ranks(self) -> int:
        return len({(*run_of(each.labels), each.labels.get("rank", "")) for each in self._claims})

    @property
    def is_settled(self) -> bool:
        return not self.of("gpu_cause:remainder:info")

    @property
    def loss(self) -> str:
        return next((each.labels.get("reason", "") for each in self.of("stallscope_gpu_lost_info")), "")

    @property
    def _has_gpus(self) -> bool:
        return True

    def _applies(self, cause: str) -> bool:
        """Return whether the GPU can have a cause: without a run, only causes of its hardware and its use."""
        return cause in CAUSES and (bool(self._claims) or CAUSES[cause].subject == "gpu")

    def _mutes(self, cause: Cause, alerts: Sequence[Mapping[str, str]]) -> bool:
        return any(each.get("alertname") == cause.alert for each in alerts)

    def _not_judged(self, cause: str, tier: str) -> str:
        if cause in NOT_SERVED and self.of("serving_gpu:server:info"):
            return "an inference server uses the GPU"
        return super()._not_judged(cause, tier)

    def _named(self, lost: dict[str, float]) -> dict[str, float]:
        """Return the shares by cause; a GPU that waits for a lost GPU has stopped, and is not lost."""
        is_waiting = self._waits_for_lost
        return {"stalled" if is_waiting and cause == "lost" else cause: share for cause, share in lost.items()}

    @property
    def _waits_for_lost(self) -> bool:
        """True if another GPU of its run is lost: the verdict is `stalled`, and the cause that was found is `lost`."""
        causes = {each.labels.get("cause") for each in self.of(self.lost_series)}
        return "lost" in causes and any(each.labels.get("cause") == "stalled" for each in self.of(self.verdict_series))

    def _culprit(self, cause: str) -> Culprit | None:
        found = super()._culprit("lost" if self._waits_for_lost else cause)
        own = Culprit(found.rank, self._gpu.instance, self._gpu.gpu, self._gpu.mig, cause) if found else None
        return None if found == own else found

    def of_gpu(self) -> OfGpu:
        info = next((each.labels for each in self.of("stallscope_gpu_info")), {})
        xid = next((each.labels for each in self.of("gpu:xid_hw:timestamp_seconds")), {})
        owners = {Owner.of(each.labels).title for each in self.of("stallscope_gpu_owner_info")}
        verdict, serving = self.verdict(), self._serving()
        # Of a GPU that can't be read, the processes are unknown.
        is_free = bool(self.of("gpu:free:info")) and any(each.value == 1 for each in self.of("stallscope_gpu_up"))
        by_use = verdict is not None and verdict.cause in REMAINDERS and not (is_free or serving or self._claims)
        return OfGpu(
            labels=self._gpu,
            model=info.get("model", ""),
            loss=self.loss,
            is_free=is_free,
            waits_for_lost=self._waits_for_lost,
            owners=tuple(sorted(owners)),
            ranks=self._ranks(),
            instances=self._instances(),
            serving=serving,
            xid=xid,
            use=self._compared([USED])[0] if by_use else None,
        )

    def _ranks(self) -> tuple[RankOnGpu, ...]:
        verdicts = {run_of(each.labels): each for each in self.of("run:verdict:ratio5m")}
        gone = {(*run_of(each.labels), each.labels.get("rank", "")) for each in self.of("rank_gpu:gone:info")}
        found = {}
        for labels in (each.labels for each in self._claims):
            run, rank = run_of(labels), labels.get("rank", "")
            verdict = verdicts.get(run)
            of_run = None if verdict is None else Verdict(verdict.labels.get("cause", ""), verdict.value)
            cluster, namespace, name = run
            key = cluster, namespace, name, rank
            found[key] = RankOnGpu(*key, of_run, key in gone)
        return tuple(found[key] for key in sorted(found))

    def _instances(self) -> tuple[Sharers, ...]:
        if self._gpu.mig:
            return ()
        verdicts = self._server.query(f'gpu:verdict:ratio5m{{{self._gpu.card_matchers}, mig!=""}}', at=self._at)
        return self.sharers(verdicts, lambda labels: f"MIG {labels.get('mig', '')} ({labels.get('uuid', '')})")

    def _serving(self) -> tuple[Serving, ...]:
        found = []
        for each in self.of("serving_gpu:verdict:ratio5m"):
            server = each.labels.get("server", "")
            own = f"cluster={quoted(self._gpu.cluster)}, server={quoted(server)}"
            signals = self._server.query(f"serving:signal:value5m{{{own}}}", at=self._at)
            found.append(Serving(server, each.labels.get("cause", ""), each.value, by_label(signals, "signal")))
        return tuple(found)
