"""SIGTERM and SIGHUP: what the exporter receives, and what the program sees."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import stallscope
from stallscope.node.intake.pending import sessions_terminated
from stallscope.node.intake.receivers import UdpReceiver
from stallscope.node.intake.service import Intake, IntakeSettings
from stallscope.training.protocol.report import parse
from stallscope.training.shim import endings

CAUGHT = """
def caught():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return [int(status["SigCgt"], 16) >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGHUP)]
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"unix://{tmp_path}/report.sock")
    return tmp_path / "report.sock"


@pytest.fixture
def exporter(path: Path) -> Iterator[socket.socket]:
    with listening(path) as listener:
        yield listener


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(path))
    listener.setblocking(False)
    return listener


def received(listener: socket.socket) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the sessions of the reports and of the notices that have arrived."""
    reports: list[str] = []
    notices: list[tuple[str, ...]] = []
    while True:
        try:
            data, address = listener.recvfrom(65536)
        except BlockingIOError:
            return reports, notices
        if sessions := sessions_terminated(address):
            notices.append(sessions)
        else:
            reports.append(parse(data).session)


def play(program: str) -> subprocess.CompletedProcess[str]:
    text = f"import os, signal, stallscope\n{CAUGHT}\n{textwrap.dedent(program)}"
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_ended_by_a_signal_sends_one_notice_with_its_sessions(
    number: signal.Signals, exporter: socket.socket
) -> None:
    done = play(f"runs = [stallscope.Run(name) for name in 'ab']\nos.kill(os.getpid(), {number})")
    reports, notices = received(exporter)
    assert (done.returncode, done.stderr) == (-number, "")
    assert notices == [tuple(reports)]
    assert len(reports) == 2


def test_a_session_that_has_ended_is_in_no_notice(exporter: socket.socket) -> None:
    play("""
        first, second, third = [stallscope.Run(name) for name in "abc"]
        second.finish()
        os.kill(os.getpid(), signal.SIGTERM)
    """)
    reports, notices = received(exporter)
    assert notices == [(reports[0], reports[2])]


def test_signals_have_their_own_action_again_after_the_run(exporter: socket.socket) -> None:
    done = play("""
        print(caught())
        run = stallscope.Run("job")
        print(caught(), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
        run.finish()
        print(caught())
    """)
    assert done.stdout == "[0, 0]\n[1, 1] True\n[0, 0]\n"


def test_a_forked_child_has_the_signal_s_own_action(exporter: socket.socket) -> None:
    done = play("""
        run = stallscope.Run("job")
        child = os.fork()
        if child == 0:
            print(caught(), flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), caught())
        run.finish()
    """)
    assert done.stdout == "[0, 0]\n-15 [1, 1]\n"
    assert received(exporter)[1] == []


def test_a_handler_set_during_the_run_stays_in_children_and_after_the_run(exporter: socket.socket) -> None:
    done = play("""
        run = stallscope.Run("job")
        signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        print(os.waitpid(child, 0)[1])
        run.finish()
        os.kill(os.getpid(), signal.SIGTERM)
    """)
    assert done.stdout == "handled\n0\nhandled\n"
    assert received(exporter)[1] == []


def test_a_stack_registered_during_the_run_stays_in_children_and_after_the_run(exporter: socket.socket) -> None:
    done = play("""
        import faulthandler, sys
        run = stallscope.Run("job")
        faulthandler.register(signal.SIGTERM, file=sys.stdout)
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
        run.finish()
        os.kill(os.getpid(), signal.SIGTERM)
        print(faulthandler.unregister(signal.SIGTERM), caught())
    """)
    assert done.stdout.count("most recent call first") == 2
    assert done.stdout.endswith("True [0, 0]\n")
    assert received(exporter)[1] == []


def test_a_handler_of_a_library_stays(exporter: socket.socket) -> None:
    done = play("""
        import ctypes
        handle = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: print("handled", flush=True))
        library = ctypes.CDLL(None)
        library.signal(signal.SIGTERM, handle)
        run = stallscope.Run("job")
        os.kill(os.getpid(), signal.SIGTERM)
        run.finish()
        os.kill(os.getpid(), signal.SIGTERM)
    """)
    assert done.stdout == "handled\nhandled\n"
    assert received(exporter)[1] == []


def test_the_notice_reaches_an_exporter_that_was_restarted(path: Path) -> None:
    before = listening(path)
    program = """
        import stallscope, sys, time
        run = stallscope.Run("job", interval=0.0)
        print(flush=True)
        sys.stdin.readline()
        run.step()
        print(flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as training:
        assert training.stdin is not None
        assert training.stdout is not None
        training.stdout.readline()
        before.close()
        path.unlink()
        with listening(path) as after:
            training.stdin.write(b"\n")
            training.stdin.flush()
            training.stdout.readline()
            training.terminate()
            assert training.wait(60) == -signal.SIGTERM
            reports, notices = received(after)
            assert notices == [(reports[0],)]


def test_many_ranks_that_are_ended_at_once_all_send_a_notice(exporter: socket.socket) -> None:
    program = "import stallscope, time\nrun = stallscope.Run('job')\nprint(flush=True)\ntime.sleep(600)"
    ranks = []
    for _ in range(8):
        rank = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert rank.stdout is not None
        rank.stdout.readline()
        ranks.append(rank)
    assert len(received(exporter)[0]) == 8
    for rank in ranks:
        rank.terminate()
    for rank in ranks:
        assert rank.wait(60) == -signal.SIGTERM
        assert rank.stdout is not None
        rank.stdout.close()
    assert len(set(received(exporter)[1])) == 8


@pytest.mark.parametrize("address", ["", b"", None, b"\0other", ("127.0.0.1", 5)])
def test_other_senders_are_no_notice(address: object) -> None:
    assert sessions_terminated(address) == ()


def test_without_an_exporter_a_signal_ends_a_program_as_ever(path: Path) -> None:
    done = play("run = stallscope.Run('job')\nos.kill(os.getpid(), signal.SIGTERM)")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", "")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SystemExit(143), True),
        (SystemExit(129), True),
        (SystemExit(1), False),
        (SystemExit("143"), False),
        (SystemExit(130), True),
        (KeyboardInterrupt(), True),
        (type("Stop", (KeyboardInterrupt,), {})(), True),
        (type("SIGTERMException", (SystemExit,), {})(), True),
        (None, False),
    ],
)
def test_exceptions_that_a_signal_caused(error: BaseException | None, expected: bool) -> None:
    assert endings.is_termination(error) is expected


@pytest.mark.parametrize(
    ("raised", "expected"), [(KeyboardInterrupt, "terminated"), (SystemExit, "terminated"), (ValueError, "failed")]
)
def test_a_run_that_is_left_because_of_an_interrupt_is_terminated(
    exporter: socket.socket, raised: type[BaseException], expected: str
) -> None:
    def train() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            raise raised from interrupt

    with pytest.raises(raised), stallscope.Run("job"):
        train()
    exporter.recv(65536)
    last = parse(exporter.recv(65536))
    assert (last.state, last.failure) == (expected, "ValueError" if expected == "failed" else "")


def test_a_run_that_is_left_by_a_signal_s_exit_status_is_terminated(exporter: socket.socket) -> None:
    with pytest.raises(SystemExit), stallscope.Run("job"):
        sys.exit(143)
    exporter.recv(65536)
    assert parse(exporter.recv(65536)).state == "terminated"


@pytest.mark.parametrize(("signed", "expected"), [(False, "terminated"), (True, "starting")])
def test_over_udp_the_notice_comes_from_the_address_of_the_reports(
    signed: bool, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("0123456789abcdef" * 2)
    intake = Intake(
        IntakeSettings(socket=None, udp=("127.0.0.1", 0), token_file=tokens if signed else None),
    )
    intake.start()
    (receiver,) = intake.receivers
    assert isinstance(receiver, UdpReceiver)
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"udp://127.0.0.1:{receiver.port}")
    if signed:
        monkeypatch.setenv("STALLSCOPE_TOKEN_FILE", str(tokens))
    done = play("run = stallscope.Run('job')\nos.kill(os.getpid(), signal.SIGTERM)")
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with stranger:
        stranger.sendto(b"Stack (most recent call first):\n", ("127.0.0.1", receiver.port))
    intake.stop(timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
    assert [held.state for held in intake.registry.held] == [expected]
    rejected = {
        sample.labels[0]: sample.value
        for sample in intake.collect()
        if sample.family.name == "stallscope_exporter_reports_rejected_total" and sample.value
    }
    assert rejected == {"unsigned" if signed else "not_json": 1}
