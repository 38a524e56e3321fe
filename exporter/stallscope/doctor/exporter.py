"""The node's exporter: whether it answers, and what it says of itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from stallscope.catalogue.gpu_losses import LOSSES
from stallscope.catalogue.metrics import Family, family
from stallscope.clients.exporter import ExporterClient, ExporterError
from stallscope.clients.exposition import Page
from stallscope.common.version import __version__
from stallscope.doctor.checkup import Finding, Part, Stop, Subject, failed, ok, warning

BUILD_INFO = family("stallscope_build_info")
SOURCE_UP = family("stallscope_exporter_source_up")
LAST_SUCCESS = family("stallscope_exporter_source_last_success_timestamp_seconds")
STUCK_THREADS = family("stallscope_exporter_source_stuck_threads")
GPU_UP = family("stallscope_gpu_up")
LOST_INFO = family("stallscope_gpu_lost_info")
REPORTS = family("stallscope_exporter_reports_total")
REPORTS_REJECTED = family("stallscope_exporter_reports_rejected_total")
SERIES_DROPPED = family("stallscope_exporter_series_dropped_total")
READ = (
    BUILD_INFO,
    SOURCE_UP,
    LAST_SUCCESS,
    STUCK_THREADS,
    GPU_UP,
    LOST_INFO,
    REPORTS,
    REPORTS_REJECTED,
    SERIES_DROPPED,
)
"""What is read of the page."""
MOST_AGE = 15.0
"""Seconds that a reading may be old: a scrape interval."""
MOST_SKEW = 5.0
"""Seconds by which two clocks may differ: less does no harm to any rule."""
RESET_CLOCKS = "set both clocks right: `timedatectl status` must say that the clock is synchronized"
_READY = "/-/ready"
_MEANT = ("released", "mig_reconfigured", "suspended")
"""Reasons of GPUs that are down because somebody, or the kernel, wants it so."""
_TOKEN = "give the training the exporter's token in STALLSCOPE_TOKEN or STALLSCOPE_TOKEN_FILE"  # noqa: S105 - no token
_REMEDIES = {
    "unsigned": _TOKEN,
    "unknown_token": _TOKEN,
    "bad_signature": "somebody changes or forges reports: see the exporter's log for where they come from",
    "replayed": "somebody sends copies of reports: see the exporter's log for where they come from",
    "expired": RESET_CLOCKS,
    "future": RESET_CLOCKS,
    "version": "install the same version of stallscope for training and exporter",
    "run_limit": "raise --report.max-runs",
    "rank_limit": "raise --report.max-ranks",
    "series_limit": "report fewer ranks, phases or values, and keep their names",
    "memory_limit": "use shorter names of runs, phases and values",
    "not_owner": "give runs of two users names of their own",
    "superseded": "give runs that go on at once names of their own",
}


class Exporter(NamedTuple):
    """An exporter that answers."""

    client: ExporterClient
    page: Page
    at: float
    """Unix time of this machine when the page came."""


def read(client: ExporterClient) -> Page:
    """The page as it is now.

    Raises:
        ExporterError: there is none.
    """
    return Page(client.read(), frozenset(each.name for each in READ))


def client_of(subject: Subject) -> ExporterClient:
    """What asks the exporter."""
    return ExporterClient(subject.exporter_url, timeout=subject.exporter_timeout, certificate=subject.certificate)


def _begin(subject: Subject) -> Exporter:
    client = client_of(subject)
    try:
        page = read(client)
    except ExporterError as error:
        raise Stop(
            failed(
                f"{client.name}: {error}",
                "see whether it runs there, or say where it is with --exporter.url",
            )
        ) from None
    if not page:
        client.close()
        raise Stop(
            failed(f"what answers at {client.name} is no exporter of Stallscope", "say where it is with --exporter.url")
        )
    return Exporter(client, page, time.time())


def _version(exporter: Exporter) -> Iterator[Finding]:
    for labels, _ in exporter.page.samples(BUILD_INFO):
        told = f"{exporter.client.name} answers: version {labels['version']}, Python {labels['python']}"
        if labels["version"] == __version__:
            yield ok(told)
        else:
            yield warning(f"{told}; this command is {__version__}", "install the same version of stallscope for both")


def _ready(exporter: Exporter) -> Iterator[Finding]:
    try:
        exporter.client.read(_READY)
    except ExporterError as error:
        yield failed(f"{_READY}: {error}", "wait for the first readings; if it stays so, see the exporter's log")
    else:
        yield ok("ready")
    finally:
        exporter.client.close()


def _sources(exporter: Exporter) -> Iterator[Finding]:
    page = exporter.page
    stuck = {labels["source"]: value for labels, value in page.samples(STUCK_THREADS)}
    states = {labels["source"]: bool(value) for labels, value in page.samples(SOURCE_UP)}
    down = [source for source, up in sorted(states.items()) if not up]
    for source in down:
        if stuck.get(source):
            yield failed(
                f"source {source} hangs: {stuck[source]:.0f} of its threads do not come back",
                "only a restart of the exporter ends a call that hangs; see the kernel's log (dmesg) for the device",
            )
        else:
            yield failed(
                f"source {source} fails",
                f"see the exporter's log for the reason, or switch it off with --no-collector.{source}",
            )
    if not down:
        yield ok(f"{len(states)} sources are read: {', '.join(sorted(states))}")


def _gpus(exporter: Exporter) -> Iterator[Finding]:
    page = exporter.page
    reasons = {labels["uuid"]: labels["reason"] for labels, _ in page.samples(LOST_INFO)}
    gpus = [(labels, bool(value)) for labels, value in page.samples(GPU_UP)]
    for labels, up in gpus:
        if not up:
            reason = reasons.get(labels["uuid"], "unknown")
            report = warning if reason in _MEANT else failed
            yield report(
                f"GPU {labels['gpu']} ({labels['uuid']}) can't be read: {reason}",
                LOSSES.get(reason, "see the driver's messages: dmesg | grep -i -e nvrm -e amdgpu"),
            )
    answering = sum(up for _, up in gpus)
    if not gpus:
        yield warning("it shows no GPU", "see `stallscope gpus` for the reason; without one it serves the host alone")
    elif answering == len(gpus):
        yield ok(f"{answering} GPUs answer")


def _readings(exporter: Exporter) -> Iterator[Finding]:
    """Each source against the newest, whose time is the exporter's own clock."""
    read_at = {labels["source"]: value for labels, value in exporter.page.samples(LAST_SUCCESS)}
    if not read_at:
        yield failed("no source was ever read", "see the exporter's log for the reason")
        return
    newest = max(read_at.values())
    old = {source: newest - value for source, value in read_at.items() if newest - value > MOST_AGE}
    for source, age in sorted(old.items()):
        yield failed(
            f"source {source} was last read {age:.0f} s before the others",
            "see the exporter's log for the reason",
        )
    if not old:
        yield ok("all sources were read just now")


def _clock(exporter: Exporter) -> Iterator[Finding]:
    newest = max((value for _, value in exporter.page.samples(LAST_SUCCESS)), default=None)
    if newest is None:
        return
    ahead = newest - exporter.at
    if ahead > MOST_SKEW:
        yield failed(f"the exporter's clock is {ahead:.0f} s ahead of this machine's", RESET_CLOCKS)
    elif ahead < -MOST_AGE:
        yield failed(
            f"its newest reading is {-ahead:.0f} s old by this machine's clock",
            f"{RESET_CLOCKS}; if they are, nothing is read there any more: see the exporter's log",
        )
    else:
        yield ok("its clock and this machine's agree")


def _reports(exporter: Exporter) -> Iterator[Finding]:
    refused = {labels["reason"]: value for labels, value in exporter.page.samples(REPORTS_REJECTED) if value}
    for reason, number in sorted(refused.items()):
        yield warning(
            f"{number:.0f} training reports were refused since it started: {reason}",
            _REMEDIES.get(reason, "the runbook StallscopeReportsRejected tells what the reason means"),
        )
    if not refused:
        yield ok(f"{_sum(exporter.page, REPORTS):.0f} training reports came, none was refused")


def _series(exporter: Exporter) -> Iterator[Finding]:
    dropped = {labels["limit"]: value for labels, value in exporter.page.samples(SERIES_DROPPED) if value}
    for limit, number in sorted(dropped.items()):
        yield warning(
            f"{number:.0f} series were left out since it started: limit {limit}",
            "report fewer names of values or phases, or fewer ranks to one exporter",
        )
    if not dropped:
        yield ok("no series was left out")


def _sum(page: Page, of: Family) -> float:
    return sum(value for _, value in page.samples(of))


PART = Part(
    "exporter",
    _begin,
    (
        ("version", _version),
        ("ready", _ready),
        ("sources", _sources),
        ("gpus", _gpus),
        ("readings", _readings),
        ("clock", _clock),
        ("reports", _reports),
        ("series", _series),
    ),
)
