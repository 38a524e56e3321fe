"""The summary as text: a few lines for each run."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.common.formatting import duration, percent, rate, readable, several
from stallscope.model.view.phase_shares import REMAINDER, phase_shares, rounded_share, step_contents, title_of_share
from stallscope.model.view.verdict_words import line_words
from stallscope.tools.summary.evidence import Evidence, GpuEvidence
from stallscope.tools.summary.findings import VERDICT_SECONDS, Finding, gpu_findings, main_finding
from stallscope.tools.summary.measured import DATA_WAIT, RunTime
from stallscope.training.shim.slow_steps import FEWEST, WARM_UP

_MOST_RUNS = 4
_MOST_GPUS = 8
_LEAST_DIFFERENCE = 0.01
"""Share of the time by which all losses together exceed the largest, from which they are shown."""
_LEAST_REMAINDER = 0.1
"""Share of `other` from which it has a line of its own, as from which its lines of code are sampled."""
_STATE_WORDS = {
    "failed": "failed",
    "lost": "ended without a last report (killed, or crashed)",
    "terminated": "was terminated",
    "running": "is still running",
    "starting": "is still starting",
    "finished": "finished",
}


def lines_of(runs: Sequence[RunTime], evidence: Evidence) -> list[str]:
    """Return the lines of the summary."""
    lines = []
    for run in runs[:_MOST_RUNS]:
        lines += _run_lines(run, evidence)
    if len(runs) > _MOST_RUNS:
        lines.append(f"stallscope run: {several(len(runs) - _MOST_RUNS, 'more run')}; --summary=json has all of them")
    return lines


def _run_lines(run: RunTime, evidence: Evidence) -> list[str]:
    lines = [_first_line(run)]

    def add(name: str, text: str) -> None:
        if text:
            lines.append(f"  {name:<9} {text}")

    if run.step is None:
        found = "No step was reported" if run.state == "lost" else "No step was found"
        add("unknown", f"{found}; report steps with stallscope.track() or Run.step().")
        return lines
    add("time", ", ".join(_share(run, each.name, each.share) for each in phase_shares(run.shares)))
    add("ranks", _ranks(run))
    finding = main_finding(run, evidence)
    add("other", "" if finding is not None and finding.phase == REMAINDER else _remainder(run))
    if run.is_short:
        add("short", f"Too few steps for advice: at least {WARM_UP + FEWEST} are needed, and the first ones are slow.")
    elif finding is None:
        add("lost", "No phase apart from the work takes 1 % of the time.")
    else:
        add("verdict" if finding.source == "prometheus" else "largest", _said(finding, run))
        add("line", _line(finding))
        add("evidence", _input_evidence(run) if finding.cause.startswith("input_") else "")
        add("try", finding.remedy)
    for text in _gpus(evidence.gpus.get(run.name, ())):
        add("GPU", text)
    for sentence in (*evidence.missing, *unmeasured(run)):
        add("unknown", sentence)
    return lines


def _first_line(run: RunTime) -> str:
    failure = f" ({readable(run.failure)})" if run.failure else ""
    done = f"{readable(run.name)} {_STATE_WORDS[run.state]}{failure} after {duration(run.seconds)}"
    parts = [f"{several(run.all_steps, 'step')}"]
    named = {each.name for each in phase_shares(run.shares)}
    outside = " and ".join(phase for phase in ("evaluation", "restore") if phase in named)
    if run.step is not None:
        parts[0] += f" of {duration(run.step)}"
        parts[0] += f" {step_contents(run.shares)}".rstrip()
    parts += [
        f"{rate(value)} {unit}/s" + (f" with {outside}" if outside else "")
        for value, unit in ((run.samples_per_second, "samples"), (run.tokens_per_second, "tokens"))
        if value is not None
    ]
    parts.append(f"{duration(run.initialization)} before the first step")
    return f"stallscope run: {done}: {', '.join(parts)}"


def _share(run: RunTime, phase: str, share: float) -> str:
    text = f"{title_of_share(phase)} {percent(share)}"
    if phase == DATA_WAIT and run.idle_while_waiting is not None:
        text += f" (GPU idle {percent(run.idle_while_waiting)})"
    return text


def _ranks(run: RunTime) -> str:
    """Return how the ranks differ in the phase that costs most; empty for a single rank."""
    if len(run.ranks) == 1:
        return ""
    phase = max(run.losses, key=lambda name: run.shares[name], default="")
    text = several(len(run.ranks), "rank")
    shares = run.by_rank(phase)
    if phase and shares:
        most, least = max(shares, key=lambda rank: shares[rank]), min(shares, key=lambda rank: shares[rank])
        text += f"; {readable(phase.replace('_', ' '))}: {percent(shares[least])} of rank {least}'s time"
        text += f" to {percent(shares[most])} of rank {most}'s"
    return text


def _said(finding: Finding, run: RunTime) -> str:
    share = "" if finding.share is None else f": {rounded_share(run.shares, finding.phase, finding.share)} of the time"
    if finding.source == "prometheus":
        is_whole = run.seconds < VERDICT_SECONDS
        return f"{finding.title}{share}{'' if is_whole else ', in the last five minutes'}"
    together = run.lost or 0.0
    is_more = finding.phase in run.losses and together - (finding.share or 0.0) >= _LEAST_DIFFERENCE
    return f"{finding.title}{share}" + (f"; {percent(together)} are lost together" if is_more else "")


def _remainder(run: RunTime) -> str:
    """Return the share of the time that no phase explains, with its line; empty if it is small or contains the work."""
    share = run.shares.get(REMAINDER, 0.0)
    if not run.separates_work or share < _LEAST_REMAINDER:
        return ""
    line = run.line_of(REMAINDER)
    where = "" if line is None else f", {line_words(*line, name=readable)}"
    return f"{rounded_share(run.shares, REMAINDER, share)} of the time{where}"


def _line(finding: Finding) -> str:
    if finding.line is None:
        return ""
    location, function, share = finding.line
    phase = readable(finding.phase.replace("_", " "))
    return f"{readable(location)} {readable(function)}: {percent(share)} of the sampled {phase}"


def _input_evidence(run: RunTime) -> str:
    """Return what the processes report on their loading of data."""
    parts = []
    workers = [rank.report.gauges.get("dataloader_workers") for rank in run.ranks]
    if workers[0] is not None:
        each = " in each rank" if len(run.ranks) > 1 else ""
        parts.append(f"{several(round(workers[0]), 'loader worker')}{each}" if workers[0] else "no loader workers")
    seconds = sum(rank.seconds for rank in run.ranks)
    for counter, words in (
        ("main_thread_cpu_seconds", "main thread on a CPU for {} of the time"),
        ("cpu_throttled_seconds", "stopped by the CPU quota for {}"),
    ):
        spent = [rank.increase(counter) for rank in run.ranks]
        known = [each for each in spent if each is not None]
        if known and seconds > 0 and (counter == "main_thread_cpu_seconds" or sum(known) > 0):
            parts.append(words.format(percent(min(1.0, sum(known) / seconds))))
    return ", ".join(parts)


def _gpus(gpus: Sequence[GpuEvidence]) -> list[str]:
    """Return a line for each group of GPUs with the same findings."""
    groups: dict[tuple[str, tuple[Finding, ...]], list[GpuEvidence]] = {}
    for each in gpus:
        groups.setdefault((each.gpu.model, tuple(gpu_findings(each))), []).append(each)
    lines = []
    for (model, findings), members in groups.items():
        named = ", ".join(readable(each.gpu.index) for each in members[:_MOST_GPUS])
        parts = [named + (", …" if len(members) > _MOST_GPUS else "") + (f" ({readable(model)})" if model else "")]
        busy = [each.busy for each in members if each.busy is not None]
        if busy:
            least, most = percent(min(busy)), percent(max(busy))
            parts.append(f"busy {least}" if least == most else f"busy {least} to {most}")
            if not findings:
                parts.append("no heat, Xid or neighbour")
        found = "; ".join(finding.title for finding in findings)
        remedies = " ".join(finding.remedy for finding in findings)
        lines.append(", ".join(parts) + (f": {found}. {remedies}" if findings else ""))
    return lines


def unmeasured(run: RunTime) -> list[str]:
    """Return sentences on what the reports do not contain."""
    sentences = []
    if not run.separates_work:
        if "backward" in run.shares:
            sentences.append(f"Forward: no call of a module was found, so its time is part of {REMAINDER}.")
        else:
            sentences.append(f"Forward, backward and optimizer: their time is part of {REMAINDER}.")
        if "evaluation" not in run.shares:
            sentences.append(
                'Evaluation in the loop: its time is part of the steps, except inside run.phase("evaluation").'
            )
    if DATA_WAIT not in run.shares:
        sentences.append(
            'Wait for data: no loader and no call that makes a batch was found. Time it with run.phase("data_wait").'
        )
    if any(rank.report.gpus for rank in run.ranks) and run.idle_while_waiting is None:
        sentences.append("Time by the GPU's clock: a wait for the GPU counts in the phase that waits.")
    if run.world_size > len(run.ranks):
        here = f"only {len(run.ranks)} of {run.world_size} ran on this node"
        sentences.append(f"Ranks of other nodes, of which one may delay these: {here}.")
    return sentences
