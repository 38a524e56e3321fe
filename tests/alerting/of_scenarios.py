"""The alerts of every scenario of `stallscope up`, and after `stallscope up --end`.

`python -m tests.alerting.of_scenarios` simulates them all in scripted time, evaluates the rules, and writes
`of_scenarios.json`. This takes ten minutes of CPU time, so that tests read the file and simulate only a few scenarios.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from stallscope.lab.replay.rule_engine import Answers
from stallscope.lab.replay.series import Series
from stallscope.lab.simulation.scenarios import SCENARIOS, CoolingFailure, GpuLoss, HardwareFault
from tests.alerting.alertmanager import Labels, bundled
from tests.alerting.notifications import Sent, notifications
from tests.known_names import READ
from tests.scenarios.runner import EVALUATION_SECONDS, WATCHDOG, evaluate
from tests.simulation.verdicts import START, pages_of, series_in, with_short_warmup

FILE = Path(__file__).with_suffix(".json")
NAMES = tuple(name for name, story in SCENARIOS.items() if not story.coupled and name != "repaired")
_SECONDS = {
    "callback_stall": 1500,
    "clocks_limited": 2400,
    "evaluation_overhead": 3000,
    "checkpoint_stall": 3000,
    "goodput_low": 6600,
    "gpu_mem_headroom": 2700,
    "gpu_mem_leak": 6600,
    "idle_allocated": 4500,
    "long_init": 2400,
    "packing_candidate": 2700,
    "rollout_wait": 3000,
    "scaling_inefficient": 2400,
    "step_outliers": 1500,
    "step_time_drift": 2400,
    "tensor_cores_unused": 2400,
}
"""Seconds from the start to the end of the fault, where they are not the usual ones."""
_AFTERWARDS = 1500
"""Seconds from the end of the fault to the end of the simulation."""
_TOGETHER = 6
"""Scenarios of the same length whose rules are evaluated together."""
_ALL_GPUS = ("input_bound", "input_too_many_workers")
"""Scenarios that load the host's CPUs by the number of ranks."""
_POLL_SECONDS = {"small_batch": 3.0}
"""Seconds between polls, where steps are so short that rare polls find a GPU less busy than it is."""


class Timeline(NamedTuple):
    """The alerts of a scenario, each with its first and its last second."""

    last: int
    """End of the simulation."""
    alerts: Sequence[tuple[int, int, Labels]]

    def notifications(self) -> list[Sent]:
        """Return what Alertmanager sends."""
        changes = sorted({0, *(first for first, _, _ in self.alerts), *(_after(last) for _, last, _ in self.alerts)})
        story = [
            (second, [labels for first, last, labels in self.alerts if first <= second <= last])
            for second in changes
            if second <= self.last
        ]
        return notifications(_configuration(), story, self.last)


_configuration = cache(bundled)


def _after(second: int) -> int:
    return second + EVALUATION_SECONDS


def stored() -> dict[str, Timeline]:
    """Read the file."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        name: Timeline(each["last"], [(alert["first"], alert["last"], alert["labels"]) for alert in each["alerts"]])
        for name, each in content.items()
    }


def simulated(names: Sequence[str], seconds: int, afterwards: int = _AFTERWARDS) -> dict[str, Timeline]:
    """Simulate scenarios, and evaluate the rules on all of them together.

    Args:
        names: the scenarios.
        seconds: from the start to the end of the fault.
        afterwards: seconds from there on.
    """
    series: list[Series] = []
    for name in names:
        pages = [*_pages(name, 0, seconds), *_pages("repaired", _after(seconds), seconds + afterwards)]
        target = {"cluster": name, "job": "stallscope", "instance": "simulated:9400"}
        series += [each for each in series_in(pages, target) if each.name in READ]
    firing = f'ALERTS{{alertstate="firing", alertname!="{WATCHDOG}"}}'
    last = seconds + afterwards
    times = range(0, last + 1, EVALUATION_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        answers = evaluate(series, {firing: times}, rule_files=with_short_warmup(Path(folder))).samples[firing]
    return {name: Timeline(last, _alerts(name, last, answers)) for name in names}


def _usual_seconds(name: str) -> int:
    story = SCENARIOS[name]
    of_gpus = isinstance(story.fault, (HardwareFault, CoolingFailure, GpuLoss))
    return _SECONDS.get(name, 1500 if of_gpus else 1200 if story.instrumented else 2700)


def _alerts(name: str, last: int, answers: Answers) -> list[tuple[int, int, Labels]]:
    """Return the alerts of a scenario, by the time at which each begins."""
    spans: dict[tuple[tuple[str, str], ...], list[list[int]]] = {}
    for second in range(0, last + 1, EVALUATION_SECONDS):
        for sample in answers[second]:
            if sample.labels.get("cluster") == name:
                hidden = ("__name__", "alertstate")
                known = spans.setdefault(
                    tuple(sorted(each for each in sample.labels.items() if each[0] not in hidden)), []
                )
                if not known or _after(known[-1][1]) < second:
                    known.append([second, second])
                known[-1][1] = second
    alerts = sorted((first, end, labels) for labels, known in spans.items() for first, end in known)
    return [(first, end, dict(labels)) for first, end, labels in alerts]


@lru_cache(maxsize=2)
def _pages(name: str, start: int, end: int) -> Sequence[str]:
    """Return the page of every scrape in this time."""
    with tempfile.TemporaryDirectory() as folder:
        return tuple(
            pages_of(
                name,
                Path(folder),
                seconds=end - start,
                onset=60.0,
                gpus=8 if name in _ALL_GPUS else 4,
                poll_seconds=_POLL_SECONDS.get(name, EVALUATION_SECONDS / 2),
                report_interval=EVALUATION_SECONDS / 6,
                start=START + start,
            )
        )


def _batches(names: Iterable[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield scenarios of the same length, with that length in seconds."""
    for seconds, same in groupby(sorted(names, key=_usual_seconds), _usual_seconds):
        batch = list(same)
        for place in range(0, len(batch), _TOGETHER):
            yield seconds, batch[place : place + _TOGETHER]


def main(names: Sequence[str]) -> None:
    """Simulate these scenarios, or all, and write the file."""
    found = stored() if names else {}
    for seconds, batch in _batches(names or NAMES):
        together = simulated(batch, seconds)
        found.update(together)
        for name, timeline in together.items():
            messages = (f"{each.second} s: {each.receiver} {each.status}" for each in timeline.notifications())
            print(f"{name}: {', '.join(messages)}", flush=True)
    content = {
        name: {
            "last": found[name].last,
            "alerts": [{"first": first, "last": last, "labels": labels} for first, last, labels in found[name].alerts],
        }
        for name in NAMES
    }
    FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
