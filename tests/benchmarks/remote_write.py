"""Write samples into a Prometheus by its remote-write receiver, hours of them in seconds.

The protocol is one protobuf message in a snappy frame. Messages are put together from bytes, as millions of samples
through a protobuf library would take longer than their ingestion; the frame holds them uncompressed, as snappy allows.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Sequence

import numpy as np

from tests.benchmarks.cluster import Cluster, Floats

_SERIES_A_REQUEST = 4000
# A sample is field 2 of its series, 16 bytes long: the value as a double (field 1), the time in milliseconds (field 2).
_SAMPLE = np.dtype([("head", "V3"), ("value", "<f8"), ("time", "V7")])
_HEAD = np.void(b"\x12\x10\x09")
_LITERAL = b"\xfc"
"""Snappy: what follows is four bytes of length less one, and so many bytes as they are."""


class RemoteWriter:
    """Sends the values of a cluster's series.

    Args:
        cluster: whose.
        port: of the Prometheus, which has its receiver on.
    """

    def __init__(self, cluster: Cluster, port: int) -> None:
        self._cluster = cluster
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._labels = {
            id(column): [_labels({"__name__": column.name, **labels}) for labels in column.labels]
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
        times = np.array([b"\x10" + _varint(round(moment * 1000)) for moment in moments], "V7")
        size = _SAMPLE.itemsize * len(moments)
        pieces: list[bytes] = []
        began, sent = time.monotonic(), 0
        for column, values in self._cluster.values(moments):
            samples = np.empty(values.shape, _SAMPLE)
            samples["head"], samples["value"], samples["time"] = _HEAD, values, times
            data = samples.tobytes()
            for row, labels in enumerate(self._labels[id(column)]):
                pieces += (b"\x0a", _varint(len(labels) + size), labels, data[row * size : (row + 1) * size])
                if len(pieces) >= _SERIES_A_REQUEST * 4:
                    self._post(b"".join(pieces))
                    pieces.clear()
                    sent += _SERIES_A_REQUEST
                    time.sleep(max(0.0, began + seconds * sent / self._cluster.series - time.monotonic()))
        self._post(b"".join(pieces))

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def _post(self, message: bytes) -> None:
        if not message:
            return
        frame = b"".join((_varint(len(message)), _LITERAL, (len(message) - 1).to_bytes(4, "little"), message))
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        self._connection.request("POST", "/api/v1/write", frame, headers)
        response = self._connection.getresponse()
        said = response.read()
        if response.status // 100 != 2:
            raise RuntimeError(f"Prometheus refused samples with {response.status}: {said[:500].decode()}")


def _labels(labels: dict[str, str]) -> bytes:
    return b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in _sorted(labels))


def _sorted(labels: dict[str, str]) -> Sequence[tuple[str, str]]:
    return sorted((name, value) for name, value in labels.items() if value)


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
