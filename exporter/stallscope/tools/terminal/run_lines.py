"""Training runs as lines: progress, phases, verdict, and ranks."""

from __future__ import annotations

from stallscope.common.formatting import (
    count,
    duration,
    progress,
    rate,
    readable,
    several,
    time_left,
    time_since,
    whole_time,
)
from stallscope.model.view.model import RankRow, Run, no_step_for
from stallscope.model.view.phase_shares import phase_shares
from stallscope.model.view.stack_groups import at
from stallscope.model.view.verdict_words import why_unjudged
from stallscope.model.view.verdicts import Verdicts
from stallscope.tools.terminal.lines import (
    BAR,
    Column,
    Line,
    Span,
    bar,
    flow,
    line,
    or_dash,
    phase_bar,
    phase_name,
    share,
    table,
    wrapped,
)
from stallscope.tools.terminal.verdict_lines import verdict_lines

MAX_RANKS = 64
"""Maximum number of displayed ranks of one run."""
_PLACE = 100
"""Displayed characters of the place of a rank in its code."""
_NAME = 128
"""Displayed characters of a name that has its own line."""


def run_block(run: Run, now: float, verdicts: Verdicts | None, width: int) -> list[Line]:
    """Return the progress, phases and verdict of a run."""
    indent = "  "
    lines = flow(_run_head(run), width)
    lines += flow(_run_facts(run, now), width, indent)
    shares = phase_shares(run.phases)
    if shares and run.without_step is None:  # the phases of earlier steps don't explain a standstill
        drawn, unlabelled = phase_bar(shares, width - len(indent))
        since = "since the start" if run.since is None else f"in the last {whole_time(run.since)}"
        lines.append((Span(indent), *drawn))
        lines += wrapped(f"Phases {since}.{f' Also: {unlabelled}.' if unlabelled else ''}", width, "quiet", indent)
    if verdicts is not None:
        lines += _run_verdict(run, verdicts, width, indent)
    return lines


def _run_head(run: Run) -> list[Line]:
    states = ", ".join(
        readable(state, 24) if len(run.states) == 1 else f"{number} {readable(state, 24)}"
        for state, number in sorted(run.states.items())
    )
    role = "good" if "running" in run.states else ""
    if run.without_step is not None:
        states, role = f"{states}, {no_step_for(run.without_step)}", "warn"
    if run.states.keys() & {"failed", "lost"}:
        role = "bad"
    of = f" of {run.world_size}" if run.world_size > len(run.ranks) else ""
    doing = ", ".join(readable(each, 24) for each in run.activities)
    return [
        line(Span(readable(run.name.run, _NAME), "title")),
        line(Span(states, role)),
        line(f"{len(run.ranks)}{of} {'rank' if max(len(run.ranks), run.world_size) == 1 else 'ranks'}"),
        *([line(doing)] if doing else []),
    ]


def _run_facts(run: Run, now: float) -> list[Line]:
    facts = []
    if run.step is not None:
        so_far = ""
        if run.progress is not None and run.steps_planned is not None:
            to_go = f", {time_left(run.seconds_left)} left" if run.seconds_left else ""
            so_far = f" of {count(run.steps_planned)}, {progress(run.progress)}{to_go}"
        facts.append(f"step {count(run.step)}{so_far}")
    if run.step_seconds is not None:
        facts.append(f"{duration(run.step_seconds)} per step")
    for work, what in ((run.samples_per_second, "samples"), (run.tokens_per_second, "tokens")):
        if work is not None:
            facts.append(f"{rate(work)} {what}/s")
    if run.epoch is not None:
        facts.append(f"epoch {run.epoch:,.4g}")
    if run.loss is not None:
        facts.append(f"loss {run.loss:.4g}")
    if run.restarts:
        facts.append(several(run.restarts, "restart"))
    moments = ((run.last_step, "step"), (run.last_push, "report"))
    ages = [f"{what} {time_since(now, when)}" for when, what in moments if when]
    if ages:
        facts.append(f"last {', '.join(ages)}")
    return [line(fact) for fact in facts]


def _run_verdict(run: Run, verdicts: Verdicts, width: int, indent: str) -> list[Line]:
    verdict = verdicts.runs.get(run.name)
    if verdict is not None:
        return verdict_lines(verdict, width, indent, with_gpus=run.has_gpus)
    return wrapped(why_unjudged(run, verdicts), width, "quiet", indent)


def rank_table(run: Run, now: float, verdicts: Verdicts | None, width: int) -> list[Line]:
    """Return the ranks as a table."""
    verdict = None if verdicts is None else verdicts.runs.get(run.name)
    odd = {int(each.rank) for each in verdict.odd if each.rank.isdecimal()} if verdict is not None else set()
    shown = run.rows(MAX_RANKS, odd)
    is_standstill = run.without_step is not None
    rows = [_rank_row(row, now, is_standstill) for row in shown]
    columns = (
        Column("Rank", right=not is_standstill),
        Column("GPU", right=True, dispensable=3),
        Column("State", least=6),
        Column("Step", right=True),
        Column("Step time", right=True, dispensable=1),
        Column("Place in the code", least=24) if is_standstill else Column("Most time in", dispensable=2),
        Column("Report", right=True, dispensable=4),
    )
    more = len(run.ranks) - sum(row.alike for row in shown)
    hint = (
        [line(Span(f"  {count(more)} more ranks are not shown; the metrics contain all ranks.", "quiet"))]
        if more
        else []
    )
    return [*table(columns, rows, width, "  "), *hint]


def _rank_row(row: RankRow, now: float, is_standstill: bool) -> tuple[Line, ...]:
    rank = row.rank
    shares = phase_shares(rank.recent.loop)
    most = max(shares, key=lambda each: each.share, default=None)
    if is_standstill:
        where = or_dash(None if rank.place is None else readable(at(rank.place), _PLACE))
    else:
        where = (
            or_dash(None) if most is None else (*bar(most.share, BAR), Span(f" {share(most.share)} {phase_name(most)}"))
        )
    state, role = readable(rank.state, 24), "bad" if rank.state in ("lost", "failed") else ""
    if rank.without_step is not None:
        state, role = f"{state}, {no_step_for(rank.without_step)}", "warn"
    if row.is_odd:
        state, role = f"{state}, differs from most ranks", "bad"
    return (
        line(row.name),
        or_dash(", ".join(readable(each, 8) for each in rank.gpus if each and row.alike == 1) or None),
        line(Span(state or "-", role)),
        or_dash(None if rank.step is None else count(rank.step)),
        or_dash(None if rank.step_seconds is None else duration(rank.step_seconds)),
        where,
        or_dash(time_since(now, rank.last_push)),
    )
