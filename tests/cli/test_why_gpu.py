"""`stallscope why --gpu` on a real Prometheus that holds series as the rules record them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from stallscope.lab.replay.series import Series
from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.catalogue.conditions import SIGNALS
from stallscope.model.clients.prometheus import Prometheus
from stallscope.model.view.gpu_explanation import NOT_SERVED
from stallscope.tools.cli import why
from tests.cli.test_why import SCRAPES, Filled, cause_of, constants, filled, said, squeezed

HALF = SCRAPES // 2
RUN = {"namespace": "vision", "run": "resnet50"}
STALLED = {"namespace": "vision", "run": "stopped"}
ALERT = {"alertstate": "firing", "namespace": "vision"}
AGES = "gpu:last_use:timestamp_seconds", "gpu:xid_hw:timestamp_seconds"
"""Series with a Unix time; here as seconds before the last scrape."""


class Gpu(NamedTuple):
    """A GPU as the rules record it."""

    verdict: str
    lost: Mapping[str, float] = MappingProxyType({})
    values: Mapping[str, float] = MappingProxyType({})
    more: tuple[tuple[str, dict[str, str]], ...] = ()
    """Further series with the value 1, with their labels besides those of the GPU."""
    first: str = "insufficient_data"
    """The verdict of the first half."""
    scrapes: int = SCRAPES
    """Scrapes until its last verdict."""
    up: int = SCRAPES
    """Scrapes in which its exporter knows it."""


HELD: tuple[tuple[str, dict[str, str]], ...] = (
    ("stallscope_gpu_owner_info", {"user": "ada", "slurm_job": "41"}),
    ("gpu_cause:remainder:info", {}),
)
GPUS: dict[str, Gpu] = {
    "idle": Gpu(
        "idle_allocated",
        {"idle_allocated": 1.0, "mem_zombie": 0.0},
        {"gpu:idle_allocated:seconds": 4210, "gpu:last_use:timestamp_seconds": 4225, "gpu:busy:ratio5m": 0.0},
        (
            *HELD,
            ("ALERTS", {**ALERT, "alertname": "GpuIdleAllocated", "severity": "warning"}),
            ("ALERTS", {**ALERT, "alertname": "TrainingInputBound", "severity": "warning", "gpu": ""}),
        ),
    ),
    "lost": Gpu(
        "lost",
        {"lost": 1.0},
        {},
        (
            ("stallscope_gpu_lost_info", {"reason": "gpu_lost"}),
            ("gpu:free:info", {}),
            ("rank_gpu:gone:info", {**STALLED, "rank": "1"}),
            ("ALERTS", {**ALERT, "alertname": "GpuLost", "severity": "critical"}),
            ("ALERTS", {**ALERT, "alertname": "GpuUnderused", "severity": "warning"}),
        ),
        "healthy",
    ),
    "hot": Gpu(
        "thermal_throttle",
        {"thermal_throttle": 0.3, "straggler_hw": 0.27, "comm_bound": 0.03},
        {"gpu:thermal_throttled:ratio5m": 0.97, "gpu:sm_clock:ratio5m": 0.7, "gpu:busy:ratio5m": 0.99},
        (
            ("rank_gpu:claim:info", {**RUN, "rank": "3"}),
            ("gpu_rank:host_side:info", {**RUN, "rank": "3"}),
            ("stallscope_gpu_info", {"model": "NVIDIA H100 80GB HBM3"}),
        ),
    ),
    "peer": Gpu(
        "straggler_hw",
        {"straggler_hw": 0.27},
        {"gpu:busy:ratio5m": 0.91},
        (
            ("rank_gpu:claim:info", {**RUN, "rank": "0"}),
            ("rank_gpu:claim:info", {"run": "other", "rank": "0"}),
            ("gpu_rank:host_side:info", {**RUN, "rank": "0"}),
        ),
    ),
    "free": Gpu("healthy", {}, {"gpu:busy:ratio5m": 0.0}, (("gpu:free:info", {}),)),
    "unread": Gpu("healthy", {}, {}, (("gpu:free:info", {}),), up=SCRAPES - 2),
    "held": Gpu(
        "insufficient_data", {}, {"gpu:busy:ratio5m": 0.121, "gpu:last_use:timestamp_seconds": 600}, HELD, first=""
    ),
    "used": Gpu("healthy", {}, {"gpu:busy:ratio5m": 0.83}, HELD[:1]),
    "new": Gpu("insufficient_data", {}, {"gpu:last_use:timestamp_seconds": 90}, HELD, first=""),
    "served": Gpu(
        "insufficient_data",
        {},
        {"gpu:busy:ratio5m": 0.12},
        (
            *HELD,
            ("serving_gpu:server:info", {"server": "llm/qwen-0"}),
            ("serving_gpu:verdict:ratio5m", {"cause": "serving_idle", "server": "llm/qwen-0"}),
        ),
    ),
    "waits": Gpu(
        "stalled",
        {"lost": 1.0},
        {},
        (("rank_gpu:claim:info", {**STALLED, "rank": "0"}),),
        "healthy",
    ),
    "crashed": Gpu(
        "xid_hw",
        {"xid_hw": 0.0, "ecc_uncorrected": 0.0},
        {"gpu:xid_hw:timestamp_seconds": 720, "gpu:ecc_uncorrected:count": 1234},
        (("gpu:free:info", {}),),
    ),
    "shared": Gpu("shared_unexpectedly", {"shared_unexpectedly": 0.0}, {"gpu:sharers:count": 3}, HELD),
    "zombie": Gpu("mem_zombie", {"mem_zombie": 0.0}, {"gpu:zombie_memory:bytes5m": 12 * 2.0**30}),
    "replaying": Gpu("pcie_replays", {"pcie_replays": 0.0}, {"gpu:pcie_replays:per_minute5m": 90.25}),
    "released": Gpu("healthy", {}, {}, (("stallscope_gpu_lost_info", {"reason": "released"}),), "", HALF),
    "gone": Gpu("underused", {"underused": 0.6}, {"gpu:busy:ratio5m": 0.4}, HELD, "", HALF),
}
LABELS = {name: {"instance": "node1:19400", "gpu": str(number)} for number, name in enumerate(GPUS)}


def recorded(name: str, story: Gpu, **labels: str) -> Iterator[Series]:
    """Yield the series of a GPU."""
    own = {"cluster": "east", "job": "stallscope", **LABELS.get(name, {}), "uuid": f"GPU-{name}", **labels}

    def during(value: float, first: int = 0, last: int = story.scrapes) -> list[float | None]:
        return [*[None] * first, *[float(value)] * (last - first), *[None] * (SCRAPES - last)]

    is_up = all(series != "stallscope_gpu_lost_info" for series, _ in story.more)
    yield Series("stallscope_gpu_up", own, during(is_up, last=min(story.up, story.scrapes)))
    lost = story.lost.get(story.verdict, story.lost.get("lost", 0.0))
    half = story.scrapes // 2 if story.first else 0
    yield Series("gpu:verdict:ratio5m", {**own, "cause": story.verdict}, during(lost, half))
    if half:
        yield Series("gpu:verdict:ratio5m", {**own, "cause": story.first}, during(0, last=half))
    for cause, share in story.lost.items():
        yield Series("gpu_cause:share:ratio5m", {**own, "cause": cause}, during(share))
    for series, value in story.values.items():
        labels = {**own, "xid": "119", "action": "drain the node"} if "xid" in series else own
        yield Series(series, labels, during(30 * (SCRAPES - 1) - value if series in AGES else value))
    for series, more in story.more:
        # The exporter still reports a GPU that is down on purpose.
        last = SCRAPES if series == "stallscope_gpu_lost_info" else story.scrapes
        yield Series(series, {key: text for key, text in {**own, **more}.items() if text}, during(1, last=last))


def of_runs() -> Iterator[Series]:
    """Yield the series of the runs, and of the inference server."""
    for run, cause, rank in ((RUN, "straggler_hw", "3"), (STALLED, "lost", "1")):
        of = {"cluster": "east", **run}
        yield Series("run:verdict:ratio5m", {**of, "cause": cause}, [0.25] * SCRAPES)
        gpu, reason = ("2", "thermal_throttle") if run is RUN else ("1", "lost")
        culprit = {"rank": rank, "instance": "node1:19400", "gpu": gpu, "cause": reason}
        yield Series("run:culprit:info", {**of, **culprit}, [1.0] * SCRAPES)
        if run is RUN:
            yield Series("run_rank:straggler:ratio5m", {**of, "rank": rank}, [0.27] * SCRAPES)
        for number, clock in ((0, 1.01), (3, 0.7), (5, 0.9)):
            yield Series("run_rank:clock_of_peers:ratio5m", {**of, "rank": str(number)}, [clock] * SCRAPES)
            exporter = {"job": "stallscope", "instance": "node1:19400"}
            yield Series("rank:step_lateness:ratio", {**of, **exporter, "rank": str(number)}, [2.0 + clock] * SCRAPES)
    for signal, value in (("waiting", 0.0), ("kv_used", 0.07)):
        labels = {"cluster": "east", "server": "llm/qwen-0", "signal": signal}
        yield Series("serving:signal:value5m", labels, [value] * SCRAPES)


def floors() -> Iterator[Series]:
    """Yield the floors of the verdicts of GPUs."""
    for each in constants():
        if each.name == "stallscope:verdict_floor:ratio":
            tier = "progress" if each.labels["cause"] == "straggler_hw" else each.labels["tier"]
            value = 0.0 if tier == "hardware" else each.values[0]
            yield Series("stallscope:gpu_verdict_floor:ratio", {**each.labels, "tier": tier}, [value] * SCRAPES)


@pytest.fixture(scope="module")
def server() -> Iterator[Filled]:
    everything = [*constants(), *floors(), *of_runs()]
    everything += (each for name, gpu in GPUS.items() for each in recorded(name, gpu))
    free, idle = GPUS["free"], GPUS["idle"]
    card = {"instance": "node2:19400", "gpu": "0"}
    everything += recorded("card", free, **card)
    for number, gpu in enumerate((free, idle, idle)):
        everything += recorded("", gpu, **card, uuid=f"MIG-{number}", mig="1g.18gb")
    everything += recorded("", free, instance="node2:19400", gpu="7", uuid="MIG-7", mig="3g.71gb")
    everything += recorded("", idle, instance="node2:19400", gpu="7", uuid="MIG-8", mig="3g.71gb")
    for cluster in ("north", "south"):
        everything += recorded("twin", free, cluster=cluster, instance="twin:19400", gpu="0")
    # Replaced by another GPU at the same index, which two jobs scrape; the rules still judge the old one.
    everything += recorded("old", free._replace(up=SCRAPES - 2), instance="node3:19400", gpu="0")
    everything += recorded("next", idle, instance="node3:19400", gpu="0")
    everything += recorded("next", idle, instance="node3:19400", gpu="0", job="again")
    with filled(everything) as found:
        yield found


def of(capsys: pytest.CaptureFixture[str], server: Filled, name: str, *more: str) -> str:
    return squeezed(said(capsys, server, f"--gpu=GPU-{name}", *more))


def document(capsys: pytest.CaptureFixture[str], server: Filled, name: str) -> dict[str, Any]:
    found = json.loads(said(capsys, server, f"--gpu=GPU-{name}", "--json"))
    assert found["runs"] == []
    (gpu,) = found["gpus"]
    assert isinstance(gpu, dict)
    return gpu


def refused(capsys: pytest.CaptureFixture[str], server: Filled, *arguments: str) -> str:
    assert why.main([*arguments, f"--prometheus.url={server.address}"]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("name", GPUS)
def test_every_value_is_that_of_the_recorded_series(
    name: str, capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    found = document(capsys, server, name)
    at = found["timestamp_seconds"]
    client = Prometheus(server.address)

    def values(selector: str) -> list[float]:
        return [each.value for each in client.query(selector, at=at)]

    shares = {each["cause"]: each["time_lost_ratio"] for each in found["causes"] if each["time_lost_ratio"] is not None}
    renamed = {"stalled" if name == "waits" and cause == "lost" else cause: v for cause, v in GPUS[name].lost.items()}
    assert shares == renamed
    compared = set()
    for each in found["causes"]:
        assert [each["threshold_ratio"]] == values(f'stallscope:gpu_verdict_floor:ratio{{cause="{each["cause"]}"}}')
        for condition in each["conditions"]:
            series = condition["series"]
            recorded_values = values(f'{series}{{uuid="GPU-{name}"}}')
            if condition["count"] and series.startswith("gpu:"):
                instead = values(f'{SIGNALS[series].instead or "none"}{{uuid="GPU-{name}"}}')
                expected = instead or [at - v if SIGNALS[series].is_time else v for v in recorded_values]
                assert [condition["lowest"]] == [condition["highest"]] == expected
                compared.add(series)
    client.close()
    assert compared == (GPUS[name].values.keys() & SIGNALS.keys())


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_without_a_run_is_not_compared_with_causes_of_runs(
    name: str, capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    found = document(capsys, server, name)
    subjects = {CAUSES[each["cause"]].subject for each in found["causes"]}
    assert subjects == ({"gpu", "training"} if found["ranks"] else {"gpu"})


def test_an_idle_gpu_has_its_time_beside_the_thresholds_its_owner_and_the_remedy(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = said(capsys, server, "--gpu=0", "--instance=node1")
    assert shown.startswith("GPU 0 of node1:19400: idle_allocated since ")
    assert "  time since its last work     1 h 10 min  from 1 h: yes\n" in shown
    assert "from 8 h (interactive): no\n" in shown
    assert "  GPU busy                            0 %  under 0.1 %: yes\n" in shown
    text = squeezed(shown)
    assert CAUSES["idle_allocated"].remedy in text
    assert "It costs 100 % of its time." in text
    assert "held by ada, job 41 alerts GpuIdleAllocated (warning) hidden by it mem_zombie 0 %: costs less" in text
    assert "another verdict without it: mem_zombie from its threshold: any hardware cause" in text
    assert "\nrun " not in shown
    assert "TrainingInputBound" not in shown


def test_a_lost_gpu_has_the_reason_of_the_driver_and_the_rank_that_ended_with_it(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = of(capsys, server, "lost")
    assert "GPU 1 of node1:19400: lost since" in shown
    assert "reason gpu_lost: It fell off the bus: drain the node and reboot." in shown
    assert "run rank 1 of stopped (lost 25 %), which ended after the GPU was lost" in shown
    assert "stallscope why east/vision/stopped alerts" in shown
    assert "not measured" not in shown
    assert "alerts GpuLost (critical), GpuUnderused (muted)" in shown
    assert "no owner" not in shown
    assert "Rank 1" not in shown


def test_a_gpu_of_a_run_has_its_own_verdict_and_names_the_run(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = of(capsys, server, "hot")
    assert "time slowed by heat 97 % from 10 %: yes SM clock of the highest 70 % under 90 %: yes" in shown
    assert "GPU NVIDIA H100 80GB HBM3, GPU-hot run rank 3 of resnet50 (straggler_hw 25 %) stallscope why" in shown
    assert "hidden by it straggler_hw 27 %: the tier hardware comes before progress" in shown
    assert "not judged 6 GPU-side causes: one rank delays the others" in shown
    # Those of its rank alone.
    (clock,) = cause_of(document(capsys, server, "hot"), "straggler_hw")["conditions"]
    assert (clock["lowest"], clock["highest"]) == (0.7, 0.7)
    assert cause_of(document(capsys, server, "hot"), "stalled")["conditions"][0]["highest"] == 2.7


def test_a_gpu_that_waits_for_a_straggler_names_it_with_its_remedy(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = of(capsys, server, "peer")
    assert "Rank 3, GPU 2 of node1:19400: slowed by heat." in shown
    assert CAUSES["thermal_throttle"].remedy in shown
    assert "run rank 0 of other; rank 0 of resnet50 (straggler_hw 25 %)" in shown
    assert "stallscope why east//other east/vision/resnet50" in shown


def test_a_gpu_that_waits_for_a_lost_gpu_of_its_run_has_stopped(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = of(capsys, server, "waits")
    assert "stalled since" in shown
    assert "It costs 100 % of its time." in shown
    assert "Rank 1, GPU 1 of node1:19400: GPU lost." in shown
    assert CAUSES["lost"].remedy in shown
    assert "reason another GPU of its run is lost, and the other ranks wait" in shown
    assert "step age" not in shown
    assert "pending" not in shown
    assert "without it: lost" not in shown
    assert cause_of(document(capsys, server, "waits"), "lost")["result"] == "not_found"


def test_a_free_gpu_is_healthy_because_it_has_no_owner(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    shown = of(capsys, server, "free")
    assert "healthy since" in shown
    assert "held by no owner: no process computes on it" in shown
    assert "another verdict from its threshold on: any cause" in shown
    assert "measured" not in shown
    # Its exporter has just ended.
    assert "held by" not in of(capsys, server, "unread")


def test_a_held_gpu_is_healthy_because_it_is_busy(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    shown = said(capsys, server, "--gpu=GPU-used")
    assert "  GPU busy                           83 %  from 50 %: yes\n" in shown
    assert "missing" not in shown
    assert document(capsys, server, "used")["evidence"]["lowest"] == 0.83


def test_a_held_gpu_without_a_reason_so_far_has_what_it_takes_for_one(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = said(capsys, server, "--gpu=GPU-held")
    assert "  GPU busy                           12 %  healthy from 50 %: no\n" in shown
    text = squeezed(shown)
    assert (
        "time since its last work 10 min idle_allocated from 1 h: no from 8 h (interactive): no from 8 min (unused in "
        "Slurm): yes" in text
    )
    assert "missing it is held and mostly idle, and no rule finds the reason so far" in text
    assert "rank:missing:info" not in text


def test_a_gpu_that_was_hardly_observed_says_so_and_its_work_is_not_said_to_have_ended(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = of(capsys, server, "new")
    assert "missing it is held, and was observed for under two minutes of five" in shown
    # The rules set the last use of a busy GPU to a minute ago.
    assert "time since its last work under 2 min idle_allocated from 1 h: no" in shown


def test_the_gpu_of_an_inference_server_has_its_verdict(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    shown = of(capsys, server, "served")
    assert (
        "inference llm/qwen-0: serving_idle 100 %, 0 requests wait, 7 % of the KV cache is in use; see "
        "prometheus/serving/README.md" in shown
    )
    assert "missing" not in shown
    assert "GPU-side" not in shown
    found = document(capsys, server, "served")
    assert {each["cause"] for each in found["causes"] if each["result"] == "not_judged"} == {*NOT_SERVED}
    assert cause_of(found, "underused")["reason"] == "an inference server uses the GPU"
    (served,) = found["inference_servers"]
    assert (served["cause"], served["signals"]) == ("serving_idle", {"waiting": 0.0, "kv_used": 0.07})


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("crashed", "time since the Xid 12 min under 1 h: yes GPU GPU-crashed Xid 119: drain the node"),
        ("shared", "owners or runs on the GPU 3 from 2: yes"),
        ("zombie", "memory without a process 12.0 GiB from 512.0 MiB: yes"),
        ("replaying", "PCIe replays a minute 90.2 over the limit of its link"),
    ],
)
def test_a_fault_of_hardware_or_use_has_its_value_and_its_threshold(
    name: str, shown: str, capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    assert shown in of(capsys, server, name)


def test_an_uncorrected_error_that_the_verdict_hides_is_listed_with_its_count(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    assert "hidden by it ecc_uncorrected 0 %: costs less" in of(capsys, server, "crashed")
    assert "uncorrected memory errors 1,234 from 1: yes" in of(capsys, server, "crashed", "--all")


def test_a_gpu_that_is_down_on_purpose_has_the_reason_and_its_last_verdict(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = of(capsys, server, "released")
    assert "(released: It was released on request): this is the last one, from" in shown
    assert document(capsys, server, "released")["ended"]


def test_a_gpu_that_left_the_database_has_its_last_verdict(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    shown = of(capsys, server, "gone")
    assert "underused since" in shown
    assert "as after the end of its exporter, or once the GPU is taken out: this is the last one, from" in shown
    assert "GPU busy 40 % from 1 %: yes under 50 %: yes" in shown
    assert squeezed(said(capsys, server, f"--gpu={LABELS['gone']['gpu']}", "--instance=node1:19400")) == shown


def test_an_index_is_that_of_the_present_gpu_and_counts_once_where_two_jobs_scrape(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    assert "GPU-next" in said(capsys, server, "--gpu=0", "--instance=node3")
    assert "GPU 0 of node3:19400: healthy" in said(capsys, server, "--gpu=GPU-old")


def test_an_index_is_that_of_the_card_which_lists_the_verdicts_of_its_mig_instances(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = squeezed(said(capsys, server, "--gpu=0", "--instance=node2"))
    assert "GPU 0 of node2:19400: healthy" in shown
    assert (
        "MIG 2 instances: idle_allocated 100 %; MIG 1g.18gb (MIG-0): healthy explain one of them with --gpu UUID"
        in shown
    )


def test_a_mig_instance_is_named_by_its_uuid(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    assert said(capsys, server, "--gpu=MIG-1").startswith("GPU 0 MIG 1g.18gb of node2:19400: idle_allocated since ")
    problem = refused(capsys, server, "--gpu=7", "--instance=node2")
    assert "GPU 7: 2 GPUs or MIG instances match; name one by its UUID: MIG-7 (GPU 7 MIG 3g.71gb), MIG-8" in problem


def test_a_uuid_may_be_shortened_as_long_as_one_gpu_has_it(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    assert "GPU-zombie" in said(capsys, server, "--gpu=GPU-z")
    assert "GPU-he" not in (problem := refused(capsys, server, "--gpu=GPU-s"))
    assert (
        "GPU-s: 2 GPUs or MIG instances match; name one by its UUID: GPU-served (GPU 9), GPU-shared (GPU 12)" in problem
    )


def test_a_gpu_of_several_nodes_or_clusters_is_chosen_by_a_flag(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    problem = refused(capsys, server, "--gpu=0")
    assert "GPU 0: 3 clusters have one; choose one with --cluster: east, north, south\n" in problem
    problem = refused(capsys, server, "--gpu=0", "--cluster=east")
    assert "choose one with --instance: node1:19400, node2:19400, node3:19400\n" in problem
    assert "2 clusters have one; choose one with --cluster: north, south" in refused(capsys, server, "--gpu=GPU-twin")
    assert "GPU 0 of twin:19400: healthy" in said(capsys, server, "--gpu=GPU-twin", "--cluster=north")


def test_gpus_of_equal_names_are_shown_with_their_clusters(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    shown = said(capsys, server, "--gpu=0", "--gpu=GPU-twin", "--instance=twin", "--cluster=north")
    assert shown.count("GPU 0 of twin:19400 in cluster north: healthy") == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--gpu=99", "--instance=node2"], "GPU 99: no verdict between .*; known indices are 0, 7$"),
        (["--gpu=GPU-zombies"], r"GPU-zombies: no verdict between .*; did you mean GPU-zombie\?$"),
        (["--gpu=.*"], r"\.\*: no verdict between .*; known UUIDs are GPU-card, GPU-crashed, .* and \d+ more$"),
        (["--gpu=GPU-\x1b[31m"], r"GPU-\\x1b\[31m: no verdict between "),
        (["--gpu=0", "--instance=nod1"], r"instance nod1: none of its GPUs had .*; did you mean node1\?$"),
        (
            ["--gpu=0", "--cluster=west"],
            "GPU 0: no verdict between .*; no other GPU has one either: `stallscope doctor`",
        ),
        (["--gpu=GPU-hot", "--at=20h"], "recorded no results of Stallscope's rules in this time"),
    ],
)
def test_an_unknown_gpu_is_refused_with_what_to_do(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = refused(capsys, server, *arguments)
    assert shown.count("\n") == 1
    assert re.search(problem, shown.rstrip())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "RUN: required without --gpu; name a run, or a GPU with --gpu"),
        (["--gpu="], "argument --gpu: expected the index or the UUID of a GPU, got an empty text"),
        (["resnet50", "--instance=node1"], "--instance: requires --gpu; `stallscope top` shows all GPUs of a node"),
    ],
)
def test_a_command_line_without_a_subject_is_refused(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        why.main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"stallscope why: {problem}\n"
