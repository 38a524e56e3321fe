"""Users and passwords of HTTP's basic authentication, with bcrypt hashes as the exporter-toolkit has them.

A check takes a tenth of a second of a CPU on purpose. So results are remembered, and a scrape costs a look-up. At most
two worker threads check new passwords, each for another address: clients that guess keep no one else waiting. A hash
of high cost takes seconds and is checked on a thread of its own.
"""

from __future__ import annotations

import binascii
import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from stallscope.common.address import sender_of
from stallscope.node.configuration import ConfigurationError

Verdict = Literal["allowed", "refused", "busy"]
_Key = TypeVar("_Key")

_MOST_BYTES = 72
"""Bytes of a password that bcrypt looks at."""
_REMEMBERED = 100
"""Wrong credentials that are remembered."""
_AT_ONCE = 2
"""Worker threads that check passwords: one works, one waits for it."""
_GUESSERS = 1_000
"""Addresses that are remembered for a wrong password."""
_SLOW_COST = 13
"""Cost from which a hash is checked on a thread of its own: one check takes about half a second or longer."""
_MAX_SLOW = 16
"""Checks that wait for that thread, one for each address."""


class BasicAuthentication:
    """Checks credentials. Any thread may call."""

    def __init__(self, users: Mapping[str, bytes]) -> None:
        """Take the password hashes by user.

        Raises:
            ConfigurationError: the library that checks them is not installed.
        """
        try:
            import bcrypt
        except ModuleNotFoundError:
            from stallscope.common.installation import install_command

            raise ConfigurationError(
                f"basic_auth_users needs the package bcrypt: {install_command('exporter')}"
            ) from None
        self._check = bcrypt.checkpw
        self._secret = os.urandom(32)
        self._right: dict[bytes, bytes] = {}
        """Digests of right credentials by user: one each, so that no client displaces another's."""
        self._wrong: dict[bytes, None] = {}
        self._entering = threading.Lock()
        self._inside: set[str] = set()
        """Addresses for which a worker thread checks a password."""
        self._guessers: dict[str, None] = {}
        """Addresses whose last password was wrong: only one at a time is checked, and leaves room for the others."""
        self._working = threading.Lock()
        self._slow: dict[str, Callable[[], bool]] = {}
        """Checks of hashes of high cost by address: the first one is under way."""
        self.set_users(users)

    def set_users(self, users: Mapping[str, bytes]) -> None:
        """Replace the users; a user whose hash stays the same needs no new check."""
        self._users = {user.encode(): hashed for user, hashed in users.items()}

    def judge(self, authorization: str, client: str) -> Verdict:
        """Judge the value of an `Authorization` header; `busy` if the check is under way or has to wait.

        Args:
            authorization: the header.
            client: the address that it came from.
        """
        client = sender_of(client)
        user, password = _credentials(authorization)
        if not user and not password:
            return "refused"
        users = self._users
        password = password[:_MOST_BYTES]
        is_user = user in users
        hashed = users[user] if is_user else self._decoy(users, user)
        # Keyed, so that the time of the look-up reveals nothing, and no password is kept.
        known = self._digest(b"\0".join((b"%d" % is_user, user.hex().encode(), hashed, password)))
        if self._right.get(user) == known:
            return "allowed"
        if known in self._wrong:
            return "refused"

        def check() -> bool:
            right = self._matches(password, hashed) and is_user
            self._remember(user, known, client, right=right)
            return right

        if int(hashed[4:6]) >= _SLOW_COST:
            self._check_aside(client, check)
            return "busy"
        with self._entering:
            if client in self._inside or len(self._inside) >= _AT_ONCE:
                return "busy"
            if client in self._guessers and not self._inside.isdisjoint(self._guessers):
                return "busy"
            self._inside.add(client)
        try:
            with self._working:
                return "allowed" if check() else "refused"
        finally:
            self._inside.remove(client)

    def _check_aside(self, client: str, check: Callable[[], bool]) -> None:
        """Check on the thread for hashes of high cost, unless one of this address waits already."""
        with self._entering:
            if client in self._slow or len(self._slow) >= _MAX_SLOW:
                return
            self._slow[client] = check
            if len(self._slow) > 1:
                return
        threading.Thread(target=self._check_slow, name="passwords", daemon=True).start()

    def _check_slow(self) -> None:
        is_last = False
        while not is_last:
            with self._entering:
                client, check = next(iter(self._slow.items()))
            check()
            with self._entering:
                del self._slow[client]
                is_last = not self._slow

    def _decoy(self, users: Mapping[bytes, bytes], user: bytes) -> bytes:
        """Return the hash that an unknown user's password is compared with.

        Each unknown name gets the hash of some user, always the same: neither the time of an answer nor how it varies
        from name to name reveals which users exist.
        """
        hashes = list(users.values())
        return hashes[int.from_bytes(self._digest(user)[:8], "big") % len(hashes)]

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._secret).digest()

    def _matches(self, password: bytes, hashed: bytes) -> bool:
        try:
            return bool(self._check(password, hashed))
        except ValueError:  # a byte that bcrypt has no password with
            return False

    def _remember(self, user: bytes, known: bytes, client: str, *, right: bool) -> None:
        with self._entering:
            if right:
                self._right[user] = known
                self._guessers.pop(client, None)
            else:
                _keep(self._wrong, known, _REMEMBERED)
                _keep(self._guessers, client, _GUESSERS)


def _keep(among: dict[_Key, None], key: _Key, limit: int) -> None:
    """Add the key as the newest one, and drop the oldest beyond the limit."""
    among.pop(key, None)
    among[key] = None
    while len(among) > limit:
        del among[next(iter(among))]


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
