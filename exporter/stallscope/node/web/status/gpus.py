"""GPUs on the status page: a card for each, with its MIG instances."""

from __future__ import annotations

from collections.abc import Iterable

from stallscope.common.formatting import gpu_name, percent, size_of, time_since
from stallscope.model.catalogue.gpu_losses import explained
from stallscope.model.view.model import Gpu, Node
from stallscope.model.view.verdicts import Verdicts
from stallscope.node.web.status.exporter_state import ExporterState
from stallscope.node.web.status.history import History
from stallscope.node.web.status.judgement import gpu_verdict_line
from stallscope.node.web.status.markup import UNKNOWN_TEXT, bar, entry, foreign, line

MAX_GPUS = 16
MAX_INSTANCES = 8
"""Maximum number of MIG instances of one GPU."""
_MAX_OWNERS = 3


def gpu_section(look: ExporterState, node: Node, history: History, verdicts: Verdicts | None) -> str:
    """Return the section of GPUs; GPUs beyond the limit are only counted."""
    whole = list(node.whole_gpus)
    parents = {gpu.index: gpu.uuid for gpu in reversed(whole) if gpu.sharing == "mig"}
    instances: dict[str, list[Gpu]] = {}
    for gpu in node.gpus:
        if gpu.mig:
            instances.setdefault(parents.get(gpu.index, ""), []).append(gpu)
    # An instance of an unknown GPU has its own card.
    whole += instances.pop("", [])
    shown = sorted(shown_first(whole)[:MAX_GPUS], key=lambda gpu: gpu.order)
    cards = "".join(f"<li>{_card(gpu, instances.get(gpu.uuid, []), node, history, verdicts)}</li>" for gpu in shown)
    body = f'<ul class="cards" role="list">{cards}</ul>' if cards else f'<p class="quiet">{_nothing(look)}</p>'
    more = len(whole) - len(shown)
    rest = f'<p class="quiet">{more} more GPUs are not shown; the metrics have them all.</p>' if more else ""
    return f'<section aria-labelledby="gpus"><h2 id="gpus">GPUs</h2>{body}{rest}</section>'


def shown_first(gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return the GPUs, with those that are down first, so that the limit omits them last."""
    return sorted(gpus, key=lambda gpu: gpu.up is not False)


def _nothing(look: ExporterState) -> str:
    if not look.reads_gpus:
        return "No GPU collector is enabled."
    if look.ready:
        return "No GPU on this machine responds; the sources below have the reason. Everything else works."
    return "Not read yet."


def _card(gpu: Gpu, instances: list[Gpu], node: Node, history: History, verdicts: Verdicts | None) -> str:
    verdict = verdicts.gpus.get(gpu.uuid) if verdicts is not None else None
    judged = gpu_verdict_line(verdict) if verdict is not None else ""
    title = gpu_name(gpu.index, gpu.mig, foreign)
    state = _state(gpu)
    head = f'<h3><span>{title}</span> {state}</h3><p class="model">{foreign(gpu.model)}</p>'
    if gpu.up is not True:
        held_by = f'<dl class="facts">{entry("Held by", _held_by(gpu, node))}</dl>' if gpu.owners else ""
        down = " down" if gpu.up is False else ""
        identifier = f'<p class="uuid">{foreign(gpu.uuid)}</p>'
        return f'<article class="card{down}">{head}{_trouble(gpu, node)}{judged}{held_by}{identifier}</article>'
    shown = f"<strong>{percent(gpu.utilization)}</strong>" if gpu.utilization is not None else UNKNOWN_TEXT
    activity = f'<p class="activity"><span>Activity</span> {shown}</p>{bar(gpu.utilization)}'
    return (
        f'<article class="card">{head}{judged}{activity}{line(history.activity(gpu.uuid))}'
        f'<dl class="facts">{entry("Memory", _memory(gpu))}{entry("Temperature", _temperature(gpu))}'
        f"{entry('Power', _power(gpu))}{'' if instances else entry('Held by', _held_by(gpu, node))}</dl>"
        f'{_instances(instances, node)}<p class="uuid">{foreign(gpu.uuid)}</p></article>'
    )


def _state(gpu: Gpu) -> str:
    css, word = {True: ("good", "up"), False: ("bad", "down"), None: ("quiet", "not read yet")}[gpu.up]
    return f'<span class="badge {css}">{word}</span>'


def _trouble(gpu: Gpu, node: Node) -> str:
    if gpu.up is None:
        return ""
    last = time_since(node.time, gpu.last_reading)
    when = f" Last reading {last}." if last else ""
    reason = foreign(gpu.reason or "unknown")
    return f"<p><strong><code>{reason}</code></strong> {explained(gpu.reason)}{when}</p>"


def _memory(gpu: Gpu) -> str:
    used, total = gpu.memory_used, gpu.memory_total
    if used is None or total is None:
        return UNKNOWN_TEXT
    shared = ", shared with the host" if gpu.unified_memory else ""
    return f"{size_of(used, total)}{shared}{bar(used / total if total else None, 'memory')}"


def _temperature(gpu: Gpu) -> str:
    return UNKNOWN_TEXT if gpu.temperature is None else f"{gpu.temperature:.0f} °C"


def _power(gpu: Gpu) -> str:
    if gpu.power is None:
        return UNKNOWN_TEXT
    return f"{gpu.power:.0f} W" if gpu.power_limit is None else f"{gpu.power:.0f} of {gpu.power_limit:.0f} W"


def _held_by(gpu: Gpu, node: Node) -> str:
    if not gpu.owners:
        return "nobody" if node.owners_known else UNKNOWN_TEXT
    more = f" and {len(gpu.owners) - _MAX_OWNERS} more" if len(gpu.owners) > _MAX_OWNERS else ""
    return ", ".join(foreign(owner.title) for owner in gpu.owners[:_MAX_OWNERS]) + more


def _instances(instances: list[Gpu], node: Node) -> str:
    if not instances:
        return ""
    shown = sorted(shown_first(instances)[:MAX_INSTANCES], key=lambda gpu: gpu.order)
    rows = "".join(
        f'<tr><th scope="row">{foreign(each.mig)}</th><td>{_instance_activity(each)}</td>'
        f"<td>{_memory(each)}</td><td>{_held_by(each, node)}</td></tr>"
        for each in shown
    )
    more = len(instances) - len(shown)
    caption = "MIG instances" + (f", {more} more not shown" if more else "")
    return (
        f'<table class="small"><caption>{caption}</caption><thead><tr><th scope="col">Instance</th>'
        '<th scope="col">Activity</th><th scope="col">Memory</th><th scope="col">Held by</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _instance_activity(gpu: Gpu) -> str:
    if gpu.up is not True:
        return f"{_state(gpu)} {foreign(gpu.reason)}"
    return UNKNOWN_TEXT if gpu.utilization is None else f"{percent(gpu.utilization)}{bar(gpu.utilization)}"
