"""Wrong scrape configurations: each subject keeps one verdict, totals count once, and an alert names the fault."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rules.rulebook import (
    CANONICAL_FILES,
    LENGTH,
    RULE_FILES,
    TARGET,
    Labels,
    Rulebook,
    Story,
    exporter,
    gpu,
    host,
    rank,
    series,
    steady,
)
from tests.rules.test_canonical import labelled

ALL = (*CANONICAL_FILES, *RULE_FILES)
UNUSABLE = 'count by (job, reason) (ALERTS{alertname="StallscopeExporterUnusable", alertstate="firing"})'
STALLSCOPE = (
    'ALERTS{alertname=~"Stallscope.+", alertname!~"Stallscope(Watchdog|ExporterUnusable)", alertstate="firing"}'
)
VERDICTS = "count by (run, cause) (run:verdict:ratio5m)"


def a_node(cause: str = "input_bound", *, prefix: str = "", **target: Any) -> Story:
    """A node with two GPUs and a run whose ranks wait for data, or lose nothing."""
    wait = 0.4 if cause == "input_bound" else 0.0
    story = [*exporter(**target), *host(0.2, **target)]
    for number in range(2):
        uuid = f"GPU-{prefix}{number}"
        story += gpu(number, idle=wait, uuid=uuid, **target)
        story += rank(number, wait=wait, gpus=[(f"{number}", uuid)], **target)
    return story


def scraped_by_turns(story: Story, turn: int) -> Story:
    """The story of a target that is scraped at every other moment, so that another target is newer in between."""
    values = ("1 _ ", "_ 1 ")[turn] * (LENGTH // 2)
    return [(name, values if name.startswith("stallscope_gpu_up") else each) for name, each in story]


@pytest.mark.parametrize("second", ["node1:19400", "10.0.0.1:19400"], ids=["one instance", "two instances"])
def test_an_exporter_that_two_jobs_scrape_counts_once_and_raises_an_alert(rulebook: Rulebook, second: str) -> None:
    story = scraped_by_turns(a_node(), 0) + scraped_by_turns(a_node(job="again", instance=second), 1)
    rulebook.check(
        story,
        {
            "count by (rank, cause) (rank:verdict:ratio5m)": [
                ({"rank": f"{number}", "cause": "input_bound"}, 1) for number in range(2)
            ],
            VERDICTS: [({"run": "train", "cause": "input_bound"}, 1)],
            "count by (uuid, cause) (gpu:verdict:ratio5m)": [
                ({"uuid": f"GPU-{number}", "cause": "input_bound"}, 1) for number in range(2)
            ],
            "sum(cluster:gpus_known:count)": [({}, 2)],
            "sum(cluster:gpus_up:count)": [({}, 2)],
            "sum(cluster:gpus_held:count)": [({}, 2)],
            "round(100 * sum(cluster:gpus_busy:sum5m))": [({}, 120)],
            "round(100 * cause:gpus_lost:sum5m)": [({"cause": "input_bound"}, 80)],
            "1 * run:gpus:count": [({"run": "train"}, 2)],
            "1 * run:ranks:count": [({"run": "train"}, 2)],
            UNUSABLE: [({"job": job, "reason": "scraped_twice"}, 1) for job in ("again", "stallscope")],
            STALLSCOPE: [],
            # Whichever of them is newer: the choice stays.
            "count(count by (job, instance) (max_over_time(exporter:duplicate:info[15m])))": [({}, 1)],
        },
        rule_files=ALL,
    )


@pytest.mark.parametrize(
    ("name", "labels", "reason"),
    [
        ("stallscope_training_step_seconds", {"run": "train", "rank": "0"}, "native_histograms"),
        ("stallscope_gpu_utilization_samples", {"gpu": "0"}, "native_histograms"),
        ("stallscope_build_info", {"__type__": "gauge"}, "type_labels"),
    ],
)
def test_a_prometheus_that_changes_series_at_the_scrape_is_reported(
    rulebook: Rulebook, name: str, labels: dict[str, str], reason: str
) -> None:
    story = [*exporter(), series(name, steady(1), **TARGET, **labels)]
    found: list[tuple[Labels, float]] = [({"job": TARGET["job"], "reason": reason}, 1)]
    rulebook.check(story, {UNUSABLE: found}, rule_files=ALL)


@pytest.mark.parametrize("label", ["namespace", "pod", "slurm_job", "user"])
@pytest.mark.parametrize("name", ["stallscope_training_rank_info", "stallscope_gpu_owner_info"])
def test_a_target_whose_labels_replace_those_of_trainings_is_reported(
    rulebook: Rulebook, name: str, label: str
) -> None:
    labels = {label: "monitoring", f"exported_{label}": "vision"}
    story = [*exporter(), series(name, steady(1), **TARGET, **labels)]
    found: list[tuple[Labels, float]] = [({"job": TARGET["job"], "reason": "labels_overridden"}, 1)]
    rulebook.check(story, {UNUSABLE: found}, rule_files=ALL)


@pytest.mark.parametrize("name", ["stallscope_training_rank_info", "stallscope_gpu_owner_info"])
def test_a_target_that_keeps_the_labels_of_trainings_can_be_used(rulebook: Rulebook, name: str) -> None:
    story = [*exporter(), series(name, steady(1), **TARGET, namespace="vision", pod="train-0", user="ada")]
    rulebook.check(story, {UNUSABLE: []}, rule_files=ALL)


def test_classic_histograms_beside_native_ones_can_be_used(rulebook: Rulebook) -> None:
    """`always_scrape_classic_histograms` keeps both."""
    native = series("stallscope_training_step_seconds", steady(1), **TARGET, run="train", rank="0")
    both = [*exporter(), *rank(), native]
    rulebook.check(both, {UNUSABLE: []}, rule_files=ALL)


def test_the_second_job_takes_over_when_the_first_one_ends(rulebook: Rulebook) -> None:
    """The first target is removed after 20 minutes, as the alert advises."""
    first = [(name, f"{each.split('x')[0]}x40 _x{LENGTH - 41}") for name, each in a_node()]
    rulebook.check(
        # Its scrape is always newer at first, and so it counts.
        first + [(name, "_ " + each if "gpu_up" in name else each) for name, each in a_node(job="again")],
        {
            VERDICTS: [({"run": "train", "cause": "input_bound"}, 1)],
            "count by (uuid, job) (gpu:verdict:ratio5m)": [
                ({"uuid": f"GPU-{number}", "job": "again"}, 1) for number in range(2)
            ],
            "sum(cluster:gpus_known:count)": [({}, 2)],
        },
        at="40m",
        rule_files=ALL,
    )


@pytest.mark.parametrize("clusters", [("east", "west"), ("east", "")], ids=["both named", "one named"])
def test_clusters_with_equal_names_of_instances_and_runs_stay_apart(
    rulebook: Rulebook, clusters: tuple[str, str]
) -> None:
    story: Story = []
    causes = ("input_bound", "healthy")
    for cluster, cause in zip(clusters, causes, strict=True):
        of_it = a_node(cause, prefix=cluster)
        story += labelled(of_it, cluster=cluster) if cluster else of_it

    def of(cluster: str, **labels: str) -> dict[str, str]:
        return {**({"cluster": cluster} if cluster else {}), **labels}

    known = list(zip(clusters, causes, strict=True))
    rulebook.check(
        story,
        {
            "count by (cluster, run, cause) (run:verdict:ratio5m)": [
                (of(cluster, run="train", cause=cause), 1) for cluster, cause in known
            ],
            "count by (cluster, cause) (rank:verdict:ratio5m)": [
                (of(cluster, cause=cause), 2) for cluster, cause in known
            ],
            "count by (cluster, cause) (gpu:verdict:ratio5m)": [
                (of(cluster, cause=cause), 2) for cluster, cause in known
            ],
            "1 * cluster:gpus_known:count": [(of(cluster), 2) for cluster in clusters],
            "round(100 * cause:gpus_lost:sum5m)": [(of(clusters[0], cause="input_bound"), 80)],
            "1 * run:ranks:count": [(of(cluster, run="train"), 2) for cluster in clusters],
            UNUSABLE: [],
            STALLSCOPE: [],
        },
        rule_files=ALL,
    )


def test_indistinguishable_clusters_raise_an_alert(rulebook: Rulebook) -> None:
    """The series of their hosts and ranks are the same; their GPUs have UUIDs."""
    other = [each for number in range(2) for each in gpu(number, uuid=f"GPU-west{number}")]
    rulebook.check(
        [*a_node(prefix="east"), *other],
        {UNUSABLE: [({"job": "stallscope", "reason": "shared_instance"}, 1)]},
        rule_files=ALL,
    )


def test_a_gpu_that_was_replaced_raises_none(rulebook: Rulebook) -> None:
    lost = gpu(0, up=steady(0), uuid="GPU-old")
    rulebook.check([*a_node(), *lost], {UNUSABLE: []}, rule_files=ALL)


@pytest.mark.parametrize("fault", ["missing", "twice"])
def test_all_thresholds_of_a_second_cluster_are_one_alert_and_every_subject_keeps_its_verdict(
    rulebook: Rulebook, fault: str
) -> None:
    """An edge sends its own thresholds to a server that evaluates rules too; or that server does not load the file."""
    from_edge = [('stallscope:threshold{name="input_notice", cluster="edge"}', steady(0.1))]
    rulebook.check(
        [*a_node(), *(from_edge if fault == "twice" else [])],
        {
            'count by (name) (ALERTS{alertname="StallscopeThresholdMissing", alertstate="firing"})': [
                ({"name": "input_notice"} if fault == "twice" else {}, 1)
            ],
            "count(run:verdict:ratio5m)": [({}, 1)],
            "count(rank:verdict:ratio5m)": [({}, 2)],
            "count(gpu:verdict:ratio5m)": [({}, 2)],
        },
        rule_files=[path for path in ALL if fault == "twice" or path.stem != "thresholds"],
    )
