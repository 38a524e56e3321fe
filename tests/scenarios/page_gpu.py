"""A node's GPU series: the driver's values for the work on each GPU and its health."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stallscope.model.catalogue.metrics import GPU_FAMILIES, THROTTLE_REASONS, UTILIZATION_BUCKETS
from stallscope.node.drivers.peak_flops import peak_flops
from stallscope.node.drivers.signals import QUERIES, SECONDS_10
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
_UNCOUNTED_PCIE = ("Pascal", "Turing")
"""Architectures whose GPUs have no counters of bytes over PCIe."""
_NOT_WITH_MIG = ("memory_busy_seconds_total", "remapped_rows", "row_remap_pending", "row_remap_failed")
"""The driver does not say so of a GPU with MIG instances, nor of an instance."""
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
    "owner_info",
    "owner_memory",
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


def show_gpus(sheet: Sheet, world: World, *, polled: bool = True) -> None:
    """Add the series of every GPU of one node, or without `polled` what its driver would answer at each moment."""
    for gpu, (node, index) in enumerate(world.gpus):
        if node == sheet.node:
            _Page(sheet, world, gpu, polled=polled).show()
            if world.node(gpu).card.mig and index == 0:
                _Page(sheet, world, gpu, whole=True, polled=polled).show()


class _Page:
    """One GPU, or one MIG instance."""

    def __init__(self, sheet: Sheet, world: World, gpu: int, *, whole: bool = False, polled: bool) -> None:
        """Take the GPU, or with `whole` the GPU that it and its node's other instances are parts of."""
        self._sheet = sheet
        self._world = world
        self._gpu = gpu
        node = world.node(gpu)
        self._card = node.card
        self._whole = whole
        self._claims = world.claims(gpu)
        self._labels = {"gpu": str(world.index(gpu)), "uuid": world.uuid(gpu), "mig": node.card.mig}
        self._gpus = [gpu]
        if whole:
            self._card = replace(node.card, mig="", memory=node.gpus * node.card.memory)
            self._gpus = list(range(gpu, gpu + node.gpus))
            self._claims = [
                replace(claim, share=claim.share / node.gpus) for other in self._gpus for claim in world.claims(other)
            ]
            self._labels = {"gpu": "0", "uuid": world.uuid(gpu).replace("MIG", "GPU")}
        self._cut = bool(node.card.mig)
        self._counts_pcie = node.card.architecture not in _UNCOUNTED_PCIE
        self._times = sheet.times
        self._polled = polled
        self._present: Mask = self._state(lambda state: float(state.present)) > 0

    def show(self) -> None:
        self._identity()
        self._activity()
        self._memory()
        self._power_and_clocks()
        self._links()
        self._health()
        self._owners()

    def _at(self, seconds: float) -> Floats:
        """Return the moments of the newest answers to a query that is made at most every so many seconds."""
        if not self._polled or not seconds:
            return self._times
        restart = self._sheet.restart
        since = np.where(self._times >= (np.inf if restart is None else restart), restart or BEGIN, BEGIN)
        return since + np.floor((self._times - since) / seconds) * seconds

    def _answered(self, query: str) -> Floats:
        return self._at(next(iter(QUERIES[query].values())).every)

    def _add(self, name: str, values: Floats | float, present: Mask | bool = True, **labels: str) -> None:
        """Show a reading: a GPU that does not answer has none."""
        self._add_always(name, values, self._present & present, **labels)

    def _add_always(self, name: str, values: Floats | float, present: Mask | bool = True, **labels: str) -> None:
        if self._card.mig and not name.startswith(_INSTANCE):
            return
        self._sheet.add(f"stallscope_gpu_{name}", values, present, **self._labels, **labels)

    def _state(self, value: Callable[[Gpu], float], times: Floats | None = None) -> Floats:
        return self._world.gpu_state(self._gpu, value, self._times if times is None else times)

    def _integral(self, value: Callable[[Gpu], float], times: Floats) -> Floats:
        return self._world.gpu_integral(self._gpu, value, times)

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
            lost = min(each.minute for each in story.gpus if not each.state.present) * 60 - 0.5
            read = np.where(self._present, read, np.minimum(read, lost))
        self._add_always("last_reading_timestamp_seconds", self._sheet.clock(read))
        peaks = {} if card.mig else peak_flops(card.model)
        lacking = {
            *(_PROFILED if not card.profiled else ()),
            *(_LINKED if not card.links else ()),
            *(_DATACENTRE if not card.datacentre else ()),
            *(("fan_speed_ratio",) if card.datacentre else ()),
            *(("peak_flops",) if not peaks else ()),
            *(("pcie_receive_bytes_total", "pcie_transmit_bytes_total") if not self._counts_pcie else ()),
            *(("clock_configured_hertz",) if not self._clock_set() else ()),
            *(_NOT_WITH_MIG if self._cut else ()),
            *_NEVER,
        }
        for each in (family for family in GPU_FAMILIES if family.optional):
            if not each.provider.startswith("collectors.gpu") or (card.mig and each.signal.startswith("xid_")):
                continue
            gone_missing = each.name.startswith(self._world.story.absent) if self._world.story.absent else False
            of_instance = not card.mig or each.signal.startswith(_INSTANCE)
            supported = each.signal not in lacking and of_instance and not gone_missing
            self._add("signal_supported", float(supported), signal=each.signal)
        for precision, flops in peaks.items():
            self._add("peak_flops", flops, precision=precision)

    def _activity(self) -> None:
        world, sheet, card = self._world, self._sheet, self._card
        # With MIG there are no samples; the share of time with any work takes their place, once a reading.
        moments = np.arange(BEGIN, world.horizon + 1, 1.0 if self._cut else card.sample_seconds)
        used = Utilization(world.busy(self._gpus, moments), moments, percent=not self._cut)
        counted = sheet.counted
        self._add("busy_seconds_total", counted(used.busy, BEGIN))
        self._add("observed_seconds_total", counted(used.observed, BEGIN))
        self._add("idle_seconds_total", counted(used.idle, BEGIN))
        for level in (0.1, 0.5):
            under = counted(lambda times, level=level: used.under(level, times), BEGIN)  # type: ignore[misc]
            self._add("below_seconds_total", under, level=str(level))
        for name, part in (
            ("dips_total", "dips"),
            ("dip_interval_seconds_count", "dip_intervals"),
            ("dip_interval_seconds_sum", "dip_interval_sum"),
            ("dip_interval_seconds_sumsq", "dip_interval_sum_of_squares"),
        ):
            self._add(name, counted(lambda times, part=part: used.watched(part, times), BEGIN))  # type: ignore[misc]
        for bound in UTILIZATION_BUCKETS:
            within = counted(lambda times, bound=bound: used.within(bound, times), BEGIN)  # type: ignore[misc]
            self._add("utilization_samples_bucket", within, le=str(bound))
        self._add("utilization_samples_bucket", counted(used.count, BEGIN), le="+Inf")
        self._add("utilization_samples_sum", counted(used.total, BEGIN))
        self._add("utilization_samples_count", counted(used.count, BEGIN))
        self._add("utilization_ratio", (used.busy(self._times) - used.busy(self._times - 1)))
        if not self._cut:
            memory = self._effect("memory")
            self._add("memory_busy_seconds_total", counted(memory, BEGIN))
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
        for engine in ("decoder", "jpeg", "ofa") if self._cut else ("encoder", "decoder", "jpeg", "ofa"):
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
        self._used: Floats = np.floor(np.minimum(used, card.memory * 0.99))
        self._add("memory_used_bytes", self._used)
        self._add("memory_reserved_bytes", 480 * 2.0**20)
        self._add("bar1_total_bytes", card.memory if card.datacentre else 256 * 2.0**20)
        self._add("bar1_used_bytes", 1048576)

    def _power_and_clocks(self) -> None:
        card, times = self._card, self._times
        demand = self._effect("power")

        def range_at(moments: Floats) -> Floats:
            """Return the watts beyond those of an idle GPU, at full load."""
            limit = self._state(lambda state: state.power_limit, moments) * card.watts
            # Dynamic power goes with the clock and the square of the voltage, which follows it.
            heat = np.minimum(1.0, (self._state(lambda state: state.clock, moments) / 0.97) ** 2)
            return np.maximum(0, np.minimum(limit, card.watts) - card.idle_watts) * heat

        def load(moments: Floats) -> Floats:
            return (demand(moments) - demand(moments - 60)) / 60

        self._add(
            "power_watts",
            card.idle_watts + range_at(times) * np.clip((demand(times) - demand(times - 2)) / 2, 0, 1),
        )
        limits = self._answered("power_limits")
        self._add("power_limit_watts", self._state(lambda state: state.power_limit, limits) * card.watts)
        self._add("power_limit_default_watts", card.watts)
        fine = np.arange(BEGIN, self._world.horizon + 2, 1.0)
        joules = np.concatenate([[0.0], np.cumsum(np.diff(demand(fine)) * range_at(fine[:-1]) + card.idle_watts)])
        self._add("energy_joules_total", 4e6 + np.interp(times, fine, joules))

        def heat(moments: Floats) -> Floats:
            said = self._state(lambda state: -1.0 if state.celsius is None else state.celsius, moments)
            celsius = np.where(said >= 0, said, 34 + 36 * np.clip(load(moments), 0, 1))
            return np.round(celsius).astype(np.float64)

        self._add("temperature_celsius", heat(self._answered("temperature")), sensor="gpu")
        if card.datacentre:
            stacked = card.memory_clock < 4e9  # HBM has a sensor of its own
            self._add("temperature_celsius", heat(times) + 8, stacked, sensor="memory")
            self._add("temperature_limit_celsius", 105, stacked, limit="memory_max")
            for name, degrees in (("slowdown", 92), ("shutdown", 95), ("gpu_max", 88)):
                self._add("temperature_limit_celsius", degrees, limit=name)
        else:
            self._add("fan_speed_ratio", np.clip((heat(self._answered("fans")) - 30) / 60, 0, 1), fan="0")
        read = self._answered("clocks")
        working = load(read) > 0.02
        clock = self._state(lambda state: state.clock, read)
        rest = 0.2
        for name, maximum in (("sm", card.clock), ("graphics", card.clock), ("video", 0.8 * card.clock)):
            self._add("clock_hertz", np.round(np.where(working, clock, rest) * maximum, -6), clock=name)
            self._add("clock_max_hertz", maximum, clock=name)
        self._add("clock_hertz", np.where(working | card.datacentre, card.memory_clock, 405e6), clock="memory")
        self._add("clock_max_hertz", card.memory_clock, clock="memory")
        if self._clock_set():
            said = self._state(lambda state: state.clock_configured or -1.0, self._answered("clocks_configured"))
            for name in ("sm", "graphics"):
                self._add("clock_configured_hertz", said * card.clock, said > 0, clock=name)
        for reason in THROTTLE_REASONS:
            held = self._integral(lambda state, reason=reason: state.throttled.get(reason, 0.0), times)  # type: ignore[misc]
            self._add("throttled_seconds_total", held, reason=reason)

    def _clock_set(self) -> bool:
        return any(each.state.clock_configured for each in self._world.story.gpus)

    def _links(self) -> None:
        card, sheet = self._card, self._sheet
        times = self._answered("health")

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
        self._add("pcie_receive_bytes_total", np.floor(into), self._counts_pcie)
        self._add("pcie_transmit_bytes_total", np.floor(0.03 * into), self._counts_pcie)
        demand = self._effect("power")
        working = (demand(times) - demand(times - 60)) / 60 > 0.02
        generation = self._state(lambda state: state.generation or card.generation, times)
        # A link that has nothing to carry saves power.
        self._add("pcie_link_generation", np.where(working | card.datacentre, generation, 1))
        self._add("pcie_link_generation_max", card.generation)
        self._add("pcie_link_width", self._state(lambda state: state.width or card.width, times))
        self._add("pcie_link_width_max", card.width)
        self._add("pcie_replays_total", 3 + np.floor(self._integral(lambda state: state.replays / 60, times)))
        if not card.links:
            return
        moved = np.floor(sheet.counted(self._effect("nvlink"), BEGIN))
        self._add("nvlink_receive_bytes_total", moved)
        self._add("nvlink_transmit_bytes_total", moved)
        self._add("nvlink_links", card.links)
        self._add("nvlink_links_active", card.links - self._state(lambda state: float(state.links_down), times))
        for kind in ("replay", "recovery", "crc"):
            errors = self._integral(lambda state, kind=kind: state.link_errors.get(kind, 0.0) / 60, times)  # type: ignore[misc]
            # Links are trained when the machine starts, with an error or two.
            self._add("nvlink_errors_total", 2 + np.ceil(errors - 1e-9), kind=kind)

    def _health(self) -> None:
        world, times = self._world, self._answered("health")
        if self._card.datacentre:
            self._add("ecc_errors_total", self._state(lambda state: state.corrected, times), kind="corrected")
            self._add("ecc_errors_total", self._state(lambda state: state.uncorrected, times), kind="uncorrected")
        if self._card.datacentre and not self._cut:
            self._add("remapped_rows", 0, kind="corrected")
            self._add("remapped_rows", self._state(lambda state: state.remapped, times), kind="uncorrected")
            self._add("row_remap_pending", self._state(lambda state: float(state.remap_pending), times))
            self._add("row_remap_failed", self._state(lambda state: float(state.remap_failed), times))
        self._add("persistence_mode", 1)
        events = [
            (max(BEGIN, each.minute * 60), code)
            for each in world.story.gpus
            if each.only is None or self._gpu in each.only
            for code in each.state.xids
        ]
        for code in sorted({code for _when, code in events}):
            moments = np.array(sorted(when for when, each in events if each == code))
            count = np.searchsorted(moments, self._times, side="right")
            if self._sheet.restart is not None:  # the exporter receives none from before its start
                forgotten = np.searchsorted(moments, self._sheet.restart, side="left")
                count = np.where(self._times >= self._sheet.restart, count - forgotten, count)
            newest = moments[np.maximum(0, np.searchsorted(moments, self._times, side="right") - 1)]
            self._add_always("xid_events_total", count.astype(np.float64), count > 0, xid=str(code))
            self._add_always("xid_last_timestamp_seconds", self._sheet.clock(newest), count > 0, xid=str(code))

    def _owners(self) -> None:
        world, times, card = self._world, self._at(SECONDS_10), self._card
        processes = self._state(lambda state: float(len(state.foreign)), times)
        owners: dict[tuple[tuple[str, str], ...], list[tuple[Floats, Floats, Callable[[Floats], Floats]]]] = {}
        for claim in self._claims:
            alive = claim.lives(times)
            processes = processes + alive
            labels = tuple(owner_of(claim.run, claim.rank).items())

            def busy(moments: Floats, claim: Claim = claim) -> Floats:
                return claim.course.effect(claim.rank, "busy", moments) * claim.share

            owners.setdefault(labels, []).append((alive, held_by(claim, card.memory, times), busy))
        for user in sorted({user for each in world.story.gpus for user in each.state.foreign}):
            here = self._state(lambda state, user=user: float(user in state.foreign), times)  # type: ignore[misc]
            held = self._state(lambda state: state.foreign_memory, times) * card.memory

            def foreign(moments: Floats, user: str = user) -> Floats:
                return world.foreign_busy(self._gpu, user, moments)

            owners.setdefault(tuple(owner_named(user).items()), []).append((here, held, foreign))
        self._add("processes", processes, kind="compute")
        self._add("processes", 0, kind="graphics")
        if self._whole:
            return  # its instances have the owners
        # All owners together hold at most the memory in use; the rest is shown without an owner.
        of_all = sum((alive * held for parts in owners.values() for alive, held, _busy in parts), np.zeros_like(times))
        part = np.minimum(1.0, self._used / np.maximum(of_all, 1.0))
        for labels, parts in owners.items():
            holds = np.sum([alive for alive, _held, _busy in parts], axis=0) > 0
            memory = np.sum([alive * held for alive, held, _busy in parts], axis=0) * part
            named = dict(labels)
            self._add("owner_info", 1, holds, **named)
            self._add("owner_memory_used_bytes", np.floor(memory), holds, **named)
            total = np.sum([self._sheet.counted(busy, BEGIN) for _alive, _held, busy in parts], axis=0)
            held_at = np.maximum.accumulate(np.where(holds, times, -np.inf))
            self._add("owner_busy_seconds_total", total, (total > 0) & (self._times < held_at + 300), **named)
        kept = self._used - of_all
        self._add("owner_memory_used_bytes", np.floor(kept), kept >= 2.0**20)


def owner_of(run: Run, rank: int) -> dict[str, str]:
    """Return the holder of a rank's GPU, as the orchestrator or the process table lists it."""
    if run.pods:
        return owner_named(f"{run.namespace}/{run.name}-{rank}")
    if run.slurm_job:
        return {"slurm_job": run.slurm_job, "user": run.user}
    return owner_named(run.user)


def owner_named(name: str) -> dict[str, str]:
    """Return a user, or a pod named as `namespace/pod`, whose processes are those of root as in most containers."""
    namespace, _, pod = name.rpartition("/")
    return {"namespace": namespace, "pod": pod, "container": "main", "user": "root"} if namespace else {"user": name}


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
