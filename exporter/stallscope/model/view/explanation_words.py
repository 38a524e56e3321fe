"""An explanation of a verdict in words, for every view: sentences, values beside thresholds, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stallscope.common.formatting import count, duration, percent, readable, several, size, utc
from stallscope.model.catalogue.causes import CAUSES, MISSING
from stallscope.model.catalogue.conditions import SIGNALS, UNUSED, Signal
from stallscope.model.catalogue.gpu_losses import explained
from stallscope.model.view.explanation import (
    Compared,
    Considered,
    Explanation,
    Measured,
    Missing,
    OfGpu,
    RankOnGpu,
    Serving,
    Sharers,
)
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
        return f"no verdict: the rules recorded none in the day until {moment(found.at)}"
    return f"{readable(found.verdict.cause)}{_held(found)}"


def sentences(found: Explanation) -> list[str]:
    """Return paragraphs: the age of an old verdict, what the verdict costs with its culprit, and the remedy."""
    gpu = found.of_gpu
    if found.verdict is None:
        return [f"{readable(gpu.loss)}: {explained(gpu.loss)}"] if gpu is not None and gpu.loss else []
    words = words_of(found.verdict, with_gpus=gpu is None and bool(found.gpu_verdicts))
    ended = ""
    if found.ended:
        states = [f"{several(ranks, 'rank')} {readable(state)}" for state, ranks in found.states.items()]
        has_ended = bool(states) and not {"starting", "running"} & found.states.keys()
        why = f" ({', '.join(states)})" if has_ended else ", as after the end of a run or of its exporter"
        if gpu is not None:
            why = ", as after the end of its exporter, or once the GPU is taken out"
            if gpu.loss:
                why = f" ({readable(gpu.loss)}: {explained(gpu.loss).removesuffix('.')})"
        ended = (
            f"The rules recorded no verdict at {moment(found.requested)}{why}: this is the last one, from "
            f"{moment(found.at, found.requested)}."
        )
    said = " ".join(each for each in (f"{readable(words.title)}.", words.cost, words.culprit, words.line) if each)
    return [each for each in (ended, said, "" if _is_open(found) else words.remedy) if each]


def measured_rows(found: Explanation) -> list[Row]:
    """Return the values of the verdict's conditions, and for each reason that was not found one that is not met."""
    own = found.of_verdict
    if own is None or found.verdict is None:
        return list(_rows("healthy" if found.verdict and not _is_open(found) else "", [*_of_use(found)]))
    rows = []
    if found.verdict.share or own.floor:
        levels = [f"from {threshold_percent(own.floor)}"] if own.floor else []
        if own.alert is not None:
            levels.append(f"alert from {threshold_percent(own.alert)}")
        beside = [each for each in (own.floor, own.alert) if each is not None]
        rows.append(Row("time lost to it", _exact_percent(found.verdict.share, beside), (", ".join(levels),)))
    if found.of_gpu is not None and found.of_gpu.waits_for_lost:
        return rows
    compared = [(own.cause, each) for each in own.conditions if each.measured is not None]
    compared += [
        (each.cause, unmet) for each in found.considered if each.general == own.cause for unmet in _unmet(each)[:1]
    ]
    return [*rows, *_rows(own.cause, compared)]


def _rows(verdict: str, compared: Sequence[tuple[str, Compared]]) -> Iterator[Row]:
    """Yield conditions, each with its cause, as rows: those of one series in one row."""
    for series, compared_series in _by_series(compared).items():
        levels = []
        named = verdict
        for cause, each in compared_series:
            levels.append(level(each) if cause == named else f"{cause} {level(each)}")
            named = cause
        thresholds = [each.threshold for _, each in compared_series if each.threshold is not None]
        yield Row(SIGNALS[series].words, value_of(compared_series[0][1], thresholds), tuple(levels))


def _of_use(found: Explanation) -> Iterator[tuple[str, Compared]]:
    """Yield the conditions of a held GPU without a run and without a cause, each with its cause."""
    if found.of_gpu is None or found.of_gpu.use is None:
        return
    yield "healthy", found.of_gpu.use
    if _is_open(found):
        unused = (each for cause in UNUSED for each in found.considered if each.cause == cause)
        yield from (
            (each.cause, condition)
            for each in unused
            for condition in each.conditions
            if condition.measured is not None
        )


def notes(found: Explanation) -> list[Note]:
    """Return notes: ranks and GPUs that differ, alerts, other causes, missing signals, and what would change it."""
    all_notes = (
        *(_of_gpu(found, found.of_gpu) if found.of_gpu is not None else ()),
        Note("missing", tuple(_reasons(found)) if _is_open(found) else ()),
        *_sharers(found),
        *_others(found),
        Note(_ANOTHER, tuple(_another(found))),
    )
    return [each for each in all_notes if each.entries]


def _of_gpu(found: Explanation, gpu: OfGpu) -> Iterator[Note]:
    """Yield what the GPU is, why it can't be read, who uses it, and the verdicts of its server and its instances."""
    yield Note("GPU", (", ".join(readable(each) for each in (gpu.model, gpu.labels.uuid) if each),))
    if gpu.loss and found.verdict is not None and not found.ended:
        yield Note("reason", (f"{readable(gpu.loss)}: {explained(gpu.loss)}",))
    if gpu.waits_for_lost:
        yield Note("reason", ("another GPU of its run is lost, and the other ranks wait",))
    if gpu.xid:
        code, action = (readable(gpu.xid.get(name, "")) for name in ("xid", "action"))
        yield Note("Xid", (f"{code}: {action}",))
    if gpu.ranks:
        names = dict.fromkeys(_reference(each) for each in gpu.ranks)
        ranks = "; ".join(shortened([_rank_on(each) for each in gpu.ranks]))
        yield Note("run", (ranks, f"stallscope why {' '.join([*names][:MOST])}"))
    holders = tuple(map(readable, gpu.owners))
    if gpu.is_free:
        holders = ("no owner: no process computes on it",)
    yield Note("held by", holders)
    yield Note("inference", tuple(_served(each) for each in gpu.serving))
    if gpu.instances:
        yield Note("MIG", (_groups(gpu.instances, "instances"), "explain one of them with --gpu UUID"))


def _rank_on(each: RankOnGpu) -> str:
    gone = ", which ended after the GPU was lost" if each.is_gone else ""
    verdict = ""
    if each.verdict is not None:
        share = f" {percent(each.verdict.share)}" if each.verdict.share else ""
        verdict = f" ({readable(each.verdict.cause)}{share})"
    return f"rank {readable(each.rank)} of {readable(each.run)}{verdict}{gone}"


def _reference(each: RankOnGpu) -> str:
    """Return the name of a run as commands take it, with its place if it has one."""
    place = [each.cluster, each.namespace] if each.cluster else [each.namespace] if each.namespace else []
    return "/".join(map(readable, (*place, each.run)))


def _served(each: Serving) -> str:
    said = [f"{readable(each.cause)}{f' {percent(each.share)}' if each.share else ''}"]
    if "waiting" in each.signals:
        said.append(f"{count(each.signals['waiting'])} requests wait")
    if "kv_used" in each.signals:
        said.append(f"{percent(each.signals['kv_used'])} of the KV cache is in use")
    return f"{readable(each.server)}: {', '.join(said)}; see prometheus/serving/README.md"


def _is_open(found: Explanation) -> bool:
    return found.verdict is not None and found.verdict.cause == "insufficient_data"


def _reasons(found: Explanation) -> list[str]:
    """Return why there is not enough evidence."""
    gpu = found.of_gpu
    if gpu is not None and gpu.use is not None:
        unseen = "it is held, and was observed for under two minutes of five: if this lasts, see the exporter's health"
        return [
            unseen if gpu.use.measured is None else "it is held and mostly idle, and no rule finds the reason so far"
        ]
    if gpu is not None and gpu.serving:
        return []
    found_now = [_missing(found, each) for each in found.missing]
    return found_now or ["nothing any more: a verdict follows once every rule has had a minute of data"]


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


def _unmet(each: Considered) -> list[Compared]:
    """Return the conditions of a cause that do not hold, then those without a value; none of a cause with evidence."""
    if each.result in ("evidence", "pending", "hidden"):
        return []
    ordered = sorted(each.conditions, key=lambda condition: condition.holds is None)
    return [condition for condition in ordered if not condition.holds]


def _by_series(compared: Sequence[tuple[str, Compared]]) -> dict[str, list[tuple[str, Compared]]]:
    """Return conditions, each with its cause, by the series that they read."""
    found: dict[str, list[tuple[str, Compared]]] = {}
    for cause, each in compared:
        found.setdefault(each.series, []).append((cause, each))
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
    own = found.of_verdict
    yield Note("held", (own.reason,) if own is not None and own.reason else ())
    yield Note("alerts", (", ".join(shortened(firing)),) if firing else ())
    for title, results in (("pending", ("pending", "evidence")), ("hidden by it", ("hidden",))):
        others = [each for each in found.considered if each.result in results and each.tier != "harmless"]
        yield Note(title, tuple(f"{each.cause}{_share_of(each)}: {each.reason}" for each in others))
    below = [each for each in found.considered if each.result == "below" and each.lost and each.floor]
    said = shortened(
        [f"{each.cause}{_share_of(each, each.floor)}: from {threshold_percent(each.floor)}" for each in below]
    )
    yield Note("too small", ("; ".join(said),) if said else ())
    if skipped := _skipped(found):
        why = [f"{SIGNALS[each.series].words} takes {level(each, value=True)}" for each in found.waits]
        yield Note("not judged", (f"{several(len(skipped), _GPU_SIDE_CAUSE)}: {', '.join(why) or found.gpu_side}",))
    if found.missing and not _is_open(found):
        reasons = ", ".join(readable(each.reason) for each in found.missing)
        unjudged = "some causes are" if reasons == "warmup" else "most causes of slow progress are"
        yield Note("missing", (f"{reasons}: {unjudged} not judged meanwhile",))
    if found.unmeasured and not (found.of_gpu is not None and found.of_gpu.loss):
        signals = ", ".join(SIGNALS[name].words for name in found.unmeasured)
        causes = {cause for each in found.unmeasured.values() for cause in each}
        # The mean of a young run's signal has no value yet.
        title = "no value yet" if found.verdict is None or _is_open(found) else "not measured"
        yield Note(title, (f"{signals}: read by {several(len(causes), 'cause')}",))


def _skipped(found: Explanation) -> list[Considered]:
    """Return the causes of the GPU side that are not judged."""
    return [each for each in found.considered if each.result == "not_judged" and CAUSES[each.cause].domain == "device"]


def _another(found: Explanation) -> list[str]:
    """Return what would have to change for another verdict."""
    own, clear = found.of_verdict, found.clear_ratio
    if own is None:
        is_healthy = found.verdict is not None and found.verdict.cause == "healthy"
        return ["from its threshold on: any cause"] if is_healthy else []
    following = f"{found.following}{f' or a {_GPU_SIDE_CAUSE}' if _skipped(found) else ''}"
    bound = f"below {threshold_percent(clear * own.floor)}" if own.floor and clear else "without it"
    said = [f"{bound}: {following}"]
    if own.general is not None:
        said.append(f"without its conditions: {own.general}")
    share = found.verdict.share if found.verdict is not None else 0.0
    if clear and 0 < share / clear < 1:
        said.append(f"from {percent(share / clear)}: another {readable(own.tier)} cause")
    if found.earlier_tiers:
        *others, last = map(readable, found.earlier_tiers)
        tiers = f"{', '.join(others)} or {last}" if others else last
        said.append(f"from its threshold: any {tiers} cause")
    return said


def shortened(said: Sequence[str]) -> list[str]:
    """Return the first entries, and how many there are more."""
    return [*said[:MOST], *([f"and {len(said) - MOST} more"] if len(said) > MOST else [])]


def _share_of(each: Considered, *thresholds: float) -> str:
    return "" if each.lost is None else f" {_exact_percent(each.lost, thresholds)}"


def level(each: Compared, *, value: bool = False) -> str:
    """Return a threshold, with whether the value meets it, or with the value."""
    signal = SIGNALS[each.series]
    if each.threshold is None:
        return each.of
    threshold = threshold_percent(each.threshold) if signal.unit == "share" else _number(each.threshold, signal)
    level = f"{'under' if each.below else 'from'} {threshold}{f' ({each.of})' if each.of else ''}"
    if value:
        return f"{_number(each.value, signal, [each.threshold])} ({level})"
    return level if each.holds is None else f"{level}: {'yes' if each.holds else 'no'}"


def value_of(each: Compared, thresholds: Sequence[float] = ()) -> str:
    """Return the values of a condition, or a dash.

    Args:
        each: the condition.
        thresholds: thresholds that are shown beside the values; by default that of the condition.
    """
    if each.measured is None:
        return "-"
    own = [] if each.threshold is None else [each.threshold]
    return _range(each.measured, SIGNALS[each.series], thresholds or own)


def _range(measured: Measured, signal: Signal, thresholds: Sequence[float]) -> str:
    lowest, highest = (_number(each, signal, thresholds) for each in (measured.lowest, measured.highest))
    if lowest == highest:
        return lowest
    return f"{lowest.removesuffix(' %')} to {highest}" if signal.unit == "share" else f"{lowest} to {highest}"


def threshold_percent(ratio: float) -> str:
    """Return a threshold in percent, with up to three digits."""
    return f"{100 * ratio:.3g} %"


def _exact_percent(ratio: float, thresholds: Sequence[float]) -> str:
    """Return a share in percent, with the digits that distinguish it from the thresholds beside it."""
    shown = [percent(ratio), *(f"{100 * ratio:.{digits}g} %" for digits in (3, 4, 5))]
    levels = [threshold_percent(each) for each in thresholds if each != ratio]
    return next((each for each in shown if each not in levels), shown[-1])


def _number(value: float | None, signal: Signal, thresholds: Sequence[float] = ()) -> str:
    if value is None:
        return "-"
    if signal.unit == "share":
        return _exact_percent(value, thresholds)
    if signal.unit == "seconds":
        return f"under {duration(signal.least)}" if value < signal.least else duration(max(0.0, value))
    if signal.unit == "bytes":
        return size(value)
    return f"{value:.3g}" if abs(value) < 1000 else count(value)


def moment(seconds: float, at: float | None = None) -> str:
    """Return a time in UTC; without the date if it is that of another time."""
    shown = utc(seconds)
    if at is None:
        return shown
    return shown.removeprefix(f"{utc(at).partition(' ')[0]} ")
