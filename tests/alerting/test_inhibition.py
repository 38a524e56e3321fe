"""A real Alertmanager with the bundle's configuration mutes alerts that follow from a more severe one, and no others.
A real Alertmanager with the bundle's configuration mutes alerts that follow from a more severe one, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.catalogue.causes import muted_alerts as muted_by
from tests.alerting.alertmanager import (
    Alert,
    Alertmanager,
    Configuration,
    Labels,
    bundled,
    notifying,
    running,
    wait_until,
)
from tests.alerting.subjects import OF_THE_SERVER, RUN, SEVERITIES, on_another, on_gpu, on_node, on_run, on_the_same
from tests.rules.rulebook import ALERT_FILES

DOWN = "StallscopeExporterDown"
EXPECTED: dict[str, set[str]] = {
    **{name: set() for name in SEVERITIES},
    **{cause.alert: muted_by(cause) for cause in CAUSES.values() if cause.alert},
    DOWN: set(SEVERITIES) - {DOWN},
}
"""The alerts that an alert mutes: on the same run, on a GPU that the run uses, on their node."""

Question = tuple[Sequence[Labels], Sequence[Labels]]
"""Return which of the latter alerts the former mute."""


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    with running(notifying(bundled(), {}), tmp_path_factory.mktemp("alertmanager")) as started:
        yield started


def muted(alertmanager: Alertmanager, where: str, questions: Mapping[str, Question]) -> dict[str, set[str]]:
    """Return the names of the muted alerts. Tests share one Alertmanager; each uses a cluster of its own."""
    inside = {
        key: [(at(f"{where} {key}", labels), labels) for labels in queried] for key, (_, queried) in questions.items()
    }
    sources = [at(f"{where} {key}", labels) for key, (sources, _) in questions.items() for labels in sources]
    targets = [labels for queried in inside.values() for labels, _ in queried]
    # Alerts take effect in the order in which they come, so that whatever is to be muted is, once this one is.
    last = (
        on_the_same("TrainingStalled", cluster=f"{where} last"),
        on_the_same("TrainingLowMfu", cluster=f"{where} last"),
    )
    alertmanager.post(Alert(labels) for labels in (*targets, *sources))
    alertmanager.post(Alert(labels) for labels in last)
    wait_until(lambda: frozenset(last[1].items()) in alertmanager.muted(), lambda: "no alert is muted at all")
    found = alertmanager.muted()
    alertmanager.post(Alert(labels, ended=True) for labels in (*targets, *sources, *last))
    return {
        key: {labels["alertname"] for posted, labels in queried if frozenset(posted.items()) in found}
        for key, queried in inside.items()
    }


def at(cluster: str, labels: Labels) -> Labels:
    """Return the labels in this cluster, without labels that have no value."""
    present = {label: value for label, value in labels.items() if value}
    return {**present, "cluster": cluster + labels.get("cluster", "")}


NOTHING: dict[str, set[str]] = {name: set() for name in EXPECTED}
# Alerts of severity info mute nothing (see the other test), so all targets of a source are posted at once.
INFO = {"severity": "info"}


def test_each_rule_has_one_alert_as_its_source() -> None:
    """Some versions of Alertmanager keep one source per rule: two that end at different times would unmute their
    target."""
    sources = [matcher for rule in bundled()["inhibit_rules"] for matcher in rule["source_matchers"]]
    assert not [matcher for matcher in sources if matcher.startswith("alertname =~")]


@pytest.mark.parametrize(
    ("target", "stays", "ends"),
    [
        ("TrainingCommBound", on_run("TrainingStragglerHw"), on_run("TrainingStragglerRank")),
        ("TrainingLowMfu", on_run("TrainingHangIo"), on_run("TrainingHangSpin")),
        ("TrainingHangSpin", on_gpu("GpuXidHw", **RUN), on_gpu("GpuLost", **RUN)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_alert_stays_muted_when_one_of_two_sources_ends(
    alertmanager: Alertmanager, target: str, stays: Labels, ends: Labels
) -> None:
    """Alertmanager 0.33.1 forgets the remaining source if a rule names both."""
    here = f"two {target}"
    of_target, of_stays, of_ends = (at(here, labels) for labels in (on_run(target), stays, ends))
    marker = at(here, on_run("TrainingStepOutliers"))
    alertmanager.post([Alert(of_target)])
    alertmanager.post([Alert(of_stays)])
    alertmanager.post([Alert(of_ends)])
    wait_until(lambda: frozenset(of_target.items()) in alertmanager.muted(), lambda: "the alert is never muted")
    # Alerts take effect in the order in which they come: once this one is muted, the end has been seen.
    alertmanager.post([Alert(of_ends, ended=True)])
    alertmanager.post([Alert(marker), Alert(at(here, on_run("TrainingRestartLoop")))])
    wait_until(lambda: frozenset(marker.items()) in alertmanager.muted(), lambda: "the marker is never muted")
    assert frozenset(of_target.items()) in alertmanager.muted()


def test_the_matrix_is_about_every_alert_of_the_bundle() -> None:
    rules = [rule for path in ALERT_FILES for group in _parsed(path)["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules} == set(SEVERITIES) | OF_THE_SERVER


def _parsed(path: Path) -> Configuration:
    content: Configuration = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def test_on_the_same_subject_the_matrix_is_muted_and_nothing_else(alertmanager: Alertmanager) -> None:
    questions = {
        source: ([on_the_same(source)], [on_the_same(target, **INFO) for target in SEVERITIES if target != source])
        for source in SEVERITIES
    }
    assert muted(alertmanager, "same", questions) == EXPECTED


def test_nothing_is_muted_on_another_subject(alertmanager: Alertmanager) -> None:
    questions = {
        source: ([on_the_same(source)], [on_another(target, **INFO) for target in targets])
        for source, targets in EXPECTED.items()
    }
    assert muted(alertmanager, "another", questions) == NOTHING


def test_nothing_is_muted_in_another_cluster(alertmanager: Alertmanager) -> None:
    questions = {
        source: ([on_the_same(source)], [on_the_same(target, cluster="'", **INFO) for target in targets])
        for source, targets in EXPECTED.items()
    }
    assert muted(alertmanager, "cluster", questions) == NOTHING


def test_a_run_of_the_same_name_in_another_namespace_is_another(alertmanager: Alertmanager) -> None:
    questions = {
        source: (
            [on_the_same(source)],
            [on_run(target, namespace="language", **INFO) for target in targets if target.startswith("Training")],
        )
        for source, targets in EXPECTED.items()
    }
    assert muted(alertmanager, "namespace", questions) == NOTHING


def test_alerts_on_no_run_at_all_are_on_no_common_run(alertmanager: Alertmanager) -> None:
    """Alertmanager treats two missing labels as equal."""
    without = {"run": "", "namespace": ""}
    questions = {
        source: (
            [on_the_same(source, **without)],
            [on_run(target, **without, **INFO) for target in targets if target.startswith("Training")],
        )
        for source, targets in EXPECTED.items()
    }
    assert muted(alertmanager, "no run", questions) == NOTHING


def test_an_alert_that_notifies_no_one_mutes_nothing(alertmanager: Alertmanager) -> None:
    questions = {
        target: ([on_the_same(source, **INFO) for source in SEVERITIES if source != target], [on_the_same(target)])
        for target in SEVERITIES
    }
    assert muted(alertmanager, "info", questions) == NOTHING


def test_a_ticket_mutes_no_page(alertmanager: Alertmanager) -> None:
    # A node that is gone is the exception: see below.
    tickets = [on_the_same(name, severity="warning") for name in SEVERITIES if name != DOWN]
    questions = {
        name: (tickets, [on_the_same(name)]) for name, severity in SEVERITIES.items() if severity == "critical"
    }
    assert muted(alertmanager, "page", questions) == {name: set() for name in questions}


NEXT = {"gpu": "4", "uuid": "GPU-n1-4"}


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        pytest.param(
            on_gpu("GpuXidHw"),
            on_gpu("GpuIdleAllocated"),
            True,
            id="broken-hardware-mutes-its-own-idleness-also-without-a-run",
        ),
        pytest.param(
            on_gpu("GpuXidHw"),
            on_gpu("GpuIdleAllocated", **NEXT),
            False,
            id="but-not-that-of-its-neighbour",
        ),
        pytest.param(
            on_gpu("GpuXidHw", **RUN),
            on_gpu("GpuUnderused", **NEXT, **RUN),
            True,
            id="which-waits-for-it",
        ),
        pytest.param(
            on_gpu("GpuThermalThrottle", **RUN, rank="7"),
            on_run("TrainingStragglerHw"),
            True,
            id="a-slow-gpu-mutes-the-delay-of-its-own-rank",
        ),
        pytest.param(
            on_gpu("GpuThermalThrottle", **RUN, rank="7"),
            on_run("TrainingStragglerHw", rank="8"),
            False,
            id="but-not-that-of-another-rank",
        ),
        pytest.param(on_gpu("GpuLost"), on_gpu("GpuMemZombie", **NEXT), False, id="lost-gpu-neighbour"),
        pytest.param(
            on_run("TrainingStragglerHw"), on_run("TrainingStragglerRank", rank="8"), False, id="another-straggler"
        ),
        pytest.param(on_node(DOWN, severity="warning"), on_gpu("GpuLost", **RUN), True, id="old-readings"),
        pytest.param(
            on_node(DOWN, severity="warning", **RUN),
            on_run("TrainingStalled"),
            False,
            id="a-ticket-for-the-exporter-hides-no-run",
        ),
        pytest.param(on_node(DOWN, **RUN), on_node(DOWN, severity="warning"), True, id="who-is-paged-needs-no-ticket"),
        pytest.param(
            on_node(DOWN, **RUN), on_node(DOWN, severity="warning", instance="n2"), False, id="but-not-the-next-nodes"
        ),
        pytest.param(
            on_node(DOWN, severity="warning", instance=""),
            on_node("HostSwapping", instance=""),
            False,
            id="no-exporter-at-all-is-on-no-node",
        ),
        pytest.param(
            on_run("TrainingStalled"),
            on_run("TrainingStalled", severity="info"),
            True,
            id="the-gravest-word",
        ),
        pytest.param(
            on_run("TrainingStragglerRank"),
            on_run("TrainingStragglerRank", severity="info", rank="8"),
            False,
            id="of-another-rank-its-own",
        ),
    ],
)
def test_in_particular(
    alertmanager: Alertmanager, source: Labels, target: Labels, expected: bool, request: pytest.FixtureRequest
) -> None:
    assert bool(muted(alertmanager, request.node.callspec.id, {"": ([source], [target])})[""]) is expected
