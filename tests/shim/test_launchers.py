"""Ranks and run names from the environments that launchers really make."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stallscope.training.shim import identity, launched, launchers, run_names
from stallscope.training.shim.launch_variables import RANK_VARIABLES

TORCHRUN = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "none"}
STEP = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8"}
SLURM = {**STEP, "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
BATCH = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
OWN = {"STALLSCOPE_RANK": "7", "STALLSCOPE_LOCAL_RANK": "0", "STALLSCOPE_WORLD_SIZE": "9"}
CLUSTER = {"ps": ["p:1"], "worker": ["a:1", "b:1"], "chief": ["c:1"]}

MADE_UP = "6f1c0a52-0f4b-4d6e-9a3c-51d2b8e0f001"
"""The job name that torchrun sets by default."""


def tensorflow(kind: str, index: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": index}})}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, (9, 1, 16)),
        (SLURM, (5, 1, 8)),
        (OPEN_MPI, (3, 3, 4)),
        (OWN, (7, 0, 9)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, (1, 1, 2)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}, (2, 0, 4)),  # MPICH, Intel MPI
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "PALS_LOCAL_RANKID": "1"}, (2, 1, 4)),
        ({"HOROVOD_RANK": "1", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_SIZE": "2"}, (1, 1, 2)),
        ({"JSM_NAMESPACE_RANK": "6", "JSM_NAMESPACE_LOCAL_RANK": "0", "JSM_NAMESPACE_SIZE": "12"}, (6, 0, 12)),
        ({"FLUX_TASK_RANK": "1", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "2"}, (1, 1, 2)),
        ({**SLURM, "PMIX_RANK": "5"}, (5, 1, 8)),
        ({"PMIX_RANK": "5"}, (5, None, 1)),
        ({"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"}, (1, None, 2)),
        ({"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2"}, (1, None, 2)),
        ({"JOB_COMPLETION_INDEX": "3"}, (3, None, 1)),
        ({"JOB_COMPLETION_INDEX": "1", **TORCHRUN}, (9, 1, 16)),  # torchrun in the pods of an indexed job
        (tensorflow("chief", 0), (0, None, 4)),
        (tensorflow("worker", 1), (2, None, 4)),
        (tensorflow("ps", 0), (3, None, 4)),
        (tensorflow("evaluator", 0), (0, None, 1)),
        ({"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"}, (1, None, 2)),
        ({"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b,c"}, (1, None, 3)),
        (
            {
                "TPU_WORKER_ID": "1",
                "TPU_WORKER_HOSTNAMES": "a,b",
                "MEGASCALE_SLICE_ID": "2",
                "MEGASCALE_NUM_SLICES": "4",
            },
            (5, None, 8),
        ),
        ({}, (0, None, 1)),
        ({"TF_CONFIG": "{", "SM_HOSTS": "7", "TPU_WORKER_ID": "9"}, (0, None, 1)),
        ({"TF_CONFIG": '{"cluster": {"worker": 3}, "task": {"type": "worker", "index": "x"}}'}, (0, None, 1)),
    ],
)
def test_ranks_come_from_the_launcher(environment: dict[str, str], expected: tuple[int, int | None, int]) -> None:
    assert launchers.ranks(environment) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({**SLURM, **TORCHRUN}, (9, 1, 16)),  # srun torchrun: Slurm counts nodes
        ({**TORCHRUN, **OWN}, (7, 0, 9)),
        # mpirun in a batch script: on further nodes the ranks inherit the variables of its daemon's step.
        ({**BATCH, **OPEN_MPI}, (3, 3, 4)),
        ({**STEP, "SLURM_PROCID": "1", **OPEN_MPI}, (3, 3, 4)),
        ({**OPEN_MPI, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}, (3, 3, 4)),  # DeepSpeed over MPI
    ],
)
def test_of_nested_launchers_the_inner_one_counts(
    environment: dict[str, str], expected: tuple[int, int | None, int], caplog: pytest.LogCaptureFixture
) -> None:
    assert launchers.ranks(environment) == expected
    assert caplog.text == ""


def test_a_batch_script_is_alone_though_its_job_has_many_tasks() -> None:
    assert launchers.ranks(BATCH) == (0, None, 1)
    assert launchers.ranks({**BATCH, "SLURM_STEP_NUM_TASKS": "1"}) == (0, 0, 1)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "x", **SLURM}, (5, 1, 8)),
        ({"RANK": "-1"}, (0, None, 1)),
        ({"RANK": "99999999999"}, (0, None, 1)),
        ({"RANK": "\u0663"}, (0, None, 1)),
        ({"RANK": "2", "WORLD_SIZE": ""}, (2, None, 1)),
        ({"RANK": "2", "WORLD_SIZE": "0"}, (2, None, 1)),
    ],
)
def test_what_is_no_number_is_not_used(environment: dict[str, str], expected: tuple[int, int | None, int]) -> None:
    assert launchers.ranks(environment) == expected


def test_a_rank_outside_its_world_is_warned_of_once_and_taken(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert launchers.ranks({"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}) == (9, 1, 1)
    assert [record.message for record in caplog.records] == [
        "torchrun sets rank 9, local rank 1, in a world of 8; the world stays unknown"
    ]


def test_a_world_left_over_from_elsewhere_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert launchers.ranks({"RANK": "0", "WORLD_SIZE": "1", **SLURM}) == (0, None, 1)
    assert "torchrun sets a world of 1, Slurm of 8; the former is used" in caplog.text
    caplog.clear()
    assert launchers.ranks({"RANK": "0", "WORLD_SIZE": "1", **BATCH}) == (0, None, 1)
    assert caplog.text == ""


LIGHTNING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "45001", "NODE_RANK": "0"}
"""Variables that Lightning sets for the ranks that it starts; LOCAL_RANK and WORLD_SIZE differ."""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({**LIGHTNING, "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, (0, 0, 2)),
        ({**LIGHTNING, "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, (1, 1, 2)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, (1, 1, 2)),
        # Two nodes of eight ranks: the only number of ranks by which node 1 has a rank 5.
        ({**LIGHTNING, "NODE_RANK": "1", "LOCAL_RANK": "5", "WORLD_SIZE": "16"}, (13, 5, 16)),
        ({**LIGHTNING, "NODE_RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, (7, 1, 8)),
        # The size of a node as other launchers set it.
        ({"NODE_RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4"}, (4, 0, 16)),
        ({"PET_NODE_RANK": "2", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "PET_NPROC_PER_NODE": "2"}, (5, 1, 8)),
        ({"PET_NODE_RANK": "2", "PET_NPROC_PER_NODE": "auto", "PET_NNODES": "4", "LOCAL_RANK": "1", "WORLD_SIZE": "8"},
         (5, 1, 8)),
        ({"CROSS_RANK": "1", "CROSS_SIZE": "4", "LOCAL_SIZE": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "8"}, (2, 0, 8)),
        ({"SLURM_NODEID": "1", "SLURM_NNODES": "4", "LOCAL_RANK": "0", "WORLD_SIZE": "16"}, (4, 0, 16)),
        ({"JOB_COMPLETION_INDEX": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "NNODES": "2"}, (3, 1, 4)),
        # Inside a Slurm step of one task, an MPI of one process, or a SageMaker host.
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
          **LIGHTNING, "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, (1, 1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", **LIGHTNING, "LOCAL_RANK": "3", "WORLD_SIZE": "4"},
         (3, 3, 4)),
        ({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", **LIGHTNING, "LOCAL_RANK": "1", "WORLD_SIZE": "2"},
         (1, 1, 2)),
        # Lightning deletes WORLD_SIZE after the training.
        ({**LIGHTNING, "LOCAL_RANK": "1"}, (1, 1, 1)),
        # A script sets LOCAL_RANK, and the launcher counts all ranks.
        ({**SLURM, "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, (5, 1, 8)),
        ({**SLURM, "LOCAL_RANK": "1"}, (5, 1, 8)),
        ({**OPEN_MPI, "LOCAL_RANK": "3"}, (3, 3, 4)),
        ({**OWN, "LOCAL_RANK": "3", "WORLD_SIZE": "16"}, (7, 0, 9)),
        ({"MVP_COMM_WORLD_RANK": "1", "MVP_COMM_WORLD_LOCAL_RANK": "1", "MVP_COMM_WORLD_SIZE": "2"}, (1, 1, 2)),
        ({"PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1"}, (3, 1, 1)),
        ({"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2"}, (1, None, 2)),
        ({"LOCAL_RANK": "0"}, (0, None, 1)),
        ({"WORLD_SIZE": "1"}, (0, None, 1)),
    ],
)  # fmt: skip
def test_ranks_come_from_a_part_of_torchrun_s_variables(
    environment: dict[str, str], expected: tuple[int, int | None, int], caplog: pytest.LogCaptureFixture
) -> None:
    assert launchers.ranks(environment) == expected
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("environment", "expected", "warning"),
    [
        (
            {**LIGHTNING, "NODE_RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "16"},
            (8, 0, 16),
            (
                "LOCAL_RANK, NODE_RANK and WORLD_SIZE leave open how many ranks a node has; 8 is assumed: set "
                "LOCAL_WORLD_SIZE, or STALLSCOPE_RANK and STALLSCOPE_WORLD_SIZE"
            ),
        ),
        (
            {"NODE_RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "16", "CUDA_VISIBLE_DEVICES": "0,1,2,3"},
            (4, 0, 16),
            (
                "LOCAL_RANK, NODE_RANK and WORLD_SIZE leave open how many ranks a node has; 4 is assumed: set "
                "LOCAL_WORLD_SIZE, or STALLSCOPE_RANK and STALLSCOPE_WORLD_SIZE"
            ),
        ),
        (
            {"LOCAL_RANK": "4", "WORLD_SIZE": "4"},
            (4, 4, 1),
            "LOCAL_RANK is 4, in a world of 4; the world stays unknown",
        ),
        (
            {"MASTER_ADDR": "10.0.0.7", "WORLD_SIZE": "4"},
            (0, None, 1),
            (
                "WORLD_SIZE is 4, and no variable has the rank of this process; a run of one rank is reported: set "
                "STALLSCOPE_RANK and STALLSCOPE_WORLD_SIZE, or begin the run after the process group is initialized"
            ),
        ),
    ],
)
def test_variables_that_leave_the_rank_open_are_warned_of_once(
    environment: dict[str, str],
    expected: tuple[int, int | None, int],
    warning: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        assert launchers.ranks(environment) == expected
    assert [record.message for record in caplog.records] == [warning]


def test_ranks_that_lightning_starts_share_a_name() -> None:
    names = {named({**LIGHTNING, "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}, world=2) for rank in range(2)}
    assert len(names) == 1
    assert names != {named({**LIGHTNING, "MASTER_PORT": "45002", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, world=2)}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (3, 3, 4)),  # torch.multiprocessing.spawn
        ({"MASTER_ADDR": "10.0.0.7", "WORLD_SIZE": "4"}, (3, 3, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (3, None, 4)),  # PyTorchJob counts pods, and each pod spawns two ranks
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}, (3, 0, 4)),
        (TORCHRUN, (9, 1, 16)),  # a process group for each node
        (OWN, (7, 0, 9)),
    ],
)
def test_a_larger_process_group_of_pytorch_has_the_rank(
    environment: dict[str, str], expected: tuple[int, int | None, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 3, get_world_size=lambda: 4
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert launchers.ranks(environment) == expected


def test_a_process_group_that_is_not_initialized_has_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert launchers.ranks({}) == (0, None, 1)
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace())  # while it is being imported
    assert launchers.ranks(TORCHRUN) == (9, 1, 16)


def named(environment: dict[str, str], world: int = 8, script: str = "/a/train.py") -> str:
    return run_names.run_name(environment, world, script, 1_700_000_000.0)


def pod(name: str, **more: str) -> dict[str, str]:
    return {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": name, **more}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"STALLSCOPE_RUN": "mine", "SLURM_JOB_ID": "4"}, "mine"),
        ({"STALLSCOPE_RUN": "漢".encode().decode("ascii", "surrogateescape"), "SLURM_JOB_ID": "4"}, "漢"),
        ({"STALLSCOPE_RUN": "\x01", "SLURM_JOB_ID": "4"}, "train-4"),
        ({"SLURM_JOB_ID": "4", "TORCHELASTIC_RUN_ID": "abc"}, "train-4"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": "2"}, "train-4_2"),
        ({"SLURM_JOB_ID": "9", "SLURM_JOB_ID_HET_GROUP_0": "8"}, "train-8"),
        ({"PBS_JOBID": "12.server"}, "train-12.server"),
        ({"TRAINING_JOB_NAME": "sage-1"}, "train-sage-1"),
        ({"TORCHELASTIC_RUN_ID": "abc"}, "train-abc"),
        ({"TORCHELASTIC_RUN_ID": MADE_UP}, "train-6f1c0a52"),
        (
            pod("bert-worker-0", TORCHELASTIC_RUN_ID=MADE_UP),
            "train-bert",
        ),  # which may come again
        (pod("web-7c9d8f6b5d-x7k2p", TORCHELASTIC_RUN_ID=MADE_UP), "train-6f1c0a52"),
        ({"LWS_LEADER_ADDRESS": "llm-1.llm.default"}, "train-llm-1"),
        (pod("bert-master-0", MASTER_ADDR="localhost"), "train-bert"),
        (pod("bert-worker-12", MASTER_ADDR="bert-master-0"), "train-bert"),
        (pod("bert-launcher-x7k2p"), "train-bert"),
        (pod("bert-3", JOB_COMPLETION_INDEX="3"), "train-bert"),
        (pod("bert-3", JOB_COMPLETION_INDEX="3", POD_NAME="bert-3-x7k2p"), "train-bert"),
        (pod("js-node-1-3", JOB_COMPLETION_INDEX="3", MASTER_ADDR="js-node-0-0.js"), "train-js"),
        (pod("sts-3", MASTER_ADDR="sts-0.headless.ns.svc"), "train-sts"),
        (pod("bert-x7k2p"), "train-bert"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "train"),
        ({}, "train"),
    ],
)
def test_ranks_of_a_job_share_a_name_that_sets_it_apart(environment: dict[str, str], expected: str) -> None:
    assert named(environment) == expected


def test_ranks_without_a_job_s_name_are_named_by_where_they_meet() -> None:
    first = {**TORCHRUN, "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
    name = named(first)
    assert name == named({**first, "RANK": "3", "LOCAL_RANK": "3"})
    assert name != named({**first, "MASTER_PORT": "29501"})
    assert len(name) == len("train-01234567")
    # An address without a port, a cluster, or MPI's own name for the job do as well.
    others = [{"MASTER_ADDR": "10.0.0.7"}, {"PMIX_NAMESPACE": "prterun-n1-42@1"}, tensorflow("worker", 0)]
    assert len({named(other) for other in others}) == 3


def test_each_launch_of_torchrun_on_one_node_is_a_run_through_all_its_restarts() -> None:
    def launched(folder: str, attempt: int, rank: int, nodes: str = "1") -> str:
        return named(
            {
                "TORCHELASTIC_RUN_ID": "none",
                "TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic_{folder}/none_x/attempt_{attempt}/{rank}/error.json",
                "GROUP_WORLD_SIZE": nodes,
                "MASTER_ADDR": "node-1",
                "MASTER_PORT": "29500",
            }
        )

    assert launched("a", 0, 0) == launched("a", 2, 1) != launched("b", 0, 0)
    assert launched("a", 0, 0, nodes="2") == launched("b", 0, 0, nodes="2")


def test_the_loopback_address_is_another_place_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    name = named(here)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert name != named(here)


@pytest.mark.parametrize(
    ("script", "expected"), [("/a/pack/__main__.py", "pack"), ("-c", "python"), ("", "python"), ("/a/x", "x")]
)
def test_the_program_is_named_as_people_call_it(script: str, expected: str) -> None:
    assert named({}, script=script) == expected


def test_a_notebook_is_named_by_its_file() -> None:
    script = "/lib/ipykernel_launcher.py"
    assert named({"JPY_SESSION_NAME": "/home/u/tune.ipynb", "SLURM_JOB_ID": "4"}, script=script) == "tune-4"
    assert named({"SLURM_JOB_ID": "4"}, script=script) == "notebook-4"


def test_a_process_that_is_alone_is_named_by_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_names, "_lives", {})
    name = named({}, world=1)
    assert name == f"train-20231114T221320-{os.getpid()}"
    # A notebook cell that runs again restarts the same run.
    assert run_names.run_name({}, 1, "/a/train.py", 1_700_009_999.0) == name


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_JOB_ID": "4", "SLURM_STEP_ID": "2"}, "train-4.2"),  # srun -n1 … & srun -n1 … &
        ({"SLURM_JOB_ID": "4", "SLURM_STEP_ID": "4294967291"}, "train-4"),
        (pod("bert-x7k2p"), "train-bert"),  # a Job's pod, which comes again after a failure
    ],
)
def test_a_process_that_is_alone_in_a_job_is_named_by_that(environment: dict[str, str], expected: str) -> None:
    assert named(environment, world=1) == expected


@pytest.mark.parametrize("name", ["web-7c9d8f6b5d-x7k2p", "notebook-0", "my-pod"])
def test_a_pod_of_no_job_names_no_run(name: str) -> None:
    assert named(pod(name), world=1).startswith("train-2")


def test_a_rank_of_an_unknown_world_is_not_named_by_its_start_time() -> None:
    assert named({"RANK": "2"}, world=1) == "train"


def test_a_pod_s_host_name_is_its_name_unless_it_shares_the_node_s(tmp_path: Path) -> None:
    hosts = tmp_path / "etc/hosts"
    hosts.parent.mkdir()
    hosts.write_text("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n")

    def pod_name(environment: dict[str, str]) -> str:
        return identity.information(environment, str(tmp_path))["pod"]

    assert pod_name(pod("bert-worker-0")) == "bert-worker-0"
    assert pod_name({"POD_NAME": "from-env", **pod("bert-worker-0")}) == "from-env"
    assert pod_name({"HOSTNAME": "workstation"}) == ""
    assert pod_name(pod("bert-3", JOB_COMPLETION_INDEX="3")) == ""
    assert pod_name(pod("b" * 63)) == ""
    hosts.write_text("# Kubernetes-managed hosts file (host network).\n127.0.0.1\tlocalhost\n")
    assert pod_name(pod("node-1")) == ""
    hosts.unlink()
    assert pod_name(pod("node-1")) == ""


def test_restarts_are_the_sum_of_those_that_launchers_count() -> None:
    assert launchers.restarts({}) == 0
    assert launchers.restarts({"TORCHELASTIC_RESTART_COUNT": "2", "SLURM_RESTART_COUNT": "1"}) == 3


@pytest.fixture
def ray_worker(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Fake of the Ray Train API inside a worker."""
    context = SimpleNamespace(
        get_world_rank=lambda: 3,
        get_local_rank=lambda: 1,
        get_world_size=lambda: 4,
        get_trial_id=lambda: "4c1e2_00000",
        get_experiment_name=lambda: "tune_lr",
    )
    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=lambda: context))
    monkeypatch.setitem(
        sys.modules,
        "ray",
        SimpleNamespace(get_runtime_context=lambda: SimpleNamespace(get_job_id=lambda: "01000000")),
    )
    monkeypatch.setattr(sys, "argv", ["/lib/ray/_private/workers/default_worker.py"])
    return context


def test_ray_train_is_queried_in_its_worker(ray_worker: SimpleNamespace) -> None:
    assert launchers.ranks({}) == (3, 1, 4)
    assert named({}, world=4, script=sys.argv[0]) == "tune_lr-4c1e2_00000"


def test_ray_is_not_queried_by_its_driver_nor_used_without_an_answer(
    ray_worker: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_worker.get_world_rank = lambda: None
    ray_worker.get_trial_id = ray_worker.get_experiment_name = lambda: None
    assert launchers.ranks({}) == (0, None, 1)
    assert named({}, world=1, script=sys.argv[0]) == "ray-01000000"
    monkeypatch.setattr(sys, "argv", ["train.py"])
    ray_worker.get_world_rank = lambda: pytest.fail("queried")
    assert launchers.ranks({}) == (0, None, 1)


def test_each_launcher_with_a_variable_for_its_rank_is_looked_for() -> None:
    assert tuple(launcher.rank for launcher in launched.LAUNCHERS) == RANK_VARIABLES
