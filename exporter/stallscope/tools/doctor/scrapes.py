"""Checks that Prometheus scrapes all exporters, often enough for the rules, and keeps their labels."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from stallscope.node.configuration import parse_duration
from stallscope.tools.doctor.checkup import Finding, failed, ok, skipped, warning
from stallscope.tools.doctor.server import Server, listed, optional
from stallscope.tools.doctor.yaml_text import mapping_of

EXPORTERS = 'job=~".*stallscope.*"'
"""Selector by which the rules recognize Stallscope exporters."""
LONGEST_INTERVAL = 30.0
"""Maximum scrape interval in seconds: windows of the rules are 90 s, and two scrapes in a window may fail."""
_BUSY = 0.5
"""Share of its time limit above which a scrape's duration is reported."""
_REACH = "check that the exporters run there, and that Prometheus reaches their port"
_REMEDIES = (
    ("connection refused", "start the exporter there, or set the job's port to the exporter's"),
    (
        "status 40[13]|remote error: tls",
        "set basic_auth or the client certificate in the job, as the exporter's --web.config.file requires",
    ),
    ("status 404", "set the job's metrics_path to /metrics, and its port to the exporter's"),
    ("status 503", "run `stallscope doctor exporter` there to see why it is not ready"),
    ("x509|certificate|tls:", "set ca_file in the job's tls_config to the authority of the exporter's certificate"),
    ("http response to https", "set scheme: http in the job: this exporter does not use TLS"),
    ("status 400|malformed http|EOF$", "set scheme: https in the job: this exporter may accept only TLS"),
    ("no such host", "check Prometheus' name resolution; if the node no longer exists, remove it from the targets"),
    (
        "deadline exceeded|timeout|no route|unreachable",
        "check that the node runs, and firewalls between it and Prometheus",
    ),
)
"""Remedies by a pattern of `lastError`; the first match is used."""


def _targets(server: Server) -> Iterator[Finding]:
    response = optional(server, "targets?state=active")
    if response is None:
        yield skipped("this server does not report its targets")
        return
    targets = [each for each in response["activeTargets"] or [] if "stallscope" in each["labels"].get("job", "")]
    if not targets:
        # The rules also work with other exporters, with fewer signals.
        report = warning if server.prometheus.query("gpu:chosen:info") else failed
        yield report(
            "no target is a Stallscope exporter",
            "add a job whose name contains stallscope, as in prometheus/prometheus.yml, with every node's exporter",
        )
        return
    down: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for each in targets:
        if each["health"] == "down":
            down[_remedy(each.get("lastError", ""))].append(each)
    for remedy, those in down.items():
        names = f"{listed(map(_instance, those))}; " if len(those) > 1 else ""
        yield failed(
            f"{len(those)} of {len(targets)} exporters cannot be scraped: {names}{_instance(those[0])}: "
            f"{those[0].get('lastError', '')}",
            remedy,
        )
    up = [each for each in targets if each["health"] == "up"]
    slow = [
        each for each in up if each.get("lastScrapeDuration", 0.0) > _BUSY * _seconds(each.get("scrapeTimeout", "10s"))
    ]
    if slow:
        yield warning(
            f"scrapes take longer than half of their time limit: {listed(map(_instance, slow))}",
            "check the load of these nodes and the network, or raise scrape_timeout",
        )
    rare = [each for each in targets if _seconds(each.get("scrapeInterval", "0s")) > LONGEST_INTERVAL]
    if rare:
        yield failed(
            f"{len(rare)} exporters are scraped only every {rare[0]['scrapeInterval']}, too rarely for the rules",
            f"set scrape_interval of job {rare[0]['labels']['job']} to 15s, at most {LONGEST_INTERVAL:g}s",
        )
    if up:
        yield ok(f"{len(up)} of {len(targets)} exporters were scraped")


def _remedy(error: str) -> str:
    """Return the remedy for a failed scrape, by Prometheus' error message."""
    return next((remedy for words, remedy in _REMEDIES if re.search(words, error, re.IGNORECASE)), _REACH)


def _instance(target: Mapping[str, Any]) -> str:
    return str(target["labels"].get("instance", target["scrapeUrl"]))


def _jobs(server: Server) -> Iterator[Finding]:
    others = server.prometheus.query(
        f"count by (job) (stallscope_build_info unless stallscope_build_info{{{EXPORTERS}}})"
    )
    for labels, number in others:
        yield failed(
            f"{number:.0f} exporters are scraped by job {labels.get('job', '')!r}, which the alerts ignore",
            "rename the job so that its name contains stallscope",
        )
    if not others and not server.prometheus.query("count(stallscope_build_info)"):
        yield skipped("no exporter is scraped")
    elif not others:
        yield ok("all jobs that scrape exporters have stallscope in their name")


def _honor_labels(server: Server) -> Iterator[Finding]:
    moved = server.prometheus.query(
        'count by (job) ({__name__=~"stallscope_training_rank_info|stallscope_gpu_owner_info", exported_namespace!=""})'
    )
    remedy = "set honor_labels: true in the job that scrapes exporters (honorLabels in a PodMonitor)"
    for labels, number in moved:
        yield failed(
            f"{number:.0f} series of job {labels.get('job', '')!r} have the target's namespace, not their own", remedy
        )
    if moved:
        return
    response = optional(server, "status/config")
    if response is None:
        yield skipped("this server does not report its configuration")
        return
    configured = mapping_of(response["yaml"]).get("scrape_configs") or []
    ours = [each for each in configured if "stallscope" in each.get("job_name", "")]
    without = [each["job_name"] for each in ours if not each.get("honor_labels")]
    if without:
        yield warning(f"job {listed(without)} has no honor_labels: a training's namespace may be lost", remedy)
    elif ours:
        yield ok("honor_labels is set for exporters")
    else:
        yield skipped("the main configuration has no scrape job for exporters")


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        return 0.0


CHECKS = (("targets", _targets), ("jobs", _jobs), ("honor labels", _honor_labels))
