"""Claims on GPUs, so that users who pick a GPU at the same time do not get the same one.

A claim is a small file in a folder that all users share. While a command runs on the GPUs, the file is locked (flock)
through a descriptor that the command inherits, so the kernel releases the claim when the command ends for any reason.
Without a command the claim is valid for a minute: long enough to start a program by hand. `stallscope pick` holds a
lock while it chooses, so that two users never choose the same free memory.

Nothing in the folder is trusted: links are not followed, only regular files are opened, and only for reading. Invalid
claims are reported and ignored. In a world-writable folder only the sticky bit keeps users from removing each other's
files, so the folder must have it. Containers must mount the host's folder to see the same claims.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stallscope.common.formatting import ago, readable, size

SETTLED_SECONDS = 60.0
"""Seconds for which a claim keeps others off its GPU, since its program may not use its full memory yet."""
FOLDERS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108 - sticky, and no file there is trusted
"""Candidates for the shared folder; all users take the first that everyone may write to."""

_MUTEX = "stallscope-pick.lock"
_PREFIX = "stallscope-claim."
_UNSAFE = re.compile(r"[^A-Za-z0-9-]")
_LONGEST = 4096
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS = 100
_MOST_MEMORY = 1 << 60
_MOST_PROCESSES = 1 << 22
"""Linux has no higher process ids."""


class ClaimsFailed(Exception):
    """The folder can't be used; the message gives the reason and the remedy in one line."""


@dataclass(frozen=True)
class Claim:
    """One user's claim on one GPU."""

    uuid: str
    memory: int
    """Bytes."""
    exclusive: bool
    pid: int
    """Process id of the command, or of the process that made a claim without a command."""
    user: str
    age: float
    """Seconds."""
    held: bool
    """True while a command runs under the claim."""

    @property
    def described(self) -> str:
        """Text such as `12 s ago by alice for 20.0 GiB (process 4711)`."""
        what = f" for {size(self.memory)}" if self.memory else ""
        return f"{ago(self.age)} by {self.user}{what}" + (f" (process {self.pid})" if self.held else "")


def shared_folder(candidates: tuple[Path, ...] = FOLDERS) -> Path:
    """Return the folder that all users of this machine share.

    Raises:
        ClaimsFailed: no candidate is suitable.
    """
    for folder in candidates:
        try:
            mode = folder.lstat().st_mode
        except OSError:
            continue
        if stat.S_ISDIR(mode) and mode & stat.S_ISVTX and mode & stat.S_IWOTH:
            return folder
    names = " nor ".join(map(str, candidates))
    raise ClaimsFailed(
        f"neither {names} is a folder that every user may write to; name one with --lock-folder, made by "
        "root: install -d -m 1777 FOLDER"
    )


class Claims:
    """The claims in one folder."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        """Open the folder.

        Args:
            folder: root's or our own, and sticky where others may write to it.
            now: wall clock.

        Raises:
            ClaimsFailed: the folder does not meet these conditions.
        """
        self._path = folder
        self._now = now
        try:
            self._folder = os.open(folder, _READ | os.O_DIRECTORY)
        except OSError as error:
            raise ClaimsFailed(
                f"the lock folder {folder} can't be used: {error.strerror}; name another with --lock-folder "
                "(links are not followed)"
            ) from None
        about = os.fstat(self._folder)
        if about.st_uid not in (0, os.geteuid()):
            self.close()
            raise ClaimsFailed(
                f"the lock folder {folder} belongs to {_user(about.st_uid)}, who could remove all claims; use "
                "a folder that belongs to root or to you"
            )
        if about.st_mode & (stat.S_IWOTH | stat.S_IWGRP) and not about.st_mode & stat.S_ISVTX:
            self.close()
            raise ClaimsFailed(
                f"in the lock folder {folder} users can remove each other's files; run chmod +t {folder}"
            )

    def close(self) -> None:
        """Close the folder; claims remain."""
        os.close(self._folder)

    @contextmanager
    def choosing(self, patience: float = 10.0) -> Iterator[None]:
        """Hold the selection lock for the duration of the block.

        Raises:
            ClaimsFailed: another user has held the lock for `patience` seconds, the lock file is invalid, or the file
                system does not support locks.
        """
        deadline = time.monotonic() + patience
        while True:
            descriptor = self._mutex()
            try:
                while not self._is_mine(descriptor):
                    if time.monotonic() > deadline:
                        raise ClaimsFailed(
                            f"{self._path / _MUTEX}: locked by another process for {patience:g} s (the file belongs to "
                            f"{_user(os.fstat(descriptor).st_uid)}), perhaps by a stopped stallscope pick; find it: "
                            f"fuser -v {self._path / _MUTEX}"
                        )
                    time.sleep(0.01)
                if self._is(_MUTEX, descriptor):
                    yield
                    return
            finally:
                os.close(descriptor)

    def standing(self) -> tuple[list[Claim], list[str]]:
        """Return all valid claims and warnings about invalid files; remove the files of expired claims."""
        claims: list[Claim] = []
        warnings: list[str] = []
        for name in sorted(os.listdir(self._folder)):  # noqa: PTH208 - by descriptor, since the path may have changed
            if not name.startswith(_PREFIX):
                continue
            try:
                claim = self._read(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                warnings.append(f"{self._shown(name)} is ignored: {error.strerror}")
                continue
            except _NoClaim as problem:
                warnings.append(f"{self._shown(name)} is ignored: {problem}")
                continue
            if claim is not None:
                claims.append(claim)
        return claims, warnings

    def make(self, uuid: str, *, memory: int, exclusive: bool, seconds: float | None) -> int:
        """Claim a GPU; only while `choosing`.

        Args:
            uuid: UUID of the GPU or MIG instance.
            memory: bytes.
            exclusive: True to keep all other users off the GPU.
            seconds: validity of the claim; None for as long as the descriptor is open in any process.

        Returns:
            A descriptor that holds the lock; not inheritable by default.

        Raises:
            ClaimsFailed: the file can't be written.
        """
        name = f"{_PREFIX}{_UNSAFE.sub('_', uuid)}.{os.getpid()}-{secrets.token_hex(4)}"
        content = {"uuid": uuid, "memory": memory, "exclusive": exclusive, "pid": os.getpid(), "seconds": seconds}
        try:
            descriptor = os.open(name, _NEW, 0o644, dir_fd=self._folder)
        except OSError as error:
            raise ClaimsFailed(
                f"{self._path}: no claim can be made ({error.strerror}); name another folder with --lock-folder"
            ) from None
        try:
            os.fchmod(descriptor, 0o644)  # despite the umask: other users must be able to read it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, json.dumps(content).encode())
        except OSError as error:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._folder)
            raise ClaimsFailed(
                f"{self._path}: no claim can be made ({error.strerror}); name another folder with --lock-folder"
            ) from None
        return descriptor

    def _mutex(self) -> int:
        """Open the lock file; create it if it is missing.

        Raises:
            ClaimsFailed: it is not a regular file, or permission is denied.
        """
        path = self._path / _MUTEX
        for _ in range(_ATTEMPTS):
            try:
                descriptor = os.open(_MUTEX, _READ, dir_fd=self._folder)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    self._make_mutex()
                continue
            except OSError as error:
                raise ClaimsFailed(f"{path} can't be used ({error.strerror}): have root remove it") from None
            if (problem := _reason_for_distrust(os.fstat(descriptor))) is not None:
                os.close(descriptor)
                raise ClaimsFailed(f"{path} can't be used ({problem}): have root remove it")
            return descriptor
        raise ClaimsFailed(f"{path}: removed by another process again and again; find out which one and stop it")

    def _is_mine(self, descriptor: int) -> bool:
        try:
            return _locked(descriptor)
        except OSError as error:
            raise ClaimsFailed(
                f"files in {self._path} can't be locked ({error.strerror}), as on a file server: name a folder on a "
                "disk of this machine with --lock-folder"
            ) from None

    def _make_mutex(self) -> None:
        try:
            descriptor = os.open(_MUTEX, _NEW, 0o644, dir_fd=self._folder)
        except FileExistsError:
            raise
        except OSError as error:
            raise ClaimsFailed(
                f"{self._path}: no lock can be made ({error.strerror}); name another folder with --lock-folder"
            ) from None
        os.fchmod(descriptor, 0o644)
        os.close(descriptor)

    def _is(self, name: str, descriptor: int) -> bool:
        """Return True if the open file is still the file of that name."""
        try:
            current = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(current, os.fstat(descriptor))

    def _read(self, name: str) -> Claim | None:
        """Return a claim; None if it has expired.

        Raises:
            _NoClaim: the file is not a valid claim.
            OSError: it can't be opened.
        """
        descriptor = os.open(name, _READ, dir_fd=self._folder)
        try:
            about = os.fstat(descriptor)
            if (problem := _reason_for_distrust(about)) is not None:
                raise _NoClaim(problem)
            held = not _locked(descriptor, fcntl.LOCK_SH)
            content = _content(os.read(descriptor, _LONGEST + 1))
        finally:
            os.close(descriptor)
        age = self._now() - about.st_mtime
        if not held and not (content.seconds is not None and abs(age) < content.seconds):
            with contextlib.suppress(OSError):  # another user's file stays until the machine restarts
                os.unlink(name, dir_fd=self._folder)
            return None
        return Claim(
            uuid=content.uuid,
            memory=content.memory,
            exclusive=content.exclusive,
            pid=content.pid,
            user=_user(about.st_uid),
            age=max(0.0, age),
            held=held,
        )

    def _shown(self, name: str) -> str:
        return readable(str(self._path / name))


class _NoClaim(Exception):
    """The file is not a valid claim; the message gives the reason."""


@dataclass(frozen=True)
class _Content:
    uuid: str
    memory: int
    exclusive: bool
    pid: int
    seconds: float | None


def _content(text: bytes) -> _Content:
    if len(text) > _LONGEST:
        raise _NoClaim("it is too long")
    try:
        content = json.loads(text)
        uuid, memory, exclusive, pid, seconds = (
            content[key] for key in ("uuid", "memory", "exclusive", "pid", "seconds")
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _NoClaim("it is not a valid claim") from None
    is_valid = (
        type(uuid) is str
        and type(memory) is int
        and 0 <= memory <= _MOST_MEMORY
        and type(exclusive) is bool
        and type(pid) is int
        and 0 < pid <= _MOST_PROCESSES
        and (seconds is None or (type(seconds) in (int, float) and 0 <= seconds <= 3600))
    )
    if not is_valid:
        raise _NoClaim("it is not a valid claim")
    return _Content(uuid, memory, exclusive, pid, seconds)


def _reason_for_distrust(about: os.stat_result) -> str | None:
    """Return the reason to distrust a file; None if there is none."""
    if not stat.S_ISREG(about.st_mode):
        return "it is not a regular file"
    return "it has several hard links" if about.st_nlink > 1 else None


def _locked(descriptor: int, how: int = fcntl.LOCK_EX) -> bool:
    """Try to lock the file without waiting; return True on success."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
