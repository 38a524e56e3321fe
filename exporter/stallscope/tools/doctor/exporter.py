"""Checks of the node's exporter: health, and the metrics about itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from stallscope.common.version import __version__
from stallscope.model.catalogue.gpu_losses import LOSSES
from stallscope.model.catalogue.metrics import Family, family
from stallscope.model.clients.exporter import ExporterClient, ExporterError
from stallscope.model.clients.exposition import Page
from stallscope.tools.doctor.checkup import Finding, Part, Stop, Subject, failed, ok, warning

BUILD_INFO = family("stallscope_build_info")
SOURCE_UP = family("stallscope_exporter_source_up")
LAST_SUCCESS = family("stallscope_exporter_source_last_success_timestamp_seconds")
STUCK_THREADS = family("stallscope_exporter_source_stuck_threads")
GPU_UP = family("stallscope_gpu_up")
LOST_INFO = family("stallscope_gpu_lost_info")
RECEIVER_UP = family("stallscope_exporter_receiver_up")
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
    RECEIVER_UP,
    REPORTS,
    REPORTS_REJECTED,
    SERIES_DROPPED,
)
"""Metric families to read from the page."""
MOST_AGE = 15.0
"""Maximum age of a poll, in seconds: a scrape interval."""
MOST_SKEW = 5.0
"""Maximum difference of two clocks, in seconds: no rule is affected below it."""
RESET_CLOCKS = "set both clocks right: `timedatectl status` must say that the clock is synchronized"
_READY = "/-/ready"
_INTENDED = ("released", "mig_reconfigured", "suspended")
"""Reasons of GPUs that are down on purpose, by a user or the kernel."""
_TOKEN = "give the training the exporter's token in STALLSCOPE_TOKEN or STALLSCOPE_TOKEN_FILE"  # noqa: S105 - not a token
_REMEDIES = {
    "unsigned": _TOKEN,
    "unknown_token": _TOKEN,
    "bad_signature": "reports are modified or forged: see the exporter's log for the sender",
    "replayed": "a sender repeats recorded reports: see the exporter's log for the sender",
    "expired": RESET_CLOCKS,
    "future": RESET_CLOCKS,
    "version": "install the same version of stallscope for training and exporter",
    "run_limit": "raise --report.max-runs",
    "rank_limit": "raise --report.max-ranks",
    "series_limit": "report fewer ranks, phases or values, and do not change their names",
    "memory_limit": "use shorter names of runs, phases and values",
    "not_owner": "use different run names for different users",
    "superseded": "use different names for concurrent runs",
}
_RECEIVER_REMEDIES = {
    "unix": "see the exporter's log for the reason; stop the program that uses the socket, or set --report.unix-socket",
    "udp": "see the exporter's log for the reason; stop the program that uses the port, or set --report.udp-address",
}


class Exporter(NamedTuple):
    """An exporter that responds."""

    client: ExporterClient
    page: Page
    at: float
    """This machine's Unix time when the page arrived."""


def read(client: ExporterClient) -> Page:
    """Return the current page.

    Raises:
        ExporterError: the exporter does not respond.
    """
    return Page(client.read(), frozenset(each.name for each in READ))


def client_of(subject: Subject) -> ExporterClient:
    """Return a client for the subject's exporter."""
    return ExporterClient(subject.exporter_url, timeout=subject.exporter_timeout, certificate=subject.certificate)


def _begin(subject: Subject) -> Exporter:
    client = client_of(subject)
    try:
        page = read(client)
    except ExporterError as error:
        raise Stop(
            failed(
                f"{client.name}: {error}",
                "check that it runs there, or set --exporter.url",
            )
        ) from None
    if not page:
        client.close()
        raise Stop(failed(f"{client.name} is not a Stallscope exporter", "set --exporter.url"))
    return Exporter(client, page, time.time())


def _version(exporter: Exporter) -> Iterator[Finding]:
    for labels, _ in exporter.page.samples(BUILD_INFO):
        state = f"{exporter.client.name} responds: version {labels['version']}, Python {labels['python']}"
        if labels["version"] == __version__:
            yield ok(state)
        else:
            yield warning(f"{state}; this command is {__version__}", "install the same version of stallscope for both")


def _ready(exporter: Exporter) -> Iterator[Finding]:
    try:
        exporter.client.read(_READY)
    except ExporterError as error:
        yield failed(f"{_READY}: {error}", "wait for the first polls; if it does not recover, see the exporter's log")
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
                f"collector {source} hangs: {stuck[source]:.0f} of its threads do not return",
                "only a restart of the exporter ends a call that hangs; see the kernel's log (dmesg) for the device",
            )
        else:
            yield failed(
                f"collector {source} fails",
                f"see the exporter's log for the reason, or disable it with --no-collector.{source}",
            )
    if not states:
        yield failed("no collector has been polled", "enable collectors with --collector.NAME; see the exporter's log")
    elif not down:
        yield ok(f"{len(states)} collectors run: {', '.join(sorted(states))}")


def _gpus(exporter: Exporter) -> Iterator[Finding]:
    page = exporter.page
    reasons = {labels["uuid"]: labels["reason"] for labels, _ in page.samples(LOST_INFO)}
    gpus = [(labels, bool(value)) for labels, value in page.samples(GPU_UP)]
    for labels, up in gpus:
        if not up:
            reason = reasons.get(labels["uuid"], "unknown")
            report = warning if reason in _INTENDED else failed
            yield report(
                f"GPU {labels['gpu']} ({labels['uuid']}) cannot be read: {reason}",
                LOSSES.get(reason, "see the driver's messages: dmesg | grep -i -e nvrm -e amdgpu"),
            )
    responding = sum(up for _, up in gpus)
    if not gpus:
        yield warning("the exporter exports no GPU", "run `stallscope gpus` for the reason; host metrics still work")
    elif responding == len(gpus):
        yield ok(f"{responding} GPUs respond")


def _readings(exporter: Exporter) -> Iterator[Finding]:
    """Compare each collector's last poll with the newest one, both timed by the exporter's clock."""
    read_at = {labels["source"]: value for labels, value in exporter.page.samples(LAST_SUCCESS)}
    if not read_at:
        yield failed("no collector has completed a poll", "see the exporter's log for the reason")
        return
    newest = max(read_at.values())
    old = {source: newest - value for source, value in read_at.items() if newest - value > MOST_AGE}
    for source, age in sorted(old.items()):
        yield failed(
            f"collector {source} was last polled {age:.0f} s before the others",
            "see the exporter's log for the reason",
        )
    if not old:
        yield ok("all collectors were polled recently")


def _clock(exporter: Exporter) -> Iterator[Finding]:
    newest = max((value for _, value in exporter.page.samples(LAST_SUCCESS)), default=None)
    if newest is None:
        return
    ahead = newest - exporter.at
    if ahead > MOST_SKEW:
        yield failed(f"the exporter's clock is {ahead:.0f} s ahead of this machine's", RESET_CLOCKS)
    elif ahead < -MOST_AGE:
        yield failed(
            f"the exporter's newest poll is {-ahead:.0f} s old by this machine's clock",
            f"{RESET_CLOCKS}; if they are, the exporter no longer polls: see its log",
        )
    else:
        yield ok("the exporter's clock and this machine's agree")


def _receivers(exporter: Exporter) -> Iterator[Finding]:
    states = {labels["transport"]: bool(value) for labels, value in exporter.page.samples(RECEIVER_UP)}
    for transport in (each for each, up in sorted(states.items()) if not up):
        yield failed(f"the {transport} receiver of training reports is not open", _RECEIVER_REMEDIES[transport])
    if states and all(states.values()):
        yield ok(f"training reports are received by {' and '.join(sorted(states))}")


def _reports(exporter: Exporter) -> Iterator[Finding]:
    refused = {labels["reason"]: value for labels, value in exporter.page.samples(REPORTS_REJECTED) if value}
    for reason, number in sorted(refused.items()):
        yield warning(
            f"{number:.0f} training reports were rejected since the exporter started: {reason}",
            _REMEDIES.get(reason, "see the reason in the runbook StallscopeReportsRejected"),
        )
    if not refused:
        yield ok(f"{_sum(exporter.page, REPORTS):.0f} training reports received, none rejected")


def _series(exporter: Exporter) -> Iterator[Finding]:
    dropped = {labels["limit"]: value for labels, value in exporter.page.samples(SERIES_DROPPED) if value}
    for limit, number in sorted(dropped.items()):
        yield warning(
            f"{number:.0f} series were dropped since the exporter started: limit {limit}",
            "report fewer values, phases or ranks to this exporter",
        )
    if not dropped:
        yield ok("no series was dropped")


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
        ("receivers", _receivers),
        ("reports", _reports),
        ("series", _series),
    ),
)
