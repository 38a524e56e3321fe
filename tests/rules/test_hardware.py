"""The health of GPUs: each cause where it must be, and not on what looks like it. Each story has a node of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.rules.rulebook import (
    CLOCK,
    INTERVAL,
    LENGTH,
    RULE_FILES,
    SHARED,
    TARGET,
    Labels,
    Rulebook,
    Story,
    exporter,
    gpu,
    gpu_signal,
    growing,
    growing_until,
    node,
    rank,
    scrapes,
    series,
    steady,
    until,
)

FILES = tuple(
    path
    for path in RULE_FILES
    if path.stem in (*SHARED, "input", "limits", "hardware", "xid", "hours", "verdicts", "gpu_hardware")
)
"""Rules that judge the health of GPUs."""
XID = "xid_last_timestamp_seconds"


def first_at(minute: float, value: float) -> str:
    """A series that begins late."""
    return f"_x{scrapes(minute)} {value:.10g}+0x{LENGTH - scrapes(minute)}"


def throttled(**shares: float) -> Story:
    return gpu(throttled={"hw_thermal": 0.0, "sw_thermal": 0.0, **shares}, clock=0.6)


def pcie(
    width: int, generation: int, *, most: tuple[int, int] = (16, 4), index: int = 0, replays: float = 0.0
) -> list[tuple[str, str, int, dict[str, str]]]:
    return [
        gpu_signal("pcie_link_width", steady(width), index),
        gpu_signal("pcie_link_width_max", steady(most[0]), index),
        gpu_signal("pcie_link_generation", steady(generation), index),
        gpu_signal("pcie_link_generation_max", steady(most[1]), index),
        gpu_signal("pcie_replays_total", growing(replays / 60), index),
    ]


def links(active: str, index: int = 0) -> list[tuple[str, str, int, dict[str, str]]]:
    return [gpu_signal("nvlink_links", steady(18), index), gpu_signal("nvlink_links_active", active, index)]


def model(name: str, index: int = 0) -> tuple[str, str, int, dict[str, str]]:
    return gpu_signal("info", steady(1), index, model=name, sharing="exclusive")


def test_throttling_is_a_cause_by_its_reason_and_from_its_share_on(rulebook: Rulebook) -> None:
    rulebook.check_nodes(
        {
            "heat": (node("heat", throttled(hw_thermal=0.125)), "thermal_throttle"),
            "little heat": (node("little heat", throttled(hw_thermal=0.08)), ""),
            "driver": (node("driver", throttled(sw_thermal=0.125)), "thermal_throttle"),
            "brake": (node("brake", throttled(power_brake=0.0125)), "power_brake"),
            "flash": (node("flash", throttled(power_brake=0.008)), ""),
            "slowdown": (node("slowdown", throttled(hw_slowdown=0.0125)), "power_brake"),
            "slowdown by heat": (
                node("slowdown by heat", throttled(hw_slowdown=0.35, hw_thermal=0.3)),
                "thermal_throttle",
            ),
            "cap": (node("cap", throttled(power_cap=0.9)), ""),
            "sync": (node("sync", throttled(sync_boost=0.9)), ""),
        },
        rule_files=FILES,
    )


def test_heat_is_the_verdict_until_a_minute_after_its_end_and_stays_where_it_comes_back(rulebook: Rulebook) -> None:
    until_14 = growing_until(14)
    again = f"{growing_until(13).split()[0]} {60 * 13}+0x1 {60 * 13 + INTERVAL}+{INTERVAL}x{LENGTH - scrapes(14)}"
    rulebook.check_nodes(
        {
            name: (
                node(name, gpu(clock=0.6), gpu_signal("throttled_seconds_total", values, reason="hw_thermal")),
                cause,
            )
            for name, values, cause in (("cool", until_14, ""), ("hot", again, "thermal_throttle"))
        },
        at="16m",
        rule_files=FILES,
    )


def test_the_share_lost_by_the_brake_is_its_time_times_the_clocks_loss(rulebook: Rulebook) -> None:
    story = node("a", throttled(power_brake=0.5)) + node("b", gpu(throttled={"power_brake": 0.5}, clock=None))
    rulebook.check_percent(
        story,
        'gpu_cause:time_lost:ratio5m{cause="power_brake"}',
        [({"instance": "a"}, 20), ({"instance": "b"}, 25)],
        by="instance",
        rule_files=FILES,
    )


def test_a_gpu_is_lost_unless_its_rank_makes_steps_while_the_driver_says_nothing(rulebook: Rulebook) -> None:
    def silent(instance: str, last_step: str, last_word: str) -> Story:
        source = series(
            "stallscope_exporter_source_last_success_timestamp_seconds", last_word, source="nvidia", **TARGET
        )
        return node(instance, rank(run=instance, last_step=last_step) + gpu(up=until(10), idle=None) + [source])

    rulebook.check_nodes(
        {
            "steps go on": (silent("steps go on", CLOCK, growing_until(10)), "insufficient_data"),
            "one of many is gone": (silent("one of many is gone", growing_until(10), CLOCK), "lost"),
            "steps end with it": (silent("steps end with it", growing_until(10), growing_until(10)), "lost"),
            "no training": (node("no training", gpu(up=until(10), idle=None)), "lost"),
        },
        rule_files=FILES,
    )


def test_a_gpu_is_lost_also_where_prometheus_has_just_begun_to_add_other_labels(rulebook: Rulebook) -> None:
    """Prometheus was restarted: it marks no series as ended, and finds the last values for five minutes."""
    nodes = {}
    for name, uuid in (("with a UUID", "GPU-0"), ("without", "")):
        before = node(name, gpu(up=f"1+0x{scrapes(16) - 1}", idle=None, uuid=uuid))
        labels = {"job": "stallscope", "instance": name, "gpu": "0", "uuid": uuid, "cluster_name": "new"}
        up = f"_x{scrapes(16)} 1+0x{scrapes(2) - 1} 0+0x{LENGTH}"
        nodes[name] = ([*before, series("stallscope_gpu_up", up, **labels)], "lost")
    rulebook.check_nodes(nodes, at="18m")


def test_an_xid_counts_for_an_hour_from_its_first_event_on_by_its_class(rulebook: Rulebook) -> None:
    def event(instance: str, code: str, minute: float = 10) -> Story:
        return node(instance, gpu(), gpu_signal(XID, first_at(minute, 60 * minute), xid=code))

    nodes = {
        "off the bus": (event("off the bus", "79"), "xid_hw"),
        "firmware": (event("firmware", "119"), "xid_hw"),
        "application": (event("application", "31"), ""),
        "informs": (event("informs", "63"), ""),
        "unknown": (event("unknown", "999"), ""),
        "exporter restarted": (
            node("exporter restarted", gpu(), gpu_signal(XID, f"_x20 600+0x4 _x{LENGTH - 25}", xid="79")),
            "xid_hw",
        ),
        "long ago": (node("long ago", gpu(), gpu_signal(XID, steady(-3000), xid="79")), ""),
        "both": (
            node(
                "both",
                gpu(),
                gpu_signal(XID, first_at(10, 600), xid="79"),
                gpu_signal(XID, first_at(11, 660), xid="31"),
            ),
            "xid_hw",
        ),
    }
    rulebook.check_nodes(nodes, rule_files=FILES)
    rulebook.check_nodes_firing(
        {
            "off the bus": (nodes["off the bus"][0], [{"alertname": "GpuXidHw", "severity": "critical"}]),
            "application": (nodes["application"][0], [{"alertname": "GpuXidApp", "severity": "info"}]),
            "unknown": (nodes["unknown"][0], [{"alertname": "GpuXidApp", "severity": "info"}]),
            "informs": (nodes["informs"][0], []),
        },
        at="20m",
        rule_files=FILES,
    )


def test_a_gpu_that_was_lost_and_is_back_is_not_reported_again_for_the_xid_of_its_loss(rulebook: Rulebook) -> None:
    away = f"1+0x{scrapes(10)} 0+0x{scrapes(10)} 1+0x{LENGTH - scrapes(20)}"

    def story(instance: str, up: str, **minutes: float) -> Story:
        events = [gpu_signal(XID, first_at(at, 60 * at), xid=code.removeprefix("xid")) for code, at in minutes.items()]
        return node(instance, gpu(up=up), *events)

    hardware = {"alertname": "GpuXidHw", "severity": "critical"}
    rulebook.check_nodes_firing(
        {
            "as before": (story("as before", away, xid79=10), []),
            "fails again": (story("fails again", away, xid79=10, xid119=25), [hardware]),
            "never lost": (story("never lost", steady(1), xid79=10), [hardware]),
        },
        at="30m",
        rule_files=FILES,
    )


def test_a_run_knows_of_a_critical_fault_of_its_gpu_and_goes_on_where_it_can_wait(rulebook: Rulebook) -> None:
    story = node("a", rank(run="hit") + gpu(), gpu_signal(XID, first_at(10, 600), xid="79"))
    story += node("b", rank(run="waits") + gpu(), gpu_signal("row_remap_pending", steady(1)))
    rulebook.check_percent(
        story,
        "run:verdict:ratio5m",
        [({"run": "hit", "cause": "xid_hw"}, 0), ({"run": "waits", "cause": "healthy"}, 0)],
        rule_files=FILES,
    )
    rulebook.check_percent(
        story,
        "gpu:verdict:ratio5m",
        [({"cause": "xid_hw"}, 0), ({"cause": "row_remap_pending"}, 0)],
        by="cause",
        rule_files=FILES,
    )
    rulebook.check(
        story,
        {
            "count by (run, rank, gpu, instance, cause) (run:culprit:info)": [
                ({"run": "hit", "rank": "0", "gpu": "0", "instance": "a", "cause": "xid_hw"}, 1)
            ]
        },
        rule_files=FILES,
    )


def test_memory_errors_count_until_the_gpu_is_reset(rulebook: Rulebook) -> None:
    ecc = "ecc_errors_total"
    nodes = {
        "from the start": (
            node("from the start", gpu(), gpu_signal(ecc, steady(2), kind="uncorrected")),
            "ecc_uncorrected",
        ),
        "first": (node("first", gpu(), gpu_signal(ecc, until(19, 0, 1), kind="uncorrected")), "ecc_uncorrected"),
        "reset": (node("reset", gpu(), gpu_signal(ecc, until(15, 3, 0), kind="uncorrected")), ""),
        "corrected": (node("corrected", gpu(), gpu_signal(ecc, growing(5), kind="corrected")), ""),
        "none": (node("none", gpu(), gpu_signal(ecc, steady(0), kind="uncorrected")), ""),
        "pending": (node("pending", gpu(), gpu_signal("row_remap_pending", steady(1))), "row_remap_pending"),
        "failed": (node("failed", gpu(), gpu_signal("row_remap_failed", steady(1))), "row_remap_failed"),
        "neither": (
            node(
                "neither", gpu(), gpu_signal("row_remap_failed", steady(0)), gpu_signal("row_remap_pending", steady(0))
            ),
            "",
        ),
    }
    rulebook.check_nodes(nodes, rule_files=FILES)
    critical, warning = {"severity": "critical"}, {"severity": "warning"}
    expected: dict[str, list[dict[str, str]]] = {
        "from the start": [{"alertname": "GpuEccUncorrected", **critical}],
        "pending": [{"alertname": "GpuRowRemapPending", **warning}],
        "failed": [{"alertname": "GpuRowRemapFailed", **critical}],
    }
    rulebook.check_nodes_firing(
        {name: (story, expected.get(name, [])) for name, (story, _cause) in nodes.items() if name != "first"},
        rule_files=FILES,
    )


def test_a_pcie_link_is_judged_by_its_width_and_under_load_by_its_generation(rulebook: Rulebook) -> None:
    two = gpu(0) + gpu(1)
    nodes = {
        "narrow": (node("narrow", gpu(), *pcie(8, 4)), "pcie_degraded"),
        "full": (node("full", gpu(), *pcie(16, 4)), ""),
        "slow": (node("slow", gpu(), *pcie(16, 1)), "pcie_degraded"),
        "idle": (node("idle", gpu(busy=0.1, held=False), *pcie(16, 1)), ""),
        "laptop": (node("laptop", gpu(), *pcie(8, 4), model("RTX 4070 Laptop GPU")), ""),
        "board": (
            node("board", two, *pcie(8, 4), *pcie(8, 4, index=1), model("board"), model("board", 1)),
            "",
        ),
        "one of two": (
            node("one of two", two, *pcie(16, 4), *pcie(8, 4, index=1), model("two"), model("two", 1)),
            "pcie_degraded",
        ),
    }
    rulebook.check_nodes(nodes, rule_files=FILES)


@pytest.mark.parametrize(("generation", "limit"), [(3, 8), (4, 16), (6, 62)])
def test_replays_are_too_many_by_the_links_lanes_and_generation(
    rulebook: Rulebook, generation: int, limit: int
) -> None:
    link = (16, generation)
    rulebook.check_nodes(
        {
            "many": (node("many", gpu(), *pcie(*link, most=link, replays=1.25 * limit)), "pcie_replays"),
            "few": (node("few", gpu(), *pcie(*link, most=link, replays=0.8 * limit)), ""),
        },
        rule_files=FILES,
    )


def test_nvlinks_are_judged_by_what_others_of_the_node_have(rulebook: Rulebook) -> None:
    three = gpu(0) + gpu(1) + gpu(2)
    up, gone = steady(18), steady(0)
    errors = "nvlink_errors_total"
    nodes = {
        "one down": (node("one down", gpu(), *links(steady(17))), "nvlink_down"),
        "all up": (node("all up", gpu(), *links(up)), ""),
        "no bridge": (node("no bridge", three, *links(gone), *links(gone, 1), *links(gone, 2)), ""),
        "alone without": (node("alone without", three, *links(up), *links(up, 1), *links(gone, 2)), "nvlink_down"),
        "one pair": (node("one pair", three, *links(up), *links(gone, 1), *links(gone, 2)), ""),
        "divided": (
            node("divided", gpu(), *links(steady(17)), gpu_signal("up", steady(1), mig="1g.10gb")),
            "",
        ),
        "an error": (node("an error", gpu(), gpu_signal(errors, until(17, 2, 3), kind="crc")), "nvlink_errors"),
        "old errors": (node("old errors", gpu(), gpu_signal(errors, steady(7), kind="replay")), ""),
    }
    rulebook.check_nodes(nodes, rule_files=FILES)


def test_links_make_errors_while_they_are_trained(rulebook: Rulebook) -> None:
    story = gpu(up=f"_x30 1+0x{LENGTH - 30}")
    errors = gpu_signal("nvlink_errors_total", f"_x30 0+0x4 9+0x{LENGTH - 35}", kind="recovery")
    rulebook.check_nodes({"boot": (node("boot", story, errors), "")}, at="19m", rule_files=FILES)


@pytest.mark.parametrize(
    ("name", "story", "expected"),
    [
        ("brake", throttled(power_brake=0.05), [{"alertname": "GpuPowerBrake", "severity": "critical"}]),
        ("lowered limit", throttled(power_cap=0.9), [{"alertname": "GpuPowerCapped", "severity": "info"}]),
    ],
)
def test_power_brakes_and_lowered_limits_raise_alerts(
    rulebook: Rulebook, name: str, story: Story, expected: Sequence[Labels]
) -> None:
    limits = [gpu_signal("power_limit_watts", steady(400)), gpu_signal("power_limit_default_watts", steady(700))]
    default = [gpu_signal("power_limit_watts", steady(700)), gpu_signal("power_limit_default_watts", steady(700))]
    rulebook.check_nodes_firing(
        {
            name: (node(name, story, *limits), expected),
            "default limit": (node("default limit", throttled(power_cap=0.9), *default), []),
            "full clocks": (node("full clocks", gpu(throttled={"power_cap": 0.9}, clock=0.95), *limits), []),
        },
        rule_files=FILES,
    )


def test_power_far_below_the_default_limit_is_held_down_by_the_server(rulebook: Rulebook) -> None:
    default = [gpu_signal("power_limit_watts", steady(700)), gpu_signal("power_limit_default_watts", steady(700))]

    def capped(name: str, watts: str, clock: float | None) -> Story:
        return node(name, gpu(throttled={"power_cap": 0.9}, clock=clock), *default, gpu_signal("power_watts", watts))

    capped_alert = [{"alertname": "GpuPowerCapped", "severity": "info"}]
    bursts = " ".join(["300 690"] * (LENGTH // 2))
    rulebook.check_nodes_firing(
        {
            "low power": (capped("low power", steady(420), 0.7), capped_alert),
            "unknown clocks": (capped("unknown clocks", steady(420), None), capped_alert),
            "at the limit": (capped("at the limit", steady(690), 0.7), []),
            "bursts": (capped("bursts", bursts, 0.7), []),
            "clocks nearly full": (capped("clocks nearly full", steady(420), 0.95), []),
        },
        rule_files=FILES,
    )


def test_configured_clocks_and_bad_links_raise_alerts(rulebook: Rulebook) -> None:
    rulebook.check_nodes_firing(
        {
            "set": (
                node("set", gpu(clock=0.7), gpu_signal("clock_configured_hertz", steady(1.4e9), clock="sm")),
                [{"alertname": "GpuClocksLimited", "severity": "info"}],
            ),
            "free": (node("free", gpu(clock=0.7)), []),
            "narrow": (node("narrow", gpu(), *pcie(8, 4)), [{"alertname": "GpuPcieDegraded", "severity": "warning"}]),
            "replays": (
                node("replays", gpu(), *pcie(16, 4, replays=60)),
                [{"alertname": "GpuPcieReplays", "severity": "warning"}],
            ),
            "links": (
                node(
                    "links", gpu(), *links(steady(17)), gpu_signal("nvlink_errors_total", growing(0.02), kind="replay")
                ),
                [
                    {"alertname": "GpuNvlinkDown", "severity": "warning"},
                    {"alertname": "GpuNvlinkErrors", "severity": "warning"},
                ],
            ),
        },
        rule_files=FILES,
    )


FAILED = gpu_signal("row_remap_failed", steady(1))
PAGE = [{"alertname": "GpuRowRemapFailed", "severity": "critical"}]
TICKET = [{"alertname": "GpuRowRemapFailed", "severity": "warning"}]


def processes(values: str) -> Story:
    """A GPU that has no work, with the processes on it."""
    story = [each for each in gpu(idle=1.0) if "processes" not in each[0]]
    return [*story, series("stallscope_gpu_processes", values, kind="compute", **TARGET, gpu="0", uuid="GPU-0")]


def test_a_fault_of_a_gpu_is_a_page_unless_it_is_known_to_be_unused(rulebook: Rulebook) -> None:
    owner = gpu_signal("owner_info", steady(1), namespace="vision", pod="bert-0")
    rulebook.check_nodes_firing(
        {
            "unused": (node("unused", processes(steady(0)), FAILED), TICKET),
            "used": (node("used", processes(steady(1)), FAILED), PAGE),
            "used before": (node("used before", processes(until(40, 1, 0)), FAILED), PAGE),
            "used long before": (node("used long before", processes(until(25, 1, 0)), FAILED), TICKET),
            "claimed": (
                node("claimed", rank(run="claimed") + processes(steady(0)), FAILED),
                PAGE,
            ),
            "owned": (
                node("owned", processes(steady(0)), FAILED, owner),
                PAGE,
            ),
            "busy": (node("busy", gpu(held=False), FAILED), PAGE),
            "processes unknown": (
                node("processes unknown", [each for each in gpu(idle=1.0) if "processes" not in each[0]], FAILED),
                PAGE,
            ),
        },
        at="50m",
        rule_files=FILES,
    )


PENDING = gpu_signal("row_remap_pending", steady(1))


def life(run: str, instance: str, running: str, finished: str) -> list[tuple[str, str]]:
    """A rank that is in these states."""
    states = {'state="running"': running, 'state="finished"': finished}
    found = rank(run=run, instance=instance)
    return [(name, next((each for state, each in states.items() if state in name), values)) for name, values in found]


UNTIL_20 = until(20, 1, 0), until(20, 0, 1)
FROM_25 = f"0+0x{scrapes(25)} 1+0x{LENGTH - scrapes(25)}", steady(0)


def in_turn(faulty: Story) -> Story:
    """A GPU with a fault, run `a` on it until minute 20, and run `b` from minute 25 on."""
    return [*exporter(instance="node"), *faulty, *life("a", "node", *UNTIL_20), *life("b", "node", *FROM_25)]


@pytest.mark.parametrize(
    "fault",
    [
        node("node", gpu(), FAILED),
        node("node", gpu(), PENDING),
        node("node", gpu(), gpu_signal(XID, first_at(10, 600), xid="119")),
        node("node", gpu(up=until(10), idle=None)),
    ],
    ids=["critical", "warning", "xid", "lost"],
)
@pytest.mark.parametrize(("minute", "runs"), [("15m", "a"), ("23m", "a"), ("40m", "ab")])
def test_the_alert_on_a_faulty_gpu_keeps_its_run_when_another_run_starts(
    rulebook: Rulebook, fault: Story, minute: str, runs: str
) -> None:
    """Another alert would be another notification; the alert of the later run is muted."""
    expected = [{"run": "a"}, {"run": "b", "later_run": "true"}][: len(runs)]
    rulebook.check_firing(in_turn(fault), expected, at=minute, by="run, later_run", rule_files=FILES)


@pytest.mark.parametrize(("minute", "run"), [("35m", {"run": "a"}), ("50m", {})])
def test_the_alert_on_a_faulty_gpu_names_no_run_that_has_gone_on_elsewhere_for_a_quarter_of_an_hour(
    rulebook: Rulebook, minute: str, run: Labels
) -> None:
    """Otherwise it would mute the run's alerts there until the GPU is repaired."""
    first, again = life("a", "node", *UNTIL_20), life("a", "other", *FROM_25)
    story = [*exporter(instance="node"), *node("node", gpu(), FAILED), *node("other", gpu()), *first, *again]
    rulebook.check_firing(story, [run], at=minute, by="run", rule_files=FILES)


@pytest.mark.parametrize(("used", "severity"), [(0, "warning"), (1, "critical")])
def test_a_gpu_that_is_lost_is_as_used_as_it_was_before(rulebook: Rulebook, used: int, severity: str) -> None:
    story = [each for each in processes(f"{used}+0x{scrapes(20)}") if "stallscope_gpu_up" not in each[0]]
    story = [(name, values) for name, values in story if "busy_seconds" not in name]
    up = series("stallscope_gpu_up", until(20), **TARGET, gpu="0", uuid="GPU-0")
    for minute in ("25m", "55m"):
        rulebook.check_firing(
            [*exporter(), *story, up],
            [{"alertname": "GpuLost", "severity": severity}],
            at=minute,
            by="alertname, severity",
            rule_files=FILES,
        )
