"""Commands find the newest stack that is running, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stallscope.common.local_stack import LocalStack, announced, newest_stack, runtime_folder
from stallscope.model.clients.address import default_exporter, default_url

FIRST = LocalStack("http://127.0.0.1:1", "http://127.0.0.1:2")
SECOND = LocalStack("http://127.0.0.1:11", "http://127.0.0.1:12")
_HOLD = """
import sys
from stallscope.common.local_stack import LocalStack, announced
with announced(LocalStack("http://127.0.0.1:1", "http://127.0.0.1:2")):
    print("announced", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("STALLSCOPE_PROMETHEUS_URL", raising=False)
    return tmp_path / "stallscope"


def test_without_a_stack_there_is_no_address() -> None:
    assert newest_stack() is None
    assert default_url() == "http://localhost:9090"
    assert default_exporter() == "http://localhost:19400"


def test_a_stack_is_found_as_long_as_it_is_announced(folder: Path) -> None:
    with announced(FIRST):
        assert newest_stack() == FIRST
        assert (default_exporter(), default_url()) == FIRST[:2]
    assert newest_stack() is None
    assert list(folder.iterdir()) == []


def test_of_two_stacks_the_newest_is_found_and_after_its_end_the_other() -> None:
    with announced(FIRST):
        with announced(SECOND):
            assert newest_stack() == SECOND
        assert newest_stack() == FIRST


def test_the_environment_comes_before_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSCOPE_PROMETHEUS_URL", "http://prometheus:9090")
    with announced(FIRST):
        assert default_url() == "http://prometheus:9090"


def test_a_killed_stack_is_not_found_and_the_next_one_removes_its_file(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"announced\n"
        assert newest_stack() == FIRST
        holder.send_signal(signal.SIGKILL)
    assert newest_stack() is None
    assert len(list(folder.iterdir())) == 1
    with announced(SECOND):
        assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("content", ["", "not JSON", "[]", '{"exporter": "http://127.0.0.1:1"}'])
def test_a_file_without_the_addresses_is_ignored(folder: Path, content: str) -> None:
    with announced(FIRST):
        (file,) = folder.iterdir()
        file.write_text(content)
        assert newest_stack() is None


def test_a_file_that_others_may_write_is_ignored(folder: Path) -> None:
    with announced(FIRST):
        (file,) = folder.iterdir()
        file.chmod(0o666)
        assert newest_stack() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_user_is_not_used(folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(PermissionError, match="it belongs to user 12345"), announced(FIRST):
        pass


def test_without_a_runtime_folder_of_the_session_the_user_has_one_in_the_temporary_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert runtime_folder().name == f"stallscope-{os.geteuid()}"
