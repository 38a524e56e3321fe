"""The datagram receivers, through real sockets."""

from __future__ import annotations

import os
import queue
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from stallscope.common.address import all_interfaces
from stallscope.node.intake.dispatcher import BatchLimits, Dispatcher
from stallscope.node.intake.receivers import Receiver, UdpReceiver, UnixReceiver
from stallscope.node.intake.runs import Transport
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol.report import ReportError
from stallscope.training.protocol.vocabulary import MAX_BYTES
from tests.waiting import until

Arrival = tuple[bytes, Transport, int | None]

AT_ONCE = BatchLimits(interval=0.0)
PATIENT = BatchLimits(cpu_share=1e-9, interval=60.0)
"""After the first report, batches take longer than a test."""
CHECK_INTERVAL = 0.02


class Reception:
    """Notes what arrives; refuses what says so."""

    def __init__(self) -> None:
        self.arrivals: queue.Queue[Arrival] = queue.Queue()

    def accept(self, data: bytes, transport: Transport, pid: int | None, _uid: int | None = None) -> None:
        self.arrivals.put((data, transport, pid))
        if data.startswith(b"refuse"):
            raise ReportError(data.decode(), "because")
        if data == b"break":
            raise RuntimeError("broken")

    def next(self) -> Arrival:
        return self.arrivals.get(timeout=60)


@pytest.fixture
def reception() -> Reception:
    return Reception()


@contextmanager
def opened(
    reception: Reception,
    *receivers: Receiver,
    limits: BatchLimits = AT_ONCE,
    check_interval: float = 1.0,
) -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(receivers, reception.accept, limits=limits, check_interval=check_interval)
    dispatcher.start()
    try:
        yield dispatcher
    finally:
        dispatcher.stop(timeout=60)


def send(path: Path, *datagrams: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for datagram in datagrams:
            sender.sendto(datagram, str(path))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "report.sock"


def test_a_unix_datagram_arrives_with_the_senders_pid(reception: Reception, path: Path) -> None:
    code = f"import socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'hello', {str(path)!r})"
    with opened(reception, UnixReceiver(path)), subprocess.Popen([sys.executable, "-c", code]) as child:
        assert reception.next() == (b"hello", "unix", child.pid)


@pytest.mark.skipif(all_interfaces() != "::", reason="this machine has no IPv6")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_without_a_host_reports_arrive_over_ipv4_and_ipv6(
    reception: Reception, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = UdpReceiver("", 0)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with opened(reception, receiver), socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"refuse", (address, receiver.port))
        assert reception.next() == (b"refuse", "udp", None)
        until(lambda: f" from {address} " in caplog.text)


def test_on_a_machine_without_ipv6_reports_without_a_host_arrive_over_ipv4(
    reception: Reception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "AF_INET6", 12345)
    receiver = UdpReceiver("", 0)
    with opened(reception, receiver), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"hello", ("127.0.0.1", receiver.port))
        assert reception.next() == (b"hello", "udp", None)


def test_a_udp_datagram_arrives_without_pid(reception: Reception) -> None:
    receiver = UdpReceiver("127.0.0.1", 0)
    with opened(reception, receiver), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"hello", ("127.0.0.1", receiver.port))
        assert reception.next() == (b"hello", "udp", None)


def test_the_longest_report_arrives_whole_and_a_longer_one_is_seen_to_be_longer(
    reception: Reception, path: Path
) -> None:
    receiver = UdpReceiver("127.0.0.1", 0)
    with opened(reception, UnixReceiver(path), receiver), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for size in (MAX_BYTES, MAX_BYTES + 1, MAX_BYTES + 1000):
            send(path, b"x" * size)
            assert len(reception.next()[0]) == min(size, MAX_BYTES + 1)
            sender.sendto(b"x" * size, ("127.0.0.1", receiver.port))
            assert len(reception.next()[0]) == min(size, MAX_BYTES + 1)


def test_neither_a_refusal_nor_a_fault_nor_an_empty_datagram_stops_the_receivers(
    reception: Reception, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(reception, UnixReceiver(path)):
        send(path, b"refuse", b"break", b"", b"hello")
        assert [reception.next()[0] for _ in range(4)] == [b"refuse", b"break", b"", b"hello"]
    assert "refused a report through" in caplog.text
    assert "RuntimeError: broken" in caplog.text


def test_refusals_are_logged_once_a_minute_and_reason(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reception, clock = Reception(), ScriptedClock()
    dispatcher = Dispatcher((UnixReceiver(path),), reception.accept, clock=clock)
    dispatcher.start()
    send(path, b"refuse one", b"refuse one", b"refuse two", b"end")
    while reception.next()[0] != b"end":
        pass
    clock.advance(60)
    send(path, b"refuse one")
    dispatcher.stop(timeout=60)  # takes in what has arrived
    assert [record.args[1] for record in caplog.records if isinstance(record.args, tuple)] == [
        "refuse one",
        "refuse two",
        "refuse one",
    ]


def test_file_descriptors_sent_along_do_not_get_in(reception: Reception, path: Path) -> None:
    with opened(reception, UnixReceiver(path)):
        send(path, b"first")
        reception.next()  # from here on the receivers' thread has every file that it needs
        before = open_files()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, open("/dev/null") as null:
            sender.connect(str(path))
            for _ in range(5):
                socket.send_fds(sender, [b"hello"], [null.fileno()] * 20)
                assert reception.next() == (b"hello", "unix", os.getpid())
        until(lambda: open_files() <= before, "a descriptor stayed open")


def test_the_socket_is_open_to_every_user_by_default_and_its_mode_settable(reception: Reception, path: Path) -> None:
    with opened(reception, UnixReceiver(path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
    with opened(reception, UnixReceiver(path, 0o660)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_folder_made_for_the_socket_lets_every_user_through(reception: Reception, path: Path) -> None:
    usual = os.umask(0o077)
    try:
        with opened(reception, UnixReceiver(path)):
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
    finally:
        os.umask(usual)


def test_a_folder_that_was_there_keeps_its_mode(reception: Reception, path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with opened(reception, UnixReceiver(path)):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_socket_left_behind_is_replaced(reception: Reception, path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left_behind:
        left_behind.bind(str(path))
    with opened(reception, UnixReceiver(path)) as dispatcher:
        assert dispatcher.receivers[0].problem == ""
        send(path, b"hello")
        assert reception.next()[0] == b"hello"


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_socket_with_a_listener_is_left_alone(
    reception: Reception, path: Path, kind: socket.SocketKind, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(path))
        if kind == socket.SOCK_STREAM:
            other.listen()
        with opened(reception, UnixReceiver(path)) as dispatcher:
            assert str(path) in dispatcher.receivers[0].problem
            assert "listens there; stop it or choose another path" in dispatcher.receivers[0].problem
        assert path.is_socket()
    assert dispatcher.receivers[0].problem in caplog.text


def test_a_file_that_is_no_socket_is_left_alone(reception: Reception, path: Path) -> None:
    path.parent.mkdir()
    path.write_text("precious")
    with opened(reception, UnixReceiver(path)) as dispatcher:
        assert "is not a socket; choose another path" in dispatcher.receivers[0].problem
    assert path.read_text() == "precious"


def test_an_impossible_path_is_reported_and_the_other_receiver_works(reception: Reception, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    udp = UdpReceiver("127.0.0.1", 0)
    too_long, below_a_file = UnixReceiver(tmp_path / ("x" * 120)), UnixReceiver(tmp_path / "file/report.sock")
    with opened(reception, too_long, below_a_file, udp) as dispatcher:
        assert [bool(receiver.problem) for receiver in dispatcher.receivers] == [True, True, False]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"hello", ("127.0.0.1", udp.port))
        assert reception.next()[0] == b"hello"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_reported_with_the_remedy(reception: Reception, path: Path) -> None:
    path.parent.mkdir(mode=0o500)
    with opened(reception, UnixReceiver(path)) as dispatcher:
        assert "choose a path in a folder that this user may write to" in dispatcher.receivers[0].problem


@pytest.mark.parametrize("host", ["a..b", "no.such.host.invalid"])
def test_an_invalid_host_name_is_reported(reception: Reception, host: str) -> None:
    with opened(reception, UdpReceiver(host, 0)) as dispatcher:
        assert f"UDP {host}:0" in dispatcher.receivers[0].problem


def test_a_busy_port_and_a_foreign_address_are_reported(reception: Reception) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        with opened(reception, UdpReceiver("127.0.0.1", port), UdpReceiver("192.0.2.1", 0)) as dispatcher:
            busy, foreign = dispatcher.receivers
            assert f"UDP 127.0.0.1:{port}" in busy.problem
            assert "choose a free port" in busy.problem
            assert "choose an address of this machine" in foreign.problem


def test_closing_removes_the_socket_but_not_one_that_took_its_place(reception: Reception, path: Path) -> None:
    with opened(reception, UnixReceiver(path)):
        assert path.exists()
    assert not path.exists()
    with opened(reception, UnixReceiver(path)):
        other = path.with_name("other")
        other.write_text("another's")
        other.replace(path)  # at once, or the receiver might create it again in between
    assert path.read_text() == "another's"


def await_arrival(reception: Reception, path: Path, data: bytes) -> None:
    """Send until it arrives, as a shim does twice a second; more of what was sent before may come first."""

    def arrived() -> bool:
        with suppress(OSError):
            send(path, data)
        return reception.arrivals.get(timeout=0.02)[0] == data

    until(arrived, "nothing arrived", errors=(queue.Empty,))


def test_a_socket_whose_file_was_removed_is_made_again(reception: Reception, path: Path) -> None:
    with opened(reception, UnixReceiver(path), check_interval=CHECK_INTERVAL):
        path.unlink()
        await_arrival(reception, path, b"hello")
        path.parent.rename(path.parent.with_name("gone"))
        await_arrival(reception, path, b"again")
    assert not path.exists()


def test_a_receiver_that_was_taken_opens_when_it_is_free_and_says_so(
    reception: Reception, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        dispatcher = Dispatcher((UnixReceiver(path),), reception.accept, check_interval=CHECK_INTERVAL)
        dispatcher.start()
        assert "another exporter listens there" in dispatcher.receivers[0].problem
    await_arrival(reception, path, b"hello")
    dispatcher.stop(timeout=60)
    assert dispatcher.receivers[0].problem == ""
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_socket_that_another_took_the_place_of_is_left_to_it(reception: Reception, path: Path) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other,
        opened(reception, UnixReceiver(path), check_interval=CHECK_INTERVAL) as dispatcher,
    ):
        other.bind(f"{path}.other")
        Path(f"{path}.other").replace(path)
        until(lambda: dispatcher.receivers[0].problem)
        assert "another exporter listens there" in dispatcher.receivers[0].problem
        send(path, b"theirs")
        assert other.recv(10) == b"theirs"
    assert path.exists()


def test_stopping_takes_in_what_arrived_and_ends_the_thread(reception: Reception, path: Path) -> None:
    with opened(reception, UnixReceiver(path)):
        send(path, b"hello")
    assert reception.next()[0] == b"hello"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("receiver-")]


def test_reports_wait_for_a_batch_but_not_long(reception: Reception, path: Path) -> None:
    with opened(reception, UnixReceiver(path), limits=BatchLimits(interval=0.05)):
        send(path, b"one", b"two")
        assert [reception.next()[0] for _ in range(2)] == [b"one", b"two"]
        send(path, *[b"many"] * 200)
        assert [reception.next()[0] for _ in range(200)] == [b"many"] * 200


@pytest.mark.parametrize("state", ["finished", "failed"])
def test_the_last_report_of_a_session_waits_for_none(reception: Reception, path: Path, state: str) -> None:
    with opened(reception, UnixReceiver(path), limits=PATIENT):
        for reported in (b"first", b"running", b'{"state":"%s"}' % state.encode()):
            send(path, reported)
        assert [reception.next()[0] for _ in range(3)] == [b"first", b"running", b'{"state":"%s"}' % state.encode()]


@pytest.mark.parametrize("limits", [replace(PATIENT, datagrams=3), replace(PATIENT, size=2_000)])
def test_reports_wait_neither_in_large_numbers_nor_when_they_are_long_together(
    reception: Reception, path: Path, limits: BatchLimits
) -> None:
    with opened(reception, UnixReceiver(path), limits=limits):
        send(path, *[b"x" * 900] * 4)
        assert [len(reception.next()[0]) for _ in range(4)] == [900] * 4


def test_reports_that_come_while_one_is_taken_in_find_room_however_many(path: Path) -> None:
    arrived = queue.SimpleQueue[bytes]()

    def send_six_more(data: bytes, transport: Transport, pid: int | None, _uid: int | None) -> None:
        arrived.put(data)
        if data.startswith(b"slow"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
                others.setblocking(False)  # as the shim does: a report that finds no room is dropped
                for _ in range(6):
                    others.sendto(b"quick", str(path))

    dispatcher = Dispatcher((UnixReceiver(path),), send_six_more, limits=AT_ONCE)
    dispatcher.start()
    send(path, b"slow", b"slow", b"slow")
    assert [arrived.get(timeout=60) for _ in range(21)].count(b"quick") == 18
    dispatcher.stop(timeout=60)


def test_a_flood_through_one_receiver_does_not_shut_the_other(path: Path) -> None:
    received = threading.Event()

    def send_more(data: bytes, transport: Transport, pid: int | None, _uid: int | None) -> None:
        if transport == "udp":
            received.set()
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as flood, suppress(OSError):
            flood.setblocking(False)
            while True:
                flood.sendto(b"more", str(path))

    receiver = UdpReceiver("127.0.0.1", 0)
    dispatcher = Dispatcher((UnixReceiver(path), receiver), send_more, limits=AT_ONCE)
    dispatcher.start()
    send(path, b"first")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"hello", ("127.0.0.1", receiver.port))
    assert received.wait(60)
    dispatcher.stop(timeout=60)


def test_a_flood_does_not_hold_up_a_stop(path: Path) -> None:
    received = threading.Event()

    def send_more(*arrival: object) -> None:
        received.set()
        with suppress(OSError):
            send(path, b"more")  # so that the receiver is never empty

    dispatcher = Dispatcher((UnixReceiver(path),), send_more, limits=AT_ONCE)
    dispatcher.start()
    send(path, b"first")
    assert received.wait(60)
    dispatcher.stop(timeout=60)
    assert not [each for each in threading.enumerate() if each.name.startswith("receiver-")]


def test_a_dispatcher_that_never_started_stops_and_leaves_no_socket(reception: Reception, path: Path) -> None:
    Dispatcher((UnixReceiver(path),), reception.accept).stop()
    assert not path.exists()
