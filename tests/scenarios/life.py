"""The whole life of a trial: what its subject's verdict was at each evaluation from second 0 on, and what was wrong.

Pure functions on an account. Definitions, which RESULTS.md repeats:

- A verdict is *right* if it is the case's cause or an acceptable one. Before the onset, and after the end, it is right
  if it is one that the case takes without its fault (`healthy` and `compute_bound` unless the case says otherwise).
- A verdict is *general* if it makes no statement about the fault: `insufficient_data`, `healthy` and `compute_bound`
  after the onset, the parent of an accepted cause (PARENTS), and after the end whatever was right until then. It is
  late.
- Any other verdict is a *wrong specific* one.
- A *harmful alert* is an alert above info whose cause the case forbids, or that the case neither expects nor allows.
  An expected alert that fires before the onset is harmful, too.
- A verdict is reached at the first evaluation from which it is right for STEADY_SECONDS, or to the end of its time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from stallscope.model.catalogue.causes import CAUSES
from tests.scenarios.case import MISSING_RANK_ALERTS, WELL, Case
from tests.scenarios.model import DRAWN
from tests.scenarios.runner import EVALUATION_SECONDS
from tests.scenarios.story import at

INSUFFICIENT = "insufficient_data"
NOTHING = "none"
"""Stands for the verdict of a subject without one."""
EARLY_SECONDS = 600
"""The first ten minutes, of a subject and after an onset."""
STEADY_SECONDS = 120
_CERTAIN_SECONDS = 60.0
"""Seconds without a step after which a standstill is certain; five steps take less in every case."""
_HEALTHY_SECONDS = 300
"""Seconds that a run must be healthy until its first right verdict is judged."""
STANDSTILLS = frozenset({"stalled", "hang_spin", "hang_io", "lost"})
_PAGES = frozenset(alert for cause in STANDSTILLS if (alert := CAUSES[cause].alert))

PARENTS: Mapping[str, str] = {
    **{name: "input_bound" for name in CAUSES if name.startswith("input_") and name != "input_bound"},
    **dict.fromkeys(("hang_spin", "hang_io", "lost"), "stalled"),
    **dict.fromkeys(("straggler_input", "straggler_hw"), "straggler_rank"),
}
"""The verdict that is right before the reason is known, by cause."""


@dataclass(frozen=True)
class Moment:
    """One evaluation."""

    second: int
    verdict: str
    """The most frequent one among the subject's parts."""
    share: float | None
    """The subject's share of time lost to the verdict's cause; None if none is recorded."""
    grade: str
    """`right`, `general` or `wrong`: the worst among the parts. `none` where the subject has no verdict."""
    alerts: tuple[str, ...]
    """Alerts above info."""
    harmful: tuple[str, ...]
    """Those of `alerts` that are harmful."""


@dataclass(frozen=True)
class Life:
    """A trial's evaluations, and what follows from them. Times are seconds; infinity is never; None: not applicable."""

    moments: tuple[Moment, ...]
    onset_delay: float | None
    """From the onset to the right verdict."""
    between: int | None
    """Distinct verdicts after the onset and before the right one, without the one that held at the onset."""
    end_delay: float | None
    """From the end of the fault to the right verdict."""
    first_right: float | None
    """From the first step, or second 0 if that is later, to the right verdict of a run without a fault."""
    page: float | None
    """From a standstill to the first expected alert, or alert of another standstill."""
    generic: float | None
    """From the onset to a right verdict or its parent."""
    alert_end: float | None
    """From the end of the fault to the last evaluation with an expected alert; None if none fires then."""
    returns: int | None
    """Changes back to the verdict of the fault, or its parent, after its end."""


def graded(verdict: str, right: frozenset[str], general: frozenset[str]) -> str:
    """Return `right`, `general` or `wrong`."""
    return "right" if verdict in right else "general" if verdict in general else "wrong"


def accepted(case: Case) -> frozenset[str]:
    """Return the verdicts that are right while the cause holds."""
    return case.acceptable | {case.cause}


def without_fault(case: Case) -> frozenset[str]:
    """Return the verdicts that are right before the onset and after the end."""
    return case.before | (accepted(case) if case.kind in ("negative", "abstention") else frozenset())


def is_without_fault(case: Case, second: float) -> bool:
    """Return True before the onset and after the end, and always for a case in which nothing is wrong."""
    if case.kind == "negative":
        return True
    return second < 60 * case.onset or (case.end is not None and second >= 60 * case.end)


def step_seconds(case: Case) -> float:
    """Return how long a step of the case's run takes before the onset; not a number if it has no run."""
    run = next((each for each in case.story.runs if each.name == case.run), None)
    if run is None:
        return math.nan
    minute = case.onset - 1e-3
    works = [at(run.work, rank, minute) for rank in range(len(run.ranks))]
    return max(float(sum(getattr(work, phase) for phase in DRAWN)) for work in works)


def certain_seconds(case: Case) -> float:
    """Return how long after the onset a standstill is certain: a GPU is lost at once."""
    return _CERTAIN_SECONDS if case.cause in STANDSTILLS - {"lost"} else 0.0


def _grade(case: Case, second: int) -> Callable[[str], str]:
    """Return the function that grades the verdicts of a moment."""
    fault, well = accepted(case), without_fault(case)
    if second < 60 * case.onset:
        right, general = well, frozenset({INSUFFICIENT})
    elif case.end is None or second < 60 * case.end:
        right = fault
        general = case.before | WELL | {INSUFFICIENT} | {PARENTS[cause] for cause in fault if cause in PARENTS}
    else:
        right = well
        general = fault | {INSUFFICIENT} | {PARENTS[cause] for cause in fault if cause in PARENTS}
    return lambda verdict: graded(verdict, right, general)


_WORST = ("wrong", "general", "right")


def live(
    case: Case,
    *,
    noise: bool,
    verdicts: Mapping[str, Mapping[int, str]],
    shares: Mapping[str, Mapping[int, float]],
    alerts: Iterable[tuple[str, str, int, int]],
    first_step: float | None,
) -> Life:
    """Hold a diagnoser's whole account against the truth.

    Args:
        case: The case.
        noise: True if the trial is disturbed.
        verdicts: For each part of the subject its verdict by second.
        shares: The subject's share lost by cause and second.
        alerts: Alerts above info: name, cause, first and last second.
        first_step: Second of the run's first step; None if the case has no run.
    """
    firings = list(alerts)
    moments = []
    for second in range(0, int(60 * case.length) + 1, EVALUATION_SECONDS):
        said = [timeline[second] for timeline in verdicts.values() if second in timeline]
        verdict = Counter(said).most_common(1)[0][0] if said else NOTHING
        grade = _grade(case, second)
        grades = {grade(each) for each in said}
        firing = [each for each in firings if each[2] <= second <= each[3]]
        moments.append(
            Moment(
                second,
                verdict,
                shares.get(verdict, {}).get(second),
                next((each for each in _WORST if each in grades), NOTHING),
                tuple(sorted({name for name, *_ in firing})),
                tuple(sorted({name for name, cause, *_ in firing if _harms(case, name, cause, second, noise=noise)})),
            )
        )
    return _measured(case, moments, first_step)


def _harms(case: Case, alert: str, cause: str, second: int, *, noise: bool) -> bool:
    excused = case.allowed | (MISSING_RANK_ALERTS if noise else frozenset())
    if second < 60 * case.onset:
        return alert not in excused
    return cause in case.forbidden or alert not in excused | case.alerts


def _measured(case: Case, moments: Sequence[Moment], first_step: float | None) -> Life:
    onset = 60 * case.onset
    end = math.inf if case.end is None else 60 * case.end
    before = [each for each in moments if each.second < onset]
    during = [each for each in moments if onset <= each.second < end]
    after = [each for each in moments if each.second >= end]
    delay, between, page, generic = None, None, None, None
    if has_visible_onset(case):
        reached = _reached(during)
        delay = reached - onset
        held = before[-1].verdict if before else during[0].verdict
        same = WELL if held in WELL else {held}
        between = len(
            {each.verdict for each in during if each.second < reached and each.grade != "right"} - same - {NOTHING}
        )
    named = accepted(case) | {PARENTS.get(case.cause, case.cause)}
    if delay is not None:
        generic = next((each.second for each in during if each.verdict in named), math.inf) - onset
    if case.cause in STANDSTILLS and delay is not None:
        pages = case.alerts | _PAGES
        page = next((each.second for each in during if pages & set(each.alerts)), math.inf) - onset
    first_right = None
    if case.subject == "run" and first_step is not None:
        since = max(0.0, first_step)
        end_of_health = math.inf if is_without_fault(case, onset) else onset
        well = [each for each in moments if since <= each.second < end_of_health]
        if well and well[-1].second - since >= _HEALTHY_SECONDS:
            first_right = _reached(well) - since
    return Life(
        tuple(moments),
        onset_delay=delay,
        between=between,
        end_delay=_reached(after) - end if after and delay is not None else None,
        first_right=first_right,
        page=page,
        generic=generic,
        alert_end=_alert_end(case, after, end),
        returns=_returns(after, named) if after and delay is not None else None,
    )


def _alert_end(case: Case, after: Sequence[Moment], end: float) -> float | None:
    """Return the seconds for which an alert outlasts its fault; infinity if it fires to the end of the case."""
    firing = [bool(case.alerts & set(each.alerts)) for each in after]
    if not firing or not firing[0]:
        return None
    lasts = firing.index(False) if False in firing else None
    return math.inf if lasts is None else after[lasts].second - end


def _returns(after: Sequence[Moment], named: frozenset[str]) -> int:
    """Return how often the verdict of a fault comes back after its end."""
    return sum(now.verdict in named and before.grade == "right" for before, now in pairwise(after))


def has_visible_onset(case: Case) -> bool:
    """Return True if the case's cause must become the verdict, and shows what is no verdict of a healthy subject."""
    ill = case.kind in ("positive", "abstention") or (case.kind == "near" and (case.level or 0.0) > 1)
    return ill and case.verdict_expected and not accepted(case) & WELL


def _reached(moments: Sequence[Moment]) -> float:
    """Return the second from which the verdict is right and remains so for a while."""
    since: int | None = None
    for each in moments:
        if each.grade != "right":
            since = None
        elif since is None:
            since = each.second
        if since is not None and each.second - since >= STEADY_SECONDS:
            return float(since)
    return math.inf if since is None else float(since)


def timeline(case: Case, life: Life) -> str:
    """Return the changes of verdict and of alerts, one line each."""
    lines = []
    for _, group in groupby(life.moments, lambda each: (each.verdict, each.grade, each.alerts, each.harmful)):
        rows = list(group)
        first = rows[0]
        shares = [each.share for each in rows if each.share is not None]
        alerts = ", ".join(f"{name}{' (harmful)' if name in first.harmful else ''}" for name in first.alerts)
        phase = (
            "before"
            if first.second < 60 * case.onset
            else "fault"
            if case.end is None or first.second < 60 * case.end
            else "after"
        )
        lines.append(
            f"  {first.second // 60:3}:{first.second % 60:02}  {phase:6}  {first.verdict:24} {first.grade:7}  "
            f"lost {f'{min(shares):.2f} to {max(shares):.2f}' if shares else '-':12}  {alerts}".rstrip()
        )
    return "\n".join(lines)
