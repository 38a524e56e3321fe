"""Network interfaces: `/proc/net/dev`, with the link speed from `/sys/class/net`."""

from __future__ import annotations

from collections.abc import Iterable

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, Environment, NotPresent, register
from stallscope.node.collectors.files import exists, malformed, read_if_answered, read_text
from stallscope.node.sampling.reading import Sample

RECEIVED = family("stallscope_host_network_receive_bytes_total")
SENT = family("stallscope_host_network_transmit_bytes_total")
LINK = family("stallscope_host_network_link_bytes_per_second")
DROPS = family("stallscope_host_network_drops_total")
ERRORS = family("stallscope_host_network_errors_total")

_HEADER_LINES = 2
_BYTES_PER_MEGABIT = 125_000
_SPEED_UNKNOWN = (-1, 0, 0xFFFFFFFF)
_SPEED_INTERVAL = 60.0
"""Seconds. The speed rarely changes, and reading it takes the kernel's lock over all network configuration."""
_ETHERNET = "1"
"""ARPHRD_ETHER of `/sys/class/net/*/type`; tunnels and loopback have other types."""


@register
class Network(Collector):
    """Traffic, drops and errors of physical interfaces and of bonds.

    An interface whose master is shown itself (a port of a bond, a virtual function behind a synthetic interface) is
    left out, so that the sum over devices counts nothing twice. Where there is neither a physical interface nor a bond,
    as inside a container, the Ethernet interfaces that are up are taken instead, but no bridges, no ports of bridges
    and no `veth…`, which are the near ends of further containers.
    """

    name = "network"
    summary = "Traffic, drops, errors and speed of physical and bonded interfaces (/proc/net/dev)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._dev = str(environment.root / "proc/net/dev")
        self._class = str(environment.root / "sys/class/net")
        self._names: tuple[str, ...] = ()
        self._candidates: tuple[str, ...] = ()
        self._shown: list[str] = []
        self._speeds: dict[str, int] = {}
        self._speeds_read_at = 0.0

    def read(self) -> Iterable[Sample]:
        """Read `/proc/net/dev` once, and the speeds once a minute.

        Raises:
            NotPresent: there is nothing but loopback and virtual interfaces.
            OSError: there is no `/proc/net/dev`: no Linux, or the wrong root.
            ValueError: a file is not as the kernel writes it.
        """
        counters = self._counters(read_text(self._dev))
        now = self.environment.clock.monotonic()
        names = tuple(counters)
        if names != self._names:
            self._candidates = tuple(filter(self._is_physical_or_bond, names))
            self._names = names
        shown = [name for name in self._candidates if not self._is_counted_in_master(name)]
        if not self._candidates:
            shown = [name for name in names if self._is_way_out(name)]
        if not shown:
            raise NotPresent("no network interface but loopback and virtual ones")
        if shown != self._shown or now - self._speeds_read_at >= _SPEED_INTERVAL:
            self._speeds = self._read_speeds(shown)
            self._shown, self._speeds_read_at = shown, now
        samples: list[Sample] = []
        for name in shown:
            samples += self._interface(name, counters[name])
        return samples

    def _counters(self, text: str) -> dict[str, str]:
        """Return the numbers of each interface, still as text, by its name."""
        counters: dict[str, str] = {}
        lines = text.splitlines()
        if len(lines) <= _HEADER_LINES:
            raise malformed(self._dev, text, "expected interfaces below two lines of headings")
        for line in lines[_HEADER_LINES:]:
            name, colon, numbers = line.rpartition(":")
            if not colon:
                raise malformed(self._dev, line, "expected an interface's name and a colon")
            counters[name.strip()] = numbers
        return counters

    def _interface(self, name: str, numbers: str) -> Iterable[Sample]:
        try:
            received, _, errors_in, drops_in, _, _, _, _, sent, _, errors_out, drops_out = map(
                int, numbers.split()[:12]
            )
        except ValueError:
            raise malformed(self._dev, f"{name}:{numbers}", "expected 12 or more numbers after the colon") from None
        labels = (name,)
        samples = [
            Sample(RECEIVED, labels, received),
            Sample(SENT, labels, sent),
            Sample(DROPS, labels, drops_in + drops_out),
            Sample(ERRORS, labels, errors_in + errors_out),
        ]
        if name in self._speeds:
            samples.append(Sample(LINK, labels, self._speeds[name]))
        return samples

    def _is_physical_or_bond(self, name: str) -> bool:
        return self._has(name, "device") or self._has(name, "bonding")

    def _is_counted_in_master(self, name: str) -> bool:
        return self._has(name, "master/bonding") or self._has(name, "master/device")

    def _is_way_out(self, name: str) -> bool:
        """Return True if this may be a container's link to its network."""
        return (
            not name.startswith("veth")
            and self._attribute(name, "type") == _ETHERNET
            and self._attribute(name, "operstate") in ("up", "unknown")
            and not self._has(name, "master")
            and not self._has(name, "bridge")
        )

    def _read_speeds(self, names: Iterable[str]) -> dict[str, int]:
        """Return bytes a second of the interfaces that report a speed."""
        speeds: dict[str, int] = {}
        for name in names:
            text = self._attribute(name, "speed")
            if not text:
                continue
            try:
                megabits = int(text)
            except ValueError:
                raise malformed(f"{self._class}/{name}/speed", text, "expected a number of megabits a second") from None
            if megabits not in _SPEED_UNKNOWN:
                speeds[name] = megabits * _BYTES_PER_MEGABIT
        return speeds

    def _has(self, name: str, entry: str) -> bool:
        return exists(f"{self._class}/{name}/{entry}")

    def _attribute(self, name: str, attribute: str) -> str:
        return (read_if_answered(f"{self._class}/{name}/{attribute}") or "").strip()
