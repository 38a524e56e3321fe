"""InfiniBand and RoCE ports: `/sys/class/infiniband`. Their traffic passes by the network interfaces' counters."""

from __future__ import annotations

from collections.abc import Iterable

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, Environment, NotPresent, register
from stallscope.node.collectors.files import entries, malformed, read_if_answered
from stallscope.node.sampling.reading import Sample

RECEIVED = family("stallscope_host_rdma_receive_bytes_total")
SENT = family("stallscope_host_rdma_transmit_bytes_total")

_LANES = 4
"""Bytes per unit of the port's counters."""
# The extended counters of old kernels come first: beside them, the plain ones stop at 32 bits.
_COUNTERS = (
    (RECEIVED, ("counters_ext/port_rcv_data_64", "counters/port_rcv_data")),
    (SENT, ("counters_ext/port_xmit_data_64", "counters/port_xmit_data")),
)


@register
class Rdma(Collector):
    """Bytes through each port. A port that counts nothing, as a virtual function's often does, has no series."""

    name = "rdma"
    summary = "Traffic of InfiniBand and RoCE ports (/sys/class/infiniband)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._class = str(environment.root / "sys/class/infiniband")

    def read(self) -> Iterable[Sample]:
        """Read each port's two counters once.

        Raises:
            NotPresent: no port has counters.
            ValueError: a counter is not as the kernel writes it.
        """
        samples = [
            Sample(counter, (device, port), words * _LANES)
            for device in entries(self._class)
            for port in entries(f"{self._class}/{device}/ports")
            for counter, files in _COUNTERS
            if (words := _first(f"{self._class}/{device}/ports/{port}", files)) is not None
        ]
        if not samples:
            raise NotPresent("no InfiniBand or RoCE port with counters")
        return samples


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
