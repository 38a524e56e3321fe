"""Machines, trainings and draws of the held-out cases; none is one of the other cases'."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import INPUT_CHILDREN, WELL
from tests.scenarios.story import ALWAYS, GIB, Card, From, Gpu, Host, Kernels, Node, Pause, Run, Story, Work

T = TypeVar("T")

A100 = Card(
    model="NVIDIA A100-SXM4-40GB",
    architecture="Ampere",
    compute_capability="8.0",
    memory=42949672960,
    watts=400,
    idle_watts=52,
    clock=1.41e9,
    memory_clock=1.215e9,
    datacentre=True,
    links=12,
)
H200 = Card(
    model="NVIDIA H200",
    architecture="Hopper",
    compute_capability="9.0",
    memory=150754820096,
    watts=700,
    idle_watts=76,
    clock=1.98e9,
    memory_clock=3.201e9,
    profiled=True,
    datacentre=True,
    links=18,
    generation=5,
)
INSTANCE = replace(H200, memory=34896609280, links=0, mig="2g.35gb")
"""Two sevenths of one."""
L4 = Card(
    model="NVIDIA L4",
    architecture="Ada Lovelace",
    compute_capability="8.9",
    memory=24152899584,
    watts=72,
    idle_watts=16,
    clock=2.04e9,
    memory_clock=6.251e9,
    datacentre=True,
)
T4 = Card(
    model="Tesla T4",
    architecture="Turing",
    compute_capability="7.5",
    memory=16106127360,
    watts=70,
    idle_watts=10,
    clock=1.59e9,
    memory_clock=5.001e9,
    datacentre=True,
    generation=3,
    sample_seconds=1.0,
)
A6000 = Card(
    model="NVIDIA RTX A6000",
    architecture="Ampere",
    compute_capability="8.6",
    memory=51527024640,
    watts=300,
    idle_watts=21,
    clock=2.1e9,
    memory_clock=8.001e9,
    datacentre=True,
    sample_seconds=0.5,
)
RTX_4090 = Card(
    model="NVIDIA GeForce RTX 4090",
    architecture="Ada Lovelace",
    compute_capability="8.9",
    memory=25757220864,
    watts=450,
    idle_watts=22,
    clock=3.105e9,
    memory_clock=10.501e9,
)
GTX_1080_TI = Card(
    model="NVIDIA GeForce GTX 1080 Ti",
    architecture="Pascal",
    compute_capability="6.1",
    memory=11811160064,
    watts=250,
    idle_watts=9,
    clock=1.911e9,
    memory_clock=5.505e9,
    generation=3,
)


@dataclass(frozen=True, eq=False)
class Ground:
    """A machine, the training that is usual on it, and its load beside that."""

    node: Node
    work: Work
    host: Host


def training(step: float, **changes: Any) -> Work:
    """A rank's steps of this many seconds, of which all but a few per cent compute."""
    return replace(
        Work(
            data_wait=0.009 * step,
            host_copy=0.007 * step,
            forward=0.31 * step,
            backward=0.62 * step,
            optimizer=0.05 * step,
            other=0.004 * step,
        ),
        **changes,
    )


def half(ground: Ground) -> Ground:
    """The machine with one GPU of two, and half of all else."""
    node = replace(ground.node, gpus=1, cpus=ground.node.cpus // 2, memory=ground.node.memory / 2)
    return Ground(node, replace(ground.work, communication=0.0), replace(ground.host, cores=ground.host.cores / 2))


A2 = Ground(
    Node(card=A100, gpus=1, cpus=12, memory=85 * GIB, link=3e9, shared_memory=42 * GIB),
    training(0.36, batch=192, loader_workers=10, loader_cores=5.0, memory=0.78),
    Host(cores=0.2),
)
"""A rented twelfth of a large machine, for speech and vision."""
HGX_H200 = Ground(
    Node(card=H200, gpus=1, cpus=28, memory=256 * GIB, link=50e9, rdma=1, nfs="/lustre", shared_memory=128 * GIB),
    training(1.7, batch=24, data="nfs", bytes_per_sample=32e3, copied_per_sample=64e3, loader_workers=20, memory=0.83),
    Host(cores=0.4),
)
"""A language model on one of the newest GPUs; steps of seconds."""
TWO_H200 = Ground(
    Node(card=H200, gpus=2, cpus=56, memory=512 * GIB, link=50e9, rdma=2, nfs="/lustre", shared_memory=256 * GIB),
    replace(HGX_H200.work, communication=0.05),
    Host(cores=0.9),
)
G2 = Ground(
    Node(card=L4, gpus=1, cpus=8, memory=32 * GIB, link=2e9, shared_memory=16 * GIB),
    training(0.62, batch=48, loader_workers=6, loader_cores=2.6, memory=0.69),
    Host(cores=0.2),
)
"""The smallest machine with a modern GPU."""
G4 = Ground(
    Node(card=T4, gpus=1, cpus=4, memory=16 * GIB, link=3.125e9, shared_memory=8 * GIB),
    training(0.23, batch=32, loader_workers=3, loader_cores=1.2, memory=0.62, main_thread=0.3),
    Host(cores=0.12),
)
"""The cheapest machine, whose driver reports utilisation once a second."""
LAB = Ground(
    Node(card=A6000, gpus=2, cpus=48, memory=256 * GIB, link=1.25e9, nfs="/home", shared_memory=128 * GIB),
    training(0.95, communication=0.02, batch=40, loader_workers=14, loader_cores=5.0, memory=0.74),
    Host(cores=1.2),
)
DESK = Ground(
    Node(card=RTX_4090, gpus=2, cpus=32, memory=128 * GIB, link=0.3125e9, shared_memory=64 * GIB),
    training(0.44, communication=0.01, batch=96, loader_workers=12, loader_cores=4.5, memory=0.7),
    Host(cores=0.8),
)
DESK_1 = half(DESK)
LAB_1 = half(LAB)
RIG = Ground(replace(DESK.node, gpus=3, cpus=48, memory=192 * GIB), DESK.work, Host(cores=1.0))
"""Three GPUs."""
OLD = Ground(
    Node(card=GTX_1080_TI, gpus=2, cpus=20, memory=32 * GIB, link=0.125e9, shared_memory=16 * GIB),
    training(0.29, batch=64, loader_workers=8, loader_cores=3.0, memory=0.66),
    Host(cores=0.5),
)
OLD_1 = half(OLD)
SLICES = Ground(
    Node(card=INSTANCE, gpus=2, cpus=24, memory=256 * GIB, link=50e9, nfs="/lustre", shared_memory=128 * GIB),
    training(0.52, batch=64, loader_workers=9, loader_cores=3.5, memory=0.64),
    Host(cores=0.5),
)
"""Two instances of one GPU, twelve CPUs for each."""

INPUT = INPUT_CHILDREN | {"input_bound"}
WAITING = frozenset({"TrainingInputBound", "TrainingInputFewWorkers", "TrainingInputDiskBound"})
"""A loader that hangs is waited for: true until it is known to hang."""


class Draw:
    """Draws a case's figures, by its name."""

    def __init__(self, name: str) -> None:
        self._random = np.random.default_rng((20261121, zlib.crc32(name.encode())))

    def between(self, low: float, high: float, digits: int = 3) -> float:
        return round(float(self._random.uniform(low, high)), digits)

    def whole(self, low: int, high: int) -> int:
        """Both ends included."""
        return int(self._random.integers(low, high + 1))

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[int(self._random.integers(len(choices)))]

    def pace(self, work: Work) -> Work:
        """Scale the work to another model or batch: all phases longer or shorter."""
        factor = self.between(0.75, 1.35)
        phases = ("data_wait", "host_copy", "forward", "backward", "communication", "optimizer", "logging", "other")
        return replace(work, **{phase: factor * getattr(work, phase) for phase in phases})

    def dress(self) -> dict[str, Any]:
        """Owner of the run and its launcher: irrelevant for the verdict."""
        started: dict[str, Any] = self.one_of(
            (
                {},
                {"slurm_job": str(self.whole(1000, 99999))},
                {"pods": True, "namespace": self.one_of(("speech", "research", "ads"))},
            )
        )
        return {
            "name": self.one_of(("whisper", "llama", "unet", "vit", "deepfm", "graphcast")),
            "start": -self.between(18, 28, 1),
            "initialization": self.between(0.5, 3, 1),
            "framework": self.one_of(("pytorch", "pytorch", "jax", "tensorflow")),
            "user": self.one_of(("grace", "edsger", "barbara")),
            **started,
        }


def scene(
    ground: Ground,
    dress: dict[str, Any],
    after: Work | None = None,
    *,
    before: Work | None = None,
    onset: float = 7.0,
    count: int = 1,
    ranks: Sequence[tuple[int, ...]] | None = None,
    only: tuple[int, ...] | None = None,
    host: Host | None = None,
    gpu: Gpu | None = None,
    gpus: tuple[int, ...] | None = None,
    more: dict[str, Any] | None = None,
    **run: Any,
) -> Story:
    """One run on machines of one kind, ordinary until the onset; as `run_on` of the other cases, on these machines."""
    work: tuple[From[Work], ...] = (From(ALWAYS, ground.work if before is None else before),)
    if after is not None:
        work = (*work, From(onset, after, only))
    hosts: tuple[From[Host], ...] = (From(ALWAYS, ground.host),)
    if host is not None:
        hosts = (*hosts, From(onset, host))
    states: tuple[From[Gpu], ...] = (From(ALWAYS, Gpu()),)
    if gpu is not None:
        states = (*states, From(onset, gpu, gpus))
    placed = tuple((index,) for index in range(ground.node.gpus * count)) if ranks is None else tuple(ranks)
    return Story(
        nodes=(ground.node,) * count,
        runs=(Run(ranks=placed, work=work, **{**dress, **run}),),
        hosts=hosts,
        gpus=states,
        **(more or {}),
    )


def step_of(work: Work) -> float:
    """Mean seconds of a step, pauses aside."""
    phases = ("data_wait", "host_copy", "forward", "backward", "communication", "optimizer", "logging", "other")
    return float(sum(getattr(work, phase) for phase in phases))


def pausing(work: Work, phase: str, share: float, *, every: float = 0.0, steps: int = 0, busy: float = 0.0) -> Work:
    """Add periodic work that takes a share of all time."""
    between = every or steps * step_of(work)
    pause = Pause(phase, share / (1 - share) * between, every_steps=steps, every_seconds=every, busy=busy)
    return replace(work, pauses=(*work.pauses, pause))


def late(work: Work, share: float, *, by: str = "backward") -> Work:
    """Delay the work by this share of the step that all ranks then take."""
    return replace(work, **{by: getattr(work, by) + share / (1 - share) * step_of(work)})


def small_steps(seconds: float, kernels: Kernels, **changes: Any) -> Work:
    """Short steps that wait for nothing."""
    return training(
        seconds,
        **{"kernels": kernels, "data": "none", "loader_workers": 4, "loader_cores": 0.4, "batch": 8, **changes},
    )


def on(gpu: int, node: int = 0) -> tuple[tuple[str, str], ...]:
    return (("instance", f"node{node}:19400"), ("gpu", str(gpu)))


def run_name(story: Story) -> str:
    """Series of the first run; empty where there is none."""
    return story.runs[0].name if story.runs else ""


def positive(name: str, cause: str, alert: str, story: Story, **fields: Any) -> Case:
    """A case of a cause, whose alert is expected."""
    return Case(
        name=f"held_{name}",
        kind="positive",
        cause=cause,
        story=story,
        alerts=frozenset({alert, *fields.pop("also", ())}),
        **{"subject": "run", "run": run_name(story), **fields},
    )


def negative(name: str, story: Story, **fields: Any) -> Case:
    """A healthy case that looks like trouble."""
    given = {"cause": "healthy", "acceptable": WELL, "subject": "run", "lost": 0.0, "onset": 0.0, **fields}
    return Case(name=f"held_{name}", kind="negative", story=story, **{"run": run_name(story), **given})


def unknown(name: str, story: Story, **fields: Any) -> Case:
    """A case whose evidence is missing."""
    given = {"cause": "insufficient_data", "subject": "run", "run": run_name(story), **fields}
    return Case(name=f"held_{name}", kind="abstention", story=story, **given)


def near(name: str, cause: str, alert: str, level: float, story: Story, **fields: Any) -> Case:
    """A case slightly under or over a published threshold; under it the cause may still be a verdict."""
    over = level > 1
    acceptable = fields.pop("acceptable", frozenset({cause}))
    return Case(
        name=f"held_{name}_at_{str(level).replace('.', '_')}",
        kind="near",
        cause=cause,
        level=level,
        story=story,
        alerts=frozenset({alert}) if over else frozenset(),
        acceptable=acceptable - {cause} if over else WELL | acceptable,
        **{"subject": "run", "run": run_name(story), **fields},
    )
