"""Verdicts of the rules on simulated scenarios, in scripted time: the exporter's own page, scraped every 30 seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from stallscope.lab.replay.series import Series
from stallscope.lab.simulation import Simulation
from stallscope.lab.simulation.scenarios import scenario
from stallscope.node.collectors.base import Environment, available
from stallscope.node.intake.runs import RunRegistry
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.sampler import Sampler
from tests.rules.rulebook import RULE_FILES
from tests.scenarios.runner import EVALUATION_SECONDS, evaluate

_POLL_SECONDS = 5.0
START = 1.0
"""Unix time at the beginning, because an exporter takes 0 for an unknown time."""


def pages_of(
    name: str,
    folder: Path,
    *,
    seconds: int,
    onset: float,
    gpus: int,
    scrape_seconds: int = EVALUATION_SECONDS,
    poll_seconds: float = _POLL_SECONDS,
    report_interval: float = 1.0,
    start: float = START,
) -> Iterator[str]:
    """Run a scenario with a simulated host, and yield the exporter's page at each scrape."""
    # Scripted time begins at zero, and nothing has run before.
    clock, story = ScriptedClock(start), replace(scenario(name, onset=onset), age=0.0)
    registry = RunRegistry(clock=clock, root=folder)
    simulation = Simulation(
        story,
        clock=clock,
        deliver=lambda data: registry.accept(data, "http", 1),
        seed=story.seed,
        gpus=max(gpus, 1 + max(story.faulty_gpus, default=0)),
        host_tree=folder,
        report_interval=report_interval,
    )
    environment = Environment(
        root=folder, clock=clock, interval=poll_seconds, driver=simulation.driver, statvfs=simulation.statvfs
    )
    sampler = Sampler(clock=clock, interval=poll_seconds)
    for collector in available().values():
        if collector.enabled_by_default:
            sampler.add(collector(environment))
    sampler.add_collector("reports", registry.collect)
    for place in range(seconds // scrape_seconds + 1):
        for _ in range(round(scrape_seconds / poll_seconds) if place else 1):
            simulation.advance(poll_seconds if place else 0.0)
            sampler.run_round()
        yield sampler.page(openmetrics=False, gzip=False).decode()


def series_in(pages: Iterable[str], target: Mapping[str, str]) -> list[Series]:
    """Return what Prometheus stores of pages, one a scrape, from a target with these labels."""
    found: dict[str, dict[int, float]] = {}
    scrapes = 0
    for place, page in enumerate(pages):
        scrapes = place + 1
        for line in page.splitlines():
            if not line.startswith("#"):
                selector, value = line.rsplit(" ", 1)
                found.setdefault(selector, {})[place] = float(value)
    stored = [Series("up", dict(target), [1.0] * scrapes)]
    for selector, values in found.items():
        ((sample,),) = (family.samples for family in text_string_to_metric_families(f"{selector} 0\n"))
        labels = {**target, **sample.labels}
        stored.append(Series(sample.name, labels, [values.get(place) for place in range(scrapes)]))
    return stored


def verdicts(
    names: Sequence[str], folder: Path, *, seconds: int = 900, onset: float = 60.0, gpus: int = 4
) -> Mapping[str, Mapping[str, set[str]]]:
    """Return the causes that each scenario ends with, by scenario and subject: `run`, `gpu`, `alert`."""
    stored = []
    for name in names:
        tree = folder / name
        tree.mkdir()
        pages = pages_of(name, tree, seconds=seconds, onset=onset, gpus=gpus)
        stored += series_in(pages, {"cluster": name, "job": "stallscope", "instance": "simulated:9400"})
    wanted = 'run:verdict:ratio5m or gpu:verdict:ratio5m or ALERTS{alertstate="firing"}'
    (answers,) = evaluate(stored, {wanted: [seconds]}, rule_files=with_short_warmup(folder)).samples.values()
    found: dict[str, dict[str, set[str]]] = {name: {"run": set(), "gpu": set(), "alert": set()} for name in names}
    for sample in answers[seconds]:
        subject = "alert" if sample.name == "ALERTS" else sample.name.partition(":")[0]
        if sample.labels.get("cluster") in found and "cause" in sample.labels:
            found[sample.labels["cluster"]][subject].add(sample.labels["cause"])
    return found


def with_short_warmup(folder: Path) -> list[Path]:
    """Return the rule files with the warm-up of `stallscope up`."""
    (thresholds,) = (file for file in RULE_FILES if file.name == "thresholds.yml")
    text, changed = re.subn(r"(name: warmup_seconds}, expr: vector)\(\d+\)", r"\1(30)", thresholds.read_text())
    assert changed == 1
    short = folder / "thresholds.yml"
    short.write_text(text)
    return [short, *(file for file in RULE_FILES if file != thresholds)]
