from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from stallscope.training.shim.process import ProcessProbe

CORES = float(len(os.sched_getaffinity(0)))


def tree(root: Path, files: dict[str, str]) -> ProcessProbe:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    probe = ProcessProbe(str(root))
    probe.close()
    return probe


def test_the_tightest_quota_upwards_is_the_limit(tmp_path: Path) -> None:
    probe = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/pod/cpu.stat": "usage_usec 5\nnr_periods 40\nnr_throttled 10\nthrottled_usec 2500000\n",
        },
    )
    counters, gauges = probe.read()
    assert gauges["cpu_limit_cores"] == 0.5
    assert counters["cpu_periods"] == 40
    assert counters["cpu_throttled_periods"] == 10
    assert counters["cpu_throttled_seconds"] == 2.5


def test_a_first_version_cgroup_has_a_quota_too(tmp_path: Path) -> None:
    probe = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "25000\n",  # in a container, the mount is its own
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_periods 4\nnr_throttled 1\nthrottled_time 500000000\n",
        },
    )
    counters, gauges = probe.read()
    assert gauges["cpu_limit_cores"] == 0.25
    assert counters["cpu_throttled_seconds"] == 0.5


@pytest.mark.parametrize("quota", ["max 100000\n", "nonsense\n", "5 0\n", ""])
def test_without_a_quota_the_affinity_mask_is_the_limit(quota: str, tmp_path: Path) -> None:
    probe = tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota})
    counters, gauges = probe.read()
    assert gauges["cpu_limit_cores"] == CORES
    assert "cpu_periods" not in counters


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    counters, gauges = tree(tmp_path, {}).read()
    assert set(gauges) == {"cpu_limit_cores"}
    assert set(counters) == {"process_cpu_seconds", "main_thread_cpu_seconds", "garbage_collection_seconds"}


@pytest.mark.parametrize(
    ("files", "cores", "throttled"),
    [
        pytest.param(
            {
                "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
                "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cpu.stat": (
                    "usage_usec 9\nuser_usec 7\nsystem_usec 2\nnr_periods 8\nnr_throttled 4\nthrottled_usec 250000\n"
                    "nr_bursts 0\nburst_usec 0\n"
                ),
                "sys/fs/cgroup/system.slice/cpu.max": "max 100000\n",
            },
            1.5,
            0.25,
            id="Slurm, whose job has the quota and whose task has no controller",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/cpu.stat": "nr_periods 8\nnr_throttled 4\nthrottled_usec 500000\n",
            },
            0.5,
            0.5,
            id="a container with a cgroup namespace, whose root is its own",
        ),
        pytest.param(
            {
                "proc/self/cgroup": (
                    "5:cpuacct,cpu:/kubepods.slice/pod:1/c\n1:name=systemd:/kubepods.slice/pod:1/c\n0::/\n"
                ),
                "sys/fs/cgroup/cpu/kubepods.slice/pod:1/c/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/kubepods.slice/pod:1/c/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/kubepods.slice/pod:1/cpu.cfs_quota_us": "75000\n",
                "sys/fs/cgroup/cpu/kubepods.slice/pod:1/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/kubepods.slice/pod:1/cpu.stat": (
                    "nr_periods 3\nnr_throttled 2\nthrottled_time 125000000\nwait_sum 5\n"
                ),
            },
            0.75,
            0.125,
            id="both versions at once, with a colon in the path",
        ),
    ],
)
def test_quotas_are_found_as_orchestrators_set_them(
    files: dict[str, str], cores: float, throttled: float, tmp_path: Path
) -> None:
    counters, gauges = tree(tmp_path, files).read()
    assert gauges["cpu_limit_cores"] == min(cores, CORES)
    assert counters["cpu_throttled_seconds"] == throttled


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(
            {
                "proc/self/cgroup": "0::/pods/container\n",
                "sys/fs/cgroup/pods/memory.events": "oom 9\noom_kill 9\n",
                "sys/fs/cgroup/pods/container/memory.events": "oom 4\noom_kill 3\noom_group_kill 0\n",
            },
            id="its own cgroup, not one above it",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/user.slice/app.scope\n",
                "sys/fs/cgroup/user.slice/app.scope/cpu.stat": "usage_usec 5\n",
                "sys/fs/cgroup/user.slice/memory.events": "oom_kill 3\n",
            },
            id="the nearest above it with a memory controller",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": "oom_kill 3\n"},
            id="a container with a cgroup namespace",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/slurm/job_7\n0::/\n",
                "sys/fs/cgroup/memory/slurm/job_7/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            },
            id="version 1",
        ),
    ],
)
def test_processes_of_the_cgroup_that_were_killed_for_memory_are_counted(files: dict[str, str], tmp_path: Path) -> None:
    assert tree(tmp_path, files).read()[0]["cgroup_oom_kills"] == 3


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"proc/self/cgroup": "0::/\n"}, id="the root of version 2 counts none"),
        pytest.param(
            {"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\n"},
            id="an old kernel",
        ),
    ],
)
def test_without_a_counter_of_kills_there_is_none(files: dict[str, str], tmp_path: Path) -> None:
    assert "cgroup_oom_kills" not in tree(tmp_path, files).read()[0]


@pytest.mark.parametrize("text", ["", "nonsense\n", "0\n::\n0::\n", "\0\xff"])
def test_a_broken_cgroup_file_is_ignored(text: str, tmp_path: Path) -> None:
    assert tree(tmp_path, {"proc/self/cgroup": text}).read()[1]["cpu_limit_cores"] == CORES


CHILD, GRANDCHILD, OTHER = 7001, 7002, 7003


def stat(pid: int, ticks: int, ended: int = 0, pages: int = 0) -> str:
    return f"{pid} (a (b) c) S " + "0 " * 10 + f"{ticks} 0 {ended} 0 " + "0 " * 6 + f"{pages} 18446744073709551615 1\n"


def test_all_below_the_process_count_and_never_less_than_before(tmp_path: Path) -> None:
    own = f"proc/self/task/{os.getpid()}/children"
    tick, page = 1.0 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE")
    probe = tree(
        tmp_path,
        {
            own: f"{CHILD} {OTHER} ",
            "proc/self/statm": "900 100 50 1 0 1 0\n",
            f"proc/{CHILD}/stat": stat(CHILD, 1000, 500, pages=10),
            f"proc/{CHILD}/task/{CHILD}/children": f"{GRANDCHILD} ",
            f"proc/{GRANDCHILD}/stat": stat(GRANDCHILD, 2000, pages=20),
        },
    )

    def children_cpu() -> tuple[float, float]:
        """Return the least and the most seconds of the children: this process has used some itself meanwhile."""
        probe._children_due = 0.0
        before, read, after = os.times(), probe.read()[0]["process_cpu_seconds"], os.times()
        return read - after.user - after.system, read - before.user - before.system

    assert probe.read()[1]["process_memory_bytes"] == 130 * page
    assert children_cpu()[1] >= 3499 * tick
    # The grandchild ended and the child has reaped it; then the child ended and is not reaped yet.
    (tmp_path / f"proc/{GRANDCHILD}/stat").unlink()
    (tmp_path / f"proc/{CHILD}/task/{CHILD}/children").write_text("")
    (tmp_path / f"proc/{CHILD}/stat").write_text(stat(CHILD, 1100, 2600))
    least, most = children_cpu()
    assert most >= 3699 * tick
    (tmp_path / own).write_text("")
    assert children_cpu()[1] >= least - 2 * tick


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_that_a_thread_or_a_fork_server_started_count(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import json, multiprocessing, os, sys, threading, time

        def work(worked, may_end):
            while time.process_time() < 0.3:
                pass
            worked.set()
            may_end.wait()

        def of_children():
            return ProcessProbe().read()[0]["process_cpu_seconds"] - sum(os.times()[:2])

        if __name__ == "__main__":
            from stallscope.training.shim.process import ProcessProbe
            context = multiprocessing.get_context(sys.argv[1])
            worked, may_end = context.Event(), context.Event()
            worker = context.Process(target=work, args=(worked, may_end))
            thread = threading.Thread(target=lambda: (worker.start(), may_end.wait()))
            thread.start()
            worked.wait()
            living = of_children()
            may_end.set()
            thread.join()
            worker.join()
            # Until the kernel has ended the thread, the fork server is the child of a thread Python no longer knows.
            while os.path.exists(f"/proc/self/task/{thread.native_id}"):
                time.sleep(0.01)
            print(json.dumps([living, of_children()]))
        """)
    )
    done = subprocess.run([sys.executable, script, method], stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    living, ended = json.loads(done.stdout)
    assert living >= 0.2
    assert ended >= 0.2


def test_living_children_count() -> None:
    script = "import sys; block = bytearray(64 << 20); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        probe = ProcessProbe()
        with_child = probe.read()[1]["process_memory_bytes"]
        probe.close()
        child.communicate("")
    alone = ProcessProbe()
    without = alone.read()[1]["process_memory_bytes"]
    alone.close()
    assert with_child - without > 40 << 20


def test_the_thread_that_reports_is_the_one_whose_time_counts(tmp_path: Path) -> None:
    probe = tree(tmp_path, {})
    before = probe.read()[0]["main_thread_cpu_seconds"]
    times: list[float] = []

    def loop() -> None:
        probe.read()
        begin = time.thread_time()
        while time.thread_time() < begin + 0.05:
            pass
        times.append(probe.read()[0]["main_thread_cpu_seconds"])

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    assert times[0] >= before + 0.05
    assert (
        probe.read()[0]["main_thread_cpu_seconds"] == times[0]
    )  # the main thread's own time meanwhile isn't the loop's


def test_a_look_at_many_children_is_taken_in_turns_with_the_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    probe = tree(tmp_path, {})
    probe.read()
    probe._children_due = probe._cgroup_due = 0.0
    probe.read()
    assert probe._cgroup_due == 0.0
    probe.read()
    assert probe._cgroup_due > 0.0


def test_readings_far_apart_look_at_the_children_and_at_the_cgroup_by_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    probe = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/job/cpu.stat": "nr_periods 1\nnr_throttled 1\nthrottled_usec 1\n",
        },
    )
    assert probe.read()[0]["cpu_periods"] == 1
    (tmp_path / "sys/fs/cgroup/job/cpu.stat").write_text("nr_periods 2\nnr_throttled 1\nthrottled_usec 1\n")
    now += 30.0
    probe.read()
    now += 30.0
    assert probe.read()[0]["cpu_periods"] == 2


def test_collections_are_timed_until_closed() -> None:
    before = list(gc.callbacks)
    probe = ProcessProbe()
    gc.collect()
    assert probe.read()[0]["garbage_collection_seconds"] > 0
    probe.close()
    probe.close()
    assert gc.callbacks == before
