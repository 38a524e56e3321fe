"""Verifies signed reports: each must be signed with a token of the token file, recent, and not a replay.

Cheap checks come first, so that a forged report is refused before it is parsed: the form of the signature line, its
time, the name of the key, the signature. Then the document is decoded, and its sequence number compared with the newest
one of its session, which refuses copies of older reports.

The file has one token on each line. All of them are valid, so that a new token can be deployed before it is used. A
changed file is read again. An invalid file, or one that other users can read, is logged and otherwise ignored. Symbolic
links are followed, because Kubernetes mounts a Secret as one; the target's mode and owner count.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from stallscope.common.file_mark import mark
from stallscope.common.file_trust import secret_problem
from stallscope.node.sampling.clock import Clock, SystemClock
from stallscope.training.protocol import signature
from stallscope.training.protocol.report import Report, ReportError

_logger = logging.getLogger(__name__)

REASONS = ("unsigned", "unknown_token", "expired", "bad_signature", "replayed")
"""Reasons to refuse a report whose sender is not verified."""
DEFAULT_WINDOW = 120.0
_MIN_TOKEN_LENGTH = 16
_MAX_TOKENS = 16
_MAX_FILE_BYTES = 65_536
_CHECK_INTERVAL = 2.0
"""Minimum seconds between two checks if the file has changed."""
MAX_SESSIONS = 8192
"""Sessions whose newest sequence number is remembered."""


class TokenError(ValueError):
    """The token file is unusable; the message has the reason and the remedy in one line."""


class Authentication:
    """Tokens, and the newest sequence number of each session. Thread-safe."""

    def __init__(
        self,
        file: Path,
        *,
        window: float = DEFAULT_WINDOW,
        max_sessions: int = MAX_SESSIONS,
        clock: Clock | None = None,
    ) -> None:
        """Read the file.

        Args:
            file: one token on each line; empty lines and lines that begin with # are ignored.
            window: largest difference between a signature's time and this machine's clock in seconds; may be
                replaced later.
            max_sessions: sessions whose newest sequence number is remembered.
            clock: the machine's own if left out.

        Raises:
            TokenError: the file can't be read, or has no valid token.
        """
        self.window = window
        self._file = file
        self._max_sessions = max_sessions
        self._clock = clock or SystemClock()
        self._mark = mark(file)
        self._keys = _read(file)
        self._checked = self._clock.monotonic()
        self._problem = ""
        self._changing = threading.Lock()
        self._newest: dict[int, tuple[int, float]] = {}
        """Sequence number and arrival of the newest report, by the session's hash, which takes less memory."""

    def opened(self, data: bytes) -> bytes:
        """Verify the signature of a report, and return the document.

        Raises:
            ReportError: with one of `REASONS` except the last.
        """
        self._check()
        if not signature.is_signed(data):
            raise ReportError("unsigned", "the report is not signed; set STALLSCOPE_TOKEN or STALLSCOPE_TOKEN_FILE")
        claim = signature.claim(data)
        if claim is None:
            raise ReportError("bad_signature", "the signature is malformed")
        name, at = claim
        ahead = at - self._clock.time()
        if abs(ahead) > self.window:
            raise ReportError(
                "expired",
                f"the signature is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'old'}, more than {self.window:g} s; "
                "synchronize both clocks; otherwise someone is replaying old reports",
            )
        secret = self._keys.get(name)
        if secret is None:
            raise ReportError(
                "unknown_token", "the report is signed with a token that is not in the exporter's token file"
            )
        if not signature.is_genuine(data, secret):
            raise ReportError("bad_signature", "the signature does not match the report")
        return data[signature.LENGTH :]

    def refuse_replay(self, report: Report) -> None:
        """Refuse a report with a genuine signature if it is a replay; otherwise remember it.

        Raises:
            ReportError: this report, or a newer one of its session, has been received before.
        """
        key = hash((report.run, report.rank, report.session))
        now = self._clock.monotonic()
        with self._changing:
            newest = self._newest.pop(key, (-1, now))
            if report.sequence <= newest[0]:
                self._newest[key] = newest
                raise ReportError(
                    "replayed",
                    f"run {report.run!r} rank {report.rank} sent report {report.sequence} of its session after report "
                    f"{newest[0]}",
                )
            self._newest[key] = (report.sequence, now)
            self._forget(now)

    def read_if_changed(self) -> None:
        """Read the file again if it has changed."""
        self._checked = self._clock.monotonic()
        present = mark(self._file)
        if present == self._mark and not self._problem:
            return
        try:
            keys = _read(self._file)
        except TokenError as problem:
            if str(problem) != self._problem:
                self._problem = str(problem)
                _logger.error("token file not reloaded, the former tokens stay valid: %s", problem)
            return
        self._problem, self._mark, self._keys = "", present, keys
        _logger.info("token file reloaded", extra={"fields": {"file": self._file, "tokens": len(keys)}})

    def _check(self) -> None:
        if self._clock.monotonic() - self._checked >= _CHECK_INTERVAL:
            self.read_if_changed()

    def _forget(self, now: float) -> None:
        """Drop sessions whose reports would be refused as expired, and the oldest ones above the limit."""
        for key, (_sequence, arrived) in list(islice(self._newest.items(), 2)):
            if now - arrived > 2.0 * self.window or len(self._newest) > self._max_sessions:
                del self._newest[key]


def _read(file: Path) -> Mapping[bytes, bytes]:
    try:
        with file.open("rb") as opened:
            exposed = secret_problem(os.fstat(opened.fileno()))
            content = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as problem:
        raise TokenError(f"{file} can't be read: {problem.strerror}") from None
    if exposed:
        raise TokenError(
            f"{file} is not private: {exposed}; make root or this user its owner, and set its mode to 0600, 0400, or "
            "0640 with a dedicated group"
        )
    try:
        lines = content.decode("ascii").splitlines() if len(content) <= _MAX_FILE_BYTES else ["\0"]
    except UnicodeDecodeError:
        lines = ["\0"]
    tokens = {}
    for number, line in enumerate(lines, 1):
        token = line.strip()
        if not token or token.startswith("#"):
            continue
        if len(token) < _MIN_TOKEN_LENGTH or not token.isprintable():
            raise TokenError(
                f"{file}:{number}: a token needs at least {_MIN_TOKEN_LENGTH} printable ASCII characters; "
                "`openssl rand -hex 32` prints a good one"
            )
        name, secret = signature.key(token)
        tokens[name] = secret
    if not 0 < len(tokens) <= _MAX_TOKENS:
        raise TokenError(f"{file} has {len(tokens)} tokens; expected 1 to {_MAX_TOKENS}, one on each line")
    return tokens
