"""Exporter, Prometheus and Alertmanager for real training: GPUs that follow it, the bundle's rules in faster time."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from stallscope.lab.stack.component import Component, stop_all
from stallscope.lab.stack.configuration import write_alertmanager, write_prometheus
from stallscope.lab.stack.ports import Port
from stallscope.lab.stack.programs import find_programs
from tests.end_to_end.scaled import scaled, shortened
from tests.free_ports import free_ports
from tests.waiting import until
from tests.webhook import Webhook

FACTOR = 30
"""How many times faster than in production the rules judge."""
INTERVAL = "500ms"
"""Between two scrapes: the bundle's 15 s divided by the factor."""
EVALUATION_INTERVAL = "1s"
"""Between two evaluations of rules: 30 s of a large installation, since rules take a good part of a small machine."""
THRESHOLDS = {"few_workers_cpu": 0.75, "stall_seconds": 15, "comm_warning": 0.4}
"""Those that differ: for the same reason, fewer of the cores are idle beside a run that lacks nothing else; a
report comes every second as ever, so that a step may seem older than two fifths of 2 s; and five minutes hold nine
steps of the simulated run, after a restart two or three, of which communication may take a sixth by chance (8 % in
the mean)."""
OF_THE_JOB = frozenset({"nfs_wait_seconds"})
"""Thresholds in seconds that measure operations, whose time runs as ever."""

Alert = dict[str, Any]
_Found = TypeVar("_Found")


class TrainingStack:
    """The three servers, and what they have said."""

    def __init__(self, folder: Path, *scenario: str) -> None:
        """Start them; everything is written into the folder.

        Args:
            folder: An empty one.
            scenario: Flags of the exporter on what it simulates; GPUs that follow real training if left out.
        """
        scaled(folder, FACTOR, unscaled=OF_THE_JOB)
        self.webhook = Webhook()
        self._alerts: list[Alert] = []
        exporter, prometheus, alertmanager = (Port("", number, "") for number in free_ports(3))
        self._prometheus, self._alertmanager = prometheus.url, alertmanager.url
        self.exporter = exporter.address
        """Where the exporter serves its page."""
        self.rules = folder
        """The folder of the bundle's rules and alerts in faster time."""
        self.address = f"unix://{folder / 'report.sock'}"
        """Where training reports go."""
        rules = write_prometheus(
            folder / "prometheus", folder, exporter=exporter, alertmanager=alertmanager, thresholds=THRESHOLDS
        )
        configuration = yaml.safe_load(rules.read_text())
        configuration["global"].update(
            scrape_interval=INTERVAL, scrape_timeout=INTERVAL, evaluation_interval=EVALUATION_INTERVAL
        )
        rules.write_text(yaml.safe_dump(configuration))
        routes = write_alertmanager(folder / "alerts", folder, webhook=self.webhook.url)
        programs = find_programs()
        commands = {
            "exporter": [
                *(sys.executable, "-m", "stallscope", "exporter", *(scenario or ("--simulation.scenario=coupled",))),
                *(f"--web.listen-address=127.0.0.1:{exporter.number}", f"--sampling.interval={INTERVAL}"),
                *(f"--report.unix-socket={folder / 'report.sock'}", "--report.udp-address="),
                f"--report.expiry={shortened('15m', FACTOR)}",
            ],
            "prometheus": [
                *(programs.prometheus or "", f"--config.file={rules}", f"--storage.tsdb.path={folder / 'series'}"),
                *(f"--web.listen-address=127.0.0.1:{prometheus.number}", "--rules.alert.resend-delay=1s"),
                f"--query.lookback-delta={shortened('5m', FACTOR)}",
                f"--rules.alert.for-grace-period={shortened('30s', FACTOR)}",
            ],
            "alertmanager": [
                *(programs.alertmanager or "", f"--config.file={routes}", f"--storage.path={folder / 'silences'}"),
                *(f"--web.listen-address=127.0.0.1:{alertmanager.number}", "--cluster.listen-address="),
            ],
        }
        self._series = folder / "series"
        self._servers = {name: Component(name, command, folder / f"{name}.log") for name, command in commands.items()}
        for server in self._servers.values():
            server.start()

    def close(self) -> None:
        """End them all."""
        stop_all(list(self._servers.values()))
        self.webhook.close()

    def stop_prometheus(self) -> None:
        """End Prometheus as a package upgrade does."""
        server = self._servers["prometheus"]
        server.signal(signal.SIGTERM)
        server.reap()

    def start_prometheus(self, *, fresh: bool = False) -> None:
        """Start Prometheus again.

        Args:
            fresh: True for an empty database.
        """
        if fresh:
            shutil.rmtree(self._series)
        self._servers["prometheus"].start()

    def signal_exporter(self, number: int) -> None:
        """Send a signal to the exporter."""
        self._servers["exporter"].signal(number)

    def history(self, selector: str, since: float) -> list[tuple[dict[str, str], list[float]]]:
        """Return the labels of each series, and the times of its samples since a Unix time."""
        query = {"query": f"{selector}[{round(1000 * (time.time() - since))}ms]"}
        address = f"{self._prometheus}/api/v1/query?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=30) as response:
            result = json.load(response)["data"]["result"]
        return [(series["metric"], [float(moment) for moment, _ in series["values"]]) for series in result]

    def values(self, expression: str, label: str) -> dict[str, float]:
        """The values that an expression has now, by one of its labels."""
        address = f"{self._prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(address, timeout=30) as response:
            result = json.load(response)["data"]["result"]
        return {series["metric"].get(label, ""): float(series["value"][1]) for series in result}

    def ready(self) -> bool:
        """Return True once Prometheus has the exporter's GPUs and the rules' thresholds."""
        return len(self.values("count(stallscope_gpu_up) and count(stallscope:threshold)", "")) == 1

    def verdict(self, run: str) -> str:
        """The run's primary cause; nothing where it has none."""
        return next(iter(self.values(f'run:verdict:ratio5m{{run="{run}"}}', "cause")), "")

    def reported(self) -> list[Alert]:
        """Every alert that Alertmanager has posted so far."""
        while not self.webhook.notifications.empty():
            self._alerts += self.webhook.notifications.get()["alerts"]
        return self._alerts

    def alert(self, name: str | None, run: str) -> Alert | None:
        """The alert on the run that was posted as firing."""
        for alert in self.reported():
            labels = alert["labels"]
            if (labels["alertname"], labels.get("run"), alert["status"]) == (name, run, "firing"):
                return alert
        return None

    def wait_for(self, question: Callable[[], _Found | None], seconds: float, complaint: str) -> _Found:
        """Poll until there is a result."""
        return until(
            question,
            lambda: f"{complaint}; {self.state()}",
            seconds=seconds,
            pause=0.1,
            errors=(OSError, http.client.HTTPException, KeyError, ValueError),  # not listening yet, or no answer
        )

    def state(self) -> str:
        """Describe the current state of all runs, for failure messages."""
        verdicts = {run: self.verdict(run) for run in self.values("count by (run) (stallscope_training_state)", "run")}
        firing = [f"{alert['labels']['alertname']} {alert['labels'].get('run', '')}" for alert in self.reported()]
        return f"verdicts: {verdicts}; firing alerts: {sorted(set(firing))}"
