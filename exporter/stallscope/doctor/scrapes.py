"""Whether Prometheus scrapes every exporter, as often as the rules need it, and takes its labels as they are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from stallscope.configuration import parse_duration
from stallscope.doctor.checkup import Finding, failed, ok, skipped, warning
from stallscope.doctor.server import Server, listed, optional
from stallscope.doctor.yaml_text import mapping_of

EXPORTERS = 'job=~".*stallscope.*"'
"""By what the rules know exporters from other targets."""
LONGEST_INTERVAL = 30.0
"""Seconds between two scrapes: rules look at windows of 90 s, and two scrapes of those may fail."""
_BUSY = 0.5
"""Share of its time limit that a scrape may take before it is told of."""
_REACH = "see whether the exporters run there, and whether Prometheus reaches their port"
_REMEDIES = (
    ("connection refused", "start the exporter there, or give its job the port that it listens at"),
    (
        "status 40[13]|remote error: tls",
        "give the job the basic_auth, or the certificate, that the exporter's --web.config.file asks for",
    ),
    ("status 404", "set the job's metrics_path to /metrics, and its port to the exporter's"),
    ("status 503", "`stallscope doctor exporter` there tells why it is not ready"),
    ("x509|certificate|tls:", "name the authority of the exporter's certificate in the job's tls_config (ca_file)"),
    ("http response to https", "set scheme: http in the job: this exporter speaks no TLS"),
    ("status 400|malformed http|EOF$", "set scheme: https in the job: this exporter may speak TLS alone"),
    ("no such host", "see how Prometheus resolves names, or whether the node is gone: take it out of the targets then"),
    (
        "deadline exceeded|timeout|no route|unreachable",
        "see whether the node runs, and firewalls between it and Prometheus",
    ),
)
"""What to do, by the words of `lastError`; the first that fits."""


def _targets(server: Server) -> Iterator[Finding]:
    told = optional(server, "targets?state=active")
    if told is None:
        yield skipped("this server does not tell what it scrapes")
        return
    targets = [each for each in told["activeTargets"] or [] if "stallscope" in each["labels"].get("job", "")]
    if not targets:
        # The rules take others' exporters too, of whose GPUs they know less.
        report = warning if server.prometheus.query("gpu:chosen:info") else failed
        yield report(
            "no exporter of Stallscope is among its targets",
            "add a job whose name contains stallscope, as prometheus/prometheus.yml has it, with every node's exporter",
        )
        return
    down: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for each in targets:
        if each["health"] == "down":
            down[_remedy(each.get("lastError", ""))].append(each)
    for remedy, those in down.items():
        names = f"{listed(map(_instance, those))}; " if len(those) > 1 else ""
        yield failed(
            f"{len(those)} of {len(targets)} exporters can't be scraped: {names}{_instance(those[0])}: "
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
            "see what keeps these nodes or the way to them busy, or raise scrape_timeout",
        )
    seldom = [each for each in targets if _seconds(each.get("scrapeInterval", "0s")) > LONGEST_INTERVAL]
    if seldom:
        yield failed(
            f"{len(seldom)} exporters are scraped every {seldom[0]['scrapeInterval']}: rules look at 90 s",
            f"set scrape_interval of job {seldom[0]['labels']['job']} to 15s, at most {LONGEST_INTERVAL:g}s",
        )
    if up:
        yield ok(f"{len(up)} of {len(targets)} exporters were scraped")


def _remedy(error: str) -> str:
    """What to do about a scrape that failed, by Prometheus' words for it."""
    return next((remedy for words, remedy in _REMEDIES if re.search(words, error, re.IGNORECASE)), _REACH)


def _instance(target: Mapping[str, Any]) -> str:
    return str(target["labels"].get("instance", target["scrapeUrl"]))


def _jobs(server: Server) -> Iterator[Finding]:
    others = server.prometheus.query(
        f"count by (job) (stallscope_build_info unless stallscope_build_info{{{EXPORTERS}}})"
    )
    for labels, number in others:
        yield failed(
            f"{number:.0f} exporters are scraped by job {labels.get('job', '')!r}: alerts don't know them",
            "give the job a name with stallscope in it",
        )
    if not others:
        yield ok("exporters are scraped by jobs that the rules know")


def _honor_labels(server: Server) -> Iterator[Finding]:
    moved = server.prometheus.query(
        'count by (job) ({__name__=~"stallscope_training_rank_info|stallscope_gpu_owner_info", exported_namespace!=""})'
    )
    remedy = "set honor_labels: true in the job that scrapes exporters (honorLabels in a PodMonitor)"
    for labels, number in moved:
        yield failed(
            f"{number:.0f} series of job {labels.get('job', '')!r} lost their namespace to that of the target", remedy
        )
    if moved:
        return
    told = optional(server, "status/config")
    if told is None:
        yield skipped("this server does not tell its configuration")
        return
    configured = mapping_of(told["yaml"]).get("scrape_configs") or []
    ours = [each for each in configured if "stallscope" in each.get("job_name", "")]
    without = [each["job_name"] for each in ours if not each.get("honor_labels")]
    if without:
        yield warning(f"job {listed(without)} does not honour labels: a training's namespace may be lost", remedy)
    elif ours:
        yield ok("labels of exporters are honoured")
    else:
        yield skipped("its main configuration has no job of exporters")


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        return 0.0


CHECKS = (("targets", _targets), ("jobs", _jobs), ("honor labels", _honor_labels))
