"""Which GPU is taken, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stallscope.node.drivers.device import Identity
from stallscope.tools.capacity.choice import Wanted, choose, host_against, judge, never
from stallscope.tools.capacity.claims import Claim
from stallscope.tools.capacity.gpu import GpuNow, Holder
from stallscope.tools.capacity.host import Host

MIB = 1 << 20
GIB = 1 << 30
FREE = Wanted(exclusive=True)
SHARED = Wanted(memory=20 * GIB)
ALICE = Holder(4711, 60 * GIB, user="alice", command="python", ancestors=frozenset({4711, 4700, 1}))


def gpu(index: int = 0, *, used: int = 0, **other: Any) -> GpuNow:
    """An idle GPU of 80 GiB, of which so many GiB are in use."""
    mig, parent = other.pop("mig", ""), other.pop("parent", "")
    return replace(
        GpuNow(
            Identity(index, f"GPU-{index}{mig}", "H100", "", "", "", "", "", mig=mig, parent_uuid=parent),
            memory_total=80 * GIB,
            memory_free=(80 - used) * GIB,
            busy=0.0,
            busy_seconds=16.0,
            busy_now=0.0,
            compute_mode="default",
        ),
        **other,
    )


def claim(*, age: float, memory: int = 20, exclusive: bool = False, pid: int = 99) -> Claim:
    return Claim("GPU-0", memory * GIB, exclusive, pid, "bob", age, held=True)


def against(one: GpuNow, wanted: Wanted, *claims: Claim, allowed: frozenset[str] | None = None) -> str:
    (judged,) = judge([one], wanted, claims, allowed)
    return "; ".join(judged.against)


@pytest.mark.parametrize(
    ("one", "wanted", "reason"),
    [
        (gpu(trouble="gpu_lost: it fell off the bus"), SHARED, "down: gpu_lost: it fell off the bus"),
        (gpu(cut=True), SHARED, "MIG is on: only its instances can be taken"),
        (gpu(faults=("Xid 79 2 min ago: reboot",)), SHARED, "Xid 79 2 min ago: reboot"),
        (gpu(throttled=frozenset({"hw_thermal"})), FREE, "it is slowed down now (hw_thermal)"),
        (gpu(compute_mode="prohibited"), SHARED, "its compute mode is prohibited: nvidia-smi -c DEFAULT lets"),
        (
            gpu(used=10, holders=(ALICE,), compute_mode="exclusive_process"),
            SHARED,
            "its compute mode is exclusive_process, and it is in use: alice python (process 4711)",
        ),
        (
            gpu(used=70, holders=(ALICE,)),
            SHARED,
            "10.0 GiB of 80.0 GiB free, 20.0 GiB wanted; alice python (process 4711) 60.0 GiB",
        ),
        (gpu(used=10, holders=(ALICE,)), FREE, "in use: alice python (process 4711) 60.0 GiB"),
        (gpu(used=10), FREE, "10.0 GiB in use: by processes that are not visible from here"),
        (gpu(memory_free=None), SHARED, "its free memory is unknown"),
        (gpu(used=10, holders=(ALICE,), busy=0.87), SHARED, "busy 87 % over 16 s, 50 % allowed"),
        (gpu(used=10, holders=(ALICE,), busy=0.3, busy_now=1.0), SHARED, "busy 100 % now, 50 % allowed"),
        (gpu(used=10, holders=(ALICE,), busy=0.87, runs=("resnet",)), SHARED, "50 % allowed (run resnet)"),
        (gpu(used=10, holders=(ALICE,), busy=None, busy_now=None), SHARED, "its utilisation is unknown"),
        (gpu(mig="1g.10gb"), Wanted(count=2, exclusive=True), "a program can use one MIG instance only"),
    ],
)
def test_each_reason_against_a_gpu_is_named(one: GpuNow, wanted: Wanted, reason: str) -> None:
    assert reason in against(one, wanted)


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (gpu(), FREE),
        (gpu(used=10, holders=(ALICE,), busy=0.3), SHARED),
        (gpu(compute_mode="exclusive_process"), SHARED),
        (gpu(holders=(Holder(5, 200 << 20, "graphics"),)), FREE),
        (gpu(mig="1g.10gb", busy=None, busy_now=None), FREE),
    ],
)
def test_nothing_speaks_against_a_gpu_with_room(one: GpuNow, wanted: Wanted) -> None:
    assert against(one, wanted) == ""


@pytest.mark.parametrize("reserved", [516, 700, 763])
def test_memory_that_the_driver_reserves_is_not_in_use(reserved: int) -> None:
    """As on an H100, an H200 and another card of 80 GB."""
    free = 80 * GIB - reserved * MIB
    assert against(gpu(memory_free=free, memory_reserved=reserved * MIB), FREE) == ""
    assert against(gpu(memory_free=free), FREE) == "", "from a driver that does not report it"
    assert "600.0 MiB in use" in against(gpu(memory_free=free - 600 * MIB, memory_reserved=reserved * MIB), FREE)
    assert "in use: by processes that are not visible" in against(gpu(memory_free=free - GIB), FREE)


def test_memory_that_an_unseen_program_uses_is_in_use_next_to_what_the_driver_reserves() -> None:
    used = gpu(busy=0.9, busy_now=0.0, memory_free=70 * GIB, memory_reserved=700 * MIB)
    assert "busy 90 %" in against(used, SHARED)
    assert against(replace(used, memory_free=80 * GIB - 700 * MIB), SHARED) == ""


def test_what_a_program_that_has_ended_did_counts_no_more() -> None:
    assert against(gpu(busy=0.9), FREE) == ""
    assert "busy 90 %" in against(gpu(busy=0.9, used=10, holders=(ALICE,)), SHARED)


def test_what_an_unseen_program_does_now_counts() -> None:
    assert "busy 90 % now" in against(gpu(busy_now=0.9), FREE)


def test_under_mps_the_share_of_the_gpu_counts_and_not_the_time() -> None:
    clients = (Holder(7, GIB, "mps"),)
    assert "busy" in against(gpu(used=1, holders=(ALICE,), busy=1.0, sm_active=0.2), SHARED)
    assert against(gpu(used=1, holders=clients, busy=1.0, sm_active=0.2), SHARED) == ""
    assert "SMs active 70 %" in against(gpu(used=1, holders=clients, busy=1.0, sm_active=0.7), SHARED)


def test_cuda_visible_devices_restricts_the_choice() -> None:
    assert against(gpu(), FREE, allowed=frozenset({"GPU-0"})) == ""
    assert against(gpu(), FREE, allowed=frozenset()) == "CUDA_VISIBLE_DEVICES leaves it out"


class TestClaims:
    def test_a_new_claim_keeps_everybody_away(self) -> None:
        assert against(gpu(), SHARED, claim(age=5)) == "claimed 5 s ago by bob for 20.0 GiB (process 99)"

    def test_a_claim_whose_program_has_settled_leaves_the_rest_to_share(self) -> None:
        assert against(gpu(), SHARED, claim(age=300)) == ""

    def test_a_claimed_gpu_is_not_free(self) -> None:
        assert "claimed 5 min ago" in against(gpu(), FREE, claim(age=300))
        assert "claimed 5 min ago" in against(gpu(), SHARED, claim(age=300, exclusive=True))

    def test_memory_that_is_claimed_and_not_in_use_yet_is_no_room(self) -> None:
        reason = against(gpu(used=20), SHARED, claim(age=300, memory=50))
        assert reason == "60.0 GiB of 80.0 GiB free, 20.0 GiB wanted; 50.0 GiB more claimed by bob"

    def test_what_the_claims_own_processes_use_is_not_counted_twice(self) -> None:
        # The command (4700) has started the process that is on the GPU.
        taken = gpu(used=60, holders=(ALICE,))
        assert against(taken, SHARED, claim(age=300, memory=60, pid=4700)) == ""
        assert "more claimed by bob" in against(taken, SHARED, claim(age=300, memory=60, pid=4699))


class TestChoice:
    def chosen(self, gpus: list[GpuNow], wanted: Wanted, *claims: Claim) -> list[int]:
        return [each.identity.index for each in choose(judge(gpus, wanted, claims), wanted)]

    def test_the_smallest_room_that_suffices_is_taken(self) -> None:
        gpus = [gpu(0), gpu(1, used=50), gpu(2, used=70), gpu(3, used=30)]
        assert self.chosen(gpus, SHARED) == [1]

    def test_spreading_takes_the_emptiest(self) -> None:
        assert self.chosen([gpu(0, used=10), gpu(1), gpu(2, used=30)], replace(SHARED, spread=True)) == [1]

    def test_gpus_without_claims_come_first(self) -> None:
        gpus = [gpu(0, used=50), gpu(1)]
        assert self.chosen(gpus, Wanted(memory=GIB), claim(age=300, memory=1)) == [1]

    def test_no_gpu_is_chosen_when_too_few_qualify(self) -> None:
        assert self.chosen([gpu(0), gpu(1, cut=True)], Wanted(2, exclusive=True)) == []

    def test_several_sit_together_where_they_can(self) -> None:
        apart = [gpu(0, numa_node=0), gpu(1, numa_node=1), gpu(2, numa_node=1)]
        assert self.chosen(apart, Wanted(2, exclusive=True)) == [1, 2]
        assert self.chosen(apart, Wanted(3, exclusive=True)) == [0, 1, 2]


def test_the_host_must_have_cores_and_memory_for_each_gpu() -> None:
    host = Host(cores=16, idle_cores=3.5, memory_total=64 * GIB, memory_available=10 * GIB)
    assert host_against(host, Wanted(count=2)) == ()
    assert host_against(host, Wanted(count=1, cores=3, host_memory=8 * GIB)) == ()
    assert host_against(host, Wanted(count=2, cores=3, host_memory=8 * GIB)) == (
        "3.5 of the host's 16 cores idle, 6 wanted",
        "10.0 GiB of the host's memory is free, 16.0 GiB wanted",
    )


HOST = Host(cores=16, idle_cores=0.0, memory_total=64 * GIB, memory_available=0)


@pytest.mark.parametrize(
    ("gpus", "wanted", "reason"),
    [
        ([gpu()], Wanted(count=2), "1 of these GPUs can ever qualify, 2 wanted"),
        ([gpu()], Wanted(memory=81 * GIB), "0 of these GPUs can ever qualify, 1 wanted"),
        ([gpu(cut=True), gpu(mig="1g.10gb"), gpu(mig="2g.20gb")], Wanted(count=2), "0 of these GPUs can ever qualify"),
        ([gpu()], Wanted(cores=17), "the host has 16 cores for programs, 17 wanted"),
        ([gpu()], Wanted(host_memory=65 * GIB), "the host has 64.0 GiB of memory, 65.0 GiB wanted"),
    ],
)
def test_a_request_that_no_wait_can_fulfil_is_refused_with_the_reason(
    gpus: list[GpuNow], wanted: Wanted, reason: str
) -> None:
    assert never(judge(gpus, wanted, ()), HOST, wanted).startswith(reason)


def test_what_others_hold_or_what_may_come_back_is_worth_waiting_for() -> None:
    gpus = [gpu(used=80, holders=(ALICE,), busy=1.0), gpu(trouble="hung", memory_total=None)]
    wanted = Wanted(count=2, memory=80 * GIB, cores=8, host_memory=32 * GIB)
    assert never(judge(gpus, wanted, ()), HOST, wanted) == ""
    left_out = judge(gpus[:1], Wanted(), (), frozenset())
    assert never(left_out, HOST, Wanted()) != "", "CUDA_VISIBLE_DEVICES stays meanwhile"
