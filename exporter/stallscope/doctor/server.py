"""Prometheus: whether it answers, scrapes exporters as the rules need it, evaluates the rules, and hands on alerts."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from stallscope.bundle import bundle_folder
from stallscope.configuration import parse_duration
from stallscope.doctor.checkup import Finding, Part, Stop, Subject, failed, ok, skipped, warning
from stallscope.doctor.exporter import MOST_SKEW, RESET_CLOCKS

if TYPE_CHECKING:
    from stallscope.analysis.prometheus import Prometheus  # whose library is not everywhere

EXPORTERS = 'job=~".*stallscope.*"'
"""By what the rules know exporters from other targets."""
LONGEST_INTERVAL = 30.0
"""Seconds between two scrapes: rules look at windows of 90 s, and two scrapes of those may fail."""
_BUSY = 0.5
"""Share of its time that a scrape or a group of rules may take before it is told of."""
_MOST_BYTES = 64 << 20
_OLD_EVALUATIONS = 3
"""Intervals without an evaluation from which a group counts as standing still."""
_OLD_RECORD = 120.0
"""Seconds after which what rules recorded is old: the slowest group is evaluated every minute."""
_SHOWN = 5
_HERE = ("localhost", "127.0.0.1", "::1")
_RULES = "load prometheus/rules/*.yml and alerts/*.yml of this version (rule_files in prometheus.yml), and reload it"


class Server(NamedTuple):
    """A Prometheus that answers."""

    prometheus: Prometheus
    url: str
    timeout: float
    ahead: float
    """Seconds by which its clock is ahead of this machine's."""


def begin(subject: Subject) -> Server:
    """Find the server.

    Raises:
        Stop: it does not answer.
    """
    try:
        from stallscope.analysis.prometheus import Prometheus, PrometheusError
    except ModuleNotFoundError as error:
        raise Stop(skipped(f"{error.name} is not installed", "pip install 'stallscope[analysis]'")) from None
    prometheus = Prometheus(subject.prometheus_url, timeout=subject.prometheus_timeout, max_bytes=_MOST_BYTES)
    asked = time.time()
    try:
        now = prometheus.now()
    except PrometheusError as error:
        if subject.prometheus_named:
            remedy = "say where it is with --prometheus.url, and see whether it runs"
            raise Stop(failed(str(error), remedy)) from None
        raise Stop(skipped(str(error), "name it with --prometheus.url to have it checked")) from None
    return Server(prometheus, subject.prometheus_url, subject.prometheus_timeout, now - (asked + time.time()) / 2)


def _version(server: Server) -> Iterator[Finding]:
    name = server.prometheus.name
    told = _optional(server, "status/buildinfo")
    yield ok(f"{name} answers" + (f": version {told['version']}" if told else ""))


def _clock(server: Server) -> Iterator[Finding]:
    if abs(server.ahead) > MOST_SKEW:
        side = "ahead of" if server.ahead > 0 else "behind"
        yield failed(f"Prometheus' clock is {abs(server.ahead):.0f} s {side} this machine's", RESET_CLOCKS)
    else:
        yield ok("its clock and this machine's agree")


def _targets(server: Server) -> Iterator[Finding]:
    told = _optional(server, "targets?state=active")
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
    down = [each for each in targets if each["health"] == "down"]
    if down:
        yield failed(
            f"{len(down)} of {len(targets)} exporters can't be scraped: {listed(map(_instance, down))}; "
            f"{_instance(down[0])}: {down[0]['lastError']}",
            "see whether the exporters run there, and whether Prometheus reaches their port",
        )
    up = [each for each in targets if each["health"] == "up"]
    slow = [each for each in up if each["lastScrapeDuration"] > _BUSY * _seconds(each.get("scrapeTimeout", "10s"))]
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
    told = _optional(server, "status/config")
    if told is None:
        yield skipped("this server does not tell its configuration")
        return
    configured = _yaml(told["yaml"]).get("scrape_configs") or []
    ours = [each for each in configured if "stallscope" in each.get("job_name", "")]
    without = [each["job_name"] for each in ours if not each.get("honor_labels")]
    if without:
        yield warning(f"job {listed(without)} does not honour labels: a training's namespace may be lost", remedy)
    elif ours:
        yield ok("labels of exporters are honoured")


def _rules(server: Server) -> Iterator[Finding]:
    told = _optional(server, "rules?exclude_alerts=true")
    if told is None:
        yield skipped("this server does not tell its rules; see whether vmalert or a ruler evaluates them")
        return
    expected = bundled_groups()
    groups = [each for each in told["groups"] or [] if each["name"] in expected]
    loaded: dict[str, set[str]] = {}
    for group in groups:
        loaded.setdefault(group["name"], set()).update(rule["name"] for rule in group["rules"])
    if missing := sorted(expected.keys() - loaded.keys()):
        yield failed(f"{len(missing)} of {len(expected)} groups of rules are not loaded: {listed(missing)}", _RULES)
    for name, rules in sorted(loaded.items()):
        if lacking := sorted(expected[name] - rules):
            yield warning(f"group {name} lacks {listed(lacking)}: it is of another version", _RULES)
    twice = [name for name, number in Counter(group["name"] for group in groups).items() if number > 1]
    if twice:
        yield failed(
            f"loaded twice, from two files: {listed(sorted(twice))}", "take one of the files out of rule_files"
        )
    yield from _evaluations(server, groups)
    if loaded:
        yield ok(f"{len(loaded)} groups with {sum(map(len, loaded.values()))} rules are loaded")


def _evaluations(server: Server, groups: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    now = time.time() + server.ahead
    for group in groups:
        name, interval = group["name"], float(group["interval"])
        broken = [rule for rule in group["rules"] if rule["health"] == "err"]
        if broken:
            yield failed(
                f"group {name}: {len(broken)} rules fail: {broken[0]['name']}: {broken[0].get('lastError', '')}",
                "many-to-many matching means that two targets tell the same: see honor_labels and jobs; else load the "
                "rules of this version",
            )
        last = _unix(group["lastEvaluation"])
        if last > 0 and now - last > _OLD_EVALUATIONS * interval + group["evaluationTime"]:
            yield failed(f"group {name} was last evaluated {now - last:.0f} s ago", "see Prometheus' log and its load")
        if group["evaluationTime"] > _BUSY * interval:
            report = failed if group["evaluationTime"] > interval else warning
            yield report(
                f"group {name} takes {group['evaluationTime']:.1f} s of its {interval:g} s",
                "give Prometheus more processors, or spread nodes over several (prometheus/examples)",
            )


def _thresholds(server: Server) -> Iterator[Finding]:
    there = {labels.get("name", ""): value for labels, value in server.prometheus.query("stallscope:threshold")}
    if missing := sorted(bundled_thresholds() - there.keys()):
        yield failed(
            f"{len(missing)} thresholds are missing, and what reads them says nothing: {listed(missing)}",
            "load prometheus/rules/thresholds.yml of this version; a file of your own needs every name that it has",
        )
    else:
        yield ok(f"all {len(there)} thresholds are there")


def _freshness(server: Server) -> Iterator[Finding]:
    newest = server.prometheus.query("max(timestamp(stallscope:threshold))")
    if not newest:
        yield failed("the rules record nothing", _RULES)
        return
    age = time.time() + server.ahead - newest[0].value
    if age > _OLD_RECORD:
        yield failed(
            f"the rules recorded nothing for {age:.0f} s", "see Prometheus' log, and whether rules are evaluated"
        )
    else:
        yield ok(f"the newest that rules recorded is {max(0.0, age):.0f} s old")


def _alertmanagers(server: Server) -> Iterator[Finding]:
    told = _optional(server, "alertmanagers")
    if told is None:
        yield skipped("this server does not tell its Alertmanagers")
        return
    active = [each["url"] for each in told["activeAlertmanagers"]]
    if not active:
        yield failed(
            "alerts go nowhere: no Alertmanager is configured", "add alerting: to prometheus.yml, as ours has it"
        )
        return
    firing = server.prometheus.query('ALERTS{alertname="Watchdog", alertstate="firing"}')
    if not firing:
        yield failed("the alert Watchdog, which always fires, does not", f"{_RULES}: it is in alerts/stallscope.yml")
    for url in active:
        yield _received(server, url, firing=bool(firing))


def _received(server: Server, url: str, *, firing: bool) -> Finding:
    """Whether an Alertmanager has the alert that always fires."""
    import requests

    here = urlsplit(url).hostname in _HERE
    if here and urlsplit(server.url).hostname not in _HERE:
        return skipped(f"the Alertmanager at {url} is to be asked from Prometheus' own machine")
    try:
        with requests.get(url, {"filter": 'alertname="Watchdog"'}, timeout=server.timeout) as answer:
            answer.raise_for_status()
            alerts = answer.json()
    except (requests.RequestException, ValueError) as error:
        report = failed if here else warning
        return report(
            f"the Alertmanager at {url} gives this machine no answer ({type(error).__name__})",
            "see whether it runs" + ("" if here else "; where only Prometheus is to reach it, all may be well"),
        )
    if firing and not alerts:
        return failed(f"the Alertmanager at {url} never got the alert Watchdog", "see Prometheus' log for the reason")
    return ok(f"the Alertmanager at {url} " + ("has the alert Watchdog" if alerts else "answers"))


def bundled_groups() -> dict[str, set[str]]:
    """Names of the rules of every group that the bundle has."""
    found: dict[str, set[str]] = {}
    for folder, pattern in (("prometheus", "rules/*.yml"), ("alerts", "*.yml")):
        for file in sorted(bundle_folder(folder).glob(pattern)):
            for group in _yaml(file.read_text(encoding="utf-8")).get("groups", []):
                found[group["name"]] = {rule.get("record") or rule["alert"] for rule in group["rules"]}
    return found


def bundled_thresholds() -> Collection[str]:
    """Names of the thresholds that the bundle has."""
    document = _yaml((bundle_folder("prometheus") / "rules/thresholds.yml").read_text(encoding="utf-8"))
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    return {rule["labels"]["name"] for rule in rules if rule.get("record") == "stallscope:threshold"}


def _yaml(text: str) -> dict[str, Any]:
    """Read YAML, by the C library where it is: ten times as fast.

    Raises:
        Stop: the library is not installed.
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise Stop(skipped("yaml is not installed", "pip install 'stallscope[exporter]'")) from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load(text, Loader=loader)  # noqa: S506 - both are safe
    return document if isinstance(document, dict) else {}


def _optional(server: Server, path: str) -> Any:
    """What a part of the API tells that only Prometheus itself has; None where there is none."""
    from stallscope.analysis.prometheus import PrometheusError

    try:
        return server.prometheus.get(path)
    except PrometheusError as error:
        if error.passing or error.too_large:
            raise
        return None


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        return 0.0


def _unix(moment: str) -> float:
    """Unix time of Go's RFC 3339, whose fractions have up to nine digits; 0 or less for never."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", moment)
    if found is None:
        return 0.0
    whole, fraction, zone = found.groups("")
    zone = "+00:00" if zone == "Z" else zone
    parsed = dt.datetime.fromisoformat(whole + zone)
    return parsed.timestamp() + float(fraction or 0)


def listed(names: Iterable[str]) -> str:
    """The first few, and how many more."""
    all_names = list(names)
    rest = len(all_names) - _SHOWN
    return ", ".join(all_names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


PART = Part(
    "prometheus",
    begin,
    (
        ("version", _version),
        ("clock", _clock),
        ("targets", _targets),
        ("jobs", _jobs),
        ("honor labels", _honor_labels),
        ("rules", _rules),
        ("thresholds", _thresholds),
        ("freshness", _freshness),
        ("alertmanagers", _alertmanagers),
    ),
)
