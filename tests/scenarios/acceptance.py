"""Stories with the figures of published case studies, for the acceptance tests.

The studies are a dashboard of two RTX 2080 Ti (benchmarks on synthetic and on real data), footprints of a cloud's
profiler, and guides to full use of GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.scenarios.case import Case
from tests.scenarios.machines import CLOUD, HGX, WORKSTATION
from tests.scenarios.story import From, Gpu, Host, Kernels, Pause, Run, Story, Work

MINUTES = 60
ALWAYS = -1e9

SYNTHETIC = Work(
    data_wait=0.00002,
    host_copy=0.0,
    forward=0.045,
    backward=0.085,
    optimizer=0.015,
    other=0.0003,
    batch=512,
    data="none",
    bytes_per_sample=0.0,
    loader_workers=0,
    loader_cores=0.0,
    memory=0.6,
    reserved=0.98,
    kernels=Kernels(busy=1.0, memory=0.62, power=0.95),
)
"""AlexNet of 512 synthetic images a step: 3,500 images a second. The framework takes all memory beforehand."""
BATCH_4 = replace(
    SYNTHETIC,
    forward=0.005,
    backward=0.0085,
    optimizer=0.0022,
    batch=4,
    memory=0.08,
    kernels=Kernels(busy=0.9, memory=0.85, power=0.5),
)
"""Batches of 4 images: 62.5 steps a second, and the GPU reads 90 %."""
TWO_GPUS = replace(SYNTHETIC, backward=0.1073, kernels=Kernels(busy=0.9, memory=0.55, power=0.9))
"""The workload on each of two GPUs: 6,100 images a second."""
REAL_DATA = replace(
    TWO_GPUS,
    data_wait=0.0702,
    batch=512,
    data="disk",
    bytes_per_sample=20e3,
    loader_workers=12,
    loader_cores=11.0,
    kernels=Kernels(busy=1.0, memory=0.55, power=0.9),
    busy_while_waiting=0.05,
)
"""Images decoded and augmented by the CPUs: 4,300 a second, GPUs at about 75 % as far as the chart shows."""


def study(work: Work, *, ranks: tuple[tuple[int, ...], ...] = ((0,),), host: Host | None = None) -> Story:
    """A run on the study's workstation."""
    return Story(
        nodes=(WORKSTATION,),
        runs=(Run(name="alexnet", ranks=ranks, work=(From(ALWAYS, work),), framework="tensorflow"),),
        hosts=(From(ALWAYS, host or Host(cores=0.3)),),
    )


ONE_GPU = replace(HGX, gpus=1, cpus=24, rdma=0)
SMALL = Work(
    data_wait=0.0003,
    host_copy=0.0002,
    forward=0.006,
    backward=0.009,
    optimizer=0.003,
    other=0.0002,
    batch=64,
    data="none",
    bytes_per_sample=0.0,
    loader_cores=1.0,
    memory=0.12,
    kernels=Kernels(busy=0.5, memory=0.2, sm=0.3, occupancy=0.15, dram=0.1, tensor=0.1, power=0.2),
)
LARGE = replace(
    SMALL, forward=0.1, backward=0.17, batch=1024, memory=0.72, kernels=Kernels(busy=0.98, sm=0.9, power=0.92)
)

_STORIES: Mapping[str, Story] = {
    "batch_4": study(BATCH_4),
    "batch_512": study(SYNTHETIC),
    "two_gpus": study(TWO_GPUS, ranks=((0,), (1,))),
    "real_data": study(REAL_DATA, ranks=((0,), (1,)), host=Host(cores=1.0, cpu_waiting=0.5)),
    "warm": replace(study(SYNTHETIC), gpus=(From(ALWAYS, Gpu(celsius=73.0)),)),
    "network": Story(
        nodes=(replace(CLOUD, link=1.25e9),),
        runs=(
            Run(
                name="video",
                work=(
                    From(
                        ALWAYS,
                        Work(
                            data_wait=0.12,
                            host_copy=0.01,
                            forward=0.07,
                            backward=0.12,
                            optimizer=0.014,
                            other=0.001,
                            batch=32,
                            bytes_per_sample=12.5e6,
                            data="network",
                            loader_cores=2.0,
                        ),
                    ),
                ),
            ),
        ),
    ),
    "callback": Story(
        nodes=(ONE_GPU,),
        runs=(
            Run(
                name="dips",
                phases=False,
                work=(
                    From(
                        ALWAYS,
                        Work(
                            data_wait=0.001,
                            host_copy=0.001,
                            forward=0.1,
                            backward=0.18,
                            optimizer=0.015,
                            pauses=(Pause(phase="other", seconds=1.5, every_steps=50, spread=0.0),),
                        ),
                    ),
                ),
            ),
        ),
    ),
    "batch_64": Story(nodes=(ONE_GPU,), runs=(Run(name="grows", work=(From(ALWAYS, SMALL), From(30.0, LARGE))),)),
    "preprocessing": Story(
        nodes=(ONE_GPU,),
        runs=(
            Run(
                name="augments",
                work=(From(ALWAYS, Work(data_wait=0.7, loader_cores=21.0, loader_workers=20, main_thread=0.2)),),
            ),
        ),
        hosts=(From(ALWAYS, Host(cores=2.0, cpu_waiting=0.6)),),
    ),
    "download": Story(
        nodes=(ONE_GPU,), runs=(Run(name="downloads", start=2.0, initialization=25.0, work=(From(ALWAYS, Work()),)),)
    ),
    "packing": Story(
        nodes=(WORKSTATION,),
        runs=(
            Run(
                name="experiment-7",
                work=(
                    From(
                        ALWAYS,
                        Work(
                            data_wait=0.002,
                            forward=0.1,
                            backward=0.2,
                            loader_cores=6.0,
                            memory=0.34,
                            kernels=Kernels(busy=0.35, memory=0.2, power=0.3),
                        ),
                    ),
                ),
            ),
        ),
    ),
    "shared": Story(
        nodes=(WORKSTATION,),
        runs=(Run(name="ada-job", user="ada"), Run(name="bob-job", user="bob")),
    ),
}
ACCEPTANCE = tuple(
    Case(name, "positive", "run", "healthy", story, length=MINUTES, run=story.runs[0].name)
    for name, story in _STORIES.items()
)
"""As cases without a truth: each test says what it expects."""
