"""The runs of a story on its machines: GPU assignments and the resulting resource use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tests.scenarios.disturbance import Disturbance, Floats
from tests.scenarios.model import Course
from tests.scenarios.story import From, Gpu, Host, Node, Run, Server, Story, at

BEGIN = -1800.0
"""Second at which every exporter started."""
T = TypeVar("T")


@dataclass(frozen=True)
class Claim:
    """A rank on a GPU."""

    course: Course
    number: int
    """Of the run in its story."""
    rank: int
    share: float
    """Of the rank's work that this GPU has."""

    @property
    def run(self) -> Run:
        return self.course.run

    def lives(self, times: Floats) -> Floats:
        """1 while the process exists, else 0."""
        until = gone(self.course, self.rank)
        return ((times >= self.course.start) & (times < until)).astype(np.float64)


def gone(course: Course, rank: int) -> float:
    """Second at which a rank's process ended, or infinity."""
    hanging = [each.start for each in course.segments if each.kind == "hang"]
    if rank in course.run.killed and hanging:
        return hanging[0]
    return np.inf if course.run.end is None else course.run.end * 60


class World:
    """The complete state of a story, with random values drawn once; pages are views of it."""

    def __init__(self, story: Story, disturbance: Disturbance) -> None:
        self.story = story
        self.disturbance = disturbance
        self.horizon = float(disturbance.grid[-1]) + 10.0
        self.courses = [
            Course(
                run,
                self.horizon,
                disturbance.generator("steps", number),
                pace=disturbance.pace[number],
                spread=disturbance.spread,
            )
            for number, run in enumerate(story.runs)
        ]
        self.gpus = [(number, index) for number, node in enumerate(story.nodes) for index in range(node.gpus)]
        """Node, and index on it, of each GPU."""

    def node(self, gpu: int) -> Node:
        return self.story.nodes[self.gpus[gpu][0]]

    def uuid(self, gpu: int) -> str:
        number, index = self.gpus[gpu]
        return f"{'MIG' if self.node(gpu).card.mig else 'GPU'}-{number:08x}-0000-4000-8000-{index:012x}"

    def index(self, gpu: int) -> int:
        """The driver's number: MIG instances have that of their GPU."""
        return 0 if self.node(gpu).card.mig else self.gpus[gpu][1]

    def claims(self, gpu: int) -> list[Claim]:
        """Ranks on a GPU."""
        found = []
        for number, course in enumerate(self.courses):
            for rank, held in enumerate(course.run.ranks):
                if gpu in held:
                    shares = course.run.gpu_shares
                    found.append(Claim(course, number, rank, shares[held.index(gpu)] if shares else 1.0))
        return found

    def ranks_on(self, node: int) -> list[Claim]:
        """Ranks on a node, each with its first GPU there."""
        return [
            Claim(course, number, rank, 1.0)
            for number, course in enumerate(self.courses)
            for rank, held in enumerate(course.run.ranks)
            if self.gpus[held[0]][0] == node
        ]

    def cores(self, claim: Claim) -> float:
        """CPU cores that a rank may use."""
        if claim.run.cpu_limit is not None:
            return claim.run.cpu_limit
        node = self.gpus[claim.run.ranks[claim.rank][0]][0]
        return self.story.nodes[node].cpus / max(1, len(self.ranks_on(node)))

    def gpu_state(self, gpu: int, value: Callable[[Gpu], float], times: Floats) -> Floats:
        """Return a number of a GPU's state at each time."""
        return _sampled(self.story.gpus, gpu, value, times)

    def gpu_integral(self, gpu: int, value: Callable[[Gpu], float], times: Floats) -> Floats:
        """Return the integral of a number of a GPU's state at each time."""
        return _integrated(self.story.gpus, gpu, value, times, self.horizon)

    def busy(self, gpus: Sequence[int], times: Floats) -> Floats:
        """Return the integral of the time with kernels resident, a mean of GPUs; over 1 a second if ranks share one."""
        total = np.zeros_like(times)
        for gpu in gpus:
            total = total + self.gpu_integral(gpu, lambda state: state.foreign_busy, times)
            for claim in self.claims(gpu):
                total = total + claim.course.busy(claim.rank, times, share=claim.share)
        return total / len(gpus)

    def foreign_busy(self, gpu: int, user: str, times: Floats) -> Floats:
        """Return the integral of the time that another user's processes keep a GPU busy."""
        return self.gpu_integral(
            gpu, lambda state: state.foreign_busy / len(state.foreign) if user in state.foreign else 0.0, times
        )

    def host_state(self, node: int, value: Callable[[Host], float], times: Floats) -> Floats:
        """Return a number of a host's state at each time."""
        return _sampled(self.story.hosts, node, value, times)

    def host_integral(self, node: int, value: Callable[[Host], float], times: Floats) -> Floats:
        """Return the integral of a number of a host's state at each time."""
        return _integrated(self.story.hosts, node, value, times, self.horizon)

    def server_state(self, gpu: int, value: Callable[[Server], float], times: Floats) -> Floats:
        """Return a number of the state of a GPU's server at each time."""
        return _sampled(self.story.servers, gpu, value, times)

    def server_integral(self, gpu: int, value: Callable[[Server], float], times: Floats) -> Floats:
        """Return the integral of a number of the state of a GPU's server at each time."""
        return _integrated(self.story.servers, gpu, value, times, self.horizon)

    def oom_kills(self, node: int, times: Floats) -> Floats:
        """Processes that the node's kernel has killed for memory."""
        kills: Floats = np.ceil(self.host_integral(node, lambda host: host.oom_kills / 60, times) - 1e-9)
        return kills

    def samples_read(self, node: int, source: str, times: Floats) -> Floats:
        """Bytes that the node's ranks have read from a kind of storage: their samples times a sample's bytes."""
        total = np.zeros_like(times)
        for claim in self.ranks_on(node):
            course = claim.course
            reads = np.array([float(each.works[claim.rank].data == source) for each in course.segments])
            by_row = (
                course.steps
                * course.per_row(claim.rank, "batch")
                * course.per_row(claim.rank, "bytes_per_sample")
                * reads[course.segment_of_row]
                * self.disturbance.pace[claim.number]  # a slower pace comes of larger samples
            )
            # Loaders read ahead evenly, not at the end of a step.
            total += np.interp(times, course.bounds, np.concatenate([[0.0], np.cumsum(by_row)]))
        return total

    def rank_cpu(self, claim: Claim, times: Floats) -> Floats:
        """CPU seconds of a rank's process and its children."""
        loader = claim.course.elapsed(claim.rank, "loader_cores", times)
        return loader + self.main_thread(claim, times)

    def loader_worker(self, claim: Claim, times: Floats) -> Floats:
        """CPU seconds of one of the rank's loader workers."""
        total = np.zeros_like(times)
        for segment in claim.course.segments:
            work = segment.works[claim.rank]
            if segment.kind == "training" and work.loader_workers:
                each = min(1.0, work.loader_cores / work.loader_workers)
                total = total + each * np.clip(times - segment.start, 0, segment.end - segment.start)
        return total

    def main_thread(self, claim: Claim, times: Floats) -> Floats:
        """CPU seconds of the rank's main thread."""
        kinds = ("training", "initialization", "restore")
        spent = claim.course.elapsed(claim.rank, "main_thread", times, kinds)
        for segment in claim.course.segments:
            if segment.kind == "hang" and segment.works[claim.rank].hangs == "spin":
                spent = spent + np.clip(times - segment.start, 0, segment.end - segment.start)
        return spent


def _states(states: Sequence[From[T]], subject: int, horizon: float) -> list[tuple[float, float, T]]:
    """Start, end and state of each interval."""
    starts = sorted({max(BEGIN, each.minute * 60) for each in states if each.only is None or subject in each.only})
    ends = [*starts[1:], horizon]
    return [
        (start, end, at(tuple(states), subject, start / 60 + 1e-9))
        for start, end in zip(starts, ends, strict=True)
        if end > start
    ]


def _sampled(states: Sequence[From[T]], subject: int, value: Callable[[T], float], times: Floats) -> Floats:
    found = np.zeros_like(times)
    for start, _end, state in _states(states, subject, float(times.max()) + 1e6):
        found = np.where(times >= start, value(state), found)
    return found


def _integrated(
    states: Sequence[From[T]], subject: int, value: Callable[[T], float], times: Floats, horizon: float
) -> Floats:
    total = np.zeros_like(times)
    for start, end, state in _states(states, subject, horizon + 1e4):
        total = total + value(state) * np.clip(times - start, 0, end - start)
    return total
