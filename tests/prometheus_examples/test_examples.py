"""The files in `prometheus/examples/` are valid and complete, and send the series that they describe."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from stallscope.common.bundle import bundle_folder
from tests.alerting.alertmanager import running
from tests.free_ports import free_port
from tests.grafana.pages import PAGES, queries_of
from tests.known_names import READ, RECORDED
from tests.prometheus_examples.victoria_metrics import missing, victoria_metrics
from tests.prometheus_server import Prometheus, RefusedError, prometheus
from tests.promql_names import names_in
from tests.rules.layers import ORDER, groups_of
from tests.rules.rulebook import ALERT_FILES, CANONICAL_FILES, RULE_FILES, run_tool, tool
from tests.waiting import until

FOLDER = bundle_folder("prometheus") / "examples"
EXAMPLES = sorted(FOLDER.glob("*.yml"))
AGENT = "agent.yml"
AGENTS = (AGENT, "thanos-rule.yml")
GLOBAL = "global-view.yml"
ON_RECORDED_SERIES = ("stallscope-fleet", "stallscope-compare")
"""Dashboards for which the short list of series is enough."""
MIMIRS_RULES = 20
"""Default limit of rules per group in Mimir's ruler: `ruler_max_rules_per_rule_group`."""
_SECONDS = 60.0


@cache
def content(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return found


def with_section(section: str) -> list[str]:
    return [path.name for path in EXAMPLES if section in content(path.name)]


def relabelling(name: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Return the actions of an example on the names of sent series: each action with its expression."""
    for target in content(name).get("remote_write", ()):
        for step in target.get("write_relabel_configs", ()):
            assert step["source_labels"] == ["__name__"]
            yield step["action"], re.compile(step["regex"])


def sent(name: str, series: str) -> bool:
    """Return whether a series with this name is sent."""
    return all((action == "keep") == bool(regex.fullmatch(series)) for action, regex in relabelling(name))


def shown_on(pages: tuple[str, ...]) -> set[str]:
    """Return every series that dashboards read."""
    return {
        metric
        for page in pages
        for each in queries_of(PAGES[page])
        for metric in names_in(each.expression).metrics
        if ":" in metric or metric.startswith(("stallscope_", "ALERTS"))
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_promtool_accepts_every_example(path: Path) -> None:
    run_tool("promtool", "check", "config", *(["--agent"] if path.name in AGENTS else []), str(path))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_readme_lists_every_example(path: Path) -> None:
    assert f"`{path.name}`" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", with_section("rule_files"))
def test_where_rules_are_evaluated_all_of_them_are(name: str) -> None:
    loaded = [path.resolve() for pattern in content(name)["rule_files"] for path in FOLDER.glob(pattern)]
    assert sorted(loaded) == sorted((*CANONICAL_FILES, *RULE_FILES))


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_has_no_rules_and_sends_all_that_the_central_ones_read(name: str) -> None:
    assert not {"rule_files", "alerting"} & content(name).keys()
    assert all(sent(name, series) for series in READ)


def test_thanos_rule_evaluates_every_file() -> None:
    """The flags are in the comment at the head of the example; their paths start at the root of the repository."""
    comment = (FOLDER / "thanos-rule.yml").read_text(encoding="utf-8").partition("\nglobal:")[0]
    patterns = [found.strip("'") for found in re.findall(r"--rule-file=(\S+)", comment)]
    loaded = [path.resolve() for pattern in patterns for path in FOLDER.parents[1].glob(pattern)]
    assert sorted(loaded) == sorted((*CANONICAL_FILES, *RULE_FILES))


def test_the_global_view_takes_what_runs_causes_and_clusters_have_in_all() -> None:
    (job,) = content(GLOBAL)["scrape_configs"]
    (selector,) = job["params"]["match[]"]
    taken = re.compile(selector.removeprefix('{__name__=~"').removesuffix('"}'))
    subjects = {"run", "run_activity", "run_cause", "run_phase", "run_world", "cluster", "cause"}
    assert {name for name in RECORDED if taken.fullmatch(name)} == {
        name for name in RECORDED if name.partition(":")[0] in subjects
    }
    assert job["honor_labels"], "else the clusters' own labels would be renamed"
    assert not {"rule_files", "alerting", "remote_write"} & content(GLOBAL).keys()


@pytest.mark.parametrize("name", with_section("scrape_configs"))
def test_every_scrape_of_exporters_leaves_their_labels_alone(name: str) -> None:
    others = {"prometheus", "dcgm-exporter", "node-exporter", "stallscope-clusters"}
    jobs = [job for job in content(name)["scrape_configs"] if job["job_name"] not in others]
    assert all(job["job_name"] == "stallscope" and job["honor_labels"] for job in jobs)


@pytest.mark.parametrize("name", ["edge-rules.yml", "mimir.yml", "thanos-receive.yml"])
def test_the_short_list_has_all_that_rules_record_and_two_dashboards_show(name: str) -> None:
    missing = {series for series in RECORDED | shown_on(ON_RECORDED_SERIES) if not sent(name, series)}
    assert not missing
    assert not sent(name, "stallscope_gpu_signal_supported")


def test_the_long_list_lacks_nothing_that_any_dashboard_shows() -> None:
    name = "edge-rules-all-dashboards.yml"
    assert not {series for series in RECORDED | shown_on(tuple(PAGES)) if not sent(name, series)}
    assert not sent(name, "stallscope_training_step_seconds_bucket")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_replica_label_is_removed_from_alerts(path: Path) -> None:
    labels = content(path.name)["global"].get("external_labels", {})
    replica = [label for label in labels if "replica" in label]
    steps = content(path.name).get("alerting", {}).get("alert_relabel_configs", ())
    assert [step["regex"] for step in steps if step["action"] == "labeldrop"] == replica


@pytest.mark.parametrize("name", with_section("remote_write"))
def test_nothing_is_sent_in_the_clear(name: str) -> None:
    for target in content(name)["remote_write"]:
        assert target["url"].startswith("https://")
        assert "password_file" in target["basic_auth"], "a password is in a file of its own"


def rule_groups() -> dict[str, int]:
    """Return the number of rules in each group."""
    return {group["name"]: len(group["rules"]) for path in (*CANONICAL_FILES, *RULE_FILES) for group in groups_of(path)}


def steps_to(name: str) -> int:
    """Return the maximum number of rules that a sample passes until it reaches a recorded series.

    A rule counts what rules before it record; the chain that a rule makes with its own past is no step.
    """
    steps: dict[str, int] = {}
    for path in (*(FOLDER.parent / "rules" / f"{stem}.yml" for stem in ORDER), *ALERT_FILES):
        for rule in (rule for group in groups_of(path) for rule in group["rules"]):
            read = [steps[each] for each in names_in(rule["expr"]).metrics if ":" in each and each in steps]
            record = rule.get("record", rule.get("alert"))
            steps[record] = max(steps.get(record, 0), 1 + max(read, default=0))
    return steps[name]


def test_the_folder_says_what_a_ruler_must_take() -> None:
    """Mimir's limits, and the length of a chain if an engine delays each step."""
    text = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())
    groups = rule_groups()
    largest = max(groups, key=lambda name: groups[name])
    over = sum(rules > MIMIRS_RULES for rules in groups.values())
    assert f"{len(groups)} groups with {sum(groups.values())} rules" in text
    assert f"The largest, `{largest}`, has {groups[largest]} rules" in text
    assert f"{over} groups have more than {MIMIRS_RULES} rules" in text
    assert f"The longest chain has {steps_to('gpu:verdict:ratio5m')} rules" in text


def test_mimirs_example_raises_the_limits_far_enough() -> None:
    comment = (FOLDER / "mimir.yml").read_text(encoding="utf-8").partition("\nglobal:")[0]
    limits = {name: int(value) for name, value in re.findall(r"#\s+(ruler_max_\w+): (\d+)", comment)}
    groups = rule_groups()
    assert limits["ruler_max_rules_per_rule_group"] >= max(groups.values())
    assert limits["ruler_max_rule_groups_per_tenant"] >= len(groups)


@pytest.mark.skipif(shutil.which("vmagent") is None, reason="not on PATH: vmagent")
@pytest.mark.parametrize(("strict", "refused"), [("false", False), ("true", True)])
def test_vmagent_takes_the_agents_file_where_it_may_leave_out_what_it_does_not_know(strict: str, refused: bool) -> None:
    flags = (f"-promscrape.config.strictParse={strict}", "-remoteWrite.url=http://127.0.0.1:1", "-dryRun")
    command = ["vmagent", f"-promscrape.config={FOLDER / AGENT}", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert bool(done.returncode) == refused, done.stderr


@contextmanager
def started(
    example: dict[str, Any], folder: Path, *flags: str, central: Prometheus | None = None
) -> Iterator[Prometheus]:
    """Run an example that scrapes itself every second, and sends to this server."""
    address = f"127.0.0.1:{free_port()}"
    intervals = {key: "1s" for key in example["global"] if key.endswith("_interval")}
    jobs = [{**job, "static_configs": [{"targets": [address]}]} for job in example["scrape_configs"]]
    changed = {**example, "global": {**example["global"], **intervals}, "scrape_configs": jobs}
    if central:
        (target,) = example["remote_write"]
        target = {key: value for key, value in target.items() if key != "basic_auth"}
        changed["remote_write"] = [{**target, "url": f"{central.address}/api/v1/write"}]
    if "rule_files" in example:
        changed["rule_files"] = [str(FOLDER / pattern) for pattern in example["rule_files"]]
    folder.mkdir(exist_ok=True)
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(changed), encoding="utf-8")
    data = () if "--storage.agent.path" in " ".join(flags) else (f"--storage.tsdb.path={folder / 'data'}",)
    command = [tool("prometheus"), f"--config.file={file}", f"--web.listen-address={address}", *data, *flags]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log, cwd=folder) as process:
        try:
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()
            process.wait(60)


def awaited(server: Prometheus, query: str) -> list[dict[str, Any]]:
    """Return the samples of a query as soon as there are any."""
    return until(lambda: _samples(server, query), f"nothing came for {query}", seconds=_SECONDS)


def _samples(server: Prometheus, query: str) -> list[dict[str, Any]]:
    try:
        return list(server.get("query", query=query)["data"]["result"])
    except (OSError, RefusedError):
        return []  # it has not come up


@pytest.mark.slow
def test_a_real_agent_sends_its_scrapes_under_its_cluster(tmp_path: Path) -> None:
    known = subprocess.run([tool("prometheus"), "--help"], capture_output=True, text=True, check=False)
    flag = "--agent" if "--agent " in known.stdout + known.stderr else "--enable-feature=agent"
    flags = (flag, f"--storage.agent.path={tmp_path / 'agent'}")
    with prometheus() as central, started(content(AGENT), tmp_path, *flags, central=central):
        (up,) = awaited(central, 'up{job="stallscope"}')
        assert up["metric"]["cluster"] == "east"
        assert awaited(central, "prometheus_build_info")


def check_edge(folder: Path, central: Prometheus) -> None:
    """Expect the recorded series of an edge there, and no series outside its list."""
    with started(content("edge-rules.yml"), folder, central=central) as edge:
        thresholds = awaited(central, "stallscope:threshold")
        assert {each["metric"]["cluster"] for each in thresholds} == {"east"}
        awaited(central, 'ALERTS{alertname="StallscopeWatchdog"}')
        awaited(edge, "prometheus_build_info")
        assert not _samples(central, '{__name__=~"up|prometheus_build_info"}')


@pytest.mark.slow
def test_a_real_edge_sends_what_its_rules_record_and_keeps_the_rest(tmp_path: Path) -> None:
    with prometheus() as central:
        check_edge(tmp_path, central)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=f"not on PATH: {', '.join(missing())}")
def test_victoria_metrics_takes_what_an_edge_sends(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path) as central:
        check_edge(tmp_path, central)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("relabelled", "alerts"),
    [
        pytest.param(True, 1, id="as it is"),
        pytest.param(False, 2, id="with the label left on", marks=pytest.mark.nightly),
    ],
)
def test_alertmanager_has_an_alert_of_a_pair_once_for_want_of_the_replica(
    tmp_path: Path, relabelled: bool, alerts: int
) -> None:
    configuration = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
    servers: list[Prometheus] = []
    seen: set[int | None] = set()
    with running(configuration, tmp_path / "alertmanager") as alertmanager, ExitStack() as stack:
        targets = [{"static_configs": [{"targets": [alertmanager.address.removeprefix("http://")]}]}]
        for replica in ("a", "b"):
            pair = content("pair.yml")
            labels = {**pair["global"]["external_labels"], "replica": replica}
            alerting = {**pair["alerting"], "alertmanagers": targets}
            if not relabelled:
                del alerting["alert_relabel_configs"]
            example = {**pair, "global": {**pair["global"], "external_labels": labels}, "alerting": alerting}
            # Its first try comes before it has found Alertmanager; the next one is a minute later by default.
            servers.append(stack.enter_context(started(example, tmp_path / replica, "--rules.alert.resend-delay=1s")))

        def watchdogs() -> list[str]:
            """The address in each alert is that of the server that sent it last."""
            with urllib.request.urlopen(f"{alertmanager.address}/api/v2/alerts", timeout=_SECONDS) as answer:
                found = [each for each in json.load(answer) if each["labels"]["alertname"] == "StallscopeWatchdog"]
            seen.update(urllib.parse.urlsplit(each["generatorURL"]).port for each in found)
            return [each["generatorURL"] for each in found]

        ports = {urllib.parse.urlsplit(server.address).port for server in servers}
        until(lambda: watchdogs() and seen == ports, "an alert of each server never came", seconds=_SECONDS)
        assert len(watchdogs()) == alerts


def test_promtool_is_the_judge_of_these_tests(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    shutil.copy(FOLDER / "agent.yml", broken)
    broken.write_text(broken.read_text(encoding="utf-8").replace("remote_write:", "remote_writes:"), encoding="utf-8")
    done = subprocess.run(
        [tool("promtool"), "check", "config", "--agent", str(broken)], capture_output=True, text=True, check=False
    )
    assert done.returncode
