"""A status page with what a test puts on it, parsed into a tree, which must be sound."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

from stallscope.model.catalogue.metrics import FAMILIES
from stallscope.model.view.explanation_watch import Explanations, ExplanationWatch
from stallscope.model.view.observer import RankKey
from stallscope.model.view.verdicts import Verdicts, VerdictWatch
from stallscope.node.intake.held import Held
from stallscope.node.intake.series import samples_of
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.node.sampling.sampler import SOURCE_UP, CollectorStatus
from stallscope.node.web.application import Choices
from stallscope.node.web.status.exporter_state import ExporterState
from stallscope.node.web.status.history import History
from stallscope.node.web.status.page import StatusPage
from stallscope.training.protocol.report import parse
from stallscope.training.protocol.vocabulary import STEP_BUCKET_COUNT

NOW = 1_700_000_000.0
_VOID = frozenset({"meta", "br", "link"})


class Element:
    """A part of the page."""

    def __init__(self, tag: str, attributes: Mapping[str, str | None], parent: Element | None) -> None:
        self.tag = tag
        self.attributes = attributes
        self.parent = parent
        self.children: list[Element | str] = []

    @property
    def text(self) -> str:
        """All text within, spaces made single."""
        return " ".join("".join(self._texts()).split())

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """Parts within of that tag, and with these attributes (`class_` for one of the classes)."""
        return [each for each in self._within() if each.matches(tag, attributes)]

    def one(self, tag: str = "", **attributes: str) -> Element:
        """The only one of them."""
        (found,) = self.all(tag, **attributes)
        return found

    def matches(self, tag: str, attributes: Mapping[str, str]) -> bool:
        classes = (self.attributes.get("class") or "").split()
        return (not tag or tag == self.tag) and all(
            value in classes if name == "class_" else self.attributes.get(name) == value
            for name, value in attributes.items()
        )

    def _within(self) -> Iterator[Element]:
        for each in self.children:
            if isinstance(each, Element):
                yield each
                yield from each._within()

    def _texts(self) -> Iterator[str]:
        for each in self.children:
            if isinstance(each, str):
                yield each
            elif each.tag not in ("style", "title"):
                if each.tag not in ("bdi", "code", "strong", "small", "time", "a"):
                    yield " "
                yield from each._texts()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {}, None)
        self.here = self.root

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), attrs
        element = Element(tag, dict(attrs), self.here)
        self.here.children.append(element)
        if tag not in _VOID:
            self.here = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.here.children.append(Element(tag, dict(attrs), self.here))

    def handle_endtag(self, tag: str) -> None:
        assert self.here.tag == tag, f"<{self.here.tag}> is closed by </{tag}>"
        assert self.here.parent is not None
        self.here = self.here.parent

    def handle_data(self, data: str) -> None:
        self.here.children.append(data)


def read(page: bytes) -> Element:
    """The page as a tree; every part of it must be closed."""
    reader = _Reader()
    reader.feed(page.decode())
    reader.close()
    assert reader.here is reader.root
    return reader.root


def sample(name: str, labels: Iterable[str], value: float | Distribution = 1) -> Sample:
    return Sample(FAMILIES[f"stallscope_gpu_{name}"], tuple(labels), value)


def gpu(
    index: int,
    *,
    mig: str = "",
    sharing: str = "exclusive",
    model: str = "NVIDIA L40S",
    memory: str = "",
    **reported: Any,
) -> list[Sample]:
    """A GPU's samples: `up`, `lost_info`, `utilization_ratio` and so on, as far as given; `owners` as tuples."""
    uuid = f"MIG-{index}-{mig}" if mig else f"GPU-{index}"
    labels, last = (str(index), uuid), ((mig,) if mig else ())
    samples = [sample("info", (*labels, model, *[""] * 7, sharing, mig, memory))]
    for name, value in reported.items():
        if name == "lost_info":
            samples.append(sample(name, (*labels, value, *last)))
        elif name == "owners":
            samples += [sample("owner_info", (*labels, *owner, *last)) for owner in value]
        elif name == "temperature_celsius":
            samples.append(sample(name, (*labels, "gpu", *last), value))
            samples.append(sample(name, (*labels, "memory", *last), value + 20))
        else:
            samples.append(sample(name, (*labels, *last), value))
    return samples


BUSY: Mapping[str, Any] = {
    "up": 1,
    "utilization_ratio": 0.97,
    "memory_used_bytes": 60 << 30,
    "memory_total_bytes": 80 << 30,
    "temperature_celsius": 61,
    "power_watts": 512.4,
    "power_limit_watts": 700,
}
"""Samples of a busy GPU."""


def held(
    run: str = "resnet50",
    rank: int = 0,
    *,
    steps: int = 100,
    step_seconds: float = 0.25,
    phases: Mapping[str, float] | None = None,
    lost: bool = False,
    ended: float | None = None,
    arrived: float = NOW - 1,
    restarts: int = 0,
    **changes: Any,
) -> Held:
    """A rank as the intake holds it; `changes` replace fields of its report."""
    document = {
        "version": 1,
        "run": run,
        "rank": rank,
        "session": "first",
        "sequence": 1,
        "pid": 4242,
        "start": NOW - 1000,
        "sent": NOW - 1,
        "state": "running",
        "activity": "training",
        "info": {"world_size": "1"},
        "gpus": [{"gpu": str(rank), "uuid": f"GPU-{rank}"}],
        "step_seconds": {
            "counts": [*[0] * (STEP_BUCKET_COUNT - 1), steps],
            "sum": steps * step_seconds,
            "count": steps,
        },
        "phases": {
            name: {"seconds": seconds, "occurrences": steps, "max": 0.5}
            for name, seconds in (phases or {"data_wait": 30.0, "forward": 20.0, "backward": 50.0}).items()
        },
        "gauges": {"step": float(steps), "steps_planned": 1000.0, "loss": 0.25},
    }
    report = parse(json.dumps({**document, **changes}).encode())
    return Held(report, arrived, 0.0, restarts, None, lost, ended)


def status(name: str, up: bool | None, error: str = "", last_success: float | None = NOW - 10) -> CollectorStatus:
    return CollectorStatus(name=name, up=up, error=error, read_seconds=0.1, last_success=last_success, failures=0)


REFRESHED = Choices()
"""The choices by default."""


class ScriptedVerdicts(VerdictWatch):
    """Verdicts that a test makes up."""

    def __init__(self, verdicts: Verdicts) -> None:
        self.verdicts = verdicts
        self.queried: list[tuple[list[Any], list[str]]] = []

    def look(self, runs: Iterable[Any], gpus: Iterable[str]) -> Verdicts:
        self.queried.append((list(runs), list(gpus)))
        return self.verdicts


class ScriptedExplanations(ExplanationWatch):
    """Explanations that a test makes up."""

    def __init__(self, explanations: Explanations) -> None:
        self.explanations = explanations
        self.queried: list[list[Any]] = []

    def look(self, runs: Iterable[Any]) -> Explanations:
        self.queried.append(list(runs))
        return self.explanations


def ranks(*held: Held) -> list[Sample]:
    """The ranks' samples, as on the exporter's page."""
    return [each for rank in held for each in samples_of(rank)]


def look(
    *,
    samples: Iterable[Sample] = (),
    held: Sequence[Held] = (),
    statuses: tuple[CollectorStatus, ...] = (),
    ready: bool = True,
    **changes: Any,
) -> ExporterState:
    """Return a snapshot with GPUs, sources and ranks as on the exporter's page; `changes` replace other fields."""
    sources = [Sample(SOURCE_UP, (each.name,), int(each.up)) for each in statuses if each.up is not None]
    failures: dict[RankKey, str] = {(each.report.run, str(each.report.rank)): each.report.failure for each in held}
    return ExporterState(NOW, ready, (*samples, *sources, *ranks(*held)), statuses, failures)._replace(**changes)


def rendered(
    *,
    history: History | None = None,
    verdicts: VerdictWatch | None = None,
    host: str = "node1",
    telemetry_path: str = "/metrics",
    explanations: ExplanationWatch | None = None,
    choices: Choices = REFRESHED,
    now: float = NOW,
    **changes: Any,
) -> bytes:
    """The page; `changes` replace what there is to look at."""
    shown = look(**changes)
    page = StatusPage(
        lambda: shown,
        host=host,
        telemetry_path=telemetry_path,
        history=history or History(ScriptedClock().monotonic),
        verdicts=verdicts,
        explanations=explanations,
    )
    return page.render(choices, now)


def shown(**changes: Any) -> Element:
    """Return the rendered page, parsed."""
    return read(rendered(**changes))
