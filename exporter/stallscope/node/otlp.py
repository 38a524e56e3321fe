"""Metrics over OTLP: the samples of the newest page, sent to an OpenTelemetry receiver at an interval.

All families keep their names. GPUs also have the metrics of semantic conventions, `hw.gpu.*` and `hw.*`.
One thread reads the samples from memory and sends them: collectors and scrapes never wait for it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stallscope.common.formatting import without_password
from stallscope.common.version import __version__
from stallscope.model.catalogue.metrics import MetricType
from stallscope.node.configuration import Configuration, ConfigurationError
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.node.sampling.sampler import Snapshot

_logger = logging.getLogger(__name__)
_LIBRARY_LOGGER = "opentelemetry.exporter.otlp.proto.http"
_PATH = "/v1/metrics"
_STOP_SECONDS = 0.2
_MAX_HEADER_BYTES = 65_536

Attributes = dict[str, str]


class Point(NamedTuple):
    """One value of a metric."""

    name: str
    unit: str
    type: MetricType
    is_monotonic: bool
    attributes: Attributes
    value: float | Distribution
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without infinity."""
    help: str = ""


class _Convention(NamedTuple):
    """A metric of the semantic conventions for hardware."""

    name: str
    unit: str
    type: MetricType = MetricType.GAUGE
    is_monotonic: bool = False
    attributes: Mapping[str, str] = {}
    label: tuple[str, str] = ("", "")
    """A label of the family, and the attribute that has its value."""
    part: str = "gpu"
    """The value of `hw.type`. A part other than the GPU itself has its own `hw.id`."""


_SUM = MetricType.COUNTER
_CONVENTIONS: Mapping[str, _Convention] = {
    f"stallscope_gpu_{signal}": convention
    for signal, convention in {
        "up": _Convention("hw.status", "1", _SUM, attributes={"hw.state": "ok"}),
        "utilization_ratio": _Convention("hw.gpu.utilization", "1", attributes={"hw.gpu.task": "general"}),
        "memory_used_bytes": _Convention("hw.gpu.memory.usage", "By", _SUM),
        "memory_total_bytes": _Convention("hw.gpu.memory.limit", "By", _SUM),
        "pcie_receive_bytes_total": _Convention(
            "hw.gpu.io", "By", _SUM, is_monotonic=True, attributes={"network.io.direction": "receive"}
        ),
        "pcie_transmit_bytes_total": _Convention(
            "hw.gpu.io", "By", _SUM, is_monotonic=True, attributes={"network.io.direction": "transmit"}
        ),
        "energy_joules_total": _Convention("hw.energy", "J", _SUM, is_monotonic=True),
        "power_watts": _Convention("hw.power", "W"),
        "ecc_errors_total": _Convention("hw.errors", "{error}", _SUM, is_monotonic=True, label=("kind", "error.type")),
        "temperature_celsius": _Convention(
            "hw.temperature", "Cel", label=("sensor", "hw.sensor_location"), part="temperature"
        ),
        "fan_speed_ratio": _Convention("hw.fan.speed_ratio", "1", label=("fan", "hw.sensor_location"), part="fan"),
    }.items()
}
_INFO = {
    "model": "hw.model",
    "serial": "hw.serial_number",
    "driver_version": "hw.driver_version",
    "vbios_version": "hw.firmware_version",
}
"""Labels of `stallscope_gpu_info`, and their attributes."""


def points(samples: tuple[Sample, ...]) -> Iterator[Point]:
    """Yield the samples under their own names, and those of GPUs under the names of the conventions too."""
    described: dict[tuple[str, str], Attributes] = {}
    for family, values, value in samples:
        labels = {name: each for name, each in zip(family.all_labels, values, strict=False) if each}
        if family.name == "stallscope_gpu_info":
            found = {attribute: labels[label] for label, attribute in _INFO.items() if label in labels}
            described[labels.get("uuid", ""), labels.get("mig", "")] = found
        if family.type is MetricType.SUMMARY and isinstance(value, Distribution):
            for name, each in zip(family.series_names, (value.total, value.count), strict=True):
                yield Point(name, "", MetricType.GAUGE, False, labels, each, help=family.help)
        else:
            is_counter = family.type is MetricType.COUNTER
            yield Point(family.name, "", family.type, is_counter, labels, value, family.buckets, family.help)
    yield from _by_convention(samples, described)


def _by_convention(samples: tuple[Sample, ...], described: Mapping[tuple[str, str], Attributes]) -> Iterator[Point]:
    used: dict[str, tuple[float, Attributes]] = {}
    total: dict[str, float] = {}
    for family, values, value in samples:
        convention = _CONVENTIONS.get(family.name)
        if convention is None or isinstance(value, Distribution):
            continue
        labels = dict(zip(family.all_labels, values, strict=False))
        uuid, instance = labels["uuid"], labels.get("mig", "")
        own = {"hw.id": f"{uuid}/{instance}" if instance else uuid, "hw.name": f"GPU {labels['gpu']}"}
        own |= {"hw.parent": uuid} if instance else {}
        label, attribute = convention.label
        detail = {attribute: labels[label]} if label else {}
        if convention.part == "gpu":
            attributes = {**own, **described.get((uuid, instance), {}), **detail}
        else:
            part = f"{own['hw.id']}/{convention.part}/{labels[label]}"
            attributes = {"hw.id": part, "hw.parent": own["hw.id"], **detail}
        attributes |= {"hw.type": convention.part, **convention.attributes}
        yield Point(convention.name, convention.unit, convention.type, convention.is_monotonic, attributes, value)
        if convention.name == "hw.gpu.memory.usage":
            used[own["hw.id"]] = value, attributes
        elif convention.name == "hw.gpu.memory.limit":
            total[own["hw.id"]] = value
    for gpu, (value, attributes) in used.items():
        if total.get(gpu):
            share = value / total[gpu]
            yield Point("hw.gpu.memory.utilization", "1", MetricType.GAUGE, False, attributes, share)


def pusher(configuration: Configuration, snapshot: Callable[[], Snapshot]) -> Pusher | None:
    """Return the thread that sends metrics; None unless an endpoint is configured.

    Raises:
        ConfigurationError: the library is not installed, or the file of headers is invalid.
    """
    if not configuration.otlp_endpoint:
        return None
    host, port = os.uname().nodename, configuration.listen_addresses[0].port
    resource = {
        "service.name": "stallscope",
        "service.version": __version__,
        "service.instance.id": f"{host}:{port}",
        "host.name": host,
    }
    if configuration.kubernetes_node:
        resource["k8s.node.name"] = configuration.kubernetes_node
    try:
        return Pusher(
            configuration.otlp_endpoint + _PATH,
            configuration.otlp_headers_file,
            configuration.otlp_interval,
            snapshot,
            resource,
        )
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("stallscope"):
            raise
        from stallscope.common.installation import install_command  # only this error needs it

        raise ConfigurationError(
            f"otlp.endpoint: {error.name} is not installed; run {install_command('otlp')}"
        ) from None
    except ValueError as problem:
        raise ConfigurationError(f"otlp.headers-file: {problem}") from None


class Pusher:
    """Sends metrics at an interval. A receiver that refuses them costs one log message until it accepts them again."""

    def __init__(
        self,
        url: str,
        headers_file: Path | None,
        interval: float,
        snapshot: Callable[[], Snapshot],
        resource: Mapping[str, str],
    ) -> None:
        """Import the library and read the headers; nothing is sent yet.

        Raises:
            ModuleNotFoundError: the library is not installed.
            ValueError: the file of headers is invalid; the message is one line.
        """
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource

        self._make = OTLPMetricExporter
        # OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME take precedence.
        self._resource = Resource(resource).merge(OTELResourceDetector().detect())
        self._url, self._file, self._interval, self._snapshot = url, headers_file, interval, snapshot
        self._shown = without_password(url)
        self._began = time.time_ns()
        self._stopping = threading.Event()
        self._problems = _Problems()
        self._is_failing = False
        self._headers = _headers(headers_file)
        self._exporter = self._make(url, headers=self._headers)
        self._thread = threading.Thread(target=self._push_for_ever, name="otlp", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        library = logging.getLogger(_LIBRARY_LOGGER)
        library.addHandler(self._problems)
        library.propagate = False  # it logs every attempt
        self._thread.start()

    def stop(self) -> None:
        """Stop in bounded time; a request in progress is abandoned."""
        self._stopping.set()
        self._exporter.shutdown()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)
        logging.getLogger(_LIBRARY_LOGGER).removeHandler(self._problems)

    def push(self) -> None:
        """Send the newest samples once."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        self._problems.first = ""
        try:
            self._renew()
            is_accepted = self._exporter.export(self._metrics()) is MetricExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - the thread must survive whatever the library raises
            is_accepted = False
            self._problems.first = f"{type(error).__name__}: {error}"
        if self._stopping.is_set() or is_accepted is not self._is_failing:
            return
        self._is_failing = not is_accepted
        if self._is_failing:
            reason = " ".join(self._problems.first.split()) or "no valid response"
            _logger.warning("otlp.endpoint: %s does not accept metrics: %s; will retry", self._shown, reason)
        else:
            _logger.info("otlp.endpoint: %s accepts metrics again", self._shown)

    def _push_for_ever(self) -> None:
        while not self._stopping.wait(self._interval):
            self.push()

    def _renew(self) -> None:
        """Use changed headers from now on."""
        headers = _headers(self._file)
        if headers != self._headers:
            self._exporter.shutdown()
            self._headers, self._exporter = headers, self._make(self._url, headers=headers)

    def _metrics(self) -> Any:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        taken = self._snapshot()
        grouped: dict[tuple[str, str], list[Point]] = {}
        for point in points(taken.samples):
            grouped.setdefault((point.name, point.unit), []).append(point)
        metrics = [self._metric(name, unit, found, int(taken.at * 1e9)) for (name, unit), found in grouped.items()]
        scope = InstrumentationScope("stallscope", __version__)
        return MetricsData([ResourceMetrics(self._resource, [ScopeMetrics(scope, metrics, "")], "")])

    def _metric(self, name: str, unit: str, found: list[Point], now: int) -> Any:
        from opentelemetry.sdk.metrics import export

        cumulative, began, first = export.AggregationTemporality.CUMULATIVE, self._began, found[0]
        data: Any
        if first.type is MetricType.HISTOGRAM:
            data = export.Histogram([_histogram(each, began, now) for each in found], cumulative)
        else:
            numbers: Any = [export.NumberDataPoint(each.attributes, began, now, each.value) for each in found]
            is_sum = first.type is MetricType.COUNTER
            data = export.Sum(numbers, cumulative, first.is_monotonic) if is_sum else export.Gauge(numbers)
        return export.Metric(name, first.help, unit, data)


class _Problems(logging.Handler):
    """Keeps the first message of the library's log about one request; later messages are about its repetitions."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()


def _histogram(point: Point, began: int, now: int) -> Any:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    value: Any = point.value
    unknown: Any = None  # minimum and maximum
    return HistogramDataPoint(
        point.attributes, began, now, value.count, value.total, value.counts, point.bounds, unknown, unknown
    )


def _headers(path: Path | None) -> dict[str, str]:
    """Read headers, one `Name: value` per line.

    Raises:
        ValueError: the file is invalid; the message does not quote it.
    """
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_HEADER_BYTES).decode("latin-1")
    except OSError as problem:
        raise ValueError(f"{path}: can't be read: {problem.strerror}") from None
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, colon, value = line.partition(":")
        if line.strip() and not (colon and name.strip().isprintable() and value.strip().isprintable()):
            raise ValueError(f"{path}:{number}: expected a header such as `Authorization: Bearer TOKEN`")
        if line.strip():
            found[name.strip()] = value.strip()
    return found
