"""The checked-out commit is reported exactly as git reports it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stallscope.training.shim.identity import commit

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git makes the repositories")

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", folder, *arguments], env=ENVIRONMENT, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def test_a_branch_is_followed_from_any_folder_below(repository: Path) -> None:
    inner = repository / "jobs" / "vision"
    inner.mkdir(parents=True)
    assert commit(str(inner)) == git(repository, "rev-parse", "HEAD")


def test_a_packed_branch_is_found_among_others(repository: Path) -> None:
    git(repository, "branch", "maint")
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    git(repository, "tag", "-a", "v1", "-m", "v1")
    git(repository, "pack-refs", "--all")
    assert not (repository / ".git/refs/heads/main").exists()
    assert commit(str(repository)) == git(repository, "rev-parse", "HEAD")


def test_a_detached_head_is_the_commit_itself(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    assert commit(str(repository)) == git(repository, "rev-parse", "HEAD")


def test_a_work_tree_has_its_own_head_and_the_repository_s_branches(repository: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    git(repository, "worktree", "add", "-q", "-b", "side", str(tree))
    git(tree, "commit", "-q", "--allow-empty", "-m", "on the side")
    assert commit(str(tree)) == git(tree, "rev-parse", "HEAD") != git(repository, "rev-parse", "HEAD")


def test_a_submodule_has_a_head_of_its_own(repository: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q", "-b", "main")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(repository), "part")
    assert (outer / "part/.git").is_file()
    assert commit(str(outer / "part")) == git(repository, "rev-parse", "HEAD")


def test_without_commit_or_repository_there_is_none(tmp_path: Path) -> None:
    assert commit(str(tmp_path)) == ""
    git(tmp_path, "init", "-q")
    assert commit(str(tmp_path)) == ""
    assert commit(str(tmp_path / "missing")) == ""


@pytest.mark.parametrize(
    "head", ["", "ref: refs/../../secret", "ref: /etc/passwd", "ref: refs/heads/main", "nonsense", "\0", "a" * 5000]
)
def test_a_broken_head_is_no_commit(head: str, tmp_path: Path) -> None:
    (tmp_path / ".git/refs/heads").mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text(head)
    (tmp_path / ".git/refs/heads/main").write_text("ref: refs/heads/main")  # which leads round in a circle
    assert commit(str(tmp_path)) == ""


@pytest.mark.parametrize("content", ["", "gitdir: nowhere", "something else"])
def test_a_file_that_leads_to_no_repository_is_no_commit(content: str, tmp_path: Path) -> None:
    (tmp_path / ".git").write_text(content)
    assert commit(str(tmp_path)) == ""
