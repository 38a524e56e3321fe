"""Explain the verdict of a run or a GPU from recorded series: values beside thresholds, and what hides other causes.

Nothing is judged here. The rules recorded which causes they found, which evidence holds and what each cause costs;
the thresholds, the order of the tiers and the clearing ratio are recorded series as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, get_args

from stallscope.common.formatting import gpu_name, percent, readable
from stallscope.model.catalogue.causes import CAUSES, MISSING, Cause, muted_alerts
from stallscope.model.catalogue.conditions import CONDITIONS, GPU_SIDE, SIGNALS, Condition, alert_thresholds, general_of
from stallscope.model.clients.expressions import any_of, quoted
from stallscope.model.view.verdicts import Culprit, Verdict, code_line_of, culprit_of

if TYPE_CHECKING:
    from stallscope.model.clients.prometheus import RangeSeries, Series

LOOKBACK = 86_400.0
"""Seconds before the time in question in which verdicts are searched."""
_STEP = 30.0
"""Resolution of the verdicts before the time in question, in seconds; the start of the last one is exact."""
_STALE = 300.0
"""Seconds without a sample after which Prometheus no longer returns a series."""
HOST = "cluster, job, instance"
_GPU = f"{HOST}, gpu, uuid, mig"
PAIR = (
    *("rank_gpu:claim:info", "gpu_rank:host_side:info", "pair_cause:gpu_side_evidence:info"),
    "pair_cause:gpu_side_held:info",
)
"""Series with the labels of a rank and of its GPU."""
RANK = (
    *("rank_cause:input_evidence:info", "rank_cause:input_held:info", "rank:missing:info", "rank:unsettled:info"),
    "rank:not_training:info",
)
"""Series with the labels of a rank and of its exporter."""
RUN_RANK = ("run_rank:straggler:ratio5m",)
"""Series with the labels of a rank, without its exporter, or of its run."""
_OWN = (
    *("run:verdict:ratio5m", "run:time_lost:ratio5m", "run_cause:time_lost:ratio5m", "run:ranks:count"),
    *("run:culprit:info", "run:code:ratio2m", "rank:verdict:ratio5m", "ALERTS", *PAIR, *RANK, *RUN_RANK),
)
"""Series with the labels of the run."""
_EVIDENCE = ("rank_cause:input_evidence:info", "pair_cause:gpu_side_evidence:info")
_HELD = ("rank_cause:input_held:info", "pair_cause:gpu_side_held:info")

Result = Literal["verdict", "pending", "hidden", "evidence", "below", "not_judged", "not_found"]
"""Result of the rules for a cause: it is pending if it was found since the verdict was recorded."""


class Server(Protocol):
    """A server with recorded series; `stallscope.model.clients.prometheus.Prometheus` is one."""

    def query(self, expression: str, at: float | None = None) -> Sequence[Series]:
        """Evaluate an expression at one time."""

    def query_range(self, expression: str, start: float, end: float, step: float) -> Sequence[RangeSeries]:
        """Evaluate an expression over a range."""


class Measured(NamedTuple):
    """The values of a series over the ranks, GPUs or hosts of the run."""

    series: str
    lowest: float
    highest: float
    number: int
    """Number of ranks, GPUs or hosts with a value."""


class Compared(NamedTuple):
    """A condition of a rule with its values."""

    series: str
    measured: Measured | None
    """None if no value is recorded."""
    threshold: float | None
    """None if it depends on the GPU."""
    name: str
    """Name of the threshold; empty for a constant of the rule."""
    below: bool
    """True if the rule requires a value below the threshold."""
    of: str = ""
    """Words that follow the threshold: the GPUs to which the condition applies."""

    @property
    def value(self) -> float | None:
        """The value that is nearest to what the rule requires."""
        if self.measured is None:
            return None
        return self.measured.lowest if self.below else self.measured.highest

    @property
    def holds(self) -> bool | None:
        """True if any rank, GPU or host meets the condition; None without a value."""
        if self.value is None:
            return None
        if self.threshold is None:  # the rules record no other value
            return True
        return self.value < self.threshold if self.below else self.value >= self.threshold


class Considered(NamedTuple):
    """A cause that the rules considered."""

    cause: str
    tier: str
    result: Result
    reason: str
    """Words that explain the result; empty for a verdict whose conditions hold, and if the rules recorded nothing."""
    lost: float | None
    """Share of the run's GPU time that it costs; None if the rules did not find it."""
    floor: float
    """Share from which it may be the verdict; zero if its rule has a condition of its own."""
    alert: float | None
    """Share from which its alert fires; None if the alert does not depend on it."""
    conditions: tuple[Compared, ...]
    general: str | None
    """The cause that is the verdict until this reason is known."""


class Sharers(NamedTuple):
    """Ranks or GPUs with one verdict."""

    cause: str
    names: tuple[str, ...]
    """Numbers of ranks, or GPUs as `GPU 1 of node1:9400`."""
    share: float
    """The highest share of their time that it costs."""


class Missing(NamedTuple):
    """A reason for ranks without verdict."""

    reason: str
    ranks: int


class Firing(NamedTuple):
    """An alert on the run or the GPU that fires."""

    name: str
    severity: str
    muted: bool
    """True if the alert on the verdict, which fires too, mutes it."""


class GpuLabels(NamedTuple):
    """The labels that identify a GPU or a MIG instance."""

    cluster: str
    job: str
    instance: str
    gpu: str
    """Index."""
    uuid: str
    mig: str
    """Profile of a MIG instance; empty for a whole GPU."""

    @property
    def name(self) -> str:
        """Its name, such as `GPU 1 of node1:9400`."""
        return _gpu_name(self._asdict())

    @property
    def matchers(self) -> str:
        """PromQL matchers of its series."""
        return f"{self.card_matchers}, uuid={quoted(self.uuid)}, mig={quoted(self.mig)}"

    @property
    def card_matchers(self) -> str:
        """PromQL matchers of the series of the card and its MIG instances."""
        return f"{self.host_matchers}, gpu={quoted(self.gpu)}"

    @property
    def host_matchers(self) -> str:
        """PromQL matchers of the series of its host."""
        return f"cluster={quoted(self.cluster)}, job={quoted(self.job)}, instance={quoted(self.instance)}"


class RankOnGpu(NamedTuple):
    """A rank that computes on a GPU."""

    cluster: str
    namespace: str
    run: str
    rank: str
    verdict: Verdict | None
    """Of its run."""
    is_gone: bool
    """True if the rank has ended since the GPU was lost."""


class Serving(NamedTuple):
    """The verdict of `prometheus/serving/serving.yml` on the GPU of an inference server."""

    server: str
    cause: str
    share: float
    signals: Mapping[str, float]
    """By name: `waiting`, `kv_used`, `preempted`."""


class OfGpu(NamedTuple):
    """A GPU as it is recorded, apart from its verdict."""

    labels: GpuLabels
    model: str
    """Empty if it is unknown."""
    loss: str
    """Reason for which it can't be read at the requested time; empty if it can, or is not exported."""
    is_free: bool
    """True if no process computes on it, and no owner holds it."""
    waits_for_lost: bool
    """True if it has stopped because another GPU of its run is lost."""
    owners: tuple[str, ...]
    ranks: tuple[RankOnGpu, ...]
    instances: tuple[Sharers, ...]
    """Verdicts of its MIG instances."""
    serving: tuple[Serving, ...]
    xid: Mapping[str, str]
    """Labels of the newest Xid error of the hardware; empty without one."""
    use: Compared | None
    """The condition under which a held GPU without a run is healthy; None if another one has led to the verdict."""


@dataclass(frozen=True)
class Explanation:
    """The verdict of a run or a GPU at one time, and why it is the verdict."""

    cluster: str
    namespace: str
    """Empty for a GPU."""
    run: str
    """Empty for a GPU."""
    requested: float
    """Unix time of the request."""
    at: float
    """Unix time of the values."""
    states: Mapping[str, int]
    """Number of ranks by state, if known."""
    ended: bool
    """True if the rules recorded no verdict at the requested time: then these are the last values before it."""
    verdict: Verdict | None
    """None if the rules recorded none in a day before the requested time."""
    since: float | None
    """Unix time from which the verdict holds without a break."""
    since_before: bool
    """True if the verdict may have held before `since`, which is more than the lookback ago."""
    before: str
    """The verdict before it; empty if there was none."""
    ranks: int
    """Ranks of the run, or on the GPU."""
    clear_ratio: float | None
    considered: tuple[Considered, ...]
    """The verdict first, then by result and lost share."""
    following: str
    """The verdict if the rules no longer find the cause; empty for a verdict that names no cause."""
    earlier_tiers: tuple[str, ...]
    """Tiers whose causes take precedence over the verdict, the first first."""
    rank_verdicts: tuple[Sharers, ...]
    gpu_verdicts: tuple[Sharers, ...]
    """Empty for a run without GPUs."""
    missing: tuple[Missing, ...]
    waits: tuple[Compared, ...]
    """Conditions that hold, and because of which the GPU side is not judged."""
    gpu_side: str
    """Reason besides `waits` because of which the GPU side is not judged; empty without such a reason."""
    firing: tuple[Firing, ...]
    unmeasured: Mapping[str, tuple[str, ...]]
    """Series without values, each with the causes that read it."""
    of_gpu: OfGpu | None = None
    """None for a run."""

    @property
    def of_verdict(self) -> Considered | None:
        """The cause that is the verdict; None for a verdict that names no cause."""
        return next((each for each in self.considered if each.result == "verdict"), None)


def explain(
    server: Server,
    run: tuple[str, str, str],
    matchers: str,
    instances: str,
    at: float,
    states: Mapping[str, int] = MappingProxyType({}),
) -> Explanation:
    """Read what the rules recorded on a run.

    Args:
        server: the server to query.
        run: cluster, namespace and name.
        matchers: matchers of the series recorded for the run.
        instances: matcher of the instances that its ranks report to.
        at: Unix time.
        states: number of ranks by state, if known.

    Raises:
        PrometheusError: the server gave no valid response.
    """
    return explain_recorded(lambda moment: _RecordedOfRun(server, matchers, instances, moment), run, at, states)


def explain_recorded(
    read: Callable[[float], Recorded],
    place: tuple[str, str, str],
    at: float,
    states: Mapping[str, int] = MappingProxyType({}),
) -> Explanation:
    """Read what the rules recorded on a subject.

    Args:
        read: reads the series of the subject at a Unix time.
        place: cluster, namespace and name of a run.
        at: Unix time.
        states: number of ranks by state, if known.
    """
    found = read(at)
    history_of, loss = found.history, found.loss
    # At the same times for every request, so that a verdict has one start.
    history = history_of((at - LOOKBACK) // _STEP * _STEP, at, _STEP)
    moment = at
    if ended := bool(history) and found.verdict() is None:
        moment = history[-1][0]
        found = read(moment)
    verdict = found.verdict()
    cause = verdict.cause if verdict else ""
    if verdict is not None:
        history.append((moment, cause))
    since, since_before, before = _since(history, cause, at - LOOKBACK)
    if since is not None and not since_before:
        since, _, earlier = _since([*history_of(since - _STEP, since, 1.0), (since, cause)], cause, since - _STALE)
        before = earlier or before
    considered, following = found.considered(cause)
    of_gpu = found.of_gpu()
    return Explanation(
        *place,
        requested=at,
        at=moment,
        states=states,
        ended=ended,
        verdict=verdict,
        since=since,
        since_before=since_before,
        before=before,
        ranks=found.ranks,
        clear_ratio=found.thresholds.get("clear_ratio"),
        considered=considered,
        following=following,
        earlier_tiers=found.earlier_tiers(cause),
        rank_verdicts=found.sharers(found.of("rank:verdict:ratio5m"), lambda labels: labels.get("rank", "")),
        gpu_verdicts=found.sharers(found.of("gpu:verdict:ratio5m"), _gpu_name),
        missing=found.missing(),
        waits=found.waits(),
        gpu_side=found.gpu_side(),
        firing=found.firing(cause),
        unmeasured=found.unmeasured(),
        of_gpu=None if of_gpu is None else of_gpu._replace(loss=loss),
    )


class Recorded(ABC):
    """The recorded series of a run or a GPU at one time, by name."""

    verdict_series: ClassVar[str]
    lost_series: ClassVar[str]
    """Share of the time that each cause costs."""
    floor_series: ClassVar[str]
    """Share from which a cause may be the verdict, with its tier."""

    def __init__(self, server: Server, matchers: str, at: float) -> None:
        """Read the series.

        Args:
            server: the server to query.
            matchers: matchers of the series with the labels of the subject.
            at: Unix time.

        Raises:
            PrometheusError: the server gave no valid response.
        """
        self._server, self._at = server, at
        self._matchers = matchers
        self._series: dict[str, list[Series]] = {}
        self._read_subject()
        self._read(f"{{{any_name(['stallscope:threshold', self.floor_series, 'stallscope:verdict_tier:weight'])}}}")
        self.thresholds = by_label(self.of("stallscope:threshold"), "name")
        self._weights = by_label(self.of("stallscope:verdict_tier:weight"), "tier")
        floors = self.of(self.floor_series)
        self._tiers = {each.labels.get("cause", ""): each.labels.get("tier", "") for each in floors}
        self._lost = self._named(by_label(self.of(self.lost_series), "cause"))

    @abstractmethod
    def _read_subject(self) -> None:
        """Read the series of the subject, and of what it consists of."""

    @property
    @abstractmethod
    def ranks(self) -> int:
        """Number of ranks of the run, or on the GPU."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """True if there is enough data for a verdict."""

    @abstractmethod
    def _mutes(self, cause: Cause, alerts: Sequence[Mapping[str, str]]) -> bool:
        """Return whether the alert on a cause mutes others of the subject."""

    def _culprit(self, cause: str) -> Culprit | None:
        """Return the culprit of the run that has this verdict; None if its verdict names no rank."""
        runs = {run_of(each.labels) for each in self.of("run:verdict:ratio5m") if each.labels.get("cause") == cause}
        culprits = (each.labels for each in self.of("run:culprit:info") if run_of(each.labels) in runs)
        return next((culprit_of(labels) for labels in culprits), None)

    @property
    def loss(self) -> str:
        """Reason for which a GPU can't be read; empty if it can."""
        return ""

    def of_gpu(self) -> OfGpu | None:
        """Return what is recorded of a GPU besides its verdict; None for a run."""
        return None

    def _named(self, lost: dict[str, float]) -> dict[str, float]:
        """Return shares of lost time by the names that the causes have in the verdict."""
        return lost

    def _applies(self, cause: str) -> bool:
        """Return whether the subject can have a cause."""
        return cause in CAUSES

    def history(self, start: float, end: float, step: float) -> list[tuple[float, str]]:
        """Return the times of all recorded verdicts with their causes, in order."""
        found = self._server.query_range(f"{self.verdict_series}{{{self._matchers}}}", start, end, step)
        return sorted((moment, each.labels.get("cause", "")) for each in found for moment in each.times)

    def _read(self, expression: str) -> None:
        for each in self._server.query(expression, at=self._at):
            if isfinite(each.value):
                self._series.setdefault(each.labels.get("__name__", ""), []).append(each)

    def of(self, name: str) -> list[Series]:
        """Return the series of a name."""
        return self._series.get(name, [])

    def verdict(self) -> Verdict | None:
        """Return the verdict; None if the rules recorded no verdict."""
        verdicts = self.of(self.verdict_series)
        if not verdicts:
            return None
        chosen = max(verdicts, key=lambda each: each.value)
        cause = chosen.labels.get("cause", "")
        lines = [each for each in self.of("run:code:ratio2m") if each.labels.get("cause") == cause]
        return Verdict(
            cause,
            min(1.0, max(0.0, chosen.value)),
            max((each.value for each in self.of("run:time_lost:ratio5m")), default=None),
            self._culprit(cause),
            tuple(each.reason for each in self.missing()) if cause == "insufficient_data" else (),
            code_line_of(lines[0].labels, lines[0].value, 0) if lines else None,
        )

    def missing(self) -> tuple[Missing, ...]:
        """Return the reasons for ranks without verdict, the likeliest first."""
        ranks: dict[str, set[str]] = {}
        for each in self.of("rank:missing:info"):
            ranks.setdefault(each.labels.get("missing", ""), set()).add(each.labels.get("rank", ""))
        order = {reason: number for number, reason in enumerate(MISSING)}
        return tuple(
            Missing(reason, len(ranks[reason]))
            for reason in sorted(ranks, key=lambda each: order.get(each, len(order)))
        )

    def sharers(self, verdicts: Iterable[Series], of: Callable[[Mapping[str, str]], str]) -> tuple[Sharers, ...]:
        """Return the verdicts of ranks or GPUs, the worst first."""
        groups: dict[str, dict[str, float]] = {}
        for each in verdicts:
            group, subject = groups.setdefault(each.labels.get("cause", ""), {}), of(each.labels)
            group[subject] = max(each.value, group.get(subject, 0.0))
        found = [
            Sharers(cause, tuple(sorted(group, key=_by_number)), max(group.values())) for cause, group in groups.items()
        ]
        return tuple(sorted(found, key=lambda each: (-self._weight(each.cause), -each.share, each.cause)))

    def considered(self, verdict: str) -> tuple[tuple[Considered, ...], str]:
        """Return the causes that the rules considered, and the verdict that would follow this one."""
        scores = self._named(by_label(self._server.query(self._scores(), at=self._at), "cause"))
        evidence, held = self._causes(_EVIDENCE), self._causes(_HELD)
        rows: list[Considered] = []
        for each in self.of(self.floor_series):
            cause, tier = each.labels.get("cause", ""), each.labels.get("tier", "")
            if not self._applies(cause) or any(row.cause == cause for row in rows):
                continue
            result, reason = self._result(cause, tier, verdict, scores, evidence, held)
            levels = [self.thresholds[name] for name in alert_thresholds(cause) if name in self.thresholds]
            rows.append(
                Considered(
                    cause,
                    tier,
                    result,
                    reason,
                    self._lost.get(cause),
                    each.value,
                    min(levels, default=None),
                    self._compared(CONDITIONS.get(cause, ())),
                    general_of(cause),
                )
            )
        order: tuple[Result, ...] = get_args(Result)
        rows.sort(key=lambda row: (order.index(row.result), -scores.get(row.cause, 0.0), -(row.lost or 0.0), row.cause))
        rest = [cause for cause in scores if cause != verdict]
        otherwise = "healthy" if self.is_settled else "insufficient_data"
        following = max(rest, key=lambda cause: scores[cause], default=otherwise) if verdict in CAUSES else ""
        return tuple(rows), following

    def _result(
        self,
        cause: str,
        tier: str,
        verdict: str,
        scores: Mapping[str, float],
        evidence: set[str],
        held: set[str],
    ) -> tuple[Result, str]:
        """Return what the rules made of a cause, with the reason."""
        if cause == verdict:
            is_held = cause in held and cause not in evidence
            return (
                "verdict",
                "its conditions hold no longer, but no other cause's have held for long" if is_held else "",
            )
        if cause in scores:
            return self._hidden(cause, tier, verdict)
        if cause in evidence and cause not in self._lost:
            if cause not in held:
                return "evidence", "its conditions hold, but not yet for long"
            first = next((each for each in self._lost if CAUSES[each].domain == CAUSES[cause].domain), verdict)
            return "hidden", f"its conditions hold, but {first} comes first"
        if cause in self._lost:
            return "below", ""
        not_judged = self._not_judged(cause, tier)
        return ("not_judged", not_judged) if not_judged else ("not_found", "")

    def _not_judged(self, cause: str, tier: str) -> str:
        """Return why the rules do not judge a cause; empty if they do."""
        if CAUSES[cause].domain != "device" or tier not in ("device", "harmless"):
            return ""
        return self.gpu_side() or ("the GPUs wait" if self.waits() else "")

    def _hidden(self, cause: str, tier: str, verdict: str) -> tuple[Result, str]:
        """Return what the rules made of a cause that may be the verdict, with the reason."""
        own, lost = self._tier(verdict), self._lost.get(verdict)
        weight, own_weight = self._weights.get(tier, 0.0), self._weights.get(own, 0.0)
        if own and weight < own_weight:
            return "hidden", f"the tier {own} comes before {readable(tier)}"
        if own and weight == own_weight and lost is not None:
            if self._lost[cause] <= lost:
                return "hidden", "costs less"
            # The rules divide the share of the verdict by the clearing ratio, so that it changes rarely.
            needed = lost / self.thresholds.get("clear_ratio", 1.0)
            if self._lost[cause] <= needed:
                return "hidden", f"costs under {percent(needed)}"
        return "pending", "found since the verdict was recorded"

    def waits(self) -> tuple[Compared, ...]:
        """Return the conditions because of which the GPU side is not judged."""
        if not self._is_host_side:
            return ()
        waits_for_rank = bool(self.of("run_rank:straggler:ratio5m"))
        return tuple(
            each
            for each in self._compared(GPU_SIDE)
            # Communication then contains the wait for that rank.
            if each.holds and not (waits_for_rank and each.series.startswith("run_rank:"))
        )

    def gpu_side(self) -> str:
        """Return why the GPU side is not judged, besides `waits`; empty without such a reason."""
        if not self._is_host_side or self.waits():
            return ""
        if self.of("rank:missing:info"):
            return "signals of the ranks are missing"
        if self.of("rank:not_training:info"):
            return "the ranks do not train"
        if self.of("run_rank:straggler:ratio5m"):
            return "one rank delays the others"
        return "too little of the last minutes is known"

    @property
    def _is_host_side(self) -> bool:
        """True if the rules judge the GPU side of no GPU of the run, because it waits."""
        waiting = len(self.of("gpu_rank:host_side:info"))
        return waiting > 0 and waiting >= len(self.of("rank_gpu:claim:info"))

    def firing(self, verdict: str) -> tuple[Firing, ...]:
        """Return the alerts on the subject that fire, the gravest first."""
        alerts = [each.labels for each in self.of("ALERTS") if each.labels.get("alertstate") == "firing"]
        cause = CAUSES.get(verdict)
        muted = muted_alerts(cause) if cause is not None and self._mutes(cause, alerts) else set()
        order = {severity: number for number, severity in enumerate(("critical", "warning", "info"))}
        found = {
            Firing(name, each.get("severity", ""), name in muted)
            for each in alerts
            if (name := each.get("alertname", ""))
        }
        return tuple(sorted(found, key=lambda each: (order.get(each.severity, len(order)), each.name)))

    def unmeasured(self) -> dict[str, tuple[str, ...]]:
        """Return the series without values, each with the causes that read it."""
        causes: dict[str, list[str]] = {}
        for cause, conditions in CONDITIONS.items():
            if not self._applies(cause):
                continue
            for name in dict.fromkeys(each.series for each in conditions):
                if SIGNALS[name].source and not self._values(name) and (self._has_gpus or name.startswith("host:")):
                    causes.setdefault(name, []).append(cause)
        return {name: tuple(found) for name, found in causes.items()}

    @property
    def _has_gpus(self) -> bool:
        return bool(self.of("rank_gpu:claim:info"))

    def _compared(self, conditions: Iterable[Condition]) -> tuple[Compared, ...]:
        found = []
        for each in conditions:
            name = each.threshold if isinstance(each.threshold, str) else ""
            threshold = self.thresholds.get(name) if isinstance(each.threshold, str) else each.threshold
            if threshold is not None or each.threshold is None:
                measured = self._measured(each.series)
                found.append(Compared(each.series, measured, threshold, name, each.below, each.of))
        return tuple(found)

    def _measured(self, name: str) -> Measured | None:
        values = self._values(name)
        return Measured(name, min(values), max(values), len(values)) if values else None

    def _values(self, name: str) -> list[float]:
        """Return the values that the rules read of a signal."""
        signal = SIGNALS[name]
        found = {
            _subject(each.labels): self._at - each.value if signal.is_time else each.value for each in self.of(name)
        }
        for each in self.of(signal.instead):
            found[_subject(each.labels)] = 1 - each.value if signal.complement else each.value
        return list(found.values())

    def _causes(self, names: Iterable[str]) -> set[str]:
        """Return the causes of the series of these names."""
        return {each.labels.get("cause", "") for name in names for each in self.of(name)}

    def _tier(self, cause: str) -> str:
        return self._tiers.get(cause, "")

    def earlier_tiers(self, cause: str) -> tuple[str, ...]:
        """Return the tiers that take precedence over a cause, the first first; none for a verdict without a cause."""
        own = self._weights.get(self._tier(cause))
        possible = {tier for cause, tier in self._tiers.items() if self._applies(cause)}
        found = [] if own is None else [tier for tier in possible if self._weights.get(tier, own) > own]
        return tuple(sorted(found, key=lambda tier: -self._weights[tier]))

    def _weight(self, cause: str) -> float:
        return self._weights.get(self._tier(cause), min(self._weights.values(), default=0.0) - 1)

    def _scores(self) -> str:
        """Return PromQL for the causes at or over their floor, each with its share plus the weight of its tier."""
        return (
            f"sum without (tier) (({self.lost_series}{{{self._matchers}}} >= on (cause) group_left (tier) "
            f"max by (cause, tier) ({self.floor_series})) + on (tier) group_left () "
            "max by (tier) (stallscope:verdict_tier:weight))"
        )


class _RecordedOfRun(Recorded):
    verdict_series = "run:verdict:ratio5m"
    lost_series = "run_cause:time_lost:ratio5m"
    floor_series = "stallscope:verdict_floor:ratio"

    def __init__(self, server: Server, matchers: str, instances: str, at: float) -> None:
        self._instances = instances
        super().__init__(server, matchers, at)

    def _read_subject(self) -> None:
        claims, live = f"rank_gpu:claim:info{{{self._matchers}}}", f"rank:live:info{{{self._matchers}}}"
        self._read(f"{{{any_name([*_OWN, *signals_of('rank:', 'run:', 'run_rank:')])}, {self._matchers}}}")
        gpu = any_name(["gpu:verdict:ratio5m", *signals_of("gpu:")])
        self._read(f"{{{gpu}, {self._instances}}} and on ({_GPU}) {claims}")
        self._read(f"{{{any_name(signals_of('host:'))}, {self._instances}}} and on ({HOST}) {live}")

    @property
    def ranks(self) -> int:
        return round(max((each.value for each in self.of("run:ranks:count")), default=0))

    @property
    def is_settled(self) -> bool:
        return len({each.labels.get("rank", "") for each in self.of("rank:unsettled:info")}) < self.ranks

    def _mutes(self, cause: Cause, alerts: Sequence[Mapping[str, str]]) -> bool:
        # An alert on a GPU mutes others of the same GPU or rank only, which is not compared here.
        return cause.subject == "training" and "rank" not in _labels_of(alerts, cause.alert)


def _since(history: Sequence[tuple[float, str]], cause: str, start: float) -> tuple[float | None, bool, str]:
    """Return since when a verdict holds without a break, whether that may be too late, and the verdict before it."""
    since: float | None = None
    for moment, each in reversed(history):
        if each != cause:
            return since, False, "" if since is None else each
        if since is not None and since - moment > _STALE:
            return since, False, ""
        since = moment
    return since, since is not None and since - start < _STALE, ""


def _labels_of(alerts: Sequence[Mapping[str, str]], name: str | None) -> Mapping[str, str]:
    """Return the labels of an alert that fires; with a rank if it does not fire."""
    return next((each for each in alerts if each.get("alertname") == name), {"rank": ""})


def _subject(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return the labels except for the name of the series."""
    return frozenset(each for each in labels.items() if each[0] != "__name__")


def by_label(found: Iterable[Series], label: str) -> dict[str, float]:
    """Return the highest value by a label."""
    values: dict[str, float] = {}
    for each in found:
        name = each.labels.get(label, "")
        values[name] = max(each.value, values.get(name, each.value))
    return values


def run_of(labels: Mapping[str, str]) -> tuple[str, str, str]:
    """Return cluster, namespace and name of the run of a series."""
    return labels.get("cluster", ""), labels.get("namespace", ""), labels.get("run", "")


def any_name(names: Iterable[str]) -> str:
    """Return a matcher of series of any of these names."""
    return f"__name__=~{any_of(names)}"


def signals_of(*prefixes: str) -> list[str]:
    """Return the series that conditions read and whose names begin with a prefix."""
    return [each for name in SIGNALS for each in (name, SIGNALS[name].instead) if each and name.startswith(prefixes)]


def _gpu_name(labels: Mapping[str, str]) -> str:
    return f"{gpu_name(labels.get('gpu', ''), labels.get('mig', ''))} of {readable(labels.get('instance', ''))}"


def _by_number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() else (0, name)
