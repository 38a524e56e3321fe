"""Users and passwords of HTTP's basic authentication, with bcrypt hashes as the exporter-toolkit has them.

A hash takes a tenth of a second of a processor on purpose. So what was found out about a user with a password is
remembered, a scrape costs a look-up, and no more than two threads ever deal with passwords that are new, each for one
address: strangers who guess keep nobody else waiting, and one of them can't keep others from being checked.
"""

from __future__ import annotations

import binascii
import hashlib
import os
import threading
from collections.abc import Mapping
from typing import Literal

from stallscope.configuration import ConfigurationError

Verdict = Literal["allowed", "refused", "busy"]

_MOST_BYTES = 72
"""Bytes of a password that bcrypt looks at."""
_REMEMBERED = 100
"""Users with passwords of which it is remembered that they are right, and as many that are wrong."""
_AT_ONCE = 2
"""Threads that check passwords: one works, one waits for it."""


class BasicAuthentication:
    """Knows who may ask. Any thread may call."""

    def __init__(self, users: Mapping[str, bytes]) -> None:
        """Take the password hashes by user.

        Raises:
            ConfigurationError: the library that checks them is not installed.
        """
        try:
            import bcrypt
        except ModuleNotFoundError:
            raise ConfigurationError(
                "basic_auth_users needs the package bcrypt: pip install 'stallscope[exporter]'"
            ) from None
        self._check = bcrypt.checkpw
        self._users = {user.encode(): hashed for user, hashed in users.items()}
        # As dear as the dearest of the others, or its time would tell that a user does not exist.
        cost = max(int(hashed[4:6]) for hashed in users.values())
        self._nobody = bcrypt.gensalt(cost) + b"." * 31
        self._secret = os.urandom(32)
        self._right: dict[bytes, None] = {}
        self._wrong: dict[bytes, None] = {}
        self._entering = threading.Lock()
        self._inside: set[str] = set()
        """Addresses for which a password is checked."""
        self._working = threading.Lock()

    def judge(self, authorization: str, client: str) -> Verdict:
        """Judge the value of an `Authorization` header; `busy` where others are being checked and this one is new.

        Args:
            authorization: the header.
            client: the address that it came from.
        """
        user, password = _credentials(authorization)
        if not user and not password:
            return "refused"
        hashed = self._users.get(user, self._nobody)
        # Keyed, so that the time of the look-up tells nothing, and no password is kept.
        known = hashlib.blake2b(b"\0".join((user.hex().encode(), hashed, password)), key=self._secret).digest()
        if known in self._right:
            return "allowed"
        if known in self._wrong:
            return "refused"
        with self._entering:
            if client in self._inside or len(self._inside) >= _AT_ONCE:
                return "busy"
            self._inside.add(client)
        try:
            with self._working:
                right = self._matches(password, hashed) and user in self._users
                self._remember(self._right if right else self._wrong, known)
        finally:
            self._inside.remove(client)
        return "allowed" if right else "refused"

    def _matches(self, password: bytes, hashed: bytes) -> bool:
        try:
            return bool(self._check(password[:_MOST_BYTES], hashed))
        except ValueError:  # a byte that bcrypt has no password with
            return False

    @staticmethod
    def _remember(among: dict[bytes, None], known: bytes) -> None:
        while len(among) >= _REMEMBERED:
            del among[next(iter(among))]
        among[known] = None


def _credentials(authorization: str) -> tuple[bytes, bytes]:
    """User and password; empty where the header holds none."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return b"", b""
    try:
        user, colon, password = binascii.a2b_base64(encoded.strip().encode("latin-1")).partition(b":")
    except ValueError:
        return b"", b""
    return (user, password) if colon else (b"", b"")
