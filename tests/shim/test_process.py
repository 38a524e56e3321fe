from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stallscope.shim.process import ProcessProbe

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


def test_collections_are_timed_until_closed() -> None:
    before = list(gc.callbacks)
    probe = ProcessProbe()
    gc.collect()
    assert probe.read()[0]["garbage_collection_seconds"] > 0
    probe.close()
    probe.close()
    assert gc.callbacks == before
