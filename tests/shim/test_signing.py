from __future__ import annotations

import socket
from pathlib import Path

import pytest

from stallscope import Run
from stallscope.training.protocol import signature
from stallscope.training.protocol.report import parse
from stallscope.training.protocol.vocabulary import MAX_BYTES, MAX_VALUES
from stallscope.training.shim.signing import Signing

FIRST, SECOND = "the first token", "the second token"


def signed_with(data: bytes) -> str:
    """The token, or nothing."""
    for token in (FIRST, SECOND):
        if signature.is_signed(data) and signature.is_genuine(data, signature.key(token)[1]):
            return token
    return ""


class Time:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("mode", "reported"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)])
def test_an_own_file_that_every_user_may_read_signs_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, reported: bool
) -> None:
    file = tmp_path / "token"
    file.write_text(FIRST)
    file.chmod(mode)
    assert signed_with(Signing("", str(file), Time())(b"{}")) == FIRST
    assert ("which every user may read; chmod o-rwx it" in caplog.text) is reported


def test_the_first_token_of_a_file_signs_and_a_changed_file_counts_within_seconds(tmp_path: Path) -> None:
    file, time = tmp_path / "token", Time()
    file.write_text(f"# rotated each month\n\n{FIRST}\n{SECOND}\n")
    sign = Signing("", str(file), time)
    assert signed_with(sign(b"{}")) == FIRST
    (tmp_path / "new").write_text(f"{SECOND}\n")  # a file made after the old one is gone may have its inode and time
    (tmp_path / "new").replace(file)
    assert signed_with(sign(b"{}")) == FIRST
    time.now += 10.0
    assert signed_with(sign(b"{}")) == SECOND


@pytest.mark.parametrize("content", ["", "# nothing\n", "pässwort\n", None])
def test_a_file_without_a_token_keeps_the_one_in_use(content: str | None, tmp_path: Path) -> None:
    file, time = tmp_path / "token", Time()
    file.write_text(FIRST)
    sign = Signing("", str(file), time)
    file.unlink()
    if content is not None:
        file.write_text(content, encoding="latin-1")
    time.now += 10.0
    assert signed_with(sign(b"{}")) == FIRST


def test_a_file_that_is_not_there_is_warned_of_and_found_when_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, time = tmp_path / "token", Time()
    sign = Signing("", str(file), time)
    assert sign(b"{}") == b"{}"
    assert f"STALLSCOPE_TOKEN_FILE names {str(file)!r}, which holds no token" in caplog.text
    file.write_text(FIRST)
    time.now += 10.0
    assert signed_with(sign(b"{}")) == FIRST


def test_a_token_of_its_own_needs_no_file() -> None:
    assert signed_with(Signing(SECOND)(b"{}")) == SECOND


def test_a_report_that_is_too_long_is_shortened_to_fit_with_its_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "report.sock")
    monkeypatch.setattr("stallscope.training.shim.transport.MAX_BYTES", 8000)
    monkeypatch.setenv("STALLSCOPE_ADDRESS", f"unix://{path}")
    monkeypatch.setenv("STALLSCOPE_TOKEN", FIRST)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.settimeout(60)
        run = Run("long", interval=0.0)
        for number in range(MAX_VALUES):
            run.value("𝄞" * 120 + str(number), 0.5)
        run.finish()
        report = None
        while report is None or report.state != "finished":
            data = listener.recv(2 * MAX_BYTES)
            assert len(data) <= 8000
            assert signed_with(data) == FIRST
            report = parse(signature.document_of(data))
    assert 0 < len(report.values) < MAX_VALUES
