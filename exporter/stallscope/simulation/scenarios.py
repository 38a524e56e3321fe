"""Named scenarios as data: what a simulated node does, what breaks when, and the cause that ought to be found.

The figures come from the published descriptions of each bottleneck, never from the rules' own thresholds, so that a
scenario can find a rule wrong. Each is named after its cause in the verdict contract.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Workload:
    """A data-parallel training step: mean seconds by phase, and what the job holds."""

    data_wait: float
    host_copy: float
    forward: float
    backward: float
    communication: float
    """The collective itself; waiting for slower ranks comes on top."""
    optimizer: float
    variation: float = 0.03
    """Relative spread of each phase from step to step."""
    memory_share: float = 0.72
    """Frame buffer that the job holds, as a share of the whole."""
    samples: int = 512
    """Samples a step and rank."""
    loader_workers: int = 8


@dataclass(frozen=True)
class HostLoad:
    """Load of the simulated host, all as shares of time."""

    cpu: float
    """CPUs busy."""
    iowait: float = 0.005
    cpu_waiting: float = 0.01
    """Some task waited for a CPU."""
    io_waiting: float = 0.005
    disk: float = 0.1
    """The data disk had work."""


@dataclass(frozen=True)
class LoadChange:
    """The job goes on with other phase times and another load on the host."""

    workload: Workload
    host: HostLoad


@dataclass(frozen=True)
class CoolingFailure:
    """Heat leaves these GPUs less easily, by this factor; the driver lowers their clocks to hold the temperature."""

    gpus: tuple[int, ...]
    resistance: float


@dataclass(frozen=True)
class GpuLoss:
    """These GPUs fall off the bus; the job's other ranks wait for theirs in a collective for ever."""

    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Stall:
    """No rank reaches the end of a step any more, while every process lives."""

    spinning: bool
    """GPUs spin in a collective (fully utilised, at low power) instead of idling."""


Fault = LoadChange | CoolingFailure | GpuLoss | Stall


@dataclass(frozen=True)
class Scenario:
    """One story."""

    name: str
    description: str
    expected: str
    """The cause that the rules should find, in the words of the verdict contract."""
    workload: Workload
    host: HostLoad
    fault: Fault | None = None
    onset: float = 60.0
    """Seconds from the start to the fault."""
    instrumented: bool = True
    """The job uses the shim; without it there are GPU signals alone."""
    coupled: bool = False
    """No simulated job: the GPUs work for the real ranks that claim them."""

    @property
    def run(self) -> str:
        """Name of the simulated run; empty if none reports."""
        return f"simulated-{self.name.replace('_', '-')}" if self.instrumented else ""

    @property
    def simulates_host(self) -> bool:
        """True if the fault shows on the host, which must be simulated too."""
        return isinstance(self.fault, LoadChange) and self.fault.host != self.host

    @property
    def faulty_gpus(self) -> tuple[int, ...]:
        """The GPUs that the fault sits on, where it sits on some; the ranks are numbered alike."""
        return self.fault.gpus if isinstance(self.fault, (CoolingFailure, GpuLoss)) else ()


_STEADY = Workload(data_wait=0.01, host_copy=0.008, forward=0.35, backward=0.62, communication=0.06, optimizer=0.05)
_CALM = HostLoad(cpu=0.32)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="healthy",
            description="Data-parallel training that keeps its GPUs busy; nothing to do.",
            expected="healthy",
            workload=_STEADY,
            host=_CALM,
        ),
        Scenario(
            name="input_cpu_saturated",
            description=("Decoding needs more CPUs than the host has: GPUs wait about a third of each step for data."),
            expected="input_cpu_saturated",
            workload=_STEADY,
            host=_CALM,
            # A wait of more than half a second in each step shows in the driver's own samples as idle time.
            fault=LoadChange(replace(_STEADY, data_wait=0.62), HostLoad(cpu=0.97, cpu_waiting=0.55)),
        ),
        Scenario(
            name="thermal_throttle",
            description="One GPU loses its cooling, runs at its temperature limit with clocks down by a quarter or "
            "more, and the other ranks wait for it.",
            expected="thermal_throttle",
            workload=_STEADY,
            host=_CALM,
            fault=CoolingFailure(gpus=(3,), resistance=4.0),
        ),
        Scenario(
            name="gpu_lost",
            description="One GPU falls off the bus in the middle of training; the other ranks wait in a collective.",
            expected="lost",
            workload=_STEADY,
            host=_CALM,
            fault=GpuLoss(gpus=(5,)),
        ),
        Scenario(
            name="stalled",
            description="Training stops making steps with every process alive and every GPU idle, as after a deadlock "
            "in the loader.",
            expected="stalled",
            workload=_STEADY,
            host=_CALM,
            fault=Stall(spinning=False),
        ),
        Scenario(
            name="hang_spin",
            description="A collective never ends: GPUs spin fully utilised at low power, and no rank makes a step.",
            expected="hang_spin",
            workload=_STEADY,
            host=_CALM,
            fault=Stall(spinning=True),
        ),
        Scenario(
            name="underused",
            description="GPU work that keeps each GPU a third busy, from a job without the shim.",
            expected="underused",
            # Shorter than the driver's sampling period, so that every sample is low and none is a dip.
            workload=Workload(
                data_wait=0.15,
                host_copy=0.02,
                forward=0.03,
                backward=0.04,
                communication=0.0,
                optimizer=0.01,
                memory_share=0.3,
            ),
            host=HostLoad(cpu=0.15),
            instrumented=False,
        ),
        Scenario(
            name="coupled",
            description="No job is simulated: each GPU does what the phases of the real rank that claims it by its "
            "index would make it do, so that training on CPUs shows how a GPU would perform.",
            expected="healthy",
            workload=_STEADY,
            host=_CALM,
            instrumented=False,
            coupled=True,
        ),
    )
}
"""Every scenario by name."""


def scenario(name: str, *, onset: float | None = None) -> Scenario:
    """Look up a scenario, with the fault at another time where `onset` (seconds after the start) is given.

    Raises:
        ValueError: the scenario is unknown, or the onset is negative.
    """
    found = SCENARIOS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, SCENARIOS, n=1)
        guess = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"unknown scenario {name!r}{guess} (known: {', '.join(SCENARIOS)})")
    if onset is None:
        return found
    if not 0 <= onset < float("inf"):
        raise ValueError(f"the onset of {name} must be zero or more seconds, got {onset}")
    return replace(found, onset=onset)
