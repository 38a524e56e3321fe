"""`stallscope why` on a real Prometheus that holds series as the rules record them."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from stallscope.common.thresholds import default_thresholds
from stallscope.lab.replay.series import Series
from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.catalogue.conditions import CONDITIONS, SIGNALS
from stallscope.model.clients.prometheus import Prometheus
from stallscope.model.view.explanation_watch import ExplanationWatch
from stallscope.model.view.verdicts import RunName
from stallscope.node.web.status.explanation import explained
from stallscope.tools.cli import why
from tests.filled_prometheus import write
from tests.prometheus_server import prometheus
from tests.web.status_page import read

SCRAPES = 41
"""One every half a minute."""
TIERS = {"hardware": 8, "progress": 6, "performance": 4, "device": 2, "use": 0, "harmless": -1}
FLOORS = {"input": 0.05, "ranks": 0.10, "time": 0.0}
BY_NAME = {"checkpoint_stall": 0.05, "evaluation_overhead": 0.10, "callback_stall": 0.05}
STARVED = {
    "rank:exposed_wait:ratio5m": 0.34,
    "host:cpu_busy:ratio1m": 0.41,
    "host:cpu_pressure:ratio1m": 0.02,
    "host:io_pressure:ratio1m": 0.01,
    "gpu_rank:host_side:info": 1,
}


class Story(NamedTuple):
    """A run of two ranks on one node as the rules record it."""

    verdict: str
    lost: dict[str, float]
    values: Mapping[str, float | tuple[float, float]] = MappingProxyType({})
    """By series; of each rank, GPU or host if there are two."""
    more: tuple[tuple[str, dict[str, str]], ...] = ()
    """Further series of rank 1 with the value 1, with their labels."""
    first: str = "insufficient_data"
    """The verdict of the first half."""
    ranks: tuple[tuple[str, str], tuple[str, str]] | None = None
    """Verdicts of each rank and its GPU; by default those of the run."""
    scrapes: int = SCRAPES
    """Scrapes until its end."""
    state: str = ""
    """State of its ranks; by default `running`, and `finished` after its end."""


RUNS = {
    "plain": Story("input_bound", {"input_bound": 0.31}, STARVED),
    "workers": Story(
        "input_few_workers",
        {"input_few_workers": 0.31, "comm_bound": 0.02},
        {**STARVED, "host:cpu_busy:ratio1m": 0.125, "rank:workers_of_cpus:ratio": (0.25, 0.5)},
        (
            ("rank_cause:input_evidence:info", {"cause": "input_few_workers"}),
            ("rank_cause:input_held:info", {"cause": "input_few_workers"}),
            ("rank_cause:input_evidence:info", {"cause": "input_disk_bound"}),
            ("rank_cause:input_held:info", {"cause": "input_disk_bound"}),
            ("rank_cause:input_evidence:info", {"cause": "input_cpu_saturated"}),
            ("ALERTS", {"alertname": "TrainingInputFewWorkers", "alertstate": "firing", "severity": "warning"}),
            ("ALERTS", {"alertname": "TrainingScalingInefficient", "alertstate": "firing", "severity": "info"}),
            ("ALERTS", {"alertname": "TrainingCommBound", "alertstate": "pending", "severity": "warning"}),
        ),
        "input_bound",
    ),
    "fine": Story("healthy", {"input_bound": 0.021}, {"gpu:sm_active:ratio5m": (0.8, 0.9)}),
    "young": Story("insufficient_data", {}, {}, (("rank:missing:info", {"missing": "warmup"}),)),
    "uneven": Story(
        "straggler_hw",
        {"straggler_hw": 0.23},
        {"run_rank:clock_of_peers:ratio5m": 0.76, "gpu_rank:host_side:info": 1, "run_rank:straggler:ratio5m": 0.23},
        (("run:culprit:info", {"rank": "1", "instance": "uneven0:19400", "gpu": "1", "cause": "thermal_throttle"}),),
        ranks=(("straggler_hw", "straggler_hw"), ("thermal_throttle", "thermal_throttle")),
    ),
    "hung": Story(
        "hang_spin",
        {"hang_spin": 1.0},
        {"rank:step_lateness:ratio": 3.2, "gpu:busy_in_stall:ratio1m": 1.0},
        (("rank:missing:info", {"missing": "late_step"}), ("rank:missing:info", {"missing": "standstill"})),
        "healthy",
    ),
    "saving": Story(
        "checkpoint_stall",
        {"checkpoint_stall": 0.27, "evaluation_overhead": 0.12, "low_mfu": 0.0, "callback_stall": 0.03},
    ),
    "ended": Story("checkpoint_stall", {"checkpoint_stall": 0.27}, scrapes=21),
    "silent": Story("checkpoint_stall", {"checkpoint_stall": 0.27}, scrapes=21, state="running"),
    "full": Story(
        "input_bound",
        {"input_bound": 0.31, "comm_bound": 0.04, "uneven_work": 0.02},
        {
            **STARVED,
            "host:cpu_busy:ratio1m": 0.05,
            "host:network_data:ratio1m": 0.001,
            "rank:cpu_of_limit:ratio5m": 0.01,
            "rank:workers_of_cpus:ratio": 0.25,
            "rank:cpu:cores5m": (0.87, 0.88),
        },
        (
            ("rank_cause:input_evidence:info", {"cause": "input_few_workers"}),
            ("ALERTS", {"alertname": "TrainingInputBound", "alertstate": "firing", "severity": "warning"}),
        ),
    ),
    "close": Story(
        "checkpoint_stall",
        {"checkpoint_stall": 0.27, "evaluation_overhead": 0.30, "callback_stall": 0.0498, "comm_bound": 0.36},
        more=(("rank:missing:info", {"missing": "warmup"}),),
    ),
    "overtaken": Story(
        "straggler_hw", {"straggler_rank": 0.04, "ecc_uncorrected": 0.0}, {"run_rank:clock_of_peers:ratio5m": 0.8962}
    ),
    "fresh": Story(
        "small_batch",
        {"small_batch": 0.4},
        {
            "gpu:sm_active:ratio5m": 0.61,
            "gpu:early_sm_active:ratio": (0.21, 0.22),
            "gpu:busy:ratio5m": 0.3,
            "gpu:early_idle:ratio": (0.04, 0.05),
            "gpu:power_of_limit:ratio5m": 0.33,
        },
    ),
    "talking": Story(
        "healthy",
        {"comm_bound": 0.06},
        {"gpu_rank:host_side:info": 1, "run_rank:communication:ratio5m": 0.14, "run_rank:collectives:ratio5m": 0.2},
    ),
    "begun": Story("healthy", {}, {"gpu_rank:host_side:info": 1, "run_rank:communication:ratio5m": 0.08}),
    "held": Story(
        "input_few_workers",
        {"input_few_workers": 0.31},
        {**STARVED, "host:cpu_busy:ratio1m": 0.63, "rank:workers_of_cpus:ratio": 0.25},
        (("rank_cause:input_held:info", {"cause": "input_few_workers"}),),
    ),
    "odd": Story("\x1b[31mred", {}),
}


def recorded(run: str, story: Story, cluster: str = "east") -> Iterator[Series]:
    """Yield the series of a run."""
    of = {"cluster": cluster, "namespace": "vision", "run": run}
    node = {"cluster": cluster, "job": "stallscope", "instance": f"{run}0:19400"}

    def during(value: float, first: int = 0) -> list[float | None]:
        return [*[None] * first, *[float(value)] * (story.scrapes - first), *[None] * (SCRAPES - story.scrapes)]

    half = story.scrapes // 2
    lost = story.lost.get(story.verdict, 0.0)
    yield Series("run:verdict:ratio5m", {**of, "cause": story.verdict}, during(lost, half))
    if story.first:
        begun = [0.0 if number < half else None for number in range(SCRAPES)]
        yield Series("run:verdict:ratio5m", {**of, "cause": story.first}, begun)
    yield Series("run:time_lost:ratio5m", of, during(sum(story.lost.values())))
    yield Series("run:ranks:count", of, during(2))
    for cause, share in story.lost.items():
        yield Series("run_cause:time_lost:ratio5m", {**of, "cause": cause}, during(share))
    for number in (0, 1):
        rank = {**of, **node, "rank": str(number)}
        gpu = {**node, "gpu": str(number), "uuid": f"GPU-{run}-{number}"}
        of_rank, of_gpu = story.ranks[number] if story.ranks is not None else (story.verdict, story.verdict)
        yield Series("stallscope_training_rank_info", {**rank, "world_size": "2"}, during(1))
        state = story.state or ("running" if story.scrapes == SCRAPES else "finished")
        yield Series("stallscope_training_state", {**rank, "state": state}, during(1))
        yield Series("rank:live:info", rank, during(1))
        yield Series("rank_gpu:claim:info", {**rank, **gpu}, during(1))
        yield Series("rank:verdict:ratio5m", {**of, "rank": str(number), "cause": of_rank}, during(lost))
        yield Series("gpu:verdict:ratio5m", {**gpu, "cause": of_gpu}, during(lost + number / 100))
        for name, value in story.values.items():
            labels = {"gpu": gpu, "hos": node, "run": of}.get(name[:3], rank)
            labels = {**rank, **gpu} if name.startswith("gpu_rank") else labels
            labels = {**of, "rank": str(number)} if name.startswith("run_rank:co") else labels
            if number == 0 or labels not in (node, of):
                yield Series(name, labels, during(value[number] if isinstance(value, tuple) else value))
        if story.verdict == "insufficient_data":
            yield Series("rank:unsettled:info", rank, during(1))
    for name, labels in story.more:
        yield Series(name, {**of, **node, "rank": "1", **labels} if name != "ALERTS" else {**of, **labels}, during(1))


def constants() -> Iterator[Series]:
    """Yield thresholds, floors and weights."""
    for name, value in default_thresholds().items():
        yield Series("stallscope:threshold", {"name": name}, [value] * SCRAPES)
    for tier, weight in TIERS.items():
        yield Series("stallscope:verdict_tier:weight", {"tier": tier}, [float(weight)] * SCRAPES)
    for cause in CAUSES.values():
        if cause.tier is not None:
            floor = BY_NAME.get(cause.name, FLOORS.get(cause.domain, 0.0))
            labels = {"cause": cause.name, "tier": cause.tier}
            yield Series("stallscope:verdict_floor:ratio", labels, [floor] * SCRAPES)


class Filled(NamedTuple):
    """The server, and the time of its last samples."""

    address: str
    end: float


@contextmanager
def filled(everything: Sequence[Series]) -> Iterator[Filled]:
    """A server with these series up to the last whole minute."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    with prometheus() as running:
        end = 60.0 * math.floor(time.time() / 60)
        write([running.port], everything, end - 30 * (SCRAPES - 1), SCRAPES)
        yield Filled(running.address, end)


@pytest.fixture(scope="module")
def server() -> Iterator[Filled]:
    everything = [*constants(), *(each for run, story in RUNS.items() for each in recorded(run, story))]
    everything += (each for cluster in ("north", "south") for each in recorded("twin", RUNS["fine"], cluster))
    with filled(everything) as found:
        yield found


def said(capsys: pytest.CaptureFixture[str], server: Filled, *arguments: str) -> str:
    assert why.main([*arguments, f"--prometheus.url={server.address}", f"--at={server.end:.0f}"]) == 0
    shown = capsys.readouterr().out
    assert "--json" in arguments or [line for line in shown.splitlines() if len(line) > 80] == []
    return shown


def document(capsys: pytest.CaptureFixture[str], server: Filled, run: str) -> dict[str, Any]:
    (found,) = json.loads(said(capsys, server, run, "--json"))["runs"]
    assert isinstance(found, dict)
    return found


def cause_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in found["causes"] if each["cause"] == name)


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("run", RUNS)
def test_every_value_is_that_of_the_recorded_series(
    run: str, capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    found = document(capsys, server, run)
    client = Prometheus(server.address)

    def values(selector: str) -> list[float]:
        return [each.value for each in client.query(selector, at=found["timestamp_seconds"])]

    lost = {
        each.labels["cause"]: each.value
        for each in client.query(f'run_cause:time_lost:ratio5m{{run="{run}"}}', at=found["timestamp_seconds"])
    }
    assert {
        each["cause"]: each["time_lost_ratio"] for each in found["causes"] if each["time_lost_ratio"] is not None
    } == lost
    compared = 0
    for each in found["causes"]:
        assert [each["threshold_ratio"]] == values(f'stallscope:verdict_floor:ratio{{cause="{each["cause"]}"}}')
        for condition in each["conditions"]:
            own = f'{{instance="{run}0:19400"}}' if condition["series"][:4] in ("host", "gpu:") else f'{{run="{run}"}}'
            signal = SIGNALS[condition["series"]]
            instead = values(f"{signal.instead}{own}") if signal.instead else []
            recorded_values = ([1 - each for each in instead] if signal.complement else instead) or values(
                f"{condition['series']}{own}"
            )
            assert condition["count"] == len(recorded_values)
            if recorded_values:
                assert (condition["lowest"], condition["highest"]) == (min(recorded_values), max(recorded_values))
                compared += 1
            if condition["threshold_name"]:
                named = f'stallscope:threshold{{name="{condition["threshold_name"]}"}}'
                assert [condition["threshold"]] == values(named)
    client.close()
    read = {each.series for conditions in CONDITIONS.values() for each in conditions}
    assert (compared > 0) == bool(read & RUNS[run].values.keys())


def test_a_general_cause_has_the_values_beside_the_thresholds_of_its_reasons(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = said(capsys, server, "plain")
    assert shown.startswith("run plain: input_bound since ")
    assert "(10 min; before it insufficient_data)" in squeezed(shown)
    assert "  time lost to it                    31 %  from 5 %, alert from 10 %\n" in shown
    assert "  CPUs of the host busy              41 %  input_cpu_saturated from 90 %: no\n" in shown
    assert "  loader workers per CPU                -  input_few_workers under 0.7\n" in shown
    assert "yes" not in shown
    assert "not judged       6 GPU-side causes: waiting for data takes 34 % (from 5 %)\n" in shown
    assert "below 4 %: healthy or a GPU-side cause\n" in shown
    assert "from 39 %: another performance cause\n" in shown
    assert "from its threshold: any hardware or progress cause\n" in shown
    assert shown.count("\n") <= 20
    assert "\nranks" not in shown
    assert "\nGPUs" not in shown


def test_a_reason_has_its_own_conditions_and_the_cause_without_them(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = said(capsys, server, "workers")
    assert "  loader workers per CPU      0.25 to 0.5  under 0.7: yes\n" in shown
    assert "  CPUs of the host busy              12 %  under 60 %: yes\n" in shown
    assert "without its conditions: input_bound\n" in shown
    assert "input_cpu_saturated from" not in shown


def test_evidence_of_another_reason_is_hidden_or_too_young(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    found = document(capsys, server, "workers")
    hidden, young, absent = (
        cause_of(found, f"input_{name}") for name in ("disk_bound", "cpu_saturated", "single_thread")
    )
    assert hidden["result"] == "hidden"
    assert hidden["reason"] == "its conditions hold, but input_few_workers comes first"
    assert young["result"] == "evidence"
    assert young["reason"] == "its conditions hold, but not yet for long"
    assert (absent["result"], absent["reason"], absent["time_lost_ratio"]) == ("not_found", None, None)


def test_alerts_that_fire_and_those_that_the_alert_on_the_verdict_mutes(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    assert "alerts TrainingInputFewWorkers (warning), TrainingScalingInefficient (muted)" in squeezed(
        said(capsys, server, "workers")
    )


def test_a_healthy_run_has_what_it_loses_below_the_threshold(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = said(capsys, server, "fine")
    assert "too small        input_bound 2 %: from 5 %\n" in shown
    assert "hidden by it" not in shown
    assert "not judged" not in shown
    assert document(capsys, server, "fine")["following_verdict"] is None


def test_a_run_without_verdict_has_the_reason(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    shown = squeezed(said(capsys, server, "young"))
    assert "run young: insufficient_data since" in shown
    assert "missing warmup (1 of 2 ranks): A run has no verdict in its first minutes: most causes" in shown
    assert "another verdict" not in shown


def test_a_signal_that_is_missing_is_named_with_the_causes_that_read_it(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    series = {each["series"]: each["causes"] for each in document(capsys, server, "plain")["not_measured"]}
    assert series["gpu:sm_active:ratio5m"] == ["small_batch", "launch_bound", "tensor_cores_unused"]
    assert "host:cpu_busy:ratio1m" not in series
    assert "gpu:sm_active:ratio5m" not in {each["series"] for each in document(capsys, server, "fine")["not_measured"]}
    assert (
        "to measure SMs active, for small_batch, launch_bound, tensor_cores_unused: needs GPM or DCGM's profiling"
        in squeezed(said(capsys, server, "plain", "--all"))
    )


def test_ranks_and_gpus_with_other_verdicts_are_listed_worst_first(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = squeezed(said(capsys, server, "uneven"))
    assert "ranks rank 0: straggler_hw 23 %; rank 1: thermal_throttle 23 %" in shown
    assert "GPUs GPU 1 of uneven0:19400: thermal_throttle 24 %; GPU 0 of uneven0:19400: straggler_hw 23 %" in shown
    assert "Rank 1, GPU 1 of uneven0:19400: slowed by heat." in shown
    assert "its SM clock of its peers' 76 % under 90 %: yes" in shown
    assert "not judged 6 GPU-side causes: one rank delays the others" in shown
    assert "without its conditions: straggler_rank" in shown


def test_a_hang_has_the_age_of_the_step_and_what_is_not_judged_meanwhile(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = said(capsys, server, "hung")
    assert "before it healthy)" in squeezed(shown)
    assert "  GPU busy in the standstill        100 %  from 95 %: yes\n" in shown
    assert "missing late_step, standstill: most causes of slow progress are not judged" in squeezed(shown)
    assert "without its conditions: stalled" in shown
    assert cause_of(document(capsys, server, "hung"), "stalled")["conditions"][0]["highest"] == 3.2


def test_a_cause_is_hidden_by_its_cost_or_by_its_tier(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    shown = squeezed(said(capsys, server, "saving"))
    assert "hidden by it evaluation_overhead 12 %: costs less" in shown
    assert "low_mfu 0 %: the tier performance comes before device" in shown
    assert "too small callback_stall 3 %: from 5 %" in shown
    assert "below 4 %: evaluation_overhead" in shown
    order = [each["cause"] for each in document(capsys, server, "saving")["causes"]]
    assert order[:4] == ["checkpoint_stall", "evaluation_overhead", "low_mfu", "callback_stall"]


def test_a_run_that_has_ended_has_its_last_verdict(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    shown = squeezed(said(capsys, server, "ended"))
    assert "checkpoint_stall since" in shown
    assert "(5 min; before it insufficient_data) The rules recorded no verdict at" in shown
    assert "UTC (2 ranks finished): this is the last one, from" in shown
    found = document(capsys, server, "ended")
    assert (found["ended"], found["timestamp_seconds"]) == (True, server.end - 600)
    assert cause_of(found, "checkpoint_stall")["time_lost_ratio"] == 0.27


def test_a_verdict_that_ends_while_the_ranks_run_may_have_ended_with_the_exporter(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    assert why.main(["silent", f"--prometheus.url={server.address}", f"--at={server.end - 250:.0f}"]) == 0
    shown = squeezed(capsys.readouterr().out)
    assert "as after the end of a run or of its exporter: this is the last one, from" in shown


@pytest.mark.parametrize("after", [1, 60, 299])
def test_a_run_whose_last_verdict_has_just_expired_has_it(
    after: int, capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    expired = server.end - 600 + 300 + after
    assert why.main(["ended", f"--prometheus.url={server.address}", f"--at={expired:.0f}"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("run ended: checkpoint_stall since ")
    assert "It costs 27 %" in shown


def test_a_time_in_the_future_is_refused_with_the_time_of_the_server(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    assert why.main(["plain", f"--prometheus.url={server.address}", f"--at={time.time() + 3600:.0f}"]) == 1
    assert re.search(r"--at: \S+ \S+ UTC is in the future; choose a time until .* UTC\n", capsys.readouterr().err)


def test_the_start_of_a_verdict_is_the_same_whenever_it_is_requested(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    found = set()
    for before in (0, 7, 29):
        at = server.end - before
        assert why.main(["plain", f"--prometheus.url={server.address}", f"--at={at:.0f}", "--json"]) == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        found.add(run["verdict"]["since_timestamp_seconds"])
    assert found == {server.end - 600}


def test_the_fullest_verdict_on_input_is_readable_in_twenty_lines(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = said(capsys, server, "full")
    assert shown.count("\n") <= 20
    for cause in ("cpu_saturated", "single_thread", "too_many_workers", "disk_bound", "network_bound"):
        assert len(re.findall(f"input_{cause} from .*: no\n", shown)) == 1
    assert "pending          input_few_workers: its conditions hold, but not yet for long\n" in shown
    assert "too small        comm_bound 4 %: from 10 %; uneven_work 2 %: from 10 %\n" in shown


def test_a_cause_that_costs_more_than_the_verdict_is_not_said_to_cost_less(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = squeezed(said(capsys, server, "close"))
    assert "hidden by it evaluation_overhead 30 %: costs under 34 %" in shown
    assert "pending comm_bound 36 %: found since the verdict was recorded" in shown
    assert "missing warmup: some causes are not judged meanwhile" in shown
    shown = squeezed(said(capsys, server, "overtaken"))
    assert "pending ecc_uncorrected 0 %: found since the verdict was recorded" in shown
    assert "costs less" not in shown


def test_a_value_has_the_digits_that_distinguish_it_from_its_threshold(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    assert "callback_stall 4.98 %: from 5 %" in said(capsys, server, "close")
    assert "its SM clock of its peers'       89.6 %  under 90 %: yes\n" in said(capsys, server, "overtaken")


def test_the_gpu_of_a_young_run_has_the_values_since_its_steps_count(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = said(capsys, server, "fresh", "--all")
    assert "  SMs active                   21 to 22 %  under 50 %: yes\n" in shown
    busy = cause_of(document(capsys, server, "fresh"), "launch_bound")["conditions"][1]
    assert (busy["lowest"], busy["highest"]) == (0.95, 0.96)


def test_communication_is_the_reason_only_where_it_takes_long(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    assert "GPU-side causes: communication takes 14 % (from 10 %)\n" in said(capsys, server, "talking")
    assert "GPU-side causes: too little of the last minutes is known\n" in said(capsys, server, "begun")


def test_a_signal_of_a_run_without_a_verdict_has_no_value_yet(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = said(capsys, server, "young")
    assert "\nno value yet     CPUs of the host busy," in shown
    assert "not measured" not in shown


def test_the_time_lost_is_that_of_the_verdict_though_it_has_changed_since(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = said(capsys, server, "overtaken")
    assert "  time lost to it                     0 %  from 10 %" in shown


def test_a_verdict_that_is_held_though_its_conditions_hold_no_longer_says_so(
    capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    shown = said(capsys, server, "held")
    assert "  CPUs of the host busy              63 %  under 60 %: no\n" in shown
    assert "held             its conditions hold no longer, but no other cause's have held" in shown
    assert "\nheld " not in said(capsys, server, "workers")


def test_an_unknown_cause_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    shown = said(capsys, server, "odd")
    assert "\x1b" not in shown
    assert "\\x1b[31mred." in shown


def test_an_earlier_time_has_the_verdict_of_that_time(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    arguments = ["workers", f"--prometheus.url={server.address}", f"--at={server.end - 900:.0f}"]
    assert why.main(arguments) == 0
    assert capsys.readouterr().out.startswith("run workers: input_bound since ")


def test_several_runs_and_all_causes(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    shown = said(capsys, server, "plain", "vision/fine", "--all")
    assert [line.split(":")[0] for line in shown.splitlines() if line.startswith("run ")] == ["run plain", "run fine"]
    for cause in CAUSES.values():
        assert shown.count(f"\n{cause.name} ") == (0 if cause.tier is None else 2), cause.name


def test_runs_of_the_same_name_are_shown_with_their_places(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    shown = said(capsys, server, "north/vision/twin", "south/vision/twin", "fine")
    heads = [line.split(":")[0] for line in shown.splitlines() if line.startswith("run ")]
    assert heads == ["run north/vision/twin", "run south/vision/twin", "run fine"]


def test_an_unknown_run_is_refused_with_similar_names(capsys: pytest.CaptureFixture[str], server: Filled) -> None:
    address = f"--prometheus.url={server.address}"
    assert why.main(["plane", address]) == 1
    assert "did you mean plain?" in capsys.readouterr().err
    assert why.main(["plain", address, "--at=20h"]) == 1
    assert "try another time (--at)" in capsys.readouterr().err


@pytest.mark.parametrize("run", ["plain", "workers", "uneven", "hung", "young"])
def test_the_status_page_has_the_values_and_notes_of_the_command(
    run: str, capsys: pytest.CaptureFixture[str], server: Filled
) -> None:
    name = RunName(run, "vision")
    watch = ExplanationWatch(Prometheus(server.address))
    assert (
        explained(name, RUNS[name.run].verdict, watch.look([name]))
        == '<p class="quiet">Querying the reasons of the verdict.</p>'
    )
    watch.poll()
    found = watch.look([name])
    assert found.problem == ""
    page = read(f"<main>{explained(name, RUNS[run].verdict, found)}</main>".encode())
    text = squeezed(said(capsys, server, run))
    assert page.one("p").text.removeprefix("Why: ").split(" (")[0].rstrip(".") in text
    for row in page.all("tr")[1:]:
        cells = [cell.text for cell in [*row.all("th"), *row.all("td")]]
        assert " ".join(cells[:2]) in text
    titles = [each.one("dt").text for each in page.all("div")]
    assert titles
    for title in titles:
        assert title[0].lower() + title[1:] in text or title in text


def test_the_status_page_shows_no_explanation_of_another_verdict_and_the_age_of_an_old_one(server: Filled) -> None:
    name = RunName("plain", "vision")
    watch = ExplanationWatch(Prometheus(server.address))
    watch.look([name])
    watch.poll()
    found = watch.look([name])
    waiting = '<p class="quiet">Querying the reasons of the verdict.</p>'
    assert explained(name, "insufficient_data", found) == waiting
    late = found._replace(age=75.0, problem="prometheus: no answer within 5 s")
    shown = explained(name, "input_bound", late)
    assert "input_bound since" in shown
    assert "As of 1 min 15 s ago: <bdi>prometheus: no answer within 5 s</bdi>." in shown
    assert "As of" not in explained(name, "input_bound", found)
    assert "No explanation: <bdi>prometheus: no answer" in explained(name, "insufficient_data", late)


def test_the_status_page_explains_no_run_of_another_name_or_that_has_ended(server: Filled) -> None:
    names = [RunName("ended", "vision"), RunName("plain", "speech"), RunName("nothing", "")]
    watch = ExplanationWatch(Prometheus(server.address))
    watch.look(names)
    watch.poll()
    found = watch.look(names)
    assert found.problem == ""
    assert not found.runs
    assert "<code>stallscope why ended</code>" in explained(names[0], "checkpoint_stall", found)


def test_an_explanation_that_is_too_long_names_the_command(server: Filled) -> None:
    name = RunName("plain", "vision")
    watch = ExplanationWatch(Prometheus(server.address, max_bytes=1000))
    watch.look([name])
    watch.poll()
    shown = explained(name, RUNS[name.run].verdict, watch.look([name]))
    assert "1,000 bytes" in shown or "1000 bytes" in shown
    assert "<code>stallscope why plain</code> may have it" in shown
