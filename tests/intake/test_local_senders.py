"""Senders over the loopback interface: identified by the kernel's lists, never by what they claim."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallscope.node.intake.local_senders import Identity, LocalSenders
from stallscope.node.intake.receivers import UdpReceiver
from stallscope.node.intake.service import Intake, IntakeSettings
from tests.intake.reports import make_report
from tests.waiting import until

SENDER = """
import os, socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.connect(("127.0.0.1", int(sys.argv[1])))
for line in sys.stdin:
    sender.send(line.strip().replace("4242", str(os.getpid())).encode())
"""


@pytest.fixture
def sender() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.connect(("127.0.0.1", 9))
        yield opened


def test_the_process_of_a_report_over_loopback_is_known(sender: socket.socket) -> None:
    found = LocalSenders().identify(sender.getsockname(), make_report(pid=os.getpid()))
    assert found == Identity(os.getpid(), os.getuid())


@pytest.mark.parametrize("pid", [1, os.getppid(), 2**30], ids=["init", "parent", "no process"])
def test_a_report_that_claims_another_process_is_one_of_the_network(sender: socket.socket, pid: int) -> None:
    assert LocalSenders().identify(sender.getsockname(), make_report(pid=pid)) is None


def test_a_sender_of_another_machine_is_not_looked_up(sender: socket.socket) -> None:
    address = ("192.0.2.1", sender.getsockname()[1])
    assert LocalSenders().identify(address, make_report(pid=os.getpid())) is None


def test_a_notice_has_the_process_of_its_senders_report(sender: socket.socket) -> None:
    senders, address = LocalSenders(), sender.getsockname()
    assert senders.identify(address, b"Fatal Python error: Terminated") is None
    senders.identify(address, make_report(pid=os.getpid()))
    assert senders.identify(address, b"Fatal Python error: Terminated") == Identity(os.getpid(), os.getuid())


def test_a_port_that_gets_another_session_is_looked_up_again(sender: socket.socket) -> None:
    senders, address = LocalSenders(), sender.getsockname()
    assert senders.identify(address, make_report(pid=os.getpid())) is not None
    assert senders.identify(address, make_report(session="second", pid=1)) is None


def test_a_flood_of_sessions_is_not_looked_up_without_end(sender: socket.socket) -> None:
    senders = LocalSenders(monotonic=lambda: 5.0)
    found = [senders.identify(sender.getsockname(), make_report(session=f"s{i}", pid=os.getpid())) for i in range(200)]
    assert 0 < sum(each is not None for each in found) < 100


def test_where_the_lists_are_hidden_senders_are_of_the_network(sender: socket.socket, tmp_path: Path) -> None:
    assert LocalSenders(tmp_path).identify(sender.getsockname(), make_report(pid=os.getpid())) is None


@contextmanager
def program(port: int) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", SENDER, str(port)], stdin=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def say(child: subprocess.Popen[str], report: bytes) -> None:
    assert child.stdin is not None
    child.stdin.write(report.decode() + "\n")
    child.stdin.flush()


@contextmanager
def listening() -> Iterator[tuple[Intake, int]]:
    intake = Intake(IntakeSettings(socket=None, udp=("127.0.0.1", 0)))
    intake.start()
    try:
        (receiver,) = intake.receivers
        assert isinstance(receiver, UdpReceiver)
        yield intake, receiver.port
    finally:
        intake.stop()


def runs(intake: Intake) -> dict[str, str]:
    return {held.report.run: held.report.session for held in intake.registry.held}


ALONE = {"world_size": "1"}
FIRST = {"session": "first", "info": ALONE, "start": 1_600_000_000.0}
SECOND = {"session": "second", "info": ALONE, "start": 1_600_000_050.0}


def test_two_programs_with_one_run_name_over_udp_are_two_runs_as_through_the_socket() -> None:
    with listening() as (intake, port), program(port) as one, program(port) as two:
        say(one, make_report(**FIRST))
        until(lambda: len(runs(intake)) == 1)
        say(two, make_report(**SECOND))
        until(lambda: len(runs(intake)) == 2)
        say(one, make_report(**FIRST, sequence=2, steps=20))
        until(lambda: any(held.report.sequence == 2 for held in intake.registry.held))
        assert runs(intake) == {"resnet50": "first", f"resnet50-{two.pid}": "second"}
        assert [held.restarts for held in intake.registry.held] == [0, 0]
        rejected = [sample for sample in intake.collect() if "rejected" in sample.family.name and sample.value]
        assert not rejected


def test_a_program_that_is_started_again_over_udp_is_a_restart_as_through_the_socket() -> None:
    with listening() as (intake, port):
        with program(port) as one:
            say(one, make_report(**FIRST))
            until(lambda: len(runs(intake)) == 1)
        with program(port) as two:
            say(two, make_report(**SECOND))
            until(lambda: runs(intake) == {"resnet50": "second"})
        assert [held.restarts for held in intake.registry.held] == [1]


def test_a_program_that_is_killed_over_udp_is_lost_at_once() -> None:
    with listening() as (intake, port):
        with program(port) as one:
            say(one, make_report(**FIRST))
            until(lambda: len(runs(intake)) == 1)
        until(lambda: [held.state for held in intake.registry.held] == ["lost"])
