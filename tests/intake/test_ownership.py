"""A run belongs to the user whose processes report it: no other user can take it over, end it or hide it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stallscope.node.intake.journal import Journal
from stallscope.node.intake.runs import RunRegistry, Transport
from stallscope.node.intake.service import Intake, IntakeSettings
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.report import ReportError
from tests.intake.conftest import SetProcess
from tests.intake.reports import make_report

OWNER, OTHER = 1001, 1002
RUN = "resnet50"
LATER = 1_700_000_050.0
EARLIER = 1_699_999_900.0


@pytest.fixture
def owned(registry: RunRegistry, set_process: SetProcess) -> RunRegistry:
    """A run of two ranks, whose processes are alive."""
    for rank in range(2):
        set_process(41 + rank)
        registry.accept(make_report(rank=rank, session=f"rank{rank}"), "unix", 41 + rank, uid=OWNER)
    set_process(51)
    return registry


def states(registry: RunRegistry) -> dict[tuple[str, int], tuple[str, str]]:
    """Session and state of each rank."""
    return {(held.report.run, held.report.rank): (held.report.session, held.report.state) for held in registry.held}


MINE = {(RUN, 0): ("rank0", "running"), (RUN, 1): ("rank1", "running")}
ATTACKS: dict[str, dict[str, object]] = {
    "an end": {"session": "rank0", "sequence": 9, "state": "failed"},
    "a report of the owner's session": {"session": "rank0", "sequence": 9},
    "a far sequence number": {"session": "rank0", "sequence": 10**12},
}
TAKEOVERS: dict[str, dict[str, object]] = {
    "a later start": {"session": "evil", "start": LATER},
    "a finished session": {"session": "evil", "start": LATER, "state": "finished"},
    "the world of one rank": {"session": "evil", "start": LATER, "info": {"world_size": "1"}},
    "a rank that the run does not have yet": {"session": "evil", "start": LATER, "rank": 7},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_session_of_another_user_is_refused(owned: RunRegistry, attack: str) -> None:
    with pytest.raises(ReportError, match="belongs to a live process of user 1001") as refused:
        owned.accept(make_report(**ATTACKS[attack]), "unix", 51, uid=OTHER)
    assert refused.value.reason == "not_owner"
    assert states(owned) == MINE


@pytest.mark.parametrize("attack", TAKEOVERS)
def test_another_users_run_of_the_name_is_shown_beside_it(owned: RunRegistry, attack: str) -> None:
    changes = TAKEOVERS[attack]
    owned.accept(make_report(**changes), "unix", 51, uid=OTHER)
    rank, state = int(str(changes.get("rank", 0))), str(changes.get("state", "running"))
    assert states(owned) == {**MINE, (f"{RUN}-{OTHER}", rank): ("evil", state)}


@pytest.mark.parametrize("transport", ["udp", "http"])
@pytest.mark.parametrize(
    "changes",
    [*ATTACKS.values(), *(each for each in TAKEOVERS.values() if "rank" not in each)],
    ids=[*ATTACKS, *(name for name, each in TAKEOVERS.items() if "rank" not in each)],
)
def test_a_sender_on_the_network_takes_no_rank_that_is_seen_alive(
    owned: RunRegistry, transport: str, changes: dict[str, object]
) -> None:
    with pytest.raises(ReportError) as refused:
        owned.accept(make_report(**changes), transport)  # type: ignore[arg-type]
    assert refused.value.reason == "not_owner"
    assert states(owned) == MINE


ALONE: dict[str, object] = {"info": {"world_size": "1"}}


@pytest.mark.parametrize("transport", ["udp", "http"])
@pytest.mark.parametrize("first", ["local", "network"])
def test_runs_of_one_rank_here_and_on_the_network_are_both_shown(
    registry: RunRegistry, set_process: SetProcess, caplog: pytest.LogCaptureFixture, transport: Transport, first: str
) -> None:
    set_process(41)
    reports = ["local", "network", "local", "network"] if first == "local" else ["network", "local", "network", "local"]
    for sequence, sender in enumerate(reports):
        report = make_report(session=sender, sequence=sequence, start=LATER, **ALONE)
        if sender == "local":
            registry.accept(report, "unix", 41, uid=OWNER)
        else:
            registry.accept(report, transport)
    assert states(registry) == {(RUN, 0): ("local", "running"), (f"{RUN}-network", 0): ("network", "running")}
    assert f"the second one is shown as run '{RUN}-network'" in caplog.text


def from_container(session: str, sequence: int, start: float, sent: float, **changes: object) -> bytes:
    """Return a report of process 1 of a container, which the exporter does not see."""
    return make_report(session=session, sequence=sequence, pid=1, start=start, sent=sent, **{**ALONE, **changes})


@pytest.mark.parametrize("transport", ["udp", "http", "unix"])
def test_programs_of_one_name_in_several_containers_are_runs_of_their_own(
    registry: RunRegistry, transport: Transport
) -> None:
    uid = OWNER if transport == "unix" else None
    for second in range(0, 60, 5):
        for number, session in enumerate(("first", "second", "third")):
            if second >= 10 * number:
                report = from_container(session, second, EARLIER + 10 * number, EARLIER + second + 1)
                registry.accept(report, transport, uid=uid)
    found = {held.report.run: (held.report.session, held.restarts) for held in registry.held}
    assert found == {RUN: ("third", 0), f"{RUN}-first": ("first", 0), f"{RUN}-second": ("second", 0)}
    assert not [each for each in registry.collect() if "rejected" in each.family.name and each.value]


@pytest.mark.parametrize(
    "late",
    [
        pytest.param({"sent": LATER + 9}, id="a report that arrives late"),
        pytest.param({"sent": LATER + 11, "state": "failed"}, id="its end"),
        pytest.param({"sent": LATER + 15, "info": {"world_size": "8"}}, id="a rank of a larger run"),
    ],
)
def test_a_container_that_is_started_again_is_a_restart(registry: RunRegistry, late: dict[str, object]) -> None:
    registry.accept(from_container("first", 1, LATER, LATER + 5), "udp")
    registry.accept(from_container("second", 1, LATER + 10, LATER + 12), "udp")
    with pytest.raises(ReportError, match="has a session that started later"):
        registry.accept(from_container("first", 2, LATER, **late), "udp")  # type: ignore[arg-type]
    assert [(held.key, held.report.session, held.restarts) for held in registry.held] == [((RUN, 0), "second", 1)]


def test_a_run_on_the_network_keeps_its_name_after_the_local_one_ended(
    registry: RunRegistry, set_process: SetProcess
) -> None:
    set_process(41)
    registry.accept(make_report(**ALONE), "unix", 41, uid=OWNER)
    registry.accept(make_report(session="network", **ALONE), "udp")
    set_process(41, None)
    registry.check_processes()
    registry.accept(make_report(session="network", sequence=2, **ALONE), "udp")
    assert states(registry) == {(RUN, 0): ("first", "running"), (f"{RUN}-network", 0): ("network", "running")}


@pytest.mark.parametrize("first", ["local", "network"])
def test_a_clash_that_hides_a_rank_on_the_network_is_counted_and_logged(
    clock: ScriptedClock, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    intake = Intake(IntakeSettings(socket=None, udp=None), clock=clock)
    for sender in ("local", "network") if first == "local" else ("network", "local"):
        if sender == "local":
            intake.registry.accept(make_report(), "unix", uid=OWNER)
        else:
            intake.post(make_report(session="network"), "192.0.2.7")
    status, _answer = intake.post(make_report(session="network", sequence=2), "192.0.2.7")
    assert status == 403
    assert states(intake.registry) == {(RUN, 0): ("first", "running")}
    assert [
        each.value
        for each in intake.collect()
        if each.family.name == "stallscope_exporter_reports_rejected_total" and each.labels == ("not_owner",)
    ] == [2 if first == "local" else 1]
    assert "refused a report through HTTP from 192.0.2.7 (not_owner): run 'resnet50' rank 0 belongs to" in caplog.text


def test_no_run_is_shown_under_a_name_that_is_another_users(registry: RunRegistry, set_process: SetProcess) -> None:
    """A user who owns two uids, or aims at a pid, could choose under which name a run is shown."""
    victims = {41: f"train-{OTHER}", 42: "train-53", 43: "train-network"}
    for pid, run in victims.items():
        set_process(pid)
        registry.accept(make_report(run=run, session=run, **ALONE), "unix", pid, uid=OWNER)
    before = states(registry)
    for intruder in (51, 52, 53):
        set_process(intruder)
    registry.accept(make_report(run="train", session="bait", **ALONE), "unix", 51, uid=1003)
    attacks: list[tuple[Transport, int | None, int | None]] = [
        ("unix", 52, OTHER),  # would be train-1002
        ("unix", 53, 1003),  # would be train-53
        ("http", None, None),  # would be train-network
    ]
    for rank in (0, 7):
        registry.accept(make_report(run="train", rank=rank, session=f"bait{rank}", **ALONE), "unix", 51, uid=1003)
        for transport, sender, uid in attacks:
            evil = make_report(run="train", rank=rank, session="evil", start=LATER, **ALONE)
            with pytest.raises(ReportError) as refused:
                registry.accept(evil, transport, sender, uid=uid)
            assert refused.value.reason == "not_owner"
    assert {key: each for key, each in states(registry).items() if key[0] != "train"} == before


@pytest.mark.parametrize("uid", [OTHER, None])
def test_a_notice_of_a_signal_from_another_user_ends_nothing(registry: RunRegistry, uid: int | None) -> None:
    """Where /proc hides processes, no pid identifies the sender of a notice."""
    registry.accept(make_report(), "unix", None, uid=OWNER)
    registry.terminate(("first",), None, uid)
    assert states(registry) == {(RUN, 0): ("first", "running")}
    registry.terminate(("first",), None, OWNER)
    assert states(registry) == {(RUN, 0): ("first", "terminated")}


def test_ranks_on_other_machines_join_a_run(owned: RunRegistry) -> None:
    owned.accept(make_report(rank=7, session="rank7"), "udp")
    assert states(owned) == {**MINE, (RUN, 7): ("rank7", "running")}


def test_the_owner_restarts_and_adds_ranks_under_the_name(owned: RunRegistry, set_process: SetProcess) -> None:
    owned.accept(make_report(session="again", start=LATER), "unix", 51, uid=OWNER)
    set_process(52)
    owned.accept(make_report(rank=2, session="rank2"), "unix", 52, uid=OWNER)
    assert states(owned) == {**MINE, (RUN, 0): ("again", "running"), (RUN, 2): ("rank2", "running")}


def test_a_name_is_free_once_no_process_of_its_run_is_alive(owned: RunRegistry, set_process: SetProcess) -> None:
    for pid in (41, 42):
        set_process(pid, None)
    owned.accept(make_report(session="next", start=LATER), "unix", 51, uid=OTHER)
    assert states(owned)[RUN, 0] == ("next", "running")


def test_a_local_process_takes_its_place_from_a_sender_on_the_network(
    registry: RunRegistry, set_process: SetProcess
) -> None:
    registry.accept(make_report(session="squatter", start=LATER), "udp")
    set_process(41)
    registry.accept(make_report(session="mine"), "unix", 41, uid=OWNER)
    assert states(registry) == {(RUN, 0): ("mine", "running")}
    with pytest.raises(ReportError):
        registry.accept(make_report(session="squatter", start=LATER, sequence=2), "udp")
    assert states(registry) == {(RUN, 0): ("mine", "running")}


def test_a_displaced_session_returns_once_the_one_that_took_its_place_is_gone(
    registry: RunRegistry, set_process: SetProcess
) -> None:
    """Two jobs of one user: the newer one counts, for as long as it lives."""
    set_process(41)
    set_process(42)
    registry.accept(make_report(), "unix", 41, uid=OWNER)
    registry.accept(make_report(session="second", start=LATER), "unix", 42, uid=OWNER)
    with pytest.raises(ReportError):
        registry.accept(make_report(sequence=2), "unix", 41, uid=OWNER)
    set_process(42, None)
    registry.accept(make_report(sequence=3), "unix", 41, uid=OWNER)
    assert states(registry) == {(RUN, 0): ("first", "running")}
    assert [held.restarts for held in registry.held] == [0]


def test_a_rank_whose_process_is_hidden_belongs_to_its_user_until_it_is_lost(
    registry: RunRegistry, clock: ScriptedClock
) -> None:
    """An exporter in a container without the host's processes is given the uid alone."""
    registry.accept(make_report(), "unix", None, uid=OWNER)
    registry.accept(make_report(session="evil", start=LATER), "unix", None, uid=OTHER)
    with pytest.raises(ReportError):
        registry.accept(make_report(session="evil", start=LATER), "udp")
    assert states(registry) == {(RUN, 0): ("first", "running"), (f"{RUN}-{OTHER}", 0): ("evil", "running")}
    clock.advance(registry.expiry)
    registry.check_processes()
    registry.accept(make_report(session="next", start=LATER), "unix", None, uid=OTHER)
    assert states(registry)[RUN, 0] == ("next", "running")


def test_another_users_run_keeps_its_name_after_the_first_ended_and_the_exporter_restarted(
    owned: RunRegistry, set_process: SetProcess, clock: ScriptedClock, root: Path, tmp_path: Path
) -> None:
    owned.accept(make_report(session="other", start=LATER), "unix", 51, uid=OTHER)
    journal = Journal(tmp_path / "state", clock=clock, root=root)
    assert journal.save(owned.held)
    again = RunRegistry(clock=clock, root=root)
    again.restore(journal.load())
    for registry in (owned, again):
        with pytest.raises(ReportError):
            registry.accept(make_report(session="rank0", sequence=9, state="failed"), "unix", 51, uid=OTHER)
    for pid in (41, 42):
        set_process(pid, None)
    for registry in (owned, again):
        registry.check_processes()
        registry.accept(make_report(session="other", start=LATER, sequence=2), "unix", 51, uid=OTHER)
        assert states(registry)[f"{RUN}-{OTHER}", 0] == ("other", "running")
        assert states(registry)[RUN, 0][0] == "rank0"


@pytest.mark.parametrize(("lead", "refused"), [(30.0, False), (120.0, True)])
def test_a_local_session_does_not_start_in_the_future(
    registry: RunRegistry, clock: ScriptedClock, set_process: SetProcess, lead: float, refused: bool
) -> None:
    set_process(41)
    report = make_report(start=clock.time() + lead)
    if not refused:
        registry.accept(report, "unix", 41, uid=OWNER)
        return
    with pytest.raises(ReportError, match="ahead of this machine's clock"):
        registry.accept(report, "unix", 41, uid=OWNER)


SEND = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
    sender.sendto(sys.stdin.buffer.read(), sys.argv[1])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can send as another user")
def test_the_kernel_says_who_sends_through_a_real_socket() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to other users
        Path(folder).chmod(0o755)
        found = _sent_by_two_users(Path(folder) / "s")
    assert found == {RUN: ("first", 0), f"{RUN}-65534": ("evil", 65534)}


def _sent_by_two_users(path: Path) -> dict[str, tuple[str, int | None]]:
    intake = Intake(IntakeSettings(socket=path, udp=None))
    intake.start()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(make_report(start=1_600_000_000.0), str(path))
        stolen = make_report(session="evil", start=1_600_000_050.0)
        subprocess.run([sys.executable, "-c", SEND, str(path), "65534"], input=stolen, check=True)
    finally:
        intake.stop(timeout=60)  # takes in what has arrived
    return {held.report.run: (held.report.session, held.uid) for held in intake.registry.held}
