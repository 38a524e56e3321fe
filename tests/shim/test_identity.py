from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stallscope.shim import identity

TORCHRUN = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16"}
SLURM = {"SLURM_PROCID": "5", "SLURM_LOCALID": "2", "SLURM_NTASKS": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
OWN = {"STALLSCOPE_RANK": "7", "STALLSCOPE_LOCAL_RANK": "0", "STALLSCOPE_WORLD_SIZE": "9"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, (9, 1, 16)),
        (SLURM, (5, 2, 8)),
        (OPEN_MPI, (3, 3, 4)),
        (OWN, (7, 0, 9)),
        ({**SLURM, **TORCHRUN}, (9, 1, 16)),
        ({**TORCHRUN, **OWN}, (7, 0, 9)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, (0, None, 1)),
        ({}, (0, None, 1)),
        ({"RANK": "x", **SLURM}, (5, 2, 8)),
        ({"RANK": "-1"}, (0, None, 1)),
        ({"RANK": "99999999999"}, (0, None, 1)),
        ({"RANK": "\u0663"}, (0, None, 1)),
        ({"RANK": "2", "WORLD_SIZE": ""}, (2, None, 1)),
    ],
)
def test_ranks_come_from_the_launcher(environment: dict[str, str], expected: tuple[int, int | None, int]) -> None:
    assert identity.ranks(environment) == expected


@pytest.mark.parametrize(
    ("environment", "world", "script", "expected"),
    [
        ({"STALLSCOPE_RUN": "mine", "SLURM_JOB_ID": "4"}, 1, "/a/train.py", "mine"),
        ({"SLURM_JOB_ID": "4"}, 8, "/a/train.py", "train-4"),
        ({"TORCHELASTIC_RUN_ID": "none"}, 8, "/a/train.py", "train"),
        ({"TORCHELASTIC_RUN_ID": "abc"}, 8, "/a/train.py", "train-abc"),
        ({}, 1, "/a/train.py", "train-20231114T221320"),
        ({}, 1, "/a/pack/__main__.py", "pack-20231114T221320"),
        ({}, 2, "-c", "python"),
        ({}, 2, "", "python"),
    ],
)
def test_a_run_without_a_name_is_named_the_same_on_all_ranks(
    environment: dict[str, str], world: int, script: str, expected: str
) -> None:
    assert identity.run_name(environment, world, script, 1_700_000_000.0) == expected


@pytest.mark.parametrize(
    ("visible", "local_rank", "expected"),
    [
        ("3", 0, [{"gpu": "3", "uuid": ""}]),
        ("4,5", 1, [{"gpu": "5", "uuid": ""}]),
        ("GPU-a,GPU-b", 1, [{"gpu": "", "uuid": "GPU-b"}]),
        ("MIG-a", None, [{"gpu": "", "uuid": "MIG-a"}]),
        ("4,5", None, []),
        ("4,5", 2, []),
        ("", 0, []),
        ("-1", 0, []),
        ("NoDevFiles", 0, []),
        (None, 1, [{"gpu": "1", "uuid": ""}]),
        (None, 2, []),
        (None, None, []),
    ],
)
def test_the_gpu_is_told_only_where_it_is_known(
    visible: str | None, local_rank: int | None, expected: list[dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia1").touch()
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert identity.gpus(environment, local_rank, str(tmp_path)) == expected


def test_a_framework_that_uses_a_gpu_knows_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 1,
        get_device_properties=lambda _: SimpleNamespace(uuid="1234-5678"),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert identity.gpus({"CUDA_VISIBLE_DEVICES": "4,6"}, 0) == [{"gpu": "6", "uuid": "GPU-1234-5678"}]
    assert identity.framework() == "pytorch"


def test_an_unknown_job_class_is_production() -> None:
    assert identity.information({"STALLSCOPE_JOB_CLASS": "toy"})["job_class"] == "production"
    assert identity.information({"STALLSCOPE_JOB_CLASS": "experiment"})["job_class"] == "experiment"


def test_a_pod_a_job_and_a_commit_are_told() -> None:
    found = identity.information(
        {"POD_NAMESPACE": "ml", "POD_NAME": "p-0", "SLURM_JOB_ID": "4", "STALLSCOPE_GIT_COMMIT": "abc", "USER": "u"}
    )
    assert {key: found[key] for key in ("namespace", "pod", "slurm_job", "git_commit", "user")} == {
        "namespace": "ml",
        "pod": "p-0",
        "slurm_job": "4",
        "git_commit": "abc",
        "user": "u",
    }
