from __future__ import annotations

import socket

import pytest

from stallscope.model.clients.deadline import deadline_after, watch


def test_a_connection_that_is_opened_after_the_deadline_is_closed() -> None:
    one, other = socket.socketpair()
    with one, other:
        with deadline_after(0.0), pytest.raises(TimeoutError):
            watch(one)
        assert one.fileno() == -1


def test_a_connection_stays_open_when_the_exchange_ends_in_time() -> None:
    one, other = socket.socketpair()
    with one, other:
        with deadline_after(60.0):
            watch(one)
        one.sendall(b"page")
        assert other.recv(4) == b"page"
