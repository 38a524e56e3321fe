"""All exporters together, as Prometheus sees them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from stallscope.common.version import __version__
from stallscope.tools.doctor.checkup import Finding, Part, failed, ok, skipped, warning
from stallscope.tools.doctor.exporter import MOST_AGE, MOST_SKEW, RESET_CLOCKS
from stallscope.tools.doctor.scrapes import EXPORTERS
from stallscope.tools.doctor.server import Server, begin, has_rules, listed

_LAST_SUCCESS = "stallscope_exporter_source_last_success_timestamp_seconds"
_GPUS = 'group by (cluster, job, instance, uuid) (stallscope_gpu_up{measured_by="", uuid!=""} == 1)'
_GPU_COUNT = f"count({_GPUS})"


def _exporters(server: Server) -> Iterator[Finding]:
    states = server.prometheus.query(f"up{{{EXPORTERS}}}")
    down = sorted(_name(labels) for labels, up in states if not up)
    if down:
        yield failed(
            f"{len(down)} of {len(states)} exporters {'does' if len(down) == 1 else 'do'} not respond: {listed(down)}",
            "check that they run and that Prometheus reaches their port; run `stallscope doctor` on the nodes",
        )
    elif states:
        yield ok(f"all {len(states)} exporters respond")
    elif server.prometheus.query("gpu:chosen:info"):
        yield skipped("no Stallscope exporter is scraped, only other exporters")
    else:
        yield failed(
            "Prometheus scrapes no Stallscope exporter",
            "add a scrape job with the nodes' exporters; `stallscope doctor prometheus` shows the current targets",
        )


def _versions(server: Server) -> Iterator[Finding]:
    versions: dict[str, list[str]] = defaultdict(list)
    for labels, _ in server.prometheus.query("stallscope_build_info"):
        versions[labels.get("version") or "unknown"].append(_name(labels))
    if len(versions) > 1:
        usual = max(versions, key=lambda version: len(versions[version]))
        for version, names in sorted(versions.items()):
            if version != usual:
                yield warning(
                    f"{listed(sorted(names))}: version {version}, but {usual} on most nodes",
                    "install the version of the rules on all nodes",
                )
    elif not versions:
        yield skipped("no exporter reports its version")
    else:
        (version,) = versions
        if version == __version__:
            yield ok(f"all exporters have version {version}")
        else:
            yield warning(
                f"all exporters have version {version}, this command has {__version__}",
                "check that the rules have the exporters' version",
            )


def _sources(server: Server) -> Iterator[Finding]:
    states = server.prometheus.query("stallscope_exporter_source_up")
    failing: dict[str, list[str]] = defaultdict(list)
    for labels, up in states:
        if not up:
            failing[labels.get("source", "")].append(_name(labels))
    for source, names in sorted(failing.items()):
        yield failed(
            f"collector {source} fails on {listed(sorted(names))}",
            "run `stallscope doctor` on the node, and see the exporter's log",
        )
    if not states:
        yield skipped("no exporter reports its collectors")
    elif not failing:
        yield ok("no collector fails")


def _clocks(server: Server) -> Iterator[Finding]:
    """Compare the newest polls, timed by the nodes' clocks, with the scrapes, timed by Prometheus' clock."""
    ages = server.prometheus.query(f"min by (cluster, job, instance) (timestamp({_LAST_SUCCESS}) - {_LAST_SUCCESS})")
    ahead = sorted(_name(labels) for labels, age in ages if age < -MOST_SKEW)
    behind = sorted(_name(labels) for labels, age in ages if age > MOST_AGE)
    if ahead:
        yield failed(f"clocks are more than {MOST_SKEW:g} s ahead of Prometheus': {listed(ahead)}", RESET_CLOCKS)
    if behind:
        yield failed(
            f"the newest polls are more than {MOST_AGE:g} s old by Prometheus' clock: {listed(behind)}",
            f"{RESET_CLOCKS}; if they are, the exporters no longer poll",
        )
    if not ages:
        yield skipped("no exporter reports the time of its polls")
    elif not ahead and not behind:
        yield ok("all nodes' clocks agree with Prometheus'")


def _foreign(server: Server) -> Iterator[Finding]:
    """Report GPUs that only other exporters measure."""
    only: dict[str, set[str]] = defaultdict(set)
    for labels, _ in server.prometheus.query("gpu:chosen:info"):
        only[labels.get("measured_by", "")].add(labels.get("hostname") or labels.get("host") or _name(labels))
    for exporter, names in sorted(only.items()):
        yield warning(
            f"GPUs of {listed(sorted(names))} are measured only by {exporter}: no pauses, owners or training runs",
            "run Stallscope's exporter on these nodes too (deploy/)",
        )
    if only:
        return
    if not has_rules(server):
        yield skipped("the rules that find other exporters' GPUs are not loaded")
    elif not server.prometheus.query(_GPU_COUNT):
        yield skipped("no GPU is measured")
    else:
        yield ok("every GPU is measured by a Stallscope exporter")


def _once(server: Server) -> Iterator[Finding]:
    """Report GPUs that several targets export: the rules use one target, but host alerts come from each."""
    repeated = server.prometheus.query(f"{_GPUS} and on (cluster, uuid) (count by (cluster, uuid) ({_GPUS}) > 1)")
    targets = sorted({f"{_name(labels)} of job {labels.get('job', 'unknown')}" for labels, _ in repeated})
    if targets:
        cards = {(labels.get("cluster"), labels.get("uuid")) for labels, _ in repeated}
        yield warning(
            f"exported by more than one target: {len(cards)} GPU{'s' if len(cards) > 1 else ''}, by {listed(targets)}",
            "scrape each exporter in one job only, and read each node's GPUs with one exporter only "
            "(--no-collector.nvidia for the others)",
        )
    elif not server.prometheus.query(_GPU_COUNT):
        yield skipped("no exporter reports a GPU that responds")
    else:
        yield ok("no GPU is exported twice")


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
