"""Every alert fires where it must, and not on its look-alikes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from alerts.alert_rules import rounded
from tests.known_names import rules
from tests.rules.rulebook import (
    ALERT_FILES,
    RULE_FILES,
    TARGET,
    Labels,
    Rulebook,
    Story,
    exporter,
    gpu,
    growing,
    growing_until,
    host,
    rank,
    run_promtool,
    scrapes,
    series,
    steady,
    until,
)

INPUT_BOUND = {"alertname": "TrainingInputBound", "severity": "warning", "run": "train"}
INPUT_CPU = {"alertname": "TrainingInputCpuSaturated", "severity": "warning", "run": "train"}
STALLED = {"alertname": "TrainingStalled", "severity": "critical", "run": "train"}
THERMAL = {"alertname": "GpuThermalThrottle", "severity": "warning"}
LOST = {"alertname": "GpuLost", "severity": "critical"}
HOST_FULL = {"alertname": "HostCpuSaturated", "severity": "info"}
UNDERUSED = {"alertname": "GpuUnderused", "severity": "warning"}
IN_RUN = {"run": "train"}
XID = "stallscope_gpu_xid_last_timestamp_seconds"
REJECTED = "stallscope_exporter_reports_rejected_total"
OOM_KILL_SEVERITY = '{{ if or (not $labels.run) (eq $labels.job_class "experiment") }}info{{ else }}critical{{ end }}'


def down(reason: str, mig: str = "") -> Story:
    """The reason that the exporter gives for GPU 0, from the minute on in which `until(48)` takes it down."""
    labels = {**TARGET, "gpu": "0", "uuid": "GPU-0", "mig": mig, "reason": reason}
    return [series("stallscope_gpu_lost_info", f"_x{scrapes(48)} 1+0x30", **labels)]


@pytest.mark.parametrize(
    ("story", "alerts"),
    [
        # TrainingInputBound and TrainingInputCpuSaturated
        pytest.param(rank(wait=0.3) + gpu(idle=0.3) + host(0.3), [INPUT_BOUND], id="input bound"),
        pytest.param(rank(wait=0.12) + gpu(idle=0.12) + host(0.3), [INPUT_BOUND], id="input bound, a little"),
        pytest.param(rank(wait=0.3, gpus=()), [INPUT_BOUND], id="input bound, no GPU"),
        pytest.param(rank(wait=0.3) + gpu(idle=0.3) + host(0.97), [INPUT_CPU], id="input, CPUs saturated"),
        pytest.param(rank(wait=0.12) + gpu(idle=0.12) + host(0.97), [INPUT_CPU], id="input, CPUs saturated, a little"),
        pytest.param(
            rank(wait=0.3, job_class="experiment") + gpu(idle=0.3),
            [INPUT_BOUND | {"severity": "info"}],
            id="an experiment's input is info",
        ),
        pytest.param(
            rank(wait=0.3, job_class="experiment") + gpu(idle=0.3) + host(0.97),
            [INPUT_CPU | {"severity": "info"}],
            id="an experiment's CPUs are info",
        ),
        pytest.param(rank(wait=0.3) + gpu(idle=0.0) + host(0.97), [HOST_FULL], id="hidden wait"),
        pytest.param(rank(wait=0.08) + gpu(idle=0.3) + host(0.97), [], id="under the warning level"),
        pytest.param(rank(wait=0.01) + gpu(idle=0.3) + host(0.97), [HOST_FULL], id="idle GPU, CPUs saturated, no wait"),
        pytest.param(rank(wait=0.3, first_step=2700) + gpu(idle=0.3), [], id="warm-up"),
        pytest.param(rank(wait=0.3, state="finished") + gpu(idle=0.3), [], id="finished run"),
        pytest.param(rank(wait=0.3) + gpu(idle=None), [], id="no GPU metrics"),
        pytest.param(rank(wait=None) + gpu(idle=0.9) + host(0.97), [HOST_FULL], id="wait not measured"),
        pytest.param(
            rank(wait=0.3, activity={"training": steady(0), "evaluation": steady(1)}) + gpu(idle=0.5),
            [],
            id="evaluation",
        ),
        pytest.param(
            rank(wait=0.3, activity={"training": steady(0), "paused": steady(1)}) + gpu(idle=1.0), [], id="paused"
        ),
        # TrainingStalled
        pytest.param(rank(last_step=growing_until(40)) + gpu(idle=0.5), [STALLED], id="stalled and reporting"),
        pytest.param(
            rank(last_step=growing_until(40), last_push=growing_until(40)) + gpu(idle=0.5),
            [STALLED],
            id="stalled and silent",
        ),
        pytest.param(
            rank(last_push=growing_until(15), activity={"evaluation": steady(1)}) + gpu(),
            [STALLED],
            id="silent in evaluation beyond its limit",
        ),
        pytest.param(
            rank(last_step=growing_until(40), job_class="experiment") + gpu(),
            [STALLED | {"severity": "info"}],
            id="an experiment's stall is info",
        ),
        pytest.param(rank(last_step=growing_until(49)) + gpu(), [], id="a minute without a step"),
        pytest.param(
            rank(last_step=growing_until(40), step_seconds=200) + gpu(), [], id="ten minutes, where steps take three"
        ),
        pytest.param(
            rank(last_step=growing_until(15), activity={"evaluation": steady(1)}) + gpu(), [], id="long evaluation"
        ),
        pytest.param(
            rank(last_step=growing_until(15), activity={"training": until(49, 0, 1), "evaluation": until(49)}) + gpu(),
            [],
            id="back from a long evaluation",
        ),
        pytest.param(
            rank(last_step=growing_until(15), last_push=growing_until(15), activity={"paused": steady(1)}) + gpu(),
            [],
            id="paused without a word",
        ),
        pytest.param(
            rank(
                state="starting",
                last_step=steady(0),
                last_push=growing_until(1),
                steps=steady(0),
                activity={"initialization": steady(1)},
            )
            + gpu(),
            [],
            id="long start",
        ),
        pytest.param(rank(last_step=growing_until(15), state="finished") + gpu(held=False), [], id="ended run"),
        # GpuThermalThrottle
        pytest.param(
            rank() + gpu(throttled={"hw_thermal": 0.3}, clock=0.6), [THERMAL | IN_RUN], id="throttled by hardware"
        ),
        pytest.param(
            rank() + gpu(throttled={"sw_thermal": 0.3}, clock=0.8), [THERMAL | IN_RUN], id="throttled by driver"
        ),
        pytest.param(gpu(throttled={"hw_thermal": 0.3}, clock=0.6), [THERMAL], id="throttled, no run"),
        pytest.param(gpu(throttled={"hw_thermal": 0.3}, clock=None), [THERMAL], id="throttled, clock unknown"),
        pytest.param(
            rank(job_class="experiment") + gpu(throttled={"hw_thermal": 0.3}, clock=0.6),
            [THERMAL | IN_RUN],
            id="an experiment's hardware stays a warning",
        ),
        pytest.param(rank() + gpu(celsius=73), [], id="73 degrees without throttling"),
        pytest.param(rank() + gpu(throttled={"power_cap": 0.9}, clock=0.7), [], id="power cap alone"),
        pytest.param(
            rank() + gpu(throttled={"sw_thermal": 0.5}, clock=0.97), [], id="driver's slowdown near full clocks"
        ),
        pytest.param(
            rank() + gpu(throttled={"sw_thermal": 0.5}, clock=None), [], id="driver's slowdown, clock unknown"
        ),
        pytest.param(rank() + gpu(throttled={"hw_thermal": 0.05}, clock=0.6), [], id="throttled now and then"),
        # GpuLost
        pytest.param(rank() + gpu(up=until(48), idle=None), [LOST | IN_RUN], id="lost under a run"),
        pytest.param(gpu(up=until(48), idle=None), [LOST], id="lost, no run"),
        pytest.param(gpu(up=until(48), idle=None) + down("gpu_lost"), [LOST], id="lost, with its reason"),
        pytest.param(gpu(up=until(48), idle=None) + down("released"), [], id="the driver was released on request"),
        pytest.param(gpu(up=until(48), idle=None) + down("suspended"), [], id="the kernel put an idle GPU to sleep"),
        pytest.param(
            gpu(up=until(48), idle=None, mig="1g.10gb") + down("mig_reconfigured", mig="1g.10gb"),
            [],
            id="a MIG instance was taken apart",
        ),
        pytest.param(
            rank(job_class="experiment") + gpu(up=until(48), idle=None), [LOST | IN_RUN], id="lost under an experiment"
        ),
        pytest.param(gpu(up="1+0x90 0 1+0x29"), [], id="away for one reading"),
        # GpuUnderused
        pytest.param(gpu(idle=0.0, busy=0.4, low_samples=1.0), [UNDERUSED], id="underused without shim"),
        pytest.param(gpu(idle=0.0, busy=0.6, low_samples=0.9), [], id="mostly low, often high"),
        pytest.param(gpu(idle=1.0, busy=0.0, low_samples=1.0, held=False), [], id="unclaimed and idle"),
        pytest.param(gpu(idle=1.0, busy=0.0, low_samples=1.0), [], id="held and idle is another cause"),
        pytest.param(rank() + gpu(idle=0.0, busy=0.4, low_samples=1.0), [], id="a run reports more"),
        pytest.param(
            rank() + gpu(0) + gpu(1, idle=1.0, busy=0.0, low_samples=1.0, held=False), [], id="GPU outside the job"
        ),
    ],
)
@pytest.mark.nightly  # test_score has a labelled case of each cause
def test_alerts_fire_on_their_cause_and_on_nothing_else(
    rulebook: Rulebook, story: Story, alerts: Sequence[Labels]
) -> None:
    rulebook.check_firing(exporter() + story, alerts)


@pytest.mark.parametrize(("share", "early"), [(0.3, [INPUT_BOUND]), (0.12, [])])
def test_a_high_loss_alerts_after_five_minutes_and_a_lower_one_after_ten(
    rulebook: Rulebook, share: float, early: Sequence[Labels]
) -> None:
    story = exporter() + rank(wait=share) + gpu(idle=share)  # judged in the first two minutes
    rulebook.check_firing(story, early, at="9m")
    rulebook.check_firing(story, [INPUT_BOUND], at="20m")


def test_an_alert_goes_on_while_the_loss_is_only_a_little_less(rulebook: Rulebook) -> None:
    """0.3 for half an hour, then 0.09 and faster steps: under the warning level, not under eight tenths of it."""
    lessening = f"0+9x60 {0.3 * 1800 + 2.7:g}+2.7x60"
    story = exporter() + [
        (name, lessening if "data_wait" in name else values) for name, values in rank(wait=0.3) + gpu(idle=0.9)
    ]
    faster = {"forward": f"0+21x60 {0.7 * 1800 + 27.3:g}+27.3x60", "step_seconds": "0+30x60 1839+39x60"}
    story = [
        (name, next((faster[each] for each in faster if each in name and values != steady(0)), values))
        for name, values in story
    ]
    rulebook.check_firing(story, [INPUT_BOUND], at="55m")


def test_an_alert_ends_ten_minutes_after_its_cause(rulebook: Rulebook) -> None:
    story = exporter() + rank() + gpu(idle=0.4)
    story = [
        ("stallscope_training_phase_seconds_total" + name.split("total")[1], growing_until(20, 0.3))
        if "data_wait" in name
        else (name, values)
        for name, values in story
    ]
    rulebook.check_firing(story, [INPUT_BOUND], at="30m")
    rulebook.check_firing(story, [], at="40m")


def test_an_alert_fires_for_each_of_two_runs_that_share_a_gpu(rulebook: Rulebook) -> None:
    story = exporter() + rank(run="one") + rank(run="two") + gpu(up=steady(0), idle=None)
    rulebook.check_firing(story, [LOST | {"run": "one"}, LOST | {"run": "two"}])


def test_alerts_carry_the_labels_of_their_subject(rulebook: Rulebook) -> None:
    story = exporter() + rank(wait=0.3) + gpu(idle=0.3, throttled={"hw_thermal": 0.3}, clock=0.6)
    gpu_labels = {"instance": "node1:19400", "gpu": "0", "uuid": "GPU-0", "rank": "0"}
    rulebook.check_firing(
        story,
        [INPUT_BOUND | {"cause": "input_bound"}, THERMAL | IN_RUN | gpu_labels | {"cause": "thermal_throttle"}],
        by="alertname, severity, cause, run, rank, instance, gpu, uuid",
    )


def exporter_alert(name: str, **labels: str) -> dict[str, str]:
    return {"alertname": name, "severity": "warning", "instance": "node1:19400", **labels}


@pytest.mark.parametrize(
    ("story", "alerts"),
    [
        pytest.param(
            [series("up", until(40), **TARGET)], [exporter_alert("StallscopeExporterDown")], id="exporter down"
        ),
        pytest.param([], [{"alertname": "StallscopeExporterDown", "severity": "warning"}], id="no exporter at all"),
        pytest.param([*exporter(), series("up", steady(0), job="node")], [], id="another job's target down"),
        pytest.param(
            [*exporter(), series("stallscope_exporter_source_up", until(40), source="nvidia", **TARGET)],
            [exporter_alert("StallscopeSourceFailing")],
            id="source failing",
        ),
        pytest.param(
            [*exporter(), series("stallscope_exporter_source_up", steady(1), source="nvidia", **TARGET)],
            [],
            id="source well",
        ),
        pytest.param(
            [
                *exporter(),
                series(REJECTED, growing(0.1), reason="too_large", **TARGET),
            ],
            [exporter_alert("StallscopeReportsRejected")],
            id="reports rejected",
        ),
        pytest.param(
            [
                *exporter(),
                series(REJECTED, steady(7), reason="too_large", **TARGET),
            ],
            [],
            id="reports rejected long ago",
        ),
    ],
)
def test_alerts_on_stallscope_fire_on_their_cause_and_on_nothing_else(
    rulebook: Rulebook, story: Story, alerts: Sequence[Labels]
) -> None:
    rulebook.check_firing(story, alerts, by="alertname, severity, instance")


def spoilt_thresholds(folder: Path, name: str, fault: str) -> tuple[Path, ...]:
    """Return the rule files with a threshold that is missing or defined twice."""
    document = yaml.safe_load(RULE_FILES[0].read_text())
    rules = document["groups"][0]["rules"]
    (spoilt,) = (rule for rule in rules if rule["labels"]["name"] == name)
    if fault == "missing":
        rules.remove(spoilt)
    else:
        rules.append({**spoilt, "expr": "vector(0.5)", "labels": {"name": name, "origin": "mine"}})
    thresholds = folder / "thresholds.yml"
    thresholds.write_text(yaml.safe_dump(document))
    return (thresholds, *RULE_FILES[1:])


@pytest.mark.parametrize(("fault", "named"), [("missing", {}), ("twice", {"name": "input_warning"})])
def test_a_threshold_that_is_missing_or_defined_twice_raises_one_alert(
    rulebook: Rulebook, tmp_path: Path, fault: str, named: Labels
) -> None:
    rulebook.check_firing(
        exporter(),
        [{"alertname": "StallscopeThresholdMissing", **named}],
        at="20m",
        by="alertname, name",
        rule_files=spoilt_thresholds(tmp_path, "input_warning", fault),
    )


def test_no_thresholds_at_all_raise_an_alert(rulebook: Rulebook) -> None:
    missing = 'count(ALERTS{alertname="StallscopeThresholdMissing", alertstate="firing"})'
    rulebook.check(exporter(), {missing: [({}, 1)]}, rule_files=RULE_FILES[1:])


@pytest.mark.parametrize("name", ["clear_ratio", "input_notice", "warmup_steps"])
@pytest.mark.parametrize("fault", ["missing", "twice"])
def test_every_subject_keeps_one_verdict_where_a_threshold_is_missing_or_defined_twice(
    rulebook: Rulebook, tmp_path: Path, fault: str, name: str
) -> None:
    verdicts = {"rank:verdict:ratio5m": 1, "run:verdict:ratio5m": 1, "gpu:verdict:ratio5m": 1}
    rulebook.check(
        exporter() + rank(wait=0.3) + gpu(idle=0.3),
        {f"count({verdict})": [({}, count)] for verdict, count in verdicts.items()},
        at="12m",
        rule_files=spoilt_thresholds(tmp_path, name, fault),
    )


def test_a_symptom_of_a_gpu_or_a_host_is_a_page_only_while_in_use() -> None:
    alerts = {rule["alert"]: rule for rule in rules(ALERT_FILES) if rule.get("alert", "").startswith(("Gpu", "Host"))}
    pages = {name: rule["labels"]["severity"] for name, rule in alerts.items() if "critical" in str(rule["labels"])}
    assert len(alerts) == 27
    assert pages == {
        **dict.fromkeys(
            ("GpuLost", "GpuXidHw", "GpuEccUncorrected", "GpuRowRemapFailed", "GpuPowerBrake"),
            "{{ if $labels.unused }}warning{{ else }}critical{{ end }}",
        ),
        "HostOomKill": OOM_KILL_SEVERITY,
    }


def test_the_watchdog_always_fires(rulebook: Rulebook) -> None:
    watchdog = 'count by (alertname) (ALERTS{alertname="StallscopeWatchdog",alertstate="firing"})'
    rulebook.check([], {watchdog: [({"alertname": "StallscopeWatchdog"}, 1)]}, at="1m")


LOADERS = "stallscope_training_dataloader_workers"


def code(per_second: str, phase: str, location: str, function: str, run: str = "train") -> tuple[str, str]:
    labels = {**TARGET, "run": run, "rank": "0", "phase": phase, "location": location, "function": function}
    return series("stallscope_training_code_seconds_total", per_second, **labels)


SLOW_LINE = code(growing(0.3), "data_wait", "data/augment.py:41", "elastic > scipy.map", "my run")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ((), ""),
        ((SLOW_LINE,), "60 % of the wait is in data/augment.py:41 elastic > scipy.map."),
        (
            (SLOW_LINE, series(LOADERS, steady(4), run="my run", rank="0", **TARGET)),
            "60 % of the wait is in data/augment.py:41 elastic > scipy.map, with 4 loader workers.",
        ),
    ],
)
def test_the_text_gives_the_figure_and_the_speed_that_could_be_had(
    rulebook: Rulebook, code: Sequence[tuple[str, str]], line: str
) -> None:
    url = "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks/"
    rulebook.check_text(
        [*exporter(), *rank(wait=0.5, run="my run", namespace="a&b"), *gpu(idle=0.5), *host(0.97), *code],
        "TrainingInputCpuSaturated",
        {
            "namespace": "a&b",
            "run": "my run",
            "severity": "warning",
            "cause": "input_cpu_saturated",
            "job_class": "production",
        },
        {
            "summary": "Training run waits for data: its CPUs are saturated.",
            "description": (
                "Run my run loses 50 % of its GPU time waiting for batches that the CPUs cannot prepare in time: "
                f"without that it would be up to 2.0 times as fast.{line and ' '}{line} More workers will not help. "
                "Decode and augment less per sample (cache decoded data, resize offline, decode faster or on the GPU), "
                "or give the job more CPUs per GPU. If other programs use the CPUs, run them elsewhere."
            ),
            "line": line,
            "lost": "12.0 GPU-hours a day",
            "runbook_url": url + "TrainingInputCpuSaturated.md",
            "dashboard_url": "/d/stallscope-run?var-run=my+run&var-namespace=a%26b",
        },
    )


def test_the_text_on_a_cause_that_is_not_the_verdict_names_the_line_of_its_own_phase(rulebook: Rulebook) -> None:
    lines = [
        code(growing(0.2), "data_wait", "augment.py:41", "elastic"),
        code(growing(0.15), "logging", "log.py:9", ""),
    ]
    url = "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks/TrainingCallbackStall.md"
    line = "75 % of phase logging is in log.py:9."
    rulebook.check_text(
        [*exporter(), *rank(wait=0.4, phases={"logging": 0.2}), *gpu(idle=0.6), *lines],
        "TrainingCallbackStall",
        {"run": "train", "severity": "warning", "cause": "callback_stall", "job_class": "production"},
        {
            "summary": "Logging or callbacks block training.",
            "description": (
                "GPUs of run train idle for 20 % of the time while the loop logs, runs callbacks or is in a phase with "
                f"a custom name. {line} Move that work to a thread, do it less often, and reduce on the GPU before "
                "copying (one number, not a tensor); stallscope_training_phase_max_seconds names the longest."
            ),
            "line": line,
            "lost": "4.8 GPU-hours a day",
            "runbook_url": url,
            "dashboard_url": "/d/stallscope-run?var-run=train",
        },
    )


@pytest.mark.parametrize(
    ("before", "began"),
    [
        pytest.param([], "", id="at once"),
        pytest.param(
            [series(XID, f"_x{scrapes(46)} {60 * 46}+0x30", **TARGET, gpu="0", uuid="GPU-0", mig="", xid="79")],
            " It began as hardware error Xid 79 (GpuXidHw).",
            id="after an error",
        ),
    ],
)
def test_the_text_of_a_lost_gpu_names_the_run_that_it_stops_and_the_alert_before_it(
    rulebook: Rulebook, before: Story, began: str
) -> None:
    url = "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks/"
    rulebook.check_text(
        exporter() + rank(3) + gpu(up=until(48), idle=None) + before,
        "GpuLost",
        {**TARGET, "gpu": "0", "uuid": "GPU-0", "run": "train", "rank": "3", "severity": "critical", "cause": "lost"},
        {
            "summary": "GPU is lost: it cannot be read any more.",
            "description": (
                "GPU 0 (GPU-0) of node1:19400 can no longer be read: all of its time (100 %) is lost, and run train, "
                f"which had rank 3 on it, cannot continue.{began} Drain the node, read the kernel log for Xid 79, and "
                "reboot; if the GPU is lost again, reseat or replace it."
            ),
            "lost": "24.0 GPU-hours a day",
            "runbook_url": url + "GpuLost.md",
            "dashboard_url": "/d/stallscope-gpu?var-instance=node1%3A19400&var-gpu=0",
        },
    )


def test_the_text_on_a_loss_that_is_no_number_names_the_first_rank_and_the_faults_of_its_gpu(
    rulebook: Rulebook,
) -> None:
    story = exporter()
    for number, since in enumerate((101, 100)):
        labels = {**TARGET, "run": "train", "rank": str(number)}
        story += rank(number, gpus=((str(number), f"GPU-{number}"),))
        story += gpu(number)
        story.append(series("stallscope_training_nonfinite_losses_total", "0+0x20 1+30x99", **labels))
        story.append(series("stallscope_training_nonfinite_since_step", f"_x20 {since}+0x99", **labels))
    faulty = {**TARGET, "gpu": "1", "uuid": "GPU-1"}
    story.append(series("stallscope_gpu_xid_last_timestamp_seconds", steady(300), xid="94", **faulty))
    story.append(series("stallscope_gpu_ecc_errors_total", until(45, 0, 2), kind="uncorrected", **faulty))
    rulebook.check_text(
        story,
        "TrainingLossNonfinite",
        {"run": "train", "severity": "critical", "cause": "loss_nonfinite", "job_class": "production"},
        {
            "summary": "Training loss is NaN or infinite.",
            "description": (
                "100 % of the ranks of run train report only losses that are NaN or infinite: every further step is "
                "wasted. It began on rank 1, GPU 1 of node1:19400. In the last hour its GPU reported Xid 94. In the "
                "last hour its memory had 2 uncorrected errors. Stop the run, go back to the last good checkpoint, and "
                "lower the learning rate, clip gradients or use bf16 instead of fp16; check the first bad batch."
            ),
            "lost": "48.0 GPU-hours a day",
            "runbook_url": "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks/TrainingLossNonfinite.md",
            "dashboard_url": "/d/stallscope-run?var-run=train",
        },
    )


def stack(number: int, location: str, call: str) -> Story:
    labels = {**TARGET, "run": "train", "rank": str(number), "location": location, "function": "step", "call": call}
    return [series("stallscope_training_stack_info", steady(1), **labels)]


@pytest.mark.parametrize(
    ("odd", "suspect", "search", "place"),
    [
        (
            "job/dataset.py:12",
            "The first suspect is rank 3 of node1:19400. ",
            "",
            "Rank 3 is in read_sample at job/dataset.py:12, unlike most ranks.",
        ),
        (
            "",
            "",
            ", find the rank whose stack differs from the others",
            "Stack of 4 of its ranks: in all_reduce at job/trainer.py:88.",
        ),
    ],
)
def test_the_text_on_a_stall_names_the_rank_that_differs_and_its_line(
    odd: str, suspect: str, search: str, place: str, rulebook: Rulebook
) -> None:
    story = exporter()
    for number in range(4):
        story += rank(number, gpus=(), last_step=growing_until(40))
        is_odd = odd and number == 3
        story += stack(number, odd if is_odd else "job/trainer.py:88", "read_sample" if is_odd else "all_reduce")
    rulebook.check_text(
        story,
        "TrainingStalled",
        {**STALLED, "cause": "stalled", "job_class": "production"},
        {
            "summary": "Training is stalled, but its processes are alive.",
            "description": (
                "100 % of the ranks of run train have not completed a step for over a minute, and for far longer than "
                f"their steps usually take. {suspect}{place} Before the job is killed, save the stacks of all ranks "
                f"(`stallscope stacks train`, py-spy dump, or the collective library's flight recorder){search}, then "
                "restart from the last checkpoint."
            ),
            "line": place,
            "lost": "",
            "runbook_url": "https://github.com/stallscope/stallscope/blob/main/alerts/runbooks/TrainingStalled.md",
            "dashboard_url": "/d/stallscope-run?var-run=train",
        },
    )


STRAGGLER_PHASES = {"forward": 0.3, "backward": 0.5, "communication": 0.01}
WAITING_PHASES = {"forward": 0.3, "backward": 0.29, "communication": 0.21}


def delayed(clock: float = 1.0, throttled: dict[str, float] | None = None) -> Story:
    """Three ranks that wait for rank 0, whose GPU may be slow."""
    story = exporter()
    for number in range(4):
        phases = WAITING_PHASES if number else STRAGGLER_PHASES
        story += rank(number, phases=phases, other_phase="optimizer", gpus=((str(number), f"GPU-{number}"),))
        story += gpu(number, idle=0.0) if number else gpu(0, idle=0.0, clock=clock, throttled=throttled)
    return story


def straggler_text(cause: str, description: str, summary: str) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations of an alert on rank 0 that delays the others."""
    name = "".join(word.capitalize() for word in cause.split("_"))
    labels = {"run": "train", "rank": "0", "severity": "warning", "cause": cause, "job_class": "production"}
    annotations = {
        "summary": summary,
        "description": description,
        "lost": "19.2 GPU-hours a day",
        "runbook_url": f"https://github.com/stallscope/stallscope/blob/main/alerts/runbooks/Training{name}.md",
        "dashboard_url": "/d/stallscope-run?var-run=train",
    }
    return labels, annotations


def test_the_text_on_slow_hardware_names_gpu_node_and_root_cause_with_its_remedy(rulebook: Rulebook) -> None:
    labels, annotations = straggler_text(
        "straggler_hw",
        "The other ranks of run train wait 20 % of each step for rank 0, GPU 0 of node1:19400: slowed by heat. Check "
        "airflow, fans and inlet temperature. See that GPU's alerts; drain or replace it if it lasts, and go on "
        "without its node meanwhile.",
        "The hardware of one rank delays all others.",
    )
    rulebook.check_text(delayed(0.7, {"hw_thermal": 1.0}), "TrainingStragglerHw", labels, annotations)


def test_the_text_on_slow_hardware_without_a_root_cause_names_the_two_clocks(rulebook: Rulebook) -> None:
    labels, annotations = straggler_text(
        "straggler_hw",
        "The other ranks of run train wait 20 % of each step for rank 0, GPU 0 of node1:19400, whose GPU is slow: its "
        "clock is at 70 % of its maximum, the other ranks' at 100 %. See that GPU's alerts; drain or replace it if it "
        "lasts, and go on without its node meanwhile.",
        "The hardware of one rank delays all others.",
    )
    rulebook.check_text(delayed(0.7), "TrainingStragglerHw", labels, annotations)


def test_the_text_on_a_slow_rank_names_its_gpu_and_node(rulebook: Rulebook) -> None:
    labels, annotations = straggler_text(
        "straggler_rank",
        "The other ranks of run train wait 20 % of each step for rank 0, GPU 0 of node1:19400; neither its input nor "
        "its GPU shows a reason. Compare its work (longer sequences, more experts or layers, logging on rank 0) and "
        "its host (other jobs, CPU binding) with the others'; rebalance the work, or move the rank to another node.",
        "One rank delays all others.",
    )
    rulebook.check_text(delayed(), "TrainingStragglerRank", labels, annotations)


def test_shares_times_and_sizes_in_texts_are_rounded_and_written_as_in_the_report(tmp_path: Path) -> None:
    written = {
        "humanizePercentage": {0.3812: "38 %", 1.0: "100 %", 0.0: "0 %", 0.005: "1 %"},
        "humanizeDuration": {7.582: "7.6 s", 0.25: "200 ms", 60: "1 min", 7384.6: "2 h 3 min", 86410: "1 d"},
        "humanize1024": {512: "512 ", 1536: "1.5 Ki", 1.87 * 2**30: "1.9 Gi", 79.649 * 2**30: "79.6 Gi"},
    }
    cases = [(function, value, text) for function, texts in written.items() for value, text in texts.items()]
    alerts = [
        {
            "alert": f"A{number}",
            "expr": f"vector({value:.10g})",
            "annotations": {"text": rounded(f"{{{{ $value | {function} }}}}")},
        }
        for number, (function, value, _) in enumerate(cases)
    ]
    rules_file = tmp_path / "rules.yml"
    rules_file.write_text(json.dumps({"groups": [{"name": "texts", "rules": alerts}]}))
    tests = [
        {"alertname": f"A{number}", "eval_time": "1m", "exp_alerts": [{"exp_annotations": {"text": text}}]}
        for number, (_, _, text) in enumerate(cases)
    ]
    document = {"rule_files": [str(rules_file)], "tests": [{"alert_rule_test": tests}]}
    output = run_promtool(document, tmp_path / "test.yml")
    assert "SUCCESS" in output, output
