"""Screen lines for verdicts and alerts: the subject, the value, and the action to take."""

from __future__ import annotations

import pytest

from stallscope.lab.stack import screen
from stallscope.model.clients.alertmanager import Alert
from stallscope.model.view.verdicts import Culprit, Verdict

ALERT = Alert(
    name="GpuLost",
    severity="critical",
    summary="GPU is lost: it cannot be read any more.",
    description="GPU 5 can no longer be read. Drain the node.",
    labels=(("alertname", "GpuLost"), ("gpu", "5"), ("rank", "5"), ("run", "resnet"), ("uuid", "GPU-x")),
)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict("input_bound", 0.534), "verdict on run resnet: input_bound, 53 % of its time lost"),
        (Verdict("thermal_throttle", 0.002), "verdict on run resnet: thermal_throttle, under 1 % of its time lost"),
        (
            Verdict("straggler_hw", 0.2, culprit=Culprit("3", "b:9400", "1", "", "thermal_throttle")),
            "verdict on run resnet: straggler_hw, 20 % of its time lost; rank 3, GPU 1 of b:9400: slowed by heat",
        ),
        (Verdict("healthy", 0.0), "verdict on run resnet: healthy"),
    ],
)
def test_a_verdict_shows_run_cause_and_loss(verdict: Verdict, words: str) -> None:
    assert screen.verdict("resnet", verdict).endswith(words)


def test_an_alert_shows_its_subject_and_the_action() -> None:
    first, *rest = screen.alert(ALERT).splitlines()
    assert first.endswith("critical GpuLost (run resnet, rank 5, gpu 5): GPU is lost: it cannot be read any more.")
    assert " ".join(line.strip() for line in rest) == ALERT.description


def test_an_alert_without_a_subject_has_none() -> None:
    assert screen.over(ALERT._replace(labels=())).endswith("over: GpuLost")
