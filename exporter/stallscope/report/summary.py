"""What the job was and what came of it, in facts: time, ranks, GPUs, work done, losses, energy, money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stallscope.analysis.runs import Run
from stallscope.catalogue.metrics import GONE_STATES
from stallscope.clients.expressions import any_of, quoted
from stallscope.common.formatting import duration
from stallscope.report.asking import Asker, settled
from stallscope.report.culprits import Blamed, culprits_of_runs
from stallscope.report.document import Block, Column, Fact, Facts, Notice, Paragraph, Section, Table, Value
from stallscope.report.lost_time import LostTime
from stallscope.report.ranks import Ranks
from stallscope.report.subject import RUN_LABELS
from stallscope.report.words import percent, plain, title_of
from stallscope.view.verdict_words import remedy_of

KEY = "summary"
_INFO = "1h"
"""So far back at the end what hardly changes is looked for."""
_CULPRITS = 3
"""Verdicts whose culprit the summary names."""
_LEAST_SECONDS = 60.0
"""Time from which on it names one."""
_ENDED = frozenset({"finished", *GONE_STATES})
_TOLD = {
    "framework": "Framework",
    "user": "User",
    "git_commit": "Commit",
    "job_class": "Class",
    "slurm_job": "Slurm job",
    "pod": "Pod of the first rank",
}


def section(asker: Asker, lost: LostTime, found: Ranks | None, blamed: Mapping[str, Blamed]) -> Section:
    """Tell it; `blamed` are the culprits of a run by the cause that was its verdict."""
    run = asker.subject.run
    if run is None or found is None:
        return Section(KEY, "Summary", tuple(_of_gpus(asker, lost)))
    said = [*_lead(asker, lost), *_culprits(lost, blamed)]
    return Section(KEY, "Summary", (*said, _job(asker, run, lost, found), _work(asker), _cost(asker, lost, found)))


def highlights(asker: Asker, lost: LostTime, blamed: Mapping[str, Blamed]) -> tuple[Fact, ...]:
    """The few numbers at the top."""
    hours = None if lost.lost is None else lost.lost / 3600
    verdict = lost.most_under_verdict
    facts = [
        Fact(
            "Mostly",
            verdict,
            "cause",
            blamed[verdict].phrase if verdict and verdict in blamed else "the verdict that held longest",
        ),
        Fact("Lost", lost.share, "share", f"of the {lost.unit} time"),
        Fact(
            f"{lost.unit}-hours lost",
            hours,
            "gpu_hours",
            f"of {plain(lost.gpu_seconds / 3600)}" if lost.gpu_seconds else "",
        ),
    ]
    money = asker.options.money(hours, lost.joules)
    if money is not None:
        facts.append(Fact("Money lost", money, "money", "for these hours and their energy, where they have a price"))
    return tuple(facts)


def _lead(asker: Asker, lost: LostTime) -> list[Block]:
    """The whole in a sentence."""
    what = "run" if asker.subject.run is not None else "GPUs"
    if lost.share is None:
        return [Notice("warning", f"The {what} could not be judged in this time: what was missing stands at the end.")]
    costliest = lost.losses[0] if lost.losses else None
    text = f"{percent(lost.share)} of the {lost.unit} time was lost"
    unjudged = max(0.0, lost.gpu_seconds - lost.judged) / lost.gpu_seconds if lost.gpu_seconds else 0.0
    besides = f" {percent(unjudged)} could not be judged." if unjudged else ""
    if costliest is None:
        return [Notice("good", f"No loss of {lost.unit} time was found.{besides}")]
    text += f", most of it to “{title_of(costliest.cause)}” ({percent(costliest.share)}).{besides}"
    return [Paragraph(text)]


def _culprits(lost: LostTime, blamed: Mapping[str, Blamed]) -> list[Block]:
    """Return who is to blame for the verdicts that held longest."""
    long = [cause for cause in blamed if blamed[cause].seconds >= _LEAST_SECONDS]
    order = sorted(long, key=lambda cause: -lost.under_verdict.get(cause, 0.0))
    return [
        Notice("warning", f"{title_of(cause)}: {blamed[cause].evidence}. {remedy_of(blamed[cause].culprit)}".rstrip())
        for cause in order[:_CULPRITS]
    ]


def _job(asker: Asker, run: Run, lost: LostTime, found: Ranks) -> Facts:
    which, window = asker.subject.told_by_ranks, asker.window
    first = f"{which}, rank={quoted(found.first or '')}"
    start = asker.figure(f"min(min_over_time(stallscope_training_start_timestamp_seconds{{{first}}}[{window}]))")
    heard = asker.figure(f"max(max_over_time(stallscope_training_last_push_timestamp_seconds{{{which}}}[{_INFO}]))")
    restarts = asker.figure(f"max(sum by (rank) (increase(stallscope_training_restarts_total{{{which}}}[{window}])))")
    batch = asker.figure(f"quantile_over_time(0.5, run:batch_size:sum{{{asker.subject.told_by_run}}}[{window}])")
    precision = asker.ask(
        f"group by (precision) (last_over_time(stallscope_training_precision_info{{{first}}}[{window}]))"
    )
    facts = [
        Fact("Run", run.name),
        *([Fact("Cluster", run.cluster)] if run.cluster else []),
        *([Fact("Namespace", run.namespace)] if run.namespace else []),
        Fact("State", _state(run)),
        Fact("Began", start, "time", "by the clock of its first rank"),
        Fact("Ended" if _has_ended(run) else "Last heard", heard, "time"),
        Fact(
            "Lived",
            lost.seconds or None,
            "seconds",
            f"with live ranks, of the {duration(asker.subject.seconds)} that are told of",
        ),
        Fact("Restarts", restarts, "count", "of the rank with most"),
        Fact(
            "Ranks",
            float(len(found.places)),
            "count",
            f"of {run.world_size} by its own account" if run.world_size else "",
        ),
        Fact("Nodes", float(len(run.instances)), "count", _few(run.instances)),
        Fact("GPUs", _models(asker, found)),
        Fact("Batch", batch, "count", "samples in a step of all ranks"),
        Fact("Precision", ", ".join(sorted(each.labels.get("precision", "") for each in precision)) or None),
        *(Fact(title, run.told[label]) for label, title in _TOLD.items() if run.told.get(label)),
    ]
    return Facts(tuple(facts), title="The job")


def _state(run: Run) -> str:
    if not run.states:
        return "goes on" if run.goes_on else "not told"
    ranks = sum(run.states.values())
    said = ", ".join(
        state if number == ranks else f"{state} ({number} of {ranks} ranks)"
        for state, number in sorted(run.states.items())
    )
    return said if run.goes_on or _has_ended(run) else f"{said}, but not heard of any more"


def _has_ended(run: Run) -> bool:
    """Whether its ranks said so, or are known to be gone."""
    return bool(run.states) and run.states.keys() <= _ENDED


def _models(asker: Asker, found: Ranks | None) -> str | None:
    """GPUs by model and driver."""
    info = f"last_over_time(stallscope_gpu_info{{{asker.subject.told_by_nodes}}}[{_INFO}])"
    numbers = Counter(
        tuple(each.labels.get(label) or "unknown" for label in ("model", "driver_version"))
        for each in asker.ask(f"group by (uuid, model, driver_version) ({info})")
        if found is None or each.labels.get("uuid") in found.uuids
    )
    return "; ".join(f"{number} {model}, driver {driver}" for (model, driver), number in numbers.most_common()) or None


def _joules(asker: Asker, found: Ranks | None) -> float | None:
    """Energy that its GPUs took, those of a run while it had them or not."""
    which = asker.subject.told_by_nodes
    taken = asker.by("uuid", f"max by (uuid) (increase(stallscope_gpu_energy_joules_total{{{which}}}[{asker.window}]))")
    own = [joules for uuid, joules in taken.items() if found is None or uuid in found.uuids]
    return sum(own) if own else None


def _work(asker: Asker) -> Facts:
    which, window = asker.subject.told_by_run, asker.window
    # An hour's mean says little before there is an hour to take it from.
    goodput = f"run:goodput:ratio1h{{{which}}} and run:ranks:count{{{which}}} offset 1h"
    facts = []
    for unit in ("samples", "tokens"):
        done, rate = _done(asker, unit), settled(f"run:{unit}:rate5m{{{which}}}")
        if done:
            facts.append(Fact(unit.capitalize(), done, "count", "done in this time, steps made twice counted twice"))
            facts.append(
                Fact(
                    f"{unit.capitalize()} a second",
                    asker.figure(f"avg({asker.over_time('avg_over_time', rate)})"),
                    "per_second",
                    "mean while it lived, without its first five minutes",
                )
            )
    if not facts:
        facts.append(Fact("Samples", None, "count", "the run tells no samples or tokens"))
    facts += [
        Fact(
            "Goodput",
            asker.figure(f"avg({asker.over_time('avg_over_time', goodput)})"),
            "share",
            "productive step time over wall time: mean of whole hours, from the run's first on",
        ),
        Fact(
            "Model FLOP/s used",
            asker.figure(f"avg(avg_over_time(run:mfu:ratio5m{{{which}}}[{window}]))"),
            "share",
            "of the GPUs' peak; needs the model's operations",
        ),
    ]
    return Facts(tuple(facts), title="Work done")


def _done(asker: Asker, unit: str) -> float | None:
    """What all ranks did in this time."""
    total = f"stallscope_training_{unit}_total{{{asker.subject.told_by_ranks}}}"
    return asker.figure(f"sum(increase({total}[{asker.window}]))")


def _cost(asker: Asker, lost: LostTime, found: Ranks | None) -> Facts:
    hours, joules = lost.gpu_seconds / 3600, _joules(asker, found)
    facts = [
        Fact(f"{lost.unit}-hours", hours, "gpu_hours", f"of these {percent(lost.judged / lost.gpu_seconds)} judged")
        if lost.gpu_seconds
        else Fact("GPU-hours", None, "gpu_hours", "none recorded"),
        Fact("Lost", None if lost.lost is None else lost.lost / 3600, "gpu_hours", "to all causes together"),
        Fact("Energy", joules, "joules", "of its GPUs"),
        Fact("Energy lost", lost.joules, "joules", "that went into lost time"),
    ]
    if asker.subject.run is not None and joules is not None:
        samples = _done(asker, "samples")
        facts.append(Fact("Energy a sample", joules / samples if samples else None, "joules"))
    money = asker.options.money(hours, joules)
    if money is not None and lost.gpu_seconds:  # what no hours are known of did not cost nothing
        facts += [
            Fact("Money", money, "money", "for these GPU-hours, and the energy where it has a price"),
            Fact(
                "Money lost", asker.options.money(None if lost.lost is None else lost.lost / 3600, lost.joules), "money"
            ),
        ]
    return Facts(tuple(facts), title="What it cost")


def _of_gpus(asker: Asker, lost: LostTime) -> list[Block]:
    """Summary of nodes, or of everything."""
    subject = asker.subject
    facts = [
        Fact("GPUs", lost.gpu_seconds / lost.seconds if lost.seconds else None, "number", "mean of this time"),
        Fact("Models", _models(asker, None)),
        Fact("Busy", _busy(asker), "share", "mean of all of them"),
    ]
    if subject.instances:
        facts.insert(0, Fact("Nodes", float(len(subject.instances)), "count", _few(subject.instances)))
    return [*_lead(asker, lost), Facts(tuple(facts), title="The GPUs"), _cost(asker, lost, None), *_runs(asker)]


def _busy(asker: Asker) -> float | None:
    if asker.subject.scope == "everything":
        busy, known = (f"sum({asker.integral(f'cluster:gpus_{which}')})" for which in ("busy:sum5m", "known:count"))
        return asker.figure(f"{busy} / ({known} > 0)")
    busy = settled(f"gpu:busy:ratio5m{{{asker.subject.told_by_nodes}}}")
    return asker.figure(f"avg({asker.over_time('avg_over_time', busy, resolution=asker.coarse)})")


def _runs(asker: Asker) -> list[Block]:
    """The runs of this time, those first that lost most."""
    subject = asker.subject
    here = ""
    if subject.instances:
        known = f"last_over_time(run_node:known:info{{{subject.told_by_nodes}}}[{asker.window}])"
        here = f" and on ({RUN_LABELS}) {known}"
    gpus = "(run:gpus:count or run:ranks:count)"
    hours = f"sum by ({RUN_LABELS}) ({asker.integral(gpus)}) / 3600{here}"
    gpus_lost = f"run:time_lost:ratio5m * on ({RUN_LABELS}) group_left () {gpus}"
    lost = f"sum by ({RUN_LABELS}) ({asker.integral(gpus_lost)}) / 3600{here}"
    number = asker.figure(f"count({hours})")
    if not number:
        return [Paragraph("No run lived in this time.")]
    rows: list[tuple[Value, ...]] = []
    by_run = {_run_of(each.labels): each.value for each in asker.ask(hours)}
    costliest = sorted(asker.ask(f"topk({asker.options.rows}, {lost})"), key=lambda each: -each.value)
    among = any_of([each.labels.get("run", "") for each in costliest])
    verdicts: dict[tuple[str, str, str], tuple[float, str]] = {}
    if costliest:
        held = f"count_over_time(run:verdict:ratio5m{{run=~{among}}}[{asker.window}])"
        for each in asker.ask(f"max by ({RUN_LABELS}, cause) ({held})"):
            run, told = _run_of(each.labels), (each.value, each.labels.get("cause", ""))
            verdicts[run] = max(verdicts.get(run, told), told)
    blamed = culprits_of_runs(asker, f"run=~{among}") if costliest else {}
    for each in costliest:
        run = _run_of(each.labels)
        total = by_run.get(run)
        verdict = verdicts[run][1] if run in verdicts else None
        share = each.value / total if total else None
        rows.append((run[2], run[1], run[0], verdict, blamed.get(run, ""), total, each.value, share))
    left = round(number) - len(rows)
    return [
        Table(
            (
                Column("Run"),
                Column("Namespace"),
                Column("Cluster"),
                Column("Mostly", "cause", "the verdict that held longest"),
                Column("Culprit", note="rank, GPU, node and root cause that held longest"),
                Column("GPU-hours", "gpu_hours"),
                Column("Lost", "gpu_hours"),
                Column("Share", "share", "of its GPU time"),
            ),
            tuple(rows),
            title="Runs, those first that lost most",
            note=f"{left} more {'run' if left == 1 else 'runs'} lost less, or could not be judged." if left > 0 else "",
        )
    ]


def _run_of(labels: Mapping[str, str]) -> tuple[str, str, str]:
    return labels.get("cluster", ""), labels.get("namespace", ""), labels.get("run", "")


def _few(instances: tuple[str, ...]) -> str:
    more = f" and {len(instances) - 4} more" if len(instances) > 4 else ""
    return ", ".join(instances[:4]) + more
