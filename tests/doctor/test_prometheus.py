"""Checks of Prometheus: scrapes, rules, thresholds and alerts, compared with the bundle's own rules."""

from __future__ import annotations

import copy
import datetime as dt
import time
from collections.abc import Callable
from typing import Any

import pytest

from stallscope.common.thresholds import default_thresholds
from stallscope.tools.doctor.prometheus import PART
from stallscope.tools.doctor.rules import bundled_groups
from stallscope.tools.doctor.scrapes import EXPORTERS
from tests.analysis.servers import DRIPS, talking
from tests.doctor.conftest import MakeSubject
from tests.doctor.web_servers import Served, findings, statuses

pytestmark = pytest.mark.usefixtures("no_time_passes")
CHECKS = (
    *(
        "version",
        "clock",
        "targets",
        "jobs",
        "honor labels",
        "rules",
        "thresholds",
        "freshness",
        "pages",
        "alertmanagers",
    ),
)
OTHER_JOBS = f"count by (job) (stallscope_build_info unless stallscope_build_info{{{EXPORTERS}}})"
LOST_NAMESPACES = (
    'count by (job) ({__name__=~"stallscope_training_rank_info|stallscope_gpu_owner_info", exported_namespace!=""})'
)
UNUSABLE = "count by (job, measured_by, reason) (exporter:unusable:info)"
WATCHDOG = 'ALERTS{cause="watchdog", alertstate="firing"}'


def moment(age: float) -> str:
    """As Go writes it: nine digits."""
    at = dt.datetime.fromtimestamp(time.time() - age, dt.timezone.utc)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z"


def in_order(served: Served) -> None:
    """A Prometheus that has everything."""
    target = {
        "labels": {"job": "stallscope", "instance": "node1:19400"},
        "scrapeUrl": "http://node1:19400/metrics",
        "health": "up",
        "lastError": "",
        "lastScrapeDuration": 0.01,
        "scrapeInterval": "15s",
        "scrapeTimeout": "10s",
    }
    groups = [
        {
            "name": name,
            "file": f"{name}.yml",
            "interval": 15,
            "evaluationTime": 0.02,
            "lastEvaluation": moment(3),
            "rules": [{"name": rule, "health": "ok"} for rule in rules.elements()],
        }
        for name, rules in bundled_groups().items()
    ]
    served.data = {
        "status/buildinfo": {"version": "3.1.0"},
        "status/config": {"yaml": "scrape_configs: [{job_name: stallscope, honor_labels: true}, {job_name: node}]"},
        "targets": {"activeTargets": [target, {**target, "labels": {"job": "node"}, "health": "down"}]},
        "rules": {"groups": groups},
        "alertmanagers": {"activeAlertmanagers": [{"url": f"{served.url}/api/v2/alerts"}]},
    }
    served.texts["/api/v2/alerts"] = '[{"labels": {"alertname": "StallscopeWatchdog", "cause": "watchdog"}}]'
    served.vectors = {
        "vector(time())": lambda: [({}, time.time())],
        "stallscope:threshold": [({"name": name}, value) for name, value in default_thresholds().items()],
        "max(timestamp(stallscope:threshold))": lambda: [({}, time.time() - 5)],
        WATCHDOG: [({"alertname": "StallscopeWatchdog", "cause": "watchdog"}, 1.0)],
        "count(stallscope_build_info)": [({}, 1.0)],
    }


def test_a_server_in_order_is_ok_in_every_check(served: Served, make_subject: MakeSubject) -> None:
    in_order(served)
    found = findings(PART, make_subject(prometheus_url=served.url))
    assert statuses(found) == {check: {"ok"} for check in CHECKS}, found
    number = sum(rules.total() for rules in bundled_groups().values())
    assert f" {number} rules" in found["rules"][0].message


def test_thresholds_that_differ_are_listed_with_their_defaults(served: Served, make_subject: MakeSubject) -> None:
    in_order(served)
    values = {**default_thresholds(), "input_warning": 0.15, "warmup_seconds": 60.0}
    served.vectors["stallscope:threshold"] = [({"name": name}, value) for name, value in values.items()]
    messages = [each.message for each in findings(PART, make_subject(prometheus_url=served.url))["thresholds"]]
    differing = "input_warning 0.15 (default 0.1), warmup_seconds 60 (default 300)"
    assert messages[1:] == [f"2 thresholds differ from this version's defaults: {differing}"]


def target(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.data["targets"]["activeTargets"][0]
    return found


def group(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.data["rules"]["groups"][0]
    return found


FAULTS: dict[str, tuple[str, str, Callable[[Served], object], str]] = {
    "a clock that is ahead": (
        *("clock", "failed"),
        lambda served: served.vectors.update({"vector(time())": lambda: [({}, time.time() + 60)]}),
        "60 s ahead of",
    ),
    "no target": (
        *("targets", "failed"),
        lambda served: served.data["targets"]["activeTargets"].pop(0),
        "no target is a Stallscope exporter",
    ),
    "no target but others' exporters": (
        *("targets", "warning"),
        lambda served: (
            served.data["targets"]["activeTargets"].pop(0),
            served.vectors.update({"gpu:chosen:info": [({}, 1.0)]}),
        ),
        "no target is a Stallscope exporter",
    ),
    "a target that is down": (
        *("targets", "failed"),
        lambda served: target(served).update(health="down", lastError="connection refused"),
        "1 of 1 exporters cannot be scraped: node1:19400: connection refused",
    ),
    "targets that are down for one reason": (
        *("targets", "failed"),
        lambda served: (
            target(served).update(health="down", lastError="EOF"),
            served.data["targets"]["activeTargets"].append(copy.deepcopy(target(served))),
        ),
        "2 of 2 exporters cannot be scraped: node1:19400, node1:19400; node1:19400: EOF",
    ),
    "infrequent scrapes": (
        *("targets", "failed"),
        lambda served: target(served).update(scrapeInterval="1m0s"),
        "scraped only every 1m0s",
    ),
    "slow scrapes": (
        *("targets", "warning"),
        lambda served: target(served).update(lastScrapeDuration=6.0),
        "longer than half of their time limit: node1:19400",
    ),
    "a job of another name": (
        *("jobs", "failed"),
        lambda served: served.vectors.update({OTHER_JOBS: [({"job": "gpus"}, 3.0)]}),
        "3 exporters are scraped by job 'gpus'",
    ),
    "labels that are not honoured": (
        *("honor labels", "warning"),
        lambda served: served.data.update({"status/config": {"yaml": "scrape_configs: [{job_name: stallscope}]"}}),
        "job stallscope has no honor_labels",
    ),
    "labels that were lost": (
        *("honor labels", "failed"),
        lambda served: served.vectors.update({LOST_NAMESPACES: [({"job": "stallscope"}, 2.0)]}),
        "2 series of job 'stallscope' have the target's namespace",
    ),
    "histograms that are converted": (
        *("pages", "failed"),
        lambda served: served.vectors.update(
            {UNUSABLE: [({"job": "gpus", "measured_by": "stallscope", "reason": "native_histograms"}, 3.0)]}
        ),
        "3 targets of stallscope in job 'gpus' cannot be used: native_histograms",
    ),
    "a group that is not loaded": (
        *("rules", "failed"),
        lambda served: served.data["rules"]["groups"].pop(0),
        "rule groups are not loaded",
    ),
    "a rule that is not loaded": (
        *("rules", "warning"),
        lambda served: group(served)["rules"].pop(0),
        "of another version is loaded",
    ),
    "a group that is loaded twice": (
        *("rules", "failed"),
        lambda served: served.data["rules"]["groups"].append(copy.deepcopy(group(served))),
        "loaded twice",
    ),
    "a rule that fails": (
        *("rules", "failed"),
        lambda served: group(served)["rules"][0].update(health="err", lastError="many-to-many matching"),
        "1 rules fail",
    ),
    "a group that stands still": (
        *("rules", "failed"),
        lambda served: group(served).update(lastEvaluation=moment(600)),
        "was last evaluated 600 s ago",
    ),
    "a group that takes too long": (
        *("rules", "failed"),
        lambda served: group(served).update(evaluationTime=20.0),
        "takes 20.0 s of its 15 s",
    ),
    "a missing threshold": (
        *("thresholds", "failed"),
        lambda served: served.vectors.update(
            {"stallscope:threshold": [({"name": name}, 1.0) for name in default_thresholds() if name != "input_notice"]}
        ),
        "1 thresholds are missing, so rules that use them return nothing: input_notice",
    ),
    "rules that stopped": (
        *("freshness", "failed"),
        lambda served: served.vectors.update(
            {"max(timestamp(stallscope:threshold))": lambda: [({}, time.time() - 200)]}
        ),
        "recorded nothing for 200 s",
    ),
    "no Alertmanager": (
        *("alertmanagers", "failed"),
        lambda served: served.data["alertmanagers"]["activeAlertmanagers"].clear(),
        "no Alertmanager is configured",
    ),
    "an Alertmanager that got nothing": (
        *("alertmanagers", "failed"),
        lambda served: served.texts.update({"/api/v2/alerts": "[]"}),
        "has no alert StallscopeWatchdog",
    ),
    "an Alertmanager that is not there": (
        *("alertmanagers", "failed"),
        lambda served: served.data["alertmanagers"].update(activeAlertmanagers=[{"url": "http://127.0.0.1:9"}]),
        "does not respond to this machine",
    ),
    "an Alertmanager that returns nothing": (
        *("alertmanagers", "warning"),
        lambda served: served.texts.clear(),
        "responds to this machine with HTTP 404",
    ),
    "a watchdog that is silent": (
        *("alertmanagers", "failed"),
        lambda served: served.vectors.pop(WATCHDOG),
        "the alert StallscopeWatchdog does not fire",
    ),
}


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ('Get "http://a:19400/metrics": dial tcp 10.0.0.1:19400: connect: connection refused', "start the exporter"),
        ("server returned HTTP status 401 Unauthorized", "basic_auth"),
        ('Get "https://a:1/metrics": remote error: tls: bad certificate', "or the client certificate"),
        ('Get "https://a:1/metrics": x509: certificate signed by unknown authority', "ca_file"),
        ('Get "https://a:1/metrics": http: server gave HTTP response to HTTPS client', "scheme: http "),
        ('Get "http://a:1/metrics": EOF', "scheme: https"),
        ('Get "http://a:1/metrics": dial tcp: lookup a on 10.0.0.2:53: no such host', "name resolution"),
        ('Get "http://a:1/metrics": context deadline exceeded', "firewalls"),
        ("expected equal, got MNAME", "that the exporters run there"),
    ],
)
def test_a_failing_scrape_is_reported_with_the_remedy_for_its_error(
    error: str, remedy: str, served: Served, make_subject: MakeSubject
) -> None:
    in_order(served)
    target(served).update(health="down", lastError=error)
    (reported,) = findings(PART, make_subject(prometheus_url=served.url))["targets"]
    assert error in reported.message
    assert remedy in reported.remedy


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_found_by_its_own_check(fault: str, served: Served, make_subject: MakeSubject) -> None:
    check, status, breaks, words = FAULTS[fault]
    in_order(served)
    breaks(served)
    found = findings(PART, make_subject(prometheus_url=served.url))
    reported = [finding for finding in found[check] if finding.status == status]
    assert any(words in finding.message and finding.remedy for finding in reported), found[check]
    # A clock that is wrong makes everything look old or new.
    others = {each: kinds for each, kinds in statuses(found).items() if each != check and check != "clock"}
    assert all(kinds == {"ok"} for kinds in others.values()), others


def install_with_operator(served: Served, *without: str) -> None:
    """Load all groups except some from files as the Prometheus Operator writes them."""
    in_order(served)
    rules = served.data["rules"]
    rules["groups"] = [each for each in rules["groups"] if each["name"] not in without]
    for each in rules["groups"]:
        each["file"] = f"/etc/prometheus/rules/prometheus-k8s-rulefiles-0/gpus-{each['name']}-1d0b.yaml"


def test_groups_that_a_cluster_leaves_out_are_listed_with_what_is_lost(
    served: Served, make_subject: MakeSubject
) -> None:
    install_with_operator(
        served, "stallscope-alerts-gpu-use", "stallscope-alerts-stallscope", "stallscope-canonical-dcgm"
    )
    served.vectors.pop(WATCHDOG)
    served.texts["/api/v2/alerts"] = "[]"
    found = findings(PART, make_subject(prometheus_url=served.url))
    kinds = statuses(found)
    assert (kinds.pop("rules"), kinds.pop("alertmanagers")) == ({"skipped", "ok"}, {"skipped", "ok"})
    assert all(others == {"ok"} for others in kinds.values()), kinds
    alerts, adapters = (finding for finding in found["rules"] if finding.status == "skipped")
    assert "stallscope-alerts-gpu-use, stallscope-alerts-stallscope: these alerts do not fire: " in alerts.message
    assert "stallscope-canonical-dcgm: there are no verdicts" in adapters.message
    assert "prometheusOperator.rules" in alerts.remedy


def test_a_group_that_no_cluster_can_leave_out_fails_there_too(served: Served, make_subject: MakeSubject) -> None:
    install_with_operator(served, "stallscope-verdicts")
    (finding,) = (each for each in findings(PART, make_subject(prometheus_url=served.url))["rules"] if each.remedy)
    assert (finding.status, "1 of " in finding.message, "stallscope-verdicts" in finding.message) == (
        "failed",
        True,
        True,
    )


def test_an_alertmanager_that_drips_costs_the_time_that_it_may_take(served: Served, make_subject: MakeSubject) -> None:
    in_order(served)
    with talking(DRIPS["a header without end"]) as url:
        served.data["alertmanagers"].update(activeAlertmanagers=[{"url": url}])
        found = findings(PART, make_subject(prometheus_url=served.url, prometheus_timeout=3.0))
    (finding,) = found["alertmanagers"]
    assert finding.status == "failed"
    assert "no answer within" in finding.message


def test_checks_of_prometheus_own_api_are_skipped_on_other_servers(served: Served, make_subject: MakeSubject) -> None:
    in_order(served)
    served.data = {}
    found = findings(PART, make_subject(prometheus_url=served.url))
    skipped = {check for check, kinds in statuses(found).items() if kinds == {"skipped"}}
    assert skipped == {"targets", "honor labels", "rules", "alertmanagers"}


def test_rules_are_judged_on_a_server_that_does_not_time_its_groups(served: Served, make_subject: MakeSubject) -> None:
    in_order(served)
    for each in served.data["rules"]["groups"]:
        del each["evaluationTime"]
    assert statuses(findings(PART, make_subject(prometheus_url=served.url)))["rules"] == {"ok"}


def test_a_server_that_is_not_there_fails_only_where_it_was_named(make_subject: MakeSubject) -> None:
    assert statuses(findings(PART, make_subject())) == {"reachable": {"failed"}}
    assert statuses(findings(PART, make_subject(prometheus_named=False))) == {"reachable": {"skipped"}}


def test_the_bundle_is_read_whole() -> None:
    assert {"stallscope-thresholds", "stallscope-alerts-stallscope"} <= bundled_groups().keys()
    assert "StallscopeWatchdog" in bundled_groups()["stallscope-alerts-stallscope"]
    assert {"warmup_steps", "input_notice"} <= set(default_thresholds())
