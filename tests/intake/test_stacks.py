from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stallscope.node.intake.pending import PassedFile
from stallscope.node.intake.receivers import UnixReceiver
from stallscope.node.intake.runs import RunRegistry
from stallscope.node.intake.stacks import StackFiles
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.stack_file import STACKS_HEADER, STACKS_SIZE
from tests.intake.reports import make_report

HEADER = STACKS_HEADER % 16
STACK = b'Thread 0x0000000000000010 (most recent call first):\n  File "/home/me/job/train.py", line 88 in step\n'
SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
KEY = ("resnet50", 0)


class Rank:
    """A rank that reports, and leaves stacks at a time of the scripted clock."""

    def __init__(self, registry: RunRegistry, files: StackFiles, clock: ScriptedClock, number: int = 0) -> None:
        self._registry, self._files, self._clock = registry, files, clock
        self._number, self._sequence = number, 0
        self.file = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.file, STACKS_SIZE)
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, SEALS)

    def report(self, file: int | None = None, **changes: object) -> None:
        self._sequence += 1
        fields = {"rank": self._number, "sequence": self._sequence, "session": f"session-{self._number}", **changes}
        report = self._registry.accept(make_report(**fields), "unix", uid=1000)
        self._files.keep(report, PassedFile(os.dup(self.file if file is None else file)))

    def leave(self, text: bytes) -> None:
        os.pwrite(self.file, (HEADER + text).ljust(4096, b"\0"), 0)
        os.utime(self.file, (self._clock.time(), self._clock.time()))
        self._clock.advance(1.0)
        self._files.refresh()

    def __del__(self) -> None:
        os.close(self.file)


@pytest.fixture
def files(registry: RunRegistry, clock: ScriptedClock) -> StackFiles:
    return StackFiles(registry, clock=clock)


@pytest.fixture
def rank(registry: RunRegistry, files: StackFiles, clock: ScriptedClock) -> Rank:
    return Rank(registry, files, clock)


def labels(files: StackFiles) -> list[tuple[str, ...]]:
    return [sample.labels for sample in files.collect()]


def test_a_standstill_is_on_the_page_until_the_rank_reports_again(
    rank: Rank, files: StackFiles, clock: ScriptedClock
) -> None:
    rank.report()
    assert labels(files) == []
    clock.advance(60.0)
    at = clock.time()
    rank.leave(b"Standstill\n" + STACK)
    left = files.of(KEY)
    assert left is not None
    assert left.at == pytest.approx(at, abs=0.001)
    assert labels(files) == [("resnet50", "0", "job/train.py:88", "step", "")]
    rank.report()
    assert labels(files) == []
    rank.leave(b"")
    assert files.of(KEY) is None


def test_requested_stacks_stay_and_are_not_on_the_page(rank: Rank, files: StackFiles) -> None:
    rank.report()
    rank.leave(b"Sample\n" + STACK)
    rank.leave(b"")
    left = files.of(KEY)
    assert left is not None
    assert len(left.capture.stacks) == 1
    assert labels(files) == []


def test_an_invalid_file_leaves_the_rank_as_it_is(rank: Rank, files: StackFiles, registry: RunRegistry) -> None:
    rank.report()
    os.pwrite(rank.file, b"\xff" * STACKS_SIZE, 0)
    os.utime(rank.file, (1, 1))
    files.refresh()
    assert files.of(KEY) is None
    assert [held.state for held in registry.held] == ["running"]


@pytest.mark.parametrize("kind", ["unsealed", "short", "pipe", "folder", "disk"])
def test_a_file_that_could_block_or_change_its_size_is_refused(
    kind: str, rank: Rank, files: StackFiles, clock: ScriptedClock, tmp_path: Path
) -> None:
    opened: list[int] = []
    if kind == "pipe":
        opened += os.pipe()
    elif kind == "folder":
        opened.append(os.open(tmp_path, os.O_RDONLY))
    elif kind == "disk":
        (tmp_path / "file").write_bytes(bytes(STACKS_SIZE))
        opened.append(os.open(tmp_path / "file", os.O_RDONLY))
    else:
        opened.append(os.memfd_create("test", os.MFD_ALLOW_SEALING))
        os.ftruncate(opened[0], STACKS_SIZE - (kind == "short"))
        os.pwrite(opened[0], HEADER + b"Standstill\n" + STACK, 0)
        if kind == "short":
            fcntl.fcntl(opened[0], fcntl.F_ADD_SEALS, SEALS)
    rank.report(opened[0])
    clock.advance(1e9)
    files.refresh()
    assert files.of(KEY) is None
    for each in opened:
        os.close(each)


def test_files_are_closed_when_their_rank_ends_or_passes_the_same_again(rank: Rank, files: StackFiles) -> None:
    before = open_files(rank.file)
    for _ in range(5):
        rank.report()
    assert open_files(rank.file) == before + 1
    rank.leave(b"Standstill\n" + STACK)
    rank.report(state="finished")
    files.refresh()
    assert open_files(rank.file) == before
    assert (files.of(KEY), labels(files)) == (None, [])


def test_the_number_of_files_is_limited(registry: RunRegistry, files: StackFiles, clock: ScriptedClock) -> None:
    files.most = 2
    ranks = [Rank(registry, files, clock, number) for number in range(4)]
    for each in ranks:
        each.report()
        each.leave(b"Standstill\n" + STACK)
    assert [row[1] for row in labels(files)] == ["0", "1"]


def open_files(file: int) -> int:
    """Return how many descriptors refer to the same file. Threads of other tests may open and close other files."""
    number = 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            number += os.path.samestat(os.fstat(int(path.name)), os.fstat(file))
    return number


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[UnixReceiver]:
    receiver = UnixReceiver(tmp_path / "report.sock")
    assert receiver.open()
    yield receiver
    receiver.close()


def test_one_file_of_a_datagram_is_taken_and_the_others_are_closed(receiver: UnixReceiver) -> None:
    sent = os.memfd_create("sent")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        descriptors = sent.to_bytes(4, "little") * 5
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)
        sender.sendmsg([b"{}"], [rights], 0, receiver.address)
        sender.sendto(b"{}", receiver.address)
    with_file, without = [receiver.read(received) for _ in range(2) if (received := receiver.receive(wait=True))]
    assert open_files(sent) == 2
    assert with_file.file is not None
    assert not os.get_inheritable(with_file.file.descriptor)
    assert (with_file.pid, with_file.uid) == (os.getpid(), os.getuid())
    assert without.file is None
    del with_file
    assert open_files(sent) == 1
    os.close(sent)
