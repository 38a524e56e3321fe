"""The status page as a whole. It reads memory only, and looks that follow each other quickly share one rendering."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from stallscope.common.formatting import ago, percent, several
from stallscope.common.version import __version__
from stallscope.model.view.model import Node, runs_of
from stallscope.model.view.observer import node_of
from stallscope.node.web.application import (
    HEALTHY_PATH,
    READY_PATH,
    REFRESH_SECONDS,
    RELEASE_PATH,
    RESUME_PATH,
    RUNBOOKS_PATH,
    Choices,
)
from stallscope.node.web.status.explanation import explained
from stallscope.node.web.status.exporter_state import ExporterState, SnapshotSamples
from stallscope.node.web.status.gpus import MAX_GPUS, gpu_section, shown_first
from stallscope.node.web.status.history import History
from stallscope.node.web.status.judgement import provenance
from stallscope.node.web.status.markup import UNKNOWN_TEXT, attribute, entry, foreign
from stallscope.node.web.status.runs import run_section
from stallscope.node.web.status.selection import Selection, select
from stallscope.node.web.status.sources import source_section
from stallscope.node.web.status.style import STYLE

if TYPE_CHECKING:
    from stallscope.model.view.explanation_watch import ExplanationWatch
    from stallscope.model.view.verdicts import RunName, Verdicts, VerdictWatch

MAX_EXPLAINED = 3
"""Runs whose verdicts are explained."""
SHARED_SECONDS = 1.0
"""Seconds for which one rendering serves every client."""


class _Rendered(NamedTuple):
    until: float
    page: bytes


class StatusPage:
    """Renders looks at the exporter."""

    def __init__(
        self,
        look: Callable[[], ExporterState],
        *,
        host: str,
        telemetry_path: str,
        history: History,
        verdicts: VerdictWatch | None = None,
        explanations: ExplanationWatch | None = None,
    ) -> None:
        """Prepare; nothing is rendered yet.

        Args:
            look: what there is to show now.
            host: the machine's name.
            telemetry_path: where the metrics are.
            history: what is remembered of the last minutes.
            verdicts: source of verdicts, if a Prometheus is known.
            explanations: source of their explanations, likewise.
        """
        self._look = look
        self._host = host
        self._telemetry_path = telemetry_path
        self._history = history
        self._verdicts = verdicts
        self._explanations = explanations
        self._rendered: dict[Choices, _Rendered] = {}
        self._rendering = threading.Lock()

    def html(self, choices: Choices) -> bytes:
        """The page as a reader has chosen."""
        made = self._rendered.get(choices)
        if made is not None and time.monotonic() < made.until:
            return made.page
        # One at a time; who comes meanwhile gets the one before. A scrape never comes here.
        if not self._rendering.acquire(blocking=made is None):
            assert made is not None
            return made.page
        try:
            made = self._rendered.get(choices)
            if made is None or time.monotonic() >= made.until:
                page = self.render(choices)
                made = self._rendered[choices] = _Rendered(time.monotonic() + SHARED_SECONDS, page)
            return made.page
        finally:
            self._rendering.release()

    def render(self, choices: Choices, now: float | None = None) -> bytes:
        """Render again, as of that Unix time."""
        look = self._look()
        now = time.time() if now is None else now
        node = node_of(SnapshotSamples(look.samples), before=self._history.before, time=look.at)
        selection = select(runs_of(node.ranks), {run: found.odd for run, found in look.stacks.items()})
        verdicts = None
        if self._verdicts is not None:
            shown_uuids = [gpu.uuid for gpu in shown_first(node.gpus)[:MAX_GPUS]]
            verdicts = self._verdicts.look([run.name for run, _ranks in selection.runs], shown_uuids)
        reasons: dict[RunName, str] = {}
        if choices.explained and self._explanations is not None and verdicts is not None:
            judged = [run.name for run, _ranks in selection.runs if run.name in verdicts.runs][:MAX_EXPLAINED]
            explanations = self._explanations.look(judged)
            reasons = {name: explained(name, verdicts.runs[name].cause, explanations) for name in judged}
        host = "Simulated node" if look.simulated else attribute(self._host)
        state = '<span class="badge good">ready</span>' if look.ready else '<span class="badge quiet">starting</span>'
        text = (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{host}: {_summary(node)}, Stallscope</title><style>{STYLE}</style></head><body>"
            f'<header><a class="skip" href="#main">Skip to the runs and GPUs</a><h1><bdi>{host}</bdi> {state}</h1>'
            f"{_reloading(look, choices, now)}{self._links()}{_notice(look)}</header>"
            f'<main id="main">{_tiles(look, node, selection)}{provenance(verdicts)}'
            f"{self._choice_to_explain(choices, verdicts)}{run_section(look, node, selection, verdicts, reasons)}"
            f"{gpu_section(look, node, self._history, verdicts)}{source_section(look, now)}</main>"
            f"<footer>{_FOOT}</footer></body></html>\n"
        )
        return text.encode(errors="replace")

    def _choice_to_explain(self, choices: Choices, verdicts: Verdicts | None) -> str:
        if self._explanations is None or verdicts is None or not verdicts.runs:
            return ""
        address = attribute(choices._replace(explained=not choices.explained).query)
        words = "Hide the reasons" if choices.explained else "Show why"
        return f'<p><a class="pause" href="{address}">{words}</a></p>'

    def _links(self) -> str:
        links = (
            ("#runs", "Training runs"),
            ("#gpus", "GPUs"),
            ("#sources", "Collectors"),
            (attribute(self._telemetry_path, 1000), "Metrics"),
            (HEALTHY_PATH, "Health"),
            (READY_PATH, "Readiness"),
            (RUNBOOKS_PATH, "Runbooks"),
        )
        return (
            '<nav aria-label="Sections and other pages"><ul role="list">'
            + "".join(f'<li><a href="{address}">{name}</a></li>' for address, name in links)
            + "</ul></nav>"
        )


_FOOT = (
    f'<p class="quiet">To reload a GPU driver under the exporter: <code>POST {RELEASE_PATH}?for=2m</code> or SIGUSR1 '
    f"closes the device files for a while, <code>POST {RESUME_PATH}</code> or SIGUSR2 opens them again.</p>"
    f'<p class="quiet">Stallscope {attribute(__version__)}. Where does my GPU time go, and what do I change?</p>'
)


def _reloading(look: ExporterState, choices: Choices, now: float) -> str:
    moment = time.gmtime(look.at)
    iso, shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", moment), time.strftime("%H:%M:%S", moment)
    late = f', <strong class="warn">{ago(now - look.at)}</strong>' if now - look.at > REFRESH_SECONDS else ""
    other = attribute(choices._replace(refreshing=not choices.refreshing).query)
    if choices.refreshing:
        how = f'reloaded every {REFRESH_SECONDS} s. <a class="pause" href="{other}">Pause</a>'
    else:
        how = f'paused. <a class="pause" href="{other}">Reload automatically</a>'
    return f'<p class="quiet">As of <time datetime="{iso}">{shown} UTC</time>{late}, {how}</p>'


def _notice(look: ExporterState) -> str:
    if not look.simulated:
        return ""
    return (
        '<p class="notice"><strong>Simulated node</strong>: the GPUs, and the runs whose names begin with simulated-, '
        f"are not real; they play the scenario {foreign(look.simulated)}.</p>"
    )


def _summary(node: Node) -> str:
    whole = node.whole_gpus
    if not whole:
        return "no GPU"
    return f"{sum(gpu.up is True for gpu in whole)} of {several(len(whole), 'GPU')} up"


def _tiles(look: ExporterState, node: Node, selection: Selection) -> str:
    """The node at first sight."""
    whole = node.whole_gpus
    tiles = []
    if whole:
        up = [gpu for gpu in whole if gpu.up]
        activity = [gpu.utilization for gpu in up if gpu.utilization is not None]
        power = [gpu.power for gpu in up if gpu.power is not None]
        down = sum(gpu.up is False for gpu in whole)
        lost = f' <small class="bad">{down} down</small>' if down else ""
        tiles.append(entry("GPUs up", f"{len(up)} <small>of {len(whole)}</small>{lost}"))
        tiles.append(entry("Mean activity", percent(sum(activity) / len(activity)) if activity else UNKNOWN_TEXT))
        tiles.append(entry("Power", f"{sum(power):,.0f} W" if power else UNKNOWN_TEXT))
    live = sum(not run.ended for run, _ranks in selection.runs)
    over = f" <small>and {selection.left_out:,} more</small>" if selection.left_out else ""
    tiles.append(entry("Runs under way", f"{live}{over}"))
    down = sum(status.up is False for status in look.statuses)
    well = sum(status.up is True for status in look.statuses)
    failing = f' <small class="bad">{down} down</small>' if down else ""
    tiles.append(entry("Collectors up", f"{well}{failing}"))
    return f'<h2 class="hidden">At a glance</h2><dl class="tiles">{"".join(tiles)}</dl>'
