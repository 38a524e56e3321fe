"""The advice of the summary: the verdict or the phase with the largest share, and faults of the GPUs."""

from __future__ import annotations

from typing import NamedTuple

from stallscope.common.formatting import capitalised, percent, readable, several
from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.catalogue.general_causes import PHASE_CAUSES, THROTTLE_CAUSES, cause_of_phase
from stallscope.model.view.phase_shares import largest_loss, phase_shares
from stallscope.model.view.verdict_words import words_of
from stallscope.tools.summary.evidence import Evidence, GpuEvidence
from stallscope.tools.summary.measured import COMMUNICATION, DATA_WAIT, LineOfCode, RunTime

VERDICT_SECONDS = 300.0
"""Time that a verdict covers."""
_NAMED_FROM = 0.01
"""Smallest share of throttling that is named, as of phases."""


class Finding(NamedTuple):
    """A cause with what to do about it."""

    source: str
    """`prometheus` for a verdict, `largest_share` for the phase with the largest share, `exporter` for a GPU."""
    cause: str
    """Name in the catalogue; empty for an Xid, whose class the summary does not know."""
    title: str
    share: float | None
    """Share of the time; None if it is unknown."""
    remedy: str
    phase: str = ""
    """The phase that the cause is about; empty if it is about none."""
    line: LineOfCode | None = None
    """The line in which the phase spends most of its time; None if it is unknown."""


def main_finding(run: RunTime, evidence: Evidence) -> Finding | None:
    """Return the verdict, else the largest share.

    None for a run that is too short, and if no phase apart from the work has a share worth naming.
    """
    if run.is_short:
        return None
    verdict = evidence.verdicts.get(run.name)
    if verdict is not None and verdict.cause != "insufficient_data":
        words = words_of(verdict)
        title = f"{words.title}. {words.culprit}".rstrip(" .")
        share, phase = verdict.share or None, _phase_of(verdict.cause)
        if run.seconds < VERDICT_SECONDS and phase in run.losses:  # the verdict includes the first, slow steps
            share = run.losses[phase]
        return Finding("prometheus", verdict.cause, title, share, words.remedy, phase, run.line_of(phase))
    return largest_share(run)


def largest_share(run: RunTime) -> Finding | None:
    """Return the phase with the largest share apart from the work, or the rank for which the others wait."""
    candidates = run.shares | run.losses
    phase = largest_loss(candidates)
    share = candidates.get(phase, 0.0)
    if run.delay > share and COMMUNICATION in {each.name for each in phase_shares(run.shares)}:
        return _straggler(run)
    if share <= 0:
        return None
    cause = CAUSES[cause_of_phase(phase)]
    title = cause.title if phase in PHASE_CAUSES else capitalised(readable(phase))
    return Finding("largest_share", cause.name, title, share, cause.remedy, phase, run.line_of(phase))


def _phase_of(cause: str) -> str:
    """Return the phase whose time a cause explains; empty if there is none."""
    if cause in CAUSES and CAUSES[cause].domain == "input":
        return DATA_WAIT
    return next((phase for phase, general in PHASE_CAUSES.items() if general == cause), "")


def _straggler(run: RunTime) -> Finding:
    rank = run.slowest
    phase = max(rank.phases, key=lambda name: rank.phases[name])
    cause = CAUSES["straggler_input" if phase == DATA_WAIT else "straggler_rank"]
    spent = percent(rank.phases[phase] / rank.seconds)
    title = f"Ranks wait for rank {rank.report.rank}, which spends {spent} in {readable(phase.replace('_', ' '))}"
    line = RunTime(run.name, (rank,)).line_of(phase)
    return Finding("largest_share", cause.name, title, run.delay, cause.remedy, phase, line)


def gpu_findings(each: GpuEvidence) -> list[Finding]:
    """Return the faults of a GPU, and who else uses it."""
    findings = []
    if each.gpu.up is False:
        found = CAUSES["lost"]
        reason = f" ({each.gpu.reason})" if each.gpu.reason else ""
        findings.append(Finding("exporter", found.name, f"lost{readable(reason)}", None, found.remedy))
    for xid, number in sorted(each.xids.items()):
        title = f"Xid {readable(xid)}, {several(number, 'event')}"
        findings.append(Finding("exporter", "", title, None, "alerts/runbooks/GpuXidHw.md explains the number."))
    causes: dict[str, float] = {}
    for reason, share in each.throttled.items():
        cause = THROTTLE_CAUSES.get(reason, "")
        if cause and share >= _NAMED_FROM:
            causes[cause] = max(causes.get(cause, 0.0), share)
    for name, share in sorted(causes.items()):
        found = CAUSES[name]
        title = f"{found.title[:1].lower()}{found.title[1:]} for {percent(share)} of the time"
        findings.append(Finding("exporter", name, title, share, found.remedy))
    neighbours = [f"run {readable(name)}" for name in each.other_runs]
    neighbours += [readable(owner.title) for owner in each.other_owners]
    if not neighbours and each.processes_before:
        neighbours.append(f"{several(each.processes_before, 'process', 'processes')} from before this program")
    if neighbours:
        found = CAUSES["shared_unexpectedly"]
        findings.append(Finding("exporter", found.name, f"also used by {', '.join(neighbours)}", None, found.remedy))
    return findings
