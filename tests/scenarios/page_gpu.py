"""A node's GPU series: the driver's values for the work on each GPU and its health."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stallscope.model.catalogue.metrics import GPU_FAMILIES, THROTTLE_REASONS, UTILIZATION_BUCKETS
from tests.scenarios.disturbance import Floats
from tests.scenarios.sheet import Mask, Sheet
from tests.scenarios.story import GIB, Gpu, Run
from tests.scenarios.utilization import Utilization
from tests.scenarios.world import BEGIN, Claim, World, gone

_CONTEXT = 0.5 * GIB
"""Memory of a process's context on a GPU."""
_PROFILED = (
    "sm_active_seconds_total",
    "sm_occupancy_seconds_total",
    "pipe_active_seconds_total",
    "dram_active_seconds_total",
)
_LINKED = (
    "nvlink_receive_bytes_total",
    "nvlink_transmit_bytes_total",
    "nvlink_errors_total",
    "nvlink_links",
    "nvlink_links_active",
)
_DATACENTRE = (
    "ecc_errors_total",
    "remapped_rows",
    "row_remap_pending",
    "row_remap_failed",
    "temperature_limit_celsius",
)
_NEVER = ("retired_pages",)
_INSTANCE = (
    "info",
    "up",
    "lost_info",
    "last_reading",
    "signal_supported",
    "busy_seconds_total",
    "observed_seconds_total",
    "idle_seconds_total",
    "below_seconds_total",
    "dip",
    "utilization_",
    *_PROFILED,
    "memory_total_bytes",
    "memory_used_bytes",
    "memory_reserved_bytes",
    "processes",
    "owner_",
)
"""Beginnings of the families that a MIG instance has; the GPU that it is a part of has the others."""
_FOREIGN = {
    "busy": 1.0,
    "memory": 0.4,
    "sm": 0.5,
    "occupancy": 0.2,
    "dram": 0.2,
    "tensor": 0.1,
    "fp32": 0.1,
    "power": 0.5,
    "nvlink": 0.0,
}
"""Use of a GPU by another user's program while its kernels are resident."""


def show_gpus(sheet: Sheet, world: World) -> None:
    """Add the series of every GPU of one node."""
    for gpu, (node, index) in enumerate(world.gpus):
        if node == sheet.node:
            _Page(sheet, world, gpu).show()
            if world.node(gpu).card.mig and index == 0:
                _Page(sheet, world, gpu, whole=True).show()


class _Page:
    """One GPU, or one MIG instance."""

    def __init__(self, sheet: Sheet, world: World, gpu: int, *, whole: bool = False) -> None:
        """Take the GPU, or with `whole` the GPU that it and its node's other instances are parts of."""
        self._sheet = sheet
        self._world = world
        self._gpu = gpu
        node = world.node(gpu)
        self._card = node.card
        self._whole = whole
        self._claims = world.claims(gpu)
        self._labels = {"gpu": str(world.index(gpu)), "uuid": world.uuid(gpu), "mig": node.card.mig}
        if whole:
            self._card = replace(node.card, mig="", memory=node.gpus * node.card.memory, profiled=False)
            self._claims = [
                replace(claim, share=claim.share / node.gpus)
                for other in range(gpu, gpu + node.gpus)
                for claim in world.claims(other)
            ]
            self._labels = {"gpu": "0", "uuid": world.uuid(gpu).replace("MIG", "GPU")}
        self._times = sheet.times
        self._present: Mask = self._state(lambda state: float(state.present)) > 0

    def show(self) -> None:
        self._identity()
        if not self._whole:
            self._activity()
        self._memory()
        self._power_and_clocks()
        self._links()
        self._health()
        if not self._whole:
            self._owners()

    def _add(self, name: str, values: Floats | float, present: Mask | bool = True, **labels: str) -> None:
        """Show a reading: a GPU that does not answer has none."""
        self._add_always(name, values, self._present & present, **labels)

    def _add_always(self, name: str, values: Floats | float, present: Mask | bool = True, **labels: str) -> None:
        if self._card.mig and not name.startswith(_INSTANCE):
            return
        self._sheet.add(f"stallscope_gpu_{name}", values, present, **self._labels, **labels)

    def _state(self, value: Callable[[Gpu], float], times: Floats | None = None) -> Floats:
        return self._world.gpu_state(self._gpu, value, self._times if times is None else times)

    def _integral(self, value: Callable[[Gpu], float]) -> Floats:
        return self._world.gpu_integral(self._gpu, value, self._times)

    def _identity(self) -> None:
        card, story = self._card, self._world.story
        self._add_always(
            "info",
            1,
            model=card.model,
            serial=f"165292{self._gpu:07d}" if card.datacentre else "",
            pci_bus_id=f"00000000:{16 + self._world.index(self._gpu):02X}:00.0",
            driver_version="590.48.01",
            cuda_version="13.1",
            vbios_version="96.00.99.00.01",
            architecture=card.architecture,
            compute_capability=card.compute_capability,
            sharing=story.sharing,
        )
        self._add_always("up", self._present.astype(np.float64))
        for reason in {each.state.lost_reason for each in story.gpus if not each.state.present}:
            here = self._state(lambda state, reason=reason: float(state.lost_reason == reason)) > 0  # type: ignore[misc]
            self._add_always("lost_info", 1, ~self._present & here, reason=reason)
        read = self._times - 0.5
        if not self._present.all():
            lost = min(each.minute for each in story.gpus if not each.state.present) * 60
            read = np.where(self._present, read, np.minimum(read, lost))
        self._add_always("last_reading_timestamp_seconds", self._sheet.clock(read))
        lacking = {
            *(_PROFILED if not card.profiled else ()),
            *(_LINKED if not card.links else ()),
            *(_DATACENTRE if not card.datacentre else ()),
            *(("fan_speed_ratio",) if card.datacentre else ()),
            *(("peak_flops",) if not card.peak else ()),
            *(("clock_configured_hertz",) if not self._clock_set() else ()),
            *_NEVER,
            *(("busy_seconds_total", "memory_busy_seconds_total") if self._whole else ()),
        }
        for each in (family for family in GPU_FAMILIES if family.optional):
            gone_missing = each.name.startswith(self._world.story.absent) if self._world.story.absent else False
            of_instance = not card.mig or each.signal.startswith(_INSTANCE)
            supported = each.signal not in lacking and of_instance and not gone_missing
            self._add("signal_supported", float(supported), signal=each.signal)
        for precision, flops in card.peak.items():
            self._add("peak_flops", flops, precision=precision)

    def _activity(self) -> None:
        world, sheet, card = self._world, self._sheet, self._card
        moments = np.arange(BEGIN, world.horizon + 1, card.sample_seconds)
        busy = world.gpu_integral(self._gpu, lambda state: state.foreign_busy, moments)
        for claim in self._claims:
            busy = busy + claim.course.busy(claim.rank, moments, share=claim.share)
        used = Utilization(busy, moments)
        counted = sheet.counted
        self._add("busy_seconds_total", counted(used.busy, BEGIN))
        self._add("memory_busy_seconds_total", counted(self._effect("memory"), BEGIN))
        self._add("observed_seconds_total", counted(lambda times: times, BEGIN))
        self._add("idle_seconds_total", counted(used.idle, BEGIN))
        for level in (0.1, 0.5):
            under = counted(lambda times, level=level: used.under(level, times), BEGIN)  # type: ignore[misc]
            self._add("below_seconds_total", under, level=str(level))
        self._add("dips_total", counted(used.dips, BEGIN))
        for suffix, power in (("count", 0), ("sum", 1), ("sumsq", 2)):
            moment = counted(lambda times, power=power: used.dip_intervals(power, times), BEGIN)  # type: ignore[misc]
            self._add(f"dip_interval_seconds_{suffix}", moment)
        for bound in UTILIZATION_BUCKETS:
            within = counted(lambda times, bound=bound: used.within(bound, times), BEGIN)  # type: ignore[misc]
            self._add("utilization_samples_bucket", within, le=str(bound))
        self._add("utilization_samples_bucket", counted(used.count, BEGIN), le="+Inf")
        self._add("utilization_samples_sum", counted(used.total, BEGIN))
        self._add("utilization_samples_count", counted(used.count, BEGIN))
        self._add("utilization_ratio", (used.busy(self._times) - used.busy(self._times - 1)))
        memory = self._effect("memory")
        self._add("memory_utilization_ratio", np.clip(memory(self._times) - memory(self._times - 1), 0, 1))
        if card.profiled:
            for name, effect in (("sm_active", "sm"), ("sm_occupancy", "occupancy"), ("dram_active", "dram")):
                self._add(f"{name}_seconds_total", counted(self._effect(effect), BEGIN))
            for pipe, effect, factor in (
                ("tensor", "tensor", 1.0),
                ("fp64", "tensor", 0.0),
                ("fp32", "fp32", 1.0),
                ("fp16", "fp32", 0.2),
                ("integer", "fp32", 0.6),
            ):
                self._add("pipe_active_seconds_total", factor * counted(self._effect(effect), BEGIN), pipe=pipe)
        for engine in ("encoder", "decoder", "jpeg", "ofa"):
            self._add("engine_busy_seconds_total", 0, engine=engine)

    def _effect(self, name: str) -> Callable[[Floats], Floats]:
        """Return the integral of all work on this GPU, each second at most a second."""

        def demand(times: Floats) -> Floats:
            total = _FOREIGN[name] * self._world.gpu_integral(self._gpu, lambda state: state.foreign_busy, times)
            for claim in self._claims:
                total = total + claim.course.effect(claim.rank, name, times) * claim.share
            return total

        if len(self._claims) < 2 or name == "nvlink":
            return demand
        fine = np.arange(BEGIN, self._world.horizon + 2, 1.0)
        sums = np.concatenate([[0.0], np.cumsum(np.minimum(np.diff(demand(fine)), 1.0))])
        return lambda times: np.interp(times, fine, sums)

    def _memory(self) -> None:
        card, times = self._card, self._times
        used = self._state(lambda state: state.kept + len(state.foreign) * state.foreign_memory) * card.memory
        for claim in self._claims:
            used = used + held_by(claim, card.memory, times) * claim.lives(times)
        self._add("memory_total_bytes", card.memory)
        self._add("memory_used_bytes", np.floor(np.minimum(used, card.memory * 0.99)))
        self._add("memory_reserved_bytes", 480 * 2.0**20)
        self._add("bar1_total_bytes", card.memory if card.datacentre else 256 * 2.0**20)
        self._add("bar1_used_bytes", 1048576)

    def _power_and_clocks(self) -> None:
        card, times = self._card, self._times
        demand = self._effect("power")
        limit = self._state(lambda state: state.power_limit) * card.watts
        clock = self._state(lambda state: state.clock)
        span = np.maximum(0, np.minimum(limit, card.watts) - card.idle_watts)
        # Dynamic power goes with the clock and the square of the voltage, which follows it.
        heat = np.minimum(1.0, (clock / 0.97) ** 2)
        recent = np.clip((demand(times) - demand(times - 2)) / 2, 0, 1)
        watts = card.idle_watts + span * recent * heat
        self._add("power_watts", watts)
        self._add("power_limit_watts", limit)
        self._add("power_limit_default_watts", card.watts)
        grown = np.diff(demand(times), prepend=demand(times[:1])) * span * heat
        joules = 4e6 + np.cumsum(grown + card.idle_watts * np.diff(times, prepend=times[:1]))
        self._add("energy_joules_total", joules)
        load = (demand(times) - demand(times - 60)) / 60
        said = self._state(lambda state: -1.0 if state.celsius is None else state.celsius)
        celsius: Floats = np.round(np.where(said >= 0, said, 34 + 36 * np.clip(load, 0, 1))).astype(np.float64)
        self._add("temperature_celsius", celsius, sensor="gpu")
        if card.datacentre:
            self._add("temperature_celsius", celsius + 8, sensor="memory")
            for name, degrees in (("slowdown", 92), ("shutdown", 95), ("gpu_max", 88), ("memory_max", 105)):
                self._add("temperature_limit_celsius", degrees, limit=name)
        else:
            self._add("fan_speed_ratio", np.clip((celsius - 30) / 60, 0, 1), fan="0")
        working = load > 0.02
        rest = 0.2
        for name, maximum in (("sm", card.clock), ("graphics", card.clock), ("video", 0.8 * card.clock)):
            self._add("clock_hertz", np.round(np.where(working, clock, rest) * maximum, -6), clock=name)
            self._add("clock_max_hertz", maximum, clock=name)
        self._add("clock_hertz", np.where(working | card.datacentre, card.memory_clock, 405e6), clock="memory")
        self._add("clock_max_hertz", card.memory_clock, clock="memory")
        if self._clock_set():
            said = self._state(lambda state: state.clock_configured or -1.0)
            for name in ("sm", "graphics"):
                self._add("clock_configured_hertz", said * card.clock, said > 0, clock=name)
        for reason in THROTTLE_REASONS:
            held = self._integral(lambda state, reason=reason: state.throttled.get(reason, 0.0))  # type: ignore[misc]
            self._add("throttled_seconds_total", held, reason=reason)

    def _clock_set(self) -> bool:
        return any(each.state.clock_configured for each in self._world.story.gpus)

    def _links(self) -> None:
        card, times, sheet = self._card, self._times, self._sheet

        def received(moments: Floats) -> Floats:
            total = 2e4 * (moments - BEGIN)
            for claim in self._claims:
                course = claim.course
                by_row = (
                    course.steps * course.per_row(claim.rank, "batch") * course.per_row(claim.rank, "copied_per_sample")
                )
                sums = np.concatenate([[0.0], np.cumsum(by_row)]) / len(claim.run.ranks[claim.rank])
                total = total + np.interp(moments, course.bounds, sums)
            return total

        into = sheet.counted(received, BEGIN)
        self._add("pcie_receive_bytes_total", np.floor(into))
        self._add("pcie_transmit_bytes_total", np.floor(0.03 * into))
        demand = self._effect("power")
        working = (demand(times) - demand(times - 60)) / 60 > 0.02
        generation = self._state(lambda state: state.generation or card.generation)
        # A link that has nothing to carry saves power.
        self._add("pcie_link_generation", np.where(working | card.datacentre, generation, 1))
        self._add("pcie_link_generation_max", card.generation)
        self._add("pcie_link_width", self._state(lambda state: state.width or card.width))
        self._add("pcie_link_width_max", card.width)
        self._add("pcie_replays_total", 3 + np.floor(self._integral(lambda state: state.replays / 60)))
        if not card.links:
            return
        moved = np.floor(sheet.counted(self._effect("nvlink"), BEGIN))
        self._add("nvlink_receive_bytes_total", moved)
        self._add("nvlink_transmit_bytes_total", moved)
        self._add("nvlink_links", card.links)
        self._add("nvlink_links_active", card.links - self._state(lambda state: float(state.links_down)))
        for kind in ("replay", "recovery", "crc"):
            errors = self._integral(lambda state, kind=kind: state.link_errors.get(kind, 0.0) / 60)  # type: ignore[misc]
            # Links are trained when the machine starts, with an error or two.
            self._add("nvlink_errors_total", 2 + np.ceil(errors - 1e-9), kind=kind)

    def _health(self) -> None:
        world, times = self._world, self._times
        if self._card.datacentre:
            self._add("ecc_errors_total", self._state(lambda state: state.corrected), kind="corrected")
            self._add("ecc_errors_total", self._state(lambda state: state.uncorrected), kind="uncorrected")
            self._add("remapped_rows", 0, kind="corrected")
            self._add("remapped_rows", self._state(lambda state: state.remapped), kind="uncorrected")
            self._add("row_remap_pending", self._state(lambda state: float(state.remap_pending)))
            self._add("row_remap_failed", self._state(lambda state: float(state.remap_failed)))
        self._add("persistence_mode", 1)
        events = [
            (max(BEGIN, each.minute * 60), code)
            for each in world.story.gpus
            if each.only is None or self._gpu in each.only
            for code in each.state.xids
        ]
        for code in sorted({code for _when, code in events}):
            moments = np.array(sorted(when for when, each in events if each == code))
            count = np.searchsorted(moments, times, side="right")
            newest = moments[np.maximum(0, count - 1)]
            self._add_always("xid_events_total", count.astype(np.float64), count > 0, xid=str(code))
            self._add_always("xid_last_timestamp_seconds", self._sheet.clock(newest), count > 0, xid=str(code))

    def _owners(self) -> None:
        world, times, card = self._world, self._times, self._card
        processes = self._state(lambda state: float(len(state.foreign)))
        owners: dict[tuple[tuple[str, str], ...], list[tuple[Floats, Floats, Callable[[Floats], Floats]]]] = {}
        for claim in self._claims:
            alive = claim.lives(times)
            processes = processes + alive
            labels = tuple(owner_of(claim.run, claim.rank).items())

            def busy(moments: Floats, claim: Claim = claim) -> Floats:
                return claim.course.effect(claim.rank, "busy", moments) * claim.share

            owners.setdefault(labels, []).append((alive, held_by(claim, card.memory, times), busy))
        users = {user for each in world.story.gpus for user in each.state.foreign}
        for user in sorted(users):
            here = self._state(lambda state, user=user: float(user in state.foreign))  # type: ignore[misc]
            held = self._state(lambda state: state.foreign_memory) * card.memory

            def foreign(moments: Floats) -> Floats:
                return world.gpu_integral(
                    self._gpu, lambda state: state.foreign_busy / max(1, len(state.foreign)), moments
                )

            namespace, _, pod = user.rpartition("/")
            labels = tuple(({"namespace": namespace, "pod": pod} if namespace else {"user": user}).items())
            owners.setdefault(labels, []).append((here, held, foreign))
        self._add("processes", processes, kind="compute")
        self._add("processes", 0, kind="graphics")
        for labels, parts in owners.items():
            holds = np.sum([alive for alive, _held, _busy in parts], axis=0) > 0
            memory = np.sum([alive * held for alive, held, _busy in parts], axis=0)
            named = dict(labels)
            self._add("owner_info", 1, holds, **named)
            self._add("owner_memory_used_bytes", np.floor(memory), holds, **named)
            begin = max(BEGIN, float(times[np.argmax(holds)]) - 60 if holds.any() else BEGIN)
            total = np.sum([self._sheet.counted(busy, begin) for _alive, _held, busy in parts], axis=0)
            self._add("owner_busy_seconds_total", np.maximum(0, total), holds, **named)


def owner_of(run: Run, rank: int) -> dict[str, str]:
    """Return the holder of a rank's GPU, as the orchestrator or the process table lists it."""
    if run.pods:
        return {"namespace": run.namespace, "pod": f"{run.name}-{rank}", "container": "trainer"}
    if run.slurm_job:
        return {"slurm_job": run.slurm_job, "user": run.user}
    return {"user": run.user}


def held_by(claim: Claim, memory: float, times: Floats) -> Floats:
    """Bytes of a GPU's memory that a rank's process holds."""
    reserved = np.full_like(times, 0.02 * memory)
    for segment in claim.course.segments:
        if segment.kind != "initialization":
            here = (times >= segment.start) & (times < max(segment.end, gone(claim.course, claim.rank)))
            reserved = np.where(here, allocator(claim, times)["reserved"] * memory, reserved)
    return reserved * claim.share + _CONTEXT


def allocator(claim: Claim, times: Floats) -> dict[str, Floats]:
    """Shares of the GPU's memory as the framework's allocator reports them."""
    peak, used, reserved = np.zeros_like(times), np.zeros_like(times), np.zeros_like(times)
    for segment in claim.course.segments:
        work = segment.works[claim.rank]
        leaked = work.leak_per_hour * np.clip(times - segment.start, 0, segment.end - segment.start) / 3600
        here = times >= segment.start
        between = 0.6 * work.memory if work.used is None else work.used
        top = np.minimum(0.985, work.memory + leaked)
        peak = np.where(here, top, peak)
        used = np.where(here, np.minimum(0.98, between + leaked), used)
        said = min(0.99, 1.03 * work.memory) + leaked if work.reserved is None else work.reserved + leaked
        reserved = np.where(here, np.clip(said, top, 0.99), reserved)
        since = (times - segment.start) / 60
        if work.saw is not None:
            filled = work.saw.share * ((since - work.saw.first) % work.saw.every_minutes) / work.saw.every_minutes
            used = np.where(here, np.minimum(0.98, used + filled), used)
            peak = np.where(here, np.minimum(0.985, work.memory + work.saw.share), peak)
            reserved = np.where(here, np.clip(reserved, peak, 0.99), reserved)
        if work.drop is not None:
            dropped = (since >= work.drop.first) & (
                (since - work.drop.first) % work.drop.every_minutes < work.drop.minutes
            )
            used = np.where(here & dropped, np.maximum(0.0, used - work.drop.share), used)
        if work.evaluation_used is not None:
            evaluates = np.array(
                [claim.course.column_at(claim.rank, moment - 1e-3) == "evaluation" for moment in times]
            )
            used = np.where(here & evaluates, np.minimum(0.98, work.evaluation_used + leaked), used)
            peak = np.maximum(peak, np.maximum.accumulate(used))
            reserved = np.where(here, np.clip(reserved, peak, 0.99), reserved)
    return {"peak": peak, "used": used, "reserved": reserved}
