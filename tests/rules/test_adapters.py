"""Versions of other exporters give the same verdicts, and input that cannot be used raises an alert."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from tests.rules.rulebook import (
    CANONICAL_FILES,
    LENGTH,
    RULE_FILES,
    TARGET,
    Rulebook,
    Story,
    exporter,
    gpu,
    growing,
    rank,
    series,
    steady,
)
from tests.rules.test_canonical import FILES, PAGES, exposed, labelled, ours, page, without

OLD, NEW = "dcgm_exporter_4_8", "dcgm_exporter_4_9"
UNUSABLE = (*CANONICAL_FILES, *(path for path in RULE_FILES if path.stem in ("thresholds", "subjects", "stallscope")))
ALERT = 'ALERTS{alertname="StallscopeExporterUnusable", alertstate="firing"}'
RENEWED = f"450000+1x{LENGTH}"
"""Microseconds that change with every dump of NCCL Inspector."""


def without_label(story: Story, label: str) -> Story:
    """The series without a label."""
    return [(re.sub(rf'(?<=[{{,]){label}="[^"]*",?', "", name), values) for name, values in story]


def test_both_versions_of_dcgm_exporter_give_the_same_values(rulebook: Rulebook) -> None:
    story = [*exposed(OLD, instance="old:9400"), *exposed(NEW, instance="new:9400")]

    def recorded(instance: str) -> str:
        # 4.9 has a counter of each reason that it reports; 4.8 has bits of all reasons.
        series_of_it = f'{{__name__=~"(stallscope_gpu|gpu).*:?.+",__name__!~".*throttled.*",instance="{instance}"}}'
        family = f'label_replace({series_of_it}, "family", "$1", "__name__", "(.+)")'
        return f"sum by (family, clock, sensor, kind, pipe, level, le) ({family})"

    old, new = recorded("old:9400"), recorded("new:9400")
    rulebook.check(
        story,
        {
            f"{old} unless {new} or {new} unless {old}": [],
            f"abs({old} - {new}) > 1e-6 * abs({old})": [],
            f"count({old}) > bool 30": [({}, 1)],
            "count by (driver_version) (stallscope_gpu_info)": [
                ({"driver_version": version}, 1) for version in ("590.48.01", "610.43.02")
            ],
        },
        rule_files=CANONICAL_FILES,
    )


def test_names_that_dcgm_4_6_1_has_too_prove_no_ratio(rulebook: Rulebook) -> None:
    newer = ("FB_USED_BYTES", "FB_CAPACITY_BYTES", "MEMORY_UTIL_RATIO")
    percentage = {"DCGM_FI_DEV_GPU_UTIL_RATIO": steady(1)}
    story = without(
        exposed(NEW, percentage, instance="a:9400"),
        *(f"DCGM_FI_DEV_{name}" for name in newer),
        "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
    )
    rulebook.check(
        story,
        {"stallscope_gpu_utilization_ratio": [], "count(stallscope_gpu_clock_hertz)": [({}, 2)]},
        rule_files=CANONICAL_FILES,
    )


def test_omnistat_and_ceems(rulebook: Rulebook) -> None:
    flag = "ceems_compute_unit_gpu_index_flag"
    at = {"job": "ceems", "instance": "nvidia:9010"}
    unlabelled = without_label(without_label(exposed(OLD, instance="nvidia:9400"), "pod"), "namespace")
    story = [
        *exposed("omnistat", instance="amd:8000"),
        # AMD's exporter on the same host goes first.
        *exposed("omnistat", instance="both:8000"),
        *[
            (name.replace('hostname="node1"', 'hostname="both"'), values)
            for name, values in exposed("amd_device_metrics_exporter", instance="both:5000")
        ],
        # Two jobs on a node: which of them holds a GPU is unknown.
        *exposed("omnistat", instance="shared:8000"),
        series("rmsjob_info", steady(1), jobid="4712", user="bob", job="gpu", instance="shared:8000"),
        *without_label(unlabelled, "container"),
        series(flag, steady(0.5), manager="slurm", uuid="99", gpuuuid="GPU-nvidia", index="0", **at),
        series(flag, steady(0.5), manager="slurm", uuid="100", gpuuuid="GPU-nvidia", index="0", **at),
        series(flag, steady(1), manager="slurm", uuid="101", gpuuuid="GPU-elsewhere", index="0", **at),
    ]
    rulebook.check(
        story,
        {
            'sum by (gpu, uuid, cause) (gpu:verdict:ratio5m{instance="amd:8000"} >= bool 0)': [
                ({"gpu": "0", "uuid": "amd/0", "cause": "underused"}, 1),
                ({"gpu": "1", "uuid": "amd/1", "cause": "healthy"}, 1),
            ],
            "count by (instance, measured_by) (stallscope_gpu_up)": [
                ({"instance": "amd:8000", "measured_by": "omnistat"}, 2),
                ({"instance": "both:5000", "measured_by": "amd-device-metrics-exporter"}, 1),
                ({"instance": "shared:8000", "measured_by": "omnistat"}, 2),
                ({"instance": "nvidia:9400", "measured_by": "dcgm-exporter"}, 1),
            ],
            'stallscope_gpu_memory_used_bytes{uuid="amd/0"} / 2^30 > bool 95': [
                ({"job": "gpu", "instance": "amd:8000", "gpu": "0", "uuid": "amd/0", "measured_by": "omnistat"}, 1)
            ],
            "count by (instance, slurm_job, user) (stallscope_gpu_owner_info)": [
                ({"instance": "amd:8000", "slurm_job": "4711", "user": "ada"}, 2),
                ({"instance": "nvidia:9400", "slurm_job": "99"}, 1),
                ({"instance": "nvidia:9400", "slurm_job": "100"}, 1),
                ({"instance": "both:5000"}, 1),
            ],
            "exporter:unusable:info": [],
        },
        rule_files=FILES,
    )


def renamed(story: Story, prefix: str) -> Story:
    """A page of a version with unknown families."""
    return [(name.replace(prefix, f"{prefix}NEXT_"), values) for name, values in story]


UNKNOWN: Mapping[str, tuple[Story, str, str]] = {
    "dcgm-exporter": (renamed(exposed(OLD), "DCGM_FI_DEV_"), "dcgm-exporter", "unknown_families"),
    "only its oldest names": (
        [series("dcgm_gpu_temp", steady(40), job="gpu", gpu="0", instance="node1:9400")],
        "dcgm-exporter",
        "unknown_families",
    ),
    "nvidia_gpu_exporter": (
        [
            *renamed(exposed("nvidia_gpu_exporter"), "nvidia_smi_"),
            series("nvidia_gpu_exporter_build_info", steady(1), job="gpu", instance="node1:9400"),
        ],
        "nvidia_gpu_exporter",
        "unknown_families",
    ),
    "nvitop-exporter": (
        [series("nvitop_info", steady(1), device_count="8", job="gpu", instance="node1:9400")],
        "nvitop-exporter",
        "unknown_families",
    ),
    "AMD's": (
        [
            *renamed(exposed("amd_device_metrics_exporter"), "gpu_"),
            series("gpu_nodes_total", steady(8), job="gpu", instance="node1:9400"),
        ],
        "amd-device-metrics-exporter",
        "unknown_families",
    ),
    "Omnistat": (
        without(exposed("omnistat"), "rocm_vram_total_bytes"),
        "omnistat",
        "unknown_families",
    ),
    "DCGM's UUID": (without_label(exposed(NEW), "UUID"), "dcgm-exporter", "missing_label"),
    "nvidia_gpu_exporter's uuid": (
        without_label(exposed("nvidia_gpu_exporter"), "uuid"),
        "nvidia_gpu_exporter",
        "missing_label",
    ),
    "AMD's hostname": (
        without_label(exposed("amd_device_metrics_exporter"), "hostname"),
        "amd-device-metrics-exporter",
        "missing_label",
    ),
    "Omnistat's card": (without_label(exposed("omnistat"), "card"), "omnistat", "missing_label"),
}


@pytest.mark.parametrize(("story", "exporter_name", "reason"), UNKNOWN.values(), ids=UNKNOWN)
def test_pages_without_a_gpu_that_is_understood_raise_an_alert(
    story: Story, exporter_name: str, reason: str, rulebook: Rulebook
) -> None:
    rulebook.check(
        # Repeated series are one.
        list(dict(story).items()),
        {
            f"count by (measured_by, job, reason) ({ALERT})": [
                ({"measured_by": exporter_name, "job": "gpu", "reason": reason}, 1)
            ],
            "stallscope_gpu_up": [],
        },
        rule_files=UNUSABLE,
    )


USABLE: Mapping[str, Story] = {
    "pages that are understood": [
        *exposed(OLD, instance="a:9400"),
        *exposed(NEW, instance="b:9400"),
        *exposed("nvidia_gpu_exporter", instance="c:9835"),
        series("nvidia_gpu_exporter_build_info", steady(1), job="gpu", instance="c:9835"),
        *exposed("omnistat", instance="d:8000"),
    ],
    "switches and CPUs": [
        series("DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT", steady(40), nvswitch="nvswitch0", job="gpu", instance="a"),
        series("DCGM_FI_DEV_CPU_UTIL_TOTAL", steady(0.5), cpu="0", job="gpu", instance="a"),
    ],
    "a tool that fails": [
        series("nvidia_gpu_exporter_build_info", steady(1), job="gpu", instance="a:9835"),
        series("nvidia_smi_command_exit_code", steady(9), job="gpu", instance="a:9835"),
    ],
    "a host that an exporter of ours measures": [
        *renamed(exposed(OLD, instance="node1:9400"), "DCGM_FI_DEV_"),
        *ours(),
        *gpu(uuid="GPU-node1"),
    ],
    "two clusters": [
        *labelled(exposed(OLD, instance="node1:9400", uuid="one"), cluster="a"),
        *labelled(exposed(OLD, instance="node1:9400", uuid="two"), cluster="b"),
    ],
}


@pytest.mark.parametrize("story", USABLE.values(), ids=USABLE)
def test_pages_that_can_be_used_raise_none(story: Story, rulebook: Rulebook) -> None:
    rulebook.check(story, {"exporter:unusable:info": []}, rule_files=UNUSABLE)


def test_an_exporter_that_two_jobs_scrape_gives_one_verdict_and_an_alert(rulebook: Rulebook) -> None:
    low = {"DCGM_FI_DEV_GPU_UTIL": steady(50)}
    story = [
        *exposed(OLD, low, job="static", instance="node1:9400"),
        *exposed(OLD, low, job="annotated", instance="10.0.0.1:9400", uuid="node1"),
        *exposed(NEW, instance="other:9400"),
    ]
    rulebook.check(
        story,
        {
            "count by (uuid, cause) (gpu:verdict:ratio5m)": [
                ({"uuid": "GPU-node1", "cause": "underused"}, 1),
                ({"uuid": "GPU-other", "cause": "healthy"}, 1),
            ],
            "count by (job, reason) (exporter:unusable:info)": [
                ({"job": job, "reason": "scraped_twice"}, 1) for job in ("static", "annotated")
            ],
        },
        rule_files=FILES,
    )
    nodes: Story = []
    for job in ("static", "annotated"):
        at = {"job": job, "instance": "node1:9100"}
        nodes.append(series("node_uname_info", steady(1), nodename="node1", **at))
        nodes += [series("node_cpu_seconds_total", growing(1), mode="idle", cpu=f"{cpu}", **at) for cpu in range(4)]
    rulebook.check(
        [*nodes, *ours()],
        {
            "sum(stallscope_host_cpus)": [({}, 4)],
            "count by (measured_by, job, reason) (exporter:unusable:info)": [
                ({"measured_by": "node_exporter", "job": job, "reason": "scraped_twice"}, 1)
                for job in ("static", "annotated")
            ],
        },
        rule_files=FILES,
    )
    own = [*exporter(), *gpu(uuid="GPU-a"), *exporter(job="again"), *gpu(uuid="GPU-a", job="again")]
    rulebook.check(
        own,
        {
            f"count by (measured_by, job, reason) ({ALERT})": [
                ({"measured_by": "stallscope", "job": job, "reason": "scraped_twice"}, 1)
                for job in ("stallscope", "again")
            ]
        },
        rule_files=UNUSABLE,
    )


@pytest.mark.parametrize("label", ["cluster", "job"])
def test_two_clusters_with_equal_instance_names_each_have_their_verdicts(label: str, rulebook: Rulebook) -> None:
    """With a label `cluster` they are apart; without it an alert says that they are not."""
    nodes = {"one": ("underused", 50), "two": ("healthy", 95)}
    story: Story = []
    for name, (_cause, busy) in nodes.items():
        at = {"job": name if label == "job" else "gpu", "instance": "node1:9400"}
        of_it = exposed(OLD, {"DCGM_FI_DEV_GPU_UTIL": steady(busy)}, uuid=name, **at)
        story += labelled(of_it, cluster=name) if label == "cluster" else of_it
    rulebook.check(
        story,
        {
            "count by (uuid, cause) (gpu:verdict:ratio5m)": [
                ({"uuid": f"GPU-{name}", "cause": cause}, 1) for name, (cause, _busy) in nodes.items()
            ],
            "count by (instance, reason) (exporter:unusable:info)": (
                [] if label == "cluster" else [({"instance": "node1:9400", "reason": "shared_instance"}, 1)]
            ),
        },
        rule_files=FILES,
    )


def test_amd_gpus_of_two_indistinguishable_clusters_raise_an_alert(rulebook: Rulebook) -> None:
    """Their host names and numbers are the same, and only their UUIDs differ."""
    other = ("ccff74a1", "ddff74a1")
    story = [
        *exposed("amd_device_metrics_exporter", job="one", instance="node1:5000"),
        *(
            (name.replace(*other), values)
            for name, values in exposed("amd_device_metrics_exporter", job="two", instance="node1:5000")
        ),
    ]
    rulebook.check(
        story,
        {
            'count by (instance, reason) (exporter:unusable:info{reason="shared_instance"})': [
                ({"instance": "node1:5000", "reason": "shared_instance"}, 1)
            ]
        },
        rule_files=UNUSABLE,
    )


@pytest.mark.parametrize("label", ["gpu", "hostname", "modelName", "device", "pci_bus_id"])
def test_a_gpu_keeps_its_verdict_without_a_label_that_only_describes_it(label: str, rulebook: Rulebook) -> None:
    rulebook.check(
        without_label(exposed(NEW, {"DCGM_FI_DEV_GPU_UTIL_RATIO": steady(0.5)}), label),
        {
            "count by (uuid, cause) (gpu:verdict:ratio5m)": [({"uuid": "GPU-node1", "cause": "underused"}, 1)],
            "exporter:unusable:info": [],
        },
        rule_files=FILES,
    )


def collectives(values: str = RENEWED, **target: str) -> Story:
    """NCCL Inspector's file of GPU 0 on a page of node_exporter: two kinds of collectives."""
    text = (PAGES / "nccl_inspector.prom").read_text(encoding="utf-8")
    at = {"job": "node", "instance": "node1:9100"} | target
    half = re.sub(r"^\d+", lambda microseconds: str(int(microseconds[0]) // 2), values)
    return page(text, {"nccl_collective_exec_time_microseconds": half}, **at)


def training(sm_active: float | None = 0.4, phases: Mapping[str, float] | None = None) -> Story:
    """One rank that makes a step a second on a busy GPU, and the exporter of ours on its node."""
    story = [*ours(), *gpu(uuid="GPU-0"), *rank(phases=phases)]
    if sm_active is not None:
        active = "stallscope_gpu_sm_active_seconds_total"
        story.append(series(active, growing(sm_active), gpu="0", uuid="GPU-0", **TARGET))
    return story


COMMUNICATION: Mapping[str, tuple[Sequence[tuple[str, str]], float | None]] = {
    "it waits in collectives": ([*training(), *collectives()], 0.45),
    "the target has labels of the same names": (
        [
            *training(),
            *(
                (name.replace('node="node1"', 'node="x",exported_node="node1"'), values)
                for name, values in collectives(instance="10.0.0.1:9100")
            ),
        ],
        0.45,
    ),
    "in a container the node is named as the pod": (
        [*training(), *((name.replace('node="node1"', 'node="train-0"'), values) for name, values in collectives())],
        0.45,
    ),
    "two jobs scrape it": ([*training(), *collectives(), *collectives(job="again")], 0.45),
    "computing hides part of them": ([*training(0.8), *collectives()], 0.2),
    "the activity of the SMs is unknown": ([*training(None), *collectives()], None),
    "the file of a job that was killed": ([*training(), *collectives(steady(450000))], None),
    "the shim measures communication": ([*training(phases={"communication": 0.2}), *collectives()], None),
    "another node": (
        [
            *training(),
            *(
                (name.replace('node="node1"', 'node="node2"'), values)
                for name, values in collectives(instance="node2:9100")
            ),
        ],
        None,
    ),
    "two runs on the host": (
        [*training(), *gpu(1), *rank(run="other", gpus=[("1", "GPU-1")]), *collectives()],
        None,
    ),
}


@pytest.mark.parametrize(("story", "share"), COMMUNICATION.values(), ids=COMMUNICATION)
def test_nccl_inspector_stands_in_for_communication_that_is_not_measured(
    story: Story, share: float | None, rulebook: Rulebook
) -> None:
    rulebook.check(
        list(dict(story).items()),
        {
            "round(100 * run_rank:collectives:ratio5m)": (
                [] if share is None else [({"run": "train", "rank": "0"}, round(100 * share))]
            ),
            'run:verdict:ratio5m{run="train",cause="comm_bound"} > bool 0.15': (
                [({"run": "train", "cause": "comm_bound"}, 1)] if share or "communication" in str(story) else []
            ),
        },
        rule_files=(*CANONICAL_FILES, *RULE_FILES),
    )


def test_the_bus_bandwidth_of_each_collective_is_recorded(rulebook: Rulebook) -> None:
    text = (PAGES / "nccl_inspector.prom").read_text(encoding="utf-8")
    moving = {"nccl_bus_bandwidth_gbs": f"40+0.001x{LENGTH}"}
    rulebook.check(
        [*training(), *page(text, moving, job="node", instance="node1:9100")],
        {
            "round(gpu_collective:bus_bandwidth:bytes_per_second / 1e9)": [
                (
                    {"gpu": "0", "collective": collective, "n_nodes": nodes, "measured_by": "nccl-inspector", **TARGET},
                    40,
                )
                for collective, nodes in (("AllReduce", "1"), ("ReduceScatter", "4"))
            ]
        },
        rule_files=CANONICAL_FILES,
    )
