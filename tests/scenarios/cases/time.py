"""Runs whose time goes to something other than steps, or that make no steps at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import (
    CLOUD_WORK,
    LAPTOP_WORK,
    NODE_WORK,
    ONSET,
    QUIET,
    SERVER_WORK,
    WELL,
    near,
    negative,
    positive,
    run_on,
    slowed,
)
from tests.scenarios.machines import CLOUD, HGX, LAPTOP, PAIR, QUAD, SERVER, SINGLE
from tests.scenarios.story import Host, Node, Pause, Story, Work

_LEVELS = (0.8, 1.25)
_WAITING = frozenset({"TrainingInputBound", "TrainingInputFewWorkers", "TrainingInputDiskBound"})
"""A loader that hangs is waited for: that is true until it is known to hang."""
_HOUR: dict[str, Any] = {"onset": 0.0, "length": 85.0}
"""For what is judged over an hour: there from the start on."""


def _pausing(work: Work, phase: str, share: float, *, every: float = 0.0, steps: int = 0, busy: float = 0.0) -> Work:
    """Add periodic work that takes a share of all time."""
    step = work.forward + work.backward + work.optimizer + work.data_wait + work.host_copy + work.communication
    step += work.other
    between = every or steps * step
    pause = Pause(phase, share / (1 - share) * between, every_steps=steps, every_seconds=every, busy=busy)
    return replace(work, pauses=(*work.pauses, pause))


def _always(node: Node, work: Work, **run: Any) -> Story:
    return run_on(node, before=work, start=-60.0, **run)


def _pauses() -> Iterator[Case]:
    for name, node, work, share in (
        ("checkpoint_stall_node", SINGLE, NODE_WORK, 0.14),
        ("checkpoint_stall_laptop", LAPTOP, LAPTOP_WORK, 0.24),
    ):
        yield positive(
            name,
            "checkpoint_stall",
            _always(node, _pausing(work, "checkpoint", share, every=130.0)),
            subject="run",
            alerts=frozenset({"TrainingCheckpointStall"}),
            forbidden=frozenset({"input_bound", "sync_stall", "periodic_host_work", "step_outliers", "small_batch"}),
            lost=share,
            **_HOUR,
        )
    for level in _LEVELS:
        share = 0.05 * level
        yield near(
            "checkpoint_stall",
            "checkpoint_stall",
            level,
            _always(CLOUD, _pausing(CLOUD_WORK, "checkpoint", share, every=120.0)),
            subject="run",
            acceptable=frozenset({"checkpoint_stall"} if level < 1 else WELL),
            alerts=frozenset({"TrainingCheckpointStall"}),
            lost=share,
            **_HOUR,
        )
    yield positive(
        "evaluation_overhead_cloud",
        "evaluation_overhead",
        _always(CLOUD, _pausing(CLOUD_WORK, "evaluation", 0.36, every=90.0, busy=0.9)),
        subject="run",
        alerts=frozenset({"TrainingEvaluationOverhead"}),
        forbidden=frozenset({"input_bound", "checkpoint_stall", "periodic_host_work", "sync_stall"}),
        lost=0.36,
        **_HOUR,
    )
    for level in _LEVELS:
        share = 0.25 * level
        yield near(
            "evaluation_overhead",
            "evaluation_overhead",
            level,
            _always(CLOUD, _pausing(CLOUD_WORK, "evaluation", share, every=100.0, busy=0.9)),
            subject="run",
            acceptable=frozenset({"evaluation_overhead"}),
            alerts=frozenset({"TrainingEvaluationOverhead"}),
            lost=share,
            **_HOUR,
        )
    for name, node, work, share in (
        ("callback_stall_cloud", CLOUD, CLOUD_WORK, 0.13),
        ("callback_stall_node", PAIR, NODE_WORK, 0.22),
    ):
        yield positive(
            name,
            "callback_stall",
            run_on(node, _pausing(work, "logging", share, steps=50)),
            subject="run",
            alerts=frozenset({"TrainingCallbackStall"}),
            forbidden=frozenset({"input_bound", "step_outliers", "periodic_host_work", "small_batch"}),
            lost=share,
        )
    for level in _LEVELS:
        yield near(
            "callback_stall",
            "callback_stall",
            level,
            run_on(SINGLE, _pausing(NODE_WORK, "logging", 0.05 * level, steps=50)),
            subject="run",
            acceptable=frozenset({"callback_stall"} if level < 1 else ()),
            alerts=frozenset({"TrainingCallbackStall"}),
            lost=0.05 * level,
        )
    yield positive(
        "rollout_wait_cloud",
        "rollout_wait",
        _always(CLOUD, _pausing(CLOUD_WORK, "rollout", 0.45, every=40.0)),
        subject="run",
        alerts=frozenset({"TrainingRolloutWait"}),
        forbidden=frozenset(
            {"input_bound", "stalled", "small_batch", "launch_bound", "callback_stall", "periodic_host_work"}
        ),
        lost=0.45,
        **_HOUR,
    )
    for level in _LEVELS:
        share = 0.25 * level
        yield near(
            "rollout_wait",
            "rollout_wait",
            level,
            _always(CLOUD, _pausing(CLOUD_WORK, "rollout", share, every=40.0)),
            subject="run",
            acceptable=frozenset({"rollout_wait"}),
            alerts=frozenset({"TrainingRolloutWait"}),
            lost=share,
            **_HOUR,
        )


_BUCKETS = ((0.6, 0.7), (0.25, 1.0), (0.15, 2.2))
"""Most sequences are short, as in most corpora: 0.7, 1 and 2.2 times the mean."""


def _outliers(work: Work, lost: float, factor: float = 4.0) -> Work:
    """Some steps take several times as long, so that they lose a share of all time."""
    return replace(work, outliers=lost / (1 - lost) / (factor - 1), outlier_factor=factor)


def _steps() -> Iterator[Case]:
    for name, node, work, lost in (
        ("step_outliers_laptop", LAPTOP, LAPTOP_WORK, 0.16),
        ("step_outliers_node", PAIR, NODE_WORK, 0.12),
    ):
        yield positive(
            name,
            "step_outliers",
            run_on(node, _outliers(work, lost)),
            subject="run",
            alerts=frozenset({"TrainingStepOutliers"}),
            forbidden=frozenset({"input_bound", "checkpoint_stall", "small_batch"}),
            length=50.0,
            lost=lost,
        )
    for level in _LEVELS:
        # Twice as long, and so many that what is drawn of them stays near the level over any twenty minutes.
        yield near(
            "step_outliers",
            "step_outliers",
            level,
            run_on(SINGLE, _outliers(NODE_WORK, 0.05 * level, factor=2.0)),
            subject="run",
            acceptable=frozenset({"step_outliers"} if level < 1 else WELL),
            alerts=frozenset({"TrainingStepOutliers"}),
            length=45.0,
            lost=0.05 * level,
        )
    # Some stalls of a second and a half, among sequences of three lengths whose tokens are reported.
    yield positive(
        "step_outliers_among_buckets",
        "step_outliers",
        run_on(
            CLOUD,
            replace(_outliers(replace(CLOUD_WORK, tokens_per_sample=512), 0.14, factor=5.0), buckets=_BUCKETS),
            before=replace(CLOUD_WORK, tokens_per_sample=512, buckets=_BUCKETS),
        ),
        subject="run",
        alerts=frozenset({"TrainingStepOutliers"}),
        forbidden=frozenset({"input_bound", "checkpoint_stall", "small_batch"}),
        length=50.0,
        lost=0.14,
    )
    # Batches are bucketed by length: a long sequence takes longer, and always has.
    for name, tokens in (("bucketed_sequences_with_tokens", 512.0), ("bucketed_sequences_without_tokens", 0.0)):
        yield negative(
            name,
            run_on(CLOUD, before=replace(CLOUD_WORK, tokens_per_sample=tokens, buckets=_BUCKETS), start=-60.0),
            forbidden=frozenset({"step_outliers", "step_time_drift"}),
            length=60.0,
        )
    drift = frozenset({"TrainingStepTimeDrift"})
    late = {"onset": 75.0, "length": 125.0}
    yield positive(
        "step_time_drift_cloud",
        "step_time_drift",
        run_on(CLOUD, slowed(CLOUD_WORK, 1.3), onset=75.0, start=-60.0),
        subject="run",
        acceptable=WELL,
        alerts=drift,
        forbidden=frozenset({"input_bound", "small_batch", "step_outliers"}),
        lost=0.23,
        tolerance=0.08,
        **late,
    )
    for level in _LEVELS:
        yield near(
            "step_time_drift",
            "step_time_drift",
            level,
            run_on(LAPTOP, slowed(LAPTOP_WORK, 1 + 0.105 * level), onset=75.0, start=-60.0),
            subject="run",
            acceptable=WELL | {"step_time_drift"},
            alerts=drift,
            **late,
        )


def _progress() -> Iterator[Case]:
    early = {"subject": "run", "length": 25.0}
    yield positive(
        "long_init_node",
        "long_init",
        run_on(SINGLE, start=2.0, initialization=60.0),
        subject="run",
        alerts=frozenset({"TrainingLongInit"}),
        forbidden=frozenset({"stalled", "hang_io", "healthy", "input_bound"}),
        onset=2.0,
        length=40.0,
    )
    yield positive(
        "ac_12_download_before_the_first_step",
        "long_init",
        run_on(CLOUD, start=2.0, initialization=25.0),
        subject="run",
        alerts=frozenset({"TrainingLongInit"}),
        forbidden=frozenset({"stalled", "hang_io", "healthy"}),
        onset=2.0,
        length=27.0,
    )
    for level in _LEVELS:
        yield near(
            "long_init",
            "long_init",
            level,
            run_on(CLOUD, start=2.0, initialization=20.0 * level),
            subject="run",
            acceptable=frozenset({"insufficient_data"} if level < 1 else ()),
            alerts=frozenset({"TrainingLongInit"}),
            onset=2.0,
            length=27.0 if level > 1 else 40.0,
            verdict_expected=level > 1,
        )
    stalled = frozenset({"TrainingStalled"})
    yield positive(
        "stalled_laptop",
        "stalled",
        run_on(LAPTOP, replace(LAPTOP_WORK, hangs="idle", main_thread=0.0)),
        alerts=stalled,
        allowed=_WAITING,
        forbidden=frozenset({"healthy", "idle_allocated"}),
        lost=1.0,
        **early,
    )
    yield positive(
        "stalled_two_nodes",
        "stalled",
        run_on(PAIR, replace(NODE_WORK, hangs="idle", main_thread=0.0), count=2, slurm_job="99"),
        alerts=stalled,
        allowed=_WAITING,
        forbidden=frozenset({"healthy", "hang_spin", "underused"}),
        lost=1.0,
        **early,
    )
    # The process is stopped whole: nothing more is reported, nothing moves.
    yield positive(
        "stalled_in_silence",
        "stalled",
        run_on(CLOUD, replace(CLOUD_WORK, hangs="idle", main_thread=0.0), reports_until=ONSET),
        alerts=stalled,
        forbidden=frozenset({"input_bound", "healthy", "insufficient_data"}),
        lost=1.0,
        **early,
    )
    # Steps of under ten seconds may pause for 60 s. This run goes on after 48 s, and the next one after 75 s and the
    # minute for which the alert waits.
    yield near(
        "stalled",
        "stalled",
        0.8,
        _for_a_while(CLOUD, CLOUD_WORK, 48 / 60),
        alerts=stalled,
        verdict_expected=False,
        acceptable=frozenset({"input_bound", "stalled"}),
        allowed=_WAITING,
        **early,
    )
    yield near(
        "stalled",
        "stalled",
        1.25,
        _for_a_while(CLOUD, CLOUD_WORK, (75 + 60 + 30) / 60),
        alerts=stalled,
        allowed=_WAITING,
        verdict_expected=False,
        **early,
    )
    hang = frozenset({"TrainingHangSpin"})
    spins = replace(NODE_WORK, hangs="spin")
    for name, node, count, culprit in (("hang_spin_node", QUAD, 1, 3), ("hang_spin_two_nodes", HGX, 2, 11)):
        story = run_on(node, spins, count=count)
        run = story.runs[0]
        stuck = replace(NODE_WORK, hangs="idle", main_thread=0.0)
        states = (*run.work, replace(run.work[-1], state=stuck, only=(culprit,)))
        yield positive(
            name,
            "hang_spin",
            replace(story, runs=(replace(run, work=states),)),
            alerts=hang,
            acceptable=frozenset({"stalled"}),
            allowed=_WAITING | {"TrainingStragglerInput"},
            forbidden=frozenset({"healthy", "compute_bound", "comm_bound", "small_batch", "straggler_rank"}),
            lost=1.0,
            **early,
        )
    blocked = Host(cores=1, iowait=0.3, io_waiting=0.95, io_stalled=0.85)
    for name, node, work in (("hang_io_cloud", CLOUD, CLOUD_WORK), ("hang_io_server", SERVER, SERVER_WORK)):
        yield positive(
            name,
            "hang_io",
            run_on(node, replace(work, hangs="io", main_thread=0.0), host=replace(blocked, nfs_in_flight=60)),
            alerts=frozenset({"TrainingHangIo"}),
            allowed=_WAITING,
            forbidden=frozenset({"healthy", "hang_spin"}),
            lost=1.0,
            **early,
        )


def _for_a_while(node: Node, work: Work, minutes: float) -> Story:
    """A run at a standstill that then continues."""
    story = run_on(node, replace(work, hangs="idle", main_thread=0.0))
    run = story.runs[0]
    again = replace(run.work[-1], minute=ONSET + minutes, state=work)
    return replace(
        story, runs=(replace(run, work=(*run.work, again)),), hosts=(replace(story.hosts[0], state=QUIET[node]),)
    )


def _lives() -> Iterator[Case]:
    loop = frozenset({"TrainingRestartLoop"})
    yield positive(
        "restart_loop_server",
        "restart_loop",
        run_on(SERVER, restarts=(10.0, 20.0, 30.0, 40.0)),
        subject="run",
        acceptable=WELL | {"insufficient_data", "goodput_low"},
        alerts=loop,
        onset=30.0,
        length=50.0,
        verdict_expected=False,
    )
    for level, restarts in ((0.8, (10.0, 25.0)), (1.25, (10.0, 18.0, 26.0, 34.0))):
        # Three in an hour: the nearest whole numbers.
        yield near(
            "restart_loop",
            "restart_loop",
            level,
            run_on(CLOUD, restarts=restarts),
            subject="run",
            acceptable=WELL | {"insufficient_data"},
            alerts=loop,
            onset=26.0,
            length=50.0,
            verdict_expected=False,
        )
    goodput = frozenset({"TrainingGoodputLow"})
    yield positive(
        "goodput_low_cloud",
        "goodput_low",
        _interrupted(0.25),
        subject="run",
        acceptable=WELL | {"insufficient_data"},
        alerts=goodput,
        onset=0.0,
        length=100.0,
        lost=0.25,
        tolerance=0.1,
        verdict_expected=False,
    )
    for level in _LEVELS:
        yield near(
            "goodput_low",
            "goodput_low",
            level,
            _interrupted(0.10 * level),
            subject="run",
            acceptable=WELL | {"insufficient_data"},
            alerts=goodput,
            onset=0.0,
            length=100.0,
            verdict_expected=False,
        )
    loss = frozenset({"TrainingLossNonfinite"})
    for name, node, work in (("loss_nonfinite_laptop", LAPTOP, LAPTOP_WORK), ("loss_nonfinite_node", PAIR, NODE_WORK)):
        yield positive(
            name,
            "loss_nonfinite",
            run_on(node, replace(work, losses_not_finite=1.0)),
            subject="run",
            acceptable=WELL,
            alerts=loss,
            length=25.0,
            verdict_expected=False,
        )
    # Two single steps of a whole run: no three after one another.
    rare = replace(LAPTOP_WORK, losses_not_finite=2.01 / (20 * 60 / 0.324))
    yield near(
        "loss_nonfinite",
        "loss_nonfinite",
        0.8,
        run_on(LAPTOP, rare, onset=5.0),
        subject="run",
        acceptable=WELL,
        alerts=loss,
        onset=5.0,
        length=25.0,
        verdict_expected=False,
    )


def _interrupted(share: float) -> Story:
    """A run that is restarted twice an hour, and takes a share of all time to come back: too few for a loop."""
    minutes = (-25.0, 5.0, 35.0, 65.0, 95.0)
    return run_on(CLOUD, start=-50.0, restarts=minutes, restart_seconds=share * 1800)


CASES: tuple[Case, ...] = (*_pauses(), *_steps(), *_progress(), *_lives())
