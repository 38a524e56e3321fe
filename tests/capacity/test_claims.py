"""Claims on real files, with real locks."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.tools.capacity.claims import Claims, ClaimsFailed, shared_folder

GPU = "GPU-57a1d000-0000-4000-8000-000000000000"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "locks"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def claims(folder: Path) -> Iterator[Claims]:
    opened = Claims(folder)
    yield opened
    opened.close()


def made(folder: Path) -> Path:
    """The file of the only claim."""
    (path,) = folder.glob("stallscope-claim.*")
    return path


def test_a_claim_stands_while_its_descriptor_is_open_and_no_longer(claims: Claims, folder: Path) -> None:
    with claims.choosing():
        descriptor = claims.make(GPU, memory=7, exclusive=True, seconds=None)
    (claim,), complaints = claims.standing()
    assert (claim.uuid, claim.memory, claim.exclusive, claim.pid, claim.held) == (GPU, 7, True, os.getpid(), True)
    assert complaints == []
    os.close(descriptor)
    assert claims.standing() == ([], [])
    assert not list(folder.glob("stallscope-claim.*")), "what is over is removed"


def test_a_claim_for_a_minute_stands_by_itself_until_then(folder: Path) -> None:
    now = time.time()
    claims = Claims(folder, lambda: now)
    os.close(claims.make(GPU, memory=0, exclusive=True, seconds=60))
    os.utime(made(folder), (now, now))
    now += 59
    (claim,), _ = claims.standing()
    assert not claim.held
    assert 58 < claim.age < 60
    now += 2
    assert claims.standing() == ([], [])
    claims.close()


def test_every_user_may_see_a_claim_whatever_the_umask(claims: Claims, folder: Path) -> None:
    before = os.umask(0o077)
    try:
        with claims.choosing():
            os.close(claims.make(GPU, memory=0, exclusive=True, seconds=60))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}


def test_one_user_chooses_at_a_time_and_the_error_names_the_lock(claims: Claims, folder: Path) -> None:
    other = Claims(folder)
    with (
        claims.choosing(),
        pytest.raises(ClaimsFailed, match=r"pick\.lock: locked by another process for 0 s"),
        other.choosing(0),
    ):
        pytest.fail("two choose at once")
    with other.choosing(0):
        pass
    other.close()


def test_a_file_system_without_locks_is_an_error_that_names_the_flag(
    claims: Claims, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_descriptor: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    reported = rf"{folder} can't be locked \(No locks available\).*--lock-folder"
    with pytest.raises(ClaimsFailed, match=reported), claims.choosing():
        pytest.fail("no user was kept away")


class TestHostileFiles:
    def test_a_lock_that_is_a_link_is_refused_and_not_followed(
        self, claims: Claims, folder: Path, tmp_path: Path
    ) -> None:
        (folder / "stallscope-pick.lock").symlink_to(tmp_path / "victim")
        with pytest.raises(ClaimsFailed, match="have root remove it"), claims.choosing():
            pytest.fail("it was followed")
        assert not (tmp_path / "victim").exists()

    def test_a_lock_that_is_a_pipe_is_refused_and_not_waited_for(self, claims: Claims, folder: Path) -> None:
        os.mkfifo(folder / "stallscope-pick.lock")
        with pytest.raises(ClaimsFailed, match="not a regular file"), claims.choosing():
            pytest.fail("it was taken")

    def test_what_is_no_claim_is_passed_over_with_a_warning(self, claims: Claims, folder: Path, tmp_path: Path) -> None:
        os.close(claims.make(GPU, memory=0, exclusive=True, seconds=60))
        good = made(folder).read_text()
        (tmp_path / "elsewhere").write_text(good)
        begin = folder / "stallscope-claim"
        Path(f"{begin}.link").symlink_to(tmp_path / "elsewhere")
        Path(f"{begin}.second").hardlink_to(tmp_path / "elsewhere")
        Path(f"{begin}.long").write_text(good + " " * 5000)
        Path(f"{begin}.garbage").write_text("\x1b[31m")
        Path(f"{begin}.other\x1b[31m").write_text(good.replace(": 0", ": -1"))
        Path(f"{begin}.process").write_text(good.replace(f'"pid": {os.getpid()}', f'"pid": {"9" * 4000}'))
        Path(f"{begin}.folder").mkdir()
        os.mkfifo(f"{begin}.pipe")
        found, complaints = claims.standing()
        assert len(found) == 1
        assert len(complaints) == 8
        assert all("is ignored" in each and each.isprintable() for each in complaints)

    def test_files_of_others_are_left_alone(self, claims: Claims, folder: Path) -> None:
        (folder / "stallscope-other").write_text("")
        assert claims.standing() == ([], [])
        assert (folder / "stallscope-other").exists()


class TestFolder:
    def test_a_link_is_refused(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(folder)
        with pytest.raises(ClaimsFailed, match="links are not followed"):
            Claims(tmp_path / "link")

    def test_one_where_users_can_remove_each_others_files_is_refused(self, folder: Path) -> None:
        folder.chmod(0o777)
        with pytest.raises(ClaimsFailed, match=r"chmod \+t"):
            Claims(folder)

    def test_a_folder_of_another_user_is_refused(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 65534)
        with pytest.raises(ClaimsFailed, match="could remove all claims"):
            Claims(folder)

    def test_one_that_is_missing_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ClaimsFailed, match="missing can't be used: No such file or directory"):
            Claims(tmp_path / "missing")

    def test_the_shared_one_is_the_first_that_everybody_may_write_to(self, folder: Path, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        closed.mkdir(0o755)
        assert shared_folder((tmp_path / "missing", closed, folder)) == folder
        with pytest.raises(ClaimsFailed, match="install -d -m 1777"):
            shared_folder((closed,))


def test_a_lock_that_was_removed_meanwhile_is_made_again(
    claims: Claims, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claims.choosing():
        pass
    lock = folder / "stallscope-pick.lock"
    lock_file = fcntl.flock

    def remove_first(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock_file)
        lock.unlink()
        lock_file(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    other = Claims(folder)
    with claims.choosing(), pytest.raises(ClaimsFailed), other.choosing(0):
        pytest.fail("each has a lock of its own")
    other.close()
