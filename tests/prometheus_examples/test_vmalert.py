"""The bundle's rules in vmalert on VictoriaMetrics, next to the same rules in Prometheus on the same scrapes.

Both start at the same moment, without earlier data, on an installation with every kind of fault.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.catalogue.conditions import general_of
from tests.filled_prometheus import write
from tests.installation import SCRAPE_SECONDS, series
from tests.known_names import READ
from tests.prometheus_examples.victoria_metrics import missing, victoria_metrics, vmalert
from tests.prometheus_server import Prometheus, prometheus
from tests.rules.rulebook import ALERT_FILES, CANONICAL_FILES, RULE_FILES

pytestmark = [
    pytest.mark.slow(200),
    pytest.mark.timeout(540),
    pytest.mark.skipif(
        bool(missing()),
        reason=f"not on PATH: {', '.join(missing())}; Debian has both in the package victoria-metrics",
    ),
]

INTERVAL = 4
"""Seconds between evaluations: vmalert needs one for each rule in a chain."""
AHEAD = 390.0
"""Seconds of scrapes that follow after both have started."""
PATIENCE = 360.0
VERDICTS = ("run:verdict:ratio5m", "rank:verdict:ratio5m", "gpu:verdict:ratio5m")
SCORE_FROM, SCORE_UNTIL = "score_from", "score_until"
"""Suffixes of series that only this test records: scores of causes, as if none or each were the current verdict."""
SHARES = "run_cause:time_lost:ratio5m"
STORIES = {
    "waiting": "input_few_workers",
    "starving": "input_network_bound",
    "straggling": "straggler_hw",
    "hot": "thermal_throttle",
    "broken": "ecc_uncorrected",
    "saving": "checkpoint_stall",
    "stuttering": "step_outliers",
    "restarting": "restart_loop",
    "unknown": "insufficient_data",
    "healthy": "compute_bound",
}
"""The cause of each run. A run with two faults may keep either as its verdict, whichever was recorded first."""

Labels = frozenset[tuple[str, str]]
Samples = dict[str, dict[Labels, float]]


@dataclass(frozen=True)
class Recorded:
    """Recorded series and alerts at one moment."""

    samples: Samples

    def verdicts(self, name: str) -> dict[Labels, str]:
        """Return the cause of each run, rank or GPU."""
        return {labels - {cause}: cause[1] for labels in self.samples.get(name, {}) if (cause := _cause_in(labels))}

    def candidates(self, name: str) -> dict[Labels, set[str]]:
        """Return the verdict of each run, rank or GPU, and the causes that would stay the verdict."""
        causes = {subject: {cause} for subject, cause in self.verdicts(name).items()}
        highest: dict[Labels, float] = {}
        for labels, score in self.samples.get(f"{name}:{SCORE_FROM}", {}).items():
            subject = labels - {_cause_in(labels)}
            highest[subject] = max(score, highest.get(subject, score))
        for labels, score in self.samples.get(f"{name}:{SCORE_UNTIL}", {}).items():
            cause = _cause_in(labels)
            if score > highest.get(labels - {cause}, 0) - 1e-3:
                causes.setdefault(labels - {cause}, set()).add(cause[1])
        return causes

    def differences(self, other: Recorded, name: str) -> dict[Labels, tuple[set[str], str | None]]:
        """Return the subjects to which the other gives a verdict that is not among the candidates here."""
        expected, found = self.candidates(name), other.verdicts(name)
        return {
            subject: (expected.get(subject, set()), found.get(subject))
            for subject in expected.keys() | found.keys()
            if found.get(subject) not in expected.get(subject, set())
        }

    @property
    def firing(self) -> set[Labels]:
        """Return the alerts, except one with a window of an hour, over minutes of recorded series here.

        A loss and its reason are one alert, that of the cause which was found first, so the reason is left out.
        """
        alerts = self.samples.get("ALERTS", {})
        return {_general(each) for each in alerts if ("alertname", "TrainingGoodputLow") not in each}


@dataclass(frozen=True)
class Both:
    """One moment in both systems."""

    prometheus: Recorded
    victoria_metrics: Recorded

    def differences(self, name: str) -> dict[Labels, tuple[set[str], str | None]]:
        """Return the subjects with a verdict of VictoriaMetrics that Prometheus could not have had."""
        return self.prometheus.differences(self.victoria_metrics, name)

    @property
    def settled(self) -> bool:
        """Return whether both have enough data to agree."""
        stories = [causes_by_run(each) for each in (self.prometheus, self.victoria_metrics)]
        return (
            all(cause in found.get(run, ()) for run, cause in STORIES.items() for found in stories)
            and not any(map(self.differences, VERDICTS))
            and self.prometheus.firing == self.victoria_metrics.firing
            and self.far_shares == {}
        )

    @property
    def far_shares(self) -> dict[Labels, tuple[float | None, float | None]]:
        """Yield the lost shares of runs that differ by more than a twentieth of the time.

        Excludes a run that restarts every few minutes: MetricsQL divides by the time for which a series has samples.
        """
        expected, found = (each.samples.get(SHARES, {}) for each in (self.prometheus, self.victoria_metrics))
        return {
            labels: (share, other)
            for labels in expected.keys() | found.keys()
            for share, other in [(expected.get(labels), found.get(labels))]
            if share is None or other is None or (abs(share - other) > 0.05 and dict(labels)["run"] != "restarting")
        }


def _cause_in(labels: Labels) -> tuple[str, str]:
    return next(each for each in labels if each[0] == "cause")


def _general(alert: Labels) -> Labels:
    """Return the labels of an alert; those of the alert on the general cause for an alert on its reason."""
    labels = dict(alert)
    general = general_of(labels.get("cause", "")) or labels.get("cause", "")
    if not any(general_of(cause) == general for cause in CAUSES):
        return alert
    del labels["severity"]
    return frozenset((labels | {"cause": general, "alertname": str(CAUSES[general].alert)}).items())


def causes_by_run(recorded: Recorded) -> dict[str, set[str]]:
    """Return the verdict of each run, and the causes that would stay its verdict."""
    return {dict(subject)["run"]: causes for subject, causes in recorded.candidates("run:verdict:ratio5m").items()}


def recorded(server: Prometheus, moment: int) -> Recorded:
    samples: Samples = {}
    answer = server.get("query", query='{__name__=~".+:.+|ALERTS"}', time=f"{moment}")
    for each in answer["data"]["result"]:
        labels: Mapping[str, str] = each["metric"]
        rest = frozenset(pair for pair in labels.items() if pair[0] != "__name__")
        samples.setdefault(labels["__name__"], {})[rest] = float(each["value"][1])
    return Recorded(samples)


def _scores(verdict: str, name: str) -> dict[str, str]:
    """Return the expressions of the causes' scores, from that of a verdict: the second argument of its `topk`."""
    _, _, scores = verdict.partition("(1,\n")
    depth = 1
    for place, character in enumerate(scores):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if not depth:
            scores = scores[:place]
            break
    of_the_verdict, more = f" and {name})", '/ scalar(stallscope:threshold{name="clear_ratio"})'
    if (scores.count(of_the_verdict), scores.count(more)) != (1, 1):
        raise ValueError(f"the share of {name}'s own cause is not found in {verdict}")
    return {SCORE_FROM: scores.replace(more, ""), SCORE_UNTIL: scores.replace(of_the_verdict, ")")}


def quick_rules(folder: Path) -> list[Path]:
    """Return the bundle's files with short waits and one shorter offset, so that minutes of evaluation are enough."""
    written = []
    for path in RULE_FILES:
        content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in content["groups"]:
            group.pop("interval", None)
            for rule in group["rules"]:
                # Before 1.92 vmalert does not support `keep_firing_for`, and fails at texts about missing labels.
                for unsupported in ("keep_firing_for", "annotations"):
                    rule.pop(unsupported, None)
                # Long enough for the first evaluations, which lack recorded series: an alert may last once it fires.
                if "for" in rule:
                    rule["for"] = f"{4 * INTERVAL}s"
                # A verdict `healthy` needs ten seconds instead of a minute.
                rule["expr"] = rule["expr"].replace("rank:judged:info offset 1m", "rank:judged:info offset 10s")
            group["rules"] += [
                {"record": f"{rule['record']}:{ending}", "expr": scores}
                for rule in group["rules"]
                if rule.get("record") in VERDICTS
                for ending, scores in _scores(rule["expr"], rule["record"]).items()
            ]
        written.append(folder / f"{path.parent.name}-{path.name}")
        written[-1].write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return written


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("vmalert")
    scraped = [each for each in series() if each.name in READ]
    scrapes = max(len(each.values) for each in scraped)
    files = quick_rules(folder)
    with prometheus(interval=INTERVAL) as server, victoria_metrics(folder) as storage:
        start = time.time() + AHEAD - (scrapes - 1) * SCRAPE_SECONDS
        write([server.port, storage.port], scraped, start, scrapes)
        server.configure(files, INTERVAL)
        with vmalert(folder, storage, files, INTERVAL):
            deadline = time.monotonic() + PATIENCE
            while True:
                # What was just evaluated takes a second to be seen.
                moment = int(time.time()) - 2 * INTERVAL
                found = Both(recorded(server, moment), recorded(storage, moment))
                if found.settled or time.monotonic() > deadline:
                    break
                time.sleep(INTERVAL)
            yield found


@pytest.mark.nightly
@pytest.mark.parametrize("run", STORIES)
def test_vmalert_finds_the_cause_of_a_story(both: Both, run: str) -> None:
    assert STORIES[run] in causes_by_run(both.victoria_metrics)[run]
    assert STORIES[run] in causes_by_run(both.prometheus)[run]


@pytest.mark.nightly
@pytest.mark.parametrize("name", VERDICTS)
def test_every_run_rank_and_gpu_has_the_verdict_that_prometheus_gives(both: Both, name: str) -> None:
    assert len(both.prometheus.verdicts(name)) > 15
    assert both.differences(name) == {}


@pytest.mark.nightly
def test_the_shares_that_runs_lose_are_the_same_within_a_twentieth_of_the_time(both: Both) -> None:
    assert both.prometheus.samples[SHARES]
    assert both.far_shares == {}


@pytest.mark.nightly
def test_the_same_alerts_fire(both: Both) -> None:
    assert len(both.prometheus.firing) > 30
    assert both.victoria_metrics.firing == both.prometheus.firing


def _refused(files: list[Path]) -> str:
    """Return vmalert's errors on files; empty if it accepts them."""
    done = subprocess.run(
        ["vmalert", "-dryRun", *(f"-rule={path}" for path in files)], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr if done.returncode else ""


def test_vmalert_takes_the_rule_files_as_they_are() -> None:
    assert _refused([path for path in (*CANONICAL_FILES, *RULE_FILES) if path not in ALERT_FILES]) == ""


def test_vmalert_accepts_the_alerts_except_for_a_field_known_since_1_92(tmp_path: Path) -> None:
    errors = _refused(list(ALERT_FILES))
    assert not errors or "unknown fields in rule: keep_firing_for" in errors
    without = []
    for path in ALERT_FILES:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        without.append(tmp_path / path.name)
        without[-1].write_text("".join(line for line in lines if "keep_firing_for:" not in line), encoding="utf-8")
    assert _refused(without) == ""
