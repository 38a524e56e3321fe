"""Ports are checked before anything starts, and a busy port is reported with its service, its number and its holder."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from stallscope.stack.errors import StackError
from stallscope.stack.ports import ADDRESS, Port, require_free
from tests.free_ports import free_port


@pytest.fixture
def busy() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_free_ports_are_accepted() -> None:
    require_free([Port("Prometheus", free_port(), "--prometheus.port", datagrams=True)])


def test_a_busy_port_is_told_with_service_number_holder_and_flag(busy: int) -> None:
    with pytest.raises(StackError) as refusal:
        require_free([Port("Alertmanager", busy, "--alertmanager.port")])
    message = str(refusal.value)
    assert f"port {busy} for Alertmanager is in use by process {os.getpid()} (" in message
    assert "--alertmanager.port=PORT" in message


def test_a_port_that_is_busy_on_all_interfaces_is_busy_here_too() -> None:
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        with pytest.raises(StackError, match="in use"):
            require_free([Port("Prometheus", listener.getsockname()[1], "--prometheus.port")])


def test_a_datagram_port_is_checked_where_reports_come_in() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        number = free_port()  # for both kinds
        door.bind((ADDRESS, number))
        with pytest.raises(StackError, match=f"port {number} for the exporter"):
            require_free([Port("the exporter", number, "--exporter.port", datagrams=True)])
        require_free([Port("Prometheus", number, "--prometheus.port")])


def test_all_busy_ports_are_told_at_once(busy: int) -> None:
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        listener.listen()
        other = listener.getsockname()[1]
        with pytest.raises(StackError) as refusal:
            require_free(
                [Port("Prometheus", busy, "--prometheus.port"), Port("Alertmanager", other, "--alertmanager.port")]
            )
    assert len(str(refusal.value).splitlines()) == 2


def test_two_services_on_one_port_are_refused_by_name() -> None:
    number = free_port()
    with pytest.raises(StackError, match=f"Prometheus and Grafana have the same port {number}"):
        require_free([Port("Prometheus", number, "--prometheus.port"), Port("Grafana", number, "--grafana.port")])
