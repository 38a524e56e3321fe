"""The JSON document of `stallscope top --json`. Unknown values are null; keys contain their units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stallscope.model.view.model import Gpu, Host, Rank, Run
from stallscope.model.view.verdicts import CodeLine, Verdict, Verdicts
from stallscope.tools.terminal.feed import ExporterState
from stallscope.tools.terminal.screen import Screen


def document(screen: Screen) -> dict[str, Any]:
    """Return everything that the screen shows, and all that it has no room for."""
    verdicts = screen.verdicts
    return {
        "nodes": [_node(state, verdicts) for state in screen.exporters],
        "runs": [_run(run, verdicts) for run in screen.runs],
        "verdicts": None
        if verdicts is None
        else {"server": verdicts.server, "age_seconds": verdicts.age, "problem": verdicts.problem or None},
    }


def _node(state: ExporterState, verdicts: Verdicts | None) -> dict[str, Any]:
    node = state.node
    head = {"exporter": state.name, "age_seconds": state.age, "problem": state.problem or None}
    if node is None:
        return head
    return {
        **head,
        "time": node.time,
        "version": node.version or None,
        "gpus": [_gpu(gpu, verdicts) for gpu in node.gpus],
        "host": _host(node.host),
        "sources": [
            {
                "source": source.name,
                "up": source.up,
                "last_success": source.last_success,
                "failures": source.failures,
            }
            for source in node.sources
        ],
        "closed_receivers": list(node.closed_receivers),
        "series_dropped": round(node.series_dropped),
    }


def _gpu(gpu: Gpu, verdicts: Verdicts | None) -> dict[str, Any]:
    return {
        "gpu": gpu.index,
        "uuid": gpu.uuid,
        "mig": gpu.mig or None,
        "model": gpu.model or None,
        "up": gpu.up,
        "reason": gpu.reason or None,
        "last_reading": gpu.last_reading,
        "utilization_ratio": gpu.utilization,
        "sm_active_ratio": gpu.sm_active,
        "memory_bandwidth_ratio": gpu.memory_bandwidth,
        "memory_used_bytes": gpu.memory_used,
        "memory_total_bytes": gpu.memory_total,
        "power_watts": gpu.power,
        "power_limit_watts": gpu.power_limit,
        "temperature_celsius": gpu.temperature,
        "clock_hertz": gpu.clock,
        "clock_max_hertz": gpu.clock_max,
        "throttled_ratio": dict(gpu.throttled),
        "processes": gpu.processes,
        "owners": [
            {
                "namespace": owner.namespace or None,
                "pod": owner.pod or None,
                "container": owner.container or None,
                "slurm_job": owner.slurm_job or None,
                "user": owner.user or None,
                "memory_used_bytes": owner.memory,
                "busy_ratio": owner.busy,
            }
            for owner in gpu.owners
        ],
        "verdict": _verdict(verdicts.gpus.get(gpu.uuid) if verdicts is not None else None),
    }


def _host(host: Host) -> dict[str, Any]:
    return {
        "cpus": host.cpus,
        "cpu_ratio": host.cpu,
        "iowait_ratio": host.iowait,
        "busiest_cpu_ratio": host.busiest_cpu,
        "memory_used_bytes": host.memory_used,
        "memory_total_bytes": host.memory_total,
        "shared_memory_used_bytes": host.shared_memory_used,
        "shared_memory_total_bytes": host.shared_memory_total,
        "pressure_ratio": dict(host.pressure),
        "disk_busy_ratio": dict(host.disks),
        "disk_read_bytes_per_second": host.read,
        "disk_written_bytes_per_second": host.written,
        "network_receive_bytes_per_second": host.received,
        "network_transmit_bytes_per_second": host.sent,
    }


def _run(run: Run, verdicts: Verdicts | None) -> dict[str, Any]:
    return {
        "run": run.name.run,
        "namespace": run.name.namespace or None,
        "states": run.states,
        "activities": list(run.activities),
        "world_size": run.world_size,
        "step": run.step,
        "steps_planned": run.steps_planned,
        "seconds_left": run.seconds_left,
        "step_seconds": run.step_seconds,
        "seconds_without_step": run.without_step,
        "samples_per_second": run.samples_per_second,
        "tokens_per_second": run.tokens_per_second,
        "epoch": run.epoch,
        "loss": run.loss,
        "last_step": run.last_step,
        "last_report": run.last_push,
        "since_seconds": run.since,
        "phases_ratio": _ratios(run.phases),
        "ranks": [_rank(rank) for rank in run.ranks],
        "verdict": _verdict(verdicts.runs.get(run.name) if verdicts is not None else None),
        "verdict_ambiguous": verdicts is not None and run.name in verdicts.ambiguous,
    }


def _rank(rank: Rank) -> dict[str, Any]:
    return {
        "rank": rank.number,
        "gpus": list(rank.gpus),
        "state": rank.state or None,
        "activity": rank.activity or None,
        "step": rank.step,
        "step_seconds": rank.step_seconds,
        "seconds_without_step": rank.without_step,
        "restarts": rank.restarts,
        "last_step": rank.last_step,
        "last_report": rank.last_push,
        "since_seconds": rank.recent.since,
        "phases_ratio": _ratios(rank.recent.loop),
        **{name: rank.info.get(name) or None for name in ("user", "namespace", "pod", "slurm_job", "hostname")},
    }


def _ratios(phases: Mapping[str, float]) -> dict[str, float]:
    total = sum(phases.values())
    return {name: seconds / total for name, seconds in phases.items()} if total > 0 else {}


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "cause": verdict.cause,
        "share_ratio": verdict.share,
        "lost_ratio": verdict.lost,
        "culprit": verdict.culprit._asdict() if verdict.culprit is not None else None,
        "missing": list(verdict.missing),
        "line": _line(verdict.line),
        "odd_ranks": [{"rank": each.rank, **each.place._asdict()} for each in verdict.odd],
    }


def _line(line: CodeLine | None) -> dict[str, Any] | None:
    if line is None:
        return None
    return {
        "phase": line.phase,
        "location": line.location,
        "function": line.function,
        "share_ratio": line.share,
        "workers": line.workers,
    }
