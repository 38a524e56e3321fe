"""Who uses which GPU: each cause where it must be, and not on what looks like it. Each story has a node of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from tests.rules.rulebook import (
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
    host,
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
    if path.stem in (*SHARED, "input", "device", "goodput", "hours", "use", "verdicts", "gpu_use")
)
"""Rules that judge the use of GPUs, and rules that find what a run waits for."""
MIB = 2**20
LastReport = tuple[str, str, int, dict[str, str]]


def owner(index: int = 0, values: str = steady(1), **labels: str) -> LastReport:
    return gpu_signal("owner_info", values, index, **(labels or {"user": "ada"}))


def exclusive(index: int = 0, sharing: str = "exclusive") -> LastReport:
    return gpu_signal("info", steady(1), index, sharing=sharing, model="H100")


def memory(used: float, total: float = 80, index: int = 0) -> list[LastReport]:
    """In GiB."""
    return [
        gpu_signal("memory_used_bytes", steady(used * 1024 * MIB), index),
        gpu_signal("memory_total_bytes", steady(total * 1024 * MIB), index),
    ]


def dips(period: float, spread: float = 0.0) -> list[LastReport]:
    """Intervals between dips, in seconds, with the spread as a share of the mean."""
    name = "dip_interval_seconds"
    return [
        gpu_signal(f"{name}_count", growing(1 / period)),
        gpu_signal(f"{name}_sum", growing(1)),
        gpu_signal(f"{name}_sumsq", growing(period * (1 + spread**2))),
    ]


def idle() -> Story:
    return gpu(idle=1.0, busy=0.0, low_samples=1.0)


def long(story: Story) -> Story:
    """The story for two hours and a half."""
    return [(name, values.replace(f"x{LENGTH}", "x300")) for name, values in story]


def check_causes(rulebook: Rulebook, nodes: Mapping[str, tuple[Story, Iterable[str]]], at: str = "20m") -> None:
    """Expect exactly these causes of use on each node, whatever the verdict."""
    rulebook.check(
        [each for story, _causes in nodes.values() for each in story],
        {
            'count by (instance, cause) (pair_cause:time_lost:ratio5m{domain="use"})': [
                ({"instance": instance, "cause": cause}, 1)
                for instance, (_, causes) in nodes.items()
                for cause in causes
            ]
        },
        at=at,
        rule_files=FILES,
    )


def check_alerts(rulebook: Rulebook, nodes: Mapping[str, tuple[Story, Iterable[Labels]]], at: str = "50m") -> None:
    """Expect exactly these alerts on use of each node."""
    rulebook.check(
        exporter() + [each for story, _alerts in nodes.values() for each in story],
        {
            "count by (alertname, severity, instance, run, user, namespace) ("
            'ALERTS{alertstate="firing", alertname=~"Gpu.+"})': [
                ({"instance": instance, **labels}, 1) for instance, (_, alerts) in nodes.items() for labels in alerts
            ]
        },
        at=at,
        rule_files=FILES,
    )


def test_a_gpu_is_idle_when_held_for_an_hour_without_work(rulebook: Rulebook) -> None:
    def worked_until(minute: float) -> Story:
        return [
            (name, f"0+30x{scrapes(minute)} {30 * scrapes(minute):g}+0x300" if "busy" in name else values)
            for name, values in idle()
        ]

    paused = {"training": steady(0), "paused": steady(1)}
    nodes = {
        "held": (node("held", idle(), owner()), ["idle_allocated"]),
        "worked 70 minutes ago": (node("worked 70 minutes ago", worked_until(30), owner()), ["idle_allocated"]),
        "worked 61 minutes ago": (node("worked 61 minutes ago", worked_until(39), owner()), ["idle_allocated"]),
        "worked 59 minutes ago": (node("worked 59 minutes ago", worked_until(41), owner()), []),
        "pod": (node("pod", idle(), owner(namespace="team", pod="train-0")), ["idle_allocated"]),
        "a scrape unanswered": (
            node("a scrape unanswered", idle(), owner(values="1+0x100 _x1 1+0x199")),
            ["idle_allocated"],
        ),
        "held for 62 minutes": (node("held for 62 minutes", idle(), owner(values="_x76 1+0x224")), ["idle_allocated"]),
        "held for 58 minutes": (node("held for 58 minutes", idle(), owner(values="_x84 1+0x216")), []),
        "held by no process": (node("held by no process", idle()), []),
        "notebook": (node("notebook", idle(), owner(namespace="lab", pod="jupyter-ada")), []),
        "a little": (node("a little", gpu(idle=0.99, busy=0.01), owner()), []),
        "no metrics": (node("no metrics", gpu(idle=None), owner()), []),
        "paused": (node("paused", rank(run="p", activity=paused) + idle(), owner()), []),
        "experiment": (node("experiment", rank(run="e", job_class="experiment") + idle(), owner()), []),
        "claimed": (node("claimed", rank(run="c") + idle()), ["idle_allocated"]),
        "claimed, one of two": (
            node(
                "claimed, one of two",
                rank(run="t", gpus=(("0", "GPU-0"), ("1", "GPU-1")))
                + gpu(0)
                + gpu(1, idle=1.0, busy=0.0, low_samples=1.0),
            ),
            ["idle_allocated"],
        ),
    }
    idle_alert = {"alertname": "GpuIdleAllocated", "severity": "warning"}
    rulebook.check(
        long([*exporter(), *(each for story, _causes in nodes.values() for each in story)]),
        {
            "sum by (instance) (pair_cause:time_lost:ratio5m{domain='use', cause='idle_allocated'})": [
                ({"instance": instance}, 1) for instance, (_story, causes) in nodes.items() if causes
            ],
            "sum by (instance) (gpu:verdict:ratio5m{cause='idle_allocated'})": [
                ({"instance": instance}, 1) for instance, (_story, causes) in nodes.items() if causes
            ],
            "count by (alertname, severity, instance, user, namespace) ("
            "ALERTS{alertname='GpuIdleAllocated', alertstate='firing', instance=~'held|pod'})": [
                ({"instance": "held", "user": "ada"} | idle_alert, 1),
                ({"instance": "pod", "namespace": "team"} | idle_alert, 1),
            ],
        },
        at="100m",
        rule_files=FILES,
    )


@pytest.mark.evaluated_every(30)
def test_a_gpu_that_slurm_gave_a_job_and_that_no_process_uses_is_named_within_ten_minutes(rulebook: Rulebook) -> None:
    # The job starts at minute 10.
    def given(index: int = 0) -> LastReport:
        return owner(index, "_x20 1+0x280", user="ada", slurm_job="42")

    unused = gpu(idle=1.0, busy=0.0, low_samples=1.0, held=False)
    nodes = {
        "unused": (node("unused", unused, given()), True),
        "one of two": (node("one of two", gpu() + gpu(1, idle=1.0, busy=0.0, held=False), given(1)), True),
        "process": (node("process", idle(), given()), False),
        "busy": (node("busy", gpu(), given()), False),
        "pod": (node("pod", unused, owner(0, "_x20 1+0x280", namespace="team", pod="train-0")), False),
        "run": (node("run", rank(run="r") + unused, given()), False),
        "unknown processes": (
            node("unknown processes", [each for each in unused if "processes" not in each[0]], given()),
            False,
        ),
        "free": (node("free", unused), False),
    }
    story = exporter() + [each for story, _named in nodes.values() for each in story]
    verdict = "count by (instance) (gpu:verdict:ratio5m{cause='idle_allocated'})"
    alert = "ALERTS{alertname='GpuIdleAllocated', alertstate='firing'}"
    rulebook.check(story, {verdict: []}, at="17m", rule_files=FILES)
    rulebook.check(
        story,
        {
            verdict: [({"instance": name}, 1) for name, (_story, named) in nodes.items() if named],
            f"count by (instance, user) ({alert})": [
                ({"instance": name, "user": "ada"}, 1) for name, (_story, named) in nodes.items() if named
            ],
        },
        at="20m",
        rule_files=FILES,
    )


def test_memory_without_a_process_is_a_zombies(rulebook: Rulebook) -> None:
    free = gpu(idle=1.0, busy=0.0, held=False)
    nodes = {
        "zombie": (node("zombie", free, *memory(0.625)), ["mem_zombie"]),
        "a little": (node("a little", free, *memory(0.4)), []),
        "process": (node("process", gpu(idle=1.0, busy=0.0), *memory(20)), []),
        "display": (node("display", free, *memory(2), gpu_signal("processes", steady(2), kind="graphics")), []),
        "held": (node("held", free, owner(), *memory(20)), []),
        "busy": (node("busy", gpu(idle=0.5, held=False), *memory(20)), []),
        "shared": (node("shared", free, *memory(20), exclusive(sharing="mps")), []),
        "unified": (
            node("unified", free, *memory(20), gpu_signal("info", steady(1), memory="unified", sharing="exclusive")),
            [],
        ),
        "divided": (node("divided", free, *memory(20), gpu_signal("up", steady(1), mig="1g.10gb")), []),
        "just left": (
            node("just left", free, gpu_signal("memory_used_bytes", until(17, 20 * 1024 * MIB, 0))),
            [],
        ),
    }
    check_causes(rulebook, nodes)
    check_alerts(
        rulebook,
        {
            "zombie": (nodes["zombie"][0], [{"alertname": "GpuMemZombie", "severity": "warning"}]),
            "held": (nodes["held"][0], []),
        },
    )


def test_sharing_is_unexpected_where_another_gpu_is_free(rulebook: Rulebook) -> None:
    free = gpu(1, idle=1.0, busy=0.0, held=False)
    taken = gpu(1)
    ada, bob = owner(user="ada"), owner(user="bob")

    def holds(share: float, **labels: str) -> LastReport:
        return gpu_signal("owner_memory_used_bytes", steady(share * 80 * 1024 * MIB), 0, **labels)

    both = [holds(0.4, user="ada"), holds(0.4, user="bob")]
    two_runs = rank(run="a") + rank(run="b")
    nodes = {
        "two owners": (node("two owners", gpu() + free, ada, bob, *both, exclusive()), ["shared_unexpectedly"]),
        "one owner": (node("one owner", gpu() + free, ada, exclusive()), []),
        "containers of one pod": (
            node(
                "containers of one pod",
                gpu() + free,
                owner(namespace="n", pod="p", container="a"),
                owner(namespace="n", pod="p", container="b"),
                holds(0.4, namespace="n", pod="p", container="a"),
                holds(0.4, namespace="n", pod="p", container="b"),
                exclusive(),
            ),
            [],
        ),
        "none is free": (node("none is free", gpu() + taken, ada, bob, *both, exclusive()), []),
        "alone": (node("alone", gpu(), ada, bob, *both, exclusive()), []),
        "memory without an owner": (
            node("memory without an owner", gpu() + free, ada, holds(0.4, user="ada"), holds(0.4), exclusive()),
            [],
        ),
        "time slices": (node("time slices", gpu() + free, ada, bob, *both, exclusive(sharing="time_sliced")), []),
        "a monitor": (
            node("a monitor", gpu() + free, ada, bob, holds(0.4, user="ada"), holds(0.004, user="bob"), exclusive()),
            [],
        ),
    }
    check_causes(rulebook, nodes)
    rulebook.check(
        node("two runs", two_runs + gpu() + free, exclusive()),
        {
            'count by (run) (pair_cause:time_lost:ratio5m{cause="shared_unexpectedly"})': [
                ({"run": "a"}, 1),
                ({"run": "b"}, 1),
            ]
        },
        rule_files=FILES,
    )
    rulebook.check(
        exporter() + nodes["two owners"][0],
        {
            'count by (severity, user) (ALERTS{alertname="GpuSharedUnexpectedly", alertstate="firing"})': [
                ({"severity": "warning", "user": user}, 1) for user in ("ada", "bob")
            ]
        },
        rule_files=FILES,
    )


def test_regular_dips_are_a_cause_unless_a_run_explains_the_same_time(rulebook: Rulebook) -> None:
    """Judged by the dips of half an hour."""
    dipping = gpu(idle=0.125)
    nodes = {
        "no run": (node("no run", dipping, *dips(24)), ["periodic_host_work"]),
        "run": (node("run", rank(run="r") + dipping, *dips(24)), ["periodic_host_work"]),
        "irregular": (node("irregular", dipping, *dips(24, spread=0.6)), []),
        "rare": (node("rare", dipping, *dips(400)), []),
        "shallow": (node("shallow", gpu(idle=0.04), *dips(24)), []),
        "input": (node("input", rank(run="i", wait=0.125) + dipping, *dips(24)), []),
        "starting": (node("starting", rank(run="s", first_step=2900) + dipping, *dips(24)), []),
        "no process": (node("no process", gpu(idle=0.125, held=False), *dips(24)), []),
        "cut": (node("cut", [*dipping, *gpu(mig="3g.40gb", uuid="MIG-0")], *dips(24)), []),
    }
    check_causes(rulebook, nodes, at="50m")
    rulebook.check_percent(
        nodes["run"][0],
        "gpu_cause:time_lost:ratio5m",
        [({"cause": "periodic_host_work", "run": "r"}, 13)],
        at="50m",
        by="cause, run",
        rule_files=FILES,
    )


def test_a_gpu_without_a_report_is_underused_or_dips(rulebook: Rulebook) -> None:
    low = gpu(idle=0.0, busy=0.4, low_samples=1.0)
    nodes = {
        "underused": (node("underused", low), ["underused"]),
        "rarely high": (node("rarely high", gpu(idle=0.0, busy=0.4, low_samples=0.96)), ["underused"]),
        "often high": (node("often high", gpu(idle=0.0, busy=0.6, low_samples=0.9)), []),
        "no process": (node("no process", gpu(idle=0.0, busy=0.4, low_samples=1.0, held=False)), []),
        "idle": (node("idle", gpu(idle=1.0, busy=0.0, low_samples=1.0)), []),
        "run": (node("run", rank(run="r") + low), []),
        "dips": (node("dips", gpu(idle=0.4, busy=0.4, low_samples=1.0), *dips(24)), ["periodic_host_work"]),
    }
    check_causes(rulebook, nodes, at="50m")


def test_a_gpu_that_is_busy_at_low_steady_power_for_ten_minutes_is_suspected_to_spin(rulebook: Rulebook) -> None:
    def spinning(
        instance: str,
        story: Story | None = None,
        watts: str = steady(150),
        limit: float = 700,
        memory_busy: float | None = 0.01,
        ranks: Story | None = None,
    ) -> Story:
        signals = [gpu_signal("power_watts", watts), gpu_signal("power_limit_watts", steady(limit))]
        if memory_busy is not None:
            signals.append(gpu_signal("memory_busy_seconds_total", growing(memory_busy)))
        return node(instance, [*(gpu() if story is None else story), *(ranks or [])], *signals)

    works = f"600+0x{scrapes(15)} 150+0x{LENGTH - scrapes(15)}"
    later = node("labelled", [], gpu_signal("power_watts", f"_x38 140+0x{LENGTH - 38}", pod="new"))
    nodes = {
        "spins": (spinning("spins"), ["spin_suspected"]),
        "soon": (spinning("soon", watts=works), []),
        "at work": (spinning("at work", watts=steady(290)), []),
        "varies": (spinning("varies", watts="140 160 " * (LENGTH // 2)), []),
        # A label of the target has changed its value: the new series is too short to vary.
        "labelled": (spinning("labelled", watts="140 160 " * 19 + "stale") + later, []),
        "memory-bound": (spinning("memory-bound", memory_busy=0.6), []),
        "at a lowered limit": (spinning("at a lowered limit", watts=steady(195), limit=200), []),
        "no power": (node("no power", gpu(), gpu_signal("memory_busy_seconds_total", growing(0.01))), []),
        "no limit": (spinning("no limit", limit=0), []),
        "memory unknown": (spinning("memory unknown", memory_busy=None), []),
        # A start, and a compilation: the GPU waits for the host.
        "starts": (spinning("starts", gpu(idle=0.9)), ["underused"]),
        "free": (spinning("free", gpu(held=False)), []),
        # The steps of the run show that it trains; a standstill has a cause of its own.
        "run": (spinning("run", ranks=rank(run="r")), []),
    }
    check_causes(rulebook, nodes)
    alert = {"alertname": "GpuSpinSuspected", "severity": "info", "user": "ada"}
    check_alerts(rulebook, {"held": ([*spinning("held"), *node("held", [], owner())], [alert])}, at="20m")


RUNBOOKS = "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks"


def underused(instance: str, holders: str, **labels: str) -> tuple[Labels, Labels]:
    """The alert on a GPU that is busy for two fifths of its time, with the words on who holds it."""
    uuid = labels.get("uuid", "GPU-0")
    return (
        {
            **TARGET,
            "instance": instance,
            "gpu": "0",
            "uuid": uuid,
            "severity": "warning",
            "cause": "underused",
            **labels,
        },
        {
            "summary": "GPU is underused, and no training report explains why.",
            "lost": "14.4 GPU-hours a day",
            "description": f"GPU 0 ({uuid}) of {instance} is held but not busy for 60 % of its time, and 95 % of its "
            f"utilisation samples are at or under 70 %.{holders} Add `stallscope.track` around the training loop's "
            "data loader to learn why; until then compare with the host's CPUs, disks and network, and try more "
            "loader workers or a larger batch.",
            "runbook_url": f"{RUNBOOKS}/GpuUnderused.md",
            "dashboard_url": f"/d/stallscope-gpu?var-instance={instance}&var-gpu=0",
        },
    )


LOW = gpu(idle=0.0, busy=0.4, low_samples=1.0)


def test_the_alert_names_the_pod_the_job_or_the_user_that_holds_the_gpu(rulebook: Rulebook) -> None:
    holders: list[tuple[str, dict[str, str], str]] = [
        ("pod", {"namespace": "vision", "pod": "train-0", "container": "main"}, "pod vision/train-0"),
        ("job", {"slurm_job": "42", "user": "ada"}, "Slurm job 42 of ada"),
        ("container", {"container": "5f3a", "user": "ada"}, "container 5f3a of ada"),
        ("user", {"user": "ada"}, "ada"),
        ("unowned", {"user": ""}, "an unknown process"),
    ]
    story, expected = exporter(), []
    for instance, labels, words in holders:
        story += node(instance, LOW, owner(0, steady(1), **labels))
        routed = {name: value for name, value in labels.items() if name in ("namespace", "user") and value}
        expected.append(underused(instance, f" It is held by {words}.", **routed))
    # The process that holds this GPU is unknown.
    story += node("unknown", LOW)
    expected.append(underused("unknown", ""))
    rulebook.check_texts(story, "GpuUnderused", expected)


def test_every_owner_of_a_shared_gpu_has_an_alert_of_its_own(rulebook: Rulebook) -> None:
    rulebook.check_texts(
        exporter()
        + node(
            "sliced",
            LOW,
            owner(namespace="vision", pod="a-0"),
            owner(namespace="vision", pod="a-1"),
            owner(namespace="speech", pod="b-0"),
        )
        + node("mps", LOW, owner(slurm_job="7", user="ada"), owner(slurm_job="8", user="grace")),
        "GpuUnderused",
        [
            underused("sliced", " It is held by pod vision/a-0, pod vision/a-1.", namespace="vision"),
            underused("sliced", " It is held by pod speech/b-0.", namespace="speech"),
            underused("mps", " It is held by Slurm job 7 of ada.", user="ada"),
            underused("mps", " It is held by Slurm job 8 of grace.", user="grace"),
        ],
    )


def test_each_mig_instance_names_its_own_owner(rulebook: Rulebook) -> None:
    story, expected = exporter(), []
    for number, namespace in enumerate(("vision", "speech")):
        uuid, mig = f"MIG-{number}", "1g.10gb"
        story += node("mig", gpu(idle=0.0, busy=0.4, low_samples=1.0, mig=mig, uuid=uuid))
        labels = {"gpu": "0", "uuid": uuid, "mig": mig, "namespace": namespace, "pod": "train-0"}
        story.append(series("stallscope_gpu_owner_info", steady(1), job="stallscope", instance="mig", **labels))
        words = f" It is held by pod {namespace}/train-0."
        expected.append(underused("mig", words, uuid=uuid, mig=mig, namespace=namespace))
    rulebook.check_texts(story, "GpuUnderused", expected)


def test_a_gpu_with_mig_instances_is_judged_by_these_alone(rulebook: Rulebook) -> None:
    """The driver reports the activity of the whole GPU too: the mean of its instances, of which some may be free."""
    whole = gpu(idle=0.6, low_samples=1.0)
    busy = gpu(idle=0.0, mig="3g.40gb", uuid="MIG-0")
    rulebook.check(
        long(exporter() + node("cut", [*whole, *busy]) + node("whole", whole)),
        {
            'count by (instance, mig, cause) (gpu:verdict:ratio5m{cause="underused"})': [
                ({"instance": "whole", "cause": "underused"}, 1)
            ],
            'count by (instance, mig) (gpu:verdict:ratio5m{cause="healthy"})': [
                ({"instance": "cut", "mig": "3g.40gb"}, 1)
            ],
        },
        at="100m",
        rule_files=FILES,
    )


def test_an_idle_gpu_that_a_run_claims_is_its_alert_alone(rulebook: Rulebook) -> None:
    story = node("claimed", rank(run="c", user="ada") + gpu(idle=1.0, busy=0.0, low_samples=1.0), owner(user="root"))
    rulebook.check(
        long(exporter() + story),
        {
            "count by (instance, run, user) (ALERTS{alertname='GpuIdleAllocated', alertstate='firing'})": [
                ({"instance": "claimed", "run": "c", "user": "ada"}, 1)
            ]
        },
        at="100m",
        rule_files=FILES,
    )


def test_a_gpu_with_headroom_is_a_packing_candidate(rulebook: Rulebook) -> None:
    half = gpu(busy=0.4)
    spare = [(name, values) for name, values in host(0.3)]
    packing = [{"alertname": "GpuPackingCandidate", "severity": "info"}]
    idle = [{"alertname": "GpuUnderused", "severity": "warning"}]
    nodes: dict[str, tuple[Story, list[Labels]]] = {
        "room": (node("room", half + spare, *memory(4, 11)), [*packing, *idle]),
        "full memory": (node("full memory", half + spare, *memory(6, 11)), [*idle]),
        "busy": (node("busy", gpu(busy=0.625) + spare, *memory(4, 11)), []),
        "full host": (node("full host", half + host(0.75), *memory(4, 11)), [*idle]),
        "unknown host": (node("unknown host", half, *memory(4, 11)), [*idle]),
        "no process": (node("no process", gpu(busy=0.0, idle=1.0, held=False) + spare, *memory(0.1, 11)), []),
    }
    check_alerts(rulebook, nodes)
    two = rank(0, run="r") + rank(1, run="r", gpus=(("1", "GPU-1"),)) + half + gpu(1, busy=0.4)
    check_alerts(rulebook, {"run": (node("run", two + spare, *memory(4, 11), *memory(4, 11, index=1)), [])})


def test_an_alert_has_the_period_in_steps_where_a_run_reports_them(rulebook: Rulebook) -> None:
    story = exporter() + rank() + node("node1:19400", gpu(idle=0.125), *dips(50))
    story += [
        series(
            "stallscope_training_step_seconds_sum",
            growing(1),
            job="stallscope",
            instance="node1:19400",
            run="train",
            rank="0",
        )
    ]
    rulebook.check(
        story,
        {
            'count by (alertname, run) (ALERTS{alertname="GpuPeriodicHostWork", alertstate="firing"})': [
                ({"alertname": "GpuPeriodicHostWork", "run": "train"}, 1)
            ],
            "sum by (uuid) (round(gpu:dip_period:steps30m))": [({"uuid": "GPU-0"}, 50)],
        },
        at="50m",
        rule_files=FILES,
    )
