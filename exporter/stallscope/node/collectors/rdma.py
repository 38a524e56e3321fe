"""InfiniBand and RoCE ports: `/sys/class/infiniband`. Their traffic passes by the network interfaces' counters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, Environment, NotPresent, register
from stallscope.node.collectors.files import entries, malformed, read_if_answered
from stallscope.node.sampling.reading import Sample

RECEIVED = family("stallscope_host_rdma_receive_bytes_total")
SENT = family("stallscope_host_rdma_transmit_bytes_total")
LINK = family("stallscope_host_rdma_link_bytes_per_second")

_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec")
_LANES = 4
"""Bytes per unit of the port's counters."""
# The extended counters of old kernels come first: beside them, the plain ones stop at 32 bits.
_COUNTERS = (
    (RECEIVED, ("counters_ext/port_rcv_data_64", "counters/port_rcv_data")),
    (SENT, ("counters_ext/port_xmit_data_64", "counters/port_xmit_data")),
)


@register
class Rdma(Collector):
    """Bytes and speed of each port. A port that counts nothing, as a virtual function's often does, has no series."""

    name = "rdma"
    summary = "Traffic and speed of InfiniBand and RoCE ports (/sys/class/infiniband)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._class = str(environment.root / "sys/class/infiniband")

    def read(self) -> Iterable[Sample]:
        """Read each port's two counters, and its speed, once.

        Raises:
            NotPresent: no port has counters.
            ValueError: a counter is not as the kernel writes it.
        """
        samples = [
            sample
            for device in entries(self._class)
            for port in entries(f"{self._class}/{device}/ports")
            for sample in _of_port(f"{self._class}/{device}/ports/{port}", (device, port))
        ]
        if not samples:
            raise NotPresent("no InfiniBand or RoCE port with counters")
        return samples


def _of_port(folder: str, labels: tuple[str, str]) -> Iterator[Sample]:
    words = {counter: _first(folder, files) for counter, files in _COUNTERS}
    yield from (Sample(counter, labels, count * _LANES) for counter, count in words.items() if count is not None)
    if any(count is not None for count in words.values()) and (speed := _speed(folder)) is not None:
        yield Sample(LINK, labels, speed)


def _speed(folder: str) -> float | None:
    """Return bytes a second, 0 for a link that is not active; None if its state or its speed is unknown."""
    state = read_if_answered(f"{folder}/state")  # "4: ACTIVE"
    if state is not None and "ACTIVE" not in state:
        return 0
    rate = _RATE.match(read_if_answered(f"{folder}/rate") or "")  # "100 Gb/sec (4X EDR)"
    return None if rate is None or state is None else float(rate[1]) * 1e9 / 8


def _first(port: str, files: Iterable[str]) -> int | None:
    """Return the first of the counters that the port has."""
    for file in files:
        text = read_if_answered(f"{port}/{file}")
        if text is None or text.startswith("N/A"):  # the kernel's words where the device can't count
            continue
        try:
            return int(text)
        except ValueError:
            raise malformed(f"{port}/{file}", text.strip(), "expected a whole number") from None
    return None
