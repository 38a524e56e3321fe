"""Write the series of a simulated cluster into a Prometheus, hours of them in seconds."""

from __future__ import annotations

import time

import numpy as np

from tests.benchmarks.cluster import Cluster, Floats
from tests.remote_write import SAMPLE_BYTES, Receiver, labels_of, samples_of, series_of, times_of

_SERIES_A_REQUEST = 4000


class RemoteWriter:
    """Sends the values of a cluster's series.

    Args:
        cluster: whose.
        port: of the Prometheus, which has its receiver on.
    """

    def __init__(self, cluster: Cluster, port: int) -> None:
        self._cluster = cluster
        self._receiver = Receiver(port)
        self._labels = {
            id(column): [labels_of({"__name__": column.name, **labels}) for labels in column.labels]
            for column in cluster.columns
        }

    def send(self, moments: Floats, *, seconds: float = 0.0) -> None:
        """Write one sample of every series at each moment, in Unix seconds, in their order and later than all before.

        Args:
            moments: when the samples are from.
            seconds: over which the writing is spread, as scrapes of many targets are.

        Raises:
            RuntimeError: Prometheus refused.
        """
        times = times_of(moments)
        size = SAMPLE_BYTES * len(moments)
        pieces: list[bytes] = []
        began, sent = time.monotonic(), 0
        for column, values in self._cluster.values(moments):
            data = samples_of(np.ascontiguousarray(values, np.float64).view(np.uint64), times)
            for row, labels in enumerate(self._labels[id(column)]):
                pieces += series_of(labels, data[row * size : (row + 1) * size])
                if len(pieces) >= _SERIES_A_REQUEST * 4:
                    self._receiver.post(b"".join(pieces))
                    pieces.clear()
                    sent += _SERIES_A_REQUEST
                    time.sleep(max(0.0, began + seconds * sent / self._cluster.series - time.monotonic()))
        self._receiver.post(b"".join(pieces))

    def close(self) -> None:
        """Close the connection."""
        self._receiver.close()
