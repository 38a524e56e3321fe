"""Ranks and links that hold up others, by the collectives in NCCL Inspector's files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from tests.rules.rulebook import TARGET, Rulebook, Story, exporter, gpu, growing, rank, series, steady

MIB = 2**20
LATE = "round(100 * nccl_rank:late:ratio5m) > 0"
PEERS = "round(100 * max by (communicator) (nccl_communicator:bandwidth_of_peers:ratio5m))"
VERDICT = 'round(100 * run:verdict:ratio5m{cause!="healthy"})'


def collectives(
    number: int,
    share: float,
    *,
    communicator: str = "0xa",
    comm_rank: int | None = None,
    ranks: int = 4,
    operation: str = "AllReduce",
    per_second: float = 2.0,
    size: float = MIB,
    gigabytes: float = 40,
    pid: int | None = None,
) -> Story:
    """The collectives of a rank in a communicator, which take a share of its time."""
    labels = {"communicator": communicator, "comm_rank": str(number if comm_rank is None else comm_rank), **TARGET}
    process = str(1000 + number if pid is None else pid)
    info = {"comm_name": "unknown", "ranks": str(ranks), "nodes": "1", "hostname": "pod-0", "process": process}
    counters = {
        "operations_total": per_second,
        "operation_seconds_total": share,
        "operation_bytes_total": per_second * size,
        "bus_bytes_total": share * gigabytes * 1e9,
    }
    return [
        series("stallscope_nccl_communicator_info", steady(1), **labels, **info),
        *(
            series(f"stallscope_nccl_{name}", growing(value), operation=operation, **labels)
            for name, value in counters.items()
        ),
    ]


def training(ranks: int = 4, *, sm: float | None = 0.4, **story: object) -> Story:
    """Ranks that do not measure communication, on GPUs that are always busy."""
    shown = exporter()
    for number in range(ranks):
        uuid = f"GPU-{number}"
        shown += gpu(number) + rank(number, gpus=((str(number), uuid),), **story)  # type: ignore[arg-type]
        process = {"run": "train", "rank": str(number), "hostname": "pod-0", "process": str(1000 + number)}
        shown.append(series("stallscope_training_process_info", steady(1), **process, **TARGET))
        if sm is not None:
            active = "stallscope_gpu_sm_active_seconds_total"
            shown.append(series(active, growing(sm), gpu=str(number), uuid=uuid, **TARGET))
    return shown


def one_late(shares: Sequence[float] = (0.4, 0.4, 0.4, 0.1), **of_collectives: object) -> Story:
    return [
        line
        for number, share in enumerate(shares)
        for line in collectives(number, share, **of_collectives)  # type: ignore[arg-type]
    ]


def test_the_rank_with_the_shortest_collectives_is_the_straggler(rulebook: Rulebook) -> None:
    rulebook.check(
        training() + one_late(),
        {
            LATE: [({"communicator": "0xa", "comm_rank": "3", "run": "train", "rank": "3", **TARGET}, 75)],
            VERDICT: [({"run": "train", "cause": "straggler_rank"}, 30)],
            "count by (cause, rank) (run:culprit:info)": [({"rank": "3", "cause": "straggler_rank"}, 1)],
        },
    )


def test_ranks_whose_collectives_take_equally_long_are_bound_by_communication(rulebook: Rulebook) -> None:
    rulebook.check(
        training() + one_late((0.4,) * 4),
        {LATE: [], VERDICT: [({"run": "train", "cause": "comm_bound"}, 40)]},
    )


ABSTAINS: dict[str, Story] = {
    "without NCCL Inspector": training(),
    "a rank without a file": training() + one_late((0.4, 0.4, 0.1)),
    "few operations": training() + one_late(per_second=0.05),
    "one rank, whose file alone says that there are no others": training(1) + collectives(0, 0.02, ranks=1),
    "one rank makes more collectives": training()
    + one_late((0.4, 0.4, 0.4), per_second=3)
    + collectives(3, 0.1, per_second=2),
    "one rank sends less": training() + one_late((0.4, 0.4, 0.4)) + collectives(3, 0.1, size=MIB / 2),
    "sends and receives": training() + one_late(operation="Send"),
}


@pytest.mark.parametrize("story", ABSTAINS.values(), ids=ABSTAINS)
def test_ranks_that_cannot_be_compared_have_no_late_one(story: Story, rulebook: Rulebook) -> None:
    rulebook.check(story, {LATE: [], 'run:verdict:ratio5m{cause="straggler_rank"}': []})


NO_VERDICT: dict[str, Story] = {
    "the activity of the SMs is unknown": training(sm=None) + one_late(),
    "computing hides the wait": training(sm=0.98) + one_late(),
    "stages of a pipeline make further collectives": training()
    + one_late()
    + collectives(0, 0.1, communicator="0xb", comm_rank=0, ranks=2)
    + collectives(1, 0.1, communicator="0xb", comm_rank=1, ranks=2),
}


@pytest.mark.parametrize("story", NO_VERDICT.values(), ids=NO_VERDICT)
def test_a_late_rank_whose_cost_is_unknown_is_shown_without_a_verdict(story: Story, rulebook: Rulebook) -> None:
    rulebook.check(
        story,
        {
            LATE: [({"communicator": "0xa", "comm_rank": "3", "run": "train", "rank": "3", **TARGET}, 75)],
            'run:verdict:ratio5m{cause="straggler_rank"}': [],
        },
    )


def test_the_rank_of_a_process_that_reports_none_is_unknown(rulebook: Rulebook) -> None:
    rulebook.check(
        training() + one_late(pid=1),
        {
            LATE: [({"communicator": "0xa", "comm_rank": "3", **TARGET}, 75)],
            'run:verdict:ratio5m{cause="straggler_rank"}': [],
        },
    )


def groups(bandwidths: Iterable[float], **of_collectives: object) -> Story:
    """Communicators of two ranks each."""
    return [
        line
        for group, gigabytes in enumerate(bandwidths)
        for comm_rank in (0, 1)
        for line in collectives(
            2 * group + comm_rank,
            0.02,
            communicator=f"0x{group}",
            comm_rank=comm_rank,
            ranks=2,
            gigabytes=gigabytes,
            **of_collectives,  # type: ignore[arg-type]
        )
    ]


def test_a_communicator_is_compared_with_its_peers(rulebook: Rulebook) -> None:
    rulebook.check(
        training(8) + groups((40, 40, 10, 40)),
        {PEERS: [({"communicator": f"0x{group}"}, 25 if group == 2 else 100) for group in range(4)]},
    )


UNCOMPARED: dict[str, Story] = {
    "three communicators have no median": training(6) + groups((40, 40, 10)),
    "other sizes": training(8) + groups((40, 40, 40)) + [
        line
        for comm_rank in (0, 1)
        for line in collectives(
            6 + comm_rank, 0.02, communicator="0x3", comm_rank=comm_rank, ranks=2, gigabytes=10, size=MIB / 8
        )
    ],
    "the runs are unknown": training(8) + groups((40, 40, 10, 40), pid=1),
}  # fmt: skip


@pytest.mark.parametrize("story", UNCOMPARED.values(), ids=UNCOMPARED)
def test_communicators_without_peers_are_not_compared(story: Story, rulebook: Rulebook) -> None:
    rulebook.check(story, {PEERS: []})


def links(speeds: Iterable[float], *, name: str = "rdma_link_bytes_per_second", **labels: str) -> Story:
    """A run with a rank on each host, whose port has this speed."""
    story = []
    for number, gigabytes in enumerate(speeds):
        at = f"node{number}:19400"
        story += exporter(instance=at) + rank(number, instance=at)
        link = {**labels, **TARGET, "instance": at}
        story.append(series(f"stallscope_host_{name}", steady(gigabytes * 1e9), **link))
    return story


PORT = {"device": "mlx5_0", "port": "1"}
LINKS: dict[str, tuple[Story, dict[str, float]]] = {
    "one is slower, one is down": (links((50, 50, 50, 25, 0), **PORT), {"node3:19400": 0.5, "node4:19400": 0}),
    "an interface": (
        links((12.5, 12.5, 1.25), name="network_link_bytes_per_second", device="eth0"),
        {"node2:19400": 0.1},
    ),
    "all are equal": (links((50, 50, 50), **PORT), {}),
    "no link is up": (links((0, 0, 0), **PORT), {}),
    "two hosts": (links((50, 25), **PORT), {}),
    "a host with two runs": (links((50, 50, 50, 25), **PORT) + rank(9, run="other", instance="node3:19400"), {}),
}


@pytest.mark.parametrize(("story", "slow"), LINKS.values(), ids=LINKS)
def test_a_link_is_compared_with_those_of_the_same_name_on_the_hosts_of_its_run(
    story: Story, slow: dict[str, float], rulebook: Rulebook
) -> None:
    rulebook.check(
        story,
        {
            "sum by (instance) (run_link:speed_of_peers:ratio)": [
                ({"instance": at}, ratio) for at, ratio in slow.items()
            ]
        },
    )


@pytest.mark.parametrize(
    ("slow", "sentence"),
    [
        pytest.param(
            [series("run_link:speed_of_peers:ratio", steady(0.25), run="train", **{**TARGET, **PORT})],
            " Link mlx5_0 port 1 of node1:19400 has 25 % of the speed of that link on the run's other hosts: if the "
            "run uses it, repair it first.",
            id="slower than its peers",
        ),
        pytest.param([], "", id="no link is slower, or none is compared"),
        pytest.param(
            [series("run_link:speed_of_peers:ratio", steady(0.25), run="other", **{**TARGET, **PORT})],
            "",
            id="a link of another run",
        ),
    ],
)
def test_the_text_on_communication_names_the_slowest_link(slow: Story, sentence: str, rulebook: Rulebook) -> None:
    rulebook.check_text(
        [
            series("run_cause:time_lost:ratio5m", steady(0.3), run="train", cause="comm_bound"),
            series("run:job_class:info", steady(1), run="train", job_class="production"),
            *slow,
        ],
        "TrainingCommBound",
        {"run": "train", "severity": "warning", "cause": "comm_bound", "job_class": "production"},
        {
            "summary": "Communication slows training.",
            "lost": "",
            "description": "Run train spends 30 % of its time in communication that does not overlap with computation."
            f"{sentence} Use larger buckets or gradient accumulation, overlap it with the backward pass, and send "
            "gradients in 16 bits; check that the collective library uses NVLink and RDMA (NCCL_DEBUG=INFO), not "
            "sockets.",
            "runbook_url": "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks/TrainingCommBound.md",
            "dashboard_url": "/d/stallscope-run?var-run=train",
        },
    )
