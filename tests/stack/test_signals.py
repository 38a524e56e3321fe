"""A stop is taken up where the launcher waits, and nowhere else."""

from __future__ import annotations

import signal

import pytest

from stallscope.lab.stack.signals import stop_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_stop_signal_ends_a_wait(number: signal.Signals) -> None:
    with stop_signals() as stop:
        signal.raise_signal(number)
        assert stop.wait(60)
        assert stop.wait(60), "a requested stop stays requested"


def test_the_end_of_a_fault_is_no_stop() -> None:
    with stop_signals() as stop:
        signal.raise_signal(signal.SIGUSR1)
        assert not stop.wait(60)
        assert stop.ends_fault
        signal.raise_signal(signal.SIGTERM)
        assert stop.wait(60)


def test_a_wait_times_out_without_a_stop_signal() -> None:
    with stop_signals() as stop:
        assert not stop.wait(0.01)


def test_a_hangup_that_nohup_ignores_is_no_stop() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.wait(0.01)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_that_come_while_everything_is_being_stopped_are_spent() -> None:
    with stop_signals():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)


def test_signals_mean_what_they_did_before_afterwards() -> None:
    with stop_signals():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
