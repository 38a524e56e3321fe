"""The data folder of a stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.lab.stack.errors import StackError
from stallscope.lab.stack.launcher import _folder


def test_a_folder_is_for_one_stack_at_a_time(tmp_path: Path) -> None:
    kept = tmp_path / "stack"
    with _folder(kept) as folder:
        assert folder == kept
        with pytest.raises(StackError, match="a running stack uses this folder; name another"), _folder(kept):
            pass
    with _folder(kept):
        pass


def test_a_temporary_folder_is_removed(tmp_path: Path) -> None:
    with _folder(None) as folder:
        assert folder.is_dir()
    assert not folder.exists()
