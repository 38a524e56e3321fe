"""Who may report: those who sign with a token of the token file, for a short time, and each report once.

The checks stand in the order of what they cost, so that what is forged is refused before it is read: the line's form,
its time, the key's name, the signature. Only then is the document decoded, and its place in its session's sequence
compared with the newest that came, which a copy of an older report can't pass.

The file has a token in each line; all of them count, so that a new one can be made known everywhere before it is used.
It is read again when it changes. A broken one changes nothing but the log, and one that others may read is broken.
Links are followed, since Kubernetes mounts a Secret by one: what counts is the file that they lead to.
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
from stallscope.protocol import signature
from stallscope.protocol.report import Report, ReportError
from stallscope.sampling.clock import Clock, SystemClock

_logger = logging.getLogger(__name__)

REASONS = ("unsigned", "unknown_token", "expired", "bad_signature", "replayed")
"""Why a report is refused that may not be its sender's."""
DEFAULT_WINDOW = 120.0
_SHORTEST_TOKEN = 16
_MOST_TOKENS = 16
_MAX_FILE_BYTES = 65_536
_LOOK_SECONDS = 2.0
"""Fewest seconds between two looks at whether the file has changed."""
_MOST_SESSIONS = 8192
"""Sessions whose newest report is remembered."""


class TokenError(ValueError):
    """The token file can't be used; the message is one line with the reason and the remedy."""


class Authentication:
    """Knows the tokens and what came last. Any thread may call."""

    def __init__(self, file: Path, *, window: float = DEFAULT_WINDOW, clock: Clock | None = None) -> None:
        """Read the file.

        Args:
            file: a token in each line; empty lines and those that begin with # don't count.
            window: seconds by which a signature's time may differ from this machine's; may be replaced later.
            clock: the machine's own if left out.

        Raises:
            TokenError: the file can't be read, or holds no token.
        """
        self.window = window
        self._file = file
        self._clock = clock or SystemClock()
        self._mark = mark(file)
        self._keys = _read(file)
        self._looked = self._clock.monotonic()
        self._problem = ""
        self._changing = threading.Lock()
        self._newest: dict[int, tuple[int, float]] = {}
        """Sequence number and arrival of the newest report, by a hash of the session, which is smaller."""

    def opened(self, data: bytes) -> bytes:
        """The document of a signed report.

        Raises:
            ReportError: with one of `REASONS` but the last.
        """
        self._look()
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
                f"the signature is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'old'}, and {self.window:g} s are "
                "allowed; correct both clocks; otherwise old reports may be being replayed",
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
        """Remember a report whose signature is genuine.

        Raises:
            ReportError: it came before, or a newer one of its session did.
        """
        key = hash((report.run, report.rank, report.session))
        now = self._clock.monotonic()
        with self._changing:
            newest = self._newest.pop(key, (-1, now))
            if report.sequence <= newest[0]:
                self._newest[key] = newest
                raise ReportError(
                    "replayed",
                    f"run {report.run!r} rank {report.rank} sent report {report.sequence} of its session again, after "
                    f"{newest[0]}",
                )
            self._newest[key] = (report.sequence, now)
            self._forget(now)

    def look_now(self) -> None:
        """Read the file again where it has changed."""
        self._looked = self._clock.monotonic()
        present = mark(self._file)
        if present == self._mark and not self._problem:
            return
        try:
            keys = _read(self._file)
        except TokenError as problem:
            if str(problem) != self._problem:
                self._problem = str(problem)
                _logger.error("tokens not reloaded, the previous ones stay in force: %s", problem)
            return
        self._problem, self._mark, self._keys = "", present, keys
        _logger.info("tokens reloaded", extra={"fields": {"file": self._file, "tokens": len(keys)}})

    def _look(self) -> None:
        if self._clock.monotonic() - self._looked >= _LOOK_SECONDS:
            self.look_now()

    def _forget(self, now: float) -> None:
        """Let go of sessions so old that their time refuses every copy, and of the oldest where there are too many."""
        for key, (_sequence, arrived) in list(islice(self._newest.items(), 2)):
            if now - arrived > 2.0 * self.window or len(self._newest) > _MOST_SESSIONS:
                del self._newest[key]


def _read(file: Path) -> Mapping[bytes, bytes]:
    """The keys by name."""
    try:
        with file.open("rb") as opened:
            exposed = secret_problem(os.fstat(opened.fileno()))
            content = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as problem:
        raise TokenError(f"{file} can't be read: {problem.strerror}") from None
    if exposed:
        raise TokenError(
            f"{file} is not private: {exposed}; make root or this user its owner, and set its mode to 0600, 0400, or "
            "0640 with a group of its own"
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
        if len(token) < _SHORTEST_TOKEN or not token.isprintable():
            raise TokenError(
                f"{file}:{number}: a token needs at least {_SHORTEST_TOKEN} printable ASCII characters; "
                "`openssl rand -hex 32` prints a good one"
            )
        name, secret = signature.key(token)
        tokens[name] = secret
    if not 0 < len(tokens) <= _MOST_TOKENS:
        raise TokenError(f"{file} holds {len(tokens)} tokens; expected 1 to {_MOST_TOKENS}, one in each line")
    return tokens
