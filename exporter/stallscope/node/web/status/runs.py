"""Training runs on the status page: how far each is, where its time goes, and its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stallscope.common.formatting import count, duration, percent, progress, several, time_left, time_since, whole_time
from stallscope.model.view.model import Node, Rank, RankRow, Run, no_step_for
from stallscope.model.view.phase_shares import KNOWN, phase_shares, title_of_share
from stallscope.model.view.stack_groups import at, sentence
from stallscope.model.view.verdict_words import why_unjudged
from stallscope.model.view.verdicts import RunName, Verdicts
from stallscope.node.web.status.exporter_state import ExporterState
from stallscope.node.web.status.judgement import verdict_line
from stallscope.node.web.status.markup import UNKNOWN_TEXT, Part, bar, entry, foreign, stacked
from stallscope.node.web.status.selection import Selection

SILENT_SECONDS = 30.0
"""Seconds of silence that are shown: a rank reports twice a second at most, and in a long step not at all."""
_STATES: Mapping[str, str] = {"running": "good", "failed": "bad", "lost": "bad"}
"""How a state looks that is better or worse than any other."""
_STACKS_LENGTH = 500
"""Characters of the sentence on stacks."""
_PLACE_LENGTH = 300
"""Characters of the place of a rank in its code."""
_OWN_COLOURS = 3
"""Colours for phases that users name."""


class _Share(NamedTuple):
    name: str
    css: str
    share: float


def run_section(
    look: ExporterState,
    node: Node,
    selection: Selection,
    verdicts: Verdicts | None,
    reasons: Mapping[RunName, str],
) -> str:
    """The runs that there is room for; those with reasons of their verdict show them."""
    articles = "".join(
        _article(run, ranks, look, node, _judged(run, verdicts, reasons)) for run, ranks in selection.runs
    )
    body = articles or '<p class="quiet">No training run has reported.</p>'
    left_out = selection.left_out
    rest = f'<p class="quiet">{left_out:,} more runs are not shown; the metrics have them all.</p>' if left_out else ""
    return f'<section aria-labelledby="runs"><h2 id="runs">Training runs</h2>{body}{rest}</section>'


def _article(run: Run, ranks: tuple[RankRow, ...], look: ExporterState, node: Node, judged: str) -> str:
    return (
        f'<article class="card run"><h3><span>{foreign(run.name.run, 128)}</span> {_states(run)}</h3>'
        f"<p>{_presence(run, look)}</p>{judged}{_standstill(run, look)}{_progress(run)}"
        f'<dl class="facts wide">{_facts(run, node)}</dl>'
        f"{_phases(run)}{_ranks(run, ranks, look, node)}</article>"
    )


def _judged(run: Run, verdicts: Verdicts | None, reasons: Mapping[RunName, str]) -> str:
    if verdicts is None:
        return ""
    verdict = verdicts.runs.get(run.name)
    if verdict is not None:
        return verdict_line(verdict, with_gpus=run.has_gpus) + reasons.get(run.name, "")
    why = why_unjudged(run, verdicts)
    return f'<p class="quiet">{why}</p>' if why else ""


def _standstill(run: Run, look: ExporterState) -> str:
    found = look.stacks.get(run.name.run)
    where = "" if found is None else sentence(found)
    return (
        f'<p class="verdict warn"><strong>Standstill:</strong> {foreign(where, _STACKS_LENGTH)}.</p>' if where else ""
    )


def _states(run: Run) -> str:
    """Every state that ranks are in, with their number where it isn't that of all; and the time without a step."""
    whole = len(run.states) == 1
    states = {
        state if whole else f"{number:,} {state}": _STATES.get(state, "quiet")
        for state, number in sorted(run.states.items())
    }
    if run.without_step is not None:
        states = {name: "quiet" if css == "good" else css for name, css in states.items()}
        states[no_step_for(run.without_step)] = "warn"
    return " ".join(f'<span class="badge {css}">{name}</span>' for name, css in states.items())


def _presence(run: Run, look: ExporterState) -> str:
    number = len(run.ranks)
    ranks = f"{number:,} of {several(run.world_size, 'rank')}" if run.world_size > number else several(number, "rank")
    doing = f"; {', '.join(run.activities)}" if run.activities else ""
    failure = _failure(run.ranks[0], look) if number == 1 else ""  # several ranks have a table that says it of each
    end = f"; ended by {foreign(failure)}" if failure else ""
    return f"{ranks} on this node{doing}{end}"


def _failure(rank: Rank, look: ExporterState) -> str:
    return look.failures.get((rank.run, str(rank.number)), "")


def _progress(run: Run) -> str:
    if run.step is None:
        return ""
    if run.progress is None or run.steps_planned is None:
        return f'<p class="activity"><span>Step</span> <strong>{count(run.step)}</strong></p>'
    left = f"; about {time_left(run.seconds_left)} left" if run.seconds_left else ""
    return (
        f'<p class="activity"><span>Step</span> <strong>{count(run.step)}</strong> of {count(run.steps_planned)}, '
        f"{progress(run.progress)}{left}</p>{bar(run.progress, 'progress')}"
    )


def _facts(run: Run, node: Node) -> str:
    facts = []
    if run.without_step is None:
        facts.append(entry("Step time", UNKNOWN_TEXT if run.step_seconds is None else duration(run.step_seconds)))
    if run.epoch is not None:
        facts.append(entry("Epoch", f"{run.epoch:,.4g}"))
    if run.loss is not None:
        facts.append(entry("Loss", f"{run.loss:.4g}"))
    if run.restarts:
        facts.append(entry("Restarts", f"{run.restarts:,}"))
    facts.append(entry("Last report", time_since(node.time, run.last_push) or UNKNOWN_TEXT))
    return "".join(facts)


def _phases(run: Run) -> str:
    if run.without_step is not None:  # the phases of earlier steps don't explain a standstill
        return ""
    shares = _shares(run.phases)
    if not shares:
        return '<p class="quiet">Phases: nothing was reported yet.</p>'
    when = "since the start" if run.since is None else f"in the last {whole_time(run.since)}"
    legend = "".join(
        f'<li><span class="key {each.css}" aria-hidden="true"></span>{foreign(each.name)} {percent(each.share)}</li>'
        for each in shares
    )
    return (
        f'<p class="activity"><span>Where the time goes, {when}</span></p>'
        f'{_bar_of(shares)}<ul class="legend" role="list">{legend}</ul>'
    )


def _ranks(run: Run, ranks: tuple[RankRow, ...], look: ExporterState, node: Node) -> str:
    if len(run.ranks) == 1:
        return ""
    is_standstill = run.without_step is not None
    rows = "".join(_rank_row(row, look, node, is_standstill) for row in ranks)
    more = len(run.ranks) - sum(row.alike for row in ranks)
    what = "Place in the code" if is_standstill else "Where the time goes"
    caption = f"Ranks, {more:,} more not shown" if more else "Ranks"
    return (
        f'<table class="small"><caption>{caption}</caption><thead><tr><th scope="col">Rank</th>'
        f'<th scope="col">Step, and its time</th><th scope="col">{what}</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _rank_row(row: RankRow, look: ExporterState, node: Node, is_standstill: bool) -> str:
    rank = row.rank
    gpus = ", ".join(foreign(gpu) for gpu in rank.gpus[:2] if gpu and row.alike == 1)
    gpu = f' <span class="none">GPU {gpus}</span>' if gpus else ""
    silence = 0.0 if node.time is None or rank.last_push is None else node.time - rank.last_push
    css = "quiet" if rank.without_step is not None and rank.state == "running" else _STATES.get(rank.state, "quiet")
    state = f'<span class="{css}">{rank.state}</span>'
    if rank.without_step is not None:
        state += f', <span class="warn">{no_step_for(rank.without_step)}</span>'
    elif not rank.ended and silence > SILENT_SECONDS:
        state += f', <span class="warn">silent for {duration(silence // 10 * 10)}</span>'
    elif failure := _failure(rank, look):
        state += f", {foreign(failure)}"
    if row.is_odd:
        state += ', <span class="bad">differs from most ranks</span>'
    step_time = UNKNOWN_TEXT if rank.step_seconds is None else duration(rank.step_seconds)
    return (
        f'<tr><th scope="row">{row.name}{gpu}<span class="under">{state}</span></th>'
        f"<td>{UNKNOWN_TEXT if rank.step is None else count(rank.step)}"
        f'<span class="under">{step_time}</span></td><td>{_place(rank) if is_standstill else _time(rank)}</td></tr>'
    )


def _time(rank: Rank) -> str:
    shares = _shares(rank.recent.loop)
    most = max(shares, key=lambda share: share.share, default=None)
    return UNKNOWN_TEXT if most is None else f"{_bar_of(shares)}{foreign(most.name)} {percent(most.share)}"


def _place(rank: Rank) -> str:
    return UNKNOWN_TEXT if rank.place is None else foreign(at(rank.place), _PLACE_LENGTH)


def _shares(seconds: Mapping[str, float]) -> list[_Share]:
    """Phases by their share of the time, with their colours."""
    shares = phase_shares(seconds)
    own = sorted(each.name for each in shares if each.name and each.name not in KNOWN)
    colours = {"": "p-rest"} | {name: f"p-own{place % _OWN_COLOURS}" for place, name in enumerate(own)}
    return [_Share(title_of_share(name), colours.get(name, f"p-{name}"), share) for name, share in shares]


def _bar_of(shares: Iterable[_Share]) -> str:
    return stacked(Part(each.css, each.share) for each in shares)
