"""Ordinary trainings on ordinary machines, from which each case departs in one thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.scenarios.case import WELL as WELL
from tests.scenarios.case import Case
from tests.scenarios.machines import CLOUD, HGX, LAPTOP, PAIR, QUAD, SERVER, SERVER_4, SINGLE, WORKSTATION
from tests.scenarios.story import ALWAYS, From, Gpu, Host, Kernels, Node, Run, Story, Work

ONSET = 7.0

NODE_WORK = Work(forward=0.14, backward=0.27, communication=0.012, optimizer=0.02, loader_cores=5.0, loader_workers=20)
"""ResNet-50 on one of eight H100s, in bf16."""
LAPTOP_WORK = Work(forward=0.1, backward=0.2, optimizer=0.015, batch=64, loader_cores=3.0, loader_workers=12)
CLOUD_WORK = Work(forward=0.13, backward=0.26, optimizer=0.02, batch=128, loader_cores=2.2, loader_workers=7)
SERVER_WORK = Work(
    forward=0.13,
    backward=0.26,
    communication=0.015,
    optimizer=0.02,
    batch=128,
    loader_cores=4.0,
    loader_workers=12,
    data="nfs",
)
WORKSTATION_WORK = Work(
    forward=0.055, backward=0.095, communication=0.012, optimizer=0.006, batch=256, data="disk", loader_workers=None
)
USUAL: Mapping[Node, Work] = {
    HGX: NODE_WORK,
    QUAD: NODE_WORK,
    PAIR: NODE_WORK,
    SINGLE: NODE_WORK,
    LAPTOP: LAPTOP_WORK,
    CLOUD: CLOUD_WORK,
    SERVER: SERVER_WORK,
    SERVER_4: SERVER_WORK,
    WORKSTATION: WORKSTATION_WORK,
}
QUIET: Mapping[Node, Host] = {
    HGX: Host(cores=4),
    QUAD: Host(cores=2),
    PAIR: Host(cores=1),
    SINGLE: Host(cores=0.5),
    LAPTOP: Host(cores=1),
    CLOUD: Host(cores=0.3),
    SERVER: Host(cores=1),
    SERVER_4: Host(cores=2),
    WORKSTATION: Host(cores=0.5),
}
TINY = Kernels(busy=0.9, memory=0.3, sm=0.3, occupancy=0.12, dram=0.15, tensor=0.1, fp32=0.08, power=0.3)
"""Kernels too small for the GPU."""


def taking(work: Work, phase: str, share: float) -> Work:
    """Add a phase that takes a share of each step."""
    rest = sum(
        getattr(work, name)
        for name in (
            "data_wait",
            "host_copy",
            "forward",
            "backward",
            "communication",
            "optimizer",
            "logging",
            "other",
        )
    ) - getattr(work, phase)
    return replace(work, **{phase: share / (1 - share) * rest})


def slowed(work: Work, factor: float) -> Work:
    """Run the work on a GPU that takes longer for it."""
    return replace(
        work, forward=work.forward * factor, backward=work.backward * factor, optimizer=work.optimizer * factor
    )


INPUT_CHILDREN = frozenset(
    {
        "input_cpu_saturated",
        "input_cgroup_throttled",
        "input_few_workers",
        "input_single_thread",
        "input_too_many_workers",
        "input_disk_bound",
        "input_network_bound",
        "input_remote_latency",
    }
)
"""Why a run waits for data, where the host shows it."""


def run_on(
    node: Node,
    after: Work | None = None,
    *,
    before: Work | None = None,
    onset: float = ONSET,
    count: int = 1,
    ranks: Sequence[tuple[int, ...]] | None = None,
    only: tuple[int, ...] | None = None,
    host: Host | None = None,
    gpu: Gpu | None = None,
    gpus: tuple[int, ...] | None = None,
    more: Mapping[str, Any] | None = None,
    **run: Any,
) -> Story:
    """One run on machines of one kind, ordinary until the onset.

    Args:
        node: the machine.
        after: what each rank does from the onset on; as before unless said.
        before: what it does until then; the usual training unless said.
        onset: minutes.
        count: machines.
        ranks: GPUs of each rank; one each unless said.
        only: ranks that `after` is for.
        host: load from the onset on.
        gpu: state from the onset on, of all GPUs or of those in `gpus`.
        gpus: GPUs that `gpu` is for.
        more: further fields of the story.
        run: further fields of the run.
    """
    usual = USUAL[node] if before is None else before
    work: tuple[From[Work], ...] = (From(ALWAYS, usual),)
    if after is not None:
        work = (*work, From(onset, after, only))
    quiet = QUIET[node]
    hosts = (From(ALWAYS, quiet),) if host is None else (From(ALWAYS, quiet), From(onset, host))
    states = (From(ALWAYS, Gpu()),) if gpu is None else (From(ALWAYS, Gpu()), From(onset, gpu, gpus))
    placed = tuple((index,) for index in range(node.gpus * count)) if ranks is None else tuple(ranks)
    return Story(
        nodes=(node,) * count,
        runs=(Run(ranks=placed, work=work, **run),),
        hosts=hosts,
        gpus=states,
        **(more or {}),
    )


def positive(name: str, cause: str, story: Story, **fields: Any) -> Case:
    """A case of a cause, whose alert is expected."""
    return Case(name=name, kind="positive", cause=cause, story=story, **fields)


def negative(name: str, story: Story, **fields: Any) -> Case:
    """A healthy case that looks like trouble."""
    given = {"cause": "healthy", "acceptable": WELL, "subject": "run", "lost": 0.0, "onset": 0.0, **fields}
    return Case(name=name, kind="negative", story=story, **given)


def near(name: str, cause: str, level: float, story: Story, **fields: Any) -> Case:
    """A case a little under or over a published threshold."""
    over = level > 1
    alerts = fields.pop("alerts")
    if not over:
        fields = {"acceptable": WELL | fields.pop("acceptable", frozenset()), **fields}
    return Case(
        name=f"{name}_at_{'1_25' if over else '0_8'}",
        kind="near",
        cause=cause,
        level=level,
        story=story,
        alerts=alerts if over else frozenset(),
        **fields,
    )
