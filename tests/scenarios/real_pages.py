"""The GPU pages of a story as the exporter's own sources make them, in scripted time.

`page_gpu.py` draws pages for the whole of a story at once, which a score of hundreds of cases needs. Here the sources
read the same GPUs once a second, so that a test can hold one to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from stallscope.node.collectors.base import Environment
from stallscope.node.collectors.nvidia import NvidiaCollector
from stallscope.node.collectors.owners import Owners
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.sampler import Sampler
from tests.owners.kubelet import container, devices, kubelet_at, pod
from tests.scenarios.world import World
from tests.scenarios.world_driver import WorldDriver, programs_on


def collected(world: World, node: int, begin: int, times: Sequence[int]) -> list[dict[str, float]]:
    """The page of the sources, which start at `begin` and read each second, at some times: `name{labels}` to value."""
    clock = ScriptedClock(float(begin))
    driver = WorldDriver(world, node, clock, begin, max(times))
    hangs_at = dict(world.story.failing_source).get(NvidiaCollector.name, np.inf) * 60
    pages = []
    with _machine(world, node) as root:
        environment = Environment(root=root, clock=clock, driver=lambda: driver)
        sampler = Sampler(clock=clock)
        sampler.add(NvidiaCollector(environment))
        sampler.add(Owners(environment, pods_timeout=60.0))
        for second in range(begin, max(times) + 1):
            if second == hangs_at:
                _hang(sampler, clock)
            sampler.run_round()
            if second in times:
                lines = sampler.page(openmetrics=False, gzip=False).decode().splitlines()
                page = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
                pages.append({name: float(value) for name, value in page})
            clock.advance(1.0)
        sampler.stop()
    return pages


def _hang(sampler: Sampler, clock: ScriptedClock) -> None:
    """Let no call of the GPUs' source return from now on, without a thread that really hangs."""
    for reader in sampler._running[NvidiaCollector.name].readers():
        reader.state = replace(reader.state, busy_since=clock.monotonic())
        reader.read_once = lambda: None  # type: ignore[method-assign]


@contextmanager
def _machine(world: World, node: int) -> Iterator[Path]:
    """The root of a node with its processes under `proc`, and a kubelet that knows which pods have its GPUs."""
    held: dict[int, tuple[dict[str, str], list[str]]] = {}
    for gpu, (place, _index) in enumerate(world.gpus):
        for program in programs_on(world, gpu) if place == node else ():
            held.setdefault(program.pid, (program.owner, []))[1].append(world.uuid(gpu))
    names = sorted({owner["user"] for owner, _gpus in held.values()})
    pods = []
    with kubelet_at() as kubelet:
        (kubelet.root / "etc").mkdir()
        (kubelet.root / "etc/passwd").write_text("".join(f"{name}:x:{1000 + n}:\n" for n, name in enumerate(names)))
        for pid, (owner, gpus) in held.items():
            cgroup, environment = "/user.slice", ""
            if "slurm_job" in owner:
                cgroup = f"/system.slice/slurmstepd.scope/job_{owner['slurm_job']}/step_0"
            if "pod" in owner:
                cgroup = f"/kubepods.slice/pod{pid:08x}-0000-4000-8000-000000000000/{pid:064x}"
                environment = f"HOSTNAME={owner['pod']}\0"
                given = devices("nvidia.com/gpu", *gpus)
                pods.append(pod(owner["namespace"], owner["pod"], container(owner["container"], given)))
            folder = kubelet.root / f"proc/{pid}"
            folder.mkdir(parents=True)
            (folder / "stat").write_text(f"{pid} (python) S 1" + " 0" * 17 + f" {pid} 0\n")
            (folder / "status").write_text(f"Name:\tpython\nUid:\t{1000 + names.index(owner['user'])}\t0\n")
            (folder / "cgroup").write_text(f"0::{cgroup}\n")
            (folder / "environ").write_text(environment)
        kubelet.hand_out(*pods)
        yield kubelet.root
