"""A small but real training job: an image classifier in NumPy on one CPU, reported to the exporter by the shim.

`python -m stallscope.lab.stack.training_job` trains until SIGTERM. STALLSCOPE_RUN names its run. Its arguments are
indices of GPUs that it claims without using them; simulated GPUs can then follow the job. The data loader waits for
each batch as for a slow disk, and draws each image (a shifted glyph under noise) on demand: a bottleneck for the rules
to find, which leaves most of a CPU to others. The loss falls because the model learns.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

import stallscope

_SIDE = 24
_CLASSES = 10
_HIDDEN = 512
_BATCH = 256
_BATCHES_AN_EPOCH = 200
_READING_SECONDS = 0.025
"""Wait for each batch, without which the job would take a whole CPU."""
_NOISE = 3.0
_LEARNING_RATE = 0.002
_MOMENTUM = 0.9

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


class Glyphs:
    """Ten fixed patterns, drawn at random places under random noise."""

    def __init__(self, seed: int) -> None:
        self._patterns = np.random.default_rng(7).normal(size=(_CLASSES, _SIDE, _SIDE)).astype(np.float32)
        self._random = np.random.default_rng(seed)

    def batches(self, count: int) -> Iterator[tuple[Images, Labels]]:
        """Yield `count` batches, each drawn on demand."""
        for _ in range(count):
            time.sleep(_READING_SECONDS)
            labels = self._random.integers(_CLASSES, size=_BATCH)
            shifts = self._random.integers(-2, 3, size=(_BATCH, 2))
            images = np.stack(
                [
                    np.roll(self._patterns[label], (down, right), axis=(0, 1))
                    for label, (down, right) in zip(labels, shifts, strict=True)
                ]
            )
            images += _NOISE * self._random.standard_normal(images.shape, dtype=np.float32)
            yield images.reshape(_BATCH, -1), labels


class Classifier:
    """Two layers, softmax, cross-entropy, stochastic gradient descent with momentum."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        sizes = ((_SIDE * _SIDE, _HIDDEN), (_HIDDEN, _CLASSES))
        self._weights = [(random.standard_normal(size) / np.sqrt(size[0])).astype(np.float32) for size in sizes]
        self._biases = [np.zeros(size[1], dtype=np.float32) for size in sizes]
        self._velocities = [np.zeros_like(array) for array in (*self._weights, *self._biases)]

    def forward(self, images: Images) -> tuple[Images, Images]:
        """The hidden layer's activations, and each class' probability."""
        hidden = np.maximum(images @ self._weights[0] + self._biases[0], 0)
        scores = hidden @ self._weights[1] + self._biases[1]
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, scores / scores.sum(axis=1, keepdims=True)

    def backward(self, images: Images, labels: Labels, hidden: Images, probabilities: Images) -> list[Images]:
        """The gradients of weights and biases."""
        at_scores = probabilities.copy()
        at_scores[np.arange(len(labels)), labels] -= 1
        at_scores /= len(labels)
        at_hidden = (at_scores @ self._weights[1].T) * (hidden > 0)
        return [images.T @ at_hidden, hidden.T @ at_scores, at_hidden.sum(axis=0), at_scores.sum(axis=0)]

    def update(self, gradients: list[Images]) -> None:
        """One step downhill."""
        for array, velocity, gradient in zip((*self._weights, *self._biases), self._velocities, gradients, strict=True):
            velocity *= _MOMENTUM
            velocity -= _LEARNING_RATE * gradient
            array += velocity


def loss_of(probabilities: Images, labels: Labels) -> float:
    """Mean cross-entropy, in nats."""
    return float(-np.log(probabilities[np.arange(len(labels)), labels] + 1e-12).mean())


def main() -> None:
    """Train until SIGTERM."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    os.nice(19)
    train, validation = Glyphs(seed=2), Glyphs(seed=3)
    model = Classifier()
    # Set explicitly, since the environment may describe a GPU or a distributed job.
    gpus = [{"gpu": index} for index in sys.argv[1:]]
    with stallscope.Run(rank=0, local_rank=0, world_size=1, gpus=gpus, precision="fp32") as run:
        while not stopping:
            for images, labels in stallscope.track(train.batches(_BATCHES_AN_EPOCH), run, samples_per_step=_BATCH):
                with run.phase("forward"):
                    hidden, probabilities = model.forward(images)
                with run.phase("backward"):
                    gradients = model.backward(images, labels, hidden, probabilities)
                with run.phase("optimizer"):
                    model.update(gradients)
                run.report(loss=loss_of(probabilities, labels), learning_rate=_LEARNING_RATE)
                if stopping:
                    return
            with run.phase("evaluation"):
                hits = [
                    (model.forward(images)[1].argmax(axis=1) == labels).mean()
                    for images, labels in validation.batches(4)
                ]
            run.report(accuracy=float(np.mean(hits)))


if __name__ == "__main__":
    main()
