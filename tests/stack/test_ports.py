"""Ports are checked before anything starts, and a busy port is reported with its service, its number and its holder."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence

import pytest

from stallscope.lab.stack.errors import StackError
from stallscope.lab.stack.ports import ADDRESS, Port, reserved_ports
from tests.free_ports import free_port


def free_ports(ports: Sequence[Port], show: Callable[[str], None]) -> list[Port]:
    """Return what `reserved_ports` yields, without a reservation."""
    with reserved_ports(ports, show) as found:
        return found


def required(ports: list[Port]) -> list[Port]:
    """Check ports of which none may be replaced."""
    return free_ports(ports, pytest.fail)


@pytest.fixture
def busy() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_free_ports_are_accepted() -> None:
    required([Port("Prometheus", free_port(), "--prometheus.port", datagrams=True)])


def test_a_busy_port_is_reported_with_service_number_holder_and_flag(busy: int) -> None:
    with pytest.raises(StackError) as refusal:
        required([Port("Alertmanager", busy, "--alertmanager.port")])
    message = str(refusal.value)
    assert f"port {busy} for Alertmanager is in use by process {os.getpid()} (" in message
    assert "--alertmanager.port=PORT" in message


def test_a_port_that_is_busy_on_all_interfaces_is_busy_here_too() -> None:
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        with pytest.raises(StackError, match="in use"):
            required([Port("Prometheus", listener.getsockname()[1], "--prometheus.port")])


def test_a_datagram_port_is_checked_where_reports_come_in() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        number = free_port()  # for both kinds
        udp.bind((ADDRESS, number))
        with pytest.raises(StackError, match=f"port {number} for the exporter"):
            required([Port("the exporter", number, "--exporter.port", datagrams=True)])
        required([Port("Prometheus", number, "--prometheus.port")])


def test_all_busy_ports_are_reported_at_once(busy: int) -> None:
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        listener.listen()
        other = listener.getsockname()[1]
        with pytest.raises(StackError) as refusal:
            required(
                [Port("Prometheus", busy, "--prometheus.port"), Port("Alertmanager", other, "--alertmanager.port")]
            )
    assert len(str(refusal.value).splitlines()) == 2


def test_two_services_on_one_port_are_refused_by_name() -> None:
    number = free_port()
    with pytest.raises(StackError, match=f"Prometheus and Grafana have the same port {number}"):
        required([Port("Prometheus", number, "--prometheus.port"), Port("Grafana", number, "--grafana.port")])


def test_default_ports_all_move_where_one_is_busy_and_the_reason_is_shown(busy: int) -> None:
    shown: list[str] = []
    ports = [Port("Prometheus", busy, "--p", chosen=False), Port("Grafana", busy + 1, "--g", chosen=False)]
    first, second = free_ports(ports, shown.append)
    distance = first.number - busy
    assert distance > 0
    assert second.number == busy + 1 + distance
    (line,) = shown
    assert line.startswith(f"port {busy} for Prometheus is in use by process {os.getpid()} (")
    assert line.endswith(f"the default ports of this stack are {distance} higher")


def test_free_default_ports_stay() -> None:
    ports = [Port("Prometheus", free_port(), "--p", chosen=False)]
    assert free_ports(ports, pytest.fail) == ports


def test_a_chosen_port_stays_where_default_ports_move(busy: int) -> None:
    chosen = Port("Grafana", free_port(), "--g")
    moved, kept = free_ports([Port("Prometheus", busy, "--p", chosen=False), chosen], lambda _: None)
    assert kept == chosen
    assert moved.number > busy


def test_a_busy_port_that_was_chosen_is_refused_although_others_could_move(busy: int) -> None:
    with pytest.raises(StackError, match=f"port {busy} for Grafana is in use"):
        free_ports([Port("Prometheus", free_port(), "--p", chosen=False), Port("Grafana", busy, "--g")], pytest.fail)


def test_two_stacks_that_start_at_once_get_different_default_ports() -> None:
    # The next port may be one of another test process.
    number, other = free_port(), free_port()
    ports = [Port("Prometheus", number, "--p", chosen=False), Port("Grafana", other, "--g", chosen=False)]
    shown: list[str] = []
    with reserved_ports(ports, pytest.fail) as first, reserved_ports(ports, shown.append) as second:
        assert not {port.number for port in first} & {port.number for port in second}
    assert shown[0].startswith(f"port {number} for Prometheus is in use by another stack")
    assert free_ports(ports, pytest.fail) == ports


def test_a_chosen_port_that_another_stack_starts_on_is_refused() -> None:
    port = Port("Prometheus", free_port(), "--prometheus.port")
    with (
        reserved_ports([port], pytest.fail),
        pytest.raises(StackError, match=f"{port.number} for Prometheus is in use by another stack; free"),
    ):
        required([port])
