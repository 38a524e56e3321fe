"""GPUs on the status page: a card for each, with its MIG instances."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stallscope.catalogue.gpu_losses import explained
from stallscope.catalogue.metrics import family
from stallscope.common.formatting import ago, percent, size_of
from stallscope.sampling.reading import Sample
from stallscope.view.verdicts import Verdicts
from stallscope.web.status.history import History
from stallscope.web.status.judgement import gpu_verdict_line
from stallscope.web.status.look import Look
from stallscope.web.status.markup import NOT_TOLD_TEXT, bar, entry, foreign, line

INFO = family("stallscope_gpu_info")
UP = family("stallscope_gpu_up")
LOST_INFO = family("stallscope_gpu_lost_info")
LAST_READING = family("stallscope_gpu_last_reading_timestamp_seconds")
UTILIZATION = family("stallscope_gpu_utilization_ratio")
MEMORY_TOTAL = family("stallscope_gpu_memory_total_bytes")
MEMORY_USED = family("stallscope_gpu_memory_used_bytes")
TEMPERATURE = family("stallscope_gpu_temperature_celsius")
POWER = family("stallscope_gpu_power_watts")
POWER_LIMIT = family("stallscope_gpu_power_limit_watts")
OWNER_INFO = family("stallscope_gpu_owner_info")
OWNERS_SOURCE = "owners"

MAX_GPUS = 16
MAX_INSTANCES = 8
"""Of one GPU."""
_MAX_OWNERS = 3

_NUMBERS = frozenset((UP, LAST_READING, UTILIZATION, MEMORY_TOTAL, MEMORY_USED, POWER, POWER_LIMIT))


@dataclass
class ShownGpu:
    """A GPU or MIG instance, as its samples tell."""

    index: str
    uuid: str
    model: str = ""
    sharing: str = ""
    mig: str = ""
    reason: str = ""
    """Why it is down."""
    temperature: float | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    """By name of the family; what is not told is not there."""
    owners: list[str] = field(default_factory=list)

    def number(self, name: str) -> float | None:
        """A number, where it is told."""
        return self.numbers.get(name)

    @property
    def up(self) -> bool | None:
        """Whether it is well; None before its first reading."""
        told = self.number(UP.name)
        return None if told is None else bool(told)

    @property
    def order(self) -> tuple[int, str, str, str]:
        """Its place on the page."""
        return (int(self.index) if self.index.isdecimal() else 0, self.index, self.mig, self.uuid)


def gpus_of(samples: Iterable[Sample]) -> list[ShownGpu]:
    """Every GPU that the samples tell of."""
    found: dict[str, ShownGpu] = {}
    for sample in samples:
        what, labels, value = sample
        if what in _NUMBERS:
            gpu = _known(found, labels)
            gpu.numbers[what.name] = value  # type: ignore[assignment]  # none of them is a distribution
        elif what is TEMPERATURE and labels[2] == "gpu":
            _known(found, labels).temperature = value  # type: ignore[assignment]
        elif what is INFO:
            gpu = _known(found, labels)
            gpu.model, gpu.sharing = labels[2], labels[len(INFO.labels) - 1]
            gpu.mig = labels[len(INFO.labels)] if len(labels) > len(INFO.labels) else ""
        elif what is LOST_INFO:
            _known(found, labels).reason = labels[2]
        elif what is OWNER_INFO:
            _known(found, labels).owners.append(_owner(*labels[2:7]))
    return sorted(found.values(), key=lambda gpu: gpu.order)


def gpu_section(look: Look, gpus: list[ShownGpu], history: History, verdicts: Verdicts | None) -> str:
    """The GPUs, those that don't fit in only by number."""
    owners_told = any(status.name == OWNERS_SOURCE and status.up for status in look.statuses)
    whole = [gpu for gpu in gpus if not gpu.mig]
    parents = {gpu.index: gpu.uuid for gpu in reversed(whole) if gpu.sharing == "mig"}
    instances: dict[str, list[ShownGpu]] = {}
    for gpu in gpus:
        if gpu.mig:
            instances.setdefault(parents.get(gpu.index, ""), []).append(gpu)
    # An instance whose GPU is not known stands for itself.
    whole += instances.pop("", [])
    shown = sorted(shown_first(whole)[:MAX_GPUS], key=lambda gpu: gpu.order)
    cards = "".join(
        f"<li>{_card(gpu, instances.get(gpu.uuid, []), look, history, verdicts, owners_told)}</li>" for gpu in shown
    )
    body = f'<ul class="cards" role="list">{cards}</ul>' if cards else f'<p class="quiet">{_nothing(look)}</p>'
    more = len(whole) - len(shown)
    rest = f'<p class="quiet">{more} more GPUs are not shown; the metrics have them all.</p>' if more else ""
    return f'<section aria-labelledby="gpus"><h2 id="gpus">GPUs</h2>{body}{rest}</section>'


def shown_first(gpus: list[ShownGpu]) -> list[ShownGpu]:
    """GPUs with those in trouble before the others: they are the last to be left out."""
    return sorted(gpus, key=lambda gpu: gpu.up is not False)


def _nothing(look: Look) -> str:
    if not look.reads_gpus:
        return "No source of GPUs is switched on."
    if look.ready:
        return "No GPU on this machine answers; the sources below say why. All else is served."
    return "Not read yet."


def _card(
    gpu: ShownGpu,
    instances: list[ShownGpu],
    look: Look,
    history: History,
    verdicts: Verdicts | None,
    owners_told: bool,
) -> str:
    verdict = verdicts.gpus.get(gpu.uuid) if verdicts is not None else None
    judged = gpu_verdict_line(verdict) if verdict is not None else ""
    title = f"GPU {foreign(gpu.index)}" + (f" MIG {foreign(gpu.mig)}" if gpu.mig else "")
    state = _state(gpu)
    head = f'<h3><span>{title}</span> {state}</h3><p class="model">{foreign(gpu.model)}</p>'
    if gpu.up is not True:
        held_by = f'<dl class="facts">{entry("Held by", _held_by(gpu, False))}</dl>' if gpu.owners else ""
        down = " down" if gpu.up is False else ""
        identifier = f'<p class="uuid">{foreign(gpu.uuid)}</p>'
        return f'<article class="card{down}">{head}{_trouble(gpu, look)}{judged}{held_by}{identifier}</article>'
    utilization = gpu.number(UTILIZATION.name)
    shown = f"<strong>{percent(utilization)}</strong>" if utilization is not None else NOT_TOLD_TEXT
    activity = f'<p class="activity"><span>Activity</span> {shown}</p>{bar(utilization)}'
    return (
        f'<article class="card">{head}{judged}{activity}{line(history.activity(gpu.uuid))}'
        f'<dl class="facts">{entry("Memory", _memory(gpu))}{entry("Temperature", _temperature(gpu))}'
        f"{entry('Power', _power(gpu))}{'' if instances else entry('Held by', _held_by(gpu, owners_told))}</dl>"
        f'{_instances(instances, owners_told)}<p class="uuid">{foreign(gpu.uuid)}</p></article>'
    )


def _state(gpu: ShownGpu) -> str:
    css, word = {True: ("good", "up"), False: ("bad", "down"), None: ("quiet", "not read yet")}[gpu.up]
    return f'<span class="badge {css}">{word}</span>'


def _trouble(gpu: ShownGpu, look: Look) -> str:
    if gpu.up is None:
        return ""
    read = gpu.number(LAST_READING.name)
    when = f" Last reading {ago(look.at - read)}." if read is not None else ""
    reason = foreign(gpu.reason or "unknown")
    return f"<p><strong><code>{reason}</code></strong> {explained(gpu.reason)}{when}</p>"


def _memory(gpu: ShownGpu) -> str:
    used, total = gpu.number(MEMORY_USED.name), gpu.number(MEMORY_TOTAL.name)
    if used is None or total is None:
        return NOT_TOLD_TEXT
    return f"{size_of(used, total)}{bar(used / total if total else None, 'memory')}"


def _temperature(gpu: ShownGpu) -> str:
    return NOT_TOLD_TEXT if gpu.temperature is None else f"{gpu.temperature:.0f} °C"


def _power(gpu: ShownGpu) -> str:
    power, limit = gpu.number(POWER.name), gpu.number(POWER_LIMIT.name)
    if power is None:
        return NOT_TOLD_TEXT
    return f"{power:.0f} W" if limit is None else f"{power:.0f} of {limit:.0f} W"


def _held_by(gpu: ShownGpu, owners_told: bool) -> str:
    if not gpu.owners:
        return "nobody" if owners_told else NOT_TOLD_TEXT
    more = f" and {len(gpu.owners) - _MAX_OWNERS} more" if len(gpu.owners) > _MAX_OWNERS else ""
    return ", ".join(gpu.owners[:_MAX_OWNERS]) + more


def _owner(namespace: str, pod: str, container: str, slurm_job: str, user: str) -> str:
    if pod:
        return f"pod {foreign(f'{namespace}/{pod}' if namespace else pod)}"
    if slurm_job:
        return f"Slurm job {foreign(slurm_job)}" + (f" of {foreign(user)}" if user else "")
    if container:
        return f"container {foreign(container)}" + (f" of {foreign(user)}" if user else "")
    return foreign(user) if user else "somebody unknown"


def _instances(instances: list[ShownGpu], owners_told: bool) -> str:
    if not instances:
        return ""
    shown = sorted(shown_first(instances)[:MAX_INSTANCES], key=lambda gpu: gpu.order)
    rows = "".join(
        f'<tr><th scope="row">{foreign(each.mig)}</th><td>{_instance_activity(each)}</td>'
        f"<td>{_memory(each)}</td><td>{_held_by(each, owners_told)}</td></tr>"
        for each in shown
    )
    more = len(instances) - len(shown)
    caption = "MIG instances" + (f", {more} more not shown" if more else "")
    return (
        f'<table class="small"><caption>{caption}</caption><thead><tr><th scope="col">Instance</th>'
        '<th scope="col">Activity</th><th scope="col">Memory</th><th scope="col">Held by</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _instance_activity(gpu: ShownGpu) -> str:
    if gpu.up is not True:
        return f"{_state(gpu)} {foreign(gpu.reason)}"
    utilization = gpu.number(UTILIZATION.name)
    return NOT_TOLD_TEXT if utilization is None else f"{percent(utilization)}{bar(utilization)}"


def _known(found: dict[str, ShownGpu], labels: tuple[str, ...]) -> ShownGpu:
    gpu = found.get(labels[1])
    if gpu is None:
        gpu = found[labels[1]] = ShownGpu(labels[0], labels[1])
    return gpu
