"""The scripts for Slurm run as its daemons and jobs run them, and a real Prometheus reads their target files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.owners import Owners
from stallscope.node.owners.attribution import Owner, attribute
from stallscope.node.owners.processes import Processes
from stallscope.node.owners.slurm_allocations import FOLDER as ALLOCATIONS
from tests.free_ports import free_port
from tests.owners.machines import GIB, UUIDS, gpu, on
from tests.waiting import until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/slurm"
SCRIPTS = [*sorted(FOLDER.glob("*.sh")), FOLDER / "train.sbatch"]
TREE = ROOT / "tests/recorded_trees/slurm_node"
# srun for a job with one node: drop the options, then run the program.
SRUN = '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'
TRAINING = """
import pathlib, time
import stallscope
for step in stallscope.track(range(10**6)):
    time.sleep(0.02)
    if pathlib.Path("enough").exists():
        raise SystemExit(int(pathlib.Path("enough").read_text()))
"""


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """Return a job's environment; the node's programs are on its PATH."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (tmp_path / "targets").mkdir()
    program(binaries, "srun", SRUN)
    program(binaries, "hostname", "#!/bin/sh\necho localhost\n")
    program(binaries, "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program(binaries, "stallscope", f'#!/bin/sh\nexec {sys.executable} -m stallscope "$@"\n')
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "STALLSCOPE"))}
    return {
        **kept,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "SCRIPTS": str(FOLDER),
        "STALLSCOPE_TARGETS": str(tmp_path / "targets"),
        "STALLSCOPE_LISTEN": "127.0.0.1:0",
        "STALLSCOPE_ALLOCATIONS": str(tmp_path / "allocations"),
        # Not the number of a real job, because the folder in /tmp is named after it.
        "SLURM_JOB_ID": f"9{os.getpid()}",
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_NAME": 'fine-tune "large" \\ v2',
        "SLURM_JOB_USER": "ada",
        "SLURM_JOB_ACCOUNT": "vision",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_CLUSTER_NAME": "east",
        "SLURMD_NODENAME": "gpu001",
    }


def own_folder(job: dict[str, str]) -> Path:
    return Path(f"/tmp/stallscope-{os.getuid()}-{job['SLURM_JOB_ID']}")


def target_file(job: dict[str, str]) -> Path:
    return Path(job["STALLSCOPE_TARGETS"], f"{job['SLURM_JOB_ID']}-gpu001.json")


@contextlib.contextmanager
def running(job: dict[str, str], script: str, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script of the folder in its own process group, like a step."""
    command = [str(FOLDER / script), *arguments]
    with subprocess.Popen(command, cwd=folder, env=job, start_new_session=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            shutil.rmtree(own_folder(job), ignore_errors=True)


def page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def test_shellcheck_passes() -> None:
    found = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if found is None:
        pytest.skip("shellcheck is not on PATH")
    done = subprocess.run([found, *SCRIPTS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert all(os.access(script, os.X_OK) for script in SCRIPTS)


def test_prometheus_finds_a_jobs_exporter_and_the_job_removes_it_at_its_end(
    job: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    with running(job, "train.sbatch", tmp_path) as process:
        ((entry),) = until(lambda: json.loads(target_file(job).read_text()))
        (address,) = entry["targets"]
        assert entry["labels"] == {
            "cluster": "east",
            "slurm_job_id": job["SLURM_JOB_ID"],
            "slurm_job_name": job["SLURM_JOB_NAME"],
            "slurm_user": "ada",
            "slurm_account": "vision",
            "slurm_partition": "gpu",
        }
        line = until(lambda: [each for each in page(address).splitlines() if "training_rank_info{" in each][-1:])
        assert f'slurm_job="{job["SLURM_JOB_ID"]}"' in line[0]
        assert own_folder(job).stat().st_mode & 0o777 == 0o700
        labels = scraped(job, tmp_path)
        assert labels["slurm_job_name"] == job["SLURM_JOB_NAME"]
        assert (labels["instance"], labels["job"]) == (address, "stallscope")
        (tmp_path / "almost").write_text("3")
        (tmp_path / "almost").rename(tmp_path / "enough")  # the training reads it as soon as it exists
        assert process.wait(60) == 3
        assert not target_file(job).exists()
        assert not own_folder(job).exists()


def scraped(job: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the labels of the job's target, after a real Prometheus with scrape.yml has scraped it."""
    found = shutil.which("prometheus")
    assert found is not None, "prometheus is not on PATH; sh tests/install_tools.sh installs it"
    text = (FOLDER / "scrape.yml").read_text()
    assert "/shared/stallscope/targets/" in text
    text = text.replace("/shared/stallscope/targets", job["STALLSCOPE_TARGETS"])
    (folder / "prometheus.yml").write_text(f"global: {{scrape_interval: 1s}}\n{text}")
    number = free_port()
    command = [found, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (
        (folder / "prometheus.log").open("w") as log,
        subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{number}"], stderr=log) as server,
    ):
        try:

            def target() -> Any:
                with urllib.request.urlopen(f"http://127.0.0.1:{number}/api/v1/targets", timeout=30) as answer:
                    active = json.load(answer)["data"]["activeTargets"]
                return [each["labels"] for each in active if each["health"] == "up"]

            (labels,) = until(target)
        finally:
            server.terminate()
            server.wait(60)
    return dict(labels)


def test_a_link_in_the_shared_folder_is_not_followed(job: dict[str, str], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    Path(f"{target_file(job)}.new").symlink_to(kept)
    with running(job, "job_exporter.sh", tmp_path):
        until(target_file(job).exists)
    assert kept.read_text() == "mine"


def test_a_cancelled_step_removes_its_target(job: dict[str, str], tmp_path: Path) -> None:
    with running(job, "job_exporter.sh", tmp_path) as process:
        until(target_file(job).exists)
        process.terminate()
        assert process.wait(60) == 0
        assert not target_file(job).exists()
        assert not own_folder(job).exists()


def test_other_users_of_the_node_can_neither_report_to_a_jobs_exporter_nor_release_its_gpus(
    job: dict[str, str], tmp_path: Path
) -> None:
    with running(job, "job_exporter.sh", tmp_path):
        ((entry),) = until(lambda: json.loads(target_file(job).read_text()))
        for path in ("/-/release", "/api/v1/report"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://{entry['targets'][0]}{path}", data=b"{}", timeout=30)
            refused.value.close()
            assert refused.value.code in (403, 404)


def test_the_epilog_removes_the_files_of_a_killed_step(job: dict[str, str], tmp_path: Path) -> None:
    other = target_file(job).with_name("1-gpu001.json")
    other.write_text("[]")
    with running(job, "job_exporter.sh", tmp_path) as process:
        until(target_file(job).exists)
        os.killpg(process.pid, 9)
        process.wait(60)
        assert target_file(job).exists()
        assert own_folder(job).exists()
        subprocess.run([FOLDER / "epilog.sh"], env=job, check=True, timeout=30)
        assert not target_file(job).exists()
        assert not own_folder(job).exists()
        assert other.exists()


def test_two_jobs_on_one_node_do_not_interfere(job: dict[str, str], tmp_path: Path) -> None:
    second = {**job, "SLURM_JOB_ID": job["SLURM_JOB_ID"] + "1"}
    with running(job, "job_exporter.sh", tmp_path), running(second, "job_exporter.sh", tmp_path):
        (one,) = until(lambda: json.loads(target_file(job).read_text()))
        (two,) = until(lambda: json.loads(target_file(second).read_text()))
        assert one["targets"] != two["targets"]
        assert page(one["targets"][0]) != page(two["targets"][0])


def test_a_folder_of_another_user_is_not_used(job: dict[str, str], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    own_folder(job).symlink_to(elsewhere)
    try:
        done = subprocess.run(
            [FOLDER / "job_exporter.sh"], env=job, capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        own_folder(job).unlink()
    assert done.returncode == 1
    assert "owned by another user" in done.stderr
    assert not any(elsewhere.iterdir())


@pytest.mark.parametrize(
    ("missing", "said"), [("SLURM_JOB_ID", "for a step of a Slurm job"), ("stallscope", "pip install")]
)
def test_a_missing_requirement_is_named(job: dict[str, str], missing: str, said: str) -> None:
    if missing == "stallscope":
        Path(job["PATH"].partition(":")[0], "stallscope").unlink()
        job["PATH"] = job["PATH"].partition(":")[0] + ":/usr/bin:/bin"
        if shutil.which("stallscope", path=job["PATH"]):
            pytest.skip("stallscope is installed for the whole machine")
    else:
        del job[missing]
    done = subprocess.run(
        [FOLDER / "job_exporter.sh"], env=job, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert said in done.stderr


def test_an_exporter_that_does_not_start_writes_the_reason_to_the_jobs_log(job: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [FOLDER / "job_exporter.sh", "--no-such-flag"], env=job, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "no-such-flag" in done.stderr
    assert not list(Path(job["STALLSCOPE_TARGETS"]).iterdir())
    assert not own_folder(job).exists()


def test_an_exporter_that_fails_writes_the_reason_to_the_jobs_log(job: dict[str, str], tmp_path: Path) -> None:
    script = "echo 'level=info msg=answering address=127.0.0.1:1' >&2; echo no more >&2; exit 75"
    program(Path(job["PATH"].partition(":")[0]), "stallscope", f"#!/bin/sh\n{script}\n")
    done = subprocess.run(
        [FOLDER / "job_exporter.sh"], env=job, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "no more" in done.stderr
    assert not target_file(job).exists()
    assert not own_folder(job).exists()


def task_prolog(job: dict[str, str]) -> list[str]:
    done = subprocess.run([FOLDER / "task_prolog.sh"], env=job, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_a_run_is_named_after_its_job(job: dict[str, str]) -> None:
    assert task_prolog({**job, "SLURM_JOB_ID": "42"}) == ["export STALLSCOPE_RUN=fine-tune__large____v2-42"]
    sweep = {**job, "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "7", "SLURM_STEP_NUM_TASKS": "1"}
    assert task_prolog(sweep) == ["export STALLSCOPE_RUN=fine-tune__large____v2-42.7"]
    # A step of a batch script inherits the variables of the script.
    inherited = {**sweep, "STALLSCOPE_RUN": "fine-tune__large____v2-42"}
    assert task_prolog(inherited) == ["export STALLSCOPE_RUN=fine-tune__large____v2-42.7"]
    assert task_prolog({**job, "SLURM_JOB_ID": "43", "SLURM_HET_JOB_ID": "42", "SLURM_STEP_NUM_TASKS": "8"}) == [
        "export STALLSCOPE_RUN=fine-tune__large____v2-42"
    ]


def test_the_users_variables_are_kept_and_jobs_in_test_partitions_are_experiments(job: dict[str, str]) -> None:
    assert task_prolog({**job, "STALLSCOPE_RUN": "mine"}) == []
    trying = {**job, "STALLSCOPE_RUN": "mine", "SLURM_JOB_PARTITION": "debug-short"}
    assert task_prolog(trying) == ["export STALLSCOPE_JOB_CLASS=experiment"]
    assert task_prolog({**trying, "STALLSCOPE_JOB_CLASS": "production"}) == []


@contextlib.contextmanager
def node_exporter(scenario: str, folder: Path, log: str = "log") -> Iterator[str]:
    """Start an exporter of the node with simulated GPUs, and yield its URL."""
    number = free_port()
    command = [sys.executable, "-m", "stallscope", "exporter", f"--web.listen-address=127.0.0.1:{number}"]
    command += ["--report.unix-socket=", "--report.udp-address=", "--sampling.interval=2s"]
    command += [f"--simulation.scenario={scenario}", "--simulation.onset=1s", "--simulation.host"]
    with (folder / log).open("w") as out, subprocess.Popen(command, stderr=out) as process:
        try:
            until(lambda: "stallscope_gpu_up{" in page(f"127.0.0.1:{number}"))
            yield f"http://127.0.0.1:{number}"
        finally:
            process.terminate()
            process.wait(60)


def prolog(job: dict[str, str], url: str, wait: str = "0.05") -> subprocess.CompletedProcess[str]:
    environment = {**job, "STALLSCOPE_NODE_URL": url, "STALLSCOPE_PROLOG_WAIT": wait}
    return subprocess.run(
        [FOLDER / "prolog.sh"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="the prolog and the epilog need curl")


@needs_curl
def test_no_job_starts_on_a_node_that_has_lost_a_gpu(job: dict[str, str], tmp_path: Path) -> None:
    with node_exporter("gpu_lost", tmp_path) as url:
        done = until(lambda: refused if (refused := prolog(job, url)).returncode else None)
        # On a machine that pauses, a page may lack readings.
        (lost,) = until(
            lambda: [
                line
                for line in page(url.removeprefix("http://")).splitlines()
                if line.startswith("stallscope_gpu_up{") and line.endswith(" 0")
            ]
        )
    assert done.returncode == 1
    number = lost.partition('gpu="')[2].partition('"')[0]
    assert done.stderr == f"stallscope: GPU {number} (gpu_lost): lost; see alerts/runbooks/GpuLost.md\n"


@needs_curl
def test_a_job_starts_on_a_healthy_node_and_if_nothing_responds(job: dict[str, str], tmp_path: Path) -> None:
    with node_exporter("healthy", tmp_path) as url:
        assert prolog(job, url).returncode == 0
    assert prolog(job, url).returncode == 0


@needs_curl
def test_released_gpus_do_not_block_a_job(job: dict[str, str], tmp_path: Path) -> None:
    with node_exporter("healthy", tmp_path) as url:
        urllib.request.urlopen(f"{url}/-/release?for=60s", data=b"", timeout=30).close()
        until(lambda: 'reason="released"' in page(url.removeprefix("http://")))
        assert prolog(job, url).returncode == 0


@needs_curl
def test_a_destroyed_mig_instance_does_not_block_a_job(job: dict[str, str], tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    sample = 'stallscope_gpu_lost_info{{gpu="0",uuid="MIG-1",mig="1g.10gb",reason="{reason}"}} 1\n'
    number = free_port()
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(pages), str(number)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as server:
        try:
            for reason, started in (("mig_reconfigured", True), ("not_enumerated", False)):
                (pages / "metrics").write_text(sample.format(reason=reason))
                assert until(lambda: page(f"127.0.0.1:{number}"))
                # A job also starts if the response takes too long, as it can on a busy machine.
                until(lambda: (prolog(job, f"http://127.0.0.1:{number}").returncode == 0) is started)  # noqa: B023
        finally:
            server.terminate()


def driver_lists(folder: Path, **minors: int) -> str:
    """Return a folder in which the driver lists GPUs, by the digit of their bus, with the numbers of their files."""
    for bus, minor in minors.items():
        listed = folder / f"0000:{bus.removeprefix('b')}7:00.0"
        listed.mkdir(parents=True)
        (listed / "information").write_text(f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\nExcluded:\t No\n")
    return str(folder)


@needs_curl
def test_the_exporter_releases_gpus_while_the_epilog_resets_them(job: dict[str, str], tmp_path: Path) -> None:
    binaries = Path(job["PATH"].partition(":")[0])
    job |= {"STALLSCOPE_DRIVER_GPUS": driver_lists(tmp_path / "gpus", b0=3, b1=0, b2=10)}
    program(binaries, "nvidia-smi", f'#!/bin/sh\necho "$@" > {tmp_path}/reset\ncp {tmp_path}/log {tmp_path}/before\n')
    with node_exporter("healthy", tmp_path) as url:
        environment = {**job, "STALLSCOPE_NODE_URL": url, "STALLSCOPE_RELEASE_WAIT": "0", "SLURM_JOB_GPUS": "0,3"}
        subprocess.run([FOLDER / "epilog.sh"], env=environment, check=True, timeout=30)
        assert not (tmp_path / "reset").exists()
        subprocess.run(
            [FOLDER / "epilog.sh"], env={**environment, "STALLSCOPE_RESET_GPUS": "1"}, check=True, timeout=30
        )
        log = (tmp_path / "log").read_text()
    assert (tmp_path / "reset").read_text() == "--gpu-reset --id=0000:17:00.0,0000:07:00.0\n"
    before = (tmp_path / "before").read_text()
    assert "releasing the GPUs" in before
    assert "reopening the GPUs" not in before
    assert "reopening the GPUs" in log


@needs_curl
def test_the_epilog_sends_signals_to_an_exporter_without_release_requests(job: dict[str, str], tmp_path: Path) -> None:
    binaries = Path(job["PATH"].partition(":")[0])
    for name in ("nvidia-smi", "systemctl"):
        program(binaries, name, f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n')
    settings = {"STALLSCOPE_RESET_GPUS": "1", "STALLSCOPE_RELEASE_WAIT": "0", "SLURM_JOB_GPUS": "0"}
    settings["STALLSCOPE_NODE_URL"] = f"http://127.0.0.1:{free_port()}"
    settings["STALLSCOPE_DRIVER_GPUS"] = driver_lists(tmp_path / "gpus", b0=0)
    subprocess.run([FOLDER / "epilog.sh"], env={**job, **settings}, check=True, timeout=30)
    assert (tmp_path / "calls").read_text().splitlines() == [
        "systemctl kill --signal=SIGUSR1 stallscope-exporter.service",
        "nvidia-smi --gpu-reset --id=0000:07:00.0",
        "systemctl kill --signal=SIGUSR2 stallscope-exporter.service",
    ]


@pytest.mark.parametrize("numbers", ["2", "0,2", "NoDevFiles", "GPU-1", "."])
def test_the_epilog_resets_no_gpu_if_the_driver_lists_no_device_file_of_that_number(
    job: dict[str, str], tmp_path: Path, numbers: str
) -> None:
    binaries = Path(job["PATH"].partition(":")[0])
    for name in ("nvidia-smi", "systemctl", "curl"):
        program(binaries, name, f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n')
    settings = {"STALLSCOPE_RESET_GPUS": "1", "SLURM_JOB_GPUS": numbers}
    settings["STALLSCOPE_DRIVER_GPUS"] = driver_lists(tmp_path / "gpus", b0=0, b1=1)
    done = subprocess.run(
        [FOLDER / "epilog.sh"], env={**job, **settings}, capture_output=True, text=True, check=True, timeout=30
    )
    assert f"GPUs {numbers}: not reset" in done.stderr
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize(("devices", "reset"), [(f"{UUIDS[0]},{UUIDS[1]}", True), ("MIG-1", False)])
def test_the_epilog_resets_gpus_by_the_uuids_that_slurm_knows_and_no_mig_instance(
    job: dict[str, str], tmp_path: Path, devices: str, reset: bool
) -> None:
    for name in ("nvidia-smi", "systemctl", "curl"):
        program(Path(job["PATH"].partition(":")[0]), name, f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n')
    settings = {"STALLSCOPE_RESET_GPUS": "1", "STALLSCOPE_RELEASE_WAIT": "0", "SLURM_JOB_GPUS": "0,1"}
    # The device files of these numbers are other GPUs'.
    settings |= {"STALLSCOPE_DRIVER_GPUS": driver_lists(tmp_path / "gpus", b8=0, b9=1), "CUDA_VISIBLE_DEVICES": devices}
    subprocess.run([FOLDER / "epilog.sh"], env={**job, **settings}, capture_output=True, check=True, timeout=60)
    calls = (tmp_path / "calls").read_text() if reset else ""
    assert (f"nvidia-smi --gpu-reset --id={devices}\n" in calls, (tmp_path / "calls").exists()) == (reset, reset)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_the_epilog_removes_only_files_of_the_jobs_user(job: dict[str, str]) -> None:
    job_user = 65534
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o1777)
        environment = {
            **job,
            "STALLSCOPE_TARGETS": shared,
            "SLURM_JOB_UID": f"{job_user}",
            "SLURM_JOB_GID": f"{job_user}",
        }
        left = target_file(environment)
        for owner, stays in ((job_user, False), (os.geteuid(), True)):
            left.write_text("[]")
            os.chown(left, owner, owner)
            subprocess.run([FOLDER / "epilog.sh"], env=environment, check=True, capture_output=True, timeout=30)
            assert left.exists() is stays


@pytest.mark.parametrize("job_id", ["", "../x", "1 2"])
def test_an_epilog_with_a_strange_job_number_removes_nothing(job: dict[str, str], job_id: str) -> None:
    kept = Path(job["STALLSCOPE_TARGETS"], "x-gpu001.json")
    kept.write_text("[]")
    subprocess.run([FOLDER / "epilog.sh"], env={**job, "SLURM_JOB_ID": job_id}, check=True, timeout=30)
    assert kept.exists()


def test_on_a_recorded_node_each_job_owns_the_gpus_it_uses() -> None:
    pids = (31337, 31338, 40400, 40700)
    processes = Processes(TREE).look_up(pids)
    occupancy = on(gpu(), *((pid, GIB) for pid in pids), used=len(pids) * GIB)
    found = attribute(occupancy, [], processes, {})
    owners = {pid: share.owner for share in found.shares for pid in share.pids}
    assert owners.keys() == set(pids)
    assert owners[31337] == Owner(slurm_job=processes[31337].slurm_job, user=processes[31337].user)
    assert len({owner.slurm_job for owner in owners.values()} - {""}) > 1


@pytest.fixture
def slurm_machine(job: dict[str, str], tmp_path: Path) -> Path:
    """Return the root of a machine that has started as this one; the scripts write its allocations."""
    root = tmp_path / "machine"
    boot = root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    job["STALLSCOPE_ALLOCATIONS"] = str(root / ALLOCATIONS)
    (root / "run").mkdir()
    return root


def holders(machine: Path) -> set[tuple[str, str, str]]:
    """Return GPU, job and user of each owner that the exporter's collector finds without a process."""
    environment = Environment(root=machine)
    environment.occupancies.publish("nvidia", {UUIDS[index]: on(gpu(index), used=0) for index in (0, 1)})
    source = Owners(environment)
    samples = [sample.labels for sample in source.read() if sample.family.name == "stallscope_gpu_owner_info"]
    source.close()
    return {(labels[0], labels[5], labels[6]) for labels in samples}


# As slurmd sets them for Prolog= and Epilog=, without AutoDetect and with it.
@pytest.mark.parametrize("devices", ["1", UUIDS[1]])
def test_the_exporter_knows_a_jobs_gpus_from_the_prolog_to_the_epilog(
    job: dict[str, str], slurm_machine: Path, devices: str
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    slurmd = {**job, "SLURM_JOB_GPUS": "1", "CUDA_VISIBLE_DEVICES": devices, "SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}
    mask = os.umask(0)  # slurmd's may be anything
    try:
        done = prolog(slurmd, nowhere)
    finally:
        os.umask(mask)
    assert (done.returncode, done.stderr) == (0, "")
    assert holders(slurm_machine) == {("1", job["SLURM_JOB_ID"], "ada")}
    ended = {**slurmd, "SLURM_SCRIPT_CONTEXT": "epilog_slurmd"}
    subprocess.run([FOLDER / "epilog.sh"], env=ended, check=True, timeout=60)
    assert holders(slurm_machine) == set()
    assert list((slurm_machine / ALLOCATIONS).iterdir()) == []


def test_a_job_without_gpus_is_not_recorded_and_one_that_cannot_be_recorded_starts(
    job: dict[str, str], slurm_machine: Path
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    assert prolog(job, nowhere).returncode == 0
    assert not (slurm_machine / ALLOCATIONS).exists()
    (slurm_machine / ALLOCATIONS).write_text("")
    done = prolog({**job, "SLURM_JOB_GPUS": "0"}, nowhere)
    assert done.returncode == 0
    assert "the job's GPUs are not recorded; check that root may write there" in done.stderr
    assert holders(slurm_machine) == set()


def test_a_job_that_does_not_start_is_not_recorded(job: dict[str, str], slurm_machine: Path) -> None:
    page = 'stallscope_gpu_lost_info{gpu="0",uuid="GPU-0",reason="gpu_lost"} 1'
    program(Path(job["PATH"].partition(":")[0]), "curl", f"#!/bin/sh\necho '{page}'\n")
    assert prolog({**job, "SLURM_JOB_GPUS": "0"}, "http://node", wait="0").returncode == 1
    assert not (slurm_machine / ALLOCATIONS).exists()


def test_promtool_accepts_the_scrape_job(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is not on PATH; sh tests/install_tools.sh installs it"
    text = (FOLDER / "scrape.yml").read_text()
    assert yaml.safe_load(text)["scrape_configs"][0]["honor_labels"] is True
    # promtool also reads the target files.
    (tmp_path / "1.json").write_text('[{"targets": ["localhost:1"]}]')
    (tmp_path / "nodes.yml").write_text('- targets: ["gpu001:19400"]\n')
    text = text.replace("/shared/stallscope/targets", str(tmp_path))
    text = text.replace("/etc/prometheus/stallscope-nodes.yml", str(tmp_path / "nodes.yml"))
    (tmp_path / "prometheus.yml").write_text(text)
    done = subprocess.run(
        [promtool, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
