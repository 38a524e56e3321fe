"""Allocations of Slurm jobs are read from files that only root can have written, of this boot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stallscope.node.owners.slurm_allocations import FOLDER, JobAllocation, SlurmAllocations

UUID = "GPU-7e1c3a52-0f4b-4d6e-9a3c-51d2b8e0f001"
WHOLE = {"boot": "b007", "job": "4112", "user": "ada", "gpus": "0,1", "devices": "0,1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of allocations of a machine that was started once."""
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("b007\n")
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    return folder


def text(**changed: str) -> str:
    return "".join(f"{name}={value}\n" for name, value in {**WHOLE, **changed}.items())


def write(folder: Path, content: str | bytes, name: str = "4112") -> Path:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    file.chmod(0o644)
    return file


def read(folder: Path) -> tuple[tuple[JobAllocation, ...], tuple[str, ...]]:
    return SlurmAllocations(folder.parents[1], {}).read()


def refusal(folder: Path) -> str:
    """Return the one line about what was refused."""
    jobs, (problem,) = read(folder)
    assert jobs == ()
    return problem


def test_a_machine_without_slurm_has_no_allocations(tmp_path: Path) -> None:
    assert SlurmAllocations(tmp_path).read() == ((), ())


def test_a_job_has_the_uuids_that_slurm_knows_and_otherwise_its_numbers(folder: Path) -> None:
    write(folder, text())
    assert read(folder) == ((JobAllocation("4112", "ada", ("0", "1")),), ())
    write(folder, text(devices=UUID))
    assert read(folder) == ((JobAllocation("4112", "ada", (UUID,)),), ())
    write(folder, text(devices="", user="", future="7") + "a line\n")
    assert read(folder) == ((JobAllocation("4112", "", ("0", "1")),), ())


def test_an_exporter_in_a_job_which_sees_other_numbers_reads_nothing(folder: Path) -> None:
    write(folder, text())
    assert SlurmAllocations(folder.parents[1], {"SLURM_JOB_ID": "7"}).read() == ((), ())


def test_files_that_are_being_written_and_those_of_an_earlier_boot_have_no_effect(folder: Path) -> None:
    write(folder, text(), ".4112")
    write(folder, text(boot="0ld"), "9")
    assert read(folder) == ((), ())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "it has no line boot="),
        (text(job="1 2"), "job: expected a number of at most ten digits"),
        (text(job="12345678901"), "job: expected a number of at most ten digits"),
        (text(user="a b"), "user: expected a name"),
        (text(user="a" * 65), "user: expected a name"),
        (text(gpus="", devices=""), "gpus: expected numbers"),
        (text(gpus="NoDevFiles", devices=""), "gpus: expected numbers"),
        (text(gpus=",".join(map(str, range(129)))), "gpus: expected at most 128"),
        (text() + "#" * 9000, "it has more than 8192 bytes"),
        (b"boot=b007\xff\n", "it is not UTF-8"),
    ],
)
def test_a_malformed_file_is_refused_with_one_line_and_the_others_are_read(
    folder: Path, content: str | bytes, problem: str
) -> None:
    file = write(folder, content)
    assert refusal(folder).startswith(f"{file}: {problem}")
    write(folder, text(job="5"), "5")
    assert [job.job for job in read(folder)[0]] == ["5"]


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_read(folder: Path, mode: int) -> None:
    write(folder, text())
    folder.chmod(mode)
    assert refusal(folder) == f"{folder}: its mode is {mode:04o}, expected 0755"


def test_a_folder_that_is_a_link_is_not_read(folder: Path, tmp_path: Path) -> None:
    write(folder, text())
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert refusal(folder) == f"{folder}: it is not a folder"


def test_a_file_that_is_a_link_or_a_pipe_is_not_read(folder: Path, tmp_path: Path) -> None:
    (folder / "1").symlink_to(write(tmp_path, text()))
    os.mkfifo(folder / "2")
    jobs, problems = read(folder)
    assert jobs == ()
    assert [problem.partition(": ")[0] for problem in problems] == [f"{folder}/1", f"{folder}/2"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_or_folder_of_another_user_is_not_read(folder: Path) -> None:
    file = write(folder, text())
    os.chown(file, 65534, 65534)
    assert "it belongs to user 65534" in refusal(folder)
    os.chown(file, 0, 0)
    os.chown(folder, 65534, 65534)
    assert refusal(folder).startswith(f"{folder}: it belongs to user 65534")


def test_the_number_of_files_is_limited(folder: Path) -> None:
    for job in range(514):
        write(folder, text(job=str(job)), f"{job:04}")
    jobs, problems = read(folder)
    assert len(jobs) == 512
    assert problems == (f"{folder}: 2 files above the limit of 512 are not read",)
