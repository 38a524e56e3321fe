from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.model.catalogue import metrics as catalogue
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.vocabulary import MAX_PHASES
from stallscope.training.shim import rebooking
from stallscope.training.shim import timeline as module
from stallscope.training.shim.timeline import NO_PHASE, Timeline

STEP_NAMES = ("data_wait", "forward", "checkpoint", "logging", "my_hook", "other")


def new(clock: ScriptedClock) -> Timeline:
    return Timeline(clock.monotonic, lambda _: None, 0.5)


def seconds(timeline: Timeline) -> dict[str, float]:
    return {name: phase.seconds for name, phase in timeline.phases.items()}


def test_buckets_and_outside_phases_are_the_catalogue_s() -> None:
    assert module.STEP_BUCKETS == catalogue.STEP_BUCKETS
    assert module.OUTSIDE_PHASES == catalogue.OUTSIDE_PHASES
    assert set(module.STEP_PHASES) < set(catalogue.PHASES)


def test_time_in_an_inner_phase_is_taken_out_of_the_outer(clock: ScriptedClock) -> None:
    timeline = new(clock)
    with timeline.phase("forward"):
        clock.advance(1)
        with timeline.phase("communication"):
            clock.advance(2)
        clock.advance(4)
    assert seconds(timeline) == {"initialization": 0, "forward": 5, "communication": 2, "other": 0}


def test_evaluation_stops_the_step_s_clock(clock: ScriptedClock) -> None:
    timeline = new(clock)
    timeline.step()
    clock.advance(1)
    with timeline.phase("evaluation"):
        clock.advance(100)
    clock.advance(1)
    timeline.step()
    assert timeline.step_seconds == 2
    assert seconds(timeline)["evaluation"] == 100


def test_an_evaluation_after_the_last_step_is_not_taken_out_of_its_length(clock: ScriptedClock) -> None:
    timeline = new(clock)
    timeline.step()
    clock.advance(1)
    timeline.book(clock.monotonic())
    duration = timeline.step_by_now
    with timeline.phase("evaluation"):
        clock.advance(100)
    clock.advance(10)
    rebooking.end_last_step(timeline, duration)
    assert timeline.step_seconds == 1


def test_a_checkpoint_lies_inside_its_step(clock: ScriptedClock) -> None:
    timeline = new(clock)
    timeline.step()
    with timeline.phase("checkpoint"):
        clock.advance(30)
    timeline.step()
    assert timeline.step_seconds == 30


def test_a_step_s_phase_inside_evaluation_stays_evaluation(clock: ScriptedClock) -> None:
    timeline = new(clock)
    timeline.step()
    with timeline.phase("evaluation"):
        with timeline.phase("data_wait"):
            clock.advance(3)
        timeline.step()
        clock.advance(1)
    assert seconds(timeline) == {"initialization": 0, "other": 0, "evaluation": 4, "data_wait": 0}
    assert timeline.steps == 1


def reporting(clock: ScriptedClock, sent: list[float]) -> Timeline:
    """A timeline that notes when it sends a report, at least 10 s apart."""

    def publish(now: float) -> None:
        sent.append(now)
        timeline.due = now + 10

    timeline = Timeline(clock.monotonic, publish, 10)
    return timeline


@pytest.mark.parametrize("name", ["evaluation", "rollout", "initialization"])
def test_phases_inside_a_long_phase_send_the_reports_that_are_due(name: str, clock: ScriptedClock) -> None:
    sent: list[float] = []
    timeline = reporting(clock, sent)
    if name != "initialization":
        timeline.step()
    with timeline.phase(name):
        began, timeline.due = clock.monotonic(), clock.monotonic() + 10
        sent.clear()
        for _ in range(5):
            with timeline.phase("communication"):
                clock.advance(8)
        assert sent == [began + 16, began + 32]


def test_a_loop_of_an_evaluation_sends_the_reports_that_are_due(clock: ScriptedClock) -> None:
    sent: list[float] = []
    timeline = reporting(clock, sent)
    timeline.step()
    with timeline.phase("evaluation"):
        began, timeline.due = clock.monotonic(), clock.monotonic() + 10
        sent.clear()
        for _ in range(5):
            clock.advance(8)
            timeline.step()
        assert sent == [began + 16, began + 32]


def test_a_rollout_lies_inside_its_step_and_covers_phases_of_the_step(clock: ScriptedClock) -> None:
    timeline = new(clock)
    timeline.step()
    with timeline.phase("rollout"):
        with timeline.phase("forward"):
            clock.advance(3)
        with timeline.phase("reward"), timeline.phase("communication"):
            clock.advance(2)
        with timeline.phase("evaluation"):
            clock.advance(50)
        assert timeline.activity == "rollout"
    assert timeline.activity == "training"
    timeline.step()
    spent = {name: length for name, length in seconds(timeline).items() if length}
    assert spent == {"rollout": 3, "reward": 2, "evaluation": 50}
    assert timeline.step_seconds == 5


def test_a_rollout_inside_evaluation_stays_evaluation(clock: ScriptedClock) -> None:
    timeline = new(clock)
    timeline.step()
    with timeline.phase("evaluation"), timeline.phase("rollout"):
        clock.advance(3)
        assert timeline.activity == "evaluation"
    assert seconds(timeline)["rollout"] == 0


@pytest.mark.parametrize("name", module.ROLLOUT_PHASES)
def test_a_rollout_may_begin_the_loop(name: str, clock: ScriptedClock) -> None:
    timeline = new(clock)
    clock.advance(5)
    with timeline.phase(name):
        clock.advance(3)
        assert (timeline.looping, timeline.activity) == (True, "rollout")
    assert seconds(timeline)[name] == 3


def test_restore_inside_evaluation_is_restore(clock: ScriptedClock) -> None:
    timeline = new(clock)
    timeline.step()
    with timeline.phase("evaluation"):
        clock.advance(1)
        with timeline.phase("restore"):
            clock.advance(2)
    timeline.step()
    assert timeline.step_seconds == 0
    assert seconds(timeline)["evaluation"] == 1
    assert seconds(timeline)["restore"] == 2


def test_initialization_lasts_until_the_first_wait_for_data(clock: ScriptedClock) -> None:
    timeline = new(clock)
    clock.advance(20)
    with timeline.phase("communication"):
        clock.advance(5)
    assert not timeline.looping
    with timeline.phase("data_wait"):
        clock.advance(1)
    clock.advance(2)
    timeline.step()
    assert seconds(timeline) == {"initialization": 25, "communication": 0, "data_wait": 1, "other": 2}
    assert timeline.step_seconds == 3


def test_the_first_bare_step_ends_initialization_and_has_no_duration(clock: ScriptedClock) -> None:
    timeline = new(clock)
    clock.advance(20)
    timeline.step()
    clock.advance(1)
    timeline.step()
    assert (timeline.steps, sum(timeline.counts), timeline.step_seconds) == (2, 1, 1)
    assert seconds(timeline)["initialization"] == 20


def test_a_warm_up_inside_initialization_does_not_begin_the_loop(clock: ScriptedClock) -> None:
    timeline = new(clock)
    with timeline.phase("initialization"):
        with timeline.phase("forward"):
            clock.advance(5)
        timeline.step()
    assert not timeline.looping
    assert seconds(timeline)["initialization"] == 5 - 5  # open: booked when it ends, or at a report
    timeline.book(clock.monotonic())
    assert seconds(timeline)["initialization"] == 5


def test_a_phase_inside_itself_counts_once(clock: ScriptedClock) -> None:
    timeline = new(clock)
    timeline.step()
    with timeline.phase("evaluation"):
        clock.advance(1)
        with timeline.phase("evaluation"):
            clock.advance(2)
        clock.advance(4)
    timeline.step()
    evaluation = timeline.phase("evaluation")
    assert (evaluation.seconds, evaluation.occurrences, timeline.step_seconds) == (7, 1, 0)


def test_an_exception_closes_the_phase_and_goes_on(clock: ScriptedClock) -> None:
    timeline = new(clock)
    phase = timeline.phase("forward")
    with contextlib.suppress(KeyError), phase:
        clock.advance(1)
        raise KeyError
    assert timeline.current is timeline.other
    assert seconds(timeline)["forward"] == 1


def test_phases_left_out_of_order_lose_no_time(clock: ScriptedClock) -> None:
    timeline = new(clock)
    outer, inner = timeline.phase("forward"), timeline.phase("logging")
    outer.__enter__()
    clock.advance(1)
    inner.__enter__()
    clock.advance(2)
    outer.__exit__()
    clock.advance(4)
    inner.__exit__()
    clock.advance(8)
    timeline.step()
    assert timeline.current is timeline.other
    assert seconds(timeline) == {"initialization": 0, "forward": 1, "logging": 6, "other": 8}


def test_the_longest_occurrence_is_that_of_the_last_minute(clock: ScriptedClock) -> None:
    timeline = new(clock)
    for length in (5, 1):
        with timeline.phase("data_wait"):
            clock.advance(length)
        timeline.phase("data_wait").longest(clock.monotonic())
    wait = timeline.phase("data_wait")
    assert wait.longest(clock.monotonic()) == 5
    clock.advance(59.5)
    assert wait.longest(clock.monotonic()) == 1
    clock.advance(60)
    assert wait.longest(clock.monotonic()) == 0


def test_an_open_occurrence_counts_as_the_longest(clock: ScriptedClock) -> None:
    timeline = new(clock)
    timeline.step()
    with timeline.phase("checkpoint") as checkpoint:
        clock.advance(7)
        timeline.book(clock.monotonic())
        assert checkpoint.longest(clock.monotonic()) == 7


@pytest.mark.parametrize("name", ["", " padded ", "line\nbreak", "x" * 129, None, 3, ["list"]])
def test_an_unusable_phase_name_books_nothing(name: object, clock: ScriptedClock) -> None:
    timeline = new(clock)
    try:
        found = timeline.phase(name)  # type: ignore[arg-type]
    except TypeError:  # not hashable: the run's own phase() takes care of it
        return
    assert found is NO_PHASE
    with found:
        clock.advance(1)
    assert set(timeline.phases) == {"initialization", "other"}


def test_a_thirty_third_phase_books_nothing(clock: ScriptedClock) -> None:
    timeline = new(clock)
    found = [timeline.phase(f"phase {number}") for number in range(40)]
    assert len(timeline.phases) == MAX_PHASES
    assert found[-1] is NO_PHASE


def test_a_step_lands_in_the_bucket_that_contains_it(clock: ScriptedClock) -> None:
    timeline = new(clock)
    timeline.step()
    for duration in (0.0005, 0.75, 5000.0):
        clock.advance(duration)
        timeline.step()
    assert [index for index, count in enumerate(timeline.counts) if count] == [0, 9, len(module.STEP_BUCKETS)]


ACTIONS = st.recursive(
    st.one_of(st.floats(0, 100).map(lambda length: ("pass", length)), st.just(("step",))),
    lambda inner: st.tuples(
        st.just("phase"),
        st.sampled_from((*STEP_NAMES, *module.OUTSIDE_PHASES, *module.ROLLOUT_PHASES)),
        st.lists(inner, max_size=4),
    ),
    max_leaves=30,
)


@given(st.lists(ACTIONS, max_size=12))
def test_phases_sum_to_wall_time_and_those_in_steps_to_step_time(actions: list[tuple[object, ...]]) -> None:
    clock = ScriptedClock()
    timeline = new(clock)

    def play(action: tuple[object, ...]) -> None:
        if action[0] == "pass":
            clock.advance(action[1])  # type: ignore[arg-type]
        elif action[0] == "step":
            timeline.step()
        else:
            with timeline.phase(action[1]):  # type: ignore[arg-type]
                for inner in action[2]:  # type: ignore[attr-defined]
                    play(inner)

    for action in actions:
        play(action)
    timeline.step()  # closes the step under way, or begins the loop
    timeline.book(clock.monotonic())
    booked = seconds(timeline)
    assert sum(booked.values()) == pytest.approx(clock.monotonic())
    inside = sum(length for name, length in booked.items() if name not in module.OUTSIDE_PHASES)
    assert inside == pytest.approx(timeline.step_seconds, abs=1e-6)
    assert timeline.current.around is timeline.current  # no other phase is open


def looping(clock: ScriptedClock) -> Timeline:
    timeline = new(clock)
    with timeline.phase("data_wait"):
        pass
    return timeline


def test_time_moves_to_the_phase_that_it_turns_out_to_belong_to(clock: ScriptedClock) -> None:
    timeline = looping(clock)
    clock.advance(1.0)
    before = rebooking.snapshot(timeline)
    with timeline.phase("data_wait"):
        clock.advance(2.0)
    with timeline.phase("forward"):
        clock.advance(4.0)
    clock.advance(8.0)
    rebooking.rebook(timeline, before, timeline.phase("evaluation"), ("data_wait", "forward", "other"))
    timeline.step()
    seconds = {name: phase.seconds for name, phase in timeline.phases.items() if phase.seconds}
    assert seconds == {"other": 1.0, "evaluation": 14.0}
    assert timeline.step_seconds == 1.0  # an evaluation belongs to no step
    assert timeline.phase("forward").occurrences == 0
    assert timeline.phase("evaluation").longest(clock.monotonic()) == 14.0


def test_only_the_time_until_a_later_moment_moves(clock: ScriptedClock) -> None:
    timeline = looping(clock)
    before = rebooking.snapshot(timeline)
    clock.advance(2.0)
    after = rebooking.snapshot(timeline)
    clock.advance(4.0)
    rebooking.rebook(timeline, before, timeline.phase("evaluation"), ("other",), after)
    assert (timeline.other.seconds, timeline.phase("evaluation").seconds) == (4.0, 2.0)


def test_time_of_other_phases_stays(clock: ScriptedClock) -> None:
    timeline = looping(clock)
    before = rebooking.snapshot(timeline)
    with timeline.phase("checkpoint"):
        clock.advance(2.0)
    rebooking.rebook(timeline, before, timeline.phase("evaluation"), ("other",))
    assert (timeline.phase("checkpoint").seconds, timeline.phase("evaluation").occurrences) == (2.0, 0)


def test_a_report_that_is_held_waits_a_second_at_most(clock: ScriptedClock) -> None:
    published: list[float] = []
    timeline = Timeline(clock.monotonic, published.append, 0.5)
    timeline.step()  # begins the loop
    timeline.due = clock.monotonic()
    timeline.held = True
    timeline.step()
    clock.advance(0.875)
    timeline.step()
    assert published == []
    clock.advance(0.125)
    timeline.step()
    assert published == [clock.monotonic()]


def test_the_newest_time_outside_phases_can_extend_the_checkpoint_before_it(clock: ScriptedClock) -> None:
    timeline = looping(clock)
    timeline.step()
    checkpoint = timeline.phase("checkpoint")
    clock.advance(1.0)
    with checkpoint:
        clock.advance(2.0)
    clock.advance(4.0)
    moved: list[tuple[float, float, str]] = []
    timeline.rebooked = lambda began, ended, phase, sources: moved.append((began, ended, phase))
    rebooking.extend(timeline, checkpoint, 3.0)
    assert (timeline.other.seconds, checkpoint.seconds, checkpoint.occurrences) == (2.0, 5.0, 1)
    assert moved == [(clock.monotonic() - 3.0, clock.monotonic(), "checkpoint")]
    timeline.step()
    assert timeline.step_seconds == 7.0  # a checkpoint belongs to its step


def test_a_checkpoint_is_extended_by_no_more_than_the_time_outside_phases(clock: ScriptedClock) -> None:
    timeline = looping(clock)
    checkpoint = timeline.phase("checkpoint")
    with checkpoint:
        clock.advance(2.0)
    clock.advance(1.0)
    rebooking.extend(timeline, checkpoint, 3.0)
    assert (timeline.other.seconds, checkpoint.seconds) == (0.0, 3.0)
