"""Hosts in trouble: each alert where it must be, and not on what looks like it. Each story has a host of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.rules.rulebook import (
    LENGTH,
    RULE_FILES,
    SHARED,
    Labels,
    Rulebook,
    Story,
    exporter,
    gpu,
    growing,
    growing_until,
    host,
    node,
    rank,
    scrapes,
    series,
    steady,
    until,
)

Expected = Sequence[tuple[Labels, float]]

GIB = 2**30
FILES = tuple(path for path in RULE_FILES if path.stem in (*SHARED, "input", "hours", "host"))
"""Rules that judge hosts, and rules that find runs waiting for data."""


def host_series(instance: str, values: Mapping[str, str], **labels: str) -> Story:
    return [
        series(f"stallscope_host_{name}", each, job="stallscope", instance=instance, **labels)
        for name, each in values.items()
    ]


def memory(instance: str, used: float, *, cache: float = 0.0, waiting: float = 0.0) -> Story:
    pressure = "pressure_waiting_seconds_total"
    return (
        host_series(
            instance,
            {
                "memory_total_bytes": steady(512 * GIB),
                "memory_available_bytes": steady((1 - used) * 512 * GIB),
                "page_cache_bytes": steady(cache * 512 * GIB),
            },
        )
        + host_series(instance, {pressure: growing(waiting)}, resource="memory")
        + host(0.1, instance=instance)
    )


def network(instance: str, *, errors: float, drops: float = 0.0, received: float = 15e6) -> Story:
    return host_series(
        instance,
        {
            "network_errors_total": growing(errors),
            "network_drops_total": growing(drops),
            "network_receive_bytes_total": growing(received),
            "network_transmit_bytes_total": growing(0),
        },
        device="eth0",
    )


def shared(instance: str, used: float) -> Story:
    sizes = {"shared_memory_total_bytes": steady(64 * GIB), "shared_memory_used_bytes": steady(used * 64 * GIB)}
    return host_series(instance, sizes)


def faults(instance: str, major: float, swapped: float) -> Story:
    return host_series(instance, {"major_page_faults_total": growing(major), "swap_in_bytes_total": growing(swapped)})


def killed(instance: str) -> Story:
    """The kernel kills a process on the host in minute 48."""
    return host_series(instance, {"oom_kills_total": until(48, 2, 3)})


def reported(
    instance: str = "node1:19400", *, kills: str = "", restarts: str = "", job_class: str = "production", **states: str
) -> Story:
    """A rank of the run `train`, with the kills in its cgroup, its restarts and its states."""
    labels = {"job": "stallscope", "instance": instance, "run": "train", "rank": "0"}
    values = {"cgroup_oom_kills_total": kills, "restarts_total": restarts}
    return [
        series("stallscope_training_rank_info", steady(1), **labels, job_class=job_class),
        *(series(f"stallscope_training_{name}", each, **labels) for name, each in values.items() if each),
        *(series("stallscope_training_state", each, **labels, state=state) for state, each in states.items()),
    ]


def test_a_host_in_trouble_raises_an_alert(rulebook: Rulebook) -> None:
    stories: dict[str, tuple[Story, str]] = {
        "full": (memory("full", 0.92), "HostMemPressure"),
        "not full": (memory("not full", 0.875), ""),
        "cached": (memory("cached", 0.5, cache=0.49), ""),
        "waits": (memory("waits", 0.7, waiting=0.125), "HostMemPressure"),
        "waits a little": (memory("waits a little", 0.7, waiting=0.08), ""),
        "shared memory": (shared("shared memory", 0.9), "HostShmFull"),
        "shared memory free": (shared("shared memory free", 0.64), ""),
        "no shared memory": (host_series("no shared memory", {"shared_memory_total_bytes": steady(0)}), ""),
        "swaps": (faults("swaps", 625, 2e6), "HostSwapping"),
        "swaps a little": (faults("swaps a little", 400, 2e6), ""),
        "maps files": (faults("maps files", 5000, 0), ""),
        "errors": (network("errors", errors=125), "HostNetworkErrors"),
        "drops": (network("drops", errors=60, drops=65), "HostNetworkErrors"),
        "few errors": (network("few errors", errors=80), ""),
        "idle link": (network("idle link", errors=1, received=1e3), ""),
        "killed": (killed("killed"), "HostOomKill"),
        "killed long ago": (host_series("killed long ago", {"oom_kills_total": steady(3)}), ""),
        "cpu": (node("cpu", host(0.95)), "HostCpuSaturated"),
        "cpu left": (node("cpu left", host(0.87)), ""),
        "waits for disks": (
            host_series("waits for disks", {"cpu_seconds_total": growing(60)}, mode="iowait")
            + host_series("waits for disks", {"cpu_seconds_total": growing(4)}, mode="user"),
            "",
        ),
        "training waits": (
            node("training waits", rank(wait=0.3) + gpu(idle=0.3) + host(0.95)),
            "",
        ),
    }
    severities = {"HostOomKill": "info", "HostCpuSaturated": "info"}
    rulebook.check(
        exporter() + [each for story, _alert in stories.values() for each in story],
        {
            'count by (alertname, severity, instance) (ALERTS{alertstate="firing", alertname=~"Host.+"})': [
                ({"alertname": alert, "severity": severities.get(alert, "warning"), "instance": instance}, 1)
                for instance, (_story, alert) in stories.items()
                if alert
            ]
        },
        at="50m",
        rule_files=FILES,
    )


_INFO: Expected = [({"alertname": "HostOomKill", "severity": "info"}, 1)]
_PAGE: Expected = [({"alertname": "HostOomKill", "severity": "critical", "run": "train"}, 1)]


@pytest.mark.parametrize(
    ("story", "alerts"),
    [
        pytest.param(reported(kills="2+0x120"), _INFO, id="kills before the rank"),
        pytest.param(reported(kills=until(48, 2, 3)), _PAGE, id="a process of the rank's cgroup"),
        pytest.param(reported(kills=until(30, 2, 3)), _INFO, id="one of it long before"),
        pytest.param(reported(lost=until(48, 0, 1)), _PAGE, id="the rank is lost"),
        pytest.param(reported(failed=until(48, 0, 1)), _PAGE, id="the rank fails"),
        pytest.param(reported(lost=until(30, 0, 1)), _INFO, id="the rank was lost long before"),
        pytest.param(reported(finished=until(48, 0, 1)), _INFO, id="the rank finishes"),
        pytest.param(reported(terminated=until(48, 0, 1)), _INFO, id="the rank is cancelled"),
        pytest.param(reported(restarts=until(48, 0, 1)), _PAGE, id="the rank starts again"),
        pytest.param(reported(restarts=steady(4)), _INFO, id="the rank started again long before"),
        pytest.param(
            reported(instance="node2:19400", lost=until(48, 0, 1)), _INFO, id="a rank of another host is lost"
        ),
        pytest.param(
            reported(job_class="experiment", lost=until(48, 0, 1)),
            [({"alertname": "HostOomKill", "severity": "info", "run": "train"}, 1)],
            id="a rank of an experiment is lost",
        ),
    ],
)
def test_a_kill_is_a_page_for_the_run_that_it_harms_and_for_no_other(
    rulebook: Rulebook, story: Story, alerts: Expected
) -> None:
    query = 'count by (alertname, severity, run) (ALERTS{alertstate="firing", alertname="HostOomKill"})'
    rulebook.check(exporter() + killed("node1:19400") + story, {query: alerts}, at="50m", rule_files=FILES)


def test_ranks_that_end_without_a_kill_on_their_host_are_no_word_of_memory(rulebook: Rulebook) -> None:
    story = exporter() + host_series("node1:19400", {"oom_kills_total": steady(2)}) + reported(lost=until(48, 0, 1))
    query = 'count(ALERTS{alertname="HostOomKill"}) or count(rank:oom_kill:info)'
    rulebook.check(story, {query: []}, at="50m", rule_files=FILES)


def test_a_kill_names_the_cgroups_that_it_was_in(rulebook: Rulebook) -> None:
    by_cgroup = {"new": f"_x{scrapes(48)} 1+0x30", "again": until(48, 1, 3), "before": steady(4)}
    story = killed("node1:19400")
    for cgroup, values in by_cgroup.items():
        story += host_series("node1:19400", {"cgroup_oom_kills_total": values}, cgroup=f"/{cgroup}.slice")
    query = "count by (cgroup) (host_cgroup:oom_kills:increase10m)"
    expected: Expected = [({"cgroup": "/again.slice"}, 1), ({"cgroup": "/new.slice"}, 1)]
    rulebook.check(exporter() + story, {query: expected}, at="50m", rule_files=FILES)


def test_pressure_must_last(rulebook: Rulebook) -> None:
    story = [
        (name, f"{0.3 * 512 * GIB:g}+0x80 {0.02 * 512 * GIB:g}+0x{LENGTH - 80}" if "available" in name else values)
        for name, values in memory("node1:19400", 0.7)
    ]
    query = 'count(ALERTS{alertname="HostMemPressure", alertstate="firing"})'
    rulebook.check(exporter() + story, {query: []}, at="52m", rule_files=FILES)
    rulebook.check(exporter() + story, {query: [({}, 1)]}, at="57m", rule_files=FILES)


@pytest.mark.parametrize(
    ("story", "alerts"),
    [
        pytest.param(killed("node1:19400") + reported(lost=until(45, 0, 1)), ["HostOomKill"], id="a page for a kill"),
        pytest.param(killed("node1:19400"), ["HostMemPressure", "HostOomKill"], id="a kill that notifies no one"),
        pytest.param(faults("node1:19400", 625, 2e6), ["HostSwapping"], id="swapping"),
        pytest.param(faults("node2:19400", 625, 2e6), ["HostMemPressure", "HostSwapping"], id="another host swaps"),
    ],
)
@pytest.mark.evaluated_every(30)
def test_memory_that_is_short_is_no_incident_of_its_own_beside_its_effect(
    rulebook: Rulebook, story: Story, alerts: list[str]
) -> None:
    at_minute_45 = [(name, until(45, 2, 3) if "host_oom_kills" in name else values) for name, values in story]
    query = 'count by (alertname) (last_over_time(ALERTS{alertstate="firing", alertname=~"Host.+"}[2m]))'
    rulebook.check(
        exporter() + memory("node1:19400", 0.95) + at_minute_45,
        {query: [({"alertname": alert}, 1) for alert in alerts]},
        at="58m",
        rule_files=FILES,
    )


def test_network_errors_that_have_ended_leave_no_alert_for_an_hour(rulebook: Rulebook) -> None:
    story = network("node1:19400", errors=0)
    ended = [(name, growing_until(30, 125) if "errors" in name else values) for name, values in story]
    query = 'count(ALERTS{alertname="HostNetworkErrors", alertstate="firing"})'
    rulebook.check(exporter() + ended, {query: [({}, 1)]}, at="32m", rule_files=FILES)
    rulebook.check(exporter() + ended, {query: []}, at="48m", rule_files=FILES)
