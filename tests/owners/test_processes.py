from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import psutil
import pytest

from stallscope.node.owners.processes import Process, Processes
from tests.collectors.recorded import TREES, copy_of, edit

POD = "8f3c1c2e-5a1b-4e0e-9d6f-0c2b7a9e4d11"
ID = sha256(b"any").hexdigest()


def recorded(tree: str, pid: int) -> Process:
    return Processes(TREES / tree).look_up([pid])[pid]


def container_id(seed: str) -> str:
    """As the recorded trees were made."""
    return sha256(seed.encode()).hexdigest()


def with_cgroup(folder: Path, cgroup: str) -> Process:
    root = copy_of("kubernetes_node", folder)
    (root / "proc/41207/cgroup").write_text(cgroup)
    return Processes(root).look_up([41207])[41207]


def test_a_process_of_a_pod_is_known_by_cgroup_and_environment() -> None:
    assert recorded("kubernetes_node", 41207) == Process(
        started=51234567,
        user="1000",
        container=container_id("resnet"),
        pod_uid=POD,
        slurm_job="",
        host_name="resnet-train-0",
        pod_name="",
        pod_namespace="",
        outside_kubernetes=False,
    )


def test_the_downward_api_is_read() -> None:
    process = recorded("kubernetes_node", 52001)
    assert (process.pod_name, process.pod_namespace) == ("bert-serving-6d5f7c9b8-x2x7q", "inference")


def test_an_environment_that_may_not_be_read_is_no_error() -> None:
    process = recorded("kubernetes_node", 41388)
    assert (process.pod_uid, process.host_name) == (POD, "")


def test_a_service_of_the_host_is_outside_kubernetes() -> None:
    process = recorded("kubernetes_node", 1803)
    assert process.outside_kubernetes
    assert (process.user, process.container, process.pod_uid, process.slurm_job) == ("root", "", "", "")


@pytest.mark.parametrize(
    ("pid", "job", "user"),
    [
        (31337, "1234567", "ada"),
        (31338, "1234567", "ada"),
        (40400, "88", "grace"),
        (40500, "89", "grace"),
        (40600, "", "root"),
        (40700, "", "ada"),  # its environment claims job 90, from a session of its own
    ],
)
def test_a_slurm_job_is_known_by_cgroup_and_never_by_environment(pid: int, job: str, user: str) -> None:
    process = recorded("slurm_node", pid)
    assert (process.slurm_job, process.user, process.container) == (job, user, "")


@pytest.mark.parametrize(
    ("pid", "container", "user"),
    [
        (2201, container_id("trainer"), "root"),
        (2302, container_id("old"), "ada"),
        (2403, container_id("rootless"), "ada"),
        (2504, "", "ada"),
        (2605, "", "1001"),
    ],
)
def test_containers_and_users_of_a_workstation_are_known(pid: int, container: str, user: str) -> None:
    process = recorded("docker_workstation", pid)
    assert (process.container, process.user, process.pod_uid) == (container, user, "")


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods/burstable/pod{POD}/{ID}",
        f"12:memory:/kubepods/pod{POD}/{ID}\n1:name=systemd:/kubepods/pod{POD}/{ID}",
        f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/crio-{ID}.scope",
        f"0::/../../kubepods-besteffort-pod{POD.replace('-', '_')}.slice/cri-containerd-{ID}.scope",
        f"0::/../../pod{POD}/{ID}",
        f"0::/system.slice/containerd.service/kubepods-pod{POD.replace('-', '_')}.slice:cri-containerd:{ID}",
        f"0::/kubepods/burstable/pod{POD.replace('-', '')}/{ID}",
        f"0::/docker/{container_id('node')}/kubelet/kubepods/pod{POD}/{ID}",
        f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/docker-{ID}.scope/nested",
    ],
)
def test_a_pod_and_its_container_are_found_however_they_are_written(tmp_path: Path, cgroup: str) -> None:
    process = with_cgroup(tmp_path, cgroup + "\n")
    assert (process.pod_uid, process.container, process.outside_kubernetes) == (POD, ID, False)


@pytest.mark.parametrize("cgroup", ["", "0::/\n", "0::/../..\n", "12:memory:/\n1:name=systemd:/\n"])
def test_an_uninformative_cgroup_is_no_proof_of_being_outside(tmp_path: Path, cgroup: str) -> None:
    assert not with_cgroup(tmp_path, cgroup).outside_kubernetes


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/job_1\n",
        "0::/user.slice/job_12/x\n",
        "0::/slurm/uid_1/job_x/step_0\n",
        f"0::/slurm/uid_1/job_{'7' * 200}/step_0\n",
        "0::/slurm/uid_1/job_\u0667/step_0\n",
    ],
)
def test_a_folder_that_merely_looks_like_a_job_is_ignored(tmp_path: Path, cgroup: str) -> None:
    assert with_cgroup(tmp_path, cgroup).slurm_job == ""


def with_step_daemon(folder: Path, title: bytes, uid: str = "0") -> Process:
    """Return process 40700 as the grandchild of a process with that title."""
    root = copy_of("slurm_node", folder)
    proc = root / "proc"
    stat = (proc / "40700/stat").read_text()
    for pid, parent in (("40700", "40650"), ("40650", "40640")):
        (proc / pid).mkdir(exist_ok=True)
        (proc / pid / "stat").write_text(stat.replace(" S 1 ", f" S {parent} "))
    (proc / "40650/cmdline").write_bytes(b"/bin/bash\0job\0")
    (proc / "40640").mkdir()
    (proc / "40640/stat").write_text(stat)
    (proc / "40640/cmdline").write_bytes(title)
    (proc / "40640/status").write_text(f"Name:\tslurmstepd\nUid:\t{uid}\t0\t0\t0\n")
    return Processes(root).look_up([40700])[40700]


@pytest.mark.parametrize("step", [b"90.batch", b"90.0", b"90.extern", b"90+1.0"])
def test_without_cgroups_a_slurm_job_is_that_of_the_step_daemon_above_the_process(tmp_path: Path, step: bytes) -> None:
    assert with_step_daemon(tmp_path, b"slurmstepd: [%s]\0\0\0" % step).slurm_job == "90"


@pytest.mark.parametrize(
    ("title", "uid"),
    [
        (b"slurmstepd: [90.batch]", "10001"),  # a user's own program of that name
        (b"/usr/sbin/slurmstepd infinity", "0"),  # the daemon that only holds the cgroup
        (b"bash\0slurmstepd: [90.batch]", "0"),
        (b"slurmstepd: [.batch]", "0"),
        (b"slurmstepd: [99999999999.batch]", "0"),
        ("slurmstepd: [\u0669.0]".encode(), "0"),
        (b"", "0"),
    ],
)
def test_any_other_ancestor_is_no_proof_of_a_slurm_job(tmp_path: Path, title: bytes, uid: str) -> None:
    assert with_step_daemon(tmp_path, title, uid).slurm_job == ""


SLUID = "sEKNKTV3WPV500"
SCOPE = "/system.slice/slurmstepd.scope"


def in_unnumbered_job(
    folder: Path, cgroup: str, *, title: bytes = b"slurmstepd: [91.extern]", uid: str = "0"
) -> Process:
    """Return process 40700, whose ancestors are no step daemons, in that cgroup of a machine with one such job."""
    root = copy_of("slurm_node", folder)
    (root / "proc/40700/cgroup").write_text(f"0::{cgroup}\n")
    (root / "proc/40800").mkdir()
    (root / "proc/40800/cmdline").write_bytes(title)
    (root / "proc/40800/status").write_text(f"Name:\tslurmstepd\nUid:\t{uid}\t0\t0\t0\n")
    for scope in (SCOPE, "/system.slice/node7_slurmstepd.scope"):
        step = root / f"sys/fs/cgroup{scope}/{SLUID}/step_extern/slurm"
        step.mkdir(parents=True)
        (step / "cgroup.procs").write_text("40799\n40800\n")
    return Processes(root).look_up([40700])[40700]


@pytest.mark.parametrize(
    "cgroup",
    [
        f"{SCOPE}/{SLUID}/step_extern/user/task_special",
        f"{SCOPE}/{SLUID}/step_0/user/task_0",
        f"/system.slice/node7_slurmstepd.scope/{SLUID}/step_batch/user/task_0",
    ],
)
def test_a_job_whose_cgroup_is_named_without_its_number_has_the_number_of_its_step_daemon(
    tmp_path: Path, cgroup: str
) -> None:
    assert in_unnumbered_job(tmp_path, cgroup).slurm_job == "91"


@pytest.mark.parametrize(
    ("cgroup", "title", "uid"),
    [
        (f"{SCOPE}/{SLUID}/step_0/user", b"slurmstepd: [91.0]", "10001"),  # a user's own program of that name
        (f"{SCOPE}/{SLUID}/step_0/user", b"python\0train.py", "0"),
        (f"{SCOPE}/sEKNKTV3WPV501/step_0/user", b"slurmstepd: [91.0]", "0"),  # another job, which has ended
        (f"{SCOPE}/system", b"slurmstepd: [91.0]", "0"),
        (f"/user.slice/{SLUID}/step_0", b"slurmstepd: [91.0]", "0"),
        (f"{SCOPE}/../{SLUID}/step_0", b"slurmstepd: [91.0]", "0"),
    ],
)
def test_a_cgroup_without_a_step_daemon_of_root_is_no_proof_of_a_slurm_job(
    tmp_path: Path, cgroup: str, title: bytes, uid: str
) -> None:
    assert in_unnumbered_job(tmp_path, cgroup, title=title, uid=uid).slurm_job == ""


def test_processes_that_are_ancestors_of_each_other_end_the_search_for_a_step_daemon(tmp_path: Path) -> None:
    root = copy_of("slurm_node", tmp_path)
    stat = root / "proc/40700/stat"
    stat.write_text(stat.read_text().replace(" S 1 ", " S 40700 "))
    assert Processes(root).look_up([40700])[40700].slurm_job == ""


def test_of_a_huge_environment_only_the_beginning_is_read(tmp_path: Path) -> None:
    root = copy_of("kubernetes_node", tmp_path)
    environment = root / "proc/41207/environ"
    environment.write_bytes(b"A=" + b"x" * 255 * 1024 + b"\0HOSTNAME=near\0" + b"B=" + b"y" * 2**20)
    assert Processes(root).look_up([41207])[41207].host_name == "near"
    environment.write_bytes(b"A=" + b"x" * 257 * 1024 + b"\0HOSTNAME=far\0")
    assert Processes(root).look_up([41207])[41207].host_name == ""


def test_a_process_that_is_not_there_is_missing() -> None:
    assert Processes(TREES / "slurm_node").look_up([1, 31337]).keys() == {31337}


def test_an_ended_process_is_returned_as_long_as_it_is_looked_up(tmp_path: Path) -> None:
    root = copy_of("slurm_node", tmp_path)
    processes = Processes(root)
    before = processes.look_up([31337])
    (root / "proc/31337/stat").unlink()
    assert processes.look_up([31337]) == before
    assert processes.look_up([]) == {}
    assert processes.look_up([31337]) == {}


def test_a_number_that_stands_for_another_process_is_looked_up_again(tmp_path: Path) -> None:
    root = copy_of("slurm_node", tmp_path)
    processes = Processes(root)
    assert processes.look_up([31337])[31337].user == "ada"
    assert not processes.reused
    edit(root / "proc/31337/stat", "9001234", "9009999")
    edit(root / "proc/31337/status", "Uid:\t10001\t", "Uid:\t10002\t")
    assert processes.look_up([31337])[31337].user == "grace"
    assert processes.reused == {31337}
    processes.look_up([31337])
    assert not processes.reused


def test_a_known_process_costs_one_file(tmp_path: Path) -> None:
    root = copy_of("slurm_node", tmp_path)
    processes = Processes(root)
    before = processes.look_up([31337])
    for name in ("cgroup", "status", "environ"):
        (root / "proc/31337" / name).unlink()
    assert processes.look_up([31337]) == before


def test_new_users_are_learnt(tmp_path: Path) -> None:
    root = copy_of("docker_workstation", tmp_path)
    processes = Processes(root)
    assert processes.look_up([2605])[2605].user == "1001"
    with (root / "etc/passwd").open("a") as passwd:
        passwd.write("no colon\n\nbroken:x:many:1::/:\n:x:1001:1::/:\nalan:x:1001:1001:Alan:/home/alan:/bin/sh\n")
    os.utime(root / "etc/passwd", ns=(1, 1))
    processes.look_up([])
    assert processes.look_up([2605])[2605].user == "alan"


def test_without_a_list_of_users_they_go_by_number(tmp_path: Path) -> None:
    root = copy_of("docker_workstation", tmp_path)
    (root / "etc/passwd").unlink()
    assert Processes(root).look_up([2504])[2504].user == "1000"


def test_a_process_cannot_pass_for_another_users_by_its_name(tmp_path: Path) -> None:
    root = copy_of("slurm_node", tmp_path)
    edit(root / "proc/31337/stat", "(python)", "(x) S 1 1 1)")
    edit(root / "proc/31337/status", "python", "x\rUid:\t0\t0")
    process = Processes(root).look_up([31337])[31337]
    assert (process.user, process.started) == ("ada", 9001234)


@pytest.mark.parametrize("name", ["stat", "status", "cgroup", "environ"])
def test_nonsense_in_a_file_is_no_error(tmp_path: Path, name: str) -> None:
    root = copy_of("slurm_node", tmp_path)
    for nonsense in (b"", b"\xff\xfe\0", b"Uid:\tmany\tx\n", b"31337 (a) b) S x", b"0::\n\n:::\n"):
        (root / "proc/31337" / name).write_bytes(nonsense)
        Processes(root).look_up([31337])


def test_this_very_process_is_seen_on_the_real_machine() -> None:
    me = psutil.Process()
    reported = Processes(Path("/")).look_up([os.getpid()])[os.getpid()]
    assert reported.user in (me.username(), str(os.getuid()))  # by number where a directory service has the name
