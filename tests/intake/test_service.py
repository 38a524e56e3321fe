"""The report path as a whole: answers over HTTP, a restart without loss, fuzzing through every receiver."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallscope.node.intake.dispatcher import BatchLimits
from stallscope.node.intake.quotas import Limits
from stallscope.node.intake.receivers import UdpReceiver
from stallscope.node.intake.runs import REJECTION_REASONS
from stallscope.node.intake.service import Intake, IntakeSettings
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.reading import Distribution, Sample, checked
from stallscope.training.protocol.vocabulary import MAX_BYTES
from tests.intake.reports import make_report
from tests.waiting import until

SetProcess = Callable[..., None]
MakeIntake = Callable[..., Intake]


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "report.sock"


@pytest.fixture
def make_intake(tmp_path: Path, socket_path: Path, clock: ScriptedClock, root: Path) -> Iterator[MakeIntake]:
    made: list[Intake] = []

    def make(limits: Limits | None = None) -> Intake:
        intake = Intake(
            IntakeSettings(
                socket=socket_path,
                udp=("127.0.0.1", 0),
                state_file=tmp_path / "runs",
                limits=limits or Limits(),
                batches=BatchLimits(interval=0.0),
            ),
            clock=clock,
            root=root,
        )
        made.append(intake)
        return intake

    yield make
    for intake in made:
        intake.stop(timeout=60)


def value(intake: Intake, name: str, *labels: str) -> float | Distribution | None:
    return next((s.value for s in intake.collect() if s.family.name == name and s.labels == labels), None)


def arrived(intake: Intake) -> int:
    """Reports that came in through the UNIX receiver."""
    number = value(intake, "stallscope_exporter_reports_total", "unix")
    assert isinstance(number, (int, float))
    return int(number)


class TestPost:
    def test_a_report_is_taken_in(self, make_intake: MakeIntake) -> None:
        intake = make_intake()
        assert intake.post(make_report()) == (204, b"")
        assert value(intake, "stallscope_training_loss", "resnet50", "0") == 0.25
        assert value(intake, "stallscope_exporter_reports_total", "http") == 1

    @pytest.mark.parametrize(
        ("body", "status", "reason"),
        [
            (b"{", 400, "not_json"),
            (b"{}", 400, "missing_field"),
            (b"x" * (MAX_BYTES + 1), 413, "too_large"),
        ],
    )
    def test_a_refusal_says_why_in_json(self, make_intake: MakeIntake, body: bytes, status: int, reason: str) -> None:
        answer = make_intake().post(body)
        assert answer[0] == status
        content = json.loads(answer[1])
        assert set(content) == {"error", "message"}
        assert content["error"] == reason
        assert content["message"]

    def test_limits_and_superseded_sessions_have_their_own_status(self, make_intake: MakeIntake) -> None:
        intake = make_intake(Limits(runs=1, ranks_per_run=1))
        intake.post(make_report())
        assert intake.post(make_report(run="other"))[0] == 429
        assert intake.post(make_report(rank=1))[0] == 429
        assert intake.post(make_report(session="older", start=1.6e9))[0] == 409
        assert intake.post(make_report(sequence=2))[0] == 204


def _of_training(intake: Intake) -> list[Sample]:
    return [sample for sample in intake.collect() if sample.family.name.startswith("stallscope_training_")]


class TestRestart:
    def test_a_restart_of_the_exporter_loses_nothing(
        self, make_intake: MakeIntake, clock: ScriptedClock, set_process: SetProcess
    ) -> None:
        set_process(7)
        first = make_intake()
        first.start()
        first.registry.accept(make_report(session="zeroth", start=1.6e9), "unix", 7)
        first.registry.accept(make_report(), "unix", 7)
        first.post(make_report(rank=1, state="failed"))
        before = _of_training(first)
        first.stop(timeout=60)
        clock.advance(600)
        second = make_intake()
        second.start()
        after = _of_training(second)
        assert after == [each for each in before if each.family.type == "gauge"]
        second.registry.accept(make_report(sequence=2), "unix", 7)
        before = [each for each in before if each.labels[1] == "0" or each.family.type == "gauge"]
        clocks = ("stallscope_training_last_push_timestamp_seconds",)
        assert [each for each in _of_training(second) if each.family.name not in clocks] == [
            each for each in before if each.family.name not in clocks
        ]
        assert value(second, "stallscope_training_restarts_total", "resnet50", "0") == 1
        assert second.post(make_report(sequence=3, steps=9))[0] == 400  # still knows what came before
        set_process(7, None)
        clock.advance(300)
        second.run_housekeeping()
        assert value(second, "stallscope_training_state", "resnet50", "0", "lost") == 1
        assert value(second, "stallscope_training_state", "resnet50", "1", "failed") is None  # its time is over

    def test_after_a_kill_no_counter_is_below_what_was_scraped(
        self, make_intake: MakeIntake, clock: ScriptedClock, set_process: SetProcess
    ) -> None:
        """Prometheus would take the fall for a counter that begins again, and count all of it twice."""
        set_process(7)
        name = "stallscope_training_samples_total"
        killed = make_intake()
        killed.registry.accept(make_report(counters={"samples": 100.0}), "unix", 7)
        clock.advance(11)
        killed.run_housekeeping()  # writes the state file
        killed.registry.accept(make_report(sequence=2, counters={"samples": 200.0}), "unix", 7)
        assert value(killed, name, "resnet50", "0") == 200
        again = make_intake()
        again.start()
        assert value(again, name, "resnet50", "0") is None
        assert value(again, "stallscope_training_state", "resnet50", "0", "running") == 1
        again.registry.accept(make_report(sequence=3, counters={"samples": 300.0}), "unix", 7)
        assert value(again, name, "resnet50", "0") == 300

    def test_after_a_kill_the_end_of_a_former_session_exposes_no_counter(
        self, make_intake: MakeIntake, clock: ScriptedClock
    ) -> None:
        """The next session may have been scraped since, with lower counters: the former one would count again."""
        name = "stallscope_training_samples_total"
        killed = make_intake()
        killed.post(make_report(state="finished", counters={"samples": 1000.0}))
        clock.advance(11)
        killed.run_housekeeping()  # writes the state file
        killed.post(make_report(session="next", start=1_700_000_050.0, counters={"samples": 10.0}))
        assert value(killed, name, "resnet50", "0") == 10
        again = make_intake()
        again.start()
        assert value(again, name, "resnet50", "0") is None
        assert value(again, "stallscope_training_state", "resnet50", "0", "finished") == 1
        again.post(make_report(session="next", start=1_700_000_050.0, sequence=2, counters={"samples": 20.0}))
        assert value(again, name, "resnet50", "0") == 20

    def test_a_rank_that_ended_without_an_exporter_is_lost_on_the_first_page(
        self, make_intake: MakeIntake, clock: ScriptedClock, set_process: SetProcess
    ) -> None:
        set_process(7)
        first = make_intake()
        first.start()
        first.registry.accept(make_report(), "unix", 7)
        first.stop(timeout=60)
        set_process(7, None)
        clock.advance(100)
        again = make_intake()
        again.start()
        assert value(again, "stallscope_training_state", "resnet50", "0", "lost") == 1
        assert value(again, "stallscope_training_state", "resnet50", "0", "running") == 0
        assert value(again, "stallscope_training_samples_total", "resnet50", "0") is None

    def test_a_kill_loses_no_more_than_the_last_seconds(self, make_intake: MakeIntake, clock: ScriptedClock) -> None:
        killed = make_intake()
        killed.post(make_report())
        killed.run_housekeeping()
        clock.advance(10)
        killed.run_housekeeping()
        killed.post(make_report(sequence=2))  # comes after the last save
        after = make_intake()
        after.start()
        assert [held.report.sequence for held in after.registry.held] == [1]

    def test_the_state_file_is_written_only_after_a_change(
        self, make_intake: MakeIntake, clock: ScriptedClock, tmp_path: Path
    ) -> None:
        def save() -> int:
            clock.advance(10)
            intake.run_housekeeping()
            return (tmp_path / "runs").stat().st_ino  # each is written beside the one before, and takes its place

        intake = make_intake()
        intake.post(make_report())
        first = save()
        assert save() == first
        intake.post(make_report(sequence=2))
        assert save() != first

    def test_what_reported_since_is_not_overwritten_by_the_past(self, make_intake: MakeIntake) -> None:
        first = make_intake()
        first.start()
        first.post(make_report())
        first.stop(timeout=60)
        second = make_intake()
        second.post(make_report(sequence=5))
        second.start()
        assert [held.report.sequence for held in second.registry.held] == [5]

    def test_a_lower_limit_holds_for_the_past_as_well(self, make_intake: MakeIntake) -> None:
        first = make_intake()
        first.start()
        for rank in range(5):
            first.post(make_report(rank=rank))
        first.stop(timeout=60)
        second = make_intake(Limits(ranks=3))
        second.start()
        assert len(second.registry.held) == 3
        assert value(second, "stallscope_exporter_reports_rejected_total", "rank_limit") == 2


def test_reports_come_in_through_both_sockets(
    make_intake: MakeIntake, socket_path: Path, set_process: SetProcess
) -> None:
    set_process(os.getpid())
    intake = make_intake()
    intake.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(make_report(), str(socket_path))
    port = next(receiver.port for receiver in intake.receivers if isinstance(receiver, UdpReceiver))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(make_report(rank=1), ("127.0.0.1", port))
    until(lambda: len(intake.registry.held) == 2)
    processes = {held.report.rank: held.process for held in intake.registry.held}
    assert processes[0] == (os.getpid(), 5000)
    assert processes[1] is None
    assert value(intake, "stallscope_exporter_reports_total", "unix") == 1
    assert value(intake, "stallscope_exporter_reports_total", "udp") == 1


def test_a_receiver_is_up_while_its_address_is_its_own_and_absent_where_it_is_switched_off(
    tmp_path: Path, root: Path
) -> None:
    up = "stallscope_exporter_receiver_up"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as occupant:
        occupant.bind(("127.0.0.1", 0))
        intake = Intake(IntakeSettings(socket=tmp_path / "report.sock", udp=occupant.getsockname()), root=root)
        intake.start()
        assert (value(intake, up, "unix"), value(intake, up, "udp")) == (1, 0)
    until(lambda: value(intake, up, "udp") == 1)
    intake.stop(timeout=60)
    assert value(Intake(IntakeSettings(socket=None, udp=None), root=root), up, "udp") is None


def test_house_is_kept_by_itself(root: Path) -> None:
    intake = Intake(IntakeSettings(socket=None, udp=None), root=root)
    intake.registry.accept(make_report(), "unix", 7)  # whose process is no more
    intake.start()
    until(lambda: value(intake, "stallscope_training_state", "resnet50", "0", "lost") == 1)
    intake.stop(timeout=60)


def test_stopping_ends_every_thread_and_may_come_first(make_intake: MakeIntake, socket_path: Path) -> None:
    make_intake().stop()
    before = set(threading.enumerate())
    intake = make_intake()
    intake.start()
    assert {thread.name for thread in set(threading.enumerate()) - before} == {
        "receiver-unix",
        "receiver-udp",
        "intake",
    }
    intake.stop(timeout=60)
    assert not set(threading.enumerate()) - before
    assert not socket_path.exists()


@pytest.mark.usefixtures("nothing_collected")
class TestFuzz:
    """No datagram and no body kills the exporter, loses a held run, or makes it hold more than its limits."""

    LIMITS = Limits(runs=4, ranks_per_run=3, ranks=6, value_names_per_run=4)

    @pytest.fixture
    def intake(self, make_intake: MakeIntake) -> Intake:
        intake = make_intake(self.LIMITS)
        intake.start()
        assert intake.post(make_report(run="held", sequence=2**40, start=1.7e9 + 3599, session="held"))[0] == 204
        return intake

    def check(self, intake: Intake) -> None:
        held = intake.registry.held
        assert ("held", "held", 0.25) in {
            (each.report.run, each.report.session, each.report.gauges.get("loss")) for each in held
        }
        runs = [each.report.run for each in held]
        assert len(held) <= self.LIMITS.ranks
        assert len(set(runs)) <= self.LIMITS.runs
        assert all(runs.count(run) <= self.LIMITS.ranks_per_run for run in runs)
        checked(intake.collect())
        rejected = {
            sample.labels[0] for sample in intake.collect() if sample.family.name.endswith("reports_rejected_total")
        }
        assert rejected == set(REJECTION_REASONS)

    JSON = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=10,
    )
    GARBAGE = st.one_of(
        st.binary(max_size=200),
        JSON.map(lambda value: json.dumps(value).encode()),
        st.sampled_from([b"[" * 30_000, b'{"run":' * 4_000, b" " * 40_000, b"9" * 30_000, b'{"version":1}']),
    )
    CHANGES = st.fixed_dictionaries(
        {},
        optional={
            "run": st.sampled_from(["a", "b", "c", "d", "e", "held", "\n"]),
            "rank": st.integers(-1, 8),
            "session": st.sampled_from(["first", "second", "held"]),
            "sequence": st.integers(0, 5),
            "start": st.floats(1.6e9, 1.8e9),
            "state": st.sampled_from(["starting", "running", "finished", "failed", "lost"]),
            "values": st.dictionaries(st.sampled_from("abcdefgh"), st.floats(), max_size=6),
            "steps": st.integers(0, 20),
            "counters": JSON,
            "phases": JSON,
            "gpus": JSON,
        },
    ).filter(lambda changes: changes.get("run") != "held" or changes.get("rank", 0) != 0)

    @given(garbage=st.lists(GARBAGE, max_size=4), changes=st.lists(CHANGES, max_size=6), data=st.data())
    @settings(
        max_examples=150,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        deadline=None,
    )
    def test_over_http(
        self,
        intake: Intake,
        clock: ScriptedClock,
        garbage: list[bytes],
        changes: list[dict[str, object]],
        data: st.DataObject,
    ) -> None:
        bodies = [*garbage, *(make_report(**change) for change in changes)]
        for body in bodies:
            cut = data.draw(st.integers(0, 3))
            status, answer = intake.post(body[: len(body) - cut])
            assert status in (204, 400, 409, 413, 429)
            assert (status == 204) == (answer == b"")
        intake.run_housekeeping()
        self.check(intake)

    @given(garbage=st.lists(GARBAGE, max_size=4), changes=st.lists(CHANGES, max_size=6))
    @settings(
        max_examples=60,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        deadline=None,
    )
    def test_through_the_sockets(
        self, intake: Intake, socket_path: Path, garbage: list[bytes], changes: list[dict[str, object]]
    ) -> None:
        datagrams = [*garbage, *(make_report(**change) for change in changes)]
        before = arrived(intake)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for datagram in datagrams:
                sender.sendto(datagram, str(socket_path))
        until(lambda: arrived(intake) == before + len(datagrams))
        self.check(intake)
