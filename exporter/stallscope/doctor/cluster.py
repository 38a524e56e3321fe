"""All exporters together, as Prometheus sees them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from stallscope.common.version import __version__
from stallscope.doctor.checkup import Finding, Part, failed, ok, skipped, warning
from stallscope.doctor.exporter import MOST_AGE, MOST_SKEW, RESET_CLOCKS
from stallscope.doctor.scrapes import EXPORTERS
from stallscope.doctor.server import Server, begin, listed

_LAST_SUCCESS = "stallscope_exporter_source_last_success_timestamp_seconds"
_GPUS = 'group by (cluster, job, instance, uuid) (stallscope_gpu_up{measured_by="", uuid!=""} == 1)'


def _exporters(server: Server) -> Iterator[Finding]:
    states = server.prometheus.query(f"up{{{EXPORTERS}}}")
    down = sorted(_name(labels) for labels, up in states if not up)
    if down:
        yield failed(
            f"{len(down)} of {len(states)} exporters {'does' if len(down) == 1 else 'do'} not answer: {listed(down)}",
            "see whether they run, and whether Prometheus reaches their port; `stallscope doctor` there tells more",
        )
    elif states:
        yield ok(f"all {len(states)} exporters answer")
    elif server.prometheus.query("gpu:chosen:info"):
        yield skipped("there is no exporter of Stallscope, but others'")
    else:
        yield failed(
            "Prometheus knows no exporter of Stallscope",
            "`stallscope doctor prometheus` tells what it scrapes; its job and the nodes' exporters are to be added",
        )


def _versions(server: Server) -> Iterator[Finding]:
    versions: dict[str, list[str]] = defaultdict(list)
    for labels, _ in server.prometheus.query("stallscope_build_info"):
        versions[labels.get("version", "")].append(_name(labels))
    if len(versions) > 1:
        usual = max(versions, key=lambda version: len(versions[version]))
        for version, names in sorted(versions.items()):
            if version != usual:
                yield warning(
                    f"{listed(sorted(names))}: version {version}, and {usual} on most nodes",
                    "install one version on all nodes, that of the rules",
                )
    elif versions:
        (version,) = versions
        if version == __version__:
            yield ok(f"all exporters are of version {version}")
        else:
            yield warning(
                f"all exporters are of version {version}, and this command of {__version__}",
                "compare the rules with those of the exporters' version",
            )


def _sources(server: Server) -> Iterator[Finding]:
    states = server.prometheus.query("stallscope_exporter_source_up")
    failing: dict[str, list[str]] = defaultdict(list)
    for labels, up in states:
        if not up:
            failing[labels.get("source", "")].append(_name(labels))
    for source, names in sorted(failing.items()):
        yield failed(
            f"source {source} fails on {listed(sorted(names))}",
            "`stallscope doctor` there, and its log, tell the reason",
        )
    if states and not failing:
        yield ok("no source of an exporter fails")


def _clocks(server: Server) -> Iterator[Finding]:
    """Newest readings, by the nodes' clocks, against their scrapes, by Prometheus'."""
    ages = server.prometheus.query(f"min by (cluster, job, instance) (timestamp({_LAST_SUCCESS}) - {_LAST_SUCCESS})")
    ahead = sorted(_name(labels) for labels, age in ages if age < -MOST_SKEW)
    behind = sorted(_name(labels) for labels, age in ages if age > MOST_AGE)
    if ahead:
        yield failed(f"clocks are ahead of Prometheus' by more than {MOST_SKEW:g} s: {listed(ahead)}", RESET_CLOCKS)
    if behind:
        yield failed(
            f"newest readings are more than {MOST_AGE:g} s old by Prometheus' clock: {listed(behind)}",
            f"{RESET_CLOCKS}; if they are, nothing is read there any more",
        )
    if ages and not ahead and not behind:
        yield ok("all nodes' clocks agree with Prometheus'")


def _foreign(server: Server) -> Iterator[Finding]:
    """GPUs that the rules take from others' exporters, since none of ours tells of them."""
    only: dict[str, set[str]] = defaultdict(set)
    for labels, _ in server.prometheus.query("gpu:chosen:info"):
        only[labels.get("measured_by", "")].add(labels.get("hostname") or labels.get("host") or _name(labels))
    for exporter, names in sorted(only.items()):
        yield warning(
            f"GPUs of {listed(sorted(names))} are measured by {exporter} alone: no pauses, owners or training there",
            "run Stallscope's exporter on these nodes too (deploy/)",
        )
    if not only:
        yield ok("no GPU is measured by others' exporters alone")


def _once(server: Server) -> Iterator[Finding]:
    """Return GPUs that several targets export: the rules count one target, and alerts on its host come from each."""
    often = server.prometheus.query(f"{_GPUS} and on (cluster, uuid) (count by (cluster, uuid) ({_GPUS}) > 1)")
    targets = sorted({f"{_name(labels)} of job {labels.get('job', 'unknown')}" for labels, _ in often})
    if targets:
        cards = {(labels.get("cluster"), labels.get("uuid")) for labels, _ in often}
        yield warning(
            f"exported by more than one target: {len(cards)} GPU{'s' if len(cards) > 1 else ''}, by {listed(targets)}",
            "let one job alone scrape each exporter, and one exporter alone read each node's GPUs "
            "(--no-collector.nvidia for others)",
        )
    else:
        yield ok("no GPU is told of twice")


def _name(labels: Mapping[str, str]) -> str:
    return labels.get("instance", "unknown")


PART = Part(
    "cluster",
    begin,
    (
        ("exporters", _exporters),
        ("versions", _versions),
        ("sources", _sources),
        ("clocks", _clocks),
        ("GPUs", _once),
        ("foreign exporters", _foreign),
    ),
)
