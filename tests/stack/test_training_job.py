"""The demonstration's training job learns, and reports its progress through the shim."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stallscope.lab.stack.training_job import Classifier, Glyphs, loss_of
from stallscope.training.protocol import report, vocabulary


def test_its_loss_falls() -> None:
    model = Classifier()
    losses = []
    for images, labels in Glyphs(seed=5).batches(60):
        hidden, probabilities = model.forward(images)
        losses.append(loss_of(probabilities, labels))
        model.update(model.backward(images, labels, hidden, probabilities))
    assert np.mean(losses[-5:]) < 0.85 * np.mean(losses[:5])


def test_its_gradient_is_the_slope_of_its_loss() -> None:
    model = Classifier()
    ((images, labels),) = Glyphs(seed=5).batches(1)
    hidden, probabilities = model.forward(images)
    gradients = model.backward(images, labels, hidden, probabilities)
    before = loss_of(probabilities, labels)
    model.update(gradients)
    squared = sum(float((gradient**2).sum()) for gradient in gradients)
    learning_rate = 0.002
    assert before - loss_of(model.forward(images)[1], labels) == pytest.approx(learning_rate * squared, rel=0.1)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "report.sock"))
        listener.settimeout(60)
        yield listener


def received(receiver: socket.socket) -> report.Report:
    """Return the next report; skip the datagram that announces SIGTERM."""
    while not (payload := receiver.recv(vocabulary.MAX_BYTES)).startswith(b"{"):
        pass
    return report.parse(payload)


def test_it_reports_real_steps_and_finishes_on_sigterm(receiver: socket.socket) -> None:
    environment = {**os.environ, "STALLSCOPE_ADDRESS": f"unix://{receiver.getsockname()}", "STALLSCOPE_RUN": "a-run"}
    command = [sys.executable, "-m", "stallscope.lab.stack.training_job"]
    with subprocess.Popen(command, env={**environment, "CUDA_VISIBLE_DEVICES": "0", "RANK": "5"}) as job:
        try:
            reported = received(receiver)
            while reported.step_seconds is None or reported.step_seconds.count < 3:
                reported = received(receiver)
            job.send_signal(signal.SIGTERM)
            while reported.state == "running":
                reported = received(receiver)
        finally:
            job.kill()
    assert reported.state == "finished"
    assert (reported.run, reported.rank, reported.pid) == ("a-run", 0, job.pid)
    assert reported.gpus == (), "it computes on no GPU, whatever its environment shows"
    assert {"data_wait", "forward", "backward", "optimizer"} <= set(reported.phases)
    assert reported.counters["samples"] > 0
    assert 0 < reported.gauges["loss"] < 10
