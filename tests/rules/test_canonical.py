"""Other people's exporters: their series become ours, once, and the verdicts come out as with an exporter of ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from prometheus import canonical_rules
from tests import waiting
from tests.free_ports import free_port
from tests.known_names import BY_SERIES_NAME, rules
from tests.nvml_library.stand_in import NvmlStandIn
from tests.promql_names import names_in
from tests.rules.rulebook import (
    CANONICAL_FILES,
    LENGTH,
    RULE_FILES,
    TARGET,
    Labels,
    Rulebook,
    Story,
    gpu,
    growing,
    growing_until,
    host,
    rank,
    run_tool,
    scrapes,
    series,
    steady,
    until,
)

PAGES = Path(__file__).parent / "expositions"
_NUMBER = "8f1f4d06-07fd-27a7-52d5-e58aa060d256"
"""Of the NVIDIA GPU on all pages; on a node of a story its own name stands for it."""
FILES = (
    *CANONICAL_FILES,
    *(
        path
        for path in RULE_FILES
        if path.stem not in ("hours", "memory", "ranks", "causes") and path.parent.name == "rules"
    ),
    *(path for path in RULE_FILES if path.stem == "gpu_hardware"),
)
"""Rules that judge GPUs, and rules that find what a run waits for."""
IDLE = ("canonical", "canonical_dcgm", "subjects", "trends", "signals", "input", "use", "verdicts")
"""Rules that judge an idle GPU, except the thresholds."""
MEASURED = {"job": "gpu", "measured_by": "dcgm-exporter"}
SUBJECT = {"instance": "well:9400", "gpu": "0", "uuid": "GPU-well"}
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def page(text: str, values: Mapping[str, str], **target: str) -> Story:
    """Return the series that scrapes of a page yield: each value for an hour, except those that are named."""
    story = [series("up", steady(1), **target)]
    for line in text.splitlines():
        if sample := _SAMPLE.match(line):
            name, labels, value = sample.groups()
            found = dict(_LABEL.findall(labels or ""))
            story.append(series(name, values.get(name, steady(float(value))), **found | target))
    return story


def exposed(file: str, values: Mapping[str, str] | None = None, *, uuid: str = "", **target: str) -> Story:
    """A recorded page, scraped; its GPU has the name of the node, where no other is given."""
    at = {"job": "gpu", "instance": "node1:9400"} | target
    text = (PAGES / f"{file}.prom").read_text(encoding="utf-8")
    return page(text.replace(_NUMBER, uuid or at["instance"].partition(":")[0]), values or {}, **at)


def ours(**target: str) -> Story:
    """An exporter of ours."""
    labels = {**TARGET, **target}
    return [series("up", steady(1), **labels), series("stallscope_build_info", steady(1), version="1", **labels)]


def without(story: Story, *names: str) -> Story:
    """All but some series."""
    return [each for each in story if each[0].partition("{")[0] not in names]


def labelled(story: Story, **labels: str) -> Story:
    """The story with labels besides."""
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    return [(name.removesuffix("}") + more + "}", values) for name, values in story]


A, B, C = "dcgm_exporter_4_8", "dcgm_exporter_aliases", "dcgm_exporter_4_9"
DIALECTS: Mapping[str, Mapping[str, tuple[str, Mapping[str, str]]]] = {
    A: {
        "idle": ("", {"DCGM_FI_DEV_GPU_UTIL": steady(0)}),
        "low": ("underused", {"DCGM_FI_DEV_GPU_UTIL": steady(50)}),
        "hot": (
            "thermal_throttle",
            {"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": steady(8 + 64), "DCGM_FI_DEV_SM_CLOCK": steady(990)},
        ),
        "capped": ("healthy", {"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": steady(1 + 4), "DCGM_FI_DEV_SM_CLOCK": steady(990)}),
        "xid": ("xid_hw", {"DCGM_FI_DEV_XID_ERRORS": until(15, 0, 79)}),
        "old xid": ("healthy", {"DCGM_FI_DEV_XID_ERRORS": steady(79)}),
    },
    B: {
        "idle": ("", {"DCGM_FI_DEV_GPU_UTIL_RATIO": steady(0)}),
        "low": ("underused", {"DCGM_FI_DEV_GPU_UTIL_RATIO": steady(50)}),
        "hot": (
            "thermal_throttle",
            {
                "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS": growing(1e9),
                "DCGM_FI_DEV_SM_CLOCK": steady(990),
            },
        ),
        "xid": ("xid_hw", {"DCGM_FI_DEV_XID_ERROR": until(15, 0, 79)}),
    },
    C: {
        "idle": ("", {"DCGM_FI_DEV_GPU_UTIL_RATIO": steady(0)}),
        "low": ("underused", {"DCGM_FI_DEV_GPU_UTIL_RATIO": steady(0.5)}),
        "hot": (
            "thermal_throttle",
            {
                "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL": growing(1),
                "DCGM_FI_DEV_SM_CLOCK_HERTZ": steady(0.99e9),
            },
        ),
        "xid": ("xid_hw", {"DCGM_FI_DEV_XID_ERROR": until(15, 0, 79)}),
    },
}
"""Cases of each dialect: the fault of a GPU, the verdict, and the series that report it."""


def test_the_files_are_what_is_generated() -> None:
    assert {path.stem for path in CANONICAL_FILES} == set(canonical_rules.FILES)
    for path in CANONICAL_FILES:
        assert path.read_text(encoding="utf-8") == canonical_rules.rule_file(path.stem), "run `make generate`"


def test_promtool_accepts_the_files() -> None:
    run_tool("promtool", "check", "rules", "--lint-fatal", *map(str, CANONICAL_FILES))


def test_what_is_recorded_is_in_the_catalogue_or_named_as_rules_are() -> None:
    for path in CANONICAL_FILES:
        for rule in rules((path,)):
            assert rule["record"] in BY_SERIES_NAME or re.fullmatch(r"\w+:\w+:\w+", rule["record"])
            family = BY_SERIES_NAME.get(rule["record"])
            own = {"measured_by"} | ({*family.all_labels, "le"} if family else {"pipe", "reason"})
            assert rule.get("labels", {}).keys() <= own, rule["record"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_dcgm_alone_gets_its_gpus_the_verdicts_that_ours_would_have_given_them(
    dialect: str, rulebook: Rulebook
) -> None:
    nodes = {f"{trouble}:9400": case for trouble, case in DIALECTS[dialect].items() if case[0]}
    nodes["well:9400"] = ("healthy", {})
    rulebook.check(
        [each for instance, (_cause, values) in nodes.items() for each in exposed(dialect, values, instance=instance)],
        {
            "sum by (instance, cause) (gpu:verdict:ratio5m >= bool 0)": [
                ({"instance": instance, "cause": cause}, 1) for instance, (cause, _values) in nodes.items()
            ],
            # What the verdicts rest on: all dialects and units come to the same.
            'round(100 * rate(stallscope_gpu_busy_seconds_total{instance="well:9400"}[5m]))': [
                ({"job": "gpu", "measured_by": "dcgm-exporter", **SUBJECT}, 95)
            ],
            'round(stallscope_gpu_memory_used_bytes{instance="well:9400"} / 2^20)': [
                ({"job": "gpu", "measured_by": "dcgm-exporter", **SUBJECT}, 40544)
            ],
            'stallscope_gpu_clock_hertz{instance="well:9400", clock="sm"} / 1e9': [
                ({"job": "gpu", "measured_by": "dcgm-exporter", "clock": "sm", **SUBJECT}, 1.98)
            ],
            'sum(stallscope_gpu_clock_max_hertz{instance="well:9400"}) / 1e9': [({}, 1.98)],
        },
        at="20m",
        rule_files=FILES,
    )


def test_a_gpu_that_a_pod_holds_idle_is_found_in_each_dialect_and_one_that_is_free_is_not(
    tmp_path: Path, rulebook: Rulebook
) -> None:
    story = [
        each
        for dialect in DIALECTS
        for each in exposed(dialect, DIALECTS[dialect]["idle"][1], instance=f"{dialect}:9400")
    ]
    free = [
        (re.sub(',(pod|namespace|container)="[^"]*"', "", name), values)
        for name, values in exposed(A, DIALECTS[A]["idle"][1], instance="free:9400")
    ]
    # With honor_labels off the holder's labels are exported_pod and so on, and the pod is the exporter's own.
    behind = [
        (re.sub(r"(,|{)(pod|namespace|container)=", r"\1exported_\2=", name), values)
        for name, values in exposed(A, DIALECTS[A]["idle"][1], instance="behind:9400")
    ]
    own = {"namespace": "monitoring", "pod": "dcgm-exporter-x"}
    # Relabelling has put the node's name in place of the pod's address; `up` keeps the address.
    at_address = [(re.sub('^(up{.*)"free:9400"', r'\1"10.0.0.9:9400"', name), values) for name, values in free]
    story += labelled(at_address, **own) + labelled(behind, **own)
    soon = tmp_path / "thresholds.yml"
    thresholds = next(path for path in FILES if path.stem == "thresholds").read_text(encoding="utf-8")
    soon.write_text(re.sub(r"({name: idle_seconds}, expr:) .+", r"\1 vector(600)}", thresholds))
    rulebook.check(
        story,
        {
            'count by (instance) (gpu:verdict:ratio5m{cause="idle_allocated"})': [
                ({"instance": f"{node}:9400"}, 1) for node in (*DIALECTS, "behind")
            ],
            'count by (pod, namespace) (stallscope_gpu_owner_info{instance=~"free.*|behind.*"})': [
                ({"pod": "train-0", "namespace": "team"}, 1)
            ],
        },
        at="20m",
        rule_files=[soon, *(path for path in FILES if path.stem in IDLE)],
    )


def test_a_run_on_a_gpu_of_another_exporter_gets_its_verdict(rulebook: Rulebook) -> None:
    waiting = {"DCGM_FI_DEV_GPU_UTIL": steady(50)}
    nodes = {
        # The rank names its GPU: it is found wherever it is scraped.
        "uuid": exposed(A, waiting, uuid="mine", instance="10.0.0.7:9400"),
        # It only knows the index: the exporter is found by the host of its address, or by the host that it names.
        "address": exposed(A, waiting, instance="address:9400"),
        "name": [
            # The target has a label of that name besides.
            (name.replace('hostname="node1"', 'Hostname="name",hostname="name"'), values)
            for name, values in exposed(A, waiting, uuid="other", instance="10.0.0.8:9400")
        ],
        "nvidia_smi": exposed(
            "nvidia_gpu_exporter", {"nvidia_smi_utilization_gpu_ratio": steady(0.5)}, instance="nvidia_smi:9835"
        ),
        "unknown": exposed(A, waiting, uuid="elsewhere", instance="10.0.0.9:9400"),
        "busy": exposed(A, {"DCGM_FI_DEV_GPU_UTIL": steady(97)}, instance="busy:9400"),
    }
    gpus = {"uuid": ("0", "GPU-mine"), "nvidia_smi": ("0", "GPU-nvidia_smi"), "busy": ("0", "GPU-busy")}
    story: Story = []
    for node, page_of_it in nodes.items():
        at = f"{node}:19400"
        story += page_of_it + ours(instance=at) + host(0.2, instance=at)
        story += rank(run=node, wait=0.5, gpus=[gpus.get(node, ("0", ""))], instance=at)
    causes = dict.fromkeys(nodes, "input_bound") | {"unknown": "insufficient_data", "busy": "compute_bound"}
    rulebook.check(
        story,
        {
            "sum by (run, cause) (run:verdict:ratio5m >= bool 0)": [
                ({"run": r, "cause": c}, 1) for r, c in causes.items()
            ]
        },
        at="20m",
        rule_files=FILES,
    )


@pytest.mark.evaluated_every(30)
def test_an_xid_is_dated_once_and_keeps_its_date_when_a_run_begins_on_the_gpu(rulebook: Rulebook) -> None:
    xid = "DCGM_FI_DEV_XID_ERRORS"
    story: Story = []
    # Newer releases export no such series until the first one occurs.
    first = f"_x{scrapes(8) + 1} 79+0x{LENGTH - scrapes(8)}"
    for node, values in {"old": steady(79), "new": until(8, 0, 79), "other": until(8, 31, 79), "first": first}.items():
        at = f"{node}:19400"
        story += exposed(A, {xid: values}, instance=f"10.0.0.{len(story)}:9400", uuid=node) + ours(instance=at)
        # From the tenth minute on the GPU is known under the job and instance of the exporter that the rank reports to.
        begun = rank(run=node, gpus=[("0", f"GPU-{node}")], instance=at)
        story += [(name, f"_x{scrapes(10)} {values}") for name, values in begun]
    rulebook.check(
        story,
        {
            "max by (instance, xid) (stallscope_gpu_xid_last_timestamp_seconds)": [
                ({"instance": f"{node}:19400", "xid": "79"}, 8.5 * 60) for node in ("new", "other", "first")
            ],
        },
        rule_files=FILES,
    )


def test_an_xid_that_repeats_is_dated_where_dcgm_exporter_counts_them(rulebook: Rulebook) -> None:
    total, recent = "DCGM_EXP_XID_ERRORS_TOTAL", "DCGM_EXP_XID_ERRORS_COUNT"
    moved = scrapes(14)
    counts = {
        "total": [(total, until(15, 1, 2), {"xid": "79"})],
        "recent": [(recent, f"_x{scrapes(15)} 1+0x{scrapes(5)} stale", {"xid": "79", "window_size_in_ms": "300000"})],
        # It was there when scrapes began.
        "old": [(total, steady(3), {"xid": "79"})],
        "none": [(recent, steady(0), {"window_size_in_ms": "300000"})],
        # Another pod has the GPU now.
        "pod": [
            (total, f"1+0x{moved} stale", {"xid": "79", "pod": "a"}),
            (total, f"_x{moved} 1+0x{LENGTH - moved}", {"xid": "79", "pod": "b"}),
        ],
        # All minutes but the last are long ago.
        "fewer": [(recent, until(15, 2, 1), {"xid": "79", "window_size_in_ms": "300000"})],
    }
    story: Story = []
    for node, exported in counts.items():
        at = {"job": "gpu", "instance": f"{node}:9400"}
        story += exposed(A, {"DCGM_FI_DEV_XID_ERRORS": steady(79)}, **at)
        for name, values, labels in exported:
            story.append(series(name, values, gpu="0", UUID=f"GPU-{node}", **labels, **at))
    rulebook.check(
        story,
        {
            "sum by (instance, cause) (gpu:verdict:ratio5m >= bool 0)": [
                ({"instance": f"{node}:9400", "cause": "xid_hw" if node in ("total", "recent") else "healthy"}, 1)
                for node in counts
            ],
            # Reported while that is uncertain.
            "max by (instance, xid) (max_over_time(stallscope_gpu_xid_last_timestamp_seconds[1h])) > bool 15 * 60": [
                ({"instance": f"{node}:9400", "xid": "79"}, 1) for node in ("total", "recent")
            ],
            "sum by (instance, xid) (stallscope_gpu_xid_events_total)": [
                ({"instance": f"{node}:9400", "xid": "79"}, count)
                for node, count in (("total", 2), ("old", 3), ("pod", 1))
            ],
        },
        rule_files=FILES,
    )


def test_ours_goes_first_and_another_takes_over_when_it_dies_until_it_is_back(rulebook: Rulebook) -> None:
    story = (
        away(ours() + gpu(uuid="GPU-node1", idle=0.5, low_samples=1.0))
        + exposed(A, {"DCGM_FI_DEV_GPU_UTIL": steady(50)})
        # Two jobs scrape it; and beside it the next one is never needed.
        + exposed(A, {"DCGM_FI_DEV_GPU_UTIL": steady(50)}, job="annotated")
        + exposed("nvidia_gpu_exporter", instance="node1:9835", job="smi")
    )
    for at, instance, measured_by in (
        ("9m", "node1:19400", []),
        ("19m", "node1:9400", [({"measured_by": "dcgm-exporter"}, 1)]),
        ("28m", "node1:19400", []),
    ):
        rulebook.check(
            story,
            {
                "count by (instance) (gpu:up:max)": [({"instance": instance}, 1)],
                'count by (measured_by) (stallscope_gpu_power_watts{measured_by!=""})': measured_by,
                "sum(cluster:gpus_known:count)": [({}, 1)],
                "sum by (instance, cause) (gpu:verdict:ratio5m >= bool 0)": [
                    ({"instance": instance, "cause": "underused"}, 1)
                ],
            },
            at=at,
            rule_files=FILES,
        )
    rulebook.check(
        story,
        {
            "count by (instance) (gpu:up:max)": [({"instance": "node1:19400"}, 1)],
            "sum(cluster:gpus_known:count)": [({}, 1)],
        },
        at="21m",
        rule_files=FILES,
    )


def away(story: Story) -> Story:
    """Return the series without samples from the tenth to the 20th minute."""
    begin, end = scrapes(10), scrapes(20)

    def interrupted(values: str) -> str:
        first, step = (float(each) for each in values.removesuffix(f"x{LENGTH}").split("+"))
        return f"{first:g}+{step:g}x{begin} stale _x{end - begin - 2} {first + step * end:g}+{step:g}x{LENGTH - end}"

    return [(name, interrupted(values)) for name, values in story]


def test_where_ours_measures_all_the_files_record_nothing(rulebook: Rulebook) -> None:
    of_others = [f'{name}{{measured_by!=""}}' for name in ("stallscope_gpu_up", "stallscope_gpu_busy_seconds_total")]
    found = ("gpu:found:info", "gpu:chosen:info", "gpu:identity:info", "host:found:info", "host:identity:info")
    rulebook.check(
        ours() + gpu() + rank() + host(0.2),
        {" or ".join((*of_others, *found)): [], "count(host:exporter:info)": [({}, 1)]},
        rule_files=FILES,
    )


def test_a_gpu_missing_from_its_exporter_is_lost_if_others_are_still_exported(rulebook: Rulebook) -> None:
    second = [(name.replace('gpu="0"', 'gpu="1"'), values) for name, values in exposed(A, uuid="twin")]
    gone = [(name, values.replace(f"x{LENGTH}", "x20 stale")) for name, values in without(second, "up")]
    nodes = {
        "lost": gone,
        # A rank on it goes on: it is the exporter that has lost it.
        "steps": gone + ours(instance="steps:19400") + rank(gpus=[("1", "GPU-twin")], instance="steps:19400"),
        # It was cut into instances, which its exporter reports in its place.
        "cut": gone + labelled(without(second, "up"), GPU_I_PROFILE="1g.10gb", GPU_I_ID="7"),
    }
    story: Story = []
    for node, of_second in nodes.items():
        for name, values in of_second + exposed(A, instance=f"{node}:9400"):
            story.append((name.replace("node1:9400", f"{node}:9400").replace("twin", f"{node}-twin"), values))
    # All is gone: that is the exporter.
    silent = without(exposed(A, instance="silent:9400"), "up")
    story += [(name, values.replace(f"x{LENGTH}", "x20 stale")) for name, values in silent]
    rulebook.check(
        story,
        {
            "count by (instance, uuid) (stallscope_gpu_up == 0)": [
                ({"instance": "lost:9400", "uuid": "GPU-lost-twin"}, 1),
                ({"instance": "steps:19400", "uuid": "GPU-steps-twin"}, 1),
            ],
            'count by (instance, gpu) (ALERTS{alertname="GpuLost", alertstate="firing"})': [
                ({"instance": "lost:9400", "gpu": "1"}, 1)
            ],
        },
        at="20m",
        rule_files=FILES,
    )


def test_the_only_gpu_of_an_exporter_is_lost_when_a_successful_scrape_lacks_it(rulebook: Rulebook) -> None:
    smi = "nvidia_gpu_exporter"
    code = "nvidia_smi_command_exit_code"
    gone, back = f"x{scrapes(10)} stale", f"_x{scrapes(16)} 1+0x{LENGTH - scrapes(16)}"

    def cut(story: Story, *kept: str) -> Story:
        """A page that is all but empty from the tenth minute on."""
        left = ("up", *kept)
        return [(n, v if n.partition("{")[0] in left else v.replace(f"x{LENGTH}", gone)) for n, v in story]

    def at(node: str, port: int = 9400) -> dict[str, str]:
        return {"job": "gpu", "instance": f"{node}:{port}"}

    def answering(values: str, node: str, **labels: str) -> tuple[str, str]:
        return series("up", values, **at(node), **labels)

    def exits(with_code: int, node: str) -> Story:
        return [*cut(exposed(smi, instance=f"{node}:9400")), series(code, until(10, 0, with_code), **at(node))]

    story = [
        *cut(exposed(A, instance="lost:9400")),
        *exits(15, "smi"),
        *exits(6, "found none"),
        *cut(amd("amd")),
        # What is known of another exporter of the same card is not another loss.
        *cut(exposed(A, instance="both:9400")),
        *cut(exposed(smi, instance="both:9835")),
        # nvidia-smi fails for another reason.
        *exits(9, "driver"),
        # The exporter is gone; or it was, so other changes are unknown; or another pod has replaced it.
        *without(cut(exposed(A, instance="down:9400")), "up"),
        answering(until(10), "down"),
        *ours(instance="down:19400"),
        *rank(run="down", gpus=[("0", "GPU-down")], instance="down:19400"),
        *without(cut(exposed(A, instance="restarted:9400")), "up"),
        answering(f"1+0x{scrapes(10)} 0x3 1+0x{LENGTH}", "restarted"),
        *without(cut(exposed(A, instance="rolled out:9400")), "up"),
        answering(f"1+0x{scrapes(10)} stale", "rolled out", pod="a"),
        answering(f"_x{scrapes(11)} 1+0x{LENGTH}", "rolled out", pod="b"),
        # The page no longer lists the GPU families.
        *cut(exposed(A, instance="reconfigured:9400"), "DCGM_FI_DEV_POWER_USAGE"),
        # Silent of several it is at fault itself.
        *cut(exposed(A, instance="several:9400")),
        *cut([(n.replace("GPU-twin", "GPU-two"), v) for n, v in exposed(A, uuid="twin", instance="several:9400")]),
        # It is back; or another is in its place.
        *cut(exposed(A, instance="back:9400")),
        *((n, back) for n, _values in without(exposed(A, instance="back:9401"), "up")),
        *cut(exposed(A, instance="replaced:9400")),
        *((n, back) for n, _values in without(exposed(A, uuid="spare", instance="replaced:9400"), "up")),
        # A rank on it goes on; another does not.
        *cut(exposed(A, instance="steps:9400")),
        *ours(instance="steps:19400"),
        *rank(run="steps", gpus=[("0", "GPU-steps")], instance="steps:19400"),
        *cut(exposed(A, instance="hangs:9400")),
        *ours(instance="hangs:19400"),
        *rank(
            run="hangs",
            gpus=[("0", "GPU-hangs")],
            last_step=growing_until(10),
            steps=growing_until(10),
            instance="hangs:19400",
        ),
    ]
    lost = ("lost:9400", "smi:9400", "found none:9400", "amd:5000", "both:9400", "hangs:19400")
    rulebook.check(
        story,
        {
            "count by (instance) (stallscope_gpu_up == 0)": [
                ({"instance": instance}, 1) for instance in (*lost, "steps:19400")
            ],
            'count by (instance) (ALERTS{alertname="GpuLost", alertstate="firing"})': [
                ({"instance": instance}, 1) for instance in lost
            ],
            "sum by (run, cause) (run:verdict:ratio5m >= bool 0)": [
                ({"run": "hangs", "cause": "lost"}, 1),
                ({"run": "steps", "cause": "insufficient_data"}, 1),
                ({"run": "down", "cause": "insufficient_data"}, 1),
            ],
            "count by (instance) (stallscope_gpu_up == 1)": [
                ({"instance": "back:9401"}, 1),
                ({"instance": "replaced:9400"}, 1),
            ],
        },
        at="20m",
        rule_files=FILES,
    )


def test_a_mig_instance_is_busy_as_its_engines_are_and_has_nothing_of_the_card(rulebook: Rulebook) -> None:
    instances = [
        each
        for number in ("7", "8")
        for each in labelled(without(exposed(A), "up"), GPU_I_PROFILE="1g.10gb", GPU_I_ID=number)
    ]
    rulebook.check(
        [series("up", steady(1), job="gpu", instance="node1:9400"), *instances],
        {
            "round(100 * gpu:busy:ratio5m)": [
                (
                    {
                        "job": "gpu",
                        "instance": "node1:9400",
                        "gpu": "0",
                        "uuid": f"GPU-node1/{number}",
                        "mig": "1g.10gb",
                    },
                    95,
                )
                for number in ("7", "8")
            ],
            "count(stallscope_gpu_memory_used_bytes)": [({}, 2)],
            "stallscope_gpu_power_watts or stallscope_gpu_energy_joules_total": [],
        },
        rule_files=FILES,
    )


def test_ambiguous_values_are_left_out(rulebook: Rulebook) -> None:
    percent = "DCGM_FI_DEV_GPU_UTIL_RATIO"
    engines = "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"
    violation = series(
        "DCGM_FI_DEV_THERMAL_VIOLATION", growing(1e9), job="gpu", instance="a:9400", gpu="0", UUID="GPU-a"
    )
    energy = "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL"
    newer = {f"DCGM_FI_DEV_{name}": "_x11 1+0x109" for name in ("FB_USED_BYTES", "SM_CLOCK_HERTZ", "MEMORY_UTIL_RATIO")}
    story = [
        *exposed(B, {percent: steady(1)}, instance="a:9400"),
        violation,
        *without(exposed(A, instance="d:9400"), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
        # It was a percentage until DCGM was upgraded.
        *without(exposed(C, {percent: "50+0x10 0.5+0x110", **newer}, instance="e:9400"), energy),
        # All GPUs would be one.
        *((re.sub(r'UUID="[^"]*",', "", name), values) for name, values in exposed(A, instance="f:9400")),
        # Once it was over 1, it is a percentage.
        *exposed(B, {percent: "50+0x10 1+0x110"}, instance="b:9400"),
        *without(exposed(C, {percent: steady(1)}, instance="c:9400"), *newer, energy, engines),
    ]
    rulebook.check(
        story,
        {
            "sum by (instance) (stallscope_gpu_utilization_ratio)": [
                ({"instance": "b:9400"}, 0.01),
                ({"instance": "d:9400"}, 0.95),
                ({"instance": "e:9400"}, 0.5),
            ],
            # Where energy is not reported, the rules use power.
            'round(sum(rate(stallscope_gpu_energy_joules_total{instance="d:9400"}[5m])))': [({}, 350)],
            'stallscope_gpu_throttled_seconds_total{instance="a:9400", reason=~"sw_thermal|power_cap"}': [],
            "stallscope_gpu_nvlink_receive_bytes_total or stallscope_gpu_nvlink_transmit_bytes_total": [],
        },
        rule_files=FILES,
    )


def test_profiling_that_is_stuck_at_zero_is_no_reading_and_low_values_and_idle_gpus_are(rulebook: Rulebook) -> None:
    engines, units, tensor = (f"DCGM_FI_PROF_{name}_ACTIVE" for name in ("GR_ENGINE", "SM", "PIPE_TENSOR"))
    nodes = {
        "stuck": {engines: steady(0), units: steady(0), tensor: steady(0)},
        "half stuck": {units: steady(0)},
        "low": {units: steady(0.05), tensor: steady(0)},
        "idle": {"DCGM_FI_DEV_GPU_UTIL": steady(0), engines: steady(0), units: steady(0), tensor: steady(0)},
    }
    story: Story = []
    for node, values in nodes.items():
        at = {"job": "gpu", "instance": f"{node}:9400"}
        story += exposed(A, values, **at) + ours(instance=f"{node}:19400")
        story.append(series(units, values[units], gpu="0", UUID=f"GPU-{node}", **at))
        if node != "idle":
            story += rank(run=node, gpus=[("0", f"GPU-{node}")], instance=f"{node}:19400")
    rulebook.check(
        story,
        {
            "sum by (instance) (gpu:sm_active:ratio)": [
                ({"instance": "low:19400"}, 0.05),
                ({"instance": "idle:19400"}, 0),
            ],
            'sum by (instance) (gpu_pipe:active:ratio{pipe="tensor"})': [
                ({"instance": "low:19400"}, 0),
                ({"instance": "idle:19400"}, 0),
            ],
            "sum by (run, cause) (run:verdict:ratio5m >= bool 0)": [
                ({"run": "stuck", "cause": "healthy"}, 1),
                ({"run": "half stuck", "cause": "healthy"}, 1),
                ({"run": "low", "cause": "healthy"}, 1),  # its power is unknown
            ],
        },
        rule_files=FILES,
    )


def test_an_idle_mig_instance_takes_no_profiling_from_the_busy_card_exported_beside_it(rulebook: Rulebook) -> None:
    units = "DCGM_FI_PROF_SM_ACTIVE"
    card = [*without(exposed(A), "up"), series(units, steady(0.5), job="gpu", instance="node1:9400", UUID="GPU-node1")]
    none = {units: steady(0), "DCGM_FI_PROF_GR_ENGINE_ACTIVE": steady(0)}
    idle = [(name, none.get(name.partition("{")[0], values)) for name, values in card]
    rulebook.check(
        [
            series("up", steady(1), job="gpu", instance="node1:9400"),
            *card,
            *labelled(idle, GPU_I_PROFILE="1g.10gb", GPU_I_ID="7"),
        ],
        {
            "sum by (uuid) (gpu:sm_active:ratio)": [
                ({"uuid": "GPU-node1"}, 0.5),
                ({"uuid": "GPU-node1/7"}, 0),
            ]
        },
        rule_files=CANONICAL_FILES,
    )


def test_a_reading_that_is_no_number_spoils_no_counter(rulebook: Rulebook) -> None:
    values = {"nvidia_smi_utilization_gpu_ratio": "0.5+0x10 NaN+0x3 0.5+0x106"}
    # Older releases export what stands for "not supported", and DCGM itself now and then hands out garbage.
    blank = {"DCGM_FI_DEV_MEMORY_TEMP": steady(2**63), "DCGM_FI_DEV_POWER_USAGE": steady(2**47)}
    ecc = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
    story = exposed("nvidia_gpu_exporter", values, instance="a:9835") + exposed(A, blank, instance="b:9400")
    for node, errors in {"b": 2.0**63, "c": 2.0}.items():
        story.append(series(ecc, steady(errors), gpu="0", UUID=f"GPU-{node}", job="gpu", instance=f"{node}:9400"))
    story += exposed(A, instance="c:9400")
    story += exposed(B, {"DCGM_FI_DEV_GPU_UTIL_RATIO": "50+0x10 808334905 50+0x109"}, instance="d:9400")
    rulebook.check(
        story,
        {
            "round(100 * sum by (instance) (rate(stallscope_gpu_busy_seconds_total[5m])))": [
                ({"instance": instance}, share)
                for instance, share in (("a:9835", 50), ("b:9400", 95), ("c:9400", 95), ("d:9400", 50))
            ],
            'sum(stallscope_gpu_utilization_ratio{instance="a:9835"})': [({}, 0.5)],
            "stallscope_gpu_busy_seconds_total > 3600": [],
            "stallscope_gpu_power_watts > 1000 or stallscope_gpu_temperature_celsius > 99": [],
            'sum by (instance) (stallscope_gpu_ecc_errors_total{instance!="a:9835"})': [({"instance": "c:9400"}, 2)],
        },
        rule_files=FILES,
    )


GARBAGE = (0, 255, 65_535, -1, -(2**31), 2**31 - 16, 2**32 - 1, 2**63)
"""Values that drivers and exporters report in place of a missing temperature."""
TEMPERATURES = {
    "nvidia_gpu_exporter": ("nvidia_smi_temperature_gpu", "nvidia_smi_temperature_memory"),
    A: ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MEMORY_TEMP"),
    B: ("DCGM_FI_DEV_GPU_TEMP_CELSIUS",),
    C: ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS"),
    "amd_device_metrics_exporter": ("gpu_junction_temperature", "gpu_memory_temperature"),
    "omnistat": ("rocm_temperature_celsius",),
}
HEAT: Mapping[str, list[tuple[Labels, float]]] = {
    "count_over_time(gpu:verdict:ratio5m{cause='thermal_throttle'}[1h])": [],
    "count_over_time(ALERTS{alertname='GpuThermalThrottle'}[1h])": [],
}


@pytest.mark.parametrize("exporter", TEMPERATURES)
def test_a_garbage_temperature_is_no_temperature_and_no_heat(rulebook: Rulebook, exporter: str) -> None:
    in_turn = " ".join(f"{value}x5" for value in GARBAGE)
    rulebook.check(
        [
            *exposed(exporter, dict.fromkeys(TEMPERATURES[exporter], in_turn), instance="bad:9400"),
            *exposed(A, {"DCGM_FI_DEV_GPU_TEMP": steady(52)}, instance="well:9400"),
        ],
        {
            "count by (instance) (count_over_time(stallscope_gpu_temperature_celsius{instance='bad:9400'}[1h]))": [],
            "stallscope_gpu_temperature_celsius{instance='well:9400',sensor='gpu'} == 52": [
                ({"__name__": "stallscope_gpu_temperature_celsius", **SUBJECT, **MEASURED, "sensor": "gpu"}, 52)
            ],
            "count(last_over_time(gpu:verdict:ratio5m{instance='bad:9400'}[1h]) >= 0) > bool 0": [({}, 1)],
            **HEAT,
        },
        at="24m",
        rule_files=FILES,
    )


_SPIKES = (82_505.0, 644_245_923.0, 2.0**32)
"""Numbers that dcgm-exporter exported once among many plausible ones, in several families."""


@pytest.mark.parametrize(
    ("exporter", "family", "signal", "value"),
    [
        (A, "DCGM_FI_DEV_POWER_USAGE", "stallscope_gpu_power_watts", 300),
        (A, "DCGM_FI_DEV_SM_CLOCK", "stallscope_gpu_clock_hertz{clock='sm'}", 1980),
        (A, "DCGM_FI_PROF_SM_ACTIVE", "gpu:sm_active:ratio", 0.5),
        (A, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gpu_pipe:active:ratio{pipe='tensor'}", 0.5),
        (A, "DCGM_FI_PROF_DRAM_ACTIVE", "gpu:dram_active:ratio", 0.5),
        (A, "DCGM_FI_DEV_PCIE_LINK_WIDTH", "stallscope_gpu_pcie_link_width", 16),
        ("nvidia_gpu_exporter", "nvidia_smi_power_draw_watts", "stallscope_gpu_power_watts", 300),
        ("amd_device_metrics_exporter", "gpu_package_power", "stallscope_gpu_power_watts", 300),
    ],
)
def test_a_value_that_no_gpu_can_have_is_missing_and_the_others_remain(
    rulebook: Rulebook, exporter: str, family: str, signal: str, value: float
) -> None:
    spikes = " ".join(f"{spike} {value}x8" for spike in _SPIKES)
    story = without(exposed(exporter, {}, instance="bad:9400"), family)
    text = (PAGES / f"{exporter}.prom").read_text(encoding="utf-8").replace(_NUMBER, "bad")
    given = next((line for line in text.splitlines() if line.startswith(f"{family}{{")), "")
    labels = dict(_LABEL.findall(given)) or {"gpu": "0", "UUID": "GPU-bad", "modelName": "NVIDIA H100"}
    story.append(series(family, f"{value}x9 {spikes}", **labels | {"job": "gpu", "instance": "bad:9400"}))
    observed = f"{signal.removesuffix('}')}{',' if '{' in signal else '{'}instance='bad:9400'}}"
    factor = 1e6 if "hertz" in signal else 1
    rulebook.check(
        story,
        {
            f"max(max_over_time({observed}[30m]))": [({}, value * factor)],
            f"count(count_over_time({observed}[10m])) > bool 0": [({}, 1)],
        },
        at="18m",
        rule_files=CANONICAL_FILES,
    )


@pytest.mark.parametrize("blank", [2**31 - 16, 2**31 - 1, 2**32 - 1, 2**63])
def test_a_blank_in_place_of_the_reasons_for_low_clocks_is_no_heat(rulebook: Rulebook, blank: int) -> None:
    names = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
    slow = {"DCGM_FI_DEV_SM_CLOCK": steady(990)}
    rulebook.check(
        exposed(A, {**dict.fromkeys(names, steady(blank)), **slow}, instance="bad:9400"),
        {"count_over_time(gpu_reason:throttled:ratio[1h]) > 0": [], **HEAT},
        at="24m",
        rule_files=FILES,
    )


def amd(node: str, gpu_uuid: str = "") -> Story:
    """An AMD GPU that is half busy, scraped on a node."""
    page_of_it = exposed("amd_device_metrics_exporter", {"gpu_gfx_activity": steady(50)}, instance=f"{node}:5000")
    there = [(name.replace('hostname="node1"', f'hostname="{node}"'), values) for name, values in page_of_it]
    return [(re.sub(r'gpu_uuid="[^"]*"', f'gpu_uuid="{gpu_uuid}"', name), values) for name, values in there]


def test_other_exporters_of_gpus_alone_get_verdicts_too(rulebook: Rulebook) -> None:
    smi = "nvidia_gpu_exporter"
    story = [
        *exposed(smi, {"nvidia_smi_utilization_gpu_ratio": steady(0.5)}, instance="low:9835"),
        *exposed(
            smi,
            {
                "nvidia_smi_clocks_event_reasons_counters_hw_thermal_slowdown_seconds": growing(1),
                "nvidia_smi_clocks_current_sm_clock_hz": steady(0.9e9),
            },
            instance="hot:9835",
        ),
        *exposed(smi, instance="xid:9835"),
        *(
            series(name, values, uuid="xid", xid="79", job="gpu", instance="xid:9835")
            for name, values in (
                ("nvidia_smi_xid_errors_total", steady(1)),
                ("nvidia_smi_xid_last_timestamp_seconds", steady(900)),
            )
        ),
        *exposed(smi, instance="well:9835"),
        # Before it had a label with the index.
        *(
            (re.sub(r',index="\d"', "", name), values)
            for name, values in exposed(smi, {"nvidia_smi_utilization_gpu_ratio": steady(0.5)}, instance="old:9835")
        ),
        series("nvidia_smi_index", steady(3), uuid="old", job="gpu", instance="old:9835"),
        *amd("amd", gpu_uuid="ccff74a1-0000-1000-80e0-c6d49f5b0d86"),
        # The UUID is exported only if configured, and has no use in a virtual machine.
        *amd("plain"),
        *amd("virtual", gpu_uuid="00000000-0000-0000-0000-000000000000"),
        # An exporter of ours there has the card already, under another name.
        *amd("both", gpu_uuid="ccff74a1-0000-1000-80e0-000000000000"),
        *ours(instance="both:19400"),
        series("stallscope_exporter_source_up", steady(1), source="amd", job="stallscope", instance="both:19400"),
    ]
    rulebook.check(
        story,
        {
            "sum by (instance, cause) (gpu:verdict:ratio5m >= bool 0)": [
                ({"instance": "low:9835", "cause": "underused"}, 1),
                ({"instance": "hot:9835", "cause": "thermal_throttle"}, 1),
                ({"instance": "xid:9835", "cause": "xid_hw"}, 1),
                ({"instance": "well:9835", "cause": "healthy"}, 1),
                ({"instance": "old:9835", "cause": "underused"}, 1),
                *(({"instance": f"{node}:5000", "cause": "underused"}, 1) for node in ("amd", "plain", "virtual")),
            ],
            'group by (gpu, uuid) (stallscope_gpu_up{instance=~"(old|amd|plain|virtual):.+"})': [
                ({"gpu": "3", "uuid": "GPU-old"}, 1),
                ({"gpu": "2", "uuid": "ccff74a1-0000-1000-80e0-c6d49f5b0d86"}, 1),
                ({"gpu": "2", "uuid": "plain/2"}, 1),
                ({"gpu": "2", "uuid": "virtual/2"}, 1),
            ],
            'round(sum by (instance) (rate(stallscope_gpu_energy_joules_total{instance="well:9835"}[5m])))': [
                ({"instance": "well:9835"}, 627)
            ],
        },
        at="20m",
        rule_files=FILES,
    )


def fetched(command: Sequence[str], port: int, ready: str, environment: Mapping[str, str] | None = None) -> str:
    """A page of a program that is really run, as soon as it has something on it."""

    def page() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = str(answer.read().decode())
        return text if re.search(ready, text) else ""

    with subprocess.Popen(
        command, env=os.environ | (environment or {}), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            return waiting.until(page, f"{command[0]} returns no page with {ready}", pause=0.1)
        finally:
            process.terminate()


def read_by_rules(text: str, source: str) -> str:
    """Return the lines of a page that the source's rules select."""
    path = next(path for path in CANONICAL_FILES if path.stem == source)
    names = {name for rule in rules((path,)) for name in names_in(rule["expr"]).metrics}
    return "\n".join(line for line in text.splitlines() if re.split(r"[{ ]", line)[0] in names)


def test_the_real_node_exporter_explains_why_a_run_waits_for_data(rulebook: Rulebook) -> None:
    program = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
    if program is None:
        pytest.skip("node_exporter is not on PATH; sh tests/install_tools.sh installs it on Debian and Ubuntu")
    port = free_port()
    text = fetched([program, f"--web.listen-address=127.0.0.1:{port}"], port, "node_memory_MemTotal_bytes ")
    text = read_by_rules(text, "canonical_node_exporter")
    at = {"job": "node", "instance": "node1:9100"}
    # All CPUs are busy, and no memory is free.
    story = [
        (name, growing(0.97 if 'mode="user"' in name else 0.03 if 'mode="idle"' in name else 0))
        if name.startswith("node_cpu_seconds_total")
        else (name, values)
        for name, values in page(text, {"node_memory_MemAvailable_bytes": steady(2**20)}, **at)
    ]
    story += exposed(A, {"DCGM_FI_DEV_GPU_UTIL": steady(50)})
    story += ours() + rank(wait=0.5, gpus=[("0", "GPU-node1")])
    # Machines without GPUs are out of scope.
    story += page(text, {}, job="node", instance="web:9100")
    # A Stallscope exporter in a pod reports its host, but cannot read the host's network.
    story += page(text, {}, job="node", instance="pod:9100") + ours(instance="pod:19400")
    story += [series("stallscope_host_cpus", steady(64), job="stallscope", instance="pod:19400")]
    rulebook.check(
        story,
        {
            "sum by (instance, run, cause) (run:verdict:ratio5m >= bool 0)": [
                ({"run": "train", "cause": "input_cpu_saturated"}, 1)
            ],
            "round(100 * host:cpu_busy:ratio5m)": [(TARGET, 97)],
            "floor(10 * host:memory_used:ratio)": [(TARGET, 9)],
            "sum by (instance) (stallscope_host_cpus)": [
                ({"instance": "node1:19400"}, os.cpu_count() or 0),
                ({"instance": "pod:19400"}, 64),
            ],
            "group by (instance) (stallscope_host_network_receive_bytes_total)": [
                ({"instance": "node1:19400"}, 1),
                ({"instance": "pod:19400"}, 1),
            ],
            "count by (mode) (stallscope_host_cpu_seconds_total)": [
                ({"mode": mode}, 1) for mode in ("user", "system", "iowait", "idle", "other")
            ],
            'stallscope_host_network_receive_bytes_total{device="lo"}': [],
            "count by (measured_by) (stallscope_host_major_page_faults_total)": [({"measured_by": "node_exporter"}, 1)],
        },
        rule_files=FILES,
    )


def test_the_real_nvitop_exporter_gets_its_gpus_verdicts(nvml_stand_in: NvmlStandIn, rulebook: Rulebook) -> None:
    for card in nvml_stand_in.gpu:
        card.utilization, card.memory_used = 50, 20 << 30
        card.run((os.getpid(), 20 << 30, False))
    port = free_port()
    program = str(Path(sys.executable).with_name("nvitop-exporter"))
    # Each GPU is read in its own time.
    families = ("gpu_utilization_Percentage", "gpu_memory_used_MiB", "gpu_power_usage_W", "process_gpu_memory_MiB")
    ready = "(?s)^" + "".join(rf"(?=(.*\n{name}\{{){{8}})" for name in families)
    text = fetched(
        [program, "--bind-address", "127.0.0.1", "--port", str(port)], port, ready, nvml_stand_in.environment
    )
    at = {"job": "nvitop", "instance": "node1:5050"}
    rulebook.check(
        page(read_by_rules(text, "canonical_nvitop"), {}, **at),
        {
            "count by (cause) (gpu:verdict:ratio5m)": [({"cause": "underused"}, 8)],
            "count by (kind) (stallscope_gpu_processes == 1)": [({"kind": "compute"}, 8)],
            "count(stallscope_gpu_memory_used_bytes == 20 * 2^30)": [({}, 8)],
            "count(abs(rate(stallscope_gpu_energy_joules_total[5m]) - on (gpu) stallscope_gpu_power_watts) < 0.1)": [
                ({}, 8)
            ],
        },
        rule_files=FILES,
    )
