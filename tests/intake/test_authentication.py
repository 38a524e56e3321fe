"""Signed reports through real receivers: forged, replayed, late, with rotated tokens."""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stallscope.node.intake import runs
from stallscope.node.intake.authentication import REASONS, Authentication, TokenError
from stallscope.node.intake.receivers import UdpReceiver
from stallscope.node.intake.runs import REJECTION_REASONS
from stallscope.node.intake.service import Intake, IntakeSettings
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.protocol import signature
from stallscope.training.protocol.report import ReportError, parse
from stallscope.training.protocol.vocabulary import MAX_BYTES
from tests.intake.reports import make_report
from tests.waiting import until

TOKEN, OTHER = "the first token of all", "the second token of all"


def signed(document: bytes, at: float, token: str = TOKEN) -> bytes:
    return signature.signed(document, *signature.key(token), at)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(f"# made today\n{TOKEN}\n")
    return file


@pytest.fixture
def intake(file: Path, clock: ScriptedClock) -> Intake:
    return Intake(IntakeSettings(socket=None, udp=None, token_file=file), clock=clock)


def value(intake: Intake, name: str, *labels: str) -> object:
    return next((each.value for each in intake.collect() if each.family.name == name and each.labels == labels), None)


def rejected(intake: Intake) -> dict[str, object]:
    """Refusals that were counted, by reason."""
    name = "stallscope_exporter_reports_rejected_total"
    return {each.labels[0]: each.value for each in intake.collect() if each.family.name == name and each.value}


def refusal(answer: tuple[int, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[1])["error"]


def test_a_signed_report_is_taken(intake: Intake, clock: ScriptedClock) -> None:
    assert intake.post(signed(make_report(), clock.time())) == (204, b"")
    assert value(intake, "stallscope_training_loss", "resnet50", "0") == 0.25
    assert rejected(intake) == {}


def test_every_refusal_has_its_reason_and_is_counted(intake: Intake, clock: ScriptedClock) -> None:
    genuine = signed(make_report(), clock.time())
    changed = genuine.replace(b"0.25", b"0.99")
    assert changed != genuine
    assert refusal(intake.post(make_report())) == (403, "unsigned")
    assert refusal(intake.post(signed(make_report(), clock.time(), OTHER))) == (403, "unknown_token")
    assert refusal(intake.post(changed)) == (403, "bad_signature")
    assert refusal(intake.post(genuine[:60])) == (403, "bad_signature")
    assert refusal(intake.post(signed(make_report(), clock.time() - 121.0))) == (403, "expired")
    assert refusal(intake.post(signed(make_report(), clock.time() + 121.0))) == (403, "expired")
    assert intake.post(genuine)[0] == 204
    assert refusal(intake.post(genuine)) == (403, "replayed")
    expected = dict.fromkeys(REASONS, 1) | {"bad_signature": 2, "expired": 2}
    assert rejected(intake) == expected


def test_the_reasons_are_those_of_the_catalogue() -> None:
    assert dict(runs.REPORTS_REJECTED.values)["reason"] == REJECTION_REASONS


def test_a_genuine_report_may_still_be_no_report(intake: Intake, clock: ScriptedClock) -> None:
    assert refusal(intake.post(signed(b"{", clock.time()))) == (400, "not_json")
    assert refusal(intake.post(signed(b"x" * MAX_BYTES, clock.time()))) == (413, "too_large")


def test_what_is_forged_is_never_decoded(intake: Intake, clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "parse", None)
    forged = bytearray(signed(make_report(), clock.time()))
    forged[-2] ^= 1
    assert refusal(intake.post(bytes(forged))) == (403, "bad_signature")
    assert refusal(intake.post(make_report())) == (403, "unsigned")


class TestReplay:
    def test_an_older_report_can_not_take_the_place_of_a_newer_one(self, intake: Intake, clock: ScriptedClock) -> None:
        older = signed(make_report(sequence=1, gauges={"loss": 9.0}), clock.time())
        newer = signed(make_report(sequence=2, gauges={"loss": 1.0}), clock.time())
        assert intake.post(newer)[0] == 204
        assert refusal(intake.post(older)) == (403, "replayed")
        assert value(intake, "stallscope_training_loss", "resnet50", "0") == 1.0

    def test_a_run_that_is_over_and_forgotten_does_not_come_back(self, file: Path, clock: ScriptedClock) -> None:
        intake = Intake(IntakeSettings(socket=None, udp=None, token_file=file, expiry=1.0), clock=clock)
        running = signed(make_report(sequence=1), clock.time())
        over = signed(make_report(sequence=2, state="finished"), clock.time())
        assert [intake.post(running)[0], intake.post(over)[0]] == [204, 204]
        clock.advance(60.0)
        intake.run_housekeeping()
        assert intake.registry.held == ()
        assert refusal(intake.post(running)) == (403, "replayed")
        clock.advance(61.0)
        assert refusal(intake.post(over)) == (403, "expired")
        assert intake.registry.held == ()

    def test_ranks_and_lives_count_on_their_own(self, intake: Intake, clock: ScriptedClock) -> None:
        for changes in ({"sequence": 5}, {"rank": 1}, {"session": "next", "start": 1_700_000_050.0}, {"run": "other"}):
            assert intake.post(signed(make_report(**changes), clock.time()))[0] == 204

    def test_what_is_remembered_is_forgotten_once_its_time_refuses_it(self, file: Path, clock: ScriptedClock) -> None:
        authentication = Authentication(file, clock=clock)
        for number in range(100):
            authentication.refuse_replay(parse(make_report(session=f"s{number}")))
        clock.advance(241.0)
        for number in range(100):
            authentication.refuse_replay(parse(make_report(session=f"t{number}")))
        assert len(authentication._newest) == 100

    def test_no_number_of_sessions_takes_more_than_its_room(self, file: Path, clock: ScriptedClock) -> None:
        authentication = Authentication(file, max_sessions=10, clock=clock)
        for number in range(30):
            authentication.refuse_replay(parse(make_report(session=f"s{number}")))
        assert len(authentication._newest) == 10
        with pytest.raises(ReportError):
            authentication.refuse_replay(parse(make_report(session="s29")))


class TestTokens:
    def test_several_count_and_a_rotation_loses_no_report(
        self, intake: Intake, file: Path, clock: ScriptedClock
    ) -> None:
        numbers = itertools.count(1)

        def post(token: str) -> int:
            clock.advance(2.0)
            return intake.post(signed(make_report(sequence=next(numbers)), clock.time(), token))[0]

        assert [post(TOKEN), post(OTHER)] == [204, 403]
        file.write_text(f"{TOKEN}\n{OTHER}\n")
        assert [post(TOKEN), post(OTHER)] == [204, 204]
        file.write_text(f"{OTHER}\n")
        assert [post(TOKEN), post(OTHER)] == [403, 204]

    @pytest.mark.parametrize("mode", [0o400, 0o440, 0o600, 0o640])
    def test_a_private_file_is_used_also_through_the_links_of_a_mounted_secret(
        self, tmp_path: Path, clock: ScriptedClock, mode: int
    ) -> None:
        data = tmp_path / "..2026_11_25"
        data.mkdir()
        (data / "tokens").write_text(TOKEN)
        (data / "tokens").chmod(mode)
        (tmp_path / "..data").symlink_to(data.name)
        (tmp_path / "tokens").symlink_to("..data/tokens")
        intake = Intake(IntakeSettings(socket=None, udp=None, token_file=tmp_path / "tokens"), clock=clock)
        assert intake.post(signed(make_report(), clock.time())) == (204, b"")

    @pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o660, 0o444])
    def test_a_file_that_others_may_read_or_a_group_may_write_is_refused(self, file: Path, mode: int) -> None:
        file.chmod(mode)
        with pytest.raises(TokenError, match=f"is not private: its mode is {mode:04o}, expected at most 0640; make"):
            Authentication(file)

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
    def test_a_file_of_another_user_is_refused(self, file: Path) -> None:
        os.chown(file, 54321, -1)
        with pytest.raises(TokenError, match="is not private: it belongs to user 54321, expected root or user 0; make"):
            Authentication(file)

    def test_a_file_that_is_opened_to_others_keeps_the_tokens_in_force(
        self, intake: Intake, file: Path, clock: ScriptedClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        file.write_text(OTHER)
        file.chmod(0o666)
        clock.advance(2.0)
        assert intake.post(signed(make_report(), clock.time(), OTHER))[0] == 403
        assert intake.post(signed(make_report(), clock.time()))[0] == 204
        assert "the former tokens stay valid" in caplog.text
        file.chmod(0o600)
        clock.advance(2.0)
        assert intake.post(signed(make_report(sequence=2), clock.time(), OTHER))[0] == 204

    def test_a_broken_file_keeps_the_tokens_in_force_and_is_logged_once(
        self, intake: Intake, file: Path, clock: ScriptedClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        file.write_text("short\n")
        for sequence in range(1, 4):
            clock.advance(2.0)
            assert intake.post(signed(make_report(sequence=sequence), clock.time()))[0] == 204
        (line,) = caplog.messages
        assert "token file not reloaded, the former tokens stay valid" in line
        file.write_text(OTHER)
        clock.advance(2.0)
        assert intake.post(signed(make_report(sequence=9), clock.time(), OTHER))[0] == 204

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "has 0 tokens; expected 1 to 16"),
            ("# none\n\n", "has 0 tokens"),
            ("short\n", r"tokens:1: a token needs at least 16 printable ASCII characters; `openssl rand -hex 32`"),
            (f"{TOKEN}\nwith\ta tab in the middle", "tokens:2: a token needs"),
            ("ein Wörtchen, lang genug\n", "a token needs at least 16 printable ASCII"),
            ("x" * 70_000, "a token needs"),
            ("\n".join(f"{TOKEN} {number}" for number in range(17)), "has 17 tokens"),
            (None, "can't be read: No such file"),
        ],
    )
    def test_a_file_that_holds_none_is_refused_at_the_start(
        self, content: str | None, message: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "tokens"
        if content is not None:
            file.touch(0o600)
            file.write_text(content, encoding="utf-8")
        with pytest.raises(TokenError, match=message):
            Authentication(file)

    def test_a_refusal_never_shows_a_token(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens"
        file.touch(0o600)
        file.write_text("hunter2\n")
        with pytest.raises(TokenError) as refusal:
            Authentication(file)
        assert "hunter2" not in str(refusal.value)


@pytest.fixture
def make_intake() -> Iterator[Callable[[IntakeSettings], Intake]]:
    with ExitStack() as stack:

        def make(settings: IntakeSettings) -> Intake:
            intake = Intake(settings)
            stack.callback(intake.stop, timeout=60)
            intake.start()
            return intake

        yield make


def test_udp_accepts_only_signed_reports_and_the_log_names_where_others_come_from(
    file: Path, make_intake: Callable[..., Intake], caplog: pytest.LogCaptureFixture
) -> None:
    intake = make_intake(IntakeSettings(socket=None, udp=("127.0.0.1", 0), token_file=file))
    (receiver,) = intake.receivers
    assert isinstance(receiver, UdpReceiver)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(20):
            sender.sendto(make_report(run="forged"), ("127.0.0.1", receiver.port))
        sender.sendto(signed(make_report(), time.time()), ("127.0.0.1", receiver.port))
    until(lambda: len(intake.registry.held) == 1)
    assert [held.report.run for held in intake.registry.held] == ["resnet50"]
    assert rejected(intake) == {"unsigned": 20}
    (line,) = [line for line in caplog.messages if "refused" in line]
    assert "through UDP 127.0.0.1:0 from 127.0.0.1 (unsigned): the report is not signed; set STALLSCOPE_TOKEN" in line


@pytest.mark.parametrize("required", [False, True])
def test_the_unix_socket_requires_signatures_only_if_set(
    required: bool, file: Path, tmp_path: Path, make_intake: Callable[..., Intake]
) -> None:
    path = tmp_path / "report.sock"
    intake = make_intake(IntakeSettings(socket=path, udp=None, token_file=file, socket_needs_token=required))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(make_report(rank=0), str(path))
        sender.sendto(signed(make_report(rank=1), time.time()), str(path))
        # A signature that is not required is ignored, whatever its token.
        sender.sendto(signed(make_report(rank=2), time.time(), OTHER), str(path))
    until(lambda: value(intake, "stallscope_exporter_reports_total", "unix") == 3)
    until(lambda: len(intake.registry.held) + len(rejected(intake)) == 3)
    ranks = {held.report.rank for held in intake.registry.held}
    assert ranks == ({1} if required else {0, 1, 2})


def test_without_a_token_file_signatures_are_not_looked_at(clock: ScriptedClock) -> None:
    intake = Intake(IntakeSettings(socket=None, udp=None), clock=clock)
    assert intake.post(signed(make_report(), 0.0, OTHER)) == (204, b"")
    assert intake.post(make_report(sequence=2)) == (204, b"")


def test_a_posted_refusal_is_logged_rarely_and_with_its_address(
    intake: Intake, caplog: pytest.LogCaptureFixture, clock: ScriptedClock
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(5):
        intake.post(make_report(), "192.0.2.7")
    clock.advance(61.0)
    intake.post(make_report(), "192.0.2.7")
    lines = [line.partition(":")[0] for line in caplog.messages]
    assert lines == ["refused a report through HTTP from 192.0.2.7 (unsigned)"] * 2
