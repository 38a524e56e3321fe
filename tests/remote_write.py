"""Write samples into a Prometheus by its remote-write receiver, hours of them in seconds.

The protocol is one protobuf message in a snappy frame. Messages are put together from bytes, as millions of samples
through a protobuf library would take longer than their ingestion; the frame holds them uncompressed, as snappy allows.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# A sample is field 2 of its series, 16 bytes long: the value as a double (field 1), the time in milliseconds (field 2).
_SAMPLE = np.dtype([("head", "V3"), ("value", "<u8"), ("time", "V7")])
_HEAD = np.void(b"\x12\x10\x09")
_LITERAL = b"\xfc"
"""Snappy: what follows is four bytes of length less one, and so many bytes as they are."""
STALE = np.uint64(0x7FF0000000000002)
"""The bits of the value that ends a series."""


def times_of(moments: Floats) -> NDArray[np.void]:
    """Unix seconds as samples have them."""
    return np.array([b"\x10" + _varint(round(moment * 1000)) for moment in moments], "V7")


def samples_of(bits: NDArray[np.uint64], times: NDArray[np.void]) -> bytes:
    """Samples in the protocol's form.

    Args:
        bits: of the values, as `values.view(np.uint64)` has them; one row a series.
        times: of `times_of`.
    """
    samples = np.empty(bits.shape, _SAMPLE)
    samples["head"], samples["value"], samples["time"] = _HEAD, bits, times
    return samples.tobytes()


def labels_of(labels: Mapping[str, str]) -> bytes:
    """Labels in the protocol's form; one without a value is left out."""
    given = sorted((name, value) for name, value in labels.items() if value)
    return b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in given)


def series_of(labels: bytes, samples: bytes) -> tuple[bytes, ...]:
    """The pieces of a message that are one series."""
    return b"\x0a", _varint(len(labels) + len(samples)), labels, samples


SAMPLE_BYTES = _SAMPLE.itemsize


class Receiver:
    """The receiver of a Prometheus, or of another server that speaks its protocol.

    Args:
        port: of the server, which has its receiver on.
        path: of the receiver.
    """

    def __init__(self, port: int, path: str = "/api/v1/write") -> None:
        self._path = path
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def post(self, message: bytes) -> None:
        """Send series.

        Raises:
            RuntimeError: Prometheus refused.
        """
        if not message:
            return
        frame = b"".join((_varint(len(message)), _LITERAL, (len(message) - 1).to_bytes(4, "little"), message))
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        self._connection.request("POST", self._path, frame, headers)
        response = self._connection.getresponse()
        said = response.read()
        if response.status // 100 != 2:
            raise RuntimeError(f"Prometheus refused samples with {response.status}: {said[:500].decode()}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
