"""Training runs on the status page: how far each is, where its time goes, and its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stallscope.common.formatting import ago, count, duration, percent
from stallscope.intake.runs import Held
from stallscope.view.phase_shares import KNOWN, phase_shares
from stallscope.view.verdicts import RunName, Verdicts
from stallscope.web.status.history import History, Recent
from stallscope.web.status.judgement import verdict_line
from stallscope.web.status.look import Look
from stallscope.web.status.markup import NOT_TOLD_TEXT, Part, bar, entry, foreign, stacked
from stallscope.web.status.selection import Selection, ShownRun

SILENT_SECONDS = 30.0
"""A rank reports twice a second at most, and in a long step not at all: so much silence is worth a word."""
_STATES: Mapping[str, str] = {"running": "good", "failed": "bad", "lost": "bad"}
"""How a state looks that is better or worse than any other."""
_OWN_COLOURS = 3
"""Colours for phases that users name."""


class _Share(NamedTuple):
    name: str
    css: str
    share: float


class _RankLine(NamedTuple):
    """A rank with what it did lately."""

    held: Held
    recent: Recent


def run_name(run: ShownRun) -> RunName:
    """What Prometheus knows the run by."""
    return RunName(run.name, run.ranks[0].report.info.get("namespace", ""))


def run_section(look: Look, selection: Selection, history: History, verdicts: Verdicts | None) -> str:
    """The runs that there is room for."""
    articles = "".join(_article(run, look, history, verdicts) for run in selection.runs)
    body = articles or '<p class="quiet">No training run has reported.</p>'
    left_out = selection.left_out
    rest = f'<p class="quiet">{left_out:,} more runs are not shown; the metrics have them all.</p>' if left_out else ""
    return f'<section aria-labelledby="runs"><h2 id="runs">Training runs</h2>{body}{rest}</section>'


def _article(run: ShownRun, look: Look, history: History, verdicts: Verdicts | None) -> str:
    lines = [_RankLine(held, history.recent(held)) for held in run.shown]
    shares = _shares([each.recent for each in lines])
    return (
        f'<article class="card run"><h3><span>{foreign(run.name, 128)}</span> {_states(run)}</h3>'
        f"<p>{_presence(run)}</p>{_judged(run, verdicts)}{_progress(run, lines)}"
        f'<dl class="facts wide">{_facts(run, lines, look)}</dl>'
        f"{_phases(shares, lines, run)}{_ranks(run, lines, look)}</article>"
    )


def _judged(run: ShownRun, verdicts: Verdicts | None) -> str:
    if verdicts is None:
        return ""
    name = run_name(run)
    if name in verdicts.ambiguous:
        return (
            '<p class="verdict quiet"><strong>Verdict: unknown.</strong> Prometheus knows several runs of this name, '
            "and does not judge them alike.</p>"
        )
    verdict = verdicts.runs.get(name)
    if verdict is not None:
        return verdict_line(verdict, with_gpus=any(held.report.gpus for held in run.ranks))
    if verdicts.age is None or all(held.ended is not None for held in run.ranks):
        return ""
    return '<p class="quiet">Verdict: none; Prometheus does not know this run, or not for long.</p>'


def _states(run: ShownRun) -> str:
    """Every state that ranks are in, with their number where it isn't that of all."""
    counts: dict[str, int] = {}
    for held in run.ranks:
        counts[held.state] = counts.get(held.state, 0) + 1
    whole = len(counts) == 1
    return " ".join(
        f'<span class="badge {_STATES.get(state, "quiet")}">{state if whole else f"{number:,} {state}"}</span>'
        for state, number in sorted(counts.items())
    )


def _presence(run: ShownRun) -> str:
    number = len(run.ranks)
    world = run.ranks[0].report.info.get("world_size", "")
    of = f" of {int(world):,}" if world.isdecimal() and len(world) < 8 and int(world) > number else ""
    activities = sorted({held.report.activity for held in run.ranks if held.ended is None})
    doing = f"; {', '.join(activities)}" if activities else ""
    failure = run.ranks[0].report.failure if number == 1 else ""  # several ranks have a table that says it of each
    end = f"; ended by {foreign(failure)}" if failure else ""
    return f"{number:,}{of} rank{'s' if number != 1 or of else ''} on this node{doing}{end}"


def _progress(run: ShownRun, lines: list[_RankLine]) -> str:
    step, planned = _step(run.ranks), _gauge(run.ranks, "steps_planned")
    if step is None:
        return ""
    if planned is None or planned <= 0:
        return f'<p class="activity"><span>Step</span> <strong>{count(step)}</strong></p>'
    ratio = min(1.0, max(0.0, step / planned))
    so_far = f"{_floor(ratio)}{_time_left(planned - step, lines)}"
    return (
        f'<p class="activity"><span>Step</span> <strong>{count(step)}</strong> of {count(planned)}, {so_far}</p>'
        f"{bar(ratio, 'progress')}"
    )


def _floor(ratio: float) -> str:
    """A share done, which is all only when all is done."""
    return percent(int(100 * ratio) / 100) if ratio >= 0.01 else percent(ratio)


def _time_left(steps: float, lines: list[_RankLine]) -> str:
    """At the pace of the last minutes, all that lies between steps included."""
    paces = [
        each.recent.total / each.recent.steps for each in lines if each.held.ended is None and each.recent.steps > 0
    ]
    if not paces or steps <= 0:
        return ""
    return f"; about {duration(round(max(60.0, max(paces) * steps), -1))} left"


def _facts(run: ShownRun, lines: list[_RankLine], look: Look) -> str:
    steps = sum(each.recent.steps for each in lines)
    seconds = sum(each.recent.step_seconds for each in lines)
    loss = _gauge(run.shown[:1], "loss")
    epoch = _gauge(run.ranks, "epoch")
    facts = [entry("Step time", duration(seconds / steps) if steps else NOT_TOLD_TEXT)]
    if epoch is not None:
        facts.append(entry("Epoch", f"{epoch:,.4g}"))
    if loss is not None:
        facts.append(entry("Loss", f"{loss:.4g}"))
    restarts = sum(held.restarts for held in run.ranks)
    if restarts:
        facts.append(entry("Restarts", f"{restarts:,}"))
    facts.append(entry("Last report", ago(look.at - max(held.arrived for held in run.ranks))))
    return "".join(facts)


def _phases(shares: list[_Share], lines: list[_RankLine], run: ShownRun) -> str:
    if not shares:
        return '<p class="quiet">Phases: nothing was reported lately.</p>'
    since = [each.recent.since for each in lines if each.recent.since is not None]
    when = f"in the last {duration(round(max(since) / 60) * 60)}" if len(since) == len(lines) else "since the start"
    whose = "" if len(lines) == len(run.ranks) else " of the ranks below"
    legend = "".join(
        f'<li><span class="key {each.css}" aria-hidden="true"></span>{foreign(each.name)} {percent(each.share)}</li>'
        for each in shares
    )
    return (
        f'<p class="activity"><span>Where the time goes{whose}, {when}</span></p>'
        f'{_bar_of(shares)}<ul class="legend" role="list">{legend}</ul>'
    )


def _ranks(run: ShownRun, lines: list[_RankLine], look: Look) -> str:
    if len(run.ranks) == 1:
        return ""
    rows = "".join(_rank_row(each, look) for each in lines)
    more = len(run.ranks) - len(lines)
    caption = f"Ranks, {more:,} more not shown" if more else "Ranks"
    return (
        f'<table class="small"><caption>{caption}</caption><thead><tr><th scope="col">Rank</th>'
        '<th scope="col">Step, and its time</th><th scope="col">Where the time goes</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _rank_row(line: _RankLine, look: Look) -> str:
    held, recent = line
    report = held.report
    gpus = ", ".join(foreign(gpu.gpu) for gpu in report.gpus[:2] if gpu.gpu)
    gpu = f' <span class="none">GPU {gpus}</span>' if gpus else ""
    silence = look.at - held.arrived
    state = f'<span class="{_STATES.get(held.state, "quiet")}">{held.state}</span>'
    if held.ended is None and silence > SILENT_SECONDS:
        state += f', <span class="warn">silent for {duration(silence // 10 * 10)}</span>'
    elif report.failure:
        state += f", {foreign(report.failure)}"
    step = _step((held,))
    shares = _shares([recent])
    most = max(shares, key=lambda share: share.share, default=None)
    step_time = duration(recent.step_seconds / recent.steps) if recent.steps else NOT_TOLD_TEXT
    time = f"{_bar_of(shares)}{foreign(most.name)} {percent(most.share)}" if most is not None else NOT_TOLD_TEXT
    return (
        f'<tr><th scope="row">{report.rank}{gpu}<span class="under">{state}</span></th>'
        f"<td>{NOT_TOLD_TEXT if step is None else count(step)}"
        f'<span class="under">{step_time}</span></td><td>{time}</td></tr>'
    )


def _shares(recents: Iterable[Recent]) -> list[_Share]:
    """Phases by their share of the time, with their colours."""
    seconds: dict[str, float] = {}
    for recent in recents:
        for name, amount in recent.phases.items():
            seconds[name] = seconds.get(name, 0.0) + amount
    shares = phase_shares(seconds)
    own = sorted(each.name for each in shares if each.name and each.name not in KNOWN)
    colours = {"": "p-rest"} | {name: f"p-own{place % _OWN_COLOURS}" for place, name in enumerate(own)}
    return [
        _Share(name.replace("_", " ") or "the rest", colours.get(name, f"p-{name}"), share) for name, share in shares
    ]


def _bar_of(shares: Iterable[_Share]) -> str:
    return stacked(Part(each.css, each.share) for each in shares)


def _step(ranks: Iterable[Held]) -> float | None:
    """The step that the furthest of these ranks is at: the one that it tells, else the steps counted."""
    told = [
        held.report.gauges.get("step", held.report.step_seconds.count if held.report.step_seconds else None)
        for held in ranks
    ]
    return max((step for step in told if step is not None), default=None)


def _gauge(ranks: Iterable[Held], key: str) -> float | None:
    """The greatest that these ranks tell."""
    return max((held.report.gauges[key] for held in ranks if key in held.report.gauges), default=None)
