"""Why a run waits for data: each sub-cause on its evidence, and not on what looks like it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.rules.rulebook import (
    Labels,
    Rulebook,
    Story,
    exporter,
    gpu,
    growing,
    growing_then,
    rank,
    series,
    steady,
)

VERDICT = "round(100 * run:verdict:ratio5m)"


def node(
    name: str,
    *,
    wait: float = 0.3,
    idle: float | None = None,
    ranks: int = 1,
    cpus: float = 64,
    busy: float = 0.2,
    iowait: float = 0.0,
    pressure: float | None = 0.0,
    io_pressure: float | None = 0.0,
    cores: float | None = None,
    limit: float | None = 64,
    workers: float | None = None,
    main_thread: float | None = None,
    busiest: float = 0.5,
    throttled: float | None = None,
    read: float = 1e6,
    written: float = 0.0,
    received: float | None = 0.0,
    sent: float = 0.0,
    link: float | None = 1.25e9,
    in_flight: float | None = None,
    operation: float = 0.05,
    nfs_read: float = 0.0,
    samples: float | None = None,
    pod: str = "",
    job_class: str = "production",
) -> Story:
    """A run of the node's name on a node of its own, a GPU a rank; shares of time, bytes a second.

    Args:
        name: of run and node.
        wait: for data, by the loop's clock.
        idle: of the GPU; as long as the wait unless said.
        ranks: how many, all alike.
        cpus: CPUs of the host.
        busy: share of them in use.
        iowait: share of them idle for input or output.
        pressure: share of time in which a task waited for a CPU.
        io_pressure: the same for input or output.
        cores: CPUs that each rank uses; by default, the ranks share all busy CPUs.
        limit: CPUs that each rank may use.
        workers: of each rank's loader.
        main_thread: CPUs that each rank's main thread uses.
        busiest: use of the busiest CPU.
        throttled: share of the quota's periods in which it stopped each rank.
        read: from disk.
        written: to disk.
        received: by network.
        sent: by network.
        link: what the network carries.
        in_flight: NFS operations.
        operation: seconds that each of them takes.
        nfs_read: from NFS.
        samples: a second, of each rank.
        pod: of all ranks.
        job_class: of the run.
    """
    instance = f"{name}:19400"
    host = {"job": "stallscope", "instance": instance}
    story = exporter(instance=instance)
    for number in range(ranks):
        labels = {**host, "run": name, "rank": str(number)}
        reported = {
            "main_thread_cpu_seconds_total": main_thread,
            "cpu_throttled_periods_total": None if throttled is None else 10 * throttled,
            "cpu_periods_total": None if throttled is None else 10.0,
            "process_cpu_seconds_total": busy * cpus / ranks if cores is None else cores,
            "samples_total": samples,
        }
        story += rank(
            number,
            run=name,
            wait=wait,
            gpus=((str(number), f"GPU-{number}"),),
            pod=pod,
            job_class=job_class,
            instance=instance,
        )
        story += gpu(number, idle=wait if idle is None else idle, instance=instance)
        story += [
            series(f"stallscope_training_{family}", growing(speed), **labels)
            for family, speed in reported.items()
            if speed is not None
        ]
        if limit is not None:
            story.append(series("stallscope_training_cpu_limit_cores", steady(limit), **labels))
        if workers is not None:
            story.append(series("stallscope_training_dataloader_workers", steady(workers), **labels))
    for resource, waiting in (("cpu", pressure), ("io", io_pressure)):
        if waiting is not None:
            family = "stallscope_host_pressure_waiting_seconds_total"
            story.append(series(family, growing(waiting), resource=resource, **host))
    modes = {"user": busy, "iowait": iowait, "idle": 1 - busy - iowait}
    story += [
        series("stallscope_host_cpu_seconds_total", growing(cpus * share), mode=mode, **host)
        for mode, share in modes.items()
    ]
    story += [
        series("stallscope_host_cpus", steady(cpus), **host),
        series("stallscope_host_busiest_cpu_seconds_total", growing(busiest), **host),
        series("stallscope_host_disk_read_bytes_total", growing(read), device="nvme0n1", **host),
        series("stallscope_host_disk_written_bytes_total", growing(written), device="nvme0n1", **host),
    ]
    if received is not None:
        story += [
            series("stallscope_host_network_receive_bytes_total", growing(received), device="eth0", **host),
            series("stallscope_host_network_transmit_bytes_total", growing(sent), device="eth0", **host),
        ]
        if link is not None:
            story.append(series("stallscope_host_network_link_bytes_per_second", steady(link), device="eth0", **host))
    if in_flight is not None:
        story += [
            series("stallscope_host_nfs_operation_wait_seconds_total", growing(in_flight), mount="/data", **host),
            series("stallscope_host_nfs_operations_total", growing(in_flight / operation), mount="/data", **host),
            series("stallscope_host_nfs_read_bytes_total", growing(nfs_read), mount="/data", **host),
        ]
    return story


def check(rulebook: Rulebook, runs: Mapping[str, tuple[Story, str]], share: int = 30, at: str = "20m") -> None:
    """Expect that cause of each run, at that share lost; 0 for one that is healthy."""
    rulebook.check(
        [each for story, _cause in runs.values() for each in story],
        {
            VERDICT: [
                ({"run": name, "cause": cause}, 0 if cause == "healthy" else share)
                for name, (_story, cause) in runs.items()
            ]
        },
        at=at,
    )


def test_without_evidence_of_a_sub_cause_the_wait_is_input_bound(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "quiet": (node("quiet"), "input_bound"),
            "enough": (node("enough", workers=60, cores=20), "input_bound"),
            "untold": (
                [each for each in node("untold", workers=2) if "host" not in each[0]],
                "input_bound",
            ),
        },
    )


def test_what_is_lost_is_the_same_under_each_sub_cause(rulebook: Rulebook) -> None:
    story = node("a", workers=2) + node("b", wait=0.3, idle=0.2, workers=2)
    rulebook.check(
        story,
        {
            "round(100 * run_cause:time_lost:ratio5m)": [
                ({"run": "a", "cause": "input_few_workers"}, 30),
                ({"run": "b", "cause": "input_few_workers"}, 20),
            ]
        },
    )


def test_a_healthy_rank_has_no_series_of_causes(rulebook: Rulebook) -> None:
    story = node("a", wait=0.01, workers=0, busy=0.99)
    names = ("pair_cause:time_lost:ratio5m", "rank_cause:input_evidence:info", "rank:exposed_wait:ratio5m")
    rulebook.check(story, {name: [] for name in names})


def test_a_quota_that_stops_the_rank_on_a_free_host_is_throttling(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "over": (node("over", throttled=0.32), "input_cgroup_throttled"),
            "under": (node("under", throttled=0.2), "input_bound"),
            # It also uses all that the quota allows: the quota is what to change.
            "all": (node("all", throttled=0.6, cores=7.9, limit=8), "input_cgroup_throttled"),
            "full": (node("full", throttled=0.6, busy=0.96), "input_cpu_saturated"),
            # Others fill the host; the quota stops the rank before they do.
            "others": (node("others", throttled=1.0, busy=0.96, cores=0.2, limit=1), "input_cgroup_throttled"),
            "no-wait": (node("no-wait", throttled=0.6, wait=0.01), "healthy"),
        },
    )


def test_busy_cpus_are_the_cause_unless_another_one_explains_the_wait(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "own": (node("own", busy=0.95, cores=40), "input_cpu_saturated"),
            "part": (node("part", busy=0.95, cores=20), "input_cpu_saturated"),
            "others": (node("others", busy=0.95, cores=3), "input_cpu_saturated"),
            "reads": (node("reads", busy=0.95, cores=3, io_pressure=0.5, read=5e8), "input_disk_bound"),
            "untold": (
                [each for each in node("untold", busy=0.95) if "process_cpu" not in each[0]],
                "input_cpu_saturated",
            ),
            # All CPUs that it may use are busy, whichever process uses the others.
            "limit": (node("limit", busy=0.95, cores=7.8, limit=8), "input_cpu_saturated"),
        },
    )


@pytest.mark.parametrize("at", ["10m", "25m", "59m"])
def test_the_reason_of_an_unchanged_wait_stays_while_others_fill_the_cpus(rulebook: Rulebook, at: str) -> None:
    check(
        rulebook,
        {"others": (node("others", busy=0.97, pressure=0.6, cores=1, workers=2), "input_cpu_saturated")},
        at=at,
    )


def test_more_than_two_workers_a_cpu_are_too_many_where_tasks_wait(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "many": (node("many", cpus=8, limit=8, workers=20, busy=0.75, pressure=0.3), "input_too_many_workers"),
            # They sleep until storage answers.
            "asleep": (node("asleep", cpus=8, limit=8, workers=40, busy=0.65, pressure=0.05), "input_bound"),
            # Other processes compete for the CPUs; these read from the disk.
            "reads": (
                node("reads", cpus=8, limit=8, workers=40, cores=1, busy=0.3, pressure=0.3, io_pressure=0.5, read=5e8),
                "input_disk_bound",
            ),
            "at-125-of-use": (
                node("at-125-of-use", cpus=8, limit=8, workers=20, cores=5, busy=0.75, pressure=0.3),
                "input_too_many_workers",
            ),
            "at-80-of-use": (
                node("at-80-of-use", cpus=8, limit=8, workers=20, cores=3.2, busy=0.75, pressure=0.3),
                "input_bound",
            ),
            # One worker under a quota of a fifth of a CPU.
            "one": (node("one", cpus=8, limit=0.2, cores=0.1, workers=1, busy=0.75, pressure=0.3), "input_bound"),
            "fewer": (node("fewer", cpus=8, limit=8, workers=13, busy=0.75, pressure=0.3), "input_bound"),
            # Eight ranks of 8 workers may use 32 CPUs each, but there are only 32.
            "shared": (
                node("shared", ranks=8, cpus=32, limit=32, workers=9, busy=0.95, pressure=0.5),
                "input_too_many_workers",
            ),
            # Two ranks in a pod whose quota is 8.
            "pod": (
                node("pod", ranks=2, cpus=64, limit=8, workers=9, cores=2, busy=0.1, pressure=0.3, pod="p"),
                "input_too_many_workers",
            ),
        },
    )


def test_a_link_full_of_what_comes_in_is_the_network(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "full": (node("full", received=1.19e9, workers=2), "input_network_bound"),
            "at-100": (node("at-100", received=1.0e9, workers=60), "input_network_bound"),
            "at-80": (node("at-80", received=0.64 * 1.25e9, workers=60), "input_bound"),
            # Gradients go both ways.
            "gradients": (node("gradients", received=1.19e9, sent=1.1e9, workers=60), "input_bound"),
            # A cloud's virtual interface.
            "speed-untold": (node("speed-untold", received=1.19e9, link=None, workers=60), "input_bound"),
        },
    )


def test_the_ceiling_of_a_full_link_is_in_samples(rulebook: Rulebook) -> None:
    """12.5 MB a sample over 10 Gb/s: a hundred a second, of which 95 pass."""
    rulebook.check(
        node("ac-08", received=0.95 * 1.25e9, samples=95) + node("other", samples=95),
        {
            "round(run:input_ceiling:rate5m)": [({"run": "ac-08"}, 100)],
            "round(run:input_sample:bytes5m / 1e5)": [({"run": "ac-08"}, 125)],
        },
    )


def test_a_mount_with_many_slow_operations_in_flight_is_remote_latency(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            # CPUs are as idle as with too few workers.
            "slots": (node("slots", in_flight=126, workers=4), "input_remote_latency"),
            "at-125": (node("at-125", in_flight=80, workers=60), "input_remote_latency"),
            "at-80": (node("at-80", in_flight=51, workers=60), "input_bound"),
            "quick": (node("quick", in_flight=126, operation=0.002, workers=60), "input_bound"),
            # The link is full: that is why operations queue.
            "line": (node("line", in_flight=126, received=1.2e9), "input_network_bound"),
            "no-wait": (node("no-wait", wait=0.01, in_flight=300), "healthy"),
        },
    )


def test_disks_are_the_limit_where_reads_press_on_them(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "pressed": (node("pressed", io_pressure=0.125, read=5e8, workers=2), "input_disk_bound"),
            "less": (node("less", io_pressure=0.08, read=5e8, workers=60), "input_bound"),
            # A kernel without pressure figures.
            "iowait": (node("iowait", io_pressure=None, iowait=0.6, busy=0.1, read=5e8), "input_disk_bound"),
            "checkpoint": (node("checkpoint", io_pressure=0.5, read=1e8, written=9e8, workers=60), "input_bound"),
            "nfs": (node("nfs", io_pressure=0.5, read=1e5, in_flight=10, nfs_read=5e8, workers=60), "input_bound"),
        },
    )


def test_one_thread_at_its_limit_is_distinguished_from_few_workers(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            # The main thread collates: it never waits.
            "main": (node("main", workers=14, main_thread=0.99, cores=2.5), "input_single_thread"),
            # It spins for the GPU, and sleeps while it waits for data.
            "spins": (node("spins", workers=14, main_thread=0.7, cores=2.5), "input_few_workers"),
            # An iterable data set with one shard.
            "shard": (node("shard", workers=14, cores=1.3, busiest=0.99), "input_single_thread"),
            # A thread of another process.
            "theirs": (node("theirs", workers=60, cpus=128, busy=0.1, cores=0.3, busiest=1.0), "input_bound"),
            # Four workers, each at its limit.
            "four": (node("four", workers=4, cores=4.3, busiest=1.0), "input_few_workers"),
            "busy-host": (node("busy-host", workers=60, main_thread=0.99, busy=0.4), "input_bound"),
            # The training process loads by itself: raise the workers.
            "none": (node("none", workers=0, main_thread=0.99, cores=1.0, busiest=1.0), "input_few_workers"),
        },
    )


def test_few_workers_are_the_reason_only_where_all_else_has_room(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "two": (node("two", workers=2), "input_few_workers"),
            "none": (node("none", workers=0), "input_few_workers"),
            "untold": (node("untold"), "input_bound"),
            # 44.8 of 64 CPUs are 70 %.
            "at-125": (node("at-125", workers=35), "input_few_workers"),
            "at-80": (node("at-80", workers=56), "input_bound"),
            "busy": (node("busy", workers=2, busy=0.65), "input_bound"),
            "disk": (node("disk", workers=2, io_pressure=0.07), "input_bound"),
            "network": (node("network", workers=2, received=0.7e9), "input_bound"),
            # 8 ranks of 7 workers on 64 CPUs that all of them may use: 88 %.
            "together": (node("together", ranks=8, workers=7, cores=1.0), "input_bound"),
        },
    )


def test_few_workers_are_not_the_reason_where_it_is_unknown_whether_there_is_room(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "disk": (node("disk", workers=2, io_pressure=None), "input_bound"),
            "network": (node("network", workers=2, link=None, received=2e8), "input_bound"),
            "limit": (node("limit", workers=2, limit=None), "input_bound"),
            "no workers, limit": (node("no workers, limit", workers=0, limit=None), "input_bound"),
            "one cpu": (node("one cpu", workers=1, cores=0.5, limit=1), "input_bound"),
            "own cpus": (
                [each for each in node("own cpus", workers=2) if "process_cpu" not in each[0]],
                "input_bound",
            ),
            "gradients": (
                [each for each in node("gradients", workers=2, received=2e8) if "transmit" not in each[0]],
                "input_bound",
            ),
            "mount": (
                [each for each in node("mount", workers=2, in_flight=120) if "operation_wait" not in each[0]],
                "input_bound",
            ),
            "quota": (node("quota", workers=1, cores=1.5, limit=4, pod="quota"), "input_bound"),
        },
    )


def test_a_reason_that_shows_only_while_the_window_fills_is_not_named(rulebook: Rulebook) -> None:
    """Saturated CPUs: their mean of five minutes passes the share that leaves room for more workers."""
    host = {"job": "stallscope", "instance": "late:19400"}
    story = [(name, values) for name, values in node("late", workers=2) if "cpu_seconds" not in name]
    story = [
        (name, growing_then(30, 0.0, 0.3) if "data_wait" in name or "below" in name else values)
        for name, values in story
    ]
    story = [
        (name, growing_then(30, 1.0, 0.7) if "gpu_busy" in name or 'phase="forward"' in name else values)
        for name, values in story
    ]
    for mode, before, after in (("user", 10, 63), ("idle", 54, 1)):
        story.append(series("stallscope_host_cpu_seconds_total", growing_then(30, before, after), mode=mode, **host))
    few = 'count_over_time(run:verdict:ratio5m{cause=~"input_few_workers|input_single_thread"}[30m])'
    full = 'count(run:verdict:ratio5m{cause="input_cpu_saturated"})'
    rulebook.check(story, {few: [], full: [({}, 1)]}, at="34m")


def test_hidden_waits_have_no_sub_cause(rulebook: Rulebook) -> None:
    check(
        rulebook,
        {
            "few": (node("few", idle=0.0, workers=0), "healthy"),
            "full": (node("full", idle=0.0, busy=0.99, received=1.24e9, in_flight=200, io_pressure=0.9), "healthy"),
        },
    )


def firing(name: str, severity: str = "warning") -> dict[str, str]:
    return {"alertname": name, "severity": severity}


def test_each_sub_cause_has_its_alert_alone(rulebook: Rulebook) -> None:
    stories: dict[str, tuple[Story, Labels]] = {
        "quota": (node("quota", throttled=0.4), firing("TrainingInputCgroupThrottled")),
        "few": (node("few", workers=1), firing("TrainingInputFewWorkers")),
        "thread": (node("thread", workers=14, main_thread=0.99), firing("TrainingInputSingleThread")),
        "many": (
            node("many", cpus=8, limit=8, workers=32, busy=0.75, pressure=0.5),
            firing("TrainingInputTooManyWorkers"),
        ),
        "disk": (node("disk", io_pressure=0.3, read=5e8), firing("TrainingInputDiskBound")),
        "network": (node("network", received=1.2e9), firing("TrainingInputNetworkBound")),
        "latency": (node("latency", in_flight=120), firing("TrainingInputRemoteLatency")),
        "study": (node("study", workers=1, job_class="experiment"), firing("TrainingInputFewWorkers", "info")),
    }
    rulebook.check_firing(
        [each for story, _alert in stories.values() for each in story]
        # At 0.8 of the warning level: a verdict, and no alert.
        + node("little", wait=0.08, workers=1),
        [{**alert, "run": name} for name, (_story, alert) in stories.items()],
        at="40m",
    )


def full_cpus(name: str, first: float, then: float) -> Story:
    """A run that waits while a share of its host's CPUs is busy, and another share from minute 20 on."""
    host = {"job": "stallscope", "instance": f"{name}:19400"}
    story = [each for each in node(name) if "cpu_seconds_total" not in each[0] or "host" not in each[0]]
    for mode, before, after in (("user", first, then), ("idle", 1 - first, 1 - then)):
        values = growing_then(20, 64 * before, 64 * after)
        story.append(series("stallscope_host_cpu_seconds_total", values, mode=mode, **host))
    return story


REASON, WAIT = firing("TrainingInputCpuSaturated"), firing("TrainingInputBound")


def test_a_reason_stays_as_long_as_its_wait_goes_on_without_evidence(rulebook: Rulebook) -> None:
    story = [*full_cpus("run", 0.98, 0.16), *node("alone")]
    causes = [({"run": "run", "cause": "input_cpu_saturated"}, 30), ({"run": "alone", "cause": "input_bound"}, 30)]
    rulebook.check(story, {VERDICT: causes}, at="55m")
    rulebook.check_firing(story, [{**REASON, "run": "run"}, {**WAIT, "run": "alone"}], at="55m")


def test_a_reason_ends_with_its_wait_and_gives_way_to_another_reason(rulebook: Rulebook) -> None:
    over = [
        (name, growing_then(25, 0.3, 0.0) if "data_wait" in name or "below" in name else values)
        for name, values in full_cpus("over", 0.98, 0.16)
    ]
    host = {"job": "stallscope", "instance": "disk:19400"}
    disk = [each for each in full_cpus("disk", 0.98, 0.16) if 'resource="io"' not in each[0]]
    waits = growing_then(30, 0.0, 0.3)
    disk.append(series("stallscope_host_pressure_waiting_seconds_total", waits, resource="io", **host))
    disk = [(name, growing(5e8) if "disk_read_bytes" in name else values) for name, values in disk]
    over_now = 'count(run:verdict:ratio5m{run="over", cause=~"input_.*"})'
    changed = 'count(run:verdict:ratio5m{run="disk", cause="input_disk_bound"})'
    rulebook.check([*over, *disk], {over_now: [], changed: [({}, 1)]}, at="45m")


def test_a_reason_that_becomes_known_after_the_alert_joins_it(rulebook: Rulebook) -> None:
    """A second alert would be a second notification."""
    story = full_cpus("run", 0.16, 0.98)
    rulebook.check_firing(story, [{**WAIT, "run": "run"}], at="19m")
    rulebook.check(story, {VERDICT: [({"run": "run", "cause": "input_cpu_saturated"}, 30)]}, at="55m")
    rulebook.check_firing(story, [{**WAIT, "run": "run"}], at="55m")


def test_throttling_alerts_after_fifteen_minutes(rulebook: Rulebook) -> None:
    story = node("quota", throttled=0.4)  # judged from 300 s on
    rulebook.check_firing(story, [], at="14m")
    rulebook.check_firing(story, [{**firing("TrainingInputCgroupThrottled"), "run": "quota"}], at="22m")


URL = "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks/"

KNOWN = (
    "The reason is now known: CPUs saturated. Decode and augment less per sample, give the job more CPUs per GPU, or "
    "run other programs elsewhere."
)
UNKNOWN = (
    "Its host shows no reason. Prepare batches ahead of the step: with more loader workers that stay alive between "
    "epochs, or in a thread if the loop makes its batches itself. Check where the data are stored (cache them on a "
    "local disk)."
)


@pytest.mark.parametrize(("busy", "text"), [(0.98, KNOWN), (0.16, UNKNOWN)], ids=["known", "unknown"])
def test_the_text_on_a_wait_names_its_reason_once_it_is_known(rulebook: Rulebook, busy: float, text: str) -> None:
    loss = "Run run loses 30 % of its GPU time waiting for the next batch"
    rulebook.check_text(
        full_cpus("run", 0.16, busy),
        "TrainingInputBound",
        {"run": "run", "severity": "warning", "cause": "input_bound", "job_class": "production"},
        {
            "summary": "Training run waits for its input data.",
            "description": f"{loss}: without that it would be up to 1.4 times as fast. {text}",
            "runbook_url": URL + "TrainingInputBound.md",
            "dashboard_url": "/d/stallscope-run?var-run=run",
            "line": "",
            "lost": "7.2 GPU-hours a day",
        },
        at="55m",
    )


@pytest.mark.parametrize("with_gpu", [True, False])
def test_the_text_speaks_of_gpu_time_only_where_there_are_gpus(rulebook: Rulebook, with_gpu: bool) -> None:
    story = node("a", wait=0.5, workers=2)
    if not with_gpu:
        story = [each for each in story if "_gpu_" not in each[0]]
    rulebook.check_text(
        story,
        "TrainingInputFewWorkers",
        {"run": "a", "severity": "warning", "cause": "input_few_workers", "job_class": "production"},
        {
            "summary": "Training run waits for data: too few loader workers.",
            "description": (
                f"Run a loses 50 % of its {'GPU ' if with_gpu else ''}time waiting for data: without that it would be "
                "up to 2.0 times as fast. CPUs, disks and network have room: raise num_workers (currently 2) towards "
                "the CPUs per GPU, prefetch_factor from 2 to 4, and set persistent_workers."
            ),
            "runbook_url": URL + "TrainingInputFewWorkers.md",
            "dashboard_url": "/d/stallscope-run?var-run=a",
            "line": "",
            "lost": "12.0 GPU-hours a day" if with_gpu else "",
        },
        at="40m",
    )


def test_the_text_of_a_full_link_names_its_ceiling(rulebook: Rulebook) -> None:
    rulebook.check_text(
        node("a", wait=0.5, received=0.95 * 1.25e9, samples=95),
        "TrainingInputNetworkBound",
        {"run": "a", "severity": "warning", "cause": "input_network_bound", "job_class": "production"},
        {
            "summary": "Training run waits for data: its network link is saturated.",
            "description": (
                "Run a loses 50 % of its GPU time waiting for data that the network cannot deliver faster: without "
                "that it would be up to 2.0 times as fast. The link carries at most 100 samples a second of 11.9 MiB "
                "each. Cache the data on the node, compress or shrink it before the transfer, give each node its own "
                "shard, or use a faster link."
            ),
            "runbook_url": URL + "TrainingInputNetworkBound.md",
            "line": "",
            "dashboard_url": "/d/stallscope-run?var-run=a",
            "lost": "12.0 GPU-hours a day",
        },
        at="40m",
    )
