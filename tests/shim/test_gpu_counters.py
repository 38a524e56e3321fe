from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.model.catalogue.metrics import family
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.training.shim.gpu_counters import COUNTERS, Exporter, pick
from tests.shim.conftest import Desk

PAGE = """\
# HELP stallscope_gpu_power_watts Board power now.
# TYPE stallscope_gpu_power_watts gauge
stallscope_gpu_power_watts{gpu="0",uuid="GPU-a",mig=""} 301.5
stallscope_gpu_power_watts{gpu="1",uuid="GPU-b",mig=""} 99
stallscope_gpu_utilization_ratio{gpu="0",uuid="GPU-a",mig=""} 0.75
stallscope_gpu_clock_hertz{gpu="0",uuid="GPU-a",clock="memory",mig=""} 2.6e+09
stallscope_gpu_clock_hertz{gpu="0",uuid="GPU-a",clock="sm",mig=""} 1.9e+09
stallscope_gpu_temperature_celsius{gpu="0",uuid="GPU-a",sensor="gpu",mig=""} 60
"""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + PAGE.encode()
FIRST = [{"gpu": "0", "uuid": ""}]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is for training loops: a machine with much to do may take longer to answer itself."""
    monkeypatch.setattr("stallscope.training.shim.gpu_counters.TIMEOUT", 60.0)


@contextmanager
def served(answer: bytes, stays_open: bool = False) -> Iterator[str]:
    """Answers one request, and closes the connection after it or never."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def serve() -> None:
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)
                    if stays_open:
                        done.wait(60)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            done.set()
            server.shutdown(socket.SHUT_RDWR)  # in case no client connected in time
            thread.join()


def test_every_counter_is_a_family_of_the_catalogue() -> None:
    for name in COUNTERS:
        assert family(name).type == "gauge"


@pytest.mark.parametrize("gpu", [{"gpu": "0", "uuid": ""}, {"gpu": "", "uuid": "GPU-a"}, {"gpu": "7", "uuid": "GPU-a"}])
def test_the_rank_s_own_gpus_are_picked(gpu: dict[str, str]) -> None:
    assert pick(PAGE, [gpu]) == {
        "GPU 0 power in watts": 301.5,
        "GPU 0 utilisation": 0.75,
        "GPU 0 SM clock in hertz": 1.9e9,
    }


def test_a_rank_that_knows_no_gpu_gets_no_counters() -> None:
    assert pick(PAGE, []) == {}


def test_the_exporter_s_page_is_read() -> None:
    with served(ANSWER) as url:
        assert Exporter(url).counters(FIRST)["GPU 0 utilisation"] == 0.75


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 404 Not Found\r\n\r\nno", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_another_server_is_distinguished_from_an_exporter(answer: bytes) -> None:
    with served(answer) as url, pytest.raises(ValueError, match="responded"):
        Exporter(url).counters(FIRST)


def test_an_exporter_that_never_ends_is_waited_for_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallscope.training.shim.gpu_counters.TIMEOUT", 0.3)
    with served(ANSWER, stays_open=True) as url, pytest.raises(TimeoutError):
        Exporter(url).counters(FIRST)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:1",
        "https://localhost",
        "http://",
        "http://a b",
        "http://a:b",
        "http://[::1",
        "http://a:70000",
        "http://a/\x01",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not an address of counters; expected http://host:port"):
        Exporter(url)


def test_counters_are_in_the_trace(clock: ScriptedClock, desk: Desk, tmp_path: Path) -> None:
    run = SimulatedRun("job", clock=clock, sender=desk, gpus=FIRST)
    with served(ANSWER) as url:
        run.trace(steps=[1], directory=str(tmp_path), exporter=url)
        run.step()
        clock.advance(1)
        run.step()
    events = json.loads((tmp_path / "job/rank0-step1.trace.json").read_text())["traceEvents"]
    counters = {event["name"]: event["args"]["value"] for event in events if event["ph"] == "C"}
    assert counters["GPU 0 power in watts"] == 301.5


def test_an_exporter_that_is_gone_costs_the_counters_alone(
    clock: ScriptedClock, desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = SimulatedRun("job", clock=clock, sender=desk, gpus=FIRST)
    run.trace(steps=range(1, 4), directory=str(tmp_path), exporter="http://127.0.0.1:1")
    for _ in range(5):
        run.step()
    assert len(list((tmp_path / "job").iterdir())) == 3
    assert caplog.text.count("without GPU counters") == 1
