"""Nodes that die, with the alerts of the bundle's rules, and with alerts of rules without any coordination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.alerting.alertmanager import Labels
from tests.alerting.subjects import SEVERITIES, on_node, on_run, on_the_same
from tests.rules.rulebook import EVALUATION_INTERVAL
from tests.scenarios.case import Case, render
from tests.scenarios.machines import HGX
from tests.scenarios.runner import WATCHDOG, evaluate
from tests.scenarios.story import From, Gpu, Host, Run, Story, Work

GPUS = 8
RANKS = 32
DEATH = 6.0
"""Minute of the death in all stories. Runs begin long before."""
LENGTH = 13.5
_FIRING = 'ALERTS{alertstate="firing"}'
_ALWAYS = -1e9
_WORK = Work(communication=0.012, loader_cores=5.0, loader_workers=20)
_QUIET = (From(_ALWAYS, Host(cores=4)),)


@dataclass(frozen=True)
class Moment:
    """The firing alerts from a second on, until the next moment."""

    second: int
    alerts: tuple[Labels, ...]


def spanning_run() -> Story:
    """A run of 32 ranks on four nodes, one of which dies; the other ranks spin in a collective."""
    stuck = From(DEATH, replace(_WORK, hangs="spin"))
    run = Run("bert", tuple((gpu,) for gpu in range(RANKS)), namespace="vision", work=(From(_ALWAYS, _WORK), stuck))
    return Story((HGX,) * (RANKS // GPUS), (run,), _QUIET, exporter_down=((0, DEATH),))


def crowded_node() -> Story:
    """Four runs with a rank on each of eight GPUs, all on the node that dies."""
    return Story((HGX,), _crowd(hangs=False), _QUIET, sharing="mps", exporter_down=((0, DEATH),))


def fallen_gpus() -> Story:
    """Return the same node, which stays up while its eight GPUs fall off the bus at once."""
    fallen = From(DEATH, Gpu(present=False, lost_reason="gpu_lost", xids=(79,)))
    return Story((HGX,), _crowd(hangs=True), _QUIET, gpus=(From(_ALWAYS, Gpu()), fallen), sharing="mps")


def _crowd(*, hangs: bool) -> tuple[Run, ...]:
    quarter = replace(_WORK, kernels=replace(_WORK.kernels, busy=0.25), memory=0.15)
    work = (From(_ALWAYS, quarter), *((From(DEATH, replace(quarter, hangs="idle")),) if hangs else ()))
    ranks = tuple((gpu,) for gpu in range(GPUS))
    return tuple(Run(f"run-{number}", ranks, namespace="vision", work=work) for number in range(RANKS // GPUS))


def raised_by_the_rules(stories: Mapping[str, Story]) -> dict[str, list[Moment]]:
    """Return the alerts of the bundle's rules in each story, by time. All stories are evaluated in one run."""
    series = [
        each
        for name, story in stories.items()
        for each in render(
            Case(name, "positive", "run", "hang_spin", story, length=LENGTH), 1, noise=False, labels={"cluster": name}
        )
    ]
    seconds = range(0, round(60 * LENGTH) + 1, EVALUATION_INTERVAL)
    moments: dict[str, list[Moment]] = {name: [] for name in stories}
    said = evaluate(series, {_FIRING: seconds}, evaluation_seconds=EVALUATION_INTERVAL)
    for second, samples in said.samples[_FIRING].items():
        firing = [sample.labels for sample in samples if sample.labels["alertname"] != WATCHDOG]
        for name, timeline in moments.items():
            alerts = tuple(
                {label: value for label, value in labels.items() if label not in ("__name__", "alertstate")}
                for labels in firing
                if labels["cluster"] == name
            )
            if alerts != (timeline[-1].alerts if timeline else ()):
                timeline.append(Moment(second, alerts))
    return moments


def raised_by_ignorant_rules() -> list[Moment]:
    """Return the alerts of rules without coordination: every alert on every GPU and rank of the node."""
    at_once = (
        on_node("StallscopeExporterDown", severity="warning"),
        on_node("StallscopeExporterDown", namespace="vision", run="bert"),
        *(on_node(name) for name in SEVERITIES if name.startswith("Host")),
        *(
            on_the_same(name, gpu=str(rank % GPUS), uuid=f"GPU-n1-{rank % GPUS}", rank=str(rank))
            for name in SEVERITIES
            if name.startswith("Gpu")
            for rank in range(RANKS)
        ),
    )
    later = tuple(on_run(name) for name in SEVERITIES if name.startswith("Training"))
    return [Moment(120, at_once), Moment(360, at_once + later)]
