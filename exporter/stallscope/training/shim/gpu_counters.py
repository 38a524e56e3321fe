"""The exporter's counters of this rank's GPUs at one moment, for a trace."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stallscope.common.standard_library import standard_library
from stallscope.training.shim.address import host_and_port
from stallscope.training.shim.http_transport import connected, wait_until

if TYPE_CHECKING:
    from stallscope.training.shim.address import Address

TIMEOUT = 1.0
"""Seconds that one question takes at most."""
COUNTERS = {
    "stallscope_gpu_utilization_ratio": "utilisation",
    "stallscope_gpu_memory_utilization_ratio": "memory utilisation",
    "stallscope_gpu_memory_used_bytes": "memory used in bytes",
    "stallscope_gpu_power_watts": "power in watts",
    "stallscope_gpu_clock_hertz": "SM clock in hertz",
}
"""Gauges that traces show, and how they call them."""
_MOST_BYTES = 4 << 20
_LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Exporter:
    """An exporter's page of metrics. The host is looked up once, at the beginning."""

    def __init__(self, url: str) -> None:
        """Take `http://host:port`, with the metrics' path where it isn't `/metrics`.

        Raises:
            ValueError: the address is invalid.
            OSError: the host is not found.
        """
        scheme, _, rest = url.partition("://")
        rest = rest.rpartition("@")[2]  # a password is neither sent nor shown
        place, slash, path = rest.partition("/")
        try:
            if scheme != "http" or not path.isprintable() or " " in path:
                raise ValueError(scheme)
            host, port = host_and_port(place, 80)
        except ValueError:
            shown = f"{scheme.rpartition('@')[2]}://{rest}"
            raise ValueError(f"{shown!r:.200} is not an address of counters; expected http://host:port") from None
        with standard_library():  # a codec for names of hosts is imported
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self._targets: list[tuple[int, Address]] = [(family, address) for family, _, _, _, address in found]
        path = slash + path if path else "/metrics"
        self._request = f"GET {path} HTTP/1.0\r\nHost: {place}\r\nAccept: text/plain\r\n\r\n".encode()

    def counters(self, gpus: Sequence[Mapping[str, str]]) -> dict[str, float]:
        """Request the page and extract the GPUs' counters, by the names that a trace shows.

        Args:
            gpus: `{"gpu": …, "uuid": …}` of each, as a rank knows them.

        Raises:
            OSError: no response within a second.
            ValueError: the response is not such a page.
        """
        return pick(self.page(), gpus)

    def page(self) -> str:
        """Request the page of metrics.

        Raises:
            OSError: no response within a second.
            ValueError: the response is not such a page.
        """
        head, _, page = self._answer().partition(b"\r\n\r\n")
        if head[9:12] != b"200":
            raise ValueError(f"the exporter responded {head[:60]!r} to a request for counters")
        return page.decode(errors="replace")

    def _answer(self) -> bytes:
        """Read until the other end closes, as HTTP/1.0 has it; all waits together have one second."""
        deadline = time.monotonic() + TIMEOUT
        with connected(self._targets, deadline) as connection:
            connection.sendall(self._request)
            answer = bytearray()
            while len(answer) < _MOST_BYTES:
                wait_until(deadline, connection)
                part = connection.recv(65536)
                if not part:
                    break
                answer += part
            return bytes(answer)


def pick(page: str, gpus: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Pick the GPUs' counters out of a page in Prometheus' text format."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        matched = _LINE.match(line) if line.startswith("stallscope_gpu_") else None
        if matched is None or matched[1] not in COUNTERS:
            continue
        labels = dict(_LABEL.findall(matched[2]))
        number, uuid = labels.get("gpu", ""), labels.get("uuid", "")
        mine = any(uuid == gpu["uuid"] if gpu.get("uuid") else number == gpu.get("gpu") for gpu in gpus)
        if mine and labels.get("clock", "sm") == "sm":
            found[f"GPU {number} {COUNTERS[matched[1]]}"] = float(matched[3])
    return found
