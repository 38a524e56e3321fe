"""Reports that wait: the newest of each session is taken in, and nothing else is left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.intake.pending import Datagram, PassedFile, is_last, newest
from stallscope.node.intake.service import Intake, IntakeSettings
from stallscope.node.sampling.clock import ScriptedClock
from tests.intake.reports import make_report


def datagram(data: bytes, sender: object = 4242) -> Datagram:
    return Datagram(data, None, "", sender)


def report(number: int, session: str = "first", **more: object) -> bytes:
    """In the shim's format: rarely changing fields, then the number, then the rest."""
    heading = {"version": 1, "run": "resnet50", "rank": 0, "session": session, **more}
    return json.dumps({**heading, "sequence": number, "start": 1.5}, separators=(",", ":")).encode()


def late_rank(rank: int) -> bytes:
    """As another program may write it, that reports for two ranks."""
    return report(1).replace(b'"rank":0,', b"").replace(b"}", b',"rank":%d}' % rank)


def endless(digit: bytes) -> bytes:
    return report(1).partition(b'1,"start"')[0] + digit * 5000 + b"}"


def left(*datagrams: Datagram) -> list[bytes]:
    return [each.data for each in newest(datagrams)]


def test_of_what_the_shim_reports_only_the_newest_of_each_rank_is_left() -> None:
    clock, payloads = ScriptedClock(), {0: list[bytes](), 1: list[bytes]()}
    for rank, reported in payloads.items():
        run = SimulatedRun("resnet50", rank=rank, clock=clock, sender=reported.append)
        for _ in range(5):
            clock.advance(10)
            run.step()
        run.silence()
    assert all(len(reported) > 2 for reported in payloads.values())
    assert left(*[datagram(each) for reported in payloads.values() for each in reported]) == [
        payloads[0][-1],
        payloads[1][-1],
    ]


def test_one_that_comes_late_does_not_overtake() -> None:
    assert left(datagram(report(10)), datagram(report(9))) == [report(10)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(datagram(report(1)), datagram(report(2, session="second")), id="of another session"),
        pytest.param(datagram(report(1)), datagram(report(2), sender=4343), id="from another sender"),
        pytest.param(datagram(report(1)), datagram(report(2, restarts=1)), id="with another field before its number"),
        pytest.param(datagram(b"1 line\n" + report(1)), datagram(b"2 line\n" + report(2)), id="that is signed"),
        pytest.param(datagram(late_rank(0)), datagram(late_rank(1)), id="with its rank after its number"),
        pytest.param(datagram(endless(b"1")), datagram(endless(b"2")), id="whose number has no end"),
        pytest.param(datagram(b'{"sequence":1}'), datagram(b'{"sequence":2}'), id="that names no session"),
        pytest.param(datagram(report(1)), datagram(report(2)[:-1]), id="that is cut off"),
        pytest.param(datagram(b""), datagram(b""), id="that is empty"),
    ],
)
def test_a_report_is_overtaken_by_none(one: Datagram, other: Datagram) -> None:
    assert left(one, other) == [one.data, other.data]


def test_the_last_report_of_a_session_is_known_however_it_ends() -> None:
    for state in ("finished", "failed"):
        reported = list[bytes]()
        run = SimulatedRun("resnet50", clock=ScriptedClock(), sender=reported.append)
        run.step()
        run.finish(state)
        assert [is_last(each) for each in reported] == [False] * (len(reported) - 1) + [True]
        assert len(reported) > 1


def test_reports_that_were_overtaken_are_counted_as_arrived(tmp_path: Path) -> None:
    intake = Intake(IntakeSettings(socket=None, udp=None), root=tmp_path)
    intake.post(make_report())
    intake.registry.count_overtaken("unix", 3)
    arrived = {
        sample.labels: sample.value
        for sample in intake.collect()
        if sample.family.name == "stallscope_exporter_reports_total"
    }
    assert arrived == {("unix",): 3, ("udp",): 0, ("http",): 1}


def test_a_file_that_came_with_an_overtaken_report_stays_with_its_session() -> None:
    file = PassedFile(os.open(os.devnull, os.O_RDONLY))
    first = datagram(report(1))._replace(file=file)
    assert [each.file for each in newest([first, datagram(report(2)), datagram(report(1, "other"))])] == [file, None]
