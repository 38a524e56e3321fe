from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.node.drivers.device import GpuProcess
from stallscope.node.drivers.occupancy import Occupancy
from stallscope.node.owners.attribution import MOST_OWNERS, UNKNOWN_OWNER, Attribution, Owner, attribute, pods_by_uid
from stallscope.node.owners.pod_resources import Container
from stallscope.node.owners.processes import Process
from tests.owners.machines import GIB, UUIDS, gpu, on, process

A = Container("team-a", "train-0", "main")
B = Container("team-b", "serve-1", "server")
UID = "8f3c1c2e-5a1b-4e0e-9d6f-0c2b7a9e4d11"


def found(occupancy: Occupancy, *holders: Container, processes: dict[int, Process] | None = None) -> Attribution:
    seen = processes or {}
    return attribute(occupancy, holders, seen, pods_by_uid(holders, seen.values()))


def memory(attribution: Attribution) -> dict[Owner, int | None]:
    return {share.owner: share.memory for share in attribution.shares}


def pod_of(container: Container, user: str = "") -> Owner:
    return Owner(*container, user=user)


def test_an_unused_gpu_has_no_owner() -> None:
    assert found(on(gpu(), used=0)) == Attribution((), None, frozenset())


def test_a_pod_holds_its_gpu_before_it_has_a_process_on_it() -> None:
    assert memory(found(on(gpu(), used=0), A)) == {pod_of(A): None}


def test_all_processes_on_a_pods_own_gpu_are_the_pods() -> None:
    seen = {1: process("ada", pod_uid=UID), 2: process("ada", pod_uid=UID)}
    attribution = found(on(gpu(), (1, 3 * GIB), (2, GIB), used=4 * GIB), A, processes=seen)
    assert memory(attribution) == {pod_of(A, "ada"): 4 * GIB}
    assert attribution.unattributed is None


def test_processes_that_cannot_be_seen_are_the_pods_too_on_its_own_gpu() -> None:
    attribution = found(on(gpu(), (1, GIB), used=GIB), A)
    assert memory(attribution) == {pod_of(A): GIB}
    assert attribution.problems == {("pid_not_visible", "1")}


def test_a_pod_whose_processes_run_as_several_users_names_none_and_stays_one() -> None:
    seen = {1: process("ada"), 2: process("grace")}
    assert memory(found(on(gpu(), (1, GIB), (2, GIB)), A, processes=seen)) == {pod_of(A): 2 * GIB}


def test_what_runs_outside_kubernetes_on_a_pods_gpu_is_not_the_pods() -> None:
    seen = {1: process("ada", pod_uid=UID), 2: process("grace", outside=True)}
    attribution = found(on(gpu(), (1, GIB), (2, 2 * GIB), used=3 * GIB), A, processes=seen)
    assert memory(attribution) == {pod_of(A, "ada"): GIB, Owner(user="grace"): 2 * GIB}


def test_on_a_shared_gpu_a_process_is_the_pods_that_it_is_called_after() -> None:
    seen = {1: process(host_name="train-0"), 2: process(host_name="serve-1")}
    attribution = found(on(gpu(), (1, GIB), (2, 3 * GIB), used=4 * GIB), A, B, processes=seen)
    assert memory(attribution) == {pod_of(A, "root"): GIB, pod_of(B, "root"): 3 * GIB}


def test_what_runs_outside_kubernetes_is_no_pods_though_called_like_a_pod() -> None:
    seen = {1: process("grace", host_name="train-0", outside=True)}
    assert memory(found(on(gpu(), (1, GIB), used=GIB), A, B, processes=seen))[Owner(user="grace")] == GIB


def test_the_downward_api_outweighs_the_host_name() -> None:
    seen = {1: process(host_name="train-0", pod_name="serve-1", pod_namespace="team-b")}
    assert memory(found(on(gpu(), (1, GIB)), A, B, processes=seen))[pod_of(B, "root")] == GIB


def test_a_long_pod_name_is_known_by_its_cut_host_name() -> None:
    long = Container("team-a", "x" * 62 + "-tail-1", "main")
    seen = {1: process(host_name="x" * 62)}
    assert memory(found(on(gpu(), (1, GIB)), long, B, processes=seen))[pod_of(long, "root")] == GIB


def test_a_process_that_does_not_say_its_pod_is_known_by_one_of_the_same_pod_that_does() -> None:
    seen = {1: process(host_name="train-0", pod_uid=UID), 2: process(pod_uid=UID)}
    assert memory(found(on(gpu(), (1, GIB), (2, GIB)), A, B, processes=seen))[pod_of(A, "root")] == 2 * GIB


def test_pods_of_one_name_in_two_namespaces_are_not_confused() -> None:
    twin = Container("team-b", "train-0", "main")
    unclear = {1: process(host_name="train-0", container="c" * 64)}
    clear = {1: process(host_name="train-0", pod_namespace="team-b")}
    assert memory(found(on(gpu(), (1, GIB)), A, twin, processes=unclear)) == {
        pod_of(A): None,
        pod_of(twin): None,
        Owner(container="c" * 12, user="root"): GIB,
    }
    assert memory(found(on(gpu(), (1, GIB)), A, twin, processes=clear))[pod_of(twin, "root")] == GIB


def test_memory_on_a_shared_gpu_that_no_pod_can_be_found_for_is_given_to_none() -> None:
    attribution = found(on(gpu(), (1, GIB), (2, GIB), used=2 * GIB), A, B)
    assert memory(attribution) == {pod_of(A): None, pod_of(B): None}
    assert attribution.unattributed == 2 * GIB


def test_ambiguous_memory_is_given_to_neither_of_two_containers_of_a_pod() -> None:
    sidecar = A._replace(name="sidecar")
    attribution = found(on(gpu(), (1, GIB)), A, sidecar, processes={1: process("ada")})
    assert memory(attribution) == {
        pod_of(A): None,
        pod_of(sidecar): None,
        Owner(A.namespace, A.pod, user="ada"): GIB,
    }


def test_without_pods_a_slurm_job_comes_before_a_container_and_a_container_before_a_user() -> None:
    seen = {
        1: process("ada", slurm_job="7", container="c" * 64),
        2: process("ada", container="d" * 64),
        3: process("ada"),
    }
    assert memory(found(on(gpu(), (1, 1), (2, 2), (3, 3)), processes=seen)) == {
        Owner(slurm_job="7", user="ada"): 1,
        Owner(container="d" * 12, user="ada"): 2,
        Owner(user="ada"): 3,
    }


def test_a_process_of_a_pod_that_was_given_no_gpu_goes_by_its_container() -> None:
    seen = {1: process("root", container="c" * 64, pod_uid=UID, host_name="sneaky-0")}
    assert memory(found(on(gpu(), (1, GIB)), processes=seen)) == {Owner(container="c" * 12, user="root"): GIB}


def test_a_gpu_with_only_invisible_processes_has_an_unknown_owner() -> None:
    attribution = found(on(gpu(), (1, GIB), used=2 * GIB))
    assert memory(attribution) == {UNKNOWN_OWNER: None}
    assert attribution.unattributed == 2 * GIB


def test_memory_beyond_the_processes_is_shown_as_nobodys() -> None:
    seen = {1: process("ada")}
    assert found(on(gpu(), (1, GIB), used=GIB + 2**20), processes=seen).unattributed == 2**20
    assert found(on(gpu(), (1, GIB), used=GIB + 2**20 - 1), processes=seen).unattributed is None
    assert found(on(gpu(), (1, GIB), used=GIB // 2), processes=seen).unattributed is None


def test_memory_that_the_driver_does_not_report_leaves_the_owner_without_and_is_counted() -> None:
    seen = {1: process("ada"), 2: process("ada"), 3: process("grace")}
    attribution = found(on(gpu(), (1, GIB), (2, None), (3, GIB), used=4 * GIB), processes=seen)
    assert memory(attribution) == {Owner(user="ada"): None, Owner(user="grace"): GIB}
    assert attribution.problems == {("memory_not_told", f"{UUIDS[0]} 2")}


def test_memory_that_an_owner_may_hold_is_not_shown_as_nobodys() -> None:
    attribution = found(on(gpu(), (1, None), (2, GIB), used=4 * GIB), processes={1: process("ada")})
    assert memory(attribution) == {Owner(user="ada"): None}
    assert attribution.unattributed == GIB  # of the process that is not visible


def test_memory_that_processes_share_is_split_in_proportion() -> None:
    seen = {1: process("ada"), 2: process("grace")}
    attribution = found(on(gpu(), (1, 3 * GIB), (2, 3 * GIB), used=4 * GIB), processes=seen)
    assert memory(attribution) == {Owner(user="ada"): 2 * GIB, Owner(user="grace"): 2 * GIB}
    assert attribution.unattributed is None


def test_a_process_that_computes_and_draws_counts_once() -> None:
    both = Occupancy(gpu(), None, (GpuProcess(1, GIB), GpuProcess(1, GIB, "graphics"), GpuProcess(1, None, "mps")), {})
    assert memory(found(both, processes={1: process("ada")})) == {Owner(user="ada"): GIB}


def test_owners_over_the_bound_become_nobodys_and_are_counted() -> None:
    seen = {pid: process(f"user{pid:03}", outside=True) for pid in range(MOST_OWNERS + 6)}
    attribution = found(on(gpu(), *((pid, GIB) for pid in seen), used=len(seen) * GIB), A, processes=seen)
    assert len(attribution.shares) == MOST_OWNERS
    assert attribution.shares[0].owner == pod_of(A)
    assert attribution.unattributed == 7 * GIB
    assert {reason for reason, _ in attribution.problems} == {"too_many_owners"}
    assert len(attribution.problems) == 7


USERS = st.sampled_from(["ada", "grace", ""])
SEEN = st.builds(
    process,
    USERS,
    container=st.sampled_from(["", "c" * 64, "d" * 64]),
    pod_uid=st.sampled_from(["", UID]),
    slurm_job=st.sampled_from(["", "7"]),
    host_name=st.sampled_from(["", "train-0", "serve-1"]),
    outside=st.booleans(),
)


@given(
    processes=st.dictionaries(st.integers(1, 9), SEEN),
    reported=st.lists(st.tuples(st.integers(1, 12), st.none() | st.integers(0, 2**30)), unique_by=lambda each: each[0]),
    holders=st.lists(st.sampled_from([A, B, A._replace(name="sidecar")]), unique=True),
    used=st.integers(0, 2**34),
)
def test_owners_sum_to_at_most_the_memory_in_use_and_no_process_has_two(
    processes: dict[int, Process], reported: list[tuple[int, int | None]], holders: list[Container], used: int
) -> None:
    attribution = found(on(gpu(), *reported, used=used), *holders, processes=processes)
    total = sum(share.memory or 0 for share in attribution.shares) + (attribution.unattributed or 0)
    assert total <= used
    if all(each is not None for _, each in reported):
        assert used - total < 2**20
    pids = [pid for share in attribution.shares for pid in share.pids]
    assert len(pids) == len(set(pids))
    owners = [share.owner for share in attribution.shares]
    assert len(owners) == len(set(owners))
    assert {pod_of(holder)[:3] for holder in holders} <= {owner[:3] for owner in owners}


@pytest.mark.parametrize("odd", ['quo"te', "new\nline", "back\\slash", "\N{REPLACEMENT CHARACTER}", "ü"])
def test_odd_names_pass_through_unchanged(odd: str) -> None:
    assert memory(found(on(gpu(), (1, GIB)), processes={1: process(odd)})) == {Owner(user=odd): GIB}
