"""The main facts of a report: time, ranks, GPUs, work, loss, energy, cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stallscope.common.formatting import capitalised, duration
from stallscope.model.analysis.over_time import RUN_LABELS, gpus_of_runs, lost_of_runs
from stallscope.model.analysis.run_figures import Work
from stallscope.model.analysis.runs import Run
from stallscope.model.catalogue.causes import MISSING
from stallscope.model.catalogue.metrics import GONE_STATES
from stallscope.model.clients.expressions import any_of, quoted
from stallscope.model.view.verdict_words import line_words, remedy_of
from stallscope.tools.report.affected import listed
from stallscope.tools.report.culprits import Blamed, culprits_of_runs, run_of
from stallscope.tools.report.document import Block, Column, Fact, Facts, Notice, Paragraph, Table, Value
from stallscope.tools.report.lost_time import LostTime
from stallscope.tools.report.phases import named_shares
from stallscope.tools.report.queries import TRAINING_TIME, Queries
from stallscope.tools.report.ranks import Ranks, standstill
from stallscope.tools.report.words import UNKNOWN, percent, plain, title_of

KEY = "summary"
TITLE = "Summary"
_MAIN = "the verdict that held longest"
_INFO = "1h"
"""Window at the end for values that rarely change."""
_LAST = "1m"
"""Window at the end for the reasons of a missing verdict, which follow one another."""
_CULPRITS = 3
"""Maximum number of culprits that the summary names."""
_NODES = 4
"""Maximum number of nodes that the summary names."""
_MIN_CULPRIT_SECONDS = 60.0
"""Shortest time for which a culprit must hold to be named."""
_ENDED = frozenset({"finished", *GONE_STATES})
_INFO_TITLES = {
    "framework": "Framework",
    "user": "User",
    "git_commit": "Commit",
    "job_class": "Job class",
    "slurm_job": "Slurm job",
    "pod": "Pod of the first rank",
}


def blocks(queries: Queries, lost: LostTime, found: Ranks | None, blamed: Mapping[str, Blamed]) -> list[Block]:
    """Return the blocks of the section; `blamed` are the culprits of a run by verdict, except those advice names."""
    run = queries.subject.run
    if run is None or found is None:
        return _of_gpus(queries, lost)
    facts = _job(queries, run, lost, found), _work(queries), _cost(queries, lost, found)
    return [*_lead(queries, lost), *_culprits(lost, blamed), *standstill(queries, found), *facts]


def highlights(queries: Queries, lost: LostTime, blamed: Mapping[str, Blamed]) -> tuple[Fact, ...]:
    """Return the main numbers for the top of the report."""
    hours = None if lost.lost is None else lost.lost / 3600
    verdict = lost.most_under_verdict
    totals = queries.totals.shares if queries.subject.run is not None else {}
    facts = [
        Fact(
            "Main verdict",
            verdict,
            "cause",
            blamed[verdict].phrase if verdict and verdict in blamed else _MAIN if verdict else "",
            key="main_verdict",
        ),
        Fact("Lost", lost.share, "share", f"of the {lost.unit} time", key="lost_ratio"),
        Fact(
            capitalised(f"{lost.unit}-hours lost"),
            hours,
            "gpu_hours",
            f"of {plain(lost.gpu_seconds / 3600)}" if lost.gpu_seconds else "",
            key=f"lost_{lost.hours_key}",
        ),
    ]
    if lost.share is None and totals:
        phase = next(iter(totals))
        line = _line_of(queries, phase)
        note = f"{percent(totals[phase])} of the loop's time, by the run's own counters{f'; {line}' if line else ''}"
        facts.insert(0, Fact("Largest phase", title_of(phase), note=note, key="largest_phase"))
    cost = queries.options.money(hours, lost.joules)
    if cost is not None:
        note = f"of these hours and their energy, as far as priced{queries.options.currency_note}"
        facts.append(Fact("Cost of lost time", cost, "money", note, key="lost_cost"))
    return tuple(facts)


def _lead(queries: Queries, lost: LostTime) -> list[Block]:
    """Return what the highlights and the advice leave open: why there is no verdict, or no loss."""
    if lost.share is None:
        return _without_verdict(queries)
    unjudged = max(0.0, lost.gpu_seconds - lost.judged) / lost.gpu_seconds if lost.gpu_seconds else 0.0
    without_verdict = f"{percent(unjudged)} of the {lost.unit} time has no verdict." if unjudged else ""
    if not lost.losses:
        return [Notice("good", f"No loss of {lost.unit} time was detected. {without_verdict}".rstrip())]
    return [Paragraph(without_verdict)] if without_verdict else []


def _without_verdict(queries: Queries) -> list[Block]:
    """Return why there is no verdict, and where the time of a run went by its own counters."""
    if queries.subject.run is None:
        return [Notice("warning", "The GPUs had no verdicts in this time. See the last section for missing data.")]
    missing = f"last_over_time(rank:missing:info{{{queries.subject.run_matchers}}}[{_LAST}])"
    reasons = queries.by("missing", f"count by (missing) ({missing})")
    why = " ".join(words for reason, words in MISSING.items() if reason in reasons)
    why = why or f"It was live for {duration(queries.subject.seconds)}. See the last section for missing data."
    shares = named_shares(queries.totals.loop)
    said = f" By its own counters, the loop took: {shares}." if shares else ""
    phase = next(iter(queries.totals.shares), "")
    if line := _line_of(queries, phase):
        said += f" {title_of(phase)}: {line}."
    return [Notice("warning", f"The rules reached no verdict on this run. {why}{said}")]


def _line_of(queries: Queries, phase: str) -> str:
    """Return the line in which a phase spends most of its time, in words; empty if none was sampled."""
    which = f"{queries.subject.rank_matchers}, phase={quoted(phase)}"
    spent = f"max_over_time(stallscope_training_code_seconds_total{{{which}}}[{queries.window}])"
    lines = queries.instant(f"sum by (location, function) ({spent})")
    total = sum(each.value for each in lines)
    if total <= 0:
        return ""
    most = max(lines, key=lambda each: each.value)
    return line_words(most.labels.get("location", ""), most.labels.get("function", ""), most.value / total)


def _culprits(lost: LostTime, blamed: Mapping[str, Blamed]) -> list[Block]:
    """Report the culprits of the verdicts that held longest."""
    long = [cause for cause in blamed if blamed[cause].seconds >= _MIN_CULPRIT_SECONDS]
    order = sorted(long, key=lambda cause: -lost.under_verdict.get(cause, 0.0))
    return [
        Notice("warning", f"{title_of(cause)}: {blamed[cause].evidence}. {remedy_of(blamed[cause].culprit)}".rstrip())
        for cause in order[:_CULPRITS]
    ]


def _job(queries: Queries, run: Run, lost: LostTime, found: Ranks) -> Facts:
    which, window = queries.subject.rank_matchers, queries.window
    first = f"{which}, rank={quoted(found.first or '')}"
    start = queries.value(f"min(min_over_time(stallscope_training_start_timestamp_seconds{{{first}}}[{window}]))")
    pushed = queries.value(f"max(max_over_time(stallscope_training_last_push_timestamp_seconds{{{which}}}[{_INFO}]))")
    if _has_ended(run):
        pushed = queries.subject.end
    restarts = queries.value(f"max(sum by (rank) (increase(stallscope_training_restarts_total{{{which}}}[{window}])))")
    precision = queries.instant(
        f"group by (precision) (last_over_time(stallscope_training_precision_info{{{first}}}[{window}]))"
    )
    facts = [
        Fact("Run", run.name, key="run"),
        *([Fact("Cluster", run.cluster, key="cluster")] if run.cluster else []),
        *([Fact("Namespace", run.namespace, key="namespace")] if run.namespace else []),
        Fact("State", _state(queries, run), key="state"),
        Fact("Started", start, "time", "by the clock of its first rank", key="start_timestamp_seconds"),
        Fact("Ended" if _has_ended(run) else "Last report", pushed, "time", key="last_report_timestamp_seconds"),
        Fact("Last step", queries.totals.last_step, "time", key="last_step_timestamp_seconds"),
        Fact(
            "Live",
            lost.seconds or None,
            "seconds",
            f"time with live ranks, out of {duration(queries.subject.seconds)}",
            key="live_seconds",
        ),
        Fact("Restarts", restarts, "count", "of the rank with the most", key="restarts"),
        Fact(
            "Ranks",
            float(len(found.places)),
            "count",
            f"world size {run.world_size}" if run.world_size else "",
            key="rank_count",
        ),
        Fact("Nodes", float(len(run.instances)), "count", listed(run.instances, _NODES), key="node_count"),
        Fact("GPUs", _models(queries, found), key="gpu_models"),
        Fact("Batch", queries.figures.batch, "count", "samples per step of all ranks", key="batch_size"),
        Fact(
            "Precision",
            ", ".join(sorted({each.labels.get("precision", "") for each in precision})) or None,
            key="precision",
        ),
        *(Fact(title, run.info[label], key=label) for label, title in _INFO_TITLES.items() if run.info.get(label)),
    ]
    return Facts(tuple(facts), title="The job")


def _state(queries: Queries, run: Run) -> str:
    if queries.standstill is not None:
        return f"at a standstill since {queries.moment(queries.standstill)}"
    if not run.states:
        return "running" if run.goes_on else UNKNOWN
    ranks = sum(run.states.values())
    said = ", ".join(
        state if number == ranks else f"{state} ({number} of {ranks} ranks)"
        for state, number in sorted(run.states.items())
    )
    return said if run.goes_on or _has_ended(run) else f"{said}, but no longer reporting"


def _has_ended(run: Run) -> bool:
    """Return whether all ranks reported an end or are known to be gone."""
    return bool(run.states) and run.states.keys() <= _ENDED


def _models(queries: Queries, found: Ranks | None) -> str | None:
    """Return the GPUs by model and driver."""
    info = f"last_over_time(stallscope_gpu_info{{{queries.subject.node_matchers}}}[{_INFO}])"
    numbers = Counter(
        tuple(each.labels.get(label) or "unknown" for label in ("model", "driver_version"))
        for each in queries.instant(f"group by (uuid, model, driver_version) ({info})")
        if found is None or each.labels.get("uuid") in found.uuids
    )
    return "; ".join(f"{number} {model}, driver {driver}" for (model, driver), number in numbers.most_common()) or None


def _joules(queries: Queries, found: Ranks | None) -> float | None:
    """Return the energy of the subject's GPUs; of a run's GPUs also while it did not use them."""
    which = queries.subject.node_matchers
    taken = queries.by(
        "uuid", f"max by (uuid) (increase(stallscope_gpu_energy_joules_total{{{which}}}[{queries.window}]))"
    )
    own = [joules for uuid, joules in taken.items() if found is None or uuid in found.uuids]
    return sum(own) if own else None


def _work(queries: Queries) -> Facts:
    which, window = queries.subject.run_matchers, queries.window
    # The mean of an hour is unreliable during the first hour.
    goodput = f"run:goodput:ratio1h{{{which}}} and run:ranks:count{{{which}}} offset 1h"
    facts = []
    units: tuple[Work, ...] = ("samples", "tokens")
    for unit in units:
        done, rate = _done(queries, unit), queries.figures.rate(unit)
        if done:
            facts.append(Fact(unit.capitalize(), done, "count", "in this time, including repeated steps", key=unit))
            note = "mean of the whole loop" if queries.figures.young else TRAINING_TIME
            facts.append(Fact(f"{unit.capitalize()} per second", rate, "per_second", note, key=f"{unit}_per_second"))
    if not facts:
        facts.append(Fact("Samples", None, "count", "the run reports no samples or tokens"))
    figures = queries.figures
    if figures.gpus:
        note = "mean of its GPUs" if figures.gpu_busy is not None else "known after five minutes"
        facts.append(Fact("GPU busy", figures.gpu_busy, "share", note, key="gpu_busy_ratio"))
    facts += [
        Fact(
            "Goodput",
            queries.value(f"avg({queries.over_time('avg_over_time', goodput)})"),
            "share",
            "productive step time divided by wall time, mean of whole hours",
            key="goodput_ratio",
        ),
        Fact(
            "Model FLOP/s utilization",
            queries.value(f"avg(avg_over_time(run:mfu:ratio5m{{{which}}}[{window}]))"),
            "share",
            "of the GPUs' peak; requires the model's operations",
            key="mfu_ratio",
        ),
    ]
    return Facts(tuple(facts), title="Work")


def _done(queries: Queries, unit: str) -> float | None:
    """Return the work of all ranks in this time."""
    counted = queries.totals.samples if unit == "samples" else queries.totals.tokens
    if counted:
        return counted
    total = f"stallscope_training_{unit}_total{{{queries.subject.rank_matchers}}}"
    return queries.value(f"sum(increase({total}[{queries.window}]))")


def _cost(queries: Queries, lost: LostTime, found: Ranks | None) -> Facts:
    hours, joules = lost.gpu_seconds / 3600, _joules(queries, found)
    facts = [
        Fact(
            capitalised(f"{lost.unit}-hours"),
            hours,
            "gpu_hours",
            f"{percent(lost.judged / lost.gpu_seconds)} with a verdict",
            key=lost.hours_key,
        )
        if lost.gpu_seconds
        else Fact("GPU-hours", None, "gpu_hours", "none recorded"),
        Fact("Lost", None if lost.lost is None else lost.lost / 3600, "gpu_hours", "to all causes together"),
        Fact("Energy", joules, "joules", "of the GPUs", key="energy_joules"),
        Fact("Energy lost", lost.joules, "joules", "used during lost time", key="lost_energy_joules"),
    ]
    if queries.subject.run is not None and joules is not None:
        samples = _done(queries, "samples")
        per_sample = joules / samples if samples else None
        facts.append(Fact("Energy per sample", per_sample, "joules", key="energy_per_sample_joules"))
    cost = queries.options.money(hours, joules)
    if cost is not None and lost.gpu_seconds:  # unknown hours have an unknown cost, not zero
        lost_hours = None if lost.lost is None else lost.lost / 3600
        facts += [
            Fact("Cost", cost, "money", "of these GPU-hours, and of the energy if it has a price", key="cost"),
            Fact("Cost of lost time", queries.options.money(lost_hours, lost.joules), "money"),
        ]
    return Facts(tuple(facts), title="Cost")


def _of_gpus(queries: Queries, lost: LostTime) -> list[Block]:
    """Return the summary of nodes, or of everything."""
    subject = queries.subject
    facts = [
        Fact(
            "GPUs",
            lost.gpu_seconds / lost.seconds if lost.seconds else None,
            "number",
            "mean over this time",
            key="gpu_count",
        ),
        Fact("Models", _models(queries, None), key="gpu_models"),
        Fact("Busy", _busy(queries), "share", "mean of all GPUs", key="gpu_busy_ratio"),
    ]
    if subject.instances:
        facts.insert(
            0,
            Fact("Nodes", float(len(subject.instances)), "count", listed(subject.instances, _NODES), key="node_count"),
        )
    return [*_lead(queries, lost), Facts(tuple(facts), title="GPUs"), _cost(queries, lost, None), *_runs(queries)]


def _busy(queries: Queries) -> float | None:
    """Return the mean of the GPUs that are up, over the times at which their activity is known."""
    card, which = "cluster, job, instance, gpu", queries.subject.node_matchers
    busy = f"avg by ({card}) (gpu:busy:ratio5m{{{which}}} and on ({card}) gpu:up:max{{{which}}})"
    total, number = (
        queries.integral(f"{function}({busy})", resolution=queries.coarse) for function in ("sum", "count")
    )
    return queries.value(f"{total} / ({number})")


def _runs(queries: Queries) -> list[Block]:
    """Report the runs of this time by loss."""
    subject = queries.subject
    here = ""
    if subject.instances:
        known = f"last_over_time(run_node:known:info{{{subject.node_matchers}}}[{queries.window}])"
        here = f" and on ({RUN_LABELS}) {known}"
    gpus = gpus_of_runs("", subject.seconds, subject.end)
    hours = f"sum by ({RUN_LABELS}) ({queries.integral(gpus)}) / 3600{here}"
    lost = f"sum by ({RUN_LABELS}) ({queries.integral(lost_of_runs('', gpus, cause=False))}) / 3600{here}"
    number = queries.value(f"count({hours})")
    if not number:
        return [Paragraph("No run was live in this time.")]
    rows: list[tuple[Value, ...]] = []
    by_run = {run_of(each.labels): each.value for each in queries.instant(hours)}
    costliest = sorted(queries.instant(f"topk({queries.options.rows}, {lost})"), key=lambda each: -each.value)
    among = any_of([each.labels.get("run", "") for each in costliest])
    verdicts: dict[tuple[str, str, str], tuple[float, str]] = {}
    if costliest:
        count = f"count_over_time(run:verdict:ratio5m{{run=~{among}}}[{queries.window}])"
        for each in queries.instant(f"max by ({RUN_LABELS}, cause) ({count})"):
            run, candidate = run_of(each.labels), (each.value, each.labels.get("cause", ""))
            verdicts[run] = max(verdicts.get(run, candidate), candidate)
    blamed = culprits_of_runs(queries, f"run=~{among}") if costliest else {}
    claimed = queries.instant(f"last_over_time(run:gpus:count{{run=~{among}}}[{queries.window}])") if costliest else []
    with_gpus = {run_of(each.labels) for each in claimed}
    for each in costliest:
        run = run_of(each.labels)
        total = by_run.get(run)
        verdict = verdicts[run][1] if run in verdicts else None
        share = each.value / total if total else None
        gpu_hours = (total, each.value) if run in with_gpus else (None, None)
        rows.append((run[2], run[1], run[0], verdict, blamed.get(run, ""), *gpu_hours, share))
    notes = ["A run without a GPU has no GPU-hours."] if any(row[5] is None for row in rows) else []
    left = round(number) - len(rows)
    if left > 0:
        notes.append(f"{left} more {'run' if left == 1 else 'runs'} lost less, or had no verdict.")
    return [
        Table(
            (
                Column("Run", key="run"),
                Column("Namespace", key="namespace"),
                Column("Cluster", key="cluster"),
                Column("Main verdict", "cause", "the verdict that held longest", key="main_verdict"),
                Column("Culprit", note="rank, GPU, node and root cause", key="culprit"),
                Column("GPU-hours", "gpu_hours", key="gpu_hours"),
                Column("Lost", "gpu_hours", key="lost_gpu_hours"),
                Column("Share", "share", "of its time", key="lost_ratio"),
            ),
            tuple(rows),
            title="Runs by lost time",
            note=" ".join(notes),
            key="runs",
        )
    ]
