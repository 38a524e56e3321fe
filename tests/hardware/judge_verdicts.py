"""Verdicts and alerts of a replayed recording, compared with the causes that programs have planted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from stallscope.lab.replay.pages import Recording
from stallscope.lab.replay.rule_engine import Answers, Sample
from stallscope.lab.replay.verdicts import Replayed, replay
from stallscope.model.catalogue.causes import CAUSES, muted_alerts
from tests.end_to_end.scaled import scaled
from tests.end_to_end.training_stack import OF_THE_JOB
from tests.hardware.judge_inputs import Program

FACTOR = 30
"""Programs last half a minute: the rules' five minutes last ten seconds."""
INTERVAL = 1
"""Seconds between two pages, and between two evaluations."""
THRESHOLDS = {"warmup_seconds": 5.0, "stall_seconds": 10.0, "idle_seconds": 10.0}
"""Those that differ: half of the warm-up, since a program may train for only 15 s; reports and pages come every second
as ever, so that a step seems up to three seconds old; and no program holds a GPU for two minutes, which an hour is in
faster time."""
WELL = frozenset({"healthy", "compute_bound"})
_AFTERWARDS_SECONDS = 5.0
"""An alert without a run is attributed to a program that ended at most this long ago, until the next one starts."""
_UNJUDGED = "insufficient_data"
_WATCHDOG = "StallscopeWatchdog"


@dataclass(frozen=True)
class Judgement:
    """Verdicts on one program."""

    program: Program
    verdict: str
    """The one that was held longest; empty if there was none."""
    held: float
    """Its share of the evaluations with a verdict."""
    is_right: bool
    right_after: float | None
    """Seconds from the program's start to the first right verdict or alert."""
    lost: float | None
    """Mean share of time lost to the right cause."""
    false_alerts: tuple[str, ...]
    is_recorded: bool = True
    """False if the recording has no page of the program."""


def replayed(recording: Recording, promtool: str, factor: int = FACTOR) -> Replayed:
    """Evaluate the rules in faster time.

    Raises:
        RecordingError: the recording is damaged or too short.
        EngineError: promtool refused the rules.
    """
    with TemporaryDirectory() as folder:
        scaled(Path(folder), factor, unscaled=OF_THE_JOB)
        return replay(recording, promtool, thresholds=THRESHOLDS, interval=INTERVAL, rules=Path(folder))


def judged(programs: Sequence[Program], answers: Answers, start: float) -> list[Judgement]:
    """Judge the programs that ran.

    Args:
        programs: in any order.
        answers: verdicts and firing alerts of each evaluation.
        start: Unix time of the recording's start.
    """
    ran = sorted((each for each in programs if not each.skipped), key=lambda each: each.begin)
    following = (*(each.begin for each in ran[1:]), float("inf"))
    return [_judged(each, answers, start, following[place]) for place, each in enumerate(ran)]


def _judged(program: Program, answers: Answers, start: float, until: float) -> Judgement:
    during = {
        moment: samples
        for moment, samples in sorted(answers.items())
        if program.begin <= start + moment <= max(program.end, program.begin)
    }
    if not during:
        return Judgement(program, "", 0.0, False, None, None, (), is_recorded=False)
    level = _level(program)
    right = program.planted or WELL
    held: Counter[str] = Counter()
    shares: list[float] = []
    right_after: float | None = None
    has_alert = False
    for moment, samples in during.items():
        verdicts = {
            sample.labels.get("cause", ""): sample.value for sample in samples if _is_of(sample, program, level)
        }
        held.update(verdicts.keys() - {_UNJUDGED})
        shares += [share for cause, share in verdicts.items() if cause in right]
        # A cause that is never a verdict has its alert.
        alerts = {
            cause
            for _, cause, sample in _alerts(samples)
            if cause in program.planted and CAUSES[cause].tier is None and _concerns(sample, program)
        }
        has_alert = has_alert or bool(alerts)
        if right_after is None and (alerts or right & verdicts.keys()):
            right_after = start + moment - program.begin
    verdict, count = held.most_common(1)[0] if held else ("", 0)
    return Judgement(
        program,
        verdict,
        count / held.total() if count else 0.0,
        verdict in right or has_alert,
        right_after,
        sum(shares) / len(shares) if shares else None,
        _false_alerts(program, answers, start, max(program.end, min(until, program.end + _AFTERWARDS_SECONDS))),
    )


def _level(program: Program) -> str:
    """Return the name of the verdict that the program is judged by: of its run, or of the GPU."""
    subjects = {CAUSES[cause].subject for cause in program.planted if CAUSES[cause].tier}
    of_gpu = not program.run or subjects == {"gpu"}
    return "gpu:verdict:ratio5m" if of_gpu else "run:verdict:ratio5m"


def _is_of(sample: Sample, program: Program, level: str) -> bool:
    return sample.name == level and (level.startswith("gpu:") or sample.labels.get("run") == program.run)


def _alerts(samples: Sequence[Sample]) -> Iterator[tuple[str, str, Sample]]:
    """Yield name, cause and sample of each firing alert."""
    for sample in samples:
        name = sample.labels.get("alertname", "")
        if sample.name == "ALERTS" and name != _WATCHDOG:
            yield name, sample.labels.get("cause", ""), sample


def _concerns(sample: Sample, program: Program) -> bool:
    """Return True for an alert on a run of the program, or on no run, such as one on a GPU or the host."""
    return sample.labels.get("run", "") in ("", *program.runs)


def _false_alerts(program: Program, answers: Answers, start: float, until: float) -> tuple[str, ...]:
    """Return alerts of causes that are not there, unless a right alert mutes them or an earlier program raised them."""
    expected = program.planted | program.allowed
    found: dict[str, str] = {}
    earlier: set[frozenset[tuple[str, str]]] = set()
    for moment, samples in sorted(answers.items()):
        firing = [(name, cause, sample) for name, cause, sample in _alerts(samples) if _concerns(sample, program)]
        identities = {frozenset(sample.labels.items()) for _, _, sample in firing}
        if start + moment < program.begin:
            earlier = set(identities)
            continue
        if start + moment > until:
            break
        earlier &= identities
        mutes = {
            target
            for name, cause, sample in firing
            if cause in expected and sample.labels.get("severity") != "info"
            for target in muted_alerts(CAUSES[cause])
        }
        for name, cause, sample in firing:
            if cause not in expected and name not in mutes and frozenset(sample.labels.items()) not in earlier:
                found.setdefault(name, sample.labels.get("severity", ""))
    return tuple(f"{name} ({severity})" for name, severity in found.items())
