"""Many exporters, as Prometheus sees them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stallscope.common.version import __version__
from stallscope.tools.doctor.cluster import PART
from stallscope.tools.doctor.scrapes import EXPORTERS
from tests.doctor.conftest import MakeSubject
from tests.doctor.web_servers import Served, Vector, findings, statuses
from tests.rules.rulebook import Rulebook, gpu, steady

pytestmark = pytest.mark.usefixtures("no_time_passes")
UP = f"up{{{EXPORTERS}}}"
LAST = "stallscope_exporter_source_last_success_timestamp_seconds"
AGES = f"min by (cluster, job, instance) (timestamp({LAST}) - {LAST})"
SCRAPED = 'group by (cluster, job, instance, uuid) (stallscope_gpu_up{measured_by="", uuid!=""} == 1)'
TWICE = f"{SCRAPED} and on (cluster, uuid) (count by (cluster, uuid) ({SCRAPED}) > 1)"
RECORDED = "max(timestamp(stallscope:threshold))"
CHECKS = ("exporters", "versions", "sources", "clocks", "GPUs", "foreign exporters")


def nodes(value: float, **labels: str) -> list[tuple[dict[str, str], float]]:
    return [({"instance": f"node{number}:19400", **labels}, value) for number in range(12)]


def in_order() -> dict[str, Vector | Callable[[], Vector]]:
    """Twelve nodes."""
    return {
        "vector(time())": lambda: [({}, time.time())],
        UP: nodes(1),
        "stallscope_build_info": nodes(1, version=__version__),
        AGES: nodes(0.5),
        "stallscope_exporter_source_up": nodes(1, source="nvidia"),
        f"count({SCRAPED})": [({}, 12.0)],
        RECORDED: lambda: [({}, time.time())],
    }


def test_a_cluster_in_order_is_ok_in_every_check(served: Served, make_subject: MakeSubject) -> None:
    served.vectors = in_order()
    found = findings(PART, make_subject(prometheus_url=served.url))
    assert statuses(found) == {check: {"ok"} for check in CHECKS}, found


@pytest.mark.parametrize(
    ("check", "status", "expression", "answer", "words"),
    [
        (
            "exporters",
            "failed",
            UP,
            [*nodes(1), ({"instance": "node99:19400"}, 0)],
            "1 of 13 exporters does not respond",
        ),
        (
            "exporters",
            "failed",
            UP,
            nodes(0),
            "node0:19400, node10:19400, node11:19400, node1:19400, node2:19400 and 7",
        ),
        ("exporters", "failed", UP, [], "scrapes no Stallscope exporter"),
        (
            *("versions", "warning", "stallscope_build_info"),
            [*nodes(1, version=__version__), ({"instance": "node99:19400", "version": "0.0.1"}, 1)],
            f"node99:19400: version 0.0.1, but {__version__} on most nodes",
        ),
        ("versions", "warning", "stallscope_build_info", nodes(1, version="0.0.1"), "have version 0.0.1"),
        ("versions", "warning", "stallscope_build_info", nodes(1), "have version unknown"),
        (
            *("sources", "failed", "stallscope_exporter_source_up"),
            [({"instance": "node3:19400", "source": "nvidia"}, 0)],
            "collector nvidia fails on node3:19400",
        ),
        (
            "clocks",
            "failed",
            AGES,
            [({"instance": "node3:19400"}, -30)],
            "more than 5 s ahead of Prometheus': node3",
        ),
        (
            "clocks",
            "failed",
            AGES,
            [({"instance": "node3:19400"}, 30)],
            "more than 15 s old by Prometheus' clock: node3",
        ),
        (
            *("GPUs", "warning", TWICE),
            [({"job": job, "instance": "node3:19400", "uuid": "GPU-3"}, 1) for job in ("stallscope", "pods")],
            "1 GPU, by node3:19400 of job pods, node3:19400 of job stallscope",
        ),
        (
            *("foreign exporters", "warning", "gpu:chosen:info"),
            [({"measured_by": "dcgm-exporter", "hostname": "node77"}, 1)] * 8,
            "GPUs of node77 are measured only by dcgm-exporter",
        ),
    ],
)
def test_what_is_wrong_is_found_by_its_own_check(
    check: str, status: str, expression: str, answer: Vector, words: str, served: Served, make_subject: MakeSubject
) -> None:
    served.vectors = {**in_order(), expression: answer}
    found = findings(PART, make_subject(prometheus_url=served.url))
    assert statuses(found) == {each: {status if each == check else "ok"} for each in CHECKS}, found
    assert words in found[check][0].message
    assert found[check][0].remedy


def test_a_gpu_counts_twice_only_where_two_jobs_scrape_it(tmp_path: Path) -> None:
    Rulebook(tmp_path).check(
        [
            *gpu(),
            *gpu(1),
            *gpu(job="pods-of-stallscope"),
            *gpu(up=steady(0), uuid="GPU-moved", instance="node2:19400"),
            *gpu(uuid="GPU-moved", instance="node3:19400"),
            *gpu(1, measured_by="dcgm-exporter", job="dcgm"),
        ],
        {
            f"count by (job, uuid) ({TWICE})": [
                ({"job": job, "uuid": "GPU-0"}, 1) for job in ("stallscope", "pods-of-stallscope")
            ]
        },
        rule_files=(),
    )


def test_a_cluster_without_any_exporter_is_not_well_unless_it_has_others(
    served: Served, make_subject: MakeSubject
) -> None:
    served.vectors = {"vector(time())": in_order()["vector(time())"]}
    found = findings(PART, make_subject(prometheus_url=served.url))
    assert {check for check, kinds in statuses(found).items() if kinds == {"failed"}} == {"exporters"}
    others = {check: kinds for check, kinds in statuses(found).items() if check != "exporters"}
    assert set(others) == set(CHECKS) - {"exporters"}
    assert all(kinds == {"skipped"} for kinds in others.values()), "nothing can be ok that is not there"
    served.vectors["gpu:chosen:info"] = [({"measured_by": "dcgm-exporter", "hostname": "node77"}, 1)]
    assert statuses(findings(PART, make_subject(prometheus_url=served.url)))["exporters"] == {"skipped"}
