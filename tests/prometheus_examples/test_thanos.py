"""The bundle's rules in Thanos Rule on the data of Thanos Receive, and in Prometheus on the same scrapes."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.filled_prometheus import write
from tests.free_ports import free_port
from tests.installation import SCRAPE_SECONDS, series
from tests.known_names import READ
from tests.prometheus_examples.test_vmalert import (
    AHEAD,
    STORIES,
    VERDICTS,
    Labels,
    Recorded,
    causes_by_run,
    quick_rules,
    recorded,
)
from tests.prometheus_server import Prometheus, prometheus
from tests.remote_write import Receiver

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(540),
    pytest.mark.skipif(shutil.which("thanos") is None, reason="not on PATH: thanos"),
]

INTERVAL = 10
"""Seconds between evaluations. One evaluation of all rules takes Thanos Rule some seconds on two cores."""
PATIENCE = 300.0
REPLICAS = ("receive_replica", "rule_replica", "tenant_id")
"""Labels that Receive and Rule add, and that Query removes."""


@dataclass(frozen=True)
class Both:
    """One moment in both systems."""

    prometheus: Recorded
    thanos: Recorded

    @property
    def settled(self) -> bool:
        """Return whether both have found the cause of every story, and have the same series."""
        return (
            all(
                cause in causes_by_run(each).get(run, ())
                for run, cause in STORIES.items()
                for each in (self.prometheus, self.thanos)
            )
            and self.names(self.prometheus) == self.names(self.thanos)
            and not any(map(self.differences, VERDICTS))
        )

    def differences(self, name: str) -> dict[Labels, tuple[set[str], str | None]]:
        """Return subjects with a verdict of Thanos that Prometheus could not have had."""
        return self.prometheus.differences(self.thanos, name)

    @staticmethod
    def names(of: Recorded) -> set[str]:
        """Return the names of series, and of firing alerts."""
        return set(of.samples) | {alert for labels in of.firing for name, alert in labels if name == "alertname"}


@contextmanager
def thanos(folder: Path, files: Sequence[Path]) -> Iterator[tuple[Prometheus, Receiver]]:
    """Run Receive, Query and Rule as in the example; return Query and the receiver."""
    ports = {name: (free_port(), free_port()) for name in ("receive", "query", "rule")}
    receiver = free_port()
    http, grpc = ({name: f"127.0.0.1:{each[place]}" for name, each in ports.items()} for place in (0, 1))
    commands = {
        "receive": (f"--tsdb.path={folder / 'receive'}", f"--remote-write.address=127.0.0.1:{receiver}"),
        "query": (
            *(f"--endpoint={grpc[name]}" for name in ("receive", "rule")),
            *(f"--query.replica-label={label}" for label in REPLICAS),
        ),
        "rule": (
            f"--data-dir={folder / 'rule'}",
            *(f"--rule-file={path}" for path in files),
            f"--eval-interval={INTERVAL}s",
            f"--query=http://{http['query']}",
            "--alert.label-drop=rule_replica",
        ),
    }
    labels = {"receive": ('--label=receive_replica="a"',), "rule": ('--label=rule_replica="a"',)}
    with ExitStack() as stack:
        for name, flags in commands.items():
            addresses = (f"--http-address={http[name]}", f"--grpc-address={grpc[name]}")
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            command = ["thanos", name, *addresses, *labels.get(name, ()), *flags]
            process = stack.enter_context(subprocess.Popen(command, stderr=log, stdout=log))
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        yield Prometheus(f"http://{http['query']}"), Receiver(receiver, "/api/v1/receive")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("thanos")
    scraped = [each for each in series() if each.name in READ]
    scrapes = max(len(each.values) for each in scraped)
    files = quick_rules(folder)
    with prometheus(interval=INTERVAL) as server, thanos(folder, files) as (query, receiver):
        time.sleep(INTERVAL)  # until Receive takes samples
        start = time.time() + AHEAD - (scrapes - 1) * SCRAPE_SECONDS
        write([server.port], scraped, start, scrapes, more=[receiver])
        server.configure(files, INTERVAL)
        deadline = time.monotonic() + PATIENCE
        while True:
            moment = int(time.time()) - INTERVAL
            found = Both(recorded(server, moment), recorded(query, moment))
            if found.settled or time.monotonic() > deadline:
                break
            time.sleep(INTERVAL)
        yield found


@pytest.mark.parametrize("run", STORIES)
def test_thanos_rule_finds_the_cause_of_a_story(both: Both, run: str) -> None:
    assert STORIES[run] in causes_by_run(both.thanos)[run]
    assert STORIES[run] in causes_by_run(both.prometheus)[run]


@pytest.mark.parametrize("name", VERDICTS)
def test_every_run_rank_and_gpu_has_the_verdict_that_prometheus_gives(both: Both, name: str) -> None:
    assert len(both.prometheus.verdicts(name)) > 15
    assert both.differences(name) == {}


def test_both_record_the_same_names_and_the_same_alerts_fire(both: Both) -> None:
    assert len(both.names(both.prometheus)) > 100
    assert both.names(both.thanos) == both.names(both.prometheus)


def test_no_label_of_a_component_is_left_on_a_series(both: Both) -> None:
    labels = {label for of in both.thanos.samples.values() for each in of for label, _ in each}
    assert "run" in labels
    assert not labels & set(REPLICAS)
