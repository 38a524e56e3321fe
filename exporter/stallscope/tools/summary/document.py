"""The summary as a JSON document; exporter/SHIM.md describes it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from stallscope.common.version import __version__
from stallscope.tools.summary.evidence import Evidence, GpuEvidence
from stallscope.tools.summary.findings import Finding, gpu_findings, main_finding
from stallscope.tools.summary.measured import RankTime, RunTime
from stallscope.tools.summary.text import unmeasured

VERSION = 1
_DIGITS = 6


def document_of(program: str, runs: Sequence[RunTime], evidence: Evidence, failures: Sequence[str]) -> dict[str, Any]:
    """Return the document."""
    return {
        "version": VERSION,
        "stallscope": __version__,
        "program": program,
        "hostname": socket.gethostname(),
        "runs": [_run(run, evidence) for run in runs],
        "failed_conditions": list(failures),
    }


def _run(run: RunTime, evidence: Evidence) -> dict[str, Any]:
    finding = main_finding(run, evidence)
    return {
        "run": run.name,
        "state": run.state,
        "failure": run.failure,
        "framework": run.first.info.get("framework", ""),
        "world_size": run.world_size,
        "seconds": _rounded(run.seconds),
        "initialization_seconds": _rounded(run.initialization),
        "steps": run.all_steps,
        "measured_steps": run.steps,
        "is_short": run.is_short,
        "step_seconds": _rounded(run.step),
        "step_uncertainty": _rounded(run.step_uncertainty),
        "samples_per_second": _rounded(run.samples_per_second),
        "tokens_per_second": _rounded(run.tokens_per_second),
        "phases": {name: _rounded(share) for name, share in run.shares.items()},
        "lost": _rounded(run.lost),
        "cause": None if finding is None else _finding(finding),
        "ranks": [_rank(rank) for rank in run.ranks],
        "gpus": [_gpu(each) for each in evidence.gpus.get(run.name, ())],
        "unknown": [*evidence.missing, *unmeasured(run)],
    }


def _rank(rank: RankTime) -> dict[str, Any]:
    seconds = rank.seconds
    return {
        "rank": rank.report.rank,
        "state": rank.state,
        "failure": rank.report.failure,
        "step_seconds": _rounded(rank.step_seconds / rank.steps if rank.steps else None),
        "phases": {name: _rounded(spent / seconds) for name, spent in rank.phases.items()} if seconds > 0 else {},
    }


def _gpu(each: GpuEvidence) -> dict[str, Any]:
    return {
        "gpu": each.gpu.index,
        "uuid": each.gpu.uuid,
        "model": each.gpu.model,
        "up": each.gpu.up,
        "busy": _rounded(each.busy),
        "throttled": {reason: _rounded(share) for reason, share in each.gpu.throttled.items()}
        if each.busy is not None
        else {},
        "xids": dict(each.xids),
        "other_runs": list(each.other_runs),
        "other_owners": [owner.title for owner in each.other_owners],
        "processes_before": each.processes_before,
        "findings": [_finding(finding) for finding in gpu_findings(each)],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    line = None if finding.line is None else {**finding.line._asdict(), "share": _rounded(finding.line.share)}
    return {**finding._asdict(), "share": _rounded(finding.share), "line": line}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
