"""Metrics over OTLP: names by the semantic conventions, and a receiver that accepts, refuses or is absent."""

from __future__ import annotations

import gzip
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from stallscope.common.formatting import without_password
from stallscope.model.catalogue.metrics import FAMILIES, family
from stallscope.node.configuration import Configuration, ConfigurationError, load
from stallscope.node.otlp import Point, Pusher, points, pusher
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.node.sampling.sampler import Snapshot
from tests.free_ports import free_port
from tests.handled import handled, reply
from tests.prometheus_server import prometheus
from tests.waiting import until

GPU = ("0", "GPU-a")
INFO = {"gpu": "0", "uuid": "GPU-a", "model": "NVIDIA H100", "serial": "17", "driver_version": "590.48.01"}


def gpu(signal: str, value: float, *more: str, identity: tuple[str, ...] = GPU) -> Sample:
    return Sample(family(f"stallscope_gpu_{signal}"), (*identity, *more), value)


def info() -> Sample:
    found = family("stallscope_gpu_info")
    return Sample(found, tuple(INFO.get(label, "") for label in found.all_labels), 1.0)


def samples() -> tuple[Sample, ...]:
    steps = family("stallscope_training_step_seconds")
    dips = family("stallscope_gpu_dip_interval_seconds")
    return (
        info(),
        gpu("up", 1.0),
        gpu("utilization_ratio", 0.75),
        gpu("memory_used_bytes", 20.0),
        gpu("memory_total_bytes", 80.0),
        gpu("energy_joules_total", 1300.0),
        gpu("power_watts", 350.0),
        gpu("pcie_receive_bytes_total", 5.0),
        gpu("pcie_transmit_bytes_total", 7.0),
        gpu("ecc_errors_total", 2.0, "uncorrected"),
        gpu("temperature_celsius", 61.0, "memory"),
        gpu("fan_speed_ratio", 0.4, "1"),
        Sample(dips, GPU, Distribution((), 9.0, 3)),
        Sample(steps, ("resnet50", "3"), Distribution((1,) * (len(steps.buckets) + 1), 12.5, len(steps.buckets) + 1)),
    )


def named(name: str, found: tuple[Sample, ...] | None = None) -> list[Point]:
    return [point for point in points(samples() if found is None else found) if point.name == name]


COMPONENT = {"hw.id": "GPU-a", "hw.type": "gpu"}


@pytest.mark.parametrize(
    ("name", "unit", "values"),
    [
        ("hw.status", "1", [({"hw.state": "ok", **COMPONENT}, 1.0)]),
        ("hw.gpu.utilization", "1", [({"hw.gpu.task": "general", **COMPONENT}, 0.75)]),
        ("hw.gpu.memory.usage", "By", [(COMPONENT, 20.0)]),
        ("hw.gpu.memory.limit", "By", [(COMPONENT, 80.0)]),
        ("hw.gpu.memory.utilization", "1", [(COMPONENT, 0.25)]),
        (
            "hw.gpu.io",
            "By",
            [
                ({"network.io.direction": "receive", **COMPONENT}, 5.0),
                ({"network.io.direction": "transmit", **COMPONENT}, 7.0),
            ],
        ),
        ("hw.energy", "J", [(COMPONENT, 1300.0)]),
        ("hw.power", "W", [(COMPONENT, 350.0)]),
        ("hw.errors", "{error}", [({"error.type": "uncorrected", **COMPONENT}, 2.0)]),
        (
            "hw.temperature",
            "Cel",
            [({"hw.id": "GPU-a/temperature/memory", "hw.parent": "GPU-a", "hw.sensor_location": "memory"}, 61.0)],
        ),
        ("hw.fan.speed_ratio", "1", [({"hw.id": "GPU-a/fan/1", "hw.parent": "GPU-a", "hw.type": "fan"}, 0.4)]),
    ],
)
def test_gpus_have_the_metrics_of_the_semantic_conventions(
    name: str, unit: str, values: list[tuple[dict[str, str], float]]
) -> None:
    found = named(name)
    assert [(each.unit, each.value) for each in found] == [(unit, value) for _, value in values]
    for point, (attributes, _) in zip(found, values, strict=True):
        assert attributes.items() <= point.attributes.items()


def test_a_gpu_s_description_is_in_its_attributes_and_unknown_parts_are_absent() -> None:
    (point,) = named("hw.power")
    assert point.attributes == {
        **COMPONENT,
        "hw.name": "GPU 0",
        "hw.model": "NVIDIA H100",
        "hw.serial_number": "17",
        "hw.driver_version": "590.48.01",
    }
    (point,) = named("hw.power", (gpu("power_watts", 350.0),))
    assert point.attributes == {**COMPONENT, "hw.name": "GPU 0"}


def test_a_mig_instance_is_a_component_of_its_own() -> None:
    (point,) = named("hw.gpu.memory.usage", (gpu("memory_used_bytes", 1.0, "1g.10gb"),))
    assert point.attributes["hw.id"] == "GPU-a/1g.10gb"
    assert point.attributes["hw.parent"] == "GPU-a"


@pytest.mark.parametrize("total", [(), (gpu("memory_total_bytes", 0.0),)])
def test_the_share_of_memory_is_absent_where_the_total_is_unknown(total: tuple[Sample, ...]) -> None:
    assert named("hw.gpu.memory.utilization", (gpu("memory_used_bytes", 20.0), *total)) == []


def test_every_sample_is_sent_under_its_own_name() -> None:
    (power,) = named("stallscope_gpu_power_watts")
    assert (power.attributes, power.value, power.is_monotonic) == ({"gpu": "0", "uuid": "GPU-a"}, 350.0, False)
    (energy,) = named("stallscope_gpu_energy_joules_total")
    assert energy.is_monotonic
    assert [named(f"stallscope_gpu_dip_interval_seconds_{each}")[0].value for each in ("sum", "count")] == [9.0, 3]
    names = {point.name for point in points(samples()) if point.name.startswith("stallscope_")}
    assert names <= {name for each in FAMILIES.values() for name in (each.name, *each.series_names)}


def test_the_names_units_and_kinds_are_those_of_the_published_conventions() -> None:
    published: Any = pytest.importorskip("opentelemetry.semconv._incubating.metrics.hw_metrics")
    for point in points(samples()):
        if point.name.startswith("hw."):
            constant = point.name.upper().replace(".", "_")
            assert getattr(published, constant) == point.name
            source = Path(published.__file__).read_text(encoding="utf-8").partition(f"\n{constant}: ")[2]
            kind = "counter" if point.is_monotonic else "updowncounter" if point.type.value == "counter" else "gauge"
            description = source.split('"""')[1]
            assert f"\nInstrument: {kind}\nUnit: {point.unit}\n" in description


def configured(*flags: str) -> Configuration:
    return load(flags, {}, {})


def test_nothing_is_imported_or_sent_without_an_endpoint() -> None:
    assert pusher(configured(), lambda: Snapshot(0.0, ())) is None


def test_a_missing_library_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(ConfigurationError, match=r"^otlp.endpoint: .* is not installed; run pip install .*\[otlp\]"):
        pusher(configured("--otlp.endpoint=http://collector:4318"), lambda: Snapshot(0.0, ()))


class Receiver(BaseHTTPRequestHandler):
    """A receiver of OTLP over HTTP, which parses what it gets."""

    status = 200
    requests: list[tuple[str, str | None, Any]]

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.requests.append(
            (self.path, self.headers.get("Authorization"), ExportMetricsServiceRequest.FromString(body))
        )
        reply(self, b"", status=Receiver.status)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    monkeypatch.setattr(Receiver, "requests", [], raising=False)
    monkeypatch.setattr(Receiver, "status", 200)
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with handled(Receiver) as address:
        yield f"http://{address}"


def made(receiver: str, *flags: str) -> Pusher:
    found = pusher(configured(f"--otlp.endpoint={receiver}", *flags), lambda: Snapshot(1_700_000_000.0, samples()))
    assert found is not None
    return found


def test_a_receiver_gets_all_metrics_with_the_resource(receiver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=east")
    made(f"{receiver}/api/v1/otlp", "--kubernetes.node=gpu-node-7").push()
    ((path, _, request),) = Receiver.requests
    assert path == "/api/v1/otlp/v1/metrics"
    (group,) = request.resource_metrics
    resource = {each.key: each.value.string_value for each in group.resource.attributes}
    host = os.uname().nodename
    expected = {"service.name": "stallscope", "service.instance.id": f"{host}:19400", "host.name": host}
    expected |= {"k8s.node.name": "gpu-node-7", "k8s.cluster.name": "east"}
    assert expected.items() <= resource.items()
    metrics = {each.name: each for each in group.scope_metrics[0].metrics}
    assert metrics["hw.gpu.io"].sum.is_monotonic
    assert metrics["hw.gpu.io"].sum.aggregation_temporality == 2  # cumulative
    assert not metrics["hw.gpu.memory.usage"].sum.is_monotonic
    (power,) = metrics["stallscope_gpu_power_watts"].gauge.data_points
    assert (power.as_double, power.time_unix_nano) == (350.0, 1_700_000_000 * 10**9)
    (steps,) = metrics["stallscope_training_step_seconds"].histogram.data_points
    assert list(steps.explicit_bounds) == list(family("stallscope_training_step_seconds").buckets)
    assert (steps.count, steps.sum, steps.HasField("min")) == (len(steps.bucket_counts), 12.5, False)


def test_prometheus_stores_every_series_under_its_own_name_and_gpus_under_those_of_the_conventions_too() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    program = shutil.which("prometheus")
    if (
        program is None
        or "otlp-receiver" not in subprocess.run([program, "--help-long"], capture_output=True, text=True).stdout
    ):
        pytest.skip("no Prometheus 3 with an OTLP receiver on PATH; Debian's packages are built without it")
    with prometheus(flags=["--web.enable-otlp-receiver"]) as server:
        flags = (f"--otlp.endpoint={server.address}/api/v1/otlp",)
        sender = pusher(configured(*flags), lambda: Snapshot(time.time(), samples()))
        assert sender is not None
        sender.push()
        found = [each["metric"] for each in server.get("query", query='{job="stallscope"}')["data"]["result"]]
    assert {each.pop("instance") for each in found} == {f"{os.uname().nodename}:19400"}
    names = {each["__name__"] for each in found}
    expected = {name for each in samples() for name in each.family.series_names}
    assert {name for name in names if name.startswith("stallscope_")} == expected
    assert {name for name in names if name.startswith("hw_")} == {
        "hw_status",
        "hw_gpu_utilization_ratio",
        "hw_gpu_memory_usage_bytes",
        "hw_gpu_memory_limit_bytes",
        "hw_gpu_memory_utilization_ratio",
        "hw_gpu_io_bytes_total",
        "hw_energy_joules_total",
        "hw_power_watts",
        "hw_errors_total",
        "hw_temperature_celsius",
        "hw_fan_speed_ratio",
    }
    power = {"__name__": "stallscope_gpu_power_watts", "job": "stallscope", "gpu": "0", "uuid": "GPU-a"}
    assert [each for each in found if each["__name__"] == power["__name__"]] == [power]


def test_changed_headers_are_used_without_a_restart(receiver: str, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer old\n\n")
    sender = made(receiver, f"--otlp.headers-file={file}")
    sender.push()
    file.write_text("Authorization: Bearer new\n")
    sender.push()
    file.unlink()
    sender.push()  # an error, and nothing is sent
    assert [header for _, header, _ in Receiver.requests] == ["Bearer old", "Bearer new"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "can't be read: No such file or directory"), ("Authorization secret", "1: expected a header such as")],
)
def test_an_invalid_file_of_headers_is_an_error_that_does_not_quote_it(
    receiver: str, content: str | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "headers"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError) as refused:
        made(receiver, f"--otlp.headers-file={file}")
    assert str(refused.value).startswith(f"otlp.headers-file: {file}:")
    assert problem in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_receiver_that_refuses_costs_one_message_until_it_accepts_again(
    receiver: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sender = made(receiver.replace("//", "//ada:secret@"), "--otlp.interval=1h")
    sender.start()
    try:
        for status in (200, 401, 401, 401, 200, 200):
            Receiver.status = status
            sender.push()
    finally:
        sender.stop()
    shown = without_password(receiver.replace("//", "//ada:secret@"))
    refused, accepted = [each.getMessage() for each in caplog.records]
    assert refused.startswith(f"otlp.endpoint: {shown}/v1/metrics does not accept metrics: ")
    assert "401" in refused
    assert "secret" not in refused
    assert accepted == f"otlp.endpoint: {shown}/v1/metrics accepts metrics again"
    assert len(Receiver.requests) == 6


def test_an_exporter_whose_receiver_is_absent_serves_scrapes_and_ends_at_once(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    port, nowhere = free_port(), free_port()
    flags = ["--simulation.scenario=healthy", "--report.unix-socket=", "--report.udp-address=", "--otlp.interval=1s"]
    address = [f"--web.listen-address=127.0.0.1:{port}", f"--otlp.endpoint=http://127.0.0.1:{nowhere}"]
    log = tmp_path / "log"
    with log.open("w") as file:
        command = [sys.executable, "-m", "stallscope", "exporter", *flags, *address]
        exporter = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            until(lambda: "does not accept metrics" in log.read_text(), seconds=120)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
                assert b"stallscope_gpu_power_watts{" in page.read()
            exporter.send_signal(signal.SIGTERM)
            assert exporter.wait(120) == 0
        finally:
            exporter.kill()
            exporter.wait()
    assert log.read_text().count("otlp.endpoint") == 1
    assert "Traceback" not in log.read_text()
