"""An explanation of a verdict in words, for every view: sentences, values beside thresholds, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stallscope.common.formatting import duration, percent, readable, several, utc
from stallscope.model.catalogue.causes import MISSING
from stallscope.model.catalogue.conditions import SIGNALS, Unit
from stallscope.model.view.explanation import LOOKBACK, Compared, Considered, Explanation, Measured, Missing, Sharers
from stallscope.model.view.stack_groups import named
from stallscope.model.view.verdict_words import words_of

MOST = 3
"""Groups of ranks, alerts and causes of one kind that a note lists."""
_ANOTHER = "another verdict"
_GPU_SIDE_CAUSE = "GPU-side cause"
"""Words for a cause of the tiers `device` and `harmless`."""


class Row(NamedTuple):
    """A signal with its value and its thresholds."""

    signal: str
    value: str
    thresholds: tuple[str, ...]
    """Each with the cause, unless it is the verdict."""


class Note(NamedTuple):
    """Something else about the verdict."""

    title: str
    """One or two words."""
    entries: tuple[str, ...]

    @property
    def first_entries(self) -> Sequence[str]:
        """The first entries, and how many there are more; all that would change the verdict."""
        return self.entries if self.title == _ANOTHER else shortened(self.entries)


def heading(found: Explanation) -> str:
    """Return the verdict and since when it holds."""
    if found.verdict is None:
        return f"no verdict: the rules recorded none in the {duration(LOOKBACK)} until {moment(found.at)}"
    return f"{readable(found.verdict.cause)}{_held(found)}"


def sentences(found: Explanation) -> list[str]:
    """Return paragraphs: the end of the run, what the verdict costs with its culprit, and the remedy."""
    if found.verdict is None:
        return []
    words = words_of(found.verdict, with_gpus=bool(found.gpu_verdicts))
    ended = f"The run has ended: this was its last verdict, at {moment(found.at)}." if found.ended else ""
    said = " ".join(each for each in (f"{words.title}.", words.cost, words.culprit, words.line) if each)
    return [each for each in (ended, said, "" if _is_open(found) else words.remedy) if each]


def measured_rows(found: Explanation) -> list[Row]:
    """Return the values of the verdict's conditions, and of those of the reasons that were not found."""
    own = found.of_verdict
    if own is None:
        return []
    rows = []
    if own.lost is not None and (own.lost or own.floor):
        levels = [f"from {small_percent(own.floor)}"] if own.floor else []
        if own.alert is not None:
            levels.append(f"alert from {small_percent(own.alert)}")
        rows.append(Row("time lost to it", percent(own.lost), (", ".join(levels),)))
    causes = [own, *(each for each in found.considered if each.general == own.cause)]
    for series, compared in _by_series(causes).items():
        levels = [f"{'' if cause == own.cause else f'{cause} '}{level(each)}" for cause, each in compared]
        rows.append(Row(SIGNALS[series].words, value_of(compared[0][1]), tuple(levels)))
    return rows


def notes(found: Explanation) -> list[Note]:
    """Return notes: ranks and GPUs that differ, alerts, other causes, missing signals, and what would change it."""
    all_notes = (
        Note("missing", tuple(_missing(found, each) for each in found.missing) if _is_open(found) else ()),
        *_sharers(found),
        *_others(found),
        Note(_ANOTHER, tuple(_another(found))),
    )
    return [each for each in all_notes if each.entries]


def _is_open(found: Explanation) -> bool:
    return found.verdict is not None and found.verdict.cause == "insufficient_data"


def _missing(found: Explanation, each: Missing) -> str:
    of = "" if each.ranks == found.ranks else f" ({each.ranks} of {several(found.ranks, 'rank')})"
    return f"{readable(each.reason)}{of}: {MISSING.get(each.reason, '')}".rstrip(": ")


def _held(found: Explanation) -> str:
    if found.since is None:
        return ""
    seconds = found.at - found.since
    if found.since_before:
        return f" for over {duration(seconds)}"
    minutes = duration(60 * round(seconds / 60)) if seconds >= 60 else "under 1 min"
    before = f"; before it {readable(found.before)}" if found.before else ""
    return f" since {moment(found.since, found.at)} ({minutes}{before})"


def _by_series(causes: Sequence[Considered]) -> dict[str, list[tuple[str, Compared]]]:
    """Return the conditions of several causes by the series that they read."""
    found: dict[str, list[tuple[str, Compared]]] = {}
    for cause in causes:
        for each in cause.conditions:
            if each.measured is not None:
                found.setdefault(each.series, []).append((cause.cause, each))
    return found


def _sharers(found: Explanation) -> Iterator[Note]:
    """Yield the verdicts of ranks and GPUs where they differ, the worst first."""
    cause = found.verdict.cause if found.verdict is not None else ""
    for title, groups in (("ranks", found.rank_verdicts), ("GPUs", found.gpu_verdicts)):
        if any(each.cause != cause for each in groups):
            yield Note(title, (_groups(groups, title),))


def _groups(groups: Sequence[Sharers], kind: str) -> str:
    said = []
    for each in groups[:MOST]:
        if kind == "ranks" and all(name.isdecimal() for name in each.names):
            names = named(map(int, each.names))
        else:
            names = (
                ", ".join(map(readable, each.names)) if len(each.names) == 1 else several(len(each.names), kind[:-1])
            )
        said.append(f"{names}: {readable(each.cause)}{f' {percent(each.share)}' if each.share else ''}")
    more = len(groups) - MOST
    return "; ".join(said) + (f"; {several(more, 'more verdict')}" if more > 0 else "")


def _others(found: Explanation) -> Iterator[Note]:
    """Yield alerts, the causes that are hidden, too small or not judged, and the signals that are not measured."""
    firing = [f"{readable(each.name)} ({'muted' if each.muted else readable(each.severity)})" for each in found.firing]
    yield Note("alerts", (", ".join(shortened(firing)),) if firing else ())
    hidden = [each for each in found.considered if each.result in ("hidden", "evidence") and each.tier != "harmless"]
    yield Note("hidden by it", tuple(f"{each.cause}{_share_of(each)}: {each.reason}" for each in hidden))
    below = [each for each in found.considered if each.result == "below" and each.lost and each.floor]
    yield Note("too small", tuple(f"{each.cause}{_share_of(each)}: from {small_percent(each.floor)}" for each in below))
    if skipped := [each for each in found.considered if each.result == "not_judged"]:
        why = [f"{SIGNALS[each.series].words} takes {level(each, value=True)}" for each in found.waits]
        yield Note("not judged", (f"{several(len(skipped), _GPU_SIDE_CAUSE)}: {', '.join(why) or found.gpu_side}",))
    if found.missing and not _is_open(found):
        reasons = ", ".join(readable(each.reason) for each in found.missing)
        yield Note("missing", (f"{reasons}: most causes of slow progress are not judged meanwhile",))
    if found.unmeasured:
        signals = ", ".join(SIGNALS[name].words for name in found.unmeasured)
        causes = {cause for each in found.unmeasured.values() for cause in each}
        yield Note("not measured", (f"{signals}: read by {several(len(causes), 'cause')}",))


def _another(found: Explanation) -> list[str]:
    """Return what would have to change for another verdict."""
    own, clear = found.of_verdict, found.clear_ratio
    if own is None:
        is_healthy = found.verdict is not None and found.verdict.cause == "healthy"
        return ["from its threshold on: any cause"] if is_healthy else []
    skipped = any(each.result == "not_judged" for each in found.considered)
    following = f"{found.following}{f' or a {_GPU_SIDE_CAUSE}' if skipped else ''}"
    bound = f"below {small_percent(clear * own.floor)}" if own.floor and clear else "without it"
    said = [f"{bound}: {following}"]
    if own.general is not None:
        said.append(f"without its conditions: {own.general}")
    if clear and own.lost is not None and 0 < own.lost / clear < 1:
        said.append(f"from {percent(own.lost / clear)}: another {own.tier} cause")
    if found.earlier_tiers:
        said.append(f"from its threshold: any {' or '.join(found.earlier_tiers)} cause")
    return said


def shortened(said: Sequence[str]) -> list[str]:
    """Return the first entries, and how many there are more."""
    return [*said[:MOST], *([f"and {len(said) - MOST} more"] if len(said) > MOST else [])]


def _share_of(each: Considered) -> str:
    return "" if each.lost is None else f" {percent(each.lost)}"


def level(each: Compared, *, value: bool = False) -> str:
    """Return a threshold, with whether the value meets it, or with the value."""
    unit = SIGNALS[each.series].unit
    level = f"{'under' if each.below else 'from'} {_number(each.threshold, unit)}"
    if value:
        return f"{_number(each.value, unit)} ({level})"
    return level if each.holds is None else f"{level}: {'yes' if each.holds else 'no'}"


def value_of(each: Compared) -> str:
    """Return the values of a condition, or a dash."""
    return "-" if each.measured is None else _range(each.measured, SIGNALS[each.series].unit)


def _range(measured: Measured, unit: Unit) -> str:
    lowest, highest = _number(measured.lowest, unit), _number(measured.highest, unit)
    if lowest == highest:
        return lowest
    return f"{lowest.removesuffix(' %')} to {highest}" if unit == "share" else f"{lowest} to {highest}"


def small_percent(ratio: float) -> str:
    """Return a threshold in percent; a small one has a second digit."""
    return percent(ratio) if ratio >= 0.0995 else f"{100 * ratio:.2g} %"


def _number(value: float | None, unit: Unit) -> str:
    if value is None:
        return "-"
    return percent(value) if unit == "share" else f"{value:.3g}"


def moment(seconds: float, at: float | None = None) -> str:
    """Return a time in UTC; without the date if it is that of another time."""
    shown = utc(seconds)
    if at is None:
        return shown
    return shown.removeprefix(f"{utc(at).partition(' ')[0]} ")
