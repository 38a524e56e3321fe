"""Admission, life cycle and series of the runs held."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from stallscope.model.catalogue.metrics import RUN_STATES, TRAINING_FAMILIES
from stallscope.node.intake.quotas import Limits, usage_of
from stallscope.node.intake.runs import REJECTION_REASONS, RunRegistry
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.reading import Distribution, Sample, checked
from stallscope.training.protocol.report import ReportError
from stallscope.training.protocol.vocabulary import TRIAL_RUN
from tests.intake.reports import make_report

SetProcess = Callable[..., None]


def values(registry: RunRegistry, name: str) -> dict[tuple[str, ...], float | Distribution]:
    """Label values to value, of one family."""
    return {sample.labels: sample.value for sample in registry.collect() if sample.family.name == name}


def state(registry: RunRegistry, run: str = "resnet50", rank: str = "0") -> str | None:
    """Return the state in the series; None for a rank that is not held."""
    reported = values(registry, "stallscope_training_state")
    present = [word for word in RUN_STATES if reported.get((run, rank, word)) == 1]
    assert len(present) <= 1
    return present[0] if present else None


def rejected(registry: RunRegistry, reason: str) -> float | Distribution:
    return values(registry, "stallscope_exporter_reports_rejected_total")[(reason,)]


def refused(registry: RunRegistry, data: bytes) -> ReportError:
    before = [sample for sample in registry.collect() if sample.family in TRAINING_FAMILIES]
    with pytest.raises(ReportError) as caught:
        registry.accept(data, "unix")
    assert [sample for sample in registry.collect() if sample.family in TRAINING_FAMILIES] == before
    return caught.value


def lines(*numbers: int, seconds: float = 2.0, phase: str = "data_wait") -> dict[str, list[dict[str, object]]]:
    """Return the field of a report with lines of one file."""
    return {phase: [{"location": f"a.py:{number}", "function": "f", "seconds": seconds} for number in numbers]}


class TestLinesOfCode:
    NAME = "stallscope_training_code_seconds_total"

    def test_each_line_is_a_series_as_long_as_it_is_reported(self, registry: RunRegistry) -> None:
        registry.accept(make_report(sequence=1, code=lines(1, 2)), "unix")
        assert values(registry, self.NAME) == {
            ("resnet50", "0", "data_wait", "a.py:1", "f"): 2.0,
            ("resnet50", "0", "data_wait", "a.py:2", "f"): 2.0,
        }
        registry.accept(make_report(sequence=2, code=lines(2, 3, seconds=1.5)), "unix")
        assert values(registry, self.NAME) == {
            ("resnet50", "0", "data_wait", "a.py:2", "f"): 2.0,
            ("resnet50", "0", "data_wait", "a.py:3", "f"): 1.5,
        }
        registry.accept(make_report(sequence=3), "unix")
        assert values(registry, self.NAME) == {}

    def test_new_lines_above_the_limit_are_dropped(self, registry: RunRegistry) -> None:
        registry.accept(make_report(sequence=1, code=lines(1)), "unix")
        held = registry.held[0]
        registry.limits = Limits(series_per_run=usage_of(held.report).series)
        registry.accept(make_report(sequence=2, code=lines(1, 2, 3, seconds=9)), "unix")
        assert values(registry, self.NAME) == {("resnet50", "0", "data_wait", "a.py:1", "f"): 9.0}
        dropped = values(registry, "stallscope_exporter_series_dropped_total")
        assert dropped[("series_quota",)] == 2

    def test_the_lines_of_another_users_run_stay(self, registry: RunRegistry, set_process: SetProcess) -> None:
        set_process(100)
        set_process(200)
        registry.accept(make_report(sequence=1, code=lines(1)), "unix", 100, uid=1000)
        with pytest.raises(ReportError) as caught:
            registry.accept(make_report(sequence=2, code=lines(2)), "unix", 200, uid=1001)
        assert caught.value.reason == "not_owner"
        assert [labels[3] for labels in values(registry, self.NAME)] == ["a.py:1"]


class TestSeries:
    def test_a_report_becomes_the_series_of_the_contract(self, registry: RunRegistry, clock: ScriptedClock) -> None:
        clock.advance(100)
        registry.accept(make_report(), "unix")
        found = {(sample.family.name, sample.labels): sample.value for sample in checked(registry.collect())}
        rank = ("resnet50", "0")
        for name, labels, value in [
            ("rank_info", (*rank, "", "8", *[""] * 11), 1),
            ("rank_gpu_info", (*rank, "0", "GPU-0"), 1),
            ("process_info", (*rank, "", "4242"), 1),
            ("state", (*rank, "running"), 1),
            ("state", (*rank, "lost"), 0),
            ("activity", (*rank, "training"), 1),
            ("activity", (*rank, "paused"), 0),
            ("start_timestamp_seconds", rank, 1_700_000_000.0),
            ("first_step_timestamp_seconds", rank, 1_700_000_005.0),
            ("last_step_timestamp_seconds", rank, 1_700_000_099.0),
            ("last_push_timestamp_seconds", rank, clock.time()),
            ("restarts_total", rank, 0),
            ("step_seconds", rank, Distribution((0,) * 19 + (10,), 20_000.0, 10)),
            ("phase_seconds_total", (*rank, "data_wait"), 3.0),
            ("phase_gpu_seconds_total", (*rank, "data_wait"), 2.0),
            ("phase_occurrences_total", (*rank, "data_wait"), 10),
            ("phase_max_seconds", (*rank, "data_wait"), 0.5),
            ("samples_total", rank, 640.0),
            ("loss", rank, 0.25),
            ("value", (*rank, "accuracy"), 0.875),
            ("precision_info", (*rank, "bf16"), 1),
            ("shim_dropped_reports_total", (*rank, "queue_full"), 2),
        ]:
            assert found[(f"stallscope_training_{name}", labels)] == value
        assert found[("stallscope_exporter_reports_total", ("unix",))] == 1
        assert found[("stallscope_exporter_runs", ())] == 1

    def test_values_missing_from_a_report_are_absent(self, registry: RunRegistry) -> None:
        plain = make_report(phases={"other": {"seconds": 1, "occurrences": 1, "max": 1}}, gauges={}, precision=[])
        registry.accept(plain, "unix")
        for name in ("phase_gpu_seconds_total", "loss", "precision_info"):
            assert values(registry, f"stallscope_training_{name}") == {}

    def test_no_series_comes_twice(self, registry: RunRegistry) -> None:
        for rank in range(3):
            registry.accept(make_report(rank=rank), "unix")
        identities = [(sample.family.name, sample.labels) for sample in registry.collect()]
        assert len(identities) == len(set(identities))

    def test_an_idle_registry_exports_zero_reports(self, registry: RunRegistry) -> None:
        assert values(registry, "stallscope_exporter_reports_total") == {("unix",): 0, ("udp",): 0, ("http",): 0}
        assert set(values(registry, "stallscope_exporter_reports_rejected_total")) == {
            (reason,) for reason in REJECTION_REASONS
        }
        assert values(registry, "stallscope_exporter_runs") == {(): 0}

    def test_a_rank_that_said_nothing_new_is_not_rendered_again(self, registry: RunRegistry) -> None:
        def info() -> Sample:
            return next(sample for sample in registry.collect() if sample.family.name.endswith("rank_info"))

        registry.accept(make_report(), "unix")
        first = info()
        assert info() is first
        registry.accept(make_report(sequence=2), "unix")
        assert info() is not first


class TestSessions:
    def test_a_newer_report_replaces_the_older(self, registry: RunRegistry) -> None:
        registry.accept(make_report(), "unix")
        registry.accept(make_report(sequence=2, gauges={"loss": 0.125}), "unix")
        assert values(registry, "stallscope_training_loss") == {("resnet50", "0"): 0.125}

    @pytest.mark.parametrize("sequence", [1, 2])
    def test_a_report_that_comes_late_or_twice_changes_nothing(self, registry: RunRegistry, sequence: int) -> None:
        registry.accept(make_report(sequence=2, steps=20), "unix")
        before = registry.held
        registry.accept(make_report(sequence=sequence, steps=10), "unix")
        assert registry.held == before
        assert all(number == 0 for number in values(registry, "stallscope_exporter_reports_rejected_total").values())

    def test_a_newer_session_supersedes_and_counts_as_a_restart(self, registry: RunRegistry) -> None:
        registry.accept(make_report(steps=100, sequence=50), "unix")
        registry.accept(make_report(steps=1, session="second", start=1_700_000_050.0), "unix")
        assert values(registry, "stallscope_training_restarts_total") == {("resnet50", "0"): 1}
        steps = values(registry, "stallscope_training_step_seconds")[("resnet50", "0")]
        assert isinstance(steps, Distribution)
        assert steps.count == 1

    @pytest.mark.parametrize("start", [1_700_000_000.0, 1_700_000_050.0])
    def test_an_older_session_is_refused_also_if_it_is_alive(self, registry: RunRegistry, start: float) -> None:
        registry.accept(make_report(session="second", start=1_700_000_050.0), "unix")
        error = refused(registry, make_report(session="first", start=start, sequence=99))
        assert error.reason == "superseded"
        assert rejected(registry, "superseded") == 1

    def test_steps_that_go_backwards_are_refused(self, registry: RunRegistry) -> None:
        registry.accept(make_report(steps=10), "unix")
        error = refused(registry, make_report(steps=9, sequence=2))
        assert error.reason == "bad_field"
        assert "9 steps after 10" in error.message
        assert values(registry, "stallscope_exporter_reports_total")[("unix",)] == 2

    def test_other_numbers_that_slip_back_stay_where_they_were(self, registry: RunRegistry) -> None:
        registry.accept(make_report(), "unix")
        slipped = make_report(
            sequence=2,
            phases={"data_wait": {"seconds": 2.5, "occurrences": 11, "max": 0.125, "gpu_seconds": 1.0}},
            counters={"samples": 600.0, "tokens": 7.0},
            dropped={"queue_full": 1},
            step_seconds={"counts": [0] * 19 + [10], "sum": 1.0, "count": 10},
        )
        registry.accept(slipped, "unix")
        (held,) = registry.held
        assert held.report.phases["data_wait"] == (3.0, 11, 0.125, 2.0)
        assert held.report.counters == {"samples": 640.0, "tokens": 7.0}
        assert held.report.dropped == {"queue_full": 2}
        assert held.report.step_seconds is not None
        assert held.report.step_seconds.sum == 20_000.0

    def test_a_session_from_the_future_is_refused_since_nothing_could_supersede_it(
        self, registry: RunRegistry, clock: ScriptedClock
    ) -> None:
        registry.accept(make_report(), "unix")
        error = refused(registry, make_report(session="second", start=clock.time() + 7200))
        assert error.reason == "future"
        assert "7200 s ahead" in error.message


class TestAnotherSession:
    """Another life of the rank, or another run of its name."""

    RUN = "resnet50"
    ALONE: Mapping[str, object] = {"info": {"world_size": "1"}}

    def restarts(self, registry: RunRegistry) -> Mapping[tuple[str, ...], object]:
        return values(registry, "stallscope_training_restarts_total")

    def sessions(self, registry: RunRegistry) -> dict[str, str]:
        return {held.report.run: held.report.session for held in registry.held}

    @pytest.mark.parametrize("end", ["gone", "replaced", "finished", "failed"])
    def test_after_the_end_of_one_the_next_counts_whatever_its_clock_says(
        self, registry: RunRegistry, set_process: SetProcess, end: str
    ) -> None:
        set_process(41)
        registry.accept(make_report(start=1_700_000_000.0), "unix", 41)
        if end in ("gone", "replaced"):
            set_process(41, None if end == "gone" else 9000)
        else:
            registry.accept(make_report(start=1_700_000_000.0, sequence=2, state=end), "unix", 41)
        set_process(42)
        registry.accept(make_report(session="second", start=1_699_990_000.0), "unix", 42)
        assert self.sessions(registry) == {self.RUN: "second"}
        assert self.restarts(registry) == {(self.RUN, "0"): 1}

    def test_a_process_that_begins_again_takes_its_own_place_after_its_clock_was_set_back(
        self, registry: RunRegistry, set_process: SetProcess
    ) -> None:
        set_process(41)
        registry.accept(make_report(), "unix", 41)
        registry.accept(make_report(session="second", start=1_699_990_000.0), "unix", 41)
        assert self.sessions(registry) == {self.RUN: "second"}

    def test_what_an_earlier_session_still_sends_never_takes_the_place_back(
        self, registry: RunRegistry, set_process: SetProcess
    ) -> None:
        set_process(41)
        registry.accept(make_report(), "unix", 41)
        registry.accept(make_report(session="second", start=1_700_000_050.0, state="finished"), "unix", 41)
        assert refused(registry, make_report(sequence=9)).reason == "superseded"
        assert refused(registry, make_report(sequence=10, start=1_700_000_060.0)).reason == "superseded"
        assert self.sessions(registry) == {self.RUN: "second"}

    def test_launchers_that_count_restarts_are_believed_where_fewer_were_seen(self, registry: RunRegistry) -> None:
        registry.accept(make_report(restarts=3), "unix")
        assert self.restarts(registry) == {(self.RUN, "0"): 3}
        registry.accept(make_report(session="second", start=1_700_000_050.0, restarts=3), "unix")
        assert self.restarts(registry) == {(self.RUN, "0"): 4}
        registry.accept(make_report(session="third", start=1_700_000_060.0, restarts=7), "unix")
        assert self.restarts(registry) == {(self.RUN, "0"): 7}

    def test_of_two_living_runs_of_one_name_each_is_shown(
        self, registry: RunRegistry, set_process: SetProcess, caplog: pytest.LogCaptureFixture
    ) -> None:
        set_process(41)
        set_process(42)
        registry.accept(make_report(steps=100, **self.ALONE), "unix", 41)
        for sequence in range(1, 5):  # in turns
            registry.accept(make_report(steps=100 + sequence, sequence=1 + sequence, **self.ALONE), "unix", 41)
            second = make_report(steps=sequence, session="second", start=1.7e9 + 9, sequence=sequence, **self.ALONE)
            registry.accept(second, "unix", 42)
        steps = values(registry, "stallscope_training_step_seconds")
        assert {run: each.count for (run, _), each in steps.items() if isinstance(each, Distribution)} == {
            self.RUN: 104,
            f"{self.RUN}-42": 4,
        }
        assert set(self.restarts(registry).values()) == {0}
        assert len(caplog.records) == 1
        assert "the second one is shown as run 'resnet50-42'" in caplog.text

    def test_a_second_run_of_a_name_keeps_its_own_after_the_first_and_the_exporter_ended(
        self, registry: RunRegistry, set_process: SetProcess, clock: ScriptedClock, root: Path
    ) -> None:
        set_process(41)
        set_process(42)
        registry.accept(make_report(**self.ALONE), "unix", 41)
        registry.accept(make_report(session="second", **self.ALONE), "unix", 42)
        set_process(41, None)
        registry.check_processes()
        again = RunRegistry(clock=clock, root=root)
        again.restore(registry.held)
        for each in (registry, again):
            each.accept(make_report(session="second", sequence=2, **self.ALONE), "unix", 42)
            assert self.sessions(each) == {self.RUN: "first", f"{self.RUN}-42": "second"}

    def test_a_very_long_name_leaves_room_for_what_sets_the_second_run_apart(
        self, registry: RunRegistry, set_process: SetProcess
    ) -> None:
        set_process(41)
        set_process(42)
        registry.accept(make_report(run="r" * 128, **self.ALONE), "unix", 41)
        registry.accept(make_report(run="r" * 128, session="second", **self.ALONE), "unix", 42)
        assert set(self.sessions(registry)) == {"r" * 128, "r" * 125 + "-42"}

    def test_of_two_living_jobs_of_several_ranks_only_the_newer_counts_and_is_no_restart(
        self, registry: RunRegistry, set_process: SetProcess, caplog: pytest.LogCaptureFixture
    ) -> None:
        set_process(41)
        set_process(42)
        registry.accept(make_report(), "unix", 41)
        registry.accept(make_report(session="second", start=1_700_000_050.0), "unix", 42)
        for sequence in range(2, 5):
            registry.accept(make_report(session="second", sequence=sequence), "unix", 42)
            with pytest.raises(ReportError, match="different names"):
                registry.accept(make_report(sequence=sequence), "unix", 41)
        assert self.sessions(registry) == {self.RUN: "second"}
        assert self.restarts(registry) == {(self.RUN, "0"): 0}
        assert rejected(registry, "superseded") == 3
        assert len(caplog.records) == 1
        assert "only the one that started later counts" in caplog.text

    def test_a_session_is_not_silenced_by_a_clock_that_is_set_back(
        self, registry: RunRegistry, clock: ScriptedClock
    ) -> None:
        registry.accept(make_report(start=clock.time() + 3000), "unix")
        registry.accept(make_report(start=clock.time() + 9000, sequence=2, steps=11), "unix")
        (held,) = registry.held
        assert held.report.sequence == 2

    def test_a_failure_is_logged_with_its_type_once(
        self, registry: RunRegistry, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        for sequence in (1, 2):
            registry.accept(make_report(state="failed", failure="OutOfMemoryError", sequence=sequence), "unix")
        assert [record.message for record in caplog.records] == ["run 'resnet50' rank 0 failed with OutOfMemoryError"]


class TestLimits:
    def test_one_run_too_many_is_refused_and_displaces_none(self, clock: ScriptedClock) -> None:
        registry = RunRegistry(Limits(runs=2), clock=clock)
        for run in ("a", "b"):
            registry.accept(make_report(run=run), "unix")
        error = refused(registry, make_report(run="c"))
        assert (error.reason, rejected(registry, "run_limit")) == ("run_limit", 1)
        registry.accept(make_report(run="b", rank=1), "unix")
        registry.accept(make_report(run="a", sequence=2), "unix")

    def test_one_rank_too_many_is_refused(self, clock: ScriptedClock) -> None:
        registry = RunRegistry(Limits(ranks_per_run=2, ranks=3), clock=clock)
        for rank in range(2):
            registry.accept(make_report(rank=rank), "unix")
        assert "2 ranks on this exporter" in refused(registry, make_report(rank=2)).message
        registry.accept(make_report(run="other"), "unix")
        assert "holds 3 ranks" in refused(registry, make_report(run="third")).message
        assert rejected(registry, "rank_limit") == 2

    def test_the_standing_limits_are_those_of_the_contract(self) -> None:
        assert Limits() == Limits(
            runs=64,
            ended_runs=64,
            ended_runs_per_sender=32,
            ranks_per_run=256,
            ranks=1024,
            value_names_per_run=32,
            series=40_000,
            series_per_run=36_000,
            memory=96 << 20,
            memory_per_run=72 << 20,
        )

    def test_expired_runs_make_room_but_ended_ones_within_their_time_do_not(self, clock: ScriptedClock) -> None:
        registry = RunRegistry(Limits(runs=1), clock=clock, expiry=900)
        registry.accept(make_report(run="a", state="finished"), "unix")
        clock.advance(899)
        assert refused(registry, make_report(run="b")).reason == "run_limit"
        clock.advance(1)
        registry.accept(make_report(run="b"), "unix")
        assert [held.report.run for held in registry.held] == ["b"]

    def test_value_names_of_a_run_are_limited_over_its_ranks(self, clock: ScriptedClock) -> None:
        registry = RunRegistry(Limits(value_names_per_run=2), clock=clock)
        registry.accept(make_report(values={"a": 1, "b": 2}), "unix")
        registry.accept(make_report(rank=1, values={"b": 3, "c": 4}), "unix")
        registry.accept(make_report(run="other", values={"c": 5}), "unix")
        assert values(registry, "stallscope_training_value") == {
            ("resnet50", "0", "a"): 1,
            ("resnet50", "0", "b"): 2,
            ("resnet50", "1", "b"): 3,
            ("other", "0", "c"): 5,
        }
        dropped = {("value_names_per_run",): 1, ("series_quota",): 0}
        assert values(registry, "stallscope_exporter_series_dropped_total") == dropped

    def test_a_new_session_may_bring_new_value_names(self, clock: ScriptedClock) -> None:
        registry = RunRegistry(Limits(value_names_per_run=2), clock=clock)
        registry.accept(make_report(values={"a": 1, "b": 2}), "unix")
        registry.accept(make_report(session="second", start=1_700_000_050.0, values={"c": 3, "d": 4}), "unix")
        assert {labels[2] for labels in values(registry, "stallscope_training_value")} == {"c", "d"}


class TestLifeCycle:
    @pytest.mark.parametrize("reported", ["starting", "running", "finished", "failed", "terminated"])
    def test_the_state_is_the_one_that_the_shim_reports(self, registry: RunRegistry, reported: str) -> None:
        registry.accept(make_report(state=reported), "unix")
        assert state(registry) == reported

    def test_a_silent_rank_whose_process_lives_stays_running(
        self, registry: RunRegistry, clock: ScriptedClock, set_process: SetProcess
    ) -> None:
        set_process(7)
        registry.accept(make_report(), "unix", 7)
        clock.advance(100_000)
        registry.check_processes()
        assert state(registry) == "running"
        assert values(registry, "stallscope_training_last_push_timestamp_seconds") == {("resnet50", "0"): 1.7e9}

    @pytest.mark.parametrize(("start", "condition"), [(None, "S"), (6000, "S"), (5000, "Z")])
    def test_a_rank_is_lost_when_its_process_is_gone_replaced_or_dead(
        self, registry: RunRegistry, set_process: SetProcess, start: int | None, condition: str
    ) -> None:
        set_process(7)
        registry.accept(make_report(), "unix", 7)
        registry.check_processes()
        assert state(registry) == "running"
        set_process(7, start, condition)
        registry.check_processes()
        assert state(registry) == "lost"

    def test_a_process_that_died_before_its_report_was_read_is_lost(self, registry: RunRegistry) -> None:
        registry.accept(make_report(), "unix", 7)
        registry.check_processes()
        assert state(registry) == "lost"

    @pytest.mark.parametrize("pid_seen", [None, 0])
    def test_an_unseen_rank_is_lost_after_the_expiry_time_of_silence(
        self, registry: RunRegistry, clock: ScriptedClock, pid_seen: int | None
    ) -> None:
        registry.accept(make_report(), "udp", pid_seen)
        clock.advance(899)
        registry.check_processes()
        assert state(registry) == "running"
        clock.advance(1)
        registry.check_processes()
        assert state(registry) == "lost"

    def test_a_rank_taken_for_lost_is_running_again_when_it_reports(
        self, registry: RunRegistry, clock: ScriptedClock
    ) -> None:
        registry.accept(make_report(), "udp")
        clock.advance(1000)
        registry.check_processes()
        registry.accept(make_report(sequence=2), "udp")
        registry.check_processes()
        assert state(registry) == "running"
        clock.advance(899)
        registry.check_processes()
        assert state(registry) == "running"

    def test_a_lost_rank_that_reports_is_known_by_its_present_process(
        self, registry: RunRegistry, set_process: SetProcess
    ) -> None:
        registry.accept(make_report(), "unix", 7)  # no such process
        registry.check_processes()
        set_process(8)
        registry.accept(make_report(sequence=2), "unix", 8)
        registry.check_processes()
        assert state(registry) == "running"

    @pytest.mark.parametrize("reported", ["finished", "failed", "terminated"])
    def test_a_rank_that_ended_is_not_lost_when_its_process_goes(
        self, registry: RunRegistry, set_process: SetProcess, reported: str
    ) -> None:
        set_process(7)
        registry.accept(make_report(), "unix", 7)
        registry.accept(make_report(sequence=2, state=reported), "unix", 7)
        set_process(7, None)
        registry.check_processes()
        assert state(registry) == reported

    @pytest.mark.parametrize("reported", ["finished", "failed", "terminated", "running"])
    def test_an_ended_ranks_series_stay_for_the_expiry_time_and_go(
        self, registry: RunRegistry, clock: ScriptedClock, reported: str
    ) -> None:
        registry.accept(make_report(state=reported), "unix", 7)  # whose process is no more
        registry.check_processes()
        clock.advance(899)
        registry.check_processes()
        assert state(registry) == ("lost" if reported == "running" else reported)
        clock.advance(1)
        registry.check_processes()
        assert registry.held == ()
        assert values(registry, "stallscope_exporter_runs") == {(): 0}

    def test_reports_after_the_end_do_not_put_the_end_off(self, registry: RunRegistry, clock: ScriptedClock) -> None:
        registry.accept(make_report(state="finished"), "unix")
        clock.advance(800)
        registry.accept(make_report(state="finished", sequence=2), "unix")
        clock.advance(100)
        registry.check_processes()
        assert registry.held == ()

    def test_a_living_rank_of_a_run_outlives_its_ended_ones(
        self, registry: RunRegistry, clock: ScriptedClock, set_process: SetProcess
    ) -> None:
        set_process(7)
        registry.accept(make_report(), "unix", 7)
        registry.accept(make_report(rank=1, state="failed"), "unix")
        clock.advance(900)
        registry.check_processes()
        assert (state(registry, rank="0"), state(registry, rank="1")) == ("running", None)


class TestTermination:
    @pytest.fixture(autouse=True)
    def rank_zero(self, registry: RunRegistry, set_process: SetProcess) -> None:
        set_process(7)
        registry.accept(make_report(), "unix", 7)

    def test_a_notice_ends_the_sessions_that_it_names(self, registry: RunRegistry) -> None:
        registry.accept(make_report(rank=1, session="second"), "unix", 7)
        registry.accept(make_report(rank=2, session="third"), "unix", 7)
        registry.terminate(("first", "second"), 7)
        assert [state(registry, rank=rank) for rank in "012"] == ["terminated", "terminated", "running"]

    def test_a_process_that_is_gone_after_its_notice_stays_terminated(
        self, registry: RunRegistry, clock: ScriptedClock, set_process: SetProcess
    ) -> None:
        registry.terminate(("first",), 7)
        set_process(7, None)
        clock.advance(899)
        registry.check_processes()
        assert state(registry) == "terminated"
        clock.advance(1)
        registry.check_processes()
        assert state(registry) is None

    def test_a_notice_that_is_read_after_the_process_is_gone_counts(
        self, registry: RunRegistry, set_process: SetProcess
    ) -> None:
        set_process(7, None)
        registry.check_processes()
        assert state(registry) == "lost"
        registry.terminate(("first",), 7)
        assert state(registry) == "terminated"

    def test_a_program_that_goes_on_is_running_again(self, registry: RunRegistry, clock: ScriptedClock) -> None:
        registry.terminate(("first",), 7)
        registry.accept(make_report(sequence=2), "unix", 7)
        clock.advance(1000)
        registry.check_processes()
        assert state(registry) == "running"

    @pytest.mark.parametrize(("seconds", "expected"), [(30, "terminated"), (3600, "lost")])
    def test_a_process_killed_in_the_grace_period_is_terminated(
        self, registry: RunRegistry, clock: ScriptedClock, set_process: SetProcess, seconds: float, expected: str
    ) -> None:
        registry.terminate(("first",), 7)
        registry.accept(make_report(sequence=2), "unix", 7)
        clock.advance(seconds)
        registry.accept(make_report(sequence=3), "unix", 7)
        set_process(7, None)
        registry.check_processes()
        assert state(registry) == expected

    @pytest.mark.parametrize(
        ("last_report", "patience", "expected"), [(20, 60, "terminated"), (700, 900, "lost")], ids=["within", "after"]
    )
    def test_an_unseen_process_is_terminated_by_its_silence_in_the_grace_period_and_lost_after_it(
        self, registry: RunRegistry, clock: ScriptedClock, last_report: float, patience: float, expected: str
    ) -> None:
        registry.accept(make_report(rank=1, session="hidden"), "udp")
        registry.terminate(("hidden",), None)
        clock.advance(last_report)
        registry.accept(make_report(rank=1, session="hidden", sequence=2), "udp")
        clock.advance(patience - 1)
        registry.check_processes()
        assert state(registry, rank="1") == "running"
        clock.advance(1)
        registry.check_processes()
        assert state(registry, rank="1") == expected
        registry.accept(make_report(rank=1, session="hidden", sequence=3), "udp")
        assert state(registry, rank="1") == "running"

    @pytest.mark.parametrize("last", ["finished", "failed"])
    def test_the_last_report_counts_more_than_the_notice(self, registry: RunRegistry, last: str) -> None:
        registry.terminate(("first",), 7)
        registry.accept(make_report(sequence=2, state=last), "unix", 7)
        registry.terminate(("first",), 7)
        assert state(registry) == last

    def test_another_process_can_not_end_a_session(self, registry: RunRegistry) -> None:
        for stranger in (8, None):
            registry.terminate(("first",), stranger)
            assert state(registry) == "running"

    @pytest.mark.parametrize(("pid_required", "expected"), [(False, "terminated"), (True, "running")])
    def test_a_process_that_can_not_be_seen_is_known_by_its_session_unless_signatures_are_required(
        self, registry: RunRegistry, pid_required: bool, expected: str
    ) -> None:
        registry.accept(make_report(rank=1, session="hidden"), "unix")
        registry.terminate(("hidden",), None, pid_required=pid_required)
        assert state(registry, rank="1") == expected

    def test_the_next_session_is_a_restart(self, registry: RunRegistry, set_process: SetProcess) -> None:
        registry.terminate(("first",), 7)
        set_process(8)
        registry.accept(make_report(session="second"), "unix", 8)
        assert state(registry) == "running"
        assert values(registry, "stallscope_training_restarts_total") == {("resnet50", "0"): 1}
        registry.terminate(("first",), 7)
        assert state(registry) == "running"


def test_a_trial_report_is_counted_and_checked_like_any_and_nothing_is_held_of_it(registry: RunRegistry) -> None:
    registry.accept(make_report(run=TRIAL_RUN), "unix")
    assert values(registry, "stallscope_exporter_reports_total")[("unix",)] == 1
    assert (registry.held, registry.changes) == ((), 0)
    assert refused(registry, make_report(run=TRIAL_RUN, rank=-1)).reason == "bad_field"


def test_collecting_goes_on_while_other_threads_report(registry: RunRegistry, clock: ScriptedClock) -> None:
    failures: list[Exception] = []

    def report_much(run: str) -> None:
        try:
            for rank in range(100):
                registry.accept(make_report(run=run, rank=rank), "unix")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=report_much, args=(run,)) for run in ("a", "b")]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        checked(registry.collect())
        registry.check_processes()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(registry.held) == 200


def test_collecting_reads_memory_only(tmp_path: Path, set_process: SetProcess) -> None:
    registry = RunRegistry(root=tmp_path / "root")
    set_process(7)
    registry.accept(make_report(), "unix", 7)
    set_process(7, None)
    assert state(registry) == "running"  # not checked yet


def test_the_registry_s_own_series_come_before_the_ranks_that_may_fill_the_page(registry: RunRegistry) -> None:
    registry.accept(make_report(), "unix")
    names = [sample.family.name for sample in registry.collect()]
    ranks_begin = next(number for number, name in enumerate(names) if name.startswith("stallscope_training_"))
    assert all(name.startswith("stallscope_exporter_") for name in names[:ranks_begin])
    assert "stallscope_exporter_runs" in names[:ranks_begin]
