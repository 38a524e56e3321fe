"""Checks are made one after the other, and none takes the others along."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from stallscope.tools.doctor.checkup import Finding, Part, Stop, Subject, failed, ok, skipped
from tests.doctor.conftest import MakeSubject
from tests.doctor.web_servers import findings, statuses


def all_well(_: Subject) -> Iterator[Finding]:
    yield ok("fine")


def test_what_hangs_or_breaks_has_failed_and_the_rest_is_checked(make_subject: MakeSubject) -> None:
    over = threading.Event()

    def hangs(_: Subject) -> Iterator[Finding]:
        over.wait(60)
        yield ok("too late")

    def breaks(_: Subject) -> Iterator[Finding]:
        yield ok("begun")
        raise ValueError("no such thing")

    def can_not(_: Subject) -> list[Finding]:
        raise Stop(skipped("nothing there"))

    checks = (("hangs", hangs), ("breaks", breaks), ("can't", can_not), ("last", all_well))
    found = findings(Part("part", lambda subject: subject, checks, limit=2.0), make_subject())
    over.set()
    assert statuses(found) == {"hangs": {"failed"}, "breaks": {"failed"}, "can't": {"skipped"}, "last": {"ok"}}
    assert "within 2 s" in found["hangs"][0].message
    assert "no such thing" in found["breaks"][0].message


def test_of_a_part_that_is_not_there_nothing_more_is_checked(make_subject: MakeSubject) -> None:
    def begin(_: Subject) -> Subject:
        raise Stop(failed("not there", "look elsewhere"))

    found = findings(Part("part", begin, (("first", all_well),)), make_subject())
    assert statuses(found) == {"reachable": {"failed"}}


def test_a_part_that_breaks_at_its_beginning_has_failed(make_subject: MakeSubject) -> None:
    def begin(_: Subject) -> Subject:
        raise ValueError("no such thing")

    found = findings(Part("part", begin, (("first", all_well),)), make_subject())
    assert statuses(found) == {"reachable": {"failed"}}
    assert "no such thing" in found["reachable"][0].message
